"""Small files with the footers of `pgdecode capture`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

ORIGIN = {"system": "7", "timeline": 1, "database": "d", "slot": "s", "publications": ["p"]}
RELATION = bytes.fromhex("5200004001700074006400010169640000000017ffffffff")
GAP = {"time": "t", "from": "0/20", "to": "0/1A0", "reason": "gap: recorded up to 0/20, the slot begins at 0/1A0"}


def transaction(number: int) -> list[bytes]:
    """An insert of a number into public.t, committed at an LSN that ascends with it."""
    lsn = (0x100 * number + 0x10).to_bytes(8, "big")
    value = str(number).encode()
    begin = b"B" + lsn + bytes(8) + (700 + number).to_bytes(4, "big")
    insert = b"I" + bytes.fromhex("000040014e000174") + len(value).to_bytes(4, "big") + value
    commit = b"C\0" + lsn + (0x100 * number + 0x20).to_bytes(8, "big") + bytes(8)
    return [begin, RELATION, insert, commit]


def captured(folder: Path, footers: list[dict[str, Any]]) -> Path:
    """Write a file for each footer, with one transaction."""
    folder.mkdir()
    for number, footer in enumerate(footers):
        payloads = transaction(number)
        seq = range(4 * number, 4 * number + 4)
        table = pa.table({"seq": seq, "data": pa.array(payloads, pa.binary())})
        content = {"origin": ORIGIN, "file": {"session": 1, "first_seq": seq[0], "open_streams": 0}, **footer}
        path = folder / f"{seq[0]:020}.parquet"
        pq.write_table(table.replace_schema_metadata({"pgdecode.capture": json.dumps(content)}), path)
    return folder
