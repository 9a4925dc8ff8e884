"""Conversion of LSNs; the pairs are output of pg_lsn."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pgdecode

pairs = pytest.mark.parametrize(
    ("number", "text"),
    [
        pytest.param(0, "0/0", id="zero"),
        pytest.param(0x16B374D848, "16/B374D848", id="as in the documentation"),
        pytest.param(0xFFFFFFFF, "0/FFFFFFFF", id="last before a carry"),
        pytest.param(0x100000000, "1/0", id="no padding of the low half"),
        pytest.param(2**64 - 1, "FFFFFFFF/FFFFFFFF", id="largest"),
    ],
)


@pairs
def test_a_number_becomes_postgresqls_text(number: int, text: str) -> None:
    assert pgdecode.lsn_to_text(number) == text


@pairs
def test_text_becomes_its_number(number: int, text: str) -> None:
    assert pgdecode.lsn_from_text(text) == number


def test_text_may_be_lower_case_and_padded() -> None:
    assert pgdecode.lsn_from_text("00000016/0b374d84") == 0x160B374D84


@given(st.integers(0, 2**64 - 1))
def test_every_lsn_survives_the_conversion_to_text(number: int) -> None:
    assert pgdecode.lsn_from_text(pgdecode.lsn_to_text(number)) == number


def test_a_value_of_another_type_is_refused_by_its_type() -> None:
    with pytest.raises(TypeError, match=r"^an LSN is an int, not str$"):
        pgdecode.lsn_to_text("16/B374D848")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^an LSN in text is a str, not NoneType$"):
        pgdecode.lsn_from_text(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [-1, 2**64], ids=["negative", "past 64 bits"])
def test_a_number_that_is_not_an_lsn_is_refused(number: int) -> None:
    with pytest.raises(ValueError, match="LSN"):
        pgdecode.lsn_to_text(number)


@pytest.mark.parametrize(
    "text", ["", "/", "1", "1/", "/1", "1/2/3", "x/1", "123456789/0", "0/123456789", " 1/2", "1/2\n"]
)
def test_text_that_is_not_an_lsn_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="LSN"):
        pgdecode.lsn_from_text(text)
