"""`from_pgoutput`: both adapters return the result of `decode_rows`, with types that Spark supports and can collect."""

from __future__ import annotations

import datetime as dt
import inspect
import pickle
from collections.abc import Callable
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark import cloudpickle
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from rows.test_rows import PEOPLE, tables_of
from spark.columns.spark_rows import BEGIN, GOOD, NAMES, assert_same, dicts, for_spark, insert, typed
from spark.columns.test_spark_functions import ADAPTERS, BAD, both_adapters, evaluations, frame

import pgdecode
from pgdecode import Column, Delete, Relation, Type, Update
from spark_udfs import from_pgoutput, register_relation
from spark_udfs.columns.row_column import _relation_to_json
from spark_udfs.columns.row_worker import RowOptions
from spark_udfs.runtime.worker import ArrowFunction, PandasFunction
from spark_udfs.schema.spark_types import HAS_TIME
from support.generators.encoder import encode
from support.tiers import full

pytest_plugins = ["support.spark_session"]

Configure = Callable[[str, object], None]
TIME_SETTING = "spark.sql.timeType.enabled"


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "adapter"),
    [
        *((name, ADAPTERS[0]) for name in ("18.shop.v1", "14.types.v1", "18.types.v1", "16.shop.v1bin")),
        *(("18.types.v1bin", name) for name in ADAPTERS[1:]),
    ],
)
def test_captured_tables_decode_as_without_spark(spark: SparkSession, adapter: str, name: str) -> None:
    tables, types = tables_of(name)
    options: dict[str, Any] = {"type_messages": types, "mode": "PERMISSIVE", "unrepresentable": "null"}
    assert tables
    for relation, payloads in tables.values():
        expected = pgdecode.decode_rows(payloads, relation, **options)
        column = from_pgoutput("data", relation, **options, years="any", adapter=adapter)
        assert_same(typed(frame(spark, payloads), column), for_spark(expected))


@both_adapters
@pytest.mark.skipif(not HAS_TIME, reason="this Spark has no TIME")
def test_captured_times_are_of_the_type_time_where_the_session_has_it(
    spark: SparkSession, configure: Configure, adapter: str
) -> None:
    configure(TIME_SETTING, "true")
    tables, types = tables_of("18.types.v1")
    ((relation, payloads), *_) = tables.values()
    options: dict[str, Any] = {"type_messages": types, "mode": "PERMISSIVE", "unrepresentable": "null"}
    (time,) = [column.name for column in relation.columns if column.type_id == 1083]
    expected = pgdecode.decode_rows(payloads, relation, **options).select([time, "_old"])
    column = from_pgoutput("data", relation, **options, fields=[time, "_old"], years="any", adapter=adapter)
    found = typed(frame(spark, payloads), column)
    assert found.schema.field(time).type == found.schema.field("_old").type.field(time).type == pa.time64("ns")
    assert_same(found, for_spark(expected, has_time=True))


@pytest.mark.full
@both_adapters
def test_times_are_else_as_the_server_wrote_them_and_go_into_files(
    spark: SparkSession, adapter: str, tmp_path: Any
) -> None:
    tables, types = tables_of("18.types.v1")
    ((relation, payloads), *_) = tables.values()
    at = next(i for i, column in enumerate(relation.columns) if column.type_id == 1083)
    name = relation.columns[at].name
    column = from_pgoutput(
        "data", relation, type_messages=types, fields=[name, "_old"], unrepresentable="null", adapter=adapter
    )
    rows = frame(spark, payloads).select("seq", column.alias("r")).select("seq", "r.*")
    rows.write.parquet(str(tmp_path / "rows"))
    found = spark.read.parquet(str(tmp_path / "rows")).orderBy("seq").select(name).collect()
    envelope = pgdecode.decode_messages(payloads, in_stream=False).to_pylist()
    sent = [(row["new"] or row["old"])[at] for row in envelope]
    # Only the server's types can represent 24:00:00.
    assert [row[0] for row in found] == [None if cell in (None, b"24:00:00") else cell.decode() for cell in sent]
    assert any(cell is not None and b"." in cell for cell in sent)


