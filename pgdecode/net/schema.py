"""The columns of net changes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from pgdecode.changes.committed_changes import TIMESTAMP
from pgdecode.protocol.errors import listed
from pgdecode.relations.column_history import last_version
from pgdecode.relations.schema_metadata import KEY, REPLICA_IDENTITY, described_in
from pgdecode.rows.own_names import OWN_NAMES

UNKNOWN = pa.field("_unknown", pa.list_(pa.string()))
ABOUT = (
    pa.field("_position", pa.int64()),
    pa.field("_commit_position", pa.int64()),
    pa.field("_commit_lsn", pa.int64()),
    pa.field("_commit_timestamp", TIMESTAMP),
)
_ADDED = ("_action", "_key_before", UNKNOWN.name)
# The columns that net changes add to those of the table.
NET_COLUMNS = frozenset({*_ADDED, *(item.name for item in ABOUT)})


def parts_of(net: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Divide net changes into the columns that they add and those of the table. Both may have the same names."""
    n_added = len(NET_COLUMNS)
    return net.select([*range(n_added)]), net.select([*range(n_added, net.num_columns)])


def without_truncate(net: pa.Table) -> tuple[bool, pa.Table]:
    """Return whether net changes begin with a truncate, and those after it."""
    is_truncated = net.num_rows > 0 and net.column(_ADDED.index("_action"))[0].as_py() == "truncate"
    return is_truncated, net.slice(int(is_truncated))


def key_of(schema: pa.Schema, key: Sequence[str] | None) -> tuple[str, ...]:
    """Find the columns that tell the rows of a table apart: the given ones, the replica identity, or all columns.

    Raises
    ------
    ValueError
        If the schema has no such column, or does not tell the replica identity.
    """
    columns = [item for item in schema if item.name not in OWN_NAMES]
    if key is not None:
        missing = [name for name in key if name not in {item.name for item in columns}]
        if not key or missing or len(set(key)) < len(key):
            raise ValueError(f"key must name different columns of the table: {listed(map(repr, missing or key))}")
        return tuple(key)
    if (schema.metadata or {}).get(REPLICA_IDENTITY) is None and not described_in(schema).versions:
        raise ValueError(
            "the columns do not say which of them are the replica identity (pg:key in the metadata of fields): pass key"
        )
    identity = (schema.metadata or {}).get(REPLICA_IDENTITY) or b""
    if not identity:
        identity = last_version(described_in(schema).versions).replica_identity.encode()
    found = tuple(item.name for item in columns if KEY in (item.metadata or {}))
    return found if found and identity != b"f" else tuple(item.name for item in columns)


def net_schema(schema: pa.Schema, key: Sequence[str] | None = None) -> pa.Schema:
    """Return the schema of `net_changes` of a typed table.

    Parameters
    ----------
    schema : pa.Schema
        Of the changes, as `ChangeDecoder.table` returns them.
    key : sequence of str, optional
        As in `net_changes`.

    Returns
    -------
    pa.Schema
        `_action`, `_key_before` (a struct of the columns of the key), `_unknown`, `_position`, `_commit_position`,
        `_commit_lsn`, `_commit_timestamp`, then the columns of the table. The columns of the key have the metadata
        `pg:key`.

    Raises
    ------
    ValueError
        If a column of the table has one of these names; if the key is not among the columns, or is not known.
    """
    return schema_with_key([item for item in schema if item.name not in OWN_NAMES], key_of(schema, key), schema)


def schema_with_key(columns: Iterable[pa.Field], key: Sequence[str], schema: pa.Schema) -> pa.Schema:
    """Return the schema of net changes with these columns and key. The other metadata are those of `schema`."""
    fields = []
    for item in columns:
        metadata = {name: value for name, value in (item.metadata or {}).items() if name != KEY}
        fields.append(item.with_metadata(metadata | ({KEY: b"true"} if item.name in key else {})))
    clashes = sorted({item.name for item in fields} & NET_COLUMNS)
    if clashes:
        raise ValueError(f"the table has columns with names that net changes add: {listed(map(repr, clashes))}")
    by_name = {item.name: item for item in fields}
    before = pa.struct([pa.field(name, by_name[name].type) for name in key])
    # The versions, as in the changes, so that a table to which net changes are applied can get their columns.
    versions = next((item.metadata for item in schema if item.name in ("_op", "_action")), None)
    about = [pa.field("_action", pa.string(), metadata=versions), pa.field("_key_before", before), UNKNOWN, *ABOUT]
    metadata = schema.metadata or {}
    kept = {name: metadata[name] for name in (REPLICA_IDENTITY,) if name in metadata}
    return pa.schema([*about, *fields], metadata=kept)
