"""Targets of DuckDB and DuckLake, driven by net changes: their rows are those of plain Python lists."""

from __future__ import annotations

import importlib.util
import json
import random
import subprocess
import sys
from contextlib import ExitStack, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from changes.test_changes import TYPES
from lake.memory_target import MemoryTarget
from lake.test_apply_captures import (
    STALE,
    apply_known,
    assert_server_state,
    payload_cuts,
    text_types,
    write_payloads,
)

from pgdecode import ChangeDecoder, RelationCatalog, net_changes
from pgdecode.arrow.distinct_values import plain_values, zipped
from pgdecode.datasets.errors import RunError
from pgdecode.lake.applied import Applied
from pgdecode.lake.duckdb.database import DuckDbTarget
from pgdecode.lake.target import ColumnSource, MissingRow, Target
from pgdecode.lake.targets import lake_target
from servers.server import find_server, running_cluster
from support import captures
from support.oracles.expected_changes import BINARY, TEXT
from support.tiers import full, long

OWN = {"_action", "_key_before", "_unknown", "_position", "_commit_position", "_commit_lsn", "_commit_timestamp"}
NAME = "public.t"


class Rows:
    """Rows as Python values: a net change removes the rows of its key, and adds its own."""

    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []
        self.missing = 0

    def apply(self, net: pa.Table) -> None:
        names = [name for name in net.schema.names if name not in OWN]
        key = [item.name for item in net.schema.field("_key_before").type]
        numbers = [names.index(name) for name in key]
        new = zipped([plain(net[name]) for name in names], len(net))
        before = plain(net["_key_before"])
        added = []
        by_key: dict[Any, list[tuple[Any, ...]]] = {}
        for row in self.rows:
            by_key.setdefault(tuple(row[j] for j in numbers), []).append(row)
        for i, action in enumerate(net["_action"].to_pylist()):
            unknown = net["_unknown"][i].as_py() or []
            if action == "truncate":
                by_key = {}
                continue
            rows = by_key.get(before[i], [])
            former = [rows.pop(0)] if rows else []
            self.missing += before[i] is not None and not former
            if action == "upsert":
                known = former[0] if unknown else ()  # IndexError: the row is missing
                added.append(tuple(known[j] if name in unknown else new[i][j] for j, name in enumerate(names)))
        if len(key) < len(names):
            for row in added:
                by_key.pop(tuple(row[j] for j in numbers), None)
        self.rows = [row for rows in by_key.values() for row in rows] + added


def plain(column: Any) -> list[Any]:
    """Values of a column, in which -0.0 is 0.0; `plain_values` makes the bits of a least integer of it."""

    def without_signs(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(without_signs, value))
        return 0 if value in (-(2**31), -(2**63)) else value

    return [*map(without_signs, plain_values(column))]


def columns_of(net: pa.Table) -> pa.Schema:
    return pa.schema([item for item in net.schema if item.name not in OWN], metadata=net.schema.metadata)


def rows_of(target: Target, name: str, schema: pa.Schema) -> list[str]:
    """The rows with the types of typed tables, in any order."""
    found = target.read(name).read_all()
    assert found.schema.names == schema.names
    found = found.cast(pa.schema([item.remove_metadata() for item in schema]))
    return sorted(map(repr, zipped([plain(found[name]) for name in schema.names], len(found))))


def net_of(schema: pa.Schema, key: list[str], *changes: tuple[str, Any, Any, list[str]]) -> pa.Table:
    """Make net changes by hand: action, key before, row, unknown columns."""
    before = pa.struct([schema.field(name) for name in key])
    n = len(changes)
    columns: dict[str, Any] = {
        "_action": pa.array([change[0] for change in changes], pa.string()),
        "_key_before": pa.array([change[1] for change in changes], before),
        "_unknown": pa.array([change[3] for change in changes], pa.list_(pa.string())),
        **{name: pa.array(range(n), pa.int64()) for name in ("_position", "_commit_position", "_commit_lsn")},
        "_commit_timestamp": pa.nulls(n, pa.timestamp("us", "UTC")),
    }
    for item in schema:
        columns[item.name] = pa.array([(change[2] or {}).get(item.name) for change in changes], item.type)
    about = pa.table(columns)
    fields = [*list(about.schema)[: len(OWN)], *(item for item in schema)]
    return about.cast(pa.schema(fields, metadata=schema.metadata))


