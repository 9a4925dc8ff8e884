"""Pieces of files that each begin and end between transactions, where that is near: what a task decodes as a run.

Row groups end anywhere. As lines of text files that are cut by bytes belong to who has their beginning, a transaction
belongs to the span in which it begins: the few rows of it that the next piece begins with are sent along.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode._native.arrow.int64_kernels import counted
from pgdecode._native.arrow.payload_array import Source
from pgdecode._native.wire.message_filter import tagged
from pgdecode.files.ordered_files import OrderFault, Positions
from pgdecode.files.payload_files import PayloadFile
from pgdecode.partitions.partition_index import Partition, PartitionIndex
from pgdecode.partitions.speculation import speculate
from pgdecode.protocol.boundaries import APART, RELATIONS
from pgdecode.relations.catalog import RelationCatalog
from spark_udfs.dataframes.partition_worker import RUN_ROWS

# Messages with their positions.
MESSAGES = pa.schema([("position", pa.int64()), ("payload", pa.large_binary())])
# What is read at a time: a batch costs Python some calls, however many rows it has.
_READ_ROWS = 2 * RUN_ROWS
# Rows among which a piece is searched for its first Begin, and their bytes that may be sent along.
_LOOK_ROWS = 1024
_LOOK_BYTES = 1 << 20
_LAST_POSITION = 2**63 - 1

Batches = Iterator[tuple[pa.Array, pa.Array]]


@dataclass(frozen=True)
class Split:
    """Rows of a piece, and those at the beginning of the next one that are of its last transaction.

    Attributes
    ----------
    piece : PayloadFile
    n_skipped : int
        Rows at its beginning that are the span's before.
    rest : PayloadFile or None
        The next piece, where the span has rows of it.
    n_rest : int
        How many.
    messages : bytes
        Arrow stream of these rows.
    counted_from : int or None
        The position that the piece's first row must have, and the rows behind it up to the span's first one more and
        more: they have been told by statistics, and not been read.
    """

    piece: PayloadFile
    n_skipped: int = 0
    rest: PayloadFile | None = None
    n_rest: int = 0
    messages: bytes = b""
    counted_from: int | None = None

    @property
    def n_rows(self) -> int:
        """Rows in all."""
        return self.piece.n_rows - self.n_skipped + self.n_rest

    @property
    def n_bytes(self) -> int:
        """What they take up unpacked, about."""
        return self.piece.n_bytes

    @property
    def places(self) -> list[tuple[PayloadFile, int, int]]:
        """Files, the first row of each, and how many rows."""
        own = (self.piece, self.piece.start + self.n_skipped, self.piece.n_rows - self.n_skipped)
        if self.rest is None:
            return [own]
        if (self.rest.path, self.rest.start) == (self.piece.path, self.piece.start + self.piece.n_rows):
            return [(*own[:2], self.n_rows)]
        return [own, (self.rest, self.rest.start, self.n_rest)]

    def batches(self, position: str) -> Batches:
        """Positions and payloads, in batches of at least one row.

        Raises
        ------
        OrderFault
            If positions do not ascend, or are not what they have been told.
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
                self._check_told(row, placed[: self.n_skipped - row + 1])
            row += len(source)
            if skipped < len(source):
                payloads = source.column(self.piece.payload)
                last, type = placed[-1].as_py(), payloads.type
                yield placed.slice(skipped), payloads.slice(skipped)
        if self.n_rest:
            rest = unpacked(self.messages)
            if rest["position"][0].as_py() <= last:
                raise OrderFault(f"{self.piece.path}: goes past the beginning of another piece")
            yield rest["position"].combine_chunks(), rest["payload"].combine_chunks().cast(type)

    def batches_with(self, position: str, session: str) -> Iterator[tuple[pa.Array, pa.Array, pa.Array]]:
        """Positions, payloads and the values of a further column, for a span that is a piece.

        Raises
        ------
        OrderFault, FileFault
            As of `batches`.
        """
        positions = Positions(position)
        row = 0
        for source in self.piece.batches(_READ_ROWS):
            placed = positions.of(self.piece, self.piece.start + row, source)
            row += len(source)
            if len(source):
                yield placed, source.column(self.piece.payload), source.column(session)

    def _check_told(self, row: int, positions: pa.Array) -> None:
        if self.counted_from is None:
            return
        # They ascend: between two that are as far apart as their rows they count up.
        first = self.counted_from + row
        if (positions[0].as_py(), positions[-1].as_py()) != (first, first + len(positions) - 1):
            raise OrderFault(f"{self.piece.path}: positions are not what the file's statistics say")

    def row_of(self, wanted: int, position: str) -> tuple[PayloadFile, int] | None:
        """Find the file, and its row, that have a position."""
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


