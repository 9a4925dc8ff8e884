"""PostgreSQL's text form of decoded values, implemented independently from its documentation."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

DAY = 86_400_000_000
MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
WEEKDAYS = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"]
BLANKS = " \t\n\v\f\r"


# -- dates and times -------------------------------------------------------------------------------------------------


def calendar(days: int) -> tuple[str, str]:
    """YYYY-MM-DD and an era of days since 1970-01-01, with Python's calendar shifted by cycles of 400 years."""
    cycles, rest = divmod(days + datetime.date(1970, 1, 1).toordinal() - 1, 146097)
    date = datetime.date.fromordinal(rest + 1)
    year = date.year + 400 * cycles
    return f"{year if year > 0 else 1 - year:04}-{date.month:02}-{date.day:02}", "" if year > 0 else " BC"


def seconds(us: int, width: int = 2) -> str:
    whole, fraction = divmod(us, 1_000_000)
    return f"{whole:0{width}}" + (f".{fraction:06}".rstrip("0") if fraction else "")


def clock(us: int, width: int = 2) -> str:
    return f"{us // 3_600_000_000:0{width}}:{us // 60_000_000 % 60:02}:{seconds(us % 60_000_000)}"


def offset(east: int) -> str:
    parts = [abs(east) // 3600, abs(east) // 60 % 60, abs(east) % 60]
    while len(parts) > 1 and parts[-1] == 0:
        parts.pop()
    return ("-" if east < 0 else "+") + ":".join(f"{part:02}" for part in parts)


def moment(us: int, east: int | None = None) -> str:
    days, us = divmod(us + (east or 0) * 1_000_000, DAY)
    date, era = calendar(days)
    return f"{date} {clock(us)}{'' if east is None else offset(east)}{era}"


def split(number: int, *sizes: int) -> list[int]:
    """Split into parts that all have the number's sign, like division in C."""
    parts = []
    for size in sizes:
        part = abs(number) // size
        number_left = abs(number) % size
        parts.append(part if number >= 0 else -part)
        number = number_left if number >= 0 else -number_left
    return [*parts, number]


def styled(us: int, style: str, zone: str = "") -> str:
    """Print a timestamp for DateStyles other than ISO, as in section 8.5.2 of the documentation."""
    days, us = divmod(us, DAY)
    date, era = styled_date(days, style)
    if not style.startswith("Postgres"):
        return f"{date} {clock(us)}{zone}{era}"
    (year, month, day), _ = parts(days)
    words = (day, MONTHS[int(month) - 1]) if style.endswith("DMY") else (MONTHS[int(month) - 1], day)
    return f"{WEEKDAYS[(days + 4) % 7]} {' '.join(words)} {clock(us)} {year}{zone}{era}"


def styled_date(days: int, style: str) -> tuple[str, str]:
    (year, month, day), era = parts(days)
    separator = {"SQL": "/", "Postgres": "-", "German": "."}[style.split(",")[0]]
    day_first = style.startswith("German") or style.endswith("DMY")
    return separator.join((day, month, year) if day_first else (month, day, year)), era


def parts(days: int) -> tuple[list[str], str]:
    date, era = calendar(days)
    return date.split("-"), era


def interval(months: int, days: int, us: int, style: str) -> str:
    """Print an interval as the documentation's section 8.5.5 describes its four styles."""
    year, month = split(months, 12)
    hour, minute, second = split(us, 3_600_000_000, 60_000_000)
    sign = "-" if us < 0 else ""
    if style == "postgres":
        parts, negative = [], False
        for number, unit in ((year, "year"), (month, "mon"), (days, "day")):
            if number:
                parts.append(f"{'+' if negative and number > 0 else ''}{number} {unit}{'' if number == 1 else 's'}")
                negative = number < 0
        if us or not parts:
            parts.append(f"{sign or ('+' if negative else '')}{clock(abs(us))}")
        return " ".join(parts)
    if style == "postgres_verbose":
        fields = [(year, "year"), (month, "mon"), (days, "day"), (hour, "hour"), (minute, "min")]
        shown = [(number, str(abs(number)), unit) for number, unit in fields if number]
        if second:
            shown.append((second, seconds(abs(second), 1), "sec"))
        if not shown:
            return "@ 0"
        ago = shown[0][0] < 0
        words = []
        for number, text, unit in shown:
            turned = (number < 0) != ago
            # -1 is a plural, except for seconds.
            plural = text != "1" or (turned and unit != "sec")
            words.append(f"{'-' if turned else ''}{text} {unit}{'s' if plural else ''}")
        return "@ " + " ".join(words) + (" ago" if ago else "")
    if style == "iso_8601":
        date = "".join(f"{n}{unit}" for n, unit in ((year, "Y"), (month, "M"), (days, "D")) if n)
        time = "".join(f"{n}{unit}" for n, unit in ((hour, "H"), (minute, "M")) if n)
        time += f"{sign}{seconds(abs(second), 1)}S" if second else ""
        return f"P{date}T{time}" if time else f"P{date}" if date else "PT0S"
    fields_of = [months, days, us]
    negative, positive = min(fields_of) < 0, max(fields_of) > 0
    if not negative and not positive:
        return "0"
    if (negative and positive) or (months and (days or us)):
        signs = ["-" if field < 0 else "+" for field in fields_of]
        return f"{signs[0]}{abs(year)}-{abs(month)} {signs[1]}{abs(days)} {signs[2]}{clock(abs(us), 1)}"
    lead = "-" if negative else ""
    if months:
        return f"{lead}{abs(year)}-{abs(month)}"
    return lead + (f"{abs(days)} " if days else "") + clock(abs(us), 1)


# -- numbers and bytes -----------------------------------------------------------------------------------------------


def floating(number: float | np.float32) -> str:
    """Print the shortest digits that identify the number, as PostgreSQL 12 and later do."""
    if np.isnan(number):
        return "NaN"
    if np.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    sign, digits, exponent = Decimal(str(number)).as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)).rstrip("0") or "0"
    leading = len(digits) + exponent - 1 if text != "0" else 0
    minus = "-" if sign else ""
    # The limits at which %g with 6 or 15 digits changes to exponents.
    if -4 <= leading < (6 if isinstance(number, np.float32) else 15):
        return minus + format(Decimal(text).scaleb(leading - len(text) + 1), "f")
    return f"{minus}{text[0]}{'.' if text[1:] else ''}{text[1:]}e{leading:+03d}"


