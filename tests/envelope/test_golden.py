"""Every payload of every capture, compared with the reference decoder field by field."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

import pgdecode
from pgdecode.protocol.messages import MESSAGES
from support import captures
from support.captures import Capture
from support.compare import assert_same_rows, row_of
from support.generators.encoder import encode


def test_the_captures_cover_every_major_version_and_scenario() -> None:
    assert {name.split(".")[0] for name in captures.NAMES} == {"10", "14", "16", "18"}
    assert {name.split(".")[1] for name in captures.NAMES} == {"types", "txns", "streams", "twophase", "shop"}


@pytest.mark.full
def test_the_captures_have_every_kind() -> None:
    seen = set()
    for name in captures.NAMES:
        capture = captures.capture(name)
        seen |= {(row["kind"], in_stream) for row, in_stream in zip(capture.rows, capture.states, strict=True)}
    assert {kind for kind, _ in seen} == {message.kind for message in MESSAGES}
    streamed = {kind for kind, in_stream in seen if in_stream}
    assert streamed == {"relation", "insert", "update", "delete", "truncate", "message"}


def test_in_slot_order(capture: Capture) -> None:
    assert_same_rows(pgdecode.decode_messages(capture.column), capture.rows)


def test_with_the_stream_state_given_for_each_row(capture: Capture) -> None:
    states = pa.array(capture.states, pa.bool_())
    assert_same_rows(pgdecode.decode_messages(capture.column, in_stream=states), capture.rows)


def test_without_order(capture: Capture) -> None:
    assert_same_rows(pgdecode.decode_messages(capture.column, in_stream="auto"), capture.rows)


def test_without_order_and_shuffled(capture: Capture, rng: random.Random) -> None:
    order = list(range(len(capture.payloads)))
    rng.shuffle(order)
    shuffled = capture.column.take(pa.array(order, pa.int64()))
    assert_same_rows(pgdecode.decode_messages(shuffled, in_stream="auto"), [capture.rows[i] for i in order])


@pytest.mark.parametrize("name", [name for name in captures.NAMES if ".v1" in name or name.endswith("nostream")])
def test_without_streaming_in_stream_false_is_exact(name: str) -> None:
    capture = captures.capture(name)
    assert_same_rows(pgdecode.decode_messages(capture.column, in_stream=False), capture.rows)


def test_in_permissive_mode_no_row_has_an_error(capture: Capture) -> None:
    assert_same_rows(pgdecode.decode_messages(capture.column, mode="PERMISSIVE"), capture.rows)


def test_one_payload_at_a_time(capture: Capture) -> None:
    for payload, in_stream, row in zip(capture.payloads, capture.states, capture.rows, strict=True):
        assert row_of(pgdecode.decode(payload, in_stream=in_stream)) == row


def test_the_encoder_reproduces_the_servers_bytes(capture: Capture) -> None:
    for payload, in_stream in zip(capture.payloads, capture.states, strict=True):
        assert encode(pgdecode.decode(payload, in_stream=in_stream)) == payload


def test_values_of_nulls_are_zeros_and_not_old_memory(capture: Capture) -> None:
    batch = pgdecode.decode_messages(capture.column)
    for column in batch.columns:
        values = column.buffers()[1]
        if not pa.types.is_integer(column.type) or values is None:
            continue
        slots = pa.Array.from_buffers(column.type, len(column), [None, values])
        assert set(slots.filter(column.is_null()).to_pylist()) <= {0}
