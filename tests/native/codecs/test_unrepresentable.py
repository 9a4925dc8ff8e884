"""What becomes of values that PostgreSQL has and the Arrow types have not, under each `unrepresentable`."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest
from rows.test_rows import PAIRS, differences, tables_of

import pgdecode
from pgdecode import Column, Insert, Relation
from pgdecode.rows.row_schema import row_schema
from pgdecode.types.pgtypes import clamped, is_partial, named
from support.generators.encoder import encode
from support.oracles.recorded import renderings, values
from support.values import decode_values

INT64_MAX = 2**63 - 1
MIN_DAY = -2440588  # '4714-11-24 BC'::date - '1970-01-01', PostgreSQL's first day
MAX_DAY = 2145042905  # '5874897-12-31'::date - '1970-01-01', its last one
MIN_MOMENT = MIN_DAY * 86_400_000_000
NUMERIC_5_2 = (5 << 16 | 2) + 4  # numeric_typmod, numeric.c


def relation(type_id: int, typmod: int = -1) -> Relation:
    return Relation(16385, "public", "t", "f", (Column(0, "c", type_id, typmod),))


def batch(type_id: int, value: bytes, kind: str = "t", typmod: int = -1, **options: Any) -> pa.RecordBatch:
    payload = encode(Insert(relation_id=16385, new=(value,), new_formats=kind))
    found = pgdecode.decode_rows([payload], relation(type_id, typmod), **options)
    found.validate(full=True)
    return found


# Type OID, modifier, the server's text and binary forms of a value that does not fit, and what it clamps to.
EXTREMES = [
    pytest.param(1082, -1, "infinity", "7fffffff", MAX_DAY, id="date"),
    pytest.param(1082, -1, "-infinity", "80000000", MIN_DAY, id="date below"),
    pytest.param(1083, -1, "24:00:00", "000000141dd76000", 86_399_999_999, id="time"),
    pytest.param(1114, -1, "infinity", "7fffffffffffffff", INT64_MAX, id="timestamp"),
    pytest.param(1114, -1, "-infinity", "8000000000000000", MIN_MOMENT, id="timestamp below"),
    pytest.param(1114, -1, "294276-12-31 00:00:00", "7fffff4795db4000", INT64_MAX, id="year 294276"),
    pytest.param(1184, -1, "infinity", "7fffffffffffffff", INT64_MAX, id="timestamptz"),
    pytest.param(1184, -1, "-infinity", "8000000000000000", MIN_MOMENT, id="timestamptz below"),
    pytest.param(1700, NUMERIC_5_2, "Infinity", "00000000d0000000", 99999, id="numeric"),
    pytest.param(1700, NUMERIC_5_2, "-Infinity", "00000000f0000000", -99999, id="numeric below"),
]


def unscaled(array: pa.Array) -> int:
    """The number that a fixed-width value is, whatever Python's own types can hold."""
    data = array.buffers()[1].to_pybytes()
    return int.from_bytes(data[: array.type.bit_width // 8], "little", signed=True)


@pytest.mark.parametrize(("type_id", "typmod", "text", "binary", "nearest"), EXTREMES)
def test_clamp_takes_the_nearest_value_of_either_form(
    type_id: int, typmod: int, text: str, binary: str, nearest: int
) -> None:
    for value, kind in ((text.encode(), "t"), (bytes.fromhex(binary), "b")):
        with pytest.raises(pgdecode.Unrepresentable):
            batch(type_id, value, kind, typmod)
        found = batch(type_id, value, kind, typmod, unrepresentable="clamp")
        assert found.schema == row_schema(relation(type_id, typmod))
        assert unscaled(found["c"]) == nearest


@pytest.mark.parametrize(("type_id", "typmod", "text", "binary", "nearest"), EXTREMES)
def test_text_keeps_the_value_as_postgresql_prints_it(
    type_id: int, typmod: int, text: str, binary: str, nearest: int
) -> None:
    for value, kind in ((text.encode(), "t"), (bytes.fromhex(binary), "b")):
        found = batch(type_id, value, kind, typmod, unrepresentable="text")
        assert found.schema == row_schema(relation(type_id, typmod), unrepresentable="text")
        assert found["c"].to_pylist() == [text]


def test_an_infinite_interval_clamps_to_its_fields_ends() -> None:
    # As PostgreSQL 17 stores and sends it: timestamp.h, INTERVAL_NOEND and INTERVAL_NOBEGIN.
    for text, binary, months, us in (
        (b"infinity", "7fffffffffffffff7fffffff7fffffff", 2**31 - 1, INT64_MAX),
        (b"-infinity", "80000000000000008000000080000000", -(2**31), -INT64_MAX - 1),
    ):
        for value, kind in ((text, "t"), (bytes.fromhex(binary), "b")):
            found = batch(1186, value, kind, unrepresentable="clamp")
            assert found["c"].to_pylist() == [{"months": months, "days": months, "microseconds": us}]
            assert batch(1186, value, kind, unrepresentable="text")["c"].to_pylist() == [text.decode()]


@pytest.mark.parametrize(
    ("type_id", "typmod", "text", "binary"),
    [
        pytest.param(1700, NUMERIC_5_2, "NaN", "00000000c0000000", id="NaN"),
        pytest.param(
            1007,
            -1,
            "[0:1][1:2]={{1,2},{3,NULL}}",
            "00000002 00000001 00000017 00000002 00000000 00000002 00000001"
            "00000004 00000001 00000004 00000002 00000004 00000003 ffffffff",
            id="dimensions",
        ),
        pytest.param(1700, NUMERIC_5_2, "1.234", "0002 0000 0000 0003 0001 0924", id="digits past the scale"),
    ],
)
def test_what_has_no_nearest_value_stays_an_error_but_as_text(
    type_id: int, typmod: int, text: str, binary: str
) -> None:
    for value, kind in ((text.encode(), "t"), (bytes.fromhex(binary), "b")):
        for unrepresentable in ("error", "clamp"):
            with pytest.raises(pgdecode.Unrepresentable):
                batch(type_id, value, kind, typmod, unrepresentable=unrepresentable)
            (row,) = batch(type_id, value, kind, typmod, unrepresentable=unrepresentable, mode="PERMISSIVE").to_pylist()
            assert row["c"] is None
            assert "does not fit" in row["_error"]
        assert batch(type_id, value, kind, typmod, unrepresentable="null")["c"].null_count == 1
        assert batch(type_id, value, kind, typmod, unrepresentable="text")["c"].to_pylist() == [text]


@pytest.mark.parametrize(
    ("name", "text", "binary", "expected"),
    [
        pytest.param(
            "daterange",
            "[2000-01-01,infinity]",
            "06 00000004 00000000 00000004 7fffffff",
            {"lower": 10957, "upper": MAX_DAY},
            id="bound",
        ),
        pytest.param(
            "timestamptz[]",
            '{infinity,-infinity,"2000-01-01 00:00:00+00",NULL}',
            "00000001 00000001 000004a0 00000004 00000001 00000008 7fffffffffffffff 00000008 8000000000000000"
            "00000008 0000000000000000 ffffffff",
            [INT64_MAX, MIN_MOMENT, 946_684_800_000_000, None],
            id="elements",
        ),
        pytest.param(
            "tstzmultirange",
            '{["2000-01-01 00:00:00+00",infinity)}',
            "00000001 00000019 02 00000008 0000000000000000 00000008 7fffffffffffffff",
            [{"lower": 946_684_800_000_000, "upper": INT64_MAX}],
            id="bound in a multirange",
        ),
    ],
)
def test_clamp_reaches_elements_and_bounds(name: str, text: str, binary: str, expected: Any) -> None:
    decoding = named(name)
    assert decoding is not None
    for value, is_binary in ((text.encode(), False), (bytes.fromhex(binary), True)):
        array = decode_values(clamped(decoding), [value], binary=is_binary)
        assert array.type == decoding.arrow
        assert plain(array.cast(whole_numbers(array.type))[0].as_py()) == expected


def whole_numbers(arrow: pa.DataType) -> pa.DataType:
    """The same type with numbers for dates and times."""
    if pa.types.is_list(arrow):
        return pa.list_(whole_numbers(arrow.value_type))
    if pa.types.is_struct(arrow):
        return pa.struct([(field.name, whole_numbers(field.type)) for field in arrow])
    return pa.int32() if pa.types.is_date(arrow) else pa.int64() if pa.types.is_timestamp(arrow) else arrow


def plain(value: Any) -> Any:
    """Ranges without their flags."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    return {key: value[key] for key in ("lower", "upper")} if isinstance(value, dict) else value


PARTIAL = ["date", "time", "timestamp", "timestamptz", "interval", "float4", "float8"]
PARTIAL += ["int4[]", "tsrange", "daterange", "tstzmultirange[]"]


@pytest.mark.parametrize("name", PARTIAL)
def test_clamp_leaves_values_alone_that_fit(name: str) -> None:
    decoding = named(name)
    assert decoding is not None
    pairs = [pair for _, pair in values(name)] + renderings(name)
    assert len(pairs) >= 3
    fit = [pair.binary for pair in pairs if pair.binary is not None]
    usual = decode_values(decoding, fit, binary=True, unrepresentable="null")
    bounded = decode_values(clamped(decoding), fit, binary=True, unrepresentable="null")
    kept = [i for i in range(len(fit)) if usual[i].is_valid]
    assert kept
    assert bounded.take(kept).equals(usual.take(kept))


@pytest.mark.parametrize(
    ("name", "partial"),
    [(name, True) for name in PARTIAL]
    + [(name, False) for name in ("int4", "xid8", "numeric", "int4range", "int2vector", "vector", "hstore")],
)
def test_text_is_for_types_that_do_not_fit_and_the_schema_says_so(name: str, partial: bool) -> None:
    decoding = named(name)
    assert decoding is not None
    assert is_partial(decoding) == partial
    schema = row_schema(relation(20000), {20000: name}, unrepresentable="text")
    field = schema.field("c")
    assert field.type == (pa.string() if partial else decoding.arrow)
    assert (field.metadata.get(b"pg:form") == b"text") == partial
    assert field.metadata[b"pg:type"] == b"20000"
    assert schema.field("_old").type.field("c").type == field.type


def test_numeric_with_a_modifier_is_text_because_of_nan() -> None:
    schema = row_schema(relation(1700, NUMERIC_5_2), unrepresentable="text")
    assert schema.field("c").type == pa.string()
    assert schema.field("c").metadata == {
        b"pg:type": b"numeric",
        b"pg:typmod": str(NUMERIC_5_2).encode(),
        b"pg:form": b"text",
    }


@pytest.mark.parametrize(("text", "binary"), [pair for pair in PAIRS if ".types." in pair[0]])
def test_as_text_both_readings_of_the_same_wal_lose_nothing(text: str, binary: str) -> None:
    (tables, types), (others, _) = tables_of(text), tables_of(binary)
    n_compared = 0
    for key, (table, payloads) in tables.items():
        options: dict[str, Any] = {"type_messages": types, "mode": "PERMISSIVE", "unrepresentable": "text"}
        one = pgdecode.decode_rows(payloads, table, **options)
        other = pgdecode.decode_rows(others[key][1], table, **options)
        assert [error for error in one["_error"].to_pylist() if error] == []
        reported = other["_error"].is_valid().to_pylist()
        assert differences(one, other, reported) == {}, key
        n_compared += reported.count(False)
    assert n_compared


def test_hostile_bytes_are_no_reason_to_clamp() -> None:
    for type_id, value in (
        (1082, struct.pack(">i", 2**31 - 2)),
        (1114, struct.pack(">q", 2**63 - 2)),
        (1083, b"x" * 8),
    ):
        with pytest.raises(pgdecode.BadValue):
            batch(type_id, value, "b", unrepresentable="clamp")


# -- the largest floats, rounded -------------------------------------------------------------------------------------

# What snprintf("%.*g") makes of DBL_MAX and FLT_MAX, where it is past them: float8out and float4out at each
# extra_float_digits below 1. PostgreSQL 10 and 11 send the first of them by default.
ROUNDED = [
    *(
        pytest.param(701, f"{1.7976931348623157e308:.{n}g}", 1.7976931348623157e308, id=f"float8, {n} digits")
        for n in range(1, 16)
        if f"{1.7976931348623157e308:.{n}g}" in ("1.79769313486232e+308", "1.7976931349e+308", "1.797693135e+308")
        or n in (1, 2, 4, 5)
    ),
    pytest.param(700, "3.403e+38", 3.4028234663852886e38, id="float4, 4 digits"),
]


@pytest.mark.parametrize("sign", ["", "-"])
@pytest.mark.parametrize(("type_id", "text", "largest"), ROUNDED)
def test_the_largest_float_rounded_by_the_server_is_unrepresentable(
    type_id: int, text: str, largest: float, sign: str
) -> None:
    value = f"{sign}{text}".encode()
    with pytest.raises(pgdecode.Unrepresentable, match="column 'c'"):
        batch(type_id, value)
    (row,) = batch(type_id, value, mode="PERMISSIVE").to_pylist()
    assert row["c"] is None
    assert "does not fit" in row["_error"]
    found = batch(type_id, value, unrepresentable="null")
    assert (found["c"].to_pylist(), found["_error"].to_pylist()) == ([None], [None])
    assert batch(type_id, value, unrepresentable="clamp")["c"].to_pylist() == [-largest if sign else largest]
    assert batch(type_id, value, unrepresentable="text")["c"].to_pylist() == [value.decode()]


@pytest.mark.parametrize("text", ["1.8e+309", "1.9e+308", "1e+400", "1.79769313486233e+308", "1.7976931348623159e308"])
def test_what_no_server_writes_of_a_float_is_out_of_range(text: str) -> None:
    for unrepresentable in ("error", "null", "clamp"):
        with pytest.raises(pgdecode.OutOfRange):
            batch(701, text.encode(), unrepresentable=unrepresentable)


@pytest.mark.parametrize("text", ["3.5e+38", "3.4029e+38", "1e+39"])
def test_what_no_server_writes_of_a_float4_is_out_of_range(text: str) -> None:
    with pytest.raises(pgdecode.OutOfRange):
        batch(700, text.encode(), unrepresentable="null")


@pytest.mark.parametrize("text", ["1.7976931348623157e+308", "1.7976931348623e+308", "1.79769e+308", "-1.8e+307"])
def test_a_float_that_rounds_to_a_float_is_one(text: str) -> None:
    for unrepresentable in ("error", "null", "clamp"):
        assert batch(701, text.encode(), unrepresentable=unrepresentable)["c"].to_pylist() == [float(text)]
    assert batch(700, b"3.40282e+38")["c"].to_pylist() == [3.402820018375656e38]


LARGEST = 1.7976931348623157e308


@pytest.mark.parametrize(
    ("declared", "text", "clamped_value"),
    [
        pytest.param("float8[]", "{1.79769313486232e+308,1}", [LARGEST, 1.0], id="array"),
        pytest.param("range(float8)", "[-1.79769313486232e+308,1)", {"lower": -LARGEST, "upper": 1.0}, id="range"),
        pytest.param(
            "multirange(float8)", "{[1,1.79769313486232e+308)}", [{"lower": 1.0, "upper": LARGEST}], id="multirange"
        ),
        pytest.param("(a float8, b text)", "(1.79769313486232e+308,x)", {"a": LARGEST, "b": "x"}, id="composite"),
        pytest.param("double precision", "1.79769313486232e+308", LARGEST, id="domain"),
        pytest.param("vector", "[3.403e+38,1]", [3.4028234663852886e38, 1.0], id="vector"),
    ],
)
def test_the_largest_float_is_reached_inside_of_other_types(declared: str, text: str, clamped_value: Any) -> None:
    said = {"types": {20000: declared}}
    with pytest.raises(pgdecode.Unrepresentable):
        batch(20000, text.encode(), **said)
    assert batch(20000, text.encode(), unrepresentable="null", **said)["c"].to_pylist() == [None]
    assert plain_parts(batch(20000, text.encode(), unrepresentable="clamp", **said)["c"][0].as_py()) == clamped_value
    if declared != "vector":  # it prints all digits of its floats: no text column for this
        assert batch(20000, text.encode(), unrepresentable="text", **said)["c"].to_pylist() == [text]


def plain_parts(value: Any) -> Any:
    if isinstance(value, list):
        return [plain_parts(item) for item in value]
    return plain(value) if isinstance(value, dict) and "lower" in value else value


def test_a_numeric_read_as_float8_is_clamped_too() -> None:
    for sign, largest in (("", LARGEST), ("-", -LARGEST)):
        value = f"{sign}1e400".encode()
        said = {"types": {"numeric": "float8"}}
        with pytest.raises(pgdecode.Unrepresentable):
            batch(1700, value, **said)
        assert batch(1700, value, unrepresentable="clamp", **said)["c"].to_pylist() == [largest]
        assert batch(1700, value, unrepresentable="text", mode="PERMISSIVE", **said)["c"].type == pa.float64()


def test_clamped_columns_of_floats_are_read_in_blocks_too() -> None:
    values = [None if i % 7 == 3 else f"{i / 8}".encode() for i in range(2000)]
    values[1000] = b"1.79769313486232e+308"
    payloads = [
        encode(Insert(relation_id=16385, new=(value,), new_formats="n" if value is None else "t")) for value in values
    ]
    found = pgdecode.decode_rows(pa.array(payloads, pa.binary()), relation(701), unrepresentable="clamp")["c"]
    expected = [None if value is None else float(value) for value in values]
    expected[1000] = LARGEST
    assert found.to_pylist() == expected