def escaped(value: bytes) -> str:
    """Print a bytea under bytea_output escape."""
    return "".join("\\\\" if byte == 0x5C else chr(byte) if 0x20 <= byte <= 0x7E else f"\\{byte:03o}" for byte in value)


# -- nested values ---------------------------------------------------------------------------------------------------


def quoted(text: str, special: str, quote: str, backslash: str, *, words: tuple[str, ...] = ()) -> str:
    """Quote an item that contains a special character, is empty or is one of some words."""
    if text and not set(text) & set(special + BLANKS + '"\\') and text.upper() not in words:
        return text
    return '"' + text.replace("\\", backslash + "\\").replace('"', quote + '"') + '"'


def in_array(text: str | None, delimiter: str = ",") -> str:
    return "NULL" if text is None else quoted(text, "{}" + delimiter, "\\", "\\", words=("NULL",))


def in_hstore(text: str | None) -> str:
    return "NULL" if text is None else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def braced(items: list[str | None], delimiter: str = ",") -> str:
    return "{" + delimiter.join(in_array(item, delimiter) for item in items) + "}"


# -- columns ---------------------------------------------------------------------------------------------------------


def printed(pg_type: str, column: pa.Array, settings: dict[str, str] | None = None) -> list[str | None]:
    """Print each value of a column of a PostgreSQL type; strings are printed unchanged."""
    if pa.types.is_string(column.type):
        return column.to_pylist()
    return [None if not item.is_valid else _printed(pg_type, item, settings or {}) for item in column]


