"""The versions and the key of a relation in the metadata of an Arrow schema, so that they stay with its rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from pgdecode.relations.column_history import NO_RENAMES, Renames
from pgdecode.relations.relation_json import version_from_json, version_to_json
from pgdecode.relations.relation_version import RelationVersion, used_from

KEY = b"pg:key"
REPLICA_IDENTITY = b"pg:replica_identity"
# In the metadata of the field `_op`, or `_action` of net changes, because Spark keeps metadata of fields only.
VERSIONS = b"pg:versions"


class Described(NamedTuple):
    """What a schema tells of its relation: its versions, in the order in which rows use them, and stated renames."""

    versions: tuple[RelationVersion, ...] = ()
    renames: Renames = NO_RENAMES


def key_columns(version: RelationVersion) -> tuple[str, ...]:
    """Return the names of the columns of the replica identity; with `FULL`, of all columns."""
    return tuple(item.name for item in version.columns if item.flags & 1 or version.replica_identity == "f")


def versions_metadata(versions: Iterable[RelationVersion], renames: Renames = NO_RENAMES) -> dict[bytes, bytes]:
    """Describe the versions of a relation in the metadata of a field. Equal versions in a row are one."""
    found: list[dict[str, Any]] = []
    last: RelationVersion | None = None
    for version in sorted(versions, key=used_from):
        if last is None or not last.is_like(version):
            found.append(version_to_json(version))
        last = version
    stated = {str(table): [*items] for table, items in renames.items()}
    return {VERSIONS: json.dumps({"versions": found, **({"renames": stated} if stated else {})}).encode()}


def described_in(schema: pa.Schema) -> Described:
    """Return what the schema of a typed table, or of net changes, tells of its relation.

    Raises
    ------
    ValueError
        If the metadata are not those of `versions_metadata`.
    """
    at = max(schema.get_field_index(name) for name in ("_op", "_action"))
    metadata: Mapping[bytes, bytes] = (schema.field(at).metadata if at >= 0 else None) or {}
    if VERSIONS not in metadata:
        return Described()
    plain = json.loads(metadata[VERSIONS])
    renames: dict[str | int, Sequence[tuple[str, str, int]]] = {}
    for table, items in plain.get("renames", {}).items():
        renames[int(table) if table.isdecimal() else table] = [(old, new, position) for old, new, position in items]
    return Described(tuple(map(version_from_json, plain["versions"])), renames)
