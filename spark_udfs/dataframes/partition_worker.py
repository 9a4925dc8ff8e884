"""Decodes changes in Spark's Python workers: decodes the partitions in a Spark partition one after the other.

A partition is a contiguous range of positions, as in `pgdecode.partitions.partition_index`. A task gets whole
partitions, each in ascending order of position, and the index.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode._native.arrow.payload_array import Source
from pgdecode.changes.committed_changes import ChangeSlice, values_of
from pgdecode.changes.record_batches import Builder, counted_batch, fitting_batches
from pgdecode.changes.replication_state import CommittedChanges
from pgdecode.changes.transaction_assembler import TransactionAssembler
from pgdecode.files.ordered_files import OrderFault
from pgdecode.partitions.partition_decoder import PartitionDecoder
from pgdecode.partitions.partition_index import PartitionIndex, slices
from pgdecode.protocol.options import ChangeOptions
from pgdecode.relations.catalog import RelationCatalog
from spark_udfs.dataframes.kept_changes import KeptChanges
from spark_udfs.dataframes.outputs import Output
from spark_udfs.runtime.worker import WorkerFunction, enter_task

# An error column in addition to the columns of the output.
ERROR = "_pgdecode_error"
# Rows to decode at once, because Spark's own batches are short; and the greatest number of changes in a batch, because
# a decoded change may be some times as large as its payload.
DECODE_ROWS = 65_536
# Enough rows to decode them. Waiting for more rows would only mean copying all of them.
_ENOUGH_ROWS = DECODE_ROWS - DECODE_ROWS // 8
_BYTES = 16 << 20


class RowsMoved(RuntimeError):
    """The rows differ from those that were indexed."""


NOT_THE_SAME = (
    "the DataFrame does not return the same rows in the same partitions each time it is read: call persist(), or write "
    "it to files and read these"
)


@dataclass(frozen=True)
class PackedIndex:
    """The index of one source for the tasks.

    Attributes
    ----------
    source : object
        Value of the source column; None without one.
    index : bytes
        `PartitionIndex.packed`.
    counts : tuple of int
        Number of rows in each partition.
    """

    source: Any
    index: bytes
    counts: tuple[int, ...]

    @classmethod
    def of(cls, source: Any, index: PartitionIndex, counts: tuple[int, ...]) -> PackedIndex:
        """Pack an index."""
        return cls(source, index.packed(), counts)

    @property
    def unpacked(self) -> PartitionIndex:
        """The index."""
        return _unpacked(self.index)


# A worker process runs many tasks with the same index.
_unpacked = functools.lru_cache(maxsize=8)(PartitionIndex.unpacked)


@dataclass(frozen=True)
class PartitionDecodingFunction(WorkerFunction):
    """A function for `mapInArrow` that decodes the changes of a Spark partition.

    The columns are position, payload and, if any, source.

    Attributes
    ----------
    indexes : tuple of PackedIndex
    output : Output
    options : ChangeOptions
    fields : tuple of str
        Columns of the output to return.
    source : str or None
        Name of the source column, which comes first.
    with_errors : bool
        Whether to add a last column, `ERROR`, with the error of each row.
    """

    indexes: tuple[PackedIndex, ...]
    output: Output
    options: ChangeOptions
    fields: tuple[str, ...]
    source: str | None
    with_errors: bool = False

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Decode the partitions one after the other."""
        enter_task()
        known = {item.source: item for item in self.indexes}
        builders: dict[Any, Builder] = {}
        partition: DecodedPartition | None = None
        last_sent: pa.Scalar | None = None
        for sent, positions, payloads in pieces_by_source(batches, self.source is not None):
            source = None if sent is None else sent.as_py()
            if source not in known:
                raise RowsMoved(f"source {source!r} was not indexed: {NOT_THE_SAME}")
            index = known[source].unpacked
            if source not in builders:
                builders[source] = self.output.builder(source, index, self.options)
            for number, start, end in ascending_slices(index, positions):
                if partition is None or partition.number != number or partition.source != source:
                    if partition is not None:
                        yield from self.spark_batches(partition.finish(), last_sent)
                    partition = DecodedPartition(number, known[source], [builders[source]], self.options)
                last_sent = sent
                piece = (positions.slice(start, end - start), payloads.slice(start, end - start))
                yield from self.spark_batches(partition.add(*piece), sent)
        if partition is not None:
            yield from self.spark_batches(partition.finish(), last_sent)

    def spark_batches(
        self, batches: Iterator[tuple[int, pa.RecordBatch]], source: pa.Scalar | None
    ) -> Iterator[pa.RecordBatch]:
        """Convert batches to the columns for Spark."""
        for _, batch in batches:
            columns = [batch.column(name) for name in self.fields]
            if source is not None:
                columns.insert(0, pa.repeat(source, len(batch)))
            names = [*([self.source] if self.source else ()), *self.fields]
            given = pa.RecordBatch.from_arrays(columns, names=names)
            if self.with_errors:
                given = given.append_column(ERROR, batch.column(self.output.error))
            yield given


