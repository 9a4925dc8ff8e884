"""The index of a sequence of files that grows: what the parts that are read next must know of the others."""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pgdecode.changes.replication_state import ReplicationState
from pgdecode.files.file_metadata import FileControl
from pgdecode.files.payload_file import PayloadFile
from pgdecode.partitions.partition_index import (
    IndexBuilder,
    IndexOutcomes,
    Partition,
    PartitionIndex,
    TransactionOutcome,
    head_stream_state,
)
from pgdecode.partitions.source_index import in_order
from pgdecode.partitions.split_statistics import SplitStatistics, from_ipc
from pgdecode.relations.catalog import RelationCatalog, tracker_of
from pgdecode.storage.object_path import FilePath
from spark_udfs.dataframes.partition_worker import PackedIndex
from spark_udfs.jobs.file_tasks import SplitStatisticsTask, SplitTask
from spark_udfs.jobs.job_config import ChangeJob
from spark_udfs.jobs.splits import Split, controls_of, grouped, pieces_of, statistics_of, task_bytes
from spark_udfs.sources.source_options import SourceOptions

_MOST_TASK_BYTES = 128 << 20


@dataclass(frozen=True)
class IndexedPiece:
    """A part of a file: its partitions, their numbers of rows, and the states before them."""

    piece: PayloadFile
    partitions: tuple[Partition, ...]
    counts: tuple[int, ...]
    starts: tuple[ReplicationState, ...]

    @property
    def n_bytes(self) -> int:
        """Approximate uncompressed size."""
        return self.piece.n_bytes

    @property
    def first(self) -> int:
        """Its first position."""
        return self.partitions[0].first

    @property
    def last(self) -> int:
        """Its last position."""
        return self.partitions[-1].last


@dataclass(frozen=True)
class IndexedSplits:
    """The splits of one task, with the part of the index that they need."""

    index: PackedIndex
    splits: tuple[Split, ...]


