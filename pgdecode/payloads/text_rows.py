r"""Reads the rows of `pg_logical_slot_peek_binary_changes` from text files, as psql and drivers write them.

These are CSV with a header, JSON lines, an array of JSON objects, and lines with nothing but a payload in hexadecimal
digits or base64. No pgoutput message begins like one of them.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode.payloads.unwrap import LOOKS_LIKE, UnwrapError, hint, unwrap
from pgdecode.protocol.json_document import load_json
from pgdecode.protocol.lsn import lsn_from_text
from pgdecode.protocol.options import Unwrap

JSON_LINES = (".jsonl", ".ndjson", ".json")
TEXT_SUFFIXES = (".csv", *JSON_LINES)
_CHUNK_ROWS = 8192
_MOST = 2**63 - 1
_N_COLUMNS = 3  # of pg_logical_slot_peek_binary_changes
# Columns with positions, as in `pgdecode.files.ordered_files`, and the mark of a table that has one.
_POSITIONS = ("seq", "position")
OWN_POSITIONS = b"own positions"
_DIGITS = re.compile(r"0*(\d{1,19})")
_HEAD_BYTES = 4096
_UTF8_MARK = b"\xef\xbb\xbf"
# A line with a payload, also as COPY writes it, with two backslashes. The first digit is that of a tag.
_HEXADECIMAL = re.compile(rb'"?(\\{1,2}x|[4-7])[0-9A-Fa-f]+"?\s*')
_DELIMITERS = ",;\t"
_PAYLOAD_DIGITS = rb"\\{1,2}x[0-9A-Fa-f]{2}"
_USE_CSV = "write it with psql --csv"
# What psql and COPY write that cannot be read, and what to do about it.
_LAYOUTS = (
    (rb"PGCOPY\n\xff\r\n\0", "COPY in binary format: use COPY ... WITH (FORMAT csv, HEADER), or psql --csv"),
    (rb"\xff\xfe|\xfe\xff", "UTF-16, as PowerShell redirects it: write it as UTF-8"),
    (rb"-\[ RECORD 1 \]", f"expanded output of psql: {_USE_CSV}"),
    (rb"[^\n]*\n[- ]*-\+-[-+]*\s*\n", f"aligned output of psql: {_USE_CSV}"),
    (rb"\s*data\s*\n-+\s*\n", f"aligned output of psql: {_USE_CSV}"),
    (rb"[^\n|]*\|[^\n]*\n", f"unaligned output of psql (-A): {_USE_CSV}"),
    (
        rb"[^\n\t]*\t[^\n]*" + _PAYLOAD_DIGITS,
        "COPY in text format: use COPY ... WITH (FORMAT csv, HEADER), or psql --csv",
    ),
    (rb"[^\n,]*,[^\n]*" + _PAYLOAD_DIGITS, "CSV without a header: write one, as psql --csv does without -t"),
    (rb"<table|<!DOCTYPE|\\begin\{|\[%?cols|\.LP", f"a table of psql in another format: {_USE_CSV}"),
    (rb"Obj\x01|ARROW1|ORC", "a file of another columnar format: write it as Parquet"),
)


def layout_hint(head: bytes) -> str:
    """Name the layout of a file by its beginning, for the end of an error text; nothing if it is unknown."""
    for pattern, what in _LAYOUTS:
        if re.match(pattern, head):
            return f"{LOOKS_LIKE}{what}"
    if re.search(_PAYLOAD_DIGITS + rb"[0-9A-Fa-f]{6}", head):
        return f"{LOOKS_LIKE}rows of psql in another layout: {_USE_CSV}"
    return hint(head[:200])


def row_tables(source: Path, payload: str, how: Unwrap) -> Iterator[pa.Table] | None:
    """Read a file of rows as tables of positions, lsn, xid and payload; None if it is no such file.

    If the first row has `seq` or `position`, that column has the positions, and the schemas have the key
    `OWN_POSITIONS`. Otherwise `seq` is the number of the row.

    Parameters
    ----------
    source : Path
    payload : str
        The column, or key, of the payloads. Upper and lower case are equal if only one name fits.
    how : {"auto", "hex", "base64", "xlogdata"}
        The form of the payloads, as in `pgdecode.unwrap`.

    Raises
    ------
    UnwrapError
        If a line cannot be read; while the tables are read.
    """
    with open(source, "rb") as file:
        head = file.read(_HEAD_BYTES).removeprefix(_UTF8_MARK)
    suffix = source.suffix.lower()
    first = head.lstrip()[:1]
    if suffix in JSON_LINES or first in (b"{", b"["):
        return _tables(_text(source), _objects, payload, how)
    line = head.partition(b"\n")[0]
    if _HEXADECIMAL.fullmatch(line) or (how in ("hex", "base64") and suffix != ".csv"):
        return _tables(_text(source), _single_values, payload, how)
    names = line.decode("latin-1").casefold().replace('"', "").strip()
    delimiter = next((letter for letter in _DELIMITERS if payload.casefold() in names.split(letter)), None)
    if suffix == ".csv" or delimiter is not None:
        read = partial(_csv_rows, delimiter=delimiter or ",", layout=layout_hint(head))
        return _tables(_text(source, newline=""), read, payload, how)
    return None


def _text(source: Path, newline: str | None = None) -> TextIO:
    return open(source, encoding="utf-8-sig", errors="surrogateescape", newline=newline)


def _tables(file: TextIO, read: Any, payload: str, how: Unwrap) -> Iterator[pa.Table]:
    with file:
        rows = read(file, payload)
        start = 0
        position: str | None = None
        while (chunk := list(islice(rows, _CHUNK_ROWS))) or not start:
            if not start and chunk:
                position = next((name for name in _POSITIONS if name in chunk[0] and name != payload), None)
            try:
                yield _table(chunk, payload, start, how, position)
            except UnwrapError as error:
                raise UnwrapError(start + error.row, error.reason) from None
            start += max(len(chunk), 1)


def _utf8(lines: Iterable[str], n_heads: int = 0) -> Iterator[str]:
    """Check that lines read with `surrogateescape` are UTF-8; the first `n_heads` have no rows."""
    for number, line in enumerate(lines):
        if not line.isascii():
            try:
                line.encode()
            except UnicodeEncodeError:
                raise UnwrapError(max(number - n_heads, 0), f"line {number + 1} of the file is not UTF-8") from None
        yield line


# -- rows ------------------------------------------------------------------------------------------------------------


def _csv_rows(file: TextIO, payload: str, *, delimiter: str, layout: str) -> Iterator[dict[str, Any]]:
    csv.field_size_limit(2**31 - 1)
    rows = csv.DictReader(_utf8(file, n_heads=1), delimiter=delimiter)
    names = _canonical(rows.fieldnames or (), payload)
    if payload not in names:
        # Without rows, nothing is missing.
        for _ in rows:
            raise UnwrapError(0, f"no text in {payload!r}; the first line names no such column{layout}")
    rows.fieldnames = names
    return rows


def _objects(file: TextIO, payload: str) -> Iterator[dict[str, Any]]:
    for row, item in enumerate(_json_items(_utf8(file))):
        found = item
        if isinstance(found, list) and len(found) == _N_COLUMNS:
            found = dict(zip(("lsn", "xid", payload), found, strict=True))
        if not isinstance(found, dict):
            raise UnwrapError(row, f"not a JSON object{hint(json.dumps(item))}")
        if payload not in found:
            found = dict(zip(_canonical(list(found), payload), found.values(), strict=True))
        if payload not in found:
            raise UnwrapError(row, f"no text in {payload!r}{_without_key(found)}")
        yield found


def _json_items(lines: Iterator[str]) -> Iterator[Any]:
    """Yield the items of one array, or else the value in each line."""
    first = next((line for line in lines if line.strip()), "")
    if first.lstrip().startswith("["):
        whole = [first, *lines]
        try:
            items = load_json("".join(whole))
        except ValueError:
            items = None
        if isinstance(items, list) and all(isinstance(item, dict | list) for item in items):
            yield from items
            return
        lines = iter(whole)
    elif first:
        lines = chain([first], lines)
    yield from map(_parsed, enumerate(line for line in lines if line.strip()))


def _parsed(numbered: tuple[int, str]) -> Any:
    row, line = numbered
    try:
        return load_json(line)
    except ValueError:
        raise UnwrapError(row, f"not a JSON object{hint(line)}") from None


def _single_values(file: TextIO, payload: str) -> Iterator[dict[str, Any]]:
    for line in _utf8(file):
        value = line.strip().strip('"')
        if value:
            # COPY writes a backslash as two.
            yield {payload: value.removeprefix("\\") if value.startswith("\\\\") else value}


def _canonical(names: Sequence[str], payload: str) -> list[str]:
    """Write the names of our columns as they are expected, where case alone differs and one name fits."""
    wanted = {name.casefold(): name for name in (*_POSITIONS, "lsn", "xid", payload)}
    folded = [name.casefold() for name in names]
    return [
        wanted[fold] if fold in wanted and wanted[fold] not in names and folded.count(fold) == 1 else name
        for name, fold in zip(names, folded, strict=True)
    ]


def _without_key(line: dict[str, Any]) -> str:
    """Say what a line is that does not have the key of the payload, for the end of an error text."""
    if "action" in line or any(isinstance(value, dict | list) for value in line.values()):
        return hint(json.dumps(line))
    return "; the object has no such key"


# -- columns ---------------------------------------------------------------------------------------------------------


def _table(lines: Sequence[dict[str, Any]], payload: str, start: int, how: Unwrap, position: str | None) -> pa.Table:
    for row, line in enumerate(lines):
        if not isinstance(line.get(payload), str):
            raise UnwrapError(row, f"no text in {payload!r}")
    texts = [line[payload] for line in lines]
    if not all(map(str.isascii, texts)):
        # There may be half a surrogate pair, which JSON allows. A question mark is in neither form.
        texts = [text.encode("ascii", "replace").decode() for text in texts]
    # Frames are recognised in any case.
    found = unwrap(pa.array(texts, pa.large_string()), "auto" if how == "xlogdata" else how)
    rows = found.rows.to_pylist()
    counted = pc.add(found.rows, start)
    xids = [_whole_number(lines[row], "xid", row) if lines[row].get("xid") else None for row in rows]
    columns = {
        position or "seq": counted
        if position is None
        else pa.array([_whole_number(lines[row], position, row) for row in rows], pa.int64()),
        "lsn": pa.array([_lsn(row, lines[row].get("lsn")) for row in rows], pa.int64()),
        "xid": pa.array(xids, pa.int64()),
        payload: found.payloads,
    }
    return pa.table(columns, metadata=None if position is None else {OWN_POSITIONS: b""})


def _lsn(row: int, text: Any) -> int | None:
    try:
        lsn = lsn_from_text(text) if text else None
    except (TypeError, ValueError):
        raise UnwrapError(row, "'lsn' is not an LSN such as 16/B374D848") from None
    if (lsn or 0) > _MOST:
        raise UnwrapError(row, "'lsn' is above 7FFFFFFF/FFFFFFFF")
    return lsn


def _whole_number(line: dict[str, Any], name: str, row: int) -> int:
    match = _DIGITS.fullmatch(str(line.get(name)))
    if match is None or int(match[1]) > _MOST:
        raise UnwrapError(row, f"{name!r} is not a whole number below 2**63")
    return int(match[1])
