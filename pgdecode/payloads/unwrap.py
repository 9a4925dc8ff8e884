"""Extraction of payloads from XLogData frames, and from hexadecimal or base64 text.

Source: PostgreSQL documentation, "Streaming Replication Protocol" (XLogData, Primary keepalive message) and "bytea".
"""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode._native.arrow.payload_array import Source
from pgdecode._native.literals.encoded_bytes import decoded_text
from pgdecode._native.wire.message_filter import tagged
from pgdecode.payloads.payload_input import ascending
from pgdecode.protocol.messages import MESSAGES
from pgdecode.protocol.options import Unwrap, check_option

# No pgoutput message begins with either byte, so the first byte distinguishes a frame from a payload.
_XLOGDATA, _KEEPALIVE = ord("w"), ord("k")
_HEADER_BYTES, _KEEPALIVE_BYTES = 25, 18
LOOKS_LIKE = "; it looks like "
_TAGS = {ord(message.tag) for message in MESSAGES}
# What hexadecimal digits of a payload or frame begin with, if not with its tag's first digit, 4 to 7.
_HEX_STARTS = (b"\\x", b"4", b"5", b"6", b"7")
_ESCAPED = re.compile(rb"[^\\]{0,80}(\\[0-3][0-7]{2}|\\\\)")
_BASE64 = re.compile(rb"[A-Za-z0-9+/\r\n]{8,}={0,2}\s*")


class UnwrapError(ValueError):
    r"""A value that does not have the expected form.

    Attributes
    ----------
    row : int
        Index of the value, counted from 0.
    reason : str
        The text without the row.

    Examples
    --------
    >>> pgdecode.unwrap([r"\x4"])
    Traceback (most recent call last):
    pgdecode.payloads.unwrap.UnwrapError: ...
    """

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(f"row {row}: {reason}")
        self.row = row
        self.reason = reason


@dataclass(frozen=True)
class Unwrapped:
    """Payloads extracted by `unwrap`.

    Attributes
    ----------
    payloads : pa.Array of binary or large_binary
    rows : pa.Array of int64
        Index of the value that contained each payload; keepalives are left out.
    lsn : pa.Array of int64
        The LSN of the frame; null without a frame.

    Examples
    --------
    >>> frame = bytes.fromhex("77 000000000000000a 000000000000000b 0000000000000000 45")
    >>> unwrapped = pgdecode.unwrap([frame])
    >>> unwrapped.payloads.to_pylist(), unwrapped.lsn.to_pylist()
    ([b'E'], [10])
    """

    payloads: pa.Array
    rows: pa.Array
    lsn: pa.Array


def unwrap(values: Any, how: Unwrap = "auto") -> Unwrapped:
    r"""Extract payloads from frames or text.

    Parameters
    ----------
    values : pa.Array or ChunkedArray of binary or string
        Frames or text. A sequence of bytes or str is accepted too.
    how : {"auto", "none", "hex", "base64", "xlogdata"}
        "auto": In a string column, values that begin with \x or with a digit from 4 to 7 are hexadecimal, and all
        others are base64. This is exact, because the first byte of all messages and frames is a letter. After that
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

    Examples
    --------
    >>> import pgdecode
    >>> found = pgdecode.unwrap(["\\x45", "RQ=="])
    >>> found.payloads.to_pylist()
    [b'E', b'E']
    """
    column = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    frames = unwrap_in_place(column, how, is_strict=True)
    rows = ascending(0, len(column))
    lsn = frames.lsn
    if lsn is None:
        lsn = pa.nulls(len(column), pa.int64())
    if frames.is_keepalive is None:
        return Unwrapped(frames.payloads, rows, lsn)
    kept = pc.invert(pc.fill_null(frames.is_keepalive, False))
    return Unwrapped(frames.payloads.filter(kept), rows.filter(kept), lsn.filter(kept))


