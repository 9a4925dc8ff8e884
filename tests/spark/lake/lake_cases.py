"""Net changes in tables of Delta and Iceberg, on the Spark that `test_spark_lake.py` installs."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from changes.test_changes import TYPES
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from spark.lake.lake_session import Lake, as_rows

from pgdecode import Relation, RelationCatalog, decode, snapshot
from pgdecode.datasets.errors import RunError
from pgdecode.lake import apply
from pgdecode.lake.target import MissingRow
from pgdecode.relations.relation_facts import RelationFacts, StatedFacts
from spark_udfs import apply_stream, merge_into, net_changes, table_changes
from spark_udfs.lake import apply_stream as stream_module
from support import captures
from support.generators.random_tables import T, random_table
from support.generators.slot import Slot
from support.generators.slots import UNCHANGED
from support.oracles import replay

TABLE = f"public.t{T}"
INT4, INT8, TEXT = 23, 20, 25


def changes_of(spark: SparkSession, payloads: Sequence[bytes], **options: Any) -> DataFrame:
    rows = pa.table({"seq": pa.array(range(len(payloads)), pa.int64()), "data": pa.array(payloads, pa.binary())})
    return table_changes(spark.createDataFrame(rows), TABLE, **options)


def net_between(changes: DataFrame, start: int, end: int, key: Sequence[str] | None = None) -> DataFrame:
    return net_changes(changes.where(f"_commit_position >= {start} AND _commit_position < {end}"), key=key)


def columns_of(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> list[dict[str, Any]]:
    return sorted(({name: row[name] for name in columns} for row in rows), key=repr)


def check(lake: Lake, table: str, payloads: Sequence[bytes], **options: Any) -> None:
    """Compare a table with the local rows, as Spark and as the library of the format read it."""
    expected = snapshot(payloads, TABLE, **options)
    assert expected["_unknown"].to_pylist() == [[]] * len(expected)
    rows = as_rows(expected.select([item for item in expected.column_names if item[0] != "_"]))
    assert columns_of(lake.rows(table), [*rows[0]] if rows else []) == rows
    assert columns_of(lake.rows_of_reader(table), [*rows[0]] if rows else []) == rows


def test_key_moves_and_values_that_were_not_sent(lake: Lake) -> None:
    # Sources: https://github.com/PostHog/posthog/issues/72435, https://github.com/bruin-data/ingestr/pull/706,
    # https://github.com/spiceai/spiceai/issues/11551.
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["id", "v", "toast"], keys=["id"])
    for key in "1234567":
        slot.insert(T, key, f"v{key}", f"long {key}")
    slot.commit()
    first = len(slot.payloads)
    slot.begin(8)
    for before, after in (("1", "tmp"), ("2", "1"), ("tmp", "2"), ("4", "9"), ("3", "4"), ("9", "8")):
        slot.update(T, after, f"from {before}", UNCHANGED, old=[before, None, None], old_type="K")
    slot.delete(T, "5", None, None, old_type="K")
    slot.update(T, "6", "changed", UNCHANGED)
    slot.insert(T, "10", "new", "long 10")
    slot.update(T, "10", "newer", UNCHANGED)
    slot.delete(T, "404", None, None, old_type="K")
    slot.commit()
    changes = changes_of(lake.spark, slot.payloads)
    name = lake.name("moves")
    merge_into(net_between(changes, 0, first), name)
    net = net_between(changes, first, 1000)
    result = merge_into(net, name)
    assert (result.upserts, result.deletes, result.is_applied) == (6, 2, True)
    check(lake, "moves", slot.payloads)
    n = lake.n_commits("moves")
    assert not merge_into(net, name).is_applied
    assert lake.n_commits("moves") == n
    slot.begin(9)
    slot.delete(T, "7", None, None, old_type="K")
    slot.commit()
    net = net_between(changes_of(lake.spark, slot.payloads), first, 1000)
    with pytest.raises(RunError, match=f"up to position {result.position}, and these net changes begin"):
        merge_into(net, name)


@pytest.mark.parametrize("identity", ["d", "f", "n"])
def test_random_changes_with_truncates_cut_anywhere(lake: Lake, identity: str, rng: random.Random) -> None:
    slot, rows = random_table(rng, identity, 120)
    changes = changes_of(lake.spark, slot.payloads).cache()
    n = len(slot.payloads)
    cut = rng.randrange(n // 3, n)
    for start, end in ((0, cut), (cut, n)):
        merge_into(net_between(changes, start, end), lake.name(f"random_{identity}"))
    changes.unpersist()
    expected = sorted((dict(zip(("id", "v", "toast"), row, strict=True)) for row in rows), key=repr)
    assert lake.rows(f"random_{identity}") == expected == lake.rows_of_reader(f"random_{identity}")


def test_a_row_that_came_and_went_in_a_batch_counts_for_the_position(lake: Lake) -> None:
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["v"], keys=["v"], identity="f")
    slot.insert(T, "a")
    slot.insert(T, "a")
    slot.commit()
    slot.begin(8)
    slot.delete(T, "a")
    slot.insert(T, "b")
    slot.delete(T, "b")
    slot.commit()
    changes, name = changes_of(lake.spark, slot.payloads), lake.name("gone")
    result = merge_into(net_changes(changes), name, position=len(slot.payloads) - 1)
    assert result.position == len(slot.payloads) - 1
    assert lake.rows("gone") == [{"v": "a"}]
    assert not merge_into(net_between(changes, 5, 1000), name).is_applied


def test_an_update_whose_row_is_missing_is_an_error_and_changes_nothing(lake: Lake) -> None:
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["id", "v", "toast"], keys=["id"])
    slot.insert(T, "1", "a", "long")
    slot.commit()
    first = len(slot.payloads)
    slot.begin(8)
    slot.update(T, "1", "b", "told")
    slot.update(T, "2", "b", UNCHANGED)
    slot.commit()
    changes, name = changes_of(lake.spark, slot.payloads), lake.name("missing")
    merge_into(net_between(changes, 0, first), name)
    before = lake.rows("missing")
    with pytest.raises(MissingRow, match=f"position {first + 2}: the updated row is not in the target"):
        merge_into(net_between(changes, first, 1000), name)
    assert lake.rows("missing") == before == [{"id": "1", "v": "a", "toast": "long"}]


def facts_of(slot: Slot, numbers: Sequence[int], missing: dict[int, str]) -> StatedFacts:
    """What the server's catalog tells of the relation that was sent last."""
    relation = decode(slot.payloads[-1])
    assert isinstance(relation, Relation)
    values = tuple(missing.get(number) for number in numbers)
    found = RelationFacts(tuple(numbers), values, (1,), ((T, T),), max(numbers))
    return StatedFacts(relation, len(slot.payloads) - 1, found)


