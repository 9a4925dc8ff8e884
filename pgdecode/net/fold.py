"""Follows rows from change to change by the numbers of their keys."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from pgdecode.arrow.distinct_values import plain_values, zipped

INSERT, UPDATE, DELETE = range(3)
GONE, LIVE, DELETED = range(3)


class KeyNumbers:
    """Gives each different key a number, in the order in which keys are first seen, and keeps their values.

    Values are equal if they are for `plain_values`.
    """

    def __init__(self, fields: Sequence[pa.Field]) -> None:
        self.schema = pa.schema(fields)
        self._numbers: dict[Any, int] = {}
        self._values: list[pa.Table] = []

    def __len__(self) -> int:
        return len(self._numbers)

    def numbered(self, columns: Sequence[pa.Array | pa.ChunkedArray], n: int) -> array[int]:
        """Return the number of the key of each row."""
        numbers, found, new = self._numbers, array("i"), array("q")
        for row, key in enumerate(zipped([plain_values(column) for column in columns], n)):
            n_before = len(numbers)
            found.append(numbers.setdefault(key, n_before))
            if len(numbers) > n_before:
                new.append(row)
        if new:
            rows = pa.table([*columns], schema=self.schema) if columns else pa.table({})
            self._values.append(rows.take(pa.array(new, pa.int64())))
        return found

    def convert(self, names: Sequence[str], fields: Mapping[str, pa.Field]) -> None:
        """Give the columns of the keys other names and types, which do not change what is equal."""
        schema = pa.schema([fields[name] for name in names])
        if schema != self.schema:
            self._values = [table.rename_columns([*names]).cast(schema) for table in self._values]
        self.schema = schema

    def values(self, numbers: pa.Array) -> pa.Table:
        """Return the values of keys; null for the number null."""
        values = pa.concat_tables(self._values) if self._values else self.schema.empty_table()
        return values.take(numbers)


class RowTracker:
    """The rows that changes have touched, each with a number.

    Attributes
    ----------
    own, before : array of int
        The number of each row's key, and of the key that it had before all changes; -1 if it was inserted.
    change : array of int
        The last change of each row.
    state : bytearray
        `LIVE`; `DELETED`; or `GONE`, if the row was inserted and deleted.
    """

    def __init__(self, is_unique: bool) -> None:
        self.is_unique = is_unique
        self.own, self.before, self.change, self.state = array("i"), array("i"), array("q"), bytearray()
        self._previous = array("i")  # the row before each row with the same key
        # By the number of a key: the last live row with it, and the row that had it before all changes.
        self._last, self._origin = array("i"), array("i")

    def __len__(self) -> int:
        return len(self.own)

    def reserve(self, n_keys: int) -> None:
        """Make room for so many keys."""
        missing = array("i", [-1]) * (n_keys - len(self._last))
        self._last.extend(missing)
        self._origin.extend(missing)

    def add(self, own: int, before: int, change: int, state: int) -> int:
        """Add a row."""
        row = len(self.own)
        self.own.append(own)
        self.before.append(before)
        self.change.append(change)
        self.state.append(state)
        self._previous.append(-1)
        if before >= 0:
            self._origin[before] = row
        if state == LIVE:
            self._push(row, own)
        return row

    def apply(self, ops: Sequence[int], own: Sequence[int], removed: Sequence[int], first: int) -> array[int]:
        """Apply changes, the first of which has the number `first`. Return the row that each one touched.

        `own` is the key after each change, `removed` the key of the row that it changes or deletes.
        """
        rows = array("i")
        for at, op in enumerate(ops):
            if op == INSERT:
                before = -1
                if self.is_unique and self._last[own[at]] >= 0:
                    # An earlier copy of the row, which was delivered again.
                    before = self._discard(self._pop(own[at]))
                row = self.add(own[at], before, first + at, LIVE)
            else:
                row = self._pop(removed[at])
                if row < 0:
                    row = self._returned(removed[at])
                if row < 0:
                    row = self.add(own[at], removed[at], first + at, DELETED)
                self.change[row] = first + at
                if op == DELETE:
                    self.state[row] = GONE if self.before[row] < 0 else DELETED
                else:
                    self.state[row] = LIVE
                    self._push(row, own[at])
            rows.append(row)
        return rows

    def _returned(self, key: int) -> int:
        """Find a row that had this key before all changes, of which a change was delivered again."""
        row = self._origin[key] if self.is_unique else -1
        if row >= 0 and self.state[row] == LIVE:
            self._pop(self.own[row])
        return row if row >= 0 and self.state[row] != GONE else -1

    def _push(self, row: int, key: int) -> None:
        last = self._last[key]
        if last >= 0 and self.is_unique:
            self._pop(key)
            self.state[last] = GONE if self.before[last] < 0 else DELETED
            last = -1
        self.own[row], self._previous[row], self._last[key] = key, last, row

    def _pop(self, key: int) -> int:
        row = self._last[key]
        if row >= 0:
            self._last[key] = self._previous[row]
        return row

    def _discard(self, row: int) -> int:
        self.state[row] = GONE
        return self.before[row]
