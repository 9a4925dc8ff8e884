"""Decodes payloads in slot order to committed changes: those that a PostgreSQL subscriber would apply."""

from __future__ import annotations

import shutil
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from pgdecode._native.changes.text_layouts import TextLayout
from pgdecode.changes.change_rows import CHANGES, ChangeBuilder
from pgdecode.changes.checkpoint import spent_from_json, state_from_json, state_to_json
from pgdecode.changes.committed_changes import ChangeSlice
from pgdecode.changes.outcomes import CommittedOutcomes, SpillOutcomes, emit
from pgdecode.changes.record_batches import (
    ONE_BATCH,
    LimitedBuilder,
    build_batches,
    change_slices,
    fitting_batches,
    one_batch,
)
from pgdecode.changes.replication_state import CommittedChanges, ReplicationState
from pgdecode.changes.run_start import RunStart, options_to_json
from pgdecode.changes.spill_files import bytes_in_memory, spill
from pgdecode.changes.stored_state import StoredState, load_state
from pgdecode.changes.table_rows import Table, TableBuilder
from pgdecode.changes.threaded_builder import ThreadedBuilder
from pgdecode.changes.transaction_assembler import TransactionAssembler
from pgdecode.payloads.exclusive import Exclusive
from pgdecode.payloads.payload_input import payload_array, positions_of
from pgdecode.payloads.thread_counts import check_threads
from pgdecode.protocol.errors import did_you_mean, listed
from pgdecode.protocol.limits import Limits
from pgdecode.protocol.options import ChangeOptions, Empty, Mode, NameClash, Start, UnrepresentableValues
from pgdecode.relations.catalog import RelationCatalog, before_payloads
from pgdecode.relations.column_history import Renames
from pgdecode.relations.relation_version import RelationVersion
from pgdecode.relations.undo_log import NoUndoLog, UndoLog
from pgdecode.relations.version_tracker import RelationTracker
from pgdecode.rows.value_options import ValueOptions
from pgdecode.runs.manifest import MANIFEST, Manifest
from pgdecode.runs.payload_ranges import STATE
from pgdecode.runs.state_files import SourceState
from pgdecode.storage.object_path import local_path

_Name = TypeVar("_Name", bound=str | int)
_LIMITS = Limits()