def pieces_by_source(
    batches: Iterator[pa.RecordBatch], has_source: bool
) -> Iterator[tuple[pa.Scalar | None, pa.Array, pa.Array]]:
    """Split batches of position, payload and, if any, source into pieces of one source each."""
    for batch in batches:
        positions, payloads = batch.column(0), batch.column(1)
        if not has_source:
            yield None, positions, payloads
            continue
        start = 0
        encoded = pc.run_end_encode(batch.column(2))
        for number, end in enumerate(encoded.run_ends.to_pylist()):
            yield encoded.values[number], positions.slice(start, end - start), payloads.slice(start, end - start)
            start = end


def ascending_slices(index: PartitionIndex, positions: pa.Array) -> Iterator[tuple[int, int, int]]:
    """Split positions into ascending slices of one partition each: (partition, start, end)."""
    numbers = values_of(positions)
    descents = pc.less_equal(positions.slice(1), positions.slice(0, max(len(positions) - 1, 0)))
    first = 0
    for end in (*(row + 1 for row in pc.indices_nonzero(descents).to_pylist()), len(numbers)):
        try:
            for number, start, stop in slices(index, numbers[first:end]):
                yield number, first + start, first + stop
        except LookupError as error:
            raise RowsMoved(f"{error}: {NOT_THE_SAME}") from None
        first = end


def _not_ascending(before: int, after: int) -> Exception:
    if before == after:
        return OrderFault(f"position {after} occurs twice, but positions must be unique")
    return RowsMoved(f"position {after} comes after {before}: {NOT_THE_SAME}")


