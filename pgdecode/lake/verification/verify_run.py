"""`verify`: compares tables with those of the server, exactly at an LSN, while the server goes on."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode.arrow.json_text import flat
from pgdecode.capture import Capture, RequestError, StoppedError
from pgdecode.capture.catalog.user_types import read_types
from pgdecode.capture.connection import Connection
from pgdecode.capture.copy import PublishedTable, Snapshot, TableRows, published_names
from pgdecode.capture.errors import LOCKED, FolderBusyError, ServerError
from pgdecode.capture.journal import Contents, plugin_options, read_log
from pgdecode.capture.server import find_slot, identify
from pgdecode.datasets.errors import OtherWriter
from pgdecode.lake.applied import Applied
from pgdecode.lake.apply_run import StaleTables, apply
from pgdecode.lake.reading.column_names import marked_name, marked_relation, plain_text
from pgdecode.lake.reading.reading import version_of
from pgdecode.lake.stored_types import to_stored
from pgdecode.lake.target import Target
from pgdecode.lake.targets import SCHEMES, lake_target
from pgdecode.lake.verification.overlay import Overlay
from pgdecode.lake.verification.table_comparison import Comparison, compare_tables
from pgdecode.payloads.workers import all_cores
from pgdecode.protocol.errors import Unrepresentable
from pgdecode.protocol.lsn import lsn_to_text
from pgdecode.protocol.options import UnrepresentableValues
from pgdecode.rows.options import ApplyKeywords, Options
from pgdecode.rows.own_names import free_name
from pgdecode.rows.row_decoder import decode_rows
from pgdecode.rows.value_options import ValueOptions
from pgdecode.storage.errors import PathError
from pgdecode.types.pgtypes import MONEY_ARRAY_OID, MONEY_OID, NAME_BY_OID
from pgdecode.types.user_types import DescribedTypes

# How many times in a row tables may be altered after a snapshot was made.
_TRIES = 20
_LOOK_SECONDS = 0.2
_ALTERED = "tables are altered again and again: verify them later"


@dataclass
class TableResult(Comparison):
    """The result of the comparison of a table.

    Attributes
    ----------
    notes : list of str
        What was not compared, and why.
    faults : list of str
        Why the table is not equal, other than by its rows.
    """

    notes: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def is_equal(self) -> bool:
        """Whether no difference was seen."""
        return not self.n_different and self.is_counted and not self.faults


@dataclass(frozen=True)
class VerifyResult:
    """The result of `verify`.

    Attributes
    ----------
    lsn : int
        The rows of the server are those after all commits before this LSN.
    tables : dict of str to TableResult
        By "schema.table".
    seconds : float
    sample : float or None
        About how many percent of the rows were compared, if not all.
    notes : tuple of str
        Which tables were not compared.
    """

    lsn: int
    tables: Mapping[str, TableResult]
    seconds: float
    sample: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_equal(self) -> bool:
        """Whether all tables are equal."""
        return all(table.is_equal for table in self.tables.values())


@dataclass(frozen=True)
class _ServerTable:
    """A table in the snapshot, as it is sent and decoded. Columns and the key have the names of the target."""

    columns: Sequence[str]
    key: tuple[str, ...]
    rows: TableRows
    options: Mapping[str, Any]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read and decode the rows."""
        names, relation, rows = self.columns, marked_relation(self.rows.relation), iter(self.rows)
        for payloads in rows:
            try:
                found = decode_rows(payloads, relation, threads=all_cores(), **self.options)
            except Unrepresentable:
                # The snapshot is needed for other tables. It would not be usable if the reading ended here.
                deque(rows, maxlen=0)
                raise
            # The columns of the table come after those about the change.
            yield pa.RecordBatch.from_arrays(found.columns[found.num_columns - len(names) :], names)


def is_target(text: str | Path | Target) -> bool:
    """Whether a text is the URI of a target, and no folder."""
    return isinstance(text, Target) or (isinstance(text, str) and text.partition(":")[0] in SCHEMES)


