"""`verify`: compares tables with those of the server, exactly at an LSN, while the server goes on."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pgdecode.arrow.json_text import flat
from pgdecode.capture import Capture, RequestError, StoppedError
from pgdecode.capture.catalog.user_types import read_types
from pgdecode.capture.connection import Connection
from pgdecode.capture.copy import PublishedTable, Snapshot, TableRows
from pgdecode.capture.errors import ServerError
from pgdecode.capture.journal import Contents, metadata_of, read_log
from pgdecode.capture.options import PluginOptions
from pgdecode.capture.server import find_slot, identify
from pgdecode.datasets.target import target_at
from pgdecode.files.change_reader import TableError
from pgdecode.jobs.decode_run import DecodeJob
from pgdecode.jobs.decode_run import decode as run_job
from pgdecode.jobs.local_run import LocalEngine
from pgdecode.lake.table_comparison import Comparison, Reader, compare_tables
from pgdecode.payloads.workers import all_cores
from pgdecode.protocol.lsn import lsn_to_text
from pgdecode.protocol.options import UnrepresentableValues
from pgdecode.relations.table_names import named, qualified_name
from pgdecode.rows.options import Options
from pgdecode.rows.row_decoder import decode_rows
from pgdecode.types.pgtypes import MONEY_ARRAY_OID, MONEY_OID, NAME_BY_OID
from pgdecode.types.user_types import DescribedTypes

# How many times in a row tables may be altered after a snapshot was made.
_TRIES = 20
_LOOK_SECONDS = 0.2
_PLUGIN_FLAGS = ("two_phase", "binary", "messages")


@dataclass
class TableResult(Comparison):
    """The result of the comparison of a table.

    Attributes
    ----------
    notes : list of str
        What was not compared, and why.
    """

    notes: list[str] = field(default_factory=list)

    @property
    def is_equal(self) -> bool:
        """Whether no difference was seen."""
        return not self.n_different and self.is_counted


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
    """

    lsn: int
    tables: Mapping[str, TableResult]
    seconds: float

    @property
    def is_equal(self) -> bool:
        """Whether all tables are equal."""
        return all(table.is_equal for table in self.tables.values())


