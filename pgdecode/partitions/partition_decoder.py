"""Decoding one run of a sequence alone, by what `index_partitions` has worked out.

All runs together give what one `ChangeDecoder` gives for the whole sequence, though not in its order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import pyarrow as pa

from pgdecode.changes.outcomes import CommittedOutcomes, buffer, pieces_of
from pgdecode.changes.replication_state import CommittedChanges, Options, ReplicationState, Transaction
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


class PartitionOutcomes(CommittedOutcomes):
    """Gives what is listed of streamed and prepared transactions by the outcomes that the index knows."""

    knows_relations = True

    def __init__(self, transaction_outcomes: Mapping[int, TransactionOutcome]) -> None:
        self.transaction_outcomes = transaction_outcomes
        self.kept: Transaction | None = None  # that was open after the batch before, with changes of it

    def abort_part(self, assembler: TransactionAssembler, row: int, transaction: Transaction, subxid: int) -> None:
        """Leave it: what a rollback undoes goes by the position that the index has of it."""

    def end_block(self, assembler: TransactionAssembler, transaction: Transaction) -> None:
        """Give each block when it ends."""
        self.give_by_index(assembler, transaction)

    def end_batch(self, assembler: TransactionAssembler) -> None:
        """Give what is listed of streamed and prepared transactions; keep what is of the one that is open."""
        state = assembler.state
        for item in assembler.undecided():
            if item is not state.open:
                self.give_by_index(assembler, item)
        kept = self.kept
        if kept is not None and kept.gid is not None and state.prepared.get(kept.gid) is kept:
            # It was prepared, and this batch may have no changes of it.
            self.give_by_index(assembler, kept)
        if state.open is not None:
            buffer(assembler, [state.open])
        self.kept = state.open

    def give_by_index(self, assembler: TransactionAssembler, item: Transaction) -> None:
        """Give what is listed of a transaction by its outcome."""
        transaction_outcome = self.transaction_outcomes.get(item.begin_position, UNDECIDED)
        if not item.ranges and not item.buffered:
            return
        pieces = pieces_of(assembler, item)
        item.ranges, item.buffered = [], []
        if transaction_outcome.gid is not None:
            item.gid = transaction_outcome.gid
        transaction_index, batch = assembler.transaction_index, assembler.batch
        # No abort comes between the changes of a piece: the position of its first stands for all.
        places = [(start, end, batch.position_of(transaction_index.row_of(start))) for start, end, _ in pieces]
        aborts = transaction_outcome.aborts if transaction_outcome.committed else {}  # in an abort all are alike
        wanted = assembler.options.include_uncommitted
        if transaction_outcome.committed == 1 or wanted:
            self._decide(assembler, item, transaction_outcome)
            for start, end, position in places:
                transaction_index.deliver_alive(start, end, position, aborts, True, 0)
        if aborts and wanted:
            self._decide(assembler, item, ROLLED_BACK)
            for start, end, position in places:
                transaction_index.deliver_alive(start, end, position, aborts, False, 0)

    def _decide(
        self, assembler: TransactionAssembler, item: Transaction, transaction_outcome: TransactionOutcome
    ) -> None:
        row, batch = -1, assembler.batch
        if transaction_outcome.committed == 1:
            # Its commit may be far away: only the position is wanted of it.
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
        """Name the position of a payload."""
        return error if error.row is None else error.at_position(batch.position_of(rows[error.row].as_py()))


class PartitionDecoder:
    """Decodes one run, batch by batch, in ascending order of position.

    Parameters
    ----------
    index : PartitionIndex
    number : int
        Of the run.
    options : Options
    versions : collection of int, optional
        Versions of relations, by their numbers in the catalog, whose changes are given; by default all. Bad payloads
        and changes without a version are, in any case.
    """

    def __init__(
        self, index: PartitionIndex, number: int, options: Options, versions: Collection[int] | None = None
    ) -> None:
        self.wanted = None if versions is None else bytes(item in versions for item in range(len(index.catalog)))
        self.run = index.runs[number]
        self.options = options
        self.state = index.starts[number].copy(with_versions=False)
        self.state.relations.preload(index.catalog)
        self.outcomes = PartitionOutcomes(index.transaction_outcomes)
        self.is_head_streamed = index.is_head_streamed

    def follow(self, payloads: pa.Array, positions: pa.Array) -> tuple[TransactionAssembler, CommittedChanges]:
        """Take up the next payloads; what they commit.

        Raises
        ------
        DecodeError
            With `position`.
        """
        if self.state.in_stream is None and head_stream_state(payloads) is None:
            # The first boundary tells, as it would where it came in the same batch.
            self.state.in_stream = self.is_head_streamed
        try:
            assembler = self._assembler(self.state, payloads, positions)
            return assembler, assembler.run()
        except DecodeError as error:
            if error.row is None:
                raise
            raise error.at_position(positions[error.row].as_py()) from None

    def finish(self) -> tuple[TransactionAssembler, CommittedChanges]:
        """End the run: give the changes of the transaction that goes on in the next."""
        nothing = pa.array([], pa.large_binary())
        assembler = self._assembler(ReplicationState(), nothing, pa.array([], pa.int64()))
        assembler.run()
        if self.state.open is not None:
            self.outcomes.give_by_index(assembler, self.state.open)
            self.state.open = None
        return assembler, assembler.committed()

    def _assembler(self, state: ReplicationState, payloads: pa.Array, positions: pa.Array) -> TransactionAssembler:
        return TransactionAssembler(state, payloads, positions, self.options, self.outcomes, wanted=self.wanted)


def used_versions(
    index: PartitionIndex,
    batches: Iterable[tuple[pa.Array, pa.Array]],
    number: int,
    among: Collection[int],
    options: Options,
) -> set[int]:
    """Find the versions of relations that committed changes of a run use, among some.

    Parameters
    ----------
    index : PartitionIndex
    batches : iterable of (payloads, positions)
        Of the run, in order; rows of other relations may be left out.
    number : int
        Of the run.
    among : collection of int
        Numbers in the catalog.
    options : Options
        What is wrong with payloads is left to those who decode them.
    """
    decoder = PartitionDecoder(index, number, replace(options, mode="PERMISSIVE", include_uncommitted=False), among)
    found: set[int] = set()
    for payloads, positions in batches:
        found.update(decoder.follow(payloads, positions)[1].used)
    found.update(decoder.finish()[1].used)
    return found.intersection(among)