def altered() -> tuple[Slot, int, RelationCatalog]:
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["id", "a", "n", "gone"], keys=["id"], types=[INT4, TEXT, INT4, TEXT])
    facts = [facts_of(slot, [1, 2, 3, 4], {})]
    for key in "123":
        slot.insert(T, key, f"a{key}", key, "x")
    slot.commit()
    first = len(slot.payloads)
    slot.begin(8)
    slot.relation(T, ["id", "b", "n", "five", "none"], keys=["id"], types=[INT4, TEXT, INT8, INT4, TEXT])
    facts.append(facts_of(slot, [1, 2, 3, 5, 6], {5: "5"}))
    slot.update(T, "2", UNCHANGED, str(2**40), "6", "y")
    slot.insert(T, "4", "b4", "4", "7", None)
    slot.commit()
    return slot, first, RelationCatalog((), facts)


def test_columns_are_added_renamed_dropped_and_widened(lake: Lake) -> None:
    slot, first, catalog = altered()
    name = lake.name("altered")
    before = changes_of(lake.spark, slot.payloads[:first], catalog=catalog)
    after = changes_of(lake.spark, slot.payloads, catalog=catalog)
    merge_into(net_between(before, 0, first), name)
    assert lake.spark.table(name).columns == ["id", "a", "n", "gone"]
    net = net_between(after, first, 1000)
    with pytest.raises(RunError, match="column 'five' was added, and schema_changes is 'fail'"):
        merge_into(net, name, schema_changes="fail")
    lake.spark.sql(f"DELETE FROM {name} WHERE id = 3")
    lake.spark.sql(f"INSERT INTO {name} VALUES (3, 'a3', 3, 'x')")  # a foreign commit does not hide the position
    merge_into(net, name)
    assert lake.rows("altered") == as_rows(
        pa.Table.from_pylist(
            [
                {"id": 1, "b": "a1", "n": 1, "five": 5, "none": None},
                {"id": 2, "b": "a2", "n": 2**40, "five": 6, "none": "y"},
                {"id": 3, "b": "a3", "n": 3, "five": 5, "none": None},
                {"id": 4, "b": "b4", "n": 4, "five": 7, "none": None},
            ]
        )
    )
    assert lake.rows_of_reader("altered") == lake.rows("altered")
    assert not merge_into(net, name).is_applied


