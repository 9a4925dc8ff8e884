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
from spark_udfs.sources.stream_reader import StreamReader
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


def new_query(folder: Path, tables: list[str], kind: type[StreamReader]) -> Query:
    folder.mkdir()
    return Query({"path": str(folder), "tables": json.dumps(tables)}, kind, unpacked, PackedSource)


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
