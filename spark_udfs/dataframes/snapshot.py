"""`snapshot`: applies the changes of a table in a DataFrame of payloads, and returns the rows at the end."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from pgdecode import RelationCatalog
from pgdecode.changes.table_rows import VERSION, versions_of
from pgdecode.net.history import TableHistory
from pgdecode.net.snapshot import SnapshotRows, last_named, snapshot_schema
from pgdecode.partitions.partition_index import PartitionIndex
from pgdecode.protocol.options import Mode, NameClash
from pgdecode.relations.column_history import NO_RENAMES, Renames, check_renames, histories
from pgdecode.relations.relation_version import RelationVersion
from pgdecode.rows.options import with_options
from pgdecode.types.type_changes import compare_alike
from spark_udfs.dataframes.changes import count_bad_rows, decode_indexed, indexed_rows, tables_of
from spark_udfs.dataframes.control_index import IndexedRows
from spark_udfs.dataframes.frame_options import FrameOptions, SnapshotKeywords
from spark_udfs.dataframes.net_changes import connected
from spark_udfs.dataframes.outputs import TableOutput
from spark_udfs.runtime.session import for_workers
from spark_udfs.runtime.worker import WorkerFunction, enter_task
from spark_udfs.schema.spark_types import quoted, session_has_time, spark_schema
from spark_udfs.schema.years import any_year

_FIELDS = (
    "_op",
    "_position",
    "_commit_position",
    "_xid",
    "_commit_timestamp",
    "_old_type",
    "_old",
    "_unchanged",
    "_error",
)
# Payloads of all tables per bucket. Each bucket must fit into the memory of a task.
_ROWS_PER_BUCKET = 250_000


@with_options(FrameOptions)
def snapshot(df: DataFrame, relation: str, **options: Unpack[SnapshotKeywords]) -> DataFrame:
    """Apply the committed changes of a table, and return the rows that it has at the end.

    Parameters
    ----------
    df : DataFrame
        As in `changes`.
    relation : str
        "schema.table", the last name of the table. Changes under former names are included.

    Other Parameters
    ----------------
    payload, unwrap, position, source, catalog, session, max_value_bytes
        As in `changes`.
    state : path or mapping, optional
        As in `changes`. The result then has only rows that have changed since, and values that were not sent since are
        unknown.
    observation : pyspark.sql.Observation, optional
        As in `changes`. It counts the table's changes.
    mode, columns, renames, as_of
        As in `pgdecode.snapshot`. In the mode "FAILFAST", the query fails at a bad payload, with its position. With
        `source`, `as_of` is a time, because each source has its own LSNs.
    **options
        As in `pgdecode.ChangeDecoder`.
    years : {"1-9999", "any"}
        As in `from_pgoutput`.

    Returns
    -------
    DataFrame
        The source column, if any, then the columns of `pgdecode.snapshot`: `_position`, `_commit_position`,
        `_commit_timestamp`, `_unknown` and the columns of the table. `_unknown` lists the columns of a row whose values
        are in no payload. They are null here, but not necessarily NULL in the database.

    Raises
    ------
    KeyError
        If no payload has described the table, or its last name is another.
    TypeError, ValueError
        As in `changes`.

    Notes
    -----
    The notes of `pgdecode.snapshot` on rows and unknown values apply. Transactions that a session
    delivers again are applied again, which gives wrong results for tables without a key: use `drop_duplicates`.

    The changes are shuffled by the key of their row. If the type of a key column was altered, by the other columns of
    the key; if there is none, one task has all changes of the table, unless an integer or a string only became longer.

    If an update changes a key and leaves out a TOAST value, the value
    comes from the row with the old key, so both keys must be in the same bucket. If the payloads may have such updates,
    the call itself decodes the table's changes once to find them.

    Examples
    --------
    >>> raw = spark.read.parquet("tests/data/16.shop.v1.parquet")
    >>> spark_udfs.snapshot(raw, "public.orders").count()
    114
    """
    frame, chosen = FrameOptions.split(options, relation)
    passes = any_year(frame.years)
    found, chosen = indexed_rows(df, frame, chosen, tables_of(chosen, relation))
    observation, mode, name_clash = frame.observation, chosen.mode, chosen.name_clash
    chosen = replace(chosen, name_clash="rename")  # fewer columns are added to a snapshot
    versions = _versions(found, relation)
    stated = chosen.renames or NO_RENAMES
    check_renames([history for item in versions.values() for history in histories(item, stated)], is_complete=True)
    every = [version for item in versions.values() for version in item.values()]
    numbers = {source: tuple(item) for source, item in versions.items()}
    others = {item.source: _others(item.index, versions[item.source]) for item in found.indexes}
    output = TableOutput(
        tuple(every),
        numbers,
        chosen,
        passes,
        session_has_time(df.sparkSession),
        others=others,
        with_version=True,
        sources=tuple(source for source, item in versions.items() for _ in item),
    )
    names = tuple(column.name for column in output.table.columns)
    # Bad changes must be counted before they are dropped.
    changes_mode: Mode = "FAILFAST" if mode == "FAILFAST" else "PERMISSIVE"
    changes = decode_indexed(found, output, replace(chosen, mode=changes_mode), (*_FIELDS, *names, VERSION.name))
    tables = [TableHistory([*item.values()], stated) for item in versions.values() if item]
    last = list(dict.fromkeys(name for table in tables for name in table.columns(len(table.versions) - 1)))
    with_errors = mode == "PERMISSIVE"
    schema = snapshot_schema(output.schema, every, last, with_errors=with_errors, name_clash=name_clash)
    buckets = max(1, sum(sum(item.counts) for item in found.indexes) // _ROWS_PER_BUCKET)
    by_source = [] if found.source is None else [F.col(quoted(found.source))]
    new, old = _key_hashes(changes, tables, names, by_source)
    if old is not None and any(item.may_move for item in found.indexes):
        changes, new, old = _link_keys(changes, new, old)
    if observation is not None:
        changes = count_bad_rows(changes, output.error, observation, mode == "DROPMALFORMED", found)
    elif mode == "DROPMALFORMED":
        changes = changes.where(F.col(output.error).isNull())
    spread, kept, bucket = _assign_buckets(changes, new, old, buckets)
    sent = pa.schema([output.schema.field(name) for name in (*_FIELDS, *names, VERSION.name)])
    function = SnapshotFunction(versions, sent, schema, found.source, kept, with_errors, stated, name_clash)
    made = spark_schema(schema).fields
    if found.source is not None:
        given = changes.schema[found.source]
        made = [StructField(found.source, given.dataType, given.nullable), *made]
    with for_workers():
        return spread.groupBy(bucket, *by_source).applyInArrow(function, StructType(made))


def _versions(found: IndexedRows, relation: str) -> dict[Any, dict[int, RelationVersion]]:
    """For each source, find the versions that determine the table's columns, by their numbers."""
    versions: dict[Any, dict[int, RelationVersion]] = {}
    missing: KeyError | None = None
    for item in found.indexes:
        index = item.index
        every = list(index.catalog)
        try:
            relation_id = last_named(RelationCatalog(every[number] for number in index.shape), relation)
            versions[item.source] = versions_of(every, relation_id, index.shape)
        except KeyError as error:
            versions[item.source], missing = {}, error
    if not any(versions.values()):
        raise missing or KeyError(f"no message has described {relation!r}: there are no rows")
    return versions


