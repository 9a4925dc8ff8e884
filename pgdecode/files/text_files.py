"""Conversion of text and pg_recvlogical files to Parquet files of payloads."""

from __future__ import annotations

import mmap
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pgdecode._native.wire.recvlogical_file import whole_messages
from pgdecode.payloads.payload_input import ascending
from pgdecode.payloads.text_rows import OWN_POSITIONS, layout_hint, row_tables
from pgdecode.payloads.unwrap import UnwrapError, hint
from pgdecode.protocol.messages import MESSAGES, Column
from pgdecode.protocol.options import Unwrap
from pgdecode.protocol.wire import Form, wire_fields

_CHUNK_ROWS = 8192
_CHUNK_BYTES = 1 << 26
_HEAD_BYTES = 4096  # that are looked at to name another format
_TAGS = {ord(message.tag): message for message in MESSAGES}
_SIZES = {Form.FLAGS: 1, Form.LETTER: 1, Form.UINT32: 4, Form.INT32: 4, Form.LSN: 8, Form.TIMESTAMP: 8}


class ConvertedFile:
    """A temporary Parquet file with the payloads of another file. It is deleted with this object.

    Attributes
    ----------
    path : Path
    has_positions : bool
        Whether the other file has a column with positions. Otherwise `seq` counts its rows.
    """

    def __init__(self, source: Path, payload: str, how: Unwrap) -> None:
        folder = tempfile.mkdtemp(prefix="pgdecode-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self.path = Path(folder, "payloads.parquet")
        self.has_positions = convert_to_parquet(source, self.path, payload, how)


def convert_to_parquet(source: Path, target: Path, payload: str = "data", how: Unwrap = "auto") -> bool:
    """Write the payloads of a file that is not Parquet to a Parquet file.

    Parameters
    ----------
    source : Path
        Text as `pgdecode.payloads.text_rows` reads it; any other file is read as one of `pg_recvlogical`.
    target : Path
    payload : str
        The column, or key, with the payloads as text.
    how : {"auto", "hex", "base64", "xlogdata"}
        The form of the text, as in `pgdecode.unwrap`.

    Returns
    -------
    bool
        Whether the file has positions of its own, in `seq` or `position`.

    Raises
    ------
    UnwrapError
        If a line or message cannot be read.
    """
    tables = row_tables(source, payload, how)
    if tables is not None:
        return _write(target, tables)
    if source.stat().st_size == 0:
        raise UnwrapError(0, "the file is empty")
    with open(source, "rb") as raw, mmap.mmap(raw.fileno(), 0, access=mmap.ACCESS_READ) as content:
        _write_recvlogical(target, content, payload)
    return False


def _write(target: Path, tables: Iterator[pa.Table]) -> bool:
    """Write tables, and return whether the first one has positions that were not counted."""
    first = next(tables)
    with pq.ParquetWriter(target, first.schema) as writer:
        writer.write_table(first)
        for table in tables:
            writer.write_table(table)
    return (first.schema.metadata or {}).get(OWN_POSITIONS) is not None


# Files of pg_recvlogical.


def _write_recvlogical(target: Path, content: Any, payload: str) -> None:
    failure: UnwrapError | None = None
    for abort_bytes in _ABORT_BYTES:
        try:
            _write(target, _tables(split_messages(content, abort_bytes), payload))
            return
        except UnwrapError as error:
            if failure is None or error.row > failure.row:
                failure = error
    assert failure is not None
    raise failure


def _tables(arrays: Iterator[pa.Array], payload: str) -> Iterator[pa.Table]:
    start = n_rows = n_bytes = 0
    chunks: list[pa.Array] = []
    for array in arrays:
        chunks.append(array)
        n_rows += len(array)
        n_bytes += array.nbytes
        if n_rows >= _CHUNK_ROWS or n_bytes >= _CHUNK_BYTES:
            yield _table(chunks, payload, start)
            start += n_rows
            n_rows = n_bytes = 0
            chunks.clear()
    if chunks or not start:
        yield _table(chunks, payload, start)


def _table(chunks: list[pa.Array], payload: str, start: int) -> pa.Table:
    payloads = pa.chunked_array(chunks, pa.large_binary())
    return pa.table({"seq": ascending(start, len(payloads)), payload: payloads})


# A Stream Abort has 9 bytes, or 25 if the session streams in parallel. The file does not say which.
_ABORT_BYTES = (9, 25)


def split_messages(content: Any, abort_bytes: int) -> Iterator[pa.Array]:
    """Split a file that `pg_recvlogical -P pgoutput` wrote: payloads without lengths, each followed by a newline.

    A payload may contain newlines, so its end is found from its structure.

    Parameters
    ----------
    content : bytes or mmap
    abort_bytes : {9, 25}
        The length of a Stream Abort.

    Yields
    ------
    pa.Array of large_binary

    Raises
    ------
    UnwrapError
        Where the file cannot be split. `row` is the number of the failing message; the text gives the byte.
    """
    at = row = 0
    in_stream = False
    while at < len(content):
        n, buffers, at, in_stream = whole_messages(content, at, in_stream, abort_bytes, _CHUNK_ROWS)
        if n:
            yield pa.Array.from_buffers(pa.large_binary(), n, buffers)
            row += n
            continue
        # The message is not well-formed. It is a bad payload, unless its end cannot be found.
        tag = content[at]
        if tag not in _TAGS:
            raise UnwrapError(row, f"byte {at}: not a pgoutput message{_hint(content, at)}")
        end = at + abort_bytes if tag == ord("A") else _end_of(content, at, in_stream)
        if content[end : end + 1] != b"\n":
            raise UnwrapError(
                row, f"byte {at}: no newline after the message, or the file ends inside it{_hint(content, at)}"
            )
        yield pa.array([content[at:end]], pa.large_binary())
        in_stream = (in_stream or tag == ord("S")) and tag != ord("E")
        at, row = end + 1, row + 1


def _hint(content: Any, at: int) -> str:
    return layout_hint(content[:_HEAD_BYTES]) if at == 0 else hint(content[at : at + _HEAD_BYTES])


def _end_of(content: Any, at: int, in_stream: bool) -> int:
    """Find the end of a message; the result exceeds the length of `content` if the message is cut off."""
    cursor = _Cursor(content, at + 1)
    for field in wire_fields(_TAGS[content[at]]):
        cursor.step_over(field.wire.form, optional=field.wire.optional, in_stream=in_stream)
    return cursor.at


class _Cursor:
    """An offset into untrusted bytes. It may move past their end, where reads return zero."""

    def __init__(self, content: Any, at: int) -> None:
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
        content = self.content[self.at : self.at + size]
        self.at += size
        return int.from_bytes(content, "big")
