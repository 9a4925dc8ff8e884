"""`relation_catalog`, `changes` and `table_changes` on Spark, for any distribution of the rows."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import pgdecode
from pgdecode import RelationCatalog
from pgdecode.changes.change_rows import CHANGES
from spark_udfs import changes, decode_files, relation_catalog, table_changes
from spark_udfs.schema.spark_types import spark_schema
from support import captures
from support.tiers import full, long

pytest_plugins = ["support.spark_session"]
pytestmark = pytest.mark.usefixtures("small_ranges")

Rows = list[dict[str, Any]]
Configure = Callable[[str, object], None]
NAME = "16.streams.v2"
SHOP = "16.shop.v1"


def as_set(rows: Rows) -> list[str]:
    """Rows as sorted texts."""
    return sorted(
        repr([dict(value) if name in ("old", "new") and value is not None else value for name, value in row.items()])
        for row in rows
    )


def found(df: DataFrame) -> list[str]:
    return as_set(df.toArrow().to_pylist())


def whole(name: str, **options: Any) -> Rows:
    """The changes that one decoder returns for all payloads in order."""
    decoder = pgdecode.ChangeDecoder(include_uncommitted=True, **options)
    rows = decoder.decode(captures.capture(name).column).to_pylist()
    return [*rows, *decoder.undecided().to_pylist()]


def table(*names: str, source: bool = True) -> pa.Table:
    """Several captures as sources. Each has its own positions, with gaps."""
    parts = []
    for name in names:
        column = captures.capture(name).column
        columns = {"seq": pa.array([2 * at for at in range(len(column))], pa.int32()), "data": column}
        parts.append(pa.table({"server": pa.array([name] * len(column)), **columns} if source else columns))
    return pa.concat_tables(parts)


def without_gaps(rows: pa.Table) -> pa.Table:
    return rows.set_column(rows.column_names.index("seq"), "seq", pa.array(range(len(rows)), pa.int64()))


def landed(folder: Path, rows: pa.Table, cuts: list[int] | None = None) -> str:
    """Write rows as files, in order."""
    folder.mkdir()
    bounds = [0, *(cuts or ()), len(rows)]
    for number, (start, end) in enumerate(pairwise(bounds)):
        pq.write_table(rows.slice(start, end - start), folder / f"{number:03}.parquet", row_group_size=3000)
    return str(folder)


def random_cuts(rng: random.Random, n_rows: int, n_files: int) -> list[int]:
    return sorted(rng.sample(range(1, n_rows), n_files - 1))


# -- the same changes for any distribution of the rows ---------------------------------------------------------------


# Captures of each scenario and protocol version, in text and binary.
SOURCES = [name for name in captures.NAMES if name.startswith(("10.txns", "14.streams", "18."))]


@pytest.fixture(scope="module")
def everything() -> tuple[pa.Table, list[str]]:
    """Captures as sources of one table, and their changes."""
    rows = [
        {
            "server": name,
            **row,
            "position": 2 * row["position"],
            "commit_position": row["commit_position"] and 2 * row["commit_position"],
        }
        for name in SOURCES
        for row in whole(name, mode="PERMISSIVE")
    ]
    return table(*SOURCES), as_set(rows)


SPREAD: dict[str, Callable[[DataFrame], DataFrame]] = {
    "as it was written": lambda df: df,
    "shuffled within partitions": lambda df: df.sortWithinPartitions(F.hash("data")),
    "hashed to 5 partitions": lambda df: df.repartition(5, F.hash("data")),
    "dealt to 3 partitions": lambda df: df.repartition(3),
    "coalesced to 1 partition": lambda df: df.coalesce(1),
}


@pytest.mark.parametrize(
    ("n_files", "spread"),
    [
        long(64, "as it was written", id="64 files"),
        full(7, "shuffled within partitions", id="7 files, shuffled"),
        long(7, "hashed to 5 partitions", id="hashed"),
        long(1, "dealt to 3 partitions", id="dealt"),
        long(7, "coalesced to 1 partition", id="coalesced"),
    ],
)
def test_captures_as_sources_of_one_frame_give_what_one_decoder_gives_for_each(
    spark: SparkSession,
    configure: Configure,
    tmp_path: Path,
    rng: random.Random,
    everything: tuple[pa.Table, list[str]],
    n_files: int,
    spread: str,
) -> None:
    configure("spark.sql.files.maxPartitionBytes", 1 << 19)
    rows, expected = everything
    folder = landed(tmp_path / "raw", rows, random_cuts(rng, len(rows), n_files))
    df = SPREAD[spread](spark.read.parquet(folder))
    decoded = changes(df, source="server", mode="PERMISSIVE", include_uncommitted=True)
    assert decoded.columns == ["server", *CHANGES.names]
    assert found(decoded) == expected


@pytest.mark.parametrize(("n_files", "dense"), [long(1, False), (4, True), full(16, False), long(64, True)])
def test_files_of_one_slot_give_the_changes_of_one_decoder(
    spark: SparkSession, tmp_path: Path, rng: random.Random, n_files: int, dense: bool
) -> None:
    rows = table(NAME, source=False)
    rows = without_gaps(rows) if dense else rows
    folder = landed(tmp_path / "raw", rows, random_cuts(rng, len(rows), n_files))
    decoded = changes(spark.read.parquet(folder))
    assert decoded.schema == spark_schema(CHANGES)
    in_order = decoded.orderBy("commit_position", "position").toArrow().to_pylist()
    expected = pgdecode.ChangeDecoder().decode(rows["data"], rows["seq"].cast(pa.int64())).to_pylist()
    assert in_order == expected


def shuffles(df: DataFrame) -> int:
    """Number of shuffles in a plan."""
    plan: str = df._jdf.queryExecution().executedPlan().toString()  # type: ignore[operator]
    return plan.count("Exchange")


def sorts(df: DataFrame) -> int:
    plan: str = df._jdf.queryExecution().executedPlan().toString()  # type: ignore[operator]
    return plan.count("Sort [")


@pytest.mark.full
def test_files_in_order_are_decoded_without_a_shuffle_and_without_gaps_without_a_sort(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = table(SHOP, source=False)
    with_gaps = spark.read.parquet(landed(tmp_path / "gaps", rows, [100, 500]))
    dense = spark.read.parquet(landed(tmp_path / "dense", without_gaps(rows), [100, 500]))
    dealt = dense.repartition(3)
    plans = [changes(df) for df in (with_gaps, dense, dealt)]
    assert [(shuffles(plan), sorts(plan)) for plan in plans] == [(0, 1), (0, 0), (2, 1)]


@pytest.mark.full
def test_a_union_of_reads_is_decoded(spark: SparkSession, tmp_path: Path) -> None:
    rows = table(NAME, source=False)
    parts = [landed(tmp_path / "1", rows.slice(0, 3000)), landed(tmp_path / "2", rows.slice(3000))]
    df = spark.read.parquet(parts[0]).union(spark.read.parquet(parts[1]))
    assert changes(df).count() == pgdecode.ChangeDecoder().decode(rows["data"]).num_rows


@pytest.mark.full
@pytest.mark.parametrize("kind", ["tinyint", long("smallint"), "int", long("bigint")])
def test_positions_may_be_integers_of_any_width(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    rows = without_gaps(table(SHOP, source=False).slice(0, 120))
    df = spark.read.parquet(landed(tmp_path / "raw", rows)).select(F.col("seq").cast(kind).alias("at"), "data")
    assert changes(df, position="at").count() == pgdecode.ChangeDecoder().decode(rows["data"]).num_rows > 0


@pytest.mark.full
def test_columns_may_be_expressions_and_nested(spark: SparkSession, tmp_path: Path) -> None:
    rows = table(SHOP, source=False)
    df = spark.read.parquet(landed(tmp_path / "raw", rows)).select(F.struct("seq", "data").alias("value"))
    decoded = changes(df, payload="value.data", position=F.col("value.seq") + 1, source=F.lit(7).alias("slot"))
    assert decoded.columns[0] == "slot"
    assert decoded.where("slot = 7").count() == pgdecode.ChangeDecoder().decode(rows["data"]).num_rows


@pytest.mark.full
def test_no_rows_have_no_changes(spark: SparkSession) -> None:
    nothing = spark.createDataFrame([], "seq bigint, data binary")
    assert changes(nothing).collect() == []
    assert len(relation_catalog(nothing)) == 0
    with pytest.raises(KeyError, match=r"no message has described 'public\.t'; there are none"):
        table_changes(nothing, "public.t")


@pytest.mark.full
def test_null_payloads_are_ignored(spark: SparkSession, tmp_path: Path) -> None:
    rows = table(SHOP, source=False)
    df = spark.read.parquet(landed(tmp_path / "raw", rows))
    more = df.union(df.select((F.col("seq") + 1).alias("seq"), F.lit(None).cast("binary").alias("data")))
    assert found(changes(more)) == found(changes(df))


@pytest.mark.full
def test_changes_are_a_view_for_sql(spark: SparkSession, tmp_path: Path) -> None:
    rows = table(SHOP, source=False)
    changes(spark.read.parquet(landed(tmp_path / "raw", rows))).createOrReplaceTempView("shop_changes")
    counted = spark.sql("SELECT op, count(*) n FROM shop_changes WHERE relation_name = 'orders' GROUP BY op").collect()
    local = pgdecode.ChangeDecoder().decode(rows["data"]).to_pylist()
    ops = [row["op"] for row in local if row["relation_name"] == "orders"]
    assert {row["op"]: row["n"] for row in counted} == {op: ops.count(op) for op in set(ops)}


@pytest.mark.full
def test_fields_are_the_columns_that_are_built(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.read.parquet(landed(tmp_path / "raw", table(SHOP)))
    assert changes(df, fields=["new", "op"]).columns == ["new", "op"]
    assert changes(df, fields=["op"], source="server").columns == ["server", "op"]
    assert table_changes(df, "public.orders", fields=["id", "_op"]).first() is not None
    with pytest.raises(ValueError, match="no such column: 'nwe'"):
        changes(df, fields=["nwe"])


# -- relations -------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_the_catalog_is_that_of_the_messages_in_order(spark: SparkSession, tmp_path: Path) -> None:
    names = ("18.streams.v4", "16.txns.v2", SHOP)
    df = spark.read.parquet(landed(tmp_path / "raw", table(*names))).repartition(3)
    catalogs = relation_catalog(df, source="server")
    for name in names:
        rows = table(name)
        assert catalogs[name] == RelationCatalog.from_messages(rows["data"], rows["seq"])
    assert relation_catalog(df.where(F.col("server") == SHOP)) == catalogs[SHOP]


@pytest.mark.full
def test_a_row_of_an_unknown_relation_names_it_and_says_how_to_describe_it(spark: SparkSession, tmp_path: Path) -> None:
    rows = table(SHOP, source=False)
    df = spark.read.parquet(landed(tmp_path / "raw", rows))
    is_relation = F.substring("data", 1, 1) == F.lit(b"R")
    with pytest.raises(
        PySparkException, match=r"UnknownRelation: position \d+, .*relation \d+ has not .* pass catalog="
    ):
        changes(df.where(~is_relation)).collect()
    reported = changes(df.where(~is_relation), mode="PERMISSIVE", fields=["error"]).where("error IS NOT NULL")
    assert reported.count() == changes(df, fields=["position"]).count()


@pytest.mark.full
def test_a_catalog_describes_relations_of_payloads_that_begin_mid_stream(spark: SparkSession, tmp_path: Path) -> None:
    rows = table(SHOP, "18.streams.v1")
    df = spark.read.parquet(landed(tmp_path / "raw", rows))
    catalogs = relation_catalog(df, source="server")
    without = df.where(f"server <> '{SHOP}' OR seq >= 500")
    with pytest.raises(PySparkException, match="UnknownRelation"):
        changes(without, source="server").collect()
    given = {SHOP: catalogs[SHOP]}
    decoded = changes(without, source="server", catalog=given).where(f"server = '{SHOP}'").drop("server")
    rest = table(SHOP).slice(250)
    expected = pgdecode.ChangeDecoder(catalog=catalogs[SHOP]).decode(rest["data"], rest["seq"]).to_pylist()
    assert found(decoded) == as_set(expected) != []
    with pytest.raises(TypeError, match="catalog is a RelationCatalog, or with source= a mapping"):
        changes(without, source="server", catalog=catalogs[SHOP])
    with pytest.raises(TypeError, match="catalog is a RelationCatalog, or with source= a mapping"):
        changes(without, catalog=catalogs)


# -- tables ----------------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "relation"),
    [
        (SHOP, "public.order_items"),
        ("18.shop.v1", "public.products"),
        ("18.streams.v4", "public.s1"),
        ("16.txns.v2", "public.a2"),
    ],
)
def test_a_tables_changes_are_those_of_one_decoder(
    spark: SparkSession, tmp_path: Path, rng: random.Random, name: str, relation: str
) -> None:
    rows = table(name, source=False)
    df = spark.read.parquet(landed(tmp_path / "raw", rows, random_cuts(rng, len(rows), 5)))
    decoded = table_changes(df, relation)
    decoder = pgdecode.ChangeDecoder()
    expected = decoder.table(rows["data"], relation, rows["seq"])
    assert decoded.columns == expected.schema.names
    in_order = decoded.orderBy("_commit_position", "_position").toArrow()
    assert in_order.cast(expected.schema).to_pylist() == expected.to_pylist()


@pytest.mark.full
def test_a_table_of_several_sources_has_the_columns_of_all(spark: SparkSession, tmp_path: Path) -> None:
    names = ("14.shop.v1", "18.shop.v1", "18.streams.v1")
    df = spark.read.parquet(landed(tmp_path / "raw", table(*names)))
    decoded = table_changes(df, "public.customers", source="server")
    counted = {row["server"]: row["count"] for row in decoded.groupBy("server").count().collect()}
    local = {
        name: pgdecode.ChangeDecoder().table(captures.capture(name).column, "public.customers").num_rows
        for name in names[:2]
    }
    assert counted == local
    with pytest.raises(KeyError, match=r"'public\.custom' \(did you mean public\.customers\?\); there"):
        table_changes(df, "public.custom", source="server")


@pytest.mark.full
def test_the_change_feed_is_that_of_the_local_decoder_in_dataframes_and_in_files(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = captures.DATA / "16.shop.v1.parquet"
    raw = pq.read_table(path)
    expected = pgdecode.ChangeDecoder().table(raw["data"], "public.orders", raw["seq"], shape="delta")
    order = [("_position", "ascending"), ("_change_type", "descending")]
    found = table_changes(spark.read.parquet(str(path)), "public.orders", shape="delta")
    assert found.schema == spark_schema(expected.schema, with_metadata=True)
    rows = found.toArrow().cast(expected.schema).sort_by(order)
    assert rows.to_pylist() == pa.table(expected).sort_by(order).to_pylist()
    decode_files(spark, path, tmp_path / "out", what="public.orders", shape="delta")
    assert pq.read_table(tmp_path / "out").to_pylist() == expected.to_pylist()
