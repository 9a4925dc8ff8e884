"""money, once the caller says its scale: the same decimal from both forms."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pgdecode
from pgdecode import Column, Insert, Relation
from pgdecode.types.pgtypes import as_text, named
from support.generators.encoder import encode
from support.values import decode_values

PRICES = Relation(16385, "public", "prices", "f", (Column(0, "price", 790, -1),))


def price(value: bytes, kind: str, **options: Any) -> pa.RecordBatch:
    payload = encode(Insert(relation_id=16385, new=(value,), new_formats=kind))
    return pgdecode.decode_rows([payload], PRICES, **options)


def both(scale: int, value: bytes, *, binary: bool) -> tuple[Decimal, str]:
    """A money as a decimal and as the text of its decimal."""
    decoding = named(f"money({scale})")
    assert decoding is not None
    (number,) = decode_values(decoding, [value], binary=binary).to_pylist()
    (text,) = decode_values(as_text(decoding), [value], binary=binary).to_pylist()
    return number, text


# As PostgreSQL 15 prints and sends them under lc_monetary C.
@pytest.mark.parametrize(
    ("printed", "sent", "expected"),
    [
        ("$0.00", "0000000000000000", "0.00"),
        ("$0.05", "0000000000000005", "0.05"),
        ("-$0.05", "fffffffffffffffb", "-0.05"),
        ("$1.00", "0000000000000064", "1.00"),
        ("-$1.00", "ffffffffffffff9c", "-1.00"),
        ("$1,234.56", "000000000001e240", "1234.56"),
        ("-$591,400,507.29", "fffffff23afa70d7", "-591400507.29"),
        ("$92,233,720,368,547,758.07", "7fffffffffffffff", "92233720368547758.07"),
        ("-$92,233,720,368,547,758.08", "8000000000000000", "-92233720368547758.08"),
    ],
)
def test_both_forms_are_the_same_decimal(printed: str, sent: str, expected: str) -> None:
    assert both(2, printed.encode(), binary=False) == (Decimal(expected), expected)
    assert both(2, bytes.fromhex(sent), binary=True) == (Decimal(expected), expected)


# Signs, separators and currencies as cash_out (cash.c) lays them out by the fields of struct lconv.
@pytest.mark.parametrize(
    ("scale", "printed", "expected"),
    [
        pytest.param(2, "1.234,56 €", "1234.56", id="symbol behind"),
        pytest.param(2, "(1.234,56 €)", "-1234.56", id="parentheses"),
        pytest.param(2, "1 234,56- kr", "-1234.56", id="sign behind"),
        pytest.param(2, "\N{MINUS SIGN}5,00 kr", "-5.00", id="U+2212"),
        pytest.param(2, "Fr. 1'234.50", "1234.50", id="point in the symbol"),
        pytest.param(0, "¥1,234", "1234", id="no fraction"),
        pytest.param(0, "-¥7", "-7", id="no fraction, negative"),
        pytest.param(3, "1,234.567 KD", "1234.567", id="three digits"),
    ],
)
def test_text_of_any_locale_is_read(scale: int, printed: str, expected: str) -> None:
    assert both(scale, printed.encode(), binary=False) == (Decimal(expected), expected)


@pytest.mark.parametrize(
    ("scale", "value", "binary", "error"),
    [
        pytest.param(2, b"", False, pgdecode.BadValue, id="empty"),
        pytest.param(2, b"$", False, pgdecode.BadValue, id="no digits"),
        pytest.param(2, "¥1,234".encode(), False, pgdecode.BadValue, id="three digits in a row"),
        pytest.param(2, b"$56", False, pgdecode.BadValue, id="nothing before the fraction"),
        pytest.param(3, b"$1.00", False, pgdecode.BadValue, id="a fraction too short"),
        pytest.param(2, b"$92,233,720,368,547,758.08", False, pgdecode.OutOfRange, id="past int64"),
        pytest.param(2, b"$" + b"9" * 40 + b".00", False, pgdecode.OutOfRange, id="far past int64"),
        pytest.param(2, b"1234567", True, pgdecode.WrongSize, id="seven bytes"),
    ],
)
def test_what_is_no_money_of_that_scale_is_a_fault(
    scale: int, value: bytes, binary: bool, error: type[Exception]
) -> None:
    with pytest.raises(error):
        both(scale, value, binary=binary)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 10))
def test_any_binary_money_is_its_number_of_units(units: int, scale: int) -> None:
    expected = Decimal(units).scaleb(-scale)
    number, text = both(scale, units.to_bytes(8, "big", signed=True), binary=True)
    assert number == expected
    assert text == f"{expected:.{scale}f}"


@given(st.binary(max_size=30))
def test_any_bytes_are_a_money_or_a_fault(value: bytes) -> None:
    for binary in (False, True):
        try:
            number, _ = both(2, value, binary=binary)
        except pgdecode.DecodeError:
            continue
        assert abs(number) <= Decimal(2**63) / 100


def test_the_caller_says_the_scale_by_types() -> None:
    for value, kind in ((b"$1,234.56", "t"), (bytes.fromhex("000000000001e240"), "b")):
        found = price(value, kind, types={790: "money(2)"})
        assert found.schema.field("price").type == pa.decimal128(19, 2)
        assert found["price"].to_pylist() == [Decimal("1234.56")]
    assert price(b"$1,234.56", "t")["price"].to_pylist() == ["$1,234.56"]
    with pytest.raises(pgdecode.Unrepresentable):
        price(bytes(8), "b")


@pytest.mark.parametrize("name", ["money(11)", "money(-1)", "money()", "money(2"])
def test_a_scale_that_money_cannot_have_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is not a valid type"):
        price(bytes(8), "b", types={790: name})
