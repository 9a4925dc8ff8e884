"""Arrow types and arrays with other leaves: what lists and structs hold, at any depth."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa


def type_with_nested_fields(arrow: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Give a type with `change` made to all that is no list or struct in it; maps are leaves."""
    if pa.types.is_struct(arrow):
        return pa.struct([field.with_type(type_with_nested_fields(field.type, change)) for field in arrow])
    if pa.types.is_list(arrow):
        return pa.list_(arrow.value_field.with_type(type_with_nested_fields(arrow.value_type, change)))
    return change(arrow)


def with_nested_fields(array: pa.Array, change: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """Give an array with `change` made to the arrays of all that is no list or struct in it; maps are leaves."""
    if pa.types.is_struct(array.type):
        children = [with_nested_fields(array.field(i), change) for i in range(array.type.num_fields)]
        fields = [field.with_type(child.type) for field, child in zip(array.type, children, strict=True)]
        return pa.StructArray.from_arrays(children, fields=fields, mask=array.is_null())
    if pa.types.is_list(array.type):
        items = with_nested_fields(array.values, change)
        arrow = pa.list_(array.type.value_field.with_type(items.type))
        places = array.buffers()[:2]
        return pa.Array.from_buffers(arrow, len(array), places, array.null_count, array.offset, [items])
    return change(array)
