"""Arrays, ranges, multiranges, hstore and vectors, in both forms."""

from __future__ import annotations

import contextlib
import struct
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pgdecode
from pgdecode.types.pgtypes import NAME_BY_OID, NAMED, RANGES, TYPES, named
from support.values import decode_values


def decoded(pg_type: str, value: bytes, *, binary: bool = False) -> Any:
    array = decode_values(pg_type, [value], binary=binary)
    array.validate(full=True)
    return array.to_pylist()[0]


def sized(*items: bytes | None) -> bytes:
    return b"".join(b"\xff" * 4 if item is None else struct.pack(">i", len(item)) + item for item in items)


def array(oid: int, *items: bytes | None, flags: int = 0) -> bytes:
    head = struct.pack(">iiI", 1, flags or (None in items), oid)
    return head + struct.pack(">ii", len(items), 1) + sized(*items)


@pytest.mark.parametrize(
    ("pg_type", "text", "expected"),
    [
        pytest.param("int4[]", b"{}", [], id="empty"),
        pytest.param("int4[]", b"{1,-2,NULL}", [1, -2, None], id="null"),
        pytest.param("text[]", b'{a,"b c",NULL,"NULL",""}', ["a", "b c", None, "NULL", ""], id="NULL and its word"),
        pytest.param("text[]", b'{"q\\"x","a\\\\b","{}",","}', ['q"x', "a\\b", "{}", ","], id="quotes"),
        pytest.param("int4[]", b"[2:4]={1,2,3}", [1, 2, 3], id="lower bound"),
        pytest.param("box[]", b"{(1,1),(0,0);(2,2),(0,0)}", ["(1,1),(0,0)", "(2,2),(0,0)"], id="semicolons"),
        pytest.param("int2vector", b"1 2 3", [1, 2, 3], id="int2vector"),
        pytest.param("vector", b"[1,2.5,-3]", [1.0, 2.5, -3.0], id="vector"),
        pytest.param("hstore", b'"a"=>"1", "b"=>NULL', [("a", "1"), ("b", None)], id="hstore"),
        pytest.param("hstore", b"", [], id="empty hstore"),
    ],
)
def test_text_of_a_container(pg_type: str, text: bytes, expected: Any) -> None:
    assert decoded(pg_type, text) == expected


@pytest.mark.parametrize(
    ("pg_type", "value", "expected"),
    [
        pytest.param("int4[]", struct.pack(">iiI", 0, 0, 23), [], id="empty"),
        pytest.param("int4[]", array(23, struct.pack(">i", 7), None), [7, None], id="null"),
        pytest.param("text[]", array(25, b"a", b""), ["a", ""], id="text"),
        pytest.param("vector", struct.pack(">HHff", 2, 0, 1.0, 2.5), [1.0, 2.5], id="vector"),
        pytest.param("halfvec", struct.pack(">HHeee", 3, 0, 1.5, -0.25, 6e-8), [1.5, -0.25, 2**-24], id="halfvec"),
        pytest.param("hstore", struct.pack(">i", 1) + sized(b"k", None), [("k", None)], id="hstore"),
    ],
)
def test_binary_of_a_container(pg_type: str, value: bytes, expected: Any) -> None:
    assert decoded(pg_type, value, binary=True) == expected


def span(lower: Any, upper: Any, lower_inclusive: bool, upper_inclusive: bool, empty: bool = False) -> dict[str, Any]:
    return {
        "lower": lower,
        "upper": upper,
        "lower_inclusive": lower_inclusive,
        "upper_inclusive": upper_inclusive,
        "empty": empty,
    }


@pytest.mark.parametrize(
    ("pg_type", "text", "binary", "expected"),
    [
        pytest.param(
            "int4range",
            b"[1,6)",
            b"\x02" + sized(struct.pack(">i", 1), struct.pack(">i", 6)),
            span(1, 6, True, False),
            id="half open",
        ),
        pytest.param("int4range", b"empty", b"\x01", span(None, None, False, False, True), id="empty"),
        pytest.param("int4range", b"(,)", b"\x18", span(None, None, False, False), id="unbounded"),
        pytest.param(
            "daterange",
            b"[2000-01-02,)",
            b"\x12" + sized(struct.pack(">i", 1)),
            span(date(2000, 1, 2), None, True, False),
            id="no end",
        ),
        pytest.param(
            "int4multirange",
            b"{[1,3),[5,7)}",
            struct.pack(">i", 2)
            + sized(
                b"\x02" + sized(struct.pack(">i", 1), struct.pack(">i", 3)),
                b"\x02" + sized(struct.pack(">i", 5), struct.pack(">i", 7)),
            ),
            [span(1, 3, True, False), span(5, 7, True, False)],
            id="multirange",
        ),
        pytest.param("int4multirange", b"{}", struct.pack(">i", 0), [], id="empty multirange"),
    ],
)
def test_both_forms_of_a_range_are_equal(pg_type: str, text: bytes, binary: bytes, expected: Any) -> None:
    assert decoded(pg_type, text) == decoded(pg_type, binary, binary=True) == expected