def verify(
    dsn: str,
    target: str | Path | Target,
    *,
    raw: str | Path | None = None,
    tables: Sequence[str] | None = None,
    connections: int = 1,
    sample: float | None = None,
    limit: int = 20,
    show_values: bool = False,
    capture: bool = True,
    wait_seconds: float = 60.0,
    storage_options: Mapping[str, str] | None = None,
    types: Mapping[str | int, str] | None = None,
    unrepresentable: UnrepresentableValues = "error",
    accept_gap: bool = False,
    on_warning: Callable[[str], None] = lambda text: None,
) -> VerifyResult:
    """Compare tables with those of the server, exactly at an LSN, while the server goes on.

    A temporary slot exports a snapshot at an LSN. The compared tables have exactly the commits before it: changes that
    a target does not have yet are taken from the captured files, in memory. Targets are not changed.

    Parameters
    ----------
    dsn : str
        Connection string of libpq, as for `Capture`.
    target : str, path or Target
        A target, as of `lake_target`; or a folder of captured files. Then the tables are rebuilt from them.
    raw : path, optional
        The folder of captured files from which the target was made. Default: the one that its state names.
    tables : sequence of str, optional
        As "schema.table". Default: all published tables that the target has.
    connections : int
        Number of connections that read the rows of a table.
    sample : float, optional
        Compare about so many percent of the rows of tables with a key, and the number of all rows. 16 bytes for each of
        these rows are in memory.
    limit : int
        How many differences of a table to return.
    show_values : bool
        Whether differences have the values, in place of their hashes.
    capture : bool
        If nobody captures to the folder, capture up to the LSN, with the folder's own slot. Otherwise, that is an
        error.
    wait_seconds : float
        How long to wait for another process that captures to the folder, or writes to the target.
    storage_options : mapping, optional
        How to connect to object stores.
    types, unrepresentable
        For a folder of captured files, as in `apply`. A target has its own.
    accept_gap : bool
        Read over gaps that the capture accepted.
    on_warning : callable
        Called with one line of text.

    Returns
    -------
    VerifyResult

    Raises
    ------
    RequestError
        If the request cannot be carried out.
    StoppedError
        If the state of the server or of the folder prevents it.
    RunError
        If the captured files do not follow the target, or another process writes to it.
    """
    if sample is not None and not 0 < sample <= 100:
        raise RequestError(f"sample is more than 0 and at most 100 percent, not {sample}")
    destination = None
    if not isinstance(target, Path) and is_target(target):
        destination = lake_target(target, storage_options=storage_options)
    call = _Verification(
        dsn,
        destination,
        Path(target) if destination is None else None if raw is None else Path(raw),  # type: ignore[arg-type]
        tables,
        connections,
        sample,
        limit,
        show_values,
        capture,
        wait_seconds,
        {"types": types, "unrepresentable": unrepresentable},
        accept_gap,
        on_warning,
    )
    start = time.monotonic()
    for _ in range(_TRIES):
        try:
            return replace(call.compare(), seconds=time.monotonic() - start)
        except ServerError as error:
            if error.sqlstate != LOCKED:
                raise StoppedError(str(error)) from error
            on_warning("verifying again: a transaction waits to alter or truncate a table")
    raise StoppedError(_ALTERED)