def test_columns_stay_as_they_are_and_unknown_values_are_refused(lake: Lake) -> None:
    slot, first, catalog = altered()
    name = lake.name("ignored")
    before = changes_of(lake.spark, slot.payloads[:first], catalog=catalog)
    merge_into(net_between(before, 0, first), name)
    # Without the facts, nobody knows what older rows have in added columns.
    without = net_between(changes_of(lake.spark, slot.payloads), first, 1000)
    with pytest.raises(RunError, match=r"column '.*' was added, and its values in older rows are not known\. Copy"):
        merge_into(without, name)
    after = changes_of(lake.spark, slot.payloads, catalog=catalog).drop("none")
    merge_into(net_between(after.where("id <> 2"), first, 1000), name, schema_changes="ignore")
    assert columns_of(lake.rows("ignored"), ["id", "a", "n"]) == [
        {"id": 1, "a": "a1", "n": 1},
        {"id": 2, "a": "a2", "n": 2},
        {"id": 3, "a": "a3", "n": 3},
        {"id": 4, "a": "b4", "n": 4},
    ]


def test_a_table_that_was_rolled_back_goes_on_from_its_own_position(lake: Lake) -> None:
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["id", "v"], keys=["id"])
    slot.insert(T, "1", "a")
    slot.commit()
    first = len(slot.payloads)
    slot.begin(8)
    slot.update(T, "2", "b", old=["1", None], old_type="K")
    slot.commit()
    changes, name = changes_of(lake.spark, slot.payloads), lake.name("restored")
    merge_into(net_between(changes, 0, first), name)
    if lake.format == "delta":
        (version,) = lake.spark.sql(f"DESCRIBE HISTORY {name}").agg({"version": "max"}).first() or ()
        back = f"RESTORE TABLE {name} TO VERSION AS OF {version}"
    else:
        (version,) = lake.spark.sql(f"SELECT snapshot_id FROM {name}.snapshots").first() or ()
        back = f"CALL iceberg.system.rollback_to_snapshot('{name}', {version})"
    merge_into(net_between(changes, first, 1000), name)
    for _ in range(2):
        lake.spark.sql(back)
        lake.spark.catalog.refreshTable(name)
        assert lake.rows("restored") == [{"id": "1", "v": "a"}]
        assert merge_into(net_between(changes, first, 1000), name).is_applied
        assert lake.rows("restored") == [{"id": "2", "v": "b"}]


# -- streams ---------------------------------------------------------------------------------------------------------


def write_files(folder: Path, payloads: Sequence[bytes], cuts: Sequence[int]) -> None:
    """Write payload files that end at the cuts, after those that are there."""
    start = max((int(path.stem) + pq.read_metadata(path).num_rows for path in folder.glob("[0-9]*.parquet")), default=0)
    for end in cuts:
        numbers = pa.array(range(start, end), pa.int64())
        rows = pa.table({"seq": numbers, "data": pa.array(payloads[start:end], pa.binary())})
        pq.write_table(rows, folder / f".{start:020}.parquet")
        (folder / f".{start:020}.parquet").rename(folder / f"{start:020}.parquet")
        start = end