class InPlace(NamedTuple):
    """Payloads in the rows of their values.

    Attributes
    ----------
    payloads : pa.Array of binary or large_binary
        Null for a keepalive.
    lsn : pa.Array of int64, or None
        As in `Unwrapped`; None without any frames.
    is_keepalive : pa.Array of bool, or None
        None without any keepalives.
    """

    payloads: pa.Array
    lsn: pa.Array | None = None
    is_keepalive: pa.Array | None = None


def unwrap_in_place(column: pa.Array, how: Unwrap, *, is_text: bool | None = None, is_strict: bool = False) -> InPlace:
    """Extract payloads as `unwrap` does, and keep the number of rows.

    Parameters
    ----------
    column : pa.Array of binary or string
    how : {"auto", "none", "hex", "base64", "xlogdata"}
    is_text : bool, optional
        Whether the values are text; by default, whether the type is a string type.
    is_strict : bool
        Whether a value that begins like a frame or a keepalive, but has another length, is an error with "auto".
        Otherwise it is returned unchanged, and is a bad payload.
    """
    check_option("unwrap", how, Unwrap)
    if pa.types.is_null(column.type):
        # A batch without any value, for example from pandas, has no other type.
        return InPlace(column.cast(pa.binary()))
    if is_text is None:
        is_text = is_string(column.type)
    if not is_text and not _is_binary(column.type):
        raise TypeError(f"payloads are binary or string, not {column.type}")
    if is_text and how in ("none", "xlogdata"):
        raise TypeError(f"payloads are a column of {column.type}: unwrap is hex or base64")
    if column.type not in (pa.binary(), pa.large_binary()):
        column = column.cast(pa.binary() if pa.types.is_string(column.type) else pa.large_binary())
    if how in ("hex", "base64") or (how == "auto" and is_text):
        column = _decoded(column, how)
    return _without_frames(column, how, is_strict) if how in ("auto", "xlogdata") else InPlace(column)


def has_frames(columns: Sequence[pa.Array]) -> bool:
    """Whether values of binary columns begin like frames or keepalives."""
    return tagged(Source(list(columns)), bytes((_XLOGDATA, _KEEPALIVE)), b"")[0] is not None


def is_string(type: pa.DataType) -> bool:
    """Whether a type is text."""
    return bool(pa.types.is_string(type) or pa.types.is_large_string(type) or pa.types.is_string_view(type))


def _is_binary(type: pa.DataType) -> bool:
    tests = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view)
    return any(test(type) for test in tests)


def _decoded(column: pa.Array, how: Unwrap) -> pa.Array:
    """Decode values that are text."""
    row, buffers = decoded_text(Source([column]), how)
    if buffers is None:
        value = column[row].as_py()
        if how == "auto" and value.startswith(_HEX_STARTS):
            raise UnwrapError(row, "not hexadecimal digits")
        raise UnwrapError(row, f"not {'hexadecimal digits' if how == 'hex' else 'base64'}{hint(value)}")
    return pa.Array.from_buffers(pa.large_binary(), len(column), buffers)