def key_field(name: str, kind: pa.DataType, pg_type: str = "int4") -> pa.Field:
    return pa.field(name, kind, metadata={"pg:type": pg_type, "pg:key": "true"})


PLAIN = pa.schema([key_field("id", pa.int32()), pa.field("a", pa.string()), pa.field("b", pa.string())])


@pytest.fixture(params=["duckdb", full("ducklake")])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"{request.param}:{tmp_path / 'lake.db'}"


def commit(uri: str, *nets: pa.Table, name: str = NAME, position: int = 1) -> Any:
    """Apply net changes to a table, which is made if it does not exist, and return the counts."""
    target = lake_target(uri)
    with target.opened():
        table = target.table(name)
        if name not in target.applied:
            table.create(columns_of(nets[0]))
        for net in nets:
            table.apply(net)
        counts = table.counts
        target.commit({name: Applied(position, position, commit_lsn=0x1_0000_0010)})
    return counts


def committed(uri: str, name: str = NAME) -> list[dict[str, Any]]:
    target = lake_target(uri)
    with target.opened():
        rows: list[dict[str, Any]] = target.read(name).read_all().to_pylist()
    return sorted(rows, key=repr)


# -- captures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "18.types.v1",
        *map(full, ("18.shop.v1bin", "18.streams.v4")),
        *(long(item) for item in captures.NAMES if item not in ("18.types.v1", "18.shop.v1bin", "18.streams.v4")),
    ],
)
def test_net_changes_of_a_capture_cut_anywhere_give_the_rows_of_a_list(name: str, uri: str, rng: random.Random) -> None:
    payloads = pq.read_table(captures.DATA / f"{name}.parquet", columns=["data"])["data"]
    catalog = RelationCatalog.from_messages(payloads)
    # A table of DuckDB has at least one column.
    tables = sorted({catalog[item.relation_id].qualified_name for item in catalog if item.columns})
    n_rows = 0
    target = lake_target(uri)
    with target.opened():
        for table in tables:
            changes = ChangeDecoder(types=TYPES, unrepresentable="null").table(payloads, table)
            cuts = [0, *sorted(rng.choices(range(len(changes) + 1), k=4)), len(changes)]
            schema, rows = None, Rows()
            for position, (start, end) in enumerate(pairwise(cuts)):
                try:
                    net = net_changes(changes.slice(start, end - start))
                    schema = schema or columns_of(net)
                    assert columns_of(net) == schema
                    rows.apply(net)
                except (ValueError, AssertionError, IndexError):
                    break  # the key becomes another one, or an added column is not known
                if position == 0:
                    target.table(table).create(schema)
                target.table(table).apply(net)
                target.commit({table: Applied(position, position)})
                assert rows_of(target, table, schema) == sorted(map(repr, rows.rows)), (table, cuts)
                n_rows += len(rows.rows)
                assert target.table(table).counts.rows == len(rows.rows)
    assert n_rows


@pytest.mark.parametrize("name", [full(item) for item in TEXT])
def test_apply_of_a_capture_cut_anywhere_gives_the_tables_of_the_server(
    name: str, uri: str, rng: random.Random, tmp_path: Path
) -> None:
    column, types, stale = captures.capture(name).column, text_types(name), set[str]()
    for start, end in pairwise(payload_cuts(rng, len(column))):
        write_payloads(tmp_path / "raw", column, start, end)
        stale = apply_known(tmp_path / "raw", lake_target(uri), types=types, workers=1)
    assert stale == STALE.get(name.split(".")[1], set())
    assert_server_state(copy_of(uri), name, stale)


