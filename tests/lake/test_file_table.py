"""Tables of Parquet files against plain rows: random net changes, sizes of files and row groups, and failures."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from memory_target import MemoryTable

from pgdecode.lake import file_table, file_writer
from pgdecode.lake.applied import Applied
from pgdecode.lake.file_target import FileTarget
from pgdecode.lake.parquet_format import ParquetFormat
from pgdecode.net.schema import ABOUT
from support.generators.sequences import seeds

NAME = "public.orders"
KEY = {b"pg:key": b"true"}
Row = dict[str, Any]


def schema_of(key: list[str], **columns: pa.DataType) -> pa.Schema:
    """The schema of a typed table. Columns of the key are not null, unless all columns are the key."""
    is_unique = 0 < len(key) < len(columns)
    return pa.schema(
        [
            pa.field(name, kind, name not in key or not is_unique, KEY if name in key else None)
            for name, kind in columns.items()
        ]
    )


NOTES = {"note": pa.string(), "size": pa.int32()}
NESTED = {
    "tags": pa.list_(pa.string()),
    "span": pa.struct([("lower", pa.int32()), ("upper", pa.int32())]),
    "pairs": pa.map_(pa.string(), pa.string()),
}
SCHEMAS = {
    "a number": schema_of(["id"], id=pa.int64(), **NOTES),
    "text and a time": schema_of(["at", "name"], name=pa.string(), **NOTES, at=pa.timestamp("us", "UTC")),
    "floating point": schema_of(["x"], x=pa.float64(), **NOTES),
    "a decimal, nested columns": schema_of(["price"], price=pa.decimal128(30, 2), **NESTED),
    "a date and a flag": schema_of(["day", "flag"], day=pa.date32(), flag=pa.bool_(), data=pa.binary()),
    "no key": schema_of([], id=pa.int16(), x=pa.float64(), **NOTES, **NESTED),
    "all columns are the key": schema_of(["a", "b"], a=pa.int32(), b=pa.string()),
}


def value_of(rng: random.Random, kind: pa.DataType, *, with_nulls: bool = True) -> Any:
    """One of few values of a type, so that values are often equal."""
    if with_nulls and rng.random() < 0.2:
        return None
    n = rng.randrange(-20, 20)
    if pa.types.is_floating(kind):
        return rng.choice([float("nan"), -0.0, 0.0, float("inf"), n / 4])
    if pa.types.is_decimal(kind):
        return Decimal(n * 10**20).scaleb(-2)
    if pa.types.is_timestamp(kind):
        return datetime(2024, 1, 1) + timedelta(hours=n)
    if pa.types.is_date(kind):
        return datetime(2024, 1, 1).date() + timedelta(days=n)
    if pa.types.is_map(kind):
        return [(str(k), None if k % 2 else str(n)) for k in range(n % 3)]
    if pa.types.is_list(kind):
        return [value_of(rng, kind.value_type) for _ in range(n % 3)]
    if pa.types.is_struct(kind):
        return {item.name: value_of(rng, item.type) for item in kind}
    plain = {pa.bool_(): n > 0, pa.string(): "é" * (n % 5) + str(n), pa.binary(): bytes([n % 256])}
    return plain.get(kind, n)


def comparable(value: Any) -> Any:
    """A value that equals another one if their bits are identical."""
    if isinstance(value, float):
        return struct.pack("d", value)
    if isinstance(value, datetime):
        return value.replace(tzinfo=None)
    if isinstance(value, dict):
        return tuple((name, comparable(item)) for name, item in value.items())
    return tuple(map(comparable, value)) if isinstance(value, list | tuple) else value


def plain_rows(rows: list[Row]) -> list[str]:
    return sorted(repr(comparable(row)) for row in rows)


class Changes:
    """Net changes of random rows, in which each row and each key occurs once."""

    def __init__(self, schema: pa.Schema, rng: random.Random) -> None:
        self.schema, self.rng = schema, rng
        key = [item.name for item in schema if item.metadata]
        self.key = key or schema.names
        self.is_unique = len(self.key) < len(schema)
        self.position = 0

    def row(self) -> Row:
        return {
            item.name: value_of(self.rng, item.type, with_nulls=not (self.is_unique and item.name in self.key))
            for item in self.schema
        }

    def key_of(self, row: Row) -> Any:
        return comparable([row[name] for name in self.key])

    def of(self, rows: list[Row], *, most: int) -> pa.Table:
        """Changes of a table with these rows."""
        rng = self.rng
        made: list[Row] = []
        if rng.random() < 0.1:
            made.append(self.change("truncate", None, {}))
            rows = []
        touched = rng.sample(range(len(rows)), rng.randint(0, min(most, len(rows))))
        taken = {self.key_of(row) for at, row in enumerate(rows) if at not in set(touched)}
        for at in touched:
            row = rows[at]
            before = {name: row[name] for name in self.key}
            new = self.row()
            if rng.random() < 0.6 and self.is_unique:
                new |= before
            if rng.random() < 0.3 or (self.is_unique and self.key_of(new) in taken):
                made.append(self.change("delete", before, before))
                continue
            taken.add(self.key_of(new))
            unknown = [name for name in self.schema.names if name not in self.key and rng.random() < 0.3]
            made.append(self.change("upsert", before, {**new, **dict.fromkeys(unknown)}, unknown))
        for _ in range(rng.randint(0, most)):
            new = self.row()
            if not self.is_unique or self.key_of(new) not in taken:
                taken.add(self.key_of(new))
                made.append(self.change("upsert", None, new))
        if rng.random() < 0.2 and self.is_unique and self.key_of(missing := self.row()) not in taken:
            # A row that is not there, or that an insert has now.
            before = {name: missing[name] for name in self.key}
            if self.key_of(missing) not in {self.key_of(row) for row in rows}:
                made.append(self.change("delete", before, before))
        return self.table(made)

    def change(self, action: str, before: Row | None, values: Row, unknown: list[str] | None = None) -> Row:
        self.position += 1
        about = dict.fromkeys((item.name for item in ABOUT if item.type == pa.int64()), self.position)
        return {"_action": action, "_key_before": before, "_unknown": unknown or [], **about, **values}

    def table(self, changes: list[Row]) -> pa.Table:
        before = pa.struct([pa.field(name, self.schema.field(name).type) for name in self.key])
        added = [("_action", pa.string()), ("_key_before", before), ("_unknown", pa.list_(pa.string()))]
        columns = [item.with_nullable(True) for item in self.schema]
        return pa.Table.from_pylist(changes, pa.schema([*(pa.field(*item) for item in added), *ABOUT, *columns]))


def target_at(folder: Path, *, file_bytes: int = 2**27, threads: int = 1) -> FileTarget:
    return FileTarget(f"parquet:{folder}", ParquetFormat(folder), threads, file_bytes)


def read_folder(folder: Path) -> list[Row]:
    """What a reader that lists the folder of a table sees."""
    rows: list[Row] = pa.concat_tables([pq.read_table(path) for path in sorted(folder.glob("*.parquet"))]).to_pylist()
    return rows


@contextmanager
def row_groups_of(n_bytes: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_writer, "GROUP_BYTES", n_bytes)
        patch.setattr(file_table, "_LEAST_BYTES", n_bytes)
        yield


def check(folder: Path, schema: pa.Schema, rng: random.Random, n_steps: int) -> None:
    """Apply random net changes to files and to plain rows, with commits, roll backs and new processes between."""
    changes, model = Changes(schema, rng), MemoryTable(lambda _: None)
    model.create(schema)
    most = rng.choice([3, 10, 30, 200])
    is_few = most < 30
    file_bytes = rng.choice([1 if is_few else 2000, 2000, 20_000, 2**27])
    is_new = True
    with row_groups_of(rng.choice([1 if is_few else 200, 500, 5000, 2**25])):
        for step in range(n_steps):
            target = target_at(folder, file_bytes=file_bytes, threads=rng.choice([1, 2]))
            with target.opened():
                table = target.table(NAME)
                if is_new:
                    table.create(schema)
                for _ in range(rng.randint(1, 3)):
                    net = changes.of(model.rows, most=most)
                    table.apply(net)
                    model.apply(net)
                    assert plain_rows(table.read().read_all().to_pylist()) == plain_rows(model.rows)
                counts, expected = table.counts, model.counts
                assert (counts.upserts, counts.deletes, counts.truncates, counts.missing, counts.rows) == (
                    (expected.upserts, expected.deletes, expected.truncates, expected.missing, expected.rows)
                )
                model.counts = type(expected)(rows=expected.rows)
                target.commit({NAME: Applied(step, step + 1)})
                is_new = False
                table.apply(changes.of(model.rows, most=most))
            assert plain_rows(read_folder(folder / NAME)) == plain_rows(model.rows)
            assert [*(folder / "_pgdecode").glob("new*")] == []


@pytest.mark.parametrize("form", SCHEMAS)
@settings(max_examples=2, deadline=None)
@given(seed=seeds)
def test_files_have_the_rows_that_net_changes_leave(
    form: str, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    check(tmp_path_factory.mktemp("lake") / "lake", SCHEMAS[form], random.Random(seed), 2)


@pytest.mark.full
@pytest.mark.parametrize("form", SCHEMAS)
@settings(max_examples=40, deadline=None)
@given(seed=seeds)
def test_files_have_the_rows_that_many_net_changes_leave(
    form: str, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    check(tmp_path_factory.mktemp("lake") / "lake", SCHEMAS[form], random.Random(seed), 8)
