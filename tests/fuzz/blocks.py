"""Payloads as columns whose every buffer lies in a block from malloc that is exactly as long as it is.

Behind the bytes of a Python bytes object there is a NUL, behind those of an Arrow buffer padding: AddressSanitizer
would see no read of a byte too many.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from itertools import accumulate

import pyarrow as pa

_C = ctypes.CDLL(None)
_C.malloc.restype = ctypes.c_void_p
_C.malloc.argtypes = [ctypes.c_size_t]
_C.free.argtypes = [ctypes.c_void_p]

TYPES = {"binary": pa.binary(), "large_binary": pa.large_binary(), "binary_view": pa.binary_view()}
# Bytes that a view holds in itself.
INLINE = 12


class _Block:
    def __init__(self, data: bytes) -> None:
        # malloc(0) gives a byte that may be read: of nothing, the address is that behind a block of one byte.
        self.owner = _C.malloc(len(data) or 1)
        if not self.owner:
            raise MemoryError
        self.address = self.owner + (not data)
        ctypes.memmove(self.address, data, len(data))
        weakref.finalize(self, _C.free, self.owner)


def exact(data: bytes) -> pa.Buffer:
    """Copy bytes into a block of their own."""
    block = _Block(data)
    return pa.foreign_buffer(block.address, len(data), block)


def _chunk(payload: bytes, layout: str) -> pa.Array:
    size = len(payload)
    if layout != "binary_view":
        width = 4 if layout == "binary" else 8
        offsets = bytes(width) + size.to_bytes(width, "little")
        return pa.Array.from_buffers(TYPES[layout], 1, [None, exact(offsets), exact(payload)])
    view = size.to_bytes(4, "little")
    if size <= INLINE:
        return pa.Array.from_buffers(TYPES[layout], 1, [None, exact(view + payload.ljust(INLINE, b"\0"))])
    # The size, the first bytes, the number of the data buffer and the place in it.
    return pa.Array.from_buffers(TYPES[layout], 1, [None, exact(view + payload[:4] + bytes(8)), exact(payload)])


def whole(payloads: Sequence[bytes | None], layout: str) -> pa.Array:
    """Payloads as one Arrow array, binary or large_binary, of which each buffer is a block."""
    width = 4 if layout == "binary" else 8
    ends = [0, *accumulate(len(item or b"") for item in payloads)]
    offsets = b"".join(end.to_bytes(width, "little") for end in ends)
    bits = sum(1 << row for row, item in enumerate(payloads) if item is not None)
    validity = exact(bits.to_bytes((len(payloads) + 7) // 8, "little"))
    buffers = [validity, exact(offsets), exact(b"".join(item or b"" for item in payloads))]
    return pa.Array.from_buffers(TYPES[layout], len(payloads), buffers)


def column(payloads: Sequence[bytes | None], layout: str) -> pa.ChunkedArray:
    """Payloads as an Arrow column of a layout, each a chunk of its own."""
    kind = TYPES[layout]
    return pa.chunked_array([pa.nulls(1, kind) if item is None else _chunk(item, layout) for item in payloads], kind)
