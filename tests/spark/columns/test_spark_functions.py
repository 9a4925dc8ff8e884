"""`parse_pgoutput`: both adapters return the result of `decode_messages`."""

from __future__ import annotations

import itertools
import pickle
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle
from pyspark.errors import PythonException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

import pgdecode
import spark_udfs
from pgdecode.envelope.schema import envelope_schema
from pgdecode.protocol.messages import ENVELOPE
from spark_udfs import parse_pgoutput, register
from spark_udfs.runtime.worker import ArrowFunction, Options, PandasFunction
from support import captures
from support.generators.samples import SAMPLES
from support.tiers import full, long

pytest_plugins = ["support.spark_session"]

HAS_ARROW_UDF = hasattr(F, "arrow_udf")
ADAPTERS = ["arrow", "pandas"] if HAS_ARROW_UDF else ["pandas"]
ALL_FIELDS = [column.name for column in ENVELOPE]
Configure = Callable[[str, object], None]

# An unknown tag, and bytes that must not be in any log.
BAD = b"zTOPSECRET"
# S, xid, first segment; R with oid 16384 in the stream, which can be decoded with and without an xid; E
STREAM = [
    bytes.fromhex("530000030401"),
    bytes.fromhex("5200000304000040007075626c696300743000640000"),
    bytes.fromhex("45"),
]

both_adapters = pytest.mark.parametrize("adapter", [ADAPTERS[0], *map(full, ADAPTERS[1:])])


def frame(spark: SparkSession, payloads: Sequence[bytes | None], partitions: int = 1) -> DataFrame:
    """Make rows of `seq` and `data`."""
    rows = spark.createDataFrame(list(enumerate(payloads)), "seq bigint, data binary")
    return rows.coalesce(1) if partitions == 1 else rows.repartition(partitions)


def arrow_table(rows: DataFrame) -> pa.Table:
    """Collect as Arrow, without Python objects."""
    if hasattr(rows, "toArrow"):
        return rows.toArrow()
    return pa.Table.from_batches(rows._collect_as_arrow())


def decoded(rows: DataFrame, parsed: Column, fields: Sequence[str] | None = None) -> pa.RecordBatch:
    """Collect the decoded payloads, ordered by `seq`, with the schema of the decoder."""
    table = arrow_table(rows.select("seq", parsed.alias("m")).select("seq", "m.*")).sort_by("seq")
    return table.drop_columns("seq").cast(envelope_schema(fields)).combine_chunks().to_batches()[0]


def evaluations(rows: DataFrame) -> int:
    """Count how often the plan calls Python."""
    plan: str = rows._jdf.queryExecution().executedPlan().toString()
    return plan.count("ArrowEvalPython")


def numbered_captures(spark: SparkSession, names: Iterable[str]) -> tuple[DataFrame, pa.Array]:
    """Captures in one DataFrame, numbered, in partitions of several files; and their payloads."""
    files = [captures.DATA / f"{name}.parquet" for name in sorted(names)]
    columns = [pq.read_table(file, columns=["data"])["data"].combine_chunks() for file in files]
    starts = itertools.accumulate((len(column) for column in columns), initial=0)
    firsts = spark.createDataFrame(
        [(file.name, start) for file, start in zip(files, starts, strict=False)], "file string, first bigint"
    )
    rows = spark.read.parquet(*map(str, files)).select(F.col("_metadata.file_name").alias("file"), "seq", "data")
    numbered = rows.join(F.broadcast(firsts), "file").select((F.col("first") + F.col("seq")).alias("seq"), "data")
    return numbered, pa.concat_arrays(columns)


def with_one_basis(basis: pa.Array) -> pa.Array:
    """Replace values that depend on the other rows of a batch, "evidence" and "guess", by one."""
    return pc.replace_substring_regex(basis, "evidence|guess", "unsettled")


