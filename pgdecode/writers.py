"""One output file: record batches to Parquet, JSON lines or CSV."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from pgdecode.render import flat_columns, json_lines
from pgdecode.schemas import envelope_schema

FORMATS = ("parquet", "jsonl", "csv")

# Decoded bytes that make a row group. Small ones would cost readers, and the writer keeps a record of each.
_GROUP_BYTES = 32 * 2**20

WriteBatch = Callable[[pa.RecordBatch], None]


@contextmanager
def open_writer(
    path: Path, format: str, schema: pa.Schema, *, keep: Sequence[str] = (), fields: Sequence[str] | None = None
) -> Iterator[WriteBatch]:
    """Create a file; what comes out of the context writes a batch to it.

    Parameters
    ----------
    path : Path
    format : {"parquet", "jsonl", "csv"}
    schema : pa.Schema
        Of the batches: the `keep` columns and the envelope columns of `render.fields_to_decode(fields)` at least.
    keep : sequence of str
        Columns to write before the envelope's.
    fields : sequence of str, optional
        Envelope columns to write, by default the whole envelope; in JSON lines, each message's own fields.
    """
    path = path.absolute()  # pyarrow would take "s3:x/y" for a URI
    if format == "parquet":
        names = [*keep, *envelope_schema(fields).names]
        with pq.ParquetWriter(path, pa.schema([schema.field(name) for name in names]), compression="zstd") as parquet:
            groups = _RowGroups(parquet)
            yield lambda batch: groups.add(batch.select(names))
            groups.flush()
    elif format == "jsonl":
        with open(path, "xb") as lines:
            yield lambda batch: lines.writelines(
                line.encode() + b"\n" for line in json_lines(batch, keep=keep, fields=fields)
            )
    else:
        empty = pa.RecordBatch.from_pylist([], schema=schema)
        # Text is always quoted and null is nothing at all: as in PostgreSQL's CSV, an empty string is not a null.
        with pyarrow.csv.CSVWriter(path, flat_columns(empty, keep=keep, fields=fields).schema) as table:
            yield lambda batch: table.write_batch(flat_columns(batch, keep=keep, fields=fields))


class _RowGroups:
    """Gathers batches until they are worth a row group."""

    def __init__(self, writer: pq.ParquetWriter) -> None:
        self._writer = writer
        self._batches: list[pa.RecordBatch] = []
        self._n_bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._n_bytes += batch.nbytes
        if self._n_bytes >= _GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._batches:
            table = pa.Table.from_batches(self._batches)
            self._batches, self._n_bytes = [], 0
            self._writer.write_table(table, row_group_size=max(table.num_rows, 1))
