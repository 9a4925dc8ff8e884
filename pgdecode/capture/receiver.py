"""The receiver thread: it owns the connection, reads frames, and confirms to the server what is recorded."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from pgdecode.capture.channel import MOST_STATUS_SECONDS, Channel, Item, Keepalive, Session, SessionEnd, Waker
from pgdecode.capture.errors import ServerError, StoppedError
from pgdecode.capture.frames import HEADER_BYTES, Chunk
from pgdecode.capture.server import NEW_SLOT

# A chunk goes to the recorder when it reaches one of these sizes, or after `_LINGER_SECONDS`.
CHUNK_BYTES = 2**20
CHUNK_ROWS = 16384
# Most seconds to wait at the end until the server has processed the last confirmation.
_END_SECONDS = 5.0
# Most seconds that frames wait for more frames, so that the recorder gets many at a time.
_LINGER_SECONDS = 0.03
# Seconds without reading after all frames have been taken. The server sends each frame by itself, and waking up for
# each would double the CPU of this thread. The buffer of a local socket has room for some hundred small frames.
_PAUSE_SECONDS = 0.0005
# SQLSTATE of the warning with which PostgreSQL 18 omits the changes of a dropped publication
# (object_not_in_prerequisite_state). Older servers end the stream instead.
_PUBLICATION_MISSING = "55000"
# Seconds without a frame after which a keepalive may be requested.
_QUIET_SECONDS = 0.05


class _Silence:
    """How long nothing has come from the server.

    Parameters
    ----------
    limit : float
        Seconds. After half of them a keepalive is requested, and the silence is over if the other half passes too.
    """

    def __init__(self, limit: float) -> None:
        self._half = limit / 2
        self._has_asked = False
        self.next_check = time.monotonic() + self._half

    def end(self) -> None:
        """Begin anew, because something has come."""
        self._has_asked = False
        self.next_check = time.monotonic() + self._half

    def asks(self, now: float) -> bool:
        """Whether a keepalive must be requested now."""
        if self._has_asked or now < self.next_check:
            return False
        self._has_asked = True
        self.next_check = now + self._half
        return True

    def is_over(self, now: float) -> bool:
        """Whether the connection must be given up."""
        return self._has_asked and now >= self.next_check


class Receiver(threading.Thread):
    """Reads one session after the other until it is stopped.

    Parameters
    ----------
    first : Session
        A session that is already streaming.
    reconnect : callable
        Makes the next session, starting at the recorded LSN.
    channel : Channel
    recorded : callable
        Returns the LSN up to which everything is recorded.
    retry_seconds : float
        How long to try to connect again after a connection is lost.
    is_working : callable
        Returns whether the server process of a silent connection, given by its ID, is working.
    hint : callable
        Returns what to do about an error that ended the stream, to append to its text, or "".
    on_warning : callable
    """

    def __init__(
        self,
        first: Session,
        reconnect: Callable[[], Session],
        channel: Channel,
        recorded: Callable[[], int],
        retry_seconds: float,
        is_working: Callable[[int], bool],
        hint: Callable[[ServerError], str],
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
        self._is_working = is_working
        self._hint = hint
        self._on_warning = on_warning
        self._waker = Waker()
        self._stopping = threading.Event()
        self._asking = False
        self._confirmed = 0
        self._next_status = 0.0
        self._asked_at: float | None = None

    def stop(self) -> None:
        """End the session once everything complete is recorded and confirmed."""
        self._stopping.set()
        self._waker.wake()

    def wake(self) -> None:
        """Wake the thread, because more is recorded or the channel has room."""
        self._waker.wake()

    def ask(self) -> None:
        """Request a keepalive once the server pauses."""
        self._asking = True
        self._waker.wake()

    def run(self) -> None:
        """Read until stopped."""
        try:
            while True:
                lost = self._one_session()
                if lost is None:
                    return
                session = self._next_session(lost)
                if session is None:
                    return
                self._session = session
        except BaseException as error:
            self.failure = error
        finally:
            self._session.connection.close()

    def close(self) -> None:
        """Release resources after the thread has ended."""
        self._waker.close()

    # One session.

    def _one_session(self) -> ServerError | None:
        """Stream until stopped or until the connection is lost; return the error of a lost connection, else None."""
        session = self._session
        self._confirmed, self._next_status, self._asked_at = 0, 0.0, None
        self._put(session)
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
            self._waker.wait(None, 0.05)
        self._channel.check()
        if lost is None:
            self._end_stream(session)
        session.connection.close()
        # After a stop, a lost connection does not matter.
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
        # With TLS, bytes may wait in a buffer of the library, where poll does not see them.
        n_reads = 2 if connection.is_encrypted else 1
        last_frame = time.monotonic()
        silence = _Silence(session.silent_seconds)
        chunk = Chunk()
        due = 0.0
        while True:
            content, ends = chunk.content, chunk.ends
            add_end = ends.append
            reads_left = n_reads
            is_full = False
            n_before = len(ends)
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
                    # The recorder must process earlier frames before the keepalive.
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
                # Nothing was read while the recorder was busy.
                silence.end()
            elif length or len(ends) > n_before:
                silence.end()
            if length:
                last_frame = now
            if self._stopping.is_set():
                return
            if silence.is_over(now):
                self._check_silence(session)
                silence.end()
            if silence.asks(now) or (self._asking and now - last_frame > _QUIET_SECONDS):
                self._asking, self._asked_at = False, now
                self._send_status(session, ask=True)
            else:
                self._send_status(session)
            if not length:
                if len(chunk):
                    time.sleep(_PAUSE_SECONDS)
                wake_at = due if len(chunk) else now + (_QUIET_SECONDS if self._asking else MOST_STATUS_SECONDS)
                # A large frame may take long, but its bytes come.
                if self._waker.wait(connection.socket, min(self._next_status, wake_at, silence.next_check) - now):
                    silence.end()

    def _check_silence(self, session: Session) -> None:
        """Give up a connection on which nothing comes, unless the server works.

        Servers before PostgreSQL 16 are silent while they decode a large transaction of which nothing is published. A
        new session would begin with it again.

        Raises
        ------
        ServerError
        """
        text = f"the server has sent nothing for {session.silent_seconds:g} s, although a keepalive was requested"
        if not self._is_working(session.connection.pid):
            raise ServerError(text)
        self._on_warning(f"{text}; it is working on the slot")

    def _take_keepalive(self, frame: bytes, session: Session) -> None:
        if frame[:1] != b"k" or len(frame) != 18:
            raise StoppedError("the server sent a frame that is neither XLogData nor a keepalive")
        wants_reply = frame[17] != 0
        self._put(Keepalive(int.from_bytes(frame[1:9], "big"), wants_reply, self._asked_at))
        self._asked_at = None
        if wants_reply:
            self._send_status(session, due=True)

    def _send_status(self, session: Session, *, ask: bool = False, due: bool = False) -> None:
        """Send a status update if one is due, or if there is more to confirm."""
        now, recorded = time.monotonic(), self._recorded()
        if ask or due or recorded > self._confirmed or now >= self._next_status:
            session.connection.send_status(recorded, recorded, time.time_ns() // 1000, ask=ask)
            self._confirmed = recorded
            self._next_status = now + session.status_seconds

    def _put(self, item: Item) -> None:
        self._channel.offer(item)

    def _put_chunk(self, chunk: Chunk, session: Session) -> None:
        """Pass a chunk to the recorder. While the channel is full, send status updates but read nothing."""
        # The chunk may have messages that came after the warning.
        self._take_warning(session)
        if not len(chunk):
            return
        while not self._channel.offer(chunk):
            self._waker.wait(None, max(self._next_status - time.monotonic(), 0.001))
            self._send_status(session)

    def _take_warning(self, session: Session) -> None:
        """Report a warning of the server; end the capture if the server omits changes.

        Raises
        ------
        StoppedError
        """
        if session.connection.warning is None:
            return
        (sqlstate, text), session.connection.warning = session.connection.warning, None
        if sqlstate == _PUBLICATION_MISSING:
            raise StoppedError(
                f"the server omits changes: {text} Creating the publication again does not restore them; {NEW_SLOT}"
            )
        self._on_warning(f"the server warns: {text}")

    def _end_stream(self, session: Session) -> None:
        """Confirm what is recorded, end the stream, and wait until the server has processed it."""
        connection = session.connection
        try:
            self._send_status(session, due=True)
            connection.end_copy()
            deadline = time.monotonic() + _END_SECONDS
            while time.monotonic() < deadline:
                length, _ = connection.next_frame(1)
                if length < 0:
                    return
                if length == 0:
                    self._waker.wait(connection.socket, 0.2)
                    connection.read()
        except Exception:
            return  # everything is recorded; without the confirmation, the server only sends more again

    # From one session to the next.

    def _next_session(self, lost: ServerError) -> Session | None:
        """Connect again, if a new connection may succeed; None if the capture was stopped meanwhile."""
        failure: ServerError = lost
        deadline = time.monotonic() + self._retry_seconds
        delay = 0.1
        has_warned = False
        while failure.may_pass and not self._stopping.is_set():
            if time.monotonic() >= deadline:
                break
            if not has_warned:
                self._on_warning(f"connection lost, connecting again: {failure}")
                has_warned = True
            self._stopping.wait(delay)
            delay = min(delay * 2, 5.0)
            try:
                session = self._reconnect()
            except ServerError as error:
                failure = error
            else:
                self.n_reconnects += 1
                return session
        if self._stopping.is_set():
            self._on_warning("stopped while the server could not be reached")
            return None
        raise StoppedError(f"the server ended the capture: {failure}{self._hint(failure)}") from failure
