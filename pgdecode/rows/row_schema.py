"""Finds the decodings and the Arrow schema of a relation's columns."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

import pyarrow as pa

from pgdecode.protocol.errors import MOST_SHOWN, shown
from pgdecode.protocol.messages import Column, Type
from pgdecode.protocol.options import UnrepresentableValues, check_option
from pgdecode.relations.relation_facts import RelationFacts
from pgdecode.relations.table_names import name_parts
from pgdecode.rows.type_overrides import Overrides
from pgdecode.types.pgtypes import NAME_BY_OID, OPAQUE, Decoding, as_text, clamped, has_record, is_partial
from pgdecode.types.type_parser import without_underscore
from pgdecode.types.user_types import UserType


class RelationLike(Protocol):
    """A Relation message, or a version of a relation in a catalog."""

    @property
    def relation_id(self) -> int:
        """OID of the table."""

    @property
    def name(self) -> str:
        """Name of the table."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns in wire order."""


def facts_of(relation: RelationLike) -> RelationFacts | None:
    """Return what the catalog of the server tells of a relation."""
    facts: RelationFacts | None = getattr(relation, "facts", None)
    return facts


class _CacheKey(NamedTuple):
    """The fields of a relation that its schema depends on. They are copied, because a caller's relation may change."""

    relation_id: int
    name: str
    columns: tuple[Column, ...]
    facts: RelationFacts | None


META_COLUMNS = ("_op", "_xid", "_old_type", "_old", "_unchanged", "_error")


def type_name(type_id: int, type_messages: Mapping[int, Type]) -> str | None:
    """Return the name of a type, such as "int4"; None if it is not built in and the stream does not describe it."""
    if type_id in NAME_BY_OID:
        return NAME_BY_OID[type_id]
    message = type_messages.get(type_id)
    return None if message is None else message.name


def sql_type_name(type_id: int, type_messages: Mapping[int, Type], user_types: Mapping[int, UserType]) -> str | None:
    """Return the name of a type as SQL has it, such as "mood[]"; None if it is not built in and nothing describes it.

    A Type message has the base type of a domain, and "_mood" for the array. What the server's catalog tells is certain.
    """
    described = user_types.get(type_id)
    if type_id not in NAME_BY_OID and described is not None:
        return _without_schema(described.key, type_messages.get(type_id))
    name = type_name(type_id, type_messages)
    return None if name is None else without_underscore(name)


def _without_schema(key: str, message: Type | None) -> str:
    """Leave out the schema of a type. Where its name is not in quotes, the message tells where it ends."""
    name = key.removesuffix("[]")
    brackets = key[len(name) :]
    if message is not None and name.startswith(f"{message.namespace}."):
        return name[len(message.namespace) + 1 :] + brackets
    parts = name_parts(name)
    return (name.rpartition(".")[2] if parts is None else parts[1]) + brackets


def decodings(
    relation: RelationLike,
    types: Mapping[str | int, str] | None = None,
    type_messages: Iterable[Type] = (),
    unrepresentable: UnrepresentableValues = "error",
    columns: Mapping[str, str] | None = None,
) -> list[Decoding]:
    """Find the decoding of each column of a relation. Values of an unknown type are text.

    Raises
    ------
    ValueError
        If `types` or `columns` has a type that does not exist, or a conversion that is not possible; if `columns` names
        a column that the relation does not have; if `unrepresentable` is not one of `UnrepresentableValues`.
    """
    check_option("unrepresentable", unrepresentable, UnrepresentableValues)
    overrides = Overrides(types, columns)
    known = {message.type_id: message for message in type_messages}
    unknown = set(overrides.columns) - {column.name for column in relation.columns}
    if unknown:
        raise ValueError(f"columns names {sorted(unknown)}, but relation {relation.name!r} has no such column")
    chosen = [overrides.decoding(column, known.get(column.type_id)) or OPAQUE for column in relation.columns]
    return [_with_unrepresentable(decoding, unrepresentable) for decoding in chosen]


def _with_unrepresentable(decoding: Decoding, unrepresentable: UnrepresentableValues) -> Decoding:
    """Apply the option `unrepresentable` to a decoding."""
    if unrepresentable == "text" and is_partial(decoding):
        return as_text(decoding)
    return clamped(decoding) if unrepresentable == "clamp" else decoding


