r"""Formats envelope rows as text: JSON objects for `cat` and JSON lines, flat columns for CSV.

LSNs are in PostgreSQL's form (16/B374D848). Timestamps are in ISO 8601 with Z; outside the years 1 to 9999 they are
integer microseconds since 1970. Binary values are \x and hexadecimal digits. In a tuple, values in text format that are
UTF-8 are strings, null and unchanged values are null, and all others are binary.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode.arrow.json_values import bytes_to_text, cut, each, encode, flat, json_values
from pgdecode.envelope.schema import envelope_schema
from pgdecode.protocol.lsn import lsn_to_text
from pgdecode.protocol.messages import ENVELOPE, filled_by

_TUPLES = ("old", "new")
_LSNS = ("lsn", "end_lsn")


def fields_to_decode(fields: Iterable[str] | None = None) -> tuple[str, ...]:
    """List the envelope columns that are needed to write `fields`. Tuples need the formats of their values.

    Parameters
    ----------
    fields : iterable of str, optional
        The columns to write; by default the fields of each message.
    """
    wanted = envelope_schema(fields).names
    needed = [f"{name}_formats" for name in _TUPLES if name in wanted]
    return tuple(dict.fromkeys((*wanted, *needed)))


def json_lines(batch: pa.RecordBatch, *, keep: Sequence[str] = (), fields: Sequence[str] | None = None) -> list[str]:
    """Write each row as one JSON object.

    Parameters
    ----------
    batch : pa.RecordBatch
        `keep` columns of any type, and the envelope columns of `fields_to_decode(fields)`. Without the formats of a
        tuple, all values in UTF-8 are treated as text.
    keep : sequence of str
        Columns that come first in each object.
    fields : sequence of str, optional
        Envelope columns of each object, including null ones. By default an object has the fields of its message that
        are not null. Instead of formats it then has the ordinals of unchanged columns, if any, as `unchanged` and
        `old_unchanged`.

    Returns
    -------
    list of str
        One per row, without line ends.
    """
    if fields is not None:
        names = (*keep, *fields)
        columns = [_values(batch, name) for name in names]
        return [encode(dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]
    kept = [_values(batch, name) for name in keep]
    objects = [dict(zip(keep, row, strict=True)) for row in zip(*kept, strict=True)] or [{} for _ in range(len(batch))]
    kinds = batch.column("kind")
    rows_of: dict[str | None, list[dict[str, Any]]] = {}
    for row, kind in zip(objects, kinds.to_pylist(), strict=True):
        rows_of.setdefault(kind, []).append(row)
    for kind, rows in rows_of.items():
        own = [name for name in _own_columns(kind) if name in batch.schema.names]
        part = batch.select(own).filter(kinds.is_null() if kind is None else pc.equal(kinds, kind))
        _fill(rows, part)
    return [encode(row) for row in objects]


def flat_columns(
    batch: pa.RecordBatch, *, keep: Sequence[str] = (), fields: Sequence[str] | None = None
) -> pa.RecordBatch:
    """Convert each column to numbers, booleans or text. Nested columns become JSON, binary becomes hexadecimal digits.

    Parameters
    ----------
    batch, keep
        As in `json_lines`.
    fields : sequence of str, optional
        Envelope columns of the result, after the `keep` columns; by default the whole envelope.
    """
    names = (*keep, *envelope_schema(fields).names)
    own = (*_TUPLES, *_LSNS)
    columns = [flat(batch.column(name), _values(batch, name) if name in own else None) for name in names]
    return pa.RecordBatch.from_arrays(columns, names=list(names))


@functools.cache
def _own_columns(kind: str | None) -> tuple[str, ...]:
    """List the envelope columns of messages of a kind, in order. Rows without a kind have only `error`."""
    if kind is None:
        return ("error",)
    filled = (column.name for column in ENVELOPE if any(message.kind == kind for message, _ in filled_by(column.name)))
    return ("kind", *filled)


def _fill(objects: list[dict[str, Any]], part: pa.RecordBatch) -> None:
    """Add the values of messages of one kind to their objects, without nulls."""
    for name in part.schema.names:
        if name.endswith("_formats"):
            label = "unchanged" if name == "new_formats" else "old_unchanged"
            for own, formats in zip(objects, part.column(name).to_pylist(), strict=True):
                if formats is not None and "u" in formats:
                    own[label] = [ordinal for ordinal, letter in enumerate(formats) if letter == "u"]
            continue
        for own, value in zip(objects, _values(part, name), strict=True):
            if value is not None:
                own[name] = value


def _values(batch: pa.RecordBatch, name: str) -> list[Any]:
    """Convert a column to JSON values."""
    array = batch.column(name)
    if name in _TUPLES:
        known = f"{name}_formats" in batch.schema.names
        return _tuples(array, batch.column(f"{name}_formats") if known else None)
    if name in _LSNS:
        return each(lsn_to_text, array)
    return json_values(array)


def _tuples(tuples: pa.Array, formats: pa.Array | None) -> list[list[str | None] | None]:
    """Convert old or new tuples to lists of strings."""
    letters = "" if formats is None else "".join(row for row in formats.to_pylist() if row is not None)
    return cut(_cells(tuples.flatten(), letters), tuples.value_lengths().to_pylist())


def _cells(values: pa.Array, letters: str) -> list[str | None]:
    """Convert tuple values to strings. `letters` has the format of each value, if known."""
    if "b" not in letters:
        # Usually all values are text in UTF-8, so one cast converts them.
        with contextlib.suppress(pa.ArrowInvalid):
            texts: list[str | None] = values.cast(pa.string()).to_pylist()
            return texts
    return [
        None if value is None else _cell_to_text(value, letter)
        for value, letter in zip(values.to_pylist(), letters or repeat("t"), strict=bool(letters))
    ]


def _cell_to_text(value: bytes, letter: str) -> str:
    if letter == "t":
        with contextlib.suppress(UnicodeDecodeError):
            return value.decode()
    return bytes_to_text(value)


def printable(text: str) -> str:
    """Escape characters that are not printable, such as line breaks, terminal controls and surrogates."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