class SequenceIndex:
    """Reads the messages about transactions and relations of files, in order, and keeps the state after them.

    Parameters
    ----------
    options : SourceOptions
        Of changes or a table.
    catalog : RelationCatalog, optional
        Relations that were described before the first file.
    first_position : int
        Of the first file.
    """

    def __init__(self, options: SourceOptions, catalog: RelationCatalog | None, first_position: int) -> None:
        assert isinstance(options.job, ChangeJob)
        self.options = options
        self.job = options.job
        self.state = ReplicationState(relations=tracker_of(catalog, first_position))
        self.pieces: list[IndexedPiece] = []
        self._builder = IndexBuilder(self.state, self.job.options, in_full=True)
        self._last_session: Any = None
        self._n_partitions = 0
        self._controls: dict[FilePath, FileControl | None] = {}

    @property
    def outcomes(self) -> IndexOutcomes:
        """The outcomes of transactions so far."""
        return self._builder.outcomes

    @property
    def oldest_open(self) -> int:
        """Position where the oldest transaction without an outcome began; -1 without one."""
        return min((item.begin_position for item in self.state.undecided), default=-1)

    @property
    def is_clear(self) -> bool:
        """Whether all that the next file needs to know are the visible relations."""
        state = self.state
        return not (
            self.job.catalog is not None
            or self.job.options.drop_duplicates
            or state.undecided
            or state.in_stream
            or state.skipped.has_head
            or state.skipped.has_streamed_head
            or state.relations.contradictions
        )

    def know(self, catalog: RelationCatalog | None, position: int) -> None:
        """Add relations in the footer of the next file, which begins at a position.

        Footers have only the relations that their files use, so that of the first file may lack them.
        """
        if self.job.catalog is None:
            self.state.relations.add_facts(catalog.facts if catalog else ())
            self.state.relations.add_visible(catalog or (), position)

    def add(self, files: Iterable[PayloadFile]) -> None:
        """Read the next files.

        Raises
        ------
        OrderFault
            If positions do not ascend in a file.
        FileFault
            If a file is damaged or has changed.
        """
        files = list(files)
        pieces = [piece for piece in pieces_of(files, piece_bytes(files)) if piece.n_rows]
        # Of captured files, the footers give the messages without reading the rows.
        self._controls = controls_of(files, self.options.position)
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            for piece, statistics in zip(pieces, threads.map(self._statistics, pieces), strict=True):
                self._follow(piece, statistics)

    def _statistics(self, piece: PayloadFile) -> SplitStatistics:
        from_footer = None if self.options.session is not None else statistics_of([piece], self._controls)
        if from_footer is not None:
            return from_footer
        work = SplitStatisticsTask(self.options.position, self.options.session)
        return work(SplitTask(0, Split((piece,)))).statistics

    def _follow(self, piece: PayloadFile, statistics: SplitStatistics) -> None:
        messages = in_order(from_ipc(statistics.messages))
        payloads, positions = (_array(messages[name]) for name in ("payload", "position"))
        places = positions.to_pylist()
        if self._builder.is_head_streamed is None:
            self._builder.is_head_streamed = head_stream_state(payloads)
        partitions: list[Partition] = []
        starts: list[ReplicationState] = []
        for found in statistics.partitions:
            partitions.append(Partition(found.first, found.last, found.has_rows))
            # Captured files belong to one session each, which their footers name.
            captured = None if piece.captured is None else piece.captured.session
            session = captured if self.options.session is None else found.session
            is_reconnected = self._n_partitions > 0 and session != self._last_session
            start, end = bisect_left(places, found.first), bisect_right(places, found.last)
            messages = payloads.slice(start, end - start), positions.slice(start, end - start)
            starts.append(self._builder.add(partitions[-1], *messages, is_reconnected=is_reconnected))
            self._last_session = session
            self._n_partitions += 1
        counts = tuple(found.n_rows for found in statistics.partitions)
        self.pieces.append(IndexedPiece(piece, tuple(partitions), counts, tuple(starts)))

    def finish(self) -> None:
        """End the sequence: open transactions have no outcome."""
        self.outcomes.end(self.state)

    def forget(self, position: int) -> None:
        """Forget what the changes of later commits do not need. No commit up to a position will be asked for again."""
        known = self.outcomes.transaction_outcomes
        kept = {begin: outcome for begin, outcome in known.items() if outcome.commit_position > position}
        self.outcomes.transaction_outcomes = kept
        first = min([position + 1, *kept, *(item.begin_position for item in self.state.undecided)])
        self.pieces = [piece for piece in self.pieces if piece.last >= first]

    def whole(self, shape: Iterable[int] | None = None) -> PartitionIndex:
        """Make the index of all pieces, for `spark_udfs.dataframes.changes.output_of` and `used_versions`."""
        return self._index(self.pieces, self.outcomes.transaction_outcomes, shape)

    def everything(self) -> list[IndexedSplits]:
        """Divide all pieces into tasks."""
        return self._tasks(self.pieces, self.outcomes.transaction_outcomes)

    def committed(self, after: int, until: int) -> list[IndexedSplits]:
        """Divide the pieces into tasks that have changes committed between two positions.

        A transaction may have begun before. Pieces of earlier files with its changes are decoded again. The caller
        drops the changes of transactions that committed up to `after`.

        Parameters
        ----------
        after, until : int
            The last positions of two files.
        """
        outcomes = {
            begin: outcome
            for begin, outcome in self.outcomes.transaction_outcomes.items()
            if outcome.committed == 1 and after < outcome.commit_position <= until
        }
        first = min([after + 1, *outcomes])
        return self._tasks([piece for piece in self.pieces if piece.last >= first and piece.first <= until], outcomes)

    def _tasks(self, pieces: Sequence[IndexedPiece], outcomes: dict[int, TransactionOutcome]) -> list[IndexedSplits]:
        if not pieces:
            return []
        found = []
        begins = sorted(outcomes)
        wanted = piece_bytes([item.piece for item in pieces])
        for group in grouped(pieces, wanted):
            own = begins[bisect_left(begins, group[0].first) : bisect_right(begins, group[-1].last)]
            own += [item.begin_position for piece in group for start in piece.starts for item in start.undecided]
            index = self._index(group, {begin: outcomes[begin] for begin in own if begin in outcomes}, ())
            counts = tuple(count for item in group for count in item.counts)
            splits = tuple(Split((item.piece,)) for item in group)
            found.append(IndexedSplits(PackedIndex.of(None, index, counts), splits))
        return found

    def _index(
        self,
        pieces: Sequence[IndexedPiece],
        outcomes: dict[int, TransactionOutcome],
        shape: Iterable[int] | None,
    ) -> PartitionIndex:
        partitions = [partition for item in pieces for partition in item.partitions]
        return self._builder.index(partitions, [start for item in pieces for start in item.starts], outcomes, shape)


def _array(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return pa.concat_arrays(combined.chunks) if isinstance(combined, pa.ChunkedArray) else combined


def piece_bytes(pieces: Iterable[PayloadFile]) -> int:
    """Choose the size of pieces and tasks."""
    # This process does not know the number of the executors' cores.
    return task_bytes(sum(piece.n_bytes for piece in pieces), _MOST_TASK_BYTES, os.cpu_count() or 1)
