"""Tables of bad payloads, and a check that all decoders agree with the reference."""

from __future__ import annotations

import pytest

from support.compare import (
    Verdict,
    decode_verdict,
    failfast_verdict,
    permissive_verdicts,
    reference_verdict,
)

RELATION = "52 00004001 73 00 74 00"  # 9 bytes, then the replica identity


def bad(hexadecimal: str, code: str, offset: int, *, id: str, in_stream: bool = False) -> object:
    """A row of a table of faults."""
    return pytest.param(bytes.fromhex(hexadecimal), in_stream, (code, offset), id=id)


def check(payload: bytes, in_stream: bool, expected: Verdict) -> None:
    """Check that all functions that decode one payload agree with the reference decoder."""
    assert reference_verdict(payload, in_stream) == expected
    assert failfast_verdict(payload, in_stream) == expected
    assert permissive_verdicts([payload], in_stream) == [expected]
    assert decode_verdict(payload, in_stream) == expected
