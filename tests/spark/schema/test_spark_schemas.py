"""Conversion of Arrow schemas to Spark schemas."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest
from pyspark.sql import types as spark

import pgdecode
from pgdecode import Column, Relation, Type
from pgdecode.envelope.schema import envelope_schema
from pgdecode.protocol.messages import ENVELOPE
from pgdecode.types import pgtypes
from spark_udfs.schema.spark_types import spark_schema, supported_schema, to_supported_type

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
def test_types_that_spark_would_refuse_or_misread_are_refused(arrow: pa.DataType) -> None:
    with pytest.raises(TypeError) as error:
        simple(arrow)
    assert str(error.value) == f"column 'x': Spark does not accept {arrow} from Python"


def test_refusal_names_the_column_it_lies_in() -> None:
    inner = pa.struct([("ok", pa.int64()), ("bad", pa.uint16())])
    with pytest.raises(TypeError, match=r"^column 'a\.element\.bad': Spark does not accept uint16 from Python$"):
        spark_schema(pa.schema([("a", pa.list_(inner))]))


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        pytest.param(pa.schema([("a", pa.int64()), ("a", pa.string())]), "a", id="columns"),
        pytest.param(pa.schema([("s", pa.struct([("b", pa.int64()), ("b", pa.int64())]))]), "s.b", id="struct"),
    ],
)
def test_a_repeated_name_is_refused(schema: pa.Schema, path: str) -> None:
    with pytest.raises(ValueError, match=f"^column '{path}': the name comes twice$"):
        spark_schema(schema)


def test_fields_that_are_not_nullable_stay_so() -> None:
    element = pa.field("element", pa.string(), nullable=False)
    found = spark_schema(pa.schema([pa.field("a", pa.list_(element), nullable=False)]))
    assert not found["a"].nullable
    assert not found["a"].dataType.containsNull


# Types of extensions that `pgtypes` makes by name, in addition to its table.
BY_NAME = ["hstore", "vector", "halfvec", *(item.name for item in pgtypes.NAMED)]
NUMERICS = [(38, 0), (38, 38), (1, 0), (39, 0), (1000, 500), (5, -2), (3, 5)]


def every_type() -> tuple[Relation, list[Type]]:
    """Make a relation with a column of each type, and Type messages for some."""
    messages = [Type(20_000 + i, "public", name) for i, name in enumerate(BY_NAME + [f"_{name}" for name in BY_NAME])]
    type_ids = [(type_id, -1) for type_id in [*pgtypes.NAME_BY_OID, *(message.type_id for message in messages), 30_000]]
    numerics = [(1700, ((precision << 16) | (scale & 0x7FF)) + 4) for precision, scale in NUMERICS]
    type_ids += [*numerics, *((1231, typmod) for _, typmod in numerics)]
    columns = tuple(Column(0, f"c{i}", *ids) for i, ids in enumerate(type_ids))
    return Relation(16385, "public", "t", "f", columns), messages


@pytest.mark.parametrize("has_time", [False, pytest.param(True, marks=pytest.mark.skipif(not HAS_TIME, reason="none"))])
def test_no_type_of_postgresql_comes_out_as_one_that_spark_refuses(has_time: bool) -> None:
    relation, messages = every_type()
    rows = pgdecode.decode_rows([None], relation, type_messages=messages)
    schema = supported_schema(rows.schema, has_time=has_time)
    assert spark_schema(schema).names == rows.schema.names
    columns = [to_supported_type(column, has_time=has_time) for column in rows.columns]
    assert [column.type for column in columns] == schema.types
    found = {schema.field(f"c{i}").type for i, column in enumerate(relation.columns) if column.type_id in (1083, 1183)}
    time = pa.time64("ns") if has_time else pa.string()
    assert found == {time, pa.list_(time)}


def test_every_spark_type_with_years_is_checked() -> None:
    relation, messages = every_type()
    maps = [field.type for field in pgdecode.row_schema(relation, None, messages) if pa.types.is_map(field.type)]
    assert set(maps) == {pa.map_(pa.string(), pa.string())}


# As time_out prints them: a fraction without trailing zeros.
TIMES = ["00:00:00", "12:30:00", "10:20:30", "23:59:59.999999", "00:00:00.000001", "01:02:03.5", "20:00:00.1002"]


def times(texts: list[str | None]) -> pa.Array:
    return pa.array([text and dt.time.fromisoformat(text) for text in texts], pa.time64("us"))


def test_a_time_as_text_is_what_the_server_prints() -> None:
    assert to_supported_type(times([*TIMES, None]), has_time=False).to_pylist() == [*TIMES, None]


@pytest.mark.parametrize("has_time", [False, True])
def test_times_within_lists_and_structs_are_converted(has_time: bool) -> None:
    lists = pa.array([[], None, [0, None, 1], [2]], pa.list_(pa.int32()))
    column = pa.ListArray.from_arrays(
        lists.offsets, times(["01:00:00", None, "02:00:00", "03:00:00"]), mask=lists.is_null()
    )
    struct = pa.StructArray.from_arrays(
        [column, lists], names=["t", "other"], mask=pa.array([False, False, False, True])
    )
    expected = [
        {"t": [], "other": []},
        {"t": None, "other": None},
        {"t": ["01:00:00", None, "02:00:00"], "other": [0, None, 1]},
        None,
    ]
    for start in (0, 1):
        found = to_supported_type(struct.slice(start), has_time=has_time)
        found.validate(full=True)
        as_text = pa.struct([("t", pa.list_(pa.string())), ("other", lists.type)])
        plain = found if not has_time else to_supported_type(found.cast(struct.type), has_time=False)
        assert plain.cast(as_text).to_pylist() == expected[start:]
