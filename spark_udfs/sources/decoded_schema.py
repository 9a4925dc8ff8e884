"""The columns of the data source, and batches that have exactly the types that Spark expects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa
from pyspark.sql.types import StructType

from pgdecode.arrow.null_arrays import null_array
from pgdecode.files.payload_file import FileFault
from pgdecode.protocol.errors import unknown_names
from pgdecode.relations.relation_version import RelationVersion
from spark_udfs.schema.spark_types import spark_schema


class SchemaDiffers(FileFault):
    """The columns of the payloads differ from those of the query."""


def with_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Select the columns of a schema. Columns that the batch does not have are null."""
    columns = []
    for field in schema:
        if field.name not in batch.schema.names:
            columns.append(null_array(len(batch), field.type))
            continue
        column = batch.column(field.name)
        columns.append(column if column.type.equals(field.type) else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def check_columns(
    declared: StructType, found: pa.Schema, names: Sequence[str], *, table: str | None, is_chosen: bool
) -> None:
    """Compare the columns that payloads have with those of the query.

    Parameters
    ----------
    declared : StructType
        The schema of the query.
    found : pa.Schema
        Of the decoded batches.
    names : sequence of str
        The columns that the options select.
    table : str, optional
        The table. Columns of the query that the table does not have are null then.
    is_chosen : bool
        Whether the option `fields` selects the columns, so that new columns of the table do not matter.

    Raises
    ------
    SchemaDiffers
    """
    of_table = "" if table is None else f"table {table}: "
    have = spark_schema(found)
    new = [name for name in names if name not in declared.names and not name.startswith("_")]
    if table is not None and new and not is_chosen:
        raise SchemaDiffers(
            f"{of_table}column {new[0]!r} is not in the schema of the query: restart the query with a new schema, "
            "or name the columns that you need in the option fields"
        )
    for field in declared:
        if field.name not in have.names:
            if table is None:
                raise SchemaDiffers(f"no such column: {unknown_names([field.name], have.names)}")
            continue
        one, other = have[field.name].dataType.simpleString(), field.dataType.simpleString()
        if one != other:
            raise SchemaDiffers(
                f"{of_table}column {field.name!r} is {one} in the payloads, but {other} in the schema of the query: "
                "restart the query with a new schema"
            )


def same_content(version: RelationVersion, others: Iterable[RelationVersion]) -> bool:
    """Whether one of several versions describes the table in the same way."""
    return any(other.describes(version.relation, version.types) for other in others)
