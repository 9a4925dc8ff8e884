"""Files of payloads in slot order to the changes that they commit, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode.catalog import RelationCatalog
from pgdecode.changes import ChangeDecoder
from pgdecode.errors import DecodeError, listed
from pgdecode.files import FileFault, PathError
from pgdecode.ordered import OrderedBatch, OrderedFiles
from pgdecode.readings import Reading
from pgdecode.runs import AT_THE_ENDS, EVERYWHERE
from pgdecode.visibility import Unforeseen

# Payloads of open transactions that stay in memory; the others go to files.
_HELD_BYTES = 32 * 2**20
# First bytes of the messages that tell transactions, streams and relations.
_CONTROL = [bytes([tag]) for tag in EVERYWHERE + AT_THE_ENDS]


@dataclass(frozen=True)
class ChangeOptions:
    """How changes are asked for, as of `ChangeDecoder`; what it spills goes to a folder that the caller clears."""

    mode: str = "FAILFAST"
    include_uncommitted: bool = False
    catalog: RelationCatalog | None = None
    reading: Reading = field(default_factory=Reading)
    spill: Path | None = None


class FileChanges:
    """Decodes the payloads of files, one batch after the other, to batches of changes or of tables' rows.

    Parameters
    ----------
    files : OrderedFiles
        Where the batches are from.
    options : ChangeOptions
    relations : sequence of str
        Tables to decode, as "schema.table"; without any, the changes of all tables.

    Attributes
    ----------
    n_changes : int
        Rows given so far.
    n_bad : int
        Rows with an error, those left out too.
    """

    def __init__(self, files: OrderedFiles, options: ChangeOptions, relations: Sequence[str] = ()) -> None:
        self.options = options
        self.relations = relations
        self.n_changes = 0
        self.n_bad = 0
        # Rows that are to be left out are counted here, so the decoder gives them.
        mode = "FAILFAST" if options.mode == "FAILFAST" else "PERMISSIVE"
        catalog = options.catalog
        if catalog is not None and files.position is None:
            catalog = _from_before(catalog)
        self.decoder = ChangeDecoder(
            catalog=catalog,
            mode=mode,
            include_uncommitted=options.include_uncommitted,
            types=options.reading.types,
            unrepresentable=options.reading.unrepresentable,
            encoding=options.reading.encoding,
            datestyle=options.reading.datestyle,
            spill=options.spill,
            max_held_bytes=_HELD_BYTES,
        )

    def follow(self, batch: OrderedBatch, with_rows: bool = False) -> None:
        """Take up payloads in a first pass, for the relations alone.

        Raises
        ------
        FileFault
            In FAILFAST mode at a bad payload, which the text names.
        """
        if with_rows:
            with _placed(batch):
                self.decoder.follow(batch.payloads, batch.positions)
            return
        # Rows say nothing of relations where all is well, and those of open transactions would be kept.
        first_bytes = pc.binary_slice(batch.payloads, 0, 1)
        rows = pc.indices_nonzero(pc.is_in(first_bytes, pa.array(_CONTROL, first_bytes.type)))
        with _placed(batch, rows):
            self.decoder.follow(batch.payloads.take(rows), batch.positions.take(rows))

    def second_pass(self, foreseen: bool = False) -> dict[str | None, pa.Schema]:
        """Begin again, and give the schema of each table.

        With `foreseen` the first pass was over the beginning alone; should there be more versions of the tables in the
        rest, `decode` raises `Unforeseen`.

        Raises
        ------
        PathError
            If no payload has described a table, or it cannot be laid out as columns.
        Unforeseen
            If the beginning leaves open which versions count.
        """
        undecided = [item for item in self.decoder.catalog if item.visible_from is None]
        if foreseen and any(item.qualified_name in self.relations for item in undecided):
            raise Unforeseen("a table is described in a transaction that is not over")
        schemas: dict[str | None, pa.Schema] = {}
        for name in self.relations:
            try:
                schemas[name] = self.decoder.table_schema(name)
            except KeyError:
                known = listed(self.decoder.catalog.names)
                raise PathError(f"--table {name}: no message describes this table; there are {known}") from None
            except ValueError as error:
                raise PathError(f"--table {name}: {error}") from error
        self.decoder = self.decoder.again(self.relations if foreseen else None)
        return schemas

    def decode(self, batch: OrderedBatch) -> Iterator[tuple[str | None, pa.RecordBatch]]:
        """Decode the next payloads to batches of rows, each with the name of its table.

        Raises
        ------
        FileFault
            In FAILFAST mode at a bad payload or value. If that is a payload of `batch`, what was committed by the
            payloads before it comes first, unless it is too much for one batch of rows.
        """
        n_before = self.n_changes
        n_rows = len(batch.payloads)
        fault = None
        with _placed(batch):
            while True:
                try:
                    yield from self._decoded(batch.payloads.slice(0, n_rows), batch.positions.slice(0, n_rows))
                except DecodeError as error:
                    fault = error
                    if error.row and self.n_changes == n_before:
                        # The decoder stands where it stood before, and takes what lies before the fault.
                        n_rows = error.row
                        continue
                if fault is not None:
                    raise fault
                return

    def rest(self) -> Iterator[tuple[str | None, pa.RecordBatch]]:
        """Give, after the last payload and if they are wanted, the changes of transactions without an outcome.

        Raises
        ------
        FileFault
            In FAILFAST mode at a value that cannot be decoded.
        """
        if not self.options.include_uncommitted or not self.decoder.n_undecided:
            return
        for name in self.relations or (None,):
            try:
                rows = self.decoder.undecided(name)
            except DecodeError as error:
                raise FileFault(f"a transaction without an outcome: {error.cell}") from error
            yield name, self._counted(rows)

    def _decoded(self, payloads: pa.Array, positions: pa.Array) -> Iterator[tuple[str | None, pa.RecordBatch]]:
        if self.relations:
            for name, rows in self.decoder.tables_batches(payloads, self.relations, positions):
                yield name, self._counted(rows)
        else:
            for rows in self.decoder.decode_batches(payloads, positions):
                yield None, self._counted(rows)

    def _counted(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Count rows, and leave out bad ones if they are not wanted."""
        errors = rows.column("_error" if self.relations else "error")
        n_bad = len(errors) - errors.null_count
        self.n_bad += n_bad
        if n_bad and self.options.mode == "DROPMALFORMED":
            rows = rows.filter(pc.is_null(errors))
        self.n_changes += len(rows)
        return rows


def _from_before(catalog: RelationCatalog) -> RelationCatalog:
    """Let all versions come before payloads whose positions are only counted: they cannot be compared."""
    return RelationCatalog(
        replace(version, position=-1, visible_from=None if version.visible_from is None else -1) for version in catalog
    )


@contextmanager
def _placed(batch: OrderedBatch, rows: pa.Array | None = None) -> Iterator[None]:
    """Turn a bad payload into a fault of its file; `rows` are the payloads of the batch that were decoded."""
    try:
        yield
    except DecodeError as error:
        # Changes of a transaction that goes on over several batches have lost their row.
        where = f"rows from {batch.start}"
        if error.row is not None:
            where = f"row {batch.start + (error.row if rows is None else rows[error.row].as_py())}"
        raise FileFault(f"{batch.file.path}: {where}: {error.cell}") from error
