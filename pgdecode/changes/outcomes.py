"""What happens to the changes of a transaction at its end: they are emitted, dropped or buffered."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode._native.arrow.payload_array import Source
from pgdecode.changes.committed_changes import values_of
from pgdecode.changes.replication_state import (
    BufferedChanges,
    ChangePart,
    CommittedChanges,
    ReplicationState,
    Transaction,
)
from pgdecode.changes.scanned_batch import ScannedBatch
from pgdecode.changes.spill_files import buffered_bytes
from pgdecode.changes.transaction_assembler import TransactionAssembler
from pgdecode.protocol.errors import DecodeError
from pgdecode.protocol.options import ChangeOptions

# From how many buffered changes on, those of a transaction are listed part by part.
_LARGE = 1 << 17


class CommittedOutcomes:
    """Emits committed changes and, with `include_uncommitted`, all others. Buffers undecided changes.

    It counts bytes and files of undecided transactions, so that no call looks at all that earlier calls have buffered.

    Attributes
    ----------
    n_bytes : int
        Bytes of payloads that were buffered, less those in memory of transactions that ended.
    obsolete : set of Path
        The spill files of transactions that ended.
    """

    wants_discarded = False
    knows_relations = False
    wants_blocks = False
    defers = True  # as for `emit`

    def __init__(self) -> None:
        self.n_bytes = 0
        self.obsolete: set[Path] = set()

    def commit(self, assembler: TransactionAssembler, row: int, transaction: Transaction) -> None:
        """Emit the changes of a transaction, unless it is a duplicate."""
        batch, transaction_index = assembler.batch, assembler.transaction_index
        lsn = batch.value("lsn", row)
        is_repeated = transaction_index.record_lsn(row, lsn, transaction.xid)
        if not (is_repeated and assembler.options.drop_duplicates):
            emit(assembler, transaction, 1, row, lsn, batch.value("timestamp", row), defers=self.defers)
            assembler.state.relations.count_for_shape(transaction.relations)
        self._end(transaction)

    def abort(self, assembler: TransactionAssembler, transaction: Transaction) -> None:
        """Emit the changes of a transaction as rolled back, with `include_uncommitted`."""
        if assembler.options.include_uncommitted:
            emit(assembler, transaction, 0, defers=self.defers)
        self._end(transaction)

    def discard(self, assembler: TransactionAssembler, transaction: Transaction, is_sent_again: bool) -> None:
        """Emit the changes of a transaction as undecided, with `include_uncommitted`."""
        if assembler.options.include_uncommitted:
            emit(assembler, transaction, -1, defers=self.defers)
        self._end(transaction)

    def _end(self, transaction: Transaction) -> None:
        self.n_bytes -= buffered_bytes(transaction)
        self.obsolete |= {part.path for part in transaction.buffered if part.path is not None}

    def abort_part(self, assembler: TransactionAssembler, row: int, transaction: Transaction, subxid: int) -> None:
        """Record the position of the rollback."""
        assembler.state.undo_log.put(transaction.aborted, subxid, assembler.batch.position(row))

    def end_block(self, assembler: TransactionAssembler, transaction: Transaction) -> None:
        """Do nothing: the end of the batch buffers the changes of the block."""

    def end_batch(self, assembler: TransactionAssembler) -> None:
        """Keep the payloads of undecided transactions for later batches."""
        self.n_bytes += buffer(assembler, assembler.undecided())

    def placed(self, batch: ScannedBatch, error: DecodeError, rows: pa.Array) -> DecodeError:
        """Set the row of an error to that of its payload in the call; None if the payload is from an earlier call."""
        row = None if error.row is None else rows[error.row].as_py()
        error.row = row if row is not None and row < batch.n_rows else None
        return batch.moved(error)


def emit(
    assembler: TransactionAssembler,
    transaction: Transaction,
    committed: int,
    row: int = -1,
    lsn: int = -1,
    timestamp: int = -1,
    *,
    defers: bool = False,
) -> None:
    """Emit the changes of a transaction. With `include_uncommitted`, emit also those of aborted sub-transactions.

    Parameters
    ----------
    committed : int
        1 for committed, 0 for rolled back, -1 for undecided.
    row, lsn, timestamp : int
        Of the commit.
    defers : bool
        List the buffered changes of a large transaction when rows are made of them. A listed change needs 100 bytes.
    """
    parts = [*transaction.parts()]
    large: Sequence[ChangePart] = ()
    if defers and sum(map(len, parts)) >= _LARGE:
        large, parts = parts, []
    pieces = pieces_of(assembler, transaction, parts)
    aborted = transaction.aborted if committed else {}  # an abort rolls back all changes alike
    outcome = assembler.decide(transaction, committed, row, lsn, timestamp)
    _commit(assembler, pieces, aborted)
    if large:
        position = assembler.batch.position(row) if row >= 0 else -1
        transaction = replace(transaction, buffered=[], ranges=[])
        listing = _Listing(assembler.options, transaction, dict(aborted), committed, position, lsn, timestamp)
        assembler.defer(outcome, [partial(listing.changes, part) for part in large])
        if committed == 1:
            assembler.state.relations.count_for_shape(_used_versions(large, aborted))
    if aborted and assembler.options.include_uncommitted:
        outcome = assembler.decide(transaction, 0)
        _commit(assembler, pieces, aborted, is_unaborted=False)
        if large:
            listing = _Listing(assembler.options, transaction, dict(aborted), 0, is_unaborted=False)
            assembler.defer(outcome, [partial(listing.changes, part) for part in large])


def _commit(
    assembler: TransactionAssembler,
    pieces: Iterable[tuple[int, int, memoryview]],
    aborted: dict[int, int],
    *,
    is_unaborted: bool = True,
) -> None:
    for start, end, positions in pieces:
        assembler.transaction_index.commit_unaborted(start, end, positions, aborted, is_unaborted)


@dataclass(frozen=True)
class _Listing:
    """Lists changes of a large transaction with an outcome.

    Attributes
    ----------
    options : ChangeOptions
    transaction : Transaction
    aborted : dict of int to int
        As in `Transaction`; empty if no distinction is needed.
    committed, lsn, timestamp : int
        As in `emit`.
    position : int
        Of the commit, or -1.
    is_unaborted : bool
        False for the changes of aborted sub-transactions, True for the others.
    """

    options: ChangeOptions
    transaction: Transaction
    aborted: dict[int, int]
    committed: int
    position: int = -1
    lsn: int = -1
    timestamp: int = -1
    is_unaborted: bool = True

    def changes(self, part: ChangePart, wanted: bytes | None) -> tuple[TransactionAssembler, CommittedChanges]:
        """List the changes of a part in a batch of their own, whose first row has the position of the commit."""
        payloads, positions = pa.nulls(1, pa.large_binary()), pa.array([self.position], pa.int64())
        assembler = TransactionAssembler(
            ReplicationState(), payloads, positions, self.options, CommittedOutcomes(), wanted=wanted
        )
        pieces = pieces_of(assembler, self.transaction, [part])
        row = -1 if self.position < 0 else 0
        assembler.decide(self.transaction, self.committed, row, self.lsn, self.timestamp)
        _commit(assembler, pieces, self.aborted, is_unaborted=self.is_unaborted)
        found = assembler.committed()
        assembler.release()
        return assembler, found


def _used_versions(parts: Iterable[ChangePart], aborted: Mapping[int, int]) -> set[int]:
    """Find the versions that changes use, without those of aborted sub-transactions."""
    found: set[int] = set()
    xids, positions = pa.array(aborted.keys(), pa.int64()), pa.array(aborted.values(), pa.int64())
    for changes in (part.read(with_payloads=False) for part in parts):
        n = len(changes)
        versions = pa.Array.from_buffers(pa.int32(), n, [None, changes.versions])
        if aborted:
            abort = positions.take(pc.index_in(pa.Array.from_buffers(pa.int64(), n, [None, changes.xids]), xids))
            versions = versions.filter(pc.fill_null(pc.greater_equal(changes.positions, abort), True))
        found |= {*pc.unique(versions).to_pylist()}
    return {version for version in found if version >= 0}


def pieces_of(
    assembler: TransactionAssembler, transaction: Transaction, parts: Iterable[ChangePart]
) -> list[tuple[int, int, memoryview]]:
    """List the changes of a transaction as (start, end, positions), those of earlier batches (`parts`) first.

    There is one position for each change; or only that of the first, if no Stream Abort comes between the changes.
    """
    transaction_index, batch = assembler.transaction_index, assembler.batch
    found = []
    for part in parts:
        start = transaction_index.n
        first = batch.end
        item = part.read()
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
