"""`types=` and `columns=`: what a caller says of types that the stream does not describe, or wants converted."""

from __future__ import annotations

import json
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pgdecode
from pgdecode import Column, Insert, Relation, Type
from pgdecode.rows.row_schema import sql_type_name
from pgdecode.types.pgtypes import as_text
from pgdecode.types.type_parser import declared
from pgdecode.types.user_types import UserType
from support.generators.encoder import encode
from support.values import decode_values

COMPOSITES = json.loads((Path(__file__).parent.parent / "data" / "composites.json").read_text())
RELATION = pgdecode.decode(bytes.fromhex(COMPOSITES["relation"]))
TYPES = [pgdecode.decode(bytes.fromhex(message)) for message in COMPOSITES["types"]]
PERSON = next(column for column in RELATION.columns if column.name == "p")
SAID = {
    "public.address": "(street text, zip int4, geo point)",
    "public.mood": "enum",
    "public.one": "(sole text)",
    "public.person": (
        "(name varchar(20), born date, home public.address, tags text[], past public.address[], mood public.mood, "
        "z int4, cost numeric(8,2), r int4range)"
    ),
    "public._zip": "integer[]",
}


def recorded(form: str, **options: Any) -> pa.RecordBatch:
    """Decode the recorded inserts in one of their forms."""
    payloads = [bytes.fromhex(payload) for payload in COMPOSITES[form]]
    batch = pgdecode.decode_rows(payloads, RELATION, type_messages=TYPES, **options)
    batch.validate(full=True)
    return batch


def one(type_id: int, value: bytes, *, binary: bool = False, typmod: int = -1, **options: Any) -> pa.Array:
    """Decode one value of a column `v`."""
    relation = Relation(16385, "public", "t", "d", (Column(0, "v", type_id, typmod),))
    message = Insert(relation_id=16385, new=(value,), new_formats="b" if binary else "t")
    batch = pgdecode.decode_rows([encode(message)], relation, **options)
    batch.validate(full=True)
    return batch["v"]


def cells(form: str, i: int) -> list[bytes | None]:
    """The values of one column as they were recorded."""
    return [pgdecode.decode(bytes.fromhex(payload)).new[i] for payload in COMPOSITES[form]]


# -- what the database's own types are -------------------------------------------------------------------------------


def test_both_forms_of_composites_enums_and_domains_give_the_same_table() -> None:
    text = recorded("text", types=SAID, unrepresentable="null")
    assert text.equals(recorded("binary", types=SAID, unrepresentable="null"))
    assert text["_error"].null_count == text.num_rows


def test_a_composite_has_the_values_that_were_inserted() -> None:
    rows = recorded("text", types=SAID, unrepresentable="null")
    assert rows["a"].to_pylist() == [
        {"street": 'Main "St", 5', "zip": 12345, "geo": "(1.5,-2)"},
        {"street": None, "zip": None, "geo": None},
        None,
        {"street": "tab\tnl\n", "zip": 2147483647, "geo": None},
    ]
    assert rows["aa"].to_pylist()[0] == [
        {"street": "a b", "zip": 1, "geo": None},
        None,
        {"street": "", "zip": 2, "geo": "(0,0)"},
    ]
    assert rows["o"].to_pylist() == [{"sole": "v"}, {"sole": None}, {"sole": ""}, {"sole": '"'}]
    person = rows["p"][0].as_py()
    assert person["tags"] == ["a", 'b"c,\\d', None, "NULL", ""]
    assert person["past"] == [{"street": "q", "zip": 7, "geo": None}, None]
    assert (person["mood"], person["cost"]) == ('happy, "very"', Decimal("1.50"))
    assert person["home"] == {"street": "x(y)\\z", "zip": None, "geo": None}
    assert rows["m"].to_pylist() == ['happy, "very"', "null", None, "sad"]
    assert rows["mm"].to_pylist() == [["sad", "null", None], [], None, ["sad"]]
    assert rows["zz"].to_pylist() == [[4, None, 5], None, [], [1]]


def test_a_composite_as_text_is_printed_from_binary_as_the_server_prints_it() -> None:
    said = {**SAID, "public.address": "record", "public.one": "record"}
    binary = recorded("binary", types=said, unrepresentable="null")
    for name in ("a", "o"):
        assert binary[name].equals(recorded("text", unrepresentable="null")[name])