@pytest.mark.parametrize(
    ("pg_type", "text"),
    [
        pytest.param("int4[]", b"{1", id="no brace"),
        pytest.param("int4[]", b"{1,}", id="nothing after a comma"),
        pytest.param("int4[]", b"{1}x", id="left over"),
        pytest.param("text[]", b'{"a', id="no quote"),
        pytest.param("text[]", b'{"a\\', id="cut escape"),
        pytest.param("int4[]", b"[1:2={1}", id="bounds"),
        pytest.param("int4range", b"[1,6", id="range without end"),
        pytest.param("int4multirange", b"{[1,2),", id="multirange without end"),
        pytest.param("hstore", b'"a"=>', id="hstore without value"),
        pytest.param("vector", b"[1,,2]", id="empty number"),
    ],
)
def test_malformed_text_is_a_fault(pg_type: str, text: bytes) -> None:
    with pytest.raises(pgdecode.BadValue):
        decoded(pg_type, text)


@pytest.mark.parametrize("text", [b"{{1,2},{3,4}}", b"[0:0][0:1]={{1,2}}"])
def test_more_than_one_dimension_does_not_fit_a_list(text: bytes) -> None:
    with pytest.raises(pgdecode.Unrepresentable):
        decoded("int4[]", text)
    assert decode_values("int4[]", [text], binary=False, unrepresentable="null").to_pylist() == [None]


@pytest.mark.parametrize(
    ("pg_type", "value"),
    [
        pytest.param("int4[]", struct.pack(">iiIii", 1, 0, 23, 2**31 - 1, 1), id="V25 count without bytes"),
        pytest.param("int4[]", struct.pack(">iiI", 7, 0, 23), id="V25 seven dimensions"),
        pytest.param("int4[]", struct.pack(">iiI", -1, 0, 23), id="V25 negative dimensions"),
        pytest.param("int4[]", array(20, struct.pack(">q", 7)), id="V25 element of another type"),
        pytest.param("int4[]", struct.pack(">iiIiii", 1, 0, 23, 1, 1, -2), id="V25 length -2"),
        pytest.param("int4range", b"\x80" + sized(b"\0\0\0\1", b"\0\0\0\2"), id="V26 unknown flags"),
        pytest.param("int4range", b"\x02" + sized(None, b"\0\0\0\2"), id="null bound"),
        pytest.param("int4multirange", struct.pack(">i", 2**31 - 1), id="V27 count without bytes"),
        pytest.param("hstore", struct.pack(">i", 2**31 - 1), id="V30 count without bytes"),
        pytest.param("hstore", struct.pack(">i", 1) + sized(None, b"v"), id="V30 null key"),
        pytest.param("vector", struct.pack(">HHf", 2, 0, 1.0), id="vector cut"),
    ],
)
def test_malformed_binary_is_a_fault(pg_type: str, value: bytes) -> None:
    with pytest.raises((pgdecode.BadValue, pgdecode.WrongSize)):
        decoded(pg_type, value, binary=True)


ELEMENTS = st.lists(st.none() | st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=8), max_size=6)


@given(ELEMENTS)
def test_any_text_array_is_read_alike_in_both_forms(elements: list[str | None]) -> None:
    def quoted(element: str) -> str:
        return '"' + element.replace("\\", "\\\\").replace('"', '\\"') + '"'

    text = "{" + ",".join("NULL" if element is None else quoted(element) for element in elements) + "}"
    binary = array(25, *(None if element is None else element.encode() for element in elements))
    assert decoded("text[]", text.encode()) == elements
    assert decoded("text[]", binary, binary=True) == elements


EVERY_TYPE = sorted({*NAME_BY_OID.values(), *(item.name for item in NAMED), "hstore", "vector", "halfvec"})


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
@given(value=st.binary(max_size=40))
def test_random_bytes_are_a_value_or_a_fault_of_any_type(binary: bool, value: bytes) -> None:
    for pg_type in EVERY_TYPE:
        # Anything but a value or a fault fails the test, a crash first of all.
        with contextlib.suppress(pgdecode.DecodeError):
            decode_values(pg_type, [value], binary=binary).validate(full=True)


def test_every_type_of_the_table_has_a_codec_and_an_oid_of_its_own() -> None:
    oids = [oid for item in TYPES for oid in (item.oid, item.array_oid) if oid]
    oids += [oid for item in RANGES for oid in item[:4]]
    assert len(set(oids)) == len(oids)
    for name in EVERY_TYPE:
        decoding = named(name)
        assert decoding is not None
        assert decode_values(name, [None], binary=False).type == decoding.arrow
