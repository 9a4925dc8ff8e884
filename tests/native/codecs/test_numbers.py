"""bool, integers, OIDs, xid8, money and floats: what servers sent, edge cases, and arbitrary bytes."""

from __future__ import annotations

import json
import math
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgdecode.protocol.errors import DecodeError
from support.each import each
from support.values import decode_values

VALUES = Path(__file__).parents[2] / "data" / "values.jsonl"
# Bytes in binary and range of the types that are whole numbers.
INTEGERS = {
    "int2": (2, -(2**15), 2**15 - 1),
    "int4": (4, -(2**31), 2**31 - 1),
    "int8": (8, -(2**63), 2**63 - 1),
    "oid": (4, 0, 2**32 - 1),
    "xid": (4, 0, 2**32 - 1),
    "cid": (4, 0, 2**32 - 1),
    "xid8": (8, 0, 2**64 - 1),
}
TYPES = ["bool", *INTEGERS, "money", "float4", "float8"]


def outcome(pg_type: str, value: bytes | memoryview, *, binary: bool = False) -> Any:
    """What a value decodes to, or the code of its fault."""
    try:
        array = decode_values(pg_type, [value], binary=binary)
    except DecodeError as error:
        return error.code
    array.validate(full=True)
    return array[0].as_py()


def bits(pg_type: str, value: bytes, *, binary: bool = False) -> str:
    """The bits of a float in hex, which tell zeros and NaNs apart."""
    array = decode_values(pg_type, [value], binary=binary).to_numpy()
    return array.astype(array.dtype.newbyteorder(">")).tobytes().hex()


def records(*types: str) -> list[Any]:
    found = []
    for line in VALUES.read_text().splitlines():
        record = json.loads(line)
        if record["type"] in types:
            setting = "-".join(record["settings"].values())
            since = record["server_versions"][0]
            found.append(pytest.param(record, id=f"{record['type']} {record['sql_literal']} {setting} {since}"))
    return found


def shortest(pg_type: str, number: Any) -> str:
    """Print a float as servers since 12 do: the fewest digits that tell it from others (numpy finds them)."""
    if math.isnan(number) or math.isinf(number):
        return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
    digits, exponent = np.format_float_scientific(number, unique=True, trim="-").split("e")
    if number == 0:
        return digits
    if -4 <= int(exponent) < (6 if pg_type == "float4" else 15):
        return np.format_float_positional(number, unique=True, trim="-")
    return f"{digits}e{'-' if int(exponent) < 0 else '+'}{abs(int(exponent)):02}"


def printed(record: dict[str, Any], number: Any) -> str:
    """Print a float as the servers of a record did under its settings: float.c's float8out, 10 to 18."""
    extra = record["settings"].get("extra_float_digits")
    old = record["server_versions"][-1] < 12
    if math.isinf(number) or (not old and int(extra or 1) > 0) or (extra is None and not old):
        return shortest(record["type"], number)
    digits = (6 if record["type"] == "float4" else 15) + int(extra or 0)
    return f"{number:.{max(digits, 1)}g}"


@pytest.mark.parametrize("record", records(*INTEGERS))
def test_integers_that_pgoutput_sent_decode_alike_in_text_and_binary(record: dict[str, Any]) -> None:
    text = bytes.fromhex(record["text"]["hex"])
    assert str(outcome(record["type"], text)) == text.decode()
    for binary in record["binary"]:
        assert str(outcome(record["type"], bytes.fromhex(binary["hex"]), binary=True)) == text.decode()


@pytest.mark.parametrize("record", records("float4", "float8"))
def test_floats_that_pgoutput_sent_print_as_the_server_printed_them(record: dict[str, Any]) -> None:
    pg_type, text = record["type"], bytes.fromhex(record["text"]["hex"])
    for binary in record["binary"] or []:
        raw = bytes.fromhex(binary["hex"])
        assert bits(pg_type, raw, binary=True) == binary["hex"]
        number = decode_values(pg_type, [raw], binary=True).to_numpy()[0]
        assert printed(record, number) == text.decode()
        if shortest(pg_type, number) == text.decode():
            assert bits(pg_type, text) == binary["hex"]
    if text == b"2e+308":
        assert outcome(pg_type, text) == "NOT_REPRESENTABLE"  # what 15 digits fewer make of the largest float8
    else:
        assert printed(record, decode_values(pg_type, [text], binary=False).to_numpy()[0]) == text.decode()


