"""Where the columns of a large batch are in memory."""

from __future__ import annotations

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
