"""Splits: parts of files that a task decodes, which begin and end between transactions if possible.

A piece consists of row groups, which may end inside a transaction. Such a transaction belongs to the split where it
begins. Its rows at the beginning of the next piece, if they are few, are sent to the task with the split.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode._native.arrow.int64_kernels import counted
from pgdecode._native.arrow.payload_array import Source
from pgdecode._native.wire.message_filter import tagged
from pgdecode.changes.replication_state import ReplicationState
from pgdecode.files.ordered_files import OrderFault, Positions
from pgdecode.files.payload_files import PayloadFile
from pgdecode.partitions.partition_index import Partition, PartitionIndex
from pgdecode.partitions.speculation import speculate
from pgdecode.protocol.boundaries import APART, RELATIONS
from pgdecode.relations.catalog import RelationCatalog
from spark_udfs.dataframes.partition_worker import DECODE_ROWS

# Messages with their positions.
MESSAGES = pa.schema([("position", pa.int64()), ("payload", pa.large_binary())])
# Rows to read at once. Each batch costs some Python calls, whatever its number of rows.
_READ_ROWS = 2 * DECODE_ROWS
# How many rows of a piece are searched for its first Begin, and how many bytes before it may be sent with a split.
_PREVIEW_ROWS = 1024
_HEAD_BYTES = 1 << 20
_LAST_POSITION = 2**63 - 1
# The least size of a task, because starting one has a cost; and enough tasks that all cores finish about together.
_LEAST_TASK_BYTES = 8 << 20
_TASKS_PER_CORE = 2

Batches = Iterator[tuple[pa.Array, pa.Array]]


@dataclass(frozen=True)
class Split:
    """The rows of a piece, and the rows of its last transaction at the beginning of the next piece.

    Attributes
    ----------
    piece : PayloadFile
    n_skipped : int
        Number of rows at its beginning that belong to the previous split.
    rest : PayloadFile or None
        The next piece, if the split has rows of it.
    n_rest : int
        Number of these rows.
    messages : bytes
        Arrow stream of these rows.
    counted_from : int or None
        The position of the piece's first row, if positions were deduced from the file's statistics. `batches` checks
        that positions increase by one from there to the first row of the split.
    """

    piece: PayloadFile
    n_skipped: int = 0
    rest: PayloadFile | None = None
    n_rest: int = 0
    messages: bytes = b""
    counted_from: int | None = None

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.piece.n_rows - self.n_skipped + self.n_rest

    @property
    def n_bytes(self) -> int:
        """Approximate uncompressed size."""
        return self.piece.n_bytes

    @property
    def places(self) -> list[tuple[PayloadFile, int, int]]:
        """Files, the first row in each, and the number of rows."""
        own = (self.piece, self.piece.start + self.n_skipped, self.piece.n_rows - self.n_skipped)
        if self.rest is None:
            return [own]
        if (self.rest.path, self.rest.start) == (self.piece.path, self.piece.start + self.piece.n_rows):
            return [(*own[:2], self.n_rows)]
        return [own, (self.rest, self.rest.start, self.n_rest)]

    def batches(self, position: str) -> Batches:
        """Yield positions and payloads, in batches of at least one row.

        Raises
        ------
        OrderFault
            If positions do not ascend, or differ from the file's statistics.
        FileFault
            If the file is damaged.
        """
        positions = Positions(position)
        row = 0
        last, type = -1, pa.large_binary()
        for source in self.piece.batches(_READ_ROWS):
            placed = positions.of(self.piece, self.piece.start + row, source)
            skipped = min(max(self.n_skipped - row, 0), len(source))
            if row <= self.n_skipped:
                self._check_counted(row, placed[: self.n_skipped - row + 1])
            row += len(source)
            if skipped < len(source):
                payloads = source.column(self.piece.payload)
                last, type = placed[-1].as_py(), payloads.type
                yield placed.slice(skipped), payloads.slice(skipped)
        if self.n_rest:
            rest = from_ipc(self.messages)
            if rest["position"][0].as_py() <= last:
                raise OrderFault(f"{self.piece.path}: its positions overlap with those of another piece")
            yield rest["position"].combine_chunks(), rest["payload"].combine_chunks().cast(type)

    def batches_with(self, position: str, session: str) -> Iterator[tuple[pa.Array, pa.Array, pa.Array]]:
        """Yield positions, payloads and the values of the session column, for a split that is a whole piece.

        Raises
        ------
        OrderFault, FileFault
            As in `batches`.
        """
        positions = Positions(position)
        row = 0
        for source in self.piece.batches(_READ_ROWS):
            placed = positions.of(self.piece, self.piece.start + row, source)
            row += len(source)
            if len(source):
                yield placed, source.column(self.piece.payload), source.column(session)

    def _check_counted(self, row: int, positions: pa.Array) -> None:
        if self.counted_from is None:
            return
        # Positions ascend. If the first and the last are as far apart as their rows, all increase by one.
        first = self.counted_from + row
        if (positions[0].as_py(), positions[-1].as_py()) != (first, first + len(positions) - 1):
            raise OrderFault(f"{self.piece.path}: positions differ from the file's statistics")

    def row_of(self, wanted: int, position: str) -> tuple[PayloadFile, int] | None:
        """Find the file and the row of a position."""
        n_before = 0
        for positions, _ in self.batches(position):
            place = pc.index(positions, wanted).as_py()
            if place >= 0:
                row = n_before + int(place)
                n_own = self.piece.n_rows - self.n_skipped
                if self.rest is not None and row >= n_own:
                    return self.rest, self.rest.start + row - n_own
                return self.piece, self.piece.start + self.n_skipped + row
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
    """Information from the first rows of a piece.

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
    is_counted : bool
        Whether positions were deduced from the file's statistics, and not read.
    """

    first: int
    head: pa.RecordBatch
    start: int
    relations: pa.RecordBatch
    is_plain: bool
    is_counted: bool


def split_previews(pieces: Sequence[PayloadFile], position: str) -> list[SplitPreview] | None:
    """Preview the first rows of each piece; None if positions do not ascend there. All pieces have rows."""
    rows = [_PREVIEW_ROWS] * len(pieces)
    rows[:1] = [DECODE_ROWS]  # most relations are described at the beginning of the first piece
    try:
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            found = list(threads.map(partial(_split_preview, position), pieces, rows))
    except OrderFault:
        return None
    return None if any(preview.first < 0 for preview in found) else found


def _split_preview(position: str, piece: PayloadFile, n_rows: int) -> SplitPreview:
    first = dict(piece.groups[0].counted).get(position, -1)
    is_counted = first >= 0 and piece.groups[0].n_rows >= min(n_rows, piece.n_rows)
    if is_counted:
        # Reading the position column would take as long as reading the payload column.
        source = replace(piece, keep=()).first_rows(n_rows)
        positions = pa.Array.from_buffers(pa.int64(), len(source), [None, counted(first, len(source))])
    else:
        source = piece.first_rows(n_rows)
        positions = Positions(position).of(piece, piece.start, source)
    payloads = source.column(piece.payload)
    begin = tagged(Source([payloads.slice(0, _PREVIEW_ROWS)]), b"", b"B")[1]
    head = take_messages(positions, payloads, range(max(begin, 0)))
    if head.nbytes > _HEAD_BYTES:
        head = head.slice(0, 0)
    rows, _, _, tags = tagged(Source([payloads]), RELATIONS, b"")
    relations = take_messages(positions, payloads, row_numbers(rows))
    is_plain = not set(APART) & set(tags)
    return SplitPreview(positions[0].as_py(), head, positions[len(head)].as_py(), relations, is_plain, is_counted)


def make_splits(pieces: Sequence[PayloadFile], found: Sequence[SplitPreview]) -> list[Split]:
    """Make splits of pieces in the order of their positions. Each begins with a piece's first transaction."""
    n_rows = [0, *(len(preview.head) for preview in found[1:]), 0]
    rests = [*pieces[1:], None]
    heads = [*(to_ipc([preview.head]) for preview in found[1:]), b""]
    firsts = [preview.first if preview.is_counted else None for preview in found]
    return [
        Split(piece, skipped, rest, n, messages, first) if n else Split(piece, skipped, counted_from=first)
        for piece, skipped, rest, n, messages, first in zip(
            pieces, n_rows, rests, n_rows[1:], heads, firsts, strict=False
        )
    ]