@pytest.mark.parametrize("name", [full(item) for item in BINARY])
def test_apply_of_a_binary_capture_gives_the_tables_of_a_target_in_memory(
    name: str, uri: str, rng: random.Random, tmp_path: Path
) -> None:
    column, memory = captures.capture(name).column, MemoryTarget()
    for start, end in pairwise(payload_cuts(rng, len(column))):
        write_payloads(tmp_path / "raw", column, start, end)
        options: Any = {"types": {**TYPES, "money": "money(2)"}, "unrepresentable": "text", "workers": 1}
        assert apply_known(tmp_path / "raw", lake_target(uri), **options) == apply_known(
            tmp_path / "raw", memory, **options
        )
    texts = [
        {table: sorted(repr(row).replace("-0.0", "0.0") for row in rows) for table, (_, rows) in item.committed.items()}
        for item in (memory, copy_of(uri))
    ]
    assert texts[0] == texts[1]


@pytest.mark.full
@pytest.mark.parametrize(("name", "kills"), [long("18.txns.v2", 30), long("18.shop.v1bin", 30), ("18.shop.v1bin", 4)])
def test_apply_that_is_killed_and_called_again_gives_the_tables_of_a_target_in_memory(
    name: str, kills: int, uri: str, rng: random.Random, tmp_path: Path
) -> None:
    column, memory = captures.capture(name).column, MemoryTarget()
    write_payloads(tmp_path / "raw", column, 0, len(column))
    apply_known(tmp_path / "raw", memory, types=TYPES, unrepresentable="text")
    code = (
        "import sys\n"
        "from pgdecode.lake import apply, apply_run\n"
        "from pgdecode.lake.reading import reading\n"
        "apply_run._NET_BYTES, apply_run._COMMIT_BYTES, reading._BATCH_ROWS = 2000, 20_000, 100\n"
        "print('ready', flush=True)\n"
        f"apply({str(tmp_path / 'raw')!r}, {uri!r}, types={TYPES!r}, unrepresentable='text', workers=1)\n"
    )
    n_killed = 0
    while n_killed < kills:
        run = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        with run:
            assert run.stdout is not None
            run.stdout.readline()
            try:
                run.wait(rng.uniform(0, 2))
                break
            except subprocess.TimeoutExpired:
                run.kill()
                n_killed += 1
    stale = apply_known(tmp_path / "raw", lake_target(uri), types=TYPES, unrepresentable="text")
    # Stale tables stay at their last good commit, which depends on where the commits are.
    assert stale == STALE.get(name.split(".")[1], set())
    found = {table: rows for table, (_, rows) in copy_of(uri).committed.items() if table not in stale}
    assert {*found} == {*memory.committed} - stale
    for table, rows in found.items():
        assert sorted(map(repr, rows)) == sorted(map(repr, memory.committed[table][1])), table
    assert n_killed


def copy_of(uri: str) -> MemoryTarget:
    """The tables of a target, in memory."""
    target, found = lake_target(uri), MemoryTarget()
    with target.opened():
        for name in target.applied:
            table = target.read(name).read_all()
            found.committed[name] = table.schema, table.to_pylist()
    return found


# -- rows --------------------------------------------------------------------------------------------------------------


def test_public_cases_of_one_batch(uri: str) -> None:
    # Sources: PostHog/posthog#53253 (unchanged jsonb was null), bruin-data/ingestr#706 (insert, then a partial update),
    # spiceai/spiceai#11551 (the old row stays after a key update).
    first = [("upsert", None, {"id": i, "a": f"a{i}", "b": f"long {i}"}, []) for i in range(1, 6)]
    changes = net_of(
        PLAIN,
        ["id"],
        ("upsert", {"id": 1}, {"id": 2, "a": "was 1"}, ["b"]),  # 1 and 2 swap, 3 moves to 4, 4 to 6
        ("upsert", {"id": 2}, {"id": 1, "a": "was 2"}, ["b"]),
        ("upsert", {"id": 3}, {"id": 4, "a": "was 3"}, ["b"]),
        ("upsert", {"id": 4}, {"id": 6, "b": "sent"}, ["a"]),
        ("delete", {"id": 5}, {"id": 5}, []),
        ("delete", {"id": 50}, {"id": 50}, []),
        ("upsert", None, {"id": 7, "a": None, "b": "new"}, []),
    )
    commit(uri, net_of(PLAIN, ["id"], *first))
    counts = commit(uri, changes, position=2)
    assert (counts.upserts, counts.deletes, counts.missing, counts.rows) == (5, 2, 1, 5)
    assert committed(uri) == [
        {"id": 1, "a": "was 2", "b": "long 2"},
        {"id": 2, "a": "was 1", "b": "long 1"},
        {"id": 4, "a": "was 3", "b": "long 3"},
        {"id": 6, "a": "a4", "b": "sent"},
        {"id": 7, "a": None, "b": "new"},
    ]
    # Net changes that are applied again do no harm where all values are known.
    again = [("upsert", None, {"id": i, "a": "a", "b": "b"}, []) for i in (1, 7)]
    counts = commit(uri, net_of(PLAIN, ["id"], *again), position=3)
    assert (counts.rows, [row["id"] for row in committed(uri)]) == (5, [1, 2, 4, 6, 7])


