"""Ordered payloads to committed changes: what the server's own subscriber would apply, as Arrow."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any

import pyarrow as pa

from pgdecode._layouts import TextLayout
from pgdecode.building import Builder, built, one_batch
from pgdecode.catalog import RelationCatalog
from pgdecode.change_maps import CHANGES, ChangeBuilder
from pgdecode.errors import listed
from pgdecode.inputs import payload_array, positions_of
from pgdecode.ledger import Delivery, Ledger, Options
from pgdecode.limits import Limits
from pgdecode.parallel import Exclusive
from pgdecode.readings import Reading
from pgdecode.spill import paths_of, spill
from pgdecode.state import spent_from_plain, state_from_plain, state_to_plain
from pgdecode.tables import Table, TableBuilder, versions_of
from pgdecode.transactions import Follower
from pgdecode.versions import RelationVersion
from pgdecode.visibility import CatalogBuilder

_LIMITS = Limits()
_ALL = 1 << 62  # rows: no joining of batches afterwards, which takes their memory twice


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
    def _drops_bad(self) -> bool:
        return self._options.mode == "DROPMALFORMED"

    @property
    def catalog(self) -> RelationCatalog:
        """The relations met so far, and those given."""
        return RelationCatalog(self._ledger.catalog.versions or self._given or ())

    @property
    def n_undecided(self) -> int:
        """Transactions so far that wait for their outcome."""
        return len(self._ledger.undecided)

    def again(self, settled: Collection[str] | None = None) -> ChangeDecoder:
        """Make a decoder for a second pass over the payloads that this one has taken up.

        It stands where this one began, with the same options, and knows every version of the relations that this one
        has met: a table has all its columns, in their final types, from the first batch on. This one is then done with.

        Parameters
        ----------
        settled : collection of str, optional
            Tables as "schema.table", where the pass goes on beyond those payloads, in the hope that these tables have
            no other versions. One that has is `pgdecode.visibility.Unforeseen`.
        """
        other = copy(self)
        other._alone = Exclusive()
        other._start = self._start.copy()
        end = None if settled is None else self._ledger.position
        other._start.catalog.foresee(self._ledger.catalog.versions, settled, end)
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
            return one_batch(list(self.decode_batches(payloads, position, max_rows=_ALL)), CHANGES)

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
            return one_batch(batches, self.table_schema(relation))

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
            found = built(deliveries, made, max_rows, self._drops_bad)
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
        return one_batch([batch for _, batch in built(found, [builder], 65536, self._drops_bad)], schema)

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
