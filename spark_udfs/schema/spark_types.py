"""Converts Arrow schemas to Spark schemas, and columns to types that Spark accepts from Python workers."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_schema

from pgdecode.protocol.errors import unknown_names
from spark_udfs.schema.nested_fields import type_with_nested_fields, with_nested_fields

_SIMPLE: dict[pa.DataType, spark.DataType] = {
    pa.bool_(): spark.BooleanType(),
    pa.int8(): spark.ByteType(),
    pa.int16(): spark.ShortType(),
    pa.int32(): spark.IntegerType(),
    pa.int64(): spark.LongType(),
    pa.float32(): spark.FloatType(),
    pa.float64(): spark.DoubleType(),
    pa.string(): spark.StringType(),
    pa.large_string(): spark.StringType(),
    pa.binary(): spark.BinaryType(),
    pa.large_binary(): spark.BinaryType(),
    pa.date32(): spark.DateType(),
    pa.timestamp("us"): spark.TimestampNTZType(),
    pa.duration("us"): spark.DayTimeIntervalType(),
}
HAS_TIME = hasattr(spark, "TimeType")
if HAS_TIME:
    # Spark accepts only nanoseconds, whatever the precision of its type TIME.
    _SIMPLE[pa.time64("ns")] = spark.TimeType()
_MAX_DECIMAL_DIGITS = 38
# The type of decoded times of day.
_TIME = pa.time64("us")


def session_has_time(session: SparkSession) -> bool:
    """Whether a session supports TIME completely. Otherwise Spark cannot write it to files."""
    return HAS_TIME and session.conf.get("spark.sql.timeType.enabled") == "true"


def spark_schema(schema: pa.Schema, *, with_metadata: bool = False) -> spark.StructType:
    """Convert the schema of record batches that a Python worker returns to a Spark schema.

    Parameters
    ----------
    schema : pa.Schema
        Of the batches.
    with_metadata : bool
        Keep the metadata of fields, such as the types in the database and the key.

    Returns
    -------
    StructType
        The same names in the same order. Spark identifies returned columns by position.

    Raises
    ------
    TypeError
        If Spark does not accept such a type from Python. Spark would silently misread some, such as dictionaries.
    ValueError
        If a struct has two fields with the same name.
    """
    found = _struct(schema, "")
    for field, made in zip(schema, found.fields if with_metadata else (), strict=False):
        made.metadata = {name.decode(): value.decode() for name, value in (field.metadata or {}).items()}
    return found


def arrow_schema(schema: spark.StructType) -> pa.Schema:
    """Convert a schema of Spark to that of the batches that workers get, with the metadata of fields."""
    if "timezone" in inspect.signature(to_arrow_schema).parameters:
        found = to_arrow_schema(schema, timezone="UTC")
    else:
        found = to_arrow_schema(schema)  # pyspark 4.0 uses UTC without a parameter
    metadata = ({name: str(value) for name, value in field.metadata.items()} for field in schema.fields)
    return pa.schema([field.with_metadata(items or None) for field, items in zip(found, metadata, strict=True)])


def supported_schema(schema: pa.Schema, *, has_time: bool = HAS_TIME) -> pa.Schema:
    """Replace the types in a schema of decoded rows that Spark does not support.

    Parameters
    ----------
    schema : pa.Schema
        Of `pgdecode.decode_rows`.
    has_time : bool
        Whether to use Spark's type TIME. Otherwise times of day are strings.

    Returns
    -------
    pa.Schema
        The same names in the same order.
    """
    return pa.schema([field.with_type(supported_type(field.type, has_time=has_time)) for field in schema])


def supported_type(arrow: pa.DataType, *, has_time: bool = HAS_TIME) -> pa.DataType:
    """Return the type that replaces the type of a decoded column."""
    time = pa.time64("ns") if has_time else pa.string()
    return type_with_nested_fields(arrow, lambda leaf: time if leaf == _TIME else leaf)


def to_supported_type(column: pa.Array, *, has_time: bool = HAS_TIME) -> pa.Array:
    """Convert a decoded column to its `supported_type`."""
    if column.type == supported_type(column.type, has_time=has_time):
        return column
    change = _as_nanoseconds if has_time else _as_text
    return with_nested_fields(column, lambda leaf: change(leaf) if leaf.type == _TIME else leaf)


def _as_nanoseconds(times: pa.Array) -> pa.Array:
    return times.cast(pa.time64("ns"))


def _as_text(times: pa.Array) -> pa.Array:
    # Like the server: without trailing zeros in a fraction, and without a fraction of zeros.
    return pc.replace_substring_regex(times.cast(pa.string()), r"\.?0+$", "")


def _struct(fields: Iterable[pa.Field], parent: str) -> spark.StructType:
    found: dict[str, spark.StructField] = {}
    for field in fields:
        path = f"{parent}.{field.name}" if parent else field.name
        if field.name in found:
            raise ValueError(f"column {path!r}: the name comes twice")
        found[field.name] = spark.StructField(field.name, _type(field.type, path), field.nullable)
    return spark.StructType(list(found.values()))


def _type(arrow: pa.DataType, path: str) -> spark.DataType:
    if arrow in _SIMPLE:
        return _SIMPLE[arrow]
    if pa.types.is_timestamp(arrow) and arrow.unit == "us":
        return spark.TimestampType()
    if pa.types.is_decimal128(arrow) and 0 <= arrow.scale <= arrow.precision <= _MAX_DECIMAL_DIGITS:
        return spark.DecimalType(arrow.precision, arrow.scale)
    if pa.types.is_list(arrow):
        return spark.ArrayType(_type(arrow.value_type, f"{path}.element"), arrow.value_field.nullable)
    if pa.types.is_map(arrow):
        key, value = _type(arrow.key_type, f"{path}.key"), _type(arrow.item_type, f"{path}.value")
        return spark.MapType(key, value, arrow.item_field.nullable)
    if pa.types.is_struct(arrow):
        return _struct(arrow, path)
    raise TypeError(f"column {path!r}: Spark does not accept {arrow} from Python")


def quoted(name: str) -> str:
    """Quote a name for Spark SQL."""
    return "`{}`".format(name.replace("`", "``"))


def check_fields(fields: Iterable[str] | None, known: Sequence[str]) -> tuple[str, ...]:
    """Check the option `fields`, and return the names; by default all.

    Raises
    ------
    TypeError, ValueError
        If a name is unknown or repeated, or there is none.
    """
    if isinstance(fields, str):
        raise TypeError(f"fields is a sequence of column names, not the string {fields!r}")
    names = tuple(known if fields is None else fields)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"no such column: {unknown_names(unknown, known)}")
    if not names or len(set(names)) != len(names):
        raise ValueError("fields names each column once, and at least one")
    return names
