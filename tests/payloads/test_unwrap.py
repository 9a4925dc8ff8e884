"""Extraction of payloads from frames and text."""

from __future__ import annotations

import base64
import gzip
import struct

import pyarrow as pa
import pytest

import pgdecode
from pgdecode.payloads.unwrap import UnwrapError, looks_like, unwrap

BEGIN = bytes.fromhex("420000000001534c900002a1b2c3d4e5f6000002f1")  # B, final LSN, timestamp, xid
COMMIT = bytes.fromhex("43000000000001534c900000000001534cc00002a1b2c3d4e5f6")  # C


def frame(payload: bytes, lsn: int = 5) -> bytes:
    return b"w" + struct.pack("!qqq", lsn, lsn, 0) + payload


KEEPALIVE = b"k" + struct.pack("!qqb", 9, 0, 0)


@pytest.mark.parametrize(
    ("values", "how"),
    [
        pytest.param(pa.array([BEGIN, COMMIT]), "none", id="payloads"),
        pytest.param(pa.array([BEGIN, COMMIT]), "auto", id="payloads, found out"),
        pytest.param(pa.array([frame(BEGIN), frame(COMMIT)]), "auto", id="frames, found out"),
        pytest.param(pa.array([frame(BEGIN), KEEPALIVE, frame(COMMIT)]), "xlogdata", id="frames and a keepalive"),
        pytest.param(pa.array([BEGIN, frame(COMMIT)]), "auto", id="both"),
        pytest.param(pa.array(["\\x" + BEGIN.hex(), "\\x" + COMMIT.hex().upper()]), "auto", id="hex, found out"),
        pytest.param(pa.array([BEGIN.hex(), COMMIT.hex()]), "hex", id="hex without a prefix"),
        pytest.param(pa.array([base64.b64encode(p).decode() for p in (BEGIN, COMMIT)]), "auto", id="base64, found out"),
        pytest.param(pa.array([base64.encodebytes(p) for p in (BEGIN, COMMIT)]), "base64", id="base64 in binary"),
        pytest.param(
            pa.array([base64.b64encode(frame(p)).decode() for p in (BEGIN, COMMIT)], pa.large_string()),
            "auto",
            id="frames in base64",
        ),
    ],
)
def test_payloads_are_extracted_from_each_form(values: pa.Array, how: str) -> None:
    assert unwrap(values, how).payloads.to_pylist() == [BEGIN, COMMIT]  # type: ignore[arg-type]


def test_a_frame_has_an_lsn_and_a_keepalive_gives_no_row() -> None:
    found = unwrap(pa.array([frame(BEGIN, 7), KEEPALIVE, None, COMMIT]))
    assert found.payloads.to_pylist() == [BEGIN, None, COMMIT]
    assert found.rows.to_pylist() == [0, 2, 3]
    assert found.lsn.to_pylist() == [7, None, None]


@pytest.mark.parametrize("how", ["auto", "none", "hex", "base64", "xlogdata"])
def test_a_column_of_nulls_without_a_type_has_null_payloads(how: str) -> None:
    found = unwrap([None, None], how)  # type: ignore[arg-type]
    assert found.payloads.to_pylist() == [None, None]
    assert pgdecode.decode_messages(pa.nulls(2))["kind"].to_pylist() == [None, None]
    assert not len(pgdecode.ChangeDecoder().decode(pa.nulls(2)))


@pytest.mark.parametrize(
    ("values", "how", "text"),
    [
        pytest.param(
            pa.array([BEGIN, b"w123"]), "auto", "row 1: an XLogData frame has at least 25 bytes, this has 4", id="short"
        ),
        pytest.param(pa.array([b"k123"]), "auto", "row 0: a keepalive has 18 bytes, this has 4", id="keepalive"),
        pytest.param(
            pa.array([frame(BEGIN), BEGIN]), "xlogdata", "row 1: neither an XLogData frame nor a keepalive", id="mixed"
        ),
        pytest.param(pa.array(["\\x4"]), "auto", "row 0: not hexadecimal digits", id="odd digits"),
        pytest.param(pa.array(["\\x4543 45"]), "auto", "row 0: not hexadecimal digits", id="a blank after a prefix"),
        pytest.param(
            pa.array([base64.b64encode(BEGIN)]),
            "hex",
            'row 0: not hexadecimal digits; it looks like base64 text: unwrap="base64"',
            id="base64 as hex",
        ),
        pytest.param(
            pa.array([base64.b64encode(BEGIN).decode() + "="]), "base64", "row 0: not base64", id="too much padding"
        ),
        pytest.param(pa.array(["42 43"]), "hex", "row 0: not hexadecimal digits", id="a blank"),
        pytest.param(pa.array(["=QUJD"]), "auto", "row 0: not base64", id="padding in front"),
        pytest.param(
            pa.array(["BEGIN 529"]),
            "auto",
            "row 0: not base64; it looks like text of test_decoding: read the slot with the plugin pgoutput instead",
            id="test_decoding",
        ),
    ],
)
def test_values_of_another_form_are_refused(values: pa.Array, how: str, text: str) -> None:
    with pytest.raises(UnwrapError) as caught:
        unwrap(values, how)  # type: ignore[arg-type]
    assert str(caught.value) == text


def test_base64_in_a_binary_column_is_not_recognised() -> None:
    values = pa.array([base64.b64encode(BEGIN)])
    assert unwrap(values).payloads.to_pylist() == values.to_pylist()


def test_text_without_a_form_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="payloads are a column of string: unwrap is hex or base64"):
        unwrap(pa.array(["x"]), "none")
    with pytest.raises(TypeError, match="payloads are binary or string, not int64"):
        unwrap(pa.array([1]))


@pytest.mark.parametrize(
    ("value", "start"),
    [
        pytest.param(b'{"change":[{"kind":"insert"}]}', "wal2json", id="wal2json"),
        pytest.param('{"action":"I","columns":[]}', "wal2json", id="wal2json, format 2"),
        pytest.param(b'{"before":null,"after":{"id":1},"source":{},"op":"c"}', "JSON from Debezium", id="Debezium"),
        pytest.param(b"table public.t: INSERT: id[integer]:1", "text of test_decoding", id="test_decoding"),
        pytest.param(b"COMMIT", "text of test_decoding", id="test_decoding without xids"),
        pytest.param(base64.b64encode(BEGIN), "base64 text", id="base64"),
        pytest.param(b"\\x42000000", "hexadecimal text", id="hex"),
        pytest.param(frame(BEGIN), "an XLogData frame", id="frame"),
        pytest.param(gzip.compress(BEGIN), "compressed data", id="gzip"),
        pytest.param(b"\r\n" * 8, None, id="line breaks"),
        pytest.param(b"\x00\x01", None, id="nothing that is known"),
    ],
)
def test_other_formats_are_named(value: bytes | str, start: str | None) -> None:
    found = looks_like(value)
    assert found is None if start is None else (found or "").startswith(start)
