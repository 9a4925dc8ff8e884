"""State at the end of a file: visible relations, and transactions without an outcome."""

from __future__ import annotations

import re
from dataclasses import replace

from pgdecode.capture.frames import Messages
from pgdecode.envelope.decoder import decode
from pgdecode.protocol.messages import (
    CommitPrepared,
    Message,
    Prepare,
    Relation,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Type,
)
from pgdecode.relations.catalog import RelationCatalog

_CONTROL = re.compile(rb"[RYSEcApPKr]")
_Described = tuple[int, Relation | Type]


class SessionState:
    """The state of one session, updated by its messages up to a boundary.

    Attributes
    ----------
    streams : set of int
        xids of streamed transactions without an outcome.
    prepared : set of str
        GIDs of prepared transactions without an outcome, also those of earlier sessions.
    saw_type : bool
        Whether a Type message came since the attribute was last set to False.
    """

    def __init__(self, prepared: set[str] | None = None) -> None:
        self.prepared = prepared or set()
        self.saw_type = False
        self.begin_session()

    def begin_session(self) -> None:
        """Discard relations and streams of the previous session, because the server sends them again."""
        self.streams: set[int] = set()
        self._visible: dict[tuple[type, int], _Described] = {}
        # By xid, the relations and types in the transaction's own stream. They become visible when it commits.
        self._in_streams: dict[int, list[_Described]] = {}
        self._stream: int | None = None

    def add(self, messages: Messages, start: int, stop: int) -> None:
        """Process messages of a chunk, from one boundary to another."""
        for match in _CONTROL.finditer(messages.tags, start, stop):
            row = match.start()
            message = decode(messages.payload(row), in_stream=self._stream is not None)
            self._take(message, messages.first_seq + row)

    def catalog(self) -> RelationCatalog:
        """Return the relations that the next message may use, each with the position of its Relation message."""
        described = sorted(self._visible.values(), key=lambda item: item[0])
        return RelationCatalog.from_messages(
            [message for _, message in described], position=[position for position, _ in described]
        )

    def _take(self, message: Message, position: int) -> None:
        if isinstance(message, Relation | Type):
            self.saw_type |= isinstance(message, Type)
            if self._stream is None:
                self._set_visible(message, position)
            else:
                self._in_streams[self._stream].append((position, message))
        elif isinstance(message, StreamStart):
            self._stream = message.xid
            if message.first_segment or message.xid not in self._in_streams:
                self._in_streams[message.xid] = []
            self.streams.add(message.xid)
        elif isinstance(message, StreamStop):
            self._stream = None
        elif isinstance(message, StreamAbort):
            self._abort(message)
        elif isinstance(message, StreamCommit | StreamPrepare):
            for described_at, described in self._in_streams.pop(message.xid, []):
                self._set_visible(described, described_at)
            self.streams.discard(message.xid)
            if isinstance(message, StreamPrepare):
                self.prepared.add(message.gid)
        elif isinstance(message, Prepare):
            self.prepared.add(message.gid)
        elif isinstance(message, CommitPrepared | RollbackPrepared):
            self.prepared.discard(message.gid)

    def _set_visible(self, message: Relation | Type, position: int) -> None:
        key = type(message), message.relation_id if isinstance(message, Relation) else message.type_id
        before = self._visible.get(key)
        if before is None or before[0] < position:
            self._visible[key] = position, replace(message, xid=None)

    def _abort(self, message: StreamAbort) -> None:
        if message.subxid == message.xid:
            self._in_streams.pop(message.xid, None)
            self.streams.discard(message.xid)
        elif message.xid in self._in_streams:
            kept = [item for item in self._in_streams[message.xid] if item[1].xid != message.subxid]
            self._in_streams[message.xid] = kept
