"""Formats changes and tables' rows as text: JSON objects for `cat` and JSON lines, flat columns for CSV.

`json_text` describes the form of values. The commit LSN is in PostgreSQL's form (16/B374D848).
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode.arrow.json_text import by_value, flat, json_text, objects, quote, sparse_objects, with_values
from pgdecode.protocol.lsn import lsn_to_text

# The LSN columns of changes and of tables. A table with a column of the second name is refused.
_LSN_OF_CHANGE, _LSN_OF_ROW = "commit_lsn", "_commit_lsn"


def change_lines(batch: pa.RecordBatch) -> pa.Array:
    """Write each change as one JSON object, without null fields and without an empty `unchanged`.

    `old` and `new` map column names to PostgreSQL's text form. In them, null is SQL NULL.
    """
    batch = with_values(batch)
    texts = _json_texts(batch, _LSN_OF_CHANGE)
    if "unchanged" in batch.schema.names:
        place = batch.schema.names.index("unchanged")
        is_empty = pc.equal(pc.list_value_length(batch["unchanged"]), 0)
        texts[place] = pc.if_else(is_empty, pa.scalar(None, pa.string()), texts[place])
    return sparse_objects(batch.schema.names, texts, len(batch))


def table_lines(batch: pa.RecordBatch) -> pa.Array:
    """Write each row of a table's changes as one JSON object of all columns."""
    return objects(batch.schema.names, _json_texts(batch, _LSN_OF_ROW), len(batch))


def flat_changes(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert each column of changes to numbers, booleans or text. Maps and lists become JSON."""
    return _flat(batch, _LSN_OF_CHANGE)


def flat_table(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert each column of a table's changes to numbers, booleans or text."""
    return _flat(batch, _LSN_OF_ROW)


def _json_texts(batch: pa.RecordBatch, lsn: str) -> list[pa.Array]:
    return [
        quote(by_value(lsn_to_text, column)) if name == lsn else json_text(column)
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]


def _flat(batch: pa.RecordBatch, lsn: str) -> pa.RecordBatch:
    names = batch.schema.names
    columns = [
        by_value(lsn_to_text, column) if name == lsn else flat(column)
        for name, column in zip(names, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=names)
