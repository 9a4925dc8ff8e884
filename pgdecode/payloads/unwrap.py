"""Extraction of payloads from XLogData frames, hexadecimal or base64 text, pg_recvlogical files, CSV and JSON lines."""

from __future__ import annotations

import base64
import binascii
import csv
import json
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from pgdecode.protocol.lsn import lsn_from_text
from pgdecode.protocol.messages import MESSAGES, Column
from pgdecode.protocol.options import check_option
from pgdecode.protocol.wire import Form, wire_fields

Unwrap = Literal["auto", "none", "hex", "base64", "xlogdata"]

# No pgoutput message begins with either byte, so the first byte distinguishes a frame from a payload.
_XLOGDATA, _KEEPALIVE = ord("w"), ord("k")
_HEADER_BYTES, _KEEPALIVE_BYTES = 25, 18
_TAGS = {ord(message.tag): message for message in MESSAGES}
_BASE64 = re.compile(rb"[A-Za-z0-9+/\r\n]{8,}={0,2}\s*")
_SIZES = {Form.FLAGS: 1, Form.LETTER: 1, Form.UINT32: 4, Form.INT32: 4, Form.LSN: 8, Form.TIMESTAMP: 8}


class UnwrapError(ValueError):
    """A value that does not have the expected form.

    Attributes
    ----------
    row : int
        Index of the value, counted from 0.
    """

    def __init__(self, row: int, text: str) -> None:
        super().__init__(f"row {row}: {text}")
        self.row = row


@dataclass(frozen=True)
class Unwrapped:
    """Payloads extracted by `unwrap`.

    Attributes
    ----------
    payloads : pa.Array of large_binary
    rows : pa.Array of int64
        Index of the value that contained each payload; keepalives are left out.
    lsn : pa.Array of int64
        The LSN of the frame; null without a frame.
    """

    payloads: pa.Array
    rows: pa.Array
    lsn: pa.Array


def unwrap(values: Any, how: Unwrap = "auto") -> Unwrapped:
    r"""Extract payloads from frames or text.

    Parameters
    ----------
    values : pa.Array or ChunkedArray of binary or string
    how : {"auto", "none", "hex", "base64", "xlogdata"}
        "auto": In a string column, values that begin with \x are hexadecimal, and all others are base64. After that
        step, and in a binary column, values that begin with `w` are XLogData frames. Values that begin with `k` are
        keepalives and are left out. All others are payloads. This is exact, because no pgoutput message begins with
        `w` or `k`. Base64 in a binary column is not recognised.
        "none": A binary column of payloads.
        "xlogdata": A binary column in which every value is a frame.
        "hex", "base64": A string column, or a binary column of such text.

    Raises
    ------
    UnwrapError
        If a value does not have that form. The text does not contain the value.
    TypeError
        If the column is neither binary nor string, or if it is text and `how` is "none" or "xlogdata".
    ValueError
        If `how` is another word.
    """
    check_option("unwrap", how, Unwrap)
    column = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)
    is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    is_text = is_text or pa.types.is_string_view(column.type)
    is_binary = any(
        test(column.type)
        for test in (
            pa.types.is_binary,
            pa.types.is_large_binary,
            pa.types.is_fixed_size_binary,
            pa.types.is_binary_view,
        )
    )
    if not is_text and not is_binary:
        raise TypeError(f"payloads are binary or string, not {column.type}")
    if is_text and how in ("none", "xlogdata"):
        raise TypeError(f"payloads are a column of {column.type}: unwrap is hex or base64")
    found = column.to_pylist()
    decode = _decoder(how, is_text=is_text)
    if decode is not None:
        found = [None if value is None else decode(row, value) for row, value in enumerate(found)]
    return _without_frames(found, how)


def _decoder(how: Unwrap, *, is_text: bool) -> Callable[[int, Any], bytes] | None:
    if how == "hex":
        return _from_hex
    if how == "base64":
        return _from_base64
    return _from_text if how == "auto" and is_text else None


def _from_text(row: int, value: str) -> bytes:
    return _from_hex(row, value) if value.startswith("\\x") else _from_base64(row, value)


def _from_hex(row: int, value: str | bytes) -> bytes:
    text = value if isinstance(value, str) else value.decode("latin-1")
    try:
        # bytes.fromhex would skip blanks.
        return binascii.unhexlify(text.removeprefix("\\x"))
    except ValueError:
        raise UnwrapError(row, f"not hexadecimal digits{_looks_like(value)}") from None


def _from_base64(row: int, value: str | bytes) -> bytes:
    try:
        content = value.encode("ascii") if isinstance(value, str) else value
        # PostgreSQL's encode() breaks lines after 76 characters.
        return base64.b64decode(content.replace(b"\n", b"").replace(b"\r", b""), validate=True)
    except ValueError:
        raise UnwrapError(row, f"not base64{_looks_like(value)}") from None


