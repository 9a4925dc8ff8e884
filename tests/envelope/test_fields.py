"""The schema of the envelope, and selection of its columns."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

import pgdecode
from pgdecode._native.arrow.payload_array import Source
from pgdecode._native.wire.single_message import fields_of
from pgdecode.envelope.schema import envelope_schema
from support import captures
from support.compare import column_values, rows_of
from support.envelope import SCHEMA

CAPTURE = captures.capture("18.types.v2bin")
PAYLOADS = CAPTURE.payloads
ROWS = CAPTURE.rows


def test_the_schema_is_the_envelope() -> None:
    assert envelope_schema() == SCHEMA
    assert pgdecode.decode_messages(PAYLOADS).schema == SCHEMA
    assert pgdecode.decode_messages(PAYLOADS, mode="PERMISSIVE").schema == SCHEMA


def test_the_schema_has_the_order_of_fields() -> None:
    wanted = pa.schema([SCHEMA.field("new"), pa.field("xid_basis", pa.string()), SCHEMA.field("kind")])
    assert envelope_schema(["new", "xid_basis", "kind"]) == wanted
    assert pgdecode.decode_messages(PAYLOADS, fields=["new", "xid_basis", "kind"]).schema == wanted


@pytest.mark.parametrize("name", SCHEMA.names)
def test_a_single_column_equals_that_of_the_whole_envelope(name: str) -> None:
    for capture in (CAPTURE, captures.capture("16.twophase.v4bin"), captures.capture("14.streams.v2")):
        alone = pgdecode.decode_messages(capture.column, fields=[name])
        alone.validate(full=True)
        assert alone.schema.names == [name]
        assert column_values(alone, name) == [row[name] for row in capture.rows]


def test_any_columns_in_any_order_equal_those_of_the_whole_envelope(rng: random.Random) -> None:
    whole = pgdecode.decode_messages(PAYLOADS, fields=[*SCHEMA.names, "xid_basis"])
    for _ in range(200):
        names = rng.sample(whole.schema.names, rng.randrange(1, len(whole.schema.names) + 1))
        assert pgdecode.decode_messages(PAYLOADS, fields=names).equals(whole.select(names))


@pytest.mark.parametrize("make", [tuple, list, iter, dict.fromkeys], ids=["tuple", "list", "iterator", "dict"])
def test_fields_may_be_any_iterable_of_names(make: Any) -> None:
    assert pgdecode.decode_messages(PAYLOADS, fields=make(["kind", "new"])).schema.names == ["kind", "new"]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        pytest.param(["kind", "nonsense"], "nonsense", id="unknown"),
        pytest.param(["Kind"], "Kind", id="another case"),
        pytest.param(["kind", "xid", "kind"], "once", id="twice"),
        pytest.param([], "at least one", id="none"),
    ],
)
def test_invalid_fields_are_refused(fields: list[str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        pgdecode.decode_messages(PAYLOADS, fields=fields)
    with pytest.raises(ValueError, match=text):
        envelope_schema(fields)


def test_one_name_instead_of_fields_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="kind"):
        pgdecode.decode_messages(PAYLOADS, fields="kind")


def test_without_the_error_column_permissive_rows_are_null() -> None:
    batch = pgdecode.decode_messages([b"E", b"?", b"E"], mode="PERMISSIVE", fields=["kind"])
    assert rows_of(batch) == [{"kind": "stream_stop"}, {"kind": None}, {"kind": "stream_stop"}]


@pytest.mark.parametrize(
    "payload", [pa.py_buffer(b"E"), bytearray(b"E"), memoryview(b"E")], ids=lambda value: type(value).__name__
)
def test_decode_accepts_bytes_like_objects(payload: Any) -> None:
    assert pgdecode.decode(payload) == pgdecode.StreamStop()


@pytest.mark.parametrize("payload", ["E", 69, 0.5])
def test_other_values_are_refused_as_payloads(payload: Any) -> None:
    with pytest.raises(TypeError, match=f"row 2: payloads are bytes, not {type(payload).__name__}"):
        pgdecode.decode_messages([memoryview(b"E"), None, payload])


def test_states_without_payloads_are_refused() -> None:
    with pytest.raises(ValueError, match="in_stream has 2 values for 0 payloads"):
        pgdecode.decode_messages([], in_stream=[True, False])


def test_limits_must_be_a_limits_object() -> None:
    with pytest.raises(TypeError, match="limits is a Limits, not NoneType"):
        pgdecode.decode_messages([b"E"], limits=None)


# The columns that the rules of transactions need.
READ_ALONE = ("xid", "subxid", "lsn", "timestamp", "gid", "relation_id", "first_segment")


@pytest.mark.parametrize("name", ["16.twophase.v4bin", "14.streams.v2", "18.streams.v4", "18.types.v2bin"])
def test_the_fields_of_one_row_are_those_of_the_envelope(name: str) -> None:
    capture = captures.capture(name)
    source = Source([capture.column])
    for place, (row, state) in enumerate(zip(capture.rows, capture.states, strict=True)):
        found = fields_of(source, place, state)
        assert {name: found.get(name) for name in READ_ALONE} == {name: row[name] for name in READ_ALONE}


def test_the_timestamp_of_one_row_may_be_outside_datetime_s_range() -> None:
    payload = b"B" + (7).to_bytes(8, "big") + (-(2**62)).to_bytes(8, "big", signed=True) + (9).to_bytes(4, "big")
    found = fields_of(Source([[None, payload]]), 1, False)
    # 946684800000000 us = 2000-01-01 - 1970-01-01
    assert found == {"lsn": 7, "timestamp": 946_684_800_000_000 - 2**62, "xid": 9}


@pytest.mark.parametrize("payload", [None, b"", b"z"])
def test_a_row_that_is_not_a_message_has_no_fields(payload: bytes | None) -> None:
    with pytest.raises(ValueError, match="no message"):
        fields_of(Source([[payload]]), 0, False)
    with pytest.raises(IndexError):
        fields_of(Source([[payload]]), 1, False)


def test_a_row_that_ends_inside_a_field_is_not_read_past_its_end() -> None:
    with pytest.raises(SystemError, match="ends early"):
        fields_of(Source([[b"B" + bytes(7)]]), 0, False)
