"""The data sets: recorded slices of payloads in data/, repeated to the required length."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import pgdecode

FOLDER = Path(__file__).with_name("data")
MAX_BYTES = 2**31 - 1  # limit of 32-bit Arrow offsets
BATCH_ROWS = 65_536  # a common Parquet or Spark batch

# Kinds of data sets. A case lists the kinds that it can use.
MESSAGES = "messages"
ROWS = "rows of one table"
VALUES = "values of one type"
FILES = "a file of payloads"


@dataclass(frozen=True)
class Recording:
    """A recorded slice, and how many of its messages a full and a quick run decode; for ROWS, those of one table.

    A sample of a slice with streams is its first messages, because others would lack their Stream Start.
    """

    name: str
    full_rows: int
    quick_rows: int
    kind: str = MESSAGES
    table: str | None = None
    streamed: bool = False


RECORDINGS = (
    Recording("pgbench.text", 2_000_000, 300_000),
    Recording("pgbench.bin", 2_000_000, 300_000),
    Recording("wide.text", 500_000, 75_000),
    Recording("wide.bin", 500_000, 75_000),
    Recording("pgbench.text, accounts", 500_000, 75_000, ROWS, "pgbench_accounts"),
    Recording("pgbench.bin, accounts", 500_000, 75_000, ROWS, "pgbench_accounts"),
    Recording("wide.text, rows", 500_000, 75_000, ROWS, "wide"),
    Recording("wide.bin, rows", 500_000, 75_000, ROWS, "wide"),
    Recording("pgbench.text, files", 6_000_000, 100_000, FILES),
    Recording("toast.text", 100_000, 10_000),
    Recording("columns.text", 10_000, 1_000),
    Recording("tiny.text", 2_000_000, 300_000),
    Recording("streamed.text", 1_000_000, 150_000, streamed=True),
    Recording("toast.text, rows", 100_000, 10_000, ROWS, "document"),
    Recording("columns.text, rows", 10_000, 1_000, ROWS, "columns"),
)


@dataclass(frozen=True)
class DataSet:
    """Payloads in one Arrow array without nulls and with offset 0."""

    name: str
    payloads: pa.BinaryArray
    relation_id_sum: int  # over R, I, U and D messages, read in plain Python; every case's result must agree with it
    kind: str = MESSAGES
    relation: pgdecode.Relation | None = None  # for ROWS
    whole: bool = True  # consecutive messages from the first one, not a sample
    streamed: bool = False

    @property
    def n_rows(self) -> int:
        """Number of messages."""
        return len(self.payloads)

    @functools.cached_property
    def n_bytes(self) -> int:
        """Bytes of all payloads, without offsets."""
        return int(self.payloads.total_values_length)

    @property
    def offsets_address(self) -> int:
        """Address of the n + 1 int32 offsets."""
        return int(self.payloads.buffers()[1].address)

    @property
    def bytes_address(self) -> int:
        """Address of the payloads' bytes."""
        return int(self.payloads.buffers()[2].address)

    def batches(self) -> list[pa.BinaryArray]:
        """Split the payloads into batches like those of a file reader or a Spark task."""
        return [self.payloads.slice(at, BATCH_ROWS) for at in range(0, self.n_rows, BATCH_ROWS)]

    def sample(self, n_rows: int) -> DataSet:
        """Take a sample with all kinds of messages in their proportions; for streams, the first rows."""
        if n_rows >= self.n_rows:
            return self
        payloads = self.payloads.slice(0, n_rows) if self.streamed else spread(self.payloads, n_rows)
        return replace(self, payloads=payloads, relation_id_sum=sum(relation_ids(payloads)), whole=False)


class Seen(NamedTuple):
    """Parts of a message: its tag, the xid of the stream around it, its own xid in the stream, and the other bytes."""

    tag: bytes
    stream: int | None
    xid: int | None
    body: bytes


def followed(payloads: Iterable[bytes]) -> Iterator[Seen]:
    """Read tags and stream xids in plain Python, from messages in slot order."""
    stream = None
    for payload in payloads:
        tag, body, xid = payload[:1], payload[1:], None
        if tag == b"S":
            stream = int.from_bytes(body[:4], "big")
        elif tag == b"E":
            stream = None
        elif stream is not None and tag in b"RYIUDTM":
            xid, body = int.from_bytes(body[:4], "big"), body[4:]
        yield Seen(tag, stream, xid, body)


