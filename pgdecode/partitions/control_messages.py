"""Control messages of row groups: what an index of partitions needs of them, and their form in a footer."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode._native.arrow.payload_array import Source
from pgdecode._native.wire.message_filter import tagged
from pgdecode.protocol.boundaries import (
    ALWAYS_NEEDED,
    BEGIN_COMMIT,
    BEGIN_LENGTH,
    BEGIN_LSN,
    BEGIN_TIME,
    BEGIN_XID,
    COMMIT_END,
    COMMIT_LENGTH,
    COMMIT_LSN,
    COMMIT_TIME,
    OF_COPY,
    ROWS,
    STREAM_AND_TWO_PHASE,
    needed,
)
from pgdecode.protocol.json_document import load_json

_VERSION = 1
# Readers keep the footers of all files in memory.
_MOST_TEXT = 256 * 2**10
# A small file is read at once, but there may be many.
_LEAST_TEXT = 4 * 2**10
_MOST_SHARE = 0.05
# Bytes of messages, before compression.
_MOST_BYTES = 8 * 2**20
_PAIRS = re.compile(rb"(?:BC){3,}")


class GroupMessages(NamedTuple):
    """The control messages of a row group.

    Attributes
    ----------
    n_rows : int
    has_rows : bool
        Whether it has inserts, updates, deletes or truncates.
    rows : pa.Array of int64
        Numbers of the rows of the messages in the row group, ascending.
    payloads : pa.Array of binary
        What `pgdecode.partitions.partition_index.index_partitions` requires with `in_full`, without the rows before the
        first boundary.
    """

    n_rows: int
    has_rows: bool
    rows: pa.Array
    payloads: pa.Array


def control_messages(payloads: pa.ChunkedArray) -> GroupMessages:
    """Find the control messages among payloads in slot order, which are in one partition."""
    rows, messages, tags = [pa.array([], pa.int64())], [pa.array([], payloads.type)], set[int]()
    start = 0
    # Payloads are not joined, because most are not taken.
    for chunk in payloads.chunks:
        control, _, _, of_chunk = tagged(Source([chunk]), ALWAYS_NEEDED + BEGIN_COMMIT, b"")
        tags.update(of_chunk)
        if control is not None:
            numbers = pa.Array.from_buffers(pa.int64(), control.size // 8, [None, control])
            messages.append(chunk.take(numbers))
            rows.append(pc.add(numbers, start))
        start += len(chunk)
    joined = pa.concat_arrays(messages)
    chosen = pa.array(_needed(joined), pa.int64())
    return GroupMessages(start, not tags.isdisjoint(ROWS), pa.concat_arrays(rows).take(chosen), joined.take(chosen))


def _needed(messages: pa.Array) -> list[int]:
    """Choose messages as `boundaries.needed` does."""
    first_bytes = pc.binary_slice(messages, 0, 1).buffers()[2]
    tags = b"" if first_bytes is None else first_bytes.to_pybytes()[: len(messages)]
    if not _are_plain_and_ascend(messages, tags):
        return needed(messages.to_pylist())
    # The first and the last pair of several are needed.
    inner = [(match.start() + 2, match.end() - 2) for match in _PAIRS.finditer(tags)]
    borders = [0, *(border for pair in inner for border in pair), len(tags)]
    return [row for start, end in zip(borders[::2], borders[1::2], strict=True) for row in range(start, end)]


def _are_plain_and_ascend(messages: pa.Array, tags: bytes) -> bool:
    """Whether Begins and Commits are well-formed with ascending LSNs, none of a copy, stream or two-phase commit."""
    if not set(tags).isdisjoint(STREAM_AND_TWO_PHASE):
        return False
    codes = pa.Array.from_buffers(pa.uint8(), len(tags), [None, pa.py_buffer(tags)])
    are_begins, are_commits = pc.equal(codes, ord("B")), pc.equal(codes, ord("C"))
    begins, commits = messages.filter(are_begins), messages.filter(are_commits)
    pairs = pc.indices_nonzero(pc.and_(are_begins.slice(0, max(len(codes) - 1, 0)), are_commits.slice(1)))
    lsns = pc.binary_slice(commits, COMMIT_LSN, COMMIT_END)
    checks = (
        pc.equal(pc.binary_length(begins), BEGIN_LENGTH),
        pc.less(_byte(begins, BEGIN_LSN), b"\x80"),
        pc.equal(_byte(begins, BEGIN_TIME), b"\0"),
        pc.not_equal(pc.binary_slice(begins, BEGIN_XID, BEGIN_LENGTH), OF_COPY),
        pc.equal(pc.binary_length(commits), COMMIT_LENGTH),
        pc.equal(_byte(commits, 1), b"\0"),
        pc.less(_byte(commits, COMMIT_LSN), b"\x80"),
        pc.less(_byte(commits, COMMIT_END), b"\x80"),
        pc.equal(_byte(commits, COMMIT_TIME), b"\0"),
        pc.less(lsns.slice(0, max(len(lsns) - 1, 0)), lsns.slice(1)),
        pc.equal(
            pc.binary_slice(messages.take(pairs), BEGIN_LSN, BEGIN_TIME),
            pc.binary_slice(messages.take(pc.add(pairs, 1)), COMMIT_LSN, COMMIT_END),
        ),
    )
    return all(pc.all(check, min_count=0).as_py() for check in checks)


def _byte(messages: pa.Array, offset: int) -> pa.Array:
    return pc.binary_slice(messages, offset, offset + 1)


class FooterMessages:
    """The control messages of a file that is being written."""

    def __init__(self) -> None:
        self._groups: list[tuple[GroupMessages, int]] | None = []
        self._n_bytes = 0

    def add(self, payloads: pa.ChunkedArray, end: int) -> None:
        """Add a row group that ends at an offset in the file."""
        if self._groups is None:
            return
        messages = control_messages(payloads)
        self._n_bytes += messages.payloads.nbytes + messages.rows.nbytes
        self._groups.append((messages, end))
        if self._n_bytes > _MOST_BYTES:
            self._groups = None

    def to_text(self, n_bytes: int) -> str | None:
        """Write them for the footer of a file of `n_bytes`; None if they would be a large part of it."""
        if self._groups is None:
            return None
        firsts = accumulate((messages.n_rows for messages, _ in self._groups), initial=0)
        rows = [
            first + row
            for first, (messages, _) in zip(firsts, self._groups, strict=False)
            for row in messages.rows.to_pylist()
        ]
        payloads = [item for messages, _ in self._groups for item in messages.payloads.to_pylist()]
        # Differences of rows are small and repeat.
        steps = array("q", (after - before for before, after in pairwise((0, *rows))))
        content = steps.tobytes() + array("i", map(len, payloads)).tobytes() + b"".join(payloads)
        text = json.dumps(
            {
                "version": _VERSION,
                "groups": [[messages.n_rows, int(messages.has_rows), end] for messages, end in self._groups],
                "messages": len(rows),
                "content": base64.b64encode(zlib.compress(content)).decode(),
            }
        )
        most = min(max(_MOST_SHARE * n_bytes, _LEAST_TEXT), _MOST_TEXT)
        return f"{_digest(text.encode())} {text}" if len(text) <= most else None


def from_footer(content: bytes, groups: Sequence[tuple[int, int]]) -> tuple[GroupMessages, ...]:
    """Read what `FooterMessages` wrote.

    Parameters
    ----------
    content : bytes
    groups : sequence of (int, int)
        Of all row groups of the file: the number of rows, and the offset where its payloads end.

    Raises
    ------
    ValueError
        If it is damaged, or of other row groups: another program may have copied it to a file that it wrote.
    """
    digest, _, text = content.partition(b" ")
    if digest.decode("ascii", "replace") != _digest(text):
        raise ValueError("the digest differs")
    plain = load_json(text)
    try:
        if plain["version"] != _VERSION or [(n_rows, end) for n_rows, _, end in plain["groups"]] != list(groups):
            raise ValueError("of another version, or of other row groups")
        rows, payloads = _messages(plain)
        found, start = [], 0
        for n_rows, has_rows, _ in plain["groups"]:
            first, last = bisect_left(rows, start), bisect_left(rows, start + n_rows)
            numbers = pa.array([row - start for row in rows[first:last]], pa.int64())
            found.append(GroupMessages(n_rows, bool(has_rows), numbers, payloads.slice(first, last - first)))
            start += n_rows
        if rows and not 0 <= rows[0] <= rows[-1] < start:
            raise ValueError("a row does not exist")
    except (KeyError, TypeError, OverflowError, zlib.error) as error:
        raise ValueError("not control messages") from error
    return tuple(found)


def _messages(plain: Any) -> tuple[list[int], pa.Array]:
    """Return the rows in the file and the payloads."""
    n_messages = plain["messages"]
    content = zlib.decompressobj().decompress(base64.b64decode(plain["content"], validate=True), 2 * _MOST_BYTES)
    if not 0 <= 12 * n_messages <= len(content):
        raise ValueError("too short")
    steps, lengths = array("q"), array("i")
    steps.frombytes(content[: 8 * n_messages])
    lengths.frombytes(content[8 * n_messages : 12 * n_messages])
    if min(lengths, default=0) < 0 or min(steps[1:], default=1) < 1 or sum(lengths) != len(content) - 12 * n_messages:
        raise ValueError("rows do not ascend, or lengths are wrong")
    offsets = array("i", accumulate(lengths, initial=0))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(content[12 * n_messages :])]
    return [*accumulate(steps)], pa.Array.from_buffers(pa.binary(), n_messages, buffers)


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()
