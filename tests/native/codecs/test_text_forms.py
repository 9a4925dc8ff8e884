"""Binary values in PostgreSQL's own text: what servers printed, an independent renderer, and hostile bytes."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rows.test_rows import tables_of

import pgdecode
from pgdecode import Column, Insert, Relation
from pgdecode.rows.row_schema import decodings
from pgdecode.types.pgtypes import NAME_BY_OID, NAMED, Decoding, as_text, named, range_of, scalar
from support import captures
from support.each import each
from support.generators.encoder import encode
from support.oracles.printer import BLANKS, in_array, quoted
from support.oracles.recorded import DATA, renderings
from support.values import decode_values

EVERY_TYPE = sorted({*NAME_BY_OID.values(), *(item.name for item in NAMED), "hstore", "vector", "halfvec", "record"})
FORMS: dict[str, Decoding] = {name: as_text(decoding) for name in EVERY_TYPE if (decoding := named(name)) is not None}


def printed(form: str | Decoding, values: list[bytes], *, binary: bool = True) -> list[Any]:
    array = decode_values(FORMS[form] if isinstance(form, str) else form, values, binary=binary)
    array.validate(full=True)
    assert array.type == pa.string()
    found: list[Any] = array.to_pylist()
    return found


def test_every_type_has_a_text_form_and_a_string_column_keeps_its_own() -> None:
    assert sorted(FORMS) == EVERY_TYPE
    for name, form in FORMS.items():
        assert printed(form, []) == []
        decoding = named(name)
        assert decoding is not None
        assert (as_text(decoding) is decoding) == (decoding.arrow == pa.string())


# -- numbers of all lengths ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "layout", "least", "greatest"),
    [
        ("int2", ">h", -(2**15), 2**15 - 1),
        ("int4", ">i", -(2**31), 2**31 - 1),
        ("int8", ">q", -(2**63), 2**63 - 1),
        ("oid", ">I", 0, 2**32 - 1),
        ("xid8", ">Q", 0, 2**64 - 1),
    ],
    ids=["int2", "int4", "int8", "oid", "xid8"],
)
def test_an_integer_has_its_digits_whatever_their_number(name: str, layout: str, least: int, greatest: int) -> None:
    powers = (10**n + more for n in range(20) for more in (-1, 0, 1))
    repeated = (int("1234567890" * 2) % 10**n * 10**zeros for n in range(1, 20) for zeros in range(4))
    numbers = {sign * number for number in (*powers, *repeated, *range(11000)) for sign in (-1, 1)} | {least, greatest}
    fitting = [number for number in sorted(numbers) if least <= number <= greatest]
    assert printed(name, [struct.pack(layout, number) for number in fitting]) == [str(number) for number in fitting]


def test_a_time_has_the_digits_of_its_fraction_up_to_the_last_that_is_not_zero() -> None:
    fractions = sorted({digits * 10**zeros for zeros in range(6) for digits in (1, 9, 10, 11, 101, 12345, 102030)})
    fractions = [fraction for fraction in [0, *fractions, 999999] if fraction < 10**6]
    texts = [f"00:00:01.{fraction:06d}".rstrip("0").rstrip(".") for fraction in fractions]
    assert printed("time", [struct.pack(">q", 10**6 + fraction) for fraction in fractions]) == texts


# -- what servers printed --------------------------------------------------------------------------------------------

USUAL = {
    "datestyle": lambda style: style.startswith("ISO"),
    "timezone": lambda zone: zone == "UTC",
    "intervalstyle": lambda style: style == "postgres",
    "bytea_output": lambda output: output == "hex",
    "extra_float_digits": lambda digits: int(digits) > 0,
}

# Types under other names than they have in the recordings; o is the schema of the recordings' own types.
SAID = {
    '"char"': "char",
    "_text": "text[]",
    "o.comp": "record",
    "o.dint": "int4",
    "o.dnum": "numeric",
    "o.dtxt": "text",
    "o.mood": "text",
}


def said(name: str) -> str:
    """The type that a recording is of, without its modifier."""
    if name in SAID:
        return SAID[name]
    if name.startswith("char("):
        name = name.replace("char", "bpchar", 1)
    return name.split("(")[0].split(" ")[0] + ("[]" if name.endswith(")[]") else "")


def recorded_values() -> Iterator[Any]:
    """What values.jsonl has in both forms, under settings that the text forms are of."""
    with (DATA / "values.jsonl").open() as lines:
        for record in map(json.loads, lines):
            text = record["text"]
            name = said(record["type"])
            usual = all(USUAL.get(key, bool)(value) for key, value in record["settings"].items())
            # Only the server's catalog gives the name of an OID, and only its locale the unit of money.
            nameless = name.startswith("reg") or name == "money"
            if name not in FORMS or not usual or nameless or "..." in text["hex"]:
                continue
            for form in record["binary"] or []:
                if "..." not in form["hex"]:
                    case = (name, bytes.fromhex(text["hex"]), bytes.fromhex(form["hex"]))
                    yield pytest.param(*case, id=f"{name} {record['sql_literal'][:40]}")


@each(("name", "text", "binary"), list(recorded_values()))
def test_a_recorded_value_is_printed_as_the_server_did(name: str, text: bytes, binary: bytes) -> None:
    if name == "char" and len(text) == 1 and text > b"\x7f":
        text = b"\\%03o" % text[0]  # as of PostgreSQL 15
    assert printed(name, [binary]) == [text.decode()]
    assert printed(name, [text], binary=False) == [text.decode()]


def recorded_moments() -> Iterator[Any]:
    settings = ("", "DateStyle ISO", "DateStyle ISO, TimeZone UTC", "IntervalStyle postgres")
    with (DATA / "datetimes.jsonl").open() as lines:
        next(lines)
        for record in map(json.loads, lines):
            if record["setting"] in settings:
                yield pytest.param(record["type"], record["values"], id=record["type"])


@pytest.mark.parametrize(("name", "pairs"), list(recorded_moments()))
def test_dates_and_times_are_printed_as_the_server_did(name: str, pairs: list[tuple[str, str]]) -> None:
    assert printed(name, [bytes.fromhex(binary) for _, binary in pairs]) == [text for text, _ in pairs]


RENDERED = {json.loads(line)["type"] for line in (DATA / "renderings.jsonl").read_text().split("\n")[1:-1]}


@each("name", sorted(RENDERED))
def test_the_server_and_we_print_the_same_text(name: str) -> None:
    pairs = renderings(name)
    assert printed(name, [pair.binary for pair in pairs if pair.binary is not None]) == [
        pair.text.decode() for pair in pairs
    ]


PAIRS = [(name, name + "bin") for name in captures.NAMES if name + "bin" in captures.NAMES]


def cells(name: str) -> dict[tuple[tuple[int, int], str], list[bytes | None]]:
    """Values of a capture's rows by relation, its version, and column; new tuples only."""
    tables, _ = tables_of(name)
    found: dict[tuple[tuple[int, int], str], list[bytes | None]] = {}
    for key, (relation, payloads) in tables.items():
        for i, column in enumerate(relation.columns):
            values = found[key, column.name] = []
            for payload in payloads:
                message = pgdecode.decode(payload)
                values.append(message.new[i] if isinstance(message, pgdecode.Insert | pgdecode.Update) else None)
    return found


