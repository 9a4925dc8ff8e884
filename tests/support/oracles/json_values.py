r"""Converts Arrow columns of any type to values for JSON, value by value in plain Python.

Dates and timestamps are in ISO 8601, with Z if they have a time zone. Years after 9999 have more digits, and those
before 1 end with " BC". Binary values are \x and hexadecimal digits. Decimals are exact text. NaN and infinity are
written as in PostgreSQL.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_MICROSECONDS_PER_DAY = 86_400_000_000
_MICROSECONDS_OF_UNIT = {"s": 1_000_000, "ms": 1000, "us": 1}

_to_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
# Characters that move a terminal's cursor or reverse text, and that JSON does not escape: C1 controls, bidi overrides.
_MOVING = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def encode(value: object) -> str:
    """Write a value as JSON on one line, without characters that move a terminal's cursor."""
    return _MOVING.sub(lambda found: f"\\u{ord(found[0]):04x}", _to_json(value))


def json_values(array: pa.Array) -> list[Any]:
    """Convert a column of any type to JSON values. Structs and maps become objects, lists become lists."""
    type = array.type
    if isinstance(array, pa.ExtensionArray):
        return json_values(array.storage)
    if pa.types.is_dictionary(type):
        return json_values(array.dictionary_decode())
    if is_json(type) or pa.types.is_null(type):
        values: list[Any] = array.to_pylist()
        return values
    if pa.types.is_timestamp(type):
        return _timestamps(array)
    if pa.types.is_date32(type):
        return each(date_to_text, array.cast(pa.int32()))
    if pa.types.is_temporal(type):
        return each(str, array.cast(pa.string()))
    if pa.types.is_nested(type):
        return _nested(array)
    if pa.types.is_float32(type):
        # Arrow's text has the digits of a float32; Python's float is wider and would show more.
        return each(lambda text: _plain(float(text)), array.cast(pa.string()))
    return each(_plain, array)


def is_json(type: pa.DataType) -> bool:
    """Whether JSON and CSV represent values of a type directly."""
    simple: bool = pa.types.is_integer(type) or pa.types.is_boolean(type) or pa.types.is_string(type)
    return simple


def each(write: Callable[[Any], Any], array: pa.Array) -> list[Any]:
    """Apply a function to each value that is not null."""
    return [None if value is None else write(value) for value in array.to_pylist()]


def cut(values: Sequence[Any], lengths: Sequence[int | None]) -> list[Any]:
    """Divide values into lists of the given lengths. A length of None makes None."""
    rows: list[Any] = []
    start = 0
    for length in lengths:
        if length is None:
            rows.append(None)
        else:
            rows.append(values[start : start + length])
            start += length
    return rows


def date_to_text(days: int, rest: str = "") -> str:
    """Write days since 1970 as a date, with the rest of a timestamp.

    Source: `civil_from_days`, howardhinnant.github.io/date_algorithms.html, which is exact for all whole numbers.
    """
    days += 719_468  # since 0000-03-01
    era = days // 146_097
    day_of_era = days - era * 146_097
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month = (5 * day_of_year + 2) // 153  # from March
    day = day_of_year - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    year = year_of_era + era * 400 + (month <= 2)
    text = f"{year if year > 0 else 1 - year:04}-{month:02}-{day:02}{rest}"
    return text if year > 0 else f"{text} BC"


def timestamp_to_text(microseconds: int, zone: str = "Z") -> str:
    """Write microseconds since 1970 as ISO 8601 with a zone."""
    days, rest = divmod(microseconds, _MICROSECONDS_PER_DAY)
    seconds, fraction = divmod(rest, 1_000_000)
    minutes, second = divmod(seconds, 60)
    return date_to_text(days, f"T{minutes // 60:02}:{minutes % 60:02}:{second:02}.{fraction:06}{zone}")


def bytes_to_text(value: bytes) -> str:
    r"""Write bytes as PostgreSQL writes bytea: \x and hexadecimal digits."""
    return "\\x" + value.hex()


def _timestamps(array: pa.Array) -> list[str | None]:
    zone = "" if array.type.tz is None else "Z"
    if array.type.unit == "ns":
        # Arrow's text has the nanoseconds. All values are in the years 1677 to 2262.
        text = array.cast(pa.timestamp("ns")).cast(pa.string())
        return each(lambda value: value.replace(" ", "T") + zone, text)
    scale = _MICROSECONDS_OF_UNIT[array.type.unit]
    return each(lambda number: timestamp_to_text(number * scale, zone), array.cast(pa.int64()))


def _nested(array: pa.Array) -> list[Any]:
    if pa.types.is_map(array.type):
        return _maps(array)
    if not pa.types.is_struct(array.type):
        return cut(json_values(array.flatten()), pc.list_value_length(array).to_pylist())
    names = [field.name for field in array.type]
    columns = [json_values(column) for column in array.flatten()]
    rows = zip(*columns, strict=True) if columns else [()] * len(array)
    return [
        dict(zip(names, row, strict=True)) if valid else None
        for row, valid in zip(rows, array.is_valid().to_pylist(), strict=True)
    ]


def _maps(array: pa.MapArray) -> list[dict[str, Any] | None]:
    # `keys` and `items` ignore slicing: they belong to the whole array.
    bounds = array.offsets.to_pylist()
    first, n = bounds[0], bounds[-1] - bounds[0]
    keys = json_values(array.keys.slice(first, n))
    items = json_values(array.items.slice(first, n))
    return [
        dict(zip(keys[start - first : end - first], items[start - first : end - first], strict=True)) if valid else None
        for start, end, valid in zip(bounds, bounds[1:], array.is_valid().to_pylist(), strict=False)
    ]


def _plain(value: Any) -> Any:
    """Convert a value that JSON cannot represent."""
    if isinstance(value, bytes):
        return bytes_to_text(value)
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    # `str` of a decimal may have an exponent.
    return value if isinstance(value, str) else format(value, "f")