@pytest.mark.parametrize("record", records("money"))
def test_money_keeps_its_text_and_is_refused_in_binary_for_want_of_a_unit(record: dict[str, Any]) -> None:
    assert outcome("money", bytes.fromhex(record["text"]["hex"])) == record["text"]["utf8"]
    for binary in record["binary"]:
        assert outcome("money", bytes.fromhex(binary["hex"]), binary=True) == "NOT_REPRESENTABLE"


@pytest.mark.parametrize("pg_type", INTEGERS)
@given(st.data())
def test_any_integer_decodes_in_both_forms(pg_type: str, data: st.DataObject) -> None:
    size, least, most = INTEGERS[pg_type]
    number = data.draw(st.integers(least, most) | st.integers(max(least, -2000), 2000))
    raw = number.to_bytes(size, "big", signed=least < 0)
    assert outcome(pg_type, str(number).encode()) == outcome(pg_type, raw, binary=True) == number


@pytest.mark.parametrize("pg_type", INTEGERS)
@given(st.data())
def test_any_integer_outside_of_the_range_is_a_fault(pg_type: str, data: st.DataObject) -> None:
    _, least, most = INTEGERS[pg_type]
    outside = st.integers(most + 1, most + 100) | st.integers(least - 100, least - 1)
    number = data.draw(outside | st.integers(most + 1) | st.integers(max_value=least - 1))
    assert outcome(pg_type, str(number).encode()) == "OUT_OF_RANGE"


@pytest.mark.parametrize("length", range(1, 25))
def test_integers_of_every_length_decode_and_a_byte_anywhere_spoils_them(length: int) -> None:
    text = b"1234567890123456789012345"[:length]
    assert outcome("xid8", text) == (int(text) if int(text) < 2**64 else "OUT_OF_RANGE")
    assert outcome("int8", b"-" + text) == (-int(text) if int(text) <= 2**63 else "OUT_OF_RANGE")
    for at in range(length):
        for bad in b"/:\x00\x09 \xff\xb9-+.a":
            assert outcome("xid8", text[:at] + bytes([bad]) + text[at + 1 :]) == (
                int(text[1:]) if at == 0 and chr(bad) == "+" and 1 < length < 21
                else "OUT_OF_RANGE" if at == 0 and chr(bad) in "+-" and length > 1
                else "BAD_VALUE"
            )  # fmt: skip


@each(
    ("pg_type", "text", "wanted"),
    [
        pytest.param("bool", "t", True, id="t"),
        pytest.param("bool", "f", False, id="f"),
        pytest.param("bool", "true", True, id="true"),
        pytest.param("bool", "false", False, id="false"),
        pytest.param("bool", "T", "BAD_VALUE", id="a capital T"),
        pytest.param("bool", "1", "BAD_VALUE", id="bool 1"),
        pytest.param("bool", "", "BAD_VALUE", id="empty bool"),
        pytest.param("bool", "tr", "BAD_VALUE", id="a part of true"),
        pytest.param("int2", "32767", 32767, id="largest int2"),
        pytest.param("int2", "-32768", -32768, id="smallest int2"),
        pytest.param("int2", "32768", "OUT_OF_RANGE", id="past int2"),
        pytest.param("int2", "-32769", "OUT_OF_RANGE", id="below int2"),
        pytest.param("int4", "2147483647", 2**31 - 1, id="largest int4"),
        pytest.param("int4", "2147483648", "OUT_OF_RANGE", id="past int4"),
        pytest.param("int4", "+7", 7, id="a plus"),
        pytest.param("int4", "-0", 0, id="minus zero"),
        pytest.param("int4", "0000000000000000000000000000007", 7, id="31 digits, most of them zeros"),
        pytest.param("int4", "", "BAD_VALUE", id="empty"),
        pytest.param("int4", "-", "BAD_VALUE", id="a sign alone"),
        pytest.param("int4", "--1", "BAD_VALUE", id="two signs"),
        pytest.param("int4", " 1", "BAD_VALUE", id="a blank before"),
        pytest.param("int4", "1 ", "BAD_VALUE", id="a blank behind"),
        pytest.param("int4", "1.0", "BAD_VALUE", id="a point"),
        pytest.param("int4", "1_000", "BAD_VALUE", id="an underscore, which no server prints"),
        pytest.param("int4", "0x10", "BAD_VALUE", id="hexadecimal, which no server prints"),
        pytest.param("int8", "9223372036854775807", 2**63 - 1, id="largest int8"),
        pytest.param("int8", "9223372036854775808", "OUT_OF_RANGE", id="past int8"),
        pytest.param("int8", "-9223372036854775808", -(2**63), id="smallest int8"),
        pytest.param("int8", "-9223372036854775809", "OUT_OF_RANGE", id="below int8"),
        pytest.param("int8", "18446744073709551616", "OUT_OF_RANGE", id="2**64, which wraps to 0"),
        pytest.param("int8", "18446744073709551617", "OUT_OF_RANGE", id="2**64 + 1"),
        pytest.param("int8", "184467440737095516160", "OUT_OF_RANGE", id="ten times 2**64"),
        pytest.param("oid", "4294967295", 2**32 - 1, id="largest oid"),
        pytest.param("oid", "4294967296", "OUT_OF_RANGE", id="past oid"),
        pytest.param("oid", "-1", "OUT_OF_RANGE", id="oid -1"),
        pytest.param("xid8", "18446744073709551615", Decimal(2**64 - 1), id="largest xid8"),
        pytest.param("xid8", "18446744073709551616", "OUT_OF_RANGE", id="past xid8"),
        pytest.param("xid8", "00018446744073709551615", Decimal(2**64 - 1), id="largest xid8 behind zeros"),
        pytest.param("xid8", "20000000000000000000", "OUT_OF_RANGE", id="twenty digits from 2 on"),
        pytest.param("money", "1.234,56 €", "1.234,56 €", id="money of another lc_monetary"),
        pytest.param("money", "", "BAD_VALUE", id="empty money"),
    ],
)
def test_text_decodes_or_is_named_bad(pg_type: str, text: str, wanted: Any) -> None:
    assert outcome(pg_type, text.encode()) == wanted