@dataclass(frozen=True)
class _Verification:
    """A call of `verify`, with its parameters.

    Attributes
    ----------
    target : Target or None
        None: the tables are rebuilt from the captured files.
    raw : Path or None
        The folder of captured files; None for that which the state of the target names.
    options : mapping
        Of `apply`, without a target.
    """

    dsn: str
    target: Target | None
    raw: Path | None
    tables: Sequence[str] | None
    connections: int
    sample: float | None
    limit: int
    show_values: bool
    captures: bool
    wait_seconds: float
    options: Mapping[str, Any]
    accept_gap: bool
    on_warning: Callable[[str], None]

    def compare(self) -> VerifyResult:
        """Compare the tables in one snapshot.

        Raises
        ------
        ServerError
            With the SQLSTATE `LOCKED`, if another transaction waits to alter a table.
        """
        with contextlib.ExitStack() as closing:
            target, options = self.target, self.options
            if target is not None:
                _enter(target, closing, self.wait_seconds, self.on_warning)
                if not target.applied:
                    raise RequestError(f"{target.name}: has no tables that pgdecode has applied")
                options = _given(next(iter(target.applied.values())))
            folder = self.raw or _folder_of(target)
            contents = _contents(folder)
            _check_server(self.dsn, folder, contents)
            snapshot, published, notes = _open_snapshot(self.dsn, contents, self.tables, self.connections, target)
            closing.callback(snapshot.close)
            Wait(self.dsn, folder, snapshot.lsn, self.wait_seconds, self.on_warning).run(captures=self.captures)
            # The tables with the commits before the snapshot. The target stays as it is.
            if target is None:
                temporary = closing.enter_context(tempfile.TemporaryDirectory(prefix="pgdecode-verify-"))
                stored = lake_target(f"parquet:{temporary}/tables")
            else:
                stored = Overlay(target)
            tables = None if target is None and self.tables is None else [*published]
            until, accept_gap = snapshot.lsn - 1, self.accept_gap
            faults = _apply(folder, stored, tables=tables, until=until, accept_gap=accept_gap, **options)
            closing.enter_context(stored.opened())
            decoding = {
                "encoding": snapshot.encoding,
                "unrepresentable": options.get("unrepresentable", "error"),
                "types": _types(self.dsn, published.values(), contents, options.get("types")),
            }
            is_binary = plugin_options(folder, contents).binary
            results = {}
            for name, (table, key) in published.items():
                rows = TableRows(snapshot, table, binary=is_binary, sample=self.sample if key else None)
                sent = [column.name for column in table.columns]
                columns, own_key = ([_name_of(item, options) for item in items] for items in (sent, key))
                types = {} if target is None else _column_types(target.applied[name])
                given = {item: types.get(item, types.get(_name_of(item, options))) for item in sent}
                own = {"columns": {marked_name(item, Options()): kind for item, kind in given.items() if kind}}
                server = _ServerTable(columns, (*own_key,), rows, {**decoding, **own, "type_messages": rows.types})
                results[name] = self._compare(name, server, stored, faults.get(name))
            return VerifyResult(snapshot.lsn, results, 0.0, self.sample, tuple(notes))

    def _compare(self, name: str, server: _ServerTable, stored: Target, fault: str | None) -> TableResult:
        """Compare the columns that both tables have. `fault` says why the stored one is stale."""
        notes: list[str] = []
        faults = [] if fault is None else [fault]
        columns: dict[str, pa.DataType | None] = dict.fromkeys(server.columns)
        is_there = name in stored.applied
        if not is_there and not faults:
            notes.append("no payload describes the table")
        elif is_there:
            with stored.read(name) as reader:
                known = {item.name: item.type for item in reader.schema}
            applied = stored.applied[name]
            sent = [_name_of(column.name, applied.options) for column in version_of(applied).columns]
            columns = {column: known[column] for column in server.columns if column in known}
            unsent = [column for column in server.columns if column not in sent]
            missing = [column for column in server.columns if column in sent and column not in known]
            extra = [column for column in known if column not in server.columns]
            if unsent:
                notes.append(f"not compared: {', '.join(unsent)}: no change was sent since the table has it")
            if extra:
                notes.append(f"not compared: {', '.join(extra)}: the server's table does not have it")
            if missing and applied.options.get("schema_changes") == "ignore":
                notes.append(f"not compared: {', '.join(missing)}: changes of columns are ignored")
            elif missing:
                faults.append(f"columns are missing: {', '.join(missing)}")
        is_sample = self.sample is not None and server.key != ()
        n_compared = 0

        def server_batches() -> Iterator[pa.RecordBatch]:
            for batch in server.batches():
                arrays = [stored_as(batch[column], kind) for column, kind in columns.items()]
                yield pa.RecordBatch.from_arrays(arrays, [*columns])

        def compared_batches() -> Iterator[pa.RecordBatch]:
            nonlocal n_compared
            n_compared = 0
            if not is_there:
                return
            with stored.read(name) as reader:
                for batch in reader:
                    n_compared += len(batch)
                    yield pa.RecordBatch.from_arrays([batch[column] for column in columns], [*columns])

        key = server.key if {*server.key} <= {*columns} else ()
        try:
            found = compare_tables(
                server_batches,
                compared_batches,
                [*columns],
                key,
                limit=self.limit,
                show_values=self.show_values,
                is_sample=is_sample,
            )
        except Unrepresentable as error:
            faults.append(f"rows are not compared: on the server, {plain_text(error.detail)}")
            return TableResult(0, 0, notes=notes, faults=faults)
        if is_sample:
            notes.append(f"a sample of {server.rows.count:,} of {server.rows.total:,} rows was compared")
            if server.rows.total != n_compared:
                faults.append(f"{server.rows.total:,} rows are on the server, {n_compared:,} here")
        return TableResult(**vars(found), notes=notes, faults=faults)


def _enter(target: Target, closing: contextlib.ExitStack, seconds: float, on_warning: Callable[[str], None]) -> None:
    """Open a target. Wait while another process writes to it."""
    deadline, is_noted = time.monotonic() + seconds, False
    while True:
        try:
            closing.enter_context(target.opened())
            return
        except OtherWriter as error:
            if time.monotonic() >= deadline:
                raise
            if not is_noted:
                on_warning(f"waiting up to {seconds:,.0f} s: {error}")
                is_noted = True
            time.sleep(_LOOK_SECONDS)