@pytest.mark.parametrize(
    ("names", "adapter"),
    [
        *(pytest.param(captures.QUICK, adapter, id=f"some-{adapter}") for adapter in ADAPTERS),
        full(captures.NAMES, ADAPTERS[0], id="all"),
    ],
)
def test_every_capture_decodes_as_without_spark(spark: SparkSession, names: Iterable[str], adapter: str) -> None:
    rows, payloads = numbered_captures(spark, names)
    expected = pgdecode.decode_messages(payloads, in_stream="auto", fields=ALL_FIELDS)
    found = decoded(rows, parse_pgoutput("data", fields=ALL_FIELDS, adapter=adapter), ALL_FIELDS)
    for name in ALL_FIELDS[:-1]:
        assert found[name].equals(expected[name]), name
    assert ALL_FIELDS[-1] == "xid_basis"
    assert with_one_basis(found["xid_basis"]).equals(with_one_basis(expected["xid_basis"]))


@pytest.mark.full
@both_adapters
def test_given_stream_states_decode_as_without_spark(spark: SparkSession, adapter: str) -> None:
    capture = captures.capture("16.streams.v2")
    states = pa.array(capture.states)
    rows = spark.createDataFrame(
        list(zip(range(len(capture.payloads)), capture.payloads, capture.states, strict=True)),
        "seq bigint, data binary, streamed boolean",
    )
    expected = pgdecode.decode_messages(capture.column, in_stream=states)
    assert decoded(rows, parse_pgoutput(F.col("data"), in_stream=F.col("streamed"), adapter=adapter)).equals(expected)


@both_adapters
@pytest.mark.parametrize("in_stream", [True, False])
def test_one_stream_state_holds_for_all_rows(spark: SparkSession, adapter: str, in_stream: bool) -> None:
    payloads = [sample.payload for sample in SAMPLES.values() if sample.in_stream is in_stream]
    expected = pgdecode.decode_messages(payloads, in_stream=in_stream)
    found = decoded(frame(spark, payloads), parse_pgoutput("data", in_stream=in_stream, adapter=adapter))
    assert found.equals(expected)


@both_adapters
def test_order_within_a_batch_tells_the_stream_state_and_filters_do_not_disturb_it(
    spark: SparkSession, adapter: str
) -> None:
    rows = frame(spark, STREAM * 3)
    parsed = rows.select("seq", parse_pgoutput("data", in_stream="ordered", adapter=adapter).alias("m"))
    # A filter before the function would remove the delimiters.
    found = parsed.where("seq = 7 and m.kind = 'relation'").select("m.xid", "m.relation_id")
    assert evaluations(found) == 1
    assert [tuple(row) for row in found.collect()] == [(0x304, 0x4000)]


@pytest.mark.full
@both_adapters
def test_nulls_and_empty_batches_keep_their_place_and_type(spark: SparkSession, adapter: str) -> None:
    payloads = [None, b"E", None]
    expected = pgdecode.decode_messages(payloads, in_stream=False)
    rows = frame(spark, payloads)
    assert decoded(rows, parse_pgoutput("data", adapter=adapter)).equals(expected)
    assert decoded(rows.where("seq <> 1"), parse_pgoutput("data", adapter=adapter)).equals(expected.take([0, 2]))
    empty = rows.where("seq < 0").select(parse_pgoutput("data", adapter=adapter).alias("m")).select("m.*")
    assert empty.collect() == []
    # Both adapters return a struct of nulls, not a null struct.
    whole = rows.where("seq = 0").select(parse_pgoutput("data", adapter=adapter).alias("m"))
    assert whole.where("m is not null and m.kind is null").count() == 1


