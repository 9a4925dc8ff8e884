"""The thread that owns the connection: it reads frames, and tells the server what is recorded."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pgdecode.capture.channel import Bell, Channel, Item, Keepalive, SessionEnd, SessionStart
from pgdecode.capture.connection import Connection
from pgdecode.capture.errors import CaptureError, ServerError, StoppedError
from pgdecode.capture.frames import HEADER_BYTES, Chunk

# A chunk goes to the writer when it has so much, or when nothing more has come.
CHUNK_BYTES = 2**20
CHUNK_ROWS = 16384
# Seconds between status updates where the server does not ask for more.
_MOST_SECONDS = 10.0
# Seconds that the server has to take note of what was confirmed at the end.
_FAREWELL_SECONDS = 5.0
# Seconds that frames wait for more to come, so that the writer has many at a time.
_LINGER_SECONDS = 0.03
# SQLSTATE of the warning with which PostgreSQL 18 leaves out the changes of a publication that was dropped
# (object_not_in_prerequisite_state); older servers end the stream.
_PUBLICATION_MISSING = "55000"
# Seconds without a frame after which a keepalive may be asked for.
_QUIET_SECONDS = 0.05


@dataclass
class Session:
    """A connection that streams.

    Attributes
    ----------
    connection : Connection
    number : int
    timeout : float
        wal_sender_timeout in seconds; 0: none.
    metadata : dict
        What files say of it.
    """

    connection: Connection
    number: int
    timeout: float
    metadata: dict[str, Any]

    @property
    def status_seconds(self) -> float:
        """Seconds between status updates: less than half of the time after which the server gives up."""
        return min(_MOST_SECONDS, self.timeout / 3) if self.timeout else _MOST_SECONDS


class Receiver(threading.Thread):
    """Reads one session after the other until it is told to stop.

    Parameters
    ----------
    first : Session
        Streaming already.
    reconnect : callable
        Makes the next session, from the recorded LSN on.
    channel : Channel
    recorded : callable
        The LSN up to which everything is recorded.
    retry_seconds : float
        How long to try to connect again after a connection is lost.
    on_warning : callable
    """

    def __init__(
        self,
        first: Session,
        reconnect: Callable[[], Session],
        channel: Channel,
        recorded: Callable[[], int],
        retry_seconds: float,
        on_warning: Callable[[str], None],
    ) -> None:
        super().__init__(name="pgdecode-capture-receiver", daemon=True)
        self.failure: BaseException | None = None
        self.n_reconnects = 0
        self._session = first
        self._reconnect = reconnect
        self._channel = channel
        self._recorded = recorded
        self._retry_seconds = retry_seconds
        self._on_warning = on_warning
        self._bell = Bell()
        self._stopping = threading.Event()
        self._asking = False
        self._confirmed = 0
        self._next_status = 0.0
        self._asked_at: float | None = None

    def stop(self) -> None:
        """End the session once what is complete is recorded and confirmed."""
        self._stopping.set()
        self._bell.ring()

    def wake(self) -> None:
        """Look at what is recorded, and whether the writer takes more."""
        self._bell.ring()

    def ask(self) -> None:
        """Ask the server for a keepalive, as soon as it is quiet."""
        self._asking = True
        self._bell.ring()

    def run(self) -> None:
        """Read until stopped."""
        try:
            while True:
                lost = self._one_session()
                if lost is None:
                    return
                self._session = self._next_session(lost)
        except BaseException as error:
            self.failure = error
        finally:
            self._session.connection.close()

    def close(self) -> None:
        """Let resources go, after the thread has ended."""
        self._bell.close()

    # One session.

    def _one_session(self) -> ServerError | None:
        """Stream until told to stop, which gives None, or until the connection is lost, which gives why."""
        session = self._session
        self._confirmed, self._next_status, self._asked_at = 0, 0.0, None
        self._put(SessionStart(session.number, session.metadata))
        lost: ServerError | None = None
        try:
            self._stream(session)
        except ServerError as error:
            lost = error
        end = SessionEnd()
        self._put(end)
        while not end.done.is_set():
            if lost is None:
                lost = self._keep_alive(session)
            self._bell.wait(None, 0.05)
        self._channel.check()
        if lost is None:
            self._farewell(session)
        session.connection.close()
        # Whoever wanted to stop does not want to know that the connection was lost as well.
        return None if self._stopping.is_set() else lost

    def _keep_alive(self, session: Session) -> ServerError | None:
        try:
            self._send_status(session)
        except ServerError as error:
            return error
        return None

    def _stream(self, session: Session) -> None:
        connection = session.connection
        next_frame, read = connection.next_frame, connection.read
        # Below TLS, bytes may wait in a buffer where poll does not see them.
        n_reads = 2 if connection.is_encrypted else 1
        last_frame = time.monotonic()
        chunk = Chunk()
        due = 0.0
        while True:
            content, ends = chunk.content, chunk.ends
            add_end = ends.append
            reads_left = n_reads
            is_full = False
            while True:
                try:
                    length, frame = next_frame(1)
                    if not length and reads_left:
                        reads_left -= 1
                        read()
                        continue
                except Exception as error:
                    self._put_chunk(chunk, session)
                    raise connection.lost(error) from error
                if length >= HEADER_BYTES:
                    if not content:
                        chunk.received_us = time.time_ns() // 1000
                        due = time.monotonic() + _LINGER_SECONDS
                    content += frame
                    add_end(len(content))
                    reads_left = n_reads
                    if len(content) >= CHUNK_BYTES or len(ends) > CHUNK_ROWS:
                        is_full = True
                        break
                elif length > 0:
                    # What came before it has to be known before it.
                    self._put_chunk(chunk, session)
                    chunk = Chunk()
                    self._take_keepalive(bytes(frame), session)
                    break
                elif length == 0:
                    break
                else:
                    self._put_chunk(chunk, session)
                    raise connection.copy_error()
            self._take_warning(session)
            now = time.monotonic()
            if len(chunk) and (is_full or now >= due or self._stopping.is_set()):
                self._put_chunk(chunk, session)
                chunk = Chunk()
            if length:
                last_frame = now
            if self._stopping.is_set():
                return
            if self._asking and now - last_frame > _QUIET_SECONDS:
                self._asking, self._asked_at = False, now
                self._send_status(session, ask=True)
            else:
                self._send_status(session)
            if not length:
                wake_at = due if len(chunk) else now + (_QUIET_SECONDS if self._asking else _MOST_SECONDS)
                self._bell.wait(connection.socket, min(self._next_status, wake_at) - now)

    def _take_keepalive(self, frame: bytes, session: Session) -> None:
        if frame[:1] != b"k" or len(frame) != 18:
            raise StoppedError("the server sent a frame that is neither XLogData nor a keepalive")
        wants_reply = frame[17] != 0
        self._put(Keepalive(int.from_bytes(frame[1:9], "big"), wants_reply, self._asked_at))
        self._asked_at = None
        if wants_reply:
            self._send_status(session, due=True)

    def _send_status(self, session: Session, *, ask: bool = False, due: bool = False) -> None:
        """Send a status update if it is time, or if there is more to confirm."""
        now, recorded = time.monotonic(), self._recorded()
        if ask or due or recorded > self._confirmed or now >= self._next_status:
            session.connection.send_status(recorded, recorded, time.time_ns() // 1000, ask=ask)
            self._confirmed = recorded
            self._next_status = now + session.status_seconds

    def _put(self, item: Item) -> None:
        self._channel.offer(item)

    def _put_chunk(self, chunk: Chunk, session: Session) -> None:
        """Hand a chunk over; while the writer takes none, nothing is read, but the server still hears of us."""
        # The chunk may have messages from behind the warning.
        self._take_warning(session)
        if not len(chunk):
            return
        while not self._channel.offer(chunk):
            self._bell.wait(None, max(self._next_status - time.monotonic(), 0.001))
            self._send_status(session)

    def _take_warning(self, session: Session) -> None:
        """Pass a warning of the server on; end the capture if the server leaves changes out.

        Raises
        ------
        StoppedError
        """
        if session.connection.warning is None:
            return
        (sqlstate, text), session.connection.warning = session.connection.warning, None
        if sqlstate == _PUBLICATION_MISSING:
            raise StoppedError(
                f"the server leaves changes out: {text} Making the publication again does not bring them back: drop "
                "the slot, and go on with a new one and a gap"
            )
        self._on_warning(f"the server warns: {text}")

    def _farewell(self, session: Session) -> None:
        """Confirm what is recorded, end the stream, and wait until the server has noted it."""
        connection = session.connection
        try:
            self._send_status(session, due=True)
            connection.end_copy()
            deadline = time.monotonic() + _FAREWELL_SECONDS
            while time.monotonic() < deadline:
                length, _ = connection.next_frame(1)
                if length < 0:
                    return
                if length == 0:
                    self._bell.wait(connection.socket, 0.2)
                    connection.read()
        except Exception:
            return  # all is recorded; the server will send again what it did not hear of

    # From one session to the next.

    def _next_session(self, lost: ServerError) -> Session:
        """Connect again, if what ended the session may pass."""
        failure: ServerError = lost
        deadline = time.monotonic() + self._retry_seconds
        delay = 0.1
        said = False
        while failure.may_pass and not self._stopping.is_set():
            if time.monotonic() >= deadline:
                break
            if not said:
                self._on_warning(f"connection lost, connecting again: {failure}")
                said = True
            self._stopping.wait(delay)
            delay = min(delay * 2, 5.0)
            try:
                found = self._reconnect()
            except ServerError as error:
                failure = error
            else:
                self.n_reconnects += 1
                return found
        if self._stopping.is_set():
            raise CaptureError("stopped while the server could not be reached")
        raise StoppedError(f"the server ended the capture: {failure}") from failure
