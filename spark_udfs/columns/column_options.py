"""The options of column functions, which `parse_pgoutput` and `from_pgoutput` document."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, Self

from pyspark.sql import Column

from pgdecode.protocol.options import (
    Empty,
    InStream,
    RowMode,
    SizeKeywords,
    UnrepresentableValues,
    Unwrap,
    check_option,
)
from pgdecode.rows.value_options import TextKeywords
from spark_udfs.columns.udf_adapters import Adapter
from spark_udfs.schema.years import Years

Others = Literal["error", "null"]


class ColumnKeywords(SizeKeywords, total=False):
    """Options of all functions."""

    fields: Iterable[str] | None
    mode: RowMode
    adapter: Adapter
    empty: Empty
    unwrap: Unwrap


class RegisterKeywords(ColumnKeywords, total=False):
    """Options of `register`."""

    in_stream: InStream | bool | None


class EnvelopeKeywords(ColumnKeywords, total=False):
    """Options of `parse_pgoutput`."""

    in_stream: InStream | bool | Column | None


class RelationKeywords(ColumnKeywords, TextKeywords, total=False):
    """Options of `from_pgoutput` and `register_relation`."""

    columns: Mapping[str, str] | None
    type_messages: Iterable[Any]
    unrepresentable: UnrepresentableValues
    others: Others
    years: Years


@dataclass(frozen=True)
class ColumnOptions:
    """The options that are not those of the functions of pgdecode that workers call."""

    fields: Iterable[str] | None = None
    in_stream: InStream | bool | Column | None = "auto"
    adapter: Adapter = "auto"
    unwrap: Unwrap = "auto"
    type_messages: Iterable[Any] = ()
    others: Others = "error"
    years: Years = "1-9999"

    def __post_init__(self) -> None:
        check_option("unwrap", self.unwrap, Unwrap)
        check_option("others", self.others, Others)

    @classmethod
    def split(cls, given: Mapping[str, Any]) -> tuple[Self, dict[str, Any]]:
        """Take the options out of the keywords of a function, and return also the others."""
        names = {item.name for item in fields(cls)}
        own = {name: value for name, value in given.items() if name in names}
        return cls(**own), {name: value for name, value in given.items() if name not in names}
