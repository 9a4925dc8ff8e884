"""The rows of tables at the end by the command line, compared with `snapshot` and with the server."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from net.test_snapshot import as_text, differences, replayed, spelled, table_names

import pgdecode
from pgdecode import RelationCatalog
from pgdecode.datasets.target import read_manifests
from support import captures
from support.change_files import T, unfinished
from support.generators.slot import Slot
from support.generators.slots import UNCHANGED
from support.memory import peak_memory
from support.shell import SHOP, Shell, on_terminal, written

TABLE = f"public.t{T}"


def snapshot_of(path: Path, **options: object) -> pa.Table:
    found = pq.read_table(path)
    return pgdecode.snapshot(found["data"], TABLE, **options)


def altered() -> Slot:
    """A table whose column is renamed and that gets another one. A TOAST value of row 3 is in no message."""
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["id", "old", "toast"], keys=["id"], name="former")
    slot.insert(T, "1", "a", "x")
    slot.insert(T, "2", "b", "y")
    slot.update(T, "3", "c", UNCHANGED)
    slot.commit()
    slot.begin(8)
    slot.relation(T, ["id", "new", "toast", "more"], keys=["id"])
    slot.update(T, "1", "d", UNCHANGED, "m")
    slot.delete(T, "2", None, None, None, old_type="K")
    slot.commit()
    return slot


@pytest.mark.parametrize("name", ["10.shop.v1", "14.txns.v1", "18.shop.v1", "16.streams.v4", "18.streams.v2"])
def test_the_snapshots_of_a_capture_are_those_of_the_library_and_of_the_server(run: Shell, name: str) -> None:
    path = captures.DATA / f"{name}.parquet"
    recorded = pq.read_table(path)
    catalog = RelationCatalog.from_messages(recorded["data"])
    types = as_text(catalog)
    tables = table_names(catalog)
    options = [word for table in tables for word in ("--snapshot", table)]
    options += [word for oid in types for word in ("--types", f"{oid}=text")]
    done = run("decode", path, "out", *options, "--batch-rows", 100)
    assert done.code == 0, done.err
    found = {table: pq.read_table(f"out/{table}/{table}.parquet") for table in tables}
    for table, rows in found.items():
        expected = pgdecode.snapshot(recorded["data"], table, recorded["seq"], types=types)
        assert rows.equals(expected)
        assert rows.schema.metadata == expected.schema.metadata
    assert differences(name, {spelled(catalog, table): replayed(rows) for table, rows in found.items()}) == []


def test_all_versions_of_a_table_give_its_rows_in_every_format(run: Shell) -> None:
    path = written("in.parquet", altered().payloads)
    expected = snapshot_of(path)
    assert expected.drop_columns(list(expected.column_names[:3])).to_pylist() == [
        {"_unknown": ["more", "toast"], "id": "3", "new": "c", "toast": None, "more": None},
        {"_unknown": [], "id": "1", "new": "d", "toast": "x", "more": "m"},
    ]
    for format in ("parquet", "jsonl", "csv"):
        done = run("decode", path, f"out.{format}", "--snapshot", TABLE, "--show", 1)
        assert (done.code, ", 2 rows at the end, no bad rows; " in done.err) == (0, True)
        assert "toast" in done.out
    assert pq.read_table("out.parquet").equals(expected)
    lines = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert [(line["_position"], line["id"], line["_unknown"]) for line in lines] == [
        (4, "3", ["more", "toast"]),
        (8, "1", []),
    ]
    assert Path("out.csv").read_text().splitlines()[0] == ",".join(f'"{name}"' for name in expected.column_names)


def test_a_terminal_shows_the_rows_with_their_unknown_columns_last(run: Shell) -> None:
    path = written("in.parquet", altered().payloads)
    text = on_terminal("decode", path, "out.parquet", "--snapshot", TABLE, "--show", 9, columns=140)
    assert "all rows" in text
    heading = next(line for line in text.splitlines() if "_unknown" in line)
    assert heading.split()[:4] == ["id", "new", "toast", "more"]


@pytest.mark.parametrize("mode", ["FAILFAST", "PERMISSIVE", "DROPMALFORMED"])
def test_bad_messages_are_treated_as_by_the_library(run: Shell, mode: str) -> None:
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["id", "n"], types=[23, 23], keys=["id"])
    slot.insert(T, "1", "1")
    slot.insert(T, "2", "no number")
    slot.payloads.append(b"z")
    slot.insert(T, "3", "3")
    slot.commit()
    path = written("in.parquet", slot.payloads)
    done = run("decode", path, "out.parquet", "--snapshot", TABLE, "--mode", mode)
    if mode == "FAILFAST":
        assert (done.code, os.listdir()) == (1, ["in.parquet"])
        assert done.err.startswith("pgdecode: in.parquet: row 4: UNKNOWN_TAG") or "row 3: BAD_VALUE" in done.err
        assert run("decode", path, "out.parquet", "--snapshot", TABLE, "--bad", "bad.parquet").code == 0
        assert pq.read_table("bad.parquet")["row"].to_pylist() == [3, 4]
        mode = "DROPMALFORMED"
    found, expected = pq.read_table("out.parquet"), snapshot_of(path, mode=mode)
    assert found.to_pylist() == expected.to_pylist()
    assert found.schema.metadata == expected.schema.metadata
    assert json.loads(found.schema.metadata[b"pgdecode:bad_rows"]) == {"BAD_VALUE": 1, "UNKNOWN_TAG": 1}


def test_only_committed_changes_count(run: Shell) -> None:
    path = written("in.parquet", unfinished().payloads)
    done = run("decode", path, "out.parquet", "--snapshot", TABLE)
    assert done.code == 0
    assert "1 row at the end, no bad rows, 1 transaction without an outcome left out" in done.err
    found = pq.read_table("out.parquet")
    assert found["id"].to_pylist() == ["committed"]
    assert found.schema.metadata[b"pgdecode:undecided"] == b"1"


def test_a_table_without_rows_is_an_empty_file(run: Shell) -> None:
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["id"], keys=["id"])
    slot.insert(T, "1")
    slot.truncate(T)
    slot.commit()
    path = written("in.parquet", slot.payloads)
    assert run("decode", path, "out.parquet", "--snapshot", TABLE).code == 0
    assert pq.read_table("out.parquet").equals(snapshot_of(path))
    assert pq.read_metadata("out.parquet").num_rows == 0


def test_a_table_that_is_not_described_under_this_name_is_a_mistake(run: Shell) -> None:
    assert run("decode", SHOP, "out", "--snapshot", "public.order").err.startswith(
        "pgdecode: --snapshot public.order: no message describes this table (did you mean public.orders?); there are "
    )
    done = run("decode", written("in.parquet", altered().payloads), "out", "--snapshot", "public.former")
    assert (done.code, done.err) == (
        2,
        f"pgdecode: --snapshot public.former: 'public.former' was renamed to '{TABLE}'\n",
    )
    done = run("decode", written("empty.parquet", []), "out", "--snapshot", TABLE)
    assert (done.code, done.err) == (
        2,
        f"pgdecode: --snapshot {TABLE}: no message describes this table; there are none\n",
    )
    Path("catalog.json").write_text(RelationCatalog.from_messages(altered().payloads).to_json())
    done = run("decode", "empty.parquet", "out", "--table", TABLE, "--catalog", "catalog.json")
    assert (done.code, done.err) == (
        2,
        f"pgdecode: --table {TABLE}: no committed transaction of the input describes or uses this table\n",
    )
    assert not Path("out").exists()


def test_a_change_that_may_be_of_several_rows_is_bad_data(run: Shell) -> None:
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["a", "id"], keys=["id"])
    slot.insert(T, "x", "1")
    slot.relation(T, ["a", "key"], keys=["key"])
    slot.delete(T, None, "1", old_type="K")
    slot.commit()
    done = run("decode", written("in.parquet", slot.payloads), "out.parquet", "--snapshot", TABLE)
    assert (done.code, os.listdir()) == (1, ["in.parquet"])
    assert done.err.startswith(f"pgdecode: snapshot {TABLE}: position 4: the changed row is not found by its replica ")


@pytest.mark.long
@pytest.mark.full
def test_memory_does_not_grow_with_the_number_of_changes_of_the_same_long_values(tmp_path: Path) -> None:
    peaks = []
    for n in (1_500, 6_000):
        slot = Slot()
        for number in range(n):
            slot.begin(700 + number)
            if number == 0:
                slot.relation(T, ["id", "long"], keys=["id"])
            slot.update(T, str(number % 20), f"{number:07} " * 8_000)
            slot.commit()
        path = tmp_path / f"{n}.parquet"
        pq.write_table(pa.table({"data": pa.array(slot.payloads, pa.binary())}), path, row_group_size=600)
        peaks.append(peak_memory("decode", path, tmp_path / f"{n}", "--snapshot", TABLE, "--workers", "1"))
    assert peaks[1] - peaks[0] < 100e6


def test_renames_are_applied_alike_by_table_and_snapshot_and_are_events(run: Shell) -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["id", "a", "z"], keys=["id"])
    slot.insert(T, "1", "x", "y")
    slot.relation(T, ["id", "b", "z"], keys=["id"])
    slot.insert(T, "2", "x", "y")
    slot.relation(T, ["id", "b", "last"], keys=["id"])
    slot.insert(T, "3", "x", "y")
    slot.commit()
    source = written("in.parquet", slot.payloads)
    rename = ("--rename", f"{TABLE}.z=last@5")
    for what in ("--table", "--snapshot"):
        assert run("decode", source, f"out{what}", what, TABLE, *rename).code == 0
        [path] = Path(f"out{what}").glob("*.parquet")
        rows = pq.read_table(path)
        assert rows.schema.names[-3:] == ["id", "b", "last"]
        assert rows.select(["b", "last"]).to_pylist() == [{"b": "x", "last": "y"}] * 3
        [found] = read_manifests(f"out{what}")
        assert [(item["position"], item["old"], item["new"], item["stated"]) for item in found.renames] == [
            (3, "a", "b", False),
            (5, "z", "last", True),
        ]
    done = run("inspect", source)
    assert "at 3" in done.out
    assert "renamed a to b" in " ".join(done.out.split())
    [relation] = json.loads(run("inspect", source, "--json").out)["relations"]
    assert [version["renamed"] for version in relation["history"]] == [{}, {"a": "b"}, {}]


@pytest.mark.parametrize(
    ("rename", "code", "message"),
    [
        ("public.t.a=b", 2, "is not SCHEMA.TABLE.OLD=NEW@POSITION, such as public.orders.price=total@4711"),
        ("public.other.a=b@3", 2, "--rename public.other: not a table of --table, --snapshot or --net"),
        (f"{TABLE}.a=c@3", 1, f"renames: at position 3, table '{TABLE}' does not get a column 'c' in place of 'a'"),
        (f"{TABLE}.a=c@99", 1, f"renames: at position 99, table '{TABLE}' does not get a column 'c' in place of 'a'"),
    ],
)
@pytest.mark.parametrize("what", ["--table", "--snapshot"])
def test_a_rename_that_is_not_one_is_a_mistake(run: Shell, what: str, rename: str, code: int, message: str) -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["id", "a"], keys=["id"])
    slot.relation(T, ["id", "b"], keys=["id"])
    slot.insert(T, "2", "x")
    slot.commit()
    done = run("decode", written("in.parquet", slot.payloads), "out", what, TABLE, "--rename", rename)
    assert message in done.err
    assert not Path("out").exists()
    assert done.code == code


def test_a_snapshot_as_of_a_commit_stays_the_same_while_the_input_grows(run: Shell) -> None:
    recorded = pq.read_table(captures.DATA / "16.shop.v1.parquet")
    commits = [pgdecode.decode(data) for data in recorded["data"].to_pylist() if data[:1] == b"C"]
    lsn = commits[len(commits) // 2].commit_lsn
    expected = pgdecode.snapshot(recorded["data"], "public.orders", recorded["seq"], as_of=lsn)
    Path("in").mkdir()
    for number, (start, end) in enumerate([(0, 400), (400, len(recorded) - 99), (len(recorded) - 99, len(recorded))]):
        pq.write_table(recorded.slice(start, end - start), f"in/{number}.parquet")
        done = run("decode", "in", "out", "--snapshot", "public.orders", "--as-of", pgdecode.lsn_to_text(lsn))
        assert done.code == 0, done.err
        if number:
            (manifest,) = read_manifests(Path("out"))[-1:]
            assert pq.read_table(f"out/{manifest.files[0].name}").equals(expected)
    done = run("decode", "in", "out", "--snapshot", "public.orders", "--as-of", str(lsn))
    assert (done.code, "nothing new" in done.err) == (0, True)
    done = run("decode", "in", "out", "--snapshot", "public.orders", "--as-of", "2026-11-28T00:00:00Z")
    assert (done.code, "was written with as_of" in done.err) == (2, True)
    done = run("decode", "in", "other", "--table", "public.orders", "--as-of", str(lsn))
    assert (done.code, "--as-of is for --snapshot" in done.err) == (2, True)
    done = run("decode", "in", "other", "--snapshot", "public.orders", "--as-of", "2026-11-28")
    assert (done.code, "--as-of is a time without a time zone" in done.err) == (2, True)
    done = run("decode", SHOP, "one.parquet", "--snapshot", "public.orders", "--as-of", str(lsn))
    assert (done.code, "is not after" in done.err) == (0, False)
    assert pq.read_table("one.parquet").equals(expected)
    done = run("decode", SHOP, "end.parquet", "--snapshot", "public.orders", "--as-of", "F/0")
    assert (done.code, f"{SHOP}: no commit is after F/0: the rows are those at the end" in done.err) == (0, True)
