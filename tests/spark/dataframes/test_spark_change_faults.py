"""`changes` and `table_changes` on Spark: bad payloads, positions and options."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from spark.dataframes.test_spark_changes import SHOP, as_set, found, landed, table, without_gaps

import pgdecode
from spark_udfs import changes, relation_catalog, table_changes

pytest_plugins = ["support.spark_session"]
pytestmark = pytest.mark.usefixtures("small_ranges")


RELATION = bytes.fromhex(
    "52" "00004001" "7075626c696300" "7400" "64" "0002"  # R, oid 16385, public, t, default, 2 columns
    "01" "696400" "00000017" "ffffffff"  # key id int4
    "00" "6400" "0000043a" "ffffffff"  # d date
)  # fmt: skip
BEGIN = bytes.fromhex("420000000000000100000000000000000000000007")
COMMIT = bytes.fromhex("4300000000000000010000000000000001100000000000000000")


def insert(*values: bytes | None) -> bytes:
    cells = b"".join(b"n" if value is None else b"t" + len(value).to_bytes(4, "big") + value for value in values)
    return bytes.fromhex("49000040014e0002") + cells


def frame(spark: SparkSession, *payloads: bytes) -> DataFrame:
    return spark.createDataFrame([(10 + at, payload) for at, payload in enumerate(payloads)], "seq bigint, data binary")


@pytest.mark.full
def test_a_bad_payload_is_reported_by_position_kept_or_left_out(spark: SparkSession) -> None:
    df = frame(spark, BEGIN, RELATION, insert(b"1", None), insert(b"2", None)[:-1], insert(b"3", None), COMMIT)
    with pytest.raises(PySparkException, match="TruncatedMessage: position 13, offset"):
        changes(df).collect()
    kept = changes(df, mode="PERMISSIVE").orderBy("position").select("position", "op", "error").collect()
    assert [row["position"] for row in kept] == [12, 13, 14]
    assert [row["error"] is None for row in kept] == [True, False, True]
    assert kept[1]["error"].startswith("TRUNCATED at offset")
    dropped = changes(df, mode="DROPMALFORMED").orderBy("position").collect()
    assert [row["position"] for row in dropped] == [12, 14]
    assert [row["_position"] for row in table_changes(df, "public.t", mode="DROPMALFORMED").collect()] == [12, 14]


@pytest.mark.full
def test_rows_after_a_bad_relation_message_are_errors_in_whatever_file_they_lie(
    spark: SparkSession, tmp_path: Path
) -> None:
    # The Relation message of the second transaction is truncated. That of the third is valid.
    cut, row = RELATION[:-1], insert(b"1", None)
    payloads = [BEGIN, RELATION, row, COMMIT, BEGIN, cut, row, COMMIT, BEGIN, row, RELATION, row, COMMIT]
    rows = pa.table({"seq": pa.array(range(len(payloads)), pa.int64()), "data": pa.array(payloads, pa.binary())})
    expected = pgdecode.ChangeDecoder(mode="PERMISSIVE").decode(rows["data"], rows["seq"]).to_pylist()
    assert [row["position"] for row in expected if row["error"] is None] == [2, 11]
    assert sorted(row["position"] for row in expected if row["error"]) == [5, 6, 9]
    for number, cuts in enumerate(([], [4, 8], [6, 7, 9, 10])):
        df = spark.read.parquet(landed(tmp_path / str(number), rows, cuts))
        assert found(changes(df, mode="PERMISSIVE")) == as_set(expected)


@pytest.mark.full
def test_a_bad_value_is_named_by_its_position(spark: SparkSession) -> None:
    df = frame(spark, BEGIN, RELATION, insert(b"1", None), insert(b"x", None), COMMIT)
    with pytest.raises(PySparkException, match=r"BadValue: position 13, offset .* column 'id'"):
        table_changes(df, "public.t").collect()
    kept = table_changes(df, "public.t", mode="PERMISSIVE").orderBy("_position").collect()
    assert [(row["id"], row["_error"] is None) for row in kept] == [(1, True), (None, False)]


@pytest.mark.full
def test_years_outside_pythons_range_are_reported_by_position(spark: SparkSession) -> None:
    df = frame(spark, BEGIN, RELATION, insert(b"1", b"2024-02-29"), insert(b"2", b"0044-03-15 BC"), COMMIT)
    # The value begins after tag, relation, tuple tag and number of columns, one value, kind and length.
    with pytest.raises(PySparkException, match="position 13, offset 19: column 'd' is outside the years 1 to 9999"):
        table_changes(df, "public.t").collect()
    nulled = table_changes(df, "public.t", unrepresentable="null").orderBy("_position").select("d").collect()
    assert [row["d"] for row in nulled] == [dt.date(2024, 2, 29), None]
    passed = table_changes(df, "public.t", years="any").where("year(d) < 0")
    assert passed.count() == 1


@pytest.mark.full
def test_an_unrepresentable_value_may_be_text(spark: SparkSession) -> None:
    df = frame(spark, BEGIN, RELATION, insert(b"1", b"infinity"), COMMIT)
    assert [row["d"] for row in table_changes(df, "public.t", unrepresentable="text").collect()] == ["infinity"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("positions", "error"),
    [
        ("CASE WHEN seq = 12 THEN NULL ELSE seq END", r"position is null in 1 rows"),
        ("seq - 11", r"position -1 is negative"),
    ],
)
def test_invalid_positions_are_refused(spark: SparkSession, positions: str, error: str) -> None:
    df = frame(spark, BEGIN, RELATION, insert(b"1", None), COMMIT)
    with pytest.raises(ValueError, match=error):
        changes(df, position=F.expr(positions))


@pytest.mark.full
@pytest.mark.parametrize("partitions", [1, 2])
def test_a_repeated_position_is_refused(spark: SparkSession, partitions: int) -> None:
    df = frame(spark, BEGIN, RELATION, insert(b"1", None), COMMIT).repartition(partitions)
    with pytest.raises(PySparkException, match="position 13 occurs twice"):
        changes(df, position=F.least(F.col("seq") + 1, F.lit(13))).collect()


@pytest.mark.full
def test_rows_that_change_between_passes_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    rows = without_gaps(table(SHOP, source=False))
    folder = landed(tmp_path / "raw", rows)
    decoded = changes(spark.read.parquet(folder))
    pq.write_table(rows.slice(0, 100), f"{folder}/000.parquet")
    with pytest.raises(PySparkException, match=r"rows were indexed, 100 were read: .*persist\(\)"):
        decoded.collect()


@pytest.mark.full
def test_other_types_and_options_are_refused_at_once(spark: SparkSession) -> None:
    df = frame(spark, BEGIN)
    refused: list[tuple[type[Exception], str, Callable[[], object]]] = [
        (TypeError, "position is a column of integers, 'data' is binary", lambda: changes(df, position="data")),
        (TypeError, "payload is a column of binary or strings, 'seq' is bigint", lambda: changes(df, payload="seq")),
        (TypeError, "source is a column of strings, integers", lambda: changes(df, source="data")),
        (ValueError, 'mode is "FAILFAST"', lambda: changes(df, mode="permissive")),
        (ValueError, 'years is "1-9999" or "any"', lambda: table_changes(df, "public.t", years="all")),
        (TypeError, "fields is a sequence", lambda: changes(df, fields="op")),
        (
            ValueError,
            "a decoded column has the name 'xid'; give it an alias",
            lambda: changes(df, source=F.lit(1).alias("xid")),
        ),
    ]
    for kind, text, call in refused:
        with pytest.raises(kind, match=text):
            call()


def test_a_streaming_frame_is_refused(spark: SparkSession) -> None:
    stream = spark.readStream.format("rate").load().selectExpr("value AS seq", "CAST('' AS binary) AS data")
    for call in (changes, relation_catalog):
        with pytest.raises(TypeError, match="a streaming DataFrame is not supported"):
            call(stream)
