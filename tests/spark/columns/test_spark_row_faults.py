"""`from_pgoutput`: bad rows, other tables, and years that Spark or Python cannot represent."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow.compute as pc
import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from rows.test_rows import PEOPLE, tables_of
from spark.columns.spark_rows import BEGIN, GOOD, OTHER_TABLE, assert_same, dicts, insert, typed
from spark.columns.test_spark_functions import BAD, both_adapters, evaluations, frame

import pgdecode
from spark_udfs import from_pgoutput, parse_pgoutput
from support import captures
from support.tiers import full, long

pytest_plugins = ["support.spark_session"]


FAULTS = [
    pytest.param(BAD, "UnknownTag", "offset 0: unknown message tag 0x7a 'z'", id="no message"),
    full(GOOD[:-1], "TruncatedMessage", "offset 34: insert new column 2 needs 24 bytes, 23 left", id="cut"),
    full(OTHER_TABLE, "OtherRelation", "offset 1: insert relation_id is 5, expected 16385", id="table"),
    full(BEGIN, "NotARow", "offset 0: begin is not an insert, update or delete", id="no row"),
    full(insert(b"1", None), "ArityMismatch", "offset 6: insert new tuple has 2 columns", id="other columns"),
    pytest.param(insert(b"1", b"2020-02-30", None), "BadValue", "offset 19: column 'born' has 10 bytes", id="value"),
    full(insert(b"1", b"infinity", None), "Unrepresentable", "offset 19: column 'born' does", id="infinity"),
    pytest.param(insert(b"1", b"12020-01-01", None), "Unrepresentable", "offset 19: column 'born' is out", id="year"),
]


@pytest.mark.full
@pytest.mark.parametrize("adapter", ["arrow", long("pandas")])
@pytest.mark.parametrize(("payload", "error", "text"), FAULTS)
def test_failfast_names_row_offset_and_column_and_shows_no_payload(
    spark: SparkSession, adapter: str, payload: bytes, error: str, text: str
) -> None:
    rows = frame(spark, [GOOD, payload]).select(from_pgoutput("data", PEOPLE, adapter=adapter))
    with pytest.raises(PythonException) as raised:
        rows.collect()
    said = str(raised.value)
    assert f"pgdecode.protocol.errors.{error}: row 1, {text}" in said
    assert not [shown for shown in ("SECRET", "544f50", "12020", "2020-02-30") if shown in said]


@both_adapters
def test_permissive_keeps_every_row_with_its_error(spark: SparkSession, adapter: str) -> None:
    bad = [param.values for param in FAULTS]
    rows = frame(spark, [GOOD, *(payload for payload, _, _ in bad), GOOD])
    first, *found, last = dicts(rows, from_pgoutput("data", PEOPLE, mode="PERMISSIVE", adapter=adapter))
    assert first == last
    assert (first["id"], first["_error"]) == (7, None)
    for row, (_, error, text) in zip(found, bad, strict=True):
        assert row["born"] is None
        assert row["_error"].startswith(f"{getattr(pgdecode, error).code} at {text}")
    # A bad message makes a null row, a bad value a null.
    assert [row["id"] for row in found] == [None] * 5 + [1] * 3


@pytest.mark.full
@both_adapters
def test_others_are_null_on_request_but_malformed_rows_are_bad_rows(spark: SparkSession, adapter: str) -> None:
    streamed = insert(b"8", None, None, xid=0x304)
    payloads = [BEGIN, GOOD, OTHER_TABLE, streamed, None]
    found = dicts(frame(spark, payloads), from_pgoutput("data", PEOPLE, others="null", adapter=adapter))
    assert [(row["_op"], row["_xid"], row["id"]) for row in found] == [
        (None, None, None),
        ("insert", None, 7),
        (None, None, None),
        ("insert", 0x304, 8),
        (None, None, None),
    ]
    assert set(found[0].values()) == set(found[2].values()) == {None}
    malformed = [OTHER_TABLE[:-1], GOOD[:-1], BAD, insert(b"x", None, None)]
    rows = frame(spark, [BEGIN, *malformed]).select(from_pgoutput("data", PEOPLE, others="null", adapter=adapter))
    with pytest.raises(PythonException, match=r"pgdecode\.protocol\.errors\.TruncatedMessage: row 1, offset"):
        rows.collect()
    column = from_pgoutput("data", PEOPLE, others="null", mode="PERMISSIVE", adapter=adapter)
    found = dicts(frame(spark, [*malformed, *payloads]), column)
    codes = [row["_error"] and row["_error"].split()[0] for row in found]
    assert codes == ["TRUNCATED", "TRUNCATED", "UNKNOWN_TAG", "BAD_VALUE", *[None] * 5]


@pytest.mark.full
def test_without_others_a_table_of_a_mixed_capture_is_the_rows_it_had(spark: SparkSession) -> None:
    capture = captures.capture("16.shop.v1")
    tables, types = tables_of(capture.name)
    relation, payloads = next(item for item in tables.values() if item[0].name == "products")
    expected = pgdecode.decode_rows(payloads, relation, type_messages=types)
    column = from_pgoutput("data", relation, type_messages=types, others="null")
    found = typed(frame(spark, capture.payloads, 3), column)
    assert_same(found.filter(pc.field("_op").is_valid()), expected)
    # The filter in the documentation, with a function that returns little.
    sent = parse_pgoutput("data", fields=["kind", "relation_id"])
    of_table = (sent["relation_id"] == relation.relation_id) & sent["kind"].isin("insert", "update", "delete")
    filtered = frame(spark, capture.payloads).where(of_table)
    assert evaluations(filtered.select(from_pgoutput("data", relation).alias("r")).select("r.*")) == 2
    assert_same(typed(filtered, from_pgoutput("data", relation)), expected)


YEARS = [b"0044-03-15 BC", b"0001-01-01", b"9999-12-31", b"10000-01-01"]


@pytest.mark.full
@both_adapters
def test_by_default_all_dates_can_be_collected(spark: SparkSession, adapter: str) -> None:
    rows = frame(spark, [insert(b"1", year, None) for year in YEARS]).orderBy("seq")
    guarded = rows.select(from_pgoutput("data", PEOPLE, mode="PERMISSIVE", adapter=adapter).alias("r")).select("r.*")
    found = [(row["born"], row["_error"] and row["_error"].split()[0]) for row in guarded.collect()]
    bad = (None, "NOT_REPRESENTABLE")
    assert found == [bad, (dt.date.min, None), (dt.date.max, None), bad]
    nulled = rows.select(from_pgoutput("data", PEOPLE, unrepresentable="null", adapter=adapter).alias("r"))
    assert [row[0] for row in nulled.select("r.born").collect()] == [None, dt.date.min, dt.date.max, None]
    with pytest.raises(PythonException, match="Unrepresentable: row 0, offset 19: column 'born' is outside the years"):
        rows.select(from_pgoutput("data", PEOPLE, adapter=adapter)).collect()


@pytest.mark.full
@both_adapters
def test_with_any_year_spark_computes_and_writes_but_does_not_collect(
    spark: SparkSession, adapter: str, tmp_path: Any
) -> None:
    rows = frame(spark, [insert(b"1", year, None) for year in YEARS]).orderBy("seq")
    dates = rows.select("seq", from_pgoutput("data", PEOPLE, years="any", adapter=adapter)["born"].alias("born"))
    assert [row[0] for row in dates.selectExpr("cast(year(born) as int)").collect()] == [-43, 1, 9999, 10000]
    dates.write.parquet(str(tmp_path / "dates"))
    assert spark.read.parquet(str(tmp_path / "dates")).where("born > date'9999-12-31'").count() == 1
    for seq in (0, 3):
        with pytest.raises((ValueError, OverflowError), match=r"ordinal|year"):
            dates.where(f"seq = {seq}").collect()


@pytest.mark.full
@both_adapters
def test_timestamps_next_to_either_end_pass_but_do_not_collect_as_documented(spark: SparkSession, adapter: str) -> None:
    column = from_pgoutput("data", PEOPLE, adapter=adapter)["seen"].alias("seen")
    rows = frame(spark, [insert(b"1", None, b"0001-01-01 00:00:00+00")]).select(column)
    # 62135596800 s = 1970-01-01 - 0001-01-01
    assert rows.select(F.unix_micros("seen")).collect()[0][0] == -62_135_596_800_000_000
    with pytest.raises(ValueError, match="year 0 is out of range"):
        rows.collect()


@pytest.mark.full
@both_adapters
def test_years_are_clamped_or_texts_as_other_values_that_cannot_be_represented(
    spark: SparkSession, adapter: str
) -> None:
    rows = frame(spark, [insert(b"1", year, None) for year in [*YEARS, b"infinity", b"-infinity"]]).orderBy("seq")
    clamped = rows.select(from_pgoutput("data", PEOPLE, unrepresentable="clamp", adapter=adapter)["born"])
    first, last = dt.date.min, dt.date.max
    assert [row[0] for row in clamped.collect()] == [first, first, last, last, last, first]
    texts = rows.select(from_pgoutput("data", PEOPLE, unrepresentable="text", adapter=adapter)["born"])
    assert [row[0].encode() for row in texts.collect()] == [*YEARS, b"infinity", b"-infinity"]
