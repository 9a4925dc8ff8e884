"""The rules of transactions: which changes were committed and when; plain, streamed and prepared."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode._message import decode_one
from pgdecode._outline import Outline
from pgdecode._scan import Scan
from pgdecode._source import Source
from pgdecode.catalog import IN_DOUBT
from pgdecode.errors import DecodeError, RelationInDoubt, StreamDesync, TransactionDesync, UnknownRelation
from pgdecode.ledger import Delivery, Held, Ledger, Options, Transaction
from pgdecode.messages import MESSAGES, Relation
from pgdecode.schemas import envelope_schema

_FIELDS = ("kind", "xid", "subxid", "lsn", "timestamp", "gid", "relation_id", "first_segment", "error")
_TYPES = {name: item.type for name, item in zip(_FIELDS, envelope_schema(_FIELDS), strict=True)}
_NO_KIND = 0xFF
_KIND_BY_TAG = {item.tag.encode(): item.kind for item in MESSAGES}
BAD_PAYLOAD = -2  # the version of a change that could not be read


class Follower:
    """Follows the transactions through one batch; the ledger is changed in place.

    Parameters
    ----------
    ledger : Ledger
        As it stood before the batch.
    payloads, positions : pa.Array
    first_row : int
        Number of the batch's first payload, for errors.
    """

    def __init__(
        self, ledger: Ledger, payloads: pa.Array, positions: pa.Array, options: Options, first_row: int = 0
    ) -> None:
        self.ledger = ledger
        ledger.catalog.limits = options.limits
        self.payloads = payloads
        self.positions = positions
        self.options = options
        self.first_row = first_row
        self.parts = [payloads]
        self.all_positions = [positions]
        self.n_rows = len(payloads)
        self.end = len(payloads)  # rows in all parts
        self.gids: dict[int, str] = {}
        self.told: dict[int, str] = {}
        self.judged: bytes | None = None  # verdicts of the scan, whose lowest bit is "in a stream"; None: none is
        self.since = 0  # the first change since a transaction was entered
        self.of_stream: list[int] = []  # relations for which the outline knows the versions of a stream

    def run(self) -> Delivery:
        """Follow all rows."""
        found = self._scan()
        self.columns = {name: self._column(name, found.get(name)) for name in _FIELDS if name != "kind"}
        numbers = {name: parts[1] for name, parts in found.items() if _TYPES[name] in (pa.int64(), _TYPES["timestamp"])}
        self.kinds = memoryview(found["kind"][1]).cast("B")
        ledger = self.ledger
        self.outline = Outline(self.kinds, numbers, self.n_rows, ledger.last_lsn, self.options.drop_duplicates)
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

    def delivery(self) -> Delivery:
        """Deliver what has been decided so far."""
        positions = self.all_positions
        joined = positions[0] if len(positions) == 1 else pa.concat_arrays(positions)
        return Delivery(self.parts, joined, self.outline.delivered(), self.gids, self.told)

    def release(self) -> None:
        """Let go of what only following needs, when all is delivered: it is larger than what is delivered."""
        del self.outline, self.columns, self.kinds, self.judged

    def add_part(self, payloads: pa.Array, positions: pa.Array) -> None:
        """Put payloads of earlier batches behind those of this one."""
        self.parts.append(payloads)
        self.all_positions.append(positions)
        self.end += len(payloads)

    @property
    def begun(self) -> bool:
        """Whether a transaction boundary has come by."""
        return self.ledger.begun or self.outline.begun

    # -- the batch ---------------------------------------------------------------------------------------------------

    def _scan(self) -> dict[str, tuple[Any, ...]]:
        """Check all payloads, and read the fields that transactions are made of."""
        carry = None
        if self.ledger.stream is not None:
            carry = True
        elif self.ledger.begun:
            carry = False
        source = Source([self.payloads])
        permissive = self.options.mode != "FAILFAST"
        found = None
        for in_full in (False, True):
            scan = Scan(source, _FIELDS, self.options.limits, self.options.strict_flags, permissive, kind_codes=True)
            scan.judge(None, carry, in_full)
            try:
                found = scan.run()
            except DecodeError as error:
                raise self._moved(error) from None
            if found is not None:
                break
        assert found is not None
        self.judged = scan.judged if permissive else None
        return found

    def placed(self, error: DecodeError, rows: pa.Array) -> DecodeError:
        """Give the error of a delivered change the row of its payload, None where that was of an earlier call."""
        row = None if error.row is None else rows[error.row].as_py()
        error.row = row if row is not None and row < self.n_rows else None
        return self._moved(error)

    def _moved(self, error: DecodeError) -> DecodeError:
        """Count the error's row from the first payload of the call."""
        row = None if error.row is None else error.row + self.first_row
        known = {name: getattr(error, name) for name in ("offset", "tag", "relation", "column", "expected", "seen")}
        return type(error)(error.detail, row=row, **known)

    def _column(self, name: str, parts: tuple[Any, ...] | None) -> pa.Array:
        if parts is None:
            return pa.nulls(self.n_rows, _TYPES[name])
        return pa.Array.from_buffers(_TYPES[name], self.n_rows, list(parts))

    def _value(self, name: str, row: int) -> Any:
        return self.columns[name][row].as_py()

    def _time(self, row: int) -> int:
        """Timestamp of a row in microseconds; a datetime could not hold every one."""
        return int(self.columns["timestamp"][row].value)

    def _position(self, row: int) -> int:
        return int(self.positions[row].as_py())

    def _know(self) -> None:
        """Tell the outline which versions of relations count from here on: those of the stream, before all others."""
        catalog = self.ledger.catalog
        own = {} if self.ledger.stream is None else catalog.seen_by(self.ledger.stream)
        # Only what changes is told: there may be many relations, and many blocks.
        back = {relation_id: catalog.visible.get(relation_id, -1) for relation_id in self.of_stream}
        self.outline.learn(back | own)
        self.of_stream = list(own)

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

    def kind_of(self, row: int) -> str:
        """Kind of the message in a row, also in one that is held."""
        return _KIND_BY_TAG[self.payload_of(row)[:1]]

    def payload_of(self, row: int) -> bytes:
        """Payload of a row, also of one that is held."""
        for part in self.parts:
            if row < len(part):
                return bytes(part[row].as_py())
            row -= len(part)
        raise IndexError(row)

    def _kind(self, row: int) -> str:
        return MESSAGES[self.kinds[row]].kind

    def _rest(self) -> None:
        """Come to the end of the batch: what is open has got all the changes that are its own."""
        ledger = self.ledger
        if self.outline.is_plain:
            ledger.begun = True
            ledger.open = self._plain()
        elif ledger.stream is not None or ledger.open is not None:
            self._pause()

    def _hold(self) -> None:
        """Keep the payloads of undecided transactions for the batches to come."""
        self._keep(self.ledger.undecided)

    def _keep(self, transactions: Iterable[Transaction]) -> None:
        """Copy the payloads of transactions out of the batch."""
        for item in transactions:
            if not item.ranges:
                continue
            rows, relation_ids, xids, versions, truncates = self.outline.rows_of(item.ranges)
            n = rows.size // 8
            # Bad payloads are not kept.
            item.n_changes += n - sum(end - start for start, end in item.ranges)
            item.ranges = []
            if n:
                places = pa.Array.from_buffers(pa.int64(), n, [None, rows])
                is_truncate = pa.Array.from_buffers(pa.uint8(), n, [None, truncates]).cast(pa.bool_())
                payloads = self._take(places, is_truncate)
                item.held.append(Held(payloads, self.positions.take(places), relation_ids, xids, versions))

    def _take(self, places: pa.Array, is_truncate: pa.Array) -> pa.Array:
        """Copy payloads; of a Truncate only the tag, since each of its tables, however many, would have a copy."""
        return self.payloads.take(pc.if_else(is_truncate, pa.scalar(None, pa.int64()), places)).fill_null(b"T")

    # -- messages ----------------------------------------------------------------------------------------------------

    def _meet(self, row: int) -> None:
        """Deal with a row that the outline leaves to these rules."""
        code = self.kinds[row]
        if code == _NO_KIND:
            error = self._value("error", row)
            if error is not None:
                self.told[row] = error
                self.outline.list_bad(row)
                self._doubt(row, error)
            return
        getattr(self, f"_meet_{MESSAGES[code].kind}")(row)

    def _fault(self, row: int, cls: type[DecodeError], detail: str) -> None:
        """Raise, or tell it of the row."""
        self._tell(row, cls(detail, row=row, tag=MESSAGES[self.kinds[row]].tag))

    def _tell(self, row: int, error: DecodeError) -> None:
        error.row = row
        if self.options.mode == "FAILFAST":
            raise self._moved(error) from None
        self.told[row] = error.cell
        self.outline.list_bad(row)

    def _doubt(self, row: int, error: str) -> None:
        """Of a bad Relation message: let no older version count for its relation, if that can be read."""
        # Before the first boundary the ledger knows of no stream; the scan has told it by what comes after.
        streamed = self.judged is not None and self.judged[row] & 1 != 0
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

    def _learn(self, relation_id: int) -> None:
        """Tell the outline which version of a relation counts from here on."""
        self.outline.learn({relation_id: self.ledger.catalog.seen_by(self.ledger.stream).get(relation_id, -1)})
        if self.ledger.stream is not None:
            self.of_stream.append(relation_id)

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

    def _meet_relation(self, row: int) -> None:
        xid = self._value("xid", row)
        stream = self._stream_of(xid)
        message = self._message(row, xid)
        try:
            self.ledger.catalog.add(message, self._position(row), stream)
        except DecodeError as error:
            self._tell(row, error)
            self.ledger.catalog.doubt(message.relation_id, self._position(row), stream)
        if stream == self.ledger.stream:
            self._learn(message.relation_id)

    def _meet_type(self, row: int) -> None:
        xid = self._value("xid", row)
        try:
            self.ledger.catalog.add_type(self._message(row, xid), self._stream_of(xid))
        except DecodeError as error:
            self._tell(row, error)

    def _stream_of(self, xid: int | None) -> int | None:
        """Transaction in whose stream a message was sent; where the block's start is missing, its xid is the best."""
        return xid if self.ledger.stream is None else self.ledger.stream

    # -- streams -----------------------------------------------------------------------------------------------------

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

    # -- two-phase commit --------------------------------------------------------------------------------------------

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

    # -- outcomes ----------------------------------------------------------------------------------------------------

    def _commit(self, row: int, transaction: Transaction) -> None:
        lsn = self._value("lsn", row)
        if self.options.drop_duplicates and lsn <= self.outline.last_lsn:
            return
        self.outline.last_lsn = max(lsn, self.outline.last_lsn)
        self._deliver(transaction, row, lsn, self._time(row), 1)

    def _abort(self, transaction: Transaction) -> None:
        self._drop(transaction, 0)

    def deliver_undecided(self, transaction: Transaction) -> None:
        """Deliver a transaction that no outcome has come for."""
        self._deliver(transaction, -1, -1, -1, -1)

    def _undecided(self, transaction: Transaction) -> None:
        self._drop(transaction, -1)

    def _drop(self, transaction: Transaction, committed: int) -> None:
        if self.options.include_uncommitted:
            self._deliver(transaction, -1, -1, -1, committed)

    def _deliver(self, transaction: Transaction, row: int, lsn: int, timestamp: int, committed: int) -> None:
        """Deliver a transaction, and what its sub-transactions have undone of it where that is wanted."""
        pieces = self._pieces(transaction)
        aborted = transaction.aborted if committed else {}  # in an abort all are alike
        self._decide(row, transaction, lsn, timestamp, committed)
        for start, end, place in pieces:
            self.outline.deliver_alive(start, end, place, aborted, True)
        if aborted and self.options.include_uncommitted:
            self._decide(-1, transaction, -1, -1, 0)
            for start, end, place in pieces:
                self.outline.deliver_alive(start, end, place, aborted, False)

    def _decide(self, row: int, transaction: Transaction, lsn: int, timestamp: int, committed: int) -> None:
        outcome = self.outline.decide(row, transaction.xid, lsn, timestamp, committed)
        if transaction.gid is not None:
            self.gids[outcome] = transaction.gid

    def _pieces(self, transaction: Transaction) -> list[tuple[int, int, int]]:
        """List the changes of a transaction as (start, end, place in it), those of earlier batches first."""
        found = []
        place = 0
        for held in transaction.held:
            start = self.outline.n
            first = self.end
            relation_ids, xids = (memoryview(item).cast("B").cast("q") for item in (held.relation_ids, held.xids))
            versions = memoryview(held.versions).cast("B").cast("i")
            tag = pa.scalar(b"T", held.payloads.type)
            is_truncate = pc.equal(pc.binary_slice(held.payloads, 0, 1), tag).cast(pa.uint8())
            truncates = memoryview(is_truncate.buffers()[1] or b"").cast("B")
            self.outline.list_held(first, relation_ids, xids, versions, truncates)
            self.add_part(held.payloads, held.positions)
            found.append((start, self.outline.n, place))
            place += len(held)
        # Held changes are no part of the transaction that is open.
        self.since = self.outline.n
        for start, end in transaction.ranges:
            found.append((start, end, place))
            place += end - start
        return found