def test_truncate_comes_first_and_an_update_without_its_row_changes_nothing(uri: str) -> None:
    rows = [("upsert", None, {"id": i, "a": "a", "b": "b"}, []) for i in range(3)]
    commit(uri, net_of(PLAIN, ["id"], *rows))
    counts = commit(uri, net_of(PLAIN, ["id"], ("truncate", None, None, []), *rows[:1]), position=2)
    assert (counts.truncates, counts.upserts, counts.deletes, counts.rows) == (1, 1, 0, 1)
    target = lake_target(uri)
    with target.opened():
        update = ("upsert", {"id": 9}, {"id": 9, "b": "x"}, ["a"])
        with pytest.raises(MissingRow, match=r"^position 1: the updated row is not in the target") as caught:
            target.table(NAME).apply(net_of(PLAIN, ["id"], rows[1], update))
        assert (caught.value.position, target.table(NAME).counts.rows) == (1, 1)
        target.commit({NAME: Applied(3, 3)})
    assert [row["id"] for row in committed(uri)] == [0]


NESTED = pa.schema(
    [
        key_field("f", pa.float64()),
        key_field("l", pa.list_(pa.float32())),
        key_field("m", pa.map_(pa.string(), pa.string())),
        key_field("s", pa.struct([("months", pa.int32()), ("days", pa.int32())])),
        key_field("t", pa.string()),
    ],
    metadata={"pg:replica_identity": "f"},
)


def test_each_delete_of_a_table_without_a_key_removes_one_of_the_rows_that_are_identical(
    uri: str, rng: random.Random
) -> None:
    nan, inf = float("nan"), float("inf")
    values = [
        {"f": f, "l": items, "m": pairs, "s": s, "t": t}
        for f in (0.0, -0.0, nan, inf, None)
        for items in ([0.0], [-0.0], [nan, None], None)
        for pairs, s, t in (
            (None, None, None),
            ([("a", None)], {"months": 1, "days": 0}, ""),
            ([("a", "")], {"months": 0, "days": 30}, "x"),
        )
    ]
    key, rows = NESTED.names, Rows()
    target = lake_target(uri)
    with target.opened():
        target.table(NAME).create(NESTED)
        present = rng.choices(values, k=300)
        for position in range(4):
            removed = rng.sample(present, min(len(present), 120)) + ([] if position else rng.sample(values, 20))
            new = rng.choices(values, k=60)
            changes = [("delete", row, row, []) for row in removed[60:]]
            changes += [("upsert", old, row, []) for old, row in zip(removed, new, strict=False)]
            changes += [("upsert", None, row, []) for row in (present if position == 0 else new)]
            net = net_of(NESTED, key, *changes)
            rows.apply(net)
            target.table(NAME).apply(net)
            target.commit({NAME: Applied(position, position)})
            assert rows_of(target, NAME, NESTED) == sorted(map(repr, rows.rows))
            present = [dict(zip(key, row, strict=True)) for row in values_as_sent(target)]
        assert target.table(NAME).counts.rows == len(rows.rows) > 100


