"""What ALTER COLUMN ... TYPE makes of the values that a column had: the casts that PostgreSQL applies without USING.

pgoutput sends the new type, but not whether USING computed other values. `TypeChange` therefore tells changes that
PostgreSQL makes without rewriting the table, so that every value stays, from casts that it applies to every value if
USING was not given.

Casts are those of `pg_cast` with the contexts "implicit" and "assignment", and the automatic casts to strings, whose
result does not depend on settings of the session. All versions from 10 to 18 agree (tests/servers/type_changes.py). A
cast that is not in `CASTS` is not certain.
"""

from __future__ import annotations

import ipaddress
import itertools
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode.types.pgtypes import numeric_modifier

# A cast gets a value in PostgreSQL's text form, and returns the new value's; None if it is not certain.
Cast = Callable[[str], str | None]


class ColumnType(NamedTuple):
    """The type of a column. `name` is that of a built-in type, or of a domain's base type; None for other types."""

    name: str | None
    typmod: int
    oid: int
    is_domain: bool = False


# -- casts -----------------------------------------------------------------------------------------------------------

# Enough digits for any numeric: 131072 before the point and 16383 behind it.
_EXACT = Context(prec=150_000)
_INTEGERS = ("int2", "int4", "int8")
_STRINGS = ("text", "varchar", "bpchar")
# Types whose text form does not depend on settings, and which are cast to strings by it.
_PRINTED = (
    *_INTEGERS,
    *("numeric", "oid", "uuid", "json", "jsonb", "macaddr", "macaddr8", "bit", "varbit", "pg_lsn", "tid", "xid", "xml"),
    *("name", "int4range", "int8range", "tsvector", "tsquery", "jsonpath", "text", "varchar"),
)
_ARRAYS = tuple(f"{name}[]" for name in (*_INTEGERS, "numeric", "oid", "uuid", "text", "varchar", "bool"))


def _same(value: str) -> str | None:
    return value


def _to_integer(value: str) -> str | None:
    """Cast numeric to an integer: halves are rounded away from zero (numeric_int8, utils/adt/numeric.c)."""
    return _rounded(value, 0)


def _rounded(value: str, scale: int) -> str | None:
    try:
        number = Decimal(value)
        if not number.is_finite():
            return value
        rounded = number.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, _EXACT)
    except InvalidOperation:
        return None
    # PostgreSQL has no -0. A negative scale leaves no digits behind the point.
    return format(abs(rounded) if rounded == 0 else rounded, "f")


def _float_to_integer(value: str) -> str | None:
    number = float(value)
    # Halves are rounded to even, but servers before 12 may have printed another number as a half.
    return None if number % 1 == 0.5 or abs(number) >= 2**53 else f"{round(number)}"


def _to_float(least: int) -> Cast:
    """Cast to float4 or float8 whole numbers below `least`, which are printed alike by all servers."""

    def cast(value: str) -> str | None:
        number = Decimal(value)
        whole = number.is_finite() and number == number.to_integral_value() and abs(number) < least
        return f"{number:.0f}".replace("-0", "0") if whole and number == 0 else f"{number:.0f}" if whole else None

    return cast


def _float_to_numeric(digits: int, *, is_single: bool) -> Cast:
    """Cast to numeric by DBL_DIG or FLT_DIG digits (float8_numeric, utils/adt/numeric.c)."""

    def cast(value: str) -> str | None:
        number = float(value)
        if number - number != 0:
            return value
        if is_single:
            [number] = struct.unpack("f", struct.pack("f", number))
        rounded = Decimal(f"{number:.{digits}g}")
        return format(abs(rounded) if rounded == 0 else rounded, "f")

    return cast


def _bool_to_text(value: str) -> str | None:
    return {"t": "true", "f": "false"}.get(value)


def _without_blanks(value: str) -> str | None:
    return value.rstrip(" ")


def _to_name(value: str) -> str | None:
    return value if len(value.encode()) < 64 else None  # NAMEDATALEN


