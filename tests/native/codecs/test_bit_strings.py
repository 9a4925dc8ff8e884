"""bit and varbit, against what servers wrote."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.oracles.recorded import Pair, both, decoded, refused, renderings, value_or_fault, values


@pytest.mark.parametrize("pair", [pytest.param(pair, id=name) for name, pair in values("bit(3)")])
def test_a_recorded_bit_string_is_the_same_in_both_forms(pair: Pair) -> None:
    assert both("bit", pair) == {pair.text.decode()}


@pytest.mark.parametrize("pg_type", ["bit", "varbit"])
def test_the_server_and_we_write_the_same_digits(pg_type: str) -> None:
    pairs = renderings("varbit")
    assert pairs
    for pair in pairs:
        assert both(pg_type, pair) == {pair.text.decode()}


def packed(bits: str) -> bytes:
    """Write the binary form: the number of bits, and the bits from the highest of each byte on."""
    n_bytes = -(-len(bits) // 8)
    return len(bits).to_bytes(4, "big") + int("0" + bits.ljust(8 * n_bytes, "0"), 2).to_bytes(n_bytes, "big")


@given(st.text("01"))
def test_any_bit_string_is_the_same_in_both_forms(bits: str) -> None:
    assert both("varbit", Pair(bits.encode(), packed(bits))) == {bits}


def test_bits_that_fill_up_the_last_byte_are_not_looked_at() -> None:
    # varbit_recv masks them: VARBIT_PAD, utils/varbit.h
    assert decoded("varbit", [bytes.fromhex("00000003 bf")], binary=True) == ["101"]


@pytest.mark.parametrize(
    ("form", "code"),
    [
        pytest.param("", "WRONG_SIZE", id="empty"),
        pytest.param("000000", "WRONG_SIZE", id="cut in the count"),
        pytest.param("00000001", "WRONG_SIZE", id="no byte for one bit"),
        pytest.param("00000008 ffff", "WRONG_SIZE", id="a byte too many"),
        pytest.param("00000009 ff", "WRONG_SIZE", id="a byte too few"),
        pytest.param("ffffffff", "BAD_VALUE", id="negative"),
        pytest.param("7ffffff9", "BAD_VALUE", id="past VARBITMAXLEN"),
        pytest.param("7ffffff8 ff", "WRONG_SIZE", id="a claim costs nothing"),
    ],
)
def test_a_binary_form_no_server_writes_is_refused(form: str, code: str) -> None:
    assert refused("varbit", bytes.fromhex(form), binary=True) == code


def test_a_bit_string_of_more_digits_than_a_server_can_print_is_refused() -> None:
    n = (64 << 20) + 8
    assert len(decoded("varbit", [n.to_bytes(4, "big") + bytes(n // 8)], binary=True)[0]) == n
    # MaxAllocSize, utils/memutils.h. Nothing is reserved for the digits.
    n = 1 << 30
    assert refused("varbit", n.to_bytes(4, "big") + bytes(n // 8), binary=True) == "LIMIT_VALUE"


@pytest.mark.parametrize("text", [b"2", b"1012", b"1\0", b"b101", b"1 ", b"\xff"])
def test_text_other_than_zeros_and_ones_is_refused(text: bytes) -> None:
    assert refused("bit", text, binary=False) == "BAD_VALUE"


@given(st.binary(max_size=24), st.booleans())
def test_any_bytes_are_a_value_or_a_fault(form: bytes, binary: bool) -> None:
    value_or_fault("varbit", form, binary=binary)