def _given(applied: Applied) -> dict[str, Any]:
    found = applied.options
    names = (*ApplyKeywords.__annotations__, "key", "schema_changes")
    given = {name: found[name] for name in names if found.get(name) is not None}
    # JSON has no numbers as keys.
    by_table = {name: given[name] for name in ("columns", "renames") if name in given}
    return given | {name: {_by_oid(table): item for table, item in of.items()} for name, of in by_table.items()}


def _by_oid(table: str) -> str | int:
    return int(table) if table.isdecimal() else table


def _column_types(applied: Applied) -> Mapping[str, str]:
    """Return the types that the options of a table declare for columns."""
    options = ValueOptions(columns=_given(applied).get("columns"))
    return options.columns_of(version_of(applied))


def _name_of(column: str, options: Mapping[str, Any]) -> str:
    """Return the name of a column in a target."""
    return free_name(column) if options.get("name_clash") == "rename" else column


def _folder_of(target: Target | None) -> Path:
    """Return the folder of captured files that the state of a target names."""
    assert target is not None
    for applied in target.applied.values():
        path = (applied.source or {}).get("path")
        if path is not None:
            return Path(path)
    raise RequestError(f"{target.name}: its state does not name the folder of captured files: pass raw=")


def _apply(folder: Path, target: Target, **options: Any) -> dict[str, str]:
    """Apply captured files, and return why tables are stale."""
    try:
        apply(folder, target, **options)
    except StaleTables as error:
        return error.tables
    except PathError:
        # No payload describes one of the tables: the comparison says that it is missing.
        pass
    return {}


def _contents(folder: Path) -> Contents:
    contents = read_log(folder)
    if contents.origin is None:
        raise RequestError(f"{folder}: no capture has written to it")
    return contents


def _check_server(dsn: str, folder: Path, contents: Contents) -> None:
    """Refuse a server that is not that of a folder."""
    try:
        with contextlib.closing(Connection(dsn, replication=True)) as connection:
            identity = identify(connection)
    except ServerError as error:
        raise RequestError(str(error)) from error
    origin = contents.origin or {}
    for name, what in (("system", "system identifier"), ("database", "database")):
        if origin[name] != getattr(identity, name):
            raise RequestError(
                f"{folder}: the folder belongs to {what} {origin[name]}, this is {getattr(identity, name)}"
            )


def _open_snapshot(
    dsn: str, contents: Contents, tables: Sequence[str] | None, connections: int, target: Target | None
) -> tuple[Snapshot, dict[str, tuple[PublishedTable, tuple[str, ...]]], list[str]]:
    """Make a snapshot, and lock the tables in it: each with its key. Also say which are not compared."""
    try:
        for _ in range(_TRIES):
            publications = (contents.origin or {})["publications"]
            snapshot = Snapshot(dsn, publications, n_readers=connections, encoding=contents.encoding)
            try:
                published = {item.full_name: item for item in snapshot.tables()}
                chosen = [*published] if tables is None else _names(tables, published)
                notes = []
                if target is not None:
                    absent = [name for name in chosen if name not in target.applied]
                    if absent and tables is not None:
                        raise RequestError(f"{target.name}: does not have table {absent[0]}")
                    chosen = [name for name in chosen if name not in absent]
                    notes += [f"{name}: not compared, because the target does not have it" for name in absent]
                    others = [name for name in target.applied if name not in published]
                    notes += [f"{name}: not compared, because it is not published" for name in others if not tables]
                if not snapshot.lock([published[name] for name in chosen]):
                    keys = _primary_keys(snapshot.catalog)
                    found = {name: (published[name], _key(published[name], keys)) for name in chosen}
                    return snapshot, found, notes
            except BaseException:
                snapshot.close()
                raise
            snapshot.close()
    except ServerError as error:
        if error.sqlstate == LOCKED:
            raise
        raise RequestError(str(error)) from error
    raise StoppedError(_ALTERED)


def _names(tables: Sequence[str], published: Mapping[str, PublishedTable]) -> list[str]:
    found = published_names(tables, published)
    for name in found:
        if name not in published:
            raise RequestError(f"table {name!r} is not published by the publications of the folder")
    return found