def _network_to_text(value: str) -> str | None:
    """Cast inet or cidr to text, always with the length of the mask (network_show, utils/adt/network.c)."""
    return value if "/" in value else value + ("/128" if ":" in value else "/32")


def _cidr_to_inet(value: str) -> str | None:
    return value.removesuffix("/128" if ":" in value else "/32")


def _inet_to_cidr(value: str) -> str | None:
    text = _network_to_text(value) or ""
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return None  # bits behind the mask become 0
    return text


def _to_macaddr8(value: str) -> str | None:
    return f"{value[:9]}ff:fe:{value[9:]}"


def _to_macaddr(value: str) -> str | None:
    return value[:9] + value[15:] if value[9:15] == "ff:fe:" else None


def _to_oid(value: str) -> str | None:
    return str(int(value) % 2**32)


def _oid_to_int4(value: str) -> str | None:
    return str((int(value) + 2**31) % 2**32 - 2**31)


_ISO_DATE = r"\d{4,}-\d\d-\d\d"
_ISO_TIME = r"\d\d:\d\d:\d\d(?:\.\d+)?"


def _date_to_timestamp(value: str) -> str | None:
    if value in ("infinity", "-infinity"):
        return value
    match = re.fullmatch(rf"({_ISO_DATE})( BC)?", value, re.ASCII)
    return f"{match[1]} 00:00:00{match[2] or ''}" if match else None


def _timestamp_to_date(value: str) -> str | None:
    if value in ("infinity", "-infinity"):
        return value
    match = re.fullmatch(rf"({_ISO_DATE}) {_ISO_TIME}( BC)?", value, re.ASCII)
    return f"{match[1]}{match[2] or ''}" if match else None


def _timestamp_to_time(value: str) -> str | None:
    match = re.fullmatch(rf"{_ISO_DATE} ({_ISO_TIME})(?: BC)?", value, re.ASCII)
    return match[1] if match else None


def _timetz_to_time(value: str) -> str | None:
    match = re.fullmatch(rf"({_ISO_TIME})[+-][\d:]+", value, re.ASCII)
    return match[1] if match else None


def _casts() -> dict[tuple[str, str], Cast]:
    casts: dict[tuple[str, str], Cast] = {}

    def add(sources: Iterable[str], targets: Iterable[str], cast: Cast) -> None:
        casts.update({(source, target): cast for source in sources for target in targets if source != target})

    add(_INTEGERS, (*_INTEGERS, "numeric"), _same)
    add(("numeric",), _INTEGERS, _to_integer)
    add(("float4", "float8"), _INTEGERS, _float_to_integer)
    # A float4 has 6 digits that all servers print, a float8 15.
    add((*_INTEGERS, "numeric", "float8"), ("float4",), _to_float(10**6))
    add((*_INTEGERS, "numeric"), ("float8",), _to_float(10**15))
    add(("float4",), ("float8",), _to_float(10**6))
    add(("float4",), ("numeric",), _float_to_numeric(6, is_single=True))
    add(("float8",), ("numeric",), _float_to_numeric(15, is_single=False))
    add(("int2", "int4"), ("oid",), _to_oid)
    add(("int8",), ("oid",), _same)
    add(("oid",), ("int8",), _same)
    add(("oid",), ("int4",), _oid_to_int4)
    add((*_PRINTED, *_ARRAYS, "int4range[]"), _STRINGS, _same)
    add(("bool",), _STRINGS, _bool_to_text)
    add(("bpchar",), ("text", "varchar"), _without_blanks)
    add(("inet", "cidr"), _STRINGS, _network_to_text)
    add(("text", "varchar"), ("name",), _to_name)
    add(("cidr",), ("inet",), _cidr_to_inet)
    add(("inet",), ("cidr",), _inet_to_cidr)
    add(("macaddr",), ("macaddr8",), _to_macaddr8)
    add(("macaddr8",), ("macaddr",), _to_macaddr)
    add(("bit",), ("varbit",), _same)
    add(("varbit",), ("bit",), _same)
    add(("jsonb",), ("json",), _same)
    add(("date",), ("timestamp",), _date_to_timestamp)
    add(("timestamp",), ("date",), _timestamp_to_date)
    add(("timestamp",), ("time",), _timestamp_to_time)
    add(("timetz",), ("time",), _timetz_to_time)
    add((f"{name}[]" for name in _INTEGERS), (*(f"{name}[]" for name in _INTEGERS), "numeric[]"), _same)
    add(("text[]", "varchar[]", "uuid[]", "numeric[]", "int2[]", "int4[]", "int8[]"), ("text[]", "varchar[]"), _same)
    return casts


