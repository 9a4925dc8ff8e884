"""The index of a partitioned sequence of payloads: what each partition must know of the others.

A partition is a contiguous part of the sequence: no other partition has payloads between its first and its last
position. Few messages matter outside their partition: messages of streams, two-phase commits and relations, and the
first and the last Begin and Commit of each partition. If there are streams or two-phase commits, some more Begin and
Commit messages matter. From these messages, `index_partitions` finds the state at the start of every partition, and the
outcome of the transactions that end in another partition. `partitions.partition_decoder` can then decode each partition
independently.
"""

from __future__ import annotations

import pickle
import zlib
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode._native.wire.single_message import decode_one
from pgdecode.changes.replication_state import ReplicationState, Transaction
from pgdecode.changes.scanned_batch import ScannedBatch
from pgdecode.changes.transaction_assembler import TransactionAssembler
from pgdecode.payloads.payload_input import payload_array
from pgdecode.protocol.boundaries import DELIMITERS
from pgdecode.protocol.errors import DecodeError
from pgdecode.protocol.limits import Limits
from pgdecode.protocol.options import ChangeOptions, Start
from pgdecode.relations.catalog import RelationCatalog, tracker_of

_LIMITS = Limits()


class Partition(NamedTuple):
    """A partition: its first and last position, and whether it has changes of rows."""

    first: int
    last: int
    has_rows: bool = True


@dataclass(frozen=True)
class TransactionOutcome:
    """The outcome of a transaction, and the rollbacks of its sub-transactions.

    `is_kept`: the transaction has no outcome at the end of the sequence, so its changes are part of the state there.
    `is_duplicate`: it was committed before, and is left out.
    """

    committed: int  # 1 committed, 0 rolled back, -1 undecided
    commit_position: int = -1
    commit_lsn: int = -1
    commit_timestamp: int = -1
    gid: str | None = None
    aborted: tuple[tuple[int, int], ...] = ()  # (subxid, position of its Stream Abort)
    is_kept: bool = False
    is_duplicate: bool = False

    @cached_property
    def aborts(self) -> dict[int, int]:
        """Position of the Stream Abort of each sub-transaction that was rolled back."""
        return dict(self.aborted)


UNDECIDED = TransactionOutcome(-1, is_kept=True)
DISCARDED = TransactionOutcome(-1)
ROLLED_BACK = TransactionOutcome(0)


@dataclass(frozen=True)
class PartitionIndex:
    """What partitions must know of each other. It is small, plain data, and the same for all partitions.

    Attributes
    ----------
    catalog : RelationCatalog
        All versions of all relations.
    partitions : tuple of Partition
        In ascending order.
    starts : sequence of ReplicationState
        The state before each partition.
    transaction_outcomes : dict of int to TransactionOutcome
        By the position of the message that began the transaction.
    shape : tuple of int
        Numbers of the versions that determine the columns of tables.
    n_skipped, n_undecided : int
        Number of transactions of the partitions that are left out because their beginning is missing, and number of
        transactions without an outcome at the end.
    is_head_streamed : bool or None
        Whether the payloads before the first boundary were sent inside a stream; None without a boundary.
    end : ReplicationState
        The state after the last partition, without the payloads of the partitions. `packed` leaves it out.
    """

    catalog: RelationCatalog
    partitions: tuple[Partition, ...]
    starts: Sequence[ReplicationState]
    transaction_outcomes: dict[int, TransactionOutcome] = field(default_factory=dict)
    shape: tuple[int, ...] = ()
    n_skipped: int = 0
    n_undecided: int = 0
    is_head_streamed: bool | None = None
    end: ReplicationState = field(default_factory=ReplicationState, compare=False)

    def keeps(self, number: int) -> bool:
        """Whether a partition may have changes of transactions that have no outcome at the end."""
        partition, start = self.partitions[number], self.starts[number]
        open_before = {
            item.begin_position for item in (*start.streamed.values(), *([start.open] if start.open else ()))
        }
        return any(
            outcome.is_kept and (begin in open_before or partition.first <= begin <= partition.last)
            for begin, outcome in self.transaction_outcomes.items()
        )

    def number_of(self, position: int) -> int:
        """Find the number of the partition that contains a position.

        Raises
        ------
        LookupError
            If no partition contains it.
        """
        number = bisect_right(self.partitions, position, key=lambda partition: partition.first) - 1
        if number < 0 or position > self.partitions[number].last:
            raise LookupError(f"position {position} is in none of the indexed partitions: have the data changed?")
        return number

    def packed(self) -> bytes:
        """Return the index for another process, which has the same version of pgdecode."""
        return zlib.compress(pickle.dumps(replace(self, end=ReplicationState())), 1)

    @staticmethod
    def unpacked(packed: bytes) -> PartitionIndex:
        """Return the index that another process has packed."""
        index: PartitionIndex = pickle.loads(zlib.decompress(packed))
        return index