@pytest.mark.parametrize(("text", "binary"), [pair for pair in PAIRS if ".types." in pair[0]])
def test_both_readings_of_the_same_wal_print_the_same(text: str, binary: str) -> None:
    tables, types = tables_of(text)
    texts, binaries = cells(text), cells(binary)
    n_compared = 0
    for key, (relation, _) in tables.items():
        for column, decoding in zip(relation.columns, decodings(relation, type_messages=types), strict=True):
            sent = texts[key, column.name]
            if decoding.codec in ("opaque", "reg", "money") or getattr(decoding.element, "codec", "") == "reg":
                continue
            for one, other in zip(sent, binaries[key, column.name], strict=True):
                if one is not None and other is not None:
                    assert printed(as_text(decoding), [other]) == [one.decode()], column.name
                    n_compared += 1
    assert n_compared > 50


# -- quoting ---------------------------------------------------------------------------------------------------------


def sized(item: bytes | None) -> bytes:
    return b"\xff" * 4 if item is None else struct.pack(">i", len(item)) + item


TEXTS = st.text(st.sampled_from(BLANKS + '"\\,;{}()[]aNULl=>é\x85'), max_size=5) | st.sampled_from(["NULL", "null"])


@st.composite
def arrays(draw: st.DrawFn) -> tuple[list[tuple[int, int]], list[str | None]]:
    """Dimensions, each a size and a lower bound, and items enough."""
    dimensions = draw(st.lists(st.tuples(st.integers(1, 3), st.integers(-3, 3)), max_size=6))
    count = 1 if dimensions else 0
    for size, _ in dimensions:
        count *= size
    pool = draw(st.lists(st.none() | TEXTS, min_size=1, max_size=5))
    return dimensions, [pool[i % len(pool)] for i in range(count)]