@pytest.mark.parametrize("name", ["18.txns.v2", "18.shop.v1bin"])
def test_a_stream_of_several_tables_that_fails_and_restarts_leaves_the_rows_of_the_server(
    lake: Lake, name: str, tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = {"txns": ["b", "full_", "idx", "nokey"], "shop": ["orders", "products"]}[name.split(".")[1]]
    payloads = captures.capture(name).payloads
    targets = {f"public.{table}": lake.name(f"{table}_{name[-1]}") for table in tables}
    raw = tmp_path / "raw"
    raw.mkdir()

    def run(checkpoint: str = "checkpoint") -> None:
        query = apply_stream(lake.spark, raw, targets, checkpoint=tmp_path / checkpoint, types=json.dumps(TYPES))
        query.awaitTermination()

    cut = rng.randrange(len(payloads) // 2, len(payloads))
    write_files(raw, payloads, [cut // 2, cut])
    merge, n_merged = stream_module.merge_into, 0

    def merge_and_fail(*arguments: Any, **options: Any) -> None:
        nonlocal n_merged
        merge(*arguments, **options)
        n_merged += 1
        if n_merged == 2:
            raise OSError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(stream_module, "merge_into", merge_and_fail)
        with pytest.raises(PySparkException, match="killed"):
            run()
    write_files(raw, payloads, [len(payloads)])
    run()  # before pyspark 4.2, a restart may only repeat the micro-batch that failed
    run()
    commits = {table: lake.n_commits(target.rpartition(".")[2]) for table, target in targets.items()}
    run()
    run("another")  # a stream from the beginning
    for table, target in targets.items():
        own = target.rpartition(".")[2]
        assert lake.n_commits(own) == commits[table]
        expected = snapshot(payloads, table, types=TYPES)
        columns = [item for item in expected.column_names if item[0] != "_"]
        assert columns_of(lake.rows(own), columns) == as_rows(expected.select(columns)), table
        assert columns_of(lake.rows_of_reader(own), columns) == columns_of(lake.rows(own), columns)


def test_spark_reads_the_tables_that_apply_writes(lake: Lake, tmp_path: Path) -> None:
    payloads = captures.capture("18.shop.v1bin").payloads
    raw, folder, tables = tmp_path / "raw", tmp_path / "lake", ("orders", "products")
    raw.mkdir()
    for end in (len(payloads) // 2, len(payloads)):
        write_files(raw, payloads, [end])
        apply(raw, f"{lake.format}:{folder}", tables=[f"public.{table}" for table in tables], types=TYPES)
    for table in tables:
        if lake.format == "delta":
            path = str(folder / f"public.{table}")
            expected = DeltaTable(path).to_pyarrow_table()
        else:
            catalog = load_catalog("default", type="sql", uri=f"sqlite:///{folder}/catalog.db")
            stored = catalog.load_table(("public", table))
            path, expected = stored.metadata_location, stored.scan().to_arrow()
        found = lake.spark.read.format(lake.format).load(path)
        assert found.columns == expected.column_names
        assert as_rows(found.toArrow()) == as_rows(expected) != []


@pytest.mark.parametrize("name", ["16.shop.v1"])
def test_text_columns_are_those_of_the_server(lake: Lake, name: str, rng: random.Random) -> None:
    column = captures.capture(name).column
    types = {item.type_id: "text" for version in RelationCatalog.from_messages(column) for item in version.columns}
    state = replay.load_state(captures.DATA / f"{name[:-3]}.state.json.gz")
    rows = pa.table({"seq": pa.array(range(len(column)), pa.int64()), "data": column})
    raw = lake.spark.createDataFrame(rows)
    found = {}
    for table in ("public.orders", "public.products"):
        changes = table_changes(raw, table, types=types)
        own = f"text_{table[7:]}"
        cut = rng.randrange(len(column))
        for start, end in ((0, cut), (cut, len(column))):
            merge_into(net_between(changes, start, end), lake.name(own))
        found[table] = lake.rows(own)
    assert replay.differences(found, state, tables={*state} - {*found}) == ([], {})
