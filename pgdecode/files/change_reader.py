"""Decodes payload files in slot order to committed changes, batch by batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pyarrow as pa

from pgdecode.changes.change_engine import BuiltRows, ChangeEngine
from pgdecode.changes.change_rows import TextOutput
from pgdecode.changes.record_batches import LimitedBuilder, counted_batch
from pgdecode.changes.replication_state import ReplicationState
from pgdecode.changes.stored_state import StoredState
from pgdecode.changes.table_rows import Table, TableBuilder, TableOutput
from pgdecode.files.file_metadata import catalog_of, with_footers
from pgdecode.files.ordered_files import OrderedBatch, OrderedFiles
from pgdecode.files.payload_file import FileFault
from pgdecode.net.net_changes import NetChanges
from pgdecode.net.snapshot import SnapshotRows, last_named
from pgdecode.payloads.commits import rows_as_of
from pgdecode.payloads.payload_input import InvalidPositions
from pgdecode.payloads.unwrap import hint
from pgdecode.protocol.as_of import AsOf
from pgdecode.protocol.errors import DecodeError, did_you_mean, listed
from pgdecode.relations.catalog import RelationCatalog, before_payloads
from pgdecode.relations.column_history import NO_RENAMES, check_renames, histories
from pgdecode.relations.relation_version import RelationVersion
from pgdecode.relations.table_names import named
from pgdecode.rows.options import Options
from pgdecode.storage.errors import PathError
from pgdecode.types.user_types import UserType

# Bytes of payloads of undecided transactions that stay in memory. The others go to files.
_HELD_BYTES = 32 * 2**20

# All versions of each table, with its name or OID.
TableVersions = Mapping[str, tuple[str | int, Mapping[int, RelationVersion]]]
# Builds batches of changes, each with the name of its table and its builder. It may be called in another thread.
Slice = Callable[[], list[BuiltRows[str | None]]]


class ValueFault(FileFault):
    """A fault of a table's row. With later versions of the table, it may be none."""


class TableError(PathError):
    """A table that no message describes, or that cannot be laid out as columns.

    `what` is "table", or "snapshot" or "net" if these were requested.
    """

    def __init__(self, relation: str, reason: str, what: str = "table") -> None:
        super().__init__(f"{what} {relation}: {reason}")
        self.relation = relation
        self.reason = reason
        self.what = what


class LayoutUnknown(Exception):
    """The rows cannot be written before all versions of their tables are known."""