@both_adapters
def test_an_insert_gives_its_values_by_type(spark: SparkSession, adapter: str) -> None:
    rows = frame(spark, [GOOD]).select(from_pgoutput(F.col("data"), PEOPLE, adapter=adapter).alias("r")).select("r.*")
    assert rows.schema.simpleString() == (
        "struct<_op:string,_xid:bigint,_old_type:string,_old:struct<id:int,born:date,seen:timestamp>,"
        "_unchanged:array<string>,_error:string,id:int,born:date,seen:timestamp>"
    )
    (row,) = rows.collect()
    assert (row["_op"], row["id"], row["born"], row["_old"]) == ("insert", 7, dt.date(2020, 2, 29), None)
    # Spark's collect() returns timestamps in the time zone of the process.
    assert row["seen"].astimezone(dt.UTC) == dt.datetime(2019, 12, 31, 22, 0, 0, 500_000, dt.UTC)


@both_adapters
@pytest.mark.parametrize("zone", [full("UTC"), "America/St_Johns", full("Asia/Tokyo")])
def test_timestamps_also_of_old_rows_are_the_same_in_any_session_time_zone(
    spark: SparkSession, configure: Configure, adapter: str, zone: str
) -> None:
    configure("spark.sql.session.timeZone", zone)
    # timestamptz, timestamptz[], tstzrange and timestamp
    columns = tuple(Column(0, "abcd"[i], type_id, -1) for i, type_id in enumerate((1184, 1185, 3910, 1114)))
    values = (
        b"1883-11-18 12:00:00+00",
        b"{2024-03-10 06:59:59.5+00,NULL}",
        b"[2024-11-03 05:30:00+00,)",
        b"2024-03-10 02:30:00",
    )
    relation = Relation(16385, "public", "t", "f", columns)
    payload = encode(Update(16385, "O", values, "tttt", values, "tttt"))
    expected = pgdecode.decode_rows([payload], relation)
    assert_same(typed(frame(spark, [payload]), from_pgoutput("data", relation, adapter=adapter)), expected)


# Of types that numpy, pandas or Python's own objects would change: NaN, nulls among integers, nulls within.
EXACT = Relation(
    16385,
    "public",
    "exact",
    "f",
    tuple(
        Column(0, name, type_id, typmod)
        for name, type_id, typmod in [
            ("f", 701, -1),
            ("fs", 1022, -1),
            ("big", 20, -1),
            ("bigs", 1016, -1),
            ("n", 1700, (38 << 16 | 2) + 4),
            ("ns", 1231, (38 << 16 | 2) + 4),
            ("pairs", 20_000, -1),
            ("ranges", 4451, -1),
            ("bytes", 1001, -1),
            ("dates", 1182, -1),
        ]
    ),
)
HSTORE = Type(20_000, "public", "hstore")
EXACT_VALUES = (
    b"NaN",
    b"{NaN,NULL,-Infinity,0.1}",
    b"9007199254740993",
    b"{9007199254740993,NULL}",
    b"-123456789012345678901234567890123456.78",
    b"{123456789012345678901234567890123456.78,NULL}",
    b'"a"=>NULL, "b"=>"NULL"',
    b"{[1,3),[5,)}",
    b'{"\\\\x00ff",NULL,"\\\\x"}',
    b"{10000-01-01,NULL,0044-03-15 BC}",
)


@both_adapters
def test_no_value_is_changed_on_its_way_through_spark(spark: SparkSession, adapter: str) -> None:
    nothing = (None,) * len(EXACT.columns)
    all_sent, none_sent = "t" * len(nothing), "n" * len(nothing)
    payloads = [
        encode(Update(16385, "O", EXACT_VALUES, all_sent, nothing, none_sent)),
        encode(Update(16385, "O", nothing, none_sent, EXACT_VALUES, all_sent)),
        encode(Delete(16385, "O", EXACT_VALUES, all_sent)),
        None,
    ]
    expected = pgdecode.decode_rows(payloads, EXACT, type_messages=[HSTORE])
    old = expected["_old"][0]
    assert (old["fs"].as_py()[1:], old["big"].as_py()) == ([None, float("-inf"), 0.1], 9007199254740993)
    assert old["n"].as_py() == Decimal("-123456789012345678901234567890123456.78")
    column = from_pgoutput("data", EXACT, type_messages=[HSTORE], years="any", adapter=adapter)
    for rows in (frame(spark, payloads), frame(spark, payloads, 3)):
        found = typed(rows, column)
        assert_same(found, expected)
        assert pc.is_nan(found["f"]).to_pylist() == [None, True, True, None]


