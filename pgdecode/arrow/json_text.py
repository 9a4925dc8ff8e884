r"""Writes Arrow columns of any type as text for JSON and CSV, column by column.

Dates and timestamps are in the form of PostgreSQL's `to_json`, which is ISO 8601 from the year 1 on: years after 9999
have more digits, and those before 1 end with " BC" (0044-03-15 BC). Timestamps have six digits of a second, and Z if
they have a time zone (0044-03-15T12:00:00.000000Z BC). Binary values are \x and hexadecimal digits. Decimals are exact
text. NaN and infinity are written as in PostgreSQL.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PER_SECOND = {"s": 1, "ms": 1000, "us": 1_000_000}
_SECONDS_PER_DAY = 86_400
# Days since 1970: 0001-01-01 and 10000-01-01. Arrow writes the years between them as PostgreSQL does.
_FIRST_DAY, _END_DAY = -719_162, 2_932_897
# The Gregorian calendar repeats itself after 400 years.
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097

_to_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
# Characters that move a terminal's cursor or reverse text, and that JSON does not escape: C1 controls, bidi overrides.
_MOVING_CHARACTERS = "\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_MOVING = re.compile(f"[{_MOVING_CHARACTERS}]")
# Fewer are written faster by Python than Arrow prepares its search for the characters.
_FEW_TEXTS = 100
# Characters that are escaped by their number.
_ESCAPED_BY_NUMBER = f"[\x00-\x1f{_MOVING_CHARACTERS}]"
_ESCAPED = f'["\\\\\x00-\x1f{_MOVING_CHARACTERS}]'


def encode(value: object) -> str:
    """Write a value as JSON on one line, without characters that move a terminal's cursor."""
    return _MOVING.sub(lambda found: f"\\u{ord(found[0]):04x}", _to_json(value))


def json_text(array: pa.Array) -> pa.Array:
    """Write each value of a column as JSON; null for null. Structs and maps become objects, lists become arrays."""
    array = _stored(array)
    if pa.types.is_nested(array.type):
        return _nested(array)
    text, is_number = _text(array)
    if is_number is True:
        return text
    if pa.types.is_temporal(array.type):
        # Nothing to escape.
        return _joined('"', text, '"')
    quoted = quote(text)
    return quoted if is_number is False else pc.if_else(is_number, text, quoted)


def flat(array: pa.Array) -> pa.Array:
    """Convert a column to numbers, booleans or text. Structs, maps and lists become JSON."""
    kind = array.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_string(kind):
        return array
    array = _stored(array)
    return json_text(array) if pa.types.is_nested(array.type) else _text(array)[0]


def quote(texts: pa.Array) -> pa.Array:
    """Write strings as JSON strings."""
    if len(texts) < _FEW_TEXTS:
        return each(encode, texts.to_pylist())
    if pc.any(pc.match_substring_regex(texts, _ESCAPED)).as_py():
        rare = pc.fill_null(pc.match_substring_regex(texts, _ESCAPED_BY_NUMBER), False)
        few = [encode(text)[1:-1] for text in texts.filter(rare).to_pylist()]
        texts = pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), '"', '\\"')
        texts = pc.replace_with_mask(texts, rare, pa.array(few, pa.string()))
    return _joined('"', texts, '"')


def objects(names: Sequence[str], texts: Sequence[pa.Array], n: int) -> pa.Array:
    """Write n rows as JSON objects of all columns, from the JSON text of their values."""
    parts: list[Any] = []
    for name, column in zip(names, texts, strict=True):
        parts += [f"{', ' if parts else '{'}{encode(name)}: ", pc.fill_null(column, "null")]
    return _joined(*parts, "}") if parts else pa.repeat(pa.scalar("{}"), n)


def sparse_objects(names: Sequence[str], texts: Sequence[pa.Array], n: int) -> pa.Array:
    """Write n rows as JSON objects, from the JSON text of their values. Nulls are left out."""
    members = [_joined(f", {encode(name)}: ", column) for name, column in zip(names, texts, strict=True)]
    if not members:
        return pa.repeat(pa.scalar("{}"), n)
    # Arrow leaves out a row of nulls alone, which these are not.
    joined = pc.binary_join_element_wise("{", *members, "}", "", null_handling="skip")
    return pc.replace_substring(joined, "{, ", "{", max_replacements=1)


