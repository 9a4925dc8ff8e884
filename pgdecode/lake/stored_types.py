"""The types in which each format stores the types of typed tables, and the conversion of arrays to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

Format = Literal["parquet", "delta", "iceberg", "duckdb", "ducklake"]
_Array = TypeVar("_Array", pa.Array, pa.ChunkedArray)

_TIME = pa.time64("us")
# Types that a format does not have, and the types that it stores instead. All other types are stored as they are. What
# is text here is PostgreSQL's text form.
INSTEAD: Mapping[str, Mapping[pa.DataType, pa.DataType]] = {
    "parquet": {},
    "delta": {_TIME: pa.string()},
    "iceberg": {pa.int16(): pa.int32()},
    "duckdb": {},
    "ducklake": {},
}
_SCALARS = {
    pa.bool_(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.binary(),
    pa.date32(),
    _TIME,
    pa.timestamp("us"),
    pa.timestamp("us", "UTC"),
}


def stored_field(field: pa.Field, format: Format) -> pa.Field:
    """Return a field of a typed table with the type that a format stores. Name, nullability and metadata stay.

    Raises
    ------
    TypeError
        If typed tables do not have the type.
    """
    return field.with_type(_stored_type(field.type, INSTEAD[format]))


def stored_schema(schema: pa.Schema, format: Format) -> pa.Schema:
    """Return the schema of a typed table with the types that a format stores. Metadata stay."""
    return pa.schema([stored_field(field, format) for field in schema], metadata=schema.metadata)


def _stored_type(type: pa.DataType, instead: Mapping[pa.DataType, pa.DataType]) -> pa.DataType:
    if pa.types.is_struct(type):
        return pa.struct([item.with_type(_stored_type(item.type, instead)) for item in type])
    if pa.types.is_map(type):
        return pa.map_(_stored_type(type.key_type, instead), _stored_type(type.item_type, instead))
    if pa.types.is_list(type):
        return pa.list_(type.value_field.with_type(_stored_type(type.value_type, instead)))
    if type not in _SCALARS and not pa.types.is_decimal128(type):
        raise TypeError(f"typed tables have no type {type}")
    return instead.get(type, type)


def to_stored(array: _Array, type: pa.DataType) -> _Array:
    """Convert a column of a typed table to the type of `stored_field`, without loss; or back.

    Parameters
    ----------
    array : pa.Array or pa.ChunkedArray
    type : pa.DataType

    Raises
    ------
    pa.ArrowInvalid
        If a value does not fit. This cannot happen with the types of `stored_field`.
    """
    if array.type == type:
        return array
    if isinstance(array, pa.ChunkedArray):
        return pa.chunked_array([to_stored(chunk, type) for chunk in array.chunks], type)
    return _converted(array, type)


def _converted(array: Any, type: pa.DataType) -> Any:
    if array.type == type:
        return array
    if array.type == _TIME and type == pa.string():
        # Arrow prints six digits after the point. PostgreSQL prints none at the end that are 0.
        return pc.replace_substring_regex(array.cast(type), r"\.?0+$", "")
    if array.type == pa.string() and type == _TIME:
        # Arrow reads no times, but timestamps.
        stamps = pc.binary_join_element_wise("1970-01-01", array, " ").cast(pa.timestamp("us"))
        return stamps.cast(pa.int64()).cast(type)
    if pa.types.is_struct(type):
        columns = [_converted(column, item.type) for column, item in zip(array.flatten(), type, strict=True)]
        return pa.StructArray.from_arrays(columns, fields=list(type), mask=array.is_null())
    if pa.types.is_list(type):
        lengths = pc.fill_null(array.value_lengths(), 0)
        ends = pc.cumulative_sum(lengths)
        offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends.cast(pa.int32())])
        values = _converted(array.flatten(), type.value_type)
        return pa.ListArray.from_arrays(offsets, values, type=type, mask=array.is_null())
    return array.cast(type)
