"""Writes record batches to one file: Parquet, JSON lines or CSV."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from pgdecode.arrow.batch_sizes import split_batch, table_of
from pgdecode.arrow.parquet_joiner import ParquetJoiner
from pgdecode.envelope.schema import envelope_schema
from pgdecode.files.change_text import change_lines, flat_changes, flat_table, table_lines
from pgdecode.files.envelope_text import flat_columns, json_lines
from pgdecode.payloads.workers import ONE_WORKER, OrderedResults, Workers
from pgdecode.protocol.options import Format

# Bytes of decoded data in a row group. Small row groups are slow to read, and the writer keeps metadata of each. All
# writers of a job together buffer this much, but each at least `_LEAST_GROUP_BYTES`.
_GROUP_BYTES = 32 * 2**20
_LEAST_GROUP_BYTES = 2**20
# Bytes of rows that become text at once: JSON may take six for one, and Arrow's strings hold 2 GB.
_TEXT_BYTES = 2**26

WriteBatch = Callable[[pa.RecordBatch], None]

# Bad payloads: the file and the row in it, the position if the payloads have positions, the payload and its error.
BAD_PAYLOADS = pa.schema(
    [
        ("file", pa.string()),
        ("row", pa.int64()),
        ("position", pa.int64()),
        ("payload", pa.large_binary()),
        ("error", pa.string()),
    ]
)


@dataclass(frozen=True)
class Layout:
    """The layout of one kind of rows in each format.

    Attributes
    ----------
    columns : callable
        Selects the columns for Parquet from a batch.
    lines : callable
        Converts each row to a line of JSON.
    flat : callable
        Converts a batch to columns for CSV.
    distinct : tuple of str
        Columns with mostly distinct values. A Parquet dictionary would cost time and space.
    """

    columns: Callable[[pa.RecordBatch], pa.RecordBatch]
    lines: Callable[[pa.RecordBatch], pa.Array]
    flat: Callable[[pa.RecordBatch], pa.RecordBatch]
    distinct: tuple[str, ...] = ()


def message_layout(keep: Sequence[str] = (), fields: Sequence[str] | None = None) -> Layout:
    """Return the layout of messages.

    Parameters
    ----------
    keep : sequence of str
        Columns to write before the envelope columns.
    fields : sequence of str, optional
        Envelope columns to write. By default, all columns; in JSON lines, the fields of each message. Batches must have
        the columns of `fields_to_decode(fields)`.
    """
    names = [*keep, *envelope_schema(fields).names]
    return Layout(
        lambda batch: batch.select(names),
        partial(json_lines, keep=keep, fields=fields),
        partial(flat_columns, keep=keep, fields=fields),
    )


def _with_fields(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Leave out structs without fields, which Parquet does not support: `_old` of a table without columns."""
    return batch.select(
        [item.name for item in batch.schema if not (pa.types.is_struct(item.type) and not list(item.type))]
    )


CHANGE_LAYOUT = Layout(_with_fields, change_lines, flat_changes, ("position", "commit_position"))
TABLE_LAYOUT = Layout(_with_fields, table_lines, flat_table, ("_position", "_commit_position"))


@dataclass(frozen=True)
class Writer:
    """Writes batches to a file.

    Attributes
    ----------
    write : callable
        Takes a batch.
    flush : callable
        Lets the workers encode what the writer has, without waiting for them.
    """

    write: WriteBatch
    flush: Callable[[], None] = lambda: None

    def __call__(self, batch: pa.RecordBatch) -> None:
        """Write a batch."""
        self.write(batch)


