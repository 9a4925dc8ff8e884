"""The text of a float4 is the shortest decimal that reads back, by exact arithmetic."""

from __future__ import annotations

import random
import struct
from decimal import Decimal
from fractions import Fraction

from pgdecode.types.pgtypes import as_text, scalar
from support.values import decode_values


def float4(bits: int) -> Fraction:
    """The number that 31 bits of a finite float4 are; beyond the last one, the next power of two."""
    biased, fraction = bits >> 23, bits & 0x7FFFFF
    mantissa, exponent = (fraction | 0x800000, biased - 150) if biased else (fraction, -149)
    return mantissa * Fraction(2) ** exponent


def shortest_float4(bits: int) -> str:
    """The shortest decimal strictly between the middles to the neighbours, laid out as %g with six digits would."""
    exact = float4(bits)
    lower, upper = (float4(bits - 1) + exact) / 2, (exact + float4(bits + 1)) / 2
    exponent = int(f"{float(exact):.9e}".split("e")[1])
    for n_digits in range(1, 10):
        unit = Fraction(10) ** (exponent - n_digits + 1)
        # Below a power of two the middle is nearer than above, so that the nearest decimal may lie outside.
        inside = [n for n in range(int(exact / unit), int(exact / unit) + 2) if lower < n * unit < upper]
        if inside:
            break
    digits = str(min(inside, key=lambda n: (abs(n * unit - exact), n % 2)))
    leading = exponent + len(digits) - n_digits
    kept = digits.rstrip("0")
    if -4 <= leading < 6:
        return format(Decimal((0, tuple(map(int, kept)), leading - len(kept) + 1)), "f")
    return kept[0] + ("." + kept[1:] if kept[1:] else "") + f"e{leading:+03d}"


def assert_float4(bits: list[int]) -> None:
    found = decode_values(
        as_text(scalar("float4")), [word.to_bytes(4, "big") for word in bits], binary=True
    ).to_pylist()
    assert [(word, ours) for word, ours in zip(bits, found, strict=True) if ours != shortest_float4(word)] == []


def test_float4_near_powers_of_two_are_printed_as_by_exact_arithmetic() -> None:
    assert_float4([(biased << 23) + near for biased in range(1, 255) for near in (-2, -1, 0, 1, 2)])


def test_many_float4_are_printed_as_by_exact_arithmetic() -> None:
    random_ = random.Random(15)
    assert_float4([random_.randrange(1, 0x7F800000) for _ in range(1_500)])
    decimals = [random_.randrange(1, 10**7) / 10 ** random_.randrange(12) for _ in range(1_500)]
    assert_float4([int.from_bytes(struct.pack(">f", number), "big") for number in decimals])
