"""Options of values: the caller's types, and settings of the session that captured the payloads."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import pyarrow as pa

from pgdecode.protocol.options import NameClash, Shape, UnrepresentableValues, check_option, option
from pgdecode.relations.column_history import Renames
from pgdecode.relations.relation_version import RelationVersion
from pgdecode.relations.table_names import joined_name, named, normal_name
from pgdecode.rows.row_schema import decodings, row_schema
from pgdecode.types.pgtypes import Decoding, as_text, text_as_sent
from pgdecode.types.session_settings import settings_of, under
from pgdecode.types.type_parser import declared


class TextKeywords(TypedDict, total=False):
    """Options of functions that return values as text."""

    types: Mapping[str | int, str] | None
    encoding: str
    datestyle: str


class TypedKeywords(TextKeywords, total=False):
    """Options of functions that return typed columns."""

    unrepresentable: UnrepresentableValues
    name_clash: NameClash


class TableKeywords(TypedKeywords, total=False):
    """Options of functions of one table."""

    columns: Mapping[str, str] | None
    renames: Renames | Sequence[tuple[str, str, int]] | None


class TablesKeywords(TypedKeywords, total=False):
    """Options of functions of any number of tables."""

    columns: Mapping[str | int, Mapping[str, str]] | None
    renames: Renames | None


class ShapeKeywords(TypedDict, total=False):
    """The option of functions that return the changes of tables."""

    shape: Shape


@dataclass(frozen=True)
class ValueOptions:
    """The options of `decode_rows` for all tables. They are checked on creation.

    `columns` has the types of columns by table: {"public.orders": {"price": "numeric(20,4)"}}. A table's key is its
    name as "schema.table", or its OID. `renames` has renamed columns by table: {"public.orders": [("price", "total",
    4711)]}, where 4711 is the position of the Relation message with the new name.

    Raises
    ------
    TypeError, ValueError
        For a type, an encoding, a date style or a value of an option that does not exist.
    """

    types: Mapping[str | int, str] | None = option(
        None,
        "A type that the messages do not describe, by name or OID: public.price=numeric(12,2), 790=money(2).",
        metavar="NAME=TYPE",
    )
    unrepresentable: UnrepresentableValues = option(
        "error",
        "How to treat values that a column's type cannot represent, such as NaN in a decimal: as bad values; as null; "
        "as the nearest value; or make such columns text.",
    )
    encoding: str = option("UTF8", "client_encoding of the session that captured the messages.", metavar="NAME")
    datestyle: str = option("ISO, MDY", "DateStyle of the session that captured the messages.", metavar="STYLE")
    columns: Mapping[str | int, Mapping[str, str]] | None = option(
        None, "Types of single columns of tables, before those of types.", is_of_commands=False
    )
    renames: Renames | None = option(
        None,
        "A column that was renamed where the messages do not show it: public.orders.price=total@4711. The position is "
        "that of the relation message with the new name, as inspect prints it.",
        flag="rename",
        metavar="T.OLD=NEW@POS",
    )
    name_clash: NameClash = option(
        "error",
        "How to treat a column of a table that has the name of a column that is added, such as _op: as a mistake; or "
        "append _ to its name.",
    )
    shape: Shape = option(
        "changes",
        "The shape of a table's changes: a row for each change; or the columns of Delta's change feed, with two rows "
        "for an update.",
    )

    def __post_init__(self) -> None:
        settings_of(self.encoding, self.datestyle)
        types = dict(self.types or {})
        texts = list(types.values())
        example = 'columns maps tables to columns, such as {"public.orders": {"price": "numeric(20,4)"}}; '
        if not isinstance(self.columns, Mapping | None):
            raise TypeError(f"{example}not {type(self.columns).__name__}")
        for table, columns in (self.columns or {}).items():
            if not isinstance(table, str | int) or isinstance(table, bool):
                raise TypeError(f"{example}a table is a name or an OID, not {table!r}")
            if not isinstance(columns, Mapping):
                raise TypeError(f"{example}{table!r} has {type(columns).__name__}")
            for name, text in columns.items():
                if not isinstance(text, str):
                    raise TypeError(f"{example}the type of {name!r} is {type(text).__name__}")
                texts.append(text)
        for text in texts:
            declared(text, types)
        _check_renames(self.renames)
        check_option("unrepresentable", self.unrepresentable, UnrepresentableValues)
        check_option("name_clash", self.name_clash, NameClash)
        check_option("shape", self.shape, Shape)

    def columns_of(self, version: RelationVersion) -> Mapping[str, str]:
        """Return the types of a table's columns, by the name or OID of a version of the table."""
        tables = self.columns or {}
        name = version.qualified_name
        types = dict(tables.get(version.relation_id, {}))
        for table, columns in tables.items():
            if isinstance(table, str) and (normal_name(table) == name or table == joined_name(name)):
                types.update(columns)
        return types

    def check_names(self, known: Collection[str]) -> None:
        """Check that each name in `columns` and `renames` can mean only one of the known tables.

        Raises
        ------
        KeyError
        """
        for table in (*(self.columns or ()), *(self.renames or ())):
            if isinstance(table, str):
                named(table, known)

    def decodings(
        self, version: RelationVersion, columns: Mapping[str, str], text: frozenset[str] = frozenset()
    ) -> list[Decoding]:
        """Return the decodings of a version's columns. Columns in `text` are decoded to PostgreSQL's text form."""
        settings = settings_of(self.encoding, self.datestyle)
        own = _own(columns, version)
        chosen = decodings(version.relation, self.types, version.types, self.unrepresentable, own)
        return [
            under(settings, as_text(decoding) if column.name in text else decoding)
            for column, decoding in zip(version.columns, chosen, strict=True)
        ]

    def texts(self, version: RelationVersion) -> list[Decoding]:
        """Return the decodings of a version's columns to PostgreSQL's text form."""
        settings = settings_of(self.encoding, self.datestyle)
        chosen = decodings(version.relation, self.types, version.types)
        return [under(settings, text_as_sent(decoding)) for decoding in chosen]

    def fields(self, version: RelationVersion, columns: Mapping[str, str]) -> list[pa.Field]:
        """Return the Arrow fields of a version's columns."""
        own = _own(columns, version)
        schema = row_schema(version, self.types, version.types, self.unrepresentable, own)
        return [schema.field(column.name) for column in version.columns]


def renames_of(relation: str, renames: Renames | Sequence[tuple[str, str, int]] | None) -> Renames | None:
    """Return the renames of a function of one table, which are a list, by table."""
    return renames if renames is None or isinstance(renames, Mapping) else {relation: renames}


def _check_renames(renames: Any) -> None:
    example = 'renames maps tables to renamed columns, such as {"public.orders": [("price", "total", 4711)]}; '
    if not isinstance(renames, Mapping | None):
        raise TypeError(f"{example}not {type(renames).__name__}")
    for table, found in (renames or {}).items():
        if not isinstance(table, str | int) or isinstance(table, bool):
            raise TypeError(f"{example}a table is a name or an OID, not {table!r}")
        if not isinstance(found, list | tuple):
            raise TypeError(f"{example}{table!r} has {type(found).__name__}")
        for item in found:
            kinds = [type(part) for part in item] if isinstance(item, list | tuple) else []
            if kinds != [str, str, int]:
                raise TypeError(f"{example}a rename has an old name, a new name and a position, not {item!r}")


def _own(columns: Mapping[str, str], version: RelationVersion) -> dict[str, str]:
    """Select the columns that a version has."""
    return {item.name: columns[item.name] for item in version.columns if item.name in columns}
