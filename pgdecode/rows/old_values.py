"""The values that rows of a table have in columns that were added after them, as the server's catalog tells."""

from __future__ import annotations

import pyarrow as pa

from pgdecode.protocol.encoder import encode
from pgdecode.protocol.messages import Insert
from pgdecode.relations.column_types import common_type
from pgdecode.relations.relation_version import RelationVersion
from pgdecode.rows.row_decoder import decode_rows


def decoded_value(version: RelationVersion, name: str, text: str | None, kind: pa.DataType) -> pa.Scalar | None:
    """Decode a value in PostgreSQL's text form to a type; None if it is not certain what the value is in this type."""
    if text is None:
        return pa.scalar(None, kind)
    new = tuple(text.encode() if column.name == name else None for column in version.columns)
    formats = "".join("n" if value is None else "t" for value in new)
    payload = encode(Insert(relation_id=version.relation_id, new=new, new_formats=formats))
    row = decode_rows([payload], version, mode="PERMISSIVE", unrepresentable="error")
    values = row.column(name)
    if kind == pa.string() and values.type != kind:
        # The versions have no other type in common, so values are in PostgreSQL's text form.
        return pa.scalar(text, kind)
    if row.column("_error")[0].is_valid or common_type([values.type, kind]) != kind:
        return None
    return values.cast(kind)[0]
