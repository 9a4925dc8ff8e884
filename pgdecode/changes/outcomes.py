"""What happens to the changes of a transaction at its end: they are emitted, dropped or buffered."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode._native.arrow.payload_array import Source
from pgdecode.changes.committed_changes import values_of
from pgdecode.changes.replication_state import BufferedChanges, Transaction
from pgdecode.changes.scanned_batch import ScannedBatch
from pgdecode.changes.spill_files import buffered_bytes
from pgdecode.changes.transaction_assembler import TransactionAssembler
from pgdecode.protocol.errors import DecodeError


class CommittedOutcomes:
    """Emits committed changes and, with `include_uncommitted`, all others. Buffers undecided changes."""

    wants_lost = False
    knows_relations = False
    wants_blocks = False

    def commit(self, assembler: TransactionAssembler, row: int, transaction: Transaction) -> None:
        """Emit the changes of a transaction, unless it is a duplicate."""
        batch, transaction_index = assembler.batch, assembler.transaction_index
        lsn = batch.value("lsn", row)
        if transaction_index.record_lsn(row, lsn, transaction.xid) and assembler.options.drop_duplicates:
            return
        emit(assembler, transaction, 1, row, lsn, batch.value("timestamp", row))
        assembler.state.relations.count_for_shape(transaction.relations)

    def abort(self, assembler: TransactionAssembler, transaction: Transaction) -> None:
        """Emit the changes of a transaction as rolled back, with `include_uncommitted`."""
        if assembler.options.include_uncommitted:
            emit(assembler, transaction, 0)

    def lose(self, assembler: TransactionAssembler, transaction: Transaction, is_sent_again: bool) -> None:
        """Emit the changes of a transaction as undecided, with `include_uncommitted`."""
        if assembler.options.include_uncommitted:
            emit(assembler, transaction, -1)

    def abort_part(self, assembler: TransactionAssembler, row: int, transaction: Transaction, subxid: int) -> None:
        """Record the position of the rollback."""
        assembler.state.undo_log.put(transaction.aborted, subxid, assembler.batch.position(row))

    def end_block(self, assembler: TransactionAssembler, transaction: Transaction) -> None:
        """Do nothing: the end of the batch buffers the changes of the block."""

    def end_batch(self, assembler: TransactionAssembler) -> None:
        """Keep the payloads of undecided transactions for later batches."""
        buffer(assembler, assembler.undecided())

    def placed(self, batch: ScannedBatch, error: DecodeError, rows: pa.Array) -> DecodeError:
        """Set the row of an error to that of its payload in the call."""
        return batch.placed(error, rows)


class SpillOutcomes(CommittedOutcomes):
    """Counts bytes and files of undecided transactions, so that no call looks at all that earlier calls have buffered.

    Attributes
    ----------
    n_bytes : int
        Bytes of payloads that were buffered, less those in memory of transactions that ended.
    obsolete : set of Path
        The spill files of transactions that ended.
    """

    def __init__(self) -> None:
        self.n_bytes = 0
        self.obsolete: set[Path] = set()

    def commit(self, assembler: TransactionAssembler, row: int, transaction: Transaction) -> None:
        """Emit the changes, and count the transaction as ended."""
        super().commit(assembler, row, transaction)
        self._end(transaction)

    def abort(self, assembler: TransactionAssembler, transaction: Transaction) -> None:
        """Process the transaction as the parent does, and count it as ended."""
        super().abort(assembler, transaction)
        self._end(transaction)

    def lose(self, assembler: TransactionAssembler, transaction: Transaction, is_sent_again: bool) -> None:
        """Process the transaction as the parent does, and count it as ended."""
        super().lose(assembler, transaction, is_sent_again)
        self._end(transaction)

    def end_batch(self, assembler: TransactionAssembler) -> None:
        """Keep the payloads of undecided transactions, and count them."""
        self.n_bytes += buffer(assembler, assembler.undecided())

    def _end(self, transaction: Transaction) -> None:
        self.n_bytes -= buffered_bytes(transaction)
        self.obsolete |= {part.path for part in transaction.buffered if part.path is not None}


def emit(
    assembler: TransactionAssembler,
    transaction: Transaction,
    committed: int,
    row: int = -1,
    lsn: int = -1,
    timestamp: int = -1,
) -> None:
    """Emit the changes of a transaction. With `include_uncommitted`, emit also those of aborted sub-transactions.

    Parameters
    ----------
    committed : int
        1 for committed, 0 for rolled back, -1 for undecided.
    row, lsn, timestamp : int
        Of the commit.
    """
    transaction_index = assembler.transaction_index
    pieces = pieces_of(assembler, transaction)
    aborted = transaction.aborted if committed else {}  # an abort rolls back all changes alike
    assembler.decide(transaction, committed, row, lsn, timestamp)
    for start, end, positions in pieces:
        transaction_index.commit_unaborted(start, end, positions, aborted, True)
    if aborted and assembler.options.include_uncommitted:
        assembler.decide(transaction, 0)
        for start, end, positions in pieces:
            transaction_index.commit_unaborted(start, end, positions, aborted, False)


def pieces_of(assembler: TransactionAssembler, transaction: Transaction) -> list[tuple[int, int, memoryview]]:
    """List the changes of a transaction as (start, end, positions), those of earlier batches first.

    There is one position for each change; or only that of the first, if no Stream Abort comes between the changes.
    """
    transaction_index, batch = assembler.transaction_index, assembler.batch
    found = []
    for item in (part for buffered in transaction.buffered for part in buffered.parts()):
        start = transaction_index.n
        first = batch.end
        relation_ids, xids = (memoryview(column).cast("B").cast("q") for column in (item.relation_ids, item.xids))
        versions = memoryview(item.versions).cast("B").cast("i")
        transaction_index.list_buffered(first, Source([item.payloads]), relation_ids, xids, versions)
        batch.add_part(item.payloads, item.positions)
        found.append((start, transaction_index.n, values_of(item.positions)))
    # The buffered changes, just listed, do not belong to the open transaction.
    assembler.first_change = transaction_index.n
    for start, end in transaction.ranges:
        if start < end:
            # A Stream Abort is a boundary, and every boundary ends a range.
            first = batch.position(transaction_index.row_of(start))
            found.append((start, end, memoryview(array("q", [first]))))
    return found


def buffer(assembler: TransactionAssembler, transactions: Iterable[Transaction]) -> int:
    """Copy the payloads of transactions out of the batch, and return the number of bytes."""
    batch = assembler.batch
    n_bytes = 0
    for item in transactions:
        if not item.ranges:
            continue
        # Bad payloads are not kept.
        rows, relation_ids, xids, versions, truncates = assembler.transaction_index.undecided_columns(item.ranges)
        n = rows.size // 8
        item.ranges = []
        if n:
            places = pa.Array.from_buffers(pa.int64(), n, [None, rows])
            payloads = _taken(batch.payloads, places, truncates)
            item.buffered.append(BufferedChanges(payloads, batch.positions.take(places), relation_ids, xids, versions))
            n_bytes += payloads.nbytes
    return n_bytes


def _taken(payloads: pa.Array, places: pa.Array, truncates: pa.Buffer) -> pa.Array:
    """Copy payloads. Of a Truncate only the tag is copied, because there is one change for each of its tables."""
    if b"\1" not in truncates.to_pybytes():
        return payloads.take(places)
    is_truncate = pa.Array.from_buffers(pa.uint8(), len(places), [None, truncates]).cast(pa.bool_())
    return payloads.take(pc.if_else(is_truncate, pa.scalar(None, pa.int64()), places)).fill_null(b"T")