CASTS: Mapping[tuple[str, str], Cast] = _casts()

# -- modifiers -------------------------------------------------------------------------------------------------------

_LENGTHS = ("varchar", "bpchar")
_SECONDS = ("time", "timetz", "timestamp", "timestamptz")
_MODIFIABLE = (*_LENGTHS, "numeric", "bit", "varbit", *_SECONDS, "interval")
_MOST_DIGITS = 6  # MAX_TIMESTAMP_PRECISION


def _with_modifier(value: str, kind: ColumnType) -> str | None:
    """Apply the modifier of a type to a value. An ALTER fails if a string has more characters, other than blanks."""
    if kind.typmod < 0:
        return value
    if kind.name in _LENGTHS:
        length = kind.typmod - 4  # VARHDRSZ
        return value[:length].ljust(length if kind.name == "bpchar" else 0)
    if kind.name == "numeric":
        modifier = numeric_modifier(kind.typmod)
        return value if modifier is None else _rounded(value, modifier[1])
    if kind.name in _SECONDS:
        fraction = re.search(r"\.(\d+)", value)
        return value if fraction is None or len(fraction[1]) <= kind.typmod else None
    # An ALTER fails if a bit string has another length.
    return value if kind.name in ("bit", "varbit") else None


# Casts that change nothing but the type, which PostgreSQL does without a rewrite (pg_cast.castmethod "b").
_RELABELLED = frozenset(
    {
        *(("varchar", "text"), ("text", "varchar"), ("varchar", "bpchar"), ("text", "bpchar"), ("xml", "text")),
        *(("xml", "varchar"), ("cidr", "inet"), ("bit", "varbit"), ("varbit", "bit"), ("int4", "oid"), ("oid", "int4")),
        *(("citext", "text"), ("citext", "varchar"), ("text", "citext"), ("varchar", "citext")),
    }
)


def _is_wider(before: ColumnType, after: ColumnType) -> bool:
    """Whether all values of a type fit the same type with another modifier, so that PostgreSQL does not rewrite them.

    Sources: varchar_support, varbit_support, numeric_support, TemporalSimplify, interval_support.
    """
    name, old, new = before.name, before.typmod, after.typmod
    if name == "numeric":
        former, present = numeric_modifier(old), numeric_modifier(new)
        if present is None or former is None:
            return present is None
        return former[1] == present[1] and former[0] <= present[0]
    if name in _SECONDS:
        return new < 0 or new >= _MOST_DIGITS or 0 <= old <= new
    if name in ("varchar", "varbit"):
        return new < 0 or 0 <= old <= new
    return new < 0