@pytest.mark.full
@both_adapters
@pytest.mark.parametrize("zone", ["UTC", "America/St_Johns", "Asia/Tokyo"])
def test_timestamps_are_the_same_instants_in_any_session_time_zone(
    spark: SparkSession, configure: Configure, adapter: str, zone: str
) -> None:
    configure("spark.sql.session.timeZone", zone)
    # B, final LSN, microseconds since 2000-01-01, xid; around the epoch, a daylight saving step and both ends
    moments = [0, -1, 741013993088502, 762_000_000_000_000, 2**63 - 1 - 946684800000000, -(2**63) + 1]
    payloads = [b"B" + bytes(8) + moment.to_bytes(8, "big", signed=True) + bytes(4) for moment in moments]
    parsed = parse_pgoutput("data", fields=["timestamp"], adapter=adapter)
    rows = frame(spark, payloads).select("seq", F.unix_micros(parsed["timestamp"]).alias("us")).orderBy("seq")
    assert [row["us"] for row in rows.collect()] == [moment + 946684800000000 for moment in moments]


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
    payloads = [sample.payload for sample in SAMPLES.values()] + [None]
    expected = pgdecode.decode_messages(payloads, in_stream="auto")
    for partitions in (1, 3):
        assert decoded(frame(spark, payloads, partitions), parse_pgoutput("data", adapter=adapter)).equals(expected)


@both_adapters
def test_fields_are_returned_in_the_requested_order(spark: SparkSession, adapter: str) -> None:
    fields = ("new_formats", "kind", "xid_basis", "new")
    rows = frame(spark, [SAMPLES["insert"].payload]).select(parse_pgoutput("data", fields=fields, adapter=adapter))
    assert rows.schema.fields[0].dataType.names == list(fields)
    assert tuple(rows.collect()[0][0]) == ("t", "insert", "structure", [b"5"])


@both_adapters
def test_failfast_names_row_offset_and_tag_and_shows_no_payload(spark: SparkSession, adapter: str) -> None:
    rows = frame(spark, [b"E", b"E", BAD]).select(parse_pgoutput("data", adapter=adapter))
    with pytest.raises(PythonException) as error:
        rows.collect()
    text = str(error.value)
    assert "pgdecode.protocol.errors.UnknownTag: row 2, offset 0: unknown message tag 0x7a 'z'" in text
    assert "SECRET" not in text
    assert "544f50" not in text.lower()


@both_adapters
def test_permissive_keeps_every_row_with_its_error(spark: SparkSession, adapter: str) -> None:
    payloads = [b"E", BAD, None, b"", SAMPLES["insert"].payload[:-1]]
    expected = pgdecode.decode_messages(payloads, in_stream="auto", mode="PERMISSIVE")
    found = decoded(frame(spark, payloads), parse_pgoutput("data", mode="PERMISSIVE", adapter=adapter))
    assert found.equals(expected)
    assert [error is None for error in found["error"].to_pylist()] == [True, False, True, True, False]
    refused = decoded(frame(spark, payloads), parse_pgoutput("data", mode="PERMISSIVE", adapter=adapter, empty="error"))
    assert [error is None for error in refused["error"].to_pylist()] == [True, False, True, False, False]


@both_adapters
def test_a_column_of_another_type_is_refused(spark: SparkSession, adapter: str) -> None:
    rows = frame(spark, [b"E"]).select(parse_pgoutput("seq", adapter=adapter))
    with pytest.raises(PythonException, match="TypeError: payloads are binary or string, not int64"):
        rows.collect()


@pytest.mark.full
@both_adapters
def test_text_and_frames_are_unwrapped(spark: SparkSession, adapter: str) -> None:
    payloads = [SAMPLES["begin"].payload, SAMPLES["insert"].payload]
    expected = pgdecode.decode_messages(payloads, in_stream="auto")
    frames = frame(spark, [b"w" + bytes(24) + payload for payload in payloads])
    text = frame(spark, payloads).select("seq", F.concat(F.lit("\\x"), F.hex("data")).alias("data"))
    coded = frame(spark, payloads).select("seq", F.base64("data").alias("data"))
    for rows in (frames, text, coded):
        assert decoded(rows, parse_pgoutput("data", adapter=adapter)).equals(expected)
    raw = decoded(
        frame(spark, payloads).select("seq", F.hex("data").alias("data")),
        parse_pgoutput("data", mode="PERMISSIVE", adapter=adapter, unwrap="hex"),
    )
    assert raw.equals(pgdecode.decode_messages(payloads, in_stream="auto", mode="PERMISSIVE"))
    with pytest.raises(PythonException, match="UnknownTag"):
        decoded(frames, parse_pgoutput("data", adapter=adapter, unwrap="none"))