def test_columns_as_text_are_printed_from_binary_by_the_types_that_are_described() -> None:
    text = {column.name: "text" for column in RELATION.columns}
    binary = recorded("binary", types=SAID, columns=text)
    sent = [None if value is None else value.decode() for value in cells("text", RELATION.columns.index(PERSON))]
    assert binary["p"].to_pylist() == sent
    assert binary.equals(recorded("text", types=SAID, columns=text))
    # range_send of an empty range is one byte: RANGE_EMPTY, utils/rangetypes.h.
    ranges = {20001: "range(float8)"}
    assert one(20001, b"\x01", binary=True, types=ranges, columns={"v": "text"}).to_pylist() == ["empty"]
    money = one(790, (1234).to_bytes(8, "big"), binary=True, types={"money": "money(2)"}, columns={"v": "text"})
    assert money.to_pylist() == ["12.34"]
    with pytest.raises(pgdecode.Unrepresentable):
        one(790, b"12345678", binary=True, types={"money": "text"}, columns={"v": "text"})
    assert one(790, b"$12.34", types={"money": "money(2)"}, columns={"v": "text"}).to_pylist() == ["$12.34"]


def test_a_described_composite_is_printed_as_the_server_prints_it() -> None:
    # The fields that are composites or enums have OIDs that only the description knows.
    person = as_text(declared(SAID["public.person"], SAID))
    values = {form: cells(form, RELATION.columns.index(PERSON)) for form in ("text", "binary")}
    assert decode_values(person, values["binary"], binary=True).to_pylist() == [
        value and value.decode() for value in values["text"]
    ]


def test_what_nobody_describes_is_text_and_in_binary_a_fault() -> None:
    assert recorded("text")["a"][0].as_py() == '("Main ""St"", 5",12345,"(1.5,-2)")'
    with pytest.raises(pgdecode.UnknownType, match="column 'a' is binary and of an unknown type: name it by types="):
        recorded("binary")


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        pytest.param("(street text, zip int4)", "has 35 bytes that are no value of its type", id="fewer fields"),
        pytest.param("(a text, b int4, c point, d int4)", "no value of its type", id="more fields"),
        pytest.param("(a text, b int8, c point)", None, id="another number"),
    ],
)
def test_a_composite_of_another_shape_is_a_fault(shape: str, text: str | None) -> None:
    said = {**SAID, "public.address": shape, "public.person": "record"}
    with pytest.raises(pgdecode.BadValue, match=r"column 'a'"):
        recorded("binary", types=said)
    if text is not None:
        with pytest.raises(pgdecode.BadValue, match=text):
            recorded("text", types=said)


def field(oid: int, value: bytes | None) -> bytes:
    return struct.pack(">I", oid) + (b"\xff" * 4 if value is None else struct.pack(">i", len(value)) + value)


ADDRESS = struct.pack(">i", 2) + field(25, b"a") + field(23, struct.pack(">i", 7))


@pytest.mark.parametrize(
    ("value", "error"),
    [
        pytest.param(b"", pgdecode.WrongSize, id="empty"),
        pytest.param(ADDRESS[:3], pgdecode.WrongSize, id="count cut"),
        pytest.param(ADDRESS[:9], pgdecode.BadValue, id="length cut"),
        pytest.param(ADDRESS[:-1], pgdecode.BadValue, id="value cut"),
        pytest.param(ADDRESS + b"x", pgdecode.BadValue, id="left over"),
        pytest.param(b"\xff" * 4 + ADDRESS[4:], pgdecode.BadValue, id="count -1"),
        pytest.param(struct.pack(">i", 1) + field(25, b"a"), pgdecode.BadValue, id="one field"),
        pytest.param(struct.pack(">i", 2) + field(23, b"a") + field(23, None), pgdecode.BadValue, id="other OID"),
        pytest.param(struct.pack(">iIi", 2, 25, 0x7FFFFFFF), pgdecode.BadValue, id="length past the end"),
        pytest.param(struct.pack(">iIi", 2, 25, -2), pgdecode.BadValue, id="length -2"),
        pytest.param(struct.pack(">i", 2) + field(25, b"\xff") + field(23, None), pgdecode.BadEncoding, id="not UTF-8"),
    ],
)
def test_a_malformed_binary_composite_is_a_fault(value: bytes, error: type[Exception]) -> None:
    with pytest.raises(error, match="column 'v'"):
        one(20000, value, binary=True, types={20000: "(a text, b int4)"})


