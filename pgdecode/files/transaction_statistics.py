"""Statistics of transactions, and the versions of relations, for `pgdecode inspect`.

Only messages that begin or end transactions or describe relations are processed. So changes are never buffered, unlike
in `ChangeDecoder`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode.changes.outcomes import CommittedOutcomes
from pgdecode.changes.replication_state import ReplicationState, Transaction
from pgdecode.changes.transaction_assembler import TransactionAssembler
from pgdecode.envelope.kind_codes import is_marked, kind_code, marks_of
from pgdecode.files.envelope_batches import DecodedBatch
from pgdecode.files.ordered_files import OrderedFiles, OrderFault
from pgdecode.files.payload_file import PayloadFile
from pgdecode.protocol.messages import MESSAGES
from pgdecode.protocol.options import ChangeOptions
from pgdecode.relations.catalog import RelationCatalog
from pgdecode.relations.relation_version import RelationVersion

# The greatest number of versions of relations. Only a corrupt file has more.
MAX_VERSIONS = 100_000
_OF_ROWS = ("insert", "update", "delete", "truncate", "message", "origin")
_CONTROL = marks_of(message.kind for message in MESSAGES if message.kind not in _OF_ROWS)
_CHANGES = marks_of(_OF_ROWS[:4])
_OPENING = marks_of(("begin", "begin_prepare", "stream_start"))
_BOUNDARIES = marks_of(message.kind for message in MESSAGES if message.kind not in (*_OF_ROWS, "relation", "type"))
# How many of the largest transactions are listed.
_LARGEST = 5


class TransactionSize(NamedTuple):
    """The number of a transaction's changes, and where it begins. The time is that of its commit, if known."""

    changes: int
    position: int
    xid: int
    gid: str | None = None
    time_us: int | None = None


class ControlMessages(NamedTuple):
    """The messages of a batch that begin or end transactions or describe relations.

    Attributes
    ----------
    rows : pa.Array
        Their rows in the batch.
    payloads : pa.Array
    fields : pa.RecordBatch
        `kind` (code), `xid`, `subxid`, `first_segment`, `time_us` and `n`, the number of changes in the batch before
        each.
    n_changes : int
        Number of changes in the batch.
    """

    rows: pa.Array
    payloads: pa.Array
    fields: pa.RecordBatch
    n_changes: int

    @classmethod
    def of(cls, envelope: pa.RecordBatch, payloads: pa.Array) -> ControlMessages:
        """Find them in payloads and their envelope, whose kinds are codes."""
        kinds = envelope.column("kind")
        n_before = pc.cumulative_sum(is_marked(kinds, _CHANGES).cast(pa.int64()))
        rows = pc.indices_nonzero(is_marked(kinds, _CONTROL))
        names = ["kind", "xid", "subxid", "first_segment"]
        columns = [*(envelope.column(name) for name in names), envelope.column("timestamp").cast(pa.int64()), n_before]
        fields = pa.RecordBatch.from_arrays(columns, [*names, "time_us", "n"]).take(rows)
        return cls(rows, payloads.take(rows), fields, n_before[-1].as_py() if len(n_before) else 0)


class _Open(NamedTuple):
    """The transaction, or the block of a streamed one, whose changes come next."""

    position: int  # of the message that began the transaction
    n_before: int  # number of changes before it
    is_streamed: bool


