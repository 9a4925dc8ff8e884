"""How a relation's columns are decoded: by the OIDs of their types, the stream's Type messages and the caller."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

import pyarrow as pa

from pgdecode.protocol.errors import MOST_SHOWN, shown
from pgdecode.protocol.messages import Column, Type
from pgdecode.protocol.options import UnrepresentableValues, check_option
from pgdecode.rows.type_overrides import Overrides
from pgdecode.types.pgtypes import FIRST_USER_OID, NAME_BY_OID, OPAQUE, Decoding, as_text, clamped, is_partial


class Described(Protocol):
    """What has a relation's columns: a Relation message, or a version of one in a catalog."""

    @property
    def relation_id(self) -> int:
        """OID of the table."""

    @property
    def name(self) -> str:
        """Name of the table."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns in wire order."""


class _Columns(NamedTuple):
    """What of a relation its rows depend on; the relation itself may be the caller's, and change."""

    relation_id: int
    name: str
    columns: tuple[Column, ...]


META_COLUMNS = ("_op", "_xid", "_old_type", "_old", "_unchanged", "_error")


def type_name(type_id: int, type_messages: Mapping[int, Type]) -> str | None:
    """Name of a type, such as "int4", or None where neither PostgreSQL nor the stream gives one."""
    if type_id < FIRST_USER_OID:
        return NAME_BY_OID.get(type_id)
    message = type_messages.get(type_id)
    return None if message is None else message.name


def decodings(
    relation: Described,
    types: Mapping[str | int, str] | None = None,
    type_messages: Iterable[Type] = (),
    unrepresentable: UnrepresentableValues = "error",
    columns: Mapping[str, str] | None = None,
) -> list[Decoding]:
    """How each column of a relation is decoded; a type that nobody describes is text.

    Raises
    ------
    ValueError
        If `types` or `columns` names a type that there is none of, or asks for a conversion that there is none of; if
        `columns` names a column that the relation has not; if `unrepresentable` is none of `UnrepresentableValues`.
    """
    check_option("unrepresentable", unrepresentable, UnrepresentableValues)
    overrides = Overrides(types, columns)
    known = {message.type_id: message for message in type_messages}
    unknown = set(overrides.columns) - {column.name for column in relation.columns}
    if unknown:
        raise ValueError(f"columns names {sorted(unknown)}, which relation {relation.name!r} has not")
    found = [overrides.decoding(column, known.get(column.type_id)) or OPAQUE for column in relation.columns]
    return [_holding(decoding, unrepresentable) for decoding in found]


def _holding(decoding: Decoding, unrepresentable: UnrepresentableValues) -> Decoding:
    """Add to a decoding what becomes of values that its Arrow type has not."""
    if unrepresentable == "text" and is_partial(decoding):
        return as_text(decoding)
    return clamped(decoding) if unrepresentable == "clamp" else decoding


def row_schema(
    relation: Described,
    types: Mapping[str | int, str] | None = None,
    type_messages: Iterable[Type] = (),
    unrepresentable: UnrepresentableValues = "error",
    columns: Mapping[str, str] | None = None,
) -> pa.Schema:
    """Arrow schema of `decode_rows`: the columns about the row, then one per table column, its type in the metadata.

    Parameters are those of `decode_rows`. `pg:type` is the source type's name or OID, `pg:typmod` its modifier,
    whatever `types` and `columns` make of it; `pg:form` is "text" where the column is a string only because of
    `unrepresentable="text"`.

    Raises
    ------
    ValueError
        If the relation repeats a column name, or has one that a column about the row bears; as `decodings` does.
    """
    return described(relation, types, type_messages, unrepresentable, columns)[1]


def described(
    relation: Described,
    types: Mapping[str | int, str] | None = None,
    type_messages: Iterable[Type] = (),
    unrepresentable: UnrepresentableValues = "error",
    columns: Mapping[str, str] | None = None,
) -> tuple[list[Decoding], pa.Schema]:
    """Find `decodings` and `row_schema` at once; those of the last relations without `types` or `columns` are kept.

    They take longer than the rows of a small batch, and are the same for all batches of a relation.
    """
    known = tuple(type_messages)
    if not types and not columns:
        try:
            return _kept(_Columns(relation.relation_id, relation.name, tuple(relation.columns)), known, unrepresentable)
        except TypeError:
            # Columns of the caller's own that cannot be hashed.
            pass
    return _described(relation, types, known, unrepresentable, columns)


@functools.lru_cache(maxsize=64)
def _kept(
    relation: _Columns, type_messages: tuple[Type, ...], unrepresentable: UnrepresentableValues
) -> tuple[list[Decoding], pa.Schema]:
    return _described(relation, None, type_messages, unrepresentable, None)


def _described(
    relation: Described,
    types: Mapping[str | int, str] | None,
    type_messages: Iterable[Type],
    unrepresentable: UnrepresentableValues,
    columns: Mapping[str, str] | None,
) -> tuple[list[Decoding], pa.Schema]:
    names = [column.name for column in relation.columns]
    taken = set(names) & set(META_COLUMNS)
    if taken or len(set(names)) != len(names):
        some = ", ".join(map(shown, names[:MOST_SHOWN]))
        raise ValueError(f"relation {relation.relation_id} has columns that cannot stand side by side: [{some}]")
    known = {message.type_id: message for message in type_messages}
    fields = []
    usual = chosen = decodings(relation, types, known.values(), unrepresentable, columns)
    if unrepresentable == "text":
        usual = decodings(relation, types, known.values(), columns=columns)
    for column, plain, decoding in zip(relation.columns, usual, chosen, strict=True):
        source_type = type_name(column.type_id, known) or str(column.type_id)
        metadata = {"pg:type": source_type, "pg:typmod": str(column.type_modifier)}
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
    return chosen, pa.schema(meta + fields)