class ChangeDecoder:
    """Decodes payloads in slot order to committed changes, batch by batch.

    It tracks transactions, streams with sub-transactions, two-phase commits and the versions of relations. A change is
    returned when its transaction commits. Apply the changes in the order of (commit_position, position).

    Parameters
    ----------
    state : mapping, optional
        The `state` of another decoder. This decoder continues from there.
    catalog : RelationCatalog, optional
        Relations that the payloads do not describe, because the payloads begin in the middle of a session. If the first
        call has positions, versions from later positions are ignored. The catalog is part of the `state`. So with a
        `state` from after the first payload, this option is ignored.
    mode : {"FAILFAST", "PERMISSIVE", "DROPMALFORMED"}
        Raise on the first bad payload; or return it as a row with the reason in `error`; or leave it out. `bad_rows`
        counts bad rows in the last two modes.
    start : {"transaction", "anywhere"}
        Where the payloads begin, if there is no `state`. With "transaction", they begin between transactions, and a
        message of a transaction without a beginning is an error. With "anywhere", such transactions are left out, and
        `skipped` counts them.
    empty : {"null", "error"}
        What to do with payloads of 0 bytes, which servers send for an origin without a name: ignore and count them
        (`empty_payloads`), or treat them as bad payloads.
    include_uncommitted : bool
        Return also changes that were rolled back (`committed` is false) or that have no outcome (null).
    drop_duplicates : bool
        Leave out transactions that were delivered before: those whose commit LSN is not greater than all earlier ones.
        Logical replication delivers at least once: after a reconnect the server sends unconfirmed transactions again.
        `repeated` counts them. Without this option, such a transaction is returned again, and (commit_lsn, xid)
        identifies it. If the payloads have no positions, it is an error unless `reconnected` was called before it.
    types : mapping of OID or "schema.type" to a PostgreSQL type's name, optional
        Types that the stream does not describe, as in `decode_rows`.
    columns : mapping of a table to a mapping of a column's name to a PostgreSQL type, optional
        Types of columns of typed tables, as in `decode_rows`: {"public.orders": {"price": "numeric(20,4)"}}. They take
        precedence over `types`. A table's key is its last name or its OID. If no version of the table so far has the
        column, decoding the table raises ValueError. `decode` ignores this option: it returns all values as text.
    renames : mapping of a table to a list of (old name, new name, position), optional
        Columns of typed tables that were renamed where the payloads do not show it: {"public.orders": [("price",
        "total", 4711)]}. The position is that of the Relation message with the new name, which `pgdecode inspect`
        prints. A table's key is one of its names or its OID. Other renames are found by the order of the columns.
    unrepresentable : {"error", "null", "clamp", "text"}
        For typed tables: what to do with a value that the Arrow type cannot represent, as in `decode_rows`.
    name_clash : {"error", "rename"}
        For typed tables: what to do with a column that has the name of a column that pgdecode adds, such as `_op`:
        raise ValueError, or append "_" to its name.
    encoding, datestyle : str
        client_encoding and DateStyle of the session that captured the payloads, as in `decode_rows`.
    spill : path, optional
        A folder for the payloads of undecided transactions beyond `max_held_bytes`. By default they stay in memory. The
        decoder deletes a file with the call after the one that ended its transaction. The `state` names the files, so
        it is valid only until the next call of the decoder.
    max_held_bytes : int
        With `spill`: how many bytes of payloads stay in memory. If there are more, the largest transactions are written
        to files, until at most half of this number is left.
    limits : Limits
    strict_flags : bool
        As in `decode_messages`.
    threads : int
        How many threads may decode the committed rows of a batch, as in `decode_messages`. The result is the same.
        Scanning payloads and assembling transactions always uses one thread.

    Notes
    -----
    Only one thread at a time may use a decoder; a concurrent call raises RuntimeError. After an exception the decoder
    has the state from before the call; after Ctrl-C too, unless it comes while the call returns. docs/options.md
    compares options and defaults with those of the other functions.

    Examples
    --------
    >>> capture = pq.read_table("tests/data/16.shop.v1.parquet")
    >>> changes = pgdecode.ChangeDecoder().decode(capture["data"], capture["seq"])
    >>> changes.select(["op", "relation_name", "commit_position"]).slice(0, 1).to_pylist()
    [{'op': 'insert', 'relation_name': 'products', 'commit_position': 62}]
    >>> orders = pgdecode.ChangeDecoder().table(capture["data"], "public.orders", capture["seq"])
    >>> orders.select(["_op", "id", "state", "total"]).slice(0, 1).to_pylist()
    [{'_op': 'insert', 'id': 1, 'state': 'new', 'total': Decimal('639.51')}]
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
        renames: Renames | None = None,
        unrepresentable: UnrepresentableValues = "error",
        name_clash: NameClash = "error",
        encoding: str = "UTF8",
        datestyle: str = "ISO, MDY",
        spill: str | Path | None = None,
        max_held_bytes: int = 256 * 2**20,
        limits: Limits = _LIMITS,
        strict_flags: bool = True,
        threads: int = 1,
    ) -> None:
        self._options = ChangeOptions(mode, include_uncommitted, drop_duplicates, limits, strict_flags, start, empty)
        # Whether the positions that it gets were counted too, as those of files without a column of positions.
        self.is_counted = False
        self._value_options = ValueOptions(types, unrepresentable, encoding, datestyle, columns, renames, name_clash)
        self._threads = check_threads(threads)
        self._spill = None if spill is None else Path(spill)
        self._begin(ReplicationState() if state is None else state_from_json(state, self._spill), catalog)
        self._layouts: dict[int, TextLayout] = {}
        self._spare_layouts: deque[dict[int, TextLayout]] = deque()  # of `slices`
        # By relation, and whether columns have the names that were sent.
        self._tables: dict[tuple[str | int, bool], tuple[Table, tuple[RelationVersion, ...]]] = {}
        self._max_held_bytes = max_held_bytes
        self._alone = Exclusive()
        # Spill files of ended transactions. The next call deletes them.
        self._spent = spent_from_json(state, self._spill)
        self._counts = _Counts()
        self._n_calls = 0
        self._run_counts = _Counts()  # at the beginning of the run
        self._run = self._first_run = RunStart(self._state.position, self._state.skipped.count)

    @classmethod
    def load(cls, folder: str | Path, *, types: Mapping[str | int, str] | None = None, **options: Any) -> ChangeDecoder:
        """Make a decoder that continues the run in a folder: one that `save`, the command line or Spark has written.

        Parameters
        ----------
        folder : path
            The folder of the run, with `_manifest.json`.
        types : mapping, optional
            As above. They take precedence over the types in the footers of the payload files so far.
        **options
            Other options of `ChangeDecoder`, except `state` and `catalog`.

        Raises
        ------
        pgdecode.runs.errors.RunFault
            If there is no complete run in the folder, or a file is missing, damaged or of another format.
        pgdecode.storage.errors.PathError
            If the folder is a URI.

        Notes
        -----
        Payloads of an undecided transaction stay in the folder until the transaction ends. So the folder must not be
        removed before. When the transaction ends, they are in memory, or with `spill` in a file that is mapped.
        """
        wrong = sorted({"state", "catalog"} & set(options))
        if wrong:
            raise TypeError(f"{wrong[0]} is part of the run that is continued")
        spill = options.get("spill")
        stored = load_state(local_path(folder, "the folder of a run"), None if spill is None else Path(spill))
        known = {key: text for oid, name, text in stored.source.user_types for key in (oid, name)}
        return cls.resumed(stored, types={**known, **(types or {})} or None, **options)

    @classmethod
    def resumed(cls, stored: StoredState, *, catalog: RelationCatalog | None = None, **options: Any) -> ChangeDecoder:
        """Make a decoder that continues a state that was loaded. The other options are those of `load`."""
        decoder = cls(**options)
        decoder._begin(stored.state.copy(), catalog)
        decoder._run = decoder._first_run = RunStart.after(stored)
        return decoder

    def _begin(self, state: ReplicationState, catalog: RelationCatalog | None) -> None:
        """Set the state before the first call. The first payload decides which versions of a catalog are visible."""
        self._initial_catalog = state.first_catalog(catalog)
        if self._initial_catalog is not None:
            state.relations = RelationTracker()
        self._state = state
        self._first_state = state.copy()
        self._held_bytes = bytes_in_memory(state)

    def save(self, folder: str | Path) -> None:
        """Write the state into the folder of a run, so that `load`, the command line or Spark can continue from here.

        Call it when the output of the payloads so far is complete, best with the folder of the output. The manifest is
        written last. If the process ends before, the folder has no run, and `save` can be called again.

        Parameters
        ----------
        folder : path
            It is made if it is missing. Its files stay.

        Raises
        ------
        FileExistsError
            If the folder has a run.
        pgdecode.runs.errors.RunError
            If another run has continued the one that this decoder has continued, or payloads between both are missing.
        pgdecode.storage.errors.PathError
            If the folder is a URI.
        """
        folder = local_path(folder, "the folder of a run")
        folder.mkdir(parents=True, exist_ok=True)
        with self._alone, self._run.claimed(folder):
            if (folder / MANIFEST).exists():
                raise FileExistsError(f"{folder} has the output of an earlier run; remove it, or load() from it")
            shutil.rmtree(folder / STATE, ignore_errors=True)  # of a process that ended before the manifest
            counts, before = self._counts, self._run_counts
            summary = Manifest(
                "python",
                (),
                options_to_json(self._options, self._value_options),
                bad_rows=dict(sorted((counts.bad_rows - before.bad_rows).items())),
            )
            source = self._run.source
            written = self.commit(folder, summary, source)
            self._run = RunStart(self._state.position, self.skipped, (folder, written), source)
            self._counts = replace(counts, first_position=None, last_position=None)
            self._run_counts = self._counts.copy()

    def commit(self, folder: Path, manifest: Manifest, source: SourceState, target: Path | None = None) -> Manifest:
        """Write the state and the manifest of a run, as `RunStart.commit` does."""
        counts = self._counts
        n = counts.n_payloads - self._run_counts.n_payloads
        input = replace(
            manifest.input,
            rows=n,
            first_position=counts.first_position,
            last_position=counts.last_position,
            is_counted=manifest.input.is_counted or counts.is_counted,
        )
        return self._run.commit(folder, replace(manifest, input=input), self._saved_state, source, target)

    @property
    def state(self) -> dict[str, Any]:
        """All that another decoder needs to continue from here, as plain JSON types.

        It contains the payloads of undecided transactions. Between transactions it is small.
        """
        return {**state_to_json(self._saved_state), "spent": sorted(path.name for path in self._spent)}

    @property
    def _saved_state(self) -> ReplicationState:
        """The state to save. Before the first payload, all versions of the catalog are visible in it."""
        if self._initial_catalog is None:
            return self._state
        return replace(self._state, relations=RelationTracker(self._initial_catalog))

    @property
    def _drops_bad(self) -> bool:
        return self._options.mode == "DROPMALFORMED"

    @property
    def catalog(self) -> RelationCatalog:
        """The versions of relations so far, including those of the `catalog` parameter."""
        return RelationCatalog(self._state.relations.versions or self._initial_catalog or ())

    @property
    def shape_catalog(self) -> RelationCatalog:
        """The versions of relations that committed transactions have sent or used. They determine tables' columns."""
        relations = self._state.relations
        return RelationCatalog(relations.versions[number] for number in sorted(relations.in_shape))

    @property
    def n_undecided(self) -> int:
        """Number of transactions without an outcome so far."""
        return self._state.n_undecided

    @property
    def skipped(self) -> int:
        """Number of transactions left out so far because their beginning is missing, with `start="anywhere"`."""
        return self._state.skipped.count

    @property
    def repeated(self) -> int:
        """Number of commits so far whose LSN is not greater than that of all before: sent again, or out of order."""
        return self._state.n_repeated

    @property
    def bad_rows(self) -> dict[str, int]:
        """Number of rows with an error so far, returned or left out, by error code."""
        return dict(self._counts.bad_rows)

    @property
    def empty_payloads(self) -> int:
        """Number of ignored payloads of 0 bytes so far."""
        return self._counts.n_empty

    def reconnected(self) -> None:
        """Declare that the next payloads come from a new connection. The server sends unconfirmed transactions again.

        Open plain and streamed transactions are discarded; prepared ones stay. Transactions that were committed before
        may come again: they are returned again, or with `drop_duplicates` left out.
        """
        with self._alone:
            self._state.is_reconnected = True

    def restart(self, fixed: Collection[str | int] | None = None) -> ChangeDecoder:
        """Make a decoder for a second pass over the payloads that this one has processed.

        It has the same options and starts from the same state, but knows all versions of relations that this one has
        found. A table has all its columns, in their final types, from the first batch. Do not use this decoder anymore.

        Parameters
        ----------
        fixed : collection of str or int, optional
            Tables, as "schema.table" or by OID, that are expected to have no further versions, if the second pass
            continues beyond those payloads. A further version raises
            `pgdecode.relations.version_tracker.SchemaChanged`.
        """
        other = copy(self)
        other._alone = Exclusive()
        other._first_state = self._first_state.copy()
        relations = self._state.relations
        first = other._first_state.relations
        first.preload(relations.versions, fixed, None if fixed is None else self._state.position)
        first.in_shape = set(relations.in_shape)
        other._state = other._first_state.copy()
        other._held_bytes = bytes_in_memory(other._state)
        other._layouts, other._tables, other._spent, other._spare_layouts = {}, {}, set(), deque()
        other._counts, other._run_counts, other._run = _Counts(), _Counts(), self._first_run
        return other

    def decode(self, payloads: Any, position: Any = None) -> pa.RecordBatch:
        """Decode the next payloads.

        Parameters
        ----------
        payloads : column of payloads, as in `decode_messages`
            In slot order. Null rows are ignored.
        position : column of ascending integers, optional
            The position of each payload in slot order. By default, payloads are counted from 0 across all calls. An LSN
            is not a position.

        Returns
        -------
        pa.RecordBatch
            The changes of transactions that these payloads commit, with the schema `CHANGES`. `xid` is that of the
            top-level transaction, `subxid` that of the sub-transaction, if any. `old` and `new` map column names to
            PostgreSQL's text form, also for binary values. SQL NULL is null; a column that was not sent is missing from
            the map. An unchanged TOAST value is taken from the old row; if the old row does not have it, `unchanged`
            names the column. A truncate makes one row for each table. docs/options.md explains
            why this column is `op` and that of `table` is `_op`.

        Raises
        ------
        DecodeError
            For a bad payload, with `row` and `offset`; `TransactionDesync` and `StreamDesync` if a message is missing,
            `CommitOrder` if transactions are out of order or were sent again, `UnknownRelation` if no message has
            described a relation.
        """
        with self._alone, self._call() as call:
            found = self._built(call, payloads, position, ONE_BATCH, lambda: [self._change_builder()])
            return one_batch([batch for _, batch in found], CHANGES)

    def decode_batches(self, payloads: Any, position: Any = None, *, max_rows: int = 65536) -> Iterator[pa.RecordBatch]:
        """Decode the next payloads as `decode` does, in batches of at most `max_rows` changes.

        All payloads are processed with the first batch. The batches are then built one by one.
        """
        with self._call() as call:
            for _, batch in self._built(call, payloads, position, max_rows, lambda: [self._change_builder()]):
                yield batch

    def table(self, payloads: Any, relation: str | int, position: Any = None) -> pa.RecordBatch:
        """Decode the next payloads, and return the changes of one table as typed columns.

        Parameters
        ----------
        payloads, position
            As in `decode`.
        relation : str or int
            "schema.table", or the OID of a table, which covers all names of the table.

        Returns
        -------
        pa.RecordBatch
            `_op`, `_position`, `_commit_position`, `_xid`, `_commit_lsn`, `_commit_timestamp`, `_old_type`, `_old` (a
            struct of the table's columns), `_unchanged`, `_error`, then the columns of the table: the new values, or
            for a delete the old values that were sent. If the table has several versions, the columns are those of
            `Table`: a renamed column has its last name in all rows. Later batches may bring versions with more columns.

        Raises
        ------
        DecodeError
            As in `decode`, and for a value that the Arrow type cannot represent.
        KeyError
            If no payload so far has described the table.
        """
        with self._alone, self._call() as call:
            found = self._built(call, payloads, position, ONE_BATCH, lambda: [self._rows_builder(relation)], [relation])
            return one_batch([batch for _, batch in found], self.table_schema(relation))

    def versions_of(self, relation: str | int) -> dict[int, RelationVersion]:
        """Return the versions that determine the columns of a table, by their numbers."""
        numbers = self._table_builder(relation).versions
        return {number: self._state.relations.versions[number] for number in numbers}

    def table_schema(self, relation: str | int, *, as_sent: bool = False) -> pa.Schema:
        """Return the schema of `table` for a table, by the versions of relations so far.

        With `as_sent`, columns have the names that were sent, as in batches with a version.

        Raises
        ------
        KeyError
            If no payload so far has described the table.
        """
        return self._table_builder(relation, with_version=as_sent).table.schema

    def table_batches(
        self,
        payloads: Any,
        relation: str | int,
        position: Any = None,
        *,
        max_rows: int = 65536,
        with_version: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Decode the next payloads as `table` does, in batches. Each batch is made from at most `max_rows` changes.

        With `with_version`, the last column, `VERSION`, has the number of each row's version, as in `versions_of`, and
        columns have the names that were sent.
        """
        with self._call() as call:
            found = self._built(
                call,
                payloads,
                position,
                max_rows,
                lambda: [self._rows_builder(relation, with_version=with_version)],
                [relation],
            )
            for _, batch in found:
                yield batch

    def tables_batches(
        self, payloads: Any, relations: Sequence[_Name], position: Any = None, *, max_rows: int = 65536
    ) -> Iterator[tuple[_Name, pa.RecordBatch]]:
        """Decode the next payloads once for several tables: the batches of `table_batches`, each with its table."""
        with self._call() as call:
            found = self._built(
                call, payloads, position, max_rows, lambda: [self._rows_builder(name) for name in relations], relations
            )
            for number, batch in found:
                yield relations[number], batch

    def slices(
        self,
        payloads: Any,
        relations: Sequence[_Name] | None = None,
        position: Any = None,
        *,
        max_rows: int = 65536,
        with_version: bool = False,
    ) -> list[Callable[[], list[tuple[_Name | None, pa.RecordBatch]]]]:
        """Process the next payloads, and return functions that build the changes that they commit, slice by slice.

        The functions may be called in other threads, in any order, also after later calls of the decoder. Each returns
        the batches of at most `max_rows` changes: those of `tables_batches`, or without relations those of
        `decode_batches`, with None as their table. Bad rows are neither counted nor left out. If a function fails, the
        state of the decoder stays. With `with_version`, rows of tables have the column `VERSION`, as in
        `table_batches`.
        """
        with self._alone, self._call() as call:
            committed = self._assemble(call, payloads, position, relations)
            tables = [self._table_builder(name, with_version=with_version) for name in relations or ()]
            versions = self._state.relations.versions

        def build(change_slice: ChangeSlice) -> list[tuple[_Name | None, pa.RecordBatch]]:
            if relations is None:
                # Layouts of encodings other than UTF-8 have state, so each thread needs its own.
                layouts = self._spare_layouts.pop() if self._spare_layouts else {}
                builder = ChangeBuilder(versions, layouts, self._value_options, self._options)
                found: list[tuple[_Name | None, pa.RecordBatch]] = [
                    (None, batch) for batch in fitting_batches(builder, change_slice)
                ]
                self._spare_layouts.append(layouts)
                return found
            return [
                (name, batch)
                for name, table in zip(relations, tables, strict=True)
                for batch in fitting_batches(copy(table), change_slice)
            ]

        return [partial(build, change_slice) for change_slice in change_slices(committed, max_rows)]

    def _built(
        self,
        call: _Call,
        payloads: Any,
        position: Any,
        max_rows: int,
        builders: Callable[[], Sequence[LimitedBuilder]],
        tables: Sequence[_Name] | None = None,
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Decode payloads with several builders. Yield each batch with the number of its builder.

        With `tables`, the builders get only the changes of these tables.
        """
        if max_rows < 1:
            raise ValueError(f"max_rows is at least 1, not {max_rows}")
        with self._alone:
            committed = self._assemble(call, payloads, position, tables)
            made = builders()
        found = build_batches(committed, made, max_rows, self._drops_bad, self._counts.bad_rows)
        while True:
            with self._alone:
                batch = next(found, None)
            if batch is None:
                return
            yield batch

    @contextmanager
    def _call(self) -> Iterator[_Call]:
        """Make a call atomic: an exception, Ctrl-C too, restores the state from before the call, until it returns.

        A call that yields several batches can be rolled back until the next call begins.
        """
        with self._alone:
            self._n_calls += 1
            call = _Call(self._n_calls, self._initial_catalog, self._counts.copy(), self._held_bytes, self._spent)
        try:
            yield call
            self._stop_recording(call)
        except BaseException as error:
            # With GeneratorExit, the caller wants no more of the batches.
            if call.number == self._n_calls and not isinstance(error, GeneratorExit):
                call.undo_log.rollback()
                # The rollback has put restored transactions at the end of the dict.
                by_beginning = sorted(self._state.streamed.items(), key=lambda item: item[1].begin_position)
                self._state.streamed = dict(by_beginning)
                self._initial_catalog, self._counts = call.initial_catalog, call.counts
                self._held_bytes, self._spent = call.held_bytes, call.spent
                # Numbers of removed versions will be used again.
                n_versions = len(self._state.relations.versions)
                self._layouts = {number: item for number, item in self._layouts.items() if number < n_versions}
                self._spare_layouts = deque()
            self._stop_recording(call)
            raise
        finally:
            # The undo log references payloads, and the state, which references the undo log.
            call.undo_log.clear()

    def _stop_recording(self, call: _Call) -> None:
        if call.number == self._n_calls:
            self._state.set_undo_log(NoUndoLog())

    def _change_builder(self) -> LimitedBuilder:
        def builder(layouts: dict[int, TextLayout]) -> LimitedBuilder:
            return ChangeBuilder(self._state.relations.versions, layouts, self._value_options, self._options)

        # Layouts of encodings other than UTF-8 have state, so each thread needs its own.
        return self._threaded(builder(self._layouts), lambda: builder({}))

    def _threaded(self, builder: LimitedBuilder, for_thread: Callable[[], LimitedBuilder]) -> LimitedBuilder:
        return builder if self._threads == 1 else ThreadedBuilder(builder, for_thread, self._threads)

    def _rows_builder(self, relation: str | int, *, with_version: bool = False) -> LimitedBuilder:
        builder = self._table_builder(relation, with_version=with_version)

        def for_thread() -> LimitedBuilder:
            other = copy(builder)
            other.text_bytes = 0
            return other

        return self._threaded(builder, for_thread)

    def _table_builder(
        self, relation: str | int, *, everything: bool = False, with_version: bool = False
    ) -> TableBuilder:
        relations = self._state.relations
        all_numbers = relations.numbers_of(relation, everything=True)
        numbers = all_numbers
        if not (everything or self._options.include_uncommitted):
            numbers = relations.numbers_of(relation)
        if not numbers:
            names = RelationCatalog(relations.versions).names
            hint = did_you_mean(str(relation), names)
            raise KeyError(f"no message has described {relation!r}{hint}; there are {listed(names)}")
        self._value_options.check_names(relations.names)
        found = tuple(relations.versions[number] for number in numbers)
        key = relation, with_version
        if self._tables.get(key, (None, ()))[1] != found:
            self._tables[key] = (Table(found, self._value_options, as_sent=with_version), found)
        others = set(all_numbers) - set(numbers)
        versions = dict(zip(numbers, found, strict=True))
        return TableBuilder(self._tables[key][0], versions, self._options, others, with_version=with_version)

    def follow(self, payloads: Any, position: Any = None) -> None:
        """Process payloads without building changes. Only the state and the versions of relations change."""
        with self._alone, self._call() as call:
            self._assemble(call, payloads, position)

    def undecided(self, relation: str | int | None = None) -> pa.RecordBatch:
        """Build the changes of undecided transactions, as `decode` does; `committed` is null.

        With a relation, build those of one table, as `table` does.
        """
        nothing = pa.array([], pa.large_binary())
        outcomes = CommittedOutcomes()
        no_positions = pa.array([], pa.int64())
        assembler = TransactionAssembler(ReplicationState(), nothing, no_positions, self._options, outcomes)
        assembler.run()
        state = self._state
        for item in state.prepared.values() if state.is_reconnected else state.undecided:
            emit(assembler, item, -1)
        committed = [(assembler, assembler.committed())]
        if relation is None:
            builder, schema = self._change_builder(), CHANGES
        else:
            builder = self._table_builder(relation, everything=True)
            schema = builder.table.schema
        found = build_batches(committed, [builder], 65536, self._drops_bad, Counter())
        return one_batch([batch for _, batch in found], schema)

    def _assemble(
        self, call: _Call, payloads: Any, position: Any, tables: Sequence[_Name] | None = None
    ) -> list[tuple[TransactionAssembler, CommittedChanges]]:
        """Process payloads, and return the changes that they commit, chunk by chunk."""
        column = payload_array(payloads)
        state = self._state
        state.set_undo_log(call.undo_log)
        positions = positions_of(position, len(column), state.position)
        if self._initial_catalog is not None and len(column):
            known = before_payloads(self._initial_catalog) if position is None else self._initial_catalog
            call.undo_log.set_attribute(state, "relations", RelationTracker(known, positions[0].as_py()))
            self._first_state.relations = state.relations.copy()
            state.set_undo_log(call.undo_log)
            self._initial_catalog = None
        is_counted = self.is_counted or position is None
        found = []
        spent: set[Path] = set()
        first = 0
        for chunk in column.chunks:
            chosen = positions.slice(first, len(chunk))
            outcomes = SpillOutcomes()
            assembler = TransactionAssembler(
                state, chunk, chosen, self._options, outcomes, first, tables=tables, is_counted=is_counted
            )
            found.append((assembler, assembler.run()))
            self._counts.n_empty += assembler.batch.n_empty
            self._counts.add(chosen)
            self._counts.is_counted = position is None
            assembler.release()
            first += len(chunk)
            spent |= outcomes.spent
            self._held_bytes += outcomes.n_bytes
            if self._spill is not None and self._held_bytes > self._max_held_bytes:
                # Half, so that not every call from now on has to look at all transactions.
                self._held_bytes = spill(state, self._spill, self._max_held_bytes // 2)
        for path in self._spent:
            path.unlink(missing_ok=True)
        self._spent = spent
        return found


@dataclass
class _Counts:
    """Numbers of bad rows, of empty and of all payloads so far; first and last position of the run."""

    bad_rows: Counter[str] = field(default_factory=Counter)
    n_empty: int = 0
    n_payloads: int = 0
    first_position: int | None = None
    last_position: int | None = None
    is_counted: bool = False

    def copy(self) -> _Counts:
        """Make an independent copy."""
        return replace(self, bad_rows=Counter(self.bad_rows))

    def add(self, positions: pa.Array) -> None:
        """Count payloads."""
        if len(positions):
            self.n_payloads += len(positions)
            self.first_position = positions[0].as_py() if self.first_position is None else self.first_position
            self.last_position = positions[-1].as_py()


@dataclass
class _Call:
    """A call that can be rolled back: its undo log, and other values from before it."""

    number: int
    initial_catalog: RelationCatalog | None
    counts: _Counts
    held_bytes: int
    spent: set[Path]
    undo_log: UndoLog = field(default_factory=UndoLog)
