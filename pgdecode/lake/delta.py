"""Tables as Delta tables in the folders of one folder, each with commits of its own."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError, TableNotFoundError

import pgdecode
from pgdecode.datasets.errors import OtherWriter, RunError, RunFault
from pgdecode.datasets.file_digest import NewFile
from pgdecode.datasets.target import target_at
from pgdecode.files.change_export import table_file_name
from pgdecode.lake.applied import Applied
from pgdecode.lake.data_file import ColumnBounds, DataFile
from pgdecode.lake.delta_log import (
    LOG,
    Protocol,
    State,
    add_action,
    added_names,
    entry,
    is_only_info,
    now_ms,
    refused_features,
    remove_action,
    state_at,
)
from pgdecode.lake.file_target import FileTarget
from pgdecode.lake.stored_types import stored_field
from pgdecode.lake.table_format import StoredTable, TableChange
from pgdecode.lake.target import ColumnSource
from pgdecode.relations.schema_metadata import KEY
from pgdecode.storage.durable import make_folders, sync, write_durably
from pgdecode.storage.errors import StorageError
from pgdecode.storage.object_path import FilePath, ObjectPath, file_path
from pgdecode.storage.object_store import (
    connection_options,
    created_object,
    delete_objects,
    error_cause,
    folders_below,
    listed,
    read_object,
    remove_file,
)
from pgdecode.storage.parquet_input import read_footer, readable

# Delta's default of delta.checkpointInterval.
_CHECKPOINT_INTERVAL = 10
_ENTRY = re.compile(r"(\d{20})\.json")
_LOCKS = "AWS_S3_LOCKING_PROVIDER"
_BELOW_MS = pa.scalar(999, pa.duration("us"))


@dataclass(frozen=True)
class _Log:
    """What the log of a table has at a version."""

    version: int
    metadata: Mapping[str, Any]
    protocol: Protocol
    file_schema: pa.Schema


_NEW = _Log(-1, {}, Protocol(), pa.schema([]))


class DeltaFormat:
    """A folder whose folders are Delta tables. It is local or in an object store.

    A commit is an entry of the log under the next version, which is created only if there is none. So it fails if
    another writer has committed since the table was read. deltalake reads the tables and writes their checkpoints. Its
    own commits are not used: none of them changes the columns of a table and keeps its files, and one that meets
    another commit is repeated after it, also if that commit has restored an older version.

    Parameters
    ----------
    path : Path or ObjectPath
    """

    needs_file = False

    def __init__(self, path: FilePath) -> None:
        self._path = path
        self._target = target_at(path)
        self._logs: dict[str, _Log] = {}  # as the last commits have left them
        self._planned: dict[str, pa.Schema] = {}  # schemas of files in the next commit
        self._in_commits: set[str] = set()  # files that a commit may have
        self._new_folders: list[Path] = []
        self._applied: dict[str, Applied] | None = None  # of a run

    # -- runs ----------------------------------------------------------------------------------------------------------

    @contextmanager
    def opened(self) -> Iterator[Mapping[str, Applied]]:
        """Keep other local runs out, and yield the state of each table."""
        with self._target.opened():
            applied = {}
            for folder in self._folders():
                if isinstance(folder, Path):
                    _remove_partial(folder / LOG)
                # deltalake lists all files of a table when it opens it.
                version = _last_version(folder / LOG)
                state = None if version is None else self._state(folder, version)
                if state is not None:
                    applied[state.table] = state.applied
            self._applied = applied
            self._logs.clear()
            try:
                yield dict(applied)
            finally:
                self._applied = None

    def _folders(self) -> list[FilePath]:
        if isinstance(self._path, ObjectPath):
            return [*folders_below(self._path)]
        with suppress(FileNotFoundError):
            return [folder for folder in sorted(self._path.iterdir()) if (folder / LOG).is_dir()]
        return []

    def _folder(self, name: str) -> FilePath:
        return self._path / table_file_name(name)

    def _opened(self, folder: FilePath) -> DeltaTable | None:
        with _delta_errors(folder), suppress(TableNotFoundError):
            if isinstance(folder, ObjectPath):
                return DeltaTable(str(folder), storage_options=connection_options(folder))
            return DeltaTable(str(folder.absolute()))
        return None

    def _state(self, folder: FilePath, version: int) -> State | None:
        """Find the state of a version of a table in its log."""

        def version_at(when: Any) -> int:
            table = self._opened(folder)
            assert table is not None
            is_ms = str(when).isdecimal()
            with _delta_errors(folder):
                table.load_as_version(datetime.fromtimestamp(int(when) / 1000, UTC) if is_ms else str(when))
                return int(table.version())

        try:
            return state_at(version, lambda version: _read(_entry(folder, version)), version_at)
        except ValueError as error:
            raise RunFault(f"{folder}: the state of pgdecode in its log: {error}") from None

    # -- tables --------------------------------------------------------------------------------------------------------

    def load(self, name: str) -> StoredTable | None:
        """Read the metadata of a table; None if it does not exist."""
        folder = self._folder(name)
        table = self._opened(folder)
        if table is None:
            self._logs.pop(name, None)
            return None
        with _delta_errors(folder):
            metadata, known = table.metadata(), table.protocol()
            delta_schema = json.loads(table.schema().to_json())
            arrow_schema = pa.schema(table.schema().to_arrow())
        protocol = Protocol(
            known.min_reader_version,
            known.min_writer_version,
            tuple(known.reader_features or ()),
            tuple(known.writer_features or ()),
        )
        refused = refused_features(protocol, metadata.partition_columns, metadata.configuration, delta_schema)
        with _delta_errors(folder):
            if not refused and "deletionVectors" in protocol.writer_features and _has_deletion_vectors(table):
                refused.append("deletion vectors")
        if refused:
            raise RunError(
                f"{folder}: the table has {', '.join(refused)}, which pgdecode does not write: remove that from the "
                "table, or use another folder"
            )
        state = self._state(folder, table.version())
        if state is None or state.table != name:
            raise RunError(
                f"{folder}: the log has no state of pgdecode for table {name}: another program has made the table, or "
                f"its log was removed since: use another folder, or remove this one"
            )
        is_known = name not in self._logs or self._logs[name].version == table.version()
        if self._applied is not None and not (is_known and self._applied.get(name) == state.applied):
            raise OtherWriter(f"{folder}: another writer has committed meanwhile: call it again")
        action = {
            "id": str(metadata.id),
            "name": metadata.name,
            "description": metadata.description,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps(delta_schema, separators=(",", ":")),
            "partitionColumns": [],
            "createdTime": metadata.created_time,
            "configuration": dict(metadata.configuration),
        }
        file_schema = _file_schema(folder, state.schema, arrow_schema)
        self._logs[name] = _Log(table.version(), action, protocol, file_schema)
        if self._applied is not None:
            # A run that was killed after its commit has not done it.
            _remove_others(folder, table.version(), _read(_entry(folder, table.version())) or b"")
        return StoredTable(state.schema, file_schema, self._files(folder, table, state.schema), state.applied)

    def _files(self, folder: FilePath, table: DeltaTable, schema: pa.Schema) -> list[DataFile]:
        """List the files of a table, with the bounds of the columns of the key."""
        with _delta_errors(folder):
            actions = pa.table(table.get_add_actions(flatten=True))
        keys = [item for item in schema if KEY in (item.metadata or {}) and _has_bounds(item.type)]
        columns = {item.name: _bounds_columns(actions, stored_field(item, "delta")) for item in keys}
        paths = [unquote(path) for path in actions["path"].to_pylist()]
        outside = next((path for path in paths if "://" in path or path.startswith(("/", "file:"))), None)
        if outside is not None:
            raise RunError(f"{folder}: the table has files outside its folder (a clone), which pgdecode does not write")
        rows, sizes = actions["num_records"].to_pylist(), actions["size_bytes"].to_pylist()
        files = []
        for number, path in enumerate(paths):
            bounds = {column: of[number] for column, of in columns.items()}
            file = DataFile(f"{folder.name}/{path}", rows[number] or 0, sizes[number], bounds)
            files.append(file if rows[number] is not None else self._counted(file))
        return files

    def _counted(self, file: DataFile) -> DataFile:
        """Count the rows of a file whose writer has not."""
        with readable(self.path(file)) as source:
            return replace(file, rows=read_footer(source).metadata.num_rows)

    def create(self, name: str, schema: pa.Schema) -> pa.Schema:
        """Return the schema of the files of a new table."""
        fields = [stored_field(item, "delta").remove_metadata() for item in schema]
        return self._plan(name, pa.schema(fields))

    def evolve(self, name: str, schema: pa.Schema, columns: Mapping[str, ColumnSource]) -> tuple[pa.Schema, bool]:
        """Return the schema of files of a table with other columns. They stay if columns are only added, with nulls.

        A column that is dropped must not stay in files, because one that is added later may have its name.
        """
        former = self._planned[name] if name in self._planned else self._logs[name].file_schema
        fields = []
        stays = set(former.names) <= {source.name for source in columns.values()}
        for item in schema:
            source, field = columns[item.name], stored_field(item, "delta").remove_metadata()
            if source.name is None:
                stays &= item.nullable and (source.missing is None or not source.missing.is_valid)
            else:
                old = former.field(source.name)
                is_same = source.name == item.name and source.convert is None and old.type == field.type
                stays &= is_same and (item.nullable or not old.nullable)
                # Comments, which users give to columns.
                field = field.with_metadata(old.metadata)
            fields.append(field)
        return self._plan(name, pa.schema(fields)), stays

    def _plan(self, name: str, file_schema: pa.Schema) -> pa.Schema:
        known: dict[str, str] = {}
        for column in file_schema.names:
            other = known.setdefault(column.lower(), column)
            if other != column:
                raise RunError(
                    f"{self._folder(name)}: columns {other!r} and {column!r} have the same name in Delta, which does "
                    f"not distinguish upper and lower case"
                )
        self._planned[name] = file_schema
        return file_schema

    # -- files ---------------------------------------------------------------------------------------------------------

    def path(self, file: DataFile) -> FilePath:
        """Return where a file is."""
        return self._path / file.path

    def new_file(self, name: str) -> NewFile:
        """Create a file of a table."""
        folder = self._folder(name)
        if isinstance(folder, Path) and not folder.exists():
            self._new_folders += make_folders(folder)
        # The version of the next commit: once that exists, no other run can commit files with the same number.
        return NewFile(folder / f"{_stem(self._logs.get(name, _NEW).version + 1)}{uuid4().hex}.parquet")

    def accept(self, name: str, file: NewFile, rows: int) -> str:
        """Take a complete file, and return its path below the folder of all tables."""
        return f"{table_file_name(name)}/{file.path.name}"

    def discard(self, file: DataFile) -> None:
        """Remove a file that was accepted, unless it is part of a commit."""
        if file.path in self._in_commits:
            return
        remove_file(self.path(file))

    # -- commits -------------------------------------------------------------------------------------------------------

    def commit(self, changes: Mapping[str, TableChange]) -> None:
        """Commit changes of tables, one after the other."""
        for name, change in changes.items():
            self._commit(name, change)

    def _commit(self, name: str, change: TableChange) -> None:
        folder, log = self._folder(name), self._logs.get(name, _NEW)
        keys = [item.name for item in change.schema if KEY in (item.metadata or {})]
        actions: list[Mapping[str, Any]] = []
        protocol = log.protocol
        if any(_has_timestamp(item.type) for item in change.file_schema):
            protocol = protocol.with_timestamps()
        if log.version < 0 or protocol != log.protocol:
            actions.append(protocol.action())
        metadata = _metadata(name, log.metadata, change.file_schema)
        if metadata != log.metadata:
            actions.append({"metaData": metadata})
        prefix = f"{folder.name}/"
        actions += [remove_action(file.path.removeprefix(prefix), file) for file in change.removed]
        actions += [add_action(file.path.removeprefix(prefix), file, keys) for file in change.added]
        state = State(name, change.applied, change.schema)
        source = change.applied.source or {}
        application = f"pgdecode:{source.get('system', '')}:{source.get('database', '')}:{name}"
        actions.append({"txn": {"appId": application, "version": change.applied.position, "lastUpdated": now_ms()}})
        info = {
            "timestamp": now_ms(),
            "operation": "WRITE",
            "operationParameters": {"mode": "Overwrite" if change.is_created else "Append", "partitionBy": "[]"},
            "isBlindAppend": False,
            "engineInfo": f"pgdecode/{pgdecode.__version__}",
            "txnId": str(uuid4()),
            **({} if log.version < 0 else {"readVersion": log.version}),
            **state.info(),
        }
        added = {file.path for file in change.added}
        self._in_commits |= added
        version = log.version + 1
        content = entry(info, actions)
        while (other := _created(_entry(folder, version), content)) is not None:
            if not is_only_info(other):
                # The commit does not exist, and its files are not needed.
                self._in_commits -= added
                raise OtherWriter(
                    f"{folder}: another writer has committed version {version} meanwhile; nothing of this table was "
                    f"committed: call it again"
                )
            version += 1
        self._logs[name] = _Log(version, metadata, protocol, change.file_schema)
        self._planned.pop(name, None)
        if self._applied is not None:
            self._applied[name] = change.applied
        for number in range(log.version + 1, version + 1):
            _remove_others(folder, number, content)
        self._make_checkpoint(folder, version, metadata["configuration"])

    def _make_checkpoint(self, folder: FilePath, version: int, configuration: Mapping[str, str]) -> None:
        if version % int(configuration.get("delta.checkpointInterval") or _CHECKPOINT_INTERVAL):
            return
        table = self._opened(folder)
        if table is not None and version:
            with _delta_errors(folder):
                table.create_checkpoint()
                if configuration.get("delta.enableExpiredLogCleanup", "true") != "false":
                    table.cleanup_metadata()

    def roll_back(self) -> None:
        """Forget what was planned since the last commit."""
        self._planned.clear()
        for folder in reversed(self._new_folders):
            # It stays if it has files.
            with suppress(OSError):
                folder.rmdir()
        self._new_folders.clear()


def open_target(target: str, storage_options: Mapping[str, str] | None = None) -> FileTarget:
    """Make a target of Delta tables by its URI, delta:FOLDER."""
    path = file_path(target.partition(":")[2], storage_options)
    if isinstance(path, ObjectPath) and _LOCKS in {*os.environ, *(name.upper() for name, _ in path.options)}:
        raise RunError(
            f"{path}: {_LOCKS} is set: pgdecode commits by conditional requests, and other writers that "
            f"lock by DynamoDB would not see its commits: unset it for all writers"
        )
    return FileTarget(target, DeltaFormat(path))


# -- logs --------------------------------------------------------------------------------------------------------------


def _entry(folder: FilePath, version: int) -> FilePath:
    return folder / LOG / f"{version:020}.json"


def _last_version(log: FilePath) -> int | None:
    """Return the last version of a table; None if it has none."""
    if isinstance(log, ObjectPath):
        hint = json.loads(read_object(log / "_last_checkpoint") or "{}").get("version", 0)
        names = [path.name for path, _ in listed(log, after=f"{hint:020}")]
    else:
        names = os.listdir(log)
    return max((int(found[1]) for found in map(_ENTRY.fullmatch, names) if found), default=None)


def _read(path: FilePath) -> bytes | None:
    if isinstance(path, ObjectPath):
        return read_object(path)
    with suppress(FileNotFoundError):
        return path.read_bytes()
    return None


def _created(path: FilePath, content: bytes) -> bytes | None:
    """Create an entry of a log, durably. Return the content of another one that is there already."""
    if isinstance(path, ObjectPath):
        return created_object(path, content)
    make_folders(path.parent)
    sync(path.parent.parent)
    try:
        write_durably(path, content, create=True)
    except FileExistsError:
        return path.read_bytes()
    return None


def _remove_partial(log: Path) -> None:
    """Remove the entries that a killed run has left incomplete."""
    for path in log.glob(".*.json.*.partial"):
        path.unlink(missing_ok=True)


def _stem(version: int) -> str:
    """Return how the names of files begin that the commit of a version adds."""
    return f"part-{version:010}-"


def _remove_others(folder: FilePath, version: int, content: bytes) -> None:
    """Remove the files that other runs have written for the commit of a version. `content` is its entry."""
    if is_only_info(content):
        # A run may be about to commit its files under the next version.
        return
    added, stem = added_names(content), _stem(version)
    if isinstance(folder, ObjectPath):
        paths = [path for path, _ in listed(folder, after=stem)]
        delete_objects([path for path in paths if path.name.startswith(stem) and path.name not in added])
        return
    for name in os.listdir(folder):
        if name.startswith(stem) and name not in added:
            (folder / name).unlink(missing_ok=True)


def _metadata(name: str, former: Mapping[str, Any], file_schema: pa.Schema) -> dict[str, Any]:
    """Return the metadata of a table with these columns."""
    made = json.loads(Schema.from_arrow(file_schema).to_json())
    if former and json.loads(former["schemaString"]) == made:
        return dict(former)
    new: dict[str, Any] = {
        "id": str(uuid4()),
        "name": name,
        "description": None,
        "format": {"provider": "parquet", "options": {}},
        "partitionColumns": [],
        "createdTime": now_ms(),
        "configuration": {},
    }
    return {**new, **former, "schemaString": json.dumps(made, separators=(",", ":"))}


def _file_schema(folder: FilePath, schema: pa.Schema, known: pa.Schema) -> pa.Schema:
    """Return the schema of the files of a table, with the metadata of the log, such as comments."""
    fields = [stored_field(item, "delta") for item in schema]
    if [(item.name, item.type) for item in known] != [(item.name, item.type) for item in fields]:
        raise RunError(
            f"{folder}: another writer has changed the columns of the table: restore it to the last version of "
            f"pgdecode, or use another folder"
        )
    return pa.schema(
        [
            item.with_metadata(other.metadata).with_nullable(other.nullable)
            for item, other in zip(fields, known, strict=True)
        ]
    )


def _has_timestamp(type: pa.DataType) -> bool:
    """Whether values of a type have timestamps without zone."""
    inner = [type.field(number).type for number in range(type.num_fields)]
    return bool(pa.types.is_timestamp(type) and type.tz is None) or any(map(_has_timestamp, inner))


def _has_deletion_vectors(table: DeltaTable) -> bool:
    return any(batch.num_rows for batch in pa.RecordBatchReader.from_stream(table.deletion_vectors()))


def _has_bounds(type: pa.DataType) -> bool:
    of = pa.types
    return any(test(type) for test in (of.is_integer, of.is_string, of.is_decimal, of.is_date32, of.is_timestamp))


def _bounds_columns(actions: pa.Table, field: pa.Field) -> list[ColumnBounds]:
    """Return the bounds of a column in all files."""

    def column(part: str) -> list[pa.Scalar | None]:
        at = actions.schema.get_field_index(f"{part}.{field.name}")
        if at < 0:
            return [None] * actions.num_rows
        values = actions[at].cast(pa.int64() if part == "null_count" else field.type)
        if part == "max" and pa.types.is_timestamp(field.type):
            # Some writers cut off what is below a millisecond.
            values = pc.add(values, _BELOW_MS)
        return [value if value.is_valid else None for value in values]

    nulls = [None if value is None else value.as_py() for value in column("null_count")]
    return [*map(ColumnBounds, nulls, column("min"), column("max"))]


@contextmanager
def _delta_errors(folder: FilePath) -> Iterator[None]:
    """Convert errors of deltalake, whose texts have several lines and may have secrets."""
    try:
        yield
    except TableNotFoundError:
        raise
    except (DeltaError, OSError, ValueError) as error:
        if isinstance(error, RunError | RunFault | StorageError):
            raise
        cause = error_cause(str(error)) if isinstance(folder, ObjectPath) else str(error).partition("\n")[0][:200]
        raise StorageError(folder, f"deltalake cannot read or write the table: {cause}") from None
