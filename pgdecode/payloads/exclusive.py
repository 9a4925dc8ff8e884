"""A guard against concurrent use of a decoder."""

from __future__ import annotations

import threading


class Exclusive:
    """A context manager that lets one thread at a time change a decoder, because its calls have an order.

    Raises RuntimeError in a second thread.
    """

    def __init__(self) -> None:
        try:
            self._lock = threading.RLock()
        except RuntimeError as error:
            # Python says "can't allocate lock" when memory is exhausted.
            raise MemoryError("no memory for a decoder's lock") from error

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise RuntimeError("another thread is using this decoder; each thread needs one of its own")

    def __exit__(self, *_: object) -> None:
        self._lock.release()
