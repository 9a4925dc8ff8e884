"""Delta tables: commits and their state, columns, features of other writers, and what readers of Delta see."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from lake.memory_target import MemoryTable
from lake.test_file_table import SCHEMAS, Changes, plain_rows
from lake.test_stored_types import table as table_of_all_types

from pgdecode.datasets.errors import RunError
from pgdecode.lake.applied import Applied
from pgdecode.lake.data_file import ColumnBounds, DataFile
from pgdecode.lake.delta import open_target
from pgdecode.lake.delta_log import Protocol, refused_features, statistics
from pgdecode.lake.target import ColumnSource
from pgdecode.net.schema import ABOUT, UNKNOWN
from support.emulators import SECRETS, Emulator

pytest_plugins = ["support.stores"]
NAME = "public.orders"
ID = pa.field("id", pa.int64(), nullable=False, metadata={"pg:type": "int8", "pg:key": "true"})
NOTE = pa.field("note", pa.string(), metadata={"pg:type": "text"})
SCHEMA = pa.schema([ID, NOTE])
SOURCE = {"system": "7", "database": "shop", "slot": "s"}
Row = dict[str, Any]


def net(schema: pa.Schema, upserts: Iterable[Row] = (), deletes: Iterable[int] = ()) -> pa.Table:
    """Net changes: an upsert has the key of its own row before."""
    rows = [{"_action": "upsert", "_key_before": {"id": row["id"]}, "_unknown": [], **row} for row in upserts]
    rows += [{"_action": "delete", "_key_before": {"id": id}, "_unknown": [], "id": id} for id in deletes]
    key = pa.field("_key_before", pa.struct([pa.field("id", pa.int64())]))
    fields = [pa.field("_action", pa.string()), key, UNKNOWN, *ABOUT, *(item.with_nullable(True) for item in schema)]
    return pa.Table.from_pylist(rows, pa.schema(fields))


def applied(position: int) -> Applied:
    return Applied(position, position + 1, commit_lsn=position, source=SOURCE)


def put(
    root: str, position: int, *upserts: Row, deletes: Iterable[int] = (), schema: pa.Schema = SCHEMA, **options: str
) -> None:
    """Apply net changes in a run of their own, as a process does."""
    with open_target(f"delta:{root}", options).opened() as target:
        table = target.table(NAME)
        if NAME not in target.applied:
            table.create(schema)
        table.apply(net(schema, upserts, deletes))
        target.commit({NAME: applied(position)})


def position(root: str, **options: str) -> int:
    with open_target(f"delta:{root}", options).opened() as target:
        return target.applied[NAME].position


def rows(root: object) -> list[Row]:
    """The rows that deltalake and polars read."""
    table = DeltaTable(str(root) + f"/{NAME}").to_pyarrow_table()
    found = table.sort_by("id").to_pylist()
    assert polars.read_delta(str(root) + f"/{NAME}").sort("id").to_dicts() == found
    return found


def own(root: str, **options: str) -> list[Row]:
    with open_target(f"delta:{root}", options).opened() as target:
        return target.read(NAME).read_all().sort_by("id").to_pylist()


def entry(root: Path, version: int) -> list[dict[str, Any]]:
    text = (root / NAME / "_delta_log" / f"{version:020}.json").read_text()
    return [json.loads(line) for line in text.splitlines()]


def actions(root: Path, version: int) -> list[str]:
    return [next(iter(line)) for line in entry(root, version)]


ONE, TWO = {"id": 1, "note": "a"}, {"id": 2, "note": None}


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path)


def test_data_and_state_are_one_commit(root: str, tmp_path: Path) -> None:
    put(root, 10, ONE, TWO)
    put(root, 20, {"id": 1, "note": "b"}, deletes=[2])
    put(root, 30)
    assert rows(root) == own(root) == [{"id": 1, "note": "b"}]
    assert actions(tmp_path, 0) == ["commitInfo", "protocol", "metaData", "add", "txn"]
    assert sorted(actions(tmp_path, 1)) == ["add", "commitInfo", "remove", "txn"]
    # A run without changes costs an entry, and no file.
    assert actions(tmp_path, 2) == ["commitInfo", "txn"]
    assert position(root) == 30
    table = DeltaTable(f"{root}/{NAME}")
    assert table.transaction_version(f"pgdecode:7:shop:{NAME}") == 30
    assert Applied.from_json(table.history(1)[0]["pgdecode.applied"]) == applied(30)
    assert sorted(path.name for path in tmp_path.iterdir()) == [NAME]


def test_state_is_that_of_the_last_own_commit_before_commits_of_others(root: str, tmp_path: Path) -> None:
    for n in range(5):
        put(root, n, {"id": n, "note": str(n)})
    table = DeltaTable(f"{root}/{NAME}")
    table.optimize.compact()
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    assert position(root) == 4
    put(root, 5, {"id": 2, "note": "new"})
    assert [row["note"] for row in rows(root)] == ["0", "1", "new", "3", "4"]
    assert own(root) == rows(root)


@pytest.mark.parametrize("by", ["version", "time"])
def test_a_restored_table_goes_on_from_its_own_position(root: str, by: str) -> None:
    put(root, 10, ONE)
    when = datetime.now(UTC)
    put(root, 20, TWO)
    put(root, 30, deletes=[1, 2])
    DeltaTable(f"{root}/{NAME}").restore(0 if by == "version" else when)
    assert position(root) == 10
    assert rows(root) == [ONE]
    put(root, 20, TWO)
    assert (position(root), rows(root)) == (20, [ONE, TWO])
    DeltaTable(f"{root}/{NAME}").restore(3)
    assert (position(root), rows(root)) == (10, [ONE])


def test_state_survives_the_cleaning_of_the_log(root: str, tmp_path: Path) -> None:
    for n in range(21):
        put(root, n, {"id": n % 3, "note": str(n)})
    log = tmp_path / NAME / "_delta_log"
    assert [path.name for path in sorted(log.glob("*.checkpoint.parquet"))] == [
        f"{n:020}.checkpoint.parquet" for n in (10, 20)
    ]
    for path in log.glob("*.json"):
        if int(path.name[:20]) < 20:
            path.unlink()
    assert (position(root), [row["note"] for row in rows(root)]) == (20, ["18", "19", "20"])
    DeltaTable(f"{root}/{NAME}").optimize.compact()
    (log / f"{20:020}.json").unlink()
    with pytest.raises(RunError, match="the log has no state of pgdecode"):
        put(root, 21)


def test_a_commit_that_meets_another_one_fails_and_loses_nothing(root: str, tmp_path: Path) -> None:
    put(root, 10, ONE)
    with open_target(f"delta:{root}").opened() as target:
        target.table(NAME).apply(net(SCHEMA, [TWO]))
        write_deltalake(f"{root}/{NAME}", pa.table({"id": [7], "note": ["x"]}, schema=SCHEMA), mode="append")
        with pytest.raises(RunError, match=r"another writer has committed version 1 meanwhile.*call it again$"):
            target.commit({NAME: applied(20)})
    there = {path.name for path in (tmp_path / NAME).glob("*.parquet")}
    assert there == {Path(uri).name for uri in DeltaTable(f"{root}/{NAME}").file_uris()}
    assert position(root) == 10
    put(root, 20, TWO)
    assert [row["id"] for row in rows(root)] == [1, 2, 7]


def test_a_target_that_was_read_meanwhile_commits_after_what_it_has_loaded(root: str) -> None:
    put(root, 10, ONE)
    target = open_target(f"delta:{root}")
    with target.opened():
        target.table(NAME).apply(net(SCHEMA, [{"id": 1, "note": "b"}]))
        write_deltalake(f"{root}/{NAME}", pa.table({"id": [7], "note": ["x"]}, schema=SCHEMA), mode="append")
        with pytest.raises(RunError, match="another writer has committed meanwhile"):
            target.read(NAME)
    # The same object begins anew.
    with target.opened():
        assert target.table(NAME).counts.rows == 2
        target.table(NAME).apply(net(SCHEMA, deletes=[7]))
        target.commit({NAME: applied(20)})
        assert target.read(NAME).read_all().to_pylist() == [ONE]


def test_a_commit_follows_those_that_change_nothing(root: str) -> None:
    put(root, 10, ONE)
    put(root, 20, TWO, deletes=[1])
    with open_target(f"delta:{root}").opened() as target:
        target.table(NAME).apply(net(SCHEMA, [ONE]))
        DeltaTable(f"{root}/{NAME}").vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
        assert DeltaTable(f"{root}/{NAME}").version() == 3
        target.commit({NAME: applied(30)})
    assert (position(root), rows(root)) == (30, [ONE, TWO])


def test_two_runs_at_a_time_are_one_after_the_other(root: str) -> None:
    with open_target(f"delta:{root}").opened(), pytest.raises(RunError, match="another process is writing it now"):
        put(root, 10)


@pytest.mark.full
@pytest.mark.parametrize("form", SCHEMAS)
def test_rows_are_those_that_net_changes_leave_also_between_commits_of_others(
    form: str, rng: random.Random, root: str
) -> None:
    schema, model = SCHEMAS[form], MemoryTable(lambda _: None)
    changes, folder = Changes(schema, rng), f"{root}/{NAME}"
    model.create(schema)
    for step in range(25):
        target = open_target(f"delta:{root}")
        target.file_bytes = rng.choice([1, 2000, 2**27])
        with target.opened():
            if not step:
                target.table(NAME).create(schema)
            for _ in range(rng.randint(1, 3)):
                change = changes.of(model.rows, most=rng.choice([3, 30]))
                model.apply(change)
                target.table(NAME).apply(change)
            target.commit({NAME: applied(step)})
        table = DeltaTable(folder)
        assert plain_rows(table.to_pyarrow_table().to_pylist()) == plain_rows(model.rows)
        if rng.random() < 0.3:
            table.optimize.compact()
        if rng.random() < 0.2:
            DeltaTable(folder).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)


# -- columns -----------------------------------------------------------------------------------------------------------

ADDED = pa.field("at", pa.timestamp("us"), metadata={"pg:type": "timestamp"})


def evolve(root: str, at: int, schema: pa.Schema, columns: Mapping[str, ColumnSource]) -> None:
    with open_target(f"delta:{root}").opened() as target:
        target.table(NAME).evolve(schema, columns)
        target.commit({NAME: applied(at)})


def same(*names: str) -> dict[str, ColumnSource]:
    return {name: ColumnSource(name) for name in names}


def test_a_column_that_is_added_with_nulls_leaves_the_files(root: str, tmp_path: Path) -> None:
    put(root, 10, ONE)
    schema = SCHEMA.append(ADDED)
    evolve(root, 20, schema, {**same("id", "note"), "at": ColumnSource(None, pa.scalar(None, ADDED.type))})
    # The type of the new column needs another protocol.
    assert actions(tmp_path, 1) == ["commitInfo", "protocol", "metaData", "txn"]
    assert rows(root) == [{**ONE, "at": None}]
    when = datetime(2024, 2, 29, 12)
    put(root, 30, {**TWO, "at": when}, schema=schema)
    assert rows(root) == own(root) == [{**ONE, "at": None}, {**TWO, "at": when}]
    # So does it in a table that is made anew.
    put(f"{root}/", 40, {**ONE, "at": when}, schema=schema)


def test_other_columns_are_rewritten_in_one_commit(root: str, tmp_path: Path) -> None:
    put(root, 10, ONE, TWO)
    table = DeltaTable(f"{root}/{NAME}")
    table.alter.set_column_metadata("note", {"comment": "what the customer says"})
    schema = pa.schema([ID, NOTE.with_name("text"), pa.field("n", pa.int32(), metadata={"pg:type": "int4"})])
    evolve(
        root,
        20,
        schema,
        {**same("id"), "text": ColumnSource("note"), "n": ColumnSource(None, pa.scalar(7, pa.int32()))},
    )
    assert sorted(actions(tmp_path, 2)) == ["add", "commitInfo", "metaData", "remove", "txn"]
    assert rows(root) == [{"id": 1, "text": "a", "n": 7}, {"id": 2, "text": None, "n": 7}]
    fields = json.loads(DeltaTable(f"{root}/{NAME}").schema().to_json())["fields"]
    assert fields[1]["metadata"] == {"comment": "what the customer says"}
    assert [field["nullable"] for field in fields] == [False, True, True]
    evolve(root, 30, pa.schema([ID]), same("id"))
    evolve(root, 40, SCHEMA, {**same("id"), "note": ColumnSource(None, pa.scalar(None, pa.string()))})
    # The values of a dropped column do not come back.
    assert rows(root) == [{"id": 1, "note": None}, {"id": 2, "note": None}]


@pytest.mark.full
def test_duckdb_reads_the_rows_that_deltalake_reads(root: str) -> None:
    duckdb = pytest.importorskip("duckdb")
    package = pytest.importorskip("duckdb_extension_delta")
    connection = duckdb.connect()
    try:
        connection.execute(f"LOAD '{next(Path(next(iter(package.__path__))).rglob('delta.duckdb_extension'))}'")
    except duckdb.Error as error:
        pytest.skip(str(error).splitlines()[0])
    connection.execute("SET TimeZone = 'UTC'")

    def check(root: str) -> pa.Table:
        expected = DeltaTable(f"{root}/{NAME}").to_pyarrow_table().sort_by("id")
        found = connection.execute(f"SELECT * FROM delta_scan('{root}/{NAME}') ORDER BY id").to_arrow_table()
        assert found.column_names == expected.column_names
        assert found.cast(expected.schema).to_pylist() == expected.to_pylist()
        return expected

    put(root, 10, ONE, TWO)
    for number in range(12):  # with a checkpoint
        put(root, 20 + number, {"id": 1, "note": f"b{number}"}, {"id": 101 + number}, deletes=[100 + number])
    assert check(root).to_pylist() == [{"id": 1, "note": "b11"}, TWO, {"id": 112, "note": None}]
    added = SCHEMA.append(ADDED)
    evolve(root, 40, added, {**same("id", "note"), "at": ColumnSource(None, pa.scalar(None, ADDED.type))})
    put(root, 50, {**ONE, "at": datetime(2024, 2, 29, 12)}, schema=added)
    check(root)
    schema = pa.schema([ID, NOTE.with_name("text"), pa.field("n", pa.int32(), metadata={"pg:type": "int4"})])
    seven = ColumnSource(None, pa.scalar(7, pa.int32()))
    evolve(root, 60, schema, {**same("id"), "text": ColumnSource("note"), "n": seven})
    check(root)
    typed = table_of_all_types()
    typed = typed.add_column(0, ID, pa.array(range(len(typed)), pa.int64()))
    put(f"{root}/types", 10, *typed.to_pylist(), schema=typed.schema)
    assert len(check(f"{root}/types")) == len(typed)


def test_columns_that_another_writer_has_changed_are_refused(root: str) -> None:
    put(root, 10, ONE)
    DeltaTable(f"{root}/{NAME}").alter.add_columns(deltalake.Field("x", "long"))
    with pytest.raises(RunError, match="another writer has changed the columns"):
        put(root, 20)


def test_names_that_differ_only_in_case_are_refused(root: str) -> None:
    schema = pa.schema([ID, NOTE, NOTE.with_name("Note")])
    with pytest.raises(RunError, match="columns 'note' and 'Note' have the same name in Delta"):
        put(root, 10, schema=schema)


# -- features ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "feature"),
    [
        ({"partition_by": ["note"]}, "partitions"),
        ({"configuration": {"delta.columnMapping.mode": "name"}}, "column mapping"),
        ({"configuration": {"delta.appendOnly": "true"}}, "append-only"),
        ({"configuration": {"delta.enableChangeDataFeed": "true"}}, "change data feed"),
        ({"configuration": {"delta.enableDeletionVectors": "true"}}, "deletion vectors"),
    ],
    ids=lambda item: item if isinstance(item, str) else "",
)
def test_features_that_are_not_written_are_refused_by_name(root: str, options: Any, feature: str) -> None:
    DeltaTable.create(f"{root}/{NAME}", SCHEMA, **options)
    with pytest.raises(RunError, match=rf"{NAME}: the table has .*{feature}.*, which pgdecode does not write: remove"):
        put(root, 10)


@pytest.mark.parametrize(
    ("protocol", "configuration", "field", "feature"),
    [
        (Protocol(), {}, {"delta.generationExpression": "id + 1"}, "generated columns"),
        (Protocol(), {}, {"delta.identity.start": 1}, "identity columns"),
        (Protocol(), {}, {"delta.invariants": "{}"}, "column invariants"),
        (Protocol(), {"delta.constraints.positive": "id > 0"}, {}, "check constraints"),
        (Protocol(2, 5), {"delta.columnMapping.mode": "id"}, {}, "column mapping"),
        (Protocol(), {"delta.appendOnly": "true"}, {}, "append-only"),
        (Protocol(), {"delta.enableRowTracking": "true"}, {}, "row tracking"),
        (Protocol(), {"delta.enableTypeWidening": "true"}, {}, "type widening"),
        (Protocol(), {"delta.enableInCommitTimestamps": "true"}, {}, "in-commit timestamps"),
        (Protocol(3, 7, ("variantType",), ("variantType", "clustering")), {}, {}, "feature clustering"),
        (Protocol(4, 8), {}, {}, "protocol 4, 8"),
    ],
    ids=lambda item: item if isinstance(item, str) else "",
)
def test_each_feature_of_the_log_that_is_not_written_has_a_name(
    protocol: Protocol, configuration: dict[str, str], field: dict[str, Any], feature: str
) -> None:
    schema = {"fields": [{"name": "id", "metadata": field}]}
    assert refused_features(protocol, [], configuration, schema)[:1] == [feature]
    assert refused_features(Protocol(2, 6), [], {}, {"fields": [{"name": "id", "metadata": {}}]}) == []


def test_features_that_others_add_to_a_table_are_refused(root: str) -> None:
    put(root, 10, ONE)
    DeltaTable(f"{root}/{NAME}").alter.add_constraint({"positive": "id > 0"})
    with pytest.raises(RunError, match="the table has check constraints, which"):
        put(root, 20)


def test_a_table_of_another_program_is_refused(root: str) -> None:
    write_deltalake(f"{root}/{NAME}", pa.table({"id": [1]}))
    with pytest.raises(RunError, match="another program has made the table"):
        put(root, 10)


# -- statistics --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "minimum", "maximum", "expected"),
    [
        (pa.int64(), -(2**63), 2**63 - 1, (-(2**63), 2**63 - 1)),
        (pa.string(), "b" * 33, "y" * 40, ("b" * 32, "y" * 32 + "\U0010ffff")),
        (pa.string(), "b" * 32, "y" * 32, ("b" * 32, "y" * 32)),
        (pa.string(), "", "\U0010ffff" * 33, ("", None)),
        (pa.date32(), -719163, 10957, (None, "2000-01-01")),
        (pa.timestamp("us"), -1, 1, ("1969-12-31T23:59:59.999", "1970-01-01T00:00:00.001")),
        (pa.timestamp("us", "UTC"), 0, 253402300799999999, ("1970-01-01T00:00:00.000Z", None)),
        (pa.decimal128(38, 2), Decimal("-1.10"), Decimal("12345678901234.56"), (-1.1, None)),
        (pa.float64(), None, None, (None, None)),
    ],
)
def test_statistics_are_bounds_that_every_reader_takes_for_bounds(
    kind: pa.DataType, minimum: Any, maximum: Any, expected: tuple[Any, Any]
) -> None:
    ends = (None if end is None else pa.scalar(end, kind) for end in (minimum, maximum))
    file = DataFile("f", 3, 9, {'a"b': ColumnBounds(1, *ends)})
    found = json.loads(statistics(file, ()))
    assert found["numRecords"] == 3
    assert found["nullCount"] == {'a"b': 1}
    assert (found["minValues"].get('a"b'), found["maxValues"].get('a"b')) == expected


def test_only_the_first_columns_and_the_key_have_statistics() -> None:
    bounds = {f"c{n}": ColumnBounds(0, pa.scalar(n), pa.scalar(n)) for n in range(40)}
    found = json.loads(statistics(DataFile("f", 1, 1, bounds), ["c39"]))
    assert [*found["minValues"]] == [*(f"c{n}" for n in range(32)), "c39"]


# -- object stores -----------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_tables_in_an_object_store(store: Emulator) -> None:
    root = f"{store.new_bucket()}/lake"
    put(root, 10, ONE, TWO, **store.options)
    for n in range(11, 22):
        put(root, n, {"id": 1, "note": str(n)}, deletes=[2], **store.options)
    assert own(root, **store.options) == [{"id": 1, "note": "21"}]
    options = {**store.options, "allow_http": "true"}
    table = DeltaTable(f"{root}/{NAME}", storage_options=options)
    assert table.to_pyarrow_table().to_pylist() == [{"id": 1, "note": "21"}]
    with open_target(f"delta:{root}", store.options).opened() as target:
        target.table(NAME).apply(net(SCHEMA, [TWO]))
        put(root, 30, ONE, **store.options)
        with pytest.raises(RunError, match="another writer has committed version 12"):
            target.commit({NAME: applied(30)})
    assert own(root, **store.options) == [ONE]
    assert position(root, **store.options) == 30


@pytest.mark.full
def test_errors_of_a_store_have_one_line_and_no_secrets(store: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = f"{store.new_bucket()}x/lake"
    with pytest.raises((OSError, RunError)) as caught:
        put(wrong, 10, ONE, **store.options)
    assert "\n" not in str(caught.value)
    assert not any(secret in str(caught.value) for secret in SECRETS)
    monkeypatch.setenv("AWS_S3_LOCKING_PROVIDER", "dynamodb")
    with pytest.raises(RunError, match="AWS_S3_LOCKING_PROVIDER is set"):
        open_target(f"delta:{wrong}", store.options)
