"""Tables of Parquet files against plain rows: random net changes, sizes of files and row groups, and failures."""

from __future__ import annotations

import errno
import io
import os
import pickle
import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from memory_target import MemoryTable

from pgdecode.datasets.errors import RunError
from pgdecode.datasets.file_digest import DigestedFile
from pgdecode.datasets.local_folder import LocalFolder
from pgdecode.datasets.manifest import Manifest
from pgdecode.datasets.state import State
from pgdecode.datasets.target import target_at as target_at_log
from pgdecode.lake import file_writer
from pgdecode.lake.applied import Applied
from pgdecode.lake.data_file import ColumnBounds, DataFile, column_bounds
from pgdecode.lake.file_table import FileTable
from pgdecode.lake.file_target import FileTarget
from pgdecode.lake.parquet_format import ParquetFormat
from pgdecode.lake.target import ColumnSource, MissingRow, TableCounts
from pgdecode.lake.targets import lake_target
from pgdecode.net.schema import ABOUT
from pgdecode.storage.object_path import object_path
from support.data_sets import local, stored
from support.emulators import Emulator
from support.generators.sequences import seeds

pytest_plugins = ["support.stores"]

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
        yield


def check(folder: Path, schema: pa.Schema, rng: random.Random, n_steps: int, sizes: list[int]) -> None:
    """Apply random net changes to files and to plain rows, with commits, roll backs and new processes between."""
    changes, model = Changes(schema, rng), MemoryTable(lambda _: None)
    model.create(schema)
    most = rng.choice(sizes)
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


