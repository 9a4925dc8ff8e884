"""The bounded queue between the thread that reads and the thread that writes."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections import deque
from dataclasses import dataclass, field

from pgdecode.capture.errors import CaptureError
from pgdecode.capture.frames import Chunk


@dataclass(frozen=True)
class Keepalive:
    """A keepalive of the server.

    Attributes
    ----------
    lsn : int
        Everything that completes before it was sent before.
    wants_reply : bool
        The server wants to know at once what is recorded: it is about to shut down, or to give the client up.
    asked_at : float or None
        `time.monotonic()` when it was asked for, if it was.
    """

    lsn: int
    wants_reply: bool
    asked_at: float | None = None


@dataclass
class SessionStart:
    """A connection begins to stream.

    Attributes
    ----------
    number : int
    metadata : dict
        What files say of it.
    """

    number: int
    metadata: dict[str, object]


@dataclass
class SessionEnd:
    """A connection streams no more.

    Attributes
    ----------
    done : threading.Event
        Set once everything complete is recorded, and the rest is dropped.
    """

    done: threading.Event = field(default_factory=threading.Event)


Item = Chunk | Keepalive | SessionStart | SessionEnd


class Channel:
    """Items from one thread to another, at most so many bytes of messages at a time.

    Parameters
    ----------
    limit : int
        Bytes. One chunk is let in however large it is.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: deque[Item] = deque()
        self._n_bytes = 0
        self._changed = threading.Condition()
        self._failure: BaseException | None = None

    def offer(self, item: Item) -> bool:
        """Put an item in, unless the channel is full.

        Raises
        ------
        CaptureError
            If the thread that takes items out has failed.
        """
        size = item.n_bytes if isinstance(item, Chunk) else 0
        with self._changed:
            self.check()
            if size and self._n_bytes and self._n_bytes + size > self._limit:
                return False
            self._items.append(item)
            self._n_bytes += size
            self._changed.notify()
            return True

    def check(self) -> None:
        """Raise what `offer` raises."""
        if self._failure is not None:
            raise CaptureError("the writer has failed") from self._failure

    def take(self, timeout: float) -> Item | None:
        """Take the next item out, or None if there is none in time."""
        with self._changed:
            if not self._items:
                self._changed.wait(timeout)
            if not self._items:
                return None
            item = self._items.popleft()
            if isinstance(item, Chunk):
                self._n_bytes -= item.n_bytes
            return item

    def wake(self) -> None:
        """Let `take` return now."""
        with self._changed:
            self._changed.notify()

    def fail(self, failure: BaseException) -> None:
        """Say that nothing is taken out any more."""
        with self._changed:
            self._failure = failure
            for item in self._items:
                if isinstance(item, SessionEnd):
                    item.done.set()
            self._items.clear()


class Bell:
    """Wakes a thread that waits for a socket."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC) if hasattr(os, "pipe2") else _pipe()

    def ring(self) -> None:
        """Wake the thread."""
        # It may ring already, or nobody listens any more.
        with contextlib.suppress(OSError):
            os.write(self._write, b"\0")

    def wait(self, socket: int | None, timeout: float) -> None:
        """Wait until there is something to read from a socket, until the bell rings, or so many seconds."""
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        if socket is not None:
            poll.register(socket, select.POLLIN)
        for descriptor, _ in poll.poll(max(timeout, 0) * 1000):
            if descriptor == self._read:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._read, 4096)

    def close(self) -> None:
        """Let it go."""
        os.close(self._read)
        os.close(self._write)


def _pipe() -> tuple[int, int]:
    ends = os.pipe()
    for end in ends:
        os.set_blocking(end, False)
    return ends