def test_money_that_is_not_utf8_is_a_fault() -> None:
    assert outcome("money", b"\x801.23") == "ENCODING"


@pytest.mark.parametrize(
    ("pg_type", "size"),
    [(name, item[0]) for name, item in INTEGERS.items()] + [("bool", 1), ("money", 8), ("float4", 4), ("float8", 8)],
)
def test_binary_values_one_byte_short_or_long_or_empty_are_faults(pg_type: str, size: int) -> None:
    for length in {0, size - 1, size + 1}:
        assert outcome(pg_type, bytes(length), binary=True) == "WRONG_SIZE"


@pytest.mark.parametrize(("raw", "wanted"), [("00", False), ("01", True), ("02", "BAD_VALUE"), ("ff", "BAD_VALUE")])
def test_a_bool_in_binary_is_0_or_1(raw: str, wanted: Any) -> None:
    assert outcome("bool", bytes.fromhex(raw), binary=True) == wanted


def test_nulls_stay_null_between_values() -> None:
    assert decode_values("xid8", [b"1", None, b"2"], binary=False).to_pylist() == [1, None, 2]
    assert decode_values("bool", [b"t", None, b"f"], binary=False).to_pylist() == [True, None, False]


@pytest.mark.parametrize(
    ("pg_type", "text", "wanted"),
    [
        pytest.param("float8", "NaN", "7ff8000000000000", id="NaN"),
        pytest.param("float8", "Infinity", "7ff0000000000000", id="Infinity"),
        pytest.param("float8", "-Infinity", "fff0000000000000", id="-Infinity"),
        pytest.param("float8", "inf", "7ff0000000000000", id="inf, as float8in takes it"),
        pytest.param("float8", "-0", "8000000000000000", id="minus zero"),
        pytest.param("float8", "0e99999999999999999999", "0" * 16, id="zero with a huge exponent"),
        pytest.param("float8", "5e-324", "0000000000000001", id="smallest, shortest"),
        pytest.param("float8", "4.9e-324", "0000000000000001", id="smallest, as Java prints it"),
        pytest.param("float8", "2.4703282292062328e-324", "0000000000000001", id="just past half the smallest"),
        pytest.param("float8", "2.2250738585072011e-308", "000fffffffffffff", id="the literal that hung PHP and Java"),
        pytest.param("float8", "2.2250738585072014e-308", "0010000000000000", id="smallest normal"),
        pytest.param("float8", "1.7976931348623157e308", "7fefffffffffffff", id="largest"),
        pytest.param("float8", "1.7976931348623158e308", "7fefffffffffffff", id="below half past the largest"),
        pytest.param("float8", "9007199254740993", "4340000000000000", id="2**53 + 1 ties to even"),
        pytest.param("float8", "9007199254740995", "4340000000000002", id="2**53 + 3 ties to even upwards"),
        pytest.param("float8", "9007199254740993." + "0" * 900 + "1", "4340000000000001", id="a bit past a tie"),
        pytest.param("float8", "0." + "0" * 5000 + "1e5001", "3ff0000000000000", id="zeros that the exponent undoes"),
        pytest.param("float8", "1" + "0" * 5000 + "e-5000", "3ff0000000000000", id="digits that the exponent undoes"),
        pytest.param("float8", "+1.", "3ff0000000000000", id="a plus, and nothing behind the point"),
        pytest.param("float8", ".5E+0", "3fe0000000000000", id="nothing before the point, a capital E"),
        pytest.param("float4", "NaN", "7fc00000", id="float4 NaN"),
        pytest.param("float4", "-Infinity", "ff800000", id="float4 -Infinity"),
        pytest.param("float4", "1e-45", "00000001", id="smallest float4"),
        pytest.param("float4", "3.4028235e+38", "7f7fffff", id="largest float4"),
        # 1 + 2**-24 and a bit: the nearest float8 is halfway between two floats, and ties to the wrong one.
        pytest.param("float4", "1.00000005960464477540", "3f800001", id="float4 rounded once, upwards"),
        pytest.param("float4", "1.000000059604644775390625", "3f800000", id="float4 exactly halfway"),
        pytest.param("float4", "1.00000017881393432616", "3f800001", id="float4 rounded once, downwards"),
    ],
)
def test_float_text_decodes_to_the_nearest_bits(pg_type: str, text: str, wanted: str) -> None:
    assert bits(pg_type, text.encode()) == wanted


