"""Writes the Parquet files of a table: workers encode row groups, and those of other files are copied as bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pgdecode.arrow.null_arrays import null_array
from pgdecode.arrow.parquet_joiner import MAGIC, ParquetJoiner
from pgdecode.arrow.thrift import Struct, StructReader
from pgdecode.datasets.file_digest import NewFile
from pgdecode.lake.data_file import ColumnBounds, DataFile, bounds_of, column_bounds, plain_columns
from pgdecode.lake.table_format import TableFormat
from pgdecode.payloads.workers import OrderedResults, Workers
from pgdecode.storage.object_path import FilePath, ObjectPath
from pgdecode.storage.object_store import read_range
from pgdecode.storage.parquet_input import Footer, chunk_range, opened, plan, read_footer, readable

# Bytes of decoded rows in a row group. Each worker has a few of them in memory.
GROUP_BYTES = 32 * 2**20
_FIELD_ID = b"PARQUET:field_id"


@dataclass(frozen=True)
class CopiedGroup:
    """A row group of a file, as bytes.

    Attributes
    ----------
    footer : Struct
        Of the file.
    number : int
        Of the row group.
    pages : pa.Buffer
    start : int
        Where the bytes were in the file.
    """

    footer: Struct
    number: int
    pages: pa.Buffer
    start: int


# What a worker makes for a file: complete Parquet files with row groups, and copied ones.
Pieces = list[memoryview | CopiedGroup]


class SourceFile:
    """A file of a table, from which row groups are read or copied. Several threads may use it.

    Attributes
    ----------
    file : DataFile
    metadata : pq.FileMetaData
    """

    def __init__(self, format: TableFormat, file: DataFile) -> None:
        path = format.path(file)
        if isinstance(path, ObjectPath) and path.size < 0:
            # The size is known, so that no request for it is needed.
            path = ObjectPath(path.root, path.key, path.options, file.bytes)
        self.file, self._path = file, path
        with readable(path) as source:
            footer = read_footer(source)
            self.schema = opened(source, footer.metadata).schema_arrow
        self._footer: Footer = footer
        self.metadata = footer.metadata
        self._leaves = {item.name: leaf for item, leaf in plain_columns(self.metadata, self.schema)}
        self._struct: Struct | None = None

    def group(self, number: int, schema: pa.Schema) -> pa.Table:
        """Read some columns of a row group, with the names and types of a table."""
        sources = _columns_of_file(self.schema, schema)
        names = [name for name in sources if name is not None]
        n_rows = self.metadata.row_group(number).num_rows
        with readable(self._path) as source:
            plan(source, self.metadata, [number], names)
            parquet = opened(source, self.metadata)
            rows = parquet.read_row_group(number, columns=names, use_threads=False) if names else None
        columns = []
        for item, name in zip(schema, sources, strict=True):
            if name is None or rows is None:
                columns.append(pa.chunked_array([null_array(n_rows, item.type)]))
            else:
                column = rows[name]
                columns.append(column if column.type == item.type else column.cast(item.type))
        return pa.Table.from_arrays(columns, schema=schema)

    @property
    def n_groups(self) -> int:
        """Number of row groups."""
        return int(self.metadata.num_row_groups)

    def has_large(self, number: int) -> bool:
        """Whether a row group is large enough to stay one."""
        return bool(self.metadata.row_group(number).total_byte_size >= GROUP_BYTES // 4)

    def bounds(self, groups: Sequence[int], schema: pa.Schema) -> dict[str, ColumnBounds]:
        """Read the bounds of columns of a table in some row groups, by their names in the table."""
        found = {}
        for item, name in zip(schema, _columns_of_file(self.schema, schema), strict=True):
            leaf = None if name is None else self._leaves.get(name)
            if leaf is not None and name is not None and self.schema.field(name).type == item.type:
                found[item.name] = bounds_of(self.metadata, groups, leaf, item.type)
        return found

    def copied(self, number: int) -> CopiedGroup | None:
        """Read the bytes of a row group; None if they are not together."""
        group = self.metadata.row_group(number)
        ranges = [chunk_range(group.column(leaf)) for leaf in range(group.num_columns)]
        start, end = min((first for first, _ in ranges), default=0), max((last for _, last in ranges), default=0)
        if end - start != sum(last - first for first, last in ranges):
            return None
        if self._struct is None:
            content = bytes(self._footer.content)
            self._struct = StructReader(content).struct()
        return CopiedGroup(self._struct, number, _read(self._path, start, end), start)


class FileWriter:
    """Writes files of a table. A context manager: if its block fails, no file remains.

    Parameters
    ----------
    name : str
        Of the table.
    format : TableFormat
    schema : pa.Schema
        Of the files.
    workers : Workers
        They encode row groups.
    file_bytes : int
        A file that has this size is closed, and the next one begins.

    Attributes
    ----------
    files : list of DataFile
        Those that are complete. The caller takes them.
    """

    def __init__(self, name: str, format: TableFormat, schema: pa.Schema, workers: Workers, file_bytes: int) -> None:
        self._name, self._format, self._schema, self._file_bytes = name, format, schema, file_bytes
        self._results: OrderedResults[Pieces | None] = OrderedResults(workers, self._add)
        self._file: NewFile | None = None
        self._joiner: ParquetJoiner
        self._rows: list[pa.Table] = []
        self._n_bytes = 0
        self._empty: pq.ParquetFile | None = None
        self.files: list[DataFile] = []

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.finish()
                return
        except BaseException as failure:
            self._abandon(failure)
            raise
        finally:
            self._results.cancel()
        self._abandon(error)

    def _abandon(self, error: BaseException) -> None:
        self._results.cancel()
        if self._file is not None:
            self._file.__exit__(type(error), error, error.__traceback__)
            self._file = None
        for file in self.files:
            self._format.discard(file)

    def put(self, function: Callable[..., Pieces], *arguments: Any) -> None:
        """Let a worker make the next row groups."""
        self._results.put(function, *arguments)

    def copy(self, source: SourceFile, number: int) -> None:
        """Write a row group of another file; as bytes, if files are written in the same way."""
        self.put(self._copied if self.can_copy(source) else self._decoded, source, number)

    def can_copy(self, source: SourceFile) -> bool:
        """Whether row groups of a file can be copied as bytes."""
        if self._empty is None:
            self._empty = pq.ParquetFile(pa.BufferReader(self.encoded(self._schema.empty_table())[0]))
        schema, metadata = self._empty.schema_arrow, self._empty.metadata
        return bool(
            source.schema.equals(schema, check_metadata=True)
            and source.metadata.schema.equals(metadata.schema)
            and source.metadata.created_by == metadata.created_by
        )

    def _copied(self, source: SourceFile, number: int) -> Pieces:
        found = source.copied(number)
        return self._decoded(source, number) if found is None else [found]

    def _decoded(self, source: SourceFile, number: int) -> Pieces:
        return self.encoded(source.group(number, self._schema))

    def write(self, rows: pa.Table) -> None:
        """Write rows, together with those before and after them in a row group."""
        for part in _split(rows):
            self._rows.append(part)
            self._n_bytes += part.nbytes
            if self._n_bytes >= GROUP_BYTES:
                self._flush()

    def _flush(self) -> None:
        if self._rows:
            rows = pa.concat_tables(self._rows)
            self._rows, self._n_bytes = [], 0
            if len(rows):
                self.put(self.encoded, rows)

    def end_file(self) -> None:
        """Let the next row groups be those of another file."""
        self._flush()
        self._results.put(lambda: None)

    def finish(self) -> None:
        """Wait until all files are complete."""
        self.end_file()
        self._results.finish()

    def write_empty_file(self) -> None:
        """Write a file without rows."""
        self.put(self.encoded, self._schema.empty_table())
        self.end_file()

    def encoded(self, rows: pa.Table) -> Pieces:
        """Encode rows as row groups."""
        sink = pa.BufferOutputStream()
        with pq.ParquetWriter(sink, self._schema, compression="zstd") as writer:
            for part in _split(rows) if len(rows) else ():
                writer.write_table(part, row_group_size=len(part))
        return [memoryview(sink.getvalue())]

    def _add(self, pieces: Pieces | None) -> None:
        if pieces is None:
            self._close()
            return
        for piece in pieces:
            if self._file is None:
                self._file = self._format.new_file(self._name)
                self._joiner = ParquetJoiner(self._file)
            if isinstance(piece, CopiedGroup):
                self._joiner.add_group(piece.footer, piece.number, piece.pages, piece.start)
            else:
                self._joiner.add(piece)
            if self._joiner.n_bytes >= self._file_bytes:
                self._close()

    def _close(self) -> None:
        file = self._file
        if file is None:
            return
        end = self._joiner.close()
        file.close()
        self._file = None
        n_rows = self._joiner.n_rows
        path = self._format.accept(self._name, file, n_rows)
        # pyarrow reads the footer from the end, wherever it begins.
        metadata = pq.ParquetFile(pa.BufferReader(MAGIC + end)).metadata
        bounds = column_bounds(metadata, self._schema)
        self.files.append(DataFile(path, n_rows, self._joiner.n_bytes, bounds, metadata))


def _split(rows: pa.Table) -> Iterator[pa.Table]:
    """Halve rows until each part has at most twice the bytes of a row group, or one row."""
    if rows.nbytes <= 2 * GROUP_BYTES or len(rows) < 2:
        yield rows
        return
    half = len(rows) // 2
    yield from _split(rows.slice(0, half))
    yield from _split(rows.slice(half))


def _read(path: FilePath, start: int, end: int) -> pa.Buffer:
    """Read bytes of a file."""
    if isinstance(path, Path):
        with path.open("rb", buffering=0) as file:
            file.seek(start)
            content = file.read(end - start)
    else:
        content = read_range(path, start, end)
    buffer = pa.py_buffer(content)
    if buffer.size != end - start:
        raise OSError(f"{path}: ends within a row group")
    return buffer


def _columns_of_file(file: pa.Schema, schema: pa.Schema) -> list[str | None]:
    """Return the name in a file of each column of a table; None if the file does not have it."""
    ids = {item.metadata[_FIELD_ID]: item.name for item in file if _FIELD_ID in (item.metadata or {})}
    names = set(file.names)
    found = []
    for item in schema:
        number = (item.metadata or {}).get(_FIELD_ID)
        found.append(ids.get(number) if number is not None and ids else item.name if item.name in names else None)
    return found
