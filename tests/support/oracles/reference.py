"""The reference decoder, an independent and simple implementation: one payload in, one envelope row out.

It is written from PostgreSQL's documentation, "Logical Replication Message Formats", message by message. It is slow on
purpose: it shares no code and no table with the package. Comments mark decisions that the documentation leaves open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

COLUMN_NAMES = (
    *("kind", "xid", "subxid", "flags", "lsn", "end_lsn", "timestamp", "prepare_timestamp", "gid"),
    *("relation_id", "relation_ids", "options", "namespace", "name", "replica_identity", "columns", "type_id"),
    *("first_segment", "prefix", "content", "old_type", "old", "old_formats", "new", "new_formats", "error"),
)

EPOCH_US = 946_684_800_000_000  # 2000-01-01 minus 1970-01-01, in microseconds
MAX_INT64 = 2**63 - 1
MAX_LENGTH = 0x3FFFFFFF  # the server allocates no more for one value (MaxAllocSize)
MAX_PAYLOAD_BYTES = 2**30 - 1
MAX_COLUMNS = 1600  # MaxHeapAttributeNumber, access/htup_details.h
MAX_NAME_BYTES = 252  # NAMEDATALEN - 1 = 63 bytes in the server's encoding, at most 4 times that in UTF-8
MAX_VALUE_BYTES = 2**30 - 1

Row = dict[str, Any]


class Malformed(Exception):
    """A payload that no server sends: the code of the fault and its offset; the tag byte has offset 0."""

    def __init__(self, code: str, offset: int) -> None:
        super().__init__(code, offset)
        self.code = code
        self.offset = offset


class Reader:
    """Reads the bytes of one payload from the front; every method raises Malformed with the code and offset."""

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        self.at = 0

    @property
    def left(self) -> int:
        return len(self.payload) - self.at

    def take(self, count: int) -> bytes:
        if count > self.left:
            raise Malformed("TRUNCATED", self.at)
        self.at += count
        return self.payload[self.at - count : self.at]

    def int8(self) -> int:
        return self.take(1)[0]

    def int16(self) -> int:
        return int.from_bytes(self.take(2), "big")

    def int32(self) -> int:
        return int.from_bytes(self.take(4), "big")

    def signed_int32(self) -> int:
        return int.from_bytes(self.take(4), "big", signed=True)

    def flags(self, maximum: int) -> int:
        value = self.int8()
        if value > maximum:
            raise Malformed("BAD_FLAGS", self.at - 1)
        return value

    def xid(self) -> int:
        """Transaction 0 does not exist (InvalidTransactionId, access/transam.h)."""
        value = self.int32()
        if value == 0:
            raise Malformed("BAD_VALUE", self.at - 4)
        return value

    def lsn(self) -> int:
        """An XLogRecPtr is unsigned. The columns are signed, so the upper half is out of range."""
        value = int.from_bytes(self.take(8), "big")
        if value > MAX_INT64:
            raise Malformed("OUT_OF_RANGE", self.at - 8)
        return value

    def timestamp(self) -> int:
        """Microseconds since 2000-01-01 on the wire, since 1970-01-01 in the row."""
        value = int.from_bytes(self.take(8), "big", signed=True) + EPOCH_US
        if value > MAX_INT64:
            raise Malformed("OUT_OF_RANGE", self.at - 8)
        return value

    def string(self, max_bytes: int | None = None, may_be_empty: bool = True) -> str:
        start = self.at
        end = self.payload.find(b"\0", start)
        if end < 0:
            raise Malformed("NO_NUL", start)
        if max_bytes is not None and end - start > max_bytes:
            raise Malformed("LIMIT_NAME", start)
        if end == start and not may_be_empty:
            raise Malformed("EMPTY_NAME", start)
        self.at = end + 1
        try:
            return self.payload[start:end].decode("utf-8")
        except UnicodeDecodeError as error:
            raise Malformed("ENCODING", start + error.start) from None

    def name(self) -> str:
        return self.string(MAX_NAME_BYTES, may_be_empty=False)

    def namespace(self) -> str:
        return self.string(MAX_NAME_BYTES)

    def value(self) -> bytes:
        """Int32 length, then that many bytes. The bytes left are checked before the limits."""
        length = self.int32()
        if length > MAX_LENGTH:
            raise Malformed("BAD_LENGTH", self.at - 4)
        value = self.take(length)
        if length > MAX_VALUE_BYTES:
            raise Malformed("LIMIT_VALUE", self.at - length - 4)
        return value

    def column_count(self) -> int:
        count = self.int16()
        if count > MAX_COLUMNS:
            raise Malformed("LIMIT_COLUMNS", self.at - 2)
        return count

    def tuple_tag(self, allowed: bytes) -> str:
        tag = self.take(1)
        if tag not in [bytes([letter]) for letter in allowed]:
            raise Malformed("BAD_TUPLE_TAG", self.at - 1)
        return tag.decode()

    def tuple_data(self) -> tuple[list[bytes | None], str]:
        values: list[bytes | None] = []
        formats = ""
        for _ in range(self.column_count()):
            kind = self.take(1)
            if kind in (b"n", b"u"):
                values.append(None)
            elif kind in (b"t", b"b"):
                values.append(self.value())
            else:
                raise Malformed("BAD_COLUMN_KIND", self.at - 1)
            formats += kind.decode()
        return values, formats


def take_begin(reader: Reader, in_stream: bool) -> Row:
    return {"kind": "begin", "lsn": reader.lsn(), "timestamp": reader.timestamp(), "xid": reader.int32()}


def take_commit(reader: Reader, in_stream: bool) -> Row:
    return {
        "kind": "commit",
        "flags": reader.flags(0),
        "lsn": reader.lsn(),
        "end_lsn": reader.lsn(),
        "timestamp": reader.timestamp(),
    }


def take_origin(reader: Reader, in_stream: bool) -> Row:
    return {"kind": "origin", "lsn": reader.lsn(), "name": reader.string()}


def take_relation(reader: Reader, in_stream: bool) -> Row:
    row: Row = {"kind": "relation", "xid": reader.xid() if in_stream else None, "relation_id": reader.int32()}
    row["namespace"] = reader.namespace()
    row["name"] = reader.name()
    row["replica_identity"] = reader.take(1).decode("latin-1")
    if row["replica_identity"] not in "dnfi":
        raise Malformed("BAD_VALUE", reader.at - 1)
    row["columns"] = [
        {
            "flags": reader.flags(1),
            "name": reader.name(),
            "type_id": reader.int32(),
            "type_modifier": reader.signed_int32(),
        }
        for _ in range(reader.column_count())
    ]
    return row


def take_type(reader: Reader, in_stream: bool) -> Row:
    row: Row = {"kind": "type", "xid": reader.xid() if in_stream else None, "type_id": reader.int32()}
    row["namespace"] = reader.namespace()
    row["name"] = reader.name()
    return row


def take_insert(reader: Reader, in_stream: bool) -> Row:
    row: Row = {"kind": "insert", "xid": reader.xid() if in_stream else None, "relation_id": reader.int32()}
    reader.tuple_tag(b"N")
    row["new"], row["new_formats"] = reader.tuple_data()
    return row


def take_update(reader: Reader, in_stream: bool) -> Row:
    """A K part, an O part or neither, then always an N part."""
    row: Row = {"kind": "update", "xid": reader.xid() if in_stream else None, "relation_id": reader.int32()}
    tag = reader.tuple_tag(b"KON")
    if tag != "N":
        row["old_type"] = tag
        row["old"], row["old_formats"] = reader.tuple_data()
        reader.tuple_tag(b"N")
    row["new"], row["new_formats"] = reader.tuple_data()
    return row


def take_delete(reader: Reader, in_stream: bool) -> Row:
    row: Row = {"kind": "delete", "xid": reader.xid() if in_stream else None, "relation_id": reader.int32()}
    row["old_type"] = reader.tuple_tag(b"KO")
    row["old"], row["old_formats"] = reader.tuple_data()
    return row


def take_truncate(reader: Reader, in_stream: bool) -> Row:
    row: Row = {"kind": "truncate", "xid": reader.xid() if in_stream else None}
    count = reader.int32()
    row["options"] = reader.flags(1 + 2)
    row["relation_ids"] = [reader.int32() for _ in range(count)]
    return row


def take_message(reader: Reader, in_stream: bool) -> Row:
    row: Row = {"kind": "message", "xid": reader.xid() if in_stream else None, "flags": reader.flags(1)}
    row["lsn"] = reader.lsn()
    row["prefix"] = reader.string()
    row["content"] = reader.value()
    return row


def take_stream_start(reader: Reader, in_stream: bool) -> Row:
    return {"kind": "stream_start", "xid": reader.xid(), "first_segment": bool(reader.flags(1))}


def take_stream_stop(reader: Reader, in_stream: bool) -> Row:
    return {"kind": "stream_stop"}


def take_stream_commit(reader: Reader, in_stream: bool) -> Row:
    xid = reader.int32()
    return {**take_commit(reader, in_stream), "kind": "stream_commit", "xid": xid}


def take_stream_abort(reader: Reader, in_stream: bool) -> Row:
    """The last two fields come with streaming = parallel only, both or neither."""
    row: Row = {"kind": "stream_abort", "xid": reader.int32(), "subxid": reader.int32()}
    if reader.left:
        row["lsn"] = reader.lsn()
        row["timestamp"] = reader.timestamp()
    return row


def take_begin_prepare(reader: Reader, in_stream: bool) -> Row:
    return {
        "kind": "begin_prepare",
        "lsn": reader.lsn(),
        "end_lsn": reader.lsn(),
        "timestamp": reader.timestamp(),
        "xid": reader.int32(),
        "gid": reader.string(),
    }


def take_prepared(kind: str) -> Callable[[Reader, bool], Row]:
    """Prepare, Commit Prepared and Stream Prepare: flags, then the layout of Begin Prepare."""

    def take(reader: Reader, in_stream: bool) -> Row:
        flags = reader.flags(0)
        return {**take_begin_prepare(reader, in_stream), "kind": kind, "flags": flags}

    return take


def take_rollback_prepared(reader: Reader, in_stream: bool) -> Row:
    return {
        "kind": "rollback_prepared",
        "flags": reader.flags(0),
        "lsn": reader.lsn(),
        "end_lsn": reader.lsn(),
        "prepare_timestamp": reader.timestamp(),
        "timestamp": reader.timestamp(),
        "xid": reader.int32(),
        "gid": reader.string(),
    }


TAKERS: dict[bytes, Callable[[Reader, bool], Row]] = {
    b"B": take_begin,
    b"C": take_commit,
    b"O": take_origin,
    b"R": take_relation,
    b"Y": take_type,
    b"I": take_insert,
    b"U": take_update,
    b"D": take_delete,
    b"T": take_truncate,
    b"M": take_message,
    b"S": take_stream_start,
    b"E": take_stream_stop,
    b"c": take_stream_commit,
    b"A": take_stream_abort,
    b"b": take_begin_prepare,
    b"P": take_prepared("prepare"),
    b"K": take_prepared("commit_prepared"),
    b"r": take_rollback_prepared,
    b"p": take_prepared("stream_prepare"),
}


def read_payload(payload: bytes, in_stream: bool) -> Row:
    """Read one message as `in_stream` requires, without checking the other reading."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise Malformed("LIMIT_PAYLOAD", 0)
    if not payload:
        raise Malformed("EMPTY", 0)
    reader = Reader(payload)
    taker = TAKERS.get(reader.take(1))
    if taker is None:
        raise Malformed("UNKNOWN_TAG", 0)
    row = taker(reader, in_stream)
    if reader.left:
        raise Malformed("TRAILING", reader.at)
    return {**dict.fromkeys(COLUMN_NAMES), **row}


