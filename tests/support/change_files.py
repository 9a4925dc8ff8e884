"""Small sequences of changes, and the library's result for files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pgdecode.changes.change_decoder import ChangeDecoder
from support.generators.slot import Slot
from support.generators.slots import UNCHANGED

T = 16385  # OID of a table


def read(path: str | Path, schema: pa.Schema) -> pa.RecordBatch:
    """A Parquet file in one piece."""
    (batch,) = pq.read_table(path).cast(schema).combine_chunks().to_batches() or [
        pa.RecordBatch.from_pylist([], schema)
    ]
    return batch


def library_table(path: Path, table: str, **options: Any) -> pa.RecordBatch:
    """Decode a table with all payloads in one call."""
    found = pq.read_table(path)
    return ChangeDecoder(**options).table(found["data"], table, found["seq"])


def two_transactions() -> Slot:
    """One transaction inserts a row, and one updates it."""
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["id", "v"])
    slot.insert(T, "1", "a")
    slot.commit()
    slot.begin(8)
    slot.update(T, "1", UNCHANGED)
    slot.commit()
    return slot


def unfinished() -> Slot:
    """A streamed transaction that is rolled back, a committed change, and a transaction without an outcome."""
    slot = Slot()
    slot.start(9, first=True)
    slot.relation(T, ["id"], xid=9)
    slot.insert(T, "rolled back", xid=9)
    slot.stop()
    slot.stream_abort(9, 9)
    slot.begin(7)
    slot.relation(T, ["id"])
    slot.insert(T, "committed")
    slot.commit()
    slot.begin(8)
    slot.insert(T, "open")
    return slot
