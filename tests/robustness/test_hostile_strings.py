"""Bad strings in payloads, and strings that only look bad: the reference decoder's code and offset, in both modes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pgdecode
from support.compare import (
    NULL_ROW,
    Verdict,
    failfast_verdict,
    permissive_verdicts,
    reference_verdict,
)
from support.generators import encoder
from support.generators.hostile import RELATION, bad, check

NAME_252 = "c3a9" * 126
TYPE = "59 00004001"  # 5 bytes, then the namespace


@pytest.mark.parametrize(
    ("payload", "in_stream", "expected"),
    [
        bad(TYPE, "NO_NUL", 5, id="S01 no namespace at all"),
        bad(TYPE + "73", "NO_NUL", 5, id="S01 namespace without NUL"),
        bad(TYPE + "73 00", "NO_NUL", 7, id="S01 no name at all"),
        bad(TYPE + "73 00 74", "NO_NUL", 7, id="S01 name without NUL"),
        bad("4f 0000000000000008 6f", "NO_NUL", 9, id="S01 origin without NUL"),
        bad("62" + "00" * 28 + "67", "NO_NUL", 29, id="S01 gid without NUL"),
        bad("4d 00 0000000000000008 70", "NO_NUL", 10, id="S01 prefix without NUL"),
        bad(RELATION + "64 0001 00 61", "NO_NUL", 13, id="S01 column name without NUL"),
        bad(TYPE + "73 00 00", "EMPTY_NAME", 7, id="S01 empty type name"),
        bad("52 00004001 73 00 00 64 0000", "EMPTY_NAME", 7, id="S01 empty relation name"),
        bad(RELATION + "64 0001 00 00 00000017 ffffffff", "EMPTY_NAME", 13, id="S01 empty column name"),
        bad(TYPE + "73 00" + NAME_252 + "61 00", "LIMIT_NAME", 7, id="S04 name of 253 bytes"),
        bad(TYPE + NAME_252 + "61 00 74 00", "LIMIT_NAME", 5, id="S04 namespace of 253 bytes"),
        bad(TYPE + "73 00 6e61ef7665 00", "ENCODING", 9, id="S06 LATIN1"),
        bad(TYPE + "73 00 c6fccbdc 00", "ENCODING", 7, id="S06 EUC_JP"),
        bad(TYPE + "73 00 61fffec3 00", "ENCODING", 8, id="S06 SQL_ASCII"),
        bad(TYPE + "73 00 61c080 00", "ENCODING", 8, id="S08 overlong NUL"),
        bad(TYPE + "73 00 c1bf 00", "ENCODING", 7, id="S08 overlong of two"),
        bad(TYPE + "73 00 e09fbf 00", "ENCODING", 7, id="S08 overlong of three"),
        bad(TYPE + "73 00 f08fbfbf 00", "ENCODING", 7, id="S08 overlong of four"),
        bad(TYPE + "73 00 61eda080 00", "ENCODING", 8, id="S08 first surrogate"),
        bad(TYPE + "73 00 61edbfbf 00", "ENCODING", 8, id="S08 last surrogate"),
        bad(TYPE + "73 00 f4908080 00", "ENCODING", 7, id="S08 past U+10FFFF"),
        bad(TYPE + "73 00 f888808080 00", "ENCODING", 7, id="S08 five bytes"),
        bad(TYPE + "73 00 6161c3 00", "ENCODING", 9, id="S08 cut after one of two"),
        bad(TYPE + "73 00 6161e282 00", "ENCODING", 9, id="S08 cut after two of three"),
        bad(TYPE + "73 00 6161f09f98 00", "ENCODING", 9, id="S08 cut after three of four"),
        bad(TYPE + "73 00 80 00", "ENCODING", 7, id="S08 continuation alone"),
        bad(TYPE + "73 00" + "61" * 40 + "ff 00", "ENCODING", 47, id="S08 behind 40 ASCII bytes"),
        bad("4f 0000000000000008 6fe9 00", "ENCODING", 10, id="S06 origin"),
        bad("62" + "00" * 28 + "67e9 00", "ENCODING", 30, id="S06 gid"),
        bad("4d 00 0000000000000008 e9 00 00000000", "ENCODING", 10, id="S06 prefix"),
        bad(RELATION + "64 0001 00 61e9 00 00000017 ffffffff", "ENCODING", 14, id="S06 column name"),
        bad(RELATION + "64 0001 02 ff 00 00000017 ffffffff", "BAD_FLAGS", 12, id="the first fault is reported"),
    ],
)
def test_bad_strings(payload: bytes, in_stream: bool, expected: Verdict) -> None:
    check(payload, in_stream, expected)


@pytest.mark.parametrize(
    "name",
    ["a\nb", "\t", " ", '"', "%s{}", "'; --", "é", "名前", "😀", "\ufeffbom", "\ufffe", "\U0010ffff", "\x80", "\x01"],
    ids=ascii,
)
def test_any_utf8_name_is_kept_as_it_is(name: str) -> None:
    payload = encoder.encode(pgdecode.Type(type_id=1, namespace=name, name=name))
    check(payload, False, {**NULL_ROW, "kind": "type", "type_id": 1, "namespace": name, "name": name})


def test_names_of_252_bytes_and_texts_of_any_length_are_fine() -> None:
    name = "é" * 126
    check(
        bytes.fromhex(TYPE + NAME_252 + "00" + NAME_252 + "00"),
        False,
        {**NULL_ROW, "kind": "type", "type_id": 0x4001, "namespace": name, "name": name},
    )
    check(
        b"O" + bytes(8) + b"o" * 5000 + b"\0",
        False,
        {**NULL_ROW, "kind": "origin", "lsn": 0, "name": "o" * 5000},
    )


def test_the_bytes_of_values_are_never_looked_at() -> None:
    value = bytes(range(256))
    for kind in "tb":
        payload = encoder.encode(pgdecode.Insert(relation_id=1, new=(value,), new_formats=kind))
        row = {**NULL_ROW, "kind": "insert", "relation_id": 1, "new": [value], "new_formats": kind}
        check(payload, False, row)


@given(st.binary(max_size=12))
def test_a_name_is_valid_exactly_when_python_reads_it_as_utf8(name: bytes) -> None:
    payload = b"O" + bytes(8) + name.replace(b"\0", b"") + b"\0"
    assert failfast_verdict(payload, False) == reference_verdict(payload, False)


def test_every_lead_and_second_byte_is_judged_as_python_does() -> None:
    payloads = [
        b"O" + bytes(8) + bytes([lead, second, *tail]) + b"\0"
        for lead in range(0x7F, 0x100)
        for second in (1, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xFF)
        for tail in ((), (0x80,), (0xBF, 0x80), (0x80, 0x7F))
    ]
    assert permissive_verdicts(payloads, False) == [reference_verdict(payload, False) for payload in payloads]
