"""Which values of columns are equal: as numbers, and as values that Python can compare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_INTEGERS = {32: pa.int32(), 64: pa.int64()}


def numbered_rows(columns: Sequence[list[pa.Array]], n: int) -> tuple[pa.Array, int]:
    """Give each different row of columns a number. Return the numbers, and how many are different."""
    if not columns or not n:
        return pa.repeat(pa.scalar(0, pa.int32()), n), 1
    numbers, n_found = numbered(pa.chunked_array(columns[0]))
    for column in columns[1:]:
        others, n_others = numbered(pa.chunked_array(column))
        pairs = pc.add(pc.multiply(numbers.cast(pa.int64()), pa.scalar(n_others, pa.int64())), others)
        numbers, n_found = numbered(pa.chunked_array([pairs]))
    return numbers, n_found


def numbered(values: pa.ChunkedArray) -> tuple[pa.Array, int]:
    """Give each different value of a column a number. Return the numbers, and how many values are different.

    Values are equal if they are for `plain_values`. The column has at least one.
    """
    kind = values.type
    if pa.types.is_nested(kind):
        numbers: dict[Any, int] = {}
        found = [numbers.setdefault(value, len(numbers)) for value in plain_values(values)]
        return pa.array(found, pa.int32()), len(numbers)
    if pa.types.is_floating(kind):
        values = pa.chunked_array([chunk.view(_INTEGERS[kind.bit_width]) for chunk in values.chunks])
    chunks = values.dictionary_encode("encode").chunks
    return pa.concat_arrays([chunk.indices for chunk in chunks]), len(chunks[0].dictionary)


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
