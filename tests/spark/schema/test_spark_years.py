"""Years that Python cannot represent: they are found in all parts of rows, and treated as unrepresentable."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pgdecode
from pgdecode import Column, Delete, Insert, Relation, Update
from spark_udfs.schema.nested_fields import with_nested_fields
from spark_udfs.schema.years import checked_years, clamped, holds_years, outside
from support.generators.encoder import encode

DATE, TIMESTAMP, TIMESTAMPTZ, DATES, DATE_RANGE, DATE_RANGES, INT = 1082, 1114, 1184, 1182, 3912, 4535, 23
RELATION_ID = 16385


def relation(*type_ids: int) -> Relation:
    """Make a relation with columns a, b and so on."""
    columns = tuple(Column(0, "abcdef"[i], type_id, -1) for i, type_id in enumerate(type_ids))
    return Relation(RELATION_ID, "public", "t", "f", columns)


def letters(values: tuple[bytes | None, ...]) -> str:
    return "".join("n" if value is None else "t" for value in values)


def insert(*new: bytes | None, xid: int | None = None) -> bytes:
    return encode(Insert(RELATION_ID, new, letters(new), xid=xid))


def checked(
    payloads: list[bytes | None], table: Relation, mode: str = "FAILFAST", unrepresentable: str = "error"
) -> Any:
    """Decode and check."""
    rows = pgdecode.decode_rows(payloads, table, mode=mode)
    found = checked_years(rows, pa.array(payloads, pa.binary()), table, mode, unrepresentable)
    found.validate(full=True)
    assert found.schema.equals(rows.schema, check_metadata=True)
    return found


# Python's range, from its documentation: datetime.MINYEAR is 1, datetime.MAXYEAR is 9999. The text is the server's.
INSIDE = [
    pytest.param(DATE, b"0001-01-01", id="first date"),
    pytest.param(DATE, b"9999-12-31", id="last date"),
    pytest.param(TIMESTAMP, b"0001-01-01 00:00:00", id="first timestamp"),
    pytest.param(TIMESTAMP, b"9999-12-31 23:59:59.999999", id="last timestamp"),
    pytest.param(TIMESTAMPTZ, b"0001-01-01 00:00:00+00", id="first timestamp with zone"),
    pytest.param(TIMESTAMPTZ, b"9999-12-31 20:59:59.999999-03", id="last timestamp with zone"),
    pytest.param(DATES, b"{0001-01-01,NULL,9999-12-31}", id="array"),
    pytest.param(DATE_RANGE, b"[0001-01-01,9999-12-31)", id="range"),
    pytest.param(DATE_RANGE, b"[0001-01-01,)", id="open range"),
    pytest.param(DATE, None, id="null"),
]
OUTSIDE = [
    pytest.param(DATE, b"0001-12-31 BC", id="date before"),
    pytest.param(DATE, b"10000-01-01", id="date after"),
    pytest.param(TIMESTAMP, b"0001-12-31 23:59:59.999999 BC", id="timestamp before"),
    pytest.param(TIMESTAMP, b"10000-01-01 00:00:00", id="timestamp after"),
    pytest.param(TIMESTAMPTZ, b"0001-01-01 00:59:59.999999+01", id="timestamp with zone before"),
    pytest.param(TIMESTAMPTZ, b"9999-12-31 21:00:00-03", id="timestamp with zone after"),
    pytest.param(DATES, b"{2020-01-01,NULL,10000-01-01}", id="in an array"),
    pytest.param(DATE_RANGE, b"[2020-01-01,10000-01-01)", id="in a range"),
    pytest.param(DATE_RANGES, b"{[2020-01-01,2020-01-02),[9999-01-01,10000-01-01)}", id="in a multirange"),
]


@pytest.mark.parametrize(("type_id", "text"), INSIDE)
def test_years_in_pythons_range_are_unchanged(type_id: int, text: bytes | None) -> None:
    table = relation(INT, type_id)
    payloads: list[bytes | None] = [insert(b"1", text), None]
    expected = pgdecode.decode_rows(payloads, table)
    assert checked(payloads, table).equals(expected)
    # Python can represent all of them.
    expected.to_pylist()


@pytest.mark.parametrize(("type_id", "text"), OUTSIDE)
def test_years_outside_pythons_range_are_unrepresentable(type_id: int, text: bytes) -> None:
    table = relation(INT, type_id)
    payloads: list[bytes | None] = [insert(b"1", None), insert(b"2", text), None]
    with pytest.raises(pgdecode.Unrepresentable) as error:
        checked(payloads, table)
    detail = "column 'b' is outside the years 1 to 9999, which Spark cannot collect (years=\"any\" allows it)"
    # I, relation, N, number of columns, then two times kind and length, with the digit between them
    assert str(error.value) == f"row 1, offset 19: {detail}"
    assert (error.value.row, error.value.tag, error.value.relation) == (1, "I", RELATION_ID)
    rows = checked(payloads, table, mode="PERMISSIVE").to_pylist()
    assert [(row["a"], row["b"]) for row in rows] == [(1, None), (2, None), (None, None)]
    assert [row["_error"] for row in rows] == [None, f"NOT_REPRESENTABLE at offset 19: {detail}", None]
    rows = checked(payloads, table, unrepresentable="null").to_pylist()
    assert [(row["a"], row["b"], row["_error"]) for row in rows] == [(1, None, None), (2, None, None), (None,) * 3]


def old_and_new(value: bytes) -> list[Any]:
    """Rows with a value in each possible place, streamed and not."""
    good = (b"7", b"2020-01-01", b"2020-01-01")
    bad = (b"7", None, value)
    found = []
    for xid in (None, 0x80000001):
        found += [
            Insert(RELATION_ID, bad, "tnt", xid=xid),
            Delete(RELATION_ID, "O", bad, "tnt", xid=xid),
            Update(RELATION_ID, "O", bad, "tnt", good, "ttt", xid=xid),
            Update(RELATION_ID, "O", good, "ttt", bad, "tnt", xid=xid),
            Update(RELATION_ID, "O", bad, "tnt", (b"8", None, None), "tnu", xid=xid),
            Update(RELATION_ID, None, None, None, (b"7", None, value), "tut", xid=xid),
        ]
    return found


@pytest.mark.parametrize("number", range(len(old_and_new(b""))))
def test_row_offset_and_column_are_those_of_another_bad_value_at_the_place(number: int) -> None:
    table = relation(INT, DATE, DATE)
    with pytest.raises(pgdecode.Unrepresentable) as infinite:
        pgdecode.decode_rows([encode(old_and_new(b"infinity")[number])], table)
    with pytest.raises(pgdecode.Unrepresentable) as far:
        checked([encode(old_and_new(b"10000-01-01")[number])], table)
    assert str(far.value).split(": column 'c'")[0] == str(infinite.value).split(": column 'c'")[0]
    assert (far.value.row, far.value.offset, far.value.tag) == (0, infinite.value.offset, infinite.value.tag)


def test_the_old_row_loses_such_a_value_too_and_nothing_else() -> None:
    table = relation(INT, DATE, DATES)
    good = (b"1", b"2020-01-01", b"{2020-01-02}")
    bad = (b"2", b"10000-01-01", b"{2020-01-02,10000-01-01}")
    payloads: list[bytes | None] = [
        encode(Update(RELATION_ID, "O", bad, "ttt", good, "ttt")),
        encode(Update(RELATION_ID, "O", good, "ttt", bad, "ttt")),
        insert(*good),
    ]
    rows = checked(payloads, table, unrepresentable="null").to_pylist()
    days = [dt.date(2020, 1, 1), [dt.date(2020, 1, 2)]]
    assert [[row["a"], row["b"], row["c"]] for row in rows] == [[1, *days], [2, None, None], [1, *days]]
    olds = [row["_old"] and list(row["_old"].values()) for row in rows]
    assert olds == [[2, None, None], [1, *days], None]


def test_the_first_bad_row_is_raised_and_of_a_row_the_first_column() -> None:
    table = relation(DATE, DATE)
    far, near = b"10000-01-01", b"2020-01-01"
    # Before the second of two dates: 8 bytes of the message, kind, length, 10 bytes of the first date, kind, length.
    with pytest.raises(pgdecode.Unrepresentable, match=r"^row 1, offset 28: column 'b'"):
        checked([insert(near, near), insert(near, far), insert(far, near)], table)
    with pytest.raises(pgdecode.Unrepresentable, match=r"^row 0, offset 13: column 'a'"):
        checked([insert(far, far)], table)
    (row,) = checked([insert(far, far)], table, mode="PERMISSIVE").to_pylist()
    assert row["_error"].startswith("NOT_REPRESENTABLE at offset 13: column 'a'")


def test_earlier_errors_are_kept() -> None:
    table = relation(INT, DATE)
    payloads: list[bytes | None] = [insert(b"x", b"10000-01-01"), b"E", insert(b"1", b"10000-01-01")]
    before = pgdecode.decode_rows(payloads, table, mode="PERMISSIVE")["_error"].to_pylist()
    rows = checked(payloads, table, mode="PERMISSIVE").to_pylist()
    assert [row["b"] for row in rows] == [None] * 3
    assert [row["_error"] for row in rows[:2]] == before[:2]
    assert rows[2]["_error"].startswith("NOT_REPRESENTABLE at offset 19: column 'b'")


def test_clamped_values_are_the_nearest_that_python_has() -> None:
    table = relation(DATE, DATES, TIMESTAMPTZ, DATE_RANGE)
    values = (
        b"0044-03-15 BC",
        b"{10000-01-01,NULL,2020-01-01}",
        b"10000-01-01 00:00:00+00",
        b"[2020-01-01,10000-01-01)",
    )
    payload = encode(Update(RELATION_ID, "O", values, "tttt", values, "tttt"))
    (row,) = checked([payload], table, unrepresentable="clamp").to_pylist()
    expected = {
        "a": dt.date.min,
        "b": [dt.date.max, None, dt.date(2020, 1, 1)],
        "c": dt.datetime.max.replace(tzinfo=dt.UTC),
        "d": {
            "lower": dt.date(2020, 1, 1),
            "upper": dt.date.max,
            "lower_inclusive": True,
            "upper_inclusive": False,
            "empty": False,
        },
    }
    assert {name: row[name] for name in "abcd"} == expected
    assert row["_old"] == expected
    assert row["_error"] is None


EPOCH = dt.date(1970, 1, 1).toordinal()


def in_python(day: int | None) -> bool:
    try:
        return day is None or bool(dt.date.fromordinal(EPOCH + day))
    except (ValueError, OverflowError):
        return False


@given(st.lists(st.none() | st.lists(st.none() | st.integers(-719_170, -719_155) | st.integers(2_932_890, 2_932_900))))
def test_python_decides_what_is_outside_also_in_slices(rows: list[list[int | None] | None]) -> None:
    array = pa.array(rows, pa.list_(pa.int32())).cast(pa.list_(pa.date32()))
    expected = [row is not None and not all(map(in_python, row)) for row in rows]
    for start in (0, 1):
        part = array.slice(start)
        mask = outside(part)
        assert (mask.to_pylist() if mask is not None else [False] * len(part)) == expected[start:]
        within = with_nested_fields(part, clamped)
        within.validate(full=True)
        assert outside(within) is None
        kept = pa.array([i for i, bad in enumerate(expected[start:]) if not bad], pa.int64())
        assert within.take(kept).equals(part.take(kept))


def test_values_under_nulls_do_not_count() -> None:
    days = pa.array([2_932_897, 0], pa.int32()).cast(pa.date32())
    hidden = pa.StructArray.from_arrays([days], names=["d"], mask=pa.array([True, False]))
    assert outside(hidden) is None or outside(hidden).to_pylist() == [False, False]
    assert with_nested_fields(hidden, clamped).to_pylist() == [None, {"d": dt.date(1970, 1, 1)}]


@pytest.mark.parametrize(
    ("arrow", "holds"),
    [
        (pa.date32(), True),
        (pa.timestamp("us", "UTC"), True),
        (pa.list_(pa.struct([("lower", pa.timestamp("us"))])), True),
        (pa.list_(pa.int64()), False),
        (pa.struct([("months", pa.int32())]), False),
        (pa.time64("us"), False),
        (pa.map_(pa.string(), pa.string()), False),
    ],
    ids=str,
)
def test_types_that_may_hold_years_are_known(arrow: pa.DataType, holds: bool) -> None:
    assert holds_years(arrow) is holds
