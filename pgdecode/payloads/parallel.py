"""How many threads a call has, decoders that take one thread at a time, and work that goes on beside another's."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pgdecode._native.arrow.payload_array import Source

# Below so many rows, and so many bytes of payloads, a thread costs more than it saves.
LEAST_ROWS = 16_384
LEAST_BYTES = 1 << 21
# Where payloads are longer, what is made of the fewest rows that a thread takes does not stay in its core's cache.
MOST_ROW_BYTES = 1 << 15
# To say which rows are in a stream takes a tenth of the time: below so many, less than to start threads for it.
LEAST_RESOLVED = 1 << 17

Item = TypeVar("Item")


class Exclusive:
    """A decoder's guard, a context for what changes it: refuses a second thread, since order is all that it has."""

    def __init__(self) -> None:
        try:
            self._lock = threading.RLock()
        except RuntimeError as error:
            # "can't allocate lock": a lock is nothing but memory.
            raise MemoryError("no memory for a decoder's lock") from error

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise RuntimeError("another thread is using this decoder; each thread needs one of its own")

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def check_threads(threads: int) -> int:
    """Give back a number of threads.

    Raises
    ------
    ValueError
        If it is no positive integer.
    """
    if not isinstance(threads, int) or isinstance(threads, bool) or threads < 1:
        raise ValueError(f"threads is an integer from 1 on, not {threads!r}")
    return threads


def prefetched(items: Iterable[Item]) -> Iterator[Item]:
    """Give items one by one, each made by another thread while the one before is being used: one more is in memory."""
    made = iter(items)
    with ThreadPoolExecutor(1) as thread:
        try:
            following = thread.submit(lambda: next(made, None))
        except RuntimeError:
            # No thread can be started.
            yield from made
            return
        while (item := following.result()) is not None:
            following = thread.submit(lambda: next(made, None))
            yield item


def threads_for(source: Source, threads: int) -> int:
    """Say how many threads are worth their cost: of those that may work, one for so many rows or bytes."""
    if threads == 1:
        return 1
    n_bytes = source.payload_bytes
    if n_bytes > MOST_ROW_BYTES * source.n_rows:
        return 1
    return max(1, min(threads, max(source.n_rows // LEAST_ROWS, n_bytes // LEAST_BYTES)))


def resolvers_for(source: Source, n_threads: int) -> int:
    """Say how many of the threads are worth their cost to find out which rows are in a stream."""
    return n_threads if source.n_rows >= LEAST_RESOLVED else 1
