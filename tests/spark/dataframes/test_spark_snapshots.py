"""`snapshot` on Spark: the tables of the server, for any distribution of the changes."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from functools import reduce
from typing import Any

import pyarrow as pa
import pytest
from net.test_snapshot import as_text, differences, replayed, spelled, table_names
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import pgdecode
from pgdecode import RelationCatalog
from spark_udfs import snapshot
from spark_udfs.dataframes import snapshot as module
from spark_udfs.schema.spark_types import spark_schema
from support import captures
from support.generators.altered_table import AlteredTable
from support.generators.random_tables import T, random_table
from support.generators.slot import Slot
from support.generators.slots import UNCHANGED
from support.tiers import full, long

pytest_plugins = ["support.spark_session"]

TABLE = f"public.t{T}"


def frame(spark: SparkSession, payloads: Sequence[bytes] | pa.Array, **columns: Any) -> DataFrame:
    rows = pa.table({"seq": pa.array(range(len(payloads)), pa.int64()), "data": pa.array(payloads, pa.binary())})
    for name, value in columns.items():
        rows = rows.append_column(name, pa.array([value] * len(rows)))
    return spark.createDataFrame(rows)


def rows_of(df: DataFrame) -> list[tuple[Any, ...]]:
    """Rows as sorted tuples of the table's columns, then the list of unknown columns."""
    rows = df.drop(*pgdecode.net.snapshot.ABOUT).toArrow().to_pylist()
    return sorted(((*(v for k, v in row.items() if k != "_unknown"), row["_unknown"]) for row in rows), key=repr)


