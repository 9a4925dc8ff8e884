"""The options of functions of DataFrames: which columns and rows, beside how to decode them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Self, TypedDict

from pyspark.sql import Column, Observation

from pgdecode import RelationCatalog
from pgdecode.protocol.options import TransactionKeywords, Unwrap
from pgdecode.rows.options import ChangeFrameKeywords, Options, SnapshotFrameKeywords, TableFrameKeywords
from spark_udfs.dataframes.state_before import State
from spark_udfs.schema.years import Years

Catalogs = RelationCatalog | Mapping[Any, RelationCatalog]


class PayloadKeywords(TypedDict, total=False):
    """Options of all functions that follow the transactions of a DataFrame."""

    payload: Column | str
    unwrap: Unwrap
    position: Column | str
    session: Column | str | None
    state: State | None


class ReplicationStateKeywords(PayloadKeywords, TransactionKeywords, total=False):
    """Options of `replication_state`."""

    catalog: RelationCatalog | None


class FrameKeywords(PayloadKeywords, total=False):
    """Options of functions that return DataFrames."""

    source: Column | str | None
    catalog: Catalogs | None
    observation: Observation | None


class ChangesKeywords(FrameKeywords, ChangeFrameKeywords, total=False):
    """Options of `changes`."""

    fields: Iterable[str] | None


class TableChangesKeywords(FrameKeywords, TableFrameKeywords, total=False):
    """Options of `table_changes`."""

    years: Years
    fields: Iterable[str] | None


class SnapshotKeywords(FrameKeywords, SnapshotFrameKeywords, total=False):
    """Options of `snapshot`."""

    years: Years


@dataclass(frozen=True)
class FrameOptions:
    """The options of one call. `changes` and `table_changes` document them."""

    payload: Column | str = "data"
    unwrap: Unwrap = "auto"
    position: Column | str = "seq"
    source: Column | str | None = None
    catalog: Catalogs | None = None
    session: Column | str | None = None
    state: State | None = None
    observation: Observation | None = None
    years: Years = "1-9999"
    fields: Iterable[str] | None = None

    @classmethod
    def split(cls, given: Mapping[str, Any], relation: str | None = None) -> tuple[Self, Options]:
        """Convert the keywords of a function; of one table, if `relation` is its name."""
        names = {item.name for item in fields(cls)}
        own = {name: value for name, value in given.items() if name in names}
        return cls(**own), Options.of({name: value for name, value in given.items() if name not in names}, relation)
