"""Targets made equal to a live server: captured and applied, once or again and again."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from pgdecode.capture import Capture, CaptureError, RequestError
from pgdecode.capture.journal import Journal
from pgdecode.datasets.errors import OtherWriter
from pgdecode.lake import Sync, lake_target, verify
from pgdecode.lake.reading.payload_source import PayloadSource
from pgdecode.lake.sync_run import Report
from pgdecode.storage.errors import PathError
from servers.database import Database
from servers.server import Cluster, running_cluster
from support.shell import Shell, started
from support.tiers import long


def slots(database: Database) -> list[str | None]:
    return [
        name
        for [name] in database.execute(f"SELECT slot_name FROM pg_replication_slots WHERE database = '{database.name}'")
    ]


@pytest.mark.full
def test_sync_makes_targets_equal_and_creates_only_what_it_was_asked_for(
    database: Database, tmp_path: Path, run: Shell
) -> None:
    raw, metrics = tmp_path / "raw", tmp_path / "pgdecode.prom"
    targets = [f"parquet:{tmp_path / 'one'}", f"parquet:{tmp_path / 'two'}"]
    words = ["sync", database.dsn, *targets, "--raw", str(raw), "--slot", database.slot, "--publication", "made"]
    database.execute(
        "CREATE TABLE other (a int PRIMARY KEY); INSERT INTO other VALUES (1); INSERT INTO t VALUES (1, 'one')"
    )
    done = run(*words)
    assert (done.code, slots(database)) == (2, [])
    assert done.err.startswith("pgdecode: publication 'made' does not exist"), done
    done = run(*words, "--create-publication")
    assert (done.code, slots(database)) == (2, [])
    assert "--create-slot makes it" in done.err
    assert database.execute("SELECT pubname FROM pg_publication") == [["p"]]
    created = ["--create-slot", "--create-publication"]
    done = run(*words, *created, "--exclude", "other", "--metrics", str(metrics))
    assert (done.code, done.out) == (0, ""), done
    assert "public.t: 1 row inserted or updated, 0 deleted" in done.err
    database.execute("UPDATE t SET v = 'two'; INSERT INTO t VALUES (3, 'three')")
    for _ in range(2):
        done = run(*words, "--exclude", "other", "--json")
        assert done.code == 0, done
    report = json.loads(done.out)
    assert (report["error"], report["failures"], [*report["targets"]]) == (None, 0, targets)
    of_target = report["targets"][targets[0]]
    of_table = of_target["tables"]["public.t"]
    assert (of_table["rows"], of_table["commit_lsn"]) == (2, of_target["commit_lsn"])
    for target in targets:
        assert run("verify", database.dsn, target).code == 0
        assert not (Path(target.removeprefix("parquet:")) / "public.other").exists()
    lines = metrics.read_text().splitlines()
    assert "pgdecode_sync_up 1" in lines
    assert f'pgdecode_sync_rows{{target="{targets[0]}",table="public.t"}} 1' in lines
    assert all(line.startswith(("# HELP ", "# TYPE ", "pgdecode_sync_")) for line in lines)

    status = ["sync", database.dsn, "--raw", str(raw), "--status"]
    assert run(*status, "--max-lag", "1h").code == 0
    done = run(*status, "--max-lag", "0s", "--json")
    assert done.code == 3
    assert "the last success is" in json.loads(done.out)["problems"][0]
    database.execute(f"SELECT pg_drop_replication_slot('{database.slot}')")
    done = run("sync", database.dsn, "--raw", str(raw), "--drop")
    gone = f"slot {database.slot}: did not exist any more\npublication made: dropped\n"
    assert (done.code, done.err) == (0, gone)
    assert slots(database) == []
    assert database.execute("SELECT pubname FROM pg_publication") == [["p"]]
    done = run(*status)
    assert (done.code, "does not exist" in done.out) == (3, True)
    assert "has created neither" in run("sync", database.dsn, "--raw", str(raw), "--drop").err
    # The folder goes on with a new slot and a new publication, by the command that the error names.
    again = [*words, *created, "--exclude", "other"]
    done = run(*again)
    named = "--exclude other --create-slot --create-publication --accept-gap\n"
    assert (done.code, named in done.err) == (3, True), done
    assert run(*again, "--accept-gap").code == 0


@pytest.mark.full
def test_rows_may_exchange_the_values_of_a_deferrable_primary_key(
    database: Database, tmp_path: Path, run: Shell
) -> None:
    # It is no replica identity, and several rows have the same key until the transaction ends.
    database.execute(
        "CREATE TABLE ranked (place int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, name text); "
        "ALTER TABLE ranked REPLICA IDENTITY FULL; INSERT INTO ranked VALUES (1, 'one'), (2, 'two'), (3, 'three')"
    )
    target = f"parquet:{tmp_path / 'lake'}"
    words = ["sync", database.dsn, target, "--raw", str(tmp_path / "raw"), "--publication", "p", "--create-slot"]
    assert run(*words).code == 0
    database.execute("UPDATE ranked SET place = 4 - place; DELETE FROM ranked WHERE place = 2")
    done = run(*words)
    assert done.code == 0, done
    done = run("verify", database.dsn, target)
    assert done.code == 0, done


# Statements, one transaction a line.
KEYS_THAT_COME = {
    "a": """
        DELETE FROM a WHERE v = 'b'
        ALTER TABLE a ADD PRIMARY KEY (id)""",
    "b": """
        UPDATE b SET id = 100 WHERE v = 'b'
        ALTER TABLE b ADD PRIMARY KEY (id)
        UPDATE b SET v = 'c' WHERE id = 12""",
    "c": "BEGIN; DELETE FROM c WHERE v = 'b'; ALTER TABLE c ADD PRIMARY KEY (id); COMMIT",
    "d": """
        DELETE FROM d WHERE v = 'b'
        ALTER TABLE d ADD CONSTRAINT k PRIMARY KEY (id)
        INSERT INTO d VALUES (9, 3, 'd')
        DELETE FROM d WHERE id = 9
        ALTER TABLE d DROP CONSTRAINT k, ADD CONSTRAINT k PRIMARY KEY (code)""",
}


@pytest.mark.full
def test_a_primary_key_that_comes_between_two_cycles_is_not_the_key_of_changes_before_it(
    database: Database, tmp_path: Path, run: Shell
) -> None:
    for name in KEYS_THAT_COME:
        # ADD PRIMARY KEY changes no column that is NOT NULL already.
        null = "" if name == "c" else "NOT NULL"
        database.execute(
            f"CREATE TABLE {name} (id int {null}, code int {null}, v text); ALTER TABLE {name} REPLICA IDENTITY FULL; "
            f"INSERT INTO {name} VALUES (1, 1, 'one'), (12, 2, 'a'), (12, 3, 'b')"
        )
    target = f"parquet:{tmp_path / 'lake'}"
    words = ["sync", database.dsn, target, "--raw", str(tmp_path / "raw"), "--publication", "p", "--create-slot"]
    assert run(*words).code == 0
    for statements in KEYS_THAT_COME.values():
        for statement in statements.strip().splitlines():
            database.execute(statement)
    done = run(*words)
    assert done.code == 0, done
    done = run("verify", database.dsn, target)
    assert done.code == 0, done


@pytest.mark.full
def test_a_sync_that_cannot_have_its_slot_leaves_no_publication(postgres: Cluster, tmp_path: Path, run: Shell) -> None:
    with running_cluster(postgres.programs, wal_level="replica") as found:
        words = [found.dsn(), f"parquet:{tmp_path / 'lake'}", "--raw", str(tmp_path / "raw")]
        done = run("sync", *words, "--create-slot", "--create-publication")
        assert (done.code, "wal_level = replica" in done.err, "restart the server" in done.err) == (2, True, True), done
        done = run("capture", found.dsn(), tmp_path / "raw", "--create-slot", "--slot", "s", "--publication", "p")
        assert done.code == 2
        session = found.connect()
        assert session.execute("SELECT pubname FROM pg_publication") == []
        session.close()


@pytest.mark.full
def test_a_publication_goes_again_if_no_session_came_about(database: Database, tmp_path: Path, run: Shell) -> None:
    database.create_slot()
    other = Database(database.server, f"{database.name}_other")
    words = [f"parquet:{tmp_path / 'lake'}", "--raw", str(tmp_path / "raw"), "--slot", database.slot]
    try:
        done = run("sync", other.dsn, *words, "--publication", "made", "--create-slot", "--create-publication")
        assert (done.code, "belongs to database" in done.err) == (2, True), done
        assert other.execute("SELECT pubname FROM pg_publication") == [["p"]]
    finally:
        other.close()
    # The server refuses this only after the publication was made.
    done = run(
        "sync",
        database.dsn,
        *words[:3],
        "--slot",
        "Bad",
        "--publication",
        "made",
        "--create-slot",
        "--create-publication",
    )
    assert (done.code, "cannot be created" in done.err) == (2, True), done
    assert database.execute("SELECT pubname FROM pg_publication") == [["p"]]


@pytest.mark.full
@pytest.mark.parametrize("tables", [[], ["--table", "t"]], ids=["all", "chosen"])
def test_the_command_that_a_lost_slot_is_answered_with_continues(
    database: Database, tmp_path: Path, run: Shell, tables: list[str]
) -> None:
    raw, target = tmp_path / "raw", f"parquet:{tmp_path / 'lake'}"
    words = ["sync", database.dsn, target, "--raw", raw, *tables]
    database.execute("INSERT INTO t VALUES (1, 'one'), (2, 'two')")
    assert run(*words, "--slot", database.slot, "--publication", "p", "--create-slot").code == 0
    database.execute(f"DELETE FROM t WHERE id = 1; SELECT pg_drop_replication_slot('{database.slot}')")
    named = " ".join([f": pgdecode sync DSN TARGET --raw {raw}", *tables, "--create-slot --accept-gap\n"])
    for more in ([], ["--create-slot"], ["--accept-gap"], ["--status"]):
        done = run(*words, *more)
        assert (done.code, named in done.err + done.out) == (3, True), done
    done = run(*words, "--create-slot", "--accept-gap")
    assert (done.code, "public.t: copied" in done.err) == (0, True), done
    assert verify(database.dsn, target).is_equal
    database.execute("INSERT INTO t VALUES (3, 'three')")
    assert run(*words).code == 0
    assert verify(database.dsn, target).is_equal
    if database.server.major >= 11:
        # Another client has read the slot.
        database.execute("INSERT INTO t VALUES (4, 'four')")
        database.execute(f"SELECT pg_replication_slot_advance('{database.slot}', pg_current_wal_flush_lsn())")
        done = run(*words, "--accept-gap")
        assert (done.code, named in done.err) == (3, True), done
        assert run(*words, "--create-slot", "--accept-gap").code == 0
        assert verify(database.dsn, target).is_equal
    capture = ["capture", database.dsn, raw, "--until", "now"]
    database.execute(f"SELECT pg_drop_replication_slot('{database.slot}')")
    done = run(*capture)
    named = f"DSN {raw} --slot {database.slot} --publication p --until now --create-slot --accept-gap\n"
    assert (done.code, named in done.err) == (3, True), done
    assert run(*capture, "--slot", database.slot, "--publication", "p", "--create-slot", "--accept-gap").code == 0
    assert run(*words, "--create-slot", "--accept-gap").code == 0
    assert verify(database.dsn, target).is_equal


def test_a_target_that_fails_does_not_stop_the_others(database: Database, tmp_path: Path) -> None:
    database.execute("INSERT INTO t VALUES (1, 'one')")
    (tmp_path / "bad").write_text("a file")
    good, bad = f"parquet:{tmp_path / 'good'}", f"parquet:{tmp_path / 'bad'}"
    reports = []
    running = Sync(
        database.dsn,
        [bad, good],
        tmp_path / "raw",
        slot=database.slot,
        publications=["p"],
        create_slot=True,
        on_report=reports.append,
    )
    with pytest.raises((OSError, ValueError)):
        running.run()
    assert reports[0].targets[bad].error
    assert reports[0].targets[good].tables["public.t"]["rows"] == 1
    with pytest.raises(RequestError, match=r"'public\.nope' is not published"):
        Sync(database.dsn, [good], tmp_path / "raw", tables=["nope"]).run()
    database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    with pytest.raises(RequestError, match=r"not published \(did you mean public\.orders\?\)"):
        Sync(database.dsn, [good], tmp_path / "raw", tables=["ordres"]).run()


@pytest.mark.full
def test_a_cycle_is_tried_again_while_another_run_writes_to_the_target(database: Database, tmp_path: Path) -> None:
    database.execute("INSERT INTO t VALUES (1, 'one')")
    target, other, warnings = f"parquet:{tmp_path / 'lake'}", contextlib.ExitStack(), []

    def on_warning(text: str) -> None:
        warnings.append(text)
        other.close()

    new = Sync(
        database.dsn,
        [target],
        tmp_path / "raw",
        slot=database.slot,
        publications=["p"],
        create_slot=True,
        retry_seconds=0,
        on_warning=on_warning,
    )
    (tmp_path / "lake").mkdir()
    other.enter_context(lake_target(target).opened())
    with pytest.raises(OtherWriter, match="another process is writing it now"):
        new.run()
    new.retry_seconds = 60
    assert new.run().targets[target].tables["public.t"]["rows"] == 1
    assert ["trying again for" in text for text in warnings] == [True]
    other.callback(Journal(tmp_path / "raw").close)
    assert new.run().targets[target].error is None
    assert "another capture writes" in warnings[1]


@pytest.mark.full
def test_only_a_server_that_was_reached_before_is_waited_for(database: Database, tmp_path: Path, run: Shell) -> None:
    dsn = f"host={tmp_path} dbname={database.name}"
    words = [f"parquet:{tmp_path / 'lake'}", "--raw", tmp_path / "raw", "--slot", database.slot, "--publication", "p"]
    done = run("sync", dsn, *words, "--create-slot")
    assert (done.code, "trying again" in done.err, "No such file or directory" in done.err) == (2, False, True), done
    assert run("sync", database.dsn, *words, "--create-slot").code == 0
    done = run("sync", dsn, *words, "--table", "t", "--retry", "1s")
    assert (done.code, "trying again for 1 s: " in done.err, "up to the commit" in done.err) == (2, True, False), done
    assert "table t: " not in done.err  # what was captured before is applied


@pytest.mark.full
def test_a_server_with_too_many_connections_is_waited_for_in_the_first_call_too(
    database: Database, tmp_path: Path, run: Shell
) -> None:
    role = f"{database.name}_limited"
    database.execute(f"CREATE ROLE {role} LOGIN REPLICATION CONNECTION LIMIT 0")
    try:
        dsn = f"{database.dsn} user={role}"
        done = run("sync", dsn, f"parquet:{tmp_path / 'lake'}", "--raw", tmp_path / "raw", "--retry", "1s")
        assert (done.code, "trying again for 1 s: " in done.err, "too many connections" in done.err) == (2, True, True)
    finally:
        database.execute(f"DROP ROLE {role}")


def test_a_warning_that_each_cycle_has_is_printed_once(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE without_key (a int)")
    warnings: list[str] = []
    reports: list[Report] = []

    def on_report(report: Report) -> None:
        reports.append(report)
        if len(reports) == 3:
            new.stop()

    new = Sync(
        database.dsn,
        [f"parquet:{tmp_path / 'lake'}"],
        tmp_path / "raw",
        slot=database.slot,
        publications=["p"],
        create_slot=True,
        on_warning=warnings.append,
        on_report=on_report,
    )
    new.run(every=0.01)
    assert (len(reports), ["public.without_key" in text for text in warnings]) == (3, [True])


@pytest.mark.full
def test_a_table_that_stays_behind_hides_neither_another_error_nor_that_a_copy_has_mended_a_table(
    database: Database, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE calls (id int PRIMARY KEY, at timestamptz)")
    database.execute("INSERT INTO calls VALUES (1, 'infinity')")
    second, warnings, copies = tmp_path / "second", list[str](), list[list[str]]()

    def on_report(report: Report) -> None:
        copies.append(report.copies)
        if len(copies) == 1:
            database.execute("INSERT INTO t VALUES (1); ALTER TABLE t ADD w float8 DEFAULT random()")
            database.execute("INSERT INTO t VALUES (2, 'two')")
        if len(copies) == 5:
            shutil.rmtree(second)
            second.write_text("a file")

    new = Sync(
        database.dsn,
        [f"parquet:{tmp_path / 'lake'}", f"parquet:{second}"],
        tmp_path / "raw",
        slot=database.slot,
        publications=["p"],
        create_slot=True,
        copy_again=True,
        on_warning=warnings.append,
        on_report=on_report,
    )
    with pytest.raises(PathError, match="second: is not a folder"):
        new.run(every=0.01)
    assert copies == [["public.calls", "public.t"], [], ["public.t"], [], [], []]
    assert [text.partition(": ")[0] for text in warnings] == [
        *["table public.calls"] * 2,  # of each target
        "table public.t is copied again",
        *["table public.calls"] * 2,
    ]


@pytest.mark.full
def test_a_slot_that_is_still_active_is_waited_for_with_a_bound_and_the_reason(
    database: Database, tmp_path: Path
) -> None:
    database.create_slot()
    process = started("capture", database.dsn, tmp_path / "other", "--slot", database.slot, "--publication", "p")
    try:
        is_active = f"SELECT active::int FROM pg_replication_slots WHERE slot_name = '{database.slot}'"
        deadline = time.monotonic() + 60
        while database.session.value(is_active) == "0" and time.monotonic() < deadline:
            time.sleep(0.1)
        warnings: list[str] = []
        new = Sync(
            database.dsn,
            [f"parquet:{tmp_path / 'lake'}"],
            tmp_path / "raw",
            slot=database.slot,
            publications=["p"],
            retry_seconds=1,
            on_warning=warnings.append,
        )
        reason = f'replication slot "{database.slot}" is active for PID'
        with pytest.raises(CaptureError, match=reason):
            new.run()
        assert [text.split(" is active")[0] for text in warnings] == [
            f'waiting up to 1 s for the slot: replication slot "{database.slot}"'
        ]
        new.retry_seconds, new.on_warning = 60, lambda text: process.terminate()
        assert new.run().errors == []
    finally:
        process.kill()
        process.communicate()


@pytest.mark.full
@pytest.mark.parametrize(
    ("n_changes", "is_older"),
    [
        pytest.param(0, False, id="only copies"),
        pytest.param(0, True, id="only copies, state of an earlier version"),
        pytest.param(30, False, id="with commits"),
        pytest.param(30, True, id="with commits, state of an earlier version"),
    ],
)
def test_another_folder_of_the_slot_is_refused_before_the_slot_is_read(
    database: Database, tmp_path: Path, run: Shell, monkeypatch: pytest.MonkeyPatch, n_changes: int, *, is_older: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    if is_older:
        monkeypatch.setattr(PayloadSource, "seen", lambda *values: None)

    def insert(first: int, n: int) -> None:
        for number in range(first, first + n):
            database.execute(f"INSERT INTO t VALUES ({number}, 'v{number}')")

    def confirmed() -> str | None:
        (row,) = database.execute(
            f"SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '{database.slot}'"
        )
        return row[0]

    words = ["sync", database.dsn, "parquet:lake", "--slot", database.slot, "--publication", "p"]
    insert(0, 30)
    assert run(*words, "--raw", "raw", "--create-slot").code == 0
    insert(30, n_changes)
    assert run(*words, "--raw", "raw").code == 0
    insert(100, 50)
    before = confirmed()
    for _ in range(2):
        done = run(*words, "--raw", "rwa")
        assert done.code == 2
        assert f"of {tmp_path / 'raw'}: sync with the folder that it was made from" in done.err
        assert done.err.count("\n") <= 2, done.err
    assert confirmed() == before
    done = run("sync", database.dsn, "--raw", "rwa", "--status")
    assert (done.code != 0, "rwa: has no captured files, but parquet:lake has" in done.err) == (True, True), done

    # Files of before may be applied again.
    for path in sorted(Path("raw").glob("*.parquet")):
        assert run("apply", path, "parquet:lake").code == 0
    # Moved, in another form of the path, and with a target that was deleted or is new, the folder goes on.
    Path("raw").rename("moved")
    shutil.copytree("lake", "old")
    assert run(*words, "parquet:two", "--raw", tmp_path / "moved").code == 0
    shutil.rmtree("lake")
    assert run(*words, "parquet:old", "--raw", "moved").code == 0
    for target in ("parquet:lake", "parquet:two", "parquet:old"):
        assert verify(database.dsn, target).is_equal

    # The captured changes of later are refused too, whether there are fewer or more of them.
    insert(200, 3)
    for n in (0, 120):
        insert(300, n)
        Capture(database.dsn, Path("other"), slot=database.slot, publication="p", copy=n > 0).run(until="now")
        insert(500 + n, 3)
        before = confirmed()
        for line in (["apply", "other", "parquet:lake"], [*words, "--raw", "other"]):
            done = run(*line)
            assert (done.code, "other: " in done.err, f"of {tmp_path / 'moved'} that parquet:lake has" in done.err) == (
                2,
                True,
                True,
            ), done
        assert confirmed() == before
        done = run("sync", database.dsn, "--raw", "other", "--status")
        assert (done.code, "payloads up to position" in done.out) == (3, True), done
    assert run(*words[:2], "parquet:new", *words[3:], "--raw", "other").code == 0
    assert verify(database.dsn, "parquet:new").is_equal


def test_a_target_that_cannot_be_made_costs_no_slot(database: Database, tmp_path: Path, run: Shell) -> None:
    (tmp_path / "file").touch()
    done = run(
        *("sync", database.dsn, f"parquet:{tmp_path}/file/lake", "--raw", tmp_path / "raw"),
        *("--slot", database.slot, "--publication", "p", "--create-slot"),
    )
    assert (done.code, slots(database)) == (2, []), done


@pytest.mark.full
def test_sync_every_goes_on_until_a_signal_and_keeps_others_out(database: Database, tmp_path: Path, run: Shell) -> None:
    raw, target = tmp_path / "raw", f"parquet:{tmp_path / 'lake'}"
    words = ["sync", database.dsn, target, "--raw", raw, "--slot", database.slot, "--publication", "p", "--create-slot"]
    process = started(*words, "--every", "300ms")
    try:
        deadline = time.monotonic() + 60
        while not (raw / "_sync.json").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert "another process syncs" in run(*words).err
        for n in range(5):
            database.execute(f"INSERT INTO t VALUES ({n}, 'x'); UPDATE t SET v = 'n{n}'")
            result = verify(database.dsn, target, on_warning=print)
            assert result.is_equal, result
        process.send_signal(signal.SIGTERM)
        _, error = process.communicate(timeout=60)
        assert process.returncode == 0, error
    finally:
        process.kill()
        process.wait()
    assert verify(database.dsn, target).is_equal
    assert not (raw / "_sync.lock").exists()


@pytest.mark.full
def test_tables_whose_rows_cannot_be_known_are_copied_again_on_request(
    database: Database, tmp_path: Path, run: Shell
) -> None:
    raw, target = tmp_path / "raw", f"parquet:{tmp_path / 'lake'}"
    words = ["sync", database.dsn, target, "--raw", raw, "--slot", database.slot, "--publication", "p", "--create-slot"]
    database.execute("CREATE TABLE other (a int PRIMARY KEY); INSERT INTO t VALUES (1, '1'), (2, '2')")
    assert run(*words).code == 0
    database.execute("ALTER TABLE t ALTER v TYPE int USING v::int + 100; INSERT INTO t VALUES (3, 3)")
    database.execute("INSERT INTO other VALUES (1)")
    done = run(*words)
    assert done.code == 1
    assert "table public.t: position" in done.err
    done = run(*words, "--copy-again")
    assert (done.code, "public.t is copied again: position" in done.err) == (0, True), done
    assert "public.other: copied" not in done.err
    result = verify(database.dsn, target)
    assert result.is_equal, result


@pytest.mark.full
def test_a_table_that_is_renamed_twice_between_two_cycles_has_its_last_name(database: Database, tmp_path: Path) -> None:
    database.execute("INSERT INTO t VALUES (1, 'one')")
    target = f"parquet:{tmp_path / 'lake'}"
    new = Sync(database.dsn, [target], tmp_path / "raw", slot=database.slot, publications=["p"], create_slot=True)
    new.run()
    for name, after in (("t", "u"), ("u", "v")):
        database.execute(f"ALTER TABLE {name} RENAME TO {after}")
        for n in (2, 3):
            database.execute(f"INSERT INTO {after} VALUES ({n * 10 + (after == 'v')}, 'x')")
    assert new.run().targets[target].tables["public.v"]["rows"] == 5
    assert not new.run().targets[target].tables["public.v"]["files_added"]
    assert verify(database.dsn, target).is_equal
    opened = lake_target(target)
    with opened.opened(), opened.read("public.t") as reader:
        assert reader.read_all().to_pylist() == [{"id": 1, "v": "one"}]
    assert verify(database.dsn, tmp_path / "raw").is_equal


@pytest.mark.full
def test_a_table_that_is_altered_several_times_between_two_cycles_equals_the_servers_or_is_copied_again(
    database: Database, tmp_path: Path, run: Shell
) -> None:
    if database.server.major < 11:
        pytest.skip("PostgreSQL 10 rewrites a table when it adds a default")
    # Rows between the changes, so that the server describes each state of the table.
    known = {
        "added": "ADD a int DEFAULT 7; INSERT; ADD b int DEFAULT 8; INSERT; ADD c text; INSERT",
        "dropped": "ADD a int DEFAULT 7; INSERT; DROP v; INSERT; ADD b text; INSERT",
        "named": "RENAME v TO w; INSERT; ADD b int DEFAULT 8; INSERT",
        "identified": "ADD a int DEFAULT 7; INSERT; REPLICA IDENTITY FULL; INSERT; ADD b int; INSERT",
        "unused": "ADD a int DEFAULT 7; INSERT; ADD b int DEFAULT 8",
    }
    unknown = {
        "again": "DROP v; ADD v text DEFAULT 'n'; INSERT; ALTER id SET STATISTICS 9; INSERT",
        "rewritten": "ADD a int DEFAULT 7; INSERT; ALTER a TYPE bigint; INSERT",
    }
    for name in (*known, *unknown):
        database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text); INSERT INTO {name} VALUES (1, 'one')")
    target = f"parquet:{tmp_path / 'lake'}"
    words = [
        "sync",
        database.dsn,
        target,
        "--raw",
        str(tmp_path / "raw"),
        "--slot",
        database.slot,
        "--publication",
        "p",
    ]
    assert run(*words, "--create-slot").code == 0
    for name, changes in {**known, **unknown}.items():
        database.execute(f"INSERT INTO {name} VALUES (2, 'two')")
        for number, change in enumerate(changes.split("; ")):
            is_row = change == "INSERT"
            database.execute(f"INSERT INTO {name} VALUES ({number + 10})" if is_row else f"ALTER TABLE {name} {change}")
    done = run(*words)
    assert done.code == 1
    assert [name for name in (*known, *unknown) if f"table public.{name}: position" in done.err] == [*unknown], done
    assert run(*words, "--copy-again").code == 0
    for place in (target, tmp_path / "raw"):
        result = verify(database.dsn, place)
        assert result.is_equal, result


@pytest.mark.full
@pytest.mark.parametrize("kind", [long("parquet"), "duckdb", long("delta"), long("iceberg")])
def test_a_value_that_arrow_does_not_have_keeps_only_its_table_behind(
    database: Database, tmp_path: Path, run: Shell, kind: str
) -> None:
    if kind != "parquet":
        pytest.importorskip({"duckdb": "duckdb", "delta": "deltalake", "iceberg": "pyiceberg"}[kind])
    raw, lake = tmp_path / "raw", tmp_path / "lake"
    target = f"{kind}:{lake}"
    words = ["sync", database.dsn, target, "--raw", raw, "--slot", database.slot, "--publication", "p"]
    database.execute(
        "CREATE TABLE calls (id int PRIMARY KEY, at timestamptz); INSERT INTO calls VALUES (1, now());"
        "CREATE TABLE prices (id int PRIMARY KEY, price numeric(8, 2)); INSERT INTO prices VALUES (1, 'NaN'), (2, 2)"
    )

    def synced(*stale: str, options: Sequence[str] = ()) -> str:
        """Sync, and check which tables are behind, and that the others equal the server's."""
        done = run(*words, *options)
        assert done.code == int(bool(stale)), done
        names = ("calls", "prices", "t")
        assert {name for name in names if f"pgdecode: table public.{name}: " in done.err} == {*stale}
        tables = verify(database.dsn, target).tables
        behind = {f"public.{name}" for name in stale} & {*tables}
        assert {name for name in tables if not tables[name].is_equal} == behind
        return done.err

    # A table that the target does not have yet, and one that it has.
    assert run(*words, "--create-slot").code == 1
    database.execute("UPDATE prices SET price = 1 WHERE id = 1; INSERT INTO t VALUES (1, 'one')")
    error = synced("prices")
    assert "column 'price' does not fit its Arrow type (choose with --unrepresentable null, clamp or text)" in error
    assert f"delete {target}, and apply {raw} again with the option" in error
    database.execute("INSERT INTO calls VALUES (2, now()), (3, 'infinity'); INSERT INTO t VALUES (2, 'two')")
    for _ in range(2):
        synced("calls", "prices")
    shown = run("verify", database.dsn, target)
    assert (shown.code, "public.calls: NOT equal\n" in shown.out) == (1, True), shown
    assert "column 'at' does not fit its Arrow type (choose with --unrepresentable null" in shown.out
    # The rows from captured files are behind too.
    found = verify(database.dsn, raw).tables
    assert {name for name in found if not found[name].is_equal} == {"public.calls", "public.prices"}
    # Only tables that a copy mends are copied again.
    database.execute("ALTER TABLE t ADD w float8 DEFAULT random(); INSERT INTO t VALUES (5, 'five')")
    error = synced("calls", "prices", options=["--copy-again"])
    assert [name for name in ("calls", "prices", "t") if f"table public.{name} is copied again" in error] == ["t"]
    # A copy with the value, and copies without it.
    copy = ["capture", database.dsn, raw, "--slot", database.slot, "--publication", "p", "--until", "now"]
    assert run(*copy, "--copy", "public.calls", "--copy", "public.prices").code == 0
    synced("calls")
    database.execute("UPDATE calls SET at = now() WHERE id = 3")
    synced("calls")
    assert run(*copy, "--copy", "public.calls").code == 0
    synced()
    # Another choice needs a target that is made anew.
    database.execute("INSERT INTO calls VALUES (4, '-infinity')")
    done = run(*words, "--unrepresentable", "clamp")
    assert done.code == 2
    assert "was applied with --unrepresentable error, and not 'clamp'" in done.err
    assert f"delete {target}, and apply {raw} again with the option" in done.err
    shutil.rmtree(lake) if lake.is_dir() else lake.unlink()
    assert run(*words, "--unrepresentable", "clamp").code == 0
    assert verify(database.dsn, target).is_equal
