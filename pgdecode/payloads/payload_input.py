"""Conversion of the caller's payloads, positions and stream flags to the forms that native code reads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode._native.arrow.int64_kernels import counted
from pgdecode._native.arrow.payload_array import LAYOUTS
from pgdecode.protocol.options import InStream, stream_option


class _ArrowArray(Protocol):
    def __arrow_c_array__(self, requested_schema: Any = None) -> Any: ...


class _ArrowStream(Protocol):
    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any: ...


# What `in_stream` may be: an option by its name, one bool for all payloads, or a column with a bool for each.
StreamStates = InStream | bool | Iterable[bool] | _ArrowArray | _ArrowStream | None


def payload_parts(payloads: Any) -> list[pa.Array | list[bytes | None]]:
    """Convert payloads to Arrow arrays that the scanner reads in place, or to a list of bytes.

    Binary data is not copied.

    Raises
    ------
    TypeError
        If the payloads are not binary.
    """
    if isinstance(payloads, bytes | bytearray | memoryview | str):
        raise TypeError(f"payloads is a column of payloads, not one {type(payloads).__name__}; decode() takes one")
    arrow = _as_arrow(payloads)
    if arrow is None:
        if not isinstance(payloads, Iterable):
            raise TypeError(f"payloads is a column of payloads, not {type(payloads).__name__}")
        found = list(payloads)
        if not {*map(type, found)} <= {bytes, type(None)}:
            _check_buffers(found)
        return [found]
    chunks = arrow.chunks if isinstance(arrow, pa.ChunkedArray) else [arrow]
    # A column without chunks still has a type, which must be checked.
    chunks = chunks or [pa.array([], arrow.type)]
    return [_as_binary(chunk) for chunk in chunks]


def _check_buffers(payloads: list[Any]) -> None:
    for row, payload in enumerate(payloads):
        try:
            memoryview(b"" if payload is None else payload)
        except TypeError:
            raise TypeError(f"row {row}: payloads are bytes, not {type(payload).__name__}") from None


def payload_array(payloads: Any) -> pa.ChunkedArray:
    """Convert payloads to Arrow chunks of one binary type that can be sliced and taken from.

    Raises
    ------
    TypeError
        If the payloads are not binary.
    """
    parts = [pa.array(part, pa.large_binary()) if isinstance(part, list) else part for part in payload_parts(payloads)]
    if pa.types.is_binary_view(parts[0].type):
        # Arrow's `take` does not support views, and a view would keep its whole batch alive.
        parts = [part.cast(pa.large_binary()) for part in parts]
    return pa.chunked_array(parts, parts[0].type)


def ascending(first: int, n: int) -> pa.Array:
    """Make a column of n int64 that count up from `first`."""
    return pa.Array.from_buffers(pa.int64(), n, [None, counted(first, n)])


def holds_positions(type: pa.DataType) -> bool:
    """Whether a column of this type may have positions: whole numbers."""
    if pa.types.is_dictionary(type):
        type = type.value_type
    return bool(pa.types.is_integer(type) or (pa.types.is_decimal(type) and type.scale == 0))


class InvalidPositions(ValueError):
    """Positions of payloads that do not ascend, or that earlier payloads have."""


def positions_of(position: Any, n_rows: int, first: int) -> pa.Array:
    """Convert positions of payloads to int64; by default they count up from `first`.

    Raises
    ------
    TypeError, InvalidPositions
        If they are not ascending integers, one per payload and none below `first`.
    """
    if first + n_rows > 1 << 63:
        raise InvalidPositions(f"no position is left for {n_rows} payloads after {first - 1}")
    if position is None:
        return ascending(first if n_rows else 0, n_rows)
    arrow = _as_arrow(position)
    if arrow is None:
        try:
            arrow = pa.array(list(position), pa.int64() if n_rows == 0 else None)
        except OverflowError as error:
            raise InvalidPositions(f"position exceeds int64: {error}") from error
    if isinstance(arrow, pa.ChunkedArray):
        arrow = pa.concat_arrays(arrow.chunks) if arrow.num_chunks else pa.array([], arrow.type)
    if not holds_positions(arrow.type):
        raise TypeError(f"position is a column of integers, not {arrow.type}")
    if len(arrow) != n_rows:
        raise InvalidPositions(f"position has {len(arrow)} values for {n_rows} payloads")
    if arrow.null_count:
        raise InvalidPositions(f"position has {arrow.null_count} nulls")
    try:
        arrow = arrow.cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise InvalidPositions(f"position exceeds int64: {error}") from error
    if n_rows and arrow[0].as_py() < first:
        raise InvalidPositions(f"position starts at {arrow[0].as_py()}, but earlier payloads end at {first - 1}")
    descents = pc.less_equal(arrow.slice(1), arrow.slice(0, max(n_rows - 1, 0)))
    if n_rows and pc.any(descents).as_py():
        row = pc.index(descents, True).as_py() + 1
        raise InvalidPositions(f"row {row}: position {arrow[row].as_py()} does not come after {arrow[row - 1].as_py()}")
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
        text = "string" in str(array.type)
        remedy = "; unwrap(column).payloads decodes hexadecimal and base64 text (pgdecode.unwrap)" if text else ""
        raise TypeError(f"payloads are binary, large_binary or binary_view, not {array.type}{remedy}")
    return array


def stream_state(in_stream: Any) -> Any:
    """Check `in_stream`; return None for "ordered", "auto", a bool, or for a boolean column one byte 0 or 1 per row."""
    if in_stream is None or isinstance(in_stream, str | bool | bytes):
        found = stream_option(in_stream)
        return None if found == "ordered" else found
    arrow = _as_arrow(in_stream)
    if arrow is None:
        if not isinstance(in_stream, Iterable):
            return stream_option(in_stream)
        arrow = pa.array(list(in_stream), pa.bool_())
    if isinstance(arrow, pa.ChunkedArray):
        arrow = arrow.combine_chunks()
        arrow = pa.concat_arrays(arrow.chunks) if isinstance(arrow, pa.ChunkedArray) else arrow
    if not pa.types.is_boolean(arrow.type):
        raise TypeError(f"in_stream is a boolean column, not {arrow.type}")
    if arrow.null_count:
        raise ValueError(f"in_stream has {arrow.null_count} nulls, expected true or false for every payload")
    states = arrow.cast(pa.uint8())
    data = states.buffers()[1]
    return memoryview(data if data is not None else b"").cast("B")[states.offset : states.offset + len(states)]