@pytest.mark.full
@pytest.mark.parametrize("adapter", ["arrow", long("pandas")])
@pytest.mark.parametrize(
    ("states", "text"),
    [
        pytest.param("seq", "TypeError: in_stream is a boolean column, not int64", id="number"),
        pytest.param("nullif(seq = 1, true)", "ValueError: in_stream has 1 nulls", id="nulls"),
        pytest.param("cast(null as boolean)", "ValueError: in_stream has 2 nulls", id="all null"),
    ],
)
def test_an_invalid_stream_state_is_refused(spark: SparkSession, adapter: str, states: str, text: str) -> None:
    rows = frame(spark, [b"E", b"E"]).select(parse_pgoutput("data", in_stream=F.expr(states), adapter=adapter))
    with pytest.raises(PythonException, match=text):
        rows.collect()


@pytest.mark.full
@both_adapters
def test_sql_can_call_the_registered_function(spark: SparkSession, adapter: str) -> None:
    frame(spark, STREAM).createOrReplaceTempView("raw")
    register(spark, adapter=adapter)
    found = spark.sql("SELECT m.* FROM (SELECT seq, parse_pgoutput(data) AS m FROM raw) ORDER BY seq")
    assert [row["kind"] for row in found.collect()] == ["stream_start", "relation", "stream_stop"]
    # The second argument decides whether the relation has an xid.
    given = "SELECT m.xid, m.relation_id FROM (SELECT parse_pgoutput(data, {}) AS m FROM raw) WHERE m.name = 't0'"
    for argument in ("true", "in_stream => true"):
        assert [tuple(row) for row in spark.sql(given.format(argument)).collect()] == [(0x304, 0x4000)]


def test_registered_function_has_the_options_it_was_registered_with(spark: SparkSession) -> None:
    frame(spark, [BAD]).createOrReplaceTempView("bad")
    register(spark, fields=["error"], mode="PERMISSIVE")
    found = spark.sql("SELECT parse_pgoutput(data) AS m FROM bad").collect()[0]["m"]
    assert found.asDict() == {"error": "UNKNOWN_TAG at offset 0: unknown message tag 0x7a 'z'"}


@both_adapters
def test_plan_decodes_once_for_all_fields(spark: SparkSession, adapter: str) -> None:
    rows = frame(spark, STREAM)
    parsed = rows.select("seq", parse_pgoutput("data", adapter=adapter).alias("m"))
    assert evaluations(parsed.select("seq", "m.*")) == 1
    assert evaluations(parsed.groupBy("m.kind").count()) == 1
    assert "parse_pgoutput(data" in parsed._jdf.queryExecution().toString()


@both_adapters
def test_plan_decodes_twice_around_a_filter_as_documented(spark: SparkSession, adapter: str) -> None:
    rows = frame(spark, STREAM)
    parsed = rows.select(parse_pgoutput("data", adapter=adapter).alias("m"))
    assert evaluations(parsed.where("m.kind = 'insert'").select("m.new")) == 2
    # Two alternatives: a filter on the first byte, and a cheap first evaluation.
    changes = rows.where("substring(data, 1, 1) IN (X'49', X'55', X'44')")
    assert evaluations(changes.select(parse_pgoutput("data", adapter=adapter).alias("m")).select("m.*")) == 1
    kept = parsed.cache()
    assert evaluations(kept.where("m.kind = 'insert'").select("m.new")) == 1
    kept.unpersist()


