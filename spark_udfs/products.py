"""What is made of the changes of runs: rows of all tables, or those of one by its columns."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

import pgdecode
from pgdecode.building import Builder
from pgdecode.change_maps import CHANGES, ChangeBuilder
from pgdecode.deliveries import Stretch
from pgdecode.ledger import Options
from pgdecode.readings import Reading
from pgdecode.runs import RunIndex
from pgdecode.tables import Table, TableBuilder
from pgdecode.versions import RelationVersion
from pgdecode.writers import CHANGE_LAYOUT, TABLE_LAYOUT, Layout
from spark_udfs.schemas import taken, taken_schema
from spark_udfs.years import Cell, with_years, year_fault


class Product(Protocol):
    """What is made of changes: data that pickle small."""

    @property
    def schema(self) -> pa.Schema:
        """What Spark gets."""

    @property
    def layout(self) -> Layout:
        """How rows are written as text."""

    @property
    def apart_from_numbers(self) -> Product:
        """The same, whatever numbers versions have in a catalog."""

    def builder(self, source: Any, index: RunIndex, options: Options) -> Builder:
        """Make what builds the batches of one source, by the schema."""


@dataclass(frozen=True)
class AllChanges:
    """Changes of all tables."""

    reading: Reading

    @property
    def schema(self) -> pa.Schema:
        """That of `ChangeDecoder.decode`."""
        return CHANGES

    @property
    def layout(self) -> Layout:
        """That of `pgdecode decode --changes`."""
        return CHANGE_LAYOUT

    @property
    def apart_from_numbers(self) -> AllChanges:
        """Itself."""
        return self

    def builder(self, source: Any, index: RunIndex, options: Options) -> Builder:
        """Make what builds the batches of one source."""
        return ChangeBuilder(list(index.catalog), {}, self.reading, options)


@dataclass(frozen=True)
class TableChanges:
    """Changes of one table, typed.

    Attributes
    ----------
    versions : tuple of RelationVersion
        All that the table has had, in all sources.
    numbers : mapping
        By source, the numbers of its versions in that source's catalog.
    reading : Reading
    any_year : bool
        Let years pass that Python has not.
    has_time : bool
        Give times of day as Spark's TIME, else as strings.
    in_files : bool
        Give TIME as Spark has it in files, not as it takes it from Python.
    """

    versions: tuple[RelationVersion, ...]
    numbers: Mapping[Any, tuple[int, ...]]
    reading: Reading
    any_year: bool
    has_time: bool
    in_files: bool = False

    @functools.cached_property
    def table(self) -> Table:
        """What the versions have in common."""
        return Table(self.versions, self.reading)

    @functools.cached_property
    def schema(self) -> pa.Schema:
        """That of the table, of types that Spark takes."""
        return self.table.schema if self.as_decoded else taken_schema(self.table.schema, has_time=self.has_time)

    @property
    def layout(self) -> Layout:
        """That of `pgdecode decode --table`."""
        return TABLE_LAYOUT

    @property
    def apart_from_numbers(self) -> TableChanges:
        """The same versions, whatever numbers they have."""
        return replace(self, numbers={})

    @property
    def as_decoded(self) -> bool:
        """Whether columns are of the types that they are decoded to."""
        return self.in_files and self.has_time

    def builder(self, source: Any, index: RunIndex, options: Options) -> Builder:
        """Make what builds the batches of one source."""
        versions = list(index.catalog)
        numbers = {number: versions[number] for number in self.numbers[source]}
        return _TakenTable(self, numbers, options)


class _TakenTable(TableBuilder):
    """Builds batches of the types and the years that Spark takes."""

    def __init__(self, product: TableChanges, numbers: Mapping[int, RelationVersion], options: Options) -> None:
        super().__init__(product.table, numbers, options)
        self.product = product

    def batch(self, stretch: Stretch) -> pa.RecordBatch:
        """Build the table's changes in a stretch."""
        rows = super().batch(stretch)
        if not self.product.any_year:
            fault = functools.partial(self._fault, rows, stretch)
            n_columns = len(self.table.columns)
            rows = with_years(rows, n_columns, fault, self.options.mode, self.table.reading.unrepresentable)
        columns = rows.columns
        if not self.product.as_decoded:
            columns = [taken(column, has_time=self.product.has_time) for column in columns]
        return pa.RecordBatch.from_arrays(columns, schema=self.product.schema)

    def _fault(self, rows: pa.RecordBatch, stretch: Stretch, row: int, cell: Cell) -> pgdecode.DecodeError:
        """Make the error of a year, which is found again in the payload."""
        position = rows["_position"][row]
        place = pc.index(stretch.position, position).as_py()
        version = self.numbers[stretch.versions[place].as_py()]
        name = self.table.columns[cell.column].name
        sent = Cell([column.name for column in version.columns].index(name), cell.in_old)
        payload = stretch.follower.payload_of(stretch.rows[place].as_py())
        fault = year_fault(payload, stretch.streamed[place].as_py() == 1, version.relation, sent)
        return fault.at_position(position.as_py())
