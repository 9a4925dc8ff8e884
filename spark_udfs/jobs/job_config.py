"""The configuration of a job, checked on creation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from pgdecode import MessageDecoder, RelationCatalog
from pgdecode.envelope.schema import envelope_schema
from pgdecode.files.change_export import table_file_name
from pgdecode.partitions.source_index import SourceIndex
from pgdecode.protocol.limits import LIMITS, Limits
from pgdecode.protocol.messages import ENVELOPE
from pgdecode.protocol.options import Empty, Format, InStream, Mode, check_option, options_of
from pgdecode.rows.options import Options
from spark_udfs.dataframes.changes import check_fields, output_of
from spark_udfs.dataframes.outputs import ChangeOutput, Output

MESSAGES = "messages"
CHANGES = "changes"


@dataclass(frozen=True)
class MessageJob:
    """A job that writes messages: `keep` columns, then the envelope's `fields`, or None for the default columns.

    Raises
    ------
    TypeError, ValueError
        For options that do not exist, and if a `keep` column has the name of an envelope column.
    """

    keep: tuple[str, ...]
    fields: tuple[str, ...] | None
    in_stream: InStream | bool
    mode: Mode
    format: Format
    empty: Empty = "null"
    limits: Limits = LIMITS

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

    @property
    def what(self) -> tuple[str, ...]:
        """The output, for the manifest."""
        return (MESSAGES,)

    @property
    def in_manifest(self) -> dict[str, Any]:
        """The options that change the rows."""
        names = ("mode", "empty", "format", "fields", "keep", "in_stream")
        return {name: getattr(self, name) for name in names}


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
    def what(self) -> tuple[str, ...]:
        """The outputs, for the manifest."""
        return tuple(name or CHANGES for name in self.names)

    @property
    def in_manifest(self) -> dict[str, Any]:
        """The options that change the rows."""
        fields = {} if self.fields is None else {"fields": self.fields}
        return {**options_of(self.options), "format": self.format, "snapshot": False, "net": False, **fields}

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
