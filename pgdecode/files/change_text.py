"""Formats changes and tables' rows as text: JSON objects for `cat` and JSON lines, flat columns for CSV.

`json_values` describes the form of values. The commit LSN is in PostgreSQL's form (16/B374D848).
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from pgdecode.arrow.json_values import each, encode, flat, json_values
from pgdecode.protocol.lsn import lsn_to_text

# The LSN columns of changes and of tables. A table with a column of the second name is refused.
_LSN_OF_CHANGE, _LSN_OF_ROW = "commit_lsn", "_commit_lsn"


def change_lines(batch: pa.RecordBatch) -> list[str]:
    """Write each change as one JSON object, without null fields and without an empty `unchanged`.

    `old` and `new` map column names to PostgreSQL's text form. In them, null is SQL NULL.
    """
    return [
        encode({name: value for name, value in row.items() if value is not None and value != []})
        for row in _rows(batch, _LSN_OF_CHANGE)
    ]


def table_lines(batch: pa.RecordBatch) -> list[str]:
    """Write each row of a table's changes as one JSON object of all columns."""
    return [encode(row) for row in _rows(batch, _LSN_OF_ROW)]


def flat_changes(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert each column of changes to numbers, booleans or text. Maps and lists become JSON."""
    return _flat(batch, _LSN_OF_CHANGE)


def flat_table(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert each column of a table's changes to numbers, booleans or text."""
    return _flat(batch, _LSN_OF_ROW)


def _rows(batch: pa.RecordBatch, lsn: str) -> list[dict[str, Any]]:
    names = batch.schema.names
    columns = [
        each(lsn_to_text, column) if name == lsn else json_values(column)
        for name, column in zip(names, batch.columns, strict=True)
    ]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _flat(batch: pa.RecordBatch, lsn: str) -> pa.RecordBatch:
    names = batch.schema.names
    columns = [
        flat(column, each(lsn_to_text, column) if name == lsn else None)
        for name, column in zip(names, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=names)
