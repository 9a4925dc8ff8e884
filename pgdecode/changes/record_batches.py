"""Makes record batches of committed changes with any builder, also in several threads. Splits or joins batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode._native.arrow.payload_array import Source
from pgdecode.arrow.null_arrays import null_array
from pgdecode.changes.committed_changes import ChangeSlice
from pgdecode.changes.replication_state import CommittedChanges
from pgdecode.changes.transaction_assembler import TransactionAssembler
from pgdecode.payloads.thread_counts import threads_for
from pgdecode.protocol.errors import BatchExpands, BatchTooLarge, DecodeError
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

    schema: pa.Schema

    @property
    def text_bytes(self) -> int:
        """Bytes of text in all its batches, as `Limits.max_expansion` counts them for one batch."""

    def for_thread(self) -> LimitedBuilder:
        """Make a builder of the same batches that another thread may use at the same time."""


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
    for make in slice_functions(committed, max_rows):
        yield from make()


def slice_functions(
    committed: Iterable[tuple[TransactionAssembler, CommittedChanges]], max_rows: int
) -> Iterator[Callable[[], Iterable[ChangeSlice]]]:
    """Yield functions that make the slices. They may be called in any order; those of large transactions take long."""
    for assembler, changes in committed:
        source = Source(changes.parts)
        most = max_rows
        if max_rows < ONE_BATCH:
            # Large values would fill the memory: as many rows as have these bytes on average.
            n_payloads = sum(map(len, changes.parts))
            most = min(max_rows, max(1, _SLICE_BYTES * n_payloads // max(source.payload_bytes, 1)))
        first = 0
        for end, listings in (*changes.deferred, (changes.found["rows"].size // 8, ())):
            for start in range(first, end, most):
                yield partial(iter, [ChangeSlice(assembler, changes, source, start, min(most, end - start))])
            for listing in listings:
                yield partial(_listed_slices, listing, max_rows)
            first = end


def _listed_slices(
    listing: Callable[[], tuple[TransactionAssembler, CommittedChanges]], max_rows: int
) -> Iterator[ChangeSlice]:
    yield from change_slices([listing()], max_rows)


def counted_batch(batch: pa.RecordBatch, error: str, drop_bad: bool, bad_rows: Counter[str]) -> pa.RecordBatch:
    """Count the bad rows of a batch by error code. With `drop_bad`, return the batch without them."""
    errors = batch.column(error)
    if errors.null_count == len(errors):
        return batch
    bad_rows.update(code_of(text) for text in errors.drop_null().to_pylist())
    return batch.filter(errors.is_null()) if drop_bad else batch


def raise_first(errors: list[DecodeError]) -> None:
    """Raise the error of the payload that comes first in slot order, if any. Payloads of earlier calls have no row."""
    if not errors:
        return
    try:
        raise min(errors, key=lambda error: next((at for at in (error.position, error.row) if at is not None), -1))
    finally:
        # The tracebacks refer to the caller's frame, and the errors must not keep what is in memory there.
        errors.clear()


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


class ThreadedBuilder:
    """Builds the batches of another builder, each by several threads; the batches are the same.

    Parameters
    ----------
    builder : LimitedBuilder
    threads : int
        How many threads may build a batch.
    """

    def __init__(self, builder: LimitedBuilder, threads: int) -> None:
        self.builder = builder
        self.threads = threads
        self.error, self.schema = builder.error, builder.schema
        self._text_of_threads = 0

    def for_thread(self) -> LimitedBuilder:
        """Make a builder for a thread, which divides nothing."""
        return self.builder.for_thread()

    @property
    def numbers(self) -> Collection[int] | None:
        """Numbers of the versions of relations whose changes it builds; None for all."""
        return self.builder.numbers

    @property
    def text_bytes(self) -> int:
        """Bytes of text in all batches."""
        return self.builder.text_bytes + self._text_of_threads

    def batch(self, change_slice: ChangeSlice) -> pa.RecordBatch:
        """Build the changes of a slice."""
        n_threads = threads_for(change_slice.source, self.threads, change_slice.n)
        found = self._divided(change_slice, n_threads) if n_threads > 1 else None
        return self.builder.batch(change_slice) if found is None else found

    def _divided(self, change_slice: ChangeSlice, n_threads: int) -> pa.RecordBatch | None:
        """Build a slice in parts; None if one has a bad row, exceeds a limit or has no memory.

        One thread then builds the slice: an error is that of the first bad row, and limits apply to a whole batch.
        """
        ends = [change_slice.n * number // n_threads for number in range(n_threads + 1)]
        parts = [
            replace(change_slice, start=change_slice.start + first, n=end - first) for first, end in pairwise(ends)
        ]
        limits = change_slice.assembler.options.limits
        # Each part has the limit of the whole batch. Arrow's buffers are larger than the text that the limit counts.
        most = limits.max_expansion * change_slice.source.payload_bytes + FREE_EXPANSION
        with suppress(DecodeError, MemoryError), ThreadPoolExecutor(n_threads) as pool:
            builders = [self.builder.for_thread() for _ in parts]
            batches = list(pool.map(lambda builder, part: builder.batch(part), builders, parts))
            if sum(batch.nbytes for batch in batches) <= most:
                found = one_batch(batches, batches[0].schema)
                self._text_of_threads += sum(builder.text_bytes for builder in builders)
                return found
        return None