# -- a change --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TypeChange:
    """A change of a column's type.

    Attributes
    ----------
    before, after : ColumnType
    is_kept : bool
        Whether PostgreSQL keeps all values, unless USING computes others. It does not rewrite the table.
    is_certain : bool
        Whether `converted` gives the values that PostgreSQL computes without USING.
    is_same_number : bool
        Whether integers change their size only.
    """

    before: ColumnType
    after: ColumnType

    @property
    def _names(self) -> tuple[str, str]:
        return self.before.name or "", self.after.name or ""

    @property
    def _cast(self) -> Cast | None:
        if not self.before.name or not self.after.name:
            return None
        if self.after.is_domain and self.after.name.removesuffix("[]") in _MODIFIABLE:
            return None  # the wire does not have the modifier of a domain
        if self.after.name.endswith("[]") and self.after.typmod >= 0:
            return None
        if self.before.name == self.after.name:
            return _same
        return CASTS.get((self.before.name, self.after.name))

    @property
    def is_kept(self) -> bool:  # noqa: D102
        before, after = self.before, self.after
        if before.name is None or after.name is None:
            return False
        if after.is_domain or before.is_domain:
            return before.name == after.name and before.name.removesuffix("[]") not in _MODIFIABLE
        if before.name == after.name:
            return before.name.removesuffix("[]") in _MODIFIABLE and _is_wider(before, after)
        return self._names in _RELABELLED and after.typmod < 0

    @property
    def is_certain(self) -> bool:  # noqa: D102
        return self.is_kept or self._cast is not None

    @property
    def is_same_number(self) -> bool:  # noqa: D102
        return all(name in _INTEGERS for name in self._names)

    @property
    def is_same_text(self) -> bool:
        """Whether each value has the same text form before and after, and the same Arrow value if the type is."""
        return self.is_same_number or (self.is_kept and self._names not in {("cidr", "inet"), *_OIDS})

    def converted(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        """Convert values to those after the change; null where the new value is not certain.

        The values have the common type of both types: their text form, or for instance decimals with enough digits.
        """
        kind, cast = values.type, self._cast
        if self.is_same_text:
            return values
        if kind == pa.string():
            return _each(values, lambda value: None if cast is None else self._text(value, cast))
        name, typmod = self.after.name, self.after.typmod
        if cast is not None and pa.types.is_decimal(kind) and self._names == ("numeric", "numeric"):
            modifier = numeric_modifier(typmod)
            if modifier is None:
                return values
            # The common type has the scale of both; rounding up may need one more digit before the point.
            return pc.round(values, modifier[1], round_mode="half_towards_infinity").cast(kind)
        if pa.types.is_float64(kind) and name in ("float4", "float8"):
            return values if name == "float8" else values.cast(pa.float32()).cast(kind)
        if pa.types.is_integer(kind) and cast is not None:
            return _each(values.cast(pa.string()), cast).cast(kind)
        if pa.types.is_temporal(kind) and self.before.name == name in _SECONDS and 0 <= typmod < _MOST_DIGITS:
            return pa.chunked_array([_with_digits(chunk, typmod) for chunk in values.chunks], kind)
        return pa.chunked_array([pa.nulls(len(values), kind)], kind)

    def _text(self, value: str, cast: Cast) -> str | None:
        try:
            converted = cast(value)
        except (ValueError, ArithmeticError, struct.error):
            return None  # not the text form of the type before, such as another DateStyle
        return None if converted is None else _with_modifier(converted, self.after)


_OIDS = frozenset({("int4", "oid"), ("oid", "int4")})


def _each(values: pa.ChunkedArray, function: Cast) -> pa.ChunkedArray:
    """Apply a function to each different text."""
    chunks = []
    for chunk in values.chunks:
        encoded = chunk.dictionary_encode()
        converted = [None if value is None else function(value) for value in encoded.dictionary.to_pylist()]
        chunks.append(pa.array(converted, pa.string()).take(encoded.indices))
    return pa.chunked_array(chunks, pa.string())


def _with_digits(values: pa.Array, digits: int) -> pa.Array:
    """Round times to fractional digits, as PostgreSQL does: halves away from 2000-01-01 (AdjustTimestampForTypmod)."""
    unit = 10 ** (_MOST_DIGITS - digits)
    epoch = 946_684_800_000_000 if pa.types.is_timestamp(values.type) else 0  # 2000-01-01 - 1970-01-01 in us
    since = pc.subtract(values.view(pa.int64()), epoch)
    size = pc.multiply(pc.divide(pc.add(pc.abs(since), unit // 2), unit), unit)
    rounded = pc.add(pc.if_else(pc.less(since, 0), pc.negate(size), size), epoch)
    return rounded.view(values.type)


def compare_alike(types: Iterable[ColumnType]) -> bool:
    """Whether the values of a column that had these types, one after the other, are compared as they were sent."""
    every = list(dict.fromkeys(types))
    return all(TypeChange(*pair).is_same_text for pair in itertools.pairwise(every))
