"""`net_changes` on Spark: equal to the local result, for any distribution of the changes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import pgdecode
from pgdecode.relations.schema_metadata import described_in
from spark_udfs import net_changes, table_changes
from spark_udfs.dataframes import net_changes as module
from spark_udfs.schema.spark_types import arrow_schema, spark_schema
from support import captures
from support.generators.random_tables import T, random_table
from support.generators.slot import Slot
from support.generators.slots import UNCHANGED
from support.tiers import full, long

pytest_plugins = ["support.spark_session"]

TABLE = f"public.t{T}"


def frame(spark: SparkSession, payloads: Sequence[bytes]) -> DataFrame:
    rows = pa.table({"seq": pa.array(range(len(payloads)), pa.int64()), "data": pa.array(payloads, pa.binary())})
    return spark.createDataFrame(rows).repartition(3)


def as_set(net: pa.Table) -> list[str]:
    return sorted(map(repr, net.to_pylist()))


def check(spark: SparkSession, slot: Slot, key: Sequence[str] | None = None) -> DataFrame:
    """Compare with the local result, and return the changes."""
    expected = pgdecode.net_changes(pgdecode.ChangeDecoder().table(slot.payloads, TABLE), key=key)
    changes = table_changes(frame(spark, slot.payloads), TABLE)
    found = net_changes(changes, key=key)
    assert found.schema == spark_schema(expected.schema, with_metadata=True)
    assert as_set(found.toArrow()) == as_set(expected)
    return changes


@pytest.mark.parametrize(
    ("name", "n_tables"), [full("18.shop.v1", 2), long("18.shop.v1", None), long("18.txns.v2", None)]
)
def test_the_net_changes_of_captured_tables_are_those_of_the_local_function(
    spark: SparkSession, name: str, n_tables: int | None
) -> None:
    payloads = captures.capture(name).column
    raw = frame(spark, payloads.to_pylist())
    for table in pgdecode.RelationCatalog.from_messages(payloads).names[:n_tables]:
        options: dict[str, Any] = {"unrepresentable": "null"}
        expected = pgdecode.net_changes(pgdecode.ChangeDecoder(**options).table(payloads, table))
        found = net_changes(table_changes(raw, table, **options)).toArrow()
        assert as_set(found) == as_set(expected), table


@pytest.mark.full
@pytest.mark.parametrize(
    ("identity", "most_moves"),
    [("d", 1_000_000), ("f", 0), long("n", 0), long("d", 0), long("f", 1_000_000), long("n", 1_000_000)],
)
def test_random_changes_with_moved_keys_and_truncates(
    spark: SparkSession, identity: str, most_moves: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_MOVES", most_moves)
    check(spark, random_table(random.Random(1), identity, 160)[0])


@pytest.mark.full
def test_a_value_is_filled_in_over_a_chain_of_keys_and_metadata_stay_in_files(
    spark: SparkSession, tmp_path: Path
) -> None:
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["id", "v", "toast"], keys=["id"])
    for number in range(20):
        slot.insert(T, str(number), "a", f"long {number}")
        for step in range(2):
            before = str(number) if step == 0 else f"{number}.0"
            slot.update(T, f"{number}.{step}", "b", UNCHANGED, old=[before, None, None], old_type="K")
    slot.commit()
    slot.begin(8)
    slot.relation(T, ["id", "renamed", "toast", "added"], keys=["id"])
    slot.update(T, "9.1", "c", UNCHANGED, "new")
    slot.commit()
    changes = check(spark, slot)
    changes.write.parquet(str(tmp_path / "changes"))
    stored = net_changes(spark.read.parquet(str(tmp_path / "changes"))).toArrow()
    assert as_set(stored) == as_set(pgdecode.net_changes(pgdecode.ChangeDecoder().table(slot.payloads, TABLE)))


@pytest.mark.full
def test_a_key_that_is_not_the_replica_identity(spark: SparkSession) -> None:
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["id", "v"], keys=["id", "v"], identity="f")
    slot.insert(T, "1", "a")
    slot.update(T, "2", "a", old=["1", "a"], old_type="O")
    slot.update(T, "2", "b", old=["2", "a"], old_type="O")
    slot.delete(T, "3", "c", old_type="O")
    slot.commit()
    check(spark, slot, ["id"])
    check(spark, slot)


@pytest.mark.full
def test_what_cannot_be_folded_is_an_error_that_says_why(spark: SparkSession) -> None:
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["id", "a"], keys=["id"], types=[25, 23])
    slot.insert(T, "1", "x")
    slot.commit()
    changes = table_changes(frame(spark, slot.payloads), TABLE, mode="PERMISSIVE")
    with pytest.raises(ValueError, match="position 2: the change has an error"):
        net_changes(changes)
    with pytest.raises(ValueError, match="the columns '_old', '_error' are missing: df is what table_changes returns"):
        net_changes(changes.drop("_old", "_error"))
    with pytest.raises(TypeError, match=r"pass key=\['id'\]"):
        net_changes(changes, key="id")
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["id", "a"], keys=["id"])
    slot.update(T, "1", "x")
    slot.commit()
    with pytest.raises(PySparkException, match="does not tell the former values of the key a"):
        net_changes(table_changes(frame(spark, slot.payloads), TABLE), key=["a"]).collect()


def test_a_stream_is_refused(spark: SparkSession) -> None:
    with pytest.raises(TypeError, match="call net_changes for each batch, in foreachBatch"):
        net_changes(spark.readStream.format("rate").load())


def test_linked_numbers_become_one() -> None:
    found = module.connected([(1, 2), (3, 4), (5, 6), (2, 3)])
    assert len({found[number] for number in (1, 2, 3, 4)}) == 1
    assert found[5] == found[6] != found[1]


@pytest.mark.full
def test_net_changes_tell_the_versions_from_the_first_change_on(spark: SparkSession) -> None:
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["id", "v"], keys=["id"])
    slot.insert(T, "1", "a")
    slot.commit()
    first = len(slot.payloads)
    slot.begin(8)
    slot.relation(T, ["id", "renamed"], keys=["id"])
    slot.update(T, "1", "b")
    slot.commit()
    changes = check(spark, slot)
    for start, n in ((0, 2), (first, 1)):
        net = net_changes(changes.where(f"_commit_position >= {start}"))
        assert len(described_in(arrow_schema(net.schema)).versions) == n
