r"""Formats envelope rows as text: JSON objects for `cat` and JSON lines, flat columns for CSV.

LSNs are in PostgreSQL's form (16/B374D848). `json_text` describes the form of timestamps. Binary values are
\x and hexadecimal digits. In a tuple, values in text format that are UTF-8 are strings, null and unchanged values are
null, and all others are binary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from itertools import repeat

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode.arrow.json_text import (
    by_value,
    bytes_to_text,
    encode,
    flat,
    json_text,
    lists,
    objects,
    quote,
    sparse_objects,
    with_values,
)
from pgdecode.envelope.schema import envelope_schema
from pgdecode.protocol.lsn import lsn_to_text

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


def json_lines(batch: pa.RecordBatch, *, keep: Sequence[str] = (), fields: Sequence[str] | None = None) -> pa.Array:
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
    pa.Array of strings
        One per row, without line ends.
    """
    if fields is not None:
        names = (*keep, *fields)
        return objects(names, [_json_text(batch, name) for name in names], len(batch))
    filled = with_values(batch).schema.names
    own = {_label(name): name for name in envelope_schema().names if name in filled}
    texts = [pc.fill_null(_json_text(batch, name), "null") for name in keep]
    for label, name in own.items():
        is_formats = label != name
        texts.append(by_value(_unchanged, batch.column(name)) if is_formats else _json_text(batch, name))
    return sparse_objects([*keep, *own], texts, len(batch))


def _label(name: str) -> str:
    """Return the name of a column in an object. Instead of formats, there are ordinals of unchanged columns."""
    return {"new_formats": "unchanged", "old_formats": "old_unchanged"}.get(name, name)


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
    return pa.RecordBatch.from_arrays([_flat(batch, name) for name in names], names=list(names))


def _flat(batch: pa.RecordBatch, name: str) -> pa.Array:
    if name in _LSNS:
        return by_value(lsn_to_text, batch.column(name))
    return _tuples(batch, name) if name in _TUPLES else flat(batch.column(name))


def _json_text(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Write a column as JSON."""
    if name in _LSNS:
        return quote(by_value(lsn_to_text, batch.column(name)))
    return _tuples(batch, name) if name in _TUPLES else json_text(batch.column(name))


def _unchanged(formats: str) -> str | None:
    """Write the ordinals of unchanged columns as JSON; None if there are none."""
    found = [ordinal for ordinal, letter in enumerate(formats) if letter == "u"]
    return encode(found) if found else None


def _tuples(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Write old or new tuples as JSON lists of strings."""
    tuples, known = batch.column(name), f"{name}_formats"
    letters = batch.column(known) if known in batch.schema.names else pa.array([], pa.string())
    return lists(tuples.value_lengths(), quote(_cells(tuples.flatten(), letters)))


def _cells(values: pa.Array, formats: pa.Array) -> pa.Array:
    """Convert tuple values to strings. `formats` has the formats of the values of each tuple, if known."""
    if not pc.any(pc.match_substring(formats, "b")).as_py():
        # Usually all values are text in UTF-8, so one cast converts them.
        with contextlib.suppress(pa.ArrowInvalid):
            return values.cast(pa.string())
    letters = "".join(row for row in formats.to_pylist() if row is not None)
    found = zip(values.to_pylist(), letters or repeat("t"), strict=bool(letters))
    return pa.array([None if value is None else _cell_to_text(value, letter) for value, letter in found], pa.string())


def _cell_to_text(value: bytes, letter: str) -> str:
    if letter == "t":
        with contextlib.suppress(UnicodeDecodeError):
            return value.decode()
    return bytes_to_text(value)


def printable(text: str) -> str:
    """Escape characters that are not printable, such as line breaks, terminal controls and surrogates."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
