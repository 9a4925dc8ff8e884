"""Decodes one partition of a sequence independently, with the index that `index_partitions` makes.

Together, all partitions give the same changes as one `ChangeDecoder` for the whole sequence, but in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

import pyarrow as pa

from pgdecode.changes.outcomes import CommittedOutcomes, buffer, pieces_of
from pgdecode.changes.replication_state import BufferedChanges, CommittedChanges, ReplicationState, Transaction
from pgdecode.changes.scanned_batch import ScannedBatch
from pgdecode.changes.transaction_assembler import TransactionAssembler
from pgdecode.partitions.partition_index import (
    ROLLED_BACK,
    UNDECIDED,
    PartitionIndex,
    TransactionOutcome,
    head_stream_state,
)
from pgdecode.protocol.errors import DecodeError
from pgdecode.protocol.options import ChangeOptions

# Called with the begin_position of a transaction without an outcome, and the next of its changes.
Keep = Callable[[int, BufferedChanges], None]


class PartitionOutcomes(CommittedOutcomes):
    """Emits changes of streamed and prepared transactions according to the outcomes in the index.

    `keep`, if given, receives the changes of the transactions that have no outcome at the end of the sequence.
    """

    knows_relations = True
    wants_blocks = True
    defers = False

    def __init__(self, transaction_outcomes: Mapping[int, TransactionOutcome], keep: Keep | None = None) -> None:
        super().__init__()
        self.transaction_outcomes = transaction_outcomes
        self.keep = keep
        self.kept: Transaction | None = None  # the transaction that was open after the previous batch

    def abort_part(self, assembler: TransactionAssembler, row: int, transaction: Transaction, subxid: int) -> None:
        """Do nothing: the index has the position of each rollback of a sub-transaction."""

    def end_block(self, assembler: TransactionAssembler, transaction: Transaction) -> None:
        """Emit the changes of a stream block when it ends."""
        self.emit_by_index(assembler, transaction)

    def end_batch(self, assembler: TransactionAssembler) -> None:
        """Emit the changes of streamed and prepared transactions. Keep those of the open transaction."""
        state = assembler.state
        for item in assembler.undecided():
            if item is not state.open:
                self.emit_by_index(assembler, item)
        kept = self.kept
        if kept is not None and kept.gid is not None and state.prepared.get(kept.gid) is kept:
            # The transaction was prepared in this batch, which may have no changes of it.
            self.emit_by_index(assembler, kept)
        if state.open is not None:
            buffer(assembler, [state.open])
        self.kept = state.open

    def emit_by_index(self, assembler: TransactionAssembler, item: Transaction) -> None:
        """Emit the changes of a transaction so far, according to its outcome in the index."""
        transaction_outcome = self.transaction_outcomes.get(item.begin_position, UNDECIDED)
        if not item.ranges and not item.buffered:
            return
        wanted = assembler.options.include_uncommitted
        if transaction_outcome.is_kept and self.keep is not None:
            buffer(assembler, [item])
            for part in item.parts():
                self.keep(item.begin_position, part.read())
        if transaction_outcome.is_duplicate or not (transaction_outcome.committed == 1 or wanted):
            item.ranges, item.buffered = [], []
            return
        pieces = pieces_of(assembler, item, item.parts())
        item.ranges, item.buffered = [], []
        if transaction_outcome.gid is not None:
            item.gid = transaction_outcome.gid
        transaction_index = assembler.transaction_index
        # If the whole transaction was rolled back, its sub-transactions need no distinction.
        aborts = transaction_outcome.aborts if transaction_outcome.committed else {}
        self._set_outcome(assembler, item, transaction_outcome)
        for start, end, positions in pieces:
            transaction_index.commit_unaborted(start, end, positions, aborts, True)
        if aborts and wanted:
            self._set_outcome(assembler, item, ROLLED_BACK)
            for start, end, positions in pieces:
                transaction_index.commit_unaborted(start, end, positions, aborts, False)

    def _set_outcome(
        self, assembler: TransactionAssembler, item: Transaction, transaction_outcome: TransactionOutcome
    ) -> None:
        row, batch = -1, assembler.batch
        if transaction_outcome.committed == 1:
            # The commit may be in another partition. Only its position is needed: add a row with it and a null payload.
            row = batch.end
            batch.add_part(
                pa.nulls(1, batch.payloads.type), pa.array([transaction_outcome.commit_position], pa.int64())
            )
        assembler.decide(
            item,
            transaction_outcome.committed,
            row,
            transaction_outcome.commit_lsn,
            transaction_outcome.commit_timestamp,
        )

    def placed(self, batch: ScannedBatch, error: DecodeError, rows: pa.Array) -> DecodeError:
        """Replace the row of an error by the position of its payload."""
        return error if error.row is None else error.at_position(batch.position_of(rows[error.row].as_py()))


class PartitionDecoder:
    """Decodes one partition, batch by batch, in ascending order of position.

    Parameters
    ----------
    index : PartitionIndex
    number : int
        Number of the partition.
    options : ChangeOptions
    versions : collection of int, optional
        Numbers, in the catalog, of the relation versions whose changes are returned; by default all. Bad payloads and
        changes without a version are always returned.
    keep : callable, optional
        Receives the changes of transactions without an outcome at the end of the sequence. They must be of all
        `versions`.
    """

    def __init__(
        self,
        index: PartitionIndex,
        number: int,
        options: ChangeOptions,
        versions: Collection[int] | None = None,
        keep: Keep | None = None,
    ) -> None:
        self.wanted = _wanted(index, versions)
        self.partition = index.partitions[number]
        self.options = options
        self.state = index.starts[number].copy(with_versions=False)
        self.state.relations.preload(index.catalog)
        self.outcomes = PartitionOutcomes(index.transaction_outcomes, keep)
        self.is_head_streamed = index.is_head_streamed

    def follow(self, payloads: pa.Array, positions: pa.Array) -> tuple[TransactionAssembler, CommittedChanges]:
        """Process the next payloads, and return the changes that they commit.

        Raises
        ------
        DecodeError
            With `position`.
        """
        if self.state.in_stream is None and head_stream_state(payloads) is None:
            # This batch has no boundary. The first boundary of the sequence decides, as if it were in this batch.
            self.state.in_stream = self.is_head_streamed
        try:
            assembler = self._assembler(self.state, payloads, positions)
            return assembler, assembler.run()
        except DecodeError as error:
            if error.row is None:
                raise
            raise error.at_position(positions[error.row].as_py()) from None

    def finish(self) -> tuple[TransactionAssembler, CommittedChanges]:
        """End the partition, and return the changes of the transaction that continues in the next partition."""
        nothing = pa.array([], pa.large_binary())
        state = ReplicationState(relations=self.state.relations)
        assembler = self._assembler(state, nothing, pa.array([], pa.int64()))
        assembler.run()
        if self.state.open is not None:
            self.outcomes.emit_by_index(assembler, self.state.open)
            self.state.open = None
        return assembler, assembler.committed()

    def _assembler(self, state: ReplicationState, payloads: pa.Array, positions: pa.Array) -> TransactionAssembler:
        return TransactionAssembler(state, payloads, positions, self.options, self.outcomes, wanted=self.wanted)


class StoredDecoder:
    """Decodes changes that earlier runs have stored, by the outcomes in the index of the present run.

    Parameters
    ----------
    index : PartitionIndex
    options : ChangeOptions
    versions : collection of int, optional
        As for `PartitionDecoder`.
    """

    def __init__(self, index: PartitionIndex, options: ChangeOptions, versions: Collection[int] | None = None) -> None:
        self.wanted = _wanted(index, versions)
        self.options = options
        self.outcomes = PartitionOutcomes(index.transaction_outcomes)
        self.state = ReplicationState()
        self.state.relations.preload(index.catalog)

    def decode(
        self, xid: int, begin_position: int, changes: BufferedChanges
    ) -> tuple[TransactionAssembler, CommittedChanges]:
        """Return those of some changes of a transaction that it has committed."""
        nothing, no_positions = pa.array([], pa.large_binary()), pa.array([], pa.int64())
        assembler = TransactionAssembler(
            self.state, nothing, no_positions, self.options, self.outcomes, wanted=self.wanted
        )
        assembler.run()
        self.outcomes.emit_by_index(assembler, Transaction(xid, begin_position, buffered=[changes]))
        return assembler, assembler.committed()


def _wanted(index: PartitionIndex, versions: Collection[int] | None) -> bytes | None:
    return None if versions is None else bytes(item in versions for item in range(len(index.catalog)))


def used_versions(
    index: PartitionIndex,
    batches: Iterable[tuple[pa.Array, pa.Array]],
    number: int,
    among: Collection[int],
    options: ChangeOptions,
) -> set[int]:
    """Find which of some relation versions the committed changes of a partition use.

    Parameters
    ----------
    index : PartitionIndex
    batches : iterable of (payloads, positions)
        The partition in order; rows of other relations may be left out.
    number : int
        Number of the partition.
    among : collection of int
        Numbers of versions in the catalog.
    options : ChangeOptions
        Bad payloads are not raised here, but where the partition is decoded.
    """
    decoder = PartitionDecoder(index, number, replace(options, mode="PERMISSIVE", include_uncommitted=False), among)
    found: set[int] = set()
    for payloads, positions in batches:
        found.update(decoder.follow(payloads, positions)[1].used)
    found.update(decoder.finish()[1].used)
    return found.intersection(among)