def start_of(state: ReplicationState, before: ReplicationState | None) -> ReplicationState:
    """Copy a state as the start of a partition, without payloads and versions of relations, which the index has once.

    What is visible is the same object as in the start before if both are equal, and then takes no space of its own.
    """
    start = state.copy(with_versions=False)
    for item in start.undecided:
        # Payloads of earlier runs are decoded apart.
        item.buffered = []
    last = None if before is None else before.relations
    if last is not None and start.relations.common == last.common:
        start.relations.common = last.common
    if last is not None and start.relations.types == last.types:
        start.relations.types = last.types
    return start


class IndexOutcomes:
    """Collects the outcomes of transactions. Most plain transactions may be missing from the input.

    Parameters
    ----------
    in_full : bool
        Whether the input has all plain transactions that matter.
    undecided : iterable of Transaction
        Transactions of earlier runs.
    """

    wants_discarded = True
    knows_relations = False
    wants_blocks = False

    def __init__(self, *, in_full: bool, undecided: Iterable[Transaction] = ()) -> None:
        self.in_full = in_full
        self.transaction_outcomes: dict[int, TransactionOutcome] = {}
        self.aborts = {item.begin_position: list(item.aborted.items()) for item in undecided}

    def commit(self, assembler: TransactionAssembler, row: int, transaction: Transaction) -> None:
        """Record a commit."""
        batch = assembler.batch
        lsn = batch.value("lsn", row)
        if assembler.transaction_index.record_lsn(row, lsn, transaction.xid) and assembler.options.drop_duplicates:
            self._note(transaction, replace(DISCARDED, is_duplicate=True))
            return
        assembler.state.relations.count_for_shape(transaction.relations)
        self._note(transaction, TransactionOutcome(1, batch.position(row), lsn, batch.value("timestamp", row)))

    def abort(self, assembler: TransactionAssembler, transaction: Transaction) -> None:
        """Record a rollback."""
        self._note(transaction, ROLLED_BACK)

    def discard(self, assembler: TransactionAssembler, transaction: Transaction, is_sent_again: bool) -> None:
        """Record that a transaction has no outcome."""
        if not is_sent_again and not self.in_full:
            # The transaction has a Commit, but the input does not include it, nor others after it.
            assembler.state.relations.count_for_shape(transaction.relations)
        self._note(transaction, DISCARDED)

    def abort_part(self, assembler: TransactionAssembler, row: int, transaction: Transaction, subxid: int) -> None:
        """Record the rollback of a sub-transaction."""
        self.aborts.setdefault(transaction.begin_position, []).append((subxid, assembler.batch.position(row)))

    def end_block(self, assembler: TransactionAssembler, transaction: Transaction) -> None:
        """Do nothing: partitions decode their rows."""

    def end_batch(self, assembler: TransactionAssembler) -> None:
        """Discard the rows: partitions decode them."""
        for item in assembler.touched:
            item.ranges = []

    def end(self, state: ReplicationState) -> None:
        """Record the transactions that have no outcome at the end of the sequence."""
        for item in state.undecided:
            item.aborted = dict(self.aborts.get(item.begin_position, ()))
            # After a reconnect, the next message ends all but prepared transactions. Until then they are kept.
            self._note(item, UNDECIDED)

    def placed(self, batch: ScannedBatch, error: DecodeError, rows: pa.Array) -> DecodeError:
        """Return the error unchanged: partitions report errors."""
        return error

    def _note(self, transaction: Transaction, transaction_outcome: TransactionOutcome) -> None:
        aborted = tuple(self.aborts.pop(transaction.begin_position, ()))
        self.transaction_outcomes[transaction.begin_position] = replace(
            transaction_outcome, gid=transaction.gid, aborted=aborted
        )


