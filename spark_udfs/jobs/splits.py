"""Splits: consecutive parts of files that a task decodes, which begin and end between transactions if possible.

A piece consists of row groups. A split consists of pieces, and may end inside a transaction. Such a transaction belongs
to the split where it begins. Its rows at the beginning of the next split, if they are few, are sent to the task.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode._native.arrow.payload_array import Source
from pgdecode._native.wire.message_filter import tagged
from pgdecode.changes.replication_state import ReplicationState
from pgdecode.files.file_metadata import FileControl, control_of
from pgdecode.files.ordered_files import OrderFault, Positions
from pgdecode.files.payload_batches import are_payloads, read_together
from pgdecode.files.payload_file import PayloadFile, one_batch
from pgdecode.partitions.partition_index import Partition, PartitionIndex
from pgdecode.partitions.speculation import speculate
from pgdecode.partitions.split_statistics import (
    MESSAGES,
    PartitionStatistics,
    SplitStatistics,
    from_ipc,
    row_numbers,
    take_messages,
    to_ipc,
)
from pgdecode.protocol.boundaries import RELATIONS, STREAM_AND_TWO_PHASE
from pgdecode.relations.catalog import RelationCatalog
from pgdecode.storage.object_path import FilePath
from spark_udfs.dataframes.partition_worker import DECODE_ROWS

# Rows to read at once. Each batch costs some Python calls, whatever its number of rows.
_READ_ROWS = 2 * DECODE_ROWS
# How many rows of a piece are searched for its first Begin, and how many bytes before it may be sent with a split.
_PREVIEW_ROWS = 1024
_HEAD_BYTES = 1 << 20
_LAST_POSITION = 2**63 - 1
# The least size of a task, because starting one has a cost; and enough tasks that all cores finish about together.
_LEAST_TASK_BYTES = 8 << 20
_TASKS_PER_CORE = 2
# The size from which one row group is reported: four of Spark's usual tasks.
_LARGE_BYTES = 512 << 20

Batches = Iterator[tuple[pa.Array, pa.Array]]


@dataclass(frozen=True)
class Split:
    """The rows of pieces, and the rows of their last transaction at the beginning of the next split.

    Attributes
    ----------
    pieces : tuple of PayloadFile
        In the order of their positions. All have rows.
    n_skipped : int
        Number of rows at the beginning that belong to the previous split.
    rest : tuple of PayloadFile
        The pieces of the next split, if the split has rows of it.
    n_rest : int
        Number of these rows.
    messages : bytes
        Arrow stream of these rows.
    """

    pieces: tuple[PayloadFile, ...]
    n_skipped: int = 0
    rest: tuple[PayloadFile, ...] = ()
    n_rest: int = 0
    messages: bytes = b""

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return sum(piece.n_rows for piece in self.pieces) - self.n_skipped + self.n_rest

    @property
    def places(self) -> list[tuple[PayloadFile, int, int]]:
        """Files, the first row in each, and the number of rows."""
        found: list[tuple[PayloadFile, int, int]] = []
        skipped, left = self.n_skipped, self.n_rows
        for piece in (*self.pieces, *self.rest):
            start, n = piece.start + skipped, min(piece.n_rows - skipped, left)
            skipped = max(skipped - piece.n_rows, 0)
            if n <= 0:
                continue
            left -= n
            if found and (found[-1][0].path, sum(found[-1][1:])) == (piece.path, start):
                found[-1] = (*found[-1][:2], found[-1][2] + n)
            else:
                found.append((piece, start, n))
        return found

    def batches(self, position: str) -> Batches:
        """Yield positions and payloads, in batches of at least one row. All payloads have the same type.

        Raises
        ------
        OrderFault
            If positions do not ascend.
        FileFault
            If a file is damaged.
        """
        positions = Positions(position)
        row = 0
        last, type = -1, None
        for placed, payloads in self._placed(positions):
            skipped = min(max(self.n_skipped - row, 0), len(placed))
            row += len(placed)
            if skipped < len(placed):
                last, type = placed[-1].as_py(), type or payloads.type
                payloads = payloads.slice(skipped)
                yield placed.slice(skipped), payloads if payloads.type == type else payloads.cast(type)
        if self.n_rest:
            rest = from_ipc(self.messages)
            if rest["position"][0].as_py() <= last:
                raise OrderFault(f"{self.rest[0].path}: its positions overlap with those of {self.pieces[-1].path}")
            yield rest["position"].combine_chunks(), rest["payload"].combine_chunks().cast(type)

    def _placed(self, positions: Positions) -> Batches:
        """Read the pieces. Batches of small ones are joined, unless a row is wrong: errors have its place in a file."""
        for batches in read_together(self.pieces, _READ_ROWS):
            last = batches[-1].file
            if len(batches) > 1 and are_payloads(batches):
                joined = one_batch([batch.source for batch in batches])
                placed = positions.of_joined(joined, last)
                if placed is not None:
                    yield placed, joined.column(last.payload)
                    continue
            for file, start, source in batches:
                unwrapped = file.unwrapped(source, start)
                yield positions.of(file, start, unwrapped), unwrapped.column(file.payload)

    def batches_with(self, position: str, session: str) -> Iterator[tuple[pa.Array, pa.Array, pa.Array]]:
        """Yield positions, payloads and the values of the session column, for a split of whole pieces.

        Raises
        ------
        OrderFault, FileFault
            As in `batches`.
        """
        positions = Positions(position)
        for piece in self.pieces:
            start = piece.start
            for source in piece.batches(_READ_ROWS):
                placed = positions.of(piece, start, source)
                start += len(source)
                if len(source):
                    yield placed, source.column(piece.payload), source.column(session)

    def row_of(self, wanted: int, position: str) -> tuple[PayloadFile, int] | None:
        """Find the file and the row of a position."""
        n_before = 0
        for positions, _ in self.batches(position):
            place = pc.index(positions, wanted).as_py()
            if place >= 0:
                row = n_before + int(place)
                for piece, start, n_rows in self.places:
                    if row < n_rows:
                        return piece, start + row
                    row -= n_rows
            n_before += len(positions)
        return None


class HasBytes(Protocol):
    """Something to decode, of a known size."""

    @property
    def n_bytes(self) -> int:
        """Approximate uncompressed size."""


Sized = TypeVar("Sized", bound=HasBytes)


def task_bytes(n_bytes: int, most: int, n_cores: int) -> int:
    """Choose the size of tasks for an input of `n_bytes`; at most `most`."""
    return min(most, max(n_bytes // (_TASKS_PER_CORE * n_cores), _LEAST_TASK_BYTES))


def pieces_of(files: Iterable[PayloadFile], wanted: int) -> list[PayloadFile]:
    """Divide files into pieces of about `wanted` bytes, between row groups."""
    return [piece for file in files for piece in file.pieces(wanted)]


def large_row_group(files: Iterable[PayloadFile]) -> str | None:
    """Describe the largest row group, if it takes a task much longer than others.

    Pages of Parquet cannot be read without those before them, so a row group is never divided.
    """
    groups = [(group.n_bytes, file, group) for file in files for group in file.groups]
    if not groups:
        return None
    n_bytes, file, group = max(groups, key=lambda item: item[0])
    if n_bytes <= _LARGE_BYTES:
        return None
    return (
        f"{file.path}: row group {group.number} has {group.n_rows:,} rows with {n_bytes >> 20:,} MiB, and one task "
        f"decodes it, however many cores there are: write smaller row groups, for example of 1,000,000 rows"
    )


def grouped(pieces: Sequence[Sized], wanted: int) -> list[list[Sized]]:
    """Group small pieces into tasks of about `wanted` bytes. There is at least one group."""
    groups: list[list[Sized]] = [[]]
    n_bytes = 0
    for piece in pieces:
        if groups[-1] and n_bytes + piece.n_bytes > wanted:
            groups.append([])
            n_bytes = 0
        groups[-1].append(piece)
        n_bytes += piece.n_bytes
    return groups


@dataclass(frozen=True)
class SplitPreview:
    """Information from the first rows of a split.

    Attributes
    ----------
    first : int
        Position of the first row.
    head : pa.RecordBatch
        The rows before the first Begin; none if there are too many.
    start : int
        Position of the row after `head`.
    relations : pa.RecordBatch
        Relation and Type messages.
    is_plain : bool
        Whether there are no messages of streams and two-phase commits.
    """

    first: int
    head: pa.RecordBatch
    start: int
    relations: pa.RecordBatch
    is_plain: bool


def split_previews(groups: Sequence[Sequence[PayloadFile]], position: str) -> list[SplitPreview]:
    """Preview the first rows of each group of pieces. All pieces have rows.

    Raises
    ------
    OrderFault
        If positions are negative or do not ascend there.
    """
    rows = [_PREVIEW_ROWS] * len(groups)
    rows[:1] = [DECODE_ROWS]  # most relations are described at the beginning of the first piece
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        found = list(threads.map(partial(_split_preview, position), groups, rows))
    for pieces, preview in zip(groups, found, strict=True):
        if preview.first < 0:
            raise OrderFault(f"{pieces[0].path}: {position} {preview.first} is negative")
    return found


def _split_preview(position: str, pieces: Sequence[PayloadFile], n_rows: int) -> SplitPreview:
    found: list[tuple[pa.Array, pa.Array]] = []
    reading = Positions(position)
    for piece in pieces:
        if n_rows <= 0:
            break
        source = next(piece.batches(n_rows)) if piece.skip else piece.first_rows(n_rows)
        found.append((reading.of(piece, piece.start, source), source.column(piece.payload)))
        n_rows = n_rows - len(source) if len(source) == piece.n_rows else 0
    positions = pa.concat_arrays([positions for positions, _ in found])
    # Files may differ in the type of the payloads.
    payloads = pa.concat_arrays([payloads.cast(pa.large_binary()) for _, payloads in found])
    begin = tagged(Source([payloads.slice(0, _PREVIEW_ROWS)]), b"", b"B")[1]
    head = take_messages(positions, payloads, range(max(begin, 0)))
    if head.nbytes > _HEAD_BYTES:
        head = head.slice(0, 0)
    rows, _, _, tags = tagged(Source([payloads]), RELATIONS, b"")
    relations = take_messages(positions, payloads, row_numbers(rows))
    is_plain = not set(STREAM_AND_TWO_PHASE) & set(tags)
    return SplitPreview(positions[0].as_py(), head, positions[len(head)].as_py(), relations, is_plain)


def make_splits(groups: Sequence[Sequence[PayloadFile]], found: Sequence[SplitPreview]) -> list[Split]:
    """Make a split of each group of pieces. Each begins with the first transaction of the group."""
    n_rows = [0, *(len(preview.head) for preview in found[1:]), 0]
    rests = [*(_beginning(pieces, n) for pieces, n in zip(groups[1:], n_rows[1:], strict=False)), ()]
    heads = [*(to_ipc([preview.head]) for preview in found[1:]), b""]
    return [
        Split(tuple(pieces), skipped, rest if n else (), n, messages if n else b"")
        for pieces, skipped, rest, n, messages in zip(groups, n_rows, rests, n_rows[1:], heads, strict=False)
    ]


def _beginning(pieces: Sequence[PayloadFile], n_rows: int) -> tuple[PayloadFile, ...]:
    """Return the pieces that have the first `n_rows` rows."""
    before = accumulate((piece.n_rows for piece in pieces), initial=0)
    return tuple(piece for piece, n in zip(pieces, before, strict=False) if n < n_rows)


def controls_of(files: Iterable[PayloadFile], position: str) -> dict[FilePath, FileControl | None]:
    """Read the control messages in the footers of whole files. Other files have None."""
    return {file.path: None if file.skip else control_of(file, position) for file in files if file.n_rows}


def statistics_of(
    pieces: Sequence[PayloadFile], controls: Mapping[FilePath, FileControl | None]
) -> SplitStatistics | None:
    """Make the statistics of a split from control messages; None if a file has none."""
    partitions: list[PartitionStatistics] = []
    messages: list[pa.RecordBatch] = []
    for piece in pieces:
        control = controls[piece.path]
        if control is None or piece.captured is None:
            return None
        session = piece.captured.session
        for number in (group.number for group in piece.groups):
            columns = [control.positions[number], control.payloads[number].cast(pa.large_binary())]
            messages.append(pa.RecordBatch.from_arrays(columns, schema=MESSAGES))
            first, last, has_rows = control.partitions[number]
            n_rows = control.n_rows[number]
            if partitions and partitions[-1].session == session:
                before = partitions.pop()
                first, has_rows, n_rows = before.first, before.has_rows or has_rows, before.n_rows + n_rows
            partitions.append(PartitionStatistics(first, last, has_rows, n_rows, session))
    return SplitStatistics(tuple(partitions), to_ipc(messages), is_plain=False, in_full=True)


def speculation_of(
    found: Sequence[SplitPreview], catalog: RelationCatalog | None, state: ReplicationState | None = None
) -> PartitionIndex | None:
    """Make the preliminary index of splits from their previews; None if speculation would probably fail."""
    if state is not None and (state.streamed or state.is_reconnected):
        return None
    starts = [*(preview.first for preview in found[:1]), *(preview.start for preview in found[1:]), _LAST_POSITION]
    if not all(preview.is_plain for preview in found) or any(a >= b for a, b in pairwise(starts)):
        return None
    partitions = [Partition(first, after - 1) for first, after in pairwise(starts)]
    messages = pa.Table.from_batches([preview.relations for preview in found], MESSAGES).sort_by("position")
    positions = messages["position"].combine_chunks()
    return speculate(partitions, messages["payload"], positions, catalog=catalog, state=state)