@dataclass(frozen=True)
class SplitPreview:
    """What the first rows of a piece show.

    Attributes
    ----------
    first : int
        Position of the first one.
    head : pa.RecordBatch
        Those before the first Begin, none where it is far.
    start : int
        Position of the row after them.
    relations : pa.RecordBatch
        Relation and Type messages.
    is_plain : bool
        Whether there are no messages of streams and two-phase commits.
    is_counted : bool
        Whether positions have been told by statistics, and not been read.
    """

    first: int
    head: pa.RecordBatch
    start: int
    relations: pa.RecordBatch
    is_plain: bool
    is_counted: bool


def split_previews(pieces: Sequence[PayloadFile], position: str) -> list[SplitPreview] | None:
    """Look at the beginning of each piece, all of them with rows; None if positions do not ascend there."""
    rows = [_LOOK_ROWS] * len(pieces)
    rows[:1] = [RUN_ROWS]  # where relations are described, most of all
    try:
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            found = list(threads.map(partial(_split_preview, position), pieces, rows))
    except OrderFault:
        return None
    return None if any(look.first < 0 for look in found) else found


def _split_preview(position: str, piece: PayloadFile, n_rows: int) -> SplitPreview:
    first = dict(piece.groups[0].counted).get(position, -1)
    is_counted = first >= 0 and piece.groups[0].n_rows >= min(n_rows, piece.n_rows)
    if is_counted:
        # The column of positions takes as long to read as that of payloads.
        source = replace(piece, keep=()).first_rows(n_rows)
        positions = pa.Array.from_buffers(pa.int64(), len(source), [None, counted(first, len(source))])
    else:
        source = piece.first_rows(n_rows)
        positions = Positions(position).of(piece, piece.start, source)
    payloads = source.column(piece.payload)
    begin = tagged(Source([payloads.slice(0, _LOOK_ROWS)]), b"", b"B")[1]
    head = taken(positions, payloads, range(max(begin, 0)))
    if head.nbytes > _LOOK_BYTES:
        head = head.slice(0, 0)
    rows, _, _, tags = tagged(Source([payloads]), RELATIONS, b"")
    relations = taken(positions, payloads, numbers(rows))
    is_plain = not set(APART) & set(tags)
    return SplitPreview(positions[0].as_py(), head, positions[len(head)].as_py(), relations, is_plain, is_counted)


def spans(pieces: Sequence[PayloadFile], found: Sequence[SplitPreview]) -> list[Split]:
    """Cut pieces, in the order of their positions, where their first transactions begin."""
    n_rows = [0, *(len(look.head) for look in found[1:]), 0]
    rests = [*pieces[1:], None]
    heads = [*(packed([look.head]) for look in found[1:]), b""]
    firsts = [look.first if look.is_counted else None for look in found]
    return [
        Split(piece, skipped, rest, n, messages, first) if n else Split(piece, skipped, counted_from=first)
        for piece, skipped, rest, n, messages, first in zip(
            pieces, n_rows, rests, n_rows[1:], heads, firsts, strict=False
        )
    ]


def ordered(
    pieces: Sequence[PayloadFile], found: Sequence[SplitPreview]
) -> tuple[list[PayloadFile], list[SplitPreview]]:
    """Put pieces into the order of their positions."""
    places = sorted(range(len(found)), key=lambda place: found[place].first)
    return [pieces[place] for place in places], [found[place] for place in places]


def speculation_of(found: Sequence[SplitPreview], catalog: RelationCatalog | None) -> PartitionIndex | None:
    """Tell spans what they have to know, if their beginnings are like the rest; None if that is not to be hoped for."""
    starts = [*(look.first for look in found[:1]), *(look.start for look in found[1:]), _LAST_POSITION]
    if not all(look.is_plain for look in found) or any(a >= b for a, b in pairwise(starts)):
        return None
    runs = [Partition(first, after - 1) for first, after in pairwise(starts)]
    messages = pa.Table.from_batches([look.relations for look in found], MESSAGES).sort_by("position")
    return speculate(runs, messages["payload"], messages["position"].combine_chunks(), catalog=catalog)


def numbers(rows: pa.Buffer | None) -> pa.Array:
    """Numbers of rows, as `tagged` gives them."""
    if rows is None:
        return pa.array([], pa.int64())
    return pa.Array.from_buffers(pa.int64(), rows.size // 8, [None, rows])


def taken(positions: pa.Array, payloads: pa.Array, rows: pa.Array | Iterable[int]) -> pa.RecordBatch:
    """Take some messages."""
    rows = rows if isinstance(rows, pa.Array) else pa.array(rows, pa.int64())
    columns = [positions.take(rows), payloads.take(rows).cast(pa.large_binary())]
    return pa.RecordBatch.from_arrays(columns, schema=MESSAGES)


def packed(batches: Sequence[pa.RecordBatch]) -> bytes:
    """Make messages bytes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, MESSAGES) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return bytes(sink.getvalue())


def unpacked(messages: bytes) -> pa.Table:
    """Undo `packed`."""
    with pa.ipc.open_stream(messages) as reader:
        return reader.read_all()
