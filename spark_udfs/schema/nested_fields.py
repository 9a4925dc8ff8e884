"""Changes the nested fields of Arrow types and arrays: the elements of lists and structs, at any depth."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa


def type_with_nested_fields(arrow: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Apply `change` to all types in a type that are not lists or structs. A map is not divided further."""
    if pa.types.is_struct(arrow):
        return pa.struct([field.with_type(type_with_nested_fields(field.type, change)) for field in arrow])
    if pa.types.is_list(arrow):
        return pa.list_(arrow.value_field.with_type(type_with_nested_fields(arrow.value_type, change)))
    return change(arrow)


def with_nested_fields(array: pa.Array, change: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """Apply `change` to all arrays in an array that are not lists or structs. A map is not divided further."""
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
