"""Values of columns that Python can compare."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

_INTEGERS = {32: pa.int32(), 64: pa.int64()}


def zipped(columns: list[list[Any]], n: int) -> list[tuple[Any, ...]]:
    """Make a tuple of each row of columns, also if there are none."""
    return list(zip(*columns, strict=True)) if columns else [()] * n


def plain_values(array: pa.Array) -> list[Any]:
    """Convert an array to hashable values that are equal if the array's bits are: NaN equals NaN, 0.0 is not -0.0."""
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    kind = array.type
    if pa.types.is_temporal(kind) or pa.types.is_floating(kind):
        # Python cannot represent all their values.
        array = array.view(_INTEGERS[kind.bit_width])
    elif pa.types.is_struct(kind):
        children = [plain_values(child) for child in array.flatten()]
        found = zipped(children, len(array))
        return [item if valid else None for item, valid in zip(found, array.is_valid().to_pylist(), strict=True)]
    elif pa.types.is_map(kind) or pa.types.is_list(kind):
        items: list[Any]
        if pa.types.is_map(kind):
            items = zipped([plain_values(array.keys), plain_values(array.items)], len(array.keys))
        else:
            items = plain_values(array.values)
        ends = array.offsets.to_pylist()
        is_valid = array.is_valid().to_pylist()
        return [tuple(items[ends[i] : ends[i + 1]]) if valid else None for i, valid in enumerate(is_valid)]
    values: list[Any] = array.to_pylist()
    return values
