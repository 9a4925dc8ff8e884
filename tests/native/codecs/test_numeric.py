"""numeric: what servers sent, exact rescaling, limits, and the text that a server prints of the binary form."""

from __future__ import annotations

import json
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgdecode.protocol.errors import DecodeError
from support.generators.writer import binary_numeric
from support.values import decode_values

VALUES = Path(__file__).parents[2] / "data" / "values.jsonl"
EXACT = Context(prec=1000)


def outcome(value: bytes | memoryview, typmod: int = -1, *, binary: bool = False) -> Any:
    """What a value decodes to, or the code of its fault."""
    try:
        array = decode_values("numeric", [value], binary=binary, typmod=typmod)
    except DecodeError as error:
        return error.code
    array.validate(full=True)
    return array[0].as_py()


def modifier(precision: int, scale: int) -> int:
    return (precision << 16 | scale & 0x7FF) + 4


def records() -> list[Any]:
    found = []
    for line in VALUES.read_text().splitlines():
        record = json.loads(line)
        # The longest text is not in the file in full; the tests of limits below have its like.
        if record["type"].split("(")[0] == "numeric" and record["text"]["len"] < 10000:
            found.append(pytest.param(record, id=f"{record['type']} {record['sql_literal']}"))
    return found


@pytest.mark.parametrize("record", records())
def test_what_pgoutput_sent_decodes_alike_and_prints_as_the_server_printed_it(record: dict[str, Any]) -> None:
    text = bytes.fromhex(record["text"]["hex"])
    for binary in record["binary"]:
        raw = bytes.fromhex(binary["hex"])
        assert outcome(text) == outcome(raw, binary=True) == text.decode()
        typed = outcome(text, record["typmod"])
        assert typed == outcome(raw, record["typmod"], binary=True)
        if text == b"NaN":
            assert typed == ("NOT_REPRESENTABLE" if record["typmod"] != -1 else "NaN")
        elif isinstance(typed, Decimal):
            assert f"{typed:f}" == text.decode()
        else:
            assert typed == text.decode()


@given(
    st.integers(0, 10**60) | st.integers(0, 10**6) | st.integers(0, 40).map(lambda n: 10**n),
    st.integers(0, 60),
    st.booleans(),
    st.integers(1, 38).flatmap(lambda p: st.tuples(st.just(p), st.integers(0, p))),
)
def test_any_numeric_decodes_alike_in_both_forms(
    number: int, dscale: int, negative: bool, declared: tuple[int, int]
) -> None:
    precision, scale = declared
    digits = f"{number:0{dscale + 1}}"
    whole, fraction = (digits[:-dscale], digits[-dscale:]) if dscale else (digits, "")
    negative = negative and number != 0
    text = f"{'-' if negative else ''}{whole}{'.' if dscale else ''}{fraction}"
    raw = binary_numeric(negative, whole, fraction)
    assert outcome(text.encode()) == outcome(raw, binary=True) == text
    scaled = EXACT.scaleb(Decimal(text), scale)
    fits = abs(scaled) < 10**precision and scaled == int(scaled)
    wanted = Decimal(text) if fits else "NOT_REPRESENTABLE"
    assert outcome(text.encode(), modifier(*declared)) == wanted
    assert outcome(raw, modifier(*declared), binary=True) == wanted


