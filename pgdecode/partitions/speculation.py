"""Decoding runs before the whole has been looked through: what they are told then, and whether that was right.

Most sequences hold plain transactions of tables that do not change. Cut between transactions, a run must know nothing
but the relations of its rows, and a look at a few messages tells these. A run is decoded on the strength of that; once
`index_partitions` has all messages, `holds` says whether the run would have been told the same. If not, it is decoded
again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from pgdecode.changes.replication_state import ReplicationState
from pgdecode.partitions.partition_index import Partition, PartitionIndex, index_partitions
from pgdecode.relations.catalog import RelationCatalog
from pgdecode.relations.relation_version import RelationVersion


def speculate(
    runs: Iterable[Partition], payloads: Any, positions: pa.Array, *, catalog: RelationCatalog | None = None
) -> PartitionIndex:
    """Tell runs what they probably have to know.

    Parameters
    ----------
    runs : iterable of Run
        Without overlap; all but the first begin with a transaction, as far as is known.
    payloads : column of payloads, as `decode_messages` takes them
        Relation and Type messages from somewhere in them, in slot order.
    positions : pa.Array of int64
    catalog : RelationCatalog, optional
        As of `index_partitions`.
    """
    index = index_partitions(payloads, positions, [run._replace(has_rows=False) for run in runs], catalog=catalog)
    begun = [
        replace(state, begun=number > 0, in_stream=False if number else None)
        for number, state in enumerate(index.starts)
    ]
    return replace(index, starts=tuple(begun), is_head_streamed=False)


def holds(told: PartitionIndex, index: PartitionIndex, number: int) -> bool:
    """Whether a run decoded by a forecast is as it would be by the index of the whole.

    That is so for a run without messages of `boundaries.APART`, of whose changes each had a version of its relation.

    Parameters
    ----------
    told : PartitionIndex
        The forecast.
    index : PartitionIndex
        Of the same runs, by `index_partitions`.
    number : int
        Of the run.
    """
    start, other = index.starts[number], told.starts[number]
    if start.begun != other.begun or start.is_reconnected or _is_open(start):
        return False
    if not start.begun and index.is_head_streamed:
        return False
    if number + 1 < len(index.runs) and _is_open(index.starts[number + 1]):
        # What becomes of its last transaction is told beyond the run.
        return False
    versions, foreseen = list(index.catalog), list(told.catalog)
    for relation_id, sent in other.relations.common.items():
        true = start.relations.common.get(relation_id)
        # Negative: the last message was bad.
        if true is None or min(true.number, sent.number) < 0 or versions[true.number] != foreseen[sent.number]:
            return False
    types = start.relations.types
    for type_id, item in other.relations.types.items():
        if type_id not in types or types[type_id].type != item.type:
            return False
    run = index.runs[number]
    return _within(run, versions) == _within(run, foreseen)


def _is_open(state: ReplicationState) -> bool:
    """Whether it stands in a stream, or between the beginning of a transaction and its outcome."""
    return state.stream is not None or bool(state.undecided)


def _within(run: Partition, versions: Sequence[RelationVersion]) -> list[RelationVersion]:
    """Versions that a run itself describes."""
    return [item for item in versions if run.first <= item.position <= run.last]
