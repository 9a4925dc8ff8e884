"""Columns of nothing but null, over zeros that take no memory as long as nobody reads them."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

# Below so many rows zeros are written sooner than the system gives pages.
_FEW = 1 << 14
_READ_ONLY: dict[str, Any] = (
    {"access": mmap.ACCESS_READ}
    if os.name == "nt"
    else {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, "prot": mmap.PROT_READ}
)


def null_array(n: int, type: pa.DataType) -> pa.Array:
    """Make a column of n nulls."""
    return null_arrays(n, [type])[0]


def null_arrays(n: int, types: Sequence[pa.DataType]) -> list[pa.Array]:
    """Make a column of n nulls for each type; all have one memory for their validity, offsets and values.

    Raises
    ------
    MemoryError
        If the system has no addresses left for it.
    """
    if n < _FEW or not types:
        return [pa.nulls(n, type) for type in types]
    zeros = _zeros((n + 1) * max(map(_width, types)))
    return [_over(zeros, n, type) for type in types]


def _zeros(size: int) -> pa.Buffer:
    """Make a buffer of zeros, by pages that the system gives when they are read.

    What is asked of the allocators, also by `bytes`, is memory used before, which has to be cleared.
    """
    try:
        return pa.py_buffer(mmap.mmap(-1, size, **_READ_ONLY))
    except OSError as error:
        raise MemoryError(f"no addresses for {size} zeros") from error


def _width(type: pa.DataType) -> int:
    """Bytes that an item takes in the longest of its buffers."""
    if pa.types.is_struct(type):
        return max([1, *(_width(field.type) for field in type)])
    return max(1, type.bit_width // 8) if _is_fixed(type) else 4


def _is_fixed(type: pa.DataType) -> bool:
    kinds = pa.types
    return bool(kinds.is_primitive(type) or kinds.is_decimal(type) or kinds.is_fixed_size_binary(type))


def _over(zeros: pa.Buffer, n: int, type: pa.DataType) -> pa.Array:
    children = None
    buffers = [zeros, zeros]
    if pa.types.is_struct(type):
        buffers = [zeros]
        children = [_over(zeros, n, field.type) for field in type]
    elif pa.types.is_list(type) or pa.types.is_map(type):
        children = [pa.nulls(0, type).values]
    elif pa.types.is_string(type) or pa.types.is_binary(type):
        buffers = [zeros, zeros, zeros]
    elif not _is_fixed(type):
        return pa.nulls(n, type)
    return pa.Array.from_buffers(type, n, buffers, n, children=children)