def _without_frames(values: Sequence[bytes | None], how: Unwrap) -> Unwrapped:
    payloads: list[bytes | None] = []
    rows: list[int] = []
    lsns: list[int | None] = []
    for row, value in enumerate(values):
        first = value[0] if value else 0
        lsn = None
        if value is not None and first == _XLOGDATA and how in ("auto", "xlogdata"):
            if len(value) < _HEADER_BYTES:
                raise UnwrapError(row, f"an XLogData frame has at least {_HEADER_BYTES} bytes, this has {len(value)}")
            lsn, value = struct.unpack_from("!q", value, 1)[0], value[_HEADER_BYTES:]
        elif value is not None and first == _KEEPALIVE and how in ("auto", "xlogdata"):
            if len(value) != _KEEPALIVE_BYTES:
                raise UnwrapError(row, f"a keepalive has {_KEEPALIVE_BYTES} bytes, this has {len(value)}")
            continue
        elif value is not None and how == "xlogdata":
            raise UnwrapError(row, f"neither an XLogData frame nor a keepalive{_looks_like(value)}")
        payloads.append(value)
        rows.append(row)
        lsns.append(lsn)
    return Unwrapped(pa.array(payloads, pa.large_binary()), pa.array(rows, pa.int64()), pa.array(lsns, pa.int64()))


# Files of pg_recvlogical.


def split_recvlogical(content: bytes) -> list[bytes]:
    """Split a file that `pg_recvlogical -P pgoutput` wrote: payloads without lengths, each followed by a newline.

    A payload may contain newlines, so its end is found from its structure. A Stream Abort has 9 or 25 bytes, depending
    on the session's options. The length with which the whole file can be split is used.

    Raises
    ------
    UnwrapError
        If the file cannot be split with either length. `row` is the number of the failing message; the text gives the
        byte.
    """
    failure: UnwrapError | None = None
    for abort_bytes in (9, 25):
        try:
            return list(_split(content, abort_bytes))
        except UnwrapError as error:
            if failure is None or error.row > failure.row:
                failure = error
    assert failure is not None
    raise failure


def _split(content: bytes, abort_bytes: int) -> Iterator[bytes]:
    at = row = 0
    in_stream = False
    while at < len(content):
        if content[at] == ord("\n"):
            # An empty payload, as servers send for an origin without a name.
            end = at
        elif content[at] not in _TAGS:
            raise UnwrapError(row, f"byte {at}: not a pgoutput message{_looks_like(content[at : at + 200])}")
        else:
            end = at + abort_bytes if content[at] == ord("A") else _end_of(content, at, in_stream)
            in_stream = (in_stream or content[at] == ord("S")) and content[at] != ord("E")
        if content[end : end + 1] != b"\n":
            raise UnwrapError(row, f"byte {at}: no newline after the message, or the file ends inside it")
        yield content[at:end]
        at, row = end + 1, row + 1


def _end_of(content: bytes, at: int, in_stream: bool) -> int:
    """Find the end of a message; the result exceeds the length of `content` if the message is cut off."""
    cursor = _Cursor(content, at + 1)
    for field in wire_fields(_TAGS[content[at]]):
        cursor.step_over(field.wire.form, optional=field.wire.optional, in_stream=in_stream)
    return cursor.at


class _Cursor:
    """An offset into untrusted bytes. It may move past their end, where reads return zero."""

    def __init__(self, content: bytes, at: int) -> None:
        self.content = content
        self.at = at
        self._count = 0

    def step_over(self, form: Form, *, optional: bool, in_stream: bool) -> None:
        if form in _SIZES:
            self.at += _SIZES[form]
        elif form is Form.XID_PREFIX:
            self.at += 4 if in_stream else 0
        elif form in (Form.NAME, Form.TEXT):
            end = self.content.find(b"\0", self.at)
            self.at = len(self.content) + 1 if end < 0 else end + 1
        elif form is Form.CONTENT:
            self._skip_counted()
        elif form is Form.COUNT:
            self._count = self._take(4)
        elif form is Form.RELATION_IDS:
            self.at += 4 * self._count
        elif form is Form.COLUMNS:
            for _ in range(self._take(2)):
                for field in wire_fields(Column):
                    self.step_over(field.wire.form, optional=False, in_stream=in_stream)
                if self.at > len(self.content):
                    return
        elif form is Form.OLD_TYPE:
            self._has_old = self.content[self.at : self.at + 1] in (b"K", b"O")
            self.at += 1 if self._has_old or not optional else 0
        elif form is Form.OLD_TUPLE:
            if self._has_old:
                self._tuple()
        elif form is Form.NEW_TUPLE:
            self.at += 1
            self._tuple()

    def _tuple(self) -> None:
        for _ in range(self._take(2)):
            kind = self._take(1)
            if kind in b"tb":
                self._skip_counted()
            if self.at > len(self.content):
                return

    def _skip_counted(self) -> None:
        length = self._take(4)
        self.at += length

    def _take(self, size: int) -> int:
        found = self.content[self.at : self.at + size]
        self.at += size
        return int.from_bytes(found, "big")


