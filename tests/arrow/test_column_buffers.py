"""Where the columns of a large batch are in memory."""

from __future__ import annotations

import ctypes

import pyarrow as pa
import pytest

import pgdecode
from support import captures

FIELDS = ["xid", "lsn", "end_lsn", "timestamp"]


@pytest.fixture(name="payloads", scope="module")
def large_batch() -> pa.Array:
    recorded = captures.capture("18.shop.v1").column
    return pa.concat_arrays([recorded] * (65_536 // len(recorded)))


def test_columns_begin_at_different_places_of_a_page(payloads: pa.Array) -> None:
    # At the same place, they would compete for the same lines of the cache.
    batch = pgdecode.decode_messages(payloads, in_stream="auto", fields=FIELDS)
    addresses = [column.buffers()[1].address for column in batch.columns]
    assert len({address % 4096 for address in addresses}) == len(FIELDS)
    assert all(address % 64 == 0 for address in addresses)


def test_a_column_takes_no_more_than_a_page_besides_its_values(payloads: pa.Array) -> None:
    before = pa.total_allocated_bytes()
    batch = pgdecode.decode_messages(payloads, in_stream="auto", fields=FIELDS)
    taken = pa.total_allocated_bytes() - before
    sizes = [buffer.size for column in batch.columns for buffer in column.buffers() if buffer is not None]
    # Arrow rounds sizes up to 64 bytes.
    assert taken <= sum(sizes) + len(sizes) * (4096 + 64)


@pytest.mark.parametrize("n_rows", [1, 777, 60_001])
def test_old_memory_shows_neither_before_the_values_nor_in_their_padding(payloads: pa.Array, n_rows: int) -> None:
    used = [pa.allocate_buffer(size) for size in (64, 512, 4096, 65_536, 262_144, 524_288, 2**21) for _ in range(20)]
    for buffer in used:
        ctypes.memset(buffer.address, 0xAB, buffer.size)
    del used, buffer
    batch = pgdecode.decode_messages(payloads.slice(0, n_rows), in_stream="auto", fields=[*FIELDS, "kind", "new"])
    for column in batch.columns:
        for found in filter(None, column.buffers()):
            first = found.address if found.parent is None else found.parent.address
            assert not ctypes.string_at(first, found.address - first).strip(b"\0")
            assert not ctypes.string_at(found.address + found.size, -found.size % 64).strip(b"\0")