class _Sizes:
    """Counts the changes of each transaction, and keeps the largest ones."""

    def __init__(self) -> None:
        self.largest: list[TransactionSize] = []
        self.waiting: dict[int, TransactionSize] = {}  # by position: streamed, prepared and open ones
        self._n_changes = 0  # before the batch
        self._open: _Open | None = None
        self._streamed: dict[int, int] = {}  # xid -> position
        self._cut: set[int] = set()  # positions of streamed transactions whose first block is missing

    def add(self, messages: ControlMessages, positions: pa.Array) -> None:
        """Count the changes of the next batch. `positions` are those of its control messages."""
        fields = messages.fields
        n_before = pc.add(fields.column("n"), self._n_changes)
        columns = [*fields.columns[:-1], positions, n_before]
        found = pa.RecordBatch.from_arrays(columns, [*fields.schema.names[:-1], "position", "n"])
        self._add_boundaries(found.filter(is_marked(fields.column("kind"), _BOUNDARIES)))
        self._n_changes += messages.n_changes

    def forget(self, positions: Iterable[int]) -> None:
        """Forget the transactions that began at some positions."""
        for position in positions:
            self.waiting.pop(position, None)
            self._cut.discard(position)

    def n_of(self, position: int) -> int:
        """Return the number of changes so far of a transaction without an outcome, by its position."""
        n = self.waiting[position].changes if position in self.waiting else 0
        if self._open is not None and self._open.position == position:
            n += self._n_changes - self._open.n_before
        return n

    def _add_boundaries(self, boundaries: pa.RecordBatch) -> None:
        if not len(boundaries):
            return
        kinds, no = boundaries.column("kind"), pa.array([False])
        # A Begin and the Commit right after it are a whole transaction, unless another one is open before them. Python
        # objects are made for the others only.
        is_open = pa.concat_arrays([pa.array([self._open is not None]), is_marked(kinds, _OPENING)])
        pairs = pc.and_(pc.equal(kinds, kind_code("begin"))[:-1], pc.equal(kinds, kind_code("commit"))[1:])
        pairs = pc.and_not(pairs, is_open[:-2])
        first, second = pa.concat_arrays([pairs, no]), pa.concat_arrays([no, pairs])
        begins, commits = boundaries.filter(first), boundaries.filter(second)
        sizes = pc.subtract(commits.column("n"), begins.column("n"))
        columns = [sizes, begins.column("position"), begins.column("xid"), commits.column("time_us")]
        found = pa.RecordBatch.from_arrays(columns, ["changes", "position", "xid", "time_us"])
        order = [("changes", "descending"), ("position", "ascending")]
        for size in found.take(pc.select_k_unstable(found, _LARGEST, order)).to_pylist():
            self._note(TransactionSize(**size))
        others = boundaries.filter(pc.invert(pc.or_(first, second)))
        for code, *boundary in zip(*(column.to_pylist() for column in others.columns), strict=True):
            self._cross(MESSAGES[code].kind, *boundary)

    def _cross(
        self, kind: str, xid: int, subxid: int, is_first: bool | None, time_us: int | None, position: int, n: int
    ) -> None:
        # What is open ends here, even if its own end is missing.
        ended, self._open = self._open, None
        if ended is not None and ended.position in self.waiting:
            size = self.waiting[ended.position]
            self.waiting[ended.position] = size._replace(changes=size.changes + n - ended.n_before)
        if kind in ("begin", "begin_prepare"):
            self._open = _Open(position, n, is_streamed=False)
            self.waiting[position] = TransactionSize(0, position, xid)
        elif kind == "stream_start":
            first = self._streamed.get(xid, -1)
            if is_first or first not in self.waiting:
                # If it is known, the server sends it again from its start.
                self.forget([first])
                first = self._streamed[xid] = position
                self.waiting[first] = TransactionSize(0, first, xid)
                if not is_first:
                    self._cut.add(first)
            self._open = _Open(first, n, is_streamed=True)
        elif kind == "stream_abort":
            if xid == subxid:
                self.forget([self._streamed.pop(xid, -1)])
        elif kind in ("stream_commit", "stream_prepare"):
            first = self._streamed.pop(xid, -1)
            # The outcome of a prepared transaction whose beginning is missing is not recognized.
            self._end(first, time_us, is_decided=kind == "stream_commit" or first in self._cut)
        elif kind in ("commit", "prepare") and ended is not None and not ended.is_streamed:
            self._end(ended.position, time_us, is_decided=kind == "commit")

    def _end(self, position: int, time_us: int | None, is_decided: bool) -> None:
        size = self.waiting.get(position)
        if size is None:
            return
        if is_decided:
            self.forget([position])
        self._note(size._replace(time_us=time_us))

    def _note(self, size: TransactionSize) -> None:
        if len(self.largest) < _LARGEST or size.changes >= self.largest[-1].changes:
            self.largest = sorted([*self.largest, size], key=lambda item: (-item.changes, item.position))[:_LARGEST]


class _Counter(CommittedOutcomes):
    """Counts transactions that end without an outcome. Emits no changes."""

    wants_discarded = True

    def __init__(self) -> None:
        super().__init__()
        self.n_lost = 0
        self.ended: list[int] = []  # where transactions began that are no longer open; not all plain ones

    def commit(self, assembler: TransactionAssembler, row: int, transaction: Transaction) -> None:
        """Record the LSN, which later messages are compared with. `MessageStatistics` counts commits."""
        assembler.transaction_index.record_lsn(row, assembler.batch.value("lsn", row), transaction.xid)
        self.ended.append(transaction.begin_position)

    def abort(self, assembler: TransactionAssembler, transaction: Transaction) -> None:
        """Record that the transaction is no longer open."""
        self.ended.append(transaction.begin_position)

    def discard(self, assembler: TransactionAssembler, transaction: Transaction, is_sent_again: bool) -> None:
        """Count a transaction without an outcome, which ends here."""
        self.n_lost += 1
        self.ended.append(transaction.begin_position)