def test_a_domain_in_a_composite_sends_its_own_oid() -> None:
    value = struct.pack(">i", 2) + field(25, b"a") + field(20001, struct.pack(">i", 7))
    assert one(20000, value, binary=True, types={20000: "(a text, b int4)"}).to_pylist() == [{"a": "a", "b": 7}]


def test_a_domain_over_an_array_in_a_composite_does_too() -> None:
    array = struct.pack(">iiIiiii", 1, 0, 23, 1, 1, 4, 7)
    value = struct.pack(">i", 1) + field(20001, array)
    assert one(20000, value, binary=True, types={20000: "(a int4[])"}).to_pylist() == [{"a": [7]}]


@pytest.mark.parametrize(
    "text", ["", "(", "a,1)", "(a,1", "(a,1)x", '("a,1)', "(a)", "(a,1,2)", "(a\\,1)", '(a"b",1)', '("a"b,1)', "((a,1)"]
)
def test_malformed_text_of_a_composite_is_a_fault(text: str) -> None:
    with pytest.raises(pgdecode.BadValue, match="column 'v'"):
        one(20000, text.encode(), types={20000: "(a text, b int4)"})


def test_an_array_of_a_type_is_known_by_its_element() -> None:
    said = {"public.mood": "enum"}
    message = Type(type_id=20001, namespace="public", name="_mood")
    assert one(20001, b"{a,NULL}", types=said, type_messages=[message]).to_pylist() == [["a", None]]
    said = {"public.mood[]": "enum[]"}
    assert one(20001, b"{a,NULL}", types=said, type_messages=[message]).to_pylist() == [["a", None]]


@pytest.mark.parametrize("name", ["d", 'A "d"', "d.e"])
def test_an_array_of_a_domain_over_arrays_is_an_array_of_arrays(name: str) -> None:
    # As PostgreSQL prints array['{1,2}', '{3,null}']::d[], and sends it: elements of the domain's own OID.
    said = {f"public.{name}": "int4[]"}
    message = Type(type_id=20001, namespace="public", name=f"_{name}")
    wanted = [[[1, 2], [3, None]]]
    assert one(20001, b'{"{1,2}","{3,NULL}"}', types=said, type_messages=[message]).to_pylist() == wanted
    head = struct.pack(">iiI", 1, 1, 23)
    first = head + struct.pack(">iiiiii", 2, 1, 4, 1, 4, 2)
    second = head + struct.pack(">iiiii", 2, 1, 4, 3, -1)
    sized = b"".join(struct.pack(">i", len(item)) + item for item in (first, second))
    value = struct.pack(">iiIii", 1, 0, 20000, 2, 1) + sized
    assert one(20001, value, binary=True, types=said, type_messages=[message]).to_pylist() == wanted


def test_a_type_of_the_databases_own_that_is_named_like_a_built_in_one_is_not_taken_for_it() -> None:
    message = Type(type_id=20001, namespace="public", name="date")
    assert one(20001, b"tomorrow", type_messages=[message]).to_pylist() == ["tomorrow"]


# -- what is converted -----------------------------------------------------------------------------------------------


def numeric(weight: int, sign: int, dscale: int, *groups: int) -> bytes:
    return struct.pack(f">HhHH{len(groups)}H", len(groups), weight, sign, dscale, *groups)


PRICE = numeric(0, 0, 4, 12, 3456)  # 12.3456


@pytest.mark.parametrize("said", [{"types": {1700: "numeric(20,4)"}}, {"columns": {"v": "decimal(20,4)"}}])
def test_a_numeric_without_modifier_is_a_decimal_where_the_caller_says_its_size(said: dict[str, Any]) -> None:
    for found in (one(1700, b"12.3456", **said), one(1700, PRICE, binary=True, **said)):
        assert found.type == pa.decimal128(20, 4)
        assert found.to_pylist() == [Decimal("12.3456")]


