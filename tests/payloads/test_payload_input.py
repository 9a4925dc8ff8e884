"""Accepted forms of payloads and of stream flags."""

from __future__ import annotations

import array
import gc
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import pgdecode
from support import captures
from support.compare import NULL_ROW, assert_same_rows, column_values, row_of
from support.envelope import SCHEMA
from support.generators.encoder import encode
from support.generators.samples import SAMPLES

CAPTURE = captures.capture("18.types.v2bin")
PAYLOADS = CAPTURE.payloads
ROWS = CAPTURE.rows

LAYOUTS = pytest.mark.parametrize("layout", [pa.binary(), pa.large_binary(), pa.binary_view()], ids=str)


class OnlyArray:
    """An object with only the Arrow PyCapsule interface, as one array."""

    def __init__(self, data: pa.Array) -> None:
        self.data = data

    def __arrow_c_array__(self, requested_schema: object = None) -> object:
        return self.data.__arrow_c_array__(requested_schema)


class OnlyStream:
    """The same as a stream of arrays."""

    def __init__(self, data: pa.ChunkedArray) -> None:
        self.data = data

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.data.__arrow_c_stream__(requested_schema)


# -- shapes ----------------------------------------------------------------------------------------------------------

SHAPES: dict[str, Callable[[], Any]] = {
    "list of bytes": lambda: list(PAYLOADS),
    "tuple of bytes": lambda: tuple(PAYLOADS),
    "iterator": lambda: iter(PAYLOADS),
    "list of bytearray": lambda: [bytearray(payload) for payload in PAYLOADS],
    "list of memoryview": lambda: [memoryview(payload) for payload in PAYLOADS],
    "list of array.array": lambda: [array.array("B", payload) for payload in PAYLOADS],
    "list of numpy arrays": lambda: [np.frombuffer(payload, np.uint8) for payload in PAYLOADS],
    "binary": lambda: pa.array(PAYLOADS, pa.binary()),
    "large_binary": lambda: pa.array(PAYLOADS, pa.large_binary()),
    "binary_view": lambda: pa.array(PAYLOADS, pa.binary_view()),
    "chunked": lambda: pa.chunked_array([PAYLOADS[:7], PAYLOADS[7:8], PAYLOADS[8:]], pa.binary()),
    "chunked with empty chunks": lambda: pa.chunked_array([[], PAYLOADS[:7], [], [], PAYLOADS[7:], []], pa.binary()),
    "chunked binary_view": lambda: pa.chunked_array([PAYLOADS[:7], PAYLOADS[7:]], pa.binary_view()),
    "dictionary": lambda: pa.array(PAYLOADS, pa.binary()).dictionary_encode(),
    "chunked dictionary": lambda: pa.chunked_array([PAYLOADS[:7], PAYLOADS[7:]], pa.binary()).dictionary_encode(),
    "only __arrow_c_array__": lambda: OnlyArray(pa.array(PAYLOADS, pa.binary())),
    "only __arrow_c_array__, binary_view": lambda: OnlyArray(pa.array(PAYLOADS, pa.binary_view())),
    "only __arrow_c_stream__": lambda: OnlyStream(pa.chunked_array([PAYLOADS[:9], [], PAYLOADS[9:]], pa.binary())),
    "pandas Series of objects": lambda: pd.Series(PAYLOADS, dtype=object),
    "pandas Series of Arrow binary": lambda: pd.Series(PAYLOADS, dtype=pd.ArrowDtype(pa.binary())),
    "numpy array of objects": lambda: np.array(PAYLOADS, dtype=object),
    "exactly as many bytes as needed": lambda: exact(PAYLOADS),
}


def exact(payloads: list[bytes]) -> pa.Array:
    """A binary array whose buffers end with its data, so that a read past the end is outside."""
    ends = np.cumsum([0, *map(len, payloads)], dtype=np.int32)
    return pa.Array.from_buffers(
        pa.binary(), len(payloads), [None, pa.py_buffer(ends.tobytes()), pa.py_buffer(b"".join(payloads))]
    )


@pytest.mark.parametrize("shape", [pytest.param(shape, id=name) for name, shape in SHAPES.items()])
def test_payloads_in_any_shape_give_the_same_rows(shape: Callable[[], Any]) -> None:
    assert_same_rows(pgdecode.decode_messages(shape()), ROWS)