@pytest.fixture(autouse=True)
def small_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use several buckets even for few changes."""
    monkeypatch.setattr(module, "_ROWS_PER_BUCKET", 100)


@pytest.mark.parametrize("name", ["10.shop.v1", full("18.txns.v2"), "16.streams.v2", "18.twophase.v3"])
def test_a_snapshot_of_every_table_is_what_the_server_held(spark: SparkSession, name: str) -> None:
    payloads = captures.capture(name).column
    df = frame(spark, payloads).cache()
    catalog = RelationCatalog.from_messages(payloads)
    types = as_text(catalog)
    tables = {}
    for table in table_names(catalog):
        rows = snapshot(df, table, types=types)
        tables[spelled(catalog, table)] = replayed(rows.toArrow())
    assert differences(name, tables) == []


@pytest.mark.full
def test_typed_rows_are_those_of_the_local_function(spark: SparkSession) -> None:
    payloads = captures.capture("18.shop.v1").column
    for table in ("public.orders", "public.products"):
        found = snapshot(frame(spark, payloads), table)
        expected = pgdecode.snapshot(payloads, table, range(len(payloads)))
        assert found.schema == spark_schema(expected.schema)
        in_order = found.orderBy("_commit_position", "_position").toArrow().cast(expected.schema)
        order = [("_commit_position", "ascending"), ("_position", "ascending")]
        assert in_order.to_pylist() == expected.sort_by(order).to_pylist()


@pytest.mark.full
@pytest.mark.parametrize("identity", ["d", *map(long, "fn")])
def test_random_changes_leave_the_rows_that_they_were_written_for(
    spark: SparkSession, rng: random.Random, identity: str
) -> None:
    slots = [random_table(rng, identity) for _ in range(6)]
    df = frame(spark, slots[0][0].payloads, server=0)
    for number, (slot, _) in enumerate(slots[1:], 1):
        df = df.union(frame(spark, slot.payloads, server=number))
    found = defaultdict(list)
    for server, *row in rows_of(snapshot(df.repartition(3), TABLE, source="server")):
        found[server].append(tuple(row))
    for number, (_, rows) in enumerate(slots):
        assert found[number] == sorted(((*row, []) for row in rows), key=repr)
    assert rows_of(snapshot(df.where("server = 2"), TABLE)) == found[2]


@pytest.mark.full
def test_altered_tables_of_sources_have_the_rows_of_each(spark: SparkSession, rng: random.Random) -> None:
    tables = [AlteredTable(rng, renames=number > 0).run(120) for number in range(4)]
    slots = [table.payloads for table in tables if table.names]
    types = {
        kind: text for payloads in slots for kind, text in as_text(RelationCatalog.from_messages(payloads)).items()
    }
    every = [frame(spark, payloads, server=number) for number, payloads in enumerate(slots)]
    df = reduce(DataFrame.union, every).repartition(3)
    rows = snapshot(df, TABLE, source="server", types=types).toArrow().to_pylist()
    for number, payloads in enumerate(slots):
        local = pgdecode.snapshot(payloads, TABLE, range(len(payloads)), types=types).to_pylist()
        of_source = [row for row in rows if row["server"] == number]
        names = local[0].keys() if local else ()
        assert sorted(repr({name: row[name] for name in names}) for row in of_source) == sorted(map(repr, local))


@pytest.mark.full
def test_a_value_stays_with_its_row_over_distant_keys(spark: SparkSession) -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["id", "v", "toast"], keys=["id"])
    for number in range(300):
        slot.insert(T, str(number), "a", f"long {number}")
    for step in range(3):
        for number in range(20):
            before = str(number) if step == 0 else f"{number}.{step - 1}"
            slot.update(T, f"{number}.{step}", str(step), UNCHANGED, old=[before, None, None], old_type="K")
    slot.commit()
    expected = [(f"{number}.2", "2", f"long {number}", []) for number in range(20)]
    expected += [(str(number), "a", f"long {number}", []) for number in range(20, 300)]
    assert rows_of(snapshot(frame(spark, slot.payloads), TABLE)) == sorted(expected, key=repr)


@pytest.mark.full
def test_an_identity_that_shares_no_column_with_the_one_before_finds_its_rows(spark: SparkSession) -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["a", "b"], keys=["a"])
    for number in range(200):
        slot.insert(T, str(number), f"b{number}")
    slot.relation(T, ["a", "b"], keys=["b"])
    for number in range(0, 200, 2):
        slot.delete(T, None, f"b{number}", old_type="K")
    slot.commit()
    expected = sorted(((str(number), f"b{number}", []) for number in range(1, 200, 2)), key=repr)
    assert rows_of(snapshot(frame(spark, slot.payloads), TABLE)) == expected


@pytest.mark.full
def test_rows_are_found_after_the_type_of_their_key_was_altered(spark: SparkSession) -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["id", "n", "v"], types=[650, 23, 25], keys=["id", "n"])
    for number in range(200):
        slot.insert(T, f"10.0.0.{number}/32", str(number), "x")
    slot.relation(T, ["id", "n", "v"], types=[25, 20, 23], keys=["id", "n"])
    for number in range(0, 200, 2):
        slot.update(T, f"10.0.0.{number}/32", str(number), "7")
    for number in range(0, 200, 4):
        slot.delete(T, f"10.0.0.{number}/32", str(number), None, old_type="K")
    slot.commit()
    expected = rows_of_local(slot)
    assert len(expected) == 150
    assert {tuple(row[3]) for row in expected} == {(), ("v",)}
    assert rows_of(snapshot(frame(spark, slot.payloads), TABLE)) == expected


@pytest.mark.full
def test_a_key_that_was_added_filled_and_renamed_finds_its_rows(spark: SparkSession) -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["id", "v"], types=[23, 25], keys=["id"])
    for number in range(100):
        slot.insert(T, str(number), "x")
    slot.relation(T, ["id", "v", "id_new"], types=[23, 25, 20], keys=["id"])
    for number in range(100):
        slot.update(T, str(number), "x", str(number + 1000))
    at = len(slot.payloads)
    slot.relation(T, ["v", "id"], types=[25, 20], keys=["id"])
    for number in range(50):
        slot.update(T, "y", str(number + 1000))
    slot.commit()
    expected = sorted((("y" if number < 50 else "x", number + 1000, []) for number in range(100)), key=repr)
    renames = [("id_new", "id", at)]
    assert rows_of(snapshot(frame(spark, slot.payloads), TABLE, renames=renames)) == expected


@pytest.mark.full
def test_a_key_that_using_has_computed_is_an_error_with_its_position(spark: SparkSession) -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["id", "v"], types=[23, 25], keys=["id"])
    slot.insert(T, "1", "x")
    slot.relation(T, ["id", "v"], types=[25, 25], keys=["id"])
    slot.update(T, "k1", "y")
    slot.commit()
    with pytest.raises(Exception, match=r"position 4: the changed row is not found .* column 'id' was written with"):
        rows_of(snapshot(frame(spark, slot.payloads), TABLE))


def rows_of_local(slot: Slot) -> list[tuple[Any, ...]]:
    rows = pgdecode.snapshot(slot.payloads, TABLE).drop(pgdecode.net.snapshot.ABOUT).to_pylist()
    return sorted(((*(v for k, v in row.items() if k != "_unknown"), row["_unknown"]) for row in rows), key=repr)


@pytest.mark.full
def test_a_missing_table_is_reported(spark: SparkSession) -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["a"], keys=["a"], name="before")
    slot.relation(T, ["a"], keys=["a"])
    slot.commit()
    df = frame(spark, slot.payloads)
    with pytest.raises(KeyError, match=rf"'public\.before' was renamed to '{TABLE}'"):
        snapshot(df, "public.before")
    with pytest.raises(KeyError, match=r"no relation 'public\.other' in the catalog"):
        snapshot(df, "public.other")
    assert rows_of(snapshot(df, TABLE)) == []


@pytest.mark.full
def test_the_rows_as_of_a_commit_are_those_of_the_local_function(spark: SparkSession) -> None:
    payloads = captures.capture("16.streams.v4").column
    table = table_names(RelationCatalog.from_messages(payloads))[0]
    tagged = [data for data in payloads.to_pylist() if data[:1] == b"c"]
    commits = [item for data in tagged if isinstance(item := pgdecode.decode(data), pgdecode.StreamCommit)]
    middle = commits[len(commits) // 2]
    df = frame(spark, payloads)
    for as_of in (middle.commit_lsn, middle.commit_timestamp):
        expected = pgdecode.snapshot(payloads, table, as_of=as_of)
        assert 0 < len(expected) < len(pgdecode.snapshot(payloads, table))
        assert rows_of(snapshot(df, table, as_of=as_of)) == rows_of(spark.createDataFrame(expected))
    both = df.withColumn("slot", F.lit("a")).union(df.withColumn("slot", F.lit("b")).limit(10))
    found = snapshot(both, table, source="slot", as_of=middle.commit_timestamp)
    assert rows_of(found.drop("slot")) == rows_of(spark.createDataFrame(expected))
    with pytest.raises(ValueError, match="as_of is an LSN, but each source has its own"):
        snapshot(both, table, source="slot", as_of=middle.commit_lsn)