# Rows of pg_logical_slot_peek_binary_changes, as psql and drivers write them to files.


def read_csv(path: Path) -> pa.Table:
    """Read CSV, as `psql --csv` writes it, with the column `data` and optionally `lsn` and `xid`.

    Returns
    -------
    pa.Table of seq, lsn, xid and data
        `seq` is the line number. `data` is unwrapped with "auto".

    Raises
    ------
    UnwrapError
        If a line cannot be read.
    """
    with open(path, encoding="utf-8", newline="") as file:
        csv.field_size_limit(2**31 - 1)
        return _as_table(list(csv.DictReader(file)))


def read_json_lines(path: Path) -> pa.Table:
    """Read one JSON object per line, with `data` and optionally `lsn` and `xid`; otherwise like `read_csv`."""
    lines: list[dict[str, Any]] = []
    with open(path, encoding="utf-8") as file:
        for row, line in enumerate(file):
            try:
                found = json.loads(line)
            except ValueError:
                found = None
            if not isinstance(found, dict):
                raise UnwrapError(row, f"not a JSON object{_looks_like(line)}")
            lines.append(found)
    return _as_table(lines)


def _as_table(lines: Sequence[dict[str, Any]]) -> pa.Table:
    for row, line in enumerate(lines):
        if not isinstance(line.get("data"), str):
            what = looks_like(json.dumps(line)) if "data" not in line else None
            raise UnwrapError(row, "no text in 'data'" + (f"; it looks like {what}" if what else ""))
    found = unwrap(pa.array([line["data"] for line in lines], pa.large_string()))
    kept = [lines[row] for row in found.rows.to_pylist()]
    lsns = []
    for row, line in zip(found.rows.to_pylist(), kept, strict=True):
        try:
            lsns.append(lsn_from_text(line["lsn"]) if line.get("lsn") else None)
        except (TypeError, ValueError):
            raise UnwrapError(row, "'lsn' is not an LSN such as 16/B374D848") from None
    xids = [int(line["xid"]) if str(line.get("xid") or "").isdecimal() else None for line in kept]
    columns = {
        "seq": found.rows,
        "lsn": pa.array(lsns, pa.int64()),
        "xid": pa.array(xids, pa.int64()),
        "data": found.payloads,
    }
    return pa.table(columns)


# Recognition of other formats, for error texts.


def looks_like(value: bytes | str) -> str | None:
    """Name the format that a value appears to have, and what to do about it; None if it is not recognised.

    Used only in error texts. Decoding never depends on this guess.
    """
    text = value if isinstance(value, str) else value.decode("latin-1")
    start = text.lstrip()[:400]
    if start.startswith(("{", "[")):
        if '"payload"' in start or (
            '"op"' in start and ('"before"' in start or '"after"' in start or '"source"' in start)
        ):
            return "JSON from Debezium, which has already decoded pgoutput"
        if '"change"' in start or '"action"' in start:
            return "wal2json: read the slot with the plugin pgoutput instead"
        return "JSON: read the slot with the plugin pgoutput instead"
    if re.match(r"(BEGIN|COMMIT)( \d+)?(\s|$)|table .+: (INSERT|UPDATE|DELETE|TRUNCATE):", start):
        return "text of test_decoding: read the slot with the plugin pgoutput instead"
    content = value.encode("latin-1", "replace") if isinstance(value, str) else value
    if content[:1] == b"w" and len(content) >= _HEADER_BYTES:
        return 'an XLogData frame: unwrap="xlogdata"'
    if re.match(rb"\\x[0-9A-Fa-f]{2}", content):
        return 'hexadecimal text: unwrap="hex"'
    if content[:2] == b"\x1f\x8b" or content[:4] == b"\x28\xb5\x2f\xfd":
        return "compressed data: decompress it first"
    if _BASE64.fullmatch(content) and _is_base64_of_a_payload(content):
        return 'base64 text: unwrap="base64"'
    return None


def _is_base64_of_a_payload(content: bytes) -> bool:
    try:
        found = base64.b64decode(b"".join(content.split()), validate=True)
    except ValueError:
        return False
    return bool(found) and (found[0] in _TAGS or found[0] == _XLOGDATA)


def _looks_like(value: bytes | str) -> str:
    what = looks_like(value)
    return f"; it looks like {what}" if what else ""