def _others(index: PartitionIndex, chosen: Mapping[int, RelationVersion]) -> tuple[int, ...]:
    """List the further versions of the table, which no change uses."""
    if not chosen:
        return ()
    relation_id = next(iter(chosen.values())).relation_id
    return tuple(number for number in versions_of(index.catalog, relation_id) if number not in chosen)


# -- buckets ---------------------------------------------------------------------------------------------------------


def _key_hashes(
    changes: DataFrame,
    tables: Sequence[TableHistory],
    names: Iterable[str],
    by_source: list[Column],
) -> tuple[Column, Column | None]:
    """Return hashes of the key of the new values, and of the old values, if any. Changes of a row have equal hashes.

    The hash uses the columns that all versions have, and that are in every replica identity. A column whose type was
    altered is not used, unless its values are compared as they were sent.
    """
    shared = set(names)
    identities = []
    for table in tables:
        for number in range(len(table.versions)):
            # A column that was added may have the name of one that was dropped.
            shared &= {*table.columns(number)}.difference(table.added(number))
            identities.append(table.identity(number))
    identities = [identity for identity in identities if identity]
    if not identities:
        # Without a replica identity, there are only inserts.
        return F.xxhash64("_position"), None
    kinds = {field.name: field.dataType.typeName() for field in changes.schema.fields}
    chosen = [
        name
        for name in sorted(shared.intersection(*identities))
        if kinds[name] != "map" and compare_alike(kind for table in tables for kind in table.types(name))
    ]
    new = [F.col(quoted(name)) for name in chosen]
    old = [F.col("_old").getField(name) for name in chosen]
    return F.xxhash64(F.lit(0), *by_source, *new), F.xxhash64(F.lit(0), *by_source, *old)


