"""Kinds as codes: the same kinds as names."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pgdecode import MessageDecoder
from pgdecode.envelope.kind_codes import is_marked, kind_of, marks_of
from support import captures

NAMES = ["18.shop.v1", "18.twophase.v3", "16.streams.v2"]


@pytest.mark.parametrize("name", NAMES)
def test_codes_are_of_the_same_kinds_as_names(name: str) -> None:
    payloads = [*captures.capture(name).payloads, None, b"", b"?", b"B"]
    decoder = MessageDecoder(fields=["xid", "kind", "error"], mode="PERMISSIVE")
    expected, state = decoder.decode_after(payloads, None)
    found, state_beside_codes = decoder.decode_after(payloads, None, kind_codes=True)
    assert [kind_of(code) for code in found["kind"].to_pylist()] == expected["kind"].to_pylist()
    assert found.select(["xid", "error"]).equals(expected.select(["xid", "error"]))
    assert state_beside_codes == state


@pytest.mark.parametrize("name", NAMES)
def test_marked_codes_are_those_of_the_kinds(name: str) -> None:
    payloads = [None, *captures.capture(name).payloads]
    codes = MessageDecoder(fields=["kind"]).decode_after(payloads, None, kind_codes=True)[0]["kind"]
    wanted = ["begin", "insert", "stream_start"]
    for part in (codes, codes.slice(3, 50), codes.slice(7), codes.slice(0, 0)):
        expected = [kind_of(code) in wanted for code in part.to_pylist()]
        assert is_marked(part, marks_of(wanted)).to_pylist() == expected
    assert is_marked(pa.array([], pa.uint8()), marks_of(wanted)).to_pylist() == []
