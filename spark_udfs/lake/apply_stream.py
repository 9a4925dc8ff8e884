"""`apply_stream`: a stream that merges the changes of tables into tables of Delta or Iceberg."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pgdecode.datasets.errors import RunError
from pgdecode.protocol.options import check_option
from pgdecode.relations.column_history import last_version
from pgdecode.relations.schema_metadata import described_in
from pgdecode.rows.own_names import with_free_names
from spark_udfs.dataframes.net_changes import net_changes
from spark_udfs.lake.evolution import COPY, SchemaChanges, other_table
from spark_udfs.lake.lake_table import LakeFormat, LakeTable
from spark_udfs.lake.merge_into import cached, merge_into
from spark_udfs.runtime.jvm import is_connect
from spark_udfs.sources.packed_tables import ChangesOfVersion, versions_in
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
        The started query. `awaitTermination` waits for its end, and raises its error, such as that none of the files
        that are there at the first start describes one of the tables.

    Raises
    ------
    ValueError
        For options that are not possible: `fields`, and mode="PERMISSIVE".
    TypeError
        For a session of Spark Connect.
    RunError
        If a table of Spark has another format.

    Notes
    -----
    Each table has the position that is applied to it, in its own commits (`merge_into`). Changes up to this position
    are left out. So micro-batches that Spark repeats change nothing, nor does a stream with a new checkpoint.

    Changes are applied version by version. Columns may be altered at any time, also within a transaction, which then is
    several commits. If the values of rows are not known from then on, the changes of the other tables are applied, and
    the query ends with an error. Copy the table then (`pgdecode capture` with the option copy), and pass a new
    checkpoint, without `maxFilesPerTrigger` until the copy is applied: the truncate of the copy must be in the same
    micro-batch as the changes that failed.

    A table that is renamed is an error once it has changes under the new name. The changes before are applied. Pass the
    new name for the same table of Spark then, and the same checkpoint.

    The files are read once for all tables.

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
    refused = sorted({"fields", "what", "tables"} & {*options})
    if refused or options.get("mode") == "PERMISSIVE":
        raise ValueError(f"{refused[0] if refused else 'mode=PERMISSIVE'}: apply_stream does not have this option")
    register_source(spark)
    targets = [LakeTable.open(spark, target) for target in tables.values()]
    ids = [None if item is None or item.version is None else item.version.relation_id for item in targets]
    named = json.dumps([*zip(tables, ids, strict=True)])
    packed = spark.readStream.format("pgoutput_packed").options(tables=named, **options)
    names = [*tables]

    def merge(batch: DataFrame, number: int) -> None:
        errors: list[Exception] = []
        with cached(batch):
            found = versions_in(batch)
            for at, name in enumerate(names):
                own = [item for item in found if item.table == at]
                try:
                    _merge_table(batch, own, name, tables[name], (key or {}).get(name), schema_changes, using)
                except (RunError, ValueError) as error:
                    errors.append(error)
        if errors:
            raise errors[0]

    writer = packed.load(os.fspath(raw)).writeStream.foreachBatch(merge)
    writer = writer.option("checkpointLocation", os.fspath(checkpoint))
    return writer.trigger(**(trigger or {"availableNow": True})).start()


def _merge_table(
    packed: DataFrame,
    versions: Sequence[ChangesOfVersion],
    name: str,
    target: str,
    key: Sequence[str] | None,
    schema_changes: SchemaChanges,
    using: LakeFormat | None,
) -> None:
    """Merge the changes of a table, version by version."""
    if not versions:
        return
    table = LakeTable.open(packed.sparkSession, target)
    place = (-1, -1) if table is None else table.applied().place
    # Several tables may have had the name. This is the last one.
    *_, last = sorted(versions, key=lambda item: item.renamed is None)
    known = None if table is None else table.version
    if known is None and last.former is not None:
        raise RunError(
            f"table {target}: {name} had the name {last.former} before, and earlier micro-batches have left out the "
            "changes under that name. Pass a new checkpoint"
        )
    relation_id = last.relation_id if known is None else known.relation_id
    own = [item for item in versions if item.relation_id == relation_id]
    truncates = [item.truncate for item in own if item.truncate is not None]
    # Of changes before a truncate, nothing is left.
    left = [item for item in own if item.last > place and (not truncates or item.last >= max(truncates))]
    for item, following in zip_longest(left, left[1:]):
        if item.renamed is not None:
            raise RunError(
                f"table {target}: {name} has the name {item.renamed} from position {item.first[1]} on. Pass "
                f"{{{item.renamed!r}: {target!r}}} in tables, and the same checkpoint, to continue"
            )
        if following is not None and following.first <= item.last:
            raise RunError(
                f"table {target}: the changes of two versions at position {following.first[1]} overlap, as if its "
                f"published columns were altered while a transaction was streamed or prepared. {COPY}"
            )
        # The rest of the transaction may have the columns of the next version.
        is_part = following is not None and following.first[0] == item.last[0]
        changes = item.changes(packed)
        if item.first <= place:
            commit, change = place
            changes = changes.where(
                f"_commit_position > {commit} OR (_commit_position = {commit} AND _position > {change})"
            )
        with cached(changes):
            net = net_changes(changes, key=_key(item.schema) if key is None else key)
            merge_into(
                net,
                target,
                position=item.last[0],
                change=item.last[1] if is_part else None,
                schema_changes=schema_changes,
                using=using,
            )
    if table is not None and last.relation_id != relation_id and last.last > place:
        raise other_table(table, last.relation_id, last.first[1])


def _key(schema: pa.Schema) -> tuple[str, ...] | None:
    """Return the primary key of a table whose replica identity is FULL, if it is known."""
    last = with_free_names(last_version(described_in(schema).versions))
    return (last.primary_key or None) if last.replica_identity == "f" else None
