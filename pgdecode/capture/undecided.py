"""State at the end of a file: visible relations, and transactions without an outcome."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow.compute as pc

from pgdecode.capture.errors import StoppedError
from pgdecode.capture.frames import Messages
from pgdecode.envelope.decoder import decode
from pgdecode.protocol.errors import BadEncoding, DecodeError
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
from pgdecode.relations.relation_version import RelationVersion
from pgdecode.types.pgtypes import MONEY_ARRAY_OID, MONEY_OID, NAME_BY_OID

_CONTROL = re.compile(rb"[RYSEcApPKr]")
_BLOCK = re.compile(rb"[SE]")


@dataclass(frozen=True, slots=True)
class _Described:
    """A Relation or Type message, with its position. A relation has the types that were sent before it."""

    position: int
    message: Relation | Type
    types: tuple[Type, ...] = ()


class SessionState:
    """The state of one session, updated by its messages up to a boundary.

    Attributes
    ----------
    streams : set of int
        xids of streamed transactions without an outcome.
    prepared : set of str
        GIDs of prepared transactions without an outcome, also those of earlier sessions.
    """

    def __init__(self, prepared: set[str] | None = None) -> None:
        self.prepared = prepared or set()
        self.begin_session()

    def begin_session(self) -> None:
        """Discard relations and streams of the previous session, because the server sends them again."""
        self.streams: set[int] = set()
        # Visible relations by OID, each with the position from which it is visible.
        self._relations: dict[int, tuple[int, _Described]] = {}
        self._types: dict[int, _Described] = {}
        # By xid, the relations and types in the transaction's own stream. They become visible when it commits.
        self._in_streams: dict[int, list[_Described]] = {}
        self._stream: int | None = None
        self.begin_file()

    def begin_file(self) -> None:
        """Begin a file with the next message."""
        self._before = dict(self._relations)
        # What the first bytes of messages name as relations, among them OIDs of others.
        self._named: set[bytes] = set()
        self._file_types: set[int] = set()

    def add(self, messages: Messages, start: int, stop: int) -> None:
        """Process messages of a chunk, from one boundary to another.

        Raises
        ------
        StoppedError
            If a message cannot be read.
        """
        self._add_named(messages, start, stop)
        for match in _CONTROL.finditer(messages.tags, start, stop):
            row = match.start()
            try:
                message = decode(messages.payload(row), in_stream=self._stream is not None)
            except DecodeError as error:
                hint = "; names of tables and types must be ASCII" if isinstance(error, BadEncoding) else ""
                raise StoppedError(f"the server sent a message that cannot be read: {error}{hint}") from error
            self._take(message, messages.first_seq + row)

    def catalog(self) -> RelationCatalog:
        """Return the relations that the file uses, as far as they were visible before its first message.

        Each has the position of its Relation message.
        """
        named = {int.from_bytes(oid, "big") for oid in self._named}
        found = sorted(
            (self._before[oid] for oid in named & self._before.keys()), key=lambda item: (item[0], item[1].position)
        )
        return RelationCatalog(
            RelationVersion(described.message, described.types, described.position, None, visible_from)
            for visible_from, described in found
            if isinstance(described.message, Relation)
        )

    def described_types(self) -> set[int]:
        """Return the types of columns of the relations that the file has described so far, as `type_oids`."""
        return self._file_types

    def type_oids(self) -> set[int]:
        """Return the OIDs of all types of columns in the file whose meaning depends on the database."""
        return self._file_types | {oid for version in self.catalog() for oid in _own_types(version.relation)}

    def _add_named(self, messages: Messages, start: int, stop: int) -> None:
        """Collect the OIDs in row messages. They follow the tag, or in a stream the tag and an xid."""
        data = messages.rows.column("data")
        in_stream = self._stream is not None
        at = start
        for border in [match.start() for match in _BLOCK.finditer(messages.tags, start, stop)] + [stop]:
            offset = 5 if in_stream else 1
            if border > at:
                oids = pc.binary_slice(data.slice(at, border - at), offset, offset + 4)
                self._named.update(pc.unique(oids).to_pylist())
            in_stream = messages.tags[border : border + 1] == b"S"
            at = border + 1
        for row in (match.start() for match in re.finditer(b"T", messages.tags[start:stop])):
            payload = messages.payload(start + row)
            # The OIDs are at the end. Their alignment differs in a stream, but not in relation to the end.
            self._named.update(payload[at : at + 4] for at in range(len(payload) - 4, 5, -4))

    def _take(self, message: Message, position: int) -> None:
        if isinstance(message, Relation | Type):
            types: tuple[Type, ...] = ()
            if isinstance(message, Relation):
                types = tuple(self._types_of(message))
                self._file_types.update(_own_types(message))
            described = _Described(position, replace(message, xid=None), types)
            if self._stream is None:
                self._set_visible(described, position)
            else:
                self._in_streams[self._stream].append(replace(described, message=message))
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
            for described in self._in_streams.pop(message.xid, []):
                self._set_visible(replace(described, message=replace(described.message, xid=None)), position)
            self.streams.discard(message.xid)
            if isinstance(message, StreamPrepare):
                self.prepared.add(message.gid)
        elif isinstance(message, Prepare):
            self.prepared.add(message.gid)
        elif isinstance(message, CommitPrepared | RollbackPrepared):
            self.prepared.discard(message.gid)

    def _types_of(self, relation: Relation) -> Iterator[Type]:
        """Yield the types of a relation's columns that Type messages have described."""
        own = (
            {}
            if self._stream is None
            else {
                item.message.type_id: item.message
                for item in self._in_streams[self._stream]
                if isinstance(item.message, Type)
            }
        )
        for oid in (column.type_id for column in relation.columns):
            if oid in own:
                yield replace(own[oid], xid=None)
            elif oid in self._types and isinstance(found := self._types[oid].message, Type):
                yield found

    def _set_visible(self, described: _Described, position: int) -> None:
        message = described.message
        if isinstance(message, Type):
            before = self._types.get(message.type_id)
            if before is None or before.position < described.position:
                self._types[message.type_id] = described
            return
        visible = self._relations.get(message.relation_id)
        if visible is None or visible[1].position < described.position:
            self._relations[message.relation_id] = position, described

    def _abort(self, message: StreamAbort) -> None:
        if message.subxid == message.xid:
            self._in_streams.pop(message.xid, None)
            self.streams.discard(message.xid)
        elif message.xid in self._in_streams:
            kept = [item for item in self._in_streams[message.xid] if item.message.xid != message.subxid]
            self._in_streams[message.xid] = kept


def _own_types(relation: Relation) -> Iterator[int]:
    """Yield the OIDs of the types of columns that are not the same on every server, and those of money."""
    for column in relation.columns:
        if column.type_id not in NAME_BY_OID or column.type_id in (MONEY_OID, MONEY_ARRAY_OID):
            yield column.type_id
