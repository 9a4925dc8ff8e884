"""Assembles messages to transactions: which changes were committed, and when. Plain, streamed and prepared."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol

import pyarrow as pa

from pgdecode._native.arrow.int64_kernels import ChunkedInt64
from pgdecode._native.changes.transaction_index import TransactionIndex
from pgdecode.changes.replication_state import CommittedChanges, ReplicationState, Transaction
from pgdecode.changes.scanned_batch import NO_KIND, ScannedBatch
from pgdecode.protocol.errors import (
    CommitOrder,
    DecodeError,
    InvalidRelation,
    StreamDesync,
    TransactionDesync,
    UnknownRelation,
)
from pgdecode.protocol.lsn import lsn_to_text
from pgdecode.protocol.messages import COPY_XID, MESSAGES, Relation
from pgdecode.protocol.options import ChangeOptions
from pgdecode.protocol.wire import offset_of
from pgdecode.relations.version_tracker import INVALID, SchemaChanged

_HEAD = (
    "; payloads are not in slot order, or begin inside a transaction: sort them by their sequence number, pass state= "
    'of the previous decoder, or start="anywhere" to leave such '
    "transactions out"
)
_ORDER = (
    ": put the payloads into slot order; if transactions were sent again, leave them out with drop_duplicates=True, "
    "or say where connections begin (session=, reconnected())"
)
_RECONNECT = "; are the payloads in slot order? if the connection was lost before this message, call reconnected()"

# Lists some changes, those of versions with a flag, or of all.
Listing = Callable[[bytes | None], "tuple[TransactionAssembler, CommittedChanges]"]


class Outcomes(Protocol):
    """The methods that a `TransactionAssembler` calls when the outcome of a transaction is known."""

    wants_discarded: bool  # whether to report every plain transaction that ends without an outcome
    knows_relations: bool  # whether all versions of relations are known, so that another one is a fault
    wants_blocks: bool  # whether to call `end_block` for every block

    def commit(self, assembler: TransactionAssembler, row: int, transaction: Transaction) -> None:
        """Process the commit of a transaction. The commit message is in `row`."""

    def abort(self, assembler: TransactionAssembler, transaction: Transaction) -> None:
        """Process the rollback of a transaction."""

    def discard(self, assembler: TransactionAssembler, transaction: Transaction, is_sent_again: bool) -> None:
        """Discard a transaction without an outcome. Either the server sends it again, or its end is missing."""

    def abort_part(self, assembler: TransactionAssembler, row: int, transaction: Transaction, subxid: int) -> None:
        """Process the rollback of a sub-transaction. The abort message is in `row`."""

    def end_block(self, assembler: TransactionAssembler, transaction: Transaction) -> None:
        """Process the end of a stream block; only of some blocks, unless it `wants_blocks`."""

    def end_batch(self, assembler: TransactionAssembler) -> None:
        """Process the end of a batch. Changes of undecided transactions must be kept."""

    def placed(self, batch: ScannedBatch, error: DecodeError, rows: pa.Array) -> DecodeError:
        """Add the location of the payload to the error of a change. `rows` has the row of each change."""


class TransactionAssembler:
    """Assembles the messages of one batch to transactions. It changes the state in place.

    Parameters
    ----------
    state : ReplicationState
    payloads, positions : pa.Array
    options : ChangeOptions
    outcomes : Outcomes
        What to do with the changes of transactions.
    first_row : int
        Number of the batch's first payload, for errors.
    wanted : bytes, optional
        For each version, a byte whether its changes are returned; by default all are.
    tables : sequence of str or int, optional
        The tables whose changes `committed` returns; by default those of all tables.
    is_counted : bool
        Whether positions were counted. Then only the LSNs of commits show that payloads are out of order.

    Attributes
    ----------
    batch : ScannedBatch
    transaction_index : TransactionIndex
        Lists the changes, and processes plain transactions natively. It stops at all other messages.
    control_rows : list of int
        Rows where the transaction index stopped. Repeated Relation messages are not among them.
    touched : list of Transaction
        Transactions to which this batch has added changes.
    """

    def __init__(
        self,
        state: ReplicationState,
        payloads: Any,
        positions: Any,
        options: ChangeOptions,
        outcomes: Outcomes,
        first_row: int = 0,
        wanted: bytes | None = None,
        tables: Sequence[str | int] | None = None,
        is_counted: bool = False,
    ) -> None:
        self.is_counted = is_counted
        self.state = state
        self.options = options
        self.outcomes = outcomes
        self.tables = tables
        state.relations.limits = options.limits
        if state.is_reconnected:
            self._set("in_stream", False)
        self.batch = ScannedBatch(state, payloads, positions, options, first_row)
        self.transaction_index = TransactionIndex(
            self.batch.source,
            self.batch.kinds,
            self.batch.relation_ids,
            self.batch.stream_flags,
            state.last_lsn,
            -1 if state.is_reconnected else state.session_lsn,
            options.drop_duplicates,
            not (self.outcomes.wants_discarded or options.include_uncommitted),
            partial(_is_repeated, state, self.batch),
            state.relations.table,
            wanted,
            None if outcomes.wants_blocks else state.streamed,
        )
        self.gids: dict[int, str] = {}
        self.row_errors: dict[int, str] = {}
        self.first_change = 0  # the first change that is not yet in the ranges of a transaction
        self.control_rows: list[int] = []
        self.touched: list[Transaction] = []
        self._wanted = wanted
        self._deferred: list[tuple[int, list[Listing]]] = []
        self._token = object()
        self._plain_relations: list[int] = []  # versions that the plain transaction has sent

    def run(self) -> CommittedChanges:
        """Process all rows, and return the committed changes."""
        state = self.state
        if state.is_reconnected:
            self._set("is_reconnected", False)
            self._end_session(None)
        self._resume()
        row = self._list_changes(0)
        while row < self.batch.n_rows:
            self._handle(row)
            row = self._list_changes(row + 1)
        self._check_relations()
        self._end_batch()
        transaction_index = self.transaction_index
        if transaction_index.last_lsn_row >= 0:
            self._set("last_lsn", transaction_index.last_lsn)
            self._set("last_lsn_position", self.batch.position(transaction_index.last_lsn_row))
        if transaction_index.session_lsn != state.session_lsn:
            self._set("session_lsn", transaction_index.session_lsn)
        if transaction_index.n_repeated:
            self._set("n_repeated", state.n_repeated + transaction_index.n_repeated)
        if self.has_seen_boundary != state.has_seen_boundary:
            self._set("has_seen_boundary", self.has_seen_boundary)
        if self.batch.n_rows:
            self._set("position", self.batch.position(self.batch.n_rows - 1) + 1)
        return self.committed()

    def _list_changes(self, row: int) -> int:
        """Let the transaction index process rows, and return the row where it has stopped."""
        row = self.transaction_index.list_changes(row)
        blocks = self.transaction_index.taken_blocks()
        for xid, end, block_row in blocks:
            self._add_block(self.state.streamed[xid], end, block_row)
        if blocks:
            self._set("stream", self.transaction_index.stream)
        return row

    def committed(self) -> CommittedChanges:
        """Return the changes that have been committed so far."""
        relations = self.state.relations
        positions = ChunkedInt64(self.batch.all_positions)
        wanted = None if self.tables is None else relations.flags_of(self.tables)
        found = self.transaction_index.committed_columns(positions, len(relations.versions), wanted)
        relations.count_for_shape(found[-1])
        deferred = []
        if self._deferred:
            outcomes = memoryview(found[0]["outcomes"]).cast("B").cast("i")
            flags = self._wanted if wanted is None else wanted
            deferred = [
                (bisect_left(outcomes, outcome), [partial(listing, flags) for listing in listings])
                for outcome, listings in self._deferred
            ]
        return CommittedChanges(self.batch.parts, positions, *found, self.gids, self.row_errors, deferred)

    def release(self) -> None:
        """Release what only the assembler needs. It is larger than the committed changes."""
        self.batch.release()
        del self.transaction_index, self.control_rows, self.touched

    @property
    def has_seen_boundary(self) -> bool:
        """Whether a transaction boundary has been processed."""
        return self.state.has_seen_boundary or self.transaction_index.has_boundary

    def decide(
        self, transaction: Transaction, committed: int, row: int = -1, lsn: int = -1, timestamp: int = -1
    ) -> int:
        """Set the outcome of the changes that are emitted next, and return its number."""
        outcome = self.transaction_index.add_outcome(row, transaction.xid, lsn, timestamp, committed)
        if transaction.gid is not None:
            self.gids[outcome] = transaction.gid
        return outcome

    def defer(self, outcome: int, listings: Iterable[Listing]) -> None:
        """Emit changes before the others with an outcome. Each of the functions lists some of them."""
        self._deferred.append((outcome, [*listings]))

    # -- the beginning and the end of a batch ----------------------------------------------------------------------

    def _resume(self) -> None:
        """Continue with the transaction that is open in the state."""
        state, transaction_index = self.state, self.transaction_index
        transaction_index.has_streamed = bool(state.streamed)
        if self._is_skipping:
            transaction_index.skip()
        elif state.stream is not None:
            transaction_index.begin(state.stream)
        elif state.open is not None:
            transaction_index.begin()

    def _end_batch(self) -> None:
        """Process the end of the batch: add the last changes to the open transaction."""
        state = self.state
        if not self.has_seen_boundary and self.transaction_index.has_skipped and not state.skipped.has_head:
            self._note_head()
        if self.transaction_index.is_plain:
            self._set("has_seen_boundary", True)
            self._set("open", self._plain_transaction())
        elif self._current is not None:
            self._pause()
        self.outcomes.end_batch(self)

    def undecided(self) -> list[Transaction]:
        """List the transactions without an outcome to which this batch has added changes."""
        state = self.state
        return [
            item
            for item in self.touched
            if item is state.open
            or item is state.streamed.get(item.xid)
            or (item.gid is not None and item is state.prepared.get(item.gid))
        ]

    @property
    def _is_skipping(self) -> bool:
        """Whether the next rows are of a transaction that is left out because its beginning is missing."""
        state = self.state
        if state.stream is not None:
            return state.stream not in state.streamed
        return state.open is None and not self.has_seen_boundary and self.options.start == "anywhere"

    # -- changes of the state ----------------------------------------------------------------------------------------

    def _set(self, name: str, value: Any) -> None:
        self.state.undo_log.set_attribute(self.state, name, value)

    @property
    def _current(self) -> Transaction | None:
        """The open transaction, if it is in the state and not in the transaction index."""
        state = self.state
        return state.open if state.stream is None else state.streamed.get(state.stream)

    def _pause(self) -> None:
        """Add the changes since the last boundary to the open transaction."""
        current, end = self._current, self.transaction_index.n
        if current is not None:
            self._add_block(current, end, self.transaction_index.block_row)
        self.first_change = end

    def _add_block(self, transaction: Transaction, end: int, block_row: int) -> None:
        """Add the changes up to `end` to a transaction, and set its last Stream Start if that is in `block_row`."""
        if block_row >= 0:
            self.state.undo_log.set_attribute(transaction, "block_position", self.batch.position(block_row))
        if self.first_change < end:
            self._touch(transaction)
            transaction.ranges.append((self.first_change, end))
        self.first_change = end

    def _touch(self, transaction: Transaction) -> None:
        """Record that this batch adds changes to a transaction."""
        if transaction.batch is not self._token:
            self.state.undo_log.record(_cut_back, transaction, len(transaction.buffered))
            transaction.batch = self._token
            self.touched.append(transaction)

    def _plain_transaction(self) -> Transaction:
        """Make a `Transaction` of the plain transaction that is open in the transaction index."""
        transaction_index = self.transaction_index
        transaction = Transaction(
            transaction_index.xid,
            self.batch.position(transaction_index.begin_row),
            final_lsn=transaction_index.lsn,
            ranges=[(transaction_index.start, transaction_index.n)],
            relations=self._plain_relations,
            batch=self._token,
        )
        self._plain_relations = []
        self.touched.append(transaction)
        self.first_change = transaction_index.n
        return transaction

    def _move_plain_to_state(self) -> None:
        """Move the open plain transaction, if any, from the transaction index to the state."""
        if self.transaction_index.is_plain:
            self._set("open", self._plain_transaction())
            self.transaction_index.begin()

    def _open(self, transaction: Transaction) -> None:
        self._set("open", transaction)
        self.transaction_index.begin()
        self.first_change = self.transaction_index.n

    def _close(self) -> None:
        if self.state.open is not None:
            self._set("open", None)
        if self.state.stream is not None:
            self._set("stream", None)
        if not self.state.has_seen_boundary:
            self._set("has_seen_boundary", True)
        self.transaction_index.end()
        self.first_change = self.transaction_index.n

    def _pop_streamed(self, xid: int) -> Transaction | None:
        transaction: Transaction | None = self.state.undo_log.pop(self.state.streamed, xid)
        self.transaction_index.has_streamed = bool(self.state.streamed)
        return transaction

    # -- sessions ----------------------------------------------------------------------------------------------------

    def _end_session(self, position: int | None) -> None:
        """Process a reconnect. The server sends open transactions again; prepared transactions stay.

        With a position, streamed transactions that began after it are kept, because they may be of the new session.
        Without a position, the session has ended exactly here.
        """
        state = self.state
        self._move_plain_to_state()
        self._pause()
        if state.open is not None:
            lost = state.open
            self._set("open", None)
            self.outcomes.discard(self, lost, True)
        if state.stream is not None:
            self._set("stream", None)
        # The dict is in the order in which the transactions began.
        while state.streamed:
            xid, transaction = next(iter(state.streamed.items()))
            if position is not None and transaction.begin_position > position:
                break
            self._pop_streamed(xid)
            state.relations.drop(xid)
            self.outcomes.discard(self, transaction, True)
        self.first_change = self.transaction_index.n

    def _is_sent_again(self, row: int) -> bool:
        """Whether a message inside a transaction indicates a reconnect. The server sends commits in order of LSN."""
        state, batch = self.state, self.batch
        kind = batch.kind(row)
        if kind in _LSN_OF_END:
            last = self.transaction_index.last_lsn
            if state.open is not None:
                # At the LSN of a copy, other copies and a commit may follow.
                last = state.open.final_lsn - (state.open.xid == COPY_XID)
            return bool(batch.value(_LSN_OF_END[kind], row) <= last)
        if kind == "stream_start":
            return batch.value("first_segment", row) and batch.value("xid", row) in state.streamed
        return False

    @property
    def _last_lsn_position(self) -> int:
        """Position of the commit with the greatest LSN."""
        row = self.transaction_index.last_lsn_row
        return self.state.last_lsn_position if row < 0 else self.batch.position(row)

    # -- messages ------------------------------------------------------------------------------------------------------

    def _handle(self, row: int) -> None:
        """Process a row where the transaction index has stopped."""
        code = self.batch.kinds[row]
        self.control_rows.append(row)
        if code != NO_KIND:
            _HANDLERS[code](self, row)
            return
        error = self.batch.error(row)
        if error is not None:
            self.row_errors[row] = error
            self.transaction_index.list_bad(row)
            self._invalidate(row, error)

    def _fail(self, row: int, cls: type[DecodeError], detail: str) -> None:
        """Make an error and report it."""
        self._report(row, cls(detail, row=row, tag=MESSAGES[self.batch.kinds[row]].tag))

    def _report(self, row: int, error: DecodeError) -> None:
        """Raise an error in FAILFAST mode, otherwise store it for the row."""
        error.row = row
        if self.options.mode == "FAILFAST":
            raise self.batch.moved(error) from None
        self.row_errors[row] = error.cell
        self.transaction_index.list_bad(row)

    def _fail_without_beginning(self, row: int, beginning: str, has_seen_boundary: bool) -> None:
        """Report that a message's transaction has no beginning, unless the row already has an error."""
        if row in self.row_errors:
            return
        kind = self.batch.kind(row)
        where = "of an unknown transaction" if kind in _OF_XID else "outside a transaction"
        hint = _RECONNECT if has_seen_boundary else _HEAD
        self._fail(row, TransactionDesync, f"{kind} {where}: its {beginning} is missing{hint}")

    def _check_commit_order(self, row: int) -> None:
        """Report a commit whose LSN does not come after those of its session, as a server sends them.

        If the caller gave positions, these are the order: the client reconnected, and got transactions again.
        """
        lsn, last = self.batch.value("lsn", row), self.transaction_index.session_lsn
        if lsn > last or not self.is_counted or self.options.drop_duplicates or row in self.row_errors:
            return
        # After an announced reconnect, the greatest of all commits may be of an earlier session.
        where = f" at position {self._last_lsn_position}" if last == self.transaction_index.last_lsn else ""
        detail = (
            f"commit LSN {lsn_to_text(lsn)} at position {self.batch.position(row)} does not come after "
            f"{lsn_to_text(last)}{where}{_ORDER}"
        )
        self._fail(row, CommitOrder, detail)

    def _cross_boundary(self, row: int) -> None:
        """Process a message that must be outside streams and transactions. End and report an open one."""
        state, batch = self.state, self.batch
        kind = batch.kind(row)
        self._move_plain_to_state()
        if state.stream is not None or state.open is not None:
            self._pause()
            if self._is_sent_again(row):
                self._end_session(None)
            elif state.stream is not None:
                detail = f"{kind} inside a stream: the stream_stop before it is missing{_RECONNECT}"
                self._fail(row, StreamDesync, detail)
            else:
                detail = f"{kind} inside a transaction: the commit before it is missing{_RECONNECT}"
                self._fail(row, TransactionDesync, detail)
                lost = state.open
                assert lost is not None
                self._set("open", None)
                self.outcomes.discard(self, lost, False)
        elif (
            kind in ("begin", "begin_prepare")
            and state.streamed
            and batch.value("lsn", row) <= self.transaction_index.last_lsn
        ):
            self._end_session(self._last_lsn_position)
        if not self.has_seen_boundary:
            self._end_head(kind)
        self._close()

    # -- transactions without a beginning ------------------------------------------------------------------------------

    def _note_head(self) -> None:
        self.state.undo_log.set_attribute(self.state.skipped, "has_head", True)

    def _end_head(self, kind: str) -> None:
        """Process the first boundary: rows before it are of a transaction whose beginning is missing."""
        if self.options.start != "anywhere":
            return
        skipped, undo_log = self.state.skipped, self.state.undo_log
        has_head = skipped.has_head or self.transaction_index.has_skipped
        if skipped.has_head:
            undo_log.set_attribute(skipped, "has_head", False)
        if kind == "stream_stop":
            undo_log.set_attribute(skipped, "has_streamed_head", True)
        elif has_head or kind in ("commit", "prepare"):
            undo_log.set_attribute(skipped, "n", skipped.n + 1)

    def _skip_stream(self, xid: int) -> None:
        """Count a streamed transaction that is left out because its beginning is missing."""
        skipped, undo_log = self.state.skipped, self.state.undo_log
        if xid not in skipped.xids:
            undo_log.add(skipped.xids, xid)
            undo_log.set_attribute(skipped, "n", skipped.n + 1)
            if skipped.has_streamed_head:
                undo_log.set_attribute(skipped, "has_streamed_head", False)

    def _is_transaction_open(self) -> bool:
        return self.transaction_index.is_plain or self.state.open is not None or self.state.stream is not None

    # -- plain transactions --------------------------------------------------------------------------------------------

    def _on_begin(self, row: int) -> None:
        self.transaction_index.record_end(row)
        self._cross_boundary(row)
        batch = self.batch
        self._open(Transaction(batch.value("xid", row), batch.position(row), final_lsn=batch.value("lsn", row)))

    def _on_commit(self, row: int) -> None:
        state = self.state
        self.transaction_index.record_end(row)
        self._move_plain_to_state()
        if state.stream is None and state.open is not None:
            self._pause()
            self._check_commit_order(row)
            self.outcomes.commit(self, row, state.open)
            self._close()
        else:
            self._end_unopened(row, "begin")

    def _end_unopened(self, row: int, beginning: str) -> None:
        """Process the end of a plain transaction that is not open."""
        in_stream, has_seen_boundary = self.state.stream is not None, self.has_seen_boundary
        self._cross_boundary(row)
        # Inside a stream, `_cross_boundary` has reported the error.
        if not in_stream and (has_seen_boundary or self.options.start != "anywhere"):
            self._fail_without_beginning(row, beginning, has_seen_boundary)

    def _on_row(self, row: int) -> None:
        """Process a row that is outside any transaction, or whose relation may be invalid."""
        batch = self.batch
        if not self._is_transaction_open():
            self._fail_without_beginning(
                row, "stream_start" if batch.is_streamed(row) else "begin", self.has_seen_boundary
            )
            return
        relation_id = batch.value("relation_id", row)
        self.transaction_index.list_row(row, relation_id, batch.value("xid", row) or 0, self._version_of(relation_id))

    def _version_of(self, relation_id: int) -> int:
        stream = self.state.stream
        began = 0 if stream is None else self.state.streamed[stream].begin_position
        return self.state.relations.number_for(stream, relation_id, began)

    def _on_truncate(self, row: int) -> None:
        xid = self.batch.value("xid", row)
        if self._is_skipping:
            if not self.has_seen_boundary and not self.state.skipped.has_head:
                self._note_head()
        elif not self._is_transaction_open():
            self._on_row(row)
        else:
            for relation_id in self.batch.message(row, xid is not None).relation_ids:
                self.transaction_index.list_row(
                    row, relation_id, xid or 0, self._version_of(relation_id), is_truncate=True
                )

    def _on_logical_message(self, row: int) -> None:
        """Report a transactional message outside any transaction."""
        self._fail_without_beginning(
            row, "stream_start" if self.batch.is_streamed(row) else "begin", self.has_seen_boundary
        )

    # -- relations -----------------------------------------------------------------------------------------------------

    def _on_relation(self, row: int) -> None:
        batch, relations = self.batch, self.state.relations
        xid = batch.value("xid", row)
        stream = self._stream_of(xid)
        position = batch.position(row)
        message = batch.message(row, xid is not None)
        try:
            number = self._describe(message, position, stream)
        except DecodeError as error:
            self._report(row, error)
            relations.invalidate(message.relation_id, position, stream, xid)
            return
        if stream is None:
            relations.keep_payload(message.relation_id, batch.payload_of(row))
            self._count_relation(number)

    def _describe(self, message: Relation, position: int, stream: int | None) -> int:
        try:
            return self.state.relations.add(message, position, stream)
        except SchemaChanged:
            if not self.outcomes.knows_relations:
                raise
            # The index, made from fewer messages than the run has, assigned this message to another stream state. So a
            # boundary is missing or out of order.
            detail = StreamDesync.wording.format(field="relation")
            raise StreamDesync(detail, offset=1, tag="R", relation=message.relation_id) from None

    def _count_relation(self, number: int) -> None:
        """Count a version for the columns of its table: now, or when the transaction that sent it commits."""
        if number in self.state.relations.in_layout:
            return
        if self.transaction_index.is_plain:
            self.transaction_index.has_relations = True
            self._plain_relations.append(number)
        elif self.state.open is not None and self.state.stream is None:
            self.state.undo_log.append(self.state.open.relations, number)
        else:
            self.state.relations.count_for_shape([number])

    def _on_type(self, row: int) -> None:
        xid = self.batch.value("xid", row)
        message = self.batch.message(row, xid is not None)
        try:
            self.state.relations.add_type(message, self.batch.position(row), self._stream_of(xid))
        except DecodeError as error:
            self._report(row, error)

    def _stream_of(self, xid: int | None) -> int | None:
        """Find the transaction in whose stream a message was sent; its own xid if the block's start is missing."""
        return xid if self.state.stream is None else self.state.stream

    def _invalidate(self, row: int, error: str) -> None:
        """Mark the relation of a bad Relation message as invalid, if its OID can be read."""
        # Before the first boundary the state has no stream. The scan has found the stream from later messages.
        streamed = self.batch.is_streamed(row)
        start = offset_of(Relation, "relation_id", in_stream=streamed)
        # A buffer slice does not copy a long payload.
        head = bytes(self.batch.payloads[row].as_buffer()[: start + 4])
        if head[:1] != b"R":
            return
        position = self.batch.position(row)
        if error.startswith(StreamDesync.code):
            self._invalidate_everywhere(row, not streamed, position)
        elif len(head) == start + 4:
            xid = int.from_bytes(head[1:start], "big") if streamed else None
            relation_id = int.from_bytes(head[start:], "big")
            self.state.relations.invalidate(relation_id, position, self._stream_of(xid), xid)

    def _invalidate_everywhere(self, row: int, streamed: bool, position: int) -> None:
        """Process a Relation message that contradicts the stream state and may be of any transaction."""
        try:
            message = self.batch.message(row, streamed)
        except DecodeError:
            # Neither with nor without an xid is the message valid. Its relation is unknown.
            return
        if isinstance(message, Relation):
            self.state.relations.invalidate_everywhere(message, position)

    def _check_relations(self) -> None:
        """Raise in FAILFAST mode if a row uses a relation without a valid description."""
        unknown = self.transaction_index.first_unknown()
        if unknown is None or self.options.mode != "FAILFAST":
            return
        row, relation_id, version = unknown
        raise self.unknown_relation(relation_id, self.batch.kind(row), self.batch.first_row + row, version)

    def unknown_relation(self, relation_id: int, kind: str, row: int | None, version: int) -> UnknownRelation:
        """Make the error of a row whose relation is unknown or invalid."""
        cls = InvalidRelation if version == INVALID else UnknownRelation
        tag = {item.kind: item.tag for item in MESSAGES}[kind]
        detail = cls.wording.format(seen=relation_id, field=kind)
        return cls(detail, row=row, offset=1, tag=tag, relation=relation_id, seen=relation_id)

    # -- streams -------------------------------------------------------------------------------------------------------

    def _on_stream_start(self, row: int) -> None:
        state, batch = self.state, self.batch
        xid, is_first = batch.value("xid", row), batch.value("first_segment", row)
        has_seen_boundary = self.has_seen_boundary
        if not self._is_transaction_open() and is_first and xid in state.streamed:
            self._end_session(state.streamed[xid].block_position)
        self._cross_boundary(row)
        position = batch.position(row)
        self._set("stream", xid)
        if is_first:
            lost = self._pop_streamed(xid)
            if lost is not None:
                self.outcomes.discard(self, lost, True)
            state.relations.drop(xid)
            state.undo_log.discard(state.skipped.xids, xid)
            state.undo_log.put(state.streamed, xid, Transaction(xid, position, block_position=position))
            self.transaction_index.has_streamed = True
        elif xid in state.streamed:
            state.undo_log.set_attribute(state.streamed[xid], "block_position", position)
        else:
            if self.options.start == "anywhere":
                self._skip_stream(xid)
            else:
                self._fail_without_beginning(row, "first stream_start", has_seen_boundary)
            self.transaction_index.skip()
            self.first_change = self.transaction_index.n
            return
        self.transaction_index.begin(xid)
        self.first_change = self.transaction_index.n

    def _on_stream_stop(self, row: int) -> None:
        state = self.state
        if state.stream is None:
            if self.has_seen_boundary:
                detail = f"stream_stop outside a stream: its stream_start is missing{_RECONNECT}"
                self._fail(row, StreamDesync, detail)
            else:
                self._end_head("stream_stop")
            if not self._is_transaction_open():
                self._close()
            return
        self._pause()
        transaction = self._current
        self._close()
        if transaction is not None:
            self.outcomes.end_block(self, transaction)

    def _on_stream_commit(self, row: int) -> None:
        transaction = self._end_stream(row)
        if transaction is not None:
            self._check_commit_order(row)
            self.outcomes.commit(self, row, transaction)
        elif self.options.start == "anywhere":
            self.state.undo_log.discard(self.state.skipped.xids, self.batch.value("xid", row))

    def _on_stream_prepare(self, row: int) -> None:
        transaction = self._end_stream(row)
        if transaction is not None:
            self._prepare(row, transaction)
        else:
            self.state.undo_log.discard(self.state.skipped.xids, self.batch.value("xid", row))
            self._prepare_unknown(row)

    def _end_stream(self, row: int) -> Transaction | None:
        """Process the commit or prepare of a streamed transaction. Its relations become visible to all."""
        has_seen_boundary = self.has_seen_boundary
        self._cross_boundary(row)
        xid = self.batch.value("xid", row)
        transaction = self._pop_streamed(xid)
        numbers = self.state.relations.publish(xid, self.batch.position(row))
        if transaction is not None:
            self.state.undo_log.set_attribute(transaction, "relations", numbers)
        elif self.options.start == "anywhere":
            self._skip_stream(xid)
        else:
            self._fail_without_beginning(row, "first stream_start", has_seen_boundary)
        return transaction

    def _on_stream_abort(self, row: int) -> None:
        self._cross_boundary(row)
        state = self.state
        xid, subxid = self.batch.value("xid", row), self.batch.value("subxid", row)
        if subxid != xid:
            state.relations.drop_subtransaction(xid, subxid)
            if xid in state.streamed:
                self.outcomes.abort_part(self, row, state.streamed[xid], subxid)
            return
        state.relations.drop(xid)
        state.undo_log.discard(state.skipped.xids, xid)
        transaction = self._pop_streamed(xid)
        if transaction is not None:
            self.outcomes.abort(self, transaction)

    # -- two-phase commit ----------------------------------------------------------------------------------------------

    def _on_begin_prepare(self, row: int) -> None:
        self._cross_boundary(row)
        xid, gid, lsn = (self.batch.value(name, row) for name in ("xid", "gid", "lsn"))
        self._open(Transaction(xid, self.batch.position(row), gid, lsn))

    def _on_prepare(self, row: int) -> None:
        state = self.state
        self._move_plain_to_state()
        if state.stream is None and state.open is not None:
            self._pause()
            self._prepare(row, state.open)
            self._close()
        else:
            self._end_unopened(row, "begin_prepare")
            self._prepare_unknown(row)

    def _prepare_unknown(self, row: int) -> None:
        """Process the prepare of a transaction whose beginning is missing. It replaces an earlier one with its gid."""
        gid = self._forget_prepared(row)
        if self.options.start == "anywhere":
            self.state.undo_log.add(self.state.skipped.gids, gid)

    def _prepare(self, row: int, transaction: Transaction) -> None:
        gid = self._forget_prepared(row)
        self.state.undo_log.set_attribute(transaction, "gid", gid)
        self.state.undo_log.put(self.state.prepared, gid, transaction)

    def _forget_prepared(self, row: int) -> str:
        """Discard an earlier prepared transaction with the same gid: the server has sent it again."""
        undo_log = self.state.undo_log
        gid: str = self.batch.value("gid", row)
        replaced = undo_log.pop(self.state.prepared, gid)
        if replaced is not None:
            self.outcomes.discard(self, replaced, True)
        undo_log.discard(self.state.skipped.gids, gid)
        return gid

    def _on_commit_prepared(self, row: int) -> None:
        has_seen_boundary = self.has_seen_boundary
        self._cross_boundary(row)
        state, gid = self.state, self.batch.value("gid", row)
        is_sent_again = self.batch.value("lsn", row) <= self.transaction_index.last_lsn
        self._check_commit_order(row)
        prepared = state.prepared.get(gid)
        if is_sent_again and prepared is not None and prepared.xid != self.batch.value("xid", row):
            # It was committed before another transaction was prepared with the same gid.
            pass
        elif prepared is not None:
            state.undo_log.pop(state.prepared, gid)
            self.outcomes.commit(self, row, prepared)
        elif gid in state.skipped.gids:
            state.undo_log.discard(state.skipped.gids, gid)
        elif is_sent_again:
            # It was committed before the reconnect.
            pass
        elif self.options.start == "anywhere":
            state.undo_log.set_attribute(state.skipped, "n", state.skipped.n + 1)
        else:
            self._fail_without_beginning(row, "begin_prepare", has_seen_boundary)

    def _on_rollback_prepared(self, row: int) -> None:
        self._cross_boundary(row)
        state, gid = self.state, self.batch.value("gid", row)
        transaction = state.undo_log.pop(state.prepared, gid)
        state.undo_log.discard(state.skipped.gids, gid)
        if transaction is not None:
            self.outcomes.abort(self, transaction)


