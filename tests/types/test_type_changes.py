"""What a change of type makes of values, as tests/servers/type_changes.py finds it on PostgreSQL 10 to 18."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from pgdecode.types.pgtypes import NAME_BY_OID
from pgdecode.types.type_changes import ColumnType, TypeChange, compare_alike

_OIDS = {name: oid for oid, name in NAME_BY_OID.items()}


def kind(name: str, typmod: int = -1, *, is_domain: bool = False) -> ColumnType:
    return ColumnType(name, typmod, 20000 if is_domain else _OIDS[name], is_domain)


def numeric(precision: int, scale: int) -> ColumnType:
    return kind("numeric", (precision << 16 | scale) + 4)


@pytest.mark.parametrize(
    ("before", "after", "value", "expected"),
    [
        pytest.param(kind("int4"), kind("text"), "-7", "-7", id="int4 to text"),
        pytest.param(kind("int4"), numeric(10, 2), "1", "1.00", id="int4 to numeric"),
        pytest.param(numeric(12, 4), numeric(10, 2), "-1.5050", "-1.51", id="numeric rounds halves away from zero"),
        pytest.param(numeric(12, 4), numeric(10, 2), "-0.0040", "0.00", id="numeric has no negative zero"),
        pytest.param(kind("numeric"), kind("int4"), "2.5", "3", id="numeric to int4"),
        pytest.param(kind("float8"), kind("int4"), "2.5", None, id="a float that may be a half"),
        pytest.param(kind("float8"), kind("numeric"), "0.1", "0.1", id="float8 to numeric"),
        pytest.param(kind("float8"), kind("numeric"), "1e+20", "100000000000000000000", id="float8 with an exponent"),
        pytest.param(kind("bpchar", 9), kind("text"), "ab   ", "ab", id="char to text"),
        pytest.param(kind("text"), kind("bpchar", 9), "é", "é    ", id="text to char"),
        pytest.param(kind("text"), kind("varchar", 6), "ab  ", "ab", id="varchar that is too long by blanks"),
        pytest.param(kind("bool"), kind("text"), "t", "true", id="bool to text"),
        pytest.param(kind("inet"), kind("text"), "10.0.0.1", "10.0.0.1/32", id="inet to text"),
        pytest.param(kind("inet"), kind("cidr"), "10.0.0.1/24", None, id="inet with bits behind its mask"),
        pytest.param(kind("cidr"), kind("inet"), "::1/128", "::1", id="cidr to inet"),
        pytest.param(kind("macaddr"), kind("macaddr8"), "08:00:2b:01:02:03", "08:00:2b:ff:fe:01:02:03", id="macaddr"),
        pytest.param(kind("int4"), kind("oid"), "-7", "4294967289", id="int4 to oid"),
        pytest.param(kind("date"), kind("timestamp"), "0044-03-15 BC", "0044-03-15 00:00:00 BC", id="date BC"),
        pytest.param(kind("date"), kind("timestamp"), "15/03/2024", None, id="date of another DateStyle"),
        pytest.param(kind("timestamp"), kind("date"), "infinity", "infinity", id="infinite timestamp"),
        pytest.param(kind("timestamp"), kind("timestamptz"), "2024-01-01 00:00:00", None, id="by a time zone"),
        pytest.param(kind("text"), kind("int4"), "1", None, id="only with USING"),
        pytest.param(kind("json"), kind("jsonb"), "1", None, id="json to jsonb"),
        pytest.param(kind("int4"), kind("numeric", is_domain=True), "1", None, id="a domain has a modifier of its own"),
    ],
)
def test_a_value_becomes_what_the_server_makes_of_it_or_null(
    before: ColumnType, after: ColumnType, value: str, expected: str | None
) -> None:
    found = TypeChange(before, after).converted(pa.chunked_array([[value, None]], pa.string()))
    assert found.to_pylist() == [expected, None]


@pytest.mark.parametrize(
    ("before", "after", "values", "expected"),
    [
        pytest.param(
            *(numeric(12, 4), numeric(10, 2)),
            pa.array([Decimal("1.0050"), Decimal("-1.0050")], pa.decimal128(12, 4)),
            [Decimal("1.0100"), Decimal("-1.0100")],
            id="decimals",
        ),
        pytest.param(kind("float8"), kind("float4"), pa.array([0.1]), [0.10000000149011612], id="floats"),
        pytest.param(kind("int4"), kind("oid"), pa.array([-7], pa.int64()), [4294967289], id="integers"),
        pytest.param(
            *(kind("timestamp"), kind("timestamp", 0)),
            pa.array([946_684_800_500_000, 946_684_799_500_000], pa.int64()).cast(pa.timestamp("us")),
            [946_684_801_000_000, 946_684_799_000_000],
            id="times",
        ),
    ],
)
def test_arrow_values_become_those_of_the_new_type(
    before: ColumnType, after: ColumnType, values: pa.Array, expected: list[Any]
) -> None:
    found = TypeChange(before, after).converted(pa.chunked_array([values]))
    assert found.type == values.type
    plain = found.cast(pa.int64()) if pa.types.is_timestamp(found.type) else found
    assert plain.to_pylist() == expected


@pytest.mark.parametrize(
    ("before", "after", "is_kept"),
    [
        pytest.param(kind("varchar", 14), kind("varchar", 24), True, id="longer varchar"),
        pytest.param(kind("varchar", 24), kind("varchar", 14), False, id="shorter varchar"),
        pytest.param(kind("varchar", 24), kind("text"), True, id="varchar to text"),
        pytest.param(kind("text"), kind("varchar", 24), False, id="text to varchar"),
        pytest.param(numeric(10, 2), numeric(12, 2), True, id="more digits"),
        pytest.param(numeric(10, 2), numeric(12, 4), False, id="other scale"),
        pytest.param(numeric(10, 2), kind("numeric"), True, id="numeric without modifier"),
        pytest.param(kind("bpchar", 9), kind("bpchar", 12), False, id="longer char"),
        pytest.param(kind("timestamp", 0), kind("timestamp", 3), True, id="more digits of seconds"),
        pytest.param(kind("int4"), kind("int4", is_domain=True), True, id="domain"),
        pytest.param(kind("int4"), kind("int8"), False, id="longer integer"),
        pytest.param(ColumnType(None, -1, 20000), ColumnType(None, -1, 20001), False, id="user-defined types"),
    ],
)
def test_values_are_kept_if_the_server_does_not_rewrite_the_table(
    before: ColumnType, after: ColumnType, is_kept: bool
) -> None:
    assert TypeChange(before, after).is_kept is is_kept


def test_integers_of_any_size_and_longer_strings_are_compared_as_they_were_sent() -> None:
    assert compare_alike([kind("int2"), kind("int8"), kind("int4")])
    assert compare_alike([kind("varchar", 14), kind("varchar", 24), kind("text")])
    assert not compare_alike([kind("int4"), kind("text")])
    assert not compare_alike([kind("cidr"), kind("inet")])