def decode_payload(payload: bytes, in_stream: bool) -> Row:
    """Read one message; `in_stream` says whether it is between Stream Start and Stream Stop.

    If only the other reading is well-formed, the stream state is wrong. The fault is then after the tag, where the xid
    is present or missing. A size above a limit remains that fault.
    """
    try:
        return read_payload(payload, in_stream)
    except Malformed as fault:
        if fault.code.startswith("LIMIT_"):
            raise
        if payload[:1] in (b"R", b"Y", b"I", b"U", b"D", b"T", b"M") and is_well_formed(payload, not in_stream):
            raise Malformed("STATE_DESYNC", 1) from fault
        raise


def is_well_formed(payload: bytes, in_stream: bool) -> bool:
    """Whether a payload is well-formed in this reading."""
    try:
        read_payload(payload, in_stream)
    except Malformed:
        return False
    return True


def stream_states(payloads: Iterable[bytes | None]) -> list[bool]:
    """Whether each payload of a whole sequence, in slot order, is between Stream Start and Stream Stop."""
    states = []
    in_stream = False
    for payload in payloads:
        tag = payload[:1] if payload else b""
        if tag == b"E":
            in_stream = False
        states.append(in_stream)
        if tag == b"S":
            in_stream = True
    return states


def decode_sequence(payloads: list[bytes | None]) -> list[Row]:
    """Read a whole sequence in slot order that begins outside a stream. A missing payload gives an empty row."""
    return [
        dict.fromkeys(COLUMN_NAMES) if payload is None else decode_payload(payload, in_stream)
        for payload, in_stream in zip(payloads, stream_states(payloads), strict=True)
    ]