def braced(sizes: list[int], items: list[str]) -> str:
    if not sizes:
        return items[0]
    step = len(items) // sizes[0]
    return "{" + ",".join(braced(sizes[1:], items[i * step : (i + 1) * step]) for i in range(sizes[0])) + "}"


@given(arrays())
def test_any_array_is_printed_as_the_server_would(array: tuple[list[tuple[int, int]], list[str | None]]) -> None:
    dimensions, items = array
    binary = struct.pack(">iiI", len(dimensions), None in items, 25)
    binary += b"".join(struct.pack(">ii", *dimension) for dimension in dimensions)
    binary += b"".join(sized(None if item is None else item.encode()) for item in items)
    bounds = "".join(f"[{lower}:{lower + size - 1}]" for size, lower in dimensions) + "="
    expected = braced([size for size, _ in dimensions], [in_array(item) for item in items]) if dimensions else "{}"
    if any(lower != 1 for _, lower in dimensions):
        expected = bounds + expected
    assert printed("text[]", [binary]) == [expected]


@given(st.none() | TEXTS, st.none() | TEXTS, st.booleans(), st.booleans())
def test_any_range_is_printed_as_the_server_would(
    lower: str | None, upper: str | None, lower_inclusive: bool, upper_inclusive: bool
) -> None:
    # As range_serialize has them: nothing infinite is included, and of two equal bounds both are.
    lower_inclusive = lower is not None and (lower_inclusive or lower == upper)
    upper_inclusive = upper is not None and (upper_inclusive or lower == upper)
    flags = lower_inclusive * 2 + upper_inclusive * 4 + (lower is None) * 8 + (upper is None) * 16
    binary = bytes([flags]) + b"".join(sized(bound.encode()) for bound in (lower, upper) if bound is not None)
    one, other = ("" if bound is None else quoted(bound, "()[],", '"', "\\") for bound in (lower, upper))
    expected = f"{'[' if lower_inclusive else '('}{one},{other}{']' if upper_inclusive else ')'}"
    assert printed(as_text(range_of(scalar("text"))), [binary]) == [expected]


@given(st.lists(st.none() | TEXTS, max_size=6))
def test_any_composite_is_printed_as_the_server_would(fields: list[str | None]) -> None:
    binary = struct.pack(">i", len(fields))
    binary += b"".join(struct.pack(">I", 25) + sized(None if text is None else text.encode()) for text in fields)
    expected = ["" if text is None else quoted(text, "(),", '"', "\\") for text in fields]
    assert printed("record", [binary]) == [f"({','.join(expected)})"]


def test_a_composite_of_described_fields_is_printed_by_them() -> None:
    fields = (as_text(scalar("int4")), scalar("text"), replace(scalar("text"), oid=0))
    form = Decoding("composite_text", pa.string(), fields=fields)
    number = struct.pack(">I", 23) + sized(struct.pack(">i", 7))
    enum = struct.pack(">I", 20000) + sized(b"so so")
    text = struct.pack(">I", 25) + sized(None)
    assert printed(form, [struct.pack(">i", 3) + number + text + enum]) == ['(7,,"so so")']
    for bad in (struct.pack(">i", 2) + number + text, struct.pack(">i", 3) + text + number + enum):
        with pytest.raises(pgdecode.BadValue):
            printed(form, [bad])