@pytest.mark.full
@both_adapters
def test_null_payloads_and_empty_batches_keep_their_place_and_type(spark: SparkSession, adapter: str) -> None:
    column = from_pgoutput("data", PEOPLE, adapter=adapter)
    rows = frame(spark, [None, GOOD, None])
    assert [row["id"] for row in dicts(rows, column)] == [None, 7, None]
    assert set(dicts(rows, column)[0].values()) == {None}
    assert rows.where("seq < 0").select(column.alias("r")).select("r.*").collect() == []
    # The result is a struct of nulls, not a null struct.
    assert rows.where("seq = 0").select(column.alias("r")).where("r is not null and r._op is null").count() == 1
    nothing = rows.where("seq <> 1")
    others = from_pgoutput("data", PEOPLE, others="null", adapter=adapter)
    assert [set(row.values()) for row in dicts(nothing, others)] == [{None}, {None}]


@pytest.mark.full
@both_adapters
@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param("spark.sql.execution.arrow.maxRecordsPerBatch", 7, id="small batches"),
        pytest.param("spark.sql.execution.arrow.maxRecordsPerBatch", 0, id="one batch"),
        pytest.param("spark.sql.execution.arrow.useLargeVarTypes", "true", id="large types"),
    ],
)
def test_settings_of_arrow_do_not_change_rows(
    spark: SparkSession, configure: Configure, adapter: str, name: str, value: object
) -> None:
    configure(name, value)
    tables, types = tables_of("16.shop.v1")
    ((relation, payloads), *_) = tables.values()
    expected = pgdecode.decode_rows(payloads, relation, type_messages=types)
    column = from_pgoutput("data", relation, type_messages=types, others="null", adapter=adapter)
    for partitions in (1, 3):
        found = typed(frame(spark, [*payloads, BEGIN], partitions), column)
        assert_same(found.slice(0, len(payloads)), for_spark(expected))


@both_adapters
def test_fields_are_returned_in_the_requested_order(spark: SparkSession, adapter: str) -> None:
    rows = frame(spark, [GOOD]).select(from_pgoutput("data", PEOPLE, fields=("born", "_op"), adapter=adapter))
    assert rows.schema.fields[0].dataType.simpleString() == "struct<born:date,_op:string>"
    assert tuple(rows.collect()[0][0]) == (dt.date(2020, 2, 29), "insert")


@both_adapters
def test_types_describe_types_that_the_stream_does_not(spark: SparkSession, adapter: str) -> None:
    relation = Relation(16385, "", "m", "d", (Column(0, "mood", 20000, -1),))
    message = Type(20000, "public", "mood")
    rows = frame(spark, [insert(b"2020-01-01")])
    for options in (
        {"types": {20000: "date"}},
        {"types": {"public.mood": "date"}, "type_messages": [message]},
        {"type_messages": [encode(Type(20000, "", "date"))]},
    ):
        column = from_pgoutput("data", relation, **options, adapter=adapter)
        assert dicts(rows, column)[0]["mood"] == dt.date(2020, 1, 1)
    assert dicts(rows, from_pgoutput("data", relation, adapter=adapter))[0]["mood"] == "2020-01-01"


@pytest.mark.parametrize(
    "relation",
    [
        pytest.param(encode(PEOPLE), id="bytes"),
        pytest.param(bytearray(encode(PEOPLE)), id="bytearray"),
        pytest.param(
            SimpleNamespace(
                relation_id=16385,
                namespace="public",
                name="people",
                replica_identity="f",
                columns=[
                    SimpleNamespace(flags=c.flags, name=c.name, type_id=c.type_id, type_modifier=c.type_modifier)
                    for c in PEOPLE.columns
                ],
            ),
            id="entry of a catalogue",
        ),
    ],
)
def test_a_relation_is_its_bytes_or_an_object_with_its_attributes(spark: SparkSession, relation: Any) -> None:
    assert dicts(frame(spark, [GOOD]), from_pgoutput("data", relation))[0]["id"] == 7


