"""A target that counts what would be done to another one, and writes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode.lake.applied import Applied
from pgdecode.lake.target import ColumnSource, TableCounts, Target
from pgdecode.net.schema import parts_of


class _CountedTable:
    """Counts net changes. The number of rows, and updated rows that are missing, are not known."""

    def __init__(self, rows: int) -> None:
        self.counts = TableCounts(rows=rows)

    def create(self, schema: pa.Schema) -> None:
        """Count a table without rows."""
        self.counts.rows = 0

    def evolve(self, schema: pa.Schema, columns: Mapping[str, ColumnSource]) -> None:
        """Do nothing."""

    def apply(self, net: pa.Table) -> None:
        """Count net changes."""
        added, _ = parts_of(net)
        actions = {item["values"]: item["counts"] for item in pc.value_counts(added["_action"]).to_pylist()}
        upserts, deletes, truncates = (actions.get(name, 0) for name in ("upsert", "delete", "truncate"))
        inserts = pc.sum(pc.and_(added["_key_before"].is_null(), pc.equal(added["_action"], "upsert"))).as_py() or 0
        self.counts.upserts += upserts
        self.counts.deletes += deletes
        self.counts.truncates += truncates
        self.counts.rows = (0 if truncates else self.counts.rows) + inserts - deletes


class DryRun(Target):
    """Counts what would be done to a target.

    Parameters
    ----------
    target : Target
    """

    def __init__(self, target: Target) -> None:
        super().__init__(target.name)
        self._target = target
        self._tables: dict[str, _CountedTable] = {}
        self._rows: dict[str, int] = {}  # of tables that were committed

    @contextmanager
    def opened(self) -> Iterator[DryRun]:
        """Connect, and read the states."""
        with self._target.opened():
            self.applied = dict(self._target.applied)
            yield self

    def table(self, name: str) -> _CountedTable:
        """Return a table."""
        if name not in self._tables:
            if name not in self._rows:
                self._rows[name] = self._target.table(name).counts.rows if name in self._target.applied else 0
            self._tables[name] = _CountedTable(self._rows[name])
        return self._tables[name]

    def commit(self, applied: Mapping[str, Applied]) -> None:
        """Take note of the states."""
        for name in applied:
            self._rows[name] = self.table(name).counts.rows
            self._tables[name].counts = TableCounts(rows=self._rows[name])
        self.applied |= applied

    def roll_back(self) -> None:
        """Forget what was counted since the last commit."""
        self._tables.clear()
