"""Wire encodings of message fields. The layouts of the messages are in messages.py, in these terms."""

from __future__ import annotations

import enum
from typing import ClassVar, NamedTuple, get_args, get_origin, get_type_hints

MAX_LSN = 2**63 - 1  # a larger LSN does not fit the signed columns; no real server comes near it


class Form(enum.IntEnum):
    """Wire encoding of one field; integers are big-endian. The scanner has one case for each."""

    XID_PREFIX = 1  # Int32, present only between Stream Start and Stream Stop
    UINT32 = 2  # Int32 read unsigned: xid, oid; at least `minimum`
    INT32 = 3  # Int32 read signed: a type modifier
    FLAGS = 4  # Int8, at most `maximum`
    LETTER = 5  # Byte1, one of `letters`
    LSN = 6  # Int64 read unsigned, at most MAX_LSN
    TIMESTAMP = 7  # Int64, microseconds since 2000-01-01 UTC
    NAME = 8  # String, at most Limits.max_name_bytes; empty only where `may_be_empty`
    TEXT = 9  # String of any length, may be empty
    CONTENT = 10  # Int32 length, then that many bytes
    COUNT = 11  # Int32, the number of relations of a Truncate
    RELATION_IDS = 12  # one Int32 per relation of the preceding COUNT
    COLUMNS = 13  # Int16 count, then that many `Column` layouts
    OLD_TYPE = 14  # Byte1 'K' or 'O' before a tuple; if `optional`, absent when the new tuple's 'N' follows
    OLD_TUPLE = 15  # TupleData, present if OLD_TYPE is
    NEW_TUPLE = 16  # Byte1 'N', then TupleData
    FORMATS = 17  # no bytes: the column kinds of the preceding tuple


class Wire(NamedTuple):
    """Layout of one field: its form, the envelope column it fills, and its legal values."""

    form: Form
    column: str | None = None
    minimum: int = 0
    maximum: int = 0
    letters: str = ""
    optional: bool = False
    may_be_empty: bool = False


class WireField(NamedTuple):
    """A field of a message: its name as in the PostgreSQL documentation, and its layout."""

    name: str
    wire: Wire


_layouts: dict[type, tuple[WireField, ...]] = {}  # cache of wire_fields


def wire_fields(cls: type) -> tuple[WireField, ...]:
    """Layout of a message class (or of `Column`) in wire order, without the tag."""
    known = _layouts.get(cls)
    if known is not None:
        return known
    hints = get_type_hints(cls, include_extras=True)
    fields = []
    for name, hint in hints.items():
        if get_origin(hint) is ClassVar:
            (hint,) = get_args(hint) or (None,)
        wire = next((arg for arg in getattr(hint, "__metadata__", ()) if isinstance(arg, Wire)), None)
        if wire is not None:
            fields.append(WireField(name, wire))
    # A class's own fields come before inherited ones in some Python versions; the prefix is always first.
    fields.sort(key=lambda item: item.wire.form is not Form.XID_PREFIX)
    return _layouts.setdefault(cls, tuple(fields))


# Bytes of the forms whose length is always the same.
_LENGTHS = {
    Form.XID_PREFIX: 4,
    Form.UINT32: 4,
    Form.INT32: 4,
    Form.FLAGS: 1,
    Form.LETTER: 1,
    Form.LSN: 8,
    Form.TIMESTAMP: 8,
    Form.COUNT: 4,
}


def offset_of(cls: type, name: str, *, in_stream: bool = False) -> int:
    """Return the offset of a field in payloads of a message class, for fields with nothing of other lengths before.

    Raises
    ------
    KeyError
        If the offset differs from payload to payload, or there is no such field.
    """
    offset = 1
    for item in wire_fields(cls):
        if item.name == name:
            return offset
        offset += 0 if item.wire.form is Form.XID_PREFIX and not in_stream else _LENGTHS[item.wire.form]
    raise KeyError(name)


def length_of(cls: type) -> int:
    """Return the length of payloads of a message class outside streams, without optional fields.

    Raises
    ------
    KeyError
        If the length differs from payload to payload.
    """
    forms = [item.wire.form for item in wire_fields(cls) if not item.wire.optional]
    return 1 + sum(_LENGTHS[form] for form in forms if form is not Form.XID_PREFIX)