@both_adapters
def test_sql_can_call_the_function_of_a_relation(spark: SparkSession, adapter: str) -> None:
    frame(spark, [GOOD, BEGIN]).createOrReplaceTempView("raw_rows")
    register_relation(spark, "from_people", PEOPLE, others="null", fields=["_op", "id"], adapter=adapter)
    found = spark.sql("SELECT r.* FROM (SELECT seq, from_people(data) AS r FROM raw_rows) ORDER BY seq")
    assert [tuple(row) for row in found.collect()] == [("insert", 7), (None, None)]
    for argument in ("data", "payloads => data"):
        ids = spark.sql(f"SELECT from_people({argument}).id FROM raw_rows")
        assert [row[0] for row in ids.collect()] == [7, None]
    with pytest.raises(TypeError, match="nosuch"):
        register_relation(spark, "from_people", PEOPLE, nosuch=1)


def test_names_that_differ_in_case_only_are_two_fields(spark: SparkSession, configure: Configure) -> None:
    relation = Relation(16385, "", "m", "d", (Column(0, "Id", 23, -1), Column(0, "id", 23, -1)))
    rows = frame(spark, [insert(b"1", b"2")]).select(from_pgoutput("data", relation).alias("r"))
    with pytest.raises(AnalysisException, match="AMBIGUOUS_REFERENCE_TO_FIELDS"):
        rows.select("r.id")
    configure("spark.sql.caseSensitive", "true")
    assert tuple(rows.select("r.id", "r.Id").collect()[0]) == (2, 1)


@both_adapters
def test_plan_decodes_once_for_all_fields(spark: SparkSession, adapter: str) -> None:
    rows = frame(spark, [GOOD]).select("seq", from_pgoutput("data", PEOPLE, adapter=adapter).alias("r"))
    assert evaluations(rows.select("seq", "r.*")) == 1
    assert "from_pgoutput(data" in rows._jdf.queryExecution().toString()


