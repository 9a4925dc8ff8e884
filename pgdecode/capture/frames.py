"""Frames of a replication stream: conversion to Arrow columns, and transaction boundaries."""

from __future__ import annotations

import re
import time
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode.capture.errors import StoppedError
from pgdecode.payloads.payload_input import ascending
from pgdecode.protocol.lsn import lsn_from_text, lsn_to_text
from pgdecode.protocol.messages import (
    Begin,
    BeginPrepare,
    Commit,
    CommitPrepared,
    LogicalMessage,
    Prepare,
    RollbackPrepared,
    StreamCommit,
    StreamPrepare,
)
from pgdecode.protocol.wire import offset_of

# 'w' and three int64: the message's LSN, the server's current LSN, and the time of sending.
HEADER_BYTES = 25
_END = 2**31 - 1

SCHEMA = pa.schema(
    [
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("lsn", pa.int64(), nullable=False),
        pa.field("received", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("data", pa.binary(), nullable=False),
    ]
)

# Offset of the LSN from which the server can continue after this message without sending it again. It is always the end
# of the message's WAL record (logicalmsg_decode and DecodeCommit, replication/logical/decode.c). The server sends again
# what begins at or after the LSN where it starts (SnapBuildXactNeedsSkip), so it neither repeats that record nor leaves
# out the next one, which may begin at the same LSN.
_LSN_AT = {
    ord(kind.tag): offset_of(kind, name)
    for kind, name in (
        (Commit, "end_lsn"),
        (Prepare, "end_lsn"),
        (CommitPrepared, "end_lsn"),
        (RollbackPrepared, "rollback_end_lsn"),
        (StreamCommit, "end_lsn"),
        (StreamPrepare, "end_lsn"),
        (LogicalMessage, "lsn"),
    )
}
# Offset of the LSN of the record that ends a transaction, in the message that begins it.
_BEGINS_AT = {
    ord(kind.tag): offset_of(kind, name) for kind, name in ((Begin, "final_lsn"), (BeginPrepare, "prepare_lsn"))
}
_LATER = re.compile(rb"[BbKrcpM]")
_OPENS, _CLOSES = b"BbS", b"CPE"
_OUTCOME = re.compile(rb"[CPKrcpM]")
_CLOSE = re.compile(rb"[CPE]")


class Chunk:
    """Consecutive frames that the receiver has collected.

    Attributes
    ----------
    content : bytearray
        The frames, one after the other.
    ends : array of int
        0, then the end of each frame in `content`.
    received_us : int
        Time of the first frame, in microseconds since 1970.
    """

    __slots__ = ("content", "ends", "received_us")

    def __init__(self) -> None:
        self.content = bytearray()
        self.ends = array("i", (0,))
        self.received_us = 0

    def __len__(self) -> int:
        return len(self.ends) - 1

    @property
    def n_bytes(self) -> int:
        """Approximate memory of the chunk."""
        return len(self.content) + 4 * len(self.ends)


@dataclass(frozen=True)
class CopiedTable:
    """A table whose rows are in a file.

    Attributes
    ----------
    table : str
        Schema and name with a dot.
    oid : int
    rows : int
    lsn : int
        LSN of the snapshot in which it was read.
    """

    table: str
    oid: int
    rows: int
    lsn: int

    def as_dict(self) -> dict[str, Any]:
        """Convert it to JSON values."""
        return {**vars(self), "lsn": lsn_to_text(self.lsn)}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> CopiedTable:
        """Convert back what `as_dict` returned."""
        return cls(str(plain["table"]), int(plain["oid"]), int(plain["rows"]), lsn_from_text(plain["lsn"]))


@dataclass(frozen=True)
class CopiedPayloads:
    """Consecutive payloads of a copy, in place of a `Chunk`.

    Attributes
    ----------
    payloads : pa.BinaryArray
    lsn : int
    ended : CopiedTable, optional
        The table whose copy these payloads end.
    """

    payloads: pa.Array
    lsn: int
    ended: CopiedTable | None = None

    def __len__(self) -> int:
        return len(self.payloads)

    @property
    def n_bytes(self) -> int:
        """Approximate memory of the payloads."""
        return int(self.payloads.nbytes)


@dataclass(frozen=True)
class Messages:
    """Messages of a chunk, in order.

    Attributes
    ----------
    rows : pa.RecordBatch
        With the schema `SCHEMA`.
    tags : bytes
        Tag of each message; 0 for an empty payload.
    """

    rows: pa.RecordBatch
    tags: bytes

    @property
    def first_seq(self) -> int:
        """Number of the first message."""
        return int(self.rows.column("seq")[0].as_py())

    def payload(self, row: int) -> bytes:
        """Return the payload of a message."""
        payload: bytes = self.rows.column("data")[row].as_py()
        return payload


def messages_of(chunk: Chunk | CopiedPayloads, first_seq: int) -> Messages:
    """Split frames into the columns of messages.

    Parameters
    ----------
    chunk : Chunk or CopiedPayloads
        At least one frame or payload.
    first_seq : int
        Number of the first message.

    Raises
    ------
    StoppedError
        If a frame is not XLogData.
    """
    count = len(chunk)
    if isinstance(chunk, CopiedPayloads):
        copied = [
            ascending(first_seq, count),
            pa.repeat(pa.scalar(chunk.lsn, pa.int64()), count),
            pa.repeat(pa.scalar(time.time_ns() // 1000, SCHEMA.field("received").type), count),
            chunk.payloads,
        ]
        tags = _content(pc.binary_slice(chunk.payloads, 0, 1))
        return Messages(pa.RecordBatch.from_arrays(copied, schema=SCHEMA), tags)
    buffers = [None, pa.py_buffer(chunk.ends), pa.py_buffer(chunk.content)]
    frames = pa.Array.from_buffers(pa.binary(), count, buffers)
    headers = _content(pc.binary_slice(frames, 0, HEADER_BYTES))
    if len(headers) != HEADER_BYTES * count or headers[::HEADER_BYTES].count(b"w") != count:
        raise StoppedError("the server sent a frame that is neither XLogData nor a keepalive")
    # An explicit end is needed: without it, pyarrow 26 miscounts slices that begin where a value ends.
    data = pc.binary_slice(frames, HEADER_BYTES, _END)
    tags = _content(pc.binary_slice(data, 0, 1))
    if len(tags) != count:
        content, starts = chunk.content, chunk.ends
        tags = bytes(
            content[start + HEADER_BYTES] if end > start + HEADER_BYTES else 0 for start, end in pairwise(starts)
        )
    # The wire is big-endian, Arrow is little-endian.
    lsns = bytearray(8 * count)
    for byte in range(8):
        lsns[byte::8] = headers[8 - byte :: HEADER_BYTES]
    received = array("q", (chunk.received_us,)) * count
    columns = [
        ascending(first_seq, count),
        pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(lsns)]),
        pa.Array.from_buffers(SCHEMA.field("received").type, count, [None, pa.py_buffer(received)]),
        data,
    ]
    return Messages(pa.RecordBatch.from_arrays(columns, schema=SCHEMA), tags)


def _content(values: pa.Array) -> bytes:
    """Return the concatenated bytes of all values of a newly made array, whose buffer has no other bytes."""
    data = values.buffers()[2]
    return b"" if data is None else data.to_pybytes()


def last_boundary(tags: bytes, is_open: bool) -> int | None:
    """Count the messages before the last boundary, a place outside B..C, b..P and S..E; None if there is none.

    Parameters
    ----------
    tags : bytes
    is_open : bool
        Whether the first message is inside B..C, b..P or S..E.
    """
    opened = max(map(tags.rfind, _OPENS))
    closed = max(map(tags.rfind, _CLOSES))
    if opened > closed:
        # The last opening message is at a boundary, unless the input began inside and nothing has closed.
        return opened if closed >= 0 or not is_open else None
    return len(tags) if closed >= 0 or not is_open else None


def boundary_after(tags: bytes, is_open: bool, count: int) -> int | None:
    """Count the messages before the first boundary with at least `count` messages before it; None if there is none."""
    boundary = last_boundary(tags[:count], is_open)
    if boundary == count:
        return count
    match = _CLOSE.search(tags, count)
    return match.end() if match else None


def is_open_after(tags: bytes, is_open: bool) -> bool:
    """Whether the input is inside B..C, b..P or S..E after the messages."""
    return last_boundary(tags, is_open) != len(tags)


def last_position(messages: Messages, count: int, is_open: bool) -> int | None:
    """Find the LSN at which the server would continue after the first `count` messages; None if they complete nothing.

    It is the end of the last record that completed a transaction or a message.

    Parameters
    ----------
    messages : Messages
    count : int
        Number of messages before a boundary.
    is_open : bool
        Whether the first message is inside B..C, b..P or S..E.
    """
    row = max(messages.tags.rfind(tag, 0, count) for tag in _LSN_AT if tag != ord("M"))
    row = max(row, _last_message_outside(messages.tags, row + 1, count, is_open=is_open and row < 0))
    return None if row < 0 else _position(messages, row)


def _last_message_outside(tags: bytes, start: int, stop: int, *, is_open: bool) -> int:
    """Find the last Message outside B..C, b..P and S..E; -1 if there is none. Those inside are of a transaction."""
    row = tags.rfind(b"M", start, stop)
    while row >= 0:
        opened = max(tags.rfind(tag, start, row) for tag in _OPENS)
        closed = max(tags.rfind(tag, start, row) for tag in _CLOSES)
        # They are equal only if there is neither.
        if closed > opened or (closed == opened and not is_open):
            break
        row = tags.rfind(b"M", start, max(opened, start))
    return row


def positions(messages: Messages, is_open: bool) -> Iterator[tuple[int, int]]:
    """Yield each boundary that completes a transaction or a message: (number of messages before it, LSN)."""
    for match in _OUTCOME.finditer(messages.tags):
        row = match.start()
        if messages.tags[row] != ord("M") or not is_open_after(messages.tags[:row], is_open):
            yield row + 1, _position(messages, row)


def count_before(messages: Messages, lsn: int, is_open: bool) -> int | None:
    """Count the messages before the first whose WAL record begins at or after an LSN, which is the end of a record.

    A Begin has the LSN of its commit. None if there is no such message.
    """
    for match in _LATER.finditer(messages.tags):
        row = match.start()
        tag = messages.tags[row]
        if tag in _BEGINS_AT:
            offset = _BEGINS_AT[tag]
            is_later = int.from_bytes(messages.payload(row)[offset : offset + 8], "big") >= lsn
        else:
            is_later = _position(messages, row) > lsn
        if is_later and (tag != ord("M") or not is_open_after(messages.tags[:row], is_open)):
            return row
    return None


def _position(messages: Messages, row: int) -> int:
    offset = _LSN_AT[messages.tags[row]]
    return int.from_bytes(messages.payload(row)[offset : offset + 8], "big")
