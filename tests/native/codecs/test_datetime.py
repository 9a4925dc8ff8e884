"""date, time, timetz, timestamp, timestamptz and interval, against what servers printed and sent."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgdecode.protocol.errors import DecodeError
from support.each import each
from support.oracles.printer import calendar, clock, interval, moment, offset
from support.values import decode_values

DATA = Path(__file__).parents[2] / "data"
TYPES = ["date", "time", "timetz", "timestamp", "timestamptz", "interval"]
EPOCH_DAYS = 10957  # 2000-01-01 - 1970-01-01
DAY = 86_400_000_000
INT64_MAX = 2**63 - 1
MIN_DAY, END_DATE, END_TIMESTAMP = -2451545, 2145031949, 9223371331200000000  # datatype/timestamp.h, since 2000-01-01
STYLES = ["postgres", "postgres_verbose", "iso_8601", "sql_standard"]


def decoded(pg_type: str, value: bytes, *, binary: bool = False) -> Any:
    """What a value decodes to, in integers: days, microseconds, (months, days, microseconds), or text."""
    array = decode_values(pg_type, [value], binary=binary)
    array.validate(full=True)
    if pg_type == "interval":
        return tuple(array[0].as_py().values())
    if pg_type == "timetz":
        return array[0].as_py()
    return array.cast(pa.int32() if pg_type == "date" else pa.int64())[0].as_py()


def outcome(pg_type: str, value: bytes, *, binary: bool = False) -> Any:
    """What a value decodes to, or the code of its fault."""
    try:
        return decoded(pg_type, value, binary=binary)
    except DecodeError as error:
        return error.code


def expected(pg_type: str, raw: bytes) -> Any:
    """What a server's binary value must decode to, by plain arithmetic on its integers."""
    if pg_type == "interval":
        us, days, months = struct.unpack(">qii", raw)
        ends = {(INT64_MAX, 2**31 - 1, 2**31 - 1), (-(2**63), -(2**31), -(2**31))}
        return "NOT_REPRESENTABLE" if (us, days, months) in ends else (months, days, us)
    if pg_type == "timetz":
        us, west = struct.unpack(">qi", raw)
        return clock(us) + offset(-west)
    number = int.from_bytes(raw, "big", signed=True)
    bits = len(raw) * 8
    if pg_type == "time":
        return number if number < DAY else "NOT_REPRESENTABLE"
    moved = number + (EPOCH_DAYS if pg_type == "date" else EPOCH_DAYS * DAY)
    infinite = number in (2 ** (bits - 1) - 1, -(2 ** (bits - 1)))
    return "NOT_REPRESENTABLE" if infinite or moved >= 2 ** (bits - 1) else moved


def recorded() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / "datetimes.jsonl").read_text().splitlines()[1:]]


