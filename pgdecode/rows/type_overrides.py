"""How a column is decoded: what its OID and the stream's Type message say of it, and what the caller says instead."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from pgdecode.protocol.messages import Column, Type
from pgdecode.types.pgtypes import (
    FIRST_USER_OID,
    FLOAT8_OID,
    NAME_BY_OID,
    NUMERIC_OID,
    TEXT_OID,
    Decoding,
    array_of,
    as_text,
    named,
    numeric_as_float8,
)
from pgdecode.types.type_parser import EXTENSIONS, builtin_name, declared, without_underscore


class Overrides:
    """What a caller says of types and columns.

    Parameters
    ----------
    types : mapping
        Keys are OIDs, names of built-in or extensions' types, and "schema.type" as the stream names it.
    columns : mapping
        Keys are names of columns; these go before `types`.
    """

    def __init__(self, types: Mapping[str | int, str] | None, columns: Mapping[str, str] | None = None) -> None:
        self.columns = dict(columns or {})
        self._types = dict(types or {})
        self._by_name: dict[str, str] = {}
        for key, text in self._types.items():
            if isinstance(key, str):
                self._by_name[builtin_name(key) or key] = text
        # An OID that is every database's is as good as the type's name: a domain's message has only the name.
        for key, text in self._types.items():
            if isinstance(key, int) and key in NAME_BY_OID:
                self._by_name.setdefault(NAME_BY_OID[key], text)

    def decoding(self, column: Column, message: Type | None) -> Decoding | None:
        """Say how a column is decoded, of whose type the stream has sent a message or none; None if nobody knows."""
        own, certain = _own(column, message)
        wanted = self.columns.get(column.name) or self._of_type(column.type_id, message)
        if wanted is None:
            return own
        found = declared(wanted, self._types)
        # A type of the database's own is what the caller says. Of a type that is known, values can only be converted.
        if own is None or (not certain and found.oid != TEXT_OID):
            return found
        converted = _converted(own, found)
        if converted is None:
            raise ValueError(
                f"column {column.name!r} is {_name(column, message)} and cannot be read as {wanted!r}: a built-in type "
                "is converted to text alone, and numeric to another numeric or to float8"
            )
        return converted

    def _of_type(self, type_id: int, message: Type | None) -> str | None:
        if type_id in self._types:
            return self._types[type_id]
        if message is None:
            return self._by_name.get(NAME_BY_OID.get(type_id, ""))
        full = f"{message.namespace}.{message.name}"
        if full in self._by_name:
            return self._by_name[full]
        # An array's type is named after its element's (makeArrayTypeName, catalog/pg_type.c).
        element = f"{message.namespace}.{message.name[1:]}"
        if message.name.startswith("_") and element + "[]" in self._by_name:
            return self._by_name[element + "[]"]
        if message.name.startswith("_") and element in self._by_name:
            # By its name, since a domain over an array is an element as well: int[][] were one array.
            return "{}.{}[]".format(*(_quoted(name) for name in (message.namespace, message.name[1:])))
        # A domain's message names its base type. In another schema, only an extension's type is known by its bare name.
        is_known = message.namespace in ("", "pg_catalog") or message.name.removeprefix("_") in EXTENSIONS
        return self._by_name.get(without_underscore(message.name)) if is_known else None


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _name(column: Column, message: Type | None) -> str:
    return (message.name if message else NAME_BY_OID.get(column.type_id)) or f"of type {column.type_id}"


def _own(column: Column, message: Type | None) -> tuple[Decoding | None, bool]:
    """Say how a column's type is decoded if nobody overrides it, and whether that is certain.

    The message of a domain names its base type, whose schema pg_catalog is sent as an empty string. A name in another
    schema says so much of an extension's type alone: a database's own type may be called date or path.
    """
    if column.type_id < FIRST_USER_OID:
        name = NAME_BY_OID.get(column.type_id)
        return (named(name, column.type_modifier) if name else None), name is not None
    if message is None:
        return None, False
    if message.namespace in ("", "pg_catalog"):
        return named(message.name, column.type_modifier), True
    return (named(message.name) if message.name.removeprefix("_") in EXTENSIONS else None), False


def _converted(own: Decoding, wanted: Decoding) -> Decoding | None:
    """Give the decoding that converts one type to another; None where there is none that keeps values."""
    if wanted.oid == TEXT_OID:
        return own if own.arrow == pa.string() else as_text(own)
    if own.oid == NUMERIC_OID and wanted.oid in (NUMERIC_OID, FLOAT8_OID):
        return numeric_as_float8() if wanted.oid == FLOAT8_OID else wanted
    if own.codec == wanted.codec == "array" and own.element and wanted.element:
        element = _converted(own.element, wanted.element)
        return None if element is None else array_of(element)
    if own.codec == "money" and own.oid == wanted.oid:
        return wanted  # which says how many digits are the fraction
    return own if own.oid and own.oid == wanted.oid else None
