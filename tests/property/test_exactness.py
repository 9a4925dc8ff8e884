"""A million random literals each: floats against Python's float and exact fractions, numerics against decimal."""

from __future__ import annotations

import random
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pgdecode.types.pgtypes import numeric_as_float8
from support.generators.writer import binary_numeric
from support.values import decode_values

pytestmark = pytest.mark.full

N = 1_000_000


def random_bits(rng: random.Random, dtype: type) -> np.ndarray:
    """Finite floats other than 0 of random bits: all exponents are alike."""
    floats = np.frombuffer(rng.randbytes(N * np.dtype(dtype).itemsize), dtype)
    return floats[np.isfinite(floats) & (floats != 0)]


def literals(rng: random.Random, most: int) -> list[bytes]:
    """Literals of up to 40 digits, a point anywhere, and an exponent that keeps most of them in range."""
    made = []
    for _ in range(N // 5):
        digits = str(rng.getrandbits(rng.randrange(1, 134)))
        at = rng.randrange(len(digits) + 1)
        made.append(
            f"{'-' if rng.random() < 0.5 else ''}{digits[:at]}.{digits[at:]}e{rng.randint(-most, most)}".encode()
        )
    return made


def in_range(texts: list[bytes], floats: np.ndarray) -> tuple[list[bytes], np.ndarray]:
    kept = np.isfinite(floats) & (floats != 0)
    return [text for text, keep in zip(texts, kept, strict=True) if keep], floats[kept]


def assert_same_bits(found: pa.Array, wanted: np.ndarray, texts: list[bytes]) -> None:
    unsigned = f"u{wanted.dtype.itemsize}"
    different = np.flatnonzero(found.to_numpy().view(unsigned) != wanted.view(unsigned))
    assert [texts[i] for i in different[:5]] == []


def nearest_float4(text: bytes) -> np.float32:
    """The float4 nearest to a literal. By way of float8 first: that is wrong only where it lies halfway."""
    wide = float(text)
    narrow = np.float32(wide)
    # Halfway between two normal floats, the 29 bits that a float has less are 1 and zeros. Denormals have fewer still.
    if abs(wide) >= 2**-126 and np.float64(wide).view(np.uint64) & 0x1FFFFFFF != 0x10000000:
        return narrow
    exact = Fraction(Decimal(text.decode()))
    near = [narrow, np.nextafter(narrow, np.float32(np.inf)), np.nextafter(narrow, np.float32(-np.inf))]
    near = [number for number in near if np.isfinite(number)]
    return min(near, key=lambda number: (abs(Fraction(float(number)) - exact), int(number.view(np.uint32)) & 1))


@pytest.mark.parametrize("form", ["{!r}", "{:.14e}", "{:.16e}", "{:.25e}"])
def test_printed_float8s_decode_as_python_reads_them(form: str, rng: random.Random) -> None:
    texts = [form.format(number).encode() for number in random_bits(rng, np.float64).tolist()[: N // 2]]
    texts, wanted = in_range(texts, np.array([float(text) for text in texts]))
    assert_same_bits(decode_values("float8", texts, binary=False), wanted, texts)


def test_random_literals_decode_to_the_float8_that_python_reads(rng: random.Random) -> None:
    texts = literals(rng, 330)
    texts, wanted = in_range(texts, np.array([float(text) for text in texts]))
    assert_same_bits(decode_values("float8", texts, binary=False), wanted, texts)


@pytest.mark.parametrize("digits", [9, 17, 30])
def test_printed_float4s_come_back(digits: int, rng: random.Random) -> None:
    wanted = random_bits(rng, np.float32)[: N // 2]
    texts = [b"%.*e" % (digits - 1, number) for number in wanted.tolist()]
    assert_same_bits(decode_values("float4", texts, binary=False), wanted, texts)


def test_random_literals_decode_to_the_nearest_float4(rng: random.Random) -> None:
    texts = literals(rng, 50)
    with np.errstate(over="ignore"):
        wanted = np.array([nearest_float4(text) for text in texts], np.float32)
    # What rounds to infinity is kept apart here, by float4's largest number and half a step.
    wanted[[abs(float(text)) >= float(2**128 - 2**103) for text in texts]] = np.inf
    texts, wanted = in_range(texts, wanted)
    assert_same_bits(decode_values("float4", texts, binary=False), wanted, texts)


@pytest.mark.parametrize("denormal", [False, True])
def test_float8s_halfway_between_two_and_next_to_that_are_rounded_exactly(denormal: bool, rng: random.Random) -> None:
    texts: list[bytes] = []
    for _ in range(3000):
        number = np.uint64(rng.getrandbits(52) if denormal else rng.randrange(2**52, 0x7FE << 52))
        low, high = float(number.view(np.float64)), float((number + np.uint64(1)).view(np.float64))
        middle = (Fraction(low) + Fraction(high)) / 2
        power = middle.denominator.bit_length() - 1
        whole = middle.numerator * 5**power
        for digits, places in ((whole, power), (whole * 10**90 - 1, power + 90), (whole * 10**90 + 1, power + 90)):
            texts.append(f"{'-' if rng.random() < 0.5 else ''}{digits}e-{places}".encode())
    wanted = np.array([float(text) for text in texts])
    assert_same_bits(decode_values("float8", texts, binary=False), wanted, texts)


def test_large_float8s_halfway_are_rounded_exactly_where_zeros_are_left_to_the_exponent(rng: random.Random) -> None:
    texts: list[bytes] = []
    for _ in range(3000):
        zeros = rng.randrange(1, 12)
        # 54 bits, the last of them set, times a power of two: halfway; a multiple of a power of ten besides.
        odd = rng.randrange(2**53 // 5**zeros + 1, 2**54 // 5**zeros) | 1
        digits = odd * 2 ** rng.randrange(60, 900)
        texts += [f"{digits}e{zeros}".encode(), f"{digits}.{'0' * 99}1e{zeros}".encode()]
        texts += [f"{digits - 1}.{'9' * 99}e{zeros}".encode(), f"{digits}{'0' * 900}e{zeros - 900}".encode()]
    texts, wanted = in_range(texts, np.array([float(text) for text in texts]))
    assert_same_bits(decode_values("float8", texts, binary=False), wanted, texts)


@pytest.mark.parametrize(("precision", "scale"), [(12, 2), (38, 0), (38, 10), (38, 38), (19, 19)])
def test_random_numerics_decode_exactly_in_both_forms(precision: int, scale: int, rng: random.Random) -> None:
    count = N // 5
    integers = [rng.getrandbits(rng.randrange(1, 126)) % 10**precision for _ in range(count)]
    signs = [rng.random() < 0.5 for _ in range(count)]
    typmod = (precision << 16 | scale) + 4
    wanted = [-number if sign else number for number, sign in zip(integers, signs, strict=True)]
    texts, raws = [], []
    for number, sign in zip(integers, signs, strict=True):
        digits = f"{number:0{scale + 1}}"
        whole, fraction = (digits[:-scale], digits[-scale:]) if scale else (digits, "")
        texts.append(f"{'-' if sign and number else ''}{whole}{'.' if scale else ''}{fraction}".encode())
        raws.append(binary_numeric(sign and number != 0, whole, fraction))
    for values, binary in ((texts, False), (raws, True)):
        array = decode_values("numeric", values, binary=binary, typmod=typmod)
        words = np.frombuffer(array.buffers()[1], np.uint64, 2 * count).tolist()
        found = [low | high << 64 for low, high in zip(words[::2], words[1::2], strict=True)]
        assert [x - 2**128 if x >> 127 else x for x in found] == wanted
        array.validate(full=True)


def test_random_numerics_as_float8_are_what_python_reads_in_both_forms(rng: random.Random) -> None:
    texts, raws = [], []
    for i in range(N // 5):
        # Up to 40 digits around the point; every thousandth has more than any float8 needs.
        whole = str(rng.getrandbits(rng.randrange(1, 134 if i % 1000 else 4000)))
        fraction = f"{rng.getrandbits(133):040}"[: rng.randrange(41)] + ("0" * 900 + "1" if i % 1000 == 1 else "")
        negative = rng.random() < 0.5 and bool((whole + fraction).strip("0"))
        texts.append(f"{'-' if negative else ''}{whole}{'.' if fraction else ''}{fraction}".encode())
        raws.append(binary_numeric(negative, whole, fraction))
    texts, wanted = in_range(texts, np.array([float(text) for text in texts]))
    for values, binary in ((texts, False), (raws, True)):
        found = decode_values(numeric_as_float8(), values, binary=binary, unrepresentable="null")
        numbers = found.drop_null()
        assert_same_bits(numbers.filter(pc.not_equal(numbers, 0)), wanted, texts)


def test_numerics_halfway_between_two_float8s_are_rounded_exactly_in_binary(rng: random.Random) -> None:
    texts, raws = [], []
    for _ in range(5000):
        # 54 bits, the last of them set, times a power of two: halfway. One more in a digit far behind, or less.
        middle = (rng.getrandbits(53) | 1 << 53 | 1) * 2 ** rng.randrange(0, 900)
        whole = str(middle)
        for digits, fraction in ((whole, ""), (whole, "0" * 850 + "1"), (str(middle - 1), "9" * 850)):
            texts.append(f"{digits}.{fraction}".encode())
            raws.append(binary_numeric(False, digits, fraction))
    wanted = np.array([float(text) for text in texts])
    for values, binary in ((texts, False), (raws, True)):
        assert_same_bits(decode_values(numeric_as_float8(), values, binary=binary), wanted, texts)