@given(st.lists(st.tuples(TEXTS, st.none() | TEXTS), max_size=5, unique_by=lambda pair: pair[0]))
def test_any_hstore_is_printed_as_the_server_would(pairs: list[tuple[str, str | None]]) -> None:
    def always(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    binary = struct.pack(">i", len(pairs))
    binary += b"".join(sized(k.encode()) + sized(None if v is None else v.encode()) for k, v in pairs)
    expected = [f"{always(key)}=>{'NULL' if value is None else always(value)}" for key, value in pairs]
    assert printed("hstore", [binary]) == [", ".join(expected)]


def test_vectors_are_printed_as_pgvector_does() -> None:
    # halfvec_out of pgvector prints its numbers as float4, so 0.1 shows what it was rounded to.
    assert printed("vector", [struct.pack(">HHfff", 3, 0, 1.0, 2.5, 0.1)]) == ["[1,2.5,0.1]"]
    assert printed("halfvec", [struct.pack(">HHee", 2, 0, 1.5, 0.1)]) == ["[1.5,0.099975586]"]


# -- what is no value ------------------------------------------------------------------------------------------------


def test_text_stays_as_it_was_sent() -> None:
    for name in ("int4", "date", "interval[]", "numrange", "hstore", "record"):
        assert printed(name, [b" what\xc3\xa9ver"], binary=False) == [" whatéver"]
        with pytest.raises(pgdecode.BadValue):
            printed(name, [b"a\0b"], binary=False)
        with pytest.raises(pgdecode.BadEncoding):
            printed(name, [b"\xff"], binary=False)


def test_a_composite_with_a_field_of_an_unknown_type_is_a_fault_unless_it_is_null() -> None:
    number = struct.pack(">I", 23) + sized(struct.pack(">i", 7))
    assert printed("record", [struct.pack(">i", 2) + number + struct.pack(">I", 20000) + sized(None)]) == ["(7,)"]
    with pytest.raises(pgdecode.UnknownType):
        printed("record", [struct.pack(">i", 2) + number + struct.pack(">I", 20000) + sized(b"happy")])


def test_the_caller_says_that_a_type_is_a_composite() -> None:
    relation = Relation(16385, "public", "t", "f", (Column(0, "pair", 20000, -1),))
    pair = struct.pack(">i", 2) + struct.pack(">I", 23) + sized(b"\0\0\0\7") + struct.pack(">I", 25) + sized(b"a b")
    for value, kind in ((b'(7,"a b")', "t"), (pair, "b")):
        payload = encode(Insert(relation_id=16385, new=(value,), new_formats=kind))
        found = pgdecode.decode_rows([payload], relation, types={20000: "record"})
        assert found["pair"].to_pylist() == ['(7,"a b")']


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param("bool", b"\2", id="bool past 1"),
        pytest.param("date", struct.pack(">i", 2**31 - 2), id="date past the range"),
        pytest.param("time", struct.pack(">q", 86_400_000_001), id="time past 24:00:00"),
        pytest.param("timestamp", struct.pack(">q", 2**63 - 2), id="timestamp past the range"),
        pytest.param("int4[]", struct.pack(">iiIii", 1, 0, 23, 2**31 - 1, 1), id="array count without bytes"),
        pytest.param("int4[]", struct.pack(">iiI", 7, 0, 23), id="seven dimensions"),
        pytest.param("int4[]", struct.pack(">iiIiiii", 2, 0, 23, 0, 1, -1, 1), id="negative size"),
        pytest.param("int4[]", struct.pack(">iiIiii", 1, 0, 23, 1, 2**31 - 1, -1) + b"x", id="left over"),
        pytest.param("int4[]", struct.pack(">iiIiii", 1, 0, 20, 1, 1, -1), id="element of another type"),
        pytest.param(
            "int4[]", struct.pack(">iiIiiii", 2, 0, 23, 2**16, 1, 2**16, 1), id="product of sizes without bytes"
        ),
        pytest.param("int4[]", struct.pack(">iiIiiii", 1, 1, 23, 2, 2**31 - 1, -1, -1), id="upper bound past int32"),
        pytest.param("int2vector", struct.pack(">iiIiii", 1, 1, 21, 1, 0, -1), id="null in an int2vector"),
        pytest.param("int4range", b"\x80" + sized(b"\0\0\0\1") * 2, id="unknown flags of a range"),
        pytest.param("int4range", b"\x02" + sized(None) + sized(b"\0\0\0\2"), id="null bound"),
        pytest.param("int4multirange", struct.pack(">i", 2**31 - 1), id="multirange count without bytes"),
        pytest.param("int4multirange", struct.pack(">i", 1) + sized(None) + b"\0", id="null range"),
        pytest.param("hstore", struct.pack(">i", 1) + sized(None) + sized(b"v"), id="null key"),
        pytest.param("hstore", struct.pack(">i", 2**31 - 1), id="hstore count without bytes"),
        pytest.param("record", struct.pack(">i", 2**31 - 1), id="record count without bytes"),
        pytest.param("record", struct.pack(">iIi", 1, 25, 4) + b"abc", id="field cut"),
        pytest.param("record", struct.pack(">iIi", 1, 25, -1) + b"abc", id="record with more behind it"),
    ],
)
def test_what_is_no_value_is_a_fault(name: str, value: bytes) -> None:
    with pytest.raises(pgdecode.BadValue):
        printed(name, [value])


