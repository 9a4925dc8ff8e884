"""State at the end of a file: visible relations, and transactions without an outcome."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import pyarrow.compute as pc

from pgdecode.capture.errors import StoppedError
from pgdecode.capture.frames import Messages
from pgdecode.envelope.decoder import decode
from pgdecode.protocol.errors import BadEncoding, DecodeError
from pgdecode.protocol.limits import Limits
from pgdecode.protocol.messages import (
    Begin,
    BeginPrepare,
    CommitPrepared,
    Insert,
    Message,
    Prepare,
    Relation,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
)
from pgdecode.protocol.wire import offset_of
from pgdecode.relations.catalog import RelationCatalog
from pgdecode.relations.relation_version import used_from
from pgdecode.relations.version_tracker import RelationTracker, Sent
from pgdecode.types.pgtypes import MONEY_ARRAY_OID, MONEY_OID, NAME_BY_OID

_CONTROL = re.compile(rb"[RYSEcApPKr]")
_BLOCK = re.compile(rb"[SE]")
# Inserts, updates and deletes have the OID at the same offset.
_OID_AT = {in_stream: offset_of(Insert, "relation_id", in_stream=in_stream) for in_stream in (False, True)}
# A server is trusted to have a bounded number of tables.
_LIMITS = Limits(max_relations=2**30 - 1)


class Described(NamedTuple):
    """The first and the last message of a file that describe a relation, and the transactions that they are in."""

    first: int
    first_xid: int | None
    last: int
    last_xid: int | None


class SessionState:
    """The state of one session, updated by its messages up to a boundary.

    Attributes
    ----------
    streams : set of int
        xids of streamed transactions without an outcome.
    prepared : set of str
        GIDs of prepared transactions without an outcome, also those of earlier sessions.
    described_types : set of int
        The types of columns of the relations that the file has described so far, as `type_oids`.
    described : dict of Relation to Described
        These relations, without the xid of a stream.
    """

    def __init__(self, prepared: set[str] | None = None) -> None:
        self.prepared = prepared or set()
        self.begin_session()

    def begin_session(self) -> None:
        """Discard relations and streams of the previous session, because the server sends them again."""
        self.streams: set[int] = set()
        self._relations = RelationTracker(limits=_LIMITS)
        self._stream: int | None = None
        self.begin_file()

    def begin_file(self) -> None:
        """Begin a file with the next message."""
        self._before: dict[int, Sent] = dict(self._relations.common)
        # What the first bytes of messages name as relations, among them OIDs of others.
        self._named: set[bytes] = set()
        self.described_types: set[int] = set()
        self.described: dict[Relation, Described] = {}

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
                xid = _xid_at(messages, row, start) if isinstance(message, Relation) else None
                self._take(message, messages.first_seq + row, xid)
            except DecodeError as error:
                hint = "; names of tables and types must be ASCII" if isinstance(error, BadEncoding) else ""
                raise StoppedError(f"the server sent a message that cannot be read: {error}{hint}") from error

    def catalog(self) -> RelationCatalog:
        """Return the relations that the file uses, as far as they were visible before its first message."""
        named = {int.from_bytes(oid, "big") for oid in self._named}
        versions = [self._relations.versions[self._before[oid].number] for oid in named & self._before.keys()]
        return RelationCatalog(replace(version, xid=None) for version in sorted(versions, key=used_from))

    def type_oids(self) -> set[int]:
        """Return the OIDs of all types of columns in the file whose meaning depends on the database."""
        return self.described_types | {oid for version in self.catalog() for oid in _own_types(version.relation)}

    def _add_named(self, messages: Messages, start: int, stop: int) -> None:
        """Collect the OIDs in row messages. They follow the tag, or in a stream the tag and an xid."""
        data = messages.rows.column("data")
        in_stream = self._stream is not None
        row = start
        for border in [match.start() for match in _BLOCK.finditer(messages.tags, start, stop)] + [stop]:
            offset = _OID_AT[in_stream]
            if border > row:
                oids = pc.binary_slice(data.slice(row, border - row), offset, offset + 4)
                self._named.update(pc.unique(oids).to_pylist())
            in_stream = messages.tags[border : border + 1] == b"S"
            row = border + 1
        for row in (match.start() for match in re.finditer(b"T", messages.tags[start:stop])):
            payload = messages.payload(start + row)
            # The OIDs are at the end. Their alignment differs in a stream, but not in relation to the end.
            self._named.update(payload[offset : offset + 4] for offset in range(len(payload) - 4, 5, -4))

    def _take(self, message: Message, position: int, xid: int | None) -> None:
        self._stream = self._relations.follow(message, position, self._stream)
        if isinstance(message, Relation):
            relation = replace(message, xid=None)
            xid = xid if self._stream is None else self._stream
            known = self.described.get(relation, Described(position, xid, position, xid))
            self.described[relation] = known._replace(last=position, last_xid=xid)
            self.described_types.update(_own_types(message))
        elif isinstance(message, StreamStart):
            self.streams.add(message.xid)
        elif isinstance(message, StreamAbort):
            if message.subxid == message.xid:
                self.streams.discard(message.xid)
        elif isinstance(message, StreamCommit | StreamPrepare):
            self.streams.discard(message.xid)
            if isinstance(message, StreamPrepare):
                self.prepared.add(message.gid)
        elif isinstance(message, Prepare):
            self.prepared.add(message.gid)
        elif isinstance(message, CommitPrepared | RollbackPrepared):
            self.prepared.discard(message.gid)


def _xid_at(messages: Messages, row: int, start: int) -> int | None:
    """Return the xid of the transaction outside streams that a row is in."""
    begin = messages.tags.rfind(b"B", start, row)
    begin = max(begin, messages.tags.rfind(b"b", max(begin, start), row))
    message = decode(messages.payload(begin)) if begin >= 0 else None
    return message.xid if isinstance(message, Begin | BeginPrepare) else None


def _own_types(relation: Relation) -> Iterator[int]:
    """Yield the OIDs of the types of columns that are not the same on every server, and those of money."""
    for column in relation.columns:
        if column.type_id not in NAME_BY_OID or column.type_id in (MONEY_OID, MONEY_ARRAY_OID):
            yield column.type_id
