"""Tables in a DuckDB file or a DuckLake: net changes by SQL, all tables with their states in one transaction."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from pgdecode.datasets.errors import OtherWriter, RunError
from pgdecode.lake.applied import Applied
from pgdecode.lake.duckdb.table import CATALOG, DuckDbTable, folded, literal, sql_name
from pgdecode.lake.target import Target
from pgdecode.protocol.lsn import lsn_to_text
from pgdecode.relations.table_names import name_parts, qualified_name

_OWN_SCHEMA = "_pgdecode"
_STATES = f'{CATALOG}."{_OWN_SCHEMA}"."applied"'
_STATE_COLUMNS = {
    "schema_name": ("VARCHAR", pa.string()),
    "table_name": ("VARCHAR", pa.string()),
    "system": ("VARCHAR", pa.string()),
    "database": ("VARCHAR", pa.string()),
    "slot": ("VARCHAR", pa.string()),
    "position": ("BIGINT", pa.int64()),
    "restart_position": ("BIGINT", pa.int64()),
    "commit_lsn": ("VARCHAR", pa.string()),
    "commit_timestamp": ("TIMESTAMPTZ", pa.timestamp("us", "UTC")),
    "state": ("JSON", pa.string()),
}
_MEMORY_LIMIT = "1GB"
# Values of these keys are not shown in messages.
_SECRET = re.compile(r"(password|passwd|secret|token)=[^\s&;]+|(?<=://)([^:/@\s]+):[^@/\s]+(?=@)", re.IGNORECASE)
# What DuckDB says of a file that another process has locked.
_LOCK = re.compile(r"Conflicting lock is held in .*?(PID \d+)")


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


def _lsn_text(state: Applied) -> str | None:
    return None if state.commit_lsn < 0 else lsn_to_text(state.commit_lsn)


def _state_row(schema: str, table: str, state: Applied) -> dict[str, Any]:
    source = state.source or {}
    return {
        "schema_name": schema,
        "table_name": table,
        **{name: None if source.get(name) is None else str(source[name]) for name in ("system", "database", "slot")},
        "position": state.position,
        "restart_position": state.restart_position,
        "commit_lsn": _lsn_text(state),
        "commit_timestamp": state.commit_timestamp,
        "state": state.to_json(),
    }


class DuckDbTarget(Target):
    """A database of DuckDB, or a DuckLake.

    Parameters
    ----------
    location : str
        "duckdb:FILE" or "ducklake:CATALOG", as DuckDB's ATTACH takes it.
    storage_options : mapping of str to str, optional
        Options of ATTACH, such as `data_path` of a DuckLake.
    """

    def __init__(self, location: str, storage_options: Mapping[str, str] | None = None) -> None:
        super().__init__(_SECRET.sub(lambda match: f"{match[1]}=***" if match[1] else f"{match[2]}:***", location))
        scheme, _, rest = location.partition(":")
        self.is_lake = scheme == "ducklake"
        self._attached = location if self.is_lake else rest
        self._path = None if re.match(r"\w{2,}:", rest) else Path(rest)
        self._options = dict(storage_options or {})
        wrong = sorted(key for key in self._options if not re.fullmatch(r"\w+", key))
        if not rest or scheme not in ("duckdb", "ducklake"):
            raise ValueError(f"{self.name}: it must be duckdb:FILE or ducklake:CATALOG")
        if wrong:
            raise ValueError(f"{self.name}: storage options are those of DuckDB's ATTACH, not {', '.join(wrong)}")
        self._connection: Any = None
        self._cursors: list[Any] = []
        self._in_transaction = False
        self._tables: dict[str, DuckDbTable] = {}

    # -- connection ----------------------------------------------------------------------------------------------------

    @contextmanager
    def opened(self) -> Iterator[DuckDbTarget]:
        """Connect, read `applied`, and keep other processes out."""
        is_new, is_ours = self._path is not None and not self._path.exists(), False
        config: dict[str, Any] = {"memory_limit": _MEMORY_LIMIT, "preserve_insertion_order": "false"}
        if self._path is not None:
            config["temp_directory"] = f"{self._path}.tmp"
        self._connection = duckdb.connect(":memory:", config=config)
        try:
            with self.errors():
                if self.is_lake:
                    self._load_extensions()
                self.run("SET TimeZone = 'UTC'")
                options = "".join(f", {key} {literal(value)}" for key, value in self._options.items())
                self.run(f"ATTACH {literal(self._attached)} AS {CATALOG}{options and f' ({options[2:]})'}")
                is_ours = True
                self.applied = self._read_states()
            yield self
        finally:
            # This rolls back what is not committed.
            for cursor in [*self._cursors, self._connection]:
                cursor.close()
            self._cursors, self._connection, self._tables, self._in_transaction = [], None, {}, False
            if is_new and is_ours and not self.applied:
                self._remove_empty()

    def _load_extensions(self) -> None:
        """Load DuckLake and the extension of its catalog from packages, which need no network; else as DuckDB does."""
        kind = self._attached.removeprefix("ducklake:").partition(":")[0]
        for name in ("ducklake", *([f"{kind}_scanner"] if kind in ("postgres", "sqlite", "mysql") else [])):
            package = importlib.util.find_spec(f"duckdb_extension_{name}")
            pattern = f"extensions/v{duckdb.__version__}/*.duckdb_extension"
            folders = [] if package is None else package.submodule_search_locations or []
            paths = [path for folder in folders for path in Path(folder).glob(pattern)]
            try:
                if not paths:
                    self.run(f"INSTALL {name}")
                self.run(f"LOAD {literal(str(paths[0])) if paths else name}")
            except duckdb.Error as error:
                raise RunError(
                    f"{self.name}: DuckDB {duckdb.__version__} has no extension {name}: pip install "
                    f"duckdb-extension-{name.replace('_', '-')}=={duckdb.__version__}, or another version of both "
                    f"({_first_line(error)})"
                ) from None

    def _remove_empty(self) -> None:
        """Remove a database in which nothing was committed, so that a dry run leaves nothing."""
        assert self._path is not None
        with suppress(OSError):
            self._path.unlink()
        # DuckLake removes the files of a transaction that is rolled back, but not their folders.
        for folder, _, _ in os.walk(f"{self._path}.files", topdown=False):
            with suppress(OSError):
                os.rmdir(folder)

    def _read_states(self) -> dict[str, Applied]:
        exists = f"SELECT 1 FROM duckdb_tables() WHERE database_name = '{CATALOG}' AND schema_name = '{_OWN_SCHEMA}'"
        if not self.run(exists):
            return {}
        present = self._relations()
        rows = self.run(f"SELECT schema_name, table_name, state::VARCHAR AS state FROM {_STATES}")
        states = {}
        for schema, table, state in rows:
            # A table that somebody dropped is built again.
            if (folded(schema), folded(table)) in present:
                name = qualified_name(schema, table)
                try:
                    states[name] = Applied.from_json(state)
                except (ValueError, KeyError, TypeError) as error:
                    raise RunError(f"{self.name}: the state of {name} in {_OWN_SCHEMA}.applied: {error}") from None
        return states

    def _relations(self) -> set[tuple[str, str]]:
        """Return schema and name of each table and view, as DuckDB compares them."""
        rows = self.run(
            f"SELECT schema_name, table_name FROM duckdb_tables() WHERE database_name = '{CATALOG}' UNION ALL "
            f"SELECT schema_name, view_name FROM duckdb_views() WHERE database_name = '{CATALOG}' AND NOT internal"
        )
        return {(folded(schema), folded(name)) for schema, name in rows}

    # -- SQL -----------------------------------------------------------------------------------------------------------

    # A statement reads tables by the names of parameters. DuckDB holds registered ones in memory until the transaction
    # ends.

    def run(
        self, sql: str, pgdecode_input: pa.Table | None = None, pgdecode_old: pa.Table | None = None
    ) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows: those of a query, or how many rows it changed."""
        rows: list[tuple[Any, ...]] = self._connection.execute(sql).fetchall()
        return rows

    def query(self, sql: str, pgdecode_input: pa.Table | None = None) -> pa.Table:
        """Return the rows of a query as a table."""
        return self._connection.sql(sql).to_arrow_table()

    @contextmanager
    def function(
        self, name: str, make: Callable[[pa.ChunkedArray], pa.ChunkedArray], takes: str, returns: str
    ) -> Iterator[None]:
        """Let SQL call a function of a column."""
        errors: list[Exception] = []

        def called(column: pa.ChunkedArray) -> pa.ChunkedArray:
            try:
                return make(column)
            except Exception as error:
                errors.append(error)
                raise

        self._connection.create_function(name, called, [takes], returns, type="arrow", null_handling="special")
        try:
            yield
        except Exception:
            if errors:
                raise errors[0] from None
            raise
        finally:
            with suppress(duckdb.Error):
                self._connection.remove_function(name)

    @contextmanager
    def errors(self, of: str = "") -> Iterator[None]:
        """Raise errors of DuckDB as one line, without values of rows."""
        try:
            yield
        except duckdb.Error as error:
            with_values = (duckdb.ConversionException, duckdb.ConstraintException, duckdb.OutOfRangeException)
            line = "a value does not fit its column" if isinstance(error, with_values) else _first_line(error)
            if process := _LOCK.search(str(error)):
                raise OtherWriter(f"{self.name}: another process has it open ({process[1]})") from error
            raise RunError(f"{self.name}: {of and f'{of}: '}{_SECRET.sub('***', line)}") from error

    def begin(self) -> None:
        """Begin a transaction if there is none."""
        if not self._in_transaction:
            self.run("BEGIN")
            self._in_transaction = True

    # -- tables --------------------------------------------------------------------------------------------------------

    def table(self, name: str) -> DuckDbTable:
        """Return a table, which may not exist yet, by "schema.table"."""
        if name not in self._tables:
            for other in {**self.applied, **self._tables}:
                if other != name and folded(other) == folded(name):
                    raise RunError(
                        f"{self.name}: {other} and {name} differ in the case of letters only, and would be one table "
                        "of DuckDB: choose one of them"
                    )
            parts = self._parts(name)
            if name not in self.applied:
                with self.errors(name):
                    exists = (folded(parts[0]), folded(parts[1])) in self._relations()
                if exists:
                    raise RunError(
                        f"{self.name}: {name} exists, and pgdecode has not made it: {_OWN_SCHEMA}.applied does not "
                        "have it; rename or drop it, or choose another target"
                    )
            self._tables[name] = DuckDbTable(self, name, parts)
        return self._tables[name]

    def _parts(self, name: str) -> tuple[str, str]:
        parts = name_parts(name)
        if parts is None or folded(parts[0]) == _OWN_SCHEMA:
            raise RunError(f"{self.name}: {name!r} cannot be the name of a table: it is schema.table")
        return parts

    def commit(self, applied: Mapping[str, Applied]) -> None:
        """Commit what was done to tables, each with its state, in one transaction."""
        columns = [f"{name} {kind}" for name, (kind, _) in _STATE_COLUMNS.items()]
        states = pa.Table.from_pylist(
            [_state_row(*self._parts(name), state) for name, state in applied.items()],
            pa.schema([(name, kind) for name, (_, kind) in _STATE_COLUMNS.items()]),
        )
        with self.errors():
            self.begin()
            self.run(f'CREATE SCHEMA IF NOT EXISTS {CATALOG}."{_OWN_SCHEMA}"')
            self.run(f"CREATE TABLE IF NOT EXISTS {_STATES} ({', '.join(columns)})")
            self.run(
                f"DELETE FROM {_STATES} WHERE (schema_name, table_name) IN "
                "(SELECT (schema_name, table_name) FROM pgdecode_input)",
                states,
            )
            self.run(f"INSERT INTO {_STATES} BY NAME SELECT * FROM pgdecode_input", states)
            if self.is_lake:
                self._describe_commit(applied)
            try:
                self.run("COMMIT")
            except duckdb.TransactionException as error:
                self.roll_back()
                raise OtherWriter(
                    f"{self.name}: nothing was committed, another writer has committed meanwhile: {_first_line(error)}"
                ) from error
            self._in_transaction = False
        self.applied |= applied
        for table in self._tables.values():
            table.set_committed()

    def _describe_commit(self, applied: Mapping[str, Applied]) -> None:
        """Say in the snapshot of a DuckLake what it has."""
        tables = {name: {"position": state.position, "commit_lsn": _lsn_text(state)} for name, state in applied.items()}
        lsn = _lsn_text(max(applied.values(), key=lambda state: state.commit_lsn)) if applied else None
        message = f"apply {', '.join(applied)}" + (f" up to {lsn}" if lsn else "")
        info = json.dumps({"pgdecode": tables})
        self.run(f"CALL {CATALOG}.set_commit_message('pgdecode', {literal(message)}, extra_info => {literal(info)})")

    def roll_back(self) -> None:
        """Discard what was done to all tables since the last commit."""
        self._in_transaction = False
        # An error of DuckDB may have ended the transaction.
        with suppress(Exception):
            self.run("ROLLBACK")
        for table in self._tables.values():
            table.discard()

    def read(self, name: str) -> pa.RecordBatchReader:
        """Read the committed rows of a table, with the types of DuckDB, in no particular order."""
        # A connection of its own does not see what is not committed.
        cursor = self._connection.cursor()
        self._cursors.append(cursor)
        with self.errors(name):
            cursor.execute("SET TimeZone = 'UTC'").fetchall()
            reader: pa.RecordBatchReader = cursor.sql(f"FROM {sql_name(*self._parts(name))}").to_arrow_reader()
        return reader


def open_target(target: str, storage_options: Mapping[str, str] | None = None) -> DuckDbTarget:
    """Make a target of "duckdb:FILE" or "ducklake:CATALOG"."""
    return DuckDbTarget(target, storage_options)
