"""Makes record batches of committed changes with any builder. Splits batches that are too large, or joins batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode._native.arrow.payload_array import Source
from pgdecode.arrow.null_arrays import null_array
from pgdecode.changes.committed_changes import ChangeSlice
from pgdecode.changes.replication_state import CommittedChanges
from pgdecode.changes.transaction_assembler import TransactionAssembler
from pgdecode.protocol.errors import BatchExpands, BatchTooLarge
from pgdecode.protocol.limits import FREE_EXPANSION

# Bytes of payloads whose changes are built at a time.
_SLICE_BYTES = 128 * 2**20
ONE_BATCH = 1 << 62  # as `max_rows`: all changes become one batch, as in `ChangeDecoder.decode`


class Builder(Protocol):
    """Makes record batches of committed changes."""

    error: str  # name of the error column

    @property
    def numbers(self) -> Collection[int] | None:
        """Numbers of the versions of relations whose changes it builds; None for all."""

    def batch(self, change_slice: ChangeSlice) -> pa.RecordBatch:
        """Build the changes of a slice."""


class LimitedBuilder(Builder, Protocol):
    """Counts what it has built."""

    @property
    def text_bytes(self) -> int:
        """Bytes of text in all its batches, as `Limits.max_expansion` counts them for one batch."""


def build_batches(
    committed: Iterable[tuple[TransactionAssembler, CommittedChanges]],
    builders: Sequence[LimitedBuilder],
    max_rows: int,
    drop_bad: bool,
    bad_rows: Counter[str],
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Build slices of at most `max_rows` changes with several builders. Yield each batch with its builder's number.

    Bad rows are counted in `bad_rows` by error code, and left out with `drop_bad`. If `max_rows` is `ONE_BATCH`, the
    caller joins the batches.

    Raises
    ------
    BatchExpands
        If `max_rows` is `ONE_BATCH` and the text of the batches exceeds `Limits.max_expansion`.
    """
    n_bytes = error_bytes = 0
    for change_slice in change_slices(committed, max_rows):
        if not change_slice.start:
            n_bytes += change_slice.source.payload_bytes
        for number, builder in enumerate(builders):
            for batch in fitting_batches(builder, change_slice):
                if max_rows >= ONE_BATCH:
                    # Native code has the limit only for what it builds at a time, and without the texts of errors.
                    errors = batch.column(builder.error)
                    if errors.null_count < len(errors):
                        error_bytes += pc.sum(pc.binary_length(errors)).as_py()
                    text_bytes = error_bytes + sum(builder.text_bytes for builder in builders)
                    limits = change_slice.assembler.options.limits
                    if text_bytes > limits.max_expansion * n_bytes + FREE_EXPANSION:
                        raise BatchExpands(BatchExpands.wording)
                yield number, counted_batch(batch, builder.error, drop_bad, bad_rows)


def change_slices(
    committed: Iterable[tuple[TransactionAssembler, CommittedChanges]], max_rows: int
) -> Iterator[ChangeSlice]:
    """Divide committed changes into slices of at most `max_rows`; of about `_SLICE_BYTES`, unless all are one batch."""
    for assembler, changes in committed:
        n = changes.found["rows"].size // 8
        source = Source(changes.parts)
        most = max_rows
        if max_rows < ONE_BATCH:
            # Large values would fill the memory: as many rows as have these bytes on average.
            n_payloads = sum(map(len, changes.parts))
            most = min(max_rows, max(1, _SLICE_BYTES * n_payloads // max(source.payload_bytes, 1)))
        for start in range(0, n, most):
            yield ChangeSlice(assembler, changes, source, start, min(most, n - start))


def counted_batch(batch: pa.RecordBatch, error: str, drop_bad: bool, bad_rows: Counter[str]) -> pa.RecordBatch:
    """Count the bad rows of a batch by error code. With `drop_bad`, return the batch without them."""
    errors = batch.column(error)
    if errors.null_count == len(errors):
        return batch
    bad_rows.update(code_of(text) for text in errors.drop_null().to_pylist())
    return batch.filter(errors.is_null()) if drop_bad else batch


def code_of(error: str) -> str:
    """Return the code of an error from its text in an error column."""
    return error.partition(" ")[0]


def fitting_batches(builder: Builder, change_slice: ChangeSlice) -> Iterator[pa.RecordBatch]:
    """Build a slice as one record batch, or as several if one would overflow Arrow's 32-bit offsets."""
    batch = None
    try:
        batch = builder.batch(change_slice)
    except BatchTooLarge:
        if change_slice.n == 1:
            raise
    # Outside the except block, because the error's traceback references the partly built batch.
    if batch is not None:
        yield batch
        return
    half = change_slice.n // 2
    yield from fitting_batches(builder, replace(change_slice, n=half))
    yield from fitting_batches(builder, replace(change_slice, start=change_slice.start + half, n=change_slice.n - half))


def one_batch(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Join record batches. Each column's parts are released once they are joined."""
    if len(batches) == 1:
        return batches[0]
    columns: list[list[pa.Array]] = [[batch.column(i) for batch in batches] for i in range(len(schema))]
    if not batches:
        columns = [[pa.array([], item.type)] for item in schema]
    batches.clear()
    try:
        return pa.RecordBatch.from_arrays([_joined(parts) for parts in columns], schema=schema)
    except pa.ArrowInvalid:
        # "offset overflow while concatenating arrays". The methods that yield several batches can return these changes.
        raise BatchTooLarge(BatchTooLarge.wording.format(field="a column")) from None


def _joined(parts: list[pa.Array]) -> pa.Array:
    """Join the parts of a column, and release them."""
    n_null = sum(part.null_count for part in parts)
    n = sum(map(len, parts))
    found = null_array(n, parts[0].type) if n_null == n else pa.concat_arrays(parts)
    parts.clear()
    return found
