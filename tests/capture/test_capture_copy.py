"""Copies by `pgdecode capture --copy`: the rows that tables have already, between the commits before and after."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import copies
import pyarrow.parquet as pq
import pytest
from conftest import Database

import pgdecode
from pgdecode.capture import Capture, CaptureResult, FileRules, PluginOptions, RequestError, Retention, StoppedError
from pgdecode.capture.copy import Snapshot
from pgdecode.capture.journal import read_log
from pgdecode.capture.recorder import CopyProgress
from support.shell import Shell


def captured(database: Database, folder: Path, copy: Any = True, until: Any = "now", **more: Any) -> CaptureResult:
    """Capture until now."""
    options = {"create_slot": True, "on_warning": lambda text: None, **more}
    return Capture(database.dsn, folder, slot=database.slot, publication="p", copy=copy, **options).run(until=until)


def assert_equal(database: Database, folder: Path, *tables: str) -> None:
    assert copies.differences(folder, database.session, tables or ("t",)) == []
    copies.copies_in_order(folder)


def names(result: CaptureResult) -> list[str]:
    return [item.table for item in result.copies]


@pytest.fixture
def in_snapshot(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[Snapshot], object]]:
    """Actions to call once each when a snapshot has been made and its tables are not locked yet."""
    actions: list[Callable[[Snapshot], object]] = []
    locked = Snapshot.lock

    def lock(self: Snapshot, *arguments: Any) -> list[str]:
        if actions:
            actions.pop(0)(self)
        return locked(self, *arguments)

    monkeypatch.setattr(Snapshot, "lock", lock)
    return actions


def test_a_first_start_copies_a_later_one_adds_and_a_table_is_copied_again(database: Database, tmp_path: Path) -> None:
    out = tmp_path / "out"
    database.execute("INSERT INTO t SELECT i, 'v' || i FROM generate_series(1, 2000) i; CREATE TABLE e (id int)")
    result = captured(database, out)
    assert [(item.table, item.rows) for item in result.copies] == [("public.e", 0), ("public.t", 2000)]
    assert_equal(database, out, "t", "e")
    database.execute("UPDATE t SET v = 'x' WHERE id < 10; DELETE FROM t WHERE id = 11")
    # Rows of a table that was made later are in the slot too. The copy empties it first.
    database.execute("CREATE TABLE u (id int, v text); INSERT INTO u VALUES (1, 'a')")
    assert names(captured(database, out)) == ["public.u"]
    assert_equal(database, out, "t", "u")
    assert captured(database, out).copies == ()
    database.execute("INSERT INTO u VALUES (2, 'b')")
    assert names(captured(database, out, ["public.t", "u"], connections=2)) == ["public.t", "public.u"]
    assert_equal(database, out, "t", "u")
    assert len(copies.copies_in_order(out)) == 5
    # What has been copied is known from the log, and without it from the footers.
    assert {item.table for item, _ in read_log(out).copies.values()} == {"public.e", "public.t", "public.u"}
    (out / "_capture.jsonl").unlink()
    assert captured(database, out).copies == ()


@pytest.mark.full
def test_under_load_each_copy_is_the_state_of_the_server_at_its_lsn(
    database: Database, tmp_path: Path, in_snapshot: list[Callable[[Snapshot], object]]
) -> None:
    out = tmp_path / "out"
    database.execute(
        "CREATE TABLE u (id int PRIMARY KEY, v text); INSERT INTO t SELECT i, 'v' FROM generate_series(1, 5000) i"
    )
    seen: dict[int, dict[str, list[list[Any]]]] = {}

    def note(snapshot: Snapshot) -> None:
        tables = {name: snapshot.catalog.rows(f"SELECT id, v FROM public.{name}") for name in "tu"}
        seen[snapshot.lsn] = {name: sorted(rows) for name, rows in tables.items()}

    in_snapshot += [note] * 3
    with copies.Load(database.server, database.name, ("t", "u")) as load:
        captured(database, out, connections=2)
        for _ in range(2):
            captured(database, out, ["t", "u"])
    assert load.n_transactions > 10
    captured(database, out)
    assert_equal(database, out, "t", "u")
    changes = pgdecode.ChangeDecoder(mode="PERMISSIVE").decode(copies.messages_of(out)).to_pylist()
    tables: dict[str, copies.Rows] = {}
    before: dict[tuple[str, int], list[list[Any]]] = {}
    for change in changes:
        name, lsn = change["relation_name"], change["commit_lsn"]
        if change["xid"] == 0 and change["op"] == "truncate":
            if name in tables:
                before[name, lsn] = values(tables[name])
            tables[name] = {}
        if name in tables:
            copies.apply(tables[name], change)
    copied = {(name, lsn): values_of_copy(changes, name, lsn) for name in "tu" for lsn in seen}
    assert copied == {(name, lsn): rows[name] for lsn, rows in seen.items() for name in "tu"}
    # The commits before a copy are those that it has.
    assert before == {key: rows for key, rows in copied.items() if key[1] != min(seen)}


def values(rows: copies.Rows) -> list[list[Any]]:
    return sorted(list(row.values()) for row in rows.values())


def values_of_copy(changes: list[dict[str, Any]], name: str, lsn: int) -> list[list[Any]]:
    return sorted(
        [value for _, value in change["new"]]
        for change in changes
        if (change["xid"], change["commit_lsn"], change["relation_name"], change["op"]) == (0, lsn, name, "insert")
    )


@pytest.mark.full
def test_copies_that_are_killed_leave_nothing_and_are_made_again(database: Database, tmp_path: Path) -> None:
    problems, counts = copies.run(database.server, 7, 4, tmp_path)
    assert problems == []
    assert counts["copies"] > 3


@pytest.mark.full
@pytest.mark.parametrize("streaming", ["off", "on"])
def test_transactions_may_be_open_around_a_copy(
    database: Database, tmp_path: Path, in_snapshot: list[Callable[[Snapshot], object]], streaming: Literal["off", "on"]
) -> None:
    if database.server.major < 15:
        pytest.skip("two-phase decoding needs PostgreSQL 15")
    out, others = tmp_path / "out", [database.server.connect(database.name) for _ in range(2)]
    options: dict[str, Any] = {"options": PluginOptions(streaming=streaming, two_phase=True)}
    database.execute("INSERT INTO t VALUES (1, 'a')")
    captured(database, out, False, **options)

    def begin(snapshot: Snapshot) -> None:
        large = "INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series({0}, {0} + 2000) i"
        others[0].execute(f"BEGIN; {large.format(10_000)}")
        others[1].execute(f"BEGIN; {large.format(20_000)}; PREPARE TRANSACTION '{database.name}'")
        database.execute("INSERT INTO t VALUES (2, 'after')")

    in_snapshot.append(begin)
    captured(database, out, **options)
    others[0].execute("COMMIT")
    others[1].execute(f"COMMIT PREPARED '{database.name}'")
    captured(database, out, **options)
    for other in others:
        other.close()
    assert_equal(database, out)
    assert len(copies.tables_of(out)["t"]) == 2 + 2 * 2001


@pytest.mark.full
def test_a_table_that_is_altered_after_the_snapshot_gets_another_one(
    database: Database, tmp_path: Path, in_snapshot: list[Callable[[Snapshot], object]]
) -> None:
    database.execute("CREATE TABLE u (id int PRIMARY KEY); INSERT INTO u VALUES (1); INSERT INTO t VALUES (1, 'a')")
    in_snapshot.append(lambda _: database.execute("ALTER TABLE u ADD COLUMN v text; UPDATE u SET v = 'b'"))
    in_snapshot.append(lambda _: database.execute("TRUNCATE u; INSERT INTO u VALUES (2, 'c')"))
    result = captured(database, tmp_path / "out")
    assert names(result) == ["public.t", "public.u"]
    assert len({item.lsn for item in result.copies}) == 2
    assert_equal(database, tmp_path / "out", "t", "u")
    in_snapshot += [lambda _: database.execute("TRUNCATE u")] * 20
    with pytest.raises(StoppedError, match=r"table public\.u is altered again and again: copy it later"):
        captured(database, tmp_path / "out", ["u"])


@pytest.mark.full
def test_a_transaction_that_waits_to_alter_the_table_does_not_block_the_copy_for_ever(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute("INSERT INTO t VALUES (1, 'a')")
    other = database.server.connect(database.name)
    truncate = threading.Thread(target=other.execute, args=("TRUNCATE t; INSERT INTO t VALUES (2, 'b')",))
    locked = Snapshot.lock

    def lock(self: Snapshot, *arguments: Any) -> list[str]:
        altered = locked(self, *arguments)
        if truncate.ident is None:
            truncate.start()
            while database.execute("SELECT count(*) FROM pg_locks WHERE NOT granted") == [["0"]]:
                time.sleep(0.01)
        return altered

    monkeypatch.setattr(Snapshot, "lock", lock)
    for n_connections in (1, 2):
        assert names(captured(database, tmp_path / "out", ["t"], connections=n_connections)) == ["public.t"]
    truncate.join()
    other.close()
    assert_equal(database, tmp_path / "out")
    assert list(copies.tables_of(tmp_path / "out")["t"]) == ["2"]


@pytest.mark.full
def test_a_lost_connection_begins_the_copy_again(
    database: Database, tmp_path: Path, in_snapshot: list[Callable[[Snapshot], object]]
) -> None:
    database.execute("INSERT INTO t SELECT i, 'v' FROM generate_series(1, 100) i")
    in_snapshot.append(lambda it: database.execute(f"SELECT pg_terminate_backend({it.readers[0].pid})"))
    warnings: list[str] = []
    assert names(captured(database, tmp_path / "out", on_warning=warnings.append)) == ["public.t"]
    assert any(text.startswith("the copy begins again: ") for text in warnings), warnings
    assert_equal(database, tmp_path / "out")


@pytest.mark.full
def test_a_stop_during_a_copy_leaves_nothing_of_the_table(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY); INSERT INTO a VALUES (1)")
    database.execute("INSERT INTO t SELECT i, repeat('v', 1000) FROM generate_series(1, 10000) i")
    seen: list[CopyProgress] = []

    def stop(result: CaptureResult) -> None:
        if result.copying is not None:
            seen.append(result.copying)
            if result.copying.table == "public.t":
                capture.stop()

    out = tmp_path / "out"
    options: dict[str, Any] = {"slot": database.slot, "publication": "p", "create_slot": True, "copy": True}
    capture = Capture(database.dsn, out, on_progress=stop, on_warning=lambda text: None, **options)
    assert names(capture.run()) == ["public.a"]
    assert [item.table for item in seen] == ["public.a", "public.t"]
    last = seen[-1]
    assert (last.total, last.number, last.n_tables) == (10_000, 2, 2)
    assert 0 < last.rows < last.total
    assert last.rate > 0
    assert last.seconds_left is not None
    assert not list(out.glob(".*.partial"))
    assert [item.table for item, _ in read_log(out).copies.values()] == ["public.a"]
    assert names(captured(database, out)) == ["public.t"]
    assert_equal(database, out, "a", "t")


@pytest.mark.full
def test_copies_are_known_after_their_files_are_deleted_and_forgotten_at_a_gap(
    database: Database, tmp_path: Path
) -> None:
    if database.server.major < 11:
        pytest.skip("only PostgreSQL 11 and newer advance a slot by SQL")
    out = tmp_path / "out"
    database.execute("INSERT INTO t VALUES (1, 'a')")
    captured(database, out, rules=FileRules(max_bytes=1))
    database.execute("INSERT INTO t VALUES (2, 'b')")
    captured(database, out, retention=Retention(bytes=1))
    assert not any(entry.copies for entry in read_log(out).files.values())
    assert captured(database, out).copies == ()
    database.execute("INSERT INTO t VALUES (3, 'c')")
    database.execute(f"SELECT pg_replication_slot_advance('{database.slot}', pg_current_wal_lsn())")
    assert names(captured(database, out, accept_gap=True)) == ["public.t"]
    assert captured(database, out).copies == ()
    assert_equal(database, out)


@pytest.mark.full
def test_ends_of_a_run_count_after_the_copy(database: Database, tmp_path: Path) -> None:
    database.execute("INSERT INTO t SELECT i, 'v' FROM generate_series(1, 50) i")
    assert names(captured(database, tmp_path / "out", until=0.0)) == ["public.t"]
    result = captured(database, tmp_path / "out", ["t"], until="0/1")
    assert names(result) == ["public.t"]
    assert result.messages >= 55
    assert_equal(database, tmp_path / "out")


def test_requests_that_cannot_be_carried_out_say_what_to_do(database: Database, tmp_path: Path) -> None:
    out = tmp_path / "out"
    database.execute("CREATE PUBLICATION other FOR TABLE t; CREATE TABLE u (id int)")
    cases: dict[str, dict[str, Any]] = {
        r"table 'public\.u' cannot be copied: publication 'other' publishes no table of this name": {
            "publication": "other",
            "copy": ["t", "u"],
        },
        "copy needs a slot that stays": {"temporary": True, "copy": True},
        "connections is at least 1, not 0": {"connections": 0},
    }
    for text, options in cases.items():
        with pytest.raises(RequestError, match=text):
            Capture(
                database.dsn, out, **{"slot": database.slot, "publication": "p", "create_slot": True, **options}
            ).run()
    assert not out.exists()
    captured(database, out, False)
    [[free]] = database.execute(
        "SELECT current_setting('max_replication_slots')::int - count(*) FROM pg_replication_slots"
    )
    slots = f"FROM generate_series(1, {free}) i"
    database.execute(f"SELECT pg_create_physical_replication_slot('filler_' || i) {slots}")
    try:
        with pytest.raises(RequestError, match=r"needs a free replication slot .* increase max_replication_slots, or"):
            captured(database, out)
    finally:
        database.execute(f"SELECT pg_drop_replication_slot('filler_' || i) {slots}")
    assert names(captured(database, out)) == ["public.t", "public.u"]


@pytest.mark.full
def test_an_older_transaction_that_delays_a_copy_is_named(database: Database, tmp_path: Path) -> None:
    captured(database, tmp_path / "out", False)
    gid = f"{database.name} old"
    database.execute(f"BEGIN; INSERT INTO t VALUES (1, 'a'); PREPARE TRANSACTION '{gid}'")
    warnings: list[str] = []

    def end(text: str) -> None:
        warnings.append(text)
        if "prepared transaction" in text:
            with closing(database.server.connect(database.name)) as other:
                other.execute(f"COMMIT PREPARED '{gid}'")

    assert names(captured(database, tmp_path / "out", on_warning=end)) == ["public.t"]
    assert any(text.startswith("the snapshot of the copy is being made: it waits for older") for text in warnings)
    assert_equal(database, tmp_path / "out")


@pytest.mark.full
def test_the_command_copies_and_inspect_lists_the_copies(database: Database, tmp_path: Path, run: Shell) -> None:
    out = tmp_path / "out"
    database.execute("CREATE TABLE u (id int); INSERT INTO t SELECT i, 'v' FROM generate_series(1, 20) i")

    def called(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "pgdecode", *arguments], capture_output=True, text=True)

    options = ("--slot", database.slot, "--publication", "p", "--create-slot", "--until", "now")
    done = called("capture", database.dsn, str(out), *options, "--copy", "t", "--connections", "2")
    assert done.returncode == 0, done.stderr
    assert "\npublic.t: 20 rows copied at " in done.stderr
    [copy] = json.loads(run("inspect", out, "--json").out)["copies"]
    assert (copy["table"], copy["rows"]) == ("public.t", 20)
    assert "copy of table" in run("inspect", out).out
    # TABLE may be before or after the other arguments.
    done = called("capture", "--copy", database.dsn, str(out), "t", *options)
    assert "public.t: 20 rows copied at " in done.stderr
    assert "tables need --copy" in run("capture", database.dsn, out, "t", *options).err
    two = ("--connections", "2")
    assert "--connections needs --copy" in run("capture", database.dsn, out, *options, *two).err
    footers = [
        json.loads(pq.read_metadata(path).metadata[b"pgdecode.capture"]) for path in sorted(out.glob("*.parquet"))
    ]
    assert [item["table"] for footer in footers for item in footer["file"].get("copies", ())] == ["public.t"] * 2


def test_tables_are_copied_by_the_names_that_all_commands_have(database: Database, tmp_path: Path) -> None:
    database.execute(
        'CREATE SCHEMA "a.b"; CREATE TABLE "a.b".c (id int PRIMARY KEY); INSERT INTO "a.b".c VALUES (1);'
        'CREATE SCHEMA a; CREATE TABLE a."b.c" (id int PRIMARY KEY); CREATE TABLE "x""y" (id int PRIMARY KEY)'
    )
    out = tmp_path / "out"
    result = captured(database, out, ['"a.b".c', 'a."b.c"', 'public."x""y"', '"a.b"."c"'])
    assert names(result) == ['"a.b".c', 'a."b.c"', 'public."x""y"']
    capture = pgdecode.read_capture(out)
    rows = [pgdecode.snapshot(capture.payloads, name, capture.positions).num_rows for name in names(result)]
    assert rows == [1, 0, 0]
    with pytest.raises(RequestError, match=r"""table 'a\.b\.c' is ambiguous: write "a\.b"\.c or a\."b\.c"$"""):
        captured(database, out, "a.b.c")