def values_as_sent(target: Target) -> list[tuple[Any, ...]]:
    table = target.read(NAME).read_all().select(NESTED.names)
    return zipped([table[name].to_pylist() for name in NESTED.names], len(table))


@pytest.mark.parametrize("is_keyed", [False, True])
def test_rows_are_found_whose_sign_of_zero_duckdb_has_lost(uri: str, is_keyed: bool) -> None:
    # DuckDB stores a column of equal values once, and 0.0 equals -0.0.
    fields = [key_field("x", pa.float64(), "float8"), key_field("y", pa.list_(pa.float32())), pa.field("z", pa.int32())]
    schema = pa.schema(fields, metadata={"pg:replica_identity": "d" if is_keyed else "f"})
    key = ["x", "y"] if is_keyed else schema.names
    zeros = (0.0, 0.0, -0.0, -0.0)
    rows = [{"x": x, "y": [x, float(n if is_keyed else 0)], "z": 1} for n, x in enumerate(zeros)]
    commit(uri, net_of(schema, key, *[("upsert", None, row, []) for row in rows]))
    olds = [{name: row[name] for name in key} for row in rows]
    changes = [("upsert", old, {**row, "x": 2.0}, []) for old, row in zip(olds[1:], rows[1:], strict=True)]
    counts = commit(uri, net_of(schema, key, ("delete", olds[0], olds[0], []), *changes), position=2)
    assert (counts.missing, counts.deletes, counts.rows) == (0, 1, 3)
    assert [row["x"] for row in committed(uri)] == [2.0, 2.0, 2.0]


def test_unknown_values_of_rows_without_a_key_are_from_the_removed_row(uri: str) -> None:
    schema = pa.schema([key_field("x", pa.int32()), key_field("y", pa.int32())], metadata={"pg:replica_identity": "f"})
    row = {"x": 1, "y": None}
    commit(uri, net_of(schema, ["x", "y"], *[("upsert", None, row, [])] * 3))
    commit(uri, net_of(schema, ["x", "y"], *[("upsert", row, {"x": 2}, ["y"])] * 2), position=2)
    assert committed(uri) == [{"x": 1, "y": None}, {"x": 2, "y": None}, {"x": 2, "y": None}]


# -- commits -----------------------------------------------------------------------------------------------------------


def test_tables_and_their_states_are_one_commit_and_what_is_not_committed_is_discarded(uri: str) -> None:
    row = net_of(PLAIN, ["id"], ("upsert", None, {"id": 1, "a": "a", "b": "b"}, []))
    source = {"system": 7, "database": "shop", "slot": "s"}
    target = lake_target(uri)
    with target.opened():
        assert target.applied == {}
        for name in (NAME, 'public."a.b"', "Other.T"):
            target.table(name).create(PLAIN)
            target.table(name).apply(row)
        states = {
            name: Applied(5, 4, commit_lsn=0xA_0000_0001, source=source) for name in (NAME, 'public."a.b"', "Other.T")
        }
        target.commit(states)
        target.table(NAME).apply(net_of(PLAIN, ["id"], ("truncate", None, None, [])))
        table = target.table(NAME)
        target.roll_back()
        assert target.table(NAME).counts == table.counts
        assert target.table(NAME).counts.rows == 1
        target.table("public.new").create(PLAIN)
        target.table(NAME).apply(net_of(PLAIN, ["id"], ("delete", {"id": 1}, {"id": 1}, [])))
        assert len(target.read(NAME).read_all()) == 1  # what is committed
    with target.opened():
        assert target.applied == states
        assert all(len(target.read(name).read_all()) == 1 for name in states)
        target.table("public.new").create(PLAIN)  # it does not exist
    with duckdb.connect() as connection:
        attach(connection, uri)
        sql = (
            "SELECT schema_name, table_name, system, database, slot, position, restart_position, commit_lsn, "
            "state->>'position' FROM lake._pgdecode.applied WHERE schema_name = 'public' AND table_name = 't'"
        )
        assert connection.execute(sql).fetchall() == [("public", "t", "7", "shop", "s", 5, 4, "A/1", "5")]
        if uri.startswith("ducklake"):
            sql = "SELECT author, commit_message, commit_extra_info->>'$.pgdecode' FROM lake.snapshots()"
            author, message, info = connection.execute(sql).fetchall()[-1]
            assert (author, message) == ("pgdecode", 'apply public.t, public."a.b", Other.T up to A/1')
            assert json.loads(info)[NAME] == {"position": 5, "commit_lsn": "A/1"}


