"""A target of plain Python rows, which follows the protocol literally: what the other targets are compared with."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from pgdecode.lake.applied import Applied
from pgdecode.lake.target import ColumnSource, MissingRow, TableCounts, Target
from pgdecode.net.schema import parts_of

Row = dict[str, Any]


class MemoryTable:
    """A list of rows, and the schema that the last `create` or `evolve` has given."""

    def __init__(self, on_write: Callable[[str], None]) -> None:
        self.schema = pa.schema([])
        self.rows: list[Row] = []
        self.counts = TableCounts()
        self._on_write = on_write

    def create(self, schema: pa.Schema) -> None:
        self._on_write("create")
        assert len(set(schema.names)) == len(schema.names)
        self.schema, self.rows = schema, []
        self.counts.rows = 0

    def evolve(self, schema: pa.Schema, columns: Mapping[str, ColumnSource]) -> None:
        self._on_write("evolve")
        assert [*columns] == schema.names
        former, rows = self.schema, self.rows
        self.rows = [{} for _ in rows]
        for name, source in columns.items():
            kind = schema.field(name).type
            if source.name is None:
                assert source.missing is not None
                assert source.missing.type == kind
                values = [source.missing.as_py()] * len(rows)
            else:
                stored = pa.chunked_array(
                    [pa.array([row[source.name] for row in rows], former.field(source.name).type)]
                )
                stored = stored if source.convert is None else source.convert(stored)
                values = stored.cast(kind).to_pylist()
            for row, value in zip(self.rows, values, strict=True):
                row[name] = value
        self.schema = schema

    def apply(self, net: pa.Table) -> None:
        self._on_write("apply")
        added, of_table = parts_of(net)
        columns = of_table.schema.names
        assert columns == self.schema.names
        for name in columns:
            assert of_table.schema.field(name).type == self.schema.field(name).type, name
        changes, values = added.to_pylist(), of_table.to_pylist()
        if changes and changes[0]["_action"] == "truncate":
            self.rows = []
            self.counts.truncates += 1
            changes, values = changes[1:], values[1:]
        key = [item.name for item in added.schema.field("_key_before").type]
        by_key: dict[str, list[Row]] = {}
        for row in self.rows:
            by_key.setdefault(repr([row[name] for name in key]), []).append(row)
        before: list[Row | None] = []
        for change in changes:
            wanted = change["_key_before"]
            rows = [] if wanted is None else by_key.get(repr([wanted[name] for name in key]), [])
            self.counts.missing += wanted is not None and not rows
            before.append(rows.pop() if rows else None)
            if change["_unknown"] and before[-1] is None:
                raise MissingRow(change["_position"])
        new: list[Row] = []
        for change, row, former in zip(changes, values, before, strict=True):
            self.counts.upserts += change["_action"] == "upsert"
            self.counts.deletes += change["_action"] == "delete"
            if change["_action"] == "upsert":
                row |= {name: (former or {})[name] for name in change["_unknown"]}
                if len(key) < len(columns):
                    by_key.pop(repr([row[name] for name in key]), None)
                new.append(row)
        self.rows = [*(row for rows in by_key.values() for row in rows), *new]
        self.counts.rows = len(self.rows)


class MemoryTarget(Target):
    """Tables in memory. It may be opened again and again, as a folder can.

    `on_write` is called before each change with its name; it may raise.
    """

    def __init__(self, on_write: Callable[[str], None] = lambda name: None) -> None:
        super().__init__("memory:")
        self.on_write = on_write
        self.committed: dict[str, tuple[pa.Schema, list[Row]]] = {}
        self._states: dict[str, str] = {}
        self._tables: dict[str, MemoryTable] = {}
        self.n_commits = 0

    @contextmanager
    def opened(self) -> Iterator[MemoryTarget]:
        self.applied = {name: Applied.from_json(text) for name, text in self._states.items()}
        try:
            yield self
        finally:
            self.roll_back()

    def table(self, name: str) -> MemoryTable:
        if name not in self._tables:
            table = self._tables[name] = MemoryTable(lambda what: self.on_write(f"{what} {name}"))
            if name in self.committed:
                table.schema, rows = self.committed[name]
                table.rows = copy.deepcopy(rows)
                table.counts.rows = len(rows)
        return self._tables[name]

    def commit(self, applied: Mapping[str, Applied]) -> None:
        self.on_write("commit")
        committed, states = dict(self.committed), dict(self._states)
        for name, state in applied.items():
            table = self.table(name)
            committed[name] = table.schema, copy.deepcopy(table.rows)
            states[name] = state.to_json()
            table.counts = TableCounts(rows=len(table.rows))
        self.committed, self._states = committed, states
        self.applied |= applied
        self.n_commits += 1
        self.on_write("committed")

    def roll_back(self) -> None:
        self._tables = {}

    def read(self, name: str) -> pa.RecordBatchReader:
        schema, rows = self.committed[name]
        table = pa.Table.from_pylist(rows, schema)
        return pa.RecordBatchReader.from_batches(schema, table.to_batches())
