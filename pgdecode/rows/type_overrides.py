"""Finds the decoding of a column: from its type's OID, the stream's Type message, and the caller's overrides."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from pgdecode.protocol.messages import Column, Type
from pgdecode.relations.table_names import normal_name, qualified_name, quoted_name
from pgdecode.types.pgtypes import (
    ENUM,
    FLOAT8_OID,
    NAME_BY_OID,
    NUMERIC_OID,
    TEXT_OID,
    Decoding,
    array_of,
    as_text,
    named,
    numeric_as_float8,
    text_as_sent,
)
from pgdecode.types.type_parser import BY_OID, EXTENSIONS, InvalidTypes, builtin_name, declared, without_underscore


class Overrides:
    """The caller's types for types and columns.

    Parameters
    ----------
    types : mapping
        Keys are OIDs, names of built-in types or of extensions' types, and "schema.type" as in the stream.
    columns : mapping
        Keys are names of columns. They take precedence over `types`.
    """

    def __init__(self, types: Mapping[str | int, str] | None, columns: Mapping[str, str] | None = None) -> None:
        self.columns = dict(columns or {})
        self._types = dict(types or {})
        self._by_name: dict[str, str] = {}
        for key, text in self._types.items():
            if isinstance(key, str) and not key.startswith(BY_OID):
                self._by_name[builtin_name(key) or normal_name(key)] = text
        # The OID of a built-in type also stands for its name, because a domain's Type message has only the name.
        for key, text in self._types.items():
            if isinstance(key, int) and key in NAME_BY_OID:
                self._by_name.setdefault(NAME_BY_OID[key], text)

    def decoding(self, column: Column, message: Type | None) -> Decoding | None:
        """Find the decoding of a column, with the Type message of its type, if any; None if the type is unknown."""
        of_column, of_type = self.columns.get(column.name), self._of_type(column.type_id, message)
        own, certain = _own(column, message)
        wanted = of_column or of_type
        if wanted is None:
            return self._of_former_type(message) if own is None and message is not None else own
        target = declared(wanted, self._types)
        if of_column and of_type and target.oid == TEXT_OID and (own is None or _is_money(own)):
            # Only the description of the type tells what binary values consist of.
            described = declared(of_type, self._types)
            return text_as_sent(described if own is None else _converted(own, described) or own)
        # The caller defines what a user-defined type is. Values of a known type can only be converted.
        if own is None or (not certain and target.oid != TEXT_OID):
            return target
        converted = _converted(own, target)
        if converted is None:
            raise InvalidTypes(
                f"column {column.name!r} is {_name(column, message)} and cannot be read as {wanted!r}: a built-in type "
                "can be converted only to text, and numeric also to another numeric or to float8"
            )
        return converted

    def _of_former_type(self, message: Type) -> Decoding | None:
        """Find the decoding of a type that was dropped before the types were read, as text.

        A type that has its name now tells what kind of type it may have been.
        """
        full, element = f"{message.namespace}.{message.name}", f"{message.namespace}.{message.name[1:]}"
        for key, is_array in ((BY_OID + full, False), (BY_OID + element, message.name.startswith("_"))):
            if key not in self._types:
                continue
            decoding = declared(self._types[key], self._types)
            if decoding.codec in ("composite", "record"):
                decoding = declared("record", self._types)
            elif decoding != ENUM:
                return None
            return array_of(decoding) if is_array else decoding
        return None

    def _of_type(self, type_id: int, message: Type | None) -> str | None:
        if type_id in self._types:
            return self._types[type_id]
        if message is None:
            name = NAME_BY_OID.get(type_id, "")
            # The digits of money are those of its arrays too.
            digits = f"{self._by_name['money']}[]" if name == "money[]" and "money" in self._by_name else None
            return self._by_name.get(name, digits)
        for full in (qualified_name(message.namespace, message.name), f"{message.namespace}.{message.name}"):
            if full in self._by_name:
                return self._by_name[full]
        # The name of an array type is "_" and the name of its element type (makeArrayTypeName, catalog/pg_type.c).
        element = f"{message.namespace}.{message.name[1:]}"
        if message.name.startswith("_") and element + "[]" in self._by_name:
            return self._by_name[element + "[]"]
        if message.name.startswith("_") and element in self._by_name:
            # By name, because the element may be a domain over an array: `int[][]` would mean one array.
            return "{}.{}[]".format(*(quoted_name(name) for name in (message.namespace, message.name[1:])))
        # A domain's message has the name of its base type. In other schemas, only extensions' types are known by name.
        is_known = message.namespace in ("", "pg_catalog") or message.name.removeprefix("_") in EXTENSIONS
        return self._by_name.get(without_underscore(message.name)) if is_known else None


def _is_money(decoding: Decoding) -> bool:
    return "money" in (decoding.codec, decoding.element and decoding.element.codec)


def _name(column: Column, message: Type | None) -> str:
    return (message.name if message else NAME_BY_OID.get(column.type_id)) or f"of type {column.type_id}"


def _own(column: Column, message: Type | None) -> tuple[Decoding | None, bool]:
    """Find the decoding of a column's type without overrides, and whether it is certain.

    A domain's message has the name of its base type; the schema pg_catalog is sent as an empty string. In other
    schemas, only the names of extensions' types are meaningful: a user-defined type may be called date or path.
    """
    name = NAME_BY_OID.get(column.type_id)
    if name is not None:
        return named(name, column.type_modifier), True
    if message is None:
        return None, False
    if message.namespace in ("", "pg_catalog"):
        return named(message.name, column.type_modifier), True
    return (named(message.name) if message.name.removeprefix("_") in EXTENSIONS else None), False


def _converted(own: Decoding, wanted: Decoding) -> Decoding | None:
    """Return the decoding that converts one type to another; None if the conversion is not possible."""
    if wanted.oid == TEXT_OID:
        return own if own.arrow == pa.string() else as_text(own)
    if own.oid == NUMERIC_OID and wanted.oid in (NUMERIC_OID, FLOAT8_OID):
        return numeric_as_float8() if wanted.oid == FLOAT8_OID else wanted
    if own.codec == wanted.codec == "array" and own.element and wanted.element:
        element = _converted(own.element, wanted.element)
        return None if element is None else array_of(element)
    if own.codec == "money" and own.oid == wanted.oid:
        return wanted  # has the number of fraction digits
    return own if own.oid and own.oid == wanted.oid else None
