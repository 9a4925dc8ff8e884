"""What callers may hand over as payloads and as stream state, brought to what the native rooms take."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from pgdecode._source import LAYOUTS


def payload_parts(payloads: Any) -> list[pa.Array | list[bytes | None]]:
    """Arrow arrays of a layout the scanner reads in place, or a list of bytes; binary data is never copied.

    Raises
    ------
    TypeError
        If the payloads are not binary.
    """
    if isinstance(payloads, bytes | bytearray | memoryview | str):
        raise TypeError(f"payloads is a column of payloads, not one {type(payloads).__name__}; decode() takes one")
    arrow = _as_arrow(payloads)
    if arrow is None:
        found = list(payloads)
        text = next((row for row, payload in enumerate(found) if isinstance(payload, str)), None)
        if text is not None:
            raise TypeError(f"row {text}: payloads are bytes, not str")
        return [found]
    chunks = arrow.chunks if isinstance(arrow, pa.ChunkedArray) else [arrow]
    # A column without chunks has a type all the same, which is to be checked.
    chunks = chunks or [pa.array([], arrow.type)]
    return [_as_binary(chunk) for chunk in chunks]


def _as_arrow(values: Any) -> pa.Array | pa.ChunkedArray | None:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    if hasattr(values, "__arrow_c_array__"):
        return pa.array(values)
    if hasattr(values, "__arrow_c_stream__"):
        return pa.chunked_array(values)
    return None


def _as_binary(array: pa.Array) -> pa.Array:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if isinstance(array, pa.DictionaryArray):
        array = array.dictionary_decode()
    if pa.types.is_null(array.type) or pa.types.is_fixed_size_binary(array.type):
        array = array.cast(pa.binary())
    if str(array.type) not in LAYOUTS:
        raise TypeError(f"payloads are binary, large_binary or binary_view, not {array.type}")
    return array


def stream_state(in_stream: Any) -> Any:
    """None, "auto", a bool, or the bytes of a boolean column as one 0 or 1 each."""
    if in_stream is None or isinstance(in_stream, bool):
        return in_stream
    if isinstance(in_stream, str):
        if in_stream != "auto":
            raise ValueError(f'in_stream is None, "auto", a bool or a boolean column, not {in_stream!r}')
        return in_stream
    arrow = _as_arrow(in_stream)
    if arrow is None:
        if not isinstance(in_stream, Iterable):
            raise TypeError(f'in_stream is None, "auto", a bool or a boolean column, not {type(in_stream).__name__}')
        arrow = pa.array(list(in_stream), pa.bool_())
    if isinstance(arrow, pa.ChunkedArray):
        arrow = arrow.combine_chunks()
        arrow = pa.concat_arrays(arrow.chunks) if isinstance(arrow, pa.ChunkedArray) else arrow
    if not pa.types.is_boolean(arrow.type):
        raise TypeError(f"in_stream is a boolean column, not {arrow.type}")
    if arrow.null_count:
        raise ValueError(f"in_stream has {arrow.null_count} nulls, but every payload is in a stream or not")
    states = arrow.cast(pa.uint8())
    data = states.buffers()[1]
    return memoryview(data if data is not None else b"").cast("B")[states.offset : states.offset + len(states)]
