"""Makes the index of the partitions of one sequence from their statistics and messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode.changes.replication_state import ReplicationState
from pgdecode.partitions.partition_index import Partition, PartitionIndex, index_partitions
from pgdecode.partitions.split_statistics import MESSAGES, SplitStatistics, from_ipc
from pgdecode.protocol.boundaries import are_good
from pgdecode.protocol.options import ChangeOptions
from pgdecode.relations.catalog import RelationCatalog
from pgdecode.relations.table_names import named


@dataclass(frozen=True)
class SourceIndex:
    """The index of one source.

    Attributes
    ----------
    source : object
        Value of the source column; None without one.
    index : PartitionIndex
    counts : tuple of int
        Number of rows in each partition.
    may_move : bool
        Whether an update may change the key of its row.
    is_certain : bool
        Whether the collected messages were enough for the index.
    """

    source: Any
    index: PartitionIndex
    counts: tuple[int, ...]
    may_move: bool
    is_certain: bool = True


def in_order(messages: pa.Table) -> pa.Table:
    """Sort messages by position, and remove duplicates."""
    ordered = messages.sort_by("position").combine_chunks()
    positions = ordered["position"]
    if len(positions) < 2:
        return ordered
    is_new = pc.not_equal(positions.slice(1), positions.slice(0, len(positions) - 1))
    return ordered.filter(pa.chunked_array([pa.array([True]), *is_new.chunks]))


def source_index(
    source: Any,
    found: pa.Table,
    messages: pa.Table,
    catalog: RelationCatalog | None,
    options: ChangeOptions,
    *,
    in_full: bool,
    state: ReplicationState | None = None,
    commits: Mapping[int, tuple[int, int]] | None = None,
) -> SourceIndex:
    """Make the index of one source.

    Parameters
    ----------
    source : object
        Value of the source column; None without one.
    found : pa.Table
        For each partition: `first`, `last` (positions), `has_rows`, `n` (rows), `may_move`, and optionally `session`.
    messages : pa.Table
        `position` and `payload` of the messages that `index_partitions` needs, in any order.
    catalog : RelationCatalog, optional
        Relations that the payloads do not describe.
    options : ChangeOptions
    in_full, state, commits
        As in `index_partitions`.
    """
    found = found.sort_by("first")
    messages = in_order(messages)
    partitions = [Partition(*row.values()) for row in found.select(["first", "last", "has_rows"]).to_pylist()]
    reconnects = []
    if "session" in found.column_names:
        sessions = pairwise(found["session"].to_pylist())
        reconnects = [
            partition.first for partition, (before, now) in zip(partitions[1:], sessions, strict=True) if before != now
        ]
    index = index_partitions(
        messages["payload"],
        messages["position"].combine_chunks(),
        partitions,
        catalog=catalog,
        start=options.start,
        in_full=in_full,
        reconnects=frozenset(reconnects),
        state=state,
        drop_duplicates=options.drop_duplicates,
        commits=commits,
    )
    payloads = messages["payload"].to_pylist()
    is_certain = in_full or are_good(payloads)
    counts = tuple(found["n"].to_pylist())
    return SourceIndex(source, index, counts, pc.any(found["may_move"]).as_py() is True, is_certain)


def index_of_statistics(
    statistics: Sequence[SplitStatistics],
    catalog: RelationCatalog | None,
    options: ChangeOptions,
    state: ReplicationState | None = None,
) -> SourceIndex:
    """Make the index of one source from the statistics of its splits. Arguments as for `source_index`."""
    in_full = all(split_statistics.in_full for split_statistics in statistics)
    partitions = [partition for item in statistics for partition in item.partitions]
    columns = {
        "first": pa.array([partition.first for partition in partitions], pa.int64()),
        "last": pa.array([partition.last for partition in partitions], pa.int64()),
        "has_rows": pa.array([partition.has_rows for partition in partitions], pa.bool_()),
        "n": pa.array([partition.n_rows for partition in partitions], pa.int64()),
        "may_move": pa.array([False] * len(partitions), pa.bool_()),
    }
    if any(partition.session is not None for partition in partitions):
        # Replace sessions by numbers, because the column may have any type.
        numbers: dict[Any, int] = {}
        columns["session"] = pa.array(
            [numbers.setdefault(partition.session, len(numbers)) for partition in partitions], pa.int64()
        )
    messages = pa.concat_tables([MESSAGES.empty_table(), *(from_ipc(item.messages) for item in statistics)])
    commits = {partition.first: partition.commit for partition in partitions}
    return source_index(
        None, pa.table(columns), messages, catalog, options, in_full=in_full, state=state, commits=commits
    )


def is_enough(found: SourceIndex, tables: Collection[str] | None, known: Collection[int] = ()) -> bool:
    """Whether an index without `in_full` is correct, including the shapes of tables. There must be no streams.

    Parameters
    ----------
    found : SourceIndex
    tables : collection of str or None
        Tables whose shape must be exact; None for all.
    known : collection of int
        Numbers of versions that determine the columns of tables already at the start.
    """
    if not found.is_certain or (tables is not None and not tables):
        return found.is_certain
    # If a table has several versions, its shape depends on the outcomes of the transactions that sent them.
    n_versions = Counter(item.relation_id for item in found.index.catalog)
    return all(
        n_versions[item.relation_id] == 1 for number, item in enumerate(found.index.catalog) if number not in known
    )


def unused_versions(index: PartitionIndex, tables: Collection[str] | None) -> frozenset[int]:
    """Find the versions of tables that no committed transaction has sent. Committed rows may use them nevertheless.

    A table includes all relations that have ever had its name. None means all tables.
    """
    versions = list(index.catalog)
    names = index.catalog.names
    wanted = None if tables is None else {named(table, names) for table in tables}
    relation_ids = {item.relation_id for item in versions if wanted is None or item.qualified_name in wanted}
    return frozenset(
        number
        for number, item in enumerate(versions)
        # A version that is visible only in its stream is used only there.
        if item.relation_id in relation_ids and number not in index.shape and item.visible_from is not None
    )


def with_used(index: PartitionIndex, used: Iterable[int]) -> PartitionIndex:
    """Add used versions to the shape of an index."""
    return replace(index, shape=tuple(sorted({*index.shape, *used})))