@LAYOUTS
def test_a_slice_at_every_offset(layout: pa.DataType) -> None:
    whole = pa.array(PAYLOADS, layout)
    for start in range(len(PAYLOADS) + 1):
        for length in {0, 1, len(PAYLOADS) - start}:
            part = whole.slice(start, length)
            batch = pgdecode.decode_messages(part, in_stream="auto")
            assert_same_rows(batch, ROWS[start : start + length])


@LAYOUTS
def test_payloads_of_every_short_length(layout: pa.DataType) -> None:
    # A view contains values of up to 12 bytes, and points to longer ones.
    origins = [pgdecode.Origin(origin_lsn=8, name="o" * length) for length in range(24)]
    payloads = pa.array([encode(origin) for origin in origins], layout)
    assert_same_rows(pgdecode.decode_messages(payloads), [row_of(origin) for origin in origins])


@LAYOUTS
def test_nulls_at_every_offset_of_the_validity_bitmap(layout: pa.DataType) -> None:
    payloads = [None if i % 3 == 1 or i == 0 else payload for i, payload in enumerate(PAYLOADS)]
    rows = [NULL_ROW if payload is None else row for payload, row in zip(payloads, ROWS, strict=True)]
    whole = pa.array(payloads, layout)
    for start in range(len(payloads)):
        assert_same_rows(pgdecode.decode_messages(whole.slice(start), in_stream="auto"), rows[start:])
    chunked = pa.chunked_array([whole.slice(0, 5), whole.slice(5, 0), whole.slice(5)])
    assert_same_rows(pgdecode.decode_messages(chunked, in_stream="auto"), rows)
    assert_same_rows(pgdecode.decode_messages(payloads, in_stream="auto"), rows)


@LAYOUTS
def test_the_bytes_under_a_null_are_not_read(layout: pa.DataType) -> None:
    whole = pa.array([b"E", b"not a message, but longer than a view holds", b"E"], layout)
    masked = pa.Array.from_buffers(layout, 3, [pa.py_buffer(b"\x05"), *whole.buffers()[1:]])
    assert column_values(pgdecode.decode_messages(masked), "kind") == ["stream_stop", None, "stream_stop"]


def test_fixed_size_binary_is_accepted() -> None:
    starts = [SAMPLES["stream start, first segment"].payload, SAMPLES["stream start, later segment"].payload, None]
    batch = pgdecode.decode_messages(pa.array(starts, pa.binary(6)))
    assert column_values(batch, "xid") == [0x304, 0xFFFFFFFF, None]


@pytest.mark.parametrize(
    "nothing",
    [
        pytest.param([], id="list"),
        pytest.param(pa.array([], pa.binary()), id="binary"),
        pytest.param(pa.array([], pa.large_binary()), id="large_binary"),
        pytest.param(pa.array([], pa.binary_view()), id="binary_view"),
        pytest.param(pa.chunked_array([], pa.binary()), id="no chunks"),
        pytest.param(pa.chunked_array([[], []], pa.binary()), id="empty chunks"),
        pytest.param(pa.array([b"E"], pa.binary()).slice(1), id="slice of nothing"),
        pytest.param(pd.Series([], dtype=pd.ArrowDtype(pa.binary())), id="pandas Series"),
    ],
)
@pytest.mark.parametrize("in_stream", [None, False, "auto", []], ids=repr)
def test_no_payloads_give_no_rows_and_the_full_schema(nothing: Any, in_stream: Any) -> None:
    batch = pgdecode.decode_messages(nothing, in_stream=in_stream)
    batch.validate(full=True)
    assert (batch.num_rows, batch.schema) == (0, SCHEMA)


@pytest.mark.parametrize(
    "nulls",
    [
        pytest.param([None] * 9, id="list"),
        pytest.param(pa.nulls(9), id="null type"),
        pytest.param(pa.nulls(9, pa.binary()), id="binary"),
        pytest.param(pa.nulls(9, pa.binary_view()), id="binary_view"),
    ],
)
def test_only_nulls_give_null_rows(nulls: Any) -> None:
    assert_same_rows(pgdecode.decode_messages(nulls), [NULL_ROW] * 9)


def test_values_without_bytes_are_empty_payloads() -> None:
    for payloads in ([b""] * 3, pa.array([b""] * 3), exact([b""] * 3)):
        errors = pgdecode.decode_messages(payloads, mode="PERMISSIVE", empty="error")["error"].to_pylist()
        assert [error.split()[0] for error in errors] == ["EMPTY"] * 3


