"""Splitting frames, transaction boundaries, and the LSN from which a server would continue."""

from __future__ import annotations

import itertools
import struct

import pytest

from pgdecode.capture.errors import StoppedError
from pgdecode.capture.frames import (
    Chunk,
    Messages,
    boundary_after,
    is_open_after,
    last_boundary,
    last_position,
    messages_of,
    positions,
)
from pgdecode.capture.undecided import SessionState


def chunk_of(*payloads: bytes) -> Chunk:
    chunk = Chunk()
    chunk.received_us = 1_000_000
    for number, payload in enumerate(payloads):
        chunk.content += b"w" + struct.pack("!qqq", 2**40 + number, 0, 0) + payload
        chunk.ends.append(len(chunk.content))
    return chunk


def messages(*payloads: bytes) -> Messages:
    return messages_of(chunk_of(*payloads), 10)


def test_frames_become_rows() -> None:
    found = messages(b"Bx", b"", b"Cyz")
    assert found.tags == b"B\0C"
    found.rows.validate(full=True)
    assert found.rows.column("seq").to_pylist() == [10, 11, 12]
    assert found.rows.column("lsn").to_pylist() == [2**40, 2**40 + 1, 2**40 + 2]
    assert found.rows.column("data").to_pylist() == [b"Bx", b"", b"Cyz"]
    assert found.payload(2) == b"Cyz"


def test_a_payload_that_ends_where_its_frame_does_is_empty() -> None:
    assert messages(b"").rows.column("data").to_pylist() == [b""]


def test_another_frame_is_refused() -> None:
    chunk = chunk_of(b"B")
    chunk.content[0] = ord("x")
    with pytest.raises(StoppedError, match="neither XLogData nor a keepalive"):
        messages_of(chunk, 0)


def slow_boundary(tags: str, is_open: bool) -> int | None:
    """The last boundary, found by checking each place."""
    found = None if is_open else 0
    for count, tag in enumerate(tags, 1):
        is_open = tag in "BbS" or (is_open and tag not in "CPE")
        found = found if is_open else count
    return found


PIECES = ("BRIC", "bIP", "SIE", "M", "K", "A", "c")


@pytest.mark.parametrize("is_open", [False, True])
def test_the_last_boundary_is_outside_of_all_transactions(*, is_open: bool) -> None:
    for pieces in itertools.product(PIECES, repeat=3):
        whole = ("IIC" if is_open else "") + "".join(pieces)
        for stop in range(len(whole) + 1):
            tags = whole[:stop]
            assert last_boundary(tags.encode(), is_open) == slow_boundary(tags, is_open), (tags, is_open)
            still_open = slow_boundary(tags, is_open) != len(tags)
            assert is_open_after(tags.encode(), is_open) == ((still_open and bool(tags)) or (is_open and not tags))


@pytest.mark.parametrize(
    ("tags", "is_open", "count", "expected"),
    [
        ("BICBIC", False, 0, 0),
        ("BICBIC", False, 1, 3),
        ("BICBIC", False, 3, 3),
        ("BICBIC", False, 4, 6),
        ("ICM", True, 0, 2),
        ("BICM", False, 4, 4),
        ("BI", False, 1, None),
    ],
)
def test_the_first_boundary_after_so_many_messages(tags: str, is_open: bool, count: int, expected: int | None) -> None:
    assert boundary_after(tags.encode(), is_open, count) == expected


COMMIT = bytes.fromhex("4300000000000000001000000000000000200000000000000000")  # C: LSN, end LSN, time
STREAM_COMMIT = bytes.fromhex("630000000700000000000000003000000000000000400000000000000000")  # c
PREPARE = bytes.fromhex("5000000000000000005000000000000000600000000000000000000000076700")  # P
COMMIT_PREPARED = bytes.fromhex("4b00000000000000007000000000000000800000000000000000000000076700")
ROLLBACK = bytes.fromhex("72000000000000000050000000000000009000" * 16 + "000000076700")  # r
STREAM_PREPARE = bytes.fromhex("700000000000000000a000000000000000b00000000000000000000000076700")
# M: flags 0, LSN of the end of its record (logicalmsg_decode, replication/logical/decode.c), prefix, no content
MESSAGE = bytes.fromhex("4d0000000000000000c0700000000000")


@pytest.mark.parametrize(
    ("payload", "position"),
    [
        pytest.param(COMMIT, 0x20, id="commit"),
        pytest.param(STREAM_COMMIT, 0x40, id="stream commit"),
        pytest.param(PREPARE, 0x60, id="prepare"),
        pytest.param(COMMIT_PREPARED, 0x80, id="commit prepared"),
        pytest.param(ROLLBACK, 0x90, id="rollback prepared"),
        pytest.param(STREAM_PREPARE, 0xB0, id="stream prepare"),
        pytest.param(MESSAGE, 0xC0, id="message outside"),
    ],
)
def test_a_completing_message_gives_the_lsn_to_continue_from(payload: bytes, position: int) -> None:
    assert last_position(messages(payload), 1, is_open=False) == position
    assert list(positions(messages(payload), is_open=False)) == [(1, position)]


def test_a_message_inside_a_transaction_completes_nothing() -> None:
    found = messages(b"B", MESSAGE, COMMIT, MESSAGE, b"B", MESSAGE)
    assert last_position(found, 4, is_open=False) == 0xC0
    assert last_position(found, 3, is_open=False) == 0x20
    assert [count for count, _ in positions(found, is_open=False)] == [3, 4]


