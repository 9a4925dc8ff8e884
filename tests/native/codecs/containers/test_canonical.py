"""Binary values that are well-formed and that no server sends: ranges, multiranges and hstores in another form."""

from __future__ import annotations

import struct
from typing import Any

import pytest

import pgdecode
from pgdecode.types.pgtypes import Decoding, as_text
from pgdecode.types.type_parser import declared
from support.values import decode_values

LB_INC, UB_INC, LB_INF, UB_INF, EMPTY = 2, 4, 8, 16, 1
BRACKETS = {"[)": LB_INC, "[]": LB_INC | UB_INC, "(]": UB_INC, "()": 0}


def sized(item: bytes) -> bytes:
    return struct.pack(">i", len(item)) + item


def span(lower: bytes | None, upper: bytes | None, brackets: str = "[)") -> bytes:
    """A range as range_send writes it (utils/adt/rangetypes.c)."""
    flags = BRACKETS[brackets]
    flags = flags & ~LB_INC | LB_INF if lower is None else flags
    flags = flags & ~UB_INC | UB_INF if upper is None else flags
    return bytes([flags]) + b"".join(sized(bound) for bound in (lower, upper) if bound is not None)


def multi(*items: bytes) -> bytes:
    return struct.pack(">i", len(items)) + b"".join(map(sized, items))