def index_partitions(
    payloads: Any,
    positions: pa.Array,
    partitions: Iterable[Partition],
    *,
    catalog: RelationCatalog | None = None,
    limits: Limits = _LIMITS,
    start: Start = "transaction",
    in_full: bool = False,
    reconnects: Collection[int] = (),
    state: ReplicationState | None = None,
    drop_duplicates: bool = False,
    commits: Mapping[int, tuple[int, int]] | None = None,
) -> PartitionIndex:
    """Make the index of partitions.

    Parameters
    ----------
    payloads : column of payloads, as `decode_messages` takes them
        In slot order. Required are all payloads whose first byte is in `boundaries.ALWAYS_NEEDED`, and of each
        partition the first and the last whose first byte is in `boundaries.BEGIN_COMMIT`. Others are allowed. Rows
        before the first boundary are required in two cases: with `start="anywhere"`, one row, or `n_skipped` may be one
        too low; and all of them, if they contradict the stream state that the boundary implies.
    positions : pa.Array of int64
    partitions : iterable of Partition
        Without overlap; each payload's position lies in one of them.
    catalog : RelationCatalog, optional
        Relations that the payloads do not describe. Its versions that are visible only after the first position do not
        apply at the start.
    limits : Limits
        The limits with which the partitions are decoded.
    start : {"transaction", "anywhere"}
        As for `ChangeDecoder`.
    in_full : bool
        Whether the payloads include all messages of `boundaries.BEGIN_COMMIT` that `boundaries.needed` chooses. This is
        required if a message is of `boundaries.STREAM_AND_TWO_PHASE`, or if a message of `BEGIN_COMMIT` is malformed.
        The `shape` of a table with several versions is exact only then.
    reconnects : collection of int
        First positions of the partitions that begin with another connection than the previous partition.
    state : ReplicationState, optional
        The state before the first partition, from an earlier run. It is not changed.
    drop_duplicates : bool
        As for `ChangeDecoder`. It requires `in_full`.
    commits : mapping, optional
        By the first position of a partition, the greatest commit LSN in it, and the position of that commit. Without
        `in_full`, the `last_lsn` of the states is exact only with them.

    Raises
    ------
    ValueError
        If partitions overlap, or begin before the position of the state.
    """
    ordered = sorted(partitions)
    for before, after in pairwise(ordered):
        if before.last >= after.first:
            raise ValueError(f"partitions overlap: {before.first} to {before.last}, {after.first} to {after.last}")
    column = payload_array(payloads).combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks)
    state = ReplicationState() if state is None else state.copy()
    first = ordered[0].first if ordered else None
    if first is not None and first < state.position:
        raise ValueError(f"position starts at {first}, but earlier payloads end at {state.position - 1}")
    catalog = state.first_catalog(catalog)
    if catalog is not None:
        state.relations = tracker_of(catalog, first)
    options = ChangeOptions("PERMISSIVE", drop_duplicates=drop_duplicates, limits=limits, start=start)
    builder = IndexBuilder(state, options, in_full=in_full)
    builder.is_head_streamed = head_stream_state(column)
    starts: list[ReplicationState] = []
    places = positions.to_pylist()
    first = 0
    for partition in ordered:
        is_reconnected = partition.first in reconnects or (state.is_reconnected and not starts)
        last = bisect_right(places, partition.last, first)
        messages = column.slice(first, last - first), positions.slice(first, last - first)
        starts.append(builder.add(partition, *messages, is_reconnected=is_reconnected))
        lsn, position = (commits or {}).get(partition.first, (-1, -1))
        if lsn > state.last_lsn:
            state.last_lsn, state.last_lsn_position = lsn, position
        state.session_lsn = max(state.session_lsn, lsn)
        first = last
    builder.outcomes.end(state)
    return replace(builder.index(ordered, starts, builder.outcomes.transaction_outcomes), end=state)


