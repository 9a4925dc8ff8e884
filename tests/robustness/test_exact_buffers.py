"""No read leaves the buffers that hold the payloads, and what lies behind a payload changes nothing.

Buffers are blocks from malloc of exactly their length: in the usual build this says that the results are right, in one
with AddressSanitizer (`make sanitize`) that no fast path reads a byte too many.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

import pgdecode
from fuzz import blocks
from pgdecode import ChangeDecoder
from support import captures
from support.compare import NULL_ROW
from support.generators.pieces import broken, tables

CAPTURES = ["10.txns.v1", "14.streams.v2", "16.streams.v4bin", "18.types.v2", "18.types.v2bin"]
# All columns; none of tuples, for which there is a loop of its own; formats without values.
FIELDS = [[*NULL_ROW, "xid_basis"], ["kind", "xid", "error"], ["new_formats", "old_formats", "relation_id", "error"]]


def whole_views(payloads: Sequence[bytes | None]) -> pa.Array:
    """Views of one block, in which the payloads lie one behind the other."""
    views, data = b"", b"".join(item or b"" for item in payloads)
    at = 0
    for item in payloads:
        size = len(item or b"")
        if size <= blocks.INLINE:
            views += size.to_bytes(4, "little") + (item or b"").ljust(blocks.INLINE, b"\0")
        else:
            views += size.to_bytes(4, "little") + (item or b"")[:4] + bytes(4) + at.to_bytes(4, "little")
        at += size
    bits = sum(1 << row for row, item in enumerate(payloads) if item is not None)
    validity = blocks.exact(bits.to_bytes((len(payloads) + 7) // 8, "little"))
    buffers = [validity, blocks.exact(views), blocks.exact(data)]
    return pa.Array.from_buffers(pa.binary_view(), len(payloads), buffers)


WAYS: list[Any] = [
    pytest.param(lambda payloads: blocks.whole(payloads, "binary"), id="offsets32"),
    pytest.param(lambda payloads: blocks.whole(payloads, "large_binary"), id="offsets64"),
    pytest.param(whole_views, id="views"),
    *(
        pytest.param(lambda payloads, layout=layout: blocks.column(payloads, layout), id=f"{layout}, each alone")
        for layout in blocks.TYPES
    ),
]
each_way = pytest.mark.parametrize("column", WAYS)
Way = Callable[[Sequence[bytes | None]], Any]


def some(name: str) -> list[bytes]:
    """Few payloads, for each may be a chunk of its own."""
    return list(captures.capture(name).payloads[:400])


def endings(payloads: Sequence[bytes | None]) -> list[list[bytes | None]]:
    """The payloads, ending with one of each length: the last in the buffer is the one that is read past."""
    short = sorted({len(item or b"") for item in payloads})
    ends = sorted({min(n, len(payloads) - 1) for n in (0, 1, 62, 63, 64, 65, len(payloads) - 1)})
    return [list(payloads[: n + 1]) for n in ends] + [
        [next(item for item in payloads if len(item or b"") == size)] * 3 for size in short[:8]
    ]


@each_way
@pytest.mark.parametrize("damaged", [False, True])
@pytest.mark.parametrize("name", CAPTURES)
def test_messages_in_buffers_of_exactly_their_size(name: str, damaged: bool, column: Way) -> None:
    payloads = broken(some(name)) if damaged else some(name)
    for part in endings(payloads):
        for fields in FIELDS:
            for in_stream in (None, "auto"):
                asked: dict[str, Any] = {"fields": fields, "in_stream": in_stream, "mode": "PERMISSIVE"}
                assert pgdecode.decode_messages(column(part), **asked).equals(pgdecode.decode_messages(part, **asked))


@each_way
@pytest.mark.full
@pytest.mark.parametrize("name", ["18.types.v2", "18.types.v2bin", "18.txns.v2"])
def test_rows_in_buffers_of_exactly_their_size(name: str, column: Way) -> None:
    n_rows = 0
    for version, payloads in tables(name):
        for part in endings(payloads[:4]) if payloads else []:
            asked: dict[str, Any] = {"mode": "PERMISSIVE", "type_messages": version.types}
            expected = pgdecode.decode_rows(part, version.relation, **asked)
            assert same(pgdecode.decode_rows(column(part), version.relation, **asked), expected)
            for at in range(1, len(part[-1]), 3):
                # The last one in the buffer is cut: what its lengths claim is not there.
                cut = [*part[-2:], part[-1][:at]]
                found = pgdecode.decode_rows(column(cut), version.relation, **asked)
                assert same(found, pgdecode.decode_rows(cut, version.relation, **asked))
                if at > 24:
                    break
            n_rows += len(part)
    assert n_rows


def same(one: pa.RecordBatch, other: pa.RecordBatch) -> bool:
    """Equal, with NaN equal to itself: where a column has one, its bytes are compared."""
    return one.schema == other.schema and all(
        left.equals(right) or (not right.equals(right) and as_sent(left) == as_sent(right))
        for left, right in zip(one.columns, other.columns, strict=True)
    )


def as_sent(column: pa.Array) -> bytes:
    batch = pa.record_batch([column], ["c"])
    return batch.serialize().to_pybytes()


@each_way
@pytest.mark.parametrize("name", CAPTURES)
def test_changes_in_buffers_of_exactly_their_size(name: str, column: Way) -> None:
    for payloads in (some(name), broken(some(name))):
        expected = ChangeDecoder(mode="PERMISSIVE").decode(payloads)
        decoder = ChangeDecoder(mode="PERMISSIVE")
        assert decoder.decode(column(payloads)).equals(expected)
        for table in decoder._engine.layout_catalog.names[:4]:
            found = ChangeDecoder(mode="PERMISSIVE").table(column(payloads), table)
            assert same(found, ChangeDecoder(mode="PERMISSIVE").table(payloads, table))


@pytest.mark.parametrize("name", CAPTURES)
def test_what_lies_behind_a_payload_changes_nothing(name: str, rng: random.Random) -> None:
    payloads = [payload for payload in broken(some(name)[:300]) if payload]
    cut = [payload[: rng.randrange(1, len(payload) + 1)] for payload in payloads]
    behind = [bytes(80), b"\xff" * 80, b"n" * 80, b"t\0\0\0\1" * 16, b"N\0\1" + b"n" * 77, rng.randbytes(80)]
    states = [rng.random() < 0.5 for _ in cut for _ in range(2)]
    expected: pa.RecordBatch | None = None
    for filler in behind:
        mixed: list[bytes | None] = [item for payload in cut for item in (payload, filler)]
        for column in (blocks.whole(mixed, "binary"), blocks.whole(mixed, "large_binary"), whole_views(mixed)):
            found = pgdecode.decode_messages(column, in_stream=states, mode="PERMISSIVE").take(
                pa.array(range(0, len(mixed), 2))
            )
            expected = found if expected is None else expected
            assert found.equals(expected)