@pytest.mark.parametrize(
    ("text", "declared", "wanted"),
    [
        pytest.param("1", (10, 2), Decimal("1.00"), id="zeros up to the scale"),
        pytest.param("1.2000", (10, 2), Decimal("1.20"), id="zeros past the scale"),
        pytest.param("1.234", (10, 2), "NOT_REPRESENTABLE", id="a digit past the scale is not rounded away"),
        pytest.param("99999999.99", (10, 2), Decimal("99999999.99"), id="largest"),
        pytest.param("100000000.00", (10, 2), "NOT_REPRESENTABLE", id="past the precision"),
        pytest.param("-100000000", (10, 2), "NOT_REPRESENTABLE", id="past the precision, negative"),
        pytest.param("-0", (10, 2), Decimal("0.00"), id="minus zero"),
        pytest.param("0000000000000000000000000000000000000000000001", (10, 2), Decimal("1.00"), id="zeros in front"),
        pytest.param("1e3", (10, 2), Decimal("1000.00"), id="an exponent"),
        pytest.param("12345e-4", (10, 4), Decimal("1.2345"), id="a negative exponent"),
        pytest.param("12300e-4", (10, 2), Decimal("1.23"), id="an exponent with zeros to spare"),
        pytest.param("0.0000000001e10", (10, 2), Decimal("1.00"), id="an exponent that moves the point"),
        pytest.param("1e-3", (10, 2), "NOT_REPRESENTABLE", id="an exponent past the scale"),
        pytest.param("0e100", (10, 2), Decimal("0.00"), id="zero with an exponent"),
        pytest.param("1e100", (10, 2), "NOT_REPRESENTABLE", id="an exponent past the precision"),
        pytest.param("1e999999999999999999999", (10, 2), "OUT_OF_RANGE", id="an exponent past any numeric"),
        pytest.param("1e-999999999999999999999", (10, 2), "OUT_OF_RANGE", id="an exponent below any numeric"),
        pytest.param("9" * 38, (38, 0), Decimal("9" * 38), id="38 nines"),
        pytest.param("-" + "9" * 38, (38, 0), Decimal("-" + "9" * 38), id="38 nines, negative"),
        pytest.param("1" + "0" * 38, (38, 0), "NOT_REPRESENTABLE", id="39 digits"),
        pytest.param("0." + "9" * 38, (38, 38), Decimal("0." + "9" * 38), id="38 digits behind the point"),
        pytest.param("NaN", (10, 2), "NOT_REPRESENTABLE", id="NaN"),
        pytest.param("Infinity", (10, 2), "NOT_REPRESENTABLE", id="Infinity"),
        pytest.param("-Infinity", (10, 2), "NOT_REPRESENTABLE", id="-Infinity"),
        pytest.param("", (10, 2), "BAD_VALUE", id="empty"),
        pytest.param(".", (10, 2), "BAD_VALUE", id="a point alone"),
        pytest.param("1.2.3", (10, 2), "BAD_VALUE", id="two points"),
        pytest.param("1,23", (10, 2), "BAD_VALUE", id="a comma"),
        pytest.param(" 1", (10, 2), "BAD_VALUE", id="a blank"),
        pytest.param("0x1F", (10, 2), "BAD_VALUE", id="hexadecimal, which no server prints"),
        pytest.param("1_000", (10, 2), "BAD_VALUE", id="an underscore, which no server prints"),
        pytest.param("1e", (10, 2), "BAD_VALUE", id="an exponent without digits"),
        pytest.param("-NaN", (10, 2), "BAD_VALUE", id="a NaN with a sign"),
    ],
)
def test_text_becomes_a_decimal_or_a_fault(text: str, declared: tuple[int, int], wanted: Any) -> None:
    found = outcome(text.encode(), modifier(*declared))
    assert found == wanted
    if isinstance(wanted, Decimal):
        assert str(found) == str(wanted)


@pytest.mark.parametrize(
    ("raw", "declared", "decimal", "text"),
    [
        # count, weight, sign, dscale, then groups
        pytest.param("0000 0000 0000 0002", (10, 2), Decimal("0.00"), "0.00", id="zero with a scale"),
        pytest.param("0000 0000 4000 0000", (10, 2), Decimal("0.00"), "0", id="minus zero"),
        pytest.param("0001 0000 4000 0000 0000", (10, 2), Decimal("0.00"), "0", id="minus zero with a group"),
        pytest.param("0001 0001 0000 0000 0001", (10, 2), Decimal("10000.00"), "10000", id="zero groups left out"),
        pytest.param("0002 0001 0000 0000 0000 0001", (10, 2), Decimal("1.00"), "1", id="a zero group in front"),
        pytest.param("0002 0000 0000 0000 0001 0000", (10, 2), Decimal("1.00"), "1", id="a zero group behind"),
        pytest.param("0002 0000 0000 0002 0001 03e8", (10, 2), Decimal("1.10"), "1.10", id="a scale kept"),
        pytest.param("0001 ffff 0000 0005 0001", (10, 5), Decimal("0.00010"), "0.00010", id="below 1"),
        pytest.param("0001 fffe 0000 0008 0001", (10, 2), "NOT_REPRESENTABLE", "0.00000001", id="past the scale"),
        pytest.param("0000 0000 c000 0000", (10, 2), "NOT_REPRESENTABLE", "NaN", id="NaN"),
        pytest.param("0000 0000 d000 0020", (10, 2), "NOT_REPRESENTABLE", "Infinity", id="Infinity with dscale 32"),
        pytest.param("0000 0000 f000 0020", (10, 2), "NOT_REPRESENTABLE", "-Infinity", id="-Infinity"),
        pytest.param("0001 0000 0000 0000 2710", (10, 2), "BAD_VALUE", "BAD_VALUE", id="a group of 10000"),
        pytest.param("0001 0000 0000 0000 ffff", (10, 2), "BAD_VALUE", "BAD_VALUE", id="a group of -1"),
        pytest.param("0000 0000 1234 0000", (10, 2), "BAD_VALUE", "BAD_VALUE", id="sign 0x1234"),
        pytest.param("0000 0000 0000 4000", (10, 2), "BAD_VALUE", "BAD_VALUE", id="dscale 0x4000"),
        pytest.param("0000 0000 d000 4000", (10, 2), "BAD_VALUE", "BAD_VALUE", id="dscale 0x4000 of Infinity"),
        pytest.param("0002 0000 0000 0000 0001", (10, 2), "BAD_VALUE", "BAD_VALUE", id="a missing group"),
        pytest.param("ffff 0000 0000 0000 0001", (10, 2), "BAD_VALUE", "BAD_VALUE", id="65535 groups claimed"),
        pytest.param("0001 0000 0000 0000 0001 0001", (10, 2), "BAD_VALUE", "BAD_VALUE", id="a group left over"),
        pytest.param("0001 0000 0000 0000 0001 00", (10, 2), "BAD_VALUE", "BAD_VALUE", id="a byte left over"),
        pytest.param("0001 0000 c000 0000 0001", (10, 2), "BAD_VALUE", "BAD_VALUE", id="a NaN with a group"),
        pytest.param("0002 0000 0000 0001 0001 007b", (10, 2), "BAD_VALUE", "BAD_VALUE", id="digits that dscale hides"),
        pytest.param("0000 0000 0000 00", (10, 2), "WRONG_SIZE", "WRONG_SIZE", id="a byte short of the header"),
        pytest.param("", (10, 2), "WRONG_SIZE", "WRONG_SIZE", id="empty"),
    ],
)
def test_binary_becomes_a_decimal_and_text_or_a_fault(
    raw: str, declared: tuple[int, int], decimal: Any, text: str
) -> None:
    assert outcome(bytes.fromhex(raw), modifier(*declared), binary=True) == decimal
    assert outcome(bytes.fromhex(raw), binary=True) == text


