"""Arrow schemas as Spark's, refusing what Spark cannot take from a Python worker."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from pyspark.sql import types as spark

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
if hasattr(spark, "TimeType"):
    # Spark reads nanoseconds only, whatever the precision of its own type.
    _SIMPLE[pa.time64("ns")] = spark.TimeType()
_MAX_DECIMAL_DIGITS = 38


def spark_schema(schema: pa.Schema) -> spark.StructType:
    """Spark schema of record batches that a Python worker returns.

    Parameters
    ----------
    schema : pa.Schema
        Of the batches.

    Returns
    -------
    StructType
        The same names in the same order: Spark takes returned columns by position.

    Raises
    ------
    TypeError
        If Spark takes no column of such a type. Some it would misread without a word, such as a dictionary.
    ValueError
        If a name comes twice in one struct.
    """
    return _struct(schema, "")


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
    raise TypeError(f"column {path!r}: Spark takes no {arrow} from Python")