@pytest.mark.parametrize(
    "payloads",
    [
        pytest.param(pa.array(["B"]), id="string"),
        pytest.param(pa.array(["B"], pa.large_string()), id="large_string"),
        pytest.param(pa.array(["B"], pa.string_view()), id="string_view"),
        pytest.param(pa.array([66]), id="int64"),
        pytest.param(pa.array([[b"B"]]), id="list of binary"),
        pytest.param(pa.array([{"data": b"B"}]), id="struct"),
        pytest.param(pa.array(["B"]).dictionary_encode(), id="dictionary of string"),
        pytest.param(pa.chunked_array([], pa.string()), id="chunked string without chunks"),
        pytest.param(pa.table({"data": [b"B"]}), id="table"),
        pytest.param(pa.record_batch({"data": pa.array([b"B"])}), id="record batch"),
        pytest.param(pd.Series(["B"]), id="pandas Series of str"),
        pytest.param(["B"], id="list of str"),
        pytest.param([66], id="list of int"),
        pytest.param([[66]], id="list of list"),
        pytest.param([b"E", None, 1.5], id="list of bytes and a float"),
        pytest.param(b"B", id="one payload"),
        pytest.param(bytearray(b"B"), id="one payload in a bytearray"),
        pytest.param("B", id="str"),
        pytest.param(66, id="int"),
        pytest.param(None, id="None"),
    ],
)
def test_what_is_not_binary_is_a_type_error(payloads: Any) -> None:
    with pytest.raises(TypeError):
        pgdecode.decode_messages(payloads)


def test_the_type_error_names_the_expected_and_the_given_type() -> None:
    with pytest.raises(TypeError, match=r"^payloads are .* or binary_view, not string; unwrap\(.*pgdecode\.unwrap\)$"):
        pgdecode.decode_messages(pa.array(["B"]))
    with pytest.raises(TypeError, match=r"^payloads is a column of payloads, not one bytes; decode\(\) takes one$"):
        pgdecode.decode_messages(b"B")
    with pytest.raises(TypeError, match=r"^payloads is a column of payloads, not int$"):
        pgdecode.decode_messages(66)


@pytest.mark.parametrize(
    ("layout", "offsets"),
    [
        pytest.param(pa.binary(), [0, 1, 9, 1], id="offset past the data"),
        pytest.param(pa.binary(), [0, 1, 0, 2], id="offsets that fall"),
        pytest.param(pa.binary(), [0, 1, -1, 1], id="negative offset"),
        pytest.param(pa.large_binary(), [0, 1, 2**40, 1], id="64-bit offset past the data"),
        pytest.param(pa.large_binary(), [0, 1, -(2**40), 1], id="negative 64-bit offset"),
    ],
)
def test_an_arrow_array_with_corrupt_offsets_is_a_value_error(layout: pa.DataType, offsets: list[int]) -> None:
    # pyarrow checks only the first and the last offset.
    width = np.int32 if layout == pa.binary() else np.int64
    buffers = [None, pa.py_buffer(np.array(offsets, width).tobytes()), pa.py_buffer(b"EE")]
    corrupt = pa.Array.from_buffers(layout, 3, buffers)
    for mode in ("FAILFAST", "PERMISSIVE"):
        for in_stream in (None, False, "auto"):
            with pytest.raises(ValueError, match="offsets") as caught:
                pgdecode.decode_messages(corrupt, mode=mode, in_stream=in_stream)
            assert not isinstance(caught.value, pgdecode.DecodeError)


@pytest.mark.parametrize(
    ("length", "buffer", "offset"),
    [
        pytest.param(20, 1, 0, id="buffer that is not there"),
        pytest.param(20, -1, 0, id="negative buffer"),
        pytest.param(20, 0, 13, id="end past the buffer"),
        pytest.param(20, 0, 2**31 - 1, id="start past the buffer"),
        pytest.param(20, 0, -1, id="negative start"),
        pytest.param(2**31 - 1, 0, 0, id="length past the buffer"),
        pytest.param(-1, 0, 0, id="negative length"),
    ],
)
def test_a_binary_view_that_leaves_its_data_is_a_value_error(length: int, buffer: int, offset: int) -> None:
    views = np.array([length, 0, buffer, offset], np.int32).tobytes()
    corrupt = pa.Array.from_buffers(pa.binary_view(), 1, [None, pa.py_buffer(views), pa.py_buffer(b"E" * 32)])
    for in_stream in (None, False, "auto"):
        with pytest.raises(ValueError, match="array") as caught:
            pgdecode.decode_messages(corrupt, mode="PERMISSIVE", in_stream=in_stream)
        assert not isinstance(caught.value, pgdecode.DecodeError)


