"""`apply_stream`: a stream that merges the changes of tables into tables of Delta or Iceberg."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.streaming.query import StreamingQuery

from pgdecode.protocol.options import check_option
from pgdecode.relations.column_history import last_version
from pgdecode.relations.schema_metadata import described_in
from pgdecode.rows.own_names import with_free_names
from spark_udfs.dataframes.net_changes import net_changes
from spark_udfs.lake.evolution import SchemaChanges
from spark_udfs.lake.lake_table import LakeFormat, LakeTable, quoted
from spark_udfs.lake.merge_into import merge_into
from spark_udfs.runtime.jvm import is_connect
from spark_udfs.schema.spark_types import arrow_schema
from spark_udfs.sources.registration import register_source


def apply_stream(
    spark: SparkSession,
    raw: str | os.PathLike[str],
    tables: Mapping[str, str],
    *,
    checkpoint: str | os.PathLike[str],
    trigger: Mapping[str, Any] | None = None,
    key: Mapping[str, Sequence[str]] | None = None,
    schema_changes: SchemaChanges = "evolve",
    using: LakeFormat | None = None,
    **options: str,
) -> StreamingQuery:
    """Start a stream that applies payload files to tables of Delta or Iceberg.

    Parameters
    ----------
    spark : SparkSession
    raw : path
        A folder of payload files, to which files are added: a stream of the data source `pgoutput`.
    tables : mapping of str to str
        "schema.table" of the server -> "catalog.schema.table" of Spark.
    checkpoint : path
        Where Spark writes up to which file the stream has come. It belongs to these tables of the server.
    trigger : mapping, optional
        The arguments of Spark's `DataStreamWriter.trigger`. By default `{"availableNow": True}`: apply what is there,
        then end. `{"processingTime": "1 minute"}` goes on until the query is stopped.
    key : mapping, optional
        For tables with REPLICA IDENTITY FULL, by "schema.table": the columns that tell rows apart. By default they are
        the primary key, if the footers of captured files tell it.
    schema_changes, using
        As in `merge_into`.
    **options
        Of the data source, for all tables.

    Returns
    -------
    StreamingQuery
        The started query. `awaitTermination` waits for its end, and raises its error.

    Raises
    ------
    ValueError
        For tables that no file describes, and for options that the data source does not have.
    TypeError
        For a session of Spark Connect.

    Notes
    -----
    Each table has the position that is applied to it, in its own commits (`merge_into`). Changes up to this position
    are left out. So micro-batches that Spark repeats change nothing, nor does a stream with a new checkpoint.

    If the columns of a table change while the query runs, it ends with the error `SchemaDiffers`, before the changes
    with the new columns. Call the function again: the tables then get the columns, and the stream continues.

    Each table is decoded by a stream of its own in one query, so the files are read once for each table.

    Examples
    --------
    >>> tables = {"public.orders": "lake.shop.orders", "public.customers": "lake.shop.customers"}
    >>> query = spark_udfs.apply_stream(spark, "raw/", tables, checkpoint="checkpoint")  # doctest: +SKIP
    >>> query.awaitTermination()  # doctest: +SKIP
    """
    check_option("schema_changes", schema_changes, SchemaChanges)
    if is_connect(spark):
        raise TypeError("apply_stream needs a classic session: Spark Connect runs foreachBatch in another process")
    if not tables or isinstance(tables, str):
        raise TypeError("tables is a mapping: {'public.orders': 'lake.shop.orders'}")
    unknown = sorted({*(key or {})} - {*tables})
    if unknown:
        raise ValueError(f"key has the table {unknown[0]!r}, which is not one of tables")
    register_source(spark)
    path = os.fspath(raw)
    frames = {table: spark.readStream.format("pgoutput").options(what=table, **options).load(path) for table in tables}
    merges = [
        _merge_function(frame.schema, tables[table], (key or {}).get(table), schema_changes, using)
        for table, frame in frames.items()
    ]

    def merge(batch: DataFrame, number: int) -> None:
        batch.persist()
        try:
            for at, function in enumerate(merges):
                function(batch.where(F.col(_column(at)).isNotNull()), _column(at))
        finally:
            batch.unpersist()

    writer = _side_by_side([*frames.values()]).writeStream.foreachBatch(merge)
    writer = writer.option("checkpointLocation", os.fspath(checkpoint))
    return writer.trigger(**(trigger or {"availableNow": True})).start()


def _column(at: int) -> str:
    return f"table_{at}"


def _side_by_side(frames: Sequence[DataFrame]) -> DataFrame:
    """Return the rows of several streams in one, each with a column for its rows."""
    selected = [
        frame.select(
            *(
                F.struct(*map(quoted, other.columns)).alias(_column(number))
                if number == at
                else F.lit(None).cast(other.schema).alias(_column(number))
                for number, other in enumerate(frames)
            )
        )
        for at, frame in enumerate(frames)
    ]
    return reduce(DataFrame.unionAll, selected)


def _merge_function(
    schema: T.StructType,
    target: str,
    key: Sequence[str] | None,
    schema_changes: SchemaChanges,
    using: LakeFormat | None,
) -> Callable[[DataFrame, str], None]:
    """Return a function that merges the changes of a table, which are in a column."""
    if key is None:
        key = _primary_key(schema)

    def merge(batch: DataFrame, column: str) -> None:
        # Spark does not keep the metadata of nested fields in all plans.
        fields = (F.col(column).getField(item.name).alias(item.name, metadata=item.metadata) for item in schema.fields)
        changes = batch.select(*fields)
        table = LakeTable.open(batch.sparkSession, target)
        if table is not None:
            changes = changes.where(F.col("_commit_position") > table.applied().position)
        # Net changes may end before the last change, and without a key, they must not be applied from there again.
        (last,) = changes.agg(F.max("_commit_position")).first() or (None,)
        if last is not None:
            net = net_changes(changes, key=key)
            merge_into(net, target, position=last, schema_changes=schema_changes, using=using)

    return merge


def _primary_key(schema: T.StructType) -> tuple[str, ...] | None:
    """Return the primary key of a table whose replica identity is FULL, if it is known."""
    versions = described_in(arrow_schema(schema)).versions
    if not versions:
        return None
    last = with_free_names(last_version(versions))
    return (last.primary_key or None) if last.replica_identity == "f" else None
