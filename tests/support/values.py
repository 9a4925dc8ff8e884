"""Values of one type, decoded as the column of a table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import pyarrow as pa

from pgdecode._native.arrow.payload_array import Source
from pgdecode._native.rows.row_decoder import Rows
from pgdecode.payloads.payload_input import payload_parts
from pgdecode.protocol.limits import Limits
from pgdecode.types.pgtypes import Decoding, composite_of, named

RELATION_ID = 16385
# The limit of a batch does not count here; those of a value do.
LIMITS = Limits(max_expansion=65535)


def insert(value: bytes | memoryview | None, *, binary: bool) -> bytes:
    """An Insert message of one column."""
    head = b"I" + RELATION_ID.to_bytes(4, "big") + b"N\0\1"
    if value is None:
        return head + b"n"
    return b"".join((head, b"b" if binary else b"t", len(value).to_bytes(4, "big"), value))


def decode_inserts(
    decoding: Decoding, payloads: Any, *, unrepresentable: Literal["error", "null"] = "error"
) -> pa.Array:
    """The column of such messages, which are anything that holds payloads."""
    source = Source(payload_parts(payloads))
    rows = Rows(source, RELATION_ID, ["value"], [decoding], LIMITS, True, False, unrepresentable == "null")
    rows.run()
    _, (column,) = rows.results()
    return column


def decode_values(
    pg_type: str | Decoding,
    values: Iterable[bytes | memoryview | None],
    *,
    binary: bool,
    typmod: int = -1,
    unrepresentable: Literal["error", "null"] = "error",
) -> pa.Array:
    """Decode values of one type, a name or a decoding, as `decode_rows` decodes a column; None stays null."""
    decoding = pg_type if isinstance(pg_type, Decoding) else named(pg_type, typmod)
    if decoding is None:
        raise LookupError(f"there is no type {pg_type!r}")
    payloads = [insert(value, binary=binary) for value in values]
    return decode_inserts(decoding, payloads, unrepresentable=unrepresentable)


def inside(decoding: Decoding) -> Decoding:
    """A composite of one field. A container's items are decoded one by one, and those of a column in blocks."""
    return composite_of([("value", decoding)])


def composite(value: bytes | None, decoding: Decoding, *, binary: bool) -> bytes | None:
    """A composite of one value, as record_send and record_out (utils/adt/rowtypes.c) write it."""
    if value is None:
        return None
    if binary:
        return b"".join(number.to_bytes(4, "big") for number in (1, decoding.oid, len(value))) + value
    return b'("' + value.replace(b"\\", b"\\\\").replace(b'"', b'""') + b'")'
