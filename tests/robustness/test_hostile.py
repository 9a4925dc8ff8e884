"""Truncated, corrupt and hostile payloads: the reference decoder's code and offset, in both modes, at no cost.

Test ids begin with the group of the fault: F framing, L lengths, C counts, T tags, flags and numbers, S strings.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

import pgdecode
from pgdecode.protocol.messages import MESSAGES, Message
from support import captures
from support.compare import (
    NULL_ROW,
    Verdict,
    assert_verdicts,
    decode_verdict,
    permissive_verdicts,
    reference_verdict,
    rows_of,
)
from support.each import each
from support.generators import encoder
from support.generators.hostile import RELATION, bad, check
from support.generators.samples import SAMPLES, Sample, each_sample

TAGS = "".join(message.tag for message in MESSAGES).encode()

MEASURES = {"length", "count"}
measured_samples = pytest.mark.parametrize(
    "sample",
    [
        pytest.param(sample, id=name)
        for name, sample in SAMPLES.items()
        if MEASURES & {piece.what for piece in encoder.pieces(sample.message)}
    ],
)


# -- framing ---------------------------------------------------------------------------------------------------------


@each_sample
def test_every_strict_prefix_faults(sample: Sample) -> None:
    prefixes = [sample.payload[:length] for length in range(len(sample.payload))]
    for prefix in prefixes:
        # A Stream Abort of 25 bytes begins with one of 9.
        if prefix[:1] != b"A" or len(prefix) != 9:
            assert isinstance(reference_verdict(prefix, sample.in_stream), tuple), prefix.hex()
    assert_verdicts(prefixes, sample.in_stream)


@pytest.mark.parametrize("name", ["10.types.v1", "14.types.v2bin", "16.txns.v2bin", "18.types.v1", "18.twophase.v4bin"])
def test_prefixes_of_what_servers_sent_fault(name: str, rng: random.Random) -> None:
    capture = captures.capture(name)
    for in_stream in (False, True):
        cut = [
            payload[: rng.randrange(len(payload))]
            for payload, state in zip(capture.payloads[:200], capture.states, strict=False)
            if state == in_stream
        ]
        assert_verdicts(cut, in_stream)


@each_sample
@each("extra", [b"\x00", b"N", b"\xff"], ids=["NUL", "N", "0xff"])
def test_one_byte_more_is_trailing(sample: Sample, extra: bytes) -> None:
    expected = ("TRAILING", len(sample.payload))
    if sample.payload[:1] == b"A" and len(sample.payload) == 9:
        expected = ("TRUNCATED", 9)  # it announces the two optional fields
    check(sample.payload + extra, sample.in_stream, expected)


@each_sample
def test_two_messages_in_one_payload_are_trailing_at_the_second(sample: Sample) -> None:
    expected = ("TRAILING", len(sample.payload))
    if sample.payload[:1] == b"A" and len(sample.payload) == 9:
        expected = ("TRUNCATED", 17)  # the second message reads as the LSN and half of the timestamp
    check(sample.payload * 2, sample.in_stream, expected)


@pytest.mark.parametrize(
    ("payload", "in_stream", "expected"),
    [
        bad("", "EMPTY", 0, id="F01 empty"),
        bad("00", "UNKNOWN_TAG", 0, id="F02 NUL"),
        bad("5a", "UNKNOWN_TAG", 0, id="F02 Z"),
        bad("69 00004001 4e 0000", "UNKNOWN_TAG", 0, id="F02 lower-case i"),
        bad("61 00000304 00000305", "UNKNOWN_TAG", 0, id="F02 lower-case a is not Stream Abort"),
        bad("ff", "UNKNOWN_TAG", 0, id="F02 0xff"),
        bad("58", "UNKNOWN_TAG", 0, id="F02 X"),
        bad("77" + "00" * 24 + "45", "UNKNOWN_TAG", 0, id="F03 XLogData"),
        bad("41 00000304 00000305 00", "TRUNCATED", 9, id="F09 Stream Abort of 10 bytes"),
        bad("41 00000304 00000305" + "00" * 8, "TRUNCATED", 17, id="F10 Stream Abort with an LSN alone"),
        bad("41 00000304 00000305" + "00" * 15, "TRUNCATED", 17, id="F10 Stream Abort of 24 bytes"),
        bad("41 00000304 00000305" + "00" * 17, "TRAILING", 25, id="F11 Stream Abort of 26 bytes"),
        bad("52 c280000000 73 00 74 00 64 0000", "BAD_VALUE", 8, id="F12 oid 0x80000000 sent through a text column"),
    ],
)
def test_framing_faults(payload: bytes, in_stream: bool, expected: Verdict) -> None:
    check(payload, in_stream, expected)


@pytest.mark.parametrize("tag", [pytest.param(bytes([tag]), id=chr(tag)) for tag in TAGS])
def test_a_tag_alone_is_truncated_unless_it_is_stream_stop(tag: bytes) -> None:
    for in_stream in (False, True):
        if tag == b"E":
            assert decode_verdict(tag, in_stream) == {**NULL_ROW, "kind": "stream_stop"}
        else:
            check(tag, in_stream, ("TRUNCATED", 1))


def test_every_byte_that_is_no_tag_is_an_unknown_tag() -> None:
    unknown = [bytes([byte, 0, 0, 0]) for byte in range(256) if byte not in TAGS]
    assert len(unknown) == 256 - 19
    for in_stream in (False, True):
        assert permissive_verdicts(unknown, in_stream) == [("UNKNOWN_TAG", 0)] * len(unknown)


def test_a_null_payload_is_a_null_row_and_no_fault() -> None:
    for in_stream in (None, False, True, "auto"):
        batch = pgdecode.decode_messages([None, b"E", None], in_stream=in_stream)
        assert rows_of(batch) == [NULL_ROW, {**NULL_ROW, "kind": "stream_stop"}, NULL_ROW]


# -- lengths and counts ----------------------------------------------------------------------------------------------

INSERT = "49 00004001 4e"  # 6 bytes, then the column count
MESSAGE = "4d 00 0000000000000008 70 00"  # 12 bytes, then the content's length


@pytest.mark.parametrize(
    ("payload", "in_stream", "expected"),
    [
        bad(INSERT + "0001 74 ffffffff 35", "BAD_LENGTH", 9, id="L01 -1"),
        bad(INSERT + "0001 74 80000000 35", "BAD_LENGTH", 9, id="L01 -2**31"),
        bad(INSERT + "0001 74 7fffffff 35", "BAD_LENGTH", 9, id="L01 2**31 - 1"),
        bad(INSERT + "0001 62 40000000 35", "BAD_LENGTH", 9, id="L01 1 GiB"),
        bad(INSERT + "0001 62 3fffffff 35", "TRUNCATED", 13, id="L01 1 GiB - 1"),
        bad(INSERT + "0001 74 00000002 35", "TRUNCATED", 13, id="L01 one more than is left"),
        bad(INSERT + "0001 74 00000001", "TRUNCATED", 13, id="L01 one byte, none left"),
        bad(INSERT + "0001 74 000000", "TRUNCATED", 9, id="L01 half a length"),
        bad(INSERT + "0001 6e ffffffff", "TRAILING", 9, id="L04 null with COPY's -1"),
        bad(INSERT + "0001 74 00000000 35", "TRAILING", 13, id="L02 length 0 with a byte behind it"),
        bad(INSERT + "0002 74 00000006 35 74 00000001 36", "BAD_COLUMN_KIND", 19, id="L05 swallows the next length"),
        bad(INSERT + "0002 74 00000007 35 74 00000001 36", "TRUNCATED", 20, id="L05 swallows the next column"),
        bad(MESSAGE + "ffffffff 68", "BAD_LENGTH", 12, id="L06 content of -1"),
        bad(MESSAGE + "40000000 68", "BAD_LENGTH", 12, id="L06 content of 1 GiB"),
        bad(MESSAGE + "00000000 68", "TRAILING", 16, id="L06 content too short"),
        bad(MESSAGE + "00000002 68", "TRUNCATED", 16, id="L06 content too long"),
        bad(MESSAGE + "0000", "TRUNCATED", 12, id="L06 half a length"),
        bad("55 00004001 4b 0001 74 ffffffff 35", "BAD_LENGTH", 9, id="L01 in a key tuple"),
        bad("55 00004001 4f 0000 4e 0001 62 7fffffff 35", "BAD_LENGTH", 12, id="L01 behind an old tuple"),
        bad("44 00000304 00004001 4f 0001 74 ffffffff", "BAD_LENGTH", 13, id="L01 in a stream", in_stream=True),
    ],
)
def test_bad_lengths(payload: bytes, in_stream: bool, expected: Verdict) -> None:
    check(payload, in_stream, expected)


@pytest.mark.parametrize(
    ("payload", "in_stream", "expected"),
    [
        bad(INSERT + "ffff", "LIMIT_COLUMNS", 6, id="C01 65535 columns in 2 bytes"),
        bad(INSERT + "ffff" + "6e" * 65535, "LIMIT_COLUMNS", 6, id="C02 65535 null columns"),
        bad(INSERT + "0641" + "6e" * 1601, "LIMIT_COLUMNS", 6, id="C03 1601 columns"),
        bad(INSERT + "0640" + "6e" * 1599, "TRUNCATED", 1607, id="C06 1600 columns, 1599 sent"),
        bad(INSERT + "0640", "TRUNCATED", 8, id="C06 1600 columns, none sent"),
        bad(INSERT + "00", "TRUNCATED", 6, id="C06 half a count"),
        bad("55 00004001 4b 0641 6e", "LIMIT_COLUMNS", 6, id="C03 in a key tuple"),
        bad("55 00004001 4b 0000 4e 0641 6e", "LIMIT_COLUMNS", 9, id="C03 behind a key tuple"),
        bad(RELATION + "64 ffff 00 61 00", "LIMIT_COLUMNS", 10, id="C08 relation of 65535 columns"),
        bad(RELATION + "64 0640 00 61 00", "TRUNCATED", 15, id="C08 relation of 1600 columns in 16 bytes"),
        bad(RELATION + "64 0002 00 61 00 00000017 ffffffff", "TRUNCATED", 23, id="C08 second column missing"),
        bad("54 ffffffff 00 00004001", "TRUNCATED", 10, id="C09 truncate of 4294967295"),
        bad("54 40000001 00 00004001", "TRUNCATED", 10, id="C10 a count that wraps in 32 bits"),
        bad("54 00000002 00 00004001 000040", "TRUNCATED", 10, id="C09 second oid cut"),
        bad("54 00000002 00 00004001 00004002 00004003", "TRAILING", 14, id="C11 three oids for a count of 2"),
        bad("54 00000000 00 00004001", "TRAILING", 6, id="C12 an oid for a count of 0"),
    ],
)
def test_bad_counts(payload: bytes, in_stream: bool, expected: Verdict) -> None:
    check(payload, in_stream, expected)


def test_1600_columns_are_fine() -> None:
    payload = bytes.fromhex(INSERT + "0640") + b"n" * 1600
    row = {**NULL_ROW, "kind": "insert", "relation_id": 0x4001, "new": [None] * 1600, "new_formats": "n" * 1600}
    check(payload, False, row)


HOSTILE_LENGTHS = {
    "0": 0,
    "-1": 0xFFFFFFFF,
    "2**31 - 1": 0x7FFFFFFF,
    "-2**31": 0x80000000,
    "2**30": 0x40000000,
    "2**30 - 1": 0x3FFFFFFF,
}


@pytest.mark.parametrize("length", [pytest.param(value, id=name) for name, value in HOSTILE_LENGTHS.items()])
@measured_samples
def test_every_length_and_count_replaced(sample: Sample, length: int) -> None:
    assert_verdicts(replaced(sample.message, lambda old, left: length), sample.in_stream)


@measured_samples
def test_every_length_and_count_one_more_than_what_is_left(sample: Sample) -> None:
    assert_verdicts(replaced(sample.message, lambda old, left: left + 1), sample.in_stream)


@measured_samples
def test_every_length_and_count_off_by_one(sample: Sample) -> None:
    payloads = replaced(sample.message, lambda old, left: old + 1)
    payloads += replaced(sample.message, lambda old, left: old - 1)
    assert sample.payload not in payloads
    assert_verdicts(payloads, sample.in_stream)


def replaced(message: Message, number: Callable[[int, int], int]) -> list[bytes]:
    """A message once per length and count in it, that one replaced by `number(old, bytes left behind it)`."""
    pieces = list(encoder.pieces(message))
    payloads = []
    for i, piece in enumerate(pieces):
        if piece.what not in MEASURES:
            continue
        left = sum(len(later.data) for later in pieces[i + 1 :])
        value = number(int.from_bytes(piece.data, "big"), left)
        width = len(piece.data)
        data = (value % 256**width).to_bytes(width, "big")
        payloads.append(b"".join(p.data for p in pieces[:i]) + data + b"".join(p.data for p in pieces[i + 1 :]))
    return payloads


# -- tags, flags and numbers -----------------------------------------------------------------------------------------


@each(
    ("payload", "in_stream", "expected"),
    [
        bad("49 00004001 4b 0001 6e", "BAD_TUPLE_TAG", 5, id="T insert with K"),
        bad("49 00004001 4f 0001 6e", "BAD_TUPLE_TAG", 5, id="T insert with O"),
        bad("49 00004001 00 0001 6e", "BAD_TUPLE_TAG", 5, id="T insert with NUL"),
        bad("49 00004001 6e 0001 6e", "BAD_TUPLE_TAG", 5, id="T insert with lower-case n"),
        bad("49 00000304 00004001 4b 0001 6e", "BAD_TUPLE_TAG", 9, id="T insert with K in a stream", in_stream=True),
        bad("55 00004001 58 0001 6e", "BAD_TUPLE_TAG", 5, id="T update with X"),
        bad("44 00004001 4e 0001 6e", "BAD_TUPLE_TAG", 5, id="T delete with N"),
        bad("55 00004001 4b 0001 6e 4f 0001 6e", "BAD_TUPLE_TAG", 9, id="T K, then O"),
        bad("55 00004001 4b 0001 6e 4b 0001 6e", "BAD_TUPLE_TAG", 9, id="T K twice"),
        bad("55 00004001 4f 0001 6e", "TRUNCATED", 9, id="T old tuple only"),
        bad("55 00004001 4e 0002 6e 6e 4e 0001 6e", "TRAILING", 10, id="T N twice"),
        bad("49 00004001 4e 0002 6e 6e 4e 0001 6e", "TRAILING", 10, id="T insert with two tuples"),
        bad("44 00004001 4b 0001 6e 4e 0001 6e", "TRAILING", 9, id="T delete with a new tuple"),
        bad(INSERT + "0001 00", "BAD_COLUMN_KIND", 8, id="T column kind NUL"),
        bad(INSERT + "0001 78", "BAD_COLUMN_KIND", 8, id="T column kind x"),
        bad(INSERT + "0001 4e", "BAD_COLUMN_KIND", 8, id="T column kind N"),
        bad(INSERT + "0001 54", "BAD_COLUMN_KIND", 8, id="T column kind T"),
        bad(INSERT + "0001 42", "BAD_COLUMN_KIND", 8, id="T column kind B"),
        bad(INSERT + "0001 ff", "BAD_COLUMN_KIND", 8, id="T column kind 0xff"),
        bad(INSERT + "0001 31", "BAD_COLUMN_KIND", 8, id="T column kind 1"),
        bad(INSERT + "0002 6e 4e", "BAD_COLUMN_KIND", 9, id="T second column kind N, as in a stream"),
        bad(RELATION + "78 0000", "BAD_VALUE", 9, id="T replica identity x"),
        bad(RELATION + "44 0000", "BAD_VALUE", 9, id="T replica identity D"),
        bad(RELATION + "00 0000", "BAD_VALUE", 9, id="T replica identity NUL"),
        bad(RELATION + "e4 0000", "BAD_VALUE", 9, id="T replica identity 0xe4"),
        bad(RELATION + "64 0001 02 61 00 00000017 ffffffff", "BAD_FLAGS", 12, id="T column flags 2"),
        bad(RELATION + "64 0001 ff 61 00 00000017 ffffffff", "BAD_FLAGS", 12, id="T column flags 255"),
        bad("43 01" + "00" * 24, "BAD_FLAGS", 1, id="T commit flags 1"),
        bad("63 00000304 01" + "00" * 24, "BAD_FLAGS", 5, id="T stream commit flags 1"),
        bad("50 01" + "00" * 29, "BAD_FLAGS", 1, id="T prepare flags 1"),
        bad("4b 80" + "00" * 29, "BAD_FLAGS", 1, id="T commit prepared flags 128"),
        bad("72 01" + "00" * 37, "BAD_FLAGS", 1, id="T rollback prepared flags 1"),
        bad("70 01" + "00" * 29, "BAD_FLAGS", 1, id="T stream prepare flags 1"),
        bad("54 00000001 04 00004001", "BAD_FLAGS", 5, id="T truncate options 4"),
        bad("4d 02 0000000000000008 00 00000000", "BAD_FLAGS", 1, id="T message flags 2"),
        bad("53 00000304 02", "BAD_FLAGS", 5, id="T first segment 2"),
        bad("53 00000000 01", "BAD_VALUE", 1, id="T stream of transaction 0"),
        bad("49 00000000 00004001 4e 0000", "BAD_VALUE", 1, id="T transaction 0 in a stream", in_stream=True),
        bad("42 8000000000000000" + "00" * 12, "OUT_OF_RANGE", 1, id="T LSN of 2**63"),
        bad("43 00 0000000000000008 ffffffffffffffff" + "00" * 8, "OUT_OF_RANGE", 10, id="T end LSN of 2**64 - 1"),
        bad("4f 8000000000000000 6f 00", "OUT_OF_RANGE", 1, id="T origin LSN of 2**63"),
        bad("4d 00 8000000000000000 00 00000000", "OUT_OF_RANGE", 2, id="T message LSN of 2**63"),
        # 2**63 - 1 - 946684800000000 = 0x7ffca2fec4c81fff is the last that fits after the shift to 1970.
        bad("42 0000000000000008 7ffca2fec4c82000 00000304", "OUT_OF_RANGE", 9, id="T timestamp past 63 bits"),
        bad("42 0000000000000008 7fffffffffffffff 00000304", "OUT_OF_RANGE", 9, id="T timestamp infinity"),
    ],
)
def test_bad_tags_flags_and_numbers(payload: bytes, in_stream: bool, expected: Verdict) -> None:
    check(payload, in_stream, expected)


@pytest.mark.parametrize("head", [b"I\0\0@\1N", b"U\0\0@\1N", b"D\0\0@\1K", b"D\0\0@\1O"])
@pytest.mark.parametrize("cells", [b"nuu", b"t\0\0\0\1nnt\0\0\0\1u"])
def test_every_letter_of_a_cell_without_a_value_replaced(head: bytes, cells: bytes) -> None:
    payload = head + b"\0\3" + cells
    at = payload.rindex(b"n")
    assert_verdicts([payload[:at] + bytes([letter]) + payload[at + 1 :] for letter in range(256)], False)


def test_a_timestamp_column_holds_what_python_cannot() -> None:
    payloads = [
        bytes.fromhex("42 0000000000000008 7ffca2fec4c81fff 00000304"),
        bytes.fromhex("42 0000000000000008 8000000000000000 00000304"),
    ]
    verdicts = permissive_verdicts(payloads, False)
    assert verdicts == [reference_verdict(payload, False) for payload in payloads]
    assert [row["timestamp"] for row in verdicts if isinstance(row, dict)] == [2**63 - 1, -(2**63) + 946684800000000]


@pytest.mark.parametrize("moment", ["7ffca2fec4c81fff", "8000000000000000"], ids=["year 294247", "year -290278"])
def test_decode_refuses_a_timestamp_that_python_cannot_hold(moment: str) -> None:
    payload = bytes.fromhex("42 0000000000000008" + moment + "00000304")
    assert decode_verdict(payload, False) == ("OUT_OF_RANGE", 9)


@pytest.mark.parametrize(
    ("hexadecimal", "column", "value"),
    [
        pytest.param("54 00000001 04 00004001", "options", 4, id="truncate options"),
        pytest.param("54 00000001 ff 00004001", "options", 255, id="all truncate options"),
        pytest.param("4d 02 0000000000000008 00 00000000", "flags", 2, id="message flags"),
        pytest.param("43 80" + "00" * 24, "flags", 128, id="commit flags"),
        pytest.param("53 00000304 02", "first_segment", True, id="first segment"),
    ],
)
def test_without_strict_flags_unknown_bits_are_kept(hexadecimal: str, column: str, value: object) -> None:
    payload = bytes.fromhex(hexadecimal)
    row = rows_of(pgdecode.decode_messages([payload], in_stream=False, strict_flags=False))[0]
    assert row[column] == value
    assert row["error"] is None
    assert getattr(pgdecode.decode(payload, strict_flags=False), column) == value


def test_without_strict_flags_unknown_column_bits_are_kept() -> None:
    payload = bytes.fromhex(RELATION + "64 0001 03 61 00 00000017 ffffffff")
    (row,) = rows_of(pgdecode.decode_messages([payload], in_stream=False, strict_flags=False))
    assert row["columns"] == [{"flags": 3, "name": "a", "type_id": 23, "type_modifier": -1}]
    message = pgdecode.decode(payload, strict_flags=False)
    assert isinstance(message, pgdecode.Relation)
    assert message.columns[0].flags == 3


def test_without_strict_flags_other_faults_remain() -> None:
    with pytest.raises(pgdecode.DecodeError, match="not a valid value"):
        pgdecode.decode_messages([bytes.fromhex(RELATION + "78 0000")], in_stream=False, strict_flags=False)


def test_an_lsn_of_zero_and_the_largest_oids_and_xids_are_fine() -> None:
    check(
        bytes.fromhex("42 0000000000000000 0000000000000000 ffffffff"),
        False,
        {**NULL_ROW, "kind": "begin", "lsn": 0, "timestamp": 946684800000000, "xid": 2**32 - 1},
    )
    check(
        bytes.fromhex("49 80000000 ffffffff 4e 0000"),
        True,
        {**NULL_ROW, "kind": "insert", "xid": 2**31, "relation_id": 2**32 - 1, "new": [], "new_formats": ""},
    )
