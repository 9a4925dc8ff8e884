"""The documented columns of the envelope."""

from __future__ import annotations

import pyarrow as pa

COLUMN = pa.struct(
    [("flags", pa.int16()), ("name", pa.string()), ("type_id", pa.int64()), ("type_modifier", pa.int32())]
)
SCHEMA = pa.schema(
    [
        ("kind", pa.string()),
        ("xid", pa.int64()),
        ("subxid", pa.int64()),
        ("flags", pa.int16()),
        ("lsn", pa.int64()),
        ("end_lsn", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("prepare_timestamp", pa.timestamp("us", "UTC")),
        ("gid", pa.string()),
        ("relation_id", pa.int64()),
        ("relation_ids", pa.list_(pa.int64())),
        ("options", pa.int16()),
        ("namespace", pa.string()),
        ("name", pa.string()),
        ("replica_identity", pa.string()),
        ("columns", pa.list_(COLUMN)),
        ("type_id", pa.int64()),
        ("first_segment", pa.bool_()),
        ("prefix", pa.string()),
        ("content", pa.binary()),
        ("old_type", pa.string()),
        ("old", pa.list_(pa.binary())),
        ("old_formats", pa.string()),
        ("new", pa.list_(pa.binary())),
        ("new_formats", pa.string()),
        ("error", pa.string()),
    ]
)