# The field with the LSN at which a transaction ends.
_LSN_OF_END = {"begin": "lsn", "begin_prepare": "lsn", "commit_prepared": "lsn", "rollback_prepared": "end_lsn"}
_OF_XID = ("stream_start", "stream_commit", "stream_prepare", "commit_prepared")

_BY_KIND: dict[str, Callable[[TransactionAssembler, int], None]] = {
    "begin": TransactionAssembler._on_begin,
    "commit": TransactionAssembler._on_commit,
    "relation": TransactionAssembler._on_relation,
    "type": TransactionAssembler._on_type,
    "insert": TransactionAssembler._on_row,
    "update": TransactionAssembler._on_row,
    "delete": TransactionAssembler._on_row,
    "truncate": TransactionAssembler._on_truncate,
    "message": TransactionAssembler._on_logical_message,
    "stream_start": TransactionAssembler._on_stream_start,
    "stream_stop": TransactionAssembler._on_stream_stop,
    "stream_commit": TransactionAssembler._on_stream_commit,
    "stream_abort": TransactionAssembler._on_stream_abort,
    "begin_prepare": TransactionAssembler._on_begin_prepare,
    "prepare": TransactionAssembler._on_prepare,
    "commit_prepared": TransactionAssembler._on_commit_prepared,
    "rollback_prepared": TransactionAssembler._on_rollback_prepared,
    "stream_prepare": TransactionAssembler._on_stream_prepare,
}
# By the code of the kind. The transaction index does not stop at Origin messages.
_HANDLERS = {code: _BY_KIND[message.kind] for code, message in enumerate(MESSAGES) if message.kind in _BY_KIND}


def _cut_back(transaction: Transaction, n_buffered: int) -> None:
    """Remove the changes that a batch has added to a transaction."""
    del transaction.buffered[n_buffered:]
    transaction.ranges = []


def _is_repeated(state: ReplicationState, batch: ScannedBatch, payload: bytes, row: int) -> bool:
    """Whether a Relation message outside streams repeats the visible version."""
    relations = state.relations
    position = batch.position(row)
    relation_id = relations.is_repeated(payload, position)
    # A version that no committed transaction has sent counts for the columns of its table once this one commits.
    if relation_id is None or relations.common[relation_id].number not in relations.in_layout:
        return False
    relations.repeat(relation_id, position)
    return True
