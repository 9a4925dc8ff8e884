"""The rows of one call divided among threads, and decoders that take one thread at a time."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeVar

T = TypeVar("T")

# Below so many rows a thread costs more than it saves.
LEAST_ROWS = 16_384


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


def ranges_of(n_rows: int, threads: int) -> list[tuple[int, int]]:
    """Divide rows among threads: (first row, number of rows) of each, at least one."""
    n_ranges = max(1, min(threads, n_rows // LEAST_ROWS))
    bounds = [n_rows * i // n_ranges for i in range(n_ranges + 1)]
    return [(first, last - first) for first, last in pairwise(bounds)]


def in_threads(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Make calls side by side, the first one in this thread, and give what they give.

    Raises
    ------
    BaseException
        What the first of those that raised has raised, when all are done.
    """
    results: list[Any] = [None] * len(calls)
    errors: list[BaseException | None] = [None] * len(calls)

    def run(place: int) -> None:
        try:
            results[place] = calls[place]()
        except BaseException as error:
            errors[place] = error

    def run_apart(place: int, running: _thread.LockType) -> None:
        try:
            run(place)
        finally:
            running.release()

    locks: list[_thread.LockType] = []
    left = [0]
    try:
        for place in range(1, len(calls)):
            try:
                running = _thread.allocate_lock()
                running.acquire()
                # Not a threading.Thread, for which the caller would wait until it has begun.
                _thread.start_new_thread(run_apart, (place, running))
            except RuntimeError:
                # "can't start new thread": the system allows no more, and this one can do the work as well.
                left.append(place)
            else:
                locks.append(running)
        for place in left:
            run(place)
    finally:
        # Nothing of a call may still run when it is over.
        for running in locks:
            running.acquire()
    for error in errors:
        if error is not None:
            raise error
    return results
