"""Follows rows of a table through changes of their keys."""

from __future__ import annotations

from array import array
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from pgdecode.relations.relation_version import RelationVersion
from pgdecode.relations.schema_metadata import key_columns

_TRUNCATE = -1
Values = Mapping[str, str | None]


class RowHistory:
    """Finds the changes of the rows that at some time had the given values, in PostgreSQL's text form.

    Parameters
    ----------
    wanted : mapping
        Values by the names of columns. With REPLICA IDENTITY FULL, these columns are the key.
    """

    def __init__(self, wanted: Mapping[str, str]) -> None:
        self._wanted = wanted
        self._rows = array("q")  # the number of the row of each change
        self._n_rows = 0
        self._live: defaultdict[tuple[str | None, ...], deque[int]] = defaultdict(deque)
        self._chosen: set[int] = set()

    def add(self, changes: pa.RecordBatch, versions: Iterable[RelationVersion]) -> None:
        """Add the next changes of the table, whose versions so far are given."""
        keys = list(dict.fromkeys(self._key_of(version) for version in versions))[::-1]
        for op, old, new in zip(*(changes[name].to_pylist() for name in ("op", "old", "new")), strict=True):
            self._rows.append(self._add(op, dict(old or ()), dict(new or ()), keys))

    def _key_of(self, version: RelationVersion) -> tuple[str, ...]:
        return tuple(self._wanted) if version.replica_identity == "f" else key_columns(version)

    def _add(self, op: str | None, old: Values, new: Values, keys: Sequence[tuple[str, ...]]) -> int:
        if op == "truncate":
            self._live.clear()
            return _TRUNCATE
        row = -1
        after = _values(new, keys)
        if op != "insert":
            # Of two rows with one key, as in a swap of deferred keys, the first statement is of the older one.
            same = self._live.get(_values(old, keys) if old else after)
            row = same.popleft() if same else -1
        if row < 0:
            row, self._n_rows = self._n_rows, self._n_rows + 1
        if op != "delete":
            self._live[after].append(row)
        if any(self._wanted.items() <= values.items() for values in (old, new)):
            self._chosen.add(row)
        return row

    def chosen(self) -> list[bool]:
        """For each change, whether it is of such a row. Truncates are of all rows."""
        return [row == _TRUNCATE or row in self._chosen for row in self._rows]


def _values(row: Values, keys: Sequence[tuple[str, ...]]) -> tuple[Any, ...]:
    key = next((key for key in keys if all(name in row for name in key)), ())
    return tuple(row[name] for name in key)