def attach(connection: duckdb.DuckDBPyConnection, uri: str) -> None:
    """Open it as any reader does."""
    if uri.startswith("ducklake"):
        import duckdb_extension_ducklake

        (extension,) = Path(duckdb_extension_ducklake.__file__).parent.rglob("*.duckdb_extension")
        connection.execute(f"LOAD '{extension}'")
    connection.execute(f"ATTACH '{uri.removeprefix('duckdb:')}' AS lake")


def test_a_target_without_a_commit_leaves_no_file(uri: str) -> None:
    target = lake_target(uri)
    with target.opened():
        target.table(NAME).create(PLAIN)
        target.table(NAME).apply(net_of(PLAIN, ["id"], ("upsert", None, {"id": 1, "a": "a", "b": "b"}, [])))
    assert [*Path(uri.partition(":")[2]).parent.iterdir()] == []


@pytest.mark.full
def test_a_database_that_another_process_has_open_is_an_error_that_names_it(uri: str) -> None:
    commit(uri, net_of(PLAIN, ["id"]))
    target = lake_target(uri)
    with target.opened():
        code = f"from pgdecode.lake.targets import lake_target\nwith lake_target({uri!r}).opened(): pass"
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert other.returncode == 1
    last = other.stderr.strip().splitlines()[-1]
    assert f"{uri}: another process has it open (PID " in last


def test_tables_that_somebody_else_has_made_are_refused_by_name_and_dropped_ones_are_made_again(uri: str) -> None:
    commit(uri, net_of(PLAIN, ["id"]))
    with duckdb.connect() as connection:
        attach(connection, uri)
        connection.execute("CREATE TABLE lake.public.Own (a INTEGER)")
        connection.execute("CREATE VIEW lake.public.v AS SELECT 1 AS a")
        connection.execute("DROP TABLE lake.public.t")
    target = lake_target(uri)
    with target.opened():
        assert target.applied == {}
        for name in ("public.own", "public.v"):
            with pytest.raises(RunError, match=rf"^{uri}: {name} exists, and pgdecode has not made it"):
                target.table(name)
        target.table(NAME).create(PLAIN)
        target.commit({NAME: Applied(1, 1)})


def test_names_that_differ_in_case_only_are_an_error_that_has_both(uri: str) -> None:
    target = lake_target(uri)
    with target.opened():
        target.table("public.Orders")
        with pytest.raises(RunError, match=r"public\.Orders and public\.orders differ in the case of letters only"):
            target.table("public.orders")
        clash = pa.schema([("id", pa.int32()), ("Name", pa.string()), ("name", pa.string())])
        with pytest.raises(RunError, match="the columns 'Name' and 'name' differ in the case of letters only"):
            target.table(NAME).create(clash)
        with pytest.raises(RunError, match=r"public\.t has no columns"):
            target.table(NAME).create(pa.schema([]))
        # Other letters are not the same in DuckDB, and all signs are possible.
        odd = pa.schema(
            [
                (name, pa.int32())
                for name in ("\u00e4", "\u00c4", 'a"b', "a.b", "rowid", "n", "id", "c0", "order", "'", "%")
            ]
        )
        target.table(NAME).create(odd)
        row = dict.fromkeys(odd.names, 1)
        target.table(NAME).apply(net_of(odd, ["id"], ("upsert", None, row, [])))
        target.table(NAME).apply(net_of(odd, ["id"], ("upsert", {"id": 1}, {"id": 1}, [*row][:-1])))
        target.commit({NAME: Applied(1, 1)})
        assert target.read(NAME).read_all().to_pylist() == [row | {"%": None}]
    with pytest.raises(RunError, match="cannot be the name of a table"), target.opened():
        target.table("_pgdecode.applied")