def row_schema(
    relation: RelationLike,
    types: Mapping[str | int, str] | None = None,
    type_messages: Iterable[Type] = (),
    unrepresentable: UnrepresentableValues = "error",
    columns: Mapping[str, str] | None = None,
) -> pa.Schema:
    """Return the Arrow schema of `decode_rows`: the metadata columns, then the columns of the table.

    Parameters are those of `decode_rows`. The metadata of each field describe the source type, also if `types` or
    `columns` convert it: `pg:type` is its name or OID, `pg:typmod` its modifier. `pg:form` is "text" if the column is a
    string only because of `unrepresentable="text"`, or has composites of the type "record", which are text. If the
    relation is a version with facts of the catalog, `pg:attnum` is the number of the column, and `pg:primary_key` is
    "true" for the columns of the primary key.

    Raises
    ------
    ValueError
        If two columns have the same name, or one has the name of a metadata column; and for the reasons of `decodings`.

    Examples
    --------
    >>> relation = pgdecode.decode(bytes.fromhex("5200004001730074006400010169640000000017ffffffff"))
    >>> pgdecode.row_schema(relation).field("id").type
    DataType(int32)
    """
    return resolve_columns(relation, types, type_messages, unrepresentable, columns)[1]


def resolve_columns(
    relation: RelationLike,
    types: Mapping[str | int, str] | None = None,
    type_messages: Iterable[Type] = (),
    unrepresentable: UnrepresentableValues = "error",
    columns: Mapping[str, str] | None = None,
) -> tuple[list[Decoding], pa.Schema]:
    """Find `decodings` and `row_schema` together. Results without `types` and `columns` are cached.

    Without the cache, this takes longer than decoding a small batch.
    """
    known = tuple(type_messages)
    if not types and not columns:
        try:
            return _cached(
                _CacheKey(relation.relation_id, relation.name, tuple(relation.columns), facts_of(relation)),
                known,
                unrepresentable,
            )
        except TypeError:
            # The caller's columns cannot be hashed.
            pass
    return _resolve_columns(relation, types, known, unrepresentable, columns)


@functools.lru_cache(maxsize=64)
def _cached(
    relation: _CacheKey, type_messages: tuple[Type, ...], unrepresentable: UnrepresentableValues
) -> tuple[list[Decoding], pa.Schema]:
    return _resolve_columns(relation, None, type_messages, unrepresentable, None)


def _resolve_columns(
    relation: RelationLike,
    types: Mapping[str | int, str] | None,
    type_messages: Iterable[Type],
    unrepresentable: UnrepresentableValues,
    columns: Mapping[str, str] | None,
) -> tuple[list[Decoding], pa.Schema]:
    names = [column.name for column in relation.columns]
    twice = {name for name in names if names.count(name) > 1} if len(set(names)) != len(names) else set()
    taken = sorted(twice | set(names) & set(META_COLUMNS))
    if taken:
        some = ", ".join(map(shown, taken[:MOST_SHOWN]))
        raise ValueError(
            f"relation {relation.relation_id} has columns that cannot stand side by side: {some} "
            f"{'is there twice' if twice else 'is also a column that pgdecode adds'}"
        )
    known = {message.type_id: message for message in type_messages}
    fields: list[pa.Field] = []
    facts = facts_of(relation)
    usual = chosen = decodings(relation, types, known.values(), unrepresentable, columns)
    if unrepresentable == "text":
        usual = decodings(relation, types, known.values(), columns=columns)
    for column, plain, decoding in zip(relation.columns, usual, chosen, strict=True):
        source_type = type_name(column.type_id, known) or str(column.type_id)
        metadata = {"pg:type": source_type, "pg:typmod": str(column.type_modifier)}
        if decoding.arrow != plain.arrow or has_record(decoding):
            metadata["pg:form"] = "text"
        if facts is not None:
            attnum = facts.attnums[len(fields)]
            metadata |= {"pg:attnum": str(attnum)} if attnum else {}
            metadata |= {"pg:primary_key": "true"} if attnum in facts.primary_key else {}
        fields.append(pa.field(column.name, decoding.arrow, metadata=metadata))
    meta = [
        pa.field("_op", pa.string()),
        pa.field("_xid", pa.int64()),
        pa.field("_old_type", pa.string()),
        pa.field("_old", pa.struct([pa.field(field.name, field.type) for field in fields])),
        pa.field("_unchanged", pa.list_(pa.string())),
        pa.field("_error", pa.string()),
    ]
    return chosen, pa.schema(meta + fields)