class DecodedPartition:
    """Decodes one partition with several builders, in batches of a good size.

    Batches are yielded with the number of their builder. `on_assembled` is called with the positions, payloads and
    assembler of each piece, before batches are built. Bad rows are counted for each builder by error code, in
    `bad_rows`. Changes without an outcome are added to `kept`.
    """

    def __init__(
        self,
        number: int,
        plain: PackedIndex,
        builders: Sequence[Builder],
        options: ChangeOptions,
        on_assembled: Callable[[pa.Array, pa.Array, TransactionAssembler], None] | None = None,
        bad_rows: list[Counter[str]] | None = None,
        kept: KeptChanges | None = None,
    ) -> None:
        self.source = plain.source
        self.number = number
        index = plain.unpacked
        # Changes that are kept may be of any table.
        versions = None if kept is not None and index.keeps(number) else numbers_of(builders)
        keep = None if kept is None else kept.keep
        self.tail: Tail | None = None
        if keep is None or versions is None or number + 1 < len(index.partitions):
            self.decoder = PartitionDecoder(index, number, options, versions, keep)
        else:
            # A speculative index does not know whether a transaction is open at the end.
            self.decoder = PartitionDecoder(index, number, options, versions)
            self.tail = Tail(self.decoder, PartitionDecoder(index, number, options, keep=keep), index.catalog)
        self.builders = builders
        self.on_assembled = on_assembled
        self.drop_bad = options.mode == "DROPMALFORMED"
        self.bad_rows: list[Counter[str]] = [Counter() for _ in builders] if bad_rows is None else bad_rows
        self.n_expected = plain.counts[number]
        self.n_rows = 0
        self.last = -1
        self.pieces: list[tuple[pa.Array, pa.Array]] = []
        self.n_waiting = 0
        self.n_bytes = 0

    def add(self, positions: pa.Array, payloads: pa.Array) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Add the next rows. If there are enough, decode them and yield the committed changes."""
        first = positions[0].as_py()
        if first <= self.last:
            raise _not_ascending(self.last, first)
        self.last = positions[-1].as_py()
        self.n_rows += len(positions)
        self.pieces.append((positions, payloads))
        self.n_waiting += len(positions)
        self.n_bytes += payloads.nbytes
        if self.n_waiting >= _ENOUGH_ROWS or self.n_bytes >= _BYTES:
            yield from self._decode()

    def finish(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Decode the last rows, and yield the remaining changes."""
        if self.n_rows != self.n_expected:
            partition = self.decoder.partition
            raise RowsMoved(
                f"positions {partition.first} to {partition.last}: {self.n_expected} rows were indexed, "
                f"{self.n_rows} were read: {NOT_THE_SAME}"
            )
        yield from self._decode()
        if self.tail is not None:
            self.tail.finish()
        yield from self._build(*self.decoder.finish())

    def _decode(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        if self.pieces:
            positions, payloads = self.pieces[0]
            if len(self.pieces) > 1:
                positions, payloads = (pa.concat_arrays(column) for column in zip(*self.pieces, strict=True))
            self.pieces, self.n_waiting, self.n_bytes = [], 0, 0
            follow = self.decoder.follow if self.tail is None else self.tail.follow
            assembler, changes = follow(payloads, positions)
            if self.on_assembled is not None:
                self.on_assembled(positions, payloads, assembler)
            yield from self._build(assembler, changes)

    def _build(
        self, assembler: TransactionAssembler, changes: CommittedChanges
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        yield from build(assembler, changes, self.builders, self.drop_bad, self.bad_rows)


class Tail:
    """The batches since the one in which the open transaction began: its changes of all tables are kept at the end.

    Decoding only some tables lists only their changes, so these batches are processed again.
    """

    def __init__(self, of_tables: PartitionDecoder, of_all: PartitionDecoder, versions: RelationCatalog) -> None:
        self.of_tables = of_tables
        self.of_all = of_all  # with `keep`
        self.versions = versions
        self.begin_position: int | None = None
        self.before = of_all.state  # before the first of the batches
        self.batches: list[tuple[pa.Array, pa.Array]] = []

    def follow(self, payloads: pa.Array, positions: pa.Array) -> tuple[TransactionAssembler, CommittedChanges]:
        """Process the next payloads, as the decoder of some tables does, and note whether they must be kept."""
        before = self.of_tables.state.copy(with_versions=False)
        found = self.of_tables.follow(payloads, positions)
        transaction = self.of_tables.state.open
        begin_position = None if transaction is None else transaction.begin_position
        if begin_position is None or begin_position != self.begin_position:
            self.begin_position, self.before, self.batches = begin_position, before, []
        if begin_position is not None:
            self.batches.append((payloads, positions))
        return found

    def finish(self) -> None:
        """Keep the changes of the open transaction, if any."""
        if self.begin_position is None:
            return
        self.before.relations.preload(self.versions)
        self.of_all.state = self.before
        for payloads, positions in self.batches:
            self.of_all.follow(payloads, positions)
        self.of_all.finish()


def build(
    assembler: TransactionAssembler,
    changes: CommittedChanges,
    builders: Sequence[Builder],
    drop_bad: bool,
    bad_rows: list[Counter[str]],
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Build batches of a good size with several builders. Yield each with the number of its builder."""
    assembler.release()
    source = Source(changes.parts)
    for start, n in _cuts(changes):
        change_slice = ChangeSlice(assembler, changes, source, start, n)
        for number, builder in enumerate(builders):
            for batch in fitting_batches(builder, change_slice):
                yield number, counted_batch(batch, builder.error, drop_bad, bad_rows[number])


def numbers_of(builders: Sequence[Builder]) -> frozenset[int] | None:
    """Collect the versions of relations whose changes the builders build; None for all."""
    found: set[int] = set()
    for builder in builders:
        if builder.numbers is None:
            return None
        found.update(builder.numbers)
    return frozenset(found)


def _cuts(changes: CommittedChanges) -> Iterator[tuple[int, int]]:
    """Divide committed changes into slices, (start, length), with a limited size of payloads."""
    n = changes.found["rows"].size // 8
    if sum(part.nbytes for part in changes.parts) <= _BYTES:
        yield from ((start, min(DECODE_ROWS, n - start)) for start in range(0, n, DECODE_ROWS))
        return
    rows = pa.Array.from_buffers(pa.int64(), n, [None, changes.found["rows"]])
    sizes = pa.concat_arrays([pc.binary_length(part).cast(pa.int64()) for part in changes.parts]).fill_null(0)
    ends = values_of(pc.cumulative_sum(sizes.take(rows)))
    start = before = 0
    while start < n:
        end = min(max(bisect_right(ends, before + _BYTES, start), start + 1), start + DECODE_ROWS, n)
        yield start, end - start
        start, before = end, ends[end - 1]
