"""Finds where payloads end, as of a commit."""

from __future__ import annotations

import sys
from array import array
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode._native.arrow.payload_array import Source
from pgdecode._native.wire.message_filter import tagged
from pgdecode.payloads.payload_input import positions_of
from pgdecode.protocol.as_of import AsOf
from pgdecode.protocol.messages import Begin, Commit, CommitPrepared, StreamCommit
from pgdecode.protocol.wire import offset_of

# The messages with the LSN and time of a commit, and the names of these fields.
COMMITS = (
    (Begin, "final_lsn", "commit_timestamp"),
    (Commit, "commit_lsn", "commit_timestamp"),
    (StreamCommit, "commit_lsn", "commit_timestamp"),
    (CommitPrepared, "commit_lsn", "commit_timestamp"),
)


def commit_fields(as_of: AsOf) -> list[tuple[bytes, int, int]]:
    """List for each of these messages its tag, the offset of its LSN or time, and its least length."""
    found = []
    for message, lsn, time in COMMITS:
        offset = offset_of(message, lsn if as_of.lsn is not None else time)
        found.append((message.tag.encode(), offset, offset_of(message, time) + 8))
    return found


def commit_lsn_of(payload: bytes) -> int | None:
    """Return the LSN in a Begin or a commit; None for other payloads."""
    for message, lsn, _ in COMMITS:
        offset = offset_of(message, lsn)
        if payload[:1] == message.tag.encode() and len(payload) >= offset + 8:
            return int.from_bytes(payload[offset : offset + 8])
    return None


def rows_as_of(payloads: pa.Array | pa.ChunkedArray, as_of: AsOf) -> int | None:
    """Return the number of payloads before the first Begin or commit after `as_of`; None if there is none."""
    start = 0
    for chunk in payloads.chunks if isinstance(payloads, pa.ChunkedArray) else [payloads]:
        firsts = [row for item in commit_fields(as_of) if (row := _first_after(chunk, *item, as_of)) is not None]
        if firsts:
            return start + min(firsts)
        start += len(chunk)
    return None


def _first_after(payloads: pa.Array, tag: bytes, offset: int, n_bytes: int, as_of: AsOf) -> int | None:
    buffer, _, _, _ = tagged(Source([payloads]), tag, b"")
    if buffer is None or not buffer.size:
        return None
    rows = pa.Array.from_buffers(pa.int64(), buffer.size // 8, [None, buffer])
    chosen = payloads.take(rows)
    is_whole = pc.greater_equal(pc.binary_length(chosen), n_bytes)
    chosen, rows = chosen.filter(is_whole), rows.filter(is_whole)
    if not len(rows):
        return None
    limit = as_of.time_us if as_of.lsn is None else min(as_of.lsn, 2**63 - 1)
    values = array("q", b"".join(pc.binary_slice(chosen, offset, offset + 8).to_pylist()))
    if sys.byteorder == "little":
        values.byteswap()
    place = pc.index(pc.greater(pa.array(values, pa.int64()), limit), True).as_py()
    return None if place < 0 else rows[place].as_py()


def until(payloads: pa.ChunkedArray, position: Any, as_of: Any) -> tuple[pa.ChunkedArray, Any]:
    """Leave out the payloads from the first Begin or commit after `as_of` on, and their positions."""
    found = AsOf.of(as_of)
    n_rows = None if found is None else rows_as_of(payloads, found)
    if n_rows is None:
        return payloads, position
    positions = None if position is None else positions_of(position, len(payloads), 0).slice(0, n_rows)
    return payloads.slice(0, n_rows), positions