def slow_positions(tags: str, is_open: bool) -> list[tuple[int, int]]:
    """Each boundary that completes something, found by checking each place. The LSN is the number of the message."""
    found = []
    for number, tag in enumerate(tags, 1):
        if tag in "CPKrcp" or (tag == "M" and not is_open):
            found.append((number, number))
        is_open = tag in "BbS" or (is_open and tag not in "CPE")
    return found


@pytest.mark.parametrize("is_open", [False, True])
def test_positions_are_those_of_all_outcomes_and_of_messages_outside_transactions(*, is_open: bool) -> None:
    for pieces in itertools.product(("BMIC", "bMP", "SMIE", "M", "K", "A", "c"), repeat=3):
        tags = ("MIE" if is_open else "") + "".join(pieces)
        payloads = [
            tag.encode() + bytes(13 if tag == "c" else 1 if tag == "M" else 9) + number.to_bytes(8, "big")
            for number, tag in enumerate(tags, 1)
        ]
        found = messages(*payloads)
        expected = slow_positions(tags, is_open)
        assert list(positions(found, is_open)) == expected, tags
        for count in range(len(tags) + 1):
            if slow_boundary(tags[:count], is_open) == count:
                lsn = max((lsn for number, lsn in expected if number <= count), default=None)
                assert last_position(found, count, is_open) == lsn, (tags, count)


RELATION = bytes.fromhex("00004001700074006400010169640000000017ffffffff")  # 16385 p.t (id)
BEGIN = bytes.fromhex("420000000000000010000000000000000000000005")
TUPLE = bytes.fromhex("4e0001740000000135")  # N, one column: '5'
INSERT = bytes.fromhex("4900004001") + TUPLE


def stream(xid: int, first: int, *inside: bytes) -> tuple[bytes, ...]:
    return (b"S" + struct.pack("!IB", xid, first), *inside, b"E")


def described(xid: int) -> bytes:
    return b"R" + struct.pack("!I", xid) + RELATION


@pytest.mark.parametrize(
    ("payloads", "names", "open_streams"),
    [
        pytest.param((BEGIN, b"R" + RELATION, COMMIT), ("p.t",), 0, id="plain"),
        pytest.param(stream(7, 1, described(7)), (), 1, id="streamed and open"),
        pytest.param((*stream(7, 1, described(7)), STREAM_COMMIT), ("p.t",), 0, id="streamed and committed"),
        pytest.param((*stream(7, 1, described(7)), STREAM_PREPARE), ("p.t",), 0, id="streamed and prepared"),
        pytest.param(
            (*stream(7, 1, described(7)), b"A" + struct.pack("!II", 7, 7)), (), 0, id="streamed and rolled back"
        ),
        pytest.param(
            (*stream(7, 1, described(8)), b"A" + struct.pack("!II", 7, 8), STREAM_COMMIT), (), 0, id="sub-transaction"
        ),
    ],
)
def test_relations_are_visible_once_their_transaction_has_committed(
    payloads: tuple[bytes, ...], names: tuple[str, ...], open_streams: int
) -> None:
    state = SessionState()
    state.add(messages(*payloads), 0, len(payloads))
    assert len(state.streams) == open_streams
    state.begin_file()
    assert state.catalog().names == ()
    state.add(messages(BEGIN, INSERT, COMMIT), 0, 3)
    assert state.catalog().names == names


@pytest.mark.parametrize(
    "payloads",
    [
        pytest.param((BEGIN, b"I" + struct.pack("!I", 16385) + TUPLE, COMMIT), id="plain"),
        pytest.param(stream(9, 1, b"I" + struct.pack("!II", 9, 16385) + TUPLE), id="streamed"),
        pytest.param((BEGIN, b"T" + struct.pack("!IBII", 2, 0, 16999, 16385), COMMIT), id="truncate of two"),
        pytest.param(stream(9, 1, b"T" + struct.pack("!IIBI", 9, 1, 0, 16385)), id="streamed truncate"),
    ],
)
def test_a_file_has_the_earlier_relations_that_its_messages_name(payloads: tuple[bytes, ...]) -> None:
    state = SessionState()
    other = b"R" + struct.pack("!I", 16390) + RELATION[4:]
    state.add(messages(BEGIN, b"R" + RELATION, other, COMMIT), 0, 4)
    state.begin_file()
    state.add(messages(*payloads), 0, len(payloads))
    [version] = state.catalog()
    assert (version.relation_id, version.position, version.visible_from) == (16385, 11, 11)
    state.begin_file()
    state.add(messages(BEGIN, COMMIT), 0, 2)
    assert len(state.catalog()) == 0


def test_a_relation_of_a_stream_is_visible_from_its_commit() -> None:
    state = SessionState()
    payloads = (*stream(7, 1, described(7)), STREAM_COMMIT)
    state.add(messages(*payloads), 0, len(payloads))
    state.begin_file()
    state.add(messages(BEGIN, INSERT, COMMIT), 0, 3)
    [version] = state.catalog()
    assert (version.position, version.visible_from) == (11, 13)


def test_prepared_transactions_survive_a_session() -> None:
    state = SessionState()
    begin_prepare = b"b" + PREPARE[2:]
    state.add(messages(begin_prepare, PREPARE, *stream(9, 1)), 0, 4)
    assert (state.prepared, state.streams) == ({"g"}, {9})
    state.begin_session()
    assert (state.prepared, state.streams) == ({"g"}, set())
    state.add(messages(COMMIT_PREPARED), 0, 1)
    assert state.prepared == set()