def records() -> list[Any]:
    found = []
    for line in (DATA / "values.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record["type"] in TYPES:
            setting = "-".join(record["settings"].values())
            since = record["server_versions"][0]
            found.append(pytest.param(record, id=f"{record['type']} {record['sql_literal']} {setting} {since}"))
    return found


def is_iso(setting: str) -> bool:
    return "DateStyle" not in setting or "DateStyle ISO" in setting


@each("record", records())
def test_what_pgoutput_sent_decodes_alike_in_text_and_binary(record: dict[str, Any]) -> None:
    text = bytes.fromhex(record["text"]["hex"])
    results = {expected(record["type"], bytes.fromhex(binary["hex"])) for binary in record["binary"] or []}
    for binary in record["binary"] or []:
        raw = bytes.fromhex(binary["hex"])
        assert outcome(record["type"], raw, binary=True) == expected(record["type"], raw)
    if text in (b"--2147483648 0:00:00", b"@ -2147483648 days ago"):
        results = {"BAD_VALUE"}  # 10-14 print these for an interval whose sign they cannot turn
    elif not record["settings"].get("datestyle", "ISO").startswith("ISO") and b"infinity" not in text:
        results = {"SETTING"}
    assert {outcome(record["type"], text)} == results


@pytest.mark.parametrize("line", recorded(), ids=lambda line: f"{line['type']} {line['setting']}")
def test_what_a_server_printed_decodes_to_what_it_sent(line: dict[str, Any]) -> None:
    for text, raw in line["values"]:
        wanted = expected(line["type"], bytes.fromhex(raw)) if is_iso(line["setting"]) else "SETTING"
        assert outcome(line["type"], text.encode()) == wanted, text
        if raw is not None:
            assert outcome(line["type"], bytes.fromhex(raw), binary=True) == wanted, text


@pytest.mark.parametrize("line", recorded(), ids=lambda line: f"{line['type']} {line['setting']}")
def test_decoded_values_print_as_the_server_printed_them(line: dict[str, Any]) -> None:
    for text, _ in line["values"] if is_iso(line["setting"]) else []:
        value = outcome(line["type"], text.encode())
        if value == "NOT_REPRESENTABLE":
            continue
        if line["type"] == "date":
            assert "".join(calendar(value)) == text
        elif line["type"] == "time":
            assert clock(value) == text
        elif line["type"] == "timestamp":
            assert moment(value) == text
        elif line["type"] == "timetz":
            assert value == text
        elif line["type"] == "interval":
            assert interval(*value, line["setting"].removeprefix("IntervalStyle ")) == text


@given(st.integers(MIN_DAY, END_DATE - 1))
def test_any_date_decodes_in_both_forms(day: int) -> None:
    text = "".join(calendar(day + EPOCH_DAYS)).encode()
    assert (
        decoded("date", text) == decoded("date", day.to_bytes(4, "big", signed=True), binary=True) == day + EPOCH_DAYS
    )


@given(
    st.integers(MIN_DAY * DAY, END_TIMESTAMP - 1) | st.integers(-(10**16), 10**16).map(lambda us: us // 1000 * 1000),
    st.none() | st.integers(-604799, 604799) | st.integers(-12, 14).map(lambda hours: hours * 3600),
)
def test_any_timestamp_decodes_in_both_forms(us: int, east: int | None) -> None:
    pg_type = "timestamp" if east is None else "timestamptz"
    text = moment(us + EPOCH_DAYS * DAY, east).encode()
    wanted = us + EPOCH_DAYS * DAY if us + EPOCH_DAYS * DAY <= INT64_MAX else "NOT_REPRESENTABLE"
    assert outcome(pg_type, text) == wanted
    assert outcome(pg_type, us.to_bytes(8, "big", signed=True), binary=True) == wanted


@given(st.integers(0, DAY) | st.integers(0, 86400).map(lambda second: second * 1_000_000), st.integers(-604799, 604799))
def test_any_time_of_day_decodes_in_both_forms(us: int, east: int) -> None:
    wanted = us if us < DAY else "NOT_REPRESENTABLE"
    assert outcome("time", clock(us).encode()) == outcome("time", us.to_bytes(8, "big"), binary=True) == wanted
    text = clock(us) + offset(east)
    assert decoded("timetz", text.encode()) == decoded("timetz", struct.pack(">qi", us, -east), binary=True) == text


@given(
    st.integers(-(2**31), 2**31 - 1) | st.integers(-30, 30),
    st.integers(-(2**31), 2**31 - 1) | st.integers(-30, 30),
    st.integers(-(2**63), 2**63 - 1) | st.integers(-(10**6), 10**6) | st.integers(-99, 99).map(lambda s: s * 10**8),
)
def test_any_interval_decodes_in_every_style_and_in_binary(months: int, days: int, us: int) -> None:
    raw = struct.pack(">qii", us, days, months)
    assert outcome("interval", raw, binary=True) == expected("interval", raw)
    for style in STYLES:
        text = interval(months, days, us, style)
        # Hours that 10-14 would print the same for both signs.
        if "-2147483648 hours" not in text:
            assert outcome("interval", text.encode()) == expected("interval", raw), text


TEXT = st.text(alphabet="0123456789-+:. BCPTYMDHS@agoyeardysmnhuic/", max_size=40).map(str.encode)


@pytest.mark.parametrize("pg_type", TYPES)
@given(st.binary(max_size=40) | TEXT, st.booleans())
def test_any_bytes_are_a_value_or_a_fault(pg_type: str, value: bytes, binary: bool) -> None:
    outcome(pg_type, value, binary=binary)


@pytest.mark.parametrize("line", recorded(), ids=lambda line: f"{line['type']} {line['setting']}")
@given(st.data())
def test_a_value_with_one_byte_changed_or_cut_is_a_value_or_a_fault(line: dict[str, Any], data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(line["values"]))[0].encode()
    at = data.draw(st.integers(0, len(text) - 1))
    outcome(line["type"], text[:at])
    outcome(line["type"], text[:at] + data.draw(st.binary(min_size=1, max_size=1)) + text[at + 1 :])


@each(
    ("pg_type", "text", "wanted"),
    [
        pytest.param("date", "1970-01-01", 0, id="epoch"),
        pytest.param("date", "0001-01-01", -719162, id="year 1"),
        pytest.param("date", "0001-12-31 BC", -719163, id="the day before year 1"),
        pytest.param("date", "0001-02-29 BC", -719469, id="1 BC is a leap year"),
        pytest.param("date", "4714-11-24 BC", MIN_DAY + EPOCH_DAYS, id="first date"),
        pytest.param("date", "5874897-12-31", 0x7FDA970C + EPOCH_DAYS, id="last date"),
        pytest.param("date", "4714-11-23 BC", "BAD_VALUE", id="before the first date"),
        pytest.param("date", "5874898-01-01", "BAD_VALUE", id="after the last date"),
        pytest.param("date", "9999999-12-31", "BAD_VALUE", id="far past the last date"),
        pytest.param("date", "infinity", "NOT_REPRESENTABLE", id="date infinity"),
        pytest.param("date", "-infinity", "NOT_REPRESENTABLE", id="date minus infinity"),
        pytest.param("date", "1900-02-29", "BAD_VALUE", id="1900 is no leap year"),
        pytest.param("date", "2000-02-29", 11016, id="2000 is a leap year"),
        pytest.param("date", "2023-04-31", "BAD_VALUE", id="april has 30 days"),
        pytest.param("date", "2023-00-10", "BAD_VALUE", id="month 0"),
        pytest.param("date", "2023-13-10", "BAD_VALUE", id="month 13"),
        pytest.param("date", "2023-12-00", "BAD_VALUE", id="day 0"),
        pytest.param("date", "0000-01-01", "BAD_VALUE", id="there is no year 0"),
        pytest.param("date", "02023-01-01", "BAD_VALUE", id="five digits with a zero"),
        pytest.param("date", "2023-01-01 ", "BAD_VALUE", id="a space behind"),
        pytest.param("date", "2023-01-01 AD", "BAD_VALUE", id="another era"),
        pytest.param("date", "", "BAD_VALUE", id="empty date"),
        pytest.param("date", "2023-1-01", "BAD_VALUE", id="one digit of a month"),
        pytest.param("date", "29/02/2024", "SETTING", id="date SQL"),
        pytest.param("date", "29-02-2024", "SETTING", id="date Postgres"),
        pytest.param("date", "29.02.2024", "SETTING", id="date German"),
        pytest.param("time", "24:00:00", "NOT_REPRESENTABLE", id="24:00:00"),
        pytest.param("time", "23:59:60", "NOT_REPRESENTABLE", id="23:59:60"),
        pytest.param("time", "24:00:00.000001", "BAD_VALUE", id="past 24:00:00"),
        pytest.param("time", "23:59:59.9999999", "BAD_VALUE", id="seven digits of a second"),
        pytest.param("time", "23:59:59.", "BAD_VALUE", id="a point without digits"),
        pytest.param("time", "12:60:00", "BAD_VALUE", id="minute 60"),
        pytest.param("time", "12:00:00.5", 43200500000, id="half a second"),
        pytest.param("timetz", "12:34:56.789+05:30", "12:34:56.789+05:30", id="timetz"),
        pytest.param("timetz", "24:00:00-15:59:59", "24:00:00-15:59:59", id="timetz 24:00:00"),
        pytest.param("timetz", "00:00:00+167:59", "00:00:00+167:59", id="timetz of a TimeZone of 167 hours"),
        pytest.param("timetz", "00:00:00+168", "BAD_VALUE", id="timetz past 167 hours"),
        pytest.param("timetz", "00:00:00", "BAD_VALUE", id="timetz without an offset"),
        pytest.param("timestamp", "1970-01-01 00:00:00.000001", 1, id="a microsecond"),
        pytest.param("timestamp", "294247-01-10 04:00:54.775807", INT64_MAX, id="last that fits"),
        pytest.param("timestamp", "294247-01-10 04:00:54.775808", "NOT_REPRESENTABLE", id="first that does not fit"),
        pytest.param("timestamp", "294276-12-31 23:59:59.999999", "NOT_REPRESENTABLE", id="last timestamp"),
        pytest.param("timestamp", "294277-01-01 00:00:00", "BAD_VALUE", id="past the last timestamp"),
        pytest.param("timestamp", "5874897-12-31 00:00:00", "BAD_VALUE", id="a year that only dates have"),
        pytest.param("timestamp", "2024-02-30 00:00:00", "BAD_VALUE", id="february 30"),
        pytest.param("timestamp", "2024-02-29 24:00:00", "BAD_VALUE", id="hour 24"),
        pytest.param("timestamp", "2024-02-29T00:00:00", "BAD_VALUE", id="a T between"),
        pytest.param("timestamp", "2024-02-29 00:00:00+00", "BAD_VALUE", id="timestamp with an offset"),
        pytest.param("timestamp", "2024-02-29", "BAD_VALUE", id="timestamp without a time"),
        pytest.param("timestamp", "Thu 29 Feb 12:34:56.789012 2024", "SETTING", id="timestamp Postgres"),
        pytest.param("timestamptz", "1970-01-01 01:00:00+01", 0, id="an hour east"),
        pytest.param("timestamptz", "1969-12-31 23:16:52-00:43:08", 0, id="seconds in the offset"),
        pytest.param("timestamptz", "1970-01-01 05:30:00.5+05:30", 500000, id="half an hour"),
        pytest.param("timestamptz", "2024-02-29 00:00:00", "BAD_VALUE", id="timestamptz without an offset"),
        pytest.param("timestamptz", "2024-02-29 00:00:00+0", "BAD_VALUE", id="one digit of an offset"),
        pytest.param("timestamptz", "2024-02-29 00:00:00+00:60", "BAD_VALUE", id="minute 60 of an offset"),
        pytest.param("timestamptz", "2024-02-29 00:00:00+00:00:00:00", "BAD_VALUE", id="four parts of an offset"),
        pytest.param("timestamptz", "2024-02-29 00:00:00 UTC", "SETTING", id="a named zone"),
        pytest.param("timestamptz", "02/29/2024 12:34:56 EST", "SETTING", id="timestamptz SQL"),
        pytest.param("interval", "-1-2 -3 -4:05:06", (-14, -3, -14706000000), id="three signs"),
        pytest.param("interval", "+1-2 -3 +4:05:06.789", (14, -3, 14706789000), id="mixed signs"),
        pytest.param("interval", "-3 4:05:06", (0, -3, -14706000000), id="one sign for both fields"),
        pytest.param("interval", "3 4:05:06", (0, 3, 14706000000), id="no sign"),
        pytest.param("interval", "-3 days +04:05:06", (0, -3, 14706000000), id="signs of style postgres"),
        pytest.param("interval", "-3 days 04:05:06", "SETTING", id="a sign that IntervalStyle gives a meaning"),
        pytest.param("interval", "-1-2 3 4:05:06", "SETTING", id="a sign of three fields or of one"),
        pytest.param("interval", "-3 04:05:06", "SETTING", id="days without unit and padded hours"),
        pytest.param("interval", "@ 1 day -1.5 secs ago", (0, -1, 1500000), id="ago turns all signs"),
        pytest.param("interval", "@ 2147483648 days ago", (0, -(2**31), 0), id="the smallest days"),
        pytest.param("interval", "@ 2147483648 days", "BAD_VALUE", id="one day too many"),
        pytest.param("interval", "@ -2147483648 days ago", "BAD_VALUE", id="10-14 print -2147483648 days so"),
        pytest.param("interval", "@ 1 day -2147483648 hours ago", "BAD_VALUE", id="hours of either sign before 15"),
        pytest.param("interval", "--2147483648 0:00:00", "BAD_VALUE", id="two signs"),
        pytest.param("interval", "P-1Y-2M3DT-4H-5M-6.789S", (-14, 3, -14706789000), id="iso_8601"),
        pytest.param("interval", "PT-0.000001S", (0, 0, -1), id="a microsecond back"),
        pytest.param("interval", "PT0S", (0, 0, 0), id="zero of iso_8601"),
        pytest.param("interval", "P", "BAD_VALUE", id="P alone"),
        pytest.param("interval", "P1DT", "BAD_VALUE", id="nothing behind the T"),
        pytest.param("interval", "P1D4H", "BAD_VALUE", id="hours without T"),
        pytest.param("interval", "P1M1Y", "BAD_VALUE", id="units in another order"),
        pytest.param("interval", "P1.5D", "BAD_VALUE", id="a fraction of days"),
        pytest.param("interval", "-2562047788:00:54.775808", (0, 0, -(2**63)), id="the smallest microseconds"),
        pytest.param("interval", "2562047788:00:54.775808", "BAD_VALUE", id="a microsecond too many"),
        pytest.param("interval", "99999999999 days", "BAD_VALUE", id="eleven digits"),
        pytest.param("interval", "1 day 1 year", "BAD_VALUE", id="days before years"),
        pytest.param("interval", "infinity", "NOT_REPRESENTABLE", id="interval infinity"),
        pytest.param("interval", "1", "BAD_VALUE", id="no unit"),
        pytest.param("interval", "", "BAD_VALUE", id="empty interval"),
    ],
)
def test_text_edge(pg_type: str, text: str, wanted: Any) -> None:
    assert outcome(pg_type, text.encode()) == wanted


@pytest.mark.parametrize(
    ("pg_type", "raw", "wanted"),
    [
        pytest.param("date", "7fffffff", "NOT_REPRESENTABLE", id="date infinity"),
        pytest.param("date", "80000000", "NOT_REPRESENTABLE", id="date minus infinity"),
        pytest.param("date", "7ffffffe", "BAD_VALUE", id="would overflow with the epoch added"),
        pytest.param("date", "7fda970d", "BAD_VALUE", id="after the last date"),
        pytest.param("date", "ffda97a6", "BAD_VALUE", id="before the first date"),
        pytest.param("date", "000000", "WRONG_SIZE", id="date short"),
        pytest.param("time", "000000141dd76000", "NOT_REPRESENTABLE", id="24:00:00"),
        pytest.param("time", "000000141dd76001", "BAD_VALUE", id="past 24:00:00"),
        pytest.param("time", "ffffffffffffffff", "BAD_VALUE", id="before midnight"),
        pytest.param("timetz", "0000000000000000ffff1f01", "00:00:00+15:59:59", id="zones are west-positive"),
        pytest.param("timetz", "0000000000000000fff6c580", "BAD_VALUE", id="timetz 168 hours east"),
        pytest.param("timetz", "000000000000000080000000", "BAD_VALUE", id="timetz zone that has no negative"),
        pytest.param("timetz", "0000000000000000", "WRONG_SIZE", id="timetz without zone"),
        pytest.param("timestamp", "7ffca2fec4c81fff", INT64_MAX, id="last that fits"),
        pytest.param("timestamp", "7ffca2fec4c82000", "NOT_REPRESENTABLE", id="first that does not fit"),
        pytest.param("timestamp", "7fffff5bb3b2a000", "BAD_VALUE", id="past the last timestamp"),
        pytest.param("timestamptz", "8000000000000001", "BAD_VALUE", id="before the first timestamp"),
        pytest.param("timestamptz", "", "WRONG_SIZE", id="timestamptz empty"),
        pytest.param("interval", "7fffffffffffffff7fffffff7fffffff", "NOT_REPRESENTABLE", id="interval infinity"),
        pytest.param("interval", "80000000000000008000000080000000", "NOT_REPRESENTABLE", id="minus infinity"),
        pytest.param("interval", "000000000000000000000000", "WRONG_SIZE", id="interval short"),
    ],
)
def test_binary_edge(pg_type: str, raw: str, wanted: Any) -> None:
    assert outcome(pg_type, bytes.fromhex(raw), binary=True) == wanted
