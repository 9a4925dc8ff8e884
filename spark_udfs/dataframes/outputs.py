"""What is made of the changes of runs: rows of all tables, or those of one by its columns."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

import pyarrow as pa
import pyarrow.compute as pc

import pgdecode
from pgdecode.changes.change_rows import CHANGES, ChangeBuilder
from pgdecode.changes.committed_changes import ChangeSlice
from pgdecode.changes.record_batches import Builder
from pgdecode.changes.table_rows import VERSION, Table, TableBuilder
from pgdecode.files.writers import CHANGE_LAYOUT, TABLE_LAYOUT, Layout
from pgdecode.partitions.partition_index import PartitionIndex
from pgdecode.protocol.options import ChangeOptions
from pgdecode.relations.relation_version import RelationVersion
from pgdecode.rows.value_options import ValueOptions
from spark_udfs.schema.spark_types import taken, taken_schema
from spark_udfs.schema.years import Cell, with_years, year_fault


class Output(Protocol):
    """What is made of changes: data that pickle small."""

    @property
    def schema(self) -> pa.Schema:
        """What Spark gets."""

    @property
    def error(self) -> str:
        """Name of the column that says what is wrong with a row."""

    @property
    def layout(self) -> Layout:
        """How rows are written as text."""

    @property
    def apart_from_numbers(self) -> Output:
        """The same, whatever numbers versions have in a catalog."""

    def builder(self, source: Any, index: PartitionIndex, options: ChangeOptions) -> Builder:
        """Make what builds the batches of one source, by the schema."""


@dataclass(frozen=True)
class ChangeOutput:
    """Changes of all tables."""

    value_options: ValueOptions
    error: ClassVar[str] = ChangeBuilder.error

    @property
    def schema(self) -> pa.Schema:
        """That of `ChangeDecoder.decode`."""
        return CHANGES

    @property
    def layout(self) -> Layout:
        """That of `pgdecode decode --changes`."""
        return CHANGE_LAYOUT

    @property
    def apart_from_numbers(self) -> ChangeOutput:
        """Itself."""
        return self

    def builder(self, source: Any, index: PartitionIndex, options: ChangeOptions) -> Builder:
        """Make what builds the batches of one source."""
        return ChangeBuilder(list(index.catalog), {}, self.value_options, options)


@dataclass(frozen=True)
class TableOutput:
    """Changes of one table, typed.

    Attributes
    ----------
    versions : tuple of RelationVersion
        Those that make its shape, of all sources.
    numbers : mapping
        By source, their numbers in that source's catalog.
    reading : Reading
    any_year : bool
        Let years pass that Python has not.
    has_time : bool
        Give times of day as Spark's TIME, else as strings.
    in_files : bool
        Give TIME as Spark has it in files, not as it takes it from Python.
    others : mapping
        By source, the numbers of the table's further versions, which no change has.
    with_version : bool
        Give the number of the version of each row too, in a last column.
    """

    versions: tuple[RelationVersion, ...]
    numbers: Mapping[Any, tuple[int, ...]]
    value_options: ValueOptions
    any_year: bool
    has_time: bool
    in_files: bool = False
    others: Mapping[Any, tuple[int, ...]] = field(default_factory=dict)
    with_version: bool = False
    error: ClassVar[str] = TableBuilder.error

    @functools.cached_property
    def table(self) -> Table:
        """What the versions have in common."""
        return Table(self.versions, self.value_options)

    @functools.cached_property
    def schema(self) -> pa.Schema:
        """That of the table, of types that Spark takes."""
        schema = self.table.schema if self.as_decoded else taken_schema(self.table.schema, has_time=self.has_time)
        return schema.append(VERSION) if self.with_version else schema

    @property
    def layout(self) -> Layout:
        """That of `pgdecode decode --table`."""
        return TABLE_LAYOUT

    @property
    def apart_from_numbers(self) -> TableOutput:
        """The same versions, whatever numbers they have."""
        return replace(self, numbers={}, others={})

    @property
    def as_decoded(self) -> bool:
        """Whether columns are of the types that they are decoded to."""
        return self.in_files and self.has_time

    def builder(self, source: Any, index: PartitionIndex, options: ChangeOptions) -> Builder:
        """Make what builds the batches of one source."""
        versions = list(index.catalog)
        numbers = {number: versions[number] for number in self.numbers[source]}
        return _TakenTable(self, numbers, options, self.others.get(source, ()))


class _TakenTable(TableBuilder):
    """Builds batches of the types and the years that Spark takes."""

    def __init__(
        self,
        output: TableOutput,
        numbers: Mapping[int, RelationVersion],
        options: ChangeOptions,
        others: Collection[int],
    ) -> None:
        super().__init__(output.table, numbers, options, others, with_version=output.with_version)
        self.output = output

    def batch(self, change_slice: ChangeSlice) -> pa.RecordBatch:
        """Build the table's changes in a stretch."""
        rows = super().batch(change_slice)
        versions = []
        if self.with_version:
            versions = [rows.column(len(rows.schema) - 1)]
            rows = pa.RecordBatch.from_arrays(rows.columns[:-1], schema=self.table.schema)
        if not self.output.any_year:
            fault = functools.partial(self._fault, rows, change_slice)
            n_columns = len(self.table.columns)
            rows = with_years(rows, n_columns, fault, self.options.mode, self.table.value_options.unrepresentable)
        columns = rows.columns
        if not self.output.as_decoded:
            columns = [taken(column, has_time=self.output.has_time) for column in columns]
        return pa.RecordBatch.from_arrays([*columns, *versions], schema=self.output.schema)

    def _fault(self, rows: pa.RecordBatch, change_slice: ChangeSlice, row: int, cell: Cell) -> pgdecode.DecodeError:
        """Make the error of a year, which is found again in the payload."""
        position = rows["_position"][row]
        place = pc.index(change_slice.position, position).as_py()
        version = self.versions[change_slice.versions[place].as_py()]
        name = self.table.columns[cell.column].name
        sent = Cell([column.name for column in version.columns].index(name), cell.in_old)
        payload = change_slice.assembler.batch.payload_of(change_slice.rows[place].as_py())
        fault = year_fault(payload, change_slice.streamed[place].as_py() == 1, version.relation, sent)
        return fault.at_position(position.as_py())
