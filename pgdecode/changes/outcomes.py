"""What is done with transactions when they come to their end: they are given, dropped, or buffered."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode._native.arrow.payload_array import Source
from pgdecode.changes.replication_state import BufferedChanges, Transaction
from pgdecode.changes.scanned_batch import ScannedBatch
from pgdecode.changes.transaction_assembler import TransactionAssembler
from pgdecode.protocol.errors import DecodeError


class CommittedOutcomes:
    """Gives what is committed, and where that is wanted what is not; buffers what is undecided."""

    wants_lost = False
    knows_relations = False

    def commit(self, assembler: TransactionAssembler, row: int, transaction: Transaction) -> None:
        """Give the changes of a transaction, unless they were given before."""
        batch, transaction_index = assembler.batch, assembler.transaction_index
        lsn = batch.value("lsn", row)
        if assembler.options.drop_duplicates and lsn <= transaction_index.last_lsn:
            return
        transaction_index.note_lsn(row, lsn)
        give(assembler, transaction, 1, row, lsn, batch.value("timestamp", row))
        assembler.state.relations.count_for_shape(transaction.relations)

    def abort(self, assembler: TransactionAssembler, transaction: Transaction) -> None:
        """Give the changes of a transaction as rolled back, if they are wanted."""
        if assembler.options.include_uncommitted:
            give(assembler, transaction, 0)

    def lose(self, assembler: TransactionAssembler, transaction: Transaction, is_sent_again: bool) -> None:
        """Give the changes of a transaction as undecided, if they are wanted."""
        if assembler.options.include_uncommitted:
            give(assembler, transaction, -1)

    def abort_part(self, assembler: TransactionAssembler, row: int, transaction: Transaction, subxid: int) -> None:
        """Note how many changes came before the rollback."""
        assembler.state.journal.put(transaction.aborted, subxid, transaction.n_changes)

    def end_block(self, assembler: TransactionAssembler, transaction: Transaction) -> None:
        """Leave what the block has listed for the end of the batch."""

    def end_batch(self, assembler: TransactionAssembler) -> None:
        """Keep the payloads of undecided transactions for the batches to come."""
        buffer(assembler, assembler.undecided())

    def placed(self, batch: ScannedBatch, error: DecodeError, rows: pa.Array) -> DecodeError:
        """Name the row of a payload in the call."""
        return batch.placed(error, rows)


def give(
    assembler: TransactionAssembler,
    transaction: Transaction,
    committed: int,
    row: int = -1,
    lsn: int = -1,
    timestamp: int = -1,
) -> None:
    """Give the changes of a transaction, and what its sub-transactions have undone of it where that is wanted.

    Parameters
    ----------
    committed : int
        1, 0 for rolled back, -1 for undecided.
    row, lsn, timestamp : int
        Of the commit.
    """
    transaction_index = assembler.transaction_index
    pieces = pieces_of(assembler, transaction)
    aborted = transaction.aborted if committed else {}  # in an abort all are alike
    assembler.decide(transaction, committed, row, lsn, timestamp)
    for start, end, place in pieces:
        transaction_index.deliver_alive(start, end, place, aborted, True)
    if aborted and assembler.options.include_uncommitted:
        assembler.decide(transaction, 0)
        for start, end, place in pieces:
            transaction_index.deliver_alive(start, end, place, aborted, False)


def pieces_of(assembler: TransactionAssembler, transaction: Transaction) -> list[tuple[int, int, int]]:
    """List the changes of a transaction as (start, end, place in it), those of earlier batches first."""
    transaction_index, batch = assembler.transaction_index, assembler.batch
    found = []
    place = 0
    for item in transaction.buffered:
        start = transaction_index.n
        first = batch.end
        relation_ids, xids = (memoryview(column).cast("B").cast("q") for column in (item.relation_ids, item.xids))
        versions = memoryview(item.versions).cast("B").cast("i")
        transaction_index.list_held(first, Source([item.payloads]), relation_ids, xids, versions)
        batch.add_part(item.payloads, item.positions)
        found.append((start, transaction_index.n, place))
        place += len(item)
    # Buffered changes are no part of the transaction that is open.
    assembler.since = transaction_index.n
    for start, end in transaction.ranges:
        found.append((start, end, place))
        place += end - start
    return found


def buffer(assembler: TransactionAssembler, transactions: Iterable[Transaction]) -> None:
    """Copy the payloads of transactions out of the batch."""
    batch = assembler.batch
    for item in transactions:
        if not item.ranges:
            continue
        rows, relation_ids, xids, versions, truncates = assembler.transaction_index.rows_of(item.ranges)
        n = rows.size // 8
        # Bad payloads are not kept.
        item.n_changes += n - sum(end - start for start, end in item.ranges)
        item.ranges = []
        if n:
            places = pa.Array.from_buffers(pa.int64(), n, [None, rows])
            payloads = _taken(batch.payloads, places, truncates)
            item.buffered.append(BufferedChanges(payloads, batch.positions.take(places), relation_ids, xids, versions))


def _taken(payloads: pa.Array, places: pa.Array, truncates: pa.Buffer) -> pa.Array:
    """Copy payloads; of a Truncate only the tag, since each of its tables, however many, would have a copy."""
    if b"\1" not in truncates.to_pybytes():
        return payloads.take(places)
    is_truncate = pa.Array.from_buffers(pa.uint8(), len(places), [None, truncates]).cast(pa.bool_())
    return payloads.take(pc.if_else(is_truncate, pa.scalar(None, pa.int64()), places)).fill_null(b"T")
