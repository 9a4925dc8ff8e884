"""One stream with the changes of several tables: those of the local decoder, with the columns of each version."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from spark.sources.stream_engine import KINDS, Query, write_file

from pgdecode import ChangeDecoder
from pgdecode.files.change_reader import TableError
from spark_udfs.sources.data_source import PackedSource
from spark_udfs.sources.stream_reader import StreamReader, UnlimitedStreamReader
from support import captures
from support.generators.random_tables import T
from support.generators.slot import Slot

INT4, INT8, TEXT = 23, 20, 25


def unpacked(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    rows = []
    for packed in batch.to_pylist():
        schema = pa.ipc.read_schema(pa.py_buffer(packed["columns"]))
        changes = pa.ipc.read_record_batch(pa.py_buffer(packed["changes"]), schema).to_pylist()
        places = [(row["_commit_position"], row["_position"]) for row in changes]
        truncates = [place for row, place in zip(changes, places, strict=True) if row["_op"] == "truncate"]
        for name, place in (("first", min(places)), ("last", max(places)), ("truncate", max(truncates, default=None))):
            assert packed[name] == (place and dict(zip(("commit", "position"), place, strict=True)))
        rows += [{"table": packed["table"], **row} for row in changes]
    return rows


def new_query(folder: Path, tables: list[str], kind: type[StreamReader], **options: str) -> Query:
    folder.mkdir()
    named = json.dumps([(table, None) for table in tables])
    return Query({"path": str(folder), "tables": named, **options}, kind, unpacked, PackedSource)


@pytest.mark.parametrize("kind", KINDS)
def test_one_stream_has_the_changes_of_several_tables(
    tmp_path: Path, rng: random.Random, kind: type[StreamReader]
) -> None:
    payloads = captures.capture("18.txns.v2").payloads
    tables = ["public.b", "public.full_", "public.idx"]
    query = new_query(tmp_path / "raw", tables, kind)
    cuts = [0, len(payloads) // 2, *sorted(rng.sample(range(len(payloads) // 2 + 1, len(payloads)), 2)), len(payloads)]
    for start, end in pairwise(cuts):
        write_file(tmp_path / "raw" / f"{start}.parquet", payloads[start:end], start, rng)
        query.go_on()
    for at, table in enumerate(tables):
        expected = ChangeDecoder().table(payloads, table).to_pylist()
        rows = [{**row} for row in query.rows() if row["table"] == at]
        for row in rows:
            del row["table"]
        assert sorted(rows, key=lambda row: (row["_commit_position"], row["_position"])) == expected, table


def test_each_version_has_columns_of_its_own_also_after_the_stream_began(tmp_path: Path, rng: random.Random) -> None:
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["id", "a"], keys=["id"], types=[INT4, INT4])
    slot.insert(T, "1", "2")
    slot.commit()
    first = len(slot.payloads)
    slot.begin(8)
    slot.relation(T, ["id", "a", "b"], keys=["id"], types=[INT8, TEXT, INT4])
    slot.insert(T, "1", "x", "3")
    slot.truncate(T)
    slot.commit()
    query = new_query(tmp_path / "raw", [f"public.t{T}"], KINDS[0])
    write_file(tmp_path / "raw" / "0.parquet", slot.payloads[:first], 0, rng)
    query.go_on()
    write_file(tmp_path / "raw" / "1.parquet", slot.payloads[first:], first, rng)
    query.step()
    found = [{name: value for name, value in row.items() if name[0] != "_"} for row in query.rows()]
    after = {"table": 0, "id": None, "a": None, "b": None}
    assert found == [{"table": 0, "id": 1, "a": 2}, after | {"id": 1, "a": "x", "b": 3}, after]
    other = new_query(tmp_path / "other", ["public.other"], KINDS[0])
    write_file(tmp_path / "other" / "0.parquet", slot.payloads, 0, rng)
    with pytest.raises(TableError, match=r"table public\.other: no message of the files describes this table"):
        other.go_on()


@pytest.mark.parametrize("kind", KINDS)
def test_columns_may_name_what_only_some_versions_and_tables_have(
    tmp_path: Path, rng: random.Random, kind: type[StreamReader]
) -> None:
    # Columns of one of the tables that are added or dropped later.
    payloads = captures.capture("16.shop.v1").payloads
    for name in ("phone", "prefs"):
        folder, table = tmp_path / name, "public.customers"
        query = new_query(folder, [table, "public.order_items"], kind, columns=json.dumps({name: "text"}))
        write_file(folder / "0.parquet", payloads, 0, rng)
        query.go_on()
        found = {(row["_commit_position"], row["_position"]): row for row in query.rows() if row["table"] == 0}
        values = {place: row[name] for place, row in found.items() if name in row}
        expected = {
            (row["_commit_position"], row["_position"]): row[name]
            for row in ChangeDecoder(columns={table: {name: "text"}}).table(payloads, table).to_pylist()
        }
        assert 0 < len(values) < len(expected)
        assert values == {place: value for place, value in expected.items() if place in values}
    wrong = new_query(tmp_path / "wrong", ["public.orders"], kind, columns=json.dumps({"fone": "text"}))
    write_file(tmp_path / "wrong" / "0.parquet", payloads, 0, rng)
    with pytest.raises(
        ValueError, match=r"columns names \['fone'\], but no version of the tables \(public\.orders\) has"
    ):
        wrong.go_on()


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_may_be_described_by_a_later_file_than_the_first_micro_batch_has(
    tmp_path: Path, rng: random.Random, kind: type[StreamReader]
) -> None:
    slot = Slot()
    for table in (1, 2):
        slot.begin(7)
        slot.relation(table, ["id"], keys=["id"], types=[INT4])
        slot.insert(table, "1")
        slot.commit()
    half = len(slot.payloads) // 2
    query = new_query(tmp_path / "raw", ["public.t1", "public.t2"], kind)
    write_file(tmp_path / "raw" / "0.parquet", slot.payloads[:half], 0, rng)
    with pytest.raises(TableError, match=r"table public\.t2: no message of the files describes this table"):
        query.go_on()
    assert query.offsets == []
    write_file(tmp_path / "raw" / "1.parquet", slot.payloads[half:], half, rng)
    query.restart()
    while query.step(*([] if kind is UnlimitedStreamReader else [1])):
        pass
    assert [row["table"] for row in query.rows()] == [0, 1]
    assert len(query.batches) == (1 if kind is UnlimitedStreamReader else 2)
