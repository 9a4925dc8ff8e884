"""Random messages, and their payloads by the package's encoder."""

from __future__ import annotations

from datetime import UTC
from itertools import zip_longest
from typing import Any

from hypothesis import strategies as st

from pgdecode.protocol import messages
from pgdecode.protocol.encoder import EPOCH, MICROSECOND, Piece, encode, pieces
from pgdecode.protocol.messages import Message, StreamedMessage
from pgdecode.protocol.wire import MAX_LSN, Form, WireField, wire_fields

__all__ = ["EPOCH", "MICROSECOND", "Piece", "encode", "pieces"]

STREAMED = tuple(message for message in messages.MESSAGES if issubclass(message, StreamedMessage))


# One character is at most 4 bytes of UTF-8, so 63 of them are the longest name a server can send.
_text = st.characters(codec="utf-8", exclude_characters="\0")
_cells = st.one_of(
    st.sampled_from([("n", None), ("u", None)]),
    st.tuples(st.sampled_from("tb"), st.binary(max_size=20)),
)
_tuples = st.lists(_cells, max_size=8).map(
    lambda cells: (tuple(value for _, value in cells), "".join(kind for kind, _ in cells))
)

_FORM_STRATEGIES: dict[Form, st.SearchStrategy[Any]] = {
    Form.INT32: st.integers(-(2**31), 2**31 - 1),
    Form.LSN: st.integers(0, MAX_LSN),
    Form.TIMESTAMP: st.datetimes(timezones=st.just(UTC)),
    Form.TEXT: st.text(_text, max_size=80),
    Form.CONTENT: st.binary(max_size=40),
    Form.RELATION_IDS: st.lists(st.integers(0, 2**32 - 1), max_size=8).map(tuple),
}


def _values(item: WireField) -> st.SearchStrategy[Any]:
    """Legal values of one field, except tuples and their formats."""
    wire = item.wire
    if wire.form is Form.FLAGS:
        values = st.integers(0, wire.maximum)
        return values.map(bool) if item.name == "first_segment" else values
    if wire.form in (Form.XID_PREFIX, Form.UINT32):
        return st.integers(wire.minimum, 2**32 - 1)
    if wire.form is Form.LETTER:
        return st.sampled_from(wire.letters)
    if wire.form is Form.OLD_TYPE:
        return st.sampled_from([*wire.letters, None] if wire.optional else wire.letters)
    if wire.form is Form.NAME:
        return st.text(_text, min_size=0 if wire.may_be_empty else 1, max_size=63)
    if wire.form is Form.COLUMNS:
        return st.lists(_instances(messages.Column), max_size=5).map(tuple)
    return _FORM_STRATEGIES[wire.form]


@st.composite
def _instances(draw: st.DrawFn, cls: type, streamed: bool = False) -> Any:
    arguments: dict[str, Any] = {}
    fields = wire_fields(cls)
    optional = [item for item in fields if item.wire.optional and item.wire.form is not Form.OLD_TYPE]
    # Stream Abort's last two fields are sent together or not at all.
    absent: list[WireField] = optional if optional and draw(st.booleans()) else []
    for item, following in zip_longest(fields, fields[1:]):
        form = item.wire.form
        if form in (Form.COUNT, Form.FORMATS):
            continue
        if item in absent or (form is Form.XID_PREFIX and not streamed):
            arguments[item.name] = None
        elif form in (Form.OLD_TUPLE, Form.NEW_TUPLE):
            sent = form is Form.NEW_TUPLE or arguments["old_type"] is not None
            assert following is not None
            arguments[item.name], arguments[following.name] = draw(_tuples) if sent else (None, None)
        else:
            arguments[item.name] = draw(_values(item))
    return cls(**arguments)


def plain_messages(cls: type[Message]) -> st.SearchStrategy[Any]:
    """Messages of one class as sent outside a stream."""
    return _instances(cls)


def streamed_messages(cls: type[Message]) -> st.SearchStrategy[Any]:
    """Messages of one class as sent inside a stream, with their xid if the class has one."""
    return _instances(cls, streamed=True)


def any_messages() -> st.SearchStrategy[Any]:
    """Messages of every class, plain and streamed."""
    return st.one_of([plain_messages(cls) for cls in messages.MESSAGES] + [streamed_messages(cls) for cls in STREAMED])


def is_streamed(message: Message) -> bool:
    """Whether a message has to be decoded with `in_stream`."""
    return isinstance(message, StreamedMessage) and message.xid is not None
