"""How values are to be read: what the caller says of types, and of the session that captured them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from pgdecode.protocol.options import UnrepresentableValues, check_option
from pgdecode.relations.relation_version import RelationVersion
from pgdecode.rows.row_schema import decodings, row_schema
from pgdecode.types.pgtypes import Decoding, as_text
from pgdecode.types.session_settings import settings_of, under
from pgdecode.types.type_parser import declared


@dataclass(frozen=True)
class ValueOptions:
    """The options of `decode_rows` that hold for tables of every kind; checked when it is made.

    Raises
    ------
    ValueError
        For a type, an encoding, a style or a word that there is none of.
    """

    types: Mapping[str | int, str] | None = None
    unrepresentable: UnrepresentableValues = "error"
    encoding: str = "UTF8"
    datestyle: str = "ISO, MDY"

    def __post_init__(self) -> None:
        settings_of(self.encoding, self.datestyle)
        for text in (self.types or {}).values():
            declared(text, dict(self.types or {}))
        check_option("unrepresentable", self.unrepresentable, UnrepresentableValues)

    def decodings(self, version: RelationVersion, text: frozenset[str] = frozenset()) -> list[Decoding]:
        """How the columns of a version are decoded; those named in `text`, to PostgreSQL's text form."""
        settings = settings_of(self.encoding, self.datestyle)
        found = decodings(version.relation, self.types, version.types, self.unrepresentable)
        return [
            under(settings, as_text(decoding) if column.name in text else decoding)
            for column, decoding in zip(version.columns, found, strict=True)
        ]

    def texts(self, version: RelationVersion) -> list[Decoding]:
        """How the columns of a version are decoded to PostgreSQL's text form."""
        settings = settings_of(self.encoding, self.datestyle)
        found = decodings(version.relation, self.types, version.types)
        return [under(settings, as_text(decoding)) for decoding in found]

    def fields(self, version: RelationVersion) -> list[pa.Field]:
        """Arrow fields of the columns of a version."""
        schema = row_schema(version.relation, self.types, version.types, self.unrepresentable)
        return [schema.field(column.name) for column in version.columns]
