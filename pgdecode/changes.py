"""Ordered payloads to committed changes: what the server's own subscriber would apply, as Arrow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode._maps import MAP, NAMES, Maps, TextLayout
from pgdecode._source import Source
from pgdecode.catalog import CatalogBuilder, RelationCatalog, RelationVersion
from pgdecode.errors import DecodeError
from pgdecode.inputs import payload_array, positions_of
from pgdecode.limits import Limits
from pgdecode.relations import text_decodings
from pgdecode.state import state_from_plain, state_to_plain
from pgdecode.transactions import Delivery, Follower, Ledger, Options

_LIMITS = Limits()
_TIMESTAMP = pa.timestamp("us", "UTC")

CHANGES = pa.schema(
    [
        ("position", pa.int64()),
        ("commit_position", pa.int64()),
        ("op", pa.string()),
        ("xid", pa.int64()),
        ("subxid", pa.int64()),
        ("commit_lsn", pa.int64()),
        ("commit_timestamp", _TIMESTAMP),
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
        Relations that the payloads do not describe, because they begin mid-stream.
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
    limits : Limits
    strict_flags : bool
        As for `decode_messages`.

    Notes
    -----
    Not for several threads at once. After an exception the decoder stands where it stood before the call.
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
        limits: Limits = _LIMITS,
        strict_flags: bool = True,
    ) -> None:
        if mode not in ("FAILFAST", "PERMISSIVE", "DROPMALFORMED"):
            raise ValueError(f'mode is "FAILFAST", "PERMISSIVE" or "DROPMALFORMED", not {mode!r}')
        if not isinstance(limits, Limits):
            raise TypeError(f"limits is a Limits, not {type(limits).__name__}")
        self._options = Options(mode, include_uncommitted, drop_duplicates, limits, strict_flags)
        self._types = dict(types or {})
        self._ledger = Ledger() if state is None else state_from_plain(state)
        self._given = catalog
        if catalog is not None and state is None:
            self._ledger.catalog = CatalogBuilder(catalog)
        self._layouts: dict[int, TextLayout] = {}

    @property
    def state(self) -> dict[str, Any]:
        """All that a decoder must know to go on from here, as JSON's own types.

        Small between transactions; the payloads of transactions whose outcome is to come are in it.
        """
        return state_to_plain(self._ledger)

    @property
    def catalog(self) -> RelationCatalog:
        """The relations met so far, and those given."""
        return RelationCatalog(self._ledger.catalog.versions)

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
        batches = list(self.decode_batches(payloads, position))
        return pa.concat_batches(batches) if len(batches) > 1 else batches[0] if batches else _empty()

    def decode_batches(self, payloads: Any, position: Any = None, *, max_rows: int = 65536) -> Iterator[pa.RecordBatch]:
        """Decode the next payloads as `decode` does, in batches of at most so many changes.

        The whole of the payloads is taken up with the first batch; the batches are built one by one.
        """
        if max_rows < 1:
            raise ValueError(f"max_rows is at least 1, not {max_rows}")
        deliveries, ledger = self._follow(payloads, position)
        before, self._ledger = self._ledger, ledger
        try:
            yield from self._built(deliveries, ledger, max_rows)
        except DecodeError:
            self._ledger = before
            raise

    def follow(self, payloads: Any, position: Any = None) -> None:
        """Take payloads up and give nothing back: for their relations and the state after them."""
        _, self._ledger = self._follow(payloads, position)

    def undecided(self) -> pa.RecordBatch:
        """The changes that wait for the outcome of their transaction, in `decode`'s schema; `committed` is null."""
        ledger = self._ledger.copy()
        nothing = pa.array([], pa.large_binary())
        follower = Follower(Ledger(), nothing, pa.array([], pa.int64()), self._options)
        follower.run()
        for item in ledger.undecided:
            follower.deliver_undecided(item)
        return pa.concat_batches([_empty(), *self._built([(follower, follower.delivery())], ledger, 65536)])

    def _follow(self, payloads: Any, position: Any) -> tuple[list[tuple[Follower, Delivery]], Ledger]:
        column = payload_array(payloads)
        ledger = self._ledger.copy()
        positions = positions_of(position, len(column), ledger.position)
        found = []
        first = 0
        for chunk in column.chunks:
            follower = Follower(ledger, chunk, positions.slice(first, len(chunk)), self._options, first)
            found.append((follower, follower.run()))
            first += len(chunk)
        return found, ledger

    def _built(
        self, deliveries: Iterable[tuple[Follower, Delivery]], ledger: Ledger, max_rows: int
    ) -> Iterator[pa.RecordBatch]:
        versions = ledger.catalog.versions
        for follower, delivery in deliveries:
            n = delivery.found["rows"].size // 8
            source = Source(delivery.parts)
            for start in range(0, n, max_rows):
                batch = self._batch(follower, delivery, source, versions, start, min(max_rows, n - start))
                if self._options.mode == "DROPMALFORMED" and batch.column("error").null_count < len(batch):
                    batch = batch.filter(batch.column("error").is_null())
                yield batch

    def _layout(self, index: int, version: RelationVersion) -> TextLayout:
        if index not in self._layouts:
            columns = version.columns
            decodings = text_decodings(version, self._types, version.types)
            self._layouts[index] = TextLayout(
                version.relation_id, [item.name for item in columns], [item.flags & 1 for item in columns], decodings
            )
        return self._layouts[index]

    def _batch(
        self,
        follower: Follower,
        delivery: Delivery,
        source: Source,
        versions: list[RelationVersion],
        start: int,
        n: int,
    ) -> pa.RecordBatch:
        """Changes start to start + n of a delivery."""

        def part(name: str, type: pa.DataType) -> pa.Array:
            return pa.Array.from_buffers(type, n, [None, delivery.found[name]], offset=start)

        def of_outcomes(name: str, type: pa.DataType) -> pa.Array:
            buffer = delivery.found[name]
            values = pa.Array.from_buffers(type, buffer.size * 8 // type.bit_width, [None, buffer])
            return values.take(outcomes)

        rows, relation_ids, versions_of = part("rows", pa.int64()), part("relation_ids", pa.int64()), part(
            "versions", pa.int32()
        )
        xids, subxids, outcomes = part("xids", pa.int64()), part("subxids", pa.int64()), part("outcomes", pa.int32())
        streamed = part("streamed", pa.uint8())
        wanted = [index for index in pc.unique(versions_of).to_pylist() if index >= 0]
        layouts: list[TextLayout | None] = [None] * (max(wanted, default=-1) + 1)
        for index in wanted:
            layouts[index] = self._layout(index, versions[index])
        maps = Maps(
            source,
            layouts,
            self._options.limits,
            self._options.strict_flags,
            self._options.mode != "FAILFAST",
        )
        try:
            columns, told = maps.run(_values(rows), _values(versions_of), _values(streamed))
        except DecodeError as error:
            raise follower.placed(error, rows) from None
        op, old_type, old, new, unchanged = columns
        commit_rows = of_outcomes("outcome_rows", pa.int64())
        commit_rows = _unless_negative(commit_rows, commit_rows)
        lsns = of_outcomes("lsns", pa.int64())
        no_commit = commit_rows.is_null()
        committed = of_outcomes("committed", pa.int8())
        names = _unless_negative(versions_of, versions_of)
        errors = self._errors(follower, delivery, rows, relation_ids, versions_of, op, told)
        return pa.RecordBatch.from_arrays(
            [
                delivery.positions.take(rows),
                delivery.positions.take(commit_rows),
                op,
                _unless_zero(xids),
                _unless_zero(subxids),
                _unless(no_commit, lsns),
                _unless(no_commit, of_outcomes("timestamps", _TIMESTAMP)),
                self._gids(delivery, outcomes),
                _unless_negative(relation_ids, relation_ids),
                pa.array([item.namespace for item in versions], pa.string()).take(names),
                pa.array([item.name for item in versions], pa.string()).take(names),
                old_type,
                old,
                new,
                unchanged,
                _unless_negative(committed, committed).cast(pa.bool_()),
                errors,
            ],
            schema=CHANGES,
        )

    def _gids(self, delivery: Delivery, outcomes: pa.Array) -> pa.Array:
        if not delivery.gids:
            return pa.nulls(len(outcomes), pa.string())
        n = delivery.found["outcome_rows"].size // 8
        return pa.array([delivery.gids.get(i) for i in range(n)], pa.string()).take(outcomes)

    def _errors(
        self,
        follower: Follower,
        delivery: Delivery,
        rows: pa.Array,
        relation_ids: pa.Array,
        versions_of: pa.Array,
        op: pa.Array,
        told: dict[int, str],
    ) -> pa.Array:
        """Texts of the `error` column: of bad payloads, of relations not described and of bad values."""
        told = dict(told)
        for place in pc.indices_nonzero(pc.less(versions_of, 0)).to_pylist():
            kind = op[place].as_py()
            if versions_of[place].as_py() == -2:
                told[place] = delivery.told[rows[place].as_py()]
            elif kind != "truncate":
                told[place] = follower.unknown_relation(relation_ids[place].as_py(), kind, None).cell
        if not told:
            return pa.nulls(len(rows), pa.string())
        return pa.array([told.get(place) for place in range(len(rows))], pa.string())


def _empty() -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], item.type) for item in CHANGES], schema=CHANGES)


def _values(array: pa.Array) -> memoryview:
    """The values of an array without nulls, as the native rooms take them."""
    letter = {8: "B", 32: "i", 64: "q"}[array.type.bit_width]
    buffer = array.buffers()[1]
    if buffer is None:
        return memoryview(b"").cast(letter)
    return memoryview(buffer).cast("B")[array.offset * array.type.bit_width // 8 :].cast(letter)[: len(array)]


def _unless(condition: pa.Array, values: pa.Array) -> pa.Array:
    return pc.if_else(condition, pa.scalar(None, values.type), values)


def _unless_negative(tested: pa.Array, values: pa.Array) -> pa.Array:
    return _unless(pc.less(tested, 0), values)


def _unless_zero(values: pa.Array) -> pa.Array:
    return _unless(pc.equal(values, 0), values)
