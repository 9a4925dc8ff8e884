"""Text and its kin, jsonb, ltree, "char", bytea and the names of OIDs, against what servers wrote."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.each import each
from support.oracles.recorded import both, decoded, refused, renderings, value_or_fault, values

# The type in values.jsonl, and the name under which this library knows it.
KINDRED = {
    "text": "text",
    "varchar(5)": "varchar",
    "char(5)": "bpchar",
    "name": "name",
    "citext": "citext",
    "json": "json",
    "xml": "xml",
    "refcursor": "refcursor",
    "o.mood": "text",
    "jsonb": "jsonb",
    "jsonpath": "jsonpath",
    "ltree": "ltree",
}
VERSIONED = ["jsonb", "jsonpath", "ltree", "lquery", "ltxtquery"]
REGS = ["regclass", "regtype", "regrole", "regconfig"]
ALL = [*sorted(set(KINDRED.values())), "lquery", "ltxtquery", "char", "bytea", "regclass"]

storable = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@pytest.mark.parametrize(
    ("pg_type", "pair"),
    [pytest.param(ours, pair, id=name) for theirs, ours in KINDRED.items() for name, pair in values(theirs)],
)
def test_a_recorded_text_is_the_same_in_both_forms(pg_type: str, pair) -> None:
    assert both(pg_type, pair) == {pair.text.decode()}


@pytest.mark.parametrize("pg_type", ["text", "json", *VERSIONED])
def test_what_the_server_rendered_is_the_text(pg_type: str) -> None:
    pairs = renderings(pg_type)
    assert pairs
    assert decoded(pg_type, [pair.text for pair in pairs], binary=False) == [pair.text.decode() for pair in pairs]
    assert decoded(pg_type, [pair.binary for pair in pairs], binary=True) == [pair.text.decode() for pair in pairs]


@given(storable, st.booleans())
def test_any_text_is_kept_as_it_is(text: str, binary: bool) -> None:
    assert decoded("text", [text.encode()], binary=binary) == [text]


@given(storable, st.sampled_from(VERSIONED))
def test_a_versioned_text_is_its_bytes_after_the_version(text: str, pg_type: str) -> None:
    assert decoded(pg_type, [b"\1" + text.encode()], binary=True) == [text]


@pytest.mark.parametrize("at", range(20))
@each("binary", [False, True], ids=["text", "binary"])
def test_a_nul_is_refused_wherever_it_stands(at: int, binary: bool) -> None:
    assert refused("text", b"x" * at + b"\0" + b"x" * (19 - at), binary=binary) == "BAD_VALUE"


@pytest.mark.parametrize("at", range(20))
@each(
    "wrong",
    [
        pytest.param(b"\x80", id="continuation alone"),
        pytest.param(b"\xc0\x80", id="overlong"),
        pytest.param(b"\xed\xa0\x80", id="surrogate"),
        pytest.param(b"\xf4\x90\x80\x80", id="past U+10FFFF"),
        pytest.param(b"\xff", id="0xff"),
    ],
)
def test_what_is_not_utf8_is_refused_wherever_it_stands(at: int, wrong: bytes) -> None:
    assert refused("text", b"x" * at + wrong + b"x" * (19 - at), binary=False) == "ENCODING"


@pytest.mark.parametrize("pg_type", VERSIONED)
@pytest.mark.parametrize(
    ("form", "code"),
    [
        pytest.param(b"", "WRONG_SIZE", id="no version"),
        pytest.param(b"\0{}", "BAD_VALUE", id="version 0"),
        pytest.param(b"\2{}", "BAD_VALUE", id="version 2"),
        pytest.param(b"\1\0", "BAD_VALUE", id="NUL"),
        pytest.param(b"\1\xff", "ENCODING", id="not UTF-8"),
    ],
)
def test_a_versioned_form_that_no_server_writes_is_refused(pg_type: str, form: bytes, code: str) -> None:
    assert refused(pg_type, form, binary=True) == code


# A byte past ASCII was written as itself up to PostgreSQL 14, and as \ooo from 15 on; both mean the same.
@pytest.mark.parametrize("pair", [pytest.param(pair, id=name) for name, pair in values('"char"')])
def test_a_recorded_char_is_as_postgresql_15_writes_it(pair) -> None:
    byte = pair.text[0] if len(pair.text) == 1 else None
    expected = f"\\{byte:03o}" if byte is not None and byte >= 128 else pair.text.decode()
    assert both("char", pair) == {expected}


def test_the_server_and_we_write_every_char_alike() -> None:
    for pair in renderings("char"):
        assert both("char", pair) == {pair.text.decode()}


@pytest.mark.parametrize(
    ("text", "char"),
    [
        pytest.param(b"", "", id="NUL"),
        pytest.param(b"\\", "\\", id="backslash"),
        pytest.param(b"\xe9", "\\351", id="high byte of 14 and before"),
        pytest.param(b"\\351", "\\351", id="high byte of 15 and later"),
        pytest.param(b"\\101", "A", id="octal as charin reads it"),
    ],
)
def test_a_char_in_text(text: bytes, char: str) -> None:
    assert decoded("char", [text], binary=False) == [char]


@pytest.mark.parametrize("form", [b"\0", b"ab", b"\\400", b"\\18", b"\\189", b"x377", b"\\3777"])
def test_what_is_no_char_in_text_is_refused(form: bytes) -> None:
    assert refused("char", form, binary=False) == "BAD_VALUE"


@pytest.mark.parametrize("form", [b"", b"ab"])
def test_a_char_in_binary_is_one_byte(form: bytes) -> None:
    assert refused("char", form, binary=True) == "WRONG_SIZE"


def escaped(value: bytes) -> bytes:
    """Write bytea_output = escape as the documentation has it (table 8.7)."""
    return b"".join(
        b"\\\\" if byte == 0x5C else bytes([byte]) if 32 <= byte <= 126 else b"\\%03o" % byte for byte in value
    )


@pytest.mark.parametrize("pair", [pytest.param(pair, id=name) for name, pair in values("bytea")])
def test_a_recorded_bytea_is_the_same_in_both_forms(pair) -> None:
    assert both("bytea", pair) == {pair.binary}


def test_the_server_and_we_mean_the_same_bytea() -> None:
    for pair in renderings("bytea"):
        assert both("bytea", pair) == {pair.binary}


@given(st.binary())
def test_any_bytea_comes_back_from_all_its_forms(value: bytes) -> None:
    texts = [b"\\x" + value.hex().encode(), b"\\x" + value.hex().upper().encode(), escaped(value)]
    assert decoded("bytea", texts, binary=False) == [value] * 3
    assert decoded("bytea", [value], binary=True) == [value]


@pytest.mark.parametrize(
    "form",
    [
        pytest.param(b"\\x0", id="odd number of digits"),
        pytest.param(b"\\x0g", id="no digit"),
        pytest.param(b"\\x:0", id="after 9"),
        pytest.param(b"\\x/0", id="before 0"),
        pytest.param(b"\\x@0", id="before A"),
        pytest.param(b"\\x`0", id="before a"),
        pytest.param(b"\\x\xb10", id="1 with the high bit"),
        pytest.param(b"\\X00", id="X"),
        pytest.param(b"a\\", id="backslash at the end"),
        pytest.param(b"\\00", id="octal cut short"),
        pytest.param(b"\\400", id="octal past a byte"),
        pytest.param(b"\\008", id="no octal digit"),
        pytest.param(b"a\xff", id="byte that is always escaped"),
        pytest.param(b"a\n", id="control byte that is always escaped"),
    ],
)
def test_text_that_is_no_bytea_is_refused(form: bytes) -> None:
    assert refused("bytea", form, binary=False) == "BAD_VALUE"


@pytest.mark.parametrize(
    ("pg_type", "pair"),
    [pytest.param(pg_type, pair, id=name) for pg_type in REGS for name, pair in values(pg_type)],
)
def test_a_name_of_an_oid_is_the_name_in_text_and_the_number_in_binary(pg_type: str, pair) -> None:
    assert decoded(pg_type, [pair.text], binary=False) == [pair.text.decode()]
    assert decoded(pg_type, [pair.binary], binary=True) == [str(int.from_bytes(pair.binary, "big"))]


@given(st.integers(0, 2**32 - 1))
def test_any_oid_is_written_in_decimal(oid: int) -> None:
    assert decoded("regclass", [oid.to_bytes(4, "big")], binary=True) == [str(oid)]


@pytest.mark.parametrize("form", [b"", b"\0\0\0", b"\0\0\0\0\0"])
def test_an_oid_is_four_bytes(form: bytes) -> None:
    assert refused("regclass", form, binary=True) == "WRONG_SIZE"


@given(st.sampled_from(ALL), st.binary(max_size=40), st.booleans())
def test_any_bytes_are_a_value_or_a_fault(pg_type: str, form: bytes, binary: bool) -> None:
    value_or_fault(pg_type, form, binary=binary)
