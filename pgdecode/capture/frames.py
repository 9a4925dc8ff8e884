"""Frames of a replication stream as Arrow columns, and where transactions begin and end in them."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode.capture.errors import StoppedError

# 'w', and three int64: the message's LSN, the server's position, and the time it was sent.
HEADER_BYTES = 25
KEEPALIVE_BYTES = 18
_END = 2**31 - 1

SCHEMA = pa.schema(
    [
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("lsn", pa.int64(), nullable=False),
        pa.field("received", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("data", pa.binary(), nullable=False),
    ]
)

# Where the LSN stands from which on the server need not send again what this message completes.
_LSN_AT = {ord("C"): 10, ord("P"): 10, ord("K"): 10, ord("r"): 10, ord("c"): 14, ord("p"): 10, ord("M"): 2}
_OPENS, _CLOSES = b"BbS", b"CPE"
_OUTCOME = re.compile(rb"[CPKrcpM]")
_CLOSE = re.compile(rb"[CPE]")


class Chunk:
    """Frames as they came, one after the other, being collected by the thread that reads.

    Attributes
    ----------
    content : bytearray
        The frames.
    ends : array of int
        Where each ends in it.
    received_us : int
        When the first came: microseconds since 1970.
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
        """What the chunk takes up, about."""
        return len(self.content) + 4 * len(self.ends)


@dataclass(frozen=True)
class Messages:
    """Messages of a chunk, in order.

    Attributes
    ----------
    rows : pa.RecordBatch
        Of `SCHEMA`.
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
        """Give the payload of a message."""
        found: bytes = self.rows.column("data")[row].as_py()
        return found


def messages_of(chunk: Chunk, first_seq: int) -> Messages:
    """Take frames apart.

    Parameters
    ----------
    chunk : Chunk
        Of at least one frame.
    first_seq : int
        Number of the first message.

    Raises
    ------
    StoppedError
        If a frame is not XLogData.
    """
    count = len(chunk)
    buffers = [None, pa.py_buffer(chunk.ends), pa.py_buffer(chunk.content)]
    frames = pa.Array.from_buffers(pa.binary(), count, buffers)
    heads = _content(pc.binary_slice(frames, 0, HEADER_BYTES))
    if len(heads) != HEADER_BYTES * count or heads[::HEADER_BYTES].count(b"w") != count:
        raise StoppedError("the server sent a frame that is neither XLogData nor a keepalive")
    # The end is given: without one, pyarrow 26 miscounts slices that begin where a value ends.
    data = pc.binary_slice(frames, HEADER_BYTES, _END)
    tags = _content(pc.binary_slice(data, 0, 1))
    if len(tags) != count:
        content, starts = chunk.content, chunk.ends
        tags = bytes(
            content[start + HEADER_BYTES] if end > start + HEADER_BYTES else 0 for start, end in pairwise(starts)
        )
    # Byte by byte, from big-endian to the little-endian of Arrow.
    lsns = bytearray(8 * count)
    for at in range(8):
        lsns[at::8] = heads[8 - at :: HEADER_BYTES]
    columns = [
        pa.array(range(first_seq, first_seq + count), pa.int64()),
        pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(lsns)]),
        pa.repeat(pa.scalar(chunk.received_us, SCHEMA.field("received").type), count),
        data,
    ]
    return Messages(pa.RecordBatch.from_arrays(columns, schema=SCHEMA), tags)


def _content(values: pa.Array) -> bytes:
    """Give the bytes of all values, one after the other; an array that was just made has no others."""
    data = values.buffers()[2]
    return b"" if data is None else data.to_pybytes()


def last_boundary(tags: bytes, is_open: bool) -> int | None:
    """Count the messages up to the last place outside B..C, b..P and S..E; None if there is no such place.

    Parameters
    ----------
    tags : bytes
    is_open : bool
        Whether the first message stands in one of them.
    """
    opened = max(map(tags.rfind, _OPENS))
    closed = max(map(tags.rfind, _CLOSES))
    if opened > closed:
        # What stands before the last opening stands outside, unless the input began in the middle.
        return opened if closed >= 0 or not is_open else None
    return len(tags) if closed >= 0 or not is_open else None


def boundary_after(tags: bytes, is_open: bool, count: int) -> int | None:
    """Count the messages up to the first boundary that has at least `count` before it; None if there is none."""
    boundary = last_boundary(tags[:count], is_open)
    if boundary == count:
        return count
    found = _CLOSE.search(tags, count)
    return found.end() if found else None


def is_open_after(tags: bytes, is_open: bool) -> bool:
    """Whether the messages leave a B..C, b..P or S..E open."""
    opened = max(map(tags.rfind, _OPENS))
    closed = max(map(tags.rfind, _CLOSES))
    return opened > closed if max(opened, closed) >= 0 else is_open


def last_position(messages: Messages, count: int) -> int | None:
    """Find the LSN at which the server would go on after the first `count` messages; None if they complete nothing.

    It is the end of the last record whose transaction or message is complete. Of a non-transactional message it is the
    byte after its start: the server sends no record again that begins before the LSN where it starts.
    """
    closed = max(messages.tags.rfind(tag, 0, count) for tag in _CLOSES)
    # A transactional message stands inside a transaction; whatever comes after the last end stands outside of all.
    rows = [messages.tags.rfind(tag, 0, count) for tag in _LSN_AT if tag != ord("M")]
    rows.append(messages.tags.rfind(b"M", max(closed, 0), count))
    row = max(rows)
    return None if row < 0 else _position(messages, row)


def positions(messages: Messages, is_open: bool) -> Iterator[tuple[int, int]]:
    """Yield each place outside of transactions at which something is complete: messages up to it, and the LSN."""
    for match in _OUTCOME.finditer(messages.tags):
        row = match.start()
        if messages.tags[row] != ord("M") or not is_open_after(messages.tags[:row], is_open):
            yield row + 1, _position(messages, row)


def _position(messages: Messages, row: int) -> int:
    tag, payload = messages.tags[row], messages.payload(row)
    at = _LSN_AT[tag]
    return int.from_bytes(payload[at : at + 8], "big") + (tag == ord("M"))