def _primary_keys(catalog: Connection) -> dict[int, tuple[str, ...]]:
    found: dict[int, tuple[str, ...]] = {}
    for oid, name in catalog.rows(
        "SELECT i.indrelid, a.attname FROM pg_catalog.pg_index i JOIN pg_catalog.pg_attribute a "
        "ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey::int2[]) WHERE i.indisprimary AND i.indrelid >= 16384"
    ):
        found[int(oid or 0)] = (*found.get(int(oid or 0), ()), str(name))
    return found


def _key(table: PublishedTable, primary_keys: Mapping[int, tuple[str, ...]]) -> tuple[str, ...]:
    """Find the columns that tell rows apart: those of the primary key, or of the replica identity."""
    names = [column.name for column in table.columns]
    primary = primary_keys.get(table.oid, ())
    if primary and {*primary} <= {*names}:
        return primary
    return tuple(column.name for column in table.columns if column.is_key) if table.replica_identity != "f" else ()


def _types(
    dsn: str,
    published: Any,
    contents: Contents,
    given: Mapping[str | int, str] | None,
) -> DescribedTypes:
    """Read the types of columns that the database has made."""
    used = {column.type_id for table, _ in published for column in table.columns}
    oids = {oid for oid in used if oid not in NAME_BY_OID or oid in (MONEY_OID, MONEY_ARRAY_OID)}
    if not oids:
        return DescribedTypes((), given)
    with contextlib.closing(Connection(dsn)) as connection:
        return DescribedTypes(read_types(connection, oids, str((contents.origin or {})["slot"])), given)


@dataclass(frozen=True)
class Wait:
    """Waits until a folder has everything before an LSN."""

    dsn: str
    folder: Path
    lsn: int
    seconds: float
    on_warning: Callable[[str], None]

    def run(self, *, captures: bool) -> None:
        """Wait, or capture if nobody does.

        Raises
        ------
        RequestError, StoppedError
        """
        deadline, is_noted = time.monotonic() + self.seconds, False
        while True:
            contents = _contents(self.folder)
            recorded = contents.recorded or 0
            if recorded >= self.lsn:
                return
            busy = self._capture(contents) if captures else self._reader(contents)
            if busy is None and not captures:
                raise StoppedError(
                    f"{self.folder}: recorded up to {lsn_to_text(recorded)}, the snapshot is at "
                    f"{lsn_to_text(self.lsn)}, and nobody captures: run pgdecode capture or pgdecode sync meanwhile"
                )
            if busy is None:
                continue
            if time.monotonic() >= deadline:
                raise StoppedError(
                    f"{self.folder}: recorded up to {lsn_to_text(recorded)} after {self.seconds:,.0f} s, the snapshot "
                    f"is at {lsn_to_text(self.lsn)}: {busy}"
                )
            if not is_noted:
                self.on_warning(f"waiting up to {self.seconds:,.0f} s for {lsn_to_text(self.lsn)}: {busy}")
                is_noted = True
            time.sleep(_LOOK_SECONDS)

    def _reader(self, contents: Contents) -> str | None:
        """Say who reads the slot; None if nobody does."""
        slot = str((contents.origin or {})["slot"])
        with contextlib.closing(Connection(self.dsn)) as connection:
            state = find_slot(connection, slot)
        if state is None:
            raise StoppedError(f"slot {slot!r} does not exist: nothing can be captured to {self.folder}")
        return f"slot {slot!r} is read by PID {state.columns['active_pid']}" if state.columns["active"] else None

    def _capture(self, contents: Contents) -> str | None:
        """Capture up to the LSN, unless another process does. Say which one."""
        busy = self._reader(contents)
        if busy is not None:
            return busy
        origin = contents.origin or {}
        running = Capture(
            self.dsn,
            self.folder,
            slot=origin["slot"],
            publication=origin["publications"],
            options=plugin_options(self.folder, contents),
            encoding=contents.encoding,
            retry_seconds=self.seconds,
            on_warning=self.on_warning,
        )
        try:
            running.run(until=self.lsn)
        except FolderBusyError:
            return "another capture writes to the folder"
        return None


def stored_as(array: pa.Array, kind: pa.DataType | None) -> pa.Array:
    """Convert values to the type with which a table stores them."""
    if kind is None or array.type == kind:
        return array
    if pa.types.is_boolean(array.type) and pa.types.is_string(kind):
        return pc.if_else(array, "t", "f")
    try:
        return to_stored(array, kind)
    except pa.ArrowException:
        # A value that the type does not have. Its text is different from those of all values that it has.
        return flat(array).cast(pa.string())
