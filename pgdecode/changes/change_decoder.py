"""Ordered payloads to committed changes: what the server's own subscriber would apply, as Arrow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from pgdecode._native.changes.text_layouts import TextLayout
from pgdecode.changes.change_rows import CHANGES, ChangeBuilder
from pgdecode.changes.checkpoint import spent_from_json, state_from_json, state_to_json
from pgdecode.changes.outcomes import CommittedOutcomes, give
from pgdecode.changes.record_batches import ONE_BATCH, Builder, built, one_batch
from pgdecode.changes.replication_state import CommittedChanges, ReplicationState
from pgdecode.changes.spill_files import paths_of, spill
from pgdecode.changes.table_rows import Table, TableBuilder
from pgdecode.changes.threaded_builder import ThreadedBuilder
from pgdecode.changes.transaction_assembler import TransactionAssembler
from pgdecode.payloads.parallel import Exclusive, check_threads
from pgdecode.payloads.payload_input import payload_array, positions_of
from pgdecode.protocol.errors import listed
from pgdecode.protocol.limits import Limits
from pgdecode.protocol.options import ChangeOptions, Empty, Mode, Start, UnrepresentableValues
from pgdecode.relations.catalog import RelationCatalog
from pgdecode.relations.journal import Journal, NoJournal
from pgdecode.relations.relation_version import RelationVersion
from pgdecode.relations.version_tracker import RelationTracker
from pgdecode.rows.value_options import ValueOptions

_Name = TypeVar("_Name", bound=str | int)
_LIMITS = Limits()


class ChangeDecoder:
    """Payloads in slot order to committed changes, batch after batch.

    Follows transactions, streams and their sub-transactions, two-phase commits and the versions of relations. A change
    is given when its transaction commits; (commit_position, position) is the order in which to apply changes.

    Parameters
    ----------
    state : mapping, optional
        The `state` of another decoder, to go on where that one stood.
    catalog : RelationCatalog, optional
        Relations that the payloads do not describe, because they begin mid-stream. Where positions are given with the
        first payloads, its versions from later positions do not count.
    mode : {"FAILFAST", "PERMISSIVE", "DROPMALFORMED"}
        Raise on the first bad payload; or keep it as a row that says why in `error`; or leave it out. `bad_rows` counts
        what was kept or left out.
    start : {"transaction", "anywhere"}
        Where payloads begin that no `state` comes before. By default between transactions: what belongs to one whose
        beginning is missing is an error. With "anywhere" such transactions are left out whole; `skipped` counts them.
    empty : {"null", "error"}
        What to make of payloads of no bytes, which servers send for an origin without a name: pass over and count them
        (`empty_payloads`), or refuse them.
    include_uncommitted : bool
        Give also the changes that were rolled back (`committed` false) or lost their end (null).
    drop_duplicates : bool
        Leave out transactions that were delivered before: those whose commit LSN does not lie past all earlier ones.
        Logical replication delivers at least once, and after a reconnect the server sends again what was not
        confirmed. Without this option (commit_lsn, xid) tells repeated transactions.
    types : mapping of OID or "schema.type" to a PostgreSQL type's name, optional
        Types that the stream does not describe, as for `decode_rows`.
    columns : mapping of a table to a mapping of a column's name to a PostgreSQL type, optional
        Types of columns of typed tables, before `types`, as for `decode_rows`:
        {"public.orders": {"price": "numeric(20,4)"}}. A table's key is its last name or its OID. A column that no
        version of the table has so far is a ValueError when the table is decoded. `decode` ignores this option: it
        gives all values as text.
    unrepresentable : {"error", "null", "clamp", "text"}
        For typed tables: what to make of a value that PostgreSQL has and the Arrow type has not, as for `decode_rows`.
    encoding, datestyle : str
        client_encoding and DateStyle of the session that captured the payloads, as for `decode_rows`.
    spill : path, optional
        A folder for the payloads of undecided transactions past `max_held_bytes`; by default they stay in memory. The
        files are the decoder's own: each goes when its transaction is over, with the call after. They are part of the
        `state`, which names them: it is good until the decoder goes on.
    max_held_bytes : int
        With `spill`: how many bytes of payloads stay in memory.
    limits : Limits
    strict_flags : bool
        As for `decode_messages`.
    threads : int
        How many threads may decode the committed rows of a batch, as for `decode_messages`. The result is the same.
        One thread scans the payloads and follows the transactions, whatever the number.

    Notes
    -----
    One thread at a time may use a decoder; for a second one it is a RuntimeError. After an exception the decoder has
    the state of before the call. docs/options.md compares options and defaults with those of the other functions.
    """

    def __init__(
        self,
        *,
        state: Mapping[str, Any] | None = None,
        catalog: RelationCatalog | None = None,
        mode: Mode = "FAILFAST",
        start: Start = "transaction",
        empty: Empty = "null",
        include_uncommitted: bool = False,
        drop_duplicates: bool = False,
        types: Mapping[str | int, str] | None = None,
        columns: Mapping[str | int, Mapping[str, str]] | None = None,
        unrepresentable: UnrepresentableValues = "error",
        encoding: str = "UTF8",
        datestyle: str = "ISO, MDY",
        spill: str | Path | None = None,
        max_held_bytes: int = 256 * 2**20,
        limits: Limits = _LIMITS,
        strict_flags: bool = True,
        threads: int = 1,
    ) -> None:
        self._options = ChangeOptions(mode, include_uncommitted, drop_duplicates, limits, strict_flags, start, empty)
        self._reading = ValueOptions(types, unrepresentable, encoding, datestyle, columns)
        self._threads = check_threads(threads)
        self._spill = None if spill is None else Path(spill)
        self._state = ReplicationState() if state is None else state_from_json(state, self._spill)
        self._given = catalog if state is None else None
        self._first_state = self._state.copy()
        self._layouts: dict[int, TextLayout] = {}
        self._tables: dict[str | int, tuple[Table, tuple[RelationVersion, ...]]] = {}
        self._max_held_bytes = max_held_bytes
        self._alone = Exclusive()
        # Files whose transactions are over.
        self._spent = spent_from_json(state, self._spill)
        self._counts = _Counts()
        self._n_calls = 0

    @property
    def state(self) -> dict[str, Any]:
        """All that a decoder must know to go on from here, as JSON's own types.

        Small between transactions; the payloads of transactions whose outcome is to come are in it.
        """
        return {**state_to_json(self._state), "spent": sorted(path.name for path in self._spent)}

    @property
    def _drops_bad(self) -> bool:
        return self._options.mode == "DROPMALFORMED"

    @property
    def catalog(self) -> RelationCatalog:
        """The relations met so far, and those given."""
        return RelationCatalog(self._state.relations.versions or self._given or ())

    @property
    def shape_catalog(self) -> RelationCatalog:
        """The versions of relations that committed transactions have sent or used: tables are made of these."""
        relations = self._state.relations
        return RelationCatalog(relations.versions[number] for number in sorted(relations.in_shape))

    @property
    def n_undecided(self) -> int:
        """Transactions so far that wait for their outcome."""
        return self._state.n_undecided

    @property
    def skipped(self) -> int:
        """Transactions so far that were left out because their beginning is missing, with `start="anywhere"`."""
        return self._state.skipped.count

    @property
    def bad_rows(self) -> dict[str, int]:
        """Rows with an error so far, given or left out, by the code of the error."""
        return dict(self._counts.bad_rows)

    @property
    def empty_payloads(self) -> int:
        """Payloads of no bytes so far, which were passed over."""
        return self._counts.n_empty

    def reconnected(self) -> None:
        """Say that the next payloads come from another connection: the server begins again what was not confirmed.

        Plain and streamed transactions that are open are given up; prepared ones stay. With `drop_duplicates`
        transactions that come again are left out.
        """
        with self._alone:
            self._state.is_reconnected = True

    def again(self, fixed: Collection[str] | None = None) -> ChangeDecoder:
        """Make a decoder for a second pass over the payloads that this one has taken up.

        It stands where this one began, with the same options, and knows every version of the relations that this one
        has met: a table has all its columns, in their final types, from the first batch on. This one is then done with.

        Parameters
        ----------
        fixed : collection of str, optional
            Tables as "schema.table", where the pass goes on beyond those payloads, in the hope that these tables have
            no other versions. One that has is `pgdecode.relations.version_tracker.SchemaChanged`.
        """
        other = copy(self)
        other._alone = Exclusive()
        other._first_state = self._first_state.copy()
        relations = self._state.relations
        first = other._first_state.relations
        first.preload(relations.versions, fixed, None if fixed is None else self._state.position)
        first.in_shape = set(relations.in_shape)
        other._state = other._first_state.copy()
        other._layouts, other._tables, other._spent = {}, {}, set()
        other._counts = _Counts()
        return other

    def decode(self, payloads: Any, position: Any = None) -> pa.RecordBatch:
        """Decode the next payloads.

        Parameters
        ----------
        payloads : column of payloads, as `decode_messages` takes them
            In slot order. Null rows are passed over.
        position : column of ascending integers, optional
            Of each payload, in the order in which the slot gave them; by default they are counted from 0, on from
            batch to batch. An LSN is no such order.

        Returns
        -------
        pa.RecordBatch
            The changes of transactions that these payloads commit, by the schema `CHANGES`. `xid` is the top-level
            transaction's, `subxid` that of the sub-transaction, where it was one's. `old` and `new` map column names
            to PostgreSQL's text form, also of binary values; SQL NULL is null, a column that was not sent is not in
            the map. A TOAST value that an update did not change is filled from the old row where that has it;
            otherwise its column is named in `unchanged`. A truncate gives a row for each table. docs/options.md
            explains why this column is `op` and that of `table` is `_op`.

        Raises
        ------
        DecodeError
            For a bad payload, with `row` and `offset`; `TransactionDesync` and `StreamDesync` where a message is
            missing, `UnknownRelation` where a relation has not been described.
        """
        with self._alone, self._call() as call:
            found = self._built(call, payloads, position, ONE_BATCH, lambda: [self._change_builder()])
            return one_batch([batch for _, batch in found], CHANGES)

    def decode_batches(self, payloads: Any, position: Any = None, *, max_rows: int = 65536) -> Iterator[pa.RecordBatch]:
        """Decode the next payloads as `decode` does, in batches of at most so many changes.

        The whole of the payloads is taken up with the first batch; the batches are built one by one.
        """
        with self._call() as call:
            for _, batch in self._built(call, payloads, position, max_rows, lambda: [self._change_builder()]):
                yield batch

    def table(self, payloads: Any, relation: str | int, position: Any = None) -> pa.RecordBatch:
        """Decode the next payloads, and give the changes of one table as typed columns.

        Parameters
        ----------
        payloads, position
            As of `decode`.
        relation : str or int
            "schema.table", or the OID of a table, whatever its names have been.

        Returns
        -------
        pa.RecordBatch
            `_op`, `_position`, `_commit_position`, `_xid`, `_commit_lsn`, `_commit_timestamp`, `_old_type`, `_old` (a
            struct of the table's columns), `_unchanged`, `_error`, then a column for each of the table's: the new
            values, or for a delete the old ones that were sent. Where the table has had several versions, the columns
            are those of `Table`; versions that come with later batches may add to them.

        Raises
        ------
        DecodeError
            As of `decode`, and for a value that its Arrow type cannot hold.
        KeyError
            If no payload so far has described the table.
        """
        with self._alone, self._call() as call:
            found = self._built(call, payloads, position, ONE_BATCH, lambda: [self._rows_builder(relation)])
            return one_batch([batch for _, batch in found], self.table_schema(relation))

    def versions_of(self, relation: str | int) -> dict[int, RelationVersion]:
        """Give the versions that make the shape of a table, by their numbers."""
        return self._table_builder(relation).versions

    def table_schema(self, relation: str | int) -> pa.Schema:
        """Give the columns that `table` gives of a table, by the relations met so far.

        Raises
        ------
        KeyError
            If no payload so far has described the table.
        """
        return self._table_builder(relation).table.schema

    def table_batches(
        self,
        payloads: Any,
        relation: str | int,
        position: Any = None,
        *,
        max_rows: int = 65536,
        with_version: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Decode the next payloads as `table` does, in batches from at most so many changes each.

        With `with_version` a last column, `_version`, has the number of the version of each row, as `versions_of`.
        """
        with self._call() as call:
            found = self._built(
                call,
                payloads,
                position,
                max_rows,
                lambda: [self._rows_builder(relation, with_version=with_version)],
            )
            for _, batch in found:
                yield batch

    def tables_batches(
        self, payloads: Any, relations: Sequence[_Name], position: Any = None, *, max_rows: int = 65536
    ) -> Iterator[tuple[_Name, pa.RecordBatch]]:
        """Decode the next payloads once for several tables: batches of each as `table_batches` gives, with its name."""
        with self._call() as call:
            found = self._built(
                call, payloads, position, max_rows, lambda: [self._rows_builder(name) for name in relations]
            )
            for number, batch in found:
                yield relations[number], batch

    def _built(
        self, call: _Call, payloads: Any, position: Any, max_rows: int, builders: Callable[[], Sequence[Builder]]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Decode payloads by each of several builders; each batch with the number of its builder."""
        if max_rows < 1:
            raise ValueError(f"max_rows is at least 1, not {max_rows}")
        with self._alone:
            committed = self._assemble(call, payloads, position)
            made = builders()
        found = built(committed, made, max_rows, self._drops_bad, self._counts.bad_rows)
        while True:
            with self._alone:
                batch = next(found, None)
            if batch is None:
                return
            yield batch

    @contextmanager
    def _call(self) -> Iterator[_Call]:
        """Make a call all or nothing: if something is raised, the decoder stands where it stood before.

        A call that gives batches one by one can be taken back until the next one begins.
        """
        with self._alone:
            self._n_calls += 1
            call = _Call(self._n_calls, self._given, self._counts.copy())
        try:
            yield call
        except Exception:
            if call.number == self._n_calls:
                call.journal.rollback()
                # Those that came back stand at the end.
                by_beginning = sorted(self._state.streamed.items(), key=lambda item: item[1].begin_position)
                self._state.streamed = dict(by_beginning)
                self._given, self._counts, self._spent = call.given, call.counts, set()
                # The numbers of versions that are taken back will be those of others.
                n_versions = len(self._state.relations.versions)
                self._layouts = {number: item for number, item in self._layouts.items() if number < n_versions}
            raise
        finally:
            # What is noted holds on to payloads, and to the state that holds on to the journal.
            call.journal.clear()
            if call.number == self._n_calls:
                self._state.note_in(NoJournal())

    def _change_builder(self) -> Builder:
        def builder(layouts: dict[int, TextLayout]) -> Builder:
            return ChangeBuilder(self._state.relations.versions, layouts, self._reading, self._options)

        # The layouts of another encoding than UTF-8 have state: no two threads may use one.
        return self._threaded(builder(self._layouts), lambda: builder({}))

    def _threaded(self, builder: Builder, for_thread: Callable[[], Builder]) -> Builder:
        return builder if self._threads == 1 else ThreadedBuilder(builder, for_thread, self._threads)

    def _rows_builder(self, relation: str | int, *, with_version: bool = False) -> Builder:
        builder = self._table_builder(relation, with_version=with_version)
        return self._threaded(builder, lambda: builder)

    def _table_builder(
        self, relation: str | int, *, everything: bool = False, with_version: bool = False
    ) -> TableBuilder:
        relations = self._state.relations
        all_numbers = relations.numbers_of(relation, everything=True)
        numbers = all_numbers
        if not (everything or self._options.include_uncommitted):
            numbers = relations.numbers_of(relation)
        if not numbers:
            names = listed(RelationCatalog(relations.versions).names)
            raise KeyError(f"no message has described {relation!r}; there are {names}")
        found = tuple(relations.versions[number] for number in numbers)
        if self._tables.get(relation, (None, ()))[1] != found:
            self._tables[relation] = (Table(found, self._reading), found)
        others = set(all_numbers) - set(numbers)
        versions = dict(zip(numbers, found, strict=True))
        return TableBuilder(self._tables[relation][0], versions, self._options, others, with_version=with_version)

    def follow(self, payloads: Any, position: Any = None) -> None:
        """Take payloads up and give nothing back: for their relations and the state after them."""
        with self._alone, self._call() as call:
            self._assemble(call, payloads, position)

    def undecided(self, relation: str | int | None = None) -> pa.RecordBatch:
        """Build the changes that wait for the outcome of their transaction, as `decode` does; `committed` is null.

        With a relation, those of one table as `table` does.
        """
        nothing = pa.array([], pa.large_binary())
        outcomes = CommittedOutcomes()
        nowhere = pa.array([], pa.int64())
        assembler = TransactionAssembler(ReplicationState(), nothing, nowhere, self._options, outcomes)
        assembler.run()
        state = self._state
        for item in state.prepared.values() if state.is_reconnected else state.undecided:
            give(assembler, item, -1)
        committed = [(assembler, assembler.committed())]
        if relation is None:
            builder, schema = self._change_builder(), CHANGES
        else:
            builder = self._table_builder(relation, everything=True)
            schema = builder.table.schema
        found = built(committed, [builder], 65536, self._drops_bad, Counter())
        return one_batch([batch for _, batch in found], schema)

    def _assemble(
        self, call: _Call, payloads: Any, position: Any
    ) -> list[tuple[TransactionAssembler, CommittedChanges]]:
        """Take payloads up; what they commit."""
        column = payload_array(payloads)
        state = self._state
        state.note_in(call.journal)
        paths = set() if self._spill is None else paths_of(state)
        positions = positions_of(position, len(column), state.position)
        if self._given is not None and len(column):
            at = None if position is None else positions[0].as_py()
            call.journal.set_attribute(state, "relations", RelationTracker(self._given, at))
            self._first_state.relations = state.relations.copy()
            state.note_in(call.journal)
        found = []
        first = 0
        for chunk in column.chunks:
            chosen = positions.slice(first, len(chunk))
            assembler = TransactionAssembler(state, chunk, chosen, self._options, CommittedOutcomes(), first_row=first)
            found.append((assembler, assembler.run()))
            self._counts.n_empty += assembler.batch.n_empty
            assembler.release()
            first += len(chunk)
            if self._spill is not None:
                spill(state, self._spill, self._max_held_bytes)
        for path in self._spent:
            path.unlink(missing_ok=True)
        # Without files there is none to look for in transactions, of which there may be many.
        self._spent = set() if self._spill is None else paths - paths_of(state)
        if state.begun or state.relations.versions:
            self._given = None
        return found


@dataclass
class _Counts:
    """What has been counted so far."""

    bad_rows: Counter[str] = field(default_factory=Counter)
    n_empty: int = 0

    def copy(self) -> _Counts:
        """Make one that goes its own way."""
        return _Counts(Counter(self.bad_rows), self.n_empty)


@dataclass
class _Call:
    """A call that can be taken back, and what stood before it."""

    number: int
    given: RelationCatalog | None
    counts: _Counts
    journal: Journal = field(default_factory=Journal)
