"""Payloads in text and in files of pg_recvlogical, by Python's library and by the message table."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Any

from pgdecode.protocol.messages import MESSAGES, Column
from pgdecode.protocol.wire import Form, wire_fields

TAGS = {ord(message.tag): message for message in MESSAGES}
SIZES = {Form.FLAGS: 1, Form.LETTER: 1, Form.UINT32: 4, Form.INT32: 4, Form.LSN: 8, Form.TIMESTAMP: 8}


def decoded(text: bytes, form: str) -> bytes | None:
    """Decode hexadecimal digits, base64 or, with "auto", either; None if the text is invalid.

    With "auto", hexadecimal digits begin with `\\x` or with the first digit of a letter.
    """
    is_hex = text[:2] == b"\\x" or (len(text) > 1 and text[0] in b"4567")
    if form == "hex" or (form == "auto" and is_hex):
        return or_none(binascii.unhexlify, text.removeprefix(b"\\x"))
    content = text.replace(b"\n", b"").replace(b"\r", b"")
    found = or_none(lambda content: base64.b64decode(content, validate=True), content)
    # Padding that is not needed is accepted by some versions of Python.
    return found if found is not None and len(base64.b64encode(found)) == len(content) else None


def or_none(function: Callable[[bytes], bytes], content: bytes) -> bytes | None:
    try:
        return function(content)
    except ValueError:
        return None


def plain_split(content: bytes, abort_bytes: int) -> list[tuple[bytes, bool]]:
    """Split payloads that are each followed by a newline, with whether each is in a stream, as far as that works."""
    found: list[tuple[bytes, bool]] = []
    at, in_stream = 0, False
    while at < len(content):
        if content[at : at + 1] == b"\n":
            end: int | None = at
        elif content[at] == ord("A"):
            end = at + abort_bytes
        else:
            end = end_of(content, at, in_stream)
        if end is None or content[end : end + 1] != b"\n":
            break
        found.append((content[at:end], in_stream))
        in_stream = (in_stream or content[at] == ord("S")) and content[at] != ord("E")
        at = end + 1
    return found


def end_of(content: bytes, at: int, in_stream: bool) -> int | None:
    """Find the end of a message by its fields; None if there is none."""
    if content[at] not in TAGS:
        return None
    try:
        return Fields(content, at + 1).end(TAGS[content[at]], in_stream)
    except (IndexError, ValueError):
        return None


class Fields:
    """Steps over the fields of a message; raises IndexError or ValueError if the message is cut off."""

    def __init__(self, content: bytes, at: int) -> None:
        self.content = content
        self.at = at
        self.count = 0
        self.has_old = False

    def end(self, message: Any, in_stream: bool) -> int:
        for field in wire_fields(message):
            self.step(field.wire, in_stream)
        return self.at

    def step(self, layout: Any, in_stream: bool) -> None:
        form = layout.form
        if form in SIZES:
            self.take(SIZES[form])
        elif form is Form.XID_PREFIX:
            self.take(4 if in_stream else 0)
        elif form in (Form.NAME, Form.TEXT):
            self.at = self.content.index(0, self.at) + 1
        elif form is Form.CONTENT:
            self.take(self.number(4))
        elif form is Form.COUNT:
            self.count = self.number(4)
        elif form is Form.RELATION_IDS:
            self.take(4 * self.count)
        elif form is Form.COLUMNS:
            for _ in range(self.number(2)):
                self.end(Column, in_stream)
        elif form is Form.OLD_TYPE:
            self.has_old = self.content[self.at] in b"KO"
            self.take(1 if self.has_old or not layout.optional else 0)
        elif form is Form.OLD_TUPLE and self.has_old:
            self.step_over_cells()
        elif form is Form.NEW_TUPLE:
            self.take(1)
            self.step_over_cells()

    def step_over_cells(self) -> None:
        for _ in range(self.number(2)):
            if self.number(1) in b"tb":
                self.take(self.number(4))

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def take(self, size: int) -> bytes:
        if size > len(self.content) - self.at:
            raise IndexError("cut off")
        self.at += size
        return self.content[self.at - size : self.at]
