"""Geometric types, and the shortest text of their numbers, against what servers wrote and exact fractions."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.oracles.recorded import decoded, refused, value_or_fault

TYPES = ["point", "lseg", "path", "box", "polygon", "line", "circle", "cube"]
NAN = struct.pack(">d", math.nan)


def laid_out(sign: int, digits: str, leading: int) -> str:
    """Lay digits out as printf's %.15g would, leading being the exponent of the first."""
    if -4 <= leading < 15:
        text = format(Decimal((0, tuple(map(int, digits)), leading - len(digits) + 1)), "f")
    else:
        text = digits[0] + ("." + digits[1:] if digits[1:] else "") + f"e{leading:+03d}"
    return "-" * sign + text


def written(number: float) -> str:
    """Write a float8 as PostgreSQL 12 and later do, by way of Python's own shortest text.

    PostgreSQL never writes a decimal halfway between two doubles, Python does where it reads back: then the shortest
    decimal is looked for again, with exact fractions.
    """
    if not math.isfinite(number):
        return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
    sign, digits, exponent = Decimal(repr(number)).as_tuple()
    text = "".join(map(str, digits)).lstrip("0").rstrip("0")
    if not text:
        return "-0" if sign else "0"
    exact = Fraction(abs(number))
    lower = (exact + Fraction(math.nextafter(abs(number), 0))) / 2
    above = math.nextafter(abs(number), math.inf)
    upper = (exact + Fraction(above)) / 2 if above < math.inf else 2 * exact - lower
    if lower < abs(Fraction(Decimal(repr(number)))) < upper:
        return laid_out(sign, text, exponent + len(digits) - 1)
    leading = math.floor(math.log10(abs(number)))
    for n_digits in range(1, 18):
        unit = Fraction(10) ** (leading - n_digits + 1)
        nearest = round(exact / unit)
        if lower < nearest * unit < upper:
            text = str(nearest)
            return laid_out(sign, text.rstrip("0"), leading + len(text) - n_digits)
    raise AssertionError(number)


def texts(numbers: list[float]) -> list[str]:
    """Write numbers as the library does, two a point."""
    forms = [struct.pack(">dd", *pair) for pair in zip(numbers[::2], numbers[1::2], strict=True)]
    return [text for point in decoded("point", forms, binary=True) for text in str(point)[1:-1].split(",")]


# As PostgreSQL 15 prints them.
@pytest.mark.parametrize(
    ("number", "text"),
    [
        pytest.param(0.0, "0", id="zero"),
        pytest.param(-0.0, "-0", id="negative zero"),
        pytest.param(5e-324, "5e-324", id="smallest"),
        pytest.param(1.7976931348623157e308, "1.7976931348623157e+308", id="largest"),
        pytest.param(2.2250738585072014e-308, "2.2250738585072014e-308", id="smallest normal"),
        pytest.param(1e14, "100000000000000", id="last without exponent"),
        pytest.param(1e15, "1e+15", id="first with exponent"),
        pytest.param(123456789012345.6, "123456789012345.6", id="15 digits before the point"),
        pytest.param(0.0001, "0.0001", id="smallest without exponent"),
        pytest.param(1e-5, "1e-05", id="exponent of two digits"),
        pytest.param(1.5e-7, "1.5e-07", id="exponent after a fraction"),
        pytest.param(0.1 + 0.2, "0.30000000000000004", id="17 digits"),
        pytest.param(1e23, "9.999999999999999e+22", id="halfway, 1e23"),
        pytest.param(2.0**-44, "5.684341886080802e-14", id="halfway, power of two"),
        pytest.param(9007199254740993.0, "9.007199254740992e+15", id="2^53"),
        pytest.param(math.inf, "Infinity", id="infinity"),
        pytest.param(math.nan, "NaN", id="NaN"),
    ],
)
def test_a_number_is_written_as_the_server_does(number: float, text: str) -> None:
    assert texts([number, 0.0]) == [text, "0"]


def assorted(random_: random.Random, n: int) -> Iterable[float]:
    """Numbers as people have them, of any bits, and beside the powers of two, where the gaps change."""
    for i in range(n):
        if i % 6 == 0:
            yield round(random_.uniform(-1000, 1000), random_.randrange(15))
        elif i % 6 == 1:
            yield float(random_.randrange(-(1 << random_.randrange(1, 70)), 1 << random_.randrange(1, 70)))
        elif i % 6 == 2:
            yield struct.unpack(">d", ((random_.randrange(2047) << 52) + random_.randrange(3)).to_bytes(8, "big"))[0]
        elif i % 6 == 3:
            yield random_.randrange(1, 10 ** random_.randrange(1, 17)) * 10.0 ** random_.randrange(-300, 290)
        else:
            yield struct.unpack(">d", random_.randbytes(8))[0]


@pytest.mark.full
def test_many_numbers_are_written_as_by_exact_arithmetic() -> None:
    numbers = list(assorted(random.Random(15), 100_000))
    wrong = [(n, ours) for n, ours in zip(numbers, texts(numbers), strict=True) if ours != written(n)]
    assert wrong == []