@dataclass(frozen=True)
class _ServerTable:
    """A table in the snapshot, as it is sent and decoded."""

    name: str
    table: PublishedTable
    key: tuple[str, ...]
    rows: TableRows
    options: Mapping[str, Any]

    @property
    def columns(self) -> list[str]:
        return [column.name for column in self.table.columns]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read and decode the rows."""
        names = self.columns
        for payloads in self.rows:
            found = decode_rows(payloads, self.rows.relation, threads=all_cores(), **self.options)
            # The columns of the table come after those about the change.
            yield pa.RecordBatch.from_arrays(found.columns[found.num_columns - len(names) :], names)


@dataclass(frozen=True)
class _ComparedTable:
    """A table to compare with that of the server."""

    schema: pa.Schema
    read: Reader
    notes: Sequence[str] = ()


def verify(
    dsn: str,
    raw: str | Path,
    *,
    tables: Sequence[str] | None = None,
    connections: int = 1,
    limit: int = 20,
    show_values: bool = False,
    capture: bool = True,
    wait_seconds: float = 60.0,
    types: Mapping[str | int, str] | None = None,
    unrepresentable: UnrepresentableValues = "error",
    accept_gap: bool = False,
    on_warning: Callable[[str], None] = lambda text: None,
) -> VerifyResult:
    """Compare tables with those of the server, exactly at an LSN, while the server goes on.

    A temporary slot exports a snapshot at an LSN. The compared tables have exactly the commits before it. Nothing is
    written except captured files.

    Parameters
    ----------
    dsn : str
        Connection string of libpq, as for `Capture`.
    raw : path
        A folder of captured files. The tables are rebuilt from them, as of the LSN.
    tables : sequence of str, optional
        As "schema.table". Default: all that are published.
    connections : int
        Number of connections that read the rows of a table.
    limit : int
        How many differences of a table to return.
    show_values : bool
        Whether differences have the values, in place of their hashes.
    capture : bool
        If nobody captures to the folder, capture up to the LSN, with the folder's own slot. Otherwise, that is an
        error.
    wait_seconds : float
        How long to wait for another process that captures to the folder.
    types, unrepresentable
        As in `decode_rows`.
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
    """
    start = time.monotonic()
    folder = Path(raw)
    contents = _contents(folder)
    _check_server(dsn, folder, contents)
    with contextlib.ExitStack() as closing:
        snapshot, published = _open_snapshot(dsn, contents, tables, connections)
        closing.callback(snapshot.close)
        Wait(dsn, folder, snapshot.lsn, wait_seconds, on_warning).run(captures=capture)
        options = {
            "encoding": snapshot.encoding,
            "unrepresentable": unrepresentable,
            "types": _types(dsn, published.values(), contents, types),
        }
        is_binary = _plugin_options(folder, contents).binary
        with _rebuilt(
            folder, list(published), snapshot.lsn, types=types, unrepresentable=unrepresentable, accept_gap=accept_gap
        ) as compared:
            results = {}
            for name, (table, key) in published.items():
                rows = TableRows(snapshot, table, binary=is_binary)
                server = _ServerTable(name, table, key, rows, {**options, "type_messages": rows.types})
                results[name] = _compare(server, compared.get(name), limit=limit, show_values=show_values)
        return VerifyResult(snapshot.lsn, results, time.monotonic() - start)


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
    dsn: str, contents: Contents, tables: Sequence[str] | None, connections: int
) -> tuple[Snapshot, dict[str, tuple[PublishedTable, tuple[str, ...]]]]:
    """Make a snapshot, and lock the tables in it: each with its key."""
    try:
        for _ in range(_TRIES):
            publications = (contents.origin or {})["publications"]
            snapshot = Snapshot(dsn, publications, n_readers=connections, encoding=contents.encoding)
            try:
                published = {qualified_name(item.namespace, item.name): item for item in snapshot.tables()}
                if tables is not None:
                    published = {name: published[name] for name in _names(tables, published)}
                if not snapshot.lock([*published.values()]):
                    keys = _primary_keys(snapshot.catalog)
                    return snapshot, {name: (table, _key(table, keys)) for name, table in published.items()}
            except BaseException:
                snapshot.close()
                raise
            snapshot.close()
    except ServerError as error:
        raise RequestError(str(error)) from error
    raise StoppedError("tables are altered again and again: verify them later")


def _names(tables: Sequence[str], published: Mapping[str, PublishedTable]) -> list[str]:
    found = [named(name if "." in name else f"public.{name}", published) for name in tables]
    for name in found:
        if name not in published:
            raise RequestError(f"table {name!r} is not published by the publications of the folder")
    return list(dict.fromkeys(found))


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


def _plugin_options(folder: Path, contents: Contents) -> PluginOptions:
    """Read the options of pgoutput with which the last file of a folder was captured."""
    last = next(reversed(contents.files.values()), None)
    found = {} if last is None else metadata_of(folder / last.name).get("options", {})
    return PluginOptions(
        protocol=int(found["proto_version"]) if "proto_version" in found else None,
        streaming=found.get("streaming", "off"),
        origin=found.get("origin"),
        **{name: found.get(name) == "on" for name in _PLUGIN_FLAGS},
    )


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
            options=_plugin_options(self.folder, contents),
            encoding=contents.encoding,
            retry_seconds=self.seconds,
            on_warning=self.on_warning,
        )
        try:
            running.run(until=self.lsn)
        except RequestError as error:
            if "another capture writes" not in str(error):
                raise
            return "another capture writes to the folder"
        return None


@contextlib.contextmanager
def _rebuilt(
    folder: Path,
    names: Sequence[str],
    lsn: int,
    *,
    types: Mapping[str | int, str] | None,
    unrepresentable: UnrepresentableValues,
    accept_gap: bool,
) -> Iterator[dict[str, _ComparedTable]]:
    """Rebuild tables from captured files, with the commits before an LSN, in a temporary folder."""
    options = Options.of({"types": types, "unrepresentable": unrepresentable, "as_of": lsn - 1})
    left = list(names)
    with tempfile.TemporaryDirectory(prefix="pgdecode-verify-") as temporary:
        out = Path(temporary, "tables")
        while left:
            job = DecodeJob(
                source=folder,
                target=target_at(out),
                what=tuple(left),
                options=options,
                is_snapshot=True,
                in_folders=True,
                accept_gap=accept_gap,
            )
            try:
                run_job(job, LocalEngine(workers=all_cores()))
                break
            except TableError as error:
                # No payload describes the table.
                if error.relation not in left:
                    raise
                left.remove(error.relation)
        yield {name: _in_files(sorted((out / name).glob("*.parquet"))) for name in left}


def _in_files(paths: Sequence[Path]) -> _ComparedTable:
    """Read the rows of a snapshot from its files."""
    schema = pq.read_schema(paths[0])
    columns = [item for item in schema if (item.metadata or {}).get(b"pg:type") is not None]

    def read() -> Iterator[pa.RecordBatch]:
        for path in paths:
            with pq.ParquetFile(path) as file:
                yield from file.iter_batches(columns=[item.name for item in columns])

    return _ComparedTable(pa.schema(columns), read)


def _compare(server: _ServerTable, compared: _ComparedTable | None, *, limit: int, show_values: bool) -> TableResult:
    """Compare the columns that both tables have."""
    notes: list[str] = []
    if compared is None:
        columns: dict[str, pa.DataType | None] = dict.fromkeys(server.columns)
        notes.append("no payload describes the table")
    else:
        notes += compared.notes
        known = {item.name: item.type for item in compared.schema}
        columns = {name: known[name] for name in server.columns if name in known}
        notes += _column_notes(server.columns, [*known])

    def server_batches() -> Iterator[pa.RecordBatch]:
        for batch in server.batches():
            yield pa.RecordBatch.from_arrays(
                [stored_as(batch[name], kind) for name, kind in columns.items()], [*columns]
            )

    def compared_batches() -> Iterator[pa.RecordBatch]:
        for batch in () if compared is None else compared.read():
            yield pa.RecordBatch.from_arrays([batch[name] for name in columns], [*columns])

    key = server.key if {*server.key} <= {*columns} else ()
    found = compare_tables(server_batches, compared_batches, [*columns], key, limit=limit, show_values=show_values)
    return TableResult(**vars(found), notes=notes)


def _column_notes(server: Sequence[str], compared: Sequence[str]) -> list[str]:
    missing = [name for name in server if name not in compared]
    extra = [name for name in compared if name not in server]
    notes = []
    if missing:
        notes.append(f"not compared: {', '.join(missing)}: the server has not sent a change since it has these columns")
    if extra:
        notes.append(f"not compared: {', '.join(extra)}: the server does not have these columns any more")
    return notes


def stored_as(array: pa.Array, kind: pa.DataType | None) -> pa.Array:
    """Convert values to the type with which a table stores them."""
    if kind is None or array.type == kind:
        return array
    if pa.types.is_boolean(array.type) and pa.types.is_string(kind):
        return pa.compute.if_else(array, "t", "f")
    try:
        return array.cast(kind)
    except pa.ArrowException:
        # A value that the type does not have: the text is another than that of all values of the type.
        return flat(array).cast(pa.string())
