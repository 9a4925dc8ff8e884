"""The types that the columns of a table have in a version."""

from __future__ import annotations

from pgdecode.relations.relation_version import RelationVersion
from pgdecode.types.pgtypes import FIRST_USER_OID, NAME_BY_OID
from pgdecode.types.type_changes import ColumnType


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
