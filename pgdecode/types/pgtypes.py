"""The table of PostgreSQL types: OID, name, codec and Arrow type of each. Typed decoding derives from it.

How to add a type: add one line to `TYPES` with its OIDs (from pg_type of a server), the name of its codec and its Arrow
type. A new codec is a pair of functions `<pgtype>_from_text` and `<pgtype>_from_binary` in the file of its family under
src/pgdecode/_native/codecs/, which adds it by `add_codec`. If the Arrow type is not a string, a second
codec named `<codec>_text` prints the binary form as PostgreSQL does (text_forms.pyx and others). A type of an extension
has no fixed OID: add it to `NAMED`. It is recognised by the name in the Type message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import pyarrow as pa

FIRST_USER_OID = 16384  # FirstNormalObjectId, access/transam.h: of objects that users and extensions have made
FIRST_GENERATED_OID = 10000  # FirstGenbkiObjectId: smaller OIDs are the same on every server
TEXT_OID, FLOAT8_OID, MONEY_OID, MONEY_ARRAY_OID, NUMERIC_OID = 25, 701, 790, 791, 1700


class PgType(NamedTuple):
    """A type built into PostgreSQL, or an extension's (OIDs 0). `arrow` is a function of the type modifier."""

    oid: int
    array_oid: int
    name: str
    codec: str
    arrow: Callable[[int], pa.DataType]
    delimiter: str = ","


@dataclass(frozen=True, slots=True)
class Decoding:
    """Decoding of one column's values: a codec, its parameters, and the Arrow type that it fills.

    `oid` is the OID of the type, if it is the same on every server. `declared` is true if the caller declared the type;
    then a domain over it, which has its own OID, is accepted too. `fields` are the fields of a composite. `style` is
    the DateStyle if it is not ISO. `encoding` is the encoding if it is not UTF-8. Both are PostgreSQL's names.
    """

    codec: str
    arrow: pa.DataType
    oid: int = 0
    precision: int = 0
    scale: int = 0
    delimiter: str = ","
    element: Decoding | None = None
    fields: tuple[Decoding, ...] = ()
    declared: bool = False
    style: str = ""
    encoding: str = ""


def _as(arrow: pa.DataType) -> Callable[[int], pa.DataType]:
    return lambda typmod: arrow


def numeric_modifier(typmod: int) -> tuple[int, int] | None:
    """Precision and scale of numeric(p, s); None without a modifier. The scale has 11 bits and a sign (numeric.c)."""
    if typmod < 4:
        return None
    return (typmod - 4) >> 16 & 0xFFFF, ((typmod - 4 & 0x7FF) ^ 1024) - 1024


def _numeric(typmod: int) -> pa.DataType:
    modifier = numeric_modifier(typmod)
    if modifier is None or not 0 <= modifier[1] <= modifier[0] <= 38:
        return pa.string()
    return pa.decimal128(*modifier)


def _money(typmod: int) -> pa.DataType:
    # PostgreSQL's money has no modifier. The caller gives this one, see `named`. cash.c prints at most 10 digits.
    return pa.decimal128(19, typmod) if 0 <= typmod <= 10 else pa.string()


INTERVAL = pa.struct([("months", pa.int32()), ("days", pa.int32()), ("microseconds", pa.int64())])

_string = _as(pa.string())
_int64 = _as(pa.int64())