@contextmanager
def writer_to(
    file: BinaryIO,
    format: Format,
    schema: pa.Schema,
    layout: Layout,
    n_writers: int = 1,
    workers: Workers = ONE_WORKER,
) -> Iterator[Writer]:
    """Yield a writer to an open file. The bytes of the file do not depend on the workers.

    Parameters
    ----------
    file : binary file
        It stays open.
    format : {"parquet", "jsonl", "csv"}
    schema : pa.Schema
        Of the batches.
    layout : Layout
    n_writers : int
        Number of writers that are open at the same time.
    workers : Workers
        They encode row groups, or batches of text.
    """
    empty = pa.RecordBatch.from_pylist([], schema=schema)
    if format == "parquet":
        with _parquet_writer(file, layout, layout.columns(empty).schema, workers) as write_group:
            groups = _RowGroups(write_group, max(_GROUP_BYTES // n_writers, _LEAST_GROUP_BYTES))
            yield Writer(lambda batch: groups.add(layout.columns(batch)), groups.flush)
            groups.flush()
        return
    encode = partial(_lines if format == "jsonl" else _csv, layout)
    with _ordered(workers, file.write) as encoded:
        if format == "csv":
            encoded.put(_csv_header, layout.flat(empty).schema)

        def write_text(batch: pa.RecordBatch) -> None:
            for piece in split_batch(batch, _TEXT_BYTES):
                encoded.put(encode, piece)

        yield Writer(write_text)


@contextmanager
def _ordered(workers: Workers, write: Callable[[Any], object]) -> Iterator[OrderedResults[Any]]:
    """Yield a queue of functions whose results are written in order."""
    results = OrderedResults(workers, write)
    try:
        yield results
        results.finish()
    finally:
        results.cancel()


@contextmanager
def _parquet_writer(
    file: BinaryIO, layout: Layout, schema: pa.Schema, workers: Workers
) -> Iterator[Callable[[pa.Table], None]]:
    """Yield a function that writes a table as one row group."""
    dictionaries = [path for path in _leaves(schema) if path not in layout.distinct]

    def writer(sink: Any) -> pq.ParquetWriter:
        return pq.ParquetWriter(sink, schema, compression="zstd", use_dictionary=dictionaries)

    def write_group(parquet: pq.ParquetWriter, table: pa.Table) -> None:
        parquet.write_table(table, row_group_size=max(table.num_rows, 1))

    def encode(table: pa.Table | None) -> memoryview:
        sink = pa.BufferOutputStream()
        with writer(sink) as parquet:
            if table is not None:
                write_group(parquet, table)
        return memoryview(sink.getvalue())

    if workers.n == 1:
        with writer(file) as parquet:
            yield partial(write_group, parquet)
        return
    joiner = ParquetJoiner(file)
    with _ordered(workers, joiner.add) as encoded:
        yield partial(encoded.put, encode)
    if joiner.is_empty:
        joiner.add(encode(None))
    joiner.close()


def _lines(layout: Layout, batch: pa.RecordBatch) -> pa.Buffer:
    # An empty item at the end, so that the last line ends too.
    lines = pa.concat_arrays([layout.lines(batch), pa.array([""] if len(batch) else [], pa.string())])
    return pc.binary_join(pa.ListArray.from_arrays([0, len(lines)], lines), "\n")[0].as_buffer()


def _csv(layout: Layout, batch: pa.RecordBatch) -> pa.Buffer:
    # Text is quoted and null is empty, so an empty string differs from null, as in PostgreSQL's CSV.
    sink = pa.BufferOutputStream()
    pyarrow.csv.write_csv(layout.flat(batch), sink, pyarrow.csv.WriteOptions(include_header=False))
    return sink.getvalue()


def _csv_header(schema: pa.Schema) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    pyarrow.csv.write_csv(schema.empty_table(), sink)
    return sink.getvalue()


def _leaves(schema: pa.Schema) -> list[str]:
    """List the paths of the Parquet columns of a schema."""
    return [path for field in schema for path in _leaves_of(field.name, field.type)]


def _leaves_of(path: str, type: pa.DataType) -> Iterator[str]:
    if pa.types.is_struct(type):
        for field in type:
            yield from _leaves_of(f"{path}.{field.name}", field.type)
    elif pa.types.is_map(type):
        yield from _leaves_of(f"{path}.key_value.key", type.key_type)
        yield from _leaves_of(f"{path}.key_value.value", type.item_type)
    elif pa.types.is_nested(type):
        # In Parquet the items of a list are always called "element".
        yield from _leaves_of(f"{path}.list.element", type.value_type)
    else:
        yield path


class _RowGroups:
    """Collects batches until they are large enough for a row group."""

    def __init__(self, write: Callable[[pa.Table], None], group_bytes: int) -> None:
        self._write = write
        self._group_bytes = group_bytes
        self._batches: list[pa.RecordBatch] = []
        self._n_bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._n_bytes += batch.nbytes
        if self._n_bytes >= self._group_bytes:
            self.flush()

    def flush(self) -> None:
        if self._batches:
            table = table_of(self._batches)
            self._batches, self._n_bytes = [], 0
            self._write(table)