@pytest.mark.parametrize(
    ("raw", "length"),
    [
        pytest.param("0001 7fff 0000 0000 03e8", 131072, id="1e131071"),
        pytest.param("0000 0000 0000 3fff", 16385, id="0e-16383"),
        pytest.param("0001 7fff 0000 3fff 270f", 147456, id="ten hostile bytes"),
    ],
)
def test_the_longest_numerics_are_printed_in_full(raw: str, length: int) -> None:
    found = outcome(bytes.fromhex(raw), binary=True)
    assert len(found) == length
    assert found == outcome(found.encode())
    assert outcome(bytes.fromhex(raw), modifier(38, 0), binary=True) == outcome(found.encode(), modifier(38, 0))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        pytest.param("1" + "0" * 131071, None, id="131072 digits before the point"),
        pytest.param("1" + "0" * 131072, "OUT_OF_RANGE", id="131073 digits before the point"),
        pytest.param("0" * 200000 + "1", None, id="zeros in front do not count"),
        pytest.param("0." + "1" * 16383, None, id="16383 digits behind the point"),
        pytest.param("0." + "1" * 16384, "OUT_OF_RANGE", id="16384 digits behind the point"),
        pytest.param("1e131071", None, id="an exponent up to the limit"),
        pytest.param("1e131072", "OUT_OF_RANGE", id="an exponent past the limit"),
        pytest.param("1e-16384", "OUT_OF_RANGE", id="an exponent below the limit"),
        pytest.param("0" * (64 * 2**20 + 1), "LIMIT_VALUE", id="a byte past 64 MiB"),
    ],
)
def test_text_is_limited_as_the_server_limits_numerics(text: str, wanted: str | None) -> None:
    assert outcome(text.encode()) == (text if wanted is None else wanted)


@pytest.mark.parametrize(("text", "wanted"), [("nan", "NaN"), ("+INF", "Infinity"), ("-inf", "-Infinity")])
def test_words_get_their_usual_case(text: str, wanted: str) -> None:
    assert outcome(text.encode()) == wanted


def test_unrepresentable_numerics_can_become_null() -> None:
    values = [b"1.5", b"NaN", b"2.25", b"Infinity"]
    found = decode_values("numeric", values, binary=False, typmod=modifier(5, 2), unrepresentable="null")
    assert found.to_pylist() == [Decimal("1.50"), None, Decimal("2.25"), None]


TEXT = st.text(alphabet="0123456789-+.eEinfatyNI \0", max_size=60).map(str.encode)
GROUPS = st.tuples(
    st.integers(0, 4), st.integers(-5, 5), st.sampled_from([0, 0x4000, 0xC000, 0xD000, 0xF000, 1]), st.integers(0, 20),
    st.binary(max_size=10),
).map(
    lambda t: t[0].to_bytes(2, "big") + t[1].to_bytes(2, "big", signed=True) + t[2].to_bytes(2, "big")
    + t[3].to_bytes(2, "big") + t[4]
)  # fmt: skip


@given(st.binary(max_size=40) | TEXT | GROUPS, st.booleans(), st.sampled_from([-1, modifier(10, 2), modifier(38, 38)]))
def test_any_bytes_are_a_value_or_a_fault_whatever_stands_around_them(value: bytes, binary: bool, typmod: int) -> None:
    found = outcome(value, typmod, binary=binary)
    for neighbour in b"9", b".", b"\0":
        inside = memoryview(neighbour + value + neighbour * 9)[1:-9]
        assert repr(outcome(inside, typmod, binary=binary)) == repr(found)