# OIDs from pg_type of PostgreSQL 18.
TYPES: tuple[PgType, ...] = (
    PgType(16, 1000, "bool", "bool", _as(pa.bool_())),
    PgType(17, 1001, "bytea", "bytea", _as(pa.binary())),
    PgType(18, 1002, "char", "char", _string),
    PgType(19, 1003, "name", "text", _string),
    PgType(20, 1016, "int8", "int8", _int64),
    PgType(21, 1005, "int2", "int2", _as(pa.int16())),
    PgType(23, 1007, "int4", "int4", _as(pa.int32())),
    PgType(24, 1008, "regproc", "reg", _string),
    PgType(25, 1009, "text", "text", _string),
    PgType(26, 1028, "oid", "oid", _int64),
    PgType(27, 1010, "tid", "tid", _string),
    PgType(28, 1011, "xid", "oid", _int64),
    PgType(29, 1012, "cid", "oid", _int64),
    PgType(114, 199, "json", "text", _string),
    PgType(142, 143, "xml", "text", _string),
    PgType(600, 1017, "point", "point", _string),
    PgType(601, 1018, "lseg", "lseg", _string),
    PgType(602, 1019, "path", "path", _string),
    PgType(603, 1020, "box", "box", _string, ";"),
    PgType(604, 1027, "polygon", "polygon", _string),
    PgType(628, 629, "line", "line", _string),
    PgType(650, 651, "cidr", "cidr", _string),
    PgType(700, 1021, "float4", "float4", _as(pa.float32())),
    PgType(701, 1022, "float8", "float8", _as(pa.float64())),
    PgType(705, 0, "unknown", "text", _string),
    PgType(718, 719, "circle", "circle", _string),
    PgType(774, 775, "macaddr8", "macaddr8", _string),
    PgType(790, 791, "money", "money", _money),
    PgType(829, 1040, "macaddr", "macaddr", _string),
    PgType(869, 1041, "inet", "inet", _string),
    PgType(1042, 1014, "bpchar", "text", _string),
    PgType(1043, 1015, "varchar", "text", _string),
    PgType(1082, 1182, "date", "date", _as(pa.date32())),
    PgType(1083, 1183, "time", "time", _as(pa.time64("us"))),
    PgType(1114, 1115, "timestamp", "timestamp", _as(pa.timestamp("us"))),
    PgType(1184, 1185, "timestamptz", "timestamptz", _as(pa.timestamp("us", "UTC"))),
    PgType(1186, 1187, "interval", "interval", _as(INTERVAL)),
    PgType(1266, 1270, "timetz", "timetz", _string),
    PgType(1560, 1561, "bit", "bit", _string),
    PgType(1562, 1563, "varbit", "varbit", _string),
    PgType(1700, 1231, "numeric", "numeric", _numeric),
    PgType(1790, 2201, "refcursor", "text", _string),
    PgType(2202, 2207, "regprocedure", "reg", _string),
    PgType(2203, 2208, "regoper", "reg", _string),
    PgType(2204, 2209, "regoperator", "reg", _string),
    PgType(2205, 2210, "regclass", "reg", _string),
    PgType(2206, 2211, "regtype", "reg", _string),
    PgType(2950, 2951, "uuid", "uuid", _string),
    PgType(2970, 2949, "txid_snapshot", "pg_snapshot", _string),
    PgType(3220, 3221, "pg_lsn", "pg_lsn", _string),
    PgType(3614, 3643, "tsvector", "tsvector", _string),
    PgType(3615, 3645, "tsquery", "tsquery", _string),
    PgType(3734, 3735, "regconfig", "reg", _string),
    PgType(3769, 3770, "regdictionary", "reg", _string),
    PgType(3802, 3807, "jsonb", "jsonb", _string),
    PgType(4072, 4073, "jsonpath", "jsonpath", _string),
    PgType(4089, 4090, "regnamespace", "reg", _string),
    PgType(4096, 4097, "regrole", "reg", _string),
    PgType(4191, 4192, "regcollation", "reg", _string),
    PgType(5038, 5039, "pg_snapshot", "pg_snapshot", _string),
    PgType(5069, 271, "xid8", "xid8", _as(pa.decimal128(20, 0))),
)

# Types of extensions, by the name that the Type message gives.
NAMED: tuple[PgType, ...] = (
    PgType(0, 0, "citext", "text", _string),
    PgType(0, 0, "cube", "cube", _string),
    PgType(0, 0, "ltree", "ltree", _string),
    PgType(0, 0, "lquery", "ltree", _string),
    PgType(0, 0, "ltxtquery", "ltree", _string),
)


class RangeType(NamedTuple):
    """A range type, its array, its multirange and the array of the multirange."""

    oid: int
    array_oid: int
    multirange_oid: int
    multirange_array_oid: int
    name: str
    bound: str


RANGES: tuple[RangeType, ...] = (
    RangeType(3904, 3905, 4451, 6150, "int4range", "int4"),
    RangeType(3906, 3907, 4532, 6151, "numrange", "numeric"),
    RangeType(3908, 3909, 4533, 6152, "tsrange", "timestamp"),
    RangeType(3910, 3911, 4534, 6153, "tstzrange", "timestamptz"),
    RangeType(3912, 3913, 4535, 6155, "daterange", "date"),
    RangeType(3926, 3927, 4536, 6157, "int8range", "int8"),
)

