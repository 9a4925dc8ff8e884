"""The bounded queue from the receiver thread to the recorder thread."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from pgdecode.capture.connection import Connection
from pgdecode.capture.errors import CaptureError
from pgdecode.capture.frames import Chunk, CopiedPayloads

# Most seconds between status updates; the server may request more of them.
MOST_STATUS_SECONDS = 10.0
# Seconds without a frame after which the connection is given up, if the server has no timeout: that of PostgreSQL's own
# receiver (wal_receiver_timeout).
_SILENT_SECONDS = 60.0


@dataclass(frozen=True)
class Keepalive:
    """A keepalive of the server.

    Attributes
    ----------
    lsn : int
        The server has already sent everything that completes before this LSN.
    wants_reply : bool
        The server requests a status update at once: it is shutting down, or about to close the connection.
    asked_at : float or None
        `time.monotonic()` when the receiver requested it; None if it did not.
    """

    lsn: int
    wants_reply: bool
    asked_at: float | None = None


@dataclass
class Session:
    """A connection that streams a slot. In the channel, it comes before its messages.

    Attributes
    ----------
    connection : Connection
    number : int
    timeout : float
        wal_sender_timeout in seconds; 0 for no timeout.
    metadata : dict
        Metadata of the session, for the footers of files.
    """

    connection: Connection
    number: int
    timeout: float
    metadata: dict[str, Any]

    @property
    def status_seconds(self) -> float:
        """Seconds between status updates: less than half of the server's timeout."""
        return min(MOST_STATUS_SECONDS, self.timeout / 3) if self.timeout else MOST_STATUS_SECONDS

    @property
    def silent_seconds(self) -> float:
        """Seconds without a frame after which the connection is given up."""
        return self.timeout or _SILENT_SECONDS


@dataclass
class SessionEnd:
    """The end of a session.

    Attributes
    ----------
    done : threading.Event
        Set once everything complete is recorded, and the rest has been dropped.
    """

    done: threading.Event = field(default_factory=threading.Event)


Item = Chunk | CopiedPayloads | Keepalive | Session | SessionEnd


class Channel:
    """A queue from one thread to another, bounded by bytes of messages.

    Parameters
    ----------
    limit : int
        Bytes. An empty queue accepts one chunk of any size.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: deque[Item] = deque()
        self._n_bytes = 0
        self._changed = threading.Condition()
        self._failure: BaseException | None = None

    def offer(self, item: Item) -> bool:
        """Append an item, unless the channel is full; return whether it was appended.

        Raises
        ------
        CaptureError
            If the consumer has failed.
        """
        size = item.n_bytes if isinstance(item, Chunk | CopiedPayloads) else 0
        with self._changed:
            self.check()
            if size and self._n_bytes and self._n_bytes + size > self._limit:
                return False
            self._items.append(item)
            self._n_bytes += size
            self._changed.notify()
            return True

    def check(self) -> None:
        """Raise an error if the consumer has failed, as `offer` does."""
        if self._failure is not None:
            raise CaptureError("the writer has failed") from self._failure

    def take(self, timeout: float) -> Item | None:
        """Remove and return the next item; None if there is none before the timeout, in seconds."""
        with self._changed:
            if not self._items:
                self._changed.wait(timeout)
            if not self._items:
                return None
            item = self._items.popleft()
            if isinstance(item, Chunk | CopiedPayloads):
                self._n_bytes -= item.n_bytes
            return item

    def wake(self) -> None:
        """Make a waiting `take` return now."""
        with self._changed:
            self._changed.notify()

    def fail(self, failure: BaseException) -> None:
        """Record that the consumer has failed, and drop all items."""
        with self._changed:
            self._failure = failure
            for item in self._items:
                if isinstance(item, SessionEnd):
                    item.done.set()
            self._items.clear()


class Waker:
    """Wakes a thread that waits for a socket."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        for end in (self._read, self._write):
            os.set_blocking(end, False)

    def wake(self) -> None:
        """Wake the thread."""
        # The pipe may be full, or already closed.
        with contextlib.suppress(OSError):
            os.write(self._write, b"\0")

    def wait(self, socket: int | None, timeout: float) -> bool:
        """Wait until a socket is readable, `wake` is called, or the timeout, in seconds, has passed.

        Returns whether the socket is readable.
        """
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        if socket is not None:
            poll.register(socket, select.POLLIN)
        is_readable = False
        for descriptor, _ in poll.poll(max(timeout, 0) * 1000):
            if descriptor == self._read:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._read, 4096)
            else:
                is_readable = True
        return is_readable

    def close(self) -> None:
        """Close the pipe."""
        os.close(self._read)
        os.close(self._write)