def sort_by_position(
    pieces: Sequence[PayloadFile], found: Sequence[SplitPreview]
) -> tuple[list[PayloadFile], list[SplitPreview]]:
    """Sort pieces by their first positions."""
    places = sorted(range(len(found)), key=lambda place: found[place].first)
    return [pieces[place] for place in places], [found[place] for place in places]


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


def row_numbers(rows: pa.Buffer | None) -> pa.Array:
    """Convert the row numbers from `tagged` to an array."""
    if rows is None:
        return pa.array([], pa.int64())
    return pa.Array.from_buffers(pa.int64(), rows.size // 8, [None, rows])


def take_messages(positions: pa.Array, payloads: pa.Array, rows: pa.Array | Iterable[int]) -> pa.RecordBatch:
    """Select messages by their rows."""
    rows = rows if isinstance(rows, pa.Array) else pa.array(rows, pa.int64())
    columns = [positions.take(rows), payloads.take(rows).cast(pa.large_binary())]
    return pa.RecordBatch.from_arrays(columns, schema=MESSAGES)


def to_ipc(batches: Sequence[pa.RecordBatch]) -> bytes:
    """Write messages as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, MESSAGES) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return bytes(sink.getvalue())


def from_ipc(messages: bytes) -> pa.Table:
    """Read messages that `to_ipc` wrote."""
    with pa.ipc.open_stream(messages) as reader:
        return reader.read_all()
