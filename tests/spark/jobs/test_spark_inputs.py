"""`decode_files`: inputs and options that it supports, and those that it refuses."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from spark.jobs.test_spark_files import ORDER, SHOP, as_rows, read_back, write_cut

import pgdecode
from pgdecode.storage.errors import PathError
from spark_udfs import changes, decode_files, table_changes
from spark_udfs.jobs.decode_files import JobFailed
from support import captures
from support.tiers import full

pytestmark = pytest.mark.full

pytest_plugins = ["support.spark_session"]


def read_by_spark(spark: SparkSession, folder: Path) -> tuple[str, list[bytes]]:
    found = spark.read.parquet(str(folder))
    # As Spark prints them, because Python has no dates after the year 9999; as bytes, because some are not UTF-8.
    printed = found.select(F.struct("*").cast("string").cast("binary"))
    return found.schema.simpleString(), sorted(bytes(row[0]) for row in printed.collect())


@pytest.mark.parametrize("has_time", ["true", full("false")])
def test_spark_reads_every_type_as_table_changes_returns_it(
    spark: SparkSession, configure: Callable[[str, object], None], tmp_path: Path, has_time: str
) -> None:
    if spark.conf.get("spark.sql.timeType.enabled", None) is not None:
        configure("spark.sql.timeType.enabled", has_time)
    write_cut(tmp_path / "raw", captures.capture("18.types.v1").column, [], 100)
    table = "public.every_type"
    decode_files(spark, tmp_path / "raw", tmp_path / "files", what=table, unrepresentable="null")
    configure("spark.sql.parquet.datetimeRebaseModeInWrite", "CORRECTED")
    rows = table_changes(spark.read.parquet(str(tmp_path / "raw")), table, unrepresentable="null", years="any")
    rows.write.parquet(str(tmp_path / "frame"))
    assert read_by_spark(spark, tmp_path / "files") == read_by_spark(spark, tmp_path / "frame")


def test_rows_without_order_are_refused_and_decoded_by_the_functions(spark: SparkSession, tmp_path: Path) -> None:
    column = captures.capture("18.shop.v1").column
    shuffled = pa.table({"seq": range(len(column)), "data": column}).sort_by([("data", "ascending")])
    pq.write_table(shuffled, tmp_path / "raw.parquet")
    text = r"raw\.parquet: .*; spark_udfs\.changes decodes rows in any order$"
    with pytest.raises(JobFailed, match=text):
        decode_files(spark, tmp_path / "raw.parquet", tmp_path / "new", what="changes")
    assert os.listdir(tmp_path) == ["raw.parquet"]
    changes(spark.read.parquet(str(tmp_path / "raw.parquet"))).write.parquet(str(tmp_path / "out"))
    found = read_back(tmp_path / "out").sort_by(ORDER)
    expected = pgdecode.ChangeDecoder().decode(column)
    assert found.cast(expected.schema).to_pylist() == expected.to_pylist()


@pytest.mark.parametrize(
    "type",
    [pa.string(), pa.float64(), pa.timestamp("us"), pa.decimal128(20, 1)],
    ids=["text", "float", "time", "decimal"],
)
def test_positions_that_are_no_integers_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, type: pa.DataType
) -> None:
    monkeypatch.setattr("spark_udfs.jobs.file_route.local_session", lambda: pytest.fail("a session was asked for"))
    positions = pa.array([1, 2], pa.int64()).cast(type)
    pq.write_table(pa.table({"seq": positions, "data": [b"E", b"E"]}), tmp_path / "raw.parquet")
    with pytest.raises(PathError, match=r"raw\.parquet: column 'seq' is .*, not integers"):
        decode_files(None, tmp_path / "raw.parquet", tmp_path / "out", what="changes")


def test_positions_may_be_unsigned(spark: SparkSession, tmp_path: Path) -> None:
    column = captures.capture("18.shop.v1").column
    positions = pa.array(range(len(column)), pa.uint64())
    pq.write_table(pa.table({"seq": positions, "data": column}), tmp_path / "raw.parquet")
    decode_files(spark, tmp_path / "raw.parquet", tmp_path / "out", what="changes")
    expected = pgdecode.ChangeDecoder().decode(column)
    found = read_back(tmp_path / "out").cast(expected.schema)
    assert as_rows(found) == as_rows(pa.Table.from_batches([expected]))


def test_a_repeated_position_is_reported_with_the_source(spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(pa.table({"seq": [1, 2, 2], "data": [b"E"] * 3}), tmp_path / "raw.parquet")
    with pytest.raises(JobFailed, match=rf"^{tmp_path}/raw\.parquet: row 2: seq 2 does not come after 2; "):
        decode_files(spark, tmp_path / "raw.parquet", tmp_path / "out", what="changes")


@pytest.mark.parametrize("name", ["_raw.parquet", full(".raw.parquet"), "12:00.parquet"])
def test_a_file_that_spark_would_not_read_is_decoded(spark: SparkSession, tmp_path: Path, name: str) -> None:
    column = captures.capture("18.shop.v1").column
    pq.write_table(pa.table({"data": column}), tmp_path / name)
    decode_files(spark, tmp_path / name, tmp_path / "out", fields=["kind"])
    assert read_back(tmp_path / "out").num_rows == len(column)
    assert sorted(os.listdir(tmp_path)) == sorted([name, "out"])


def test_a_path_is_no_uri_and_names_may_have_colons(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table({"data": [b"E"]}), tmp_path / "raw:1.parquet")
    decode_files(spark, Path("raw:1.parquet"), Path("out:1"), fields=["kind"])
    assert read_back(tmp_path / "out:1")["kind"].to_pylist() == ["stream_stop"]
    assert sorted(os.listdir(tmp_path)) == ["out:1", "raw:1.parquet"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        pytest.param({"what": []}, 'what is "messages", "changes" or tables', id="nothing"),
        pytest.param({"what": "orders"}, r'what is .*, not \["?.?orders', id="no schema"),
        pytest.param(
            {"what": ["messages", "public.orders"]}, "cannot be an item of a sequence", id="messages and more"
        ),
        pytest.param({"what": "changes", "keep": ["seq"]}, "keep: only for messages", id="keep"),
        pytest.param({"what": "changes", "in_stream": None}, "in_stream: only for messages", id="stream state"),
        pytest.param({"unrepresentable": "null"}, "unrepresentable: only for changes and tables", id="of changes"),
        pytest.param(
            {"what": SHOP, "fields": ["_op"]}, "fields can be used only with one output", id="fields of several"
        ),
    ],
)
def test_incompatible_options_are_reported_before_spark_is_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: dict[str, Any], text: str
) -> None:
    monkeypatch.setattr("spark_udfs.jobs.file_route.local_session", lambda: pytest.fail("a session was asked for"))
    with pytest.raises(ValueError, match=text):
        decode_files(None, captures.DATA / "18.shop.v1.parquet", tmp_path / "out", **options)


def test_columns_of_a_table_may_be_chosen(spark: SparkSession, tmp_path: Path) -> None:
    source = captures.DATA / "18.shop.v1.parquet"
    decode_files(spark, source, tmp_path / "new", what="public.orders", fields=["id", "_op", "_position"])
    assert read_back(tmp_path / "new").schema.names == ["id", "_op", "_position"]
    with pytest.raises((JobFailed, ValueError), match="no such column: 'price'"):
        decode_files(spark, source, tmp_path / "out", what="public.orders", fields=["price"])