def test_column_is_taken_by_name_or_as_a_column(spark: SparkSession) -> None:
    rows = frame(spark, [b"E"]).select(parse_pgoutput("data")["kind"], parse_pgoutput(F.col("data"))["kind"])
    assert tuple(rows.collect()[0]) == ("stream_stop", "stream_stop")
    # Calls in one projection share one evaluation in Python.
    assert evaluations(rows) == 1


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        pytest.param({"col": b"data"}, TypeError, "col is a Column or the name of one, not bytes", id="column"),
        pytest.param({"fields": "kind"}, TypeError, "fields is a sequence of column names", id="fields as text"),
        pytest.param({"fields": ["knd"]}, ValueError, "no such envelope column: 'knd'", id="unknown field"),
        pytest.param({"fields": []}, ValueError, "at least one", id="no fields"),
        pytest.param({"mode": "failfast"}, ValueError, 'mode is "FAILFAST" or "PERMISSIVE"', id="unknown mode"),
        pytest.param({"mode": "DROPMALFORMED"}, ValueError, "a filter on error", id="mode that drops rows"),
        pytest.param({"in_stream": "streamed"}, ValueError, "a boolean Column, not 'streamed'", id="column as a name"),
        pytest.param({"in_stream": 1}, TypeError, "not int", id="number as state"),
        pytest.param({"in_stream": [True]}, TypeError, "not list", id="list as state"),
        pytest.param({"adapter": "polars"}, ValueError, 'adapter is "auto", "arrow" or "pandas"', id="adapter"),
    ],
)
def test_mistakes_are_reported_at_the_call(arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        parse_pgoutput(**{"col": "data", **arguments})


def test_without_arrow_udf_the_pandas_adapter_is_used(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(F, "arrow_udf", raising=False)
    rows = frame(spark, [b"E"]).select(parse_pgoutput("data")["kind"])
    assert rows.collect()[0][0] == "stream_stop"
    with pytest.raises(ValueError, match=r'^adapter "arrow" needs pyspark 4\.1 or later, this is '):
        parse_pgoutput("data", adapter="arrow")


@pytest.mark.parametrize("kind", [ArrowFunction, PandasFunction])
def test_pickled_functions_are_a_name_and_options(kind: type[ArrowFunction | PandasFunction]) -> None:
    sent = cloudpickle.dumps(kind(Options(tuple(ALL_FIELDS), "auto", "FAILFAST")))
    assert len(sent) < 3000
    assert b"spark_udfs.runtime.worker" in sent
    assert pickle.loads(sent).options.fields == tuple(ALL_FIELDS)


@both_adapters
def test_a_worker_of_another_version_says_so(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, adapter: str
) -> None:
    version = pgdecode.__version__
    monkeypatch.setattr(pgdecode, "__version__", "0.0.1")
    rows = frame(spark, [b"E"]).select(parse_pgoutput("data", adapter=adapter))
    worker = re.escape(f"the Python worker on {socket.gethostname()} ({sys.executable})")
    text = rf"RuntimeError: pgdecode 0\.0\.1 on the driver, but {re.escape(version)} in {worker}"
    with pytest.raises(PythonException, match=text):
        rows.collect()


def test_imports_do_not_start_a_session() -> None:
    code = (
        "import sys, spark_udfs, spark_udfs.runtime.java\n"
        "assert 'pyspark' not in sys.modules\n"
        "import spark_udfs.columns.envelope_column, spark_udfs.jobs.decode_files\n"
        "from pyspark import SparkContext\n"
        "assert SparkContext._active_spark_context is None and SparkContext._gateway is None\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_pyspark_the_text_explains_what_to_install() -> None:
    code = (
        "import sys, spark_udfs\n"
        "sys.modules['pyspark'] = None\n"
        "for name in spark_udfs.__all__:\n"
        "    try:\n"
        "        getattr(spark_udfs, name)\n"
        "    except ModuleNotFoundError as error:\n"
        "        print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert said == "spark_udfs needs pyspark: pip install 'pgdecode[spark]'\n" * len(spark_udfs.__all__)


def test_there_are_no_public_names_outside_all() -> None:
    with pytest.raises(AttributeError, match="no attribute 'parse'"):
        spark_udfs.parse  # noqa: B018
