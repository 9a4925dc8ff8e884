"""`net_changes`: one row for each row of a table that its changes have touched, with one shuffle by key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pgdecode.net.history import TableHistory
from pgdecode.net.net_changes import NetChanges
from pgdecode.net.schema import ABOUT, key_of
from pgdecode.protocol.errors import listed
from pgdecode.relations.schema_metadata import described_in, versions_metadata
from pgdecode.rows.own_names import OWN_NAMES
from pgdecode.types.type_changes import compare_alike
from spark_udfs.runtime.session import for_workers
from spark_udfs.runtime.worker import WorkerFunction, enter_task
from spark_udfs.schema.spark_types import arrow_schema, quoted, spark_schema

_NEEDED = ("_op", *(item.name for item in ABOUT), "_old_type", "_old", "_unchanged", "_error")
_HOME = "_pgdecode_home"
# The greatest number of different moves of keys for which the driver finds what must be together.
_MOST_MOVES = 1_000_000


def net_changes(df: DataFrame, *, key: Sequence[str] | None = None) -> DataFrame:
    """Fold the changes of a table into one row for each row that they touched, as it is after them.

    Parameters
    ----------
    df : DataFrame
        What `table_changes` returns, of one source. The rows may have any order and partitions.
    key : sequence of str, optional
        As in `pgdecode.net_changes`.

    Returns
    -------
    DataFrame
        The rows of `pgdecode.net_changes`: `_action`, `_key_before`, `_unknown`, `_position`, `_commit_position`,
        `_commit_lsn`, `_commit_timestamp` and the columns of the table. They have no order. If the table was truncated,
        one row has the action "truncate"; apply it first.

    Raises
    ------
    TypeError
        If `df` is a stream: call it in `foreachBatch`.
    ValueError
        As in `pgdecode.net_changes`, where the columns do not tell the key. The query fails with such an error for what
        the changes do not tell.

    Notes
    -----
    The call itself aggregates the changes once in the JVM, to find truncates and updates that change a key. The result
    is lazy. It shuffles the changes once, by their key, and sorts them; Spark spills both to disk. A task needs memory
    for the rows of its keys, not for all of their changes. If an update changed a key, the changes of both keys are in
    one task. If more than a million updates did, the keys are those columns that no update changed; without such a
    column, one task has all changes.

    The metadata of the columns tell the key and the versions of the table. Spark keeps them in Parquet files that it
    writes, and in `select`, but other formats may not: then pass `key`.

    Examples
    --------
    >>> raw = spark.read.parquet("tests/data/16.shop.v1.parquet")
    >>> spark_udfs.net_changes(spark_udfs.table_changes(raw, "public.products")).count()
    60
    """
    if df.isStreaming:
        raise TypeError("a streaming DataFrame has no end: call net_changes for each batch, in foreachBatch")
    if isinstance(key, str):
        raise TypeError(f"key is a sequence of columns' names: pass key=[{key!r}]")
    missing = [name for name in _NEEDED if name not in df.columns]
    if missing:
        raise ValueError(f"the columns {listed(map(repr, missing))} are missing: df is what table_changes returns")
    schema = arrow_schema(df.schema)
    keys = key_of(schema, key)
    columns = [name for name in df.columns if name not in OWN_NAMES]
    before = pa.field("_old", pa.struct([schema.field(name).remove_metadata() for name in keys]))
    sent = [before if name == "_old" else schema.field(name) for name in (*_NEEDED, *columns)]
    old = F.struct(*(F.col("_old").getField(name).alias(name) for name in keys))
    changes = df.select(
        *(F.when(F.col("_old").isNotNull(), old).alias(name) if name == "_old" else name for name in _NEEDED),
        *map(quoted, columns),
    )
    hashed = _hashed_columns(df.schema, schema, keys)
    described = described_in(schema)
    found = _summary(changes, hashed, with_first=len(described.versions) > 1)
    if found.get("first") is not None:
        # Net changes tell from which version on they are.
        used = versions_metadata(TableHistory().with_versions(described).used_from(found["first"]), described.renames)
        sent = [item.with_metadata(used) if item.name == "_op" else item for item in sent]
    function = NetFunction.of(pa.schema(sent), key)
    if found["truncate"] is not None:
        last = found["truncate"]
        names = ("_commit_position", "_position")
        changes = changes.where(F.struct(*names) > F.struct(*(F.lit(last[name]).alias(name) for name in names)))
    home, links = _home(changes, hashed, found)
    changes = changes.withColumn(_HOME, home)
    if links:
        one, shared = f"{_HOME}_one", f"{_HOME}_shared"
        rows = changes.sparkSession.createDataFrame([*links.items()], f"{one} bigint, {shared} bigint")
        changes = changes.join(F.broadcast(rows), F.col(_HOME) == F.col(one), "left")
        changes = changes.withColumn(_HOME, F.coalesce(shared, _HOME)).drop(one, shared)
    spread = changes.repartition(_HOME).sortWithinPartitions("_commit_position", "_position").drop(_HOME)
    with for_workers():
        net = spread.mapInArrow(function, spark_schema(function.schema, with_metadata=True))
    return net if found["truncate"] is None else net.union(_truncate(df, found["truncate"], net.schema))


def _hashed_columns(types: T.StructType, schema: pa.Schema, keys: Sequence[str]) -> list[str]:
    """Choose the columns of the key whose values Spark compares as the fold does."""
    history = TableHistory().with_versions(described_in(schema))
    return [name for name in keys if compare_alike(history.types(name)) and _is_plain(types[name].dataType)]


def _is_plain(kind: T.DataType) -> bool:
    return isinstance(
        kind,
        T.BooleanType | T.ByteType | T.ShortType | T.IntegerType | T.LongType | T.FloatType | T.DoubleType
        | T.StringType | T.BinaryType | T.DateType | T.TimestampType | T.TimestampNTZType | T.DecimalType,
    )  # fmt: skip


def _hash(columns: Iterable[Column]) -> Column:
    return F.xxhash64(F.lit(0), *columns)


def _moves() -> Column:
    return (F.col("_op") == "update") & F.col("_old_type").isNotNull()


def _values(hashed: Sequence[str]) -> tuple[list[Column], list[Column]]:
    """Return the columns of the key after a change, and before it."""
    return [F.col(quoted(name)) for name in hashed], [F.col("_old").getField(name) for name in hashed]


def _summary(changes: DataFrame, hashed: Sequence[str], *, with_first: bool) -> dict[str, Any]:
    """Find the last truncate, how many updates change the key, whether a change is bad, and perhaps the first one."""
    new, old = _values(hashed)
    about = F.struct("_commit_position", "_position", "_commit_lsn", F.unix_micros("_commit_timestamp").alias("time"))
    is_bad = F.col("_error").isNotNull() | F.col("_op").isNull()
    rows = changes if with_first else changes.where(_moves() | (F.col("_op") == "truncate") | is_bad)
    row = rows.agg(
        *([F.min("_position").alias("first")] if with_first else []),
        F.min(F.when(is_bad, F.col("_position"))).alias("bad"),
        F.max(F.when(F.col("_op") == "truncate", about)).alias("truncate"),
        F.count(F.when(_moves() & (_hash(new) != _hash(old)), 1)).alias("moves"),
    )
    (found,) = row.collect()
    if found["bad"] is not None:
        raise ValueError(f"position {found['bad']}: the change has an error: decode with mode='FAILFAST' to see it")
    return dict(found.asDict())


def _home(changes: DataFrame, hashed: Sequence[str], found: dict[str, Any]) -> tuple[Column, dict[int, int] | None]:
    """Return the number that is equal for changes of one row, and what replaces some of these numbers."""
    new, old = _values(hashed)
    if not found["moves"]:
        return _hash(new), None
    if found["moves"] <= _MOST_MOVES:
        pairs = changes.where(_moves()).select(_hash(new).alias("new"), _hash(old).alias("old")).where("new <> old")
        rows = pairs.distinct().toArrow()
        return _hash(new), connected(zip(rows["new"].to_pylist(), rows["old"].to_pylist(), strict=True))
    differs = [~one.eqNullSafe(other) for one, other in zip(new, old, strict=True)]
    (counts,) = changes.where(_moves()).agg(*(F.count(F.when(item, 1)) for item in differs)).collect()
    return _hash(column for column, n in zip(new, counts, strict=True) if not n), None


def connected(pairs: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Find the connected components of pairs of numbers. Map each number to one of its component."""
    above: dict[int, int] = {}

    def top(number: int) -> int:
        above.setdefault(number, number)
        while above[number] != number:
            above[number] = number = above[above[number]]
        return number

    for one, other in pairs:
        above[top(one)] = top(other)
    return {number: top(number) for number in above}


