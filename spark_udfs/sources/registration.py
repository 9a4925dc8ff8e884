"""Registers everything that has a name in SQL: the function `parse_pgoutput` and the data source `pgoutput`."""

from __future__ import annotations

from typing import Unpack

from pyspark.sql import SparkSession

from pgdecode.rows.options import with_options
from spark_udfs.columns.column_options import ColumnOptions, RegisterKeywords
from spark_udfs.columns.envelope_column import envelope_function
from spark_udfs.schema.spark_types import session_has_time
from spark_udfs.sources.data_source import (
    PackedSource,
    PackedSourceWithTime,
    PgoutputSource,
    PgoutputSourceWithTime,
)


@with_options(ColumnOptions)
def register(spark: SparkSession, **options: Unpack[RegisterKeywords]) -> None:
    """Register the function `parse_pgoutput` for SQL, and the data source "pgoutput", in a session.

    The function is used as in `SELECT parse_pgoutput(data) FROM t`. Its optional second argument is a boolean column:
    whether each payload was sent inside a stream. docs/spark-source.md describes the data source, which is used as in
    `spark.read.format("pgoutput").option("what", "changes").load("raw/")`, and the same with `spark.readStream`.

    Parameters
    ----------
    spark : SparkSession

    Other Parameters
    ----------------
    **options
        For the function, as in `parse_pgoutput`. The data source has options of its own.

    Examples
    --------
    >>> raw = spark.read.parquet("tests/data/16.shop.v1.parquet")
    >>> spark_udfs.register(spark)
    >>> raw.createOrReplaceTempView("raw")
    >>> spark.sql("SELECT count(*) AS n FROM raw WHERE parse_pgoutput(data).kind = 'insert'").first().n
    542
    """
    function, _ = envelope_function(options)
    spark.udf.register("parse_pgoutput", function)
    register_source(spark)


def register_source(spark: SparkSession) -> None:
    """Register the data source "pgoutput" in a session, and the one of `apply_stream`."""
    has_time = session_has_time(spark)
    for source in (PgoutputSourceWithTime, PackedSourceWithTime) if has_time else (PgoutputSource, PackedSource):
        spark.dataSource.register(source)
