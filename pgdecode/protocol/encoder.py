"""Encodes messages to payloads: the inverse of `decode`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from typing import Any, NamedTuple

from pgdecode.protocol.messages import Message
from pgdecode.protocol.wire import Form, WireField, wire_fields

EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


class Piece(NamedTuple):
    """Some bytes of a payload and what they are: "tag", "count", "length", "kind", "value" or a field's name."""

    what: str
    data: bytes


def encode(message: Message, codec: str = "utf_8") -> bytes:
    """Encode a message. A message with an xid is encoded as streamed. `codec`: of names and other text."""
    return b"".join(piece.data for piece in pieces(message, codec))


def pieces(message: Message, codec: str = "utf_8") -> Iterator[Piece]:
    """Yield the parts of an encoded message in wire order."""
    yield Piece("tag", type(message).tag.encode())
    yield from _fields(message, codec)


def _fields(message: Any, codec: str) -> Iterator[Piece]:
    fields = wire_fields(type(message))
    for item, following in zip_longest(fields, fields[1:]):
        if item.wire.form is Form.COUNT:
            # On the wire, the count comes before the list. The message object has only the list.
            counted = next(field for field in fields if field.wire.form is Form.RELATION_IDS)
            yield Piece("count", len(getattr(message, counted.name)).to_bytes(4, "big"))
            continue
        if item.wire.form is Form.FORMATS:
            continue
        value = getattr(message, item.name)
        if value is None:
            continue
        yield from _field(item, value, getattr(message, following.name) if _is_formats(following) else "", codec)


def _is_formats(item: WireField | None) -> bool:
    return item is not None and item.wire.form is Form.FORMATS


def _field(item: WireField, value: Any, formats: str, codec: str) -> Iterator[Piece]:
    form = item.wire.form
    if form in (Form.XID_PREFIX, Form.UINT32):
        yield Piece(item.name, value.to_bytes(4, "big"))
    elif form is Form.INT32:
        yield Piece(item.name, value.to_bytes(4, "big", signed=True))
    elif form is Form.FLAGS:
        yield Piece(item.name, int(value).to_bytes(1, "big"))
    elif form in (Form.LETTER, Form.OLD_TYPE):
        yield Piece(item.name, value.encode())
    elif form is Form.LSN:
        yield Piece(item.name, value.to_bytes(8, "big"))
    elif form is Form.TIMESTAMP:
        yield Piece(item.name, ((value - EPOCH) // MICROSECOND).to_bytes(8, "big", signed=True))
    elif form in (Form.NAME, Form.TEXT):
        yield Piece(item.name, value.encode(codec) + b"\0")
    elif form is Form.CONTENT:
        yield from _value(value)
    elif form is Form.RELATION_IDS:
        yield from (Piece(item.name, relation_id.to_bytes(4, "big")) for relation_id in value)
    elif form is Form.COLUMNS:
        yield Piece("count", len(value).to_bytes(2, "big"))
        for column in value:
            yield from _fields(column, codec)
    elif form is Form.OLD_TUPLE:
        yield from _tuple(value, formats)
    elif form is Form.NEW_TUPLE:
        yield Piece("N", b"N")
        yield from _tuple(value, formats)
    else:
        raise AssertionError(f"the encoder does not know {form!r}")


def _value(value: bytes) -> Iterator[Piece]:
    yield Piece("length", len(value).to_bytes(4, "big"))
    yield Piece("value", value)


def _tuple(values: tuple[bytes | None, ...], formats: str) -> Iterator[Piece]:
    yield Piece("count", len(values).to_bytes(2, "big"))
    for value, kind in zip(values, formats, strict=True):
        yield Piece("kind", kind.encode())
        if value is not None:
            yield from _value(value)
