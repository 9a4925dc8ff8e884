"""The configuration of a job, checked on creation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from pgdecode import MessageDecoder, RelationCatalog
from pgdecode.envelope.schema import envelope_schema
from pgdecode.files.change_export import table_file_name
from pgdecode.files.envelope_batches import MessageOptions
from pgdecode.partitions.source_index import SourceIndex
from pgdecode.protocol.messages import ENVELOPE
from pgdecode.protocol.options import Format, Mode, check_option
from pgdecode.rows.options import Options
from spark_udfs.dataframes.changes import output_of
from spark_udfs.dataframes.outputs import ChangeOutput, Output
from spark_udfs.schema.spark_types import check_fields


@dataclass(frozen=True)
class MessageJob(MessageOptions):
    """A job that writes messages: `keep` columns, then the envelope's `fields`, or None for the default columns.

    Raises
    ------
    TypeError, ValueError
        For options that do not exist, and if a `keep` column has the name of an envelope column.
    """

    keep: tuple[str, ...] = ()
    format: Format = "parquet"

    def __post_init__(self) -> None:
        check_option("mode", self.mode, Mode)
        check_option("format", self.format, Format)
        # By default, Spark does not distinguish names by case.
        taken = {column.name for column in ENVELOPE}
        collision = next((name for name in self.keep if name.lower() in taken), None)
        if collision is not None:
            raise ValueError(f"keep: a decoded column has the name {collision!r}")
        envelope_schema(self.fields)
        MessageDecoder(in_stream=self.in_stream, empty=self.empty)


@dataclass(frozen=True)
class ChangeJob:
    """A job that writes changes of all tables (None) or of one table ("schema.table"): one output for each of `names`.

    With `in_folders` each output has a folder of its own in the target; without, there is one output.

    Raises
    ------
    ValueError
        For options that do not exist.
    """

    names: tuple[str | None, ...]
    fields: tuple[str, ...] | None
    options: Options
    catalog: RelationCatalog | None
    format: Format
    in_folders: bool = False

    def __post_init__(self) -> None:
        check_option("format", self.format, Format)
        if self.fields is not None and len(self.names) > 1:
            raise ValueError("fields can be used only with one output")

    @property
    def folders(self) -> tuple[str, ...]:
        """The folder of each output below the target; empty if it is the target."""
        return tuple(table_file_name(name) if self.in_folders or len(self.names) > 1 else "" for name in self.names)

    def outputs(self, indexes: Sequence[SourceIndex], has_time: bool, *, in_files: bool) -> list[Output]:
        """Make the `Output` of each name.

        Raises
        ------
        KeyError
            If no message describes a table.
        """
        found: list[Output] = []
        for name in self.names:
            if name is None:
                found.append(ChangeOutput(self.options))
            else:
                table = output_of(indexes, name, self.options, True, has_time)
                found.append(replace(table, in_files=in_files))
        return found

    def columns(self, output: Output) -> tuple[str, ...]:
        """Return the columns to write of an output."""
        # Spark and Parquet do not support structs without fields: `_old` of a table without columns.
        names = [field.name for field in output.schema if field.type != pa.struct([])]
        return check_fields(self.fields, names)