def _truncate(df: DataFrame, last: Any, schema: T.StructType) -> DataFrame:
    """Make the row of a truncate."""
    values = {
        "_action": F.lit("truncate"),
        "_unknown": F.array().cast("array<string>"),
        **{item.name: F.lit(last[item.name]) for item in ABOUT[:-1]},
        ABOUT[-1].name: F.timestamp_micros(F.lit(last["time"])),
    }
    row = df.sparkSession.range(1)
    return row.select(
        *(values.get(item.name, F.lit(None)).cast(item.dataType).alias(item.name) for item in schema.fields)
    )


@dataclass(frozen=True)
class NetFunction(WorkerFunction):
    """A function for `mapInArrow` that folds the changes of a partition, which are in order.

    Attributes
    ----------
    changes, schema : pa.Schema
        Of the changes, and of the net changes.
    key : tuple of str, optional
    """

    changes: pa.Schema
    schema: pa.Schema
    key: tuple[str, ...] | None

    @classmethod
    def of(cls, changes: pa.Schema, key: Sequence[str] | None) -> NetFunction:
        """Make the function for changes with a schema."""
        chosen = None if key is None else tuple(key)
        return cls(changes, _begun(chosen, changes).table().schema, chosen)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Fold the changes."""
        enter_task()
        net = _begun(self.key, self.changes)
        for batch in batches:
            columns = [
                column if column.type == item.type else column.cast(item.type)
                for column, item in zip(batch.columns, self.changes, strict=True)
            ]
            net.add(pa.RecordBatch.from_arrays(columns, schema=self.changes))
        yield from net.table().cast(self.schema).to_batches(65536)


def _begun(key: tuple[str, ...] | None, changes: pa.Schema) -> NetChanges:
    net = NetChanges(key)
    net.add(pa.RecordBatch.from_pylist([], schema=changes))
    return net
