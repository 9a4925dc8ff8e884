"""Type names in the spellings of PostgreSQL's documentation (table 8.1 and section 8.15)."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pgdecode.types.pgtypes import NAME_BY_OID, named, range_of, scalar
from pgdecode.types.type_parser import KNOWN, MAX_DEPTH, builtin_name, declared
from support.each import each


@each(
    ("text", "plain"),
    [
        ("integer", "int4"),
        ("INT", "int4"),
        ("bigint", "int8"),
        ("smallint", "int2"),
        ("boolean", "bool"),
        ("real", "float4"),
        ("double precision", "float8"),
        ("Double  Precision", "float8"),
        ("float", "float8"),
        ("float(24)", "float4"),
        ("float(25)", "float8"),
        ("character varying", "varchar"),
        ("character varying(10)", "varchar"),
        ("varchar(10)", "varchar"),
        ("character(3)", "bpchar"),
        ("char", "bpchar"),
        ("national character varying(3)", "varchar"),
        ('"char"', "char"),
        ("bit varying(8)", "varbit"),
        ("bit(3)", "bit"),
        ("timestamp", "timestamp"),
        ("timestamp(3)", "timestamp"),
        ("timestamp without time zone", "timestamp"),
        ("timestamp(3) with time zone", "timestamptz"),
        ("timestamp with time zone", "timestamptz"),
        ("timestamptz(0)", "timestamptz"),
        ("time(6) with time zone", "timetz"),
        ("time without time zone", "time"),
        ("interval", "interval"),
        ("interval year to month", "interval"),
        ("interval day to second(3)", "interval"),
        ("pg_catalog.int4", "int4"),
        ("public.citext", "citext"),
        ("ext.hstore", "hstore"),
        ("vector(3)", "vector"),
        ("int4[]", "int4[]"),
        ("integer [3]", "int4[]"),
        ("integer array", "int4[]"),
        ("integer ARRAY[4]", "int4[]"),
        ("int4[][]", "int4[]"),
        ("_int4", "int4[]"),
        ("timestamp(3) with time zone[]", "timestamptz[]"),
        ("varchar(10)[]", "varchar[]"),
        ("daterange", "daterange"),
        ("int4multirange[]", "int4multirange[]"),
        ("oidvector", "oidvector"),
    ],
)
def test_a_spelling_means_the_same_type_as_in_postgresql(text: str, plain: str) -> None:
    found, wanted = declared(text), named(plain)
    assert wanted is not None
    assert (found.codec, found.arrow, found.oid) == (wanted.codec, wanted.arrow, wanted.oid)


@pytest.mark.parametrize(
    ("text", "arrow"),
    [
        ("numeric(12,2)", pa.decimal128(12, 2)),
        ("decimal(12, 2)", pa.decimal128(12, 2)),
        ("dec(5)", pa.decimal128(5, 0)),
        ("numeric(38,38)", pa.decimal128(38, 38)),
        ("numeric", pa.string()),
        ("numeric(39,2)", pa.string()),
        ("numeric(3,-5)", pa.string()),
        ("numeric(2,5)", pa.string()),
        ("numeric(12,2)[]", pa.list_(pa.decimal128(12, 2))),
        ("enum", pa.string()),
        ("(street text, zip int4)", pa.struct([("street", pa.string()), ("zip", pa.int32())])),
        (
            '( A text , "A b" (x int4[], "y""z" decimal(4,1))[] )[]',
            pa.list_(
                pa.struct(
                    [
                        ("a", pa.string()),
                        (
                            "A b",
                            pa.list_(pa.struct([("x", pa.list_(pa.int32())), ('y"z', pa.decimal128(4, 1))])),
                        ),
                    ]
                )
            ),
        ),
        ("range(numeric(4,1))", range_of(scalar("numeric", (4 << 16 | 1) + 4)).arrow),
        ("multirange(float8)[]", pa.list_(pa.list_(range_of(scalar("float8")).arrow))),
        ("(t timestamp(3) with time zone, c character varying(3))", None),
    ],
)
def test_a_modifier_or_field_gives_the_arrow_type(text: str, arrow: pa.DataType | None) -> None:
    wanted = pa.struct([("t", pa.timestamp("us", "UTC")), ("c", pa.string())]) if arrow is None else arrow
    assert declared(text).arrow == wanted


def test_a_composite_may_refer_to_other_types() -> None:
    types = {"public.pt": "(x int4, y int4)", "public.line": "(a public.pt, b public.pt[])", 5: "int4"}
    point = pa.struct([("x", pa.int32()), ("y", pa.int32())])
    assert declared("public.line[]", types).arrow == pa.list_(pa.struct([("a", point), ("b", pa.list_(point))]))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param("foo", "no type 'foo'; a type is one of PostgreSQL", id="unknown"),
        pytest.param("Integr", "(did you mean integer?)", id="misspelt"),
        pytest.param("public.mood", 'types does not describe public.mood as "enum"', id="undescribed"),
        pytest.param("", "a type is missing", id="nothing"),
        pytest.param("(a)", "a type is missing", id="field without type"),
        pytest.param("(a int, a text)", "two fields of the same name", id="fields of one name"),
        pytest.param("range", "'(' is missing", id="range of nothing"),
        pytest.param("()", "no fields", id="no field"),
        pytest.param("(a int", "',' is missing", id="open composite"),
        pytest.param("(a int,)", "a name is missing", id="nothing after a comma"),
        pytest.param("int4[", "']' is missing", id="open bracket"),
        pytest.param("int4]", "left over", id="left over"),
        pytest.param("int4;", "unexpected ';'", id="other character"),
        pytest.param("int4 int4", "no type 'int4 int4' (did you mean int4", id="two types"),
        pytest.param("numeric(", "modifier is not a number", id="open modifier"),
        pytest.param("numeric(a)", "modifier is not a number", id="modifier in letters"),
        pytest.param("numeric(0)", "a modifier of numeric is 1 to 1000", id="precision 0"),
        pytest.param("numeric(1,2,3)", "numeric takes 2 modifiers", id="three modifiers"),
        pytest.param("numeric(5,1001)", "-1000 to 1000", id="scale"),
        pytest.param("text(3)", "text takes no modifiers", id="modifier of text"),
        pytest.param("timestamp(7)", "0 to 6", id="microseconds"),
        pytest.param("float(54)", "1 to 53", id="float"),
        pytest.param("int4[][]x", "left over", id="after brackets"),
    ],
)
def test_an_invalid_type_is_refused_with_a_reason(text: str, why: str) -> None:
    with pytest.raises(ValueError, match="is not a valid type") as caught:
        declared(text)
    assert why in str(caught.value)


def test_a_composite_that_contains_itself_is_refused() -> None:
    types = {"public.a": "(b public.b)", "public.b": "(a public.a[])"}
    with pytest.raises(ValueError, match=r"public\.a contains itself"):
        declared("public.a", types)


def test_nesting_is_limited() -> None:
    def nested(depth: int) -> str:
        return "int4" if depth == 0 else f"(a {nested(depth - 1)})"

    assert declared(nested(MAX_DEPTH)).codec == "composite"
    with pytest.raises(ValueError, match="types are nested"):
        declared(nested(MAX_DEPTH + 1))
    chain = {f"public.t{i}": f"(a public.t{i + 1})" for i in range(100)} | {"public.t100": "int4"}
    with pytest.raises(ValueError, match=r"too deep|nested"):
        declared("public.t0", chain)


def test_every_listed_name_is_accepted() -> None:
    for name in KNOWN:
        assert declared(f'"{name}"' if name == "char" else name).arrow is not None
    assert {
        builtin_name(name) for name in NAME_BY_OID.values() if name.removesuffix("[]") not in ("char", "bpchar")
    } == {name for name in NAME_BY_OID.values() if name.removesuffix("[]") not in ("char", "bpchar")}


@pytest.mark.parametrize("key", ["mood", "numeric(12,2)", "foo[]"])
def test_a_key_of_a_user_defined_type_needs_its_schema(key: str) -> None:
    with pytest.raises(ValueError, match="needs its schema"):
        builtin_name(key)