@pytest.mark.parametrize("key", ["numeric", "decimal", "pg_catalog.numeric", "DEC", 1700])
def test_a_built_in_type_has_many_keys(key: str | int) -> None:
    assert one(1700, b"1.5", types={key: "double precision"}).to_pylist() == [1.5]


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
def test_a_numeric_that_does_not_fit_the_size_is_a_fault(binary: bool) -> None:
    with pytest.raises(
        pgdecode.Unrepresentable, match=r"column 'v' does not fit its Arrow type \(choose with unrepresentable=\)"
    ):
        one(1700, PRICE if binary else b"12.3456", binary=binary, types={"numeric": "numeric(20,3)"})
    with pytest.raises(pgdecode.Unrepresentable):
        one(1700, PRICE if binary else b"12.3456", binary=binary, types={"numeric": "numeric(5,4)"})


@pytest.mark.parametrize(
    ("text", "binary", "wanted"),
    [
        pytest.param("12.3456", PRICE, 12.3456, id="plain"),
        pytest.param("0", numeric(0, 0, 0), 0.0, id="zero"),
        pytest.param("-0.1", numeric(-1, 0x4000, 1, 1000), -0.1, id="tenth"),
        pytest.param("NaN", numeric(0, 0xC000, 0), float("nan"), id="NaN"),
        pytest.param("Infinity", numeric(0, 0xD000, 32), float("inf"), id="infinity"),
        pytest.param("-Infinity", numeric(0, 0xF000, 32), float("-inf"), id="minus infinity"),
        pytest.param("9007199254740993", numeric(3, 0, 0, 9007, 1992, 5474, 993), 9007199254740992.0, id="halfway"),
    ],
)
def test_a_numeric_as_float8_is_rounded_to_the_nearest_from_both_forms(text: str, binary: bytes, wanted: float) -> None:
    for found in (
        one(1700, text.encode(), columns={"v": "float8"}),
        one(1700, binary, binary=True, columns={"v": "float8"}),
    ):
        assert found.type == pa.float64()
        assert repr(found[0].as_py()) == repr(wanted)


@pytest.mark.parametrize(
    ("text", "binary"),
    [
        pytest.param("1" + "0" * 400, numeric(100, 0, 0, 1), id="too large"),
        pytest.param("-1" + "0" * 400, numeric(100, 0x4000, 0, 1), id="too large and negative"),
        pytest.param("0." + "0" * 399 + "1", numeric(-100, 0, 400, 1), id="too small"),
    ],
)
def test_a_numeric_that_no_float8_is_near_to_is_a_fault(text: str, binary: bytes) -> None:
    # numeric_float8 of the server refuses the same: "is out of range for type double precision".
    for value, is_binary in ((text.encode(), False), (binary, True)):
        with pytest.raises(pgdecode.Unrepresentable):
            one(1700, value, binary=is_binary, columns={"v": "float8"})
        options = {"columns": {"v": "float8"}, "unrepresentable": "null"}
        assert one(1700, value, binary=is_binary, **options).to_pylist() == [None]


def test_an_array_is_converted_by_its_elements() -> None:
    assert one(1231, b"{1.5,NULL}", types={"numeric[]": "float8[]"}).to_pylist() == [[1.5, None]]
    found = one(1231, b"{1.5,NULL}", columns={"v": "numeric(4,2)[]"})
    assert found.to_pylist() == [[Decimal("1.50"), None]]
    binary = struct.pack(">iiIii", 1, 0, 1700, 1, 1) + struct.pack(">i", len(PRICE)) + PRICE
    assert one(1231, binary, binary=True, columns={"v": "float8[]"}).to_pylist() == [[12.3456]]


@pytest.mark.parametrize(
    ("type_id", "text", "binary"),
    [
        pytest.param(23, "-7", struct.pack(">i", -7), id="int4"),
        pytest.param(16, "t", b"\1", id="bool"),
        pytest.param(1082, "2000-01-02", struct.pack(">i", 1), id="date"),
        pytest.param(17, "\\x00ff", b"\0\xff", id="bytea"),
        pytest.param(1700, "12.3456", PRICE, id="numeric"),
        pytest.param(3904, "[1,3)", b"\x02" + b"\0\0\0\4\0\0\0\1" + b"\0\0\0\4\0\0\0\3", id="range"),
        pytest.param(1007, "{1,NULL}", struct.pack(">iiIiiiii", 1, 1, 23, 2, 1, 4, 1, -1), id="array"),
        pytest.param(2950, "00a3170f-fb76-dc37-c1ea-aac499239549", None, id="uuid"),
    ],
)
def test_anything_can_be_text(type_id: int, text: str, binary: bytes | None) -> None:
    for name in ("text", "pg_catalog.text"):
        assert one(type_id, text.encode(), columns={"v": name}).to_pylist() == [text]
    if binary is not None:
        assert one(type_id, binary, binary=True, columns={"v": "text"}).to_pylist() == [text]


