"""Outputs of decoded changes: rows of all tables, or typed rows of one table."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

import pyarrow as pa
import pyarrow.compute as pc

import pgdecode
from pgdecode.arrow.null_arrays import null_array
from pgdecode.changes.change_rows import CHANGES, ChangeBuilder
from pgdecode.changes.committed_changes import ChangeSlice
from pgdecode.changes.record_batches import Builder
from pgdecode.changes.table_rows import VERSION, Table, TableBuilder
from pgdecode.files.writers import CHANGE_LAYOUT, TABLE_LAYOUT, Layout
from pgdecode.partitions.partition_index import PartitionIndex
from pgdecode.protocol.options import ChangeOptions
from pgdecode.relations.relation_version import RelationVersion
from pgdecode.rows.change_feed import feed_schema
from pgdecode.rows.value_options import ValueOptions
from spark_udfs.schema.spark_types import supported_schema, to_supported_type
from spark_udfs.schema.years import Cell, with_years, year_fault


class Output(Protocol):
    """A kind of output. It is small when pickled."""

    @property
    def schema(self) -> pa.Schema:
        """Schema of the batches for Spark."""

    @property
    def error(self) -> str:
        """Name of the error column."""

    @property
    def layout(self) -> Layout:
        """Layout of the rows in files."""

    @property
    def apart_from_numbers(self) -> Output:
        """A copy without the numbers of versions, for comparisons between indexes."""

    def builder(self, source: Any, index: PartitionIndex, options: ChangeOptions) -> Builder:
        """Make the builder for the batches of one source."""


@dataclass(frozen=True)
class ChangeOutput:
    """Changes of all tables."""

    value_options: ValueOptions
    error: ClassVar[str] = ChangeBuilder.error

    @property
    def schema(self) -> pa.Schema:
        """The schema of `ChangeDecoder.decode`."""
        return CHANGES

    @property
    def layout(self) -> Layout:
        """The layout of `pgdecode decode --changes`."""
        return CHANGE_LAYOUT

    @property
    def apart_from_numbers(self) -> ChangeOutput:
        """The output itself, which has no numbers of versions."""
        return self

    def builder(self, source: Any, index: PartitionIndex, options: ChangeOptions) -> Builder:
        """Make the builder for the batches of one source."""
        return ChangeBuilder(list(index.catalog), self.value_options, options)


@dataclass(frozen=True)
class TableOutput:
    """Typed changes of one table.

    Attributes
    ----------
    versions : tuple of RelationVersion
        The versions that determine its columns, from all sources.
    numbers : mapping
        By source, the numbers of these versions in the source's catalog.
    value_options : ValueOptions
    any_year : bool
        Whether years that Python cannot represent are allowed.
    has_time : bool
        Whether times of day are Spark's TIME; otherwise they are strings.
    in_files : bool
        Whether TIME has its type in files, instead of the type that Spark accepts from Python.
    others : mapping
        By source, the numbers of the table's further versions, which no change uses.
    with_version : bool
        Whether to add a last column with the number of each row's version.
    sources : tuple
        The source of each version; empty if there is one source.
    """

    versions: tuple[RelationVersion, ...]
    numbers: Mapping[Any, tuple[int, ...]]
    value_options: ValueOptions
    any_year: bool
    has_time: bool
    in_files: bool = False
    others: Mapping[Any, tuple[int, ...]] = field(default_factory=dict)
    with_version: bool = False
    sources: tuple[Any, ...] = ()
    error: ClassVar[str] = TableBuilder.error

    @functools.cached_property
    def table(self) -> Table:
        """The common columns of all versions."""
        return Table(self.versions, self.value_options, self.sources or None)

    @functools.cached_property
    def typed_schema(self) -> pa.Schema:
        """The schema of the table, with types that Spark supports."""
        return self.table.schema if self.as_decoded else supported_schema(self.table.schema, has_time=self.has_time)

    @functools.cached_property
    def schema(self) -> pa.Schema:
        """The schema of the rows."""
        if self.table.is_feed:
            return feed_schema(self.typed_schema, self.table.output_names)
        return self.typed_schema.append(VERSION) if self.with_version else self.typed_schema

    @property
    def layout(self) -> Layout:
        """The layout of `pgdecode decode --table`."""
        return TABLE_LAYOUT

    @property
    def apart_from_numbers(self) -> TableOutput:
        """A copy without the numbers of versions, for comparisons between indexes."""
        return replace(self, numbers={}, others={})

    @property
    def as_decoded(self) -> bool:
        """Whether columns keep the types that the decoder returns."""
        return self.in_files and self.has_time

    def builder(self, source: Any, index: PartitionIndex, options: ChangeOptions) -> Builder:
        """Make the builder for the batches of one source."""
        versions = list(index.catalog)
        numbers = {number: versions[number] for number in self.numbers[source]}
        return _SparkTableBuilder(self, numbers, options, self.others.get(source, ()))


class _SparkTableBuilder(TableBuilder):
    """Builds batches with types and years that Spark supports."""

    def __init__(
        self,
        output: TableOutput,
        numbers: Mapping[int, RelationVersion],
        options: ChangeOptions,
        others: Collection[int],
    ) -> None:
        super().__init__(
            output.table, numbers, options, others, with_version=output.with_version, schema=output.typed_schema
        )
        self.output = output

    def changes(self, change_slice: ChangeSlice) -> pa.RecordBatch:
        """Build the table's changes in a slice, with a row for each."""
        if self.numbers.isdisjoint(change_slice.used_versions) and not change_slice.unknown():
            schema = self.output.typed_schema.append(VERSION) if self.with_version else self.output.typed_schema
            return pa.RecordBatch.from_arrays([null_array(0, item.type) for item in schema], schema=schema)
        rows = super().changes(change_slice)
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
            columns = [to_supported_type(column, has_time=self.output.has_time) for column in columns]
        schema = self.output.typed_schema
        return pa.RecordBatch.from_arrays(
            [*columns, *versions], schema=schema.append(VERSION) if self.with_version else schema
        )

    def _fault(self, rows: pa.RecordBatch, change_slice: ChangeSlice, row: int, cell: Cell) -> pgdecode.DecodeError:
        """Make the error of an unrepresentable year, with its location in the payload."""
        position = rows["_position"][row]
        place = pc.index(change_slice.position, position).as_py()
        number = change_slice.versions[place].as_py()
        version = self.versions[number]
        name = self.table.columns[cell.column].name
        sent = Cell([*self.last_names[number].values()].index(name), cell.in_old)
        payload = change_slice.assembler.batch.payload_of(change_slice.rows[place].as_py())
        fault = year_fault(payload, change_slice.streamed[place].as_py() == 1, version.relation, sent)
        return fault.at_position(position.as_py())
