"""Encodes decoded values in PostgreSQL's binary form, like the types' send functions: the inverse of decoding a column.

Types are named as `printer` names them: without modifiers, a composite as "(int4, text)".
"""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa

from pgdecode.types.pgtypes import NAME_BY_OID
from support.oracles.printer import BOUNDS, types_of

OIDS = {name: oid for oid, name in NAME_BY_OID.items()}
DAYS = 10957  # 2000-01-01 - 1970-01-01
MICROSECONDS = DAYS * 86_400_000_000
FIXED = {"int2": ">h", "int4": ">i", "int8": ">q", "oid": ">I", "float4": ">f", "float8": ">d"}
USER_OID = 20000  # used for types without a fixed OID


def sized(item: bytes | None) -> bytes:
    return b"\xff" * 4 if item is None else struct.pack(">i", len(item)) + item


def written(pg_type: str, item: Any) -> bytes | None:
    """Encode one pyarrow scalar; None for a null."""
    if not item.is_valid:
        return None
    if pg_type.endswith("[]"):
        return _array(pg_type.removesuffix("[]"), item.values)
    if pg_type in ("int2vector", "oidvector"):
        return _array(pg_type.removesuffix("vector"), item.values, lower=0)
    if pg_type.startswith("("):
        fields = zip(types_of(pg_type), item.values(), strict=True)
        found = [struct.pack(">I", OIDS.get(name, USER_OID)) + sized(written(name, value)) for name, value in fields]
        return struct.pack(">i", len(found)) + b"".join(found)
    if pg_type.endswith("multirange"):
        ranges = [sized(_range(BOUNDS[pg_type.replace("multi", "")], part)) for part in item.values]
        return struct.pack(">i", len(ranges)) + b"".join(ranges)
    if pg_type.endswith("range"):
        return _range(BOUNDS[pg_type], item)
    return _scalar(pg_type, item)


def _scalar(pg_type: str, item: Any) -> bytes:
    if pg_type in FIXED:
        return struct.pack(FIXED[pg_type], item.as_py())
    if pg_type == "bool":
        return bytes([item.as_py()])
    if pg_type == "date":
        return struct.pack(">i", item.value - DAYS)
    if pg_type in ("timestamp", "timestamptz"):
        return struct.pack(">q", item.value - MICROSECONDS)
    if pg_type == "time":
        return struct.pack(">q", item.value)
    if pg_type == "interval":
        months, days, us = item.as_py().values()
        return struct.pack(">qii", us, days, months)
    if pg_type == "numeric":
        return numeric(Decimal(item.as_py()))
    if pg_type == "vector":
        numbers = item.as_py()
        return struct.pack(f">HH{len(numbers)}f", len(numbers), 0, *numbers)
    if pg_type == "hstore":
        pairs = [(key.encode(), None if value is None else value.encode()) for key, value in item.as_py()]
        return struct.pack(">i", len(pairs)) + b"".join(sized(key) + sized(value) for key, value in pairs)
    value = item.as_py()
    return b"\1" * (pg_type == "jsonb") + (value if isinstance(value, bytes) else value.encode())


def _array(element: str, items: pa.Array, lower: int = 1) -> bytes:
    head = struct.pack(">iiI", len(items) > 0, items.null_count > 0, OIDS.get(element, USER_OID))
    bounds = struct.pack(">ii", len(items), lower) if len(items) else b""
    return head + bounds + b"".join(sized(written(element, item)) for item in items)


def _range(bound: str, item: Any) -> bytes:
    if item["empty"].as_py():
        return b"\1"
    lower, upper = written(bound, item["lower"]), written(bound, item["upper"])
    flags = 2 * item["lower_inclusive"].as_py() + 4 * item["upper_inclusive"].as_py()
    flags += 8 * (lower is None) + 16 * (upper is None)
    return bytes([flags]) + b"".join(sized(part) for part in (lower, upper) if part is not None)


def numeric(number: Decimal) -> bytes:
    """Encode a numeric with the decimal's number of digits after the point."""
    if number.is_nan():
        return struct.pack(">hhHH", 0, 0, 0xC000, 0)
    whole, _, fraction = f"{number.copy_abs():f}".partition(".")
    return binary_numeric(number < 0, whole, fraction)


def binary_numeric(negative: bool, whole: str, fraction: str) -> bytes:
    """Encode a numeric like numeric_send: groups of four digits around the point, without zero groups at the ends."""
    whole = whole.lstrip("0")
    padded = "0" * (-len(whole) % 4) + whole + fraction + "0" * (-len(fraction) % 4)
    groups = [int(padded[i : i + 4]) for i in range(0, len(padded), 4)]
    weight = (len(whole) + 3) // 4 - 1
    while groups and groups[0] == 0:
        groups.pop(0)
        weight -= 1
    while groups and groups[-1] == 0:
        groups.pop()
    head = (len(groups), weight if groups else 0, 0x4000 if negative else 0, len(fraction))
    return b"".join(
        [
            *(number.to_bytes(2, "big", signed=number < 0) for number in head),
            *(group.to_bytes(2, "big") for group in groups),
        ]
    )
