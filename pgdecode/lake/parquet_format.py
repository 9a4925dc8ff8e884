"""Tables as folders of Parquet files below one folder, whose manifest lists the files of all tables."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from pgdecode.datasets.errors import OtherWriter, RunError, RunFault
from pgdecode.datasets.file_digest import NewFile
from pgdecode.datasets.manifest import Manifest, OutputFile
from pgdecode.datasets.new_files import NEW, NewOutput
from pgdecode.datasets.run import Run
from pgdecode.datasets.state import LOG, State
from pgdecode.datasets.target import target_at
from pgdecode.files.change_export import table_file_name
from pgdecode.lake.applied import Applied
from pgdecode.lake.data_file import ColumnBounds, DataFile
from pgdecode.lake.file_target import FileTarget
from pgdecode.lake.table_format import StoredTable, TableChange
from pgdecode.lake.target import ColumnSource
from pgdecode.relations.schema_metadata import KEY
from pgdecode.storage.object_path import FilePath, file_path
from pgdecode.storage.object_store import remove_file

# What the manifest says that the data set has.
_WHAT = ("tables",)


class ParquetFormat:
    """A data set whose folders are tables, in a local folder or in an object store.

    One commit, which is a manifest, has the files and states of all tables.

    Parameters
    ----------
    path : Path or ObjectPath
    """

    needs_file = True

    def __init__(self, path: FilePath) -> None:
        self._path = path
        self._target = target_at(path)
        self._entered: AbstractContextManager[Run]
        self._run: Run
        self._tables: dict[str, dict[str, Any]] = {}
        self._files: dict[str, OutputFile] = {}
        self._new: dict[str, OutputFile] = {}  # accepted since the last commit
        self._n_new = 0
        self._failure: Exception | None = None  # to begin the run after a commit

    # -- runs ----------------------------------------------------------------------------------------------------------

    @contextmanager
    def opened(self) -> Iterator[Mapping[str, Applied]]:
        """Begin a run, and yield the state of each table."""
        with ExitStack() as stack:
            self._failure = None
            self._begin()
            # A commit ends a run and begins another one.
            stack.push(lambda *error: self._entered.__exit__(*error))
            yield {name: self._applied(name) for name in self._tables}

    def _begin(self) -> None:
        self._entered = self._target.begin(_WHAT, {})
        self._run = self._entered.__enter__()
        last, replication = self._run.last, self._run.state.replication
        if last is not None and (replication is None or "tables" not in replication):
            raise RunError(f"{self._path}: is a data set that was not written by apply: choose another folder")
        self._files = {} if last is None else {file.name: file for file in last.files}
        self._tables = {} if replication is None else dict(replication["tables"])
        self._new, self._n_new = {}, 0

    def _applied(self, name: str) -> Applied:
        try:
            return Applied.from_json(self._tables[name]["applied"])
        except (ValueError, LookupError, TypeError) as error:
            raise RunFault(f"{self._path}: the state of table {name} is damaged: {error}") from None

    def commit(self, changes: Mapping[str, TableChange]) -> None:
        """Commit changes of tables, in one commit."""
        tables = dict(self._tables)
        files = dict(self._files)
        for name, change in changes.items():
            for file in change.removed:
                files.pop(file.path, None)
            for file in change.added:
                files[file.path] = self._new[file.path]
            tables[name] = _table_state(change)
        run = self._begun()
        run.replaced = sorted(self._files.keys() - files.keys())
        run.files = run.files.as_first()
        applied = [Applied.from_json(table["applied"]) for table in tables.values()]
        manifest = Manifest(
            "python",
            _WHAT,
            rows=sum(file.rows for file in files.values()),
            last_lsn=max((item.commit_lsn for item in applied), default=-1),
            files=[*files.values()],
        )
        # They may be part of the commit, whatever interrupts it.
        self._new = {}
        number = run.commit(manifest, State({"tables": tables})).number
        self._files, self._tables = files, tables
        try:
            self._entered.__exit__(None, None, None)
            self._begin()
            if self._run.last is None or self._run.last.number != number:
                raise OtherWriter(f"{self._path}: another run has committed meanwhile")
        except Exception as error:
            # This commit succeeded. What uses the next run raises the error.
            self._failure = error

    def _begun(self) -> Run:
        if self._failure is not None:
            raise self._failure
        return self._run

    def roll_back(self) -> None:
        """Forget what was planned since the last commit."""

    # -- tables --------------------------------------------------------------------------------------------------------

    def load(self, name: str) -> StoredTable | None:
        """Read the metadata of a table; None if it does not exist."""
        if name not in self._tables:
            return None
        state = self._tables[name]
        try:
            schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(state["schema"])))
            bounds = _bounds_of(base64.b64decode(state["bounds"]))
            rows = {path: self._files[path] for path in state["files"]}
        except (ValueError, LookupError, TypeError, pa.ArrowException, OSError) as error:
            raise RunFault(f"{self._path}: the state of table {name} is damaged: {type(error).__name__}") from error
        files = [DataFile(path, file.rows, file.bytes, bounds.get(path, {})) for path, file in rows.items()]
        return StoredTable(schema, schema, files, self._applied(name))

    def create(self, name: str, schema: pa.Schema) -> pa.Schema:
        """Return the schema of the files of a new table. Parquet has all types."""
        return schema

    def evolve(self, name: str, schema: pa.Schema, columns: Mapping[str, ColumnSource]) -> tuple[pa.Schema, bool]:
        """Return the schema of files of a table with other columns. All files are written anew."""
        return schema, False

    # -- files ---------------------------------------------------------------------------------------------------------

    def path(self, file: DataFile) -> FilePath:
        """Return where a file is now."""
        folder = self._target.folder
        if isinstance(folder, Path) and file.path in self._new:
            return folder / LOG / NEW / file.path
        return folder / file.path

    def new_file(self, name: str) -> NewFile:
        """Create a file of a table."""
        self._n_new += 1
        return self._begun().files.open(
            "part", "parquet", folder=table_file_name(name), nth=self._n_new, is_numbered=True
        )

    def accept(self, name: str, file: NewFile, rows: int) -> str:
        """Take a complete file, and return its path below the folder."""
        assert isinstance(file, NewOutput)
        output = self._begun().accept(file.written(rows))
        self._new[output.name] = output
        return output.name

    def discard(self, file: DataFile) -> None:
        """Remove a file that was accepted, unless it is or may be part of a commit."""
        if file.path not in self._new:
            return
        path = self.path(file)
        del self._new[file.path]
        remove_file(path)


def open_target(target: str, storage_options: Mapping[str, str] | None = None) -> FileTarget:
    """Make the target of "parquet:FOLDER"."""
    return FileTarget(target, ParquetFormat(file_path(target.removeprefix("parquet:"), storage_options)))


def _table_state(change: TableChange) -> dict[str, Any]:
    """Describe a table in the state of the run, as JSON."""
    return {
        "applied": change.applied.to_json(),
        "schema": base64.b64encode(change.schema.serialize()).decode(),
        "files": [file.path for file in change.files],
        "bounds": base64.b64encode(_with_bounds(change)).decode(),
    }


def _with_bounds(change: TableChange) -> pa.Buffer:
    """Encode the bounds of the columns of the key: a row for each file, three columns for each."""
    columns: dict[str, pa.Array] = {"path": pa.array([file.path for file in change.files], pa.string())}
    for item in change.schema:
        if KEY not in (item.metadata or {}) or pa.types.is_nested(item.type):
            continue
        bounds = [file.bounds.get(item.name, ColumnBounds()) for file in change.files]
        columns[f"{item.name}.nulls"] = pa.array([of.nulls for of in bounds], pa.int64())
        for which in ("minimum", "maximum"):
            values = [getattr(of, which) for of in bounds]
            columns[f"{item.name}.{which}"] = pa.array(values, item.type)
    batch = pa.RecordBatch.from_pydict(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def _bounds_of(content: bytes) -> dict[str, dict[str, ColumnBounds]]:
    """Decode the bounds of files, by their paths."""
    table = pa.ipc.open_stream(content).read_all()
    found: dict[str, dict[str, ColumnBounds]] = {path: {} for path in table["path"].to_pylist()}
    for name in table.schema.names[1::3]:
        column = name.removesuffix(".nulls")
        nulls = table[name].to_pylist()
        limits = (table[f"{column}.minimum"], table[f"{column}.maximum"])
        for path, n_nulls, *ends in zip(found, nulls, *limits, strict=True):
            found[path][column] = ColumnBounds(n_nulls, *(item if item.is_valid else None for item in ends))
    return found
