"""Statistics of consecutive payloads, and those of their messages that an index of partitions needs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode._native.arrow.payload_array import Source
from pgdecode._native.wire.message_filter import tagged
from pgdecode.changes.scanned_batch import NO_KIND
from pgdecode.changes.transaction_assembler import TransactionAssembler
from pgdecode.partitions.partition_index import first_boundary
from pgdecode.protocol.boundaries import ALWAYS_NEEDED, BEGIN_COMMIT, ROWS, STREAM_AND_TWO_PHASE, needed
from pgdecode.protocol.messages import MESSAGES as KINDS
from pgdecode.protocol.messages import LogicalMessage
from pgdecode.protocol.wire import offset_of
from pgdecode.relations.version_tracker import SchemaChanged

# Messages with their positions.
MESSAGES = pa.schema([("position", pa.int64()), ("payload", pa.large_binary())])
_MOST_HEAD_ROWS = 1000


class PartitionStatistics(NamedTuple):
    """Statistics of a partition: consecutive rows of a split that one session has sent.

    Attributes
    ----------
    first, last : int
        Positions.
    has_rows : bool
        Whether it has inserts, updates, deletes or truncates.
    n_rows : int
    session : object
        Value of the session column; None without one.
    commit : (int, int)
        The greatest commit LSN and the position of that commit, if transactions were assembled; otherwise -1.
    """

    first: int
    last: int
    has_rows: bool
    n_rows: int
    session: Any = None
    commit: tuple[int, int] = (-1, -1)


class SplitStatistics(NamedTuple):
    """Statistics of a split, for the index.

    Attributes
    ----------
    partitions : tuple of PartitionStatistics
        One, or one for each session if there is a session column.
    messages : bytes
        Arrow stream of the messages that `pgdecode.partitions.partition_index.index_partitions` needs.
    is_plain : bool
        Whether there are no messages of streams and two-phase commits.
    in_full : bool
        As in `index_partitions`.
    """

    partitions: tuple[PartitionStatistics, ...]
    messages: bytes
    is_plain: bool
    in_full: bool


class SplitStatisticsReader:
    """Collects the statistics of a split, batch by batch.

    Parameters
    ----------
    in_full : bool
        Whether `add` collects all boundaries that matter if there are streams. Otherwise `add_assembled` collects the
        first and the last one.
    with_head : bool
        Whether to collect rows before the first boundary. `in_full` includes this.
    """

    def __init__(self, *, in_full: bool, with_head: bool = False) -> None:
        self.in_full = in_full
        self.is_head = with_head or in_full
        self.n_head_rows = 0
        self.partitions: list[PartitionStatistics] = []
        self.tags: set[int] = set()
        self.found: list[pa.RecordBatch] = []
        self.last_end: tuple[pa.Array, pa.Array] | None = None

    def add(self, positions: pa.Array, payloads: pa.Array, sessions: pa.Array | None = None) -> None:
        """Process the next rows. Positions ascend from batch to batch."""
        if sessions is None:
            self._add(positions, payloads, None)
            return
        start = 0
        encoded = pc.run_end_encode(sessions)
        for session, end in zip(encoded.values.to_pylist(), encoded.run_ends.to_pylist(), strict=True):
            self._add(positions.slice(start, end - start), payloads.slice(start, end - start), session)
            start = end

    def _add(self, positions: pa.Array, payloads: pa.Array, session: Any) -> None:
        source = Source([payloads])
        control, _, _, tags = tagged(source, ALWAYS_NEEDED + BEGIN_COMMIT, b"")
        places = row_numbers(control)
        rows = places.take(pa.array(needed(payloads.take(places).to_pylist()), pa.int64()))
        self._record(positions, payloads, tags, rows, -1, -1, session)

    def add_assembled(self, positions: pa.Array, payloads: pa.Array, assembler: TransactionAssembler) -> None:
        """Process the next rows, like `add`, from the results of their transaction assembler.

        Raises
        ------
        SchemaChanged
            If there are messages of streams and two-phase commits, or bad payloads, which may be such messages.
        """
        transaction_index, batch = assembler.transaction_index, assembler.batch
        control_kinds = [(row, batch.kinds[row]) for row in assembler.control_rows]
        if any(kind == NO_KIND and batch.error(row) is not None for row, kind in control_kinds):
            raise SchemaChanged
        tags = [(row, ord(KINDS[kind].tag)) for row, kind in control_kinds if kind != NO_KIND]
        rows = pa.array([row for row, tag in tags if tag in ALWAYS_NEEDED], pa.int64())
        found = {tag for _, tag in tags} | set(ROWS[:1] if transaction_index.has_rows else b"")
        self._record(positions, payloads, found, rows, transaction_index.first_end, transaction_index.last_end, None)
        if transaction_index.last_lsn_row >= 0:
            commit = (transaction_index.last_lsn, batch.position(transaction_index.last_lsn_row))
            self.partitions[-1] = self.partitions[-1]._replace(commit=commit)
        if not self.is_plain:
            raise SchemaChanged

    def _record(
        self,
        positions: pa.Array,
        payloads: pa.Array,
        tags: Iterable[int],
        rows: pa.Array,
        first_end: int,
        last_end: int,
        session: Any,
    ) -> None:
        first, last = positions[0].as_py(), positions[-1].as_py()
        has_rows = not set(tags).isdisjoint(ROWS)
        if self.partitions and self.partitions[-1].session == session:
            partition = self.partitions[-1]
            self.partitions[-1] = partition._replace(
                last=last, has_rows=partition.has_rows or has_rows, n_rows=partition.n_rows + len(positions)
            )
        else:
            self._end_partition()
            self.partitions.append(PartitionStatistics(first, last, has_rows, len(positions), session))
        self.tags.update(tags)
        if self.is_head:
            self._find_head(positions, payloads)
        if first_end >= 0:
            if self.last_end is None:
                self.found.append(take_messages(positions, payloads, [first_end]))
            self.last_end = positions.slice(last_end, 1), payloads.slice(last_end, 1)
        if len(rows):
            self.found.append(take_messages(positions, payloads, rows))

    def _find_head(self, positions: pa.Array, payloads: pa.Array) -> None:
        """Collect rows, and logical messages that may be transactional, from before the first boundary."""
        end = first_boundary(payloads)
        head = payloads if end < 0 else payloads.slice(0, end)
        found = row_numbers(tagged(Source([head]), ROWS + b"M", b"")[0]).to_pylist()
        places = [
            at for at in found if bytes(payloads[at].as_buffer()[:1]) != b"M" or _may_be_transactional(payloads[at])
        ]
        self.n_head_rows += len(places)
        self.found.append(take_messages(positions, payloads, places[:_MOST_HEAD_ROWS]))
        self.is_head = end < 0 and self.n_head_rows < _MOST_HEAD_ROWS

    def _end_partition(self) -> None:
        """Collect the last boundary of a partition."""
        if self.last_end is not None:
            self.found.append(take_messages(*self.last_end, [0]))
            self.last_end = None

    @property
    def is_plain(self) -> bool:
        """Whether there was no message of streams and two-phase commits."""
        return self.tags.isdisjoint(STREAM_AND_TWO_PHASE)

    def split_statistics(self) -> SplitStatistics:
        """Return the statistics of all rows."""
        self._end_partition()
        return SplitStatistics(tuple(self.partitions), to_ipc(self.found), self.is_plain, self.in_full)


def _may_be_transactional(payload: pa.Scalar) -> bool:
    """Whether a logical message is transactional, according to its flag: outside a stream, or inside after the xid."""
    data = payload.as_buffer()
    offsets = (offset_of(LogicalMessage, "flags", in_stream=in_stream) for in_stream in (False, True))
    return b"\1" in (bytes(data[offset : offset + 1]) for offset in offsets)


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
