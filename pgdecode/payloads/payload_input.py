"""What callers may hand over as payloads and as stream state, brought to what the native rooms take."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode._native.arrow.int64_kernels import counted
from pgdecode._native.arrow.payload_array import LAYOUTS


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


def payload_array(payloads: Any) -> pa.ChunkedArray:
    """Payloads as Arrow chunks of one binary type, for what slices and takes them.

    Raises
    ------
    TypeError
        If the payloads are not binary.
    """
    parts = [pa.array(part, pa.large_binary()) if isinstance(part, list) else part for part in payload_parts(payloads)]
    if pa.types.is_binary_view(parts[0].type):
        # Arrow takes no rows of views; and a view taken would keep the whole of its batch alive.
        parts = [part.cast(pa.large_binary()) for part in parts]
    return pa.chunked_array(parts, parts[0].type)


def positions_of(position: Any, n_rows: int, first: int) -> pa.Array:
    """Positions of payloads as int64, by default counted on from `first`.

    Raises
    ------
    TypeError, ValueError
        If they are not ascending integers, one for each payload and none below `first`.
    """
    if first + n_rows > 1 << 63:
        raise ValueError(f"no position is left for {n_rows} payloads after {first - 1}")
    if position is None:
        return pa.Array.from_buffers(pa.int64(), n_rows, [None, counted(first if n_rows else 0, n_rows)])
    arrow = _as_arrow(position)
    if arrow is None:
        try:
            arrow = pa.array(list(position), pa.int64() if n_rows == 0 else None)
        except OverflowError as error:
            raise ValueError(f"position is past int64: {error}") from error
    if isinstance(arrow, pa.ChunkedArray):
        arrow = pa.concat_arrays(arrow.chunks) if arrow.num_chunks else pa.array([], arrow.type)
    if not pa.types.is_integer(arrow.type):
        raise TypeError(f"position is a column of integers, not {arrow.type}")
    if len(arrow) != n_rows:
        raise ValueError(f"position has {len(arrow)} values for {n_rows} payloads")
    if arrow.null_count:
        raise ValueError(f"position has {arrow.null_count} nulls")
    arrow = arrow.cast(pa.int64())
    if n_rows and arrow[0].as_py() < first:
        raise ValueError(f"position starts at {arrow[0].as_py()}, but the payloads before reach to {first - 1}")
    descents = pc.less_equal(arrow.slice(1), arrow.slice(0, max(n_rows - 1, 0)))
    if n_rows and pc.any(descents).as_py():
        row = pc.index(descents, True).as_py() + 1
        raise ValueError(f"row {row}: position {arrow[row].as_py()} does not come after {arrow[row - 1].as_py()}")
    return arrow


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


def empty_is_null(empty: str) -> bool:
    """Whether a payload of no bytes is a null row, as the caller says it.

    Raises
    ------
    ValueError
        If the word is another than "null" and "error".
    """
    if empty not in ("null", "error"):
        raise ValueError(f'empty is "null" or "error", not {empty!r}')
    return empty == "null"
