"""Processes payloads in slot order: transactions, their outcomes, and the state. Outputs make rows of the changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from pgdecode.changes.committed_changes import ChangeSlice
from pgdecode.changes.outcomes import CommittedOutcomes, emit
from pgdecode.changes.record_batches import (
    LimitedBuilder,
    ThreadedBuilder,
    build_batches,
    fitting_batches,
    one_batch,
    raise_first,
    slice_functions,
)
from pgdecode.changes.replication_state import CommittedChanges, ReplicationState
from pgdecode.changes.spill_files import bytes_in_memory, spill
from pgdecode.changes.transaction_assembler import TransactionAssembler
from pgdecode.payloads.exclusive import Exclusive
from pgdecode.payloads.payload_input import payload_array, positions_of
from pgdecode.payloads.thread_counts import check_threads
from pgdecode.protocol.errors import DecodeError, did_you_mean, listed
from pgdecode.relations.catalog import RelationCatalog, before_payloads, tracker_of
from pgdecode.relations.relation_version import RelationVersion
from pgdecode.relations.undo_log import NoUndoLog, UndoLog
from pgdecode.relations.version_tracker import RelationTracker
from pgdecode.rows.options import Options

Name = TypeVar("Name")
# Rows of a table, or of all changes, and the builder that made them.
BuiltRows = tuple[Name, pa.RecordBatch, LimitedBuilder]


class Output(Protocol[Name]):
    """What is made of the changes that a call commits."""

    @property
    def tables(self) -> Sequence[str | int] | None:
        """The tables whose changes it needs; None for all."""

    def builders(self, engine: ChangeEngine) -> list[tuple[Name, LimitedBuilder]]:
        """Make the builders of the rows, each with its name. The engine has processed the payloads of the call."""


@dataclass
class PayloadCounts:
    """Numbers of bad rows, of empty and of all payloads so far; first and last position of the run."""

    bad_rows: Counter[str] = field(default_factory=Counter)
    n_empty: int = 0
    n_payloads: int = 0
    first_position: int | None = None
    last_position: int | None = None
    is_counted: bool = False

    def copy(self) -> PayloadCounts:
        """Make an independent copy."""
        return replace(self, bad_rows=Counter(self.bad_rows))

    def add(self, positions: pa.Array) -> None:
        """Count payloads."""
        if len(positions):
            self.n_payloads += len(positions)
            self.first_position = positions[0].as_py() if self.first_position is None else self.first_position
            self.last_position = positions[-1].as_py()


@dataclass
class Call:
    """A call that can be rolled back: its undo log, and other values from before it."""

    number: int
    initial_catalog: RelationCatalog | None
    counts: PayloadCounts
    held_bytes: int
    obsolete: set[Path]
    undo_log: UndoLog = field(default_factory=UndoLog)


class ChangeEngine:
    """Assembles payloads to committed changes, call by call. It makes no rows: outputs do.

    Parameters
    ----------
    options : Options
    state : ReplicationState, optional
        Where it continues. The engine changes it.
    catalog : RelationCatalog, optional
        Relations that are known before the first payload.
    spill : Path, optional
        The folder for payloads of undecided transactions beyond `max_held_bytes`.
    max_held_bytes : int
    threads : int
        How many threads may build a batch.
    is_counted : bool
        Whether the positions that the caller gives were counted, as those of text files.
    obsolete : collection of Path
        Spill files of ended transactions. The next call deletes them.

    Attributes
    ----------
    lock : Exclusive
        Only one thread at a time may use the engine.
    counts : PayloadCounts
    n_rollbacks : int
        Number of calls that were rolled back. Afterwards, numbers of versions are used again for others.
    """

    def __init__(
        self,
        options: Options,
        *,
        state: ReplicationState | None = None,
        catalog: RelationCatalog | None = None,
        spill: Path | None = None,
        max_held_bytes: int = 256 * 2**20,
        threads: int = 1,
        is_counted: bool = False,
        obsolete: Collection[Path] = (),
    ) -> None:
        self.options = options
        self.lock = Exclusive()
        self.counts = PayloadCounts()
        self.n_rollbacks = 0
        self._threads = check_threads(threads)
        self._spill = spill
        self._max_held_bytes = max_held_bytes
        self._is_counted = is_counted
        self._obsolete = set(obsolete)
        self._n_calls = 0
        self.begin(ReplicationState() if state is None else state, catalog)

    def begin(self, state: ReplicationState, catalog: RelationCatalog | None) -> None:
        """Set the state before the first call. The first payload decides which versions of a catalog are visible."""
        if catalog is not None and not isinstance(catalog, RelationCatalog):
            raise TypeError(f"catalog is a RelationCatalog, not {type(catalog).__name__}")
        self._initial_catalog = state.first_catalog(catalog)
        if self._initial_catalog is not None:
            state.relations = RelationTracker()
        self.state = state
        self._held_bytes = bytes_in_memory(state)

    # -- the state -----------------------------------------------------------------------------------------------------

    @property
    def saved_state(self) -> ReplicationState:
        """The state to save. Before the first payload, all versions of the catalog are visible in it."""
        if self._initial_catalog is None:
            return self.state
        return replace(self.state, relations=tracker_of(self._initial_catalog))

    @property
    def obsolete(self) -> list[Path]:
        """Spill files that the next call deletes."""
        return sorted(self._obsolete)

    @property
    def catalog(self) -> RelationCatalog:
        """The versions of relations so far, including those of the `catalog` parameter."""
        if self._initial_catalog is not None:
            return self._initial_catalog
        return RelationCatalog(self.state.relations.versions, self.state.relations.facts)

    @property
    def layout_catalog(self) -> RelationCatalog:
        """The versions of relations that committed transactions have sent or used. They determine tables' columns."""
        relations = self.state.relations
        return RelationCatalog(relations.versions[number] for number in sorted(relations.in_layout))

    def versions_of(self, relation: str | int, *, everything: bool = False) -> dict[int, RelationVersion]:
        """Return the versions that determine the columns of a table, by their numbers; with `everything`, all versions.

        Raises
        ------
        KeyError
            If there are none.
        """
        relations = self.state.relations
        numbers = relations.numbers_of(relation, everything=everything or self.options.include_uncommitted)
        if not numbers:
            names = RelationCatalog(relations.versions).names
            hint = did_you_mean(str(relation), names)
            raise KeyError(f"no message has described {relation!r}{hint}; there are {listed(names)}")
        return {number: relations.versions[number] for number in numbers}

    # -- payloads ------------------------------------------------------------------------------------------------------

    def advance(self, payloads: Any, position: Any = None) -> None:
        """Process payloads without any output. Only the state changes."""
        with self.lock, self.call() as call:
            self._assemble(call, payloads, position)

    def batches(
        self, call: Call, payloads: Any, position: Any, output: Output[Name], max_rows: int
    ) -> Iterator[tuple[Name, pa.RecordBatch]]:
        """Process payloads, and yield batches of at most `max_rows` changes, each with its name.

        All payloads are processed with the first batch. Bad rows are counted, and with DROPMALFORMED left out.
        """
        if max_rows < 1:
            raise ValueError(f"max_rows is at least 1, not {max_rows}")
        with self.lock:
            committed = self._assemble(call, payloads, position, output.tables)
            named = output.builders(self)
        builders = [self._threaded(builder) for _, builder in named]
        batches = build_batches(committed, builders, max_rows, self._drops_bad, self.counts.bad_rows)
        while True:
            with self.lock:
                item = next(batches, None)
            if item is None:
                return
            number, batch = item
            yield named[number][0], batch

    def slices(
        self, payloads: pa.Array, positions: pa.Array, output: Output[Name], max_rows: int = 65536
    ) -> tuple[list[Callable[[], list[BuiltRows[Name]]]], DecodeError | None]:
        """Process payloads, and return functions that build the changes that they commit, slice by slice.

        The functions may be called in other threads, in any order, also after later calls. Each returns batches of at
        most `max_rows` changes. Bad rows are neither counted nor left out. If a payload cannot be processed, the
        functions are those of the payloads before it, and its error is returned too. So the first error is that of the
        first function that fails, and if none does, this one.
        """
        n_rows = len(payloads)
        error: DecodeError | None = None
        while True:
            try:
                with self.lock, self.call() as call:
                    committed = self._assemble(
                        call, payloads.slice(0, n_rows), positions.slice(0, n_rows), output.tables
                    )
                    builders = output.builders(self)
                break
            except DecodeError as found:
                if not found.row:
                    raise
                # The failed call has not changed the state. An earlier payload may be bad too.
                n_rows, error = found.row, found.with_traceback(None)

        def build(make: Callable[[], Iterable[ChangeSlice]]) -> list[BuiltRows[Name]]:
            rows: list[BuiltRows[Name]] = []
            errors: list[DecodeError] = []
            for change_slice in make():
                for name, builder in builders:
                    try:
                        batches = [*fitting_batches(builder.for_thread(), change_slice)]
                        rows += [(name, batch, builder) for batch in batches]
                    except DecodeError as found:
                        errors.append(found)
                raise_first(errors)
            return rows

        return [partial(build, make) for make in slice_functions(committed, max_rows)], error

    def undecided(self, builder: LimitedBuilder) -> pa.RecordBatch:
        """Build the changes of undecided transactions, in one batch."""
        nothing = pa.array([], pa.large_binary())
        no_positions = pa.array([], pa.int64())
        assembler = TransactionAssembler(ReplicationState(), nothing, no_positions, self.options, CommittedOutcomes())
        assembler.run()
        state = self.state
        for item in state.prepared.values() if state.is_reconnected else state.undecided:
            emit(assembler, item, -1)
        committed = [(assembler, assembler.committed())]
        batches = build_batches(committed, [builder], 65536, self._drops_bad, Counter())
        return one_batch([batch for _, batch in batches], builder.schema)

    @contextmanager
    def call(self) -> Iterator[Call]:
        """Make a call atomic: an exception, Ctrl-C too, restores the state from before the call, until it returns.

        A call that yields several batches can be rolled back until the next call begins.
        """
        with self.lock:
            self._n_calls += 1
            call = Call(self._n_calls, self._initial_catalog, self.counts.copy(), self._held_bytes, self._obsolete)
        try:
            yield call
            self._stop_recording(call)
        except BaseException as error:
            # With GeneratorExit, the caller wants no more of the batches.
            if call.number == self._n_calls and not isinstance(error, GeneratorExit):
                self._roll_back(call)
            self._stop_recording(call)
            raise
        finally:
            # The undo log references payloads, and the state, which references the undo log.
            call.undo_log.clear()

    def _roll_back(self, call: Call) -> None:
        call.undo_log.rollback()
        # The rollback has put restored transactions at the end of the dict.
        by_beginning = sorted(self.state.streamed.items(), key=lambda item: item[1].begin_position)
        self.state.streamed = dict(by_beginning)
        self._initial_catalog, self.counts = call.initial_catalog, call.counts
        self._held_bytes, self._obsolete = call.held_bytes, call.obsolete
        self.n_rollbacks += 1

    def _stop_recording(self, call: Call) -> None:
        if call.number == self._n_calls:
            self.state.set_undo_log(NoUndoLog())

    @property
    def _drops_bad(self) -> bool:
        return self.options.mode == "DROPMALFORMED"

    def _threaded(self, builder: LimitedBuilder) -> LimitedBuilder:
        return builder if self._threads == 1 else ThreadedBuilder(builder, self._threads)

    def _assemble(
        self, call: Call, payloads: Any, position: Any, tables: Sequence[str | int] | None = None
    ) -> list[tuple[TransactionAssembler, CommittedChanges]]:
        """Process payloads, and return the changes that they commit, chunk by chunk."""
        column = payload_array(payloads)
        state = self.state
        state.set_undo_log(call.undo_log)
        positions = positions_of(position, len(column), state.position)
        if self._initial_catalog is not None and len(column):
            known = before_payloads(self._initial_catalog) if position is None else self._initial_catalog
            call.undo_log.set_attribute(state, "relations", tracker_of(known, positions[0].as_py()))
            state.set_undo_log(call.undo_log)
            self._initial_catalog = None
        is_counted = self._is_counted or position is None
        committed = []
        obsolete: set[Path] = set()
        first = 0
        for chunk in column.chunks:
            chosen = positions.slice(first, len(chunk))
            outcomes = CommittedOutcomes()
            assembler = TransactionAssembler(
                state, chunk, chosen, self.options, outcomes, first, tables=tables, is_counted=is_counted
            )
            committed.append((assembler, assembler.run()))
            self.counts.n_empty += assembler.batch.n_empty
            self.counts.add(chosen)
            self.counts.is_counted = position is None
            assembler.release()
            first += len(chunk)
            obsolete |= outcomes.obsolete
            self._held_bytes += outcomes.n_bytes
            if self._spill is not None and self._held_bytes > self._max_held_bytes:
                # Half, so that not every call from now on has to look at all transactions.
                self._held_bytes = spill(state, self._spill, self._max_held_bytes // 2)
        for path in self._obsolete:
            path.unlink(missing_ok=True)
        self._obsolete = obsolete
        return committed
