"""The envelope's Arrow schema, derived from the message table."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from pgdecode.protocol.errors import unknown_names
from pgdecode.protocol.messages import ENVELOPE, Column
from pgdecode.protocol.wire import Form, wire_fields

_COLUMN_TYPES = {Form.FLAGS: pa.int16(), Form.NAME: pa.string(), Form.UINT32: pa.int64(), Form.INT32: pa.int32()}

COLUMN_TYPE = pa.struct([(item.name, _COLUMN_TYPES[item.wire.form]) for item in wire_fields(Column)])

_TYPES = {
    "string": pa.string(),
    "binary": pa.binary(),
    "bool": pa.bool_(),
    "int16": pa.int16(),
    "int64": pa.int64(),
    "timestamp[us, UTC]": pa.timestamp("us", "UTC"),
    "list<int64>": pa.list_(pa.int64()),
    "list<binary>": pa.list_(pa.binary()),
    "list<column>": pa.list_(COLUMN_TYPE),
}

ENVELOPE_TYPES = {column.name: _TYPES[column.type] for column in ENVELOPE}

_FIELDS = {name: pa.field(name, type) for name, type in ENVELOPE_TYPES.items()}
_DEFAULT = tuple(column.name for column in ENVELOPE if column.default)


def envelope_schema(fields: Iterable[str] | None = None) -> pa.Schema:
    """Arrow schema of the batches that `decode_messages` returns.

    Parameters
    ----------
    fields : iterable of str, optional
        Envelope columns, in this order; by default all but `xid_basis`.

    Returns
    -------
    pa.Schema

    Raises
    ------
    TypeError
        If `fields` is one string.
    ValueError
        If `fields` is empty, repeats a name or has a name that is not an envelope column.
    """
    if isinstance(fields, str):
        raise TypeError(f"fields is a sequence of column names, not the string {fields!r}")
    names = _DEFAULT if fields is None else tuple(fields)
    unknown = [name for name in names if name not in _FIELDS]
    if unknown:
        raise ValueError(f"no such envelope column: {unknown_names(unknown, [*_FIELDS])}")
    if not names or len(set(names)) != len(names):
        raise ValueError("fields names each column once, and at least one")
    return pa.schema([_FIELDS[name] for name in names])
