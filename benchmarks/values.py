"""Data sets of values of one type: rows of a table in text and in binary format, and the values as an Arrow array."""

from __future__ import annotations

import datetime as dt
import json
import random
import struct
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

import pgdecode
from benchmarks.datasets import VALUES, DataSet
from pgdecode.types.pgtypes import NAME_BY_OID

FULL_VALUES = 1_000_000
QUICK_VALUES = 100_000
N_COLUMNS = 25  # of the table; a row itself takes little time compared with so many values
N_DISTINCT = 20_000  # these values are repeated
EPOCH = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)

# A value in text format, in binary format, and as a Python object.
Forms = tuple[str, bytes, Any]


@dataclass(frozen=True, kw_only=True)
class ValueSet(DataSet):
    """Inserts into a table whose columns all have one type; `payloads` has them in text format."""

    binaries: pa.BinaryArray
    expected: pa.Array  # column after column
    to_cast: pa.StringArray | None  # text that pyarrow casts to the same values; None if it has no such cast

    @property
    def n_rows(self) -> int:
        """Number of values."""
        return len(self.expected)


@dataclass(frozen=True)
class Kind:
    """A type, a function that makes a value, and a function that makes the text for pyarrow's cast, if there is one."""

    name: str
    arrow: pa.DataType
    make: Callable[[random.Random], Forms]
    to_cast: Callable[[str], str] | None = str
    typmod: int = -1


def integer(bits: int, letter: str) -> Callable[[random.Random], Forms]:
    """Make integers of all magnitudes."""

    def make(rng: random.Random) -> Forms:
        number = rng.randint(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) >> rng.randrange(bits - 1)
        return str(number), struct.pack(f">{letter}", number), number

    return make


def boolean(rng: random.Random) -> Forms:
    """Make bools."""
    truth = rng.random() < 0.5
    return "t" if truth else "f", bytes([truth]), truth


def float4(rng: random.Random) -> Forms:
    """Make floats with the shortest text that parses to the same float, as the server prints them."""
    (number,) = struct.unpack(">f", struct.pack(">f", rng.uniform(-1e6, 1e6)))
    digits = next(n for n in range(6, 10) if struct.pack(">f", float(f"{number:.{n}g}")) == struct.pack(">f", number))
    return f"{number:.{digits}g}", struct.pack(">f", number), number


def float8(rng: random.Random) -> Forms:
    """Make doubles."""
    number = rng.uniform(-1e6, 1e6)
    return repr(number), struct.pack(">d", number), number


