"""Ordered payloads to committed changes: what the server's own subscriber would apply, as Arrow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from pgdecode._maps import MAP, NAMES, Maps, TextLayout
from pgdecode._source import Source
from pgdecode.catalog import RelationCatalog
from pgdecode.deliveries import TIMESTAMP, Stretch, unless_negative, values_of
from pgdecode.errors import BatchTooLarge, DecodeError, listed
from pgdecode.inputs import payload_array, positions_of
from pgdecode.ledger import Delivery, Ledger, Options
from pgdecode.limits import Limits
from pgdecode.parallel import Exclusive, joined
from pgdecode.readings import Reading
from pgdecode.rows import texts
from pgdecode.spill import paths_of, spill
from pgdecode.state import spent_from_plain, state_from_plain, state_to_plain
from pgdecode.tables import Table, TableBuilder, versions_of
from pgdecode.transactions import Follower
from pgdecode.versions import RelationVersion
from pgdecode.visibility import CatalogBuilder

_LIMITS = Limits()
_ALL = 1 << 62  # rows: no joining of batches afterwards, which takes their memory twice

CHANGES = pa.schema(
    [
        ("position", pa.int64()),
        ("commit_position", pa.int64()),
        ("op", pa.string()),
        ("xid", pa.int64()),
        ("subxid", pa.int64()),
        ("commit_lsn", pa.int64()),
        ("commit_timestamp", TIMESTAMP),
        ("gid", pa.string()),
        ("relation_id", pa.int64()),
        ("namespace", pa.string()),
        ("relation_name", pa.string()),
        ("old_type", pa.string()),
        ("old", MAP),
        ("new", MAP),
        ("unchanged", NAMES),
        ("committed", pa.bool_()),
        ("error", pa.string()),
    ]
)


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
        Raise on the first bad payload; or keep it as a row that says why in `error`; or leave it out.
    include_uncommitted : bool
        Give also the changes that were rolled back (`committed` false) or lost their end (null).
    drop_duplicates : bool
        Leave out transactions that were delivered before: those whose commit LSN does not lie past all earlier ones.
        Logical replication delivers at least once, and after a reconnect the server sends again what was not
        confirmed. Without this option (commit_lsn, xid) tells repeated transactions.
    types : mapping of OID or "schema.type" to a PostgreSQL type's name, optional
        What types are that the stream does not describe, as for `decode_rows`.
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

    Notes
    -----
    One thread at a time may use it: for another meanwhile it is a RuntimeError. After an exception the decoder stands
    where it stood before the call.
    """

    def __init__(
        self,
        *,
        state: Mapping[str, Any] | None = None,
        catalog: RelationCatalog | None = None,
        mode: str = "FAILFAST",
        include_uncommitted: bool = False,
        drop_duplicates: bool = False,
        types: Mapping[str | int, str] | None = None,
        unrepresentable: str = "error",
        encoding: str = "UTF8",
        datestyle: str = "ISO, MDY",
        spill: str | Path | None = None,
        max_held_bytes: int = 256 * 2**20,
        limits: Limits = _LIMITS,
        strict_flags: bool = True,
    ) -> None:
        if mode not in ("FAILFAST", "PERMISSIVE", "DROPMALFORMED"):
            raise ValueError(f'mode is "FAILFAST", "PERMISSIVE" or "DROPMALFORMED", not {mode!r}')
        if not isinstance(limits, Limits):
            raise TypeError(f"limits is a Limits, not {type(limits).__name__}")
        self._options = Options(mode, include_uncommitted, drop_duplicates, limits, strict_flags)
        self._reading = Reading(types, unrepresentable, encoding, datestyle)
        self._spill = None if spill is None else Path(spill)
        self._ledger = Ledger() if state is None else state_from_plain(state, self._spill)
        self._given = catalog if state is None else None
        self._start = self._ledger.copy()
        self._layouts: dict[int, TextLayout] = {}
        self._tables: dict[str | int, tuple[Table, tuple[RelationVersion, ...]]] = {}
        self._max_held_bytes = max_held_bytes
        self._alone = Exclusive()
        # Files whose transactions are over.
        self._spent = spent_from_plain(state, self._spill)

    @property
    def state(self) -> dict[str, Any]:
        """All that a decoder must know to go on from here, as JSON's own types.

        Small between transactions; the payloads of transactions whose outcome is to come are in it.
        """
        return {**state_to_plain(self._ledger), "spent": sorted(path.name for path in self._spent)}

    @property
    def catalog(self) -> RelationCatalog:
        """The relations met so far, and those given."""
        return RelationCatalog(self._ledger.catalog.versions or self._given or ())

    @property
    def n_undecided(self) -> int:
        """Transactions so far that wait for their outcome."""
        return len(self._ledger.undecided)

    def again(self) -> ChangeDecoder:
        """Make a decoder for a second pass over the payloads that this one has taken up.

        It stands where this one began, with the same options, and knows every version of the relations that this one
        has met: a table has all its columns, in their final types, from the first batch on. This one is then done with.
        """
        other = copy(self)
        other._alone = Exclusive()
        other._start = self._start.copy()
        other._start.catalog.foresee(self._ledger.catalog.versions)
        other._ledger = other._start.copy()
        other._layouts, other._tables, other._spent = {}, {}, set()
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
            otherwise its column is named in `unchanged`. A truncate gives a row for each table.

        Raises
        ------
        DecodeError
            For a bad payload, with `row` and `offset`; `TransactionDesync` and `StreamDesync` where a message is
            missing, `UnknownRelation` where a relation has not been described.
        """
        with self._alone, self._all_or_nothing():
            return _joined(list(self.decode_batches(payloads, position, max_rows=_ALL)), CHANGES)

    def decode_batches(self, payloads: Any, position: Any = None, *, max_rows: int = 65536) -> Iterator[pa.RecordBatch]:
        """Decode the next payloads as `decode` does, in batches of at most so many changes.

        The whole of the payloads is taken up with the first batch; the batches are built one by one.
        """
        for _, batch in self._batches(payloads, position, max_rows, lambda ledger: [self._change_builder(ledger)]):
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
        with self._alone, self._all_or_nothing():
            batches = list(self.table_batches(payloads, relation, position, max_rows=_ALL))
            return _joined(batches, self.table_schema(relation))

    def table_schema(self, relation: str | int) -> pa.Schema:
        """Give the columns that `table` gives of a table, by the relations met so far.

        Raises
        ------
        KeyError
            If no payload so far has described the table.
        """
        return self._table_builder(self._ledger, relation).table.schema

    def table_batches(
        self, payloads: Any, relation: str | int, position: Any = None, *, max_rows: int = 65536
    ) -> Iterator[pa.RecordBatch]:
        """Decode the next payloads as `table` does, in batches from at most so many changes each."""
        for _, batch in self._batches(
            payloads, position, max_rows, lambda ledger: [self._table_builder(ledger, relation)]
        ):
            yield batch

    def tables_batches(
        self, payloads: Any, relations: Sequence[str], position: Any = None, *, max_rows: int = 65536
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Decode the next payloads once for several tables: batches of each as `table_batches` gives, with its name."""
        found = self._batches(
            payloads, position, max_rows, lambda ledger: [self._table_builder(ledger, name) for name in relations]
        )
        for number, batch in found:
            yield relations[number], batch

    def _batches(
        self, payloads: Any, position: Any, max_rows: int, builders: Callable[[Ledger], Sequence[Builder]]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Decode payloads by each of several builders; each batch with the number of its builder."""
        if max_rows < 1:
            raise ValueError(f"max_rows is at least 1, not {max_rows}")
        with self._alone:
            deliveries, ledger = self._follow(payloads, position)
            made = builders(ledger)
            before, given = self._ledger, self._given
            self._go_on(ledger)
        with self._all_or_nothing(before, given):
            found = self._built(deliveries, made, max_rows)
            while True:
                with self._alone:
                    batch = next(found, None)
                if batch is None:
                    return
                yield batch

    @contextmanager
    def _all_or_nothing(self, before: Ledger | None = None, given: RelationCatalog | None = None) -> Iterator[None]:
        """Stand where the decoder stands, or stood before, if something is raised."""
        if before is None:
            before, given = self._ledger, self._given
        try:
            yield
        except Exception:
            if self._ledger is not before:
                self._ledger, self._given, self._spent = before, given, set()
                # The numbers of versions that are taken back will be those of others.
                n_versions = len(before.catalog.versions)
                self._layouts = {number: item for number, item in self._layouts.items() if number < n_versions}
            raise

    def _go_on(self, ledger: Ledger) -> None:
        """Stand where a ledger stands, and clear away what nobody can ask for any more."""
        for path in self._spent:
            path.unlink(missing_ok=True)
        # Without files there is none to look for in transactions, of which there may be many.
        self._spent = set() if self._spill is None else paths_of(self._ledger) - paths_of(ledger)
        self._given = None if ledger.begun or len(ledger.catalog.versions) else self._given
        self._ledger = ledger

    def _change_builder(self, ledger: Ledger) -> Builder:
        return ChangeBuilder(ledger.catalog.versions, self._layouts, self._reading, self._options)

    def _table_builder(self, ledger: Ledger, relation: str | int, everything: bool = False) -> TableBuilder:
        versions = ledger.catalog.versions
        numbers = versions_of(versions, relation, everything=everything or self._options.include_uncommitted)
        if not numbers:
            names = listed(RelationCatalog(versions).names)
            raise KeyError(f"no message has described {relation!r}; there are {names}")
        found = tuple(numbers.values())
        if self._tables.get(relation, (None, ()))[1] != found:
            self._tables[relation] = (Table(found, self._reading), found)
        return TableBuilder(self._tables[relation][0], numbers, self._options)

    def follow(self, payloads: Any, position: Any = None) -> None:
        """Take payloads up and give nothing back: for their relations and the state after them."""
        with self._alone:
            _, ledger = self._follow(payloads, position)
            self._go_on(ledger)

    def undecided(self, relation: str | int | None = None) -> pa.RecordBatch:
        """Build the changes that wait for the outcome of their transaction, as `decode` does; `committed` is null.

        With a relation, those of one table as `table` does.
        """
        ledger = self._ledger.copy()
        nothing = pa.array([], pa.large_binary())
        follower = Follower(Ledger(), nothing, pa.array([], pa.int64()), self._options)
        follower.run()
        for item in ledger.undecided:
            follower.deliver_undecided(item)
        found = [(follower, follower.delivery())]
        if relation is None:
            builder, schema = self._change_builder(ledger), CHANGES
        else:
            builder = self._table_builder(ledger, relation, everything=True)
            schema = builder.table.schema
        return _joined([batch for _, batch in self._built(found, [builder], 65536)], schema)

    def _follow(self, payloads: Any, position: Any) -> tuple[list[tuple[Follower, Delivery]], Ledger]:
        column = payload_array(payloads)
        ledger = self._ledger.copy()
        positions = positions_of(position, len(column), ledger.position)
        if self._given is not None and len(column):
            at = None if position is None else positions[0].as_py()
            ledger.catalog = CatalogBuilder(self._given, at)
            self._start.catalog = ledger.catalog.copy()
        found = []
        first = 0
        for chunk in column.chunks:
            follower = Follower(ledger, chunk, positions.slice(first, len(chunk)), self._options, first)
            found.append((follower, follower.run()))
            follower.release()
            first += len(chunk)
            if self._spill is not None:
                spill(ledger, self._spill, self._max_held_bytes)
        return found, ledger

    def _built(
        self, deliveries: Iterable[tuple[Follower, Delivery]], builders: Sequence[Builder], max_rows: int
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        for follower, delivery in deliveries:
            n = delivery.found["rows"].size // 8
            source = Source(delivery.parts)
            for start in range(0, n, max_rows):
                stretch = Stretch(follower, delivery, source, start, min(max_rows, n - start))
                for number, builder in enumerate(builders):
                    for batch in fitting_batches(builder, stretch):
                        error = batch.column(builder.error)
                        if self._options.mode == "DROPMALFORMED" and error.null_count < len(batch):
                            batch = batch.filter(error.is_null())
                        yield number, batch


def fitting_batches(builder: Builder, stretch: Stretch) -> Iterator[pa.RecordBatch]:
    """Build a stretch as one record batch, or as several where it would pass what Arrow's offsets reach."""
    try:
        yield builder.batch(stretch)
    except BatchTooLarge:
        if stretch.n == 1:
            raise
        half = stretch.n // 2
        yield from fitting_batches(builder, replace(stretch, n=half))
        yield from fitting_batches(builder, replace(stretch, start=stretch.start + half, n=stretch.n - half))


class Builder(Protocol):
    """Makes record batches of deliveries."""

    error: str  # name of the column that says what is wrong with a row

    def batch(self, stretch: Stretch) -> pa.RecordBatch:
        """Build the changes of a stretch."""


class ChangeBuilder:
    """Builds record batches of the changes of all tables, by the schema `CHANGES`."""

    error = "error"

    def __init__(
        self,
        versions: list[RelationVersion],
        layouts: dict[int, TextLayout],
        reading: Reading,
        options: Options,
    ) -> None:
        self.versions = versions
        self.layouts = layouts
        self.reading = reading
        self.options = options

    @cached_property
    def _namespaces(self) -> pa.Array:
        return pa.array([item.namespace for item in self.versions], pa.string())

    @cached_property
    def _names(self) -> pa.Array:
        return pa.array([item.name for item in self.versions], pa.string())

    def _layout(self, index: int) -> TextLayout:
        if index not in self.layouts:
            version = self.versions[index]
            columns = version.columns
            self.layouts[index] = TextLayout(
                version.relation_id,
                [item.name for item in columns],
                [item.flags & 1 != 0 for item in columns],
                self.reading.texts(version),
            )
        return self.layouts[index]

    def batch(self, stretch: Stretch) -> pa.RecordBatch:
        """Build the changes of a stretch."""
        wanted = [version for version, _ in stretch.by_version(len(self.versions))]
        layouts: list[TextLayout | None] = [None] * (max(wanted, default=-1) + 1)
        for index in wanted:
            layouts[index] = self._layout(index)
        options = self.options
        maps = Maps(stretch.source, layouts, options.limits, options.strict_flags, options.mode != "FAILFAST")
        try:
            columns, told = maps.run(*map(values_of, (stretch.rows, stretch.versions, stretch.streamed)))
        except DecodeError as error:
            raise stretch.placed(error) from None
        op, old_type, old, new, unchanged = columns
        numbers = unless_negative(stretch.versions)
        return pa.RecordBatch.from_arrays(
            [
                stretch.position,
                stretch.commit_position,
                op,
                stretch.xid,
                stretch.subxid,
                stretch.commit_lsn,
                stretch.commit_timestamp,
                stretch.gid,
                stretch.relation_id,
                self._namespaces.take(numbers),
                self._names.take(numbers),
                old_type,
                old,
                new,
                unchanged,
                stretch.committed,
                texts(told | stretch.unknown(), stretch.n),
            ],
            schema=CHANGES,
        )


def _joined(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Make one record batch of several, or of none; the several are let go of column by column."""
    if len(batches) == 1:
        return batches[0]
    n_columns = len(schema)
    columns: list[Sequence[pa.Array]] = [[batch.column(i) for batch in batches] for i in range(n_columns)]
    if not batches:
        columns = [[pa.array([], item.type)] for item in schema]
    batches.clear()
    try:
        return pa.RecordBatch.from_arrays(joined(columns, 1), schema=schema)
    except pa.ArrowInvalid:
        # "offset overflow while concatenating arrays": in batches they can be had.
        raise BatchTooLarge(BatchTooLarge.wording.format(field="a column")) from None
