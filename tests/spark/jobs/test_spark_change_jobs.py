"""`decode_files` for changes and tables."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import pgdecode
from pgdecode.files.change_text import change_lines, flat_table
from pgdecode.storage.errors import PathError
from spark_udfs import changes, decode_files, snapshot, table_changes
from spark_udfs.jobs.decode_files import JobFailed
from support import captures
from support.generators.random_tables import T
from support.generators.slot import Slot
from support.tiers import full

pytest_plugins = ["support.spark_session"]

FILE = captures.DATA / "18.shop.v1.parquet"


def parts(folder: Path, suffix: str) -> list[Path]:
    return sorted(folder.glob(f"part-*{suffix}"))


def local() -> tuple[pa.Array, pa.Array]:
    table = pq.read_table(FILE)
    return table["data"], table["seq"]


def test_changes_are_written_as_they_decode_without_spark(spark: SparkSession, tmp_path: Path) -> None:
    decode_files(spark, FILE, tmp_path / "out", what="changes")
    found = pa.concat_tables([pq.read_table(part) for part in parts(tmp_path / "out", ".parquet")])
    expected = pgdecode.ChangeDecoder().decode(*local())
    order = [("commit_position", "ascending"), ("position", "ascending")]
    assert found.sort_by(order).cast(expected.schema).to_pylist() == expected.to_pylist()
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.full
def test_renamed_columns_have_their_last_names_by_all_functions(spark: SparkSession, tmp_path: Path) -> None:
    slot = Slot()
    for number, names in enumerate((["id", "a", "z"], ["id", "b", "z"], ["id", "b", "last"])):
        slot.begin(700 + number)
        slot.relation(T, names, keys=["id"])
        slot.insert(T, str(number), "x", "y")
        slot.commit()
    table, stated = f"public.t{T}", [("z", "last", 9)]
    rows = pa.table({"seq": pa.array(range(len(slot.payloads)), pa.int64()), "data": pa.array(slot.payloads)})
    (tmp_path / "in").mkdir()
    for first in range(0, len(rows), 4):
        pq.write_table(rows.slice(first, 4), tmp_path / "in" / f"{first:02}.parquet")
    expected = pgdecode.ChangeDecoder(renames={table: stated}).table(rows["data"], table, rows["seq"])
    assert expected.schema.names[-3:] == ["id", "b", "last"]
    df = spark.read.parquet(str(tmp_path / "in"))
    found = table_changes(df, table, renames=stated).orderBy("_position").toArrow()
    assert found.cast(expected.schema).to_pylist() == expected.to_pylist()
    result = decode_files(spark, tmp_path / "in", tmp_path / "out", what=table, renames={table: stated})
    files = pa.concat_tables([pq.read_table(part) for part in parts(tmp_path / "out", ".parquet")])
    assert files.sort_by("_position").cast(expected.schema).to_pylist() == expected.to_pylist()
    assert result.manifest is not None
    assert [(item["old"], item["new"], item["stated"]) for item in result.manifest.renames] == [
        ("a", "b", False),
        ("z", "last", True),
    ]
    ends = snapshot(df, table, renames=stated).orderBy("id").select("b", "last", "_unknown").toArrow()
    assert ends.to_pylist() == [{"b": "x", "last": "y", "_unknown": []}] * 3
    with pytest.raises(ValueError, match="does not get a column 'c' in place of 'z'"):
        snapshot(df, table, renames=[("z", "c", 9)])


def test_several_tables_are_folders_and_rows_may_be_text(spark: SparkSession, tmp_path: Path) -> None:
    names = ["public.orders", "public.products"]
    decode_files(spark, FILE, tmp_path / "out", what=names, format="csv")
    assert sorted(os.listdir(tmp_path / "out")) == ["_pgdecode", *names]
    for name in names:
        rows = []
        for part in parts(tmp_path / "out" / name, ".csv"):
            with part.open(newline="") as lines:
                rows += list(csv.DictReader(lines))
        flat = flat_table(pgdecode.ChangeDecoder().table(local()[0], name, local()[1]))
        texts = pa.RecordBatch.from_arrays(
            [column.cast(pa.string()) for column in flat.columns], names=flat.schema.names
        )
        expected = [{key: value or "" for key, value in row.items()} for row in texts.to_pylist()]
        assert sorted(map(repr, rows)) == sorted(map(repr, expected))


@pytest.mark.parametrize("name", ["public.orders", full("changes")])
def test_a_sequence_of_one_makes_a_folder_and_a_string_does_not(spark: SparkSession, tmp_path: Path, name: str) -> None:
    decode_files(spark, FILE, tmp_path / "plain", what=name)
    decode_files(spark, FILE, tmp_path / "folders", what=[name])
    assert [item for item in os.listdir(tmp_path / "folders") if not item.startswith((".", "_"))] == [name]
    plain, in_folder = (
        pa.concat_tables([pq.read_table(part) for part in parts(folder, ".parquet")])
        for folder in (tmp_path / "plain", tmp_path / "folders" / name)
    )
    assert plain.num_rows == in_folder.num_rows > 0
    assert plain.schema == in_folder.schema
    assert plain.equals(in_folder)


def test_columns_have_the_types_that_the_caller_gives(spark: SparkSession, tmp_path: Path) -> None:
    columns = {"public.orders": {"total": "float8"}}
    decode_files(spark, FILE, tmp_path / "out", what=["public.orders"], columns=columns)
    found = pa.concat_tables(
        [pq.read_table(part, columns=["total"]) for part in parts(tmp_path / "out" / "public.orders", ".parquet")]
    )
    expected = pgdecode.ChangeDecoder(columns=columns).table(local()[0], "public.orders", local()[1])
    assert found.schema.field("total").type == pa.float64()
    assert sorted(map(repr, found["total"].to_pylist())) == sorted(map(repr, expected["total"].to_pylist()))


@pytest.mark.full
def test_tables_and_snapshots_take_types_of_columns(spark: SparkSession) -> None:
    df = spark.read.parquet(str(FILE))
    columns = {"total": "float8"}
    expected = pgdecode.snapshot(local()[0], "public.orders", local()[1], columns=columns)
    found = snapshot(df, "public.orders", columns=columns).select("id", "total").toArrow()
    assert found.schema.field("total").type == pa.float64()
    assert found.sort_by("id").to_pylist() == expected.select(["id", "total"]).sort_by("id").to_pylist()
    assert table_changes(df, "public.orders", columns=columns).schema["total"].dataType.typeName() == "double"
    with pytest.raises(ValueError, match="columns names"):
        table_changes(df, "public.orders", columns={"totl": "float8"})


def test_changes_may_be_lines(spark: SparkSession, tmp_path: Path) -> None:
    decode_files(spark, FILE, tmp_path / "out", what="changes", format="jsonl")
    lines = [line for part in parts(tmp_path / "out", ".jsonl") for line in part.read_text().splitlines()]
    assert sorted(lines) == sorted(change_lines(pgdecode.ChangeDecoder().decode(*local())).to_pylist())
    assert json.loads(lines[0])["op"]


def test_a_bad_payload_stops_the_job_is_named_by_its_position_and_leaves_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    payloads, positions = local()
    spoilt = [payload if at != 20 else payload[:-1] for at, payload in enumerate(payloads.to_pylist())]
    pq.write_table(pa.table({"seq": positions, "data": spoilt}), tmp_path / "raw.parquet")
    with pytest.raises(JobFailed, match=r"raw\.parquet: row 20, position 20: \w+ at offset \d+: ") as caught:
        decode_files(spark, tmp_path / "raw.parquet", tmp_path / "out", what="changes")
    assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == ["raw.parquet"]


def test_invalid_arguments_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PathError, match=r"no message has described 'public\.none'; there are public\."):
        decode_files(spark, FILE, tmp_path / "out", what="public.none")
    with pytest.raises(PathError, match="at"):
        decode_files(spark, FILE, tmp_path / "out", what="changes", position="at")
    with pytest.raises(ValueError, match="format is "):
        decode_files(spark, FILE, tmp_path / "out", what="changes", format="xml")
    pq.write_table(pa.table({"seq": [None, 1], "data": [b"", b""]}), tmp_path / "raw.parquet")
    with pytest.raises(JobFailed, match=r"raw\.parquet: row 0: seq is null"):
        decode_files(spark, tmp_path / "raw.parquet", tmp_path / "out", what="changes")
    assert os.listdir(tmp_path) == ["raw.parquet"]


@pytest.mark.parametrize("name", ["18.shop.v1", full("18.txns.v2")])
def test_transactions_that_are_sent_again_are_there_again_as_without_spark(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    payloads = captures.capture(name).payloads
    twice = [*payloads, *payloads]
    (tmp_path / "raw").mkdir()
    for number in range(4):
        first, end = (len(twice) * cut // 4 for cut in (number, number + 1))
        part = pa.table(
            {"seq": pa.array(range(first, end), pa.int64()), "data": pa.array(twice[first:end], pa.binary())}
        )
        pq.write_table(part, tmp_path / "raw" / f"{number}.parquet", row_group_size=50)
    expected = pgdecode.ChangeDecoder(mode="PERMISSIVE").decode(twice, range(len(twice)))
    found = decode_files(spark, tmp_path / "raw", tmp_path / "bad", what="changes", mode="PERMISSIVE")
    assert found.bad_rows == {}
    rows = pa.concat_tables([pq.read_table(part) for part in parts(tmp_path / "bad", ".parquet")]).to_pylist()

    def of(row: dict[str, Any]) -> tuple[Any, ...]:
        return row["position"], row["commit_position"], row["relation_id"], row["error"]

    assert sorted(map(of, rows), key=str) == sorted(map(of, expected.to_pylist()), key=str)


@pytest.mark.full
def test_a_commit_without_its_begin_does_not_count_for_the_order_of_commits(
    spark: SparkSession, tmp_path: Path
) -> None:
    slot = Slot()
    for xid in (700, 701):
        slot.begin(xid)
        slot.relation(T, ["id"])
        slot.insert(T, str(xid))
        slot.commit()
    # The second Commit is there twice, once between the transactions.
    (tmp_path / "raw").mkdir()
    for number, part in enumerate([[*slot.payloads[:4], slot.payloads[-1]], slot.payloads[4:]]):
        table = pa.table(
            {
                "seq": pa.array(range(5 * number, 5 * number + len(part)), pa.int64()),
                "data": pa.array(part, pa.binary()),
            }
        )
        pq.write_table(table, tmp_path / "raw" / f"{number}.parquet")
    found = decode_files(spark, tmp_path / "raw", tmp_path / "out", what="changes", mode="PERMISSIVE")
    assert found.bad_rows == {"STATE_TRANSACTION": 1}
    rows = changes(spark.read.parquet(str(tmp_path / "raw")), mode="PERMISSIVE").toArrow()
    assert [row["position"] for row in rows.to_pylist() if row["error"]] == [4]
