"""Decodes payload files in slot order to committed changes, batch by batch."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode.changes.change_decoder import ChangeDecoder
from pgdecode.changes.record_batches import counted_batch
from pgdecode.changes.replication_state import ReplicationState
from pgdecode.changes.stored_state import StoredState
from pgdecode.changes.table_snapshot import SnapshotRows, last_named
from pgdecode.files.file_metadata import UserType, catalog_of, encoding_of, overridden, user_types_of
from pgdecode.files.ordered_files import OrderedBatch, OrderedFiles
from pgdecode.files.payload_file import FileFault
from pgdecode.payloads.payload_input import InvalidPositions
from pgdecode.payloads.unwrap import hint
from pgdecode.protocol.boundaries import ALWAYS_NEEDED, BEGIN_COMMIT
from pgdecode.protocol.errors import DecodeError, did_you_mean, listed
from pgdecode.protocol.options import ChangeOptions, Mode
from pgdecode.relations.catalog import RelationCatalog, before_payloads
from pgdecode.relations.column_history import NO_RENAMES, check_renames, histories
from pgdecode.relations.table_names import named
from pgdecode.relations.version_tracker import SchemaChanged
from pgdecode.rows.value_options import ValueOptions
from pgdecode.runs.state_files import SourceState
from pgdecode.storage.errors import PathError

# Bytes of payloads of undecided transactions that stay in memory. The others go to files.
_HELD_BYTES = 32 * 2**20
# Tags of the messages that describe transactions, streams and relations.
_CONTROL = [bytes([tag]) for tag in ALWAYS_NEEDED + BEGIN_COMMIT]

# Builds batches of changes, each with the name of its table. It may be called in another thread.
Slice = Callable[[], list[tuple[str | None, pa.RecordBatch]]]


class TableError(PathError):
    """A table that no message describes, or that cannot be laid out as columns.

    `what` is "table", or "snapshot" if the rows at the end were requested.
    """

    def __init__(self, relation: str, reason: str, what: str = "table") -> None:
        super().__init__(f"{what} {relation}: {reason}")
        self.relation = relation
        self.reason = reason
        self.what = what


@dataclass(frozen=True)
class FileChangeOptions:
    """Options of changes and values, as in `ChangeDecoder`. The caller removes the files in the `spill` folder.

    `stored` is the state of the run before, if the files continue one. With `keep_errors`, errors are collected.
    """

    change_options: ChangeOptions = field(default_factory=ChangeOptions)
    value_options: ValueOptions = field(default_factory=ValueOptions)
    catalog: RelationCatalog | None = None
    spill: Path | None = None
    stored: StoredState | None = None
    keep_errors: bool = False


class FileChanges:
    """Decodes the payloads of files, batch by batch, to changes or to rows of tables.

    Parameters
    ----------
    files : OrderedFiles
        The files of the batches.
    options : FileChangeOptions
        Types and relations from the footers of the files, and of those of earlier runs, are added to these options.
    relations : sequence of str
        Tables to decode, as "schema.table". If empty, the changes of all tables are decoded.
    is_snapshot : bool
        Return the changes of tables for `snapshots`: a table is found by its last name, and its changes under former
        names are included.

    Attributes
    ----------
    n_changes : int
        Number of rows returned so far.
    bad_rows : dict of str or None to Counter of str
        Number of rows with an error, including those left out, by table and error code. None means all changes.
    snapshots : dict of str to SnapshotRows
        With `is_snapshot`, after `second_pass`: the rows of each table, to which the caller applies the changes.
    errors : dict of int to str
        With `keep_errors`: the error of each bad payload, by its position.
    source : SourceState
        After the last batch.
    """

    def __init__(
        self,
        files: OrderedFiles,
        options: FileChangeOptions,
        relations: Sequence[str] = (),
        *,
        is_snapshot: bool = False,
    ) -> None:
        self.options = options
        self.relations = relations
        self.is_snapshot = is_snapshot
        self.snapshots: dict[str, SnapshotRows] = {}
        # The names of tables, by what the decoder is asked for: the same, or with `is_snapshot` the OIDs.
        self._names: dict[str | int, str] = {} if is_snapshot else {name: name for name in relations}
        self.n_changes = 0
        self.bad_rows: dict[str | None, Counter[str]] = {name: Counter() for name in relations or (None,)}
        self.errors: dict[int, str] = {}
        # This class drops and counts bad rows, so the decoder must return them.
        change_options = options.change_options
        mode: Mode = "FAILFAST" if change_options.mode == "FAILFAST" else "PERMISSIVE"
        before = SourceState() if options.stored is None else options.stored.source
        types = user_types_of(files.files, [UserType(*item) for item in before.user_types])
        self.source = replace(before, user_types=[(item.oid, item.name, item.declaration) for item in types])
        state = ReplicationState() if options.stored is None else options.stored.state
        catalog = state.first_catalog(options.catalog or catalog_of(files.files))
        if catalog is not None and files.position is None:
            catalog = before_payloads(catalog)
        # The number of versions that a catalog has. Others are of the payloads.
        self._n_given = 0 if catalog is None else len(catalog)
        decoder = ChangeDecoder if options.stored is None else partial(ChangeDecoder.resumed, options.stored)
        self.decoder = decoder(
            catalog=catalog,
            mode=mode,
            start=change_options.start,
            empty=change_options.empty,
            include_uncommitted=change_options.include_uncommitted,
            drop_duplicates=change_options.drop_duplicates,
            limits=change_options.limits,
            types=overridden(types, options.value_options.types) or None,
            columns=options.value_options.columns,
            renames=options.value_options.renames,
            unrepresentable=options.value_options.unrepresentable,
            name_clash="rename" if is_snapshot else options.value_options.name_clash,
            encoding=encoding_of(files.files, options.value_options.encoding),
            datestyle=options.value_options.datestyle,
            spill=options.spill,
            max_held_bytes=_HELD_BYTES,
        )
        self.decoder.is_counted = files.is_counted

    @property
    def altered_types(self) -> tuple[str, ...]:
        """Names of composite types that were altered while they were captured. Their values are text."""
        types = (UserType(*item) for item in self.source.user_types)
        return tuple(item.key for item in types if item.declaration == "record")

    def follow(self, batch: OrderedBatch, with_rows: bool = False) -> None:
        """Process payloads in a first pass, to find the versions of relations.

        Raises
        ------
        FileFault
            In FAILFAST mode at a bad payload, with its location.
        """
        self._announce(batch)
        if with_rows:
            with _as_file_fault(batch):
                self.decoder.follow(batch.payloads, batch.positions)
            return
        # Rows do not matter for relations unless payloads are bad, and those of open transactions would be buffered.
        first_bytes = pc.binary_slice(batch.payloads, 0, 1)
        rows = pc.indices_nonzero(pc.is_in(first_bytes, pa.array(_CONTROL, first_bytes.type)))
        with _as_file_fault(batch, rows):
            self.decoder.follow(batch.payloads.take(rows), batch.positions.take(rows))

    def second_pass(self, *, is_fixed: bool = False, with_rows: bool = False) -> dict[str | None, pa.Schema]:
        """Start the second pass, and return the schema of each table.

        Parameters
        ----------
        is_fixed : bool
            Whether the first pass covered only the beginning of the input. `decode` then raises `SchemaChanged` if the
            rest has further versions of the tables.
        with_rows : bool
            Whether the first pass processed rows too.

        Raises
        ------
        TableError
            If no payload has described a table, or its columns cannot be decoded together; with `is_snapshot`, if the
            last name of a table is another.
        SchemaChanged
            If it is not certain after the first pass which versions are used.
        """
        known = self.decoder.catalog.names
        what = "snapshot" if self.is_snapshot else "table"
        try:
            tables = {named(name, known) for name in self.relations}
        except KeyError as error:
            name = next(name for name in self.relations if repr(name) in error.args[0])
            raise TableError(name, error.args[0], what) from None
        certain = {*self.decoder.shape_catalog}
        # A version from a transaction without a commit may be used or not. Only the rows show that.
        sent = islice(self.decoder.catalog, self._n_given, None)
        uncertain = () if with_rows else (item for item in sent if item not in certain)
        relation_ids = {item.relation_id for item in self.decoder.catalog if item.qualified_name in tables}
        for item in uncertain:
            is_wanted = item.relation_id in relation_ids if self.is_snapshot else item.qualified_name in tables
            if is_wanted and (is_fixed or item.visible_from is not None):
                raise SchemaChanged("a table is described in a transaction that has not committed")
        schemas: dict[str | None, pa.Schema] = {}
        for name in self.relations:
            try:
                schemas[name] = self._start_snapshot(name) if self.is_snapshot else self.decoder.table_schema(name)
            except KeyError as error:
                is_renamed = named(name, known) in self.decoder.shape_catalog.names
                reason = error.args[0] if is_renamed else _not_described(named(name, known), known)
                raise TableError(name, reason, what) from None
            except ValueError as error:
                raise TableError(name, str(error), what) from error
        self.decoder = self.decoder.restart((*self.relations, *tables, *self._names) if is_fixed else None)
        return schemas

    def _start_snapshot(self, name: str) -> pa.Schema:
        """Make the rows of a table, which are none so far, and return their schema."""
        relation_id = last_named(self.decoder.shape_catalog, name)
        self._names[relation_id] = name
        versions, stated = self.decoder.versions_of(relation_id), self.options.value_options.renames or NO_RENAMES
        check_renames(histories(versions, stated))
        self.snapshots[name] = SnapshotRows(
            self.decoder.table_schema(relation_id, as_sent=True),
            versions,
            stated,
            with_errors=self.options.change_options.mode == "PERMISSIVE",
            name_clash=self.options.value_options.name_clash,
        )
        return self.snapshots[name].schema

    def decode(self, batch: OrderedBatch) -> Iterator[tuple[str | None, pa.RecordBatch]]:
        """Decode the next payloads, and yield batches of rows, each with the name of its table.

        Raises
        ------
        FileFault
            In FAILFAST mode at a bad payload or value. If this payload is in `batch`, the changes that earlier payloads
            committed are yielded first, unless they need more than one batch of rows.
        """
        self._announce(batch)
        n_before = self.n_changes
        n_rows = len(batch.payloads)
        fault = None
        with _as_file_fault(batch):
            while True:
                try:
                    yield from self._decode(batch.payloads.slice(0, n_rows), batch.positions.slice(0, n_rows))
                except DecodeError as error:
                    fault = error
                    if error.row and self.n_changes == n_before:
                        # The failed call has not changed the decoder's state. Decode the payloads before the bad one.
                        n_rows = error.row
                        continue
                if fault is not None:
                    try:
                        raise fault
                    finally:
                        # It refers to this frame, and must not keep what is in memory here.
                        fault = None
                return

    def slices(self, batch: OrderedBatch) -> Iterator[Slice]:
        """Process the next payloads, and yield functions that build the changes that they commit, see `Slice`.

        The functions raise FileFault, in FAILFAST mode at a bad payload or value. `count` counts their rows.
        """
        self._announce(batch)
        try:
            found = self.decoder.slices(
                batch.payloads, [*self._names] or None, batch.positions, with_version=self.is_snapshot
            )
        except (DecodeError, InvalidPositions):
            # The failed call has not changed the decoder's state. An earlier payload may have a bad value.
            deque(self.decode(batch), maxlen=0)
            raise
        yield from (partial(self._built, batch, build) for build in found)

    def _built(
        self, batch: OrderedBatch, build: Callable[[], list[tuple[str | int | None, pa.RecordBatch]]]
    ) -> list[tuple[str | None, pa.RecordBatch]]:
        with _as_file_fault(batch):
            return [(None if table is None else self._names[table], rows) for table, rows in build()]

    def finish(self) -> Iterator[tuple[str | None, pa.RecordBatch]]:
        """Yield the changes of undecided transactions after the last payload, with `include_uncommitted`.

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
            yield name, self.count(name, rows)

    def _decode(self, payloads: pa.Array, positions: pa.Array) -> Iterator[tuple[str | None, pa.RecordBatch]]:
        if self.relations:
            for table, rows in self.decoder.tables_batches(payloads, [*self._names], positions):
                yield self._names[table], self.count(self._names[table], rows)
        else:
            for rows in self.decoder.decode_batches(payloads, positions):
                yield None, self.count(None, rows)

    def count(self, name: str | None, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Count rows of a table from `slices`, and drop bad rows in DROPMALFORMED mode."""
        error = "_error" if self.relations else "error"
        if self.options.keep_errors and rows.column(error).null_count < len(rows):
            bad = rows.filter(rows.column(error).is_valid())
            positions = bad.column("_position" if self.relations else "position").to_pylist()
            self.errors.update(zip(positions, bad.column(error).to_pylist(), strict=True))
        rows = counted_batch(rows, error, self.options.change_options.mode == "DROPMALFORMED", self.bad_rows[name])
        self.n_changes += len(rows)
        return rows

    @property
    def n_skipped(self) -> int:
        """Number of transactions that this run has left out because their beginning is missing."""
        stored = self.options.stored
        return self.decoder.skipped - (0 if stored is None else stored.state.skipped.count)

    @property
    def n_repeated(self) -> int:
        """Number of commits of this run whose LSN is not greater than that of all before."""
        stored = self.options.stored
        return self.decoder.repeated - (0 if stored is None else stored.state.n_repeated)

    def apply(self, name: str, rows: pa.RecordBatch) -> None:
        """Apply changes to the rows of a table.

        Raises
        ------
        FileFault
            If a change may be of several rows.
        """
        with _apply_faults(name):
            self.snapshots[name].apply(rows)

    def snapshot(self, name: str) -> pa.Table:
        """Return the rows of a table after the last payload. It raises what `apply` raises."""
        with _apply_faults(name):
            return self.snapshots[name].counted_table(
                self.bad_rows[name], self.decoder.skipped, self.decoder.n_undecided
            )

    def check_renames(self) -> None:
        """After the last payload, check that the table has each rename of the options.

        Raises
        ------
        FileFault
            If it does not. In a run that continues another one, renames may be from before.
        """
        stated = self.options.value_options.renames
        if stated and self.options.stored is None:
            versions = dict(enumerate(self.decoder.shape_catalog))
            try:
                check_renames(histories(versions, stated), is_complete=True)
            except ValueError as error:
                raise FileFault(str(error)) from error

    def _announce(self, batch: OrderedBatch) -> None:
        if batch.is_reconnected:
            self.decoder.reconnected()
        if batch.session is not None:
            self.source = replace(self.source, session=batch.session)


def _not_described(name: str, known: Sequence[str]) -> str:
    """Say that no message describes a table, and which one the caller may mean."""
    if name in known:
        return "no committed transaction of the input describes or uses this table"
    return f"no message describes this table{did_you_mean(name, known)}; there are {listed(known)}"


@contextmanager
def _apply_faults(name: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise FileFault(f"snapshot {name}: {error}") from error


@contextmanager
def _as_file_fault(batch: OrderedBatch, rows: pa.Array | None = None) -> Iterator[None]:
    """Convert a DecodeError to a FileFault with its location. `rows` are the rows of the batch that were decoded."""
    try:
        yield
    except DecodeError as error:
        # An error in a buffered change from an earlier batch has no row.
        where, form = f"rows from {batch.start}", ""
        if error.row is not None:
            row = error.row if rows is None else rows[error.row].as_py()
            where, form = f"row {batch.start + row}", hint(batch.payloads[row].as_py())
        raise FileFault(f"{batch.file.path}: {where}: {error.cell}{form}") from error
    except InvalidPositions as error:
        raise FileFault(f"{batch.file.path}: {error}") from error
