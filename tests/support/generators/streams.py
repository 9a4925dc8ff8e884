"""Payloads whose decoding depends on the stream state, and checks of the resulting rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import pgdecode
from pgdecode import Insert, Relation
from support import captures
from support.compare import NULL_ROW, rows_of
from support.generators.encoder import encode
from support.generators.samples import SAMPLES
from support.oracles.reference import decode_payload, is_well_formed

# Captures of protocol version 2 or later with streaming.
STREAMED_CAPTURES = [name for name in captures.NAMES if ".v1" not in name and not name.endswith("nostream")]
PREFIXED = b"RYIUDTM"

START = SAMPLES["stream start, first segment"].payload
STOP = b"E"
BEGIN = SAMPLES["begin"].payload
PLAIN_INSERT = encode(Insert(relation_id=0x4001, new=(b"5",), new_formats="t"))
STREAMED_INSERT = encode(Insert(xid=0x304, relation_id=0x4001, new=(b"5",), new_formats="t"))

# Delimiters: messages that occur only outside a stream block or at its ends.
DELIMITERS = {
    name: SAMPLES[name].payload
    for name in (
        "begin",
        "commit",
        "stream start, first segment",
        "stream stop",
        "stream commit",
        "stream abort of 9 bytes",
        "begin prepare",
        "prepare",
        "commit prepared",
        "rollback prepared",
        "stream prepare",
    )
}
AFTER_WHICH_PLAIN = {name: payload for name, payload in DELIMITERS.items() if payload[:1] != b"S"}
BEFORE_WHICH_PLAIN = {name: payload for name, payload in DELIMITERS.items() if payload[:1] != b"E"}

# Well-formed with and without an xid, so only the order can decide: table public.t0 of OID 16384.
EITHER = encode(Relation(relation_id=0x4000, namespace="public", name="t0", replica_identity="d", columns=()))
EITHER_PLAIN = decode_payload(EITHER, False)
EITHER_STREAMED = decode_payload(EITHER, True)


def permissive(payloads: Any, **options: Any) -> list[dict[str, Any]]:
    """The rows of a PERMISSIVE batch with their xid_basis."""
    names = [*NULL_ROW, "xid_basis"]
    return rows_of(pgdecode.decode_messages(payloads, mode="PERMISSIVE", fields=names, **options))


def with_basis(row: dict[str, Any], basis: str | None) -> dict[str, Any]:
    return {**row, "xid_basis": basis}


def interpretations(payload: bytes) -> list[dict[str, Any]]:
    """The possible rows of a payload, without xid_basis."""
    states = [state for state in (False, True) if is_well_formed(payload, state)]
    return [with_basis(decode_payload(payload, state), None) for state in states]


def is_desync(row: dict[str, Any]) -> bool:
    return row["error"] is not None and row["error"].startswith("STATE_DESYNC at offset 1: ") and row["kind"] is None


def assert_flagged_or_right(decoded: pa.RecordBatch, truth: pa.RecordBatch) -> int:
    """Check that every row is correct or has an error; return the number of errors."""
    fine = decoded["error"].is_null()
    assert decoded.filter(fine).equals(truth.filter(fine))
    return decoded.num_rows - sum(fine.to_pylist())
