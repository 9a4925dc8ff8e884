"""A target with changes in memory on top of it: what it would be after them. Nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode.lake.applied import Applied
from pgdecode.lake.stored_types import to_stored
from pgdecode.lake.target import ColumnSource, TableCounts, Target
from pgdecode.lake.verification.table_comparison import hashes_of
from pgdecode.net.schema import parts_of, without_truncate
from pgdecode.net.touched_rows import one_array

# The hash of a key.
_Key = tuple[int, int]
# Where a value is: the number of a row that was added, or the key of a row below.
_Location = int | _Key


@dataclass
class _Row:
    """A row that was added: its number, and where the values are that its change did not have."""

    number: int
    others: dict[str, _Location] = field(default_factory=dict)


class _Layer:
    """Rows, and net changes on top of them.

    Parameters
    ----------
    schema : pa.Schema
        With the types in which rows are read.
    below : callable
        Reads the rows.
    n_below : int
        Number of the rows.
    """

    def __init__(self, schema: pa.Schema, below: Callable[[], Iterable[pa.RecordBatch]], n_below: int = 0) -> None:
        self.schema = schema
        self._below, self._n_below = below, n_below
        self._is_truncated = False
        self._key: list[str] = []
        # How many rows below with a key are removed, and the rows that were added.
        self._removed: dict[_Key, int] = {}
        self._rows: dict[_Key, list[_Row]] = {}
        self._added: list[pa.Table] = []
        self._n_added = 0

    def copy(self) -> _Layer:
        """Make an independent copy."""
        other = copy(self)
        other._removed, other._added = dict(self._removed), [*self._added]
        other._rows = {key: [*rows] for key, rows in self._rows.items()}
        return other

    def apply(self, net: pa.Table) -> None:
        """Apply net changes, as `TargetTable.apply` does."""
        is_truncated, net = without_truncate(net)
        if is_truncated:
            self._is_truncated, self._n_below = True, 0
            self._removed, self._rows = {}, {}
        if not len(net):
            return
        added, of_table = parts_of(net)
        before = one_array(added["_key_before"])
        self._key = [item.name for item in before.type]
        is_whole = len(self._key) == len(self.schema)
        columns = {name: to_stored(of_table[name], self.schema.field(name).type) for name in self.schema.names}
        parts = [to_stored(pc.struct_field(before, name), self.schema.field(name).type) for name in self._key]
        wanted = _keys(pa.RecordBatch.from_arrays(parts, self._key))
        own = _keys(pa.table([columns[name] for name in self._key], self._key))
        has_before = before.is_valid().to_pylist()
        actions, unknown = added["_action"].to_pylist(), added["_unknown"].to_pylist()
        former: list[_Row | _Key | None] = [
            self._take(key) if is_there else None for key, is_there in zip(wanted, has_before, strict=True)
        ]
        for number, (key, action, was) in enumerate(zip(own, actions, former, strict=True)):
            if action != "upsert":
                continue
            if not is_whole:
                self._take(key, is_sure=False)
            row = _Row(self._n_added + number)
            for name in unknown[number] or ():
                if isinstance(was, _Row):
                    row.others[name] = was.others.get(name, was.number)
                elif was is not None:
                    row.others[name] = was
            self._rows.setdefault(key, []).append(row)
        self._added.append(pa.table([*columns.values()], schema=pa.schema(self.schema)))
        self._n_added += len(net)

    @property
    def n_rows(self) -> int:
        """Number of rows, if all rows to remove are there."""
        return max(self._n_below, 0) + sum(map(len, self._rows.values()))

    def _take(self, key: _Key, *, is_sure: bool = True) -> _Row | _Key | None:
        """Remove a row, and return where its values are."""
        rows = self._rows.get(key)
        if rows:
            found = rows.pop()
            if not rows:
                del self._rows[key]
            return found
        if self._is_truncated:
            return None
        if not is_sure:
            # There is at most one, which may have been removed already.
            self._removed[key] = 1
            return None
        self._removed[key] = self._removed.get(key, 0) + 1
        self._n_below -= 1
        return key

    def read(self) -> Iterator[pa.RecordBatch]:
        """Read the rows after the changes."""
        needed = {place for row in self._all_rows() for place in row.others.values() if isinstance(place, tuple)}
        left = dict(self._removed)
        firsts = pa.array({key[0] for key in left}, pa.uint64())
        taken: dict[_Key, pa.RecordBatch] = {}
        for batch in () if self._is_truncated else self._below():
            if not left:
                yield batch
                continue
            hashes = hashes_of(batch, self._key)
            candidates = pc.indices_nonzero(pc.is_in(hashes[0], firsts)).to_pylist()
            removed = []
            for at in candidates:
                key = (hashes[0][at].as_py(), hashes[1][at].as_py())
                if left.get(key, 0):
                    left[key] -= 1
                    removed.append(at)
                    if key in needed:
                        taken[key] = batch.slice(at, 1)
            if removed:
                mask = pc.invert(pc.is_in(pa.array(range(len(batch)), pa.int64()), pa.array(removed, pa.int64())))
                batch = batch.filter(mask)
            yield batch
        yield from self._added_rows(taken)

    def _all_rows(self) -> Iterator[_Row]:
        for rows in self._rows.values():
            yield from rows

    def _added_rows(self, taken: Mapping[_Key, pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = list(self._all_rows())
        if not rows:
            return
        added = pa.concat_tables(self._added)
        below = pa.Table.from_batches([*taken.values()], self.schema) if taken else added.slice(0, 0)
        numbers = {key: self._n_added + at for at, key in enumerate(taken)}
        columns = []
        for item in self.schema:
            places = [row.others.get(item.name, row.number) for row in rows]
            chosen = [numbers.get(place) if isinstance(place, tuple) else place for place in places]
            values = pa.chunked_array([*added[item.name].chunks, *below[item.name].chunks], item.type)
            columns.append(values.take(pa.array(chosen, pa.int64())))
        yield from pa.table(columns, schema=self.schema).to_batches()


def _keys(table: pa.Table | pa.RecordBatch) -> list[_Key]:
    batches = [table] if isinstance(table, pa.RecordBatch) else table.to_batches()
    found: list[_Key] = []
    for batch in batches:
        first, second = hashes_of(batch, batch.schema.names)
        found += zip(first.to_pylist(), second.to_pylist(), strict=True)
    return found


class OverlayTable:
    """A table of a target, with changes in memory.

    Parameters
    ----------
    read : callable
        Reads the committed rows; None if there is no such table.
    n_rows : int
        Number of the committed rows.
    """

    def __init__(self, read: Callable[[], pa.RecordBatchReader] | None, n_rows: int = 0) -> None:
        self.counts = TableCounts(rows=n_rows)
        self._layer: _Layer | None = None
        if read is not None:
            with read() as reader:
                schema = reader.schema
            self._layer = _Layer(schema.remove_metadata(), read, n_rows)

    @property
    def schema(self) -> pa.Schema:
        """The columns, with the types in which rows are read."""
        return self._layer.schema if self._layer is not None else pa.schema([])

    def copy(self) -> OverlayTable:
        """Make an independent copy."""
        other = copy(self)
        other.counts, other._layer = replace(self.counts), self._layer and self._layer.copy()
        return other

    def create(self, schema: pa.Schema) -> None:
        """Make the table empty."""
        self._layer = _Layer(_without_metadata(schema), tuple)
        self.counts.rows = 0

    def evolve(self, schema: pa.Schema, columns: Mapping[str, ColumnSource]) -> None:
        """Give the table other columns."""
        former, schema = self._layer, _without_metadata(schema)
        assert former is not None

        def read() -> Iterator[pa.RecordBatch]:
            for batch in former.read():
                yield pa.RecordBatch.from_arrays(
                    [_evolved(batch, source, item.type) for source, item in zip(columns.values(), schema, strict=True)],
                    schema=schema,
                )

        self._layer = _Layer(schema, read, former.n_rows)

    def apply(self, net: pa.Table) -> None:
        """Apply net changes."""
        assert self._layer is not None
        self._layer.apply(net)
        self.counts.rows = self._layer.n_rows

    def read(self) -> Iterator[pa.RecordBatch]:
        """Read the rows after all changes."""
        assert self._layer is not None
        return self._layer.read()


def _without_metadata(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(item.name, item.type) for item in schema])


def _evolved(batch: pa.RecordBatch, source: ColumnSource, kind: pa.DataType) -> pa.Array:
    if source.name is None:
        missing = source.missing
        return pa.nulls(len(batch), kind) if missing is None else to_stored(pa.repeat(missing, len(batch)), kind)
    found: Any = batch[source.name]
    if source.convert is not None:
        found = source.convert(pa.chunked_array([found]))
    return one_array(to_stored(found, kind))


class Overlay(Target):
    """A target whose changes stay in memory.

    Parameters
    ----------
    target : Target
        It is read, and not changed.
    """

    def __init__(self, target: Target) -> None:
        super().__init__(target.name)
        self._target = target
        self._tables: dict[str, OverlayTable] = {}
        self._committed: dict[str, OverlayTable] = {}

    @contextmanager
    def opened(self) -> Iterator[Overlay]:
        """Return the target, which is open already."""
        self.applied = dict(self._target.applied) | self.applied
        yield self

    def table(self, name: str) -> OverlayTable:
        """Return a table, by "schema.table"."""
        if name not in self._tables:
            is_there = name in self._target.applied
            self._tables[name] = (
                OverlayTable(lambda: self._target.read(name), self._target.table(name).counts.rows)
                if is_there
                else OverlayTable(None)
            )
        return self._tables[name]

    def commit(self, applied: Mapping[str, Applied]) -> None:
        """Take the states of tables, and keep their changes."""
        self._committed |= {name: self.table(name).copy() for name in applied}
        self.applied |= applied

    def roll_back(self) -> None:
        """Discard what was done to all tables since the last commit."""
        self._tables = {name: table.copy() for name, table in self._committed.items()}

    def read(self, name: str) -> pa.RecordBatchReader:
        """Read the rows of a table after the changes."""
        table = self.table(name)
        return pa.RecordBatchReader.from_batches(table.schema, table.read())