@given(st.floats(), st.floats())
def test_any_number_is_written_as_by_exact_arithmetic(x: float, y: float) -> None:
    assert texts([x, y]) == [written(x), written(y)]


points = st.lists(st.tuples(st.floats(), st.floats()), min_size=1, max_size=9)


def plain(items: list[tuple[float, float]]) -> str:
    """Write points with commas between."""
    return ",".join(f"({written(x)},{written(y)})" for x, y in items)


def packed(items: list[tuple[float, float]]) -> bytes:
    """Write the numbers of points."""
    return b"".join(struct.pack(">dd", *item) for item in items)


@given(points)
def test_any_points_are_written_between_their_brackets(items: list[tuple[float, float]]) -> None:
    count = struct.pack(">i", len(items))
    assert decoded("polygon", [count + packed(items)], binary=True) == [f"({plain(items)})"]
    assert decoded("path", [b"\1" + count + packed(items)], binary=True) == [f"({plain(items)})"]
    assert decoded("path", [b"\0" + count + packed(items)], binary=True) == [f"[{plain(items)}]"]


@given(*[st.tuples(st.floats(), st.floats())] * 2, st.floats(min_value=0))
def test_any_figure_of_fixed_size_is_written(a: tuple[float, float], b: tuple[float, float], radius: float) -> None:
    assert decoded("lseg", [packed([a, b])], binary=True) == [f"[{plain([a, b])}]"]
    assert decoded("box", [packed([a, b])], binary=True) == [plain([a, b])]
    assert decoded("circle", [packed([a]) + struct.pack(">d", radius)], binary=True) == [
        f"<{plain([a])},{written(radius)}>"
    ]
    assert decoded("line", [struct.pack(">ddd", -1, *a)], binary=True) == [f"{{-1,{written(a[0])},{written(a[1])}}}"]


@pytest.mark.parametrize(("pg_type", "size"), [("point", 16), ("lseg", 32), ("box", 32), ("line", 24), ("circle", 24)])
def test_a_figure_of_fixed_size_has_its_size(pg_type: str, size: int) -> None:
    for length in (0, 4, size - 1, size + 1):
        assert refused(pg_type, bytes(length), binary=True) == "WRONG_SIZE"


# path_recv, poly_recv, line_recv and circle_recv of utils/adt/geo_ops.c, and cube_recv of contrib/cube/cube.c, reject
# each of these.
@pytest.mark.parametrize(
    ("pg_type", "form", "code"),
    [
        pytest.param("path", "", "WRONG_SIZE", id="empty path"),
        pytest.param("path", "01 0000", "WRONG_SIZE", id="path cut in its count"),
        pytest.param("path", "01 00000000", "BAD_VALUE", id="path without points"),
        pytest.param("path", "01 ffffffff", "BAD_VALUE", id="path of -1 points"),
        pytest.param("path", "01 10000001" + "00" * 16, "WRONG_SIZE", id="path whose size wraps to one point"),
        pytest.param("path", "01 00000001" + "00" * 17, "WRONG_SIZE", id="path with a byte too many"),
        pytest.param("polygon", "", "WRONG_SIZE", id="empty polygon"),
        pytest.param("polygon", "00000000", "BAD_VALUE", id="polygon without points"),
        pytest.param("polygon", "10000001" + "00" * 16, "WRONG_SIZE", id="polygon whose size wraps to one point"),
        pytest.param("polygon", "00000002" + "00" * 31, "WRONG_SIZE", id="polygon with a byte too few"),
        pytest.param("line", "00" * 24, "BAD_VALUE", id="line with A and B zero"),
        pytest.param("circle", "00" * 16 + "bff0000000000000", "BAD_VALUE", id="circle of negative radius"),
        pytest.param("cube", "800000", "WRONG_SIZE", id="cube cut in its count"),
        pytest.param("cube", "80000001", "WRONG_SIZE", id="cube without its corner"),
        pytest.param("cube", "80000001" + "00" * 9, "WRONG_SIZE", id="cube with a byte too many"),
        pytest.param("cube", "00000001" + "00" * 8, "WRONG_SIZE", id="cube with one corner, not marked as a point"),
        pytest.param("cube", "80000001" + "00" * 16, "WRONG_SIZE", id="cube with two corners, marked as a point"),
        pytest.param("cube", "80000065" + "00" * 808, "BAD_VALUE", id="cube of 101 dimensions"),
        pytest.param("cube", "ffffffff", "BAD_VALUE", id="cube whose count is all ones"),
    ],
)
def test_a_figure_the_server_rejects_is_refused(pg_type: str, form: str, code: str) -> None:
    assert refused(pg_type, bytes.fromhex(form), binary=True) == code


def test_a_circle_may_have_a_radius_that_is_not_a_number() -> None:
    assert decoded("circle", [bytes(16) + NAN], binary=True) == ["<(0,0),NaN>"]


@given(st.sampled_from(TYPES), st.binary(max_size=60), st.booleans())
def test_any_bytes_are_a_value_or_a_fault(pg_type: str, form: bytes, binary: bool) -> None:
    value_or_fault(pg_type, form, binary=binary)