def _link_keys(changes: DataFrame, new: Column, old: Column) -> tuple[DataFrame, Column, Column]:
    """Replace the hashes of keys that must be in one bucket by one number.

    These are the keys of rows whose key an update changed without sending all values.
    """
    takes = (F.col("_op") == "update") & F.col("_old_type").isNotNull() & (F.size("_unchanged") > 0)
    pairs = changes.where(takes).select(new.alias("new"), old.alias("old")).where("new <> old").distinct().toArrow()
    if not len(pairs):
        return changes, new, old
    found = connected(zip(pairs["new"].to_pylist(), pairs["old"].to_pylist(), strict=True))
    session = changes.sparkSession
    columns = ["_pgdecode_number", "_pgdecode_shared"]
    shared = session.createDataFrame(list(found.items()), ", ".join(f"{name} bigint" for name in columns))
    for part, number in (("new", new), ("old", old)):
        renamed = shared.toDF(*(f"{name}_{part}" for name in columns))
        changes = changes.join(F.broadcast(renamed), number == F.col(f"_pgdecode_number_{part}"), "left")
    new, old = (F.coalesce(F.col(f"_pgdecode_shared_{part}"), number) for part, number in (("new", new), ("old", old)))
    return changes, new, old


def _assign_buckets(changes: DataFrame, new: Column, old: Column | None, buckets: int) -> tuple[DataFrame, str, str]:
    """Copy each change to the buckets of its new row and its old row, and a truncate to all buckets.

    Returns also the names of two columns: whether the bucket keeps the new row, and the number of the bucket.
    """
    kept, bucket = "_pgdecode_kept", "_pgdecode_bucket"
    home = F.pmod(new, F.lit(buckets))
    places = F.array(home)
    if old is not None:
        moves = (F.col("_op") == "update") & F.col("_old_type").isNotNull()
        places = F.when(moves, F.array_distinct(F.array(home, F.pmod(old, F.lit(buckets))))).otherwise(places)
    everywhere = F.sequence(F.lit(0).cast("bigint"), F.lit(buckets - 1).cast("bigint"))
    places = F.when(F.col("_op") == "truncate", everywhere).otherwise(places)
    return (
        changes.withColumn(kept, home)
        .withColumn(bucket, F.explode(places))
        .withColumn(kept, F.col(kept) == F.col(bucket)),
        kept,
        bucket,
    )


# -- in the workers --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SnapshotFunction(WorkerFunction):
    """A function for `applyInArrow` that applies the changes of one bucket.

    Attributes
    ----------
    versions : mapping
        By source, the table's versions by their numbers.
    changes : pa.Schema
        Of the changes.
    schema : pa.Schema
        Of the resulting rows.
    source : str or None
        Name of the source column.
    kept : str
        Name of the column from `_assign_buckets`, whether the bucket keeps the new row.
    with_errors : bool
        Whether to return bad changes as rows.
    renames : Renames
        What the caller states.
    name_clash : {"error", "rename"}
    """

    versions: Mapping[Any, Mapping[int, RelationVersion]]
    changes: pa.Schema
    schema: pa.Schema
    source: str | None
    kept: str
    with_errors: bool
    renames: Renames
    name_clash: NameClash
    # Otherwise pyspark counts `self` as an argument, and passes the group's key as the first argument.
    __signature__ = inspect.Signature([inspect.Parameter("table", inspect.Parameter.POSITIONAL_OR_KEYWORD)])

    def __call__(self, table: pa.Table) -> pa.Table:
        """Apply the changes in their order."""
        enter_task()
        table = table.sort_by([("_commit_position", "ascending"), ("_position", "ascending")])
        source = None if self.source is None else table[self.source][0]
        versions = self.versions[None if source is None else source.as_py()]
        rows = SnapshotRows(
            self.changes, versions, self.renames, with_errors=self.with_errors, name_clash=self.name_clash
        )
        for batch in table.combine_chunks().to_batches():
            changes = pa.Table.from_batches([batch.select(self.changes.names)]).cast(self.changes)
            rows.apply(changes.to_batches()[0], batch[self.kept])
        found = rows.table()
        columns = [
            found[field.name] if field.name in found.column_names else pa.nulls(len(found), field.type)
            for field in self.schema
        ]
        names = list(self.schema.names)
        if source is not None:
            columns, names = [pa.repeat(source, len(found)), *columns], [self.source, *names]
        return pa.table(columns, names=names)
