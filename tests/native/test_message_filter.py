"""Rows found by the first bytes of their payloads."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from pgdecode._native.arrow.payload_array import Source
from pgdecode._native.wire.message_filter import tagged

TYPES = [pa.binary(), pa.large_binary(), pa.binary_view()]


def rows_of(buffer: pa.Buffer | None) -> list[int]:
    return [] if buffer is None else memoryview(buffer).cast("B").cast("q").tolist()


@pytest.mark.parametrize("type", TYPES, ids=str)
def test_rows_are_found_by_their_first_bytes(type: pa.DataType, rng: random.Random) -> None:
    payloads = [rng.choice([None, b"", bytes([rng.choice(b"BCIUDRY\xff\x00")]) + bytes(20)]) for _ in range(2000)]
    arrays = [pa.array(payloads[:700], type), pa.array([b"R", *payloads[700:]], type).slice(1)]
    buffer, first, last, tags = tagged(Source(arrays), b"RY\xff", b"BC")
    assert rows_of(buffer) == [row for row, payload in enumerate(payloads) if payload and payload[0] in b"RY\xff"]
    ends = [row for row, payload in enumerate(payloads) if payload and payload[0] in b"BC"]
    assert (first, last) == (ends[0], ends[-1])
    assert tags == bytes(sorted({payload[0] for payload in payloads if payload}))


@pytest.mark.parametrize("payloads", [[], [None], [b""], [b"I", b"U"]])
def test_where_there_is_none_none_is_found(payloads: list[bytes | None]) -> None:
    buffer, first, last, tags = tagged(Source([pa.array(payloads, pa.binary())]), b"R", b"BC")
    assert (rows_of(buffer), first, last) == ([], -1, -1)
    assert set(tags) == {payload[0] for payload in payloads if payload}


def test_a_payload_whose_offsets_leave_its_data_is_passed_over() -> None:
    offsets = bytearray(pa.array([0, 1, 1, 2], pa.int32()).buffers()[1].to_pybytes())
    array = pa.Array.from_buffers(pa.binary(), 3, [None, pa.py_buffer(offsets), pa.py_buffer(b"RR")])
    offsets[8:12] = (999).to_bytes(4, "little")
    buffer, _, _, tags = tagged(Source([array]), b"R", b"")
    assert (rows_of(buffer), tags) == ([0], b"R")
