"""Comparison of batches and outcomes with the reference decoder."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

import pgdecode
from pgdecode.protocol.messages import Message
from pgdecode.protocol.wire import wire_fields
from support.generators.encoder import EPOCH, MICROSECOND
from support.oracles import reference

# The outcome of one payload: a row, or the code and offset of its fault.
Verdict = dict[str, Any] | tuple[str, int]

ERROR_CELL = re.compile(r"([A-Z_]+) at offset (\d+): .+", re.DOTALL)
MIN_DATETIME_US = (datetime.min.replace(tzinfo=UTC) - EPOCH) // MICROSECOND + reference.EPOCH_US
MAX_DATETIME_US = (datetime.max.replace(tzinfo=UTC) - EPOCH) // MICROSECOND + reference.EPOCH_US
# Columns without tuple data, and a payload to put after others.
BARE = ["kind", "xid", "relation_id", "old_type", "error"]
LAST = bytes(100)
NULL_ROW = dict.fromkeys(reference.COLUMN_NAMES)


def column_values(batch: pa.RecordBatch, name: str) -> list[Any]:
    """Convert a column to Python values, with timestamps as microseconds since 1970."""
    column = batch.column(name)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    values: list[Any] = column.to_pylist()
    return values


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Convert a batch to rows in the reference decoder's form."""
    names = batch.schema.names
    return [
        dict(zip(names, row, strict=True)) for row in zip(*(column_values(batch, name) for name in names), strict=True)
    ]


def row_of(message: Message) -> dict[str, Any]:
    """Convert a message to the envelope row that it fills."""
    row: dict[str, Any] = {**dict.fromkeys(reference.COLUMN_NAMES), "kind": message.kind}
    for item in wire_fields(type(message)):
        if item.wire.column is None:
            continue
        value = getattr(message, item.name)
        if isinstance(value, datetime):
            value = (value - EPOCH) // MICROSECOND + reference.EPOCH_US
        elif item.wire.column == "columns":
            value = [dataclasses.asdict(column) for column in value]
        elif isinstance(value, tuple):
            value = list(value)
        row[item.wire.column] = value
    return row


def assert_same_rows(batch: pa.RecordBatch, expected: Sequence[dict[str, Any]]) -> None:
    """Compare column by column, and report the row and column of a difference."""
    batch.validate(full=True)
    assert batch.num_rows == len(expected)
    for name in reference.COLUMN_NAMES:
        values = column_values(batch, name)
        wanted = [row[name] for row in expected]
        if values != wanted:
            row = next(i for i, (value, want) in enumerate(zip(values, wanted, strict=True)) if value != want)
            raise AssertionError(f"row {row}, column {name}: {values[row]!r}, expected {wanted[row]!r}")


def same_values(one: pa.Array, other: pa.Array) -> bool:
    """Whether two arrays are equal. A NaN equals a NaN with the same bits.

    The Arrow values are compared, because Python does not support every timestamp of Arrow.
    """
    if one.equals(other):
        return True
    if one.type != other.type or not one.is_null().equals(other.is_null()):
        return False
    if pa.types.is_floating(one.type):
        bits = pa.int32() if pa.types.is_float32(one.type) else pa.int64()
        return bool(one.view(bits).equals(other.view(bits)))
    if pa.types.is_struct(one.type):
        return all(same_values(mine, its) for mine, its in zip(one.flatten(), other.flatten(), strict=True))
    if pa.types.is_list(one.type) or pa.types.is_large_list(one.type):
        lengths_agree = one.value_lengths().equals(other.value_lengths())
        return bool(lengths_agree) and same_values(one.flatten(), other.flatten())
    return False


def reference_verdict(payload: bytes, in_stream: bool) -> Verdict:
    """Outcome of a payload according to the reference decoder."""
    try:
        return reference.decode_payload(payload, in_stream)
    except reference.Malformed as fault:
        return fault.code, fault.offset


def failfast_verdict(payload: bytes, in_stream: bool) -> Verdict:
    """Outcome of `decode_messages` for a single payload in FAILFAST mode."""
    try:
        batch = pgdecode.decode_messages([payload], in_stream=in_stream, empty="error")
    except pgdecode.DecodeError as error:
        return error.code, error.offset
    return rows_of(batch)[0]


def decode_verdict(payload: bytes, in_stream: bool) -> Verdict:
    """Outcome of `decode` for a payload."""
    try:
        return row_of(pgdecode.decode(payload, in_stream=in_stream))
    except pgdecode.DecodeError as error:
        return error.code, error.offset


def fits_datetime(row: dict[str, Any]) -> bool:
    """Whether the timestamps of a row are in the years 1 to 9999, which datetime supports."""
    moments = [row["timestamp"], row["prepare_timestamp"]]
    return all(moment is None or MIN_DATETIME_US <= moment <= MAX_DATETIME_US for moment in moments)


def permissive_verdicts(payloads: Sequence[bytes], in_stream: bool | Sequence[bool]) -> list[Verdict]:
    """Outcomes of `decode_messages` for each payload of a batch in PERMISSIVE mode, on all its code paths."""
    states = in_stream if isinstance(in_stream, bool) else pa.array(in_stream, pa.bool_())
    batch = pgdecode.decode_messages(payloads, in_stream=states, mode="PERMISSIVE", empty="error")
    batch.validate(full=True)
    # The fast path decodes common payloads of an array, except the last one in its buffer. Lists use another code path.
    column = pa.array([*payloads, LAST], pa.binary())
    states = in_stream if isinstance(in_stream, bool) else pa.array([*in_stream, False], pa.bool_())
    for fields in (batch.schema.names, BARE):
        found = pgdecode.decode_messages(column, fields=fields, in_stream=states, mode="PERMISSIVE", empty="error")
        assert found.slice(0, len(payloads)).equals(batch.select(fields))
    return [verdict_of_row(row) for row in rows_of(batch)]


def verdict_of_row(row: dict[str, Any]) -> Verdict:
    """Outcome of a row of a PERMISSIVE batch. A bad row must have only its error."""
    if row["error"] is None:
        return row
    assert {**row, "error": None} == NULL_ROW
    cell = ERROR_CELL.fullmatch(row["error"])
    assert cell is not None, row["error"]
    return cell[1], int(cell[2])


def assert_verdicts(payloads: Sequence[bytes], in_stream: bool) -> None:
    """Check that both modes give the reference decoder's outcome for every payload."""
    permissive = permissive_verdicts(payloads, in_stream)
    for payload, verdict in zip(payloads, permissive, strict=True):
        expected = reference_verdict(payload, in_stream)
        assert verdict == expected, payload.hex()
        assert failfast_verdict(payload, in_stream) == expected, payload.hex()
