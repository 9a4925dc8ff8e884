"""The rules of transactions: which changes were committed and when; plain, streamed and prepared."""

from __future__ import annotations

from typing import Any

from pgdecode._message import decode_one
from pgdecode.errors import DecodeError, RelationInDoubt, StreamDesync, TransactionDesync, UnknownRelation
from pgdecode.ledger import Delivery, Transaction
from pgdecode.messages import MESSAGES, Relation
from pgdecode.outcomes import DecidedBatch
from pgdecode.scanned import NO_KIND
from pgdecode.visibility import IN_DOUBT


class Follower(DecidedBatch):
    """Follows the transactions through one batch; the ledger is changed in place."""

    def run(self) -> Delivery:
        """Follow all rows."""
        self._read()
        ledger = self.ledger
        self.outline.learn(ledger.catalog.visible)
        self._know()
        if ledger.open is not None or ledger.stream is not None:
            self.outline.enter()
        row = self.outline.follow(0)
        while row < self.n_rows:
            self._meet(row)
            row = self.outline.follow(row + 1)
        self._check_relations()
        self._rest()
        self._hold()
        ledger.last_lsn = self.outline.last_lsn
        ledger.begun = self.begun
        if self.n_rows:
            ledger.position = self.positions[-1].as_py() + 1
        return self.delivery()

    @property
    def begun(self) -> bool:
        """Whether a transaction boundary has come by."""
        return self.ledger.begun or self.outline.begun

    def _rest(self) -> None:
        """Come to the end of the batch: what is open has got all the changes that are its own."""
        ledger = self.ledger
        if self.outline.is_plain:
            ledger.begun = True
            ledger.open = self._plain()
        elif ledger.stream is not None or ledger.open is not None:
            self._pause()

    # -- messages ------------------------------------------------------------------------------------------------------

    def _meet(self, row: int) -> None:
        """Deal with a row that the outline leaves to these rules."""
        code = self.kinds[row]
        self.met.append(row)
        if code == NO_KIND:
            error = self._error(row)
            if error is not None:
                self.told[row] = error
                self.outline.list_bad(row)
                self._doubt(row, error)
            return
        getattr(self, f"_meet_{MESSAGES[code].kind}")(row)

    def _pause(self) -> None:
        """Give the changes listed since the last boundary to the transaction that is open."""
        ledger = self.ledger
        current = ledger.own_open() if ledger.stream is None else ledger.own_streamed(ledger.stream)
        if current is not None and self.since < self.outline.n:
            current.ranges.append((self.since, self.outline.n))
            current.n_changes += self.outline.n - self.since
        self.since = self.outline.n

    def _plain(self) -> Transaction:
        """Take over the transaction that the outline has followed so far."""
        outline = self.outline
        return Transaction(
            outline.xid,
            self._position(outline.begin_row),
            final_lsn=outline.lsn,
            ranges=[(outline.start, outline.n)],
            n_changes=outline.n - outline.start,
        )

    def _between(self, row: int) -> None:
        """Come to a message that stands outside streams and transactions; leave what is open, and say so."""
        ledger = self.ledger
        kind = self._kind(row)
        if ledger.stream is not None:
            self._pause()
            ledger.stream = None
            self._fault(row, StreamDesync, f"{kind} inside a stream: the stream_stop before it is missing")
        if self.outline.is_plain:
            ledger.open = self._plain()
        elif ledger.open is not None:
            self._pause()
        lost, ledger.open = ledger.open, None
        if lost is not None:
            if not self._is_sent_again(row, lost):
                self._fault(row, TransactionDesync, f"{kind} inside a transaction: the commit before it is missing")
            self._undecided(lost)
        self.outline.leave()
        self._know()
        ledger.begun = True
        self.since = self.outline.n

    def _is_sent_again(self, row: int, lost: Transaction) -> bool:
        """Whether a Begin inside a transaction is the server starting over: commits come in the order of their LSNs."""
        return self._kind(row) in ("begin", "begin_prepare") and self._value("lsn", row) <= lost.final_lsn

    def _meet_begin(self, row: int) -> None:
        self.outline.meet_end(row)
        self._between(row)
        lsn = self._value("lsn", row)
        self._open(Transaction(self._value("xid", row), self._position(row), final_lsn=lsn))

    def _open(self, transaction: Transaction) -> None:
        self.ledger.open = transaction
        self.outline.enter()
        self.since = self.outline.n

    def _leave(self) -> None:
        self.ledger.open = None
        self.ledger.begun = True
        self.outline.leave()

    def _meet_commit(self, row: int) -> None:
        ledger = self.ledger
        self.outline.meet_end(row)
        if ledger.stream is not None or ledger.open is None:
            stray = ledger.stream is None and self.begun
            self._between(row)
            if stray:
                self._fault(row, TransactionDesync, "commit outside a transaction: its begin is missing")
            return
        self._pause()
        self._commit(row, ledger.open)
        self._leave()

    def _meet_insert(self, row: int) -> None:
        """Judge a row outside any transaction: at the very start, it is of one whose Begin was not captured."""
        if self.begun or self._value("xid", row) is not None:
            boundary = "begin or stream_start"
            self._fault(row, TransactionDesync, f"{self._kind(row)} outside a transaction: its {boundary} is missing")
            return
        self._open(Transaction(0))
        self.outline.list_row(row, self._value("relation_id", row), 0)

    _meet_update = _meet_delete = _meet_insert

    def _meet_truncate(self, row: int) -> None:
        ledger = self.ledger
        xid = self._value("xid", row)
        if self.outline.is_plain or ledger.open is not None or ledger.stream is not None:
            pass
        elif self.begun or xid is not None:
            self._meet_insert(row)
            return
        else:
            self._open(Transaction(0))
        for relation_id in self._message(row, xid).relation_ids:
            self.outline.list_row(row, relation_id, xid or 0, is_truncate=True)

    def _message(self, row: int, xid: int | None) -> Any:
        payload = self.payloads[row].as_py()
        return decode_one(payload, xid is not None, self.options.limits, self.options.strict_flags)

    # -- relations -----------------------------------------------------------------------------------------------------

    def _know(self) -> None:
        """Tell the outline which versions of relations count from here on: those of the stream, before all others."""
        catalog = self.ledger.catalog
        own = {} if self.ledger.stream is None else catalog.seen_by(self.ledger.stream)
        # Only what changes is told: there may be many relations, and many blocks.
        back = {relation_id: catalog.visible.get(relation_id, -1) for relation_id in self.of_stream}
        self.outline.learn(back | own)
        self.of_stream = list(own)

    def _learn(self, relation_id: int) -> None:
        """Tell the outline which version of a relation counts from here on."""
        self.outline.learn({relation_id: self.ledger.catalog.seen_by(self.ledger.stream).get(relation_id, -1)})
        if self.ledger.stream is not None:
            self.of_stream.append(relation_id)

    def _meet_relation(self, row: int) -> None:
        xid = self._value("xid", row)
        stream = self._stream_of(xid)
        payload = self.payload_of(row)
        if stream is None and self.ledger.catalog.is_said_again(payload):
            self.met.pop()
            return
        message = self._message(row, xid)
        try:
            self._describe(message, self._position(row), stream)
            if stream is None:
                self.ledger.catalog.keep_said(message.relation_id, payload)
        except DecodeError as error:
            self._tell(row, error)
            self.ledger.catalog.doubt(message.relation_id, self._position(row), stream)
        if stream == self.ledger.stream:
            self._learn(message.relation_id)

    def _describe(self, message: Relation, position: int, stream: int | None) -> None:
        self.ledger.catalog.add(message, position, stream)

    def _meet_type(self, row: int) -> None:
        xid = self._value("xid", row)
        try:
            self.ledger.catalog.add_type(self._message(row, xid), self._stream_of(xid))
        except DecodeError as error:
            self._tell(row, error)

    def _stream_of(self, xid: int | None) -> int | None:
        """Transaction in whose stream a message was sent; where the block's start is missing, its xid is the best."""
        return xid if self.ledger.stream is None else self.ledger.stream

    def _doubt(self, row: int, error: str) -> None:
        """Of a bad Relation message: let no older version count for its relation, if that can be read."""
        # Before the first boundary the ledger knows of no stream; the scan has told it by what comes after.
        streamed = self._is_streamed(row)
        start = 5 if streamed else 1
        # As a buffer: a payload of any length costs nothing.
        head = bytes(self.payloads[row].as_buffer()[: start + 4])
        if head[:1] != b"R":
            return
        if error.startswith(StreamDesync.code):
            self._doubt_everywhere(row, not streamed)
        elif len(head) == start + 4:
            relation_id = int.from_bytes(head[start:], "big")
            stream = self._stream_of(int.from_bytes(head[1:5], "big") if streamed else None)
            self.ledger.catalog.doubt(relation_id, self._position(row), stream)
            if stream == self.ledger.stream:
                self._learn(relation_id)

    def _doubt_everywhere(self, row: int, streamed: bool) -> None:
        """Do so with one that contradicts the stream state, and may be of any transaction."""
        options = self.options
        try:
            message = decode_one(self.payloads[row].as_py(), streamed, options.limits, options.strict_flags)
        except DecodeError:
            # Neither reading can be made an object: nothing more is known of it than that it is bad.
            return
        if isinstance(message, Relation):
            self.ledger.catalog.doubt_everywhere(message, self._position(row))
            self._learn(message.relation_id)

    def _check_relations(self) -> None:
        """Refuse rows of relations that have not been described."""
        unknown = self.outline.first_unknown()
        if unknown is None or self.options.mode != "FAILFAST":
            return
        row, relation_id, version = unknown
        raise self.unknown_relation(relation_id, self._kind(row), self.first_row + row, version)

    def unknown_relation(self, relation_id: int, kind: str, row: int | None, version: int) -> UnknownRelation:
        """Make the error of a row whose relation has not been described, or not so that it could be read."""
        cls = RelationInDoubt if version == IN_DOUBT else UnknownRelation
        tag = {item.kind: item.tag for item in MESSAGES}[kind]
        detail = cls.wording.format(seen=relation_id, field=kind)
        return cls(detail, row=row, offset=1, tag=tag, relation=relation_id, seen=relation_id)

    # -- streams -------------------------------------------------------------------------------------------------------

    def _meet_stream_start(self, row: int) -> None:
        ledger = self.ledger
        xid = self._value("xid", row)
        first = self._value("first_segment", row)
        if first and ledger.stream == xid:
            # The server starts over in the middle of the block.
            self._pause()
            ledger.stream = None
        self._between(row)
        if first and xid in ledger.streamed:
            self._undecided(ledger.streamed.pop(xid))
            ledger.catalog.drop(xid)
        ledger.streamed.setdefault(xid, Transaction(xid, self._position(row)))
        ledger.stream = xid
        self.outline.enter()
        self._know()

    def _meet_stream_stop(self, row: int) -> None:
        ledger = self.ledger
        if ledger.stream is None:
            if self.begun:
                self._fault(row, StreamDesync, "stream_stop outside a stream: its stream_start is missing")
            ledger.begun = True
            return
        self._pause()
        ledger.stream = None
        self.outline.leave()
        self._know()

    def _meet_stream_commit(self, row: int) -> None:
        self._between(row)
        xid = self._value("xid", row)
        transaction = self.ledger.streamed.pop(xid, None)
        self.outline.learn(self.ledger.catalog.publish(xid, self._position(row)))
        if transaction is not None:
            self._commit(row, transaction)

    def _meet_stream_abort(self, row: int) -> None:
        self._between(row)
        xid, subxid = self._value("xid", row), self._value("subxid", row)
        transaction = self.ledger.streamed.get(xid)
        if transaction is None:
            # A transaction of which nothing was streamed.
            return
        if subxid != xid:
            self._abort_part(row, self.ledger.own_streamed(xid), subxid)
            return
        del self.ledger.streamed[xid]
        self.ledger.catalog.drop(xid)
        self._abort(transaction)

    def _abort_part(self, row: int, transaction: Transaction, subxid: int) -> None:
        transaction.aborted[subxid] = transaction.n_changes

    # -- two-phase commit ----------------------------------------------------------------------------------------------

    def _meet_begin_prepare(self, row: int) -> None:
        self._between(row)
        xid, gid, lsn = (self._value(name, row) for name in ("xid", "gid", "lsn"))
        self._open(Transaction(xid, self._position(row), gid, lsn))

    def _meet_prepare(self, row: int) -> None:
        ledger = self.ledger
        if ledger.stream is not None or ledger.open is None:
            stray = ledger.stream is None and self.begun
            self._between(row)
            if stray:
                self._fault(row, TransactionDesync, "prepare outside a transaction: its begin_prepare is missing")
            return
        self._pause()
        self._prepare(row, ledger.open)
        self._leave()

    def _meet_stream_prepare(self, row: int) -> None:
        self._between(row)
        xid = self._value("xid", row)
        transaction = self.ledger.streamed.pop(xid, None)
        self.outline.learn(self.ledger.catalog.publish(xid, self._position(row)))
        if transaction is not None:
            self._prepare(row, transaction)

    def _prepare(self, row: int, transaction: Transaction) -> None:
        transaction = transaction.copy()
        transaction.gid = self._value("gid", row)
        replaced = self.ledger.prepared.pop(transaction.gid, None)
        if replaced is not None:
            # Prepared again under the name: the server has started over.
            self._undecided(replaced)
        self.ledger.prepared[transaction.gid] = transaction

    def _meet_commit_prepared(self, row: int) -> None:
        self._between(row)
        transaction = self.ledger.prepared.pop(self._value("gid", row), None)
        if transaction is not None:
            self._commit(row, transaction)

    def _meet_rollback_prepared(self, row: int) -> None:
        self._between(row)
        transaction = self.ledger.prepared.pop(self._value("gid", row), None)
        if transaction is not None:
            self._abort(transaction)