@pytest.mark.parametrize(
    ("name", "value"),
    [("bool", b""), ("int2", b"1"), ("float4", b"12345"), ("float8", b"1234"), ("date", b""), ("interval", bytes(15)),
     ("int4[]", bytes(11)), ("int4range", b""), ("hstore", b"123"), ("record", b""), ("vector", b"\0\2\0\0\0")],
)  # fmt: skip
def test_a_value_of_another_length_is_a_fault(name: str, value: bytes) -> None:
    with pytest.raises(pgdecode.WrongSize):
        printed(name, [value])


def test_a_fault_leaves_nothing_of_the_value_behind() -> None:
    good = struct.pack(">iiIii", 1, 0, 25, 2, 1) + sized(b"a b") + sized(b"c")
    bad = good[:-1] + b"\xff"
    array = decode_values(FORMS["numeric[]"], [None], binary=True)
    assert array.to_pylist() == [None]
    with pytest.raises(pgdecode.BadEncoding):
        printed("text[]", [good, bad])
    money = as_text(named("money[]") or FORMS["text"])
    unitless = struct.pack(">iiIii", 1, 0, 790, 1, 1) + sized(bytes(8))
    empty = struct.pack(">iiI", 0, 0, 790)
    found = decode_values(money, [empty, unitless, empty], binary=True, unrepresentable="null")
    assert found.to_pylist() == ["{}", None, "{}"]


@pytest.mark.full
def test_a_small_value_does_not_become_a_huge_text() -> None:
    # Each numeric has 131,072 digits in ten bytes; 8,200 of them would be 1 GiB, more than a server can send.
    number = struct.pack(">hhHHh", 1, 32767, 0, 0, 1)
    with pytest.raises(pgdecode.ValueTooLong):
        printed("numeric[]", [struct.pack(">iiIii", 1, 0, 1700, 8200, 1) + 8200 * sized(number)])


@given(value=st.binary(max_size=60))
def test_random_bytes_are_a_text_or_a_fault_of_any_type(value: bytes) -> None:
    for form in FORMS.values():
        assert_text_or_fault(form, value)


HEADS: dict[str, Callable[[int], bytes]] = {
    "array": lambda oid: struct.pack(">iiIii", 1, 0, oid, 2, 1),
    "matrix": lambda oid: struct.pack(">iiIiiii", 2, 1, oid, 1, 1, 2, -4),
    "record": lambda oid: struct.pack(">iI", 1, oid),
}


@pytest.mark.full
@pytest.mark.parametrize("head", HEADS)
@given(value=st.binary(max_size=40), other=st.binary(max_size=12))
def test_random_items_of_a_well_formed_head_are_a_text_or_a_fault(head: str, value: bytes, other: bytes) -> None:
    for oid, name in NAME_BY_OID.items():
        form = FORMS["record"] if head == "record" else FORMS.get(name + "[]")
        if form is not None:
            element = form.element
            typed = replace(form, element=replace(element, oid=oid)) if element else form
            assert_text_or_fault(typed, HEADS[head](oid) + sized(value) + (b"" if head == "record" else sized(other)))


def assert_text_or_fault(form: Decoding, value: bytes) -> None:
    try:
        found = printed(form, [value])
    except pgdecode.DecodeError:
        return
    assert [type(text) for text in found] == [str]