class TransactionStatistics:
    """Statistics of transactions in payloads in slot order.

    Attributes
    ----------
    fault : str or None
        The first message in an impossible place, or the reason why processing stopped.
    complete : bool
        Whether all payloads were processed.
    """

    def __init__(self, files: OrderedFiles) -> None:
        self._positions = files.positions()
        self._session: int | None = None
        self._state = ReplicationState()
        self._outcomes = _Counter()
        self._sizes = _Sizes()
        self._times: dict[int, int] = {}  # by the position of a Relation message: the last time before it
        self._last_time: int | None = None
        self.position = None if files.is_counted else files.position
        self.fault: str | None = None
        self.complete = True

    @property
    def n_undecided(self) -> int:
        """Number of transactions without an outcome: those still open, and those that were lost."""
        return self._outcomes.n_lost + self._state.n_undecided

    @property
    def n_repeated(self) -> int:
        """Number of commits whose LSN is not greater than that of all before."""
        return self._state.n_repeated

    @property
    def largest(self) -> list[TransactionSize]:
        """The transactions with the most changes: those that have committed or were prepared, the largest first."""
        return self._sizes.largest

    @property
    def open(self) -> list[TransactionSize]:
        """The transactions that have no outcome at the end."""
        return [
            TransactionSize(self._sizes.n_of(item.begin_position), item.begin_position, item.xid, item.gid)
            for item in self._state.undecided
        ]

    def time_of(self, version: RelationVersion) -> int | None:
        """Return the time of the last commit or prepare that was known where a version was sent, in microseconds."""
        return self._times.get(version.position)

    @property
    def n_skipped(self) -> int:
        """Number of transactions whose beginning is missing, as far as other messages show them."""
        return self._state.skipped.count

    @property
    def catalog(self) -> RelationCatalog:
        """The versions of relations so far."""
        return RelationCatalog(self._state.relations.versions)

    def add(self, file: PayloadFile, batch: DecodedBatch, messages: ControlMessages) -> None:
        """Process the next batch; `messages` are those of its envelope."""
        if not self.complete:
            return
        if file.captured is not None and file.captured.session != self._session:
            self._state.is_reconnected = self._session is not None
            self._session = file.captured.session
        try:
            positions = self._positions.of(file, batch.start, batch.source, batch.rows).take(messages.rows)
        except OrderFault as error:
            self._give_up(str(error))
            return
        options = ChangeOptions("PERMISSIVE", start="anywhere")
        assembler = TransactionAssembler(
            self._state, messages.payloads, positions, options, self._outcomes, is_counted=self.position is None
        )
        row_errors = assembler.run().row_errors
        if row_errors and self.fault is None:
            row = min(row_errors)
            self.fault = f"{file.path}: row {batch.rows[messages.rows[row].as_py()]}: {row_errors[row]}"
        self._sizes.add(messages, positions)
        self._sizes.forget(self._outcomes.ended)
        self._outcomes.ended = []
        self._add_times(messages.fields, positions)
        if len(self._state.relations.versions) > MAX_VERSIONS:
            self._give_up(f"{file.path}: more than {MAX_VERSIONS:,} versions of relations")

    def _add_times(self, fields: pa.RecordBatch, positions: pa.Array) -> None:
        """Record the times of Relation messages: a Begin before them has the time of its commit."""
        filled = pc.fill_null_forward(fields.column("time_us"))
        rows = pc.indices_nonzero(pc.equal(fields.column("kind"), kind_code("relation")))
        for row in rows.to_pylist():
            time_us = filled[row].as_py()
            time_us = self._last_time if time_us is None else time_us
            if time_us is not None and len(self._times) < MAX_VERSIONS:
                self._times[positions[row].as_py()] = time_us
        if len(filled) and filled[-1].as_py() is not None:
            self._last_time = filled[-1].as_py()

    def _give_up(self, fault: str) -> None:
        self.complete = False
        self.fault = fault
        self._state = ReplicationState()