def numeric(rng: random.Random) -> Forms:
    """Make numeric(14,2). The binary format has groups of four digits, without zero groups at either end."""
    cents = rng.randint(-(10**10), 10**10) >> rng.randrange(24)
    text = f"{'-' if cents < 0 else ''}{abs(cents) // 100}.{abs(cents) % 100:02}"
    groups = [abs(cents) // 100 // 10**power % 10_000 for power in (8, 4, 0)] + [abs(cents) % 100 * 100]
    weight = 2
    while groups and groups[0] == 0:
        groups.pop(0)
        weight -= 1
    while groups and groups[-1] == 0:
        groups.pop()
    sign = 0x4000 if cents < 0 else 0
    header = struct.pack(">HhHH", len(groups), weight if groups else 0, sign, 2)
    return text, header + struct.pack(f">{len(groups)}H", *groups), Decimal(text)


def date(rng: random.Random) -> Forms:
    """Make dates from 1990 to 2044."""
    day = dt.date(1990, 1, 1) + dt.timedelta(rng.randrange(20_000))
    return day.isoformat(), struct.pack(">i", (day - EPOCH.date()).days), day


def time(rng: random.Random) -> Forms:
    """Make times of day."""
    us = rng.randrange(86_400_000_000)
    moment = (EPOCH + dt.timedelta(microseconds=us)).time()
    return moment.isoformat(), struct.pack(">q", us), moment


def timestamp(rng: random.Random) -> Forms:
    """Make timestamps from 2000 to 2031."""
    us = rng.randrange(10**15)
    moment = (EPOCH + dt.timedelta(microseconds=us)).replace(tzinfo=None)
    return moment.isoformat(" "), struct.pack(">q", us), moment


def timestamptz(rng: random.Random) -> Forms:
    """Make timestamps with the offset of UTC."""
    text, binary, moment = timestamp(rng)
    return f"{text}+00", binary, moment.replace(tzinfo=dt.UTC)


def uuid4(rng: random.Random) -> Forms:
    """Make uuids, which are strings in Arrow."""
    found = uuid.UUID(int=rng.getrandbits(128))
    return str(found), found.bytes, str(found)


def text(rng: random.Random) -> Forms:
    """Make texts of 3 to 40 bytes."""
    words = " ".join(rng.choices(("alpha", "beta", "gamma", "delta"), k=8))[: rng.randint(3, 40)]
    return words, words.encode(), words


def jsonb(rng: random.Random) -> Forms:
    """Make small JSON objects. The binary format begins with a version."""
    document = json.dumps({"k": rng.randrange(10**6), "t": ["x", "y"]})
    return document, b"\1" + document.encode(), document


def bytea(rng: random.Random) -> Forms:
    """Make 4 to 40 bytes."""
    data = rng.randbytes(rng.randint(4, 40))
    return f"\\x{data.hex()}", data, data


KINDS = (
    Kind("bool", pa.bool_(), boolean, lambda value: "true" if value == "t" else "false"),
    Kind("int2", pa.int16(), integer(16, "h")),
    Kind("int4", pa.int32(), integer(32, "i")),
    Kind("int8", pa.int64(), integer(64, "q")),
    Kind("float4", pa.float32(), float4),
    Kind("float8", pa.float64(), float8),
    Kind("numeric", pa.decimal128(14, 2), numeric, typmod=(14 << 16 | 2) + 4),
    Kind("date", pa.date32(), date),
    Kind("time", pa.time64("us"), time, None),
    Kind("timestamp", pa.timestamp("us"), timestamp),
    Kind("timestamptz", pa.timestamp("us", "UTC"), timestamptz, lambda value: f"{value}00"),
    Kind("uuid", pa.string(), uuid4, None),
    # pyarrow's cast of bytes to string checks them and copies nothing, so it is not the same work.
    Kind("text", pa.string(), text, None),
    Kind("jsonb", pa.string(), jsonb, None),
    Kind("bytea", pa.binary(), bytea, None),
)


def insert(cells: Sequence[bytes], letter: bytes) -> bytes:
    """Make an Insert message."""
    parts = [part for cell in cells for part in (letter, len(cell).to_bytes(4, "big"), cell)]
    return b"".join([b"I\0\0@\0N", len(cells).to_bytes(2, "big"), *parts])


def load_values(kind: Kind, n_values: int) -> ValueSet:
    """Make the values of a type, as many as fill rows; they are the same in each run."""
    rng = random.Random(kind.name)
    n_rows = max(n_values // N_COLUMNS, 1)
    n_distinct = min(n_rows, N_DISTINCT // N_COLUMNS)
    texts, binaries, values = zip(*(kind.make(rng) for _ in range(n_distinct * N_COLUMNS)), strict=True)
    rows = [slice(row * N_COLUMNS, (row + 1) * N_COLUMNS) for row in range(n_distinct)]
    which = pa.array([row % n_distinct for row in range(n_rows)], pa.int64())
    at = pa.array([row % n_distinct * N_COLUMNS + c for c in range(N_COLUMNS) for row in range(n_rows)], pa.int64())
    to_cast = None if kind.to_cast is None else pa.array(map(kind.to_cast, texts), pa.string()).take(at)
    in_text = [text.encode() for text in texts]
    type_id = next(oid for oid, name in NAME_BY_OID.items() if name == kind.name)
    columns = tuple(pgdecode.Column(0, f"value_{c}", type_id, kind.typmod) for c in range(N_COLUMNS))
    return ValueSet(
        name=kind.name,
        kind=VALUES,
        payloads=pa.array([insert(in_text[row], b"t") for row in rows], pa.binary()).take(which),
        relation_id_sum=0,
        relation=pgdecode.Relation(16384, "public", "values", "d", columns),
        binaries=pa.array([insert(binaries[row], b"b") for row in rows], pa.binary()).take(which),
        expected=pa.array(values, kind.arrow).take(at),
        to_cast=to_cast,
    )
