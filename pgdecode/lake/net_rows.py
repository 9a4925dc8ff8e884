"""Net changes with the types that are stored: which rows of a table they claim, and what comes in their place."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode._native.arrow.int64_kernels import counted
from pgdecode._native.changes.key_numbers import KeyClaims, other_rows
from pgdecode.changes.committed_changes import values_of
from pgdecode.lake.data_file import ColumnBounds, order_value
from pgdecode.lake.stored_types import to_stored
from pgdecode.lake.target import MissingRow
from pgdecode.net.keys import KeyNumbers
from pgdecode.net.schema import parts_of
from pgdecode.net.touched_rows import one_array

# How many new rows, or bytes of them, are gathered at once.
_NEW_ROWS = 1 << 16
_NEW_BYTES = 1 << 24


class NetRows:
    """Net changes of a table, without a truncate.

    Parameters
    ----------
    net : pa.Table
        As `net_changes` returns them.
    schema : pa.Schema
        Of the files.

    Attributes
    ----------
    rows : pa.Table
        The columns of the table, with the types that are stored.
    key : list of str
        The names of the columns of the key.
    has_claims : bool
        Whether rows of the table may have to be removed.
    """

    def __init__(self, net: pa.Table, schema: pa.Schema) -> None:
        added, of_table = parts_of(net)
        before = one_array(added["_key_before"])
        self.key = [item.name for item in before.type]
        # With a key of all columns, rows may be equal, and one that was inserted is none of those that are there.
        self.is_unique = len(self.key) < len(schema)
        # Taking rows of a column with several chunks would copy the whole column each time.
        columns = [one_array(to_stored(of_table[item.name], item.type)) for item in schema]
        self.rows = pa.Table.from_arrays(columns, schema=_nullable(schema))
        self.is_upsert = one_array(pc.equal(added["_action"], "upsert"))
        self._positions = added["_position"]
        self._has_key = before.is_valid()
        self._is_known = _known(added["_unknown"])
        self._sorted: dict[str, tuple[bool, pa.Array]] = {}
        self._numbers = KeyNumbers([schema.field(name) for name in self.key])
        keys = [self._key_column(before, schema.field(name)) for name in self.key]
        numbers = self._numbers.numbered(keys, net.num_rows)
        claimants = self._has_key
        if self.is_unique:
            own = [one_array(self.rows[name]) for name in self.key]
            own_numbers = self._numbers.numbered(own, net.num_rows)
            # An upsert also removes what has the key that it has now, to be safe.
            moved = pc.and_(pc.and_(self._has_key, self.is_upsert), pc.not_equal(own_numbers, numbers))
            claimants = pa.repeat(True, net.num_rows)
            if moved.true_count:
                keys = [pa.concat_arrays([key, column.filter(moved)]) for key, column in zip(keys, own, strict=True)]
        else:
            keys = [key.filter(claimants) for key in keys]
            numbers = pc.if_else(claimants, numbers, pa.scalar(-1, pa.int32()))
        self._keys = dict(zip(self.key, keys, strict=True))
        self.has_claims = claimants.true_count > 0
        is_late = pc.invert(self._has_key).cast(pa.uint8())
        self._claims = KeyClaims(values_of(numbers), values_of(is_late), len(self._numbers))

    def _key_column(self, before: pa.StructArray, field: pa.Field) -> pa.Array:
        """Return the key that each row had before; for one that was inserted, the key that it has."""
        column = to_stored(pa.chunked_array([pc.struct_field(before, field.name)]), field.type)
        own = self.rows[field.name]
        if not self.is_unique or self._has_key.true_count == len(before):
            return one_array(column)
        n = len(before)
        index = pc.if_else(self._has_key, _count(0, n), _count(n, n))
        return one_array(pa.chunked_array([*column.chunks, *own.chunks], column.type).take(index))

    # -- rows of the table ---------------------------------------------------------------------------------------------

    def may_match(self, bounds: Mapping[str, ColumnBounds]) -> bool:
        """Whether rows with such bounds may have one of the keys."""
        return all(self._may_be_within(name, bounds[name]) for name in self.key if name in bounds)

    def _may_be_within(self, name: str, bounds: ColumnBounds) -> bool:
        if name not in self._sorted:
            self._sorted[name] = _sorted(self._keys[name])
        has_null, values = self._sorted[name]
        if has_null and bounds.nulls != 0:
            return True
        if bounds.minimum is None or bounds.maximum is None:
            # All values are null, or nothing is known.
            return True
        minimum, maximum = order_value(bounds.minimum), order_value(bounds.maximum)
        first = bisect_left(values, minimum, key=_plain)
        return bool(first < len(values) and values[first].as_py() <= maximum)

    def find(self, columns: Sequence[pa.Array], n: int) -> tuple[memoryview, memoryview]:
        """Find the rows of the table with one of the keys: the rows, and the numbers of the keys."""
        return self._numbers.find(columns, n)

    def claim(self, rows: memoryview, numbers: memoryview) -> tuple[pa.Array, pa.Array]:
        """Claim rows of the table that `find` has found, in the order of the table.

        Returns the rows to remove, and for each the row of the net changes that claims it, or -1.
        """
        claimed, by = self._claims.claim(rows, numbers, self.is_unique)
        n = claimed.size // 4
        return tuple(pa.Array.from_buffers(pa.int32(), n, [None, item]) for item in (claimed, by))

    def unclaimed(self) -> tuple[pa.Array, int]:
        """Return the upserts that have claimed no row, and how many rows were to be removed that are not there.

        Raises
        ------
        MissingRow
            If such an upsert has unknown values.
        """
        n = len(self.is_upsert)
        left = pa.Array.from_buffers(pa.uint8(), n, [None, self._claims.left()]).cast(pa.bool_())
        missing = pc.and_(left, self._has_key)
        if not self.is_unique:
            left = pc.or_(left, pc.invert(self._has_key))
        new = pc.and_(left, self.is_upsert)
        for is_known in self._is_known.values():
            lost = pc.and_(new, pc.invert(is_known))
            if lost.true_count:
                raise MissingRow(self._positions[pc.index(lost, True).as_py()].as_py())
        return pc.indices_nonzero(new), missing.true_count

    def n_lost(self, by: pa.Array) -> int:
        """Return how many of the rows that are removed no upsert comes in the place of."""
        claimants = by.filter(pc.greater_equal(by, pa.scalar(0, by.type)))
        return len(by) - int(self.is_upsert.take(claimants).true_count)

    def new_rows(self, numbers: pa.Array) -> Iterator[pa.Table]:
        """Return upserts that have claimed no row, in parts."""
        n_rows = min(_NEW_ROWS, max(1, _NEW_BYTES * len(self.rows) // max(self.rows.nbytes, 1)))
        for start in range(0, len(numbers), n_rows):
            part = numbers.slice(start, n_rows)
            first, last = part[0].as_py(), part[-1].as_py()
            is_run = last - first == len(part) - 1
            yield self.rows.slice(first, len(part)) if is_run else self.rows.take(part)

    def replaced(self, rows: pa.Table, removed: pa.Array, by: pa.Array) -> pa.Table:
        """Return rows of the table without some of them, and with the upserts that have claimed those."""
        stays = pa.Array.from_buffers(pa.bool_(), len(rows), [None, other_rows(len(rows), values_of(removed))])
        left = rows.filter(stays)
        is_placed = pc.greater_equal(by, pa.scalar(0, by.type))
        by, removed = by.filter(is_placed), removed.filter(is_placed)
        is_upsert = self.is_upsert.take(by)
        by, removed = by.filter(is_upsert), removed.filter(is_upsert)
        if not len(by):
            return left
        new = self.rows.take(by)
        n = len(by)
        for name, is_known in self._is_known.items():
            known = is_known.take(by)
            if known.true_count < n:
                index = pc.if_else(known, _count(0, n), _count(n, n))
                both = pa.chunked_array([*new[name].chunks, *rows[name].take(removed).chunks], new[name].type)
                new = new.set_column(new.schema.get_field_index(name), new.schema.field(name), both.take(index))
        return pa.concat_tables([left, new.cast(left.schema)])


def _nullable(schema: pa.Schema) -> pa.Schema:
    """Return a schema whose columns may be null: a delete has the columns of its key only."""
    return pa.schema([item.with_nullable(True) for item in schema], metadata=schema.metadata)


def _count(first: int, n: int) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), n, [None, counted(first, n)])


def _known(unknown: pa.ChunkedArray) -> dict[str, pa.Array]:
    """Return for each column with unknown values whether the rows know theirs."""
    lists = one_array(unknown)
    names, rows = lists.flatten(), pc.list_parent_indices(lists).cast(pa.int32())
    found = {}
    for name in names.unique().to_pylist():
        of_name = rows.filter(pc.equal(names, name))
        bits = other_rows(len(lists), values_of(of_name))
        found[name] = pa.Array.from_buffers(pa.bool_(), len(lists), [None, bits])
    return found


def _sorted(values: pa.Array) -> tuple[bool, pa.Array]:
    """Return whether there is a null, and the other values in order, in the form of `order_value`."""
    kind = values.type
    if pa.types.is_temporal(kind):
        values = values.cast(pa.int64() if kind.bit_width == 64 else pa.int32())
    has_null = values.null_count > 0
    values = values.drop_null()
    return has_null, values.take(pc.array_sort_indices(values))


def _plain(value: pa.Scalar) -> Any:
    return value.as_py()