def test_rows_outlive_the_payloads_they_came_from() -> None:
    buffers = [bytearray(payload) for payload in PAYLOADS]
    batch = pgdecode.decode_messages(buffers)
    for buffer in buffers:
        buffer[:] = bytes(len(buffer))
    del buffers
    assert_same_rows(batch, ROWS)


def test_all_memory_is_freed_with_the_last_column_over_it() -> None:
    gc.collect()
    before = pa.total_allocated_bytes()
    batch = pgdecode.decode_messages(CAPTURE.column)
    column = batch["new"]
    whole = pa.total_allocated_bytes()
    del batch
    assert before < pa.total_allocated_bytes() < whole
    assert column.to_pylist() == [row["new"] for row in ROWS]
    del column
    assert pa.total_allocated_bytes() == before


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/statm")
@pytest.mark.skipif("LD_PRELOAD" in os.environ, reason="a sanitizer's allocator keeps what is freed")
def test_batches_that_fail_leave_no_memory_behind() -> None:
    payloads = pa.array([*captures.capture("14.streams.v2").payloads, b"?"], pa.binary())

    def fail(times: int) -> int:
        for _ in range(times):
            with pytest.raises(pgdecode.UnknownTag):
                pgdecode.decode_messages(payloads)
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    # One batch fills about 2 MiB before it fails, so leaks of 300 batches would be 600 MiB.
    settled = fail(50)
    assert fail(300) - settled < 32 * 2**20


def test_many_threads_may_decode_at_once() -> None:
    several = [captures.capture(name) for name in ("10.txns.v1", "14.streams.v2", "16.twophase.v4bin", "18.shop.v1bin")]

    def decode(turn: int) -> bool:
        capture = several[turn % len(several)]
        batch = pgdecode.decode_messages(capture.column, in_stream="auto" if turn % 2 else None)
        batch.validate(full=True)
        return bool(batch.equals(expected[turn % len(several)]))

    expected = [pgdecode.decode_messages(capture.column) for capture in several]
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(decode, range(64)))


# -- the stream state ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "states",
    [
        pytest.param(CAPTURE.states, id="list"),
        pytest.param(tuple(CAPTURE.states), id="tuple"),
        pytest.param(np.array(CAPTURE.states), id="numpy"),
        pytest.param(pa.array(CAPTURE.states), id="boolean array"),
        pytest.param(pa.array([True, True, True, *CAPTURE.states])[3:], id="sliced boolean array"),
        pytest.param(pa.chunked_array([CAPTURE.states[:5], [], CAPTURE.states[5:]], pa.bool_()), id="chunked"),
        pytest.param(pd.Series(CAPTURE.states), id="pandas Series"),
        pytest.param(OnlyArray(pa.array(CAPTURE.states)), id="only __arrow_c_array__"),
    ],
)
def test_the_stream_state_of_each_row_in_any_shape(states: Any) -> None:
    assert_same_rows(pgdecode.decode_messages(PAYLOADS, in_stream=states), ROWS)


@pytest.mark.parametrize(
    ("in_stream", "error"),
    [
        pytest.param("order", ValueError, id="unknown word"),
        pytest.param([True], ValueError, id="too short"),
        pytest.param([True] * 3, ValueError, id="too long"),
        pytest.param([True, None], ValueError, id="null in it"),
        pytest.param(pa.array([1, 0]), TypeError, id="integers"),
        pytest.param(pa.array(["auto", "auto"]), TypeError, id="strings"),
        pytest.param(1, TypeError, id="an integer"),
    ],
)
def test_an_invalid_stream_state_is_refused(in_stream: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="in_stream"):
        pgdecode.decode_messages([b"E", b"E"], in_stream=in_stream)


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="FAILFAST"):
        pgdecode.decode_messages([b"E"], mode="DROPMALFORMED")


@pytest.mark.parametrize("name", ["18.streams.v2", "16.shop.v1"])
def test_ordered_is_what_none_is(name: str) -> None:
    capture = captures.capture(name)
    expected = pgdecode.decode_messages(capture.column)
    for in_stream in ("ordered", None):
        assert pgdecode.decode_messages(capture.column, in_stream=in_stream).equals(expected)