def relation_ids(payloads: pa.Array) -> list[int]:
    """Read the relation id of each message in plain Python; 0 for a message without one."""
    found = followed(payloads.to_pylist())
    return [int.from_bytes(seen.body[:4], "big") if seen.tag in b"RIUD" else 0 for seen in found]


def key_of(payload: bytes) -> int:
    """Read the first column of the first tuple, an integer in text or binary, in plain Python."""
    cell = payload[8:]
    value = cell[5 : 5 + int.from_bytes(cell[1:5], "big")]
    return int(value) if cell[:1] == b"t" else int.from_bytes(value, "big", signed=True)


def spread(payloads: pa.Array, n_rows: int) -> pa.Array:
    """Pick one row at random from each of `n_rows` slices of the same length."""
    # Every k-th row would be biased: pgbench's transactions have six messages, and an even k would miss some of them.
    rng = random.Random(0)
    bounds = [number * len(payloads) // n_rows for number in range(n_rows + 1)]
    return payloads.take(pa.array([rng.randrange(*bound) for bound in pairwise(bounds)], pa.int64()))


def rows_of(payloads: pa.BinaryArray, table: str) -> tuple[pa.BinaryArray, pgdecode.Relation]:
    """Select the inserts, updates and deletes of one table from a recording without streams."""
    described = (pgdecode.decode(payload) for payload in payloads.to_pylist() if payload[:1] == b"R")
    relation = next(found for found in described if isinstance(found, pgdecode.Relation) and found.name == table)
    prefixes = [tag + relation.relation_id.to_bytes(4, "big") for tag in (b"I", b"U", b"D")]
    return pa.array([row for row in payloads.to_pylist() if row[:5] in prefixes], pa.binary()), relation


def recorded(name: str) -> pa.BinaryArray:
    """Read the recorded slice of a data set."""
    table = pq.read_table(FOLDER / f"{name.partition(',')[0]}.parquet", columns=["data"])
    return pa.concat_arrays(table["data"].chunks)


def load(name: str, n_rows: int) -> DataSet:
    """Read a recorded slice and repeat it to `n_rows` messages, or take a sample of it."""
    recording = next(recording for recording in RECORDINGS if recording.name == name)
    payloads = recorded(name)
    relation = None
    if recording.table:
        payloads, relation = rows_of(payloads, recording.table)
    ids = relation_ids(payloads)
    slice_once = DataSet(name, payloads, sum(ids), recording.kind, relation, streamed=recording.streamed)
    if n_rows < len(payloads):
        return slice_once.sample(n_rows)
    n_bytes = slice_once.n_bytes * n_rows // len(payloads)
    if n_bytes > MAX_BYTES:
        raise ValueError(f"{name}: {n_rows} messages are {n_bytes} bytes, one Arrow array holds {MAX_BYTES}")
    times, rest = divmod(n_rows, len(payloads))
    long = repeated(payloads, times + 1).slice(0, n_rows)
    return replace(slice_once, payloads=long, relation_id_sum=times * sum(ids) + sum(ids[:rest]))


# Where the LSN of a transaction's end is in a message, in bytes from the tag on.
_LSN_AT = {b"B": 1, b"C": 2, b"c": 6, b"b": 1, b"P": 2, b"K": 2, b"r": 10, b"p": 6}


def repeated(payloads: pa.BinaryArray, times: int) -> pa.BinaryArray:
    """Repeat a recording. Commits of each copy have greater LSNs than those before, as a server would send them.

    Its first Begin keeps its LSN. It ends the transaction in which the recording may end, as after a reconnect.
    """
    starts = memoryview(payloads.buffers()[1]).cast("i")[payloads.offset :]
    tags = pc.binary_slice(payloads, 0, 1).to_pylist()
    placed = [(tag, start + _LSN_AT[tag]) for start, tag in zip(starts, tags, strict=False) if tag in _LSN_AT]
    places = [place for number, (tag, place) in enumerate(placed) if number or tag != b"B"]
    data = payloads.buffers()[2]
    copies = []
    for number in range(times):
        content = bytearray(data)
        for place in places:
            # The upper half of the LSN.
            upper = int.from_bytes(content[place : place + 4], "big") + (number << 8)
            content[place : place + 4] = upper.to_bytes(4, "big")
        buffers = [None, payloads.buffers()[1], pa.py_buffer(content)]
        copies.append(pa.Array.from_buffers(payloads.type, len(payloads), buffers, offset=payloads.offset))
    return pa.concat_arrays(copies)
