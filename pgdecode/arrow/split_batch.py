"""Splits record batches that are too large."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa


def split_batch(batch: pa.RecordBatch, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Halve a batch until each piece has at most so many bytes, or one row."""
    if batch.nbytes <= most_bytes or batch.num_rows < 2:
        yield batch
        return
    half = batch.num_rows // 2
    yield from split_batch(batch.slice(0, half), most_bytes)
    yield from split_batch(batch.slice(half), most_bytes)