def _printed(pg_type: str, item: pa.Scalar, settings: dict[str, str]) -> str:
    element = pg_type.removesuffix("[]")
    if pg_type.startswith("(") and not pg_type.endswith("[]"):
        return _composite(pg_type, item, settings)
    if pg_type.endswith("[]"):
        return braced(printed(element, item.values, settings), ";" if element == "box" else ",")
    if pg_type in ("int2vector", "oidvector"):
        return " ".join(str(part) for part in item.as_py())
    if pg_type == "vector":
        return "[" + ",".join(floating(np.float32(part)) for part in item.as_py()) + "]"
    if pg_type == "hstore":
        return ", ".join(f"{in_hstore(key)}=>{in_hstore(value)}" for key, value in item.as_py())
    if pg_type.endswith("multirange"):
        ranges = printed(pg_type.replace("multirange", "range"), item.values, settings)
        return "{" + ",".join(map(str, ranges)) + "}"
    if pg_type.endswith("range") or pg_type.startswith("range("):
        return _range(BOUNDS.get(pg_type, pg_type[6:-1]), item, settings)
    style = settings.get("datestyle", "ISO")
    if style.startswith("ISO"):
        style = ""
    if pg_type == "interval":
        return interval(*item.as_py().values(), settings.get("intervalstyle", "postgres"))
    if pg_type == "bytea":
        return escaped(item.as_py()) if settings.get("bytea_output") == "escape" else "\\x" + item.as_py().hex()
    if pg_type == "date":
        return "".join(styled_date(item.value, style) if style else calendar(item.value))
    if pg_type == "timestamp":
        return styled(item.value, style) if style else moment(item.value)
    if pg_type == "timestamptz":
        return styled(item.value, style, " UTC") if style else moment(item.value, 0)
    return PRINTERS[str(item.type).split("(")[0]](item)


def types_of(composite: str) -> list[str]:
    """Split "(int4, (text, date[]))" into the types of its fields."""
    found, depth = [""], 0
    for character in composite[1:-1]:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and depth == 0:
            found.append("")
        else:
            found[-1] += character
    return [name.strip() for name in found]


def _composite(pg_type: str, item: pa.Scalar, settings: dict[str, str]) -> str:
    fields = zip(types_of(pg_type), item.values(), strict=True)
    texts = [_bound(name, value, settings) if value.is_valid else None for name, value in fields]
    return "(" + ",".join("" if text is None else quoted(text, "(),", '"', "\\") for text in texts) + ")"


def _range(bound: str, item: pa.Scalar, settings: dict[str, str]) -> str:
    if item["empty"].as_py():
        return "empty"
    lower, upper = (
        "" if not item[name].is_valid else quoted(_bound(bound, item[name], settings), "()[],", '"', "\\")
        for name in ("lower", "upper")
    )
    opening, closing = "[" if item["lower_inclusive"].as_py() else "(", "]" if item["upper_inclusive"].as_py() else ")"
    return f"{opening}{lower},{upper}{closing}"


def _bound(bound: str, item: pa.Scalar, settings: dict[str, str]) -> str:
    return item.as_py() if pa.types.is_string(item.type) else _printed(bound, item, settings)


BOUNDS = {
    "int4range": "int4",
    "int8range": "int8",
    "numrange": "numeric",
    "daterange": "date",
    "tsrange": "timestamp",
    "tstzrange": "timestamptz",
}
PRINTERS: dict[str, Callable[[Any], str]] = {
    "bool": lambda item: "t" if item.as_py() else "f",
    "int16": lambda item: str(item.as_py()),
    "int32": lambda item: str(item.as_py()),
    "int64": lambda item: str(item.as_py()),
    "float": lambda item: floating(np.float32(item.as_py())),
    "double": lambda item: floating(item.as_py()),
    "decimal128": lambda item: format(item.as_py(), "f"),
    "time64[us]": lambda item: clock(item.value),
}
