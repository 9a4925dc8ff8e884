"""decode_rows notes many rows at a time, and foresees how their cells begin: what it finds is as for each row alone."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import pgdecode
from pgdecode import Column, Delete, Insert, Relation, Update
from support.generators.encoder import encode

TABLE = Relation(
    relation_id=16385,
    namespace="public",
    name="t",
    replica_identity="d",
    columns=(
        Column(1, "id", 20, -1),
        Column(0, "n", 23, -1),
        Column(0, "word", 25, -1),
        Column(0, "ok", 16, -1),
        Column(0, "link", 26, -1),
        Column(0, "none", 25, -1),
    ),
)
N_BEFORE = 1100  # rows: several blocks, so that those behind know how cells begin


def row(i: int, *, old: bytes | None = None) -> bytes:
    """One row in binary; its word is of any length, all else of constant width."""
    new = (struct.pack(">q", i), struct.pack(">i", -i), b"w" * (i % 11), bytes([i % 2]), struct.pack(">i", i), None)
    if old is not None:
        return encode(
            Update(
                relation_id=16385,
                old_type="K",
                old=(old, *[None] * 5),
                old_formats="bnnnnn",
                new=new,
                new_formats="bbbbbn",
            )
        )
    return encode(Insert(relation_id=16385, new=new, new_formats="bbbbbn"))


def changed(formats: str) -> bytes:
    """An update of the first column alone, without an old row."""
    new = (struct.pack(">q", 1), *[None] * 5)
    return encode(Update(relation_id=16385, old_type=None, old=None, old_formats=None, new=new, new_formats=formats))


def deleted(i: int) -> bytes:
    old = (struct.pack(">q", i), None, None, None, None, None)
    return encode(Delete(relation_id=16385, old_type="K", old=old, old_formats="bnnnnn"))


BEFORE = [row(i) for i in range(N_BEFORE)]


def decoded(payloads: Any, **options: Any) -> list[dict[str, Any]]:
    batch = pgdecode.decode_rows(payloads, TABLE, mode="PERMISSIVE", **options)
    batch.validate(full=True)
    return batch.to_pylist()


def alone(payload: bytes) -> dict[str, Any]:
    """A row of a list, which is read byte by byte, since nothing may be read behind it."""
    return decoded([payload])[0]


def exactly(payloads: list[bytes]) -> pa.Array:
    """An array whose data ends with its last payload."""
    offsets = [0]
    for payload in payloads:
        offsets.append(offsets[-1] + len(payload))
    buffers = [None, pa.py_buffer(struct.pack(f"<{len(offsets)}i", *offsets)), pa.py_buffer(b"".join(payloads))]
    return pa.Array.from_buffers(pa.binary(), len(payloads), buffers)


LAYOUTS: dict[str, Callable[[list[bytes]], Any]] = {
    "binary": exactly,
    "large_binary": lambda payloads: pa.array(payloads, pa.large_binary()),
    "binary_view": lambda payloads: pa.array(payloads, pa.binary_view()),
    "list": list,
    "slice": lambda payloads: pa.array([b"in front", *payloads, b"behind"], pa.binary())[1:-1],
    "chunks": lambda payloads: pa.chunked_array([payloads[:1000], payloads[1000:1500], payloads[1500:]], pa.binary()),
    "with nulls": lambda payloads: pa.array([*payloads, None], pa.binary())[:-1],
}


def test_rows_of_constant_width_hold_what_was_sent() -> None:
    found = decoded(exactly(BEFORE))
    assert [(item["id"], item["n"], item["word"], item["ok"], item["none"]) for item in found] == [
        (i, -i, "w" * (i % 11), bool(i % 2), None) for i in range(N_BEFORE)
    ]
    assert {item["_op"] for item in found} == {"insert"}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_of_all_kinds_amid_alike_ones_are_what_they_are_alone(layout: str, rng: random.Random) -> None:
    others = [
        deleted(5),
        row(5, old=struct.pack(">q", 4)),
        encode(Insert(relation_id=16385, new=(b"7", b"-7", b"text", b"t", b"4294967295", b""), new_formats="tttttt")),
        encode(Insert(relation_id=16385, new=(struct.pack(">q", 1), *[None] * 5), new_formats="bnnnnn")),
        changed("bnunun"),
        encode(Insert(relation_id=16385, new=(struct.pack(">q", 1), *[None] * 5), new_formats="bnnnnn", xid=7)),
        encode(Insert(relation_id=16385, new=(b"12345678", b"123", None, None, None, None), new_formats="bbnnnn")),
    ]
    payloads = [*BEFORE, *rng.choices([*BEFORE, *others], k=900), *others]
    expected = {payload: alone(payload) for payload in set(payloads)}
    assert decoded(LAYOUTS[layout](payloads)) == [expected[payload] for payload in payloads]


def test_every_byte_changed_and_every_cut_of_a_row_is_found_as_in_the_row_alone() -> None:
    whole = row(6)
    broken = [whole[:n] for n in range(len(whole))]
    for at in range(len(whole)):
        for byte in (0, 1, whole[at] ^ 0x80, ord("b"), ord("n"), ord("u"), 255):
            broken.append(whole[:at] + bytes([byte]) + whole[at + 1 :])
    payloads = [*BEFORE, *broken]
    expected = {payload: alone(payload) for payload in set(broken)}
    assert decoded(exactly(payloads))[N_BEFORE:] == [expected[payload] for payload in broken]


@pytest.mark.parametrize("column", range(6))
def test_a_cell_that_begins_with_zeros_is_no_cell(column: int) -> None:
    # No kind, no length: also in a column whose cells begin in no way that was foreseen.
    cells = [b"b" + struct.pack(">I", len(value)) + value for value in (bytes(8), bytes(4), b"w", bytes(1), bytes(4))]
    cells.append(b"n")
    cells[column] = bytes(5)
    payload = BEFORE[0][:8] + b"".join(cells)
    found = decoded(exactly([*BEFORE, payload, *BEFORE]))
    assert found[N_BEFORE]["_error"] is not None
    assert found[N_BEFORE] == alone(payload)


@pytest.mark.parametrize("n_cut", range(1, 14))
def test_a_last_row_cut_short_is_not_read_past_the_end_of_the_data(n_cut: int) -> None:
    payloads = [*BEFORE, row(9)[:-n_cut]]
    assert decoded(exactly(payloads))[-1] == alone(payloads[-1])


@pytest.mark.full
@pytest.mark.parametrize("threads", [2, 3, 5])
def test_parts_of_which_each_has_what_the_others_lack_are_joined(
    threads: int, monkeypatch: pytest.MonkeyPatch, rng: random.Random
) -> None:
    monkeypatch.setattr("pgdecode.payloads.thread_counts.LEAST_ROWS", 1)
    monkeypatch.setattr("pgdecode.payloads.thread_counts.MOST_ROW_BYTES", math.inf)
    streamed = encode(Insert(relation_id=16385, new=(b"7", *[None] * 5), new_formats="tnnnnu", xid=7))
    kinds: list[list[bytes | None]] = [
        [row(1), row(2)],
        [deleted(3)],
        [streamed, row(4)],
        [None],
        [row(6, old=struct.pack(">q", 4)), row(7)],
        [row(8)[:-1], row(9)],
    ]
    for _ in range(12):
        chosen = rng.sample(kinds, threads)
        payloads = [payload for some in chosen for payload in rng.choices(some, k=150)]
        batch = pgdecode.decode_rows(payloads, TABLE, mode="PERMISSIVE", threads=threads)
        batch.validate(full=True)
        assert batch.to_pylist() == [alone(payload) for payload in payloads]  # type: ignore[arg-type]
