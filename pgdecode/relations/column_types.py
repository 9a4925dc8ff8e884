"""The types of the columns of a table: in a version, and in several versions together."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from pgdecode.relations.relation_version import RelationVersion
from pgdecode.types.pgtypes import FIRST_USER_OID, NAME_BY_OID
from pgdecode.types.type_changes import ColumnType

_INTEGERS = (pa.int16(), pa.int32(), pa.int64())
_FLOATS = (pa.float32(), pa.float64())


def common_type(types: Sequence[pa.DataType]) -> pa.DataType | None:
    """Find the type that represents all values of several types; None if only text does."""
    first, *others = dict.fromkeys(types)
    if not others:
        return first
    for ladder in (_INTEGERS, _FLOATS):
        if all(item in ladder for item in types):
            return max(types, key=ladder.index)
    if all(pa.types.is_decimal(item) for item in types):
        scale = max(item.scale for item in types)
        precision = scale + max(item.precision - item.scale for item in types)
        return pa.decimal128(precision, scale) if precision <= 38 else None
    return None


def column_types(version: RelationVersion) -> dict[str, ColumnType]:
    """Return the types of a version's columns. The Type message of a domain has the name of its base type."""
    messages = {item.type_id: item for item in version.types}
    found = {}
    for column in version.columns:
        name, is_user_defined = NAME_BY_OID.get(column.type_id), column.type_id >= FIRST_USER_OID
        message = messages.get(column.type_id) if is_user_defined else None
        if message is not None and message.namespace in ("", "pg_catalog"):
            name = message.name
        elif message is not None and message.name == "citext":
            name, is_user_defined = message.name, False
        found[column.name] = ColumnType(name, column.type_modifier, column.type_id, is_user_defined)
    return found
