"""How a relation's columns are decoded: by the OIDs of their types, the stream's Type messages and the caller."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from pgdecode.messages import Relation, Type
from pgdecode.pgtypes import FIRST_USER_OID, NAME_BY_OID, OPAQUE, Decoding, as_text, clamped, is_partial, named

META_COLUMNS = ("_op", "_xid", "_old_type", "_old", "_unchanged", "_error")
UNREPRESENTABLE = ("error", "null", "clamp", "text")


def type_name(type_id: int, type_messages: Mapping[int, Type]) -> str | None:
    """Name of a type, such as "int4", or None where neither PostgreSQL nor the stream gives one."""
    if type_id < FIRST_USER_OID:
        return NAME_BY_OID.get(type_id)
    message = type_messages.get(type_id)
    return None if message is None else message.name


def decodings(
    relation: Relation,
    types: Mapping[str | int, str] | None = None,
    type_messages: Iterable[Type] = (),
    unrepresentable: str = "error",
) -> list[Decoding]:
    """How each column of a relation is decoded; a type that nobody describes is text.

    Raises
    ------
    ValueError
        If `types` names a PostgreSQL type that there is none of, or `unrepresentable` is none of `UNREPRESENTABLE`.
    """
    if unrepresentable not in UNREPRESENTABLE:
        raise ValueError(f"unrepresentable is one of {UNREPRESENTABLE}, not {unrepresentable!r}")
    known = {message.type_id: message for message in type_messages}
    said = dict(types or {})
    found = []
    for column in relation.columns:
        message = known.get(column.type_id)
        override = said.get(column.type_id)
        if override is None and message is not None:
            override = said.get(f"{message.namespace}.{message.name}")
        name = override or type_name(column.type_id, known)
        decoding = named(name, column.type_modifier) if name else None
        if decoding is None and override:
            raise ValueError(f"types names {override!r}, which is no type that pgdecode knows")
        found.append(_holding(decoding or OPAQUE, unrepresentable))
    return found


def _holding(decoding: Decoding, unrepresentable: str) -> Decoding:
    """Add to a decoding what becomes of values that its Arrow type has not."""
    if unrepresentable == "text" and is_partial(decoding):
        return as_text(decoding)
    return clamped(decoding) if unrepresentable == "clamp" else decoding


def row_schema(
    relation: Relation,
    types: Mapping[str | int, str] | None = None,
    type_messages: Iterable[Type] = (),
    unrepresentable: str = "error",
) -> pa.Schema:
    """Arrow schema of `decode_rows`: the columns about the row, then one per table column, its type in the metadata.

    `pg:type` is the type's name or OID, `pg:typmod` its modifier; `pg:form` is "text" where the column is a string only
    because of `unrepresentable="text"`.

    Raises
    ------
    ValueError
        If the relation repeats a column name, or has one that a column about the row bears; as `decodings` does.
    """
    names = [column.name for column in relation.columns]
    taken = set(names) & set(META_COLUMNS)
    if taken or len(set(names)) != len(names):
        raise ValueError(f"relation {relation.relation_id} has columns that cannot stand side by side: {names}")
    known = {message.type_id: message for message in type_messages}
    fields = []
    usual = decodings(relation, types, known.values())
    chosen = decodings(relation, types, known.values(), unrepresentable)
    for column, plain, decoding in zip(relation.columns, usual, chosen, strict=True):
        described = type_name(column.type_id, known) or str(column.type_id)
        metadata = {"pg:type": described, "pg:typmod": str(column.type_modifier)}
        if decoding.arrow != plain.arrow:
            metadata["pg:form"] = "text"
        fields.append(pa.field(column.name, decoding.arrow, metadata=metadata))
    meta = [
        pa.field("_op", pa.string()),
        pa.field("_xid", pa.int64()),
        pa.field("_old_type", pa.string()),
        pa.field("_old", pa.struct([pa.field(field.name, field.type) for field in fields])),
        pa.field("_unchanged", pa.list_(pa.string())),
        pa.field("_error", pa.string()),
    ]
    return pa.schema(meta + fields)


def text_decodings(
    relation: Relation, types: Mapping[str | int, str] | None = None, type_messages: Iterable[Type] = ()
) -> list[Decoding]:
    """How each column of a relation is decoded to PostgreSQL's text form."""
    return [as_text(item) for item in decodings(relation, types, type_messages)]
