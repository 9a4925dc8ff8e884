"""Arrow columns of nulls over a shared mapping of zeros, which uses memory only when it is read."""

from __future__ import annotations

import mmap
import weakref

import pyarrow as pa

# With fewer rows, writing zeros is faster than mapping pages.
_FEW = 1 << 13
_USUAL_WIDTH = 16  # bytes: the widest item of all but a few types

# The last mapping of zeros. All columns share it, because address space can run out. The system allocates a page when
# the page is first read. `_kept` keeps mappings of usual size alive, so that batches do not fault in the same pages
# again.
_last: list[weakref.ref[mmap.mmap]] = []
_kept: list[mmap.mmap] = []
_MOST_KEPT = 1 << 28


def null_array(n: int, type: pa.DataType, *, is_kept: bool = False) -> pa.Array:
    """Make a column of n nulls; one that the caller keeps for other batches takes no memory from the pool."""
    if n < _FEW and not is_kept:
        return pa.nulls(n, type)
    try:
        zeros = _zeros((n + 1) * max(_USUAL_WIDTH, _width(type)))
    except OSError:
        # Address space ran out. The type may need less than was requested.
        return pa.nulls(n, type)
    return _over(zeros, n, type)


def _zeros(size: int) -> pa.Buffer:
    """Make a buffer of zeros from pages that the system allocates when they are read.

    Memory from an allocator, also that of `bytes`, may have been used before and would have to be cleared.
    """
    pages = _last[0]() if _last else None
    if pages is None or len(pages) < size:
        pages = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ)
        _last[:] = [weakref.ref(pages)]
        _kept[:] = [pages] if size <= _MOST_KEPT else []
    # No longer than requested, because sending or pickling a column also copies the rest of its buffers.
    return pa.py_buffer(pages).slice(0, size)


def _width(type: pa.DataType) -> int:
    """Bytes per item in the longest of a column's buffers."""
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
    elif pa.types.is_list(type):
        children = [_over(zeros, 0, type.value_type)]
    elif pa.types.is_map(type):
        children = [pa.nulls(0, type).values]
    elif pa.types.is_string(type) or pa.types.is_binary(type):
        buffers = [zeros, zeros, zeros]
    elif not _is_fixed(type):
        return pa.nulls(n, type)
    return pa.Array.from_buffers(type, n, buffers, n, children=children)