# -- columns -----------------------------------------------------------------------------------------------------------


def test_keys_are_not_null_and_comments_name_the_types(uri: str) -> None:
    commit(uri, net_of(PLAIN, ["id"]))
    with duckdb.connect() as connection:
        attach(connection, uri)
        sql = (
            "SELECT column_name, data_type, is_nullable, comment FROM duckdb_columns() "
            "WHERE database_name = 'lake' AND table_name = 't'"
        )
        assert connection.execute(sql).fetchall() == [
            ("id", "INTEGER", False, "int4"),
            ("a", "VARCHAR", True, None),
            ("b", "VARCHAR", True, None),
        ]


@pytest.mark.parametrize("is_deleted_before", [False, True])
@pytest.mark.parametrize("is_converted", [False, True])
def test_columns_are_added_dropped_renamed_and_converted(uri: str, is_deleted_before: bool, is_converted: bool) -> None:
    rows = [("upsert", None, {"id": i, "a": f"a{i}", "b": str(i)}, []) for i in range(5)]
    commit(uri, net_of(PLAIN, ["id"], *rows))
    # a and b change their names; a column comes that has the name of one that goes, in a next step.
    schema = pa.schema(
        [
            key_field("id", pa.int64(), "int8"),
            pa.field("b", pa.string()),
            pa.field("a", pa.int32() if is_converted else pa.string()),
            pa.field("d", pa.date32()),
            pa.field("n", pa.list_(pa.string())),
            pa.field("x", pa.float64()),
        ]
    )
    missing = {"d": pa.scalar(-1, pa.date32()), "n": pa.scalar(None, pa.list_(pa.string())), "x": pa.scalar(-0.0)}
    sources = {name: ColumnSource(missing=value) for name, value in missing.items()}
    convert = (lambda column: column.cast(pa.int32())) if is_converted else None
    sources = {"id": ColumnSource("id"), "b": ColumnSource("a"), "a": ColumnSource("b", convert=convert), **sources}
    target = lake_target(uri)
    with target.opened():
        table = target.table(NAME)
        if is_deleted_before:
            table.apply(net_of(PLAIN, ["id"], ("delete", {"id": 0}, {"id": 0}, [])))
        table.evolve(schema, sources)
        table.apply(net_of(schema, ["id"], ("delete", {"id": 1}, {"id": 1}, [])))
        dropped = pa.schema([schema.field(name) for name in ("id", "b", "x")] + [pa.field("a", pa.list_(pa.int32()))])
        value = pa.scalar([1, None], pa.list_(pa.int32()))
        kept = {name: ColumnSource(name) for name in ("id", "b", "x")}
        table.evolve(dropped, {**kept, "a": ColumnSource(missing=value)})
        table.apply(net_of(dropped, ["id"], ("upsert", {"id": 2}, {"id": 2, "b": "new"}, ["x", "a"])))
        target.commit({NAME: Applied(2, 2)})
        found = target.read(NAME).read_all()
        assert found.schema.names == dropped.names
        assert (str(found["x"][0]) == "-0.0" or target.is_lake, found["id"].type) == (True, pa.int64())
        assert sorted(found.to_pylist(), key=repr) == [
            *([] if is_deleted_before else [{"id": 0, "b": "a0", "x": 0.0, "a": [1, None]}]),
            {"id": 2, "b": "new", "x": 0.0, "a": [1, None]},
            {"id": 3, "b": "a3", "x": 0.0, "a": [1, None]},
            {"id": 4, "b": "a4", "x": 0.0, "a": [1, None]},
        ]


def test_an_error_of_a_conversion_is_raised_as_it_is(uri: str) -> None:
    commit(uri, net_of(PLAIN, ["id"], ("upsert", None, {"id": 1, "a": "a", "b": "b"}, [])))

    def convert(column: pa.ChunkedArray) -> pa.ChunkedArray:
        raise LookupError("not certain")

    target = lake_target(uri)
    with target.opened():
        sources = {"id": ColumnSource("id"), "a": ColumnSource("a", convert=convert)}
        with pytest.raises(LookupError, match="not certain"):
            target.table(NAME).evolve(pa.schema([PLAIN.field("id"), pa.field("a", pa.int32())]), sources)
        target.roll_back()
        assert len(target.read(NAME).read_all()) == 1