@pytest.mark.parametrize("form", ["text and a time", "no key"])
@settings(max_examples=2, deadline=None)
@given(seed=seeds)
def test_files_have_the_rows_that_net_changes_leave(
    form: str, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    check(tmp_path_factory.mktemp("lake") / "lake", SCHEMAS[form], random.Random(seed), 2, [3, 10])


@pytest.mark.full
@pytest.mark.parametrize("form", SCHEMAS)
@settings(max_examples=4, deadline=None)
@given(seed=seeds)
def test_files_have_the_rows_that_many_net_changes_leave(
    form: str, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    check(tmp_path_factory.mktemp("lake") / "lake", SCHEMAS[form], random.Random(seed), 5, [3, 10, 30, 200])


# -- single cases ------------------------------------------------------------------------------------------------------

SIMPLE = SCHEMAS["a number"]


def simple(*changes: tuple[Any, ...]) -> pa.Table:
    """Net changes of `SIMPLE`: (action, id before, id, note, size, unknown columns)."""
    made = Changes(SIMPLE, random.Random(0))
    rows = []
    for action, before, *values in changes:
        known = dict(zip(SIMPLE.names, values[:3], strict=False))
        rows.append(made.change(action, None if before is None else {"id": before}, known, [*values[3:]]))
    return made.table(rows)


def inserts(ids: range, note: str = "new") -> pa.Table:
    return simple(*(("upsert", None, number, note, number) for number in ids))


@contextmanager
def opened(folder: Path, **options: Any) -> Iterator[tuple[FileTarget, FileTable]]:
    target = target_at(folder, **options)
    with target.opened():
        yield target, target.table(NAME)


def commit(folder: Path, *nets: pa.Table, is_new: bool = False, **options: Any) -> TableCounts:
    """Apply net changes, and commit them."""
    with opened(folder, **options) as (target, table):
        if is_new:
            table.create(SIMPLE)
        for net in nets:
            table.apply(net)
        counts = table.counts
        target.commit({NAME: Applied(1, 2)})
    return counts


def test_a_table_without_rows_is_a_file_with_its_columns(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    commit(lake, is_new=True)
    (path,) = (lake / NAME).iterdir()
    assert pq.read_schema(path).equals(SIMPLE, check_metadata=True)
    assert commit(lake, inserts(range(3))).files_removed == 1
    assert len([*(lake / NAME).iterdir()]) == 1
    assert commit(lake, simple(("truncate", None))).truncates == 1
    (path,) = (lake / NAME).iterdir()
    assert pq.read_table(path).schema.equals(SIMPLE, check_metadata=True)
    assert pq.read_metadata(path).num_rows == 0


def test_swaps_and_chains_of_keys_take_unknown_values_from_the_old_rows(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    commit(lake, inserts(range(2), "first"), is_new=True, file_bytes=1)
    commit(lake, inserts(range(2, 5), "second"), file_bytes=1)
    assert len([*(lake / NAME).iterdir()]) == 2
    swap = [("upsert", 0, 4, None, 40, "note"), ("upsert", 4, 0, None, 0, "note")]
    chain = [
        ("upsert", 1, 2, None, 21, "note"),
        ("upsert", 2, 3, None, 32, "note"),
        ("upsert", 3, 9, None, None, "size"),
    ]
    commit(lake, simple(*swap, *chain))
    assert sorted(tuple(row.values()) for row in read_folder(lake / NAME)) == [
        (0, "second", 0),
        (2, "first", 21),
        (3, "second", 32),
        (4, "first", 40),
        (9, None, 3),
    ]


def test_an_upsert_with_unknown_values_needs_its_row(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    commit(lake, inserts(range(2)), is_new=True)
    with opened(lake) as (_, table):
        net = simple(("delete", 0, 0), ("upsert", 7, 7, None, 7, "note"))
        with pytest.raises(MissingRow, match=r"^position 2: the updated row is not in the target"):
            table.apply(net)
        assert table.counts.files_added == 0
        assert table.read().read_all().num_rows == 2


def test_columns_are_added_dropped_renamed_and_converted(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    commit(lake, inserts(range(3)), simple(("upsert", None, 3, None, None)), is_new=True)
    key = SIMPLE.field("id")
    schema = pa.schema(
        [
            key,
            ("text", pa.string()),
            ("size", pa.int64()),
            ("day", pa.date32()),
            ("none", pa.string()),
            ("note", pa.int32()),
        ]
    )
    columns = {
        "id": ColumnSource("id"),
        "text": ColumnSource("size", convert=lambda column: column.cast(pa.string())),
        "size": ColumnSource("size"),
        "day": ColumnSource(missing=pa.scalar(1, pa.date32())),
        "none": ColumnSource(missing=pa.scalar(None, pa.string())),
        "note": ColumnSource(missing=pa.scalar(5, pa.int32())),
    }
    with opened(lake) as (target, table):
        table.evolve(schema, columns)
        target.commit({NAME: Applied(2, 3)})
    with opened(lake) as (target, table):
        day = datetime(1970, 1, 2).date()
        expected = [{"id": n, "text": str(n), "size": n, "day": day, "none": None, "note": 5} for n in range(3)]
        expected.append({"id": 3, "text": None, "size": None, "day": day, "none": None, "note": 5})
        assert target.read(NAME).read_all().sort_by("id").to_pylist() == expected
        assert target.read(NAME).schema.equals(schema, check_metadata=True)


def test_only_files_and_row_groups_with_changed_rows_are_read_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = tmp_path / "lake"
    monkeypatch.setattr(file_writer, "GROUP_BYTES", 500)
    with opened(lake, file_bytes=3000) as (target, table):
        table.create(SIMPLE)
        table.apply(inserts(range(2000), "a note"))
        target.commit({NAME: Applied(1, 2)})
    before = {path: path.read_bytes() for path in (lake / NAME).iterdir()}
    assert len(before) > 5
    reads = []
    original = file_writer.SourceFile.__init__

    def counting(self: Any, format: Any, file: DataFile) -> None:
        reads.append(file.path)
        original(self, format, file)

    monkeypatch.setattr(file_writer.SourceFile, "__init__", counting)
    monkeypatch.setattr(file_writer, "GROUP_BYTES", 2**25)
    counts = commit(lake, simple(("upsert", 500, 500, "changed", 0)), file_bytes=3000)
    assert (counts.files_added, counts.files_removed, len(reads)) == (1, 1, 1)
    (gone,) = before.keys() - {*(lake / NAME).iterdir()}
    (new,) = {*(lake / NAME).iterdir()} - before.keys()
    old_file, new_file = pq.ParquetFile(io.BytesIO(before[gone])), pq.ParquetFile(new)
    assert old_file.num_row_groups == new_file.num_row_groups > 3
    ids = [new_file.read_row_group(n, columns=["id"])["id"].to_pylist() for n in range(new_file.num_row_groups)]
    changed = next(number for number, found in enumerate(ids) if 500 in found)
    content = new.read_bytes()
    for number in range(old_file.num_row_groups):
        chunks = [old_file.metadata.row_group(number).column(leaf) for leaf in range(3)]
        start, end = chunks[0].dictionary_page_offset, chunks[2].data_page_offset + chunks[2].total_compressed_size
        # Up to the last page of the group, which begins behind its dictionary.
        assert (before[gone][start : end - 200] in content) == (number != changed)
    counts = commit(lake, inserts(range(3000, 3001)), file_bytes=3000)
    assert (counts.files_removed, len(reads)) == (0, 1)


def test_another_key_leaves_the_files_and_learns_their_bounds(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    commit(lake, inserts(range(3)), is_new=True)
    before = {path: path.stat().st_ino for path in (lake / NAME).iterdir()}
    schema = pa.schema([item.with_metadata(KEY if item.name == "size" else {}) for item in SIMPLE])
    with opened(lake) as (target, table):
        table.evolve(schema, {name: ColumnSource(name) for name in schema.names})
        target.commit({NAME: Applied(2, 3)})
    assert {path: path.stat().st_ino for path in (lake / NAME).iterdir()} == before
    made = Changes(schema, random.Random(0))
    with opened(lake) as (target, table):
        table.apply(made.table([made.change("delete", {"size": 77}, {})]))
        target.commit({NAME: Applied(3, 4)})
    with opened(lake) as (target, table):
        (file,) = table.change(Applied(3, 4)).files
        assert file.bounds["size"] == ColumnBounds(0, pa.scalar(0, pa.int32()), pa.scalar(2, pa.int32()))
        assert target.read(NAME).schema.equals(schema, check_metadata=True)


def test_a_folder_of_another_kind_is_refused(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    with target_at_log(lake).begin((), {}) as run:
        run.commit(Manifest("python", ()), State({"a": 1}))
    with (
        pytest.raises(RunError, match="is a data set that was not written by apply: choose another folder"),
        opened(lake),
    ):
        pass


def test_a_failure_behind_a_commit_does_not_remove_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = tmp_path / "lake"
    commit(lake, inserts(range(3)), is_new=True)
    with opened(lake) as (target, table):
        table.apply(inserts(range(3, 6)))
        monkeypatch.setattr(LocalFolder, "begin", lambda *_: RaisingContext())
        target.commit({NAME: Applied(2, 3)})
        with pytest.raises(RunError, match="too late"):
            table.apply(inserts(range(6, 9)))
    monkeypatch.undo()
    assert sorted(row["id"] for row in read_folder(lake / NAME)) == [*range(6)]
    local(lake).checked()


class RaisingContext:
    def __enter__(self) -> None:
        raise RunError("too late")

    def __exit__(self, *error: object) -> None:
        pass


@pytest.mark.full
def test_small_files_are_joined_and_large_ones_stay(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    commit(lake, is_new=True)
    n_bytes = 0
    rng = random.Random(1)
    with opened(lake, file_bytes=100_000) as (target, table):
        for number in range(40):
            rows = [("upsert", None, 20 * number + n, rng.randbytes(200).hex(), n) for n in range(20)]
            table.apply(simple(*rows))
            n_bytes += table.counts.bytes_added
            target.commit({NAME: Applied(number, number + 1)})
        assert table.counts.rows == 800
    sizes = sorted(path.stat().st_size for path in (lake / NAME).iterdir())
    assert len(sizes) < 10
    assert n_bytes < 8 * sum(sizes)


def test_bounds_of_files_hold_for_all_values(tmp_path: Path) -> None:
    extremes = [2**63 - 1, -(2**63), None]
    columns = {
        "time": pa.array(extremes, pa.timestamp("us", "UTC")),
        "day": pa.array([2**31 - 1, -(2**31), None], pa.date32()),
        "clock": pa.array([0, 86_399_999_999, None], pa.time64("us")),
        "price": pa.array([Decimal(10**37), -Decimal(10**37), None], pa.decimal128(38, 0)),
        "x": pa.array([float("nan"), 1.0, -0.0], pa.float64()),
        "text": pa.array(["z" * 5000, "a", None]),
        "data": pa.array([b"\xff", b"", None]),
        "flag": pa.array([True, False, None]),
        "small": pa.array([-1, 1, None], pa.int16()),
        "none": pa.array([None] * 3, pa.int32()),
        "list": pa.array([[1], None, []], pa.list_(pa.int32())),
    }
    table = pa.table(columns)
    path = tmp_path / "file.parquet"
    pq.write_table(table, path, row_group_size=1)
    bounds = column_bounds(pq.read_metadata(path), table.schema)
    assert bounds.keys() == columns.keys() - {"list"}
    for name in ("time", "day", "clock", "price", "data", "flag", "small"):
        ends = pc.min_max(table[name].cast(pa.int64()) if name == "time" else table[name])
        found = bounds[name].minimum, bounds[name].maximum
        assert [end.cast(ends["min"].type) for end in found] == [ends["min"], ends["max"]], name
        assert bounds[name].nulls == 1
    assert (bounds["x"].minimum, bounds["x"].nulls) == (None, 0)
    assert bounds["text"].maximum is None  # pyarrow writes no long statistics
    assert bounds["none"] == ColumnBounds(3)


def test_one_huge_value_does_not_make_a_huge_row_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = tmp_path / "lake"
    monkeypatch.setattr(file_writer, "GROUP_BYTES", 2**16)
    rows = [("upsert", None, n, "x" * (2**18 if n == 50 else 2**11), n) for n in range(100)]
    commit(lake, simple(*rows), is_new=True)
    (path,) = (lake / NAME).iterdir()
    groups = [pq.read_metadata(path).row_group(number) for number in range(pq.read_metadata(path).num_row_groups)]
    assert max(group.num_rows for group in groups) < 70
    assert sum(group.num_rows for group in groups) == 100


# -- failures ----------------------------------------------------------------------------------------------------------


class Failing:
    """Lets call number n of those that change files fail."""

    def __init__(self, number: int) -> None:
        self.number, self.n_calls = number, 0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for name in ("rename", "replace", "link", "unlink", "mkdir", "fsync"):
                patch.setattr(os, name, self._failing(getattr(os, name)))
            patch.setattr(DigestedFile, "write", self._failing(DigestedFile.write))
            yield

    def _failing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.n_calls += 1
            if self.n_calls == self.number + 1:
                raise OSError(errno.EIO, "the disk failed")
            return function(*arguments, **options)

        return call


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.full)])
def test_a_failure_at_any_write_leaves_the_table_before_or_after_the_commit(tmp_path: Path, step: int) -> None:
    original, lake = tmp_path / "original", tmp_path / "lake"
    commit(original, inserts(range(10)), is_new=True, file_bytes=1)
    commit(original, inserts(range(10, 20)), file_bytes=1)
    before = plain_rows(read_folder(original / NAME))
    net = simple(("delete", 3, 3), ("upsert", 15, 21, None, 1, "note"), ("upsert", None, 30, "new", 2))
    commit(original.rename(lake), net, file_bytes=1)
    after = plain_rows(read_folder(lake / NAME))
    assert before != after
    commit(original, inserts(range(10)), is_new=True, file_bytes=1)
    commit(original, inserts(range(10, 20)), file_bytes=1)
    for number in range(0, 200, step):
        shutil.rmtree(lake)
        shutil.copytree(original, lake)
        failing = Failing(number)
        with suppress(OSError), failing():
            commit(lake, net, file_bytes=1)
        with opened(lake) as (target, table):
            rows = plain_rows(target.read(NAME).read_all().to_pylist())
            assert rows in (before, after), number
            is_applied = target.applied[NAME].position == 1 and rows == after
            if not is_applied:
                table.apply(net)
                target.commit({NAME: Applied(1, 2)})
        assert plain_rows(read_folder(lake / NAME)) == after, number
        local(lake).checked()
        if failing.n_calls <= number:
            break
    assert number > 10


# Applies net changes in a process that is killed before file operation number argv[2]. Prints how many there were.
KILLED = """
import itertools, os, pickle, signal, sys
from pathlib import Path
from pgdecode.lake.applied import Applied
from pgdecode.lake.targets import lake_target
net = pickle.loads(sys.stdin.buffer.read())
calls = itertools.count()
def killing(function):
    def call(*arguments, **options):
        if next(calls) == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)
    return call
for name in ("rename", "replace", "link", "unlink", "rmdir", "mkdir", "fsync"):
    setattr(os, name, killing(getattr(os, name)))
target = lake_target(f"parquet:{sys.argv[1]}")
target.file_bytes = 1
with target.opened():
    target.table("public.orders").apply(net)
    target.commit({"public.orders": Applied(2, 3)})
"""


@pytest.mark.full
def test_killed_at_any_file_operation_the_table_is_that_before_or_after_the_commit(tmp_path: Path) -> None:
    original, lake = tmp_path / "original", tmp_path / "lake"
    commit(original, inserts(range(10)), is_new=True, file_bytes=1)
    commit(original, inserts(range(10, 20)), file_bytes=1)
    net = simple(("delete", 3, 3), ("upsert", 15, 21, None, 1, "note"), ("upsert", None, 30, "new", 2))
    rows = {1: plain_rows(read_folder(original / NAME))}
    for number in [10**6, *range(0, 100, 6)]:
        shutil.rmtree(lake, ignore_errors=True)
        shutil.copytree(original, lake)
        words = [sys.executable, "-c", KILLED, str(lake), str(number)]
        code = subprocess.run(words, input=pickle.dumps(net)).returncode
        with opened(lake) as (target, _):
            position = target.applied[NAME].position
            found = plain_rows(target.read(NAME).read_all().to_pylist())
        if number == 10**6:
            rows[2] = found
        assert found == rows[position], number
        assert plain_rows(read_folder(lake / NAME)) == rows[position], number
        local(lake).checked()
        if number < 10**6 and code == 0:
            break
    assert number > 15


def test_a_second_process_is_kept_out(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    commit(lake, inserts(range(5)), is_new=True)
    with opened(lake), pytest.raises(RunError, match="another process is writing it now"), opened(lake):
        pass


@pytest.mark.full
def test_another_writer_makes_the_commit_fail_and_nothing_is_lost(store: Emulator) -> None:
    lake: Any = object_path(f"{store.new_bucket()}/lake", store.options)
    commit(lake, inserts(range(5)), is_new=True)
    with opened(lake) as (target, table):
        table.apply(inserts(range(5, 10)))
        commit(lake, inserts(range(20, 22)))
        with pytest.raises(RunError, match=r"another run has written _pgdecode/0000000002\.json meanwhile"):
            target.commit({NAME: Applied(3, 4)})
    assert commit(lake, inserts(range(30, 31))).rows == 8
    assert sorted(row["id"] for row in read_objects(str(lake), store)) == [0, 1, 2, 3, 4, 20, 21, 30]
    stored(str(lake), store).checked()


def read_objects(uri: str, store: Emulator) -> list[Row]:
    return [
        row
        for content in stored(uri, store).outputs().values()
        for row in pq.read_table(io.BytesIO(content)).to_pylist()
    ]


@pytest.mark.full
def test_tables_in_object_stores_are_those_of_folders(store: Emulator) -> None:
    uri = f"{store.new_bucket()}/lake"
    rng = random.Random(1)
    changes, model = Changes(SIMPLE, rng), MemoryTable(lambda _: None)
    model.create(SIMPLE)
    with row_groups_of(2000):
        for step in range(4):
            target: Any = lake_target(f"parquet:{uri}", storage_options=store.options)
            target.file_bytes = 5000
            with target.opened():
                table = target.table(NAME)
                if not step:
                    table.create(SIMPLE)
                for _ in range(2):
                    net = changes.of(model.rows, most=100)
                    table.apply(net)
                    model.apply(net)
                target.commit({NAME: Applied(step, step + 1)})
                assert plain_rows(target.read(NAME).read_all().to_pylist()) == plain_rows(model.rows)
                table.apply(changes.of(model.rows, most=100))
            assert plain_rows(read_objects(uri, store)) == plain_rows(model.rows)
            stored(uri, store).checked()