def test_money_of_a_scale_is_a_decimal() -> None:
    for key in (790, "money"):
        found = one(790, struct.pack(">q", 1234), binary=True, types={key: "money(2)"})
        assert found.to_pylist() == [Decimal("12.34")]
        array = struct.pack(">iiIiiiq", 1, 0, 790, 1, 1, 8, 1234)
        for binary, value in ((True, array), (False, b"{$12.34}")):
            assert one(791, value, binary=binary, types={key: "money(2)"}).to_pylist() == [[Decimal("12.34")]]


def test_an_extensions_type_may_be_text_too() -> None:
    message = Type(type_id=20001, namespace="public", name="hstore")
    binary = struct.pack(">i", 1) + struct.pack(">i", 1) + b"k" + struct.pack(">i", -1)
    for key in ("public.hstore", "hstore", 20001):
        found = one(20001, binary, binary=True, types={key: "text"}, type_messages=[message])
        assert found.to_pylist() == ['"k"=>NULL']
    # A type that only happens to be called hstore is what the caller says.
    assert one(20001, b"a", binary=True, types={20001: "enum"}, type_messages=[message]).to_pylist() == ["a"]


def test_the_type_of_a_domain_is_its_base_type_to_conversions() -> None:
    message = Type(type_id=20001, namespace="", name="numeric")
    options: dict[str, Any] = {"type_messages": [message], "binary": True}
    assert one(20001, PRICE, types={20001: "float8"}, **options).to_pylist() == [12.3456]
    assert one(20001, PRICE, types={"numeric": "numeric(9,4)"}, **options).to_pylist() == [Decimal("12.3456")]


def test_a_columns_own_override_goes_before_its_types() -> None:
    found = one(1700, b"1.5", types={1700: "numeric(4,2)"}, columns={"v": "float8"})
    assert found.to_pylist() == [1.5]


@pytest.mark.parametrize("same", ["int4", "integer", "pg_catalog.int4"])
def test_a_built_in_type_may_be_said_to_be_what_it_is(same: str) -> None:
    for key in (23, "pg_catalog.int4"):
        assert one(23, b"7", types={key: same}).to_pylist() == [7]


