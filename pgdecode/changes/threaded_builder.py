"""Record batches of changes built by several threads."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

import pyarrow as pa

from pgdecode.changes.committed_changes import ChangeSlice
from pgdecode.changes.record_batches import LimitedBuilder, one_batch
from pgdecode.payloads.thread_counts import threads_for
from pgdecode.protocol.errors import DecodeError
from pgdecode.protocol.limits import FREE_EXPANSION


class ThreadedBuilder:
    """Builds the batches of another builder, each by several threads; the batches are the same.

    Parameters
    ----------
    builder : LimitedBuilder
    for_thread : callable
        Makes a builder of the same batches that another thread may use at the same time.
    threads : int
        How many threads may build a batch.
    """

    def __init__(self, builder: LimitedBuilder, for_thread: Callable[[], LimitedBuilder], threads: int) -> None:
        self.builder = builder
        self.for_thread = for_thread
        self.threads = threads
        self.error = builder.error
        self._text_of_threads = 0

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
            builders = [self.for_thread() for _ in parts]
            batches = list(pool.map(lambda builder, part: builder.batch(part), builders, parts))
            if sum(batch.nbytes for batch in batches) <= most:
                found = one_batch(batches, batches[0].schema)
                self._text_of_threads += sum(builder.text_bytes for builder in builders)
                return found
        return None
