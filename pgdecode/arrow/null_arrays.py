"""Columns of nothing but null, over zeros that take no memory as long as nobody reads them."""

from __future__ import annotations

import mmap
import os
import weakref
from typing import Any

import pyarrow as pa

# Below so many rows zeros are written sooner than the system gives pages.
_FEW = 1 << 13
_READ_ONLY: dict[str, Any] = (
    {"access": mmap.ACCESS_READ}
    if os.name == "nt"
    else {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, "prot": mmap.PROT_READ}
)
_USUAL_WIDTH = 16  # bytes of the widest item but for few types

# The zeros last mapped: all columns share them, since addresses can run out. What is read of them the system maps to a
# page of its own; so that it is not asked for that again by each batch, usual ones are kept.
_last: list[weakref.ref[mmap.mmap]] = []
_kept: list[mmap.mmap] = []
_MOST_KEPT = 1 << 28


def null_array(n: int, type: pa.DataType) -> pa.Array:
    """Make a column of n nulls."""
    if n < _FEW:
        return pa.nulls(n, type)
    try:
        zeros = _zeros((n + 1) * max(_USUAL_WIDTH, _width(type)))
    except OSError:
        # No addresses for so many; this type may need fewer.
        return pa.nulls(n, type)
    return _over(zeros, n, type)


def _zeros(size: int) -> pa.Buffer:
    """Make a buffer of zeros, by pages that the system gives when they are read.

    What is asked of the allocators, also by `bytes`, is memory used before, which has to be cleared.
    """
    pages = _last[0]() if _last else None
    if pages is None or len(pages) < size:
        pages = mmap.mmap(-1, size, **_READ_ONLY)
        _last[:] = [weakref.ref(pages)]
        _kept[:] = [pages] if size <= _MOST_KEPT else []
    return pa.py_buffer(pages)


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