@pytest.mark.parametrize(
    ("type_id", "other"),
    [(23, "int8"), (23, "date"), (1082, "timestamp"), (701, "numeric"), (25, "int4"), (1007, "int8[]"), (23, "int4[]")],
)
def test_no_other_conversion_is_made(type_id: int, other: str) -> None:
    with pytest.raises(ValueError, match=r"column 'v' is \S+ and cannot be read as"):
        one(type_id, b"1", columns={"v": other})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        pytest.param(
            {"columns": {"w": "text"}}, r"columns names \['w'\], but relation 't' has no such column", id="column"
        ),
        pytest.param({"types": {"mood": "enum"}}, "needs its schema", id="key without schema"),
        pytest.param({"types": {23: "integr"}}, r"no type 'integr' \(did you mean integer\?\)", id="no such type"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        one(23, b"1", **options)


def test_the_schema_follows_what_the_caller_says() -> None:
    relation = Relation(16385, "public", "t", "d", (Column(0, "v", 1700, -1),))
    schema = pgdecode.row_schema(relation, columns={"v": "float8"})
    assert (schema.field("v").type, schema.field("v").metadata[b"pg:type"]) == (pa.float64(), b"numeric")
    assert schema.equals(pgdecode.decode_rows([], relation, columns={"v": "float8"}).schema, check_metadata=True)


# -- domains ---------------------------------------------------------------------------------------------------------


def domain_over(base: str, namespace: str = "", *, value: bytes, **options: Any) -> pa.Array:
    """Decode one text value of a domain, whose Type message names its base type (getBaseType, logicalrep_write_typ)."""
    return one(20000, value, type_messages=[Type(20000, namespace, base)], **options)


@pytest.mark.parametrize(
    ("key", "base", "namespace", "wanted", "value", "expected"),
    [
        pytest.param("text[]", "_text", "", "text", b"{a,b}", "{a,b}", id="text[]"),
        pytest.param("_text", "_text", "", "text", b"{a,b}", "{a,b}", id="text[] by its name in pg_type"),
        pytest.param("pg_catalog.text[]", "_text", "pg_catalog", "text", b"{a}", "{a}", id="text[] with its schema"),
        pytest.param("numeric[]", "_numeric", "", "float8[]", b"{1.5,2}", [1.5, 2.0], id="numeric[]"),
        pytest.param("numeric", "numeric", "", "numeric(8,2)", b"1.5", Decimal("1.50"), id="numeric"),
        pytest.param("integer[]", "_int4", "", "text", b"{1}", "{1}", id="int4[] as SQL says it"),
        pytest.param("int4range", "int4range", "", "text", b"[1,3)", "[1,3)", id="range"),
        pytest.param("int4range[]", "_int4range", "", "text", b'{"[1,3)"}', '{"[1,3)"}', id="range[]"),
        pytest.param("int4multirange", "int4multirange", "", "text", b"{[1,3)}", "{[1,3)}", id="multirange"),
        pytest.param("date", "date", "", "text", b"2020-01-02", "2020-01-02", id="date"),
        pytest.param("bit varying[]", "_varbit", "", "text", b"{101}", "{101}", id="varbit[]"),
        pytest.param("hstore", "hstore", "public", "text", b'"a"=>"1"', '"a"=>"1"', id="an extension's"),
        pytest.param(
            "hstore[]", "_hstore", "public", "text", b'{"\\"a\\"=>\\"1\\""}', '{"\\"a\\"=>\\"1\\""}', id="hstore[]"
        ),
        pytest.param(1009, "_text", "", "text", b"{a}", "{a}", id="text[] by its OID"),
        pytest.param(1700, "numeric", "", "float8", b"1.5", 1.5, id="numeric by its OID"),
        pytest.param("public.d[]", "_d", "public", "int4[]", b"{1}", [1], id="array of a domain"),
        pytest.param("public.d", "_d", "public", "int4", b"{1}", [1], id="array of a domain by its element"),
    ],
)
def test_what_types_say_of_a_type_holds_for_a_domain_over_it(
    key: str | int, base: str, namespace: str, wanted: str, value: bytes, expected: Any
) -> None:
    # A domain over a domain is the same to the stream: it names the innermost type.
    assert domain_over(base, namespace, value=value, types={key: wanted})[0].as_py() == expected


def test_what_types_say_of_a_domain_itself_goes_first() -> None:
    said: dict[str | int, str] = {"text[]": "text", 20000: "text[]"}
    assert domain_over("_text", value=b"{a}", types=said)[0].as_py() == ["a"]
    said = {1009: "text[]", "text[]": "text"}
    assert domain_over("_text", value=b"{a}", types=said)[0].as_py() == "{a}"


def test_a_type_of_ones_own_that_is_called_like_a_built_in_one_is_not_meant() -> None:
    assert domain_over("date", "public", value=b"today", types={"date": "text"})[0].as_py() == "today"
    assert domain_over("numeric", "shop", value=b"x", types={"numeric": "float8"})[0].as_py() == "x"
    assert domain_over("_numeric", "shop", value=b"x", types={"numeric[]": "float8[]"})[0].as_py() == "x"


@pytest.mark.parametrize("name", ["text[]", "_text"])
def test_a_key_of_an_array_holds_for_its_columns_however_it_is_written(name: str) -> None:
    assert one(1009, b"{a,b}", types={name: "text"})[0].as_py() == "{a,b}"


@pytest.mark.parametrize(
    ("namespace", "key", "expected"),
    [
        ("public", "public.mood", "mood"),
        ("a.b", "a.b.mood", "mood"),
        ("a.b", "a.b.mood[]", "mood[]"),
        ("a", "a.b.mood", "b.mood"),
        ("pg_catalog", "a.b.positive", "positive"),  # a domain, with the schema of its base type
        (None, "a.b.mood[]", "mood[]"),
        (None, '"a.b".mood', "mood"),
        (None, 'a."b.mood"', "b.mood"),
        (None, "mood", "mood"),
    ],
)
def test_the_name_of_a_type_does_not_have_a_part_of_its_schema(namespace: str | None, key: str, expected: str) -> None:
    messages = {} if namespace is None else {16400: Type(16400, namespace, "mood")}
    assert sql_type_name(16400, messages, {16400: UserType(16400, key, "enum")}) == expected