def test_passwords_are_not_in_names_and_options_are_those_of_attach() -> None:
    name = lake_target("ducklake:postgres:host=h password=secret1 dbname=lake").name
    assert name == "ducklake:postgres:host=h password=*** dbname=lake"
    assert (
        lake_target("ducklake:postgres:postgresql://u:secret1@h/lake").name
        == "ducklake:postgres:postgresql://u:***@h/lake"
    )
    with pytest.raises(ValueError, match="storage options are those of DuckDB's ATTACH"):
        lake_target("duckdb:x", storage_options={"a b": "c"})


def test_storage_options_are_options_of_attach(tmp_path: Path) -> None:
    options = {"data_path": str(tmp_path / "other")}
    target = lake_target(f"ducklake:{tmp_path / 'x.ducklake'}", storage_options=options)
    with target.opened():
        target.table(NAME).create(PLAIN)
        rows = [("upsert", None, {"id": i, "a": "a", "b": "b"}, []) for i in range(1000)]
        target.table(NAME).apply(net_of(PLAIN, ["id"], *rows))
        target.commit({NAME: Applied(1, 1)})
    assert [*(tmp_path / "other" / "public" / "t").iterdir()]


@pytest.mark.full
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_the_catalog_of_a_ducklake_is_in_another_database(kind: str, tmp_path: Path) -> None:
    pytest.importorskip(f"duckdb_extension_{kind}_scanner")
    with ExitStack() as stack:
        uri = f"ducklake:sqlite:{tmp_path}/lake.db"
        if kind == "postgres":
            programs = find_server()
            if programs is None:
                pytest.skip("no PostgreSQL server is installed")
            uri = f"ducklake:postgres:{stack.enter_context(running_cluster(programs)).dsn()}"
        targets = [lake_target(uri, storage_options={"data_path": f"{tmp_path}/files/"}) for _ in range(2)]
        with targets[0].opened() as target:
            target.table(NAME).create(PLAIN)
            rows = [("upsert", None, {"id": i, "a": "a", "b": "b"}, []) for i in range(3)]
            target.table(NAME).apply(net_of(PLAIN, ["id"], *rows))
            target.commit({NAME: Applied(1, 2)})
        change = net_of(PLAIN, ["id"], ("upsert", {"id": 1}, {"id": 1, "a": "new"}, ["b"]))
        with targets[0].opened() as one, targets[1].opened() if kind == "postgres" else nullcontext() as other:
            one.table(NAME).apply(change)
            if other is not None:
                other.table(NAME).apply(change)
            one.commit({NAME: Applied(2, 3)})
            if other is not None:
                with pytest.raises(RunError, match="nothing was committed, another writer has committed meanwhile"):
                    other.commit({NAME: Applied(2, 3)})
        with targets[0].opened() as target:
            assert target.applied[NAME].position == 2
            found = sorted(target.read(NAME).read_all().to_pylist(), key=lambda row: row["id"])
        assert found == [{"id": i, "a": "new" if i == 1 else "a", "b": "b"} for i in range(3)]


def test_an_extension_that_is_missing_is_named_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    known = importlib.util.find_spec
    scanner = "duckdb_extension_sqlite_scanner"
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == scanner else known(name, *rest)
    )
    run = DuckDbTarget.run

    def refused(self: DuckDbTarget, sql: str, *rest: Any) -> Any:
        if sql == "INSTALL sqlite_scanner":
            raise duckdb.IOException("no network")
        return run(self, sql, *rest)

    monkeypatch.setattr(DuckDbTarget, "run", refused)
    target = lake_target(f"ducklake:sqlite:{tmp_path}/lake.db")
    expected = r"has no extension sqlite_scanner: pip install duckdb-extension-sqlite-scanner==.*no network"
    with pytest.raises(RunError, match=expected), target.opened():
        pass