class IndexBuilder:
    """Follows a sequence partition by partition, and keeps the state and the outcomes of transactions.

    Parameters
    ----------
    state : ReplicationState
        Before the first partition. It is advanced.
    options : ChangeOptions
        Errors of messages are reported where their partition is decoded, whatever the mode.
    in_full : bool
        As in `index_partitions`.

    Attributes
    ----------
    is_head_streamed : bool or None
        As in `PartitionIndex`, for the first partition.
    """

    def __init__(self, state: ReplicationState, options: ChangeOptions, *, in_full: bool) -> None:
        self.state = state
        self.outcomes = IndexOutcomes(in_full=in_full, undecided=state.undecided)
        self.is_head_streamed: bool | None = None
        self._options = replace(options, mode="PERMISSIVE")
        self._n_skipped = state.skipped.count
        self._last: ReplicationState | None = None

    def add(
        self, partition: Partition, payloads: pa.Array, positions: pa.Array, *, is_reconnected: bool
    ) -> ReplicationState:
        """Follow the next partition, and return the state before it.

        Parameters
        ----------
        partition : Partition
        payloads : pa.Array
            The messages of the partition that `index_partitions` requires, in slot order.
        positions : pa.Array of int64
        is_reconnected : bool
            Whether it begins with another connection than the partition before.
        """
        state = self.state
        state.is_reconnected = is_reconnected
        self._last = start_of(state, self._last)
        if state.in_stream is None and head_stream_state(payloads) is None:
            state.in_stream = self.is_head_streamed
        TransactionAssembler(state, payloads, positions, self._options, self.outcomes).run()
        state.position = partition.last + 1
        return self._last

    def index(
        self,
        partitions: Iterable[Partition],
        starts: Iterable[ReplicationState],
        outcomes: dict[int, TransactionOutcome],
        shape: Iterable[int] | None = None,
    ) -> PartitionIndex:
        """Make the index of some partitions, with some outcomes."""
        state = self.state
        return PartitionIndex(
            RelationCatalog(state.relations.versions),
            tuple(partitions),
            tuple(starts),
            outcomes,
            tuple(sorted(state.relations.in_layout if shape is None else shape)),
            state.skipped.count - self._n_skipped,
            state.n_undecided,
            self.is_head_streamed,
        )


def head_stream_state(column: pa.Array) -> bool | None:
    """Whether the payloads before the first well-formed boundary were sent inside a stream; None without a boundary."""
    place = first_boundary(column)
    return None if place < 0 else bool(column[place].as_py()[:1] == b"E")


def first_boundary(column: pa.Array) -> int:
    """Find the first well-formed message of `boundaries.DELIMITERS`; -1 without one."""
    tags = pc.binary_slice(column, 0, 1)
    wanted = pa.array([bytes([tag]) for tag in DELIMITERS], tags.type)
    for place in pc.indices_nonzero(pc.is_in(tags, wanted)).to_pylist():
        with suppress(DecodeError):
            decode_one(column[place].as_py(), False, _LIMITS, False)
            return int(place)
    return -1


def slices(index: PartitionIndex, positions: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Split ascending positions by partition: yield (number of the partition, start index, end index)."""
    start = 0
    while start < len(positions):
        number = index.number_of(positions[start])
        end = bisect_right(positions, index.partitions[number].last, start)
        yield number, start, end
        start = end
