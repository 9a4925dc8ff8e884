"""Splits record batches that are too large, and joins those that are too small."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

# With fewer rows in a batch on average, Arrow's calls for each chunk of a column take longer than copying the rows.
_FEW_ROWS = 8192


def split_batch(batch: pa.RecordBatch, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Halve a batch until each piece has at most so many bytes, or one row."""
    if batch.nbytes <= most_bytes or batch.num_rows < 2:
        yield batch
        return
    half = batch.num_rows // 2
    yield from split_batch(batch.slice(0, half), most_bytes)
    yield from split_batch(batch.slice(half), most_bytes)


def table_of(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """Make a table of batches. If they are small, each column of the table is one array."""
    table = pa.Table.from_batches(batches)
    return table.combine_chunks() if table.num_rows < len(batches) * _FEW_ROWS else table
