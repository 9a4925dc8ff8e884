"""`auto_cdc`: the changes and arguments for AUTO CDC, applied here by the rules of its documentation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import pgdecode
from spark_udfs import auto_cdc, register, table_changes
from support import captures
from support.generators.random_tables import T
from support.generators.slot import Slot
from support.generators.slots import UNCHANGED

pytest_plugins = ["support.spark_session"]
pytestmark = pytest.mark.full

TABLE = f"public.t{T}"


def applied(changes: DataFrame, arguments: dict[str, Any]) -> list[str]:
    """The rows of the target: of each key, the row with the greatest sequence, unless it is a delete."""
    chosen = changes.selectExpr(
        "*", f"{arguments['sequence_by']} AS sequence", f"{arguments['apply_as_deletes']} AS gone"
    )
    last: dict[str, dict[str, Any]] = {}
    for row in chosen.toArrow().to_pylist():
        key = repr([row[name] for name in arguments["keys"]])
        order = [*row["sequence"].values()]
        if key not in last or order > [*last[key]["sequence"].values()]:
            last[key] = row
    left_out = {*arguments["except_column_list"], "sequence", "gone"}
    rows = [
        {name: value for name, value in row.items() if name not in left_out} for row in last.values() if not row["gone"]
    ]
    return sorted(map(repr, rows))


def moves(*, is_full: bool) -> Slot:
    """Rows 1 and 2 swap their keys by way of 9; row 3 is deleted; row 4 leaves out its TOAST value."""
    slot = Slot()
    slot.begin(7)
    keys = ["id", "v", "toast"] if is_full else ["id"]
    slot.relation(T, ["id", "v", "toast"], keys=keys, identity="f" if is_full else "d")
    values = {"1": "a", "2": "b", "3": "c", "4": "d"}
    for key, value in values.items():
        slot.insert(T, key, value, "long")
    for before, after, value in (("1", "9", "a"), ("2", "1", "b"), ("9", "2", "a")):
        old = [before, value, "long"] if is_full else [before, None, None]
        slot.update(T, after, value, "long", old=old, old_type="O" if is_full else "K")
    slot.delete(T, "3", *(["c", "long"] if is_full else [None, None]), old_type="O" if is_full else "K")
    slot.commit()
    slot.begin(8)
    if is_full:
        slot.update(T, "4", "e", UNCHANGED, old=["4", "d", "long"], old_type="O")
    else:
        slot.update(T, "4", "e", UNCHANGED)
    slot.commit()
    return slot


def changes_of(spark: SparkSession, slot: Slot) -> DataFrame:
    rows = pa.table(
        {"seq": pa.array(range(len(slot.payloads)), pa.int64()), "data": pa.array(slot.payloads, pa.binary())}
    )
    return table_changes(spark.createDataFrame(rows), TABLE)


def expected(slot: Slot) -> list[str]:
    rows = pgdecode.snapshot(slot.payloads, TABLE).select(["id", "v", "toast"])
    return sorted(map(repr, rows.to_pylist()))


def test_the_target_has_the_rows_of_the_table_although_keys_move(spark: SparkSession) -> None:
    slot = moves(is_full=True)
    found = auto_cdc(changes_of(spark, slot), TABLE, key=["id"])
    assert applied(found.changes, found.arguments) == expected(slot)
    assert found.arguments == {
        "keys": ["id"],
        "sequence_by": "struct(_commit_lsn, _position, _part)",
        "apply_as_deletes": "_op = 'delete'",
        "except_column_list": ["_op", "_commit_lsn", "_position", "_part", "_commit_timestamp"],
    }
    assert found.unknown.count() == 0
    with pytest.raises(ValueError, match="has no key among its columns: pass key"):
        auto_cdc(changes_of(spark, slot), TABLE)


def test_an_unknown_value_is_never_null(spark: SparkSession) -> None:
    slot = moves(is_full=False)
    with pytest.raises(PySparkException, match=f"table {TABLE}, position .*: no message has the value of a column"):
        auto_cdc(changes_of(spark, slot), TABLE).changes.collect()
    found = auto_cdc(changes_of(spark, slot), TABLE, unknown="apart")
    (left_out,) = found.unknown.collect()
    assert (left_out["id"], left_out["v"], left_out["_unchanged"]) == ("4", "e", ["toast"])
    before = [row.replace("'e'", "'d'") for row in expected(slot)]
    assert applied(found.changes, found.arguments) == before


def test_a_truncate_fails_the_query(spark: SparkSession) -> None:
    slot = moves(is_full=True)
    slot.begin(9)
    slot.truncate(T)
    slot.commit()
    with pytest.raises(PySparkException, match="the table was truncated, which AUTO CDC does not have"):
        auto_cdc(changes_of(spark, slot), TABLE, key=["id"]).changes.collect()


def test_a_folder_of_payloads_is_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    (tmp_path / "raw").mkdir()
    rows = pq.read_table(captures.DATA / "16.shop.v1.parquet")
    pq.write_table(rows, tmp_path / "raw" / "1.parquet")
    found = auto_cdc(tmp_path / "raw", "public.order_items")
    assert found.changes.isStreaming
    assert found.arguments["keys"] == ["order_id", "line"]
    stream = found.changes.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    stream.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination()
    names = ["order_id", "line", "sku", "quantity", "price"]
    table = pgdecode.snapshot(rows["data"], "public.order_items").select(names)
    target = applied(spark.read.parquet(str(tmp_path / "out")), found.arguments)
    assert target == sorted(map(repr, table.to_pylist()))


def test_the_arguments_are_those_of_pipelines(spark: SparkSession) -> None:
    pipelines = pytest.importorskip("pyspark.pipelines", reason="this pyspark has no declarative pipelines")
    if not hasattr(pipelines, "create_auto_cdc_flow"):
        pytest.skip("this pyspark has no AUTO CDC")
    import inspect

    found = auto_cdc(changes_of(spark, moves(is_full=False)), TABLE, unknown="apart")
    inspect.signature(pipelines.create_auto_cdc_flow).bind("target", "source", **found.arguments)
