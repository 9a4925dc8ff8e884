"""Arrow schemas as Spark's: what Spark takes from a Python worker, and what is refused."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from pgdecode.messages import ENVELOPE
from pgdecode.schemas import envelope_schema
from spark_udfs.schemas import spark_schema

HAS_TIME = hasattr(spark, "TimeType")


def simple(arrow: pa.DataType) -> str:
    text: str = spark_schema(pa.schema([("x", arrow)]))["x"].dataType.simpleString()
    return text


def test_envelope_is_what_the_design_says() -> None:
    assert spark_schema(envelope_schema()).simpleString() == (
        "struct<kind:string,xid:bigint,subxid:bigint,flags:smallint,lsn:bigint,end_lsn:bigint,timestamp:timestamp,"
        "prepare_timestamp:timestamp,gid:string,relation_id:bigint,relation_ids:array<bigint>,options:smallint,"
        "namespace:string,name:string,replica_identity:string,"
        "columns:array<struct<flags:smallint,name:string,type_id:bigint,type_modifier:int>>,type_id:bigint,"
        "first_segment:boolean,prefix:string,content:binary,old_type:string,old:array<binary>,old_formats:string,"
        "new:array<binary>,new_formats:string,error:string>"
    )


@pytest.mark.parametrize("name", [column.name for column in ENVELOPE])
def test_every_envelope_column_has_a_type_in_spark(name: str) -> None:
    schema = spark_schema(envelope_schema([name]))
    assert schema.names == [name]
    assert schema[name].nullable


@pytest.mark.parametrize(
    ("arrow", "expected"),
    [
        pytest.param(pa.decimal128(38, 38), "decimal(38,38)", id="widest decimal"),
        pytest.param(pa.timestamp("us"), "timestamp_ntz", id="timestamp without zone"),
        pytest.param(pa.timestamp("us", "Asia/Kolkata"), "timestamp", id="timestamp of another zone"),
        pytest.param(pa.large_string(), "string", id="large string"),
        pytest.param(pa.map_(pa.string(), pa.int32()), "map<string,int>", id="map"),
        pytest.param(pa.struct([("a", pa.list_(pa.date32()))]), "struct<a:array<date>>", id="nested"),
        pytest.param(
            pa.time64("ns"),
            "time(6)",
            id="time",
            marks=pytest.mark.skipif(not HAS_TIME, reason="this Spark has no TIME"),
        ),
    ],
)
def test_types_have_their_names_in_spark(arrow: pa.DataType, expected: str) -> None:
    assert simple(arrow) == expected


@pytest.mark.parametrize(
    "arrow",
    [
        pa.uint8(),
        pa.uint64(),
        pa.float16(),
        pa.time32("ms"),
        pa.time64("us"),
        pa.date64(),
        pa.timestamp("ns"),
        pa.timestamp("ms", "UTC"),
        pa.duration("ns"),
        pa.month_day_nano_interval(),
        pa.decimal128(5, -1),
        pa.decimal128(2, 3),
        pa.decimal256(39, 2),
        pa.dictionary(pa.int32(), pa.string()),
        pa.run_end_encoded(pa.int32(), pa.string()),
        pa.string_view(),
        pa.binary_view(),
        pa.binary(4),
        pa.large_list(pa.int64()),
        pa.list_(pa.int64(), 2),
        pa.null(),
    ],
    ids=str,
)
def test_what_spark_would_refuse_later_or_misread_is_refused(arrow: pa.DataType) -> None:
    with pytest.raises(TypeError) as error:
        simple(arrow)
    assert str(error.value) == f"column 'x': Spark takes no {arrow} from Python"


def test_refusal_names_the_column_it_lies_in() -> None:
    inner = pa.struct([("ok", pa.int64()), ("bad", pa.uint16())])
    with pytest.raises(TypeError, match=r"^column 'a\.element\.bad': Spark takes no uint16 from Python$"):
        spark_schema(pa.schema([("a", pa.list_(inner))]))


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        pytest.param(pa.schema([("a", pa.int64()), ("a", pa.string())]), "a", id="columns"),
        pytest.param(pa.schema([("s", pa.struct([("b", pa.int64()), ("b", pa.int64())]))]), "s.b", id="struct"),
    ],
)
def test_a_name_that_comes_twice_is_refused(schema: pa.Schema, path: str) -> None:
    with pytest.raises(ValueError, match=f"^column '{path}': the name comes twice$"):
        spark_schema(schema)


def test_what_must_not_be_null_stays_so() -> None:
    element = pa.field("element", pa.string(), nullable=False)
    found = spark_schema(pa.schema([pa.field("a", pa.list_(element), nullable=False)]))
    assert not found["a"].nullable
    assert not found["a"].dataType.containsNull