def with_values(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Leave out columns of nulls."""
    return batch.select([name for name in batch.schema.names if batch[name].null_count < len(batch)])


def lists(lengths: pa.Array, items: pa.Array) -> pa.Array:
    """Write lists of these lengths as JSON, from the JSON text of their items; null where the length is."""
    ends = pc.cumulative_sum(pc.fill_null(lengths, 0)).cast(pa.int32())
    return _arrays(pa.concat_arrays([pa.array([0], pa.int32()), ends]), items, "[", "]", lengths.is_null())


def by_value(write: Callable[[Any], str | None], array: pa.Array) -> pa.Array:
    """Apply a function to each different value of a column that is not null."""
    encoded = array.dictionary_encode()
    texts = pa.array(map(write, encoded.dictionary.to_pylist()), pa.string())
    return texts.take(encoded.indices)


def each(write: Callable[[Any], str], values: Iterable[Any]) -> pa.Array:
    """Apply a function to each value that is not None."""
    return pa.array([None if value is None else write(value) for value in values], pa.string())


def timestamp_to_text(microseconds: int) -> str:
    """Write microseconds since 1970 in UTC, as `json_text` does."""
    try:
        moment = _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return str(_timestamps(pa.array([microseconds], pa.timestamp("us", "UTC")))[0].as_py())
    return moment.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def bytes_to_text(value: bytes) -> str:
    r"""Write bytes as PostgreSQL writes bytea: \x and hexadecimal digits."""
    return "\\x" + value.hex()


# -- values ----------------------------------------------------------------------------------------------------------


def _stored(array: pa.Array) -> pa.Array:
    """Return the values of an extension type or a dictionary."""
    while isinstance(array, pa.ExtensionArray | pa.DictionaryArray):
        array = array.storage if isinstance(array, pa.ExtensionArray) else array.dictionary_decode()
    return array


def _text(array: pa.Array) -> tuple[pa.Array, pa.Array | bool]:
    """Write values that are not nested as text. Return also which of them JSON represents without quotes."""
    kind, types = array.type, pa.types
    if types.is_null(kind) or types.is_integer(kind) or types.is_boolean(kind):
        return array.cast(pa.string()), True
    if types.is_timestamp(kind):
        return _timestamps(array), False
    if types.is_date32(kind):
        return _iso(array, 1), False
    if types.is_floating(kind):
        return _floats(array)
    if types.is_decimal(kind):
        text = array.cast(pa.string())
        # Arrow writes small numbers with an exponent.
        has_exponent = pc.any(pc.match_substring(text, "E")).as_py()
        return each(lambda value: format(value, "f"), array.to_pylist()) if has_exponent else text, False
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        # Readers of Parquet do not check UTF-8.
        array.validate(full=True)
        return array.cast(pa.string()), False
    if types.is_temporal(kind):
        return array.cast(pa.string()), False
    return each(bytes_to_text, array.to_pylist()), False


def _timestamps(array: pa.Array) -> pa.Array:
    unit, zone = array.type.unit, "" if array.type.tz is None else "Z"
    array = array.cast(pa.timestamp(unit))
    # All values in nanoseconds are in the years 1677 to 2262.
    return _arrow_text(array, zone) if unit == "ns" else _iso(array, _PER_SECOND[unit] * _SECONDS_PER_DAY, zone)


def _iso(array: pa.Array, per_day: int, zone: str = "") -> pa.Array:
    """Write dates, or timestamps with a zone; `per_day` units are a day."""
    numbers = array.cast(pa.int32() if pa.types.is_date32(array.type) else pa.int64())
    first, end = _FIRST_DAY * per_day, _END_DAY * per_day
    ends = pc.min_max(numbers).as_py()
    if ends["min"] is None or (first <= ends["min"] and ends["max"] < end):
        return _arrow_text(array, zone)
    numbers = numbers.cast(pa.int64())
    is_usual = pc.and_(pc.greater_equal(numbers, first), pc.less(numbers, end))
    usual = _arrow_text(pc.if_else(is_usual, array, pa.scalar(None, array.type)), zone)
    others = _other_years(numbers.filter(pc.invert(is_usual)), array.type, per_day, zone)
    return pc.replace_with_mask(usual, pc.fill_null(pc.invert(is_usual), False), others)


def _other_years(numbers: pa.Array, kind: pa.DataType, per_day: int, zone: str) -> pa.Array:
    """Write any dates or timestamps: each as the same day of the years 1970 to 2369, whose year is then replaced."""
    cycle = _CYCLE_DAYS * per_day
    cycles = pc.divide(numbers, cycle)
    # Arrow's division rounds to zero.
    is_rounded_up = pc.less(pc.subtract(numbers, pc.multiply(cycles, cycle)), 0)
    cycles = pc.subtract(cycles, is_rounded_up.cast(pa.int64()))
    remainders = pc.subtract(numbers, pc.multiply(cycles, cycle))
    same_days = remainders.cast(pa.int32()).cast(kind) if pa.types.is_date32(kind) else remainders.cast(kind)
    text = _arrow_text(same_days, zone)
    years = pc.add(pc.utf8_slice_codeunits(text, 0, 4).cast(pa.int64()), pc.multiply(cycles, _CYCLE_YEARS))
    # The year before 1 is 1 BC.
    is_before = pc.less(years, 1)
    years = pc.if_else(is_before, pc.subtract(1, years), years)
    digits = pc.utf8_lpad(years.cast(pa.string()), 4, "0")
    return _joined(digits, pc.utf8_slice_codeunits(text, 4), pc.if_else(is_before, " BC", ""))


def _arrow_text(array: pa.Array, zone: str) -> pa.Array:
    """Write dates, or timestamps with a zone, of the years that Arrow writes as ISO 8601."""
    if pa.types.is_date32(array.type):
        return array.cast(pa.string())
    if array.type.unit != "ns":
        # Numbers in seconds may be too large for microseconds, but not in these years.
        array = array.cast(pa.timestamp("us"))
    text = pc.replace_substring(array.cast(pa.string()), " ", "T", max_replacements=1)
    return _joined(text, zone) if zone else text


def _floats(array: pa.Array) -> tuple[pa.Array, pa.Array | bool]:
    is_finite = pc.is_finite(array)
    finite = pc.if_else(is_finite, array, pa.scalar(None, array.type))
    if pa.types.is_float64(array.type):
        text = each(repr, finite.to_pylist())
    else:
        # Arrow's text has the digits of a float32; Python's float is wider and would show more.
        text = each(lambda digits: repr(float(digits)), finite.cast(pa.string()).to_pylist())
    if pc.all(is_finite).as_py() is not False:
        return text, True
    is_nan, is_negative = pc.is_nan(array), pc.less(array.cast(pa.float64()), 0.0)
    others = pc.if_else(is_nan, "NaN", pc.if_else(is_negative, "-Infinity", "Infinity"))
    return pc.if_else(is_finite, text, others), is_finite


def _nested(array: pa.Array) -> pa.Array:
    kind, types = array.type, pa.types
    if types.is_struct(kind):
        names = [field.name for field in kind]
        texts = [json_text(column) for column in array.flatten()]
        return pc.if_else(array.is_valid(), objects(names, texts, len(array)), pa.scalar(None, pa.string()))
    if types.is_map(kind):
        # `keys` and `items` ignore slicing: they belong to the whole array.
        first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
        keys, items = (column.slice(first, last - first) for column in (array.keys, array.items))
        # There are few different keys: the names of columns.
        keys = _text(keys)[0].dictionary_encode()
        keys = quote(keys.dictionary).take(keys.indices)
        entries = _joined(keys, ": ", pc.fill_null(json_text(items), "null"))
        return _arrays(pc.subtract(array.offsets, array.offsets[0]), entries, "{", "}", array.is_null())
    return lists(pc.list_value_length(array), json_text(array.flatten()))


def _arrays(offsets: pa.Array, items: pa.Array, start: str, end: str, is_null: pa.Array) -> pa.Array:
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, pc.fill_null(items, "null")), ", ")
    return pc.if_else(is_null, pa.scalar(None, pa.string()), _joined(start, joined, end))


def _joined(*parts: Any) -> pa.Array:
    """Join columns of text, and constants, of each row; null if one of them is."""
    return pc.binary_join_element_wise(*parts, "")