def numeric(text: str) -> bytes:
    """numeric_send of a few numbers; groups of four digits."""
    special = {"NaN": 0xC000, "Infinity": 0xD000, "-Infinity": 0xF000}
    if text in special:
        return struct.pack(">HhHH", 0, 0, special[text], 0)
    sign = 0x4000 if text.startswith("-") else 0
    whole, _, fraction = text.lstrip("-").partition(".")
    scale = len(fraction)
    whole = whole.zfill(-(-len(whole) // 4) * 4)
    fraction = fraction.ljust(-(-len(fraction) // 4) * 4, "0")
    digits = [int((whole + fraction)[i : i + 4]) for i in range(0, len(whole + fraction), 4)]
    weight = len(whole) // 4 - 1
    while digits and digits[0] == 0:
        digits.pop(0)
        weight -= 1
    while digits and digits[-1] == 0:
        digits.pop()
    return struct.pack(f">HhHH{len(digits)}H", len(digits), weight if digits else 0, sign, scale, *digits)


def int4(value: int) -> bytes:
    return struct.pack(">i", value)


def int8(value: int) -> bytes:
    return struct.pack(">q", value)


def float8(value: float) -> bytes:
    return struct.pack(">d", value)


def float4(value: float) -> bytes:
    return struct.pack(">f", value)


# Values of each type that is compared, ascending.
ASCENDING: dict[str, list[bytes]] = {
    "int4range": [int4(-(2**31)), int4(-1), int4(0), int4(1), int4(2**31 - 1)],
    "int8range": [int8(-(2**63)), int8(-1), int8(0), int8(2**32), int8(2**63 - 1)],
    "daterange": [int4(-(2**31)), int4(-1), int4(0), int4(2**31 - 1)],
    "tsrange": [int8(-(2**63)), int8(-1), int8(0), int8(2**63 - 1)],
    "tstzrange": [int8(-(2**63)), int8(-1), int8(0), int8(2**63 - 1)],
    "numrange": [
        numeric(text)
        for text in (
            *("-Infinity", "-10000.5", "-10000", "-9999.9999", "-1.5", "-1", "-0.0001", "0", "0.00001", "0.0001", "1"),
            *("1.0001", "1.5", "9999", "9999.9999", "10000", "10000.00000001", "123456789", "Infinity", "NaN"),
        )
    ],
    "range(float8)": [float8(v) for v in (float("-inf"), -1.5, -1e-310, 0.0, 5e-324, 1.5, float("inf"), float("nan"))],
    "range(float4)": [float4(v) for v in (float("-inf"), -1.5, -1e-44, 0.0, 1e-45, 1.5, float("inf"), float("nan"))],
    "range(int2)": [struct.pack(">h", v) for v in (-(2**15), -1, 0, 2**15 - 1)],
    "range(time)": [int8(0), int8(1), int8(86_399_999_999)],
}
# Not representable where the bound's own type has it, but in order.
FITS = "null"


def outcome(name: str, value: bytes) -> str:
    """Whether a value is taken: as its type and as text alike."""
    found = set()
    decoding = declared(name)
    for form in (decoding, as_text(decoding)):
        found.add(verdict(form, value))
    assert len(found) == 1, found
    return found.pop()


def verdict(form: Decoding, value: bytes) -> str:
    try:
        decode_values(form, [value], binary=True, unrepresentable=FITS).validate(full=True)
    except pgdecode.DecodeError as error:
        return error.code
    return "taken"


@pytest.mark.parametrize("name", ASCENDING)
def test_a_range_has_its_bounds_in_order(name: str) -> None:
    values = ASCENDING[name]
    for i, lower in enumerate(values):
        for j, upper in enumerate(values):
            for brackets in BRACKETS:
                fine = i < j or (i == j and brackets == "[]")
                assert outcome(name, span(lower, upper, brackets)) == ("taken" if fine else "BAD_VALUE"), (i, j)
        for brackets in BRACKETS:
            assert outcome(name, span(lower, None, brackets)) == "taken"
            assert outcome(name, span(None, lower, brackets)) == "taken"


def test_values_that_are_equal_in_other_bytes_are_equal() -> None:
    assert outcome("range(float8)", span(float8(-0.0), float8(0.0))) == "BAD_VALUE"
    assert outcome("range(float8)", span(float8(-0.0), float8(0.0), "[]")) == "taken"
    assert outcome("numrange", span(numeric("1.50"), numeric("1.5"))) == "BAD_VALUE"
    assert outcome("numrange", span(numeric("1.50"), numeric("1.5"), "[]")) == "taken"
    assert outcome("numrange", span(numeric("0.00"), numeric("0"))) == "BAD_VALUE"


def test_bounds_whose_order_is_not_sent_are_not_compared() -> None:
    # By the collation en_US "a" is before "B", by C behind it.
    for lower, upper in ((b"a", b"B"), (b"B", b"a")):
        assert outcome("range(text)", span(lower, upper)) == "taken"
        assert outcome("multirange(text)", multi(span(b"a", b"b"), span(lower, upper))) == "taken"
    assert outcome("range(text)", span(b"a", b"a")) == "BAD_VALUE"
    assert outcome("range(text)", span(b"a", b"a", "[]")) == "taken"


@pytest.mark.parametrize(
    "flags",
    [
        EMPTY | LB_INC,
        EMPTY | UB_INC,
        EMPTY | LB_INF,
        EMPTY | UB_INF,
        LB_INF | LB_INC | UB_INF,
        LB_INF | UB_INF | UB_INC,
    ],
)
def test_flags_are_those_that_range_serialize_sets(flags: int) -> None:
    assert outcome("int4range", bytes([flags])) == "BAD_VALUE"
    assert outcome("int4range", bytes([EMPTY])) == outcome("int4range", bytes([LB_INF | UB_INF])) == "taken"


@pytest.mark.parametrize(
    ("items", "fine"),
    [
        pytest.param([span(int4(1), int4(3)), span(int4(5), int4(7))], True, id="apart"),
        pytest.param([span(int4(5), int4(7)), span(int4(1), int4(3))], False, id="descending"),
        pytest.param([span(int4(1), int4(5)), span(int4(3), int4(7))], False, id="overlapping"),
        pytest.param([span(int4(1), int4(3)), span(int4(3), int4(7))], False, id="touching"),
        pytest.param([span(int4(1), int4(3))] * 2, False, id="twice"),
        pytest.param([b"\x01"], False, id="empty member"),
        pytest.param([span(int4(1), int4(3)), b"\x01"], False, id="empty member behind another"),
        pytest.param([span(None, int4(3)), span(int4(5), None)], True, id="infinite at both ends"),
        pytest.param([span(int4(1), None), span(int4(5), int4(7))], False, id="infinite, then another"),
        pytest.param([span(int4(1), int4(3)), span(None, int4(7))], False, id="another, then infinite"),
        pytest.param([span(int4(1), int4(2)), span(int4(4), int4(5)), span(int4(3), int4(4))], False, id="third"),
        pytest.param([], True, id="none"),
    ],
)
def test_the_members_of_a_multirange_are_one_behind_the_other(items: list[bytes], fine: bool) -> None:
    assert outcome("int4multirange", multi(*items)) == ("taken" if fine else "BAD_VALUE")


@pytest.mark.parametrize(
    ("left", "right", "fine"),
    [("[)", "(]", True), ("[]", "(]", False), ("[)", "[]", False), ("()", "()", True), ("(]", "()", False)],
)
def test_members_that_leave_out_the_one_point_between_them_do_not_touch(left: str, right: str, fine: bool) -> None:
    items = span(numeric("1"), numeric("3"), left), span(numeric("3.0"), numeric("5"), right)
    assert outcome("nummultirange", multi(*items)) == ("taken" if fine else "BAD_VALUE")


def test_a_bad_range_is_found_wherever_it_is() -> None:
    bad, good = span(int4(5), int4(1)), span(int4(1), int4(5))
    assert outcome("int4multirange", multi(bad)) == "BAD_VALUE"
    assert outcome("(a int4range)", struct.pack(">iI", 1, 3904) + sized(bad)) == "BAD_VALUE"
    assert outcome("(a int4range)", struct.pack(">iI", 1, 3904) + sized(good)) == "taken"
    for item, wanted in ((bad, "BAD_VALUE"), (good, "taken")):
        head = struct.pack(">iiIii", 1, 0, 3904, 1, 1)
        assert outcome("int4range[]", head + sized(item)) == wanted


# -- hstore ----------------------------------------------------------------------------------------------------------


def hstore(*keys: str) -> bytes:
    return struct.pack(">i", len(keys)) + b"".join(sized(key.encode()) + sized(b"v") for key in keys)


@pytest.mark.parametrize(
    ("keys", "fine"),
    [
        pytest.param(("a", "b", "aa"), True, id="in order"),
        pytest.param(("aa", "b", "a"), True, id="in another order"),
        pytest.param(("a", "a"), False, id="twice"),
        pytest.param(("a", "b", "a"), False, id="twice, with another between"),
        pytest.param(("", ""), False, id="the empty key twice"),
        pytest.param(("", "a"), True, id="the empty key"),
        pytest.param(("\xe9", "ab", "b"), True, id="as a server in LATIN1 keeps them"),
        pytest.param(("b", "a", "c", "a"), False, id="out of order and twice"),
    ],
)
def test_a_key_of_an_hstore_is_there_once(keys: tuple[str, ...], fine: bool) -> None:
    assert outcome("hstore", hstore(*keys)) == ("taken" if fine else "BAD_VALUE")
    text = ", ".join(f'"{key}"=>"v"' for key in keys).encode()

    def read() -> Any:
        return decode_values("hstore", [text], binary=False)

    if fine:
        assert [key for key, _ in read()[0].as_py()] == list(keys)
    else:
        with pytest.raises(pgdecode.BadValue):
            read()


def test_each_hstore_has_keys_of_its_own() -> None:
    assert len(decode_values("hstore", [hstore("a", "b"), hstore("a", "b"), hstore("a")], binary=True)) == 3
    assert len(decode_values("hstore", [b'"a"=>"1"', b'"a"=>"1"'], binary=False)) == 2
