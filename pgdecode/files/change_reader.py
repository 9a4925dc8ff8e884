"""Files of payloads in slot order to the changes that they commit, batch by batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode.changes.change_decoder import ChangeDecoder
from pgdecode.changes.record_batches import counted_batch
from pgdecode.files.file_metadata import catalog_of, types_of
from pgdecode.files.ordered_files import OrderedBatch, OrderedFiles
from pgdecode.files.payload_files import FileFault, PathError
from pgdecode.protocol.boundaries import AT_THE_ENDS, EVERYWHERE
from pgdecode.protocol.errors import DecodeError, listed
from pgdecode.protocol.options import ChangeOptions, Mode
from pgdecode.relations.catalog import RelationCatalog
from pgdecode.relations.version_tracker import SchemaChanged
from pgdecode.rows.value_options import ValueOptions

# Payloads of open transactions that stay in memory; the others go to files.
_HELD_BYTES = 32 * 2**20
# First bytes of the messages that tell transactions, streams and relations.
_CONTROL = [bytes([tag]) for tag in EVERYWHERE + AT_THE_ENDS]


class TableError(PathError):
    """A table that no message describes, or that cannot be laid out as columns."""

    def __init__(self, relation: str, reason: str) -> None:
        super().__init__(f"table {relation}: {reason}")
        self.relation = relation
        self.reason = reason


@dataclass(frozen=True)
class FileChangeOptions:
    """Options of changes and of values, as of `ChangeDecoder`; the caller removes the files in the `spill` folder."""

    change_options: ChangeOptions = field(default_factory=ChangeOptions)
    value_options: ValueOptions = field(default_factory=ValueOptions)
    catalog: RelationCatalog | None = None
    spill: Path | None = None


class FileChanges:
    """Decodes the payloads of files, one batch after the other, to batches of changes or of tables' rows.

    Parameters
    ----------
    files : OrderedFiles
        Where the batches are from.
    options : FileChangeOptions
        What the footers of the files say of types and of relations before the first row is added to it.
    relations : sequence of str
        Tables to decode, as "schema.table"; without any, the changes of all tables.

    Attributes
    ----------
    n_changes : int
        Rows given so far.
    bad_rows : Counter of str
        Rows with an error, those left out too, by the code of the error.
    """

    def __init__(self, files: OrderedFiles, options: FileChangeOptions, relations: Sequence[str] = ()) -> None:
        self.options = options
        self.relations = relations
        self.n_changes = 0
        self.bad_rows: Counter[str] = Counter()
        # Rows that are to be left out are counted here, so the decoder gives them.
        asked = options.change_options
        mode: Mode = "FAILFAST" if asked.mode == "FAILFAST" else "PERMISSIVE"
        paths = [file.path for file in files.files]
        catalog = options.catalog or catalog_of(paths)
        if catalog is not None and files.position is None:
            catalog = _from_before(catalog)
        self.decoder = ChangeDecoder(
            catalog=catalog,
            mode=mode,
            start=asked.start,
            empty=asked.empty,
            include_uncommitted=asked.include_uncommitted,
            drop_duplicates=asked.drop_duplicates,
            types=types_of(paths, options.value_options.types),
            columns=options.value_options.columns,
            unrepresentable=options.value_options.unrepresentable,
            encoding=options.value_options.encoding,
            datestyle=options.value_options.datestyle,
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
        self._announce(batch)
        if with_rows:
            with _placed(batch):
                self.decoder.follow(batch.payloads, batch.positions)
            return
        # Rows say nothing of relations where all is well, and those of open transactions would be kept.
        first_bytes = pc.binary_slice(batch.payloads, 0, 1)
        rows = pc.indices_nonzero(pc.is_in(first_bytes, pa.array(_CONTROL, first_bytes.type)))
        with _placed(batch, rows):
            self.decoder.follow(batch.payloads.take(rows), batch.positions.take(rows))

    def second_pass(self, *, is_fixed: bool = False, with_rows: bool = False) -> dict[str | None, pa.Schema]:
        """Begin again, and give the schema of each table.

        With `is_fixed` the first pass was over the beginning alone; should there be more versions of the tables in the
        rest, `decode` raises `SchemaChanged`. `with_rows` says that the first pass was over the rows too.

        Raises
        ------
        TableError
            If no payload has described a table, or it cannot be laid out as columns.
        SchemaChanged
            If the first pass leaves open which versions count.
        """
        counted = {*self.decoder.shape_catalog}
        # Without its rows it is not known whether a version is used that a transaction without a commit has sent.
        uncertain = () if with_rows else (item for item in self.decoder.catalog if item not in counted)
        for item in uncertain:
            if item.qualified_name in self.relations and (is_fixed or item.visible_from is not None):
                raise SchemaChanged("a table is described in a transaction that has not committed")
        schemas: dict[str | None, pa.Schema] = {}
        for name in self.relations:
            try:
                schemas[name] = self.decoder.table_schema(name)
            except KeyError:
                known = listed(self.decoder.catalog.names)
                raise TableError(name, f"no message describes this table; there are {known}") from None
            except ValueError as error:
                raise TableError(name, str(error)) from error
        self.decoder = self.decoder.restart(self.relations if is_fixed else None)
        return schemas

    def decode(self, batch: OrderedBatch) -> Iterator[tuple[str | None, pa.RecordBatch]]:
        """Decode the next payloads to batches of rows, each with the name of its table.

        Raises
        ------
        FileFault
            In FAILFAST mode at a bad payload or value. If that is a payload of `batch`, what was committed by the
            payloads before it comes first, unless it is too much for one batch of rows.
        """
        self._announce(batch)
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
        if not self.options.change_options.include_uncommitted or not self.decoder.n_undecided:
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
        error = "_error" if self.relations else "error"
        rows = counted_batch(rows, error, self.options.change_options.mode == "DROPMALFORMED", self.bad_rows)
        self.n_changes += len(rows)
        return rows

    def _announce(self, batch: OrderedBatch) -> None:
        if batch.is_reconnected:
            self.decoder.reconnected()


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