_BY_NAME: Mapping[str, PgType] = {item.name: item for item in (*TYPES, *NAMED)}
_ARRAY_OIDS: Mapping[int, int] = {
    **{item.oid: item.array_oid for item in TYPES},
    **{item.oid: item.array_oid for item in RANGES},
    **{item.multirange_oid: item.multirange_array_oid for item in RANGES},
    22: 1006,
    30: 1013,
}


def scalar(name: str, typmod: int = -1) -> Decoding:
    """Make the decoding of a scalar type; KeyError if there is no such type."""
    item = _BY_NAME[name]
    arrow = item.arrow(typmod)
    if item.codec == "money" and pa.types.is_decimal(arrow):
        return Decoding("money_decimal", arrow, item.oid, arrow.precision, arrow.scale)
    if item.codec != "numeric":
        return Decoding(item.codec, arrow, item.oid, delimiter=item.delimiter)
    if not pa.types.is_decimal(arrow):
        return Decoding("numeric_text", arrow, item.oid)
    return Decoding("numeric", arrow, item.oid, arrow.precision, arrow.scale)


def array_of(element: Decoding) -> Decoding:
    """Make the decoding of an array."""
    oid = _ARRAY_OIDS.get(element.oid, 0)
    return Decoding("array", pa.list_(element.arrow), oid, element=element, delimiter=element.delimiter)


def range_of(bound: Decoding) -> Decoding:
    """Make the decoding of a range."""
    arrow = pa.struct(
        [
            ("lower", bound.arrow),
            ("upper", bound.arrow),
            ("lower_inclusive", pa.bool_()),
            ("upper_inclusive", pa.bool_()),
            ("empty", pa.bool_()),
        ]
    )
    return Decoding("range", arrow, element=bound)


def multirange_of(item: Decoding) -> Decoding:
    """Make the decoding of a multirange."""
    return Decoding("multirange", pa.list_(item.arrow), element=item)


def as_text(decoding: Decoding) -> Decoding:
    """Make the decoding of the same type to a string column in PostgreSQL's text form.

    Binary values are printed as by PostgreSQL 12 and later with ISO dates, postgres intervals, UTC, hexadecimal bytea
    and shortest floats. Text values are kept as they were sent. A decoding to strings is returned unchanged.
    """
    if decoding.arrow == pa.string():
        return decoding
    if decoding.codec == "saturating" and decoding.element is not None:
        # A string can hold all values, so nothing needs to be clamped.
        return as_text(decoding.element)
    element = None if decoding.element is None else as_text(decoding.element)
    fields = tuple(as_text(field) for field in decoding.fields)
    return replace(decoding, codec=decoding.codec + "_text", arrow=pa.string(), element=element, fields=fields)


def text_as_sent(decoding: Decoding) -> Decoding:
    """Make the decoding of `as_text`, in which money in text form keeps its currency."""
    text = as_text(decoding)
    return replace(text, codec="money_as_sent") if text.codec == "money_decimal_text" else text


# date, time, timestamp, timestamptz, interval, numeric: they have infinities, NaN or 24:00:00. float4 and float8: up to
# PostgreSQL 11, servers round them and write the largest one as a larger number, 1.79769313486232e+308.
_PARTIAL = frozenset({700, 701, 1082, 1083, 1114, 1184, 1186, 1700})


def _is_partial(decoding: Decoding) -> bool:
    return decoding.oid in _PARTIAL and decoding.arrow != pa.string()


def is_partial(decoding: Decoding) -> bool:
    """Whether the PostgreSQL type has values that the Arrow type cannot hold, such as arrays of several dimensions."""
    parts = (decoding.element, *decoding.fields)
    # A string holds every value. pgvector writes all digits of its floats. The caller asks for numeric_float8.
    if decoding.arrow == pa.string() or decoding.codec in ("vector", "halfvec", "numeric_float8"):
        return False
    return decoding.codec == "array" or _is_partial(decoding) or any(part and is_partial(part) for part in parts)