@pytest.mark.parametrize(
    ("pg_type", "text"),
    [
        ("float8", "1.7976931348623159e308"), ("float8", "2.1e+308"), ("float8", "-1e309"),
        ("float8", "1e99999999999999"), ("float8", "1e-400"),
        ("float8", "2.4703282292062327e-324"), ("float8", "1e-99999999999999"),
        ("float8", "0." + "0" * 400 + "1"), ("float8", "1" * 400),
        ("float4", "3.4028236e+38"), ("float4", "1e39"), ("float4", "7e-46"), ("float4", "1e-400"),
    ],
    ids=lambda text: text[:24],
)  # fmt: skip
def test_a_float_past_its_range_is_a_fault_and_neither_infinite_nor_zero(pg_type: str, text: str) -> None:
    assert outcome(pg_type, text.encode()) == "OUT_OF_RANGE"


@pytest.mark.parametrize("pg_type", ["float4", "float8"])
@each(
    "text",
    ["", "-", ".", "+.", "e1", ".e1", "1e", "1e+", "1e1.5", "1..2", "1.2.3", " 1", "1 ", "1f", "0x1p3", "1_0", "-NaN",
     "nano", "infinit", "--1", "1,5", "1\0", "\0", "1e5\0"],
)  # fmt: skip
def test_what_is_no_float_is_a_fault(pg_type: str, text: str) -> None:
    assert outcome(pg_type, text.encode()) == "BAD_VALUE"


@given(st.integers(0, 2**64 - 1))
def test_any_float8_keeps_its_bits_in_binary(number: int) -> None:
    assert bits("float8", struct.pack(">Q", number), binary=True) == f"{number:016x}"
    assert bits("float4", struct.pack(">I", number >> 32), binary=True) == f"{number >> 32:08x}"


TEXT = st.text(alphabet="0123456789-+.eEinfatyruls xX_\0", max_size=60).map(str.encode)


@pytest.mark.parametrize("pg_type", TYPES)
@given(st.binary(max_size=12) | TEXT, st.booleans())
def test_any_bytes_are_a_value_or_a_fault_whatever_stands_around_them(pg_type: str, value: bytes, binary: bool) -> None:
    found = outcome(pg_type, value, binary=binary)
    for neighbour in b"9", b".", b"\0":
        inside = memoryview(neighbour + value + neighbour * 9)[1:-9]
        assert repr(outcome(pg_type, inside, binary=binary)) == repr(found)


def test_a_faulty_value_leaves_the_column_as_it_was() -> None:
    found = decode_values("money", [b"$1", bytes(8)], binary=False).to_pylist()
    assert found == ["$1", "\0" * 8]
    assert decode_values("money", [bytes(8)], binary=True, unrepresentable="null").equals(pa.array([None], pa.string()))
