"""The recorder thread: it writes messages to files and files to the log, and so sets the LSN to confirm."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from pgdecode.capture.catalog.file_catalog import CatalogContents, FileCatalog
from pgdecode.capture.channel import Channel, Keepalive, Session, SessionEnd
from pgdecode.capture.file_writer import FileWriter
from pgdecode.capture.frames import (
    Chunk,
    CopiedPayloads,
    CopiedTable,
    Messages,
    boundary_after,
    count_before,
    last_boundary,
    last_position,
    messages_of,
    positions,
)
from pgdecode.capture.journal import Journal
from pgdecode.capture.retention import Retention, delete_old
from pgdecode.capture.undecided import SessionState
from pgdecode.protocol.messages import Relation

# Bytes of an open transaction that are kept in memory before they are written to a separate file.
TAIL_BYTES = 16 * 2**20


@dataclass(frozen=True)
class FileRules:
    """When a file ends, and how it is compressed.

    Attributes
    ----------
    max_bytes : int
        Bytes of payloads after which the file ends at the next boundary.
    max_seconds : float
        Seconds after which the file ends at the next boundary.
    position_seconds : float
        Seconds between log entries with the LSN of an idle slot.
    compression : str
        Name of the codec in pyarrow.
    """

    max_bytes: int = 256 * 2**20
    max_seconds: float = 30.0
    position_seconds: float = 10.0
    compression: str = "zstd"


@dataclass
class Target:
    """Conditions that end a capture; None means no such condition.

    Attributes
    ----------
    lsn : int, optional
        End once everything that was complete at this LSN is captured.
    is_exact : bool
        End before the first commit at or after `lsn`, which is the end of a WAL record.
    deadline : float, optional
        End at the first boundary after this `time.monotonic()`.
    max_messages : int, optional
        End at the first boundary after this many messages.
    idle_seen : float, optional
        Time at which the server was found to have sent everything, although its position is below `lsn`: an LSN may be
        inside an incomplete record.
    """

    lsn: int | None = None
    is_exact: bool = False
    deadline: float | None = None
    max_messages: int | None = None
    idle_seen: float | None = None


@dataclass
class CaptureResult:
    """What a run has received and added to its folder, at its end or so far.

    Attributes
    ----------
    messages, payload_bytes : int
        In complete files.
    received_messages, received_bytes : int
    files, file_bytes : int
        Files completed by this run.
    recorded : int
        LSN up to which everything is recorded.
    reconnects : int
    seconds : float
        Time since the start of the run.
    lag_bytes : int or None
        WAL of the server that is not recorded, as of the last check.
    copies : tuple of CopiedTable
        Tables whose rows have been copied.
    copying : CopyProgress or None
        The table that is being copied.
    """

    messages: int = 0
    payload_bytes: int = 0
    received_messages: int = 0
    received_bytes: int = 0
    files: int = 0
    file_bytes: int = 0
    recorded: int = 0
    reconnects: int = 0
    seconds: float = 0.0
    lag_bytes: int | None = None
    copies: tuple[CopiedTable, ...] = ()
    copying: CopyProgress | None = None

    def after(self, before: CaptureResult) -> CaptureResult:
        """Add what an earlier part of the run has received."""
        sums = {name: getattr(before, name) + getattr(self, name) for name in _ADDED}
        return replace(self, **sums)


# What the parts of a run add up.
_ADDED = (
    *("messages", "payload_bytes", "received_messages", "received_bytes", "files", "file_bytes"),
    *("reconnects", "copies"),
)


@dataclass(frozen=True)
class CopyProgress:
    """How far the copy of a table is.

    Attributes
    ----------
    table : str
    rows, total : int
        Rows so far, and all.
    seconds : float
        Since its first row was requested.
    number, n_tables : int
        Number of the table among those to copy.
    """

    table: str
    rows: int
    total: int
    seconds: float
    number: int
    n_tables: int

    @property
    def rate(self) -> float:
        """Rows in a second."""
        return self.rows / self.seconds if self.seconds else 0.0

    @property
    def seconds_left(self) -> float | None:
        """Seconds until its end at this rate; None if that is not known yet."""
        return (self.total - self.rows) / self.rate if self.rate else None


class Recorder(threading.Thread):
    """Writes the items of a channel until the run is over.

    Parameters
    ----------
    channel : Channel
    journal : Journal
    rules : FileRules
    target : Target
    retention : Retention or None
    prepared : set of str
        GIDs of prepared transactions without an outcome in the existing files.
    read_catalog : callable
        As in `FileCatalog`. It warns of a failure.
    on_recorded : callable
        Called when more is recorded, and when the channel has room.
    on_finished : callable
        Called once when the target is reached.
    """

    def __init__(
        self,
        channel: Channel,
        journal: Journal,
        rules: FileRules,
        target: Target,
        retention: Retention | None,
        prepared: set[str],
        read_catalog: Callable[[set[int], set[Relation]], CatalogContents],
        on_recorded: Callable[[], None],
        on_finished: Callable[[], None],
    ) -> None:
        super().__init__(name="pgdecode-capture-recorder", daemon=True)
        self.failure: BaseException | None = None
        self.counts = CaptureResult()
        self.target = target
        self._channel = channel
        self._journal = journal
        self._folder: Path = journal.folder
        self._rules = rules
        self._retention = retention
        self._on_recorded = on_recorded
        self._on_finished = on_finished
        self._closing = threading.Event()
        self._state = SessionState(prepared)
        self._catalog = FileCatalog(read_catalog)
        self._file_copies: list[CopiedTable] = []
        self._session: Session
        self._file: FileWriter | None = None
        # Messages after the last boundary. They are dropped if the session ends.
        self._tail: list[Messages] = []
        self._tail_bytes = 0
        self._is_open = False
        # Whether the file has only messages of a transaction that is still open.
        self._spilling = False
        self._finished = False
        self._next_seq = self._first_seq = journal.contents.next_seq
        recorded = journal.contents.recorded or 0
        self.recorded = recorded
        # The LSN at the last boundary. It becomes `recorded` once everything before it is on disk.
        self._position = recorded
        self._position_at = time.monotonic()

    def close(self) -> None:
        """End the thread. Anything that is not recorded by then is dropped."""
        self._closing.set()
        self._channel.wake()

    def run(self) -> None:
        """Write until closed."""
        item = None
        try:
            while not self._closing.is_set():
                item = self._channel.take(self._seconds_left())
                if isinstance(item, Chunk | CopiedPayloads):
                    self._take_chunk(item)
                    self._on_recorded()
                elif isinstance(item, Keepalive):
                    self._take_keepalive(item)
                elif isinstance(item, Session):
                    self._begin_session(item)
                elif isinstance(item, SessionEnd):
                    self._end_session()
                    item.done.set()
                    self._on_recorded()
                self._check_clock()
        except BaseException as error:
            self.failure = error
            self._channel.fail(error)
            if isinstance(item, SessionEnd):
                item.done.set()
            self._on_recorded()
        finally:
            self._drop()
            if self._file is not None:
                self._file.discard()

    # Sessions.

    def _begin_session(self, session: Session) -> None:
        self._session = session
        self._state.begin_session()
        self._is_open = False

    def _end_session(self) -> None:
        """Record everything complete. The server will send the rest again."""
        self._drop()
        self._seal()
        self._record_position()

    def _drop(self) -> None:
        self._tail, self._tail_bytes, self._is_open = [], 0, False
        if self._spilling and self._file is not None:
            self._next_seq = self._file.first_seq
            self._file.discard()
            self._file = None
            self._spilling = False
        elif self._file is not None:
            self._next_seq = self._file.first_seq + self._file.n_rows
        else:
            self._next_seq = self._journal.contents.next_seq

    # Messages.

    def _take_chunk(self, chunk: Chunk | CopiedPayloads) -> None:
        if self._finished:
            return
        messages = messages_of(chunk, self._next_seq)
        self._next_seq += len(chunk)
        self.target.idle_seen = None
        self.counts.received_messages += len(chunk)
        self.counts.received_bytes += chunk.n_bytes
        end = self._end_in(messages)
        boundary = last_boundary(messages.tags, self._is_open) if end is None else end
        if boundary is None:
            self._hold(messages, 0)
        else:
            self._complete(messages, boundary)
            if end is not None:
                self._finish()
                return
            self._hold(messages, boundary)
        if isinstance(chunk, CopiedPayloads) and chunk.ended is not None:
            self._file_copies.append(chunk.ended)
        self._is_open = boundary != len(messages.tags)
        if self._tail_bytes >= TAIL_BYTES:
            self._spill()
        if self._file is not None and not self._spilling and self._file.payload_bytes >= self._rules.max_bytes:
            self._seal()

    def _hold(self, messages: Messages, start: int) -> None:
        if start < len(messages.tags):
            rest = Messages(messages.rows.slice(start), messages.tags[start:])
            self._tail.append(rest)
            self._tail_bytes += rest.rows.nbytes

    def _complete(self, messages: Messages, count: int) -> None:
        """Write the held messages and `count` more, which end at a boundary."""
        if count == 0 and not self._tail:
            return
        for held in self._tail:
            self._write(held, len(held.tags))
        self._tail, self._tail_bytes, self._spilling = [], 0, False
        if count:
            self._write(messages, count)
        self._position = max(self._position, last_position(messages, count, self._is_open) or 0)

    def _write(self, messages: Messages, count: int) -> None:
        if self._file is None:
            self._file = FileWriter(self._folder, messages.first_seq, self._rules.compression)
            self._state.begin_file()
            self._catalog.begin_file()
            self._file_copies = []
        self._file.add(messages.rows.slice(0, count))
        self._state.add(messages, 0, count)
        self._catalog.update(self._state)
        self.counts.payload_bytes += messages.rows.column("data").slice(0, count).nbytes

    def _spill(self) -> None:
        """Write a transaction that is too large for memory into a new file before the transaction is complete."""
        if not self._spilling:
            self._seal()
            self._spilling = True
        for held in self._tail:
            self._write(held, len(held.tags))
        self._tail, self._tail_bytes = [], 0

    # Recording.

    def _seal(self) -> None:
        """Complete the file, which ends at a boundary."""
        if self._file is None:
            return
        others = self._catalog.keys(self._state)
        file, self._file = self._file, None
        undecided = len(self._state.streams), len(self._state.prepared)
        before = self._journal.before_next_file()
        metadata = {**self._session.metadata, **before, "prepared": sorted(self._state.prepared)}
        try:
            copies = tuple(self._file_copies)
            entry = file.seal(self._position, self._session.number, undecided, metadata, others, copies)
        except BaseException:
            file.discard()
            raise
        self._journal.add_file(entry)
        self._set_recorded()
        self.counts.messages += entry.rows
        self.counts.files += 1
        self.counts.file_bytes += entry.bytes
        self.counts.copies += entry.copies
        if self._retention is not None:
            delete_old(self._journal, self._retention)

    def _record_position(self) -> None:
        if self._file is None and self._position > self.recorded:
            self._journal.add_position(self._position)
            self._set_recorded()

    def _set_recorded(self) -> None:
        self.recorded = self._position
        self._position_at = time.monotonic()
        self._on_recorded()

    def _take_keepalive(self, keepalive: Keepalive) -> None:
        if self._finished or self._is_open or self._tail:
            return
        self._position = max(self._position, keepalive.lsn)
        if keepalive.wants_reply:
            self._seal()
            self._record_position()
        target = self.target
        reached = target.lsn is not None and self._position >= target.lsn
        seen, asked_at = target.idle_seen, keepalive.asked_at
        if reached or (target.lsn is not None and seen is not None and asked_at is not None and asked_at > seen):
            self._finish()

    # Time limits, and the end.

    def _seconds_left(self) -> float:
        now = time.monotonic()
        moments = [now + 1.0]
        if self._file is not None:
            moments.append(self._file.began_at + self._rules.max_seconds)
        if self.target.deadline is not None and not self._finished:
            moments.append(self.target.deadline)
        return max(min(moments) - now, 0.0)

    def _check_clock(self) -> None:
        if self._spilling:
            return
        now = time.monotonic()
        if self._file is not None and now - self._file.began_at >= self._rules.max_seconds:
            self._seal()
        if self._file is None and now - self._position_at >= self._rules.position_seconds:
            self._record_position()
        deadline = self.target.deadline
        if deadline is not None and now >= deadline and not self._is_open and not self._finished:
            self._finish()

    def _end_in(self, messages: Messages) -> int | None:
        """Count the messages of a chunk before the end of the run; None if the run continues."""
        target = self.target
        if target.max_messages is not None:
            left = target.max_messages - (messages.first_seq - self._first_seq)
            if left <= len(messages.tags):
                count = boundary_after(messages.tags, self._is_open, max(left, 0))
                if count is not None:
                    return count
        if target.deadline is not None and time.monotonic() >= target.deadline:
            return boundary_after(messages.tags, self._is_open, 0)
        if target.lsn is not None and target.is_exact:
            return count_before(messages, target.lsn, self._is_open)
        if target.lsn is not None:
            boundary = last_boundary(messages.tags, self._is_open) or 0
            lsn_before = last_position(messages, boundary, self._is_open)
            if lsn_before is not None and lsn_before >= target.lsn:
                return next(count for count, lsn in positions(messages, self._is_open) if lsn >= target.lsn)
        return None

    def _finish(self) -> None:
        if self.target.is_exact:
            # Everything that is complete at this LSN has been received.
            self._position = max(self._position, self.target.lsn or 0)
        self._finished = True
        self._on_finished()