def has_record(decoding: Decoding) -> bool:
    """Whether a type is, or consists of, composites whose fields are not declared. They are text."""
    parts = [decoding]
    while parts:
        part = parts.pop()
        if part.codec == "record":
            return True
        parts += [item for item in (part.element, *part.fields) if item is not None]
    return False


def clamped(decoding: Decoding) -> Decoding:
    """Make the decoding of the same type in which a value outside the Arrow type's range becomes the nearest in it.

    The range ends at the lowest and the highest value that both PostgreSQL and the Arrow type have: 4714-11-24 BC, and
    5874897-12-31 for a date or 294247-01-10 04:00:54.775807 for a timestamp; 23:59:59.999999; all digits 9 for a
    numeric; the largest float; the extreme of every field for an interval. Elements of arrays and bounds of ranges are
    clamped too.
    """
    if _is_partial(decoding):
        return replace(decoding, codec="saturating", element=decoding)
    element = None if decoding.element is None else clamped(decoding.element)
    return replace(decoding, element=element, fields=tuple(clamped(field) for field in decoding.fields))


def composite_of(fields: Iterable[tuple[str, Decoding]]) -> Decoding:
    """Make the decoding of a composite with named fields."""
    names, decodings = zip(*fields, strict=True)
    arrow = pa.struct([(name, decoding.arrow) for name, decoding in zip(names, decodings, strict=True)])
    return Decoding("composite", arrow, fields=decodings)


def numeric_as_float8() -> Decoding:
    """Make the decoding of a numeric to the nearest float8."""
    return Decoding("numeric_float8", pa.float64(), NUMERIC_OID)


def named(name: str, typmod: int = -1) -> Decoding | None:
    """Find the decoding of a type by name: "int4", "int4[]", "_int4". Modifiers as in numeric(12,2) are in `typmod`.

    "money(2)" is money with two digits after the decimal point. The server's lc_monetary sets that number, and payloads
    do not contain it. It is a decimal in both formats. Plain "money" is a string as the server printed it; its binary
    format is a fault.
    """
    if name.endswith("[]") or name.startswith("_"):
        element = named(name[:-2] if name.endswith("[]") else name[1:], typmod)
        return None if element is None else array_of(element)
    if name in _BY_NAME:
        return scalar(name, typmod)
    if money := re.fullmatch(r"money\((\d|10)\)", name):
        return scalar("money", int(money[1]))
    if name == "record":
        return RECORD
    for item in RANGES:
        if name == item.name:
            return replace(range_of(scalar(item.bound)), oid=item.oid)
        if name == item.name.replace("range", "multirange"):
            return replace(multirange_of(range_of(scalar(item.bound))), oid=item.multirange_oid)
    special = {
        "hstore": Decoding("hstore", pa.map_(pa.string(), pa.string())),
        "vector": Decoding("vector", pa.list_(pa.float32()), element=scalar("float4")),
        "halfvec": Decoding("halfvec", pa.list_(pa.float32()), element=scalar("float4")),
        "int2vector": Decoding("spaced", pa.list_(pa.int16()), 22, element=scalar("int2")),
        "oidvector": Decoding("spaced", pa.list_(pa.int64()), 30, element=scalar("oid")),
    }
    return special.get(name)


OPAQUE = Decoding("opaque", pa.string())
ENUM = Decoding("text", pa.string())


def _by_oid() -> dict[int, str]:
    names = {item.oid: item.name for item in TYPES}
    names |= {item.array_oid: item.name + "[]" for item in TYPES if item.array_oid}
    for item in RANGES:
        multirange = item.name.replace("range", "multirange")
        names |= {item.oid: item.name, item.array_oid: item.name + "[]"}
        names |= {item.multirange_oid: multirange, item.multirange_array_oid: multirange + "[]"}
    return names | {22: "int2vector", 1006: "int2vector[]", 30: "oidvector", 1013: "oidvector[]"}


NAME_BY_OID: Mapping[int, str] = _by_oid()


def _record() -> Decoding:
    fields = []
    for oid, name in sorted(NAME_BY_OID.items()):
        decoding = named(name)
        if decoding is not None:
            fields.append(replace(as_text(decoding), oid=oid))
    return Decoding("record", pa.string(), fields=tuple(fields))


# A composite whose fields are not declared. In binary format, each field carries the OID of its type.
RECORD = _record()
