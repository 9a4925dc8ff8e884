"""Rows of one relation on Spark: payloads and decoded rows."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from spark.columns.test_spark_functions import arrow_table

from pgdecode import Begin, Insert
from spark_udfs.schema.spark_types import supported_schema, to_supported_type
from support.compare import same_values
from support.generators.encoder import encode

NAMES = ["_op", "_xid", "_old_type", "_old", "_unchanged", "_error", "id", "born", "seen"]


def insert(*new: bytes | None, relation_id: int = 16385, xid: int | None = None) -> bytes:
    formats = "".join("n" if value is None else "t" for value in new)
    return encode(Insert(relation_id=relation_id, new=new, new_formats=formats, xid=xid))


GOOD = insert(b"7", b"2020-02-29", b"2020-01-01 00:00:00.5+02")
OTHER_TABLE = insert(b"1", relation_id=5)
BEGIN = encode(Begin(1, dt.datetime(2020, 1, 1, tzinfo=dt.UTC), 7))


def typed(rows: DataFrame, column: SparkColumn) -> pa.Table:
    """Collect the decoded payloads, ordered by `seq`."""
    return arrow_table(rows.select("seq", column.alias("r")).select("seq", "r.*")).sort_by("seq").drop_columns("seq")


def dicts(rows: DataFrame, column: SparkColumn) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = typed(rows, column).to_pylist()
    return found


def for_spark(rows: pa.RecordBatch, has_time: bool = False) -> pa.RecordBatch:
    """Convert decoded rows to their types on Spark. test_spark_schemas tests these."""
    columns = [to_supported_type(column, has_time=has_time) for column in rows.columns]
    return pa.RecordBatch.from_arrays(columns, schema=supported_schema(rows.schema, has_time=has_time))


def assert_same(found: pa.Table, expected: pa.RecordBatch) -> None:
    """Compare bit by bit."""
    assert found.schema.names == expected.schema.names
    assert found.num_rows == expected.num_rows
    for name in expected.schema.names:
        column = found[name].combine_chunks()
        column = column if isinstance(column, pa.Array) else pa.concat_arrays(column.chunks)
        # Spark changes names and nullability of items of lists, and drops metadata.
        assert same_values(column.cast(expected[name].type), expected[name]), name
