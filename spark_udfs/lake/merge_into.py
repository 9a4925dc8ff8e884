"""`merge_into`: net changes into a table of Delta or Iceberg, by one statement of the engine."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Any, get_args

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pgdecode.datasets.errors import RunError
from pgdecode.lake.target import MissingRow
from pgdecode.net.schema import ABOUT
from pgdecode.protocol.errors import listed
from pgdecode.protocol.options import check_option
from pgdecode.relations.column_history import last_version
from pgdecode.relations.schema_metadata import described_in
from spark_udfs.lake.evolution import Difference, SchemaChanges, difference, evolve, rewritten_columns
from spark_udfs.lake.lake_table import Applied, LakeFormat, LakeTable, stored_columns
from spark_udfs.schema.spark_types import arrow_schema, quoted

_ABOUT = ("_action", "_key_before", "_unknown", *(item.name for item in ABOUT))
_ROW = "_pgdecode_row"
_MISSING = "_pgdecode_missing"
_COUNT = "_pgdecode_count"


@dataclass(frozen=True)
class MergeResult:
    """What `merge_into` did.

    Attributes
    ----------
    upserts, deletes : int
        Net changes of these actions.
    is_truncated : bool
        Whether all rows from before were removed.
    position : int
        The greatest `_commit_position` that the table has now; -1 if it is not known.
    is_applied : bool
        False if the table had these net changes already, or there are none.
    """

    upserts: int
    deletes: int
    is_truncated: bool
    position: int
    is_applied: bool


def merge_into(
    net: DataFrame,
    table: str,
    *,
    position: int | None = None,
    change: int | None = None,
    schema_changes: SchemaChanges = "evolve",
    using: LakeFormat | None = None,
) -> MergeResult:
    """Merge net changes into a table of Delta or Iceberg, so that it equals that of the server.

    Parameters
    ----------
    net : DataFrame
        What `net_changes` returns: the changes since the last call, of one table.
    table : str
        "catalog.schema.table", as SQL takes it. It is made if it does not exist.
    position : int, optional
        The greatest `_commit_position` of the changes, which is written as applied. By default that of the net changes,
        which may be less: a row that was inserted and deleted is in no net change.
    change : int, optional
        If the last transaction of the changes is not complete: the `_position` of its last change. Pass net changes of
        the later ones in the next call.
    schema_changes : {"evolve", "ignore", "fail"}
        If the columns of the changes differ from those of the table: add, rename, drop and widen columns of the table;
        leave them as they are, so that added columns are not written and dropped ones are null in new rows; or fail.
    using : {"delta", "iceberg"}, optional
        The format of a table that is made. By default that of the catalog.

    Returns
    -------
    MergeResult

    Raises
    ------
    MissingRow
        If an update did not send all values, and its row is not in the table. Nothing is written.
    RunError
        If the columns cannot be those of the changes; if the table has a part of the net changes already; if another
        writer was faster.
    TypeError, ValueError
        If `net` is a stream, or does not have the columns of net changes.

    Notes
    -----
    One MERGE removes the rows with the former keys and writes the upserts, so that swaps and chains of keys are right.
    Values that the changes do not tell are those of the row with the former key. The greatest `_commit_position` is
    written in the same commit: in the user metadata of Delta, as the number of a transaction of Delta (`txnVersion`),
    and in the summary of a snapshot of Iceberg. Net changes up to this position are left out, so a call that is
    repeated changes nothing. Schema changes are commits of their own before it; they can be repeated.

    Without a key (REPLICA IDENTITY FULL), rows are removed whole, one for each net change. No MERGE does that, so the
    table is written again, in one commit. Columns of the type map are not possible then. Pass a key to `net_changes`.

    Examples
    --------
    >>> net = spark_udfs.net_changes(spark_udfs.table_changes(raw, "public.orders"))  # doctest: +SKIP
    >>> spark_udfs.merge_into(net, "lake.shop.orders").upserts  # doctest: +SKIP
    114
    """
    check_option("schema_changes", schema_changes, SchemaChanges)
    if using is not None and using not in get_args(LakeFormat):
        raise ValueError(f"using must be one of {listed(map(repr, get_args(LakeFormat)))}, not {using!r}")
    if net.isStreaming:
        raise TypeError("a streaming DataFrame has no end: use apply_stream, or call merge_into in foreachBatch")
    missing = [name for name in _ABOUT if name not in net.columns]
    if missing:
        raise ValueError(f"the columns {listed(map(repr, missing))} are missing: net is what net_changes returns")
    with cached(net):
        return _Merge(net, table, using).run(schema_changes, position, change)


class _Merge:
    """One call of `merge_into`."""

    def __init__(self, net: DataFrame, name: str, using: LakeFormat | None) -> None:
        self.net = net
        self.spark = net.sparkSession
        self.columns = T.StructType([item for item in net.schema if item.name not in _ABOUT])
        self.key: list[str] = net.select("_key_before.*").columns
        self.described = described_in(arrow_schema(net.schema))
        self.name = name
        self.using = using

    def run(self, schema_changes: SchemaChanges, position: int | None, change: int | None) -> MergeResult:
        batch = self._summary()
        table = LakeTable.open(self.spark, self.name)
        if table is None:
            table = self._made()
        applied = table.applied()
        if batch["last"] is None:
            is_new = position is not None and Applied(position, change=change).place > applied.place
            if is_new and not self._is_before(table):
                # The next changes may have columns of a later version, in which another column has the same name.
                self._with_columns(table, schema_changes, is_truncated=False)
            return MergeResult(0, 0, False, applied.position, False)
        last = max(batch["last"], batch["last"] if position is None else position)
        state = Applied(last, applied.app_id, change)
        if Applied(batch["last"], change=change).place <= applied.place:
            return MergeResult(0, 0, False, applied.position, False)
        result = MergeResult(batch["upserts"], batch["deletes"], batch["truncates"] > 0, last, True)
        # After a truncate, the rows do not depend on those of the table. If a transaction is applied in part, the
        # caller has left out that part.
        first = batch["first"] + (applied.change is not None)
        if first <= applied.position and not result.is_truncated:
            raise RunError(
                f"table {self.name} has the changes up to position {applied.position}, and these net changes begin "
                "before it: make net changes of the changes with a greater _commit_position"
            )
        self._check_rewritten()
        table, names = self._with_columns(table, schema_changes, is_truncated=result.is_truncated)
        self._check_key(names)
        if self._is_keyless() and batch["before"]:
            self._write_again(table, names, result, state)
        else:
            self._merge(table, names, result, state, has_unknown=batch["unknown"] > 0)
        return result

    def _is_before(self, table: LakeTable) -> bool:
        """Whether a call for later changes, which ended before they were written, has changed the columns already."""
        return table.version is not None and all(
            item.position < table.version.position for item in self.described.versions
        )

    def _with_columns(
        self, table: LakeTable, schema_changes: SchemaChanges, *, is_truncated: bool
    ) -> tuple[LakeTable, Mapping[str, str]]:
        """Give the table the columns of the net changes, and return it with their names by those of the table."""
        found = difference(table, self.columns, self.described)
        if schema_changes == "fail" and found.texts:
            raise RunError(f"table {self.name}: {found.texts[0]}, and schema_changes is 'fail'")
        if schema_changes != "evolve":
            return table, found.names
        if found.texts or not _is_version_of(table, found):
            is_empty = is_truncated or table.frame().isEmpty()
            table = evolve(table, self.columns, found, is_empty=is_empty)
        return table, {name: name for name in self.columns.names}

    def _summary(self) -> dict[str, Any]:
        action = F.col("_action")
        found = self.net.agg(
            F.min("_commit_position").alias("first"),
            F.max("_commit_position").alias("last"),
            F.count(F.when(action == "truncate", 1)).alias("truncates"),
            F.count(F.when(action == "upsert", 1)).alias("upserts"),
            F.count(F.when(action == "delete", 1)).alias("deletes"),
            F.count("_key_before").alias("before"),
            F.count(F.when(F.size("_unknown") > 0, 1)).alias("unknown"),
        ).first()
        assert found is not None
        return dict(found.asDict())

    def _check_rewritten(self) -> None:
        """Check that no value may be unknown because of its type. The row of the table may have an older one."""
        for name, position in rewritten_columns(self.described).items():
            is_lost = F.array_contains("_unknown", name)
            (first,) = self.net.agg(F.min(F.when(is_lost, F.col("_position")))).first() or (None,)
            if first is not None:
                raise RunError(
                    f"table {self.name}, position {first}: the value of column {name!r} is not known, because its type "
                    f"is another one from position {position} on. Make net changes of the changes before and from this "
                    "position on apart, or use apply_stream, which does so"
                )

    def _made(self) -> LakeTable:
        versions = self.described.versions
        last = last_version(versions) if versions else None
        is_key = last is not None and (last.replica_identity in ("d", "i") or {*self.key} == {*last.primary_key})
        format = LakeTable.format_of(self.spark, self.name, self.using)
        columns = stored_columns(self.columns, format, self.key if is_key else ())
        return LakeTable.create(self.spark, self.name, format, columns, last)

    def _is_keyless(self) -> bool:
        """Whether rows are told apart by all columns, and may be equal."""
        versions = self.described.versions
        is_full = not versions or last_version(versions).replica_identity in ("f", "n")
        return is_full and {*self.key} == {*self.columns.names}

    def _check_key(self, names: Mapping[str, str]) -> None:
        absent = [name for name in self.key if name not in names.values()]
        if absent:
            raise RunError(f"table {self.name} has no column {absent[0]!r}, which is one of the key")

    # -- MERGE ---------------------------------------------------------------------------------------------------------

    def _merge(
        self, table: LakeTable, names: Mapping[str, str], result: MergeResult, state: Applied, *, has_unknown: bool
    ) -> None:
        upserts = self._upserts(table, names, has_unknown=has_unknown and not result.is_truncated)
        key = [target for target, name in names.items() if name in self.key]
        source = upserts if result.is_truncated else upserts.unionByName(self._removed(names, upserts, key), True)
        # A view of a plan that reads the target cannot be the source of a MERGE of Spark 4.1 into it. So the rows are
        # stored, which also keeps MERGE from computing them twice.
        source = source.localCheckpoint()
        with _view(source) as view:
            (missing,) = source.agg(F.min(F.when(F.col(_MISSING), F.col("_position")))).first() or (None,)
            if missing is not None:
                raise MissingRow(missing)
            is_equal = " AND ".join(f"t.{quoted(name)} <=> s.{quoted(name)}" for name in key)
            if self._is_keyless():
                is_equal = "false"  # all upserts are new rows
            values = ", ".join(f"s.{quoted(name)}" for name in names)
            updates = ", ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in names)
            statement = (
                f"MERGE INTO {table.name} AS t USING {view} AS s ON {is_equal} "
                "WHEN MATCHED AND s._action = 'delete' THEN DELETE "
                f"WHEN MATCHED THEN UPDATE SET {updates} "
                f"WHEN NOT MATCHED AND s._action = 'upsert' THEN INSERT ({', '.join(map(quoted, names))}) "
                f"VALUES ({values})"
            )
            if result.is_truncated:
                statement += " WHEN NOT MATCHED BY SOURCE THEN DELETE"
            with table.commit(state):
                self.spark.sql(statement)

    def _upserts(self, table: LakeTable, names: Mapping[str, str], *, has_unknown: bool) -> DataFrame:
        """Return the rows to write, with the columns of the target, and unknown values from its rows."""
        upserts = self.net.where("_action = 'upsert'")
        is_unknown = F.arrays_overlap("_unknown", F.array(*map(F.lit, names.values())))
        plain = [F.col(quoted(name)).alias(target) for target, name in names.items()]
        about = ["_action", "_position"]
        if not has_unknown:
            return upserts.select(*about, is_unknown.alias(_MISSING), *plain)
        lists = upserts.where(is_unknown).agg(F.array_distinct(F.flatten(F.collect_set("_unknown")))).first()
        unknown = {*lists[0]} if lists is not None else set()
        key = F.struct(*(F.col(quoted(target)).alias(name) for target, name in names.items() if name in self.key))
        row = F.struct(F.lit(1).alias(_ROW), *(quoted(target) for target, name in names.items() if name in unknown))
        old = table.frame().select(key.alias("_pgdecode_key"), row.alias(_ROW))
        is_same = (
            F.col("_key_before").getField(name).eqNullSafe(F.col("_pgdecode_key").getField(name)) for name in self.key
        )
        has_before = F.col("_key_before").isNotNull()
        joined = upserts.where(is_unknown).join(old, reduce(Column.__and__, is_same, has_before), "left")
        filled = [
            F.when(F.array_contains("_unknown", name), F.col(_ROW).getField(target))
            .otherwise(F.col(quoted(name)))
            .alias(target)
            if name in unknown
            else F.col(quoted(name)).alias(target)
            for target, name in names.items()
        ]
        known = upserts.where(~is_unknown).select(*about, F.lit(False).alias(_MISSING), *plain)
        return known.unionByName(joined.select(*about, F.col(_ROW).isNull().alias(_MISSING), *filled))

    def _removed(self, names: Mapping[str, str], upserts: DataFrame, key: Sequence[str]) -> DataFrame:
        """Return the former keys that no upsert has."""
        before = F.col("_key_before")
        is_same = (before.getField(name).eqNullSafe(F.col(quoted(name))) for name in self.key)
        is_moved = (F.col("_action") == "delete") | ~reduce(Column.__and__, is_same)
        columns = (before.getField(names[target]).alias(target) for target in key)
        removed = self.net.where(before.isNotNull() & is_moved).select(
            F.lit("delete").alias("_action"), "_position", F.lit(False).alias(_MISSING), *columns
        )
        written = upserts.select(*(F.col(quoted(name)).alias(f"_pgdecode_{name}") for name in key))
        is_equal = (F.col(quoted(name)).eqNullSafe(F.col(quoted(f"_pgdecode_{name}"))) for name in key)
        return removed.join(written, reduce(Column.__and__, is_equal), "left_anti")

    # -- rows without a key --------------------------------------------------------------------------------------------

    def _write_again(self, table: LakeTable, names: Mapping[str, str], result: MergeResult, state: Applied) -> None:
        """Remove one row for each former row, add the upserts, and replace all rows in one commit."""
        columns = [*names]
        others = [name for name in table.columns.names if name not in names]
        if others:
            raise RunError(f"table {self.name} has the column {others[0]!r}, which the rows without a key do not have")
        upserts = self._upserts(table, names, has_unknown=False).drop("_action", "_position")
        (missing,) = self.net.where(
            (F.col("_action") == "upsert") & (F.size("_unknown") > 0)
        ).agg(F.min("_position")).first() or (None,)  # fmt: skip
        if missing is not None:
            raise MissingRow(missing)
        rows = upserts.drop(_MISSING)
        if not result.is_truncated:
            before = F.col("_key_before")
            removed = self.net.where(before.isNotNull()).select(
                *(before.getField(name).cast(table.columns[target].dataType).alias(f"_pgdecode_{target}")
                  for target, name in names.items())
            )  # fmt: skip
            removed = removed.groupBy(*map(quoted, removed.columns)).agg(F.count(F.lit(1)).alias(_COUNT))
            of_equal_rows = Window.partitionBy(*map(quoted, columns)).orderBy(F.lit(1))
            numbered = table.frame().withColumn(_ROW, F.row_number().over(of_equal_rows))
            is_same = (F.col(quoted(name)).eqNullSafe(F.col(quoted(f"_pgdecode_{name}"))) for name in columns)
            kept = numbered.join(removed, reduce(Column.__and__, is_same), "left")
            kept = kept.where(F.col(_ROW) > F.coalesce(_COUNT, F.lit(0))).select(*map(quoted, columns))
            rows = kept.unionByName(rows)
        rows = rows.select(*(F.col(quoted(item.name)).cast(item.dataType) for item in table.columns))
        with table.commit(state):
            rows.writeTo(table.name).overwrite(F.lit(True))


def _is_version_of(table: LakeTable, found: Difference) -> bool:
    """Whether a table has the columns of the last version, and its properties tell as much of it."""
    last, own = found.version, table.version
    return last is None or (own is not None and last.is_like(own) and (own.facts is not None or last.facts is None))


@contextmanager
def cached(frame: DataFrame) -> Iterator[None]:
    """Keep the rows of a DataFrame, which several statements read."""
    frame.persist()
    try:
        yield
    finally:
        frame.unpersist()


@contextmanager
def _view(frame: DataFrame) -> Iterator[str]:
    """Give a DataFrame a name in SQL."""
    name = f"pgdecode_{uuid.uuid4().hex}"
    frame.createOrReplaceTempView(name)
    try:
        yield name
    finally:
        frame.sparkSession.catalog.dropTempView(name)