def _without_frames(column: pa.Array, how: Unwrap, is_strict: bool) -> InPlace:
    """Extract payloads from frames. The first byte distinguishes frames, keepalives and payloads."""
    found = tagged(Source([column]), bytes((_XLOGDATA, _KEEPALIVE)), b"")[0]
    rows = (
        pa.array([], pa.int64()) if found is None else pa.Array.from_buffers(pa.int64(), found.size // 8, [None, found])
    )
    if how == "xlogdata" and len(rows) < len(column) - column.null_count:
        others = pc.and_(column.is_valid(), pc.invert(pc.is_in(ascending(0, len(column)), rows)))
        row = others.index(True).as_py()
        raise UnwrapError(row, f"neither an XLogData frame nor a keepalive{hint(column[row].as_py())}")
    if not len(rows):
        return InPlace(column)
    lengths, letters = pc.binary_length(column), pc.binary_slice(column, 0, 1)
    frame, keepalive = (pa.scalar(bytes([letter]), letters.type) for letter in (_XLOGDATA, _KEEPALIVE))
    is_frame, is_keepalive = pc.equal(letters, frame), pc.equal(letters, keepalive)
    has_header, has_size = pc.greater_equal(lengths, _HEADER_BYTES), pc.equal(lengths, _KEEPALIVE_BYTES)
    if is_strict or how == "xlogdata":
        _check_frames(is_frame, has_header, lengths, f"an XLogData frame has at least {_HEADER_BYTES} bytes")
        _check_frames(is_keepalive, has_size, lengths, f"a keepalive has {_KEEPALIVE_BYTES} bytes")
    is_frame, is_keepalive = pc.and_(is_frame, has_header), pc.and_(is_keepalive, has_size)
    frames = column.filter(is_frame)
    # The contents of frames stand behind the column, and each frame refers to its content.
    content = pc.add(pc.cumulative_sum(pc.fill_null(is_frame, False).cast(pa.int64())), len(column) - 1)
    places = pc.if_else(is_frame, content, ascending(0, len(column)))
    places = pc.if_else(is_keepalive, pa.scalar(None, pa.int64()), places)
    # Without a stop, pyarrow 26 fails for some lengths.
    found = pa.concat_arrays([column, pc.binary_slice(frames, _HEADER_BYTES, 2**31 - 1)]).take(places)
    lsns = pa.concat_arrays([pa.nulls(len(column), pa.int64()), _lsns(frames)]).take(places)
    return InPlace(found, lsns, is_keepalive)


def _check_frames(is_form: pa.Array, fits: pa.Array, lengths: pa.Array, expected: str) -> None:
    row = pc.and_(is_form, pc.invert(fits)).index(True).as_py()
    if row >= 0:
        raise UnwrapError(row, f"{expected}, this has {lengths[row].as_py()}")


def _lsns(frames: pa.Array) -> pa.Array:
    """Read the LSN at which each frame starts."""
    numbers = array("q", pc.binary_slice(frames, 1, 9).cast(pa.binary(8)).buffers()[1].to_pybytes())
    if sys.byteorder == "little":
        numbers.byteswap()
    return pa.array(numbers, pa.int64())


# Recognition of other formats, for error texts.


def looks_like(value: bytes | str) -> str | None:
    """Name the format that a value appears to have, and what to do about it; None if it is not recognised.

    Used only in error texts. Decoding never depends on this guess.
    """
    text = value if isinstance(value, str) else value.decode("latin-1")
    start = text.lstrip()[:400]
    if start.startswith(("{", "[")):
        if re.search(r'"payload"\s*:\s*\{', start) or (
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
    if re.match(rb"\\x[0-9A-Fa-f]{2}", content) or re.fullmatch(rb"[4-7][0-9A-Fa-f]{9,}\s*", content):
        return 'hexadecimal text: unwrap="hex"'
    if content[:1] and content[0] in (*_TAGS, _XLOGDATA) and _ESCAPED.match(content):
        return "bytea in escape format: SET bytea_output = hex, and read the slot again"
    if content[:2] == b"\x1f\x8b" or content[:4] == b"\x28\xb5\x2f\xfd":
        return "compressed data: decompress it first"
    if _BASE64.fullmatch(content) and _is_base64_of_a_payload(content):
        return 'base64 text: unwrap="base64"'
    return None


def _is_base64_of_a_payload(content: bytes) -> bool:
    _, buffers = decoded_text(Source([[b"".join(content.split())]]), "base64")
    found = b"" if buffers is None or buffers[2] is None else buffers[2].to_pybytes()[:1]
    return bool(found) and found[0] in (*_TAGS, _XLOGDATA)


def hint(value: bytes | str) -> str:
    """Say what a value looks like, for the end of an error text; nothing if it is not recognised."""
    what = looks_like(value)
    return f"{LOOKS_LIKE}{what}" if what else ""