@dataclass(frozen=True)
class FileChangeOptions:
    """Options of changes and values, as in `ChangeDecoder`. The caller removes the files in the `spill` folder.

    `stored` is the state of the run before, if the files continue one. With `keep_errors`, errors are collected.
    """

    options: Options = field(default_factory=Options)
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
        Return the changes of tables for `snapshot`: a table is found by its last name, and its changes under former
        names are included.
    net_key : sequence of str, optional
        Collect the net changes of tables by this key; empty for the replica identity. Tables are found as for
        `snapshot`.
    versions : mapping, optional
        All versions of the tables, from `last_versions` of a reader that has read the files. By default, rows have the
        columns of the versions so far.

    Attributes
    ----------
    bad_rows : dict of str or None to Counter of str
        Number of rows with an error, including those left out, by table and error code. None means all changes.
    errors : dict of int to str
        With `keep_errors`: the error of each bad payload, by its position.
    user_types : list of (OID, name, declaration)
        From the footers of these and of earlier files.
    session : str or None
        The value of the session column, as text.
        After the last batch.
    """

    def __init__(
        self,
        files: OrderedFiles,
        options: FileChangeOptions,
        relations: Sequence[str] = (),
        *,
        is_snapshot: bool = False,
        net_key: Sequence[str] | None = None,
        versions: TableVersions | None = None,
    ) -> None:
        self.options = options
        self.relations = relations
        self.is_snapshot = is_snapshot
        self._net_key = net_key
        self.bad_rows: dict[str | None, Counter[str]] = {name: Counter() for name in relations or (None,)}
        self.errors: dict[int, str] = {}
        stored = options.stored
        before = [] if stored is None else [UserType(*item) for item in stored.user_types]
        given, types = with_footers(options.options, files.files, before)
        self.user_types = [(item.oid, item.name, item.declaration) for item in types]
        self.session = None if stored is None else stored.session
        state = ReplicationState() if stored is None else stored.state.copy()
        catalog = state.first_catalog(options.catalog or catalog_of(files.files))
        if catalog is not None and files.position is None:
            catalog = before_payloads(catalog)
        self.engine = ChangeEngine(
            replace(
                given,
                # This class drops and counts bad rows, so the engine must return them.
                mode="FAILFAST" if given.mode == "FAILFAST" else "PERMISSIVE",
                name_clash="rename" if is_snapshot else given.name_clash,
            ),
            state=state,
            catalog=catalog,
            spill=options.spill,
            max_held_bytes=_HELD_BYTES,
            is_counted=files.is_counted,
        )
        self._versions = versions
        # The names of tables, by what the engine is asked for: the same, or if rows are collected, the OIDs.
        self._names: dict[str | int, str] = {} if self.collects else {name: name for name in relations}
        # The OIDs that tables had at the end of the run before.
        self._former = {}
        if net_key is not None:
            for name in relations:
                with suppress(KeyError):
                    self._former[name] = last_named(self.engine.layout_catalog, name)
        if self.collects and versions is not None:
            self._names = {oid: name for name, (oid, _) in versions.items()}
        self._text = TextOutput()
        self._typed = TableOutput[str | int](
            (),
            with_version=is_snapshot,
            known={} if versions is None else dict(versions.values()),
        )
        self._first_schemas: dict[str, pa.Schema] = {}
        self._n_versions = 0  # after the batch before
        self._has_payloads = False
        self._end: int | None = None  # the position after all rows, if the last ones are not decoded
        self._snapshots: dict[str, SnapshotRows] = {}
        self._nets: dict[str, NetChanges] = {}
        self._snapshot_versions: dict[str, Mapping[int, RelationVersion]] = {}

    @property
    def saved_state(self) -> ReplicationState:
        """The state after the last batch, also if its rows came after `as_of`."""
        state = self.engine.saved_state
        return state if self._end is None else replace(state, position=self._end)

    @property
    def has_later_commits(self) -> bool:
        """Whether the last batch or one before had a commit after `as_of`."""
        return self._end is not None

    @property
    def altered_types(self) -> tuple[str, ...]:
        """Names of composite types that were altered while they were captured. Their values are text."""
        types = (UserType(*item) for item in self.user_types)
        return tuple(item.key for item in types if item.declaration == "record")

    def advance(self, batch: OrderedBatch) -> None:
        """Process the next payloads without decoding changes.

        Raises
        ------
        FileFault
            In FAILFAST mode at a bad payload.
        """
        batch = self._begin(batch)
        with as_file_fault(batch):
            self.engine.advance(batch.payloads, batch.positions)

    def slices(self, batch: OrderedBatch) -> Iterator[Slice]:
        """Process the next payloads, and yield functions that build the changes that they commit, see `Slice`.

        The functions raise FileFault, in FAILFAST mode at a bad payload or value. `count` counts their rows.

        Raises
        ------
        TableError
            If a table cannot be laid out as columns with the versions so far.
        LayoutUnknown
            If rows of a snapshot can only be found with all versions.
        """
        batch = self._begin(batch)
        with as_file_fault(batch), self._table_errors():
            functions, error = self.engine.slices(batch.payloads, batch.positions, self)
        self._n_versions, self._has_payloads = len(self.engine.state.relations.versions), True
        yield from (partial(self._built, batch, build) for build in functions)
        if error is not None:
            with as_file_fault(batch):
                raise error

    def decode(self, batch: OrderedBatch) -> Iterator[tuple[str | None, pa.RecordBatch]]:
        """Process the next payloads, and yield the rows that they commit, each batch with the name of its table."""
        for build in self.slices(batch):
            for name, rows, _ in build():
                yield name, self.count(name, rows)

    def _built(self, batch: OrderedBatch, build: Slice) -> list[BuiltRows[str | None]]:
        with as_file_fault(batch, ValueFault if self.relations else FileFault):
            return build()

    # -- tables, as an output of the engine ----------------------------------------------------------------------------

    @property
    def tables(self) -> Sequence[str | int] | None:
        """The tables whose changes are needed; None for all, also if the OID of a table is not known yet."""
        return [*self._names] if self.relations and len(self._names) == len(self.relations) else None

    def builders(self, engine: ChangeEngine) -> list[tuple[str | None, LimitedBuilder]]:
        """Make the builders of the tables that have been described so far, or of all changes."""
        if not self.relations:
            return [(None, self._text.builder(engine))]
        if self.collects and self._versions is None:
            self._find_tables(engine)
        everything = engine.options.include_uncommitted
        builders: list[tuple[str | None, LimitedBuilder]] = []
        for table, name in self._names.items():
            if self._versions is not None or engine.state.relations.numbers_of(table, everything=everything):
                builder = self._builder(table, name)
                self._first_schemas.setdefault(name, builder.schema)
                builders.append((name, builder))
        # Bad payloads are in the output of each table, also before it is described.
        described = dict(builders)
        nothing = Table((), engine.options)
        builders += [
            (name, TableBuilder(nothing, {}, engine.options, with_version=self.is_snapshot))
            for name in self.relations
            if name not in described
        ]
        return builders

    def _find_tables(self, engine: ChangeEngine) -> None:
        """Find the OIDs of the tables that have the names now."""
        catalog = engine.layout_catalog
        for name in self.relations:
            with suppress(KeyError):
                relation_id = last_named(catalog, name)
                if self._names.get(relation_id) == name:
                    continue
                is_late = self._has_payloads and min(engine.versions_of(relation_id)) < self._n_versions
                if is_late or name in self._names.values():
                    raise LayoutUnknown
                self._names[relation_id] = name

    def _builder(self, table: str | int, name: str) -> TableBuilder:
        try:
            return self._typed.builder(self.engine, table)
        except ValueError as error:
            raise TableError(name, str(error), self._what) from error

    @property
    def _what(self) -> str:
        return "net" if self._net_key is not None else "snapshot" if self.is_snapshot else "table"

    @property
    def collects(self) -> bool:
        """Whether the rows of tables are collected by `apply`, and returned at the end by `collected`."""
        return self.is_snapshot or self._net_key is not None

    @contextmanager
    def _table_errors(self) -> Iterator[None]:
        """Convert the KeyError of a name that may be that of several tables."""
        try:
            yield
        except KeyError as error:
            text = error.args[0]
            name = next((name for name in self.relations if repr(name) in text), self.relations[0])
            raise TableError(name, text, self._what) from None

    def last_versions(self) -> TableVersions:
        """After the last batch, return all versions of the tables that determine their columns.

        Raises
        ------
        TableError
            If no payload has described a table, or its columns cannot be decoded together; if rows are collected and
            the last name of a table is another; if net changes would be of another table than in the run before.
        """
        engine = self.engine
        known = engine.catalog.names
        versions: dict[str, tuple[str | int, Mapping[int, RelationVersion]]] = {}
        for name in self.relations:
            with self._table_errors():
                full_name = named(name, known)
            try:
                table = last_named(engine.layout_catalog, name) if self.collects else name
                versions[name] = table, engine.versions_of(table)
            except KeyError as error:
                is_renamed = full_name in engine.layout_catalog.names
                raise TableError(
                    name, error.args[0] if is_renamed else _not_described(full_name, known), self._what
                ) from None
            former = self._former.get(name, table)
            if former != table:
                text = f"it is another table (OID {table}) than in the run before (OID {former}): use another folder"
                raise TableError(name, text, self._what)
        return versions

    def has_other_columns(self, versions: TableVersions) -> bool:
        """Whether tables have other columns with these versions than those of their first rows."""
        output = TableOutput[str | int]((), with_version=self.is_snapshot, known=dict(versions.values()))
        for name, (table, _) in versions.items():
            try:
                schema = output.builder(self.engine, table).schema
            except ValueError as error:
                raise TableError(name, str(error), self._what) from error
            if name in self._first_schemas and not schema.equals(self._first_schemas[name], check_metadata=True):
                return True
        return False

    def last_builders(self) -> Iterator[tuple[str | None, LimitedBuilder]]:
        """After the last batch, yield the builders of all tables, or of all changes. It raises as `last_versions`."""
        if not self.relations:
            yield None, self._text.builder(self.engine)
        for name, (table, _) in self.last_versions().items() if self.relations else ():
            if self.collects and self._names.get(table) != name:
                raise LayoutUnknown
            with self._table_errors():
                yield name, self._builder(table, name)

    def finish(self) -> Iterator[BuiltRows[str | None]]:
        """Yield the changes of undecided transactions after the last payload, with `include_uncommitted`.

        Raises
        ------
        FileFault
            In FAILFAST mode at a value that cannot be decoded.
        """
        if not self.options.options.include_uncommitted or not self.engine.state.n_undecided:
            return
        for name, builder in self.last_builders():
            try:
                rows = self.engine.undecided(builder)
            except DecodeError as error:
                raise FileFault(f"a transaction without an outcome: {error.cell}") from error
            yield name, rows, builder

    def count(self, name: str | None, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Count rows of a table from `slices`, and drop bad rows in DROPMALFORMED mode."""
        error = "_error" if self.relations else "error"
        if self.options.keep_errors and rows.column(error).null_count < len(rows):
            bad = rows.filter(rows.column(error).is_valid())
            positions = bad.column("_position" if self.relations else "position").to_pylist()
            self.errors.update(zip(positions, bad.column(error).to_pylist(), strict=True))
        return counted_batch(rows, error, self.options.options.mode == "DROPMALFORMED", self.bad_rows[name])

    @property
    def n_skipped(self) -> int:
        """Number of transactions that this run has left out because their beginning is missing."""
        stored = self.options.stored
        return self.engine.state.skipped.count - (0 if stored is None else stored.state.skipped.count)

    @property
    def n_repeated(self) -> int:
        """Number of commits of this run whose LSN is not greater than that of all before."""
        stored = self.options.stored
        return self.engine.state.n_repeated - (0 if stored is None else stored.state.n_repeated)

    def apply(self, name: str, rows: pa.RecordBatch | None, builder: LimitedBuilder) -> None:
        """Apply changes to the rows of a table. Without changes, only bring its columns up to the builder's versions.

        Raises
        ------
        FileFault
            If a change may be of several rows, or for net changes, as `NetChanges.add` raises ValueError.
        LayoutUnknown
            If the table has got other versions since its first rows.
        """
        assert isinstance(builder, TableBuilder)
        if not builder.versions:
            if rows is not None and len(rows):
                raise LayoutUnknown
            return
        if self._net_key is not None:
            with self._apply_faults(name):
                net = self._nets.setdefault(name, NetChanges(self._net_key or None))
                net.add(builder.schema.empty_table() if rows is None else rows)
            return
        if name not in self._snapshots:
            self._snapshots[name] = self._new_snapshot(name, builder)
            self._snapshot_versions[name] = builder.sent_versions
        elif self._snapshot_versions[name] != builder.sent_versions:
            raise LayoutUnknown
        if rows is not None:
            with self._apply_faults(name):
                self._snapshots[name].apply(rows)

    def _new_snapshot(self, name: str, builder: TableBuilder) -> SnapshotRows:
        stated = self.options.options.renames or NO_RENAMES
        try:
            return SnapshotRows(
                builder.table.schema,
                builder.sent_versions,
                stated,
                with_errors=self.options.options.mode == "PERMISSIVE",
                name_clash=self.options.options.name_clash,
            )
        except ValueError as error:
            raise TableError(name, str(error), self._what) from error

    def collected(self, name: str) -> pa.Table:
        """Return the rows or the net changes of a table after the last payload. It raises what `apply` raises."""
        state = self.engine.state
        with self._apply_faults(name):
            if self._net_key is not None:
                return self._nets[name].table()
            return self._snapshots[name].counted_table(self.bad_rows[name], state.skipped.count, state.n_undecided)

    @contextmanager
    def _apply_faults(self, name: str) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            raise ValueFault(f"{self._what} {name}: {error}") from error

    def check_renames(self) -> None:
        """After the last payload, check that the table has each rename of the options.

        Raises
        ------
        FileFault
            If it does not. In a run that continues another one, renames may be from before.
        """
        stated = self.options.options.renames
        if stated and self.options.stored is None:
            versions = dict(enumerate(self.engine.layout_catalog))
            try:
                check_renames(histories(versions, stated), is_complete=True)
            except ValueError as error:
                raise FileFault(str(error)) from error

    def _begin(self, batch: OrderedBatch) -> OrderedBatch:
        """Note what a batch says of its session. Return its rows before the first commit after `as_of`."""
        if batch.is_reconnected:
            self.engine.state.is_reconnected = True
        if batch.session is not None:
            self.session = batch.session
        as_of = AsOf.of(self.options.options.as_of)
        if as_of is None or not len(batch.positions):
            return batch
        n_rows = 0 if self._end is not None else rows_as_of(batch.payloads, as_of)
        if n_rows is None:
            return batch
        self._end = batch.positions[-1].as_py() + 1
        return batch.first(n_rows)


def _not_described(name: str, known: Sequence[str]) -> str:
    """Say that no message describes a table, and which one the caller may mean."""
    if name in known:
        return "no committed transaction of the input describes or uses this table"
    return f"no message describes this table{did_you_mean(name, known)}; there are {listed(known)}"


@contextmanager
def as_file_fault(batch: OrderedBatch, fault: type[FileFault] = FileFault) -> Iterator[None]:
    """Convert a DecodeError to a FileFault with its location."""
    try:
        yield
    except DecodeError as error:
        # An error in a buffered change from an earlier batch has no row.
        where, form = f"rows from {batch.start}", ""
        if error.row is not None:
            where, form = f"row {batch.start + error.row}", hint(batch.payloads[error.row].as_py())
        raise fault(f"{batch.file.path}: {where}: {error.cell}{form}") from error
    except InvalidPositions as error:
        raise FileFault(f"{batch.file.path}: {error}") from error