TWICE = Relation(16385, "", "m", "d", (Column(0, "a", 23, -1), Column(0, "a", 25, -1)))


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        pytest.param({"col": b"data"}, TypeError, "col is a Column or the name of one, not bytes", id="column"),
        pytest.param({"relation": "people"}, TypeError, "a Relation message or its bytes .* not str", id="relation"),
        pytest.param({"relation": BEGIN}, TypeError, "a Relation message or its bytes .* not Begin", id="message"),
        pytest.param({"relation": BAD}, pgdecode.UnknownTag, "unknown message tag", id="bytes of no message"),
        pytest.param({"relation": TWICE}, ValueError, "cannot stand side by side", id="name that comes twice"),
        pytest.param({"type_messages": [PEOPLE]}, TypeError, "a Type message .* not Relation", id="type message"),
        pytest.param({"types": {23: "nix"}}, ValueError, "nix", id="type"),
        pytest.param({"fields": "id"}, TypeError, "fields is a sequence of column names", id="fields as text"),
        pytest.param(
            {"fields": ["idd"]},
            ValueError,
            r"no such column: 'idd' \(did you mean id\?\); there are _op",
            id="unknown field",
        ),
        pytest.param({"fields": []}, ValueError, "at least one", id="no fields"),
        pytest.param({"fields": ["id", "id"]}, ValueError, "each column once", id="field twice"),
        pytest.param({"mode": "failfast"}, ValueError, 'mode is "FAILFAST" or "PERMISSIVE"', id="unknown mode"),
        pytest.param({"mode": "DROPMALFORMED"}, ValueError, "a filter on _error", id="mode that drops rows"),
        pytest.param({"unrepresentable": "zero"}, ValueError, "unrepresentable is", id="unrepresentable"),
        pytest.param({"others": "drop"}, ValueError, 'others is "error" or "null", not', id="others"),
        pytest.param({"years": "all"}, ValueError, 'years is "1-9999" or "any", not', id="years"),
        pytest.param({"adapter": "polars"}, ValueError, 'adapter is "auto", "arrow" or "pandas"', id="adapter"),
    ],
)
def test_mistakes_are_reported_at_the_call(arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        from_pgoutput(**{"col": "data", "relation": PEOPLE, **arguments})


def test_options_and_their_defaults_are_those_of_decode_rows() -> None:
    here = inspect.signature(from_pgoutput).parameters
    there = inspect.signature(pgdecode.decode_rows).parameters
    left_out = {"payloads", "relation", "limits", "strict_flags", "threads"}  # Spark has its own threads
    # Of the limits, Spark has one.
    assert here["max_value_bytes"].default == pgdecode.Limits().max_value_bytes
    common = set(there) - left_out
    assert {name: here[name].default for name in common} == {name: there[name].default for name in common}


@both_adapters
def test_a_worker_of_another_version_says_so(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, adapter: str
) -> None:
    version = pgdecode.__version__
    monkeypatch.setattr(pgdecode, "__version__", "0.0.1")
    rows = frame(spark, [GOOD]).select(from_pgoutput("data", PEOPLE, adapter=adapter))
    text = f"RuntimeError: pgdecode 0.0.1 on the driver, but {version} in the Python worker on "
    with pytest.raises(PythonException, match=text):
        rows.collect()


@pytest.mark.parametrize("kind", [ArrowFunction, PandasFunction])
def test_pickled_functions_are_a_name_and_plain_data(kind: type[ArrowFunction | PandasFunction]) -> None:
    keywords = {"types": {20000: "date"}, "type_messages": ((20000, "public", "mood"),)}
    options = RowOptions(_relation_to_json(PEOPLE), keywords, tuple(NAMES), True, False, False)
    sent = cloudpickle.dumps(kind(options))
    assert len(sent) < 3000
    assert b"spark_udfs.columns.row_worker" in sent
    # Only classes for workers are pickled, which are small.
    assert b"pgdecode.protocol.messages" not in sent
    assert pickle.loads(sent).options == options


def test_without_arrow_udf_the_pandas_adapter_is_used(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(F, "arrow_udf", raising=False)
    assert dicts(frame(spark, [GOOD]), from_pgoutput("data", PEOPLE))[0]["id"] == 7
    with pytest.raises(ValueError, match=r'^adapter "arrow" needs pyspark 4\.1 or later, this is '):
        from_pgoutput("data", PEOPLE, adapter="arrow")


@both_adapters
def test_settings_and_types_of_columns_are_passed_on(spark: SparkSession, adapter: str) -> None:
    relation = Relation(16385, "public", "t", "d", (Column(0, "a", 25, -1), Column(0, "b", 1082, -1)))
    rows = frame(spark, [insert("größe".encode("latin1"), b"29.02.2020")])
    options = {"encoding": "LATIN1", "datestyle": "German, DMY"}
    (row,) = dicts(rows, from_pgoutput("data", relation, **options, adapter=adapter))
    assert (row["a"], row["b"]) == ("größe", dt.date(2020, 2, 29))
    numeric = Relation(16385, "public", "t", "d", (Column(0, "n", 1700, -1),))
    column = from_pgoutput("data", numeric, columns={"n": "numeric(6,2)"}, adapter=adapter)
    assert dicts(frame(spark, [insert(b"1.5")]), column)[0]["n"] == Decimal("1.50")


def test_composites_become_structs_whose_years_are_guarded(spark: SparkSession) -> None:
    relation = Relation(16385, "public", "t", "d", (Column(0, "c", 20_000, -1),))
    types = {20_000: "(day date, at time)"}
    rows = frame(spark, [insert(b"(2020-01-01,12:30:00)"), insert(b"(10000-01-01,12:30:00)")])
    found = dicts(rows, from_pgoutput("data", relation, types=types, mode="PERMISSIVE"))
    assert found[0]["c"] == {"day": dt.date(2020, 1, 1), "at": "12:30:00"}
    assert (found[1]["c"], found[1]["_error"].split()[0]) == (None, "NOT_REPRESENTABLE")
