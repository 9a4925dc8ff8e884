"""Speculation: decoding partitions with a preliminary index, before the whole sequence has been read.

Most sequences consist of plain transactions, and their tables do not change. If such a sequence is split between
transactions, a partition needs to know only the relations of its rows, and a few messages are enough to find them. Each
partition is decoded with this preliminary index. Once `index_partitions` has all messages, `holds` checks whether the
final index would have given the partition the same start. If not, the partition is decoded again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from pgdecode.changes.replication_state import ReplicationState
from pgdecode.partitions.partition_index import Partition, PartitionIndex, index_partitions, start_of
from pgdecode.relations.catalog import RelationCatalog
from pgdecode.relations.relation_version import RelationVersion


def speculate(
    partitions: Iterable[Partition],
    payloads: Any,
    positions: pa.Array,
    *,
    catalog: RelationCatalog | None = None,
    state: ReplicationState | None = None,
) -> PartitionIndex:
    """Make the preliminary index of partitions.

    Parameters
    ----------
    partitions : iterable of Partition
        Without overlap. All but the first are assumed to begin with a transaction.
    payloads : column of payloads, as `decode_messages` takes them
        Some Relation and Type messages of the partitions, in slot order.
    positions : pa.Array of int64
    catalog, state : optional
        As for `index_partitions`.
    """
    first = start_of(ReplicationState() if state is None else state, None)
    # All partitions but the first are assumed to begin outside the transaction that may be open at the start.
    index = index_partitions(
        payloads,
        positions,
        [partition._replace(has_rows=False) for partition in partitions],
        catalog=catalog,
        state=None if state is None else replace(state, open=None, in_stream=False),
    )
    starts = [
        replace(start, has_seen_boundary=True, in_stream=False)
        if number
        else replace(start, has_seen_boundary=first.has_seen_boundary, in_stream=first.in_stream, open=first.open)
        for number, start in enumerate(index.starts)
    ]
    return replace(index, starts=tuple(starts), is_head_streamed=False)


def holds(speculated: PartitionIndex, index: PartitionIndex, number: int) -> bool:
    """Whether decoding a partition with the preliminary index gave the same result as the final index would.

    The answer is valid for a partition without messages of `boundaries.STREAM_AND_TWO_PHASE`, in which every change had
    a version of its relation.

    Parameters
    ----------
    speculated : PartitionIndex
        The preliminary index.
    index : PartitionIndex
        The final index of the same partitions.
    number : int
        Number of the partition.
    """
    start, other = index.starts[number], speculated.starts[number]
    if start.has_seen_boundary != other.has_seen_boundary or start.is_reconnected or _open_in(start) != _open_in(other):
        return False
    if not start.has_seen_boundary and index.is_head_streamed:
        return False
    if number + 1 < len(index.partitions) and _open_in(index.starts[number + 1]) != _NOTHING_OPEN:
        # The outcome of the partition's last transaction is in a later partition.
        return False
    versions, speculated_versions = list(index.catalog), list(speculated.catalog)
    for relation_id, sent in other.relations.common.items():
        true = start.relations.common.get(relation_id)
        # A negative number: the last Relation message was bad.
        if true is None or min(true.number, sent.number) < 0:
            return False
        if versions[true.number] != speculated_versions[sent.number]:
            return False
    types = start.relations.types
    for type_id, item in other.relations.types.items():
        if type_id not in types or types[type_id].type != item.type:
            return False
    partition = index.partitions[number]
    return _within(partition, versions) == _within(partition, speculated_versions)


_NOTHING_OPEN = (None, None, ())


def _open_in(state: ReplicationState) -> tuple[int | None, int | None, tuple[int, ...]]:
    """Identify the stream block and the transactions that are open. Prepared ones do not matter for plain messages."""
    return state.stream, None if state.open is None else state.open.begin_position, tuple(state.streamed)


def _within(partition: Partition, versions: Sequence[RelationVersion]) -> list[RelationVersion]:
    """Versions whose Relation messages are in the partition."""
    return [item for item in versions if partition.first <= item.position <= partition.last]
