"""Capture against a live server."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cluster
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import Database

import pgdecode
from pgdecode import ChangeDecoder
from pgdecode.capture import Capture, FileRules, GapError, PluginOptions, RequestError, Retention, StoppedError
from pgdecode.capture.capture import CaptureResult
from pgdecode.capture.journal import read_log
from pgdecode.capture.slot_status import read_status


def capture(database: Database, folder: Path, *, until: str | None = "now", **more: Any) -> CaptureResult:
    max_messages = more.pop("max_messages", None)
    made = Capture(database.dsn, folder, slot=database.slot, publication="p", **more)
    return made.run(until=until, max_messages=max_messages)


def rows(folder: Path) -> pa.Table:
    return pa.concat_tables([pq.read_table(path) for path in sorted(folder.glob("*.parquet"))])


def changes(folder: Path) -> list[tuple[str, Any]]:
    """Committed changes, in FAILFAST."""
    found = ChangeDecoder().decode(rows(folder)["data"]).to_pylist()
    return [(change["op"], dict(change["new"] or change["old"] or ())) for change in found]


def wait_for(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


class Running:
    """A capture in a thread of its own."""

    def __init__(self, database: Database, folder: Path, **more: Any) -> None:
        more.setdefault("rules", FileRules(max_seconds=0.2, position_seconds=0.2))
        self.capture = Capture(more.pop("dsn", database.dsn), folder, slot=database.slot, publication="p", **more)
        self.result: CaptureResult | BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self.capture.run()
        except BaseException as error:
            self.result = error

    def stop(self) -> CaptureResult:
        self.capture.stop()
        found = self.wait()
        assert isinstance(found, CaptureResult), found
        return found

    def wait(self) -> Any:
        self._thread.join(120)
        assert not self._thread.is_alive()
        return self.result


def test_a_capture_writes_every_committed_change_once(database: Database, tmp_path: Path) -> None:
    database.create_slot()
    for number in range(3):
        database.execute(f"INSERT INTO t VALUES ({number}, 'x')")
        capture(database, tmp_path / "out")
    database.execute("BEGIN; INSERT INTO t VALUES (9, 'no'); ROLLBACK")
    capture(database, tmp_path / "out")
    assert changes(tmp_path / "out") == [("insert", {"id": str(number), "v": "x"}) for number in range(3)]
    found = rows(tmp_path / "out")
    assert found.schema.names == ["seq", "lsn", "received", "data"]
    assert [str(field.type) for field in found.schema] == ["int64", "int64", "timestamp[us, tz=UTC]", "binary"]
    assert found["seq"].to_pylist() == list(range(len(found)))
    begins = [(row["lsn"], row["data"]) for row in found.to_pylist() if row["data"][:1] == b"C"]
    # The frame of a commit has the commit's end LSN.
    assert all(lsn == int.from_bytes(payload[10:18], "big") for lsn, payload in begins)


def test_the_footer_has_the_origin_of_messages(database: Database, tmp_path: Path) -> None:
    database.create_slot()
    database.execute("CREATE TYPE mood AS ENUM ('sad'); CREATE TABLE m (id int PRIMARY KEY, mood mood)")
    database.execute("INSERT INTO m VALUES (1, 'sad')")
    capture(database, tmp_path / "out", options=PluginOptions(streaming="on"))
    [path] = (tmp_path / "out").glob("*.parquet")
    metadata = pq.read_metadata(path).metadata
    said = json.loads(metadata[b"pgdecode.capture"])
    [[system]] = database.execute("SELECT system_identifier FROM pg_control_system()")
    assert said["origin"] == {
        "system": system,
        "timeline": 1,
        "database": database.name,
        "slot": database.slot,
        "publications": ["p"],
    }
    assert said["server_version"] == int(database.session.value("SHOW server_version_num"))
    assert said["options"] == {"proto_version": "2", "publication_names": '"p"', "streaming": "on"}
    assert said["settings"]["datestyle"] == "ISO"
    assert said["file"]["first_seq"] == 0
    assert said["file"]["last_seq"] == len(rows(tmp_path / "out")) - 1
    assert pgdecode.lsn_from_text(said["file"]["recorded"]) == database.slot_lsn()
    [[oid]] = database.execute("SELECT 'mood'::regtype::oid")
    assert json.loads(metadata[b"pgdecode.types"]) == [[int(oid or 0), "=public.mood", "enum"]]


def test_a_file_in_the_middle_has_the_relations_that_its_rows_use(database: Database, tmp_path: Path) -> None:
    database.create_slot()
    run = Running(database, tmp_path / "out", rules=FileRules(max_bytes=1))
    for number in range(3):
        database.execute(f"INSERT INTO t VALUES ({number}, 'x')")
        wait_for(lambda n=number: len(list((tmp_path / "out").glob("0*.parquet"))) > n)  # type: ignore[misc]
    run.stop()
    first, *_, last = sorted((tmp_path / "out").glob("*.parquet"))
    catalog = pgdecode.RelationCatalog.from_json(pq.read_metadata(last).metadata[b"pgdecode.catalog"])
    assert catalog.names == ("public.t",)
    assert len(pgdecode.RelationCatalog.from_json(pq.read_metadata(first).metadata[b"pgdecode.catalog"])) == 0
    alone = ChangeDecoder(catalog=catalog).decode(pq.read_table(last)["data"])
    assert alone["op"].to_pylist() == ["insert"]


def test_files_end_outside_of_transactions(database: Database, tmp_path: Path) -> None:
    database.create_slot()
    database.execute("INSERT INTO t SELECT n, 'x' FROM generate_series(1, 500) n")
    database.execute("INSERT INTO t SELECT n, 'x' FROM generate_series(501, 1000) n")
    capture(database, tmp_path / "out", rules=FileRules(max_bytes=1))
    for path in (tmp_path / "out").glob("*.parquet"):
        tags = b"".join(payload[:1] for payload in pq.read_table(path)["data"].to_pylist())
        assert tags.startswith(b"B")
        assert tags.endswith(b"C")
        assert tags.count(b"B") == tags.count(b"C")


def test_an_idle_slot_is_confirmed_and_recorded_first(database: Database, tmp_path: Path) -> None:
    database.create_slot()
    database.execute("CREATE TABLE elsewhere (x text); ALTER PUBLICATION p OWNER TO postgres")
    other = database.server.connect()
    run = Running(database, tmp_path / "out")
    before = database.slot_lsn()
    other.execute("CREATE TABLE noise AS SELECT repeat('x', 100) v FROM generate_series(1, 20000)")
    wait_for(lambda: database.slot_lsn() > before + 1_000_000)
    recorded = read_log(tmp_path / "out").recorded
    assert recorded is not None
    assert recorded >= database.slot_lsn() - 100_000
    run.stop()
    assert read_log(tmp_path / "out").recorded == database.slot_lsn()
    assert not list((tmp_path / "out").glob("*.parquet"))
    other.execute("DROP TABLE noise")
    other.close()


def test_a_slot_after_the_recorded_lsn_is_a_gap(database: Database, tmp_path: Path) -> None:
    database.create_slot()
    capture(database, tmp_path / "out")
    recorded = database.slot_lsn()
    database.execute("INSERT INTO t VALUES (1, 'lost')")
    database.execute(f"SELECT pg_replication_slot_advance('{database.slot}', pg_current_wal_flush_lsn())")
    confirmed = database.slot_lsn()
    with pytest.raises(GapError) as caught:
        capture(database, tmp_path / "out")
    assert (caught.value.recorded, caught.value.confirmed) == (recorded, confirmed)
    for lsn in (recorded, confirmed):
        assert pgdecode.lsn_to_text(lsn) in str(caught.value)
    capture(database, tmp_path / "out", accept_gap=True)
    [gap] = read_log(tmp_path / "out").gaps
    assert (gap["from"], gap["to"]) == (pgdecode.lsn_to_text(recorded), pgdecode.lsn_to_text(confirmed))
    capture(database, tmp_path / "out")


def test_another_slot_is_refused(database: Database, tmp_path: Path) -> None:
    database.create_slot()
    capture(database, tmp_path / "out")
    database.execute("SELECT pg_create_logical_replication_slot('another', 'pgoutput')")
    with pytest.raises(GapError, match=f"the folder belongs to slot {database.slot}, this is another"):
        Capture(database.dsn, tmp_path / "out", slot="another", publication="p").run(until="now")


@pytest.mark.full
def test_another_system_is_refused(database: Database, tmp_path: Path) -> None:
    database.create_slot()
    capture(database, tmp_path / "out")
    log = tmp_path / "out" / "_capture.jsonl"
    [[system]] = database.execute("SELECT system_identifier FROM pg_control_system()")
    log.write_text(log.read_text().replace(str(system), "7000000000000000001"))
    with pytest.raises(GapError, match="the folder belongs to system identifier 7000000000000000001"):
        capture(database, tmp_path / "out")


def test_nothing_is_created_without_a_request(database: Database, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=f"slot '{database.slot}' does not exist"):
        capture(database, tmp_path / "out")
    assert database.execute(f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{database.slot}'") == []
    capture(database, tmp_path / "out", create_slot=True)
    assert database.slot_lsn() > 0


@pytest.mark.full
def test_a_slot_that_was_dropped_is_not_created_again(database: Database, tmp_path: Path) -> None:
    capture(database, tmp_path / "out", create_slot=True)
    database.execute(f"SELECT pg_drop_replication_slot('{database.slot}')")
    with pytest.raises(GapError, match="does not exist: later changes are in no slot"):
        capture(database, tmp_path / "out", create_slot=True)


@pytest.mark.full
def test_a_temporary_slot_is_gone_afterwards(database: Database, tmp_path: Path) -> None:
    capture(database, tmp_path / "out", create_slot=True, temporary=True)
    wait_for(lambda: not database.execute(f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{database.slot}'"))


@pytest.mark.full
def test_warnings_about_a_publication(database: Database, tmp_path: Path) -> None:
    database.create_slot()
    database.execute("ALTER PUBLICATION p SET (publish = 'insert, update'); CREATE TABLE bare (x int)")
    said: list[str] = []
    capture(database, tmp_path / "out", on_warning=said.append)
    assert said[0] == "publication 'p' leaves out delete, truncate"
    assert said[1].endswith("on which the server refuses UPDATE and DELETE: public.bare")
    with pytest.raises(RequestError, match="publication 'q' does not exist"):
        Capture(database.dsn, tmp_path / "out", slot=database.slot, publication="q").run(until="now")


def test_a_locked_table_does_not_delay_the_capture(database: Database, tmp_path: Path) -> None:
    database.create_slot()
    other = database.server.connect(database.name)
    other.execute("BEGIN; ALTER TABLE t ADD w int")
    begun = time.monotonic()
    capture(database, tmp_path / "out")
    assert time.monotonic() - begun < 5
    other.execute("ROLLBACK")
    other.close()


def test_a_run_ends_after_max_messages_at_the_end_of_a_transaction(database: Database, tmp_path: Path) -> None:
    database.create_slot()
    for start in (0, 10, 20):
        database.execute(f"INSERT INTO t SELECT n, 'x' FROM generate_series({start + 1}, {start + 10}) n")
    # B R I*10 C, then B I*10 C.
    assert capture(database, tmp_path / "out", until=None, max_messages=13).messages == 13
    assert capture(database, tmp_path / "out", until=None, max_messages=3).messages == 13
    assert len(changes(tmp_path / "out")) == 20


def test_a_run_ends_at_an_lsn(database: Database, tmp_path: Path) -> None:
    database.create_slot()
    database.execute("INSERT INTO t VALUES (1, 'x')")
    lsn = database.session.value("SELECT pg_current_wal_insert_lsn()")
    database.execute("INSERT INTO t VALUES (2, 'x')")
    capture(database, tmp_path / "out", until=lsn)
    assert changes(tmp_path / "out") == [("insert", {"id": "1", "v": "x"})]


def test_a_run_ends_after_a_time(database: Database, tmp_path: Path) -> None:
    database.create_slot()
    database.execute("INSERT INTO t VALUES (1, 'x')")
    begun = time.monotonic()
    assert capture(database, tmp_path / "out", until="500ms").messages == 4
    assert 0.5 <= time.monotonic() - begun < 5


@pytest.mark.full
def test_the_session_survives_a_stalled_writer(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pgdecode.capture import recorder

    write = recorder.FileWriter.add

    def slow(self: Any, batch: Any) -> None:
        time.sleep(6.5)  # three times wal_sender_timeout
        write(self, batch)

    monkeypatch.setattr(recorder.FileWriter, "add", slow)
    database.create_slot()
    database.execute("INSERT INTO t VALUES (1, 'x')")
    assert capture(database, tmp_path / "out").reconnects == 0
    assert len(changes(tmp_path / "out")) == 1


@pytest.mark.full
def test_nothing_is_read_while_the_queue_is_full_and_the_session_lives(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pgdecode.capture import capture as module
    from pgdecode.capture import receiver, recorder

    monkeypatch.setattr(module, "QUEUE_BYTES", 10_000)
    monkeypatch.setattr(receiver, "CHUNK_BYTES", 5_000)
    complete = recorder.Recorder._take_chunk
    stalls = iter([5.0])

    def slow(self: Any, chunk: Any) -> None:
        time.sleep(next(stalls, 0))
        complete(self, chunk)

    monkeypatch.setattr(recorder.Recorder, "_take_chunk", slow)
    database.create_slot()
    database.execute("INSERT INTO t SELECT n, repeat('x', 100) FROM generate_series(1, 20000) n")
    assert capture(database, tmp_path / "out").reconnects == 0
    assert len(changes(tmp_path / "out")) == 20000


@pytest.mark.full
def test_a_transaction_too_large_for_memory_gets_a_separate_file(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pgdecode.capture import recorder

    monkeypatch.setattr(recorder, "TAIL_BYTES", 100_000)
    database.create_slot()
    database.execute("INSERT INTO t VALUES (0, 'x')")
    database.execute("INSERT INTO t SELECT n, repeat('x', 100) FROM generate_series(1, 30000) n")
    database.execute("INSERT INTO t VALUES (-1, 'x')")
    capture(database, tmp_path / "out")
    first, second = sorted((tmp_path / "out").glob("*.parquet"))
    assert len(pq.read_table(first)) == 4
    assert len(changes(tmp_path / "out")) == 30002
    assert pq.read_table(second)["data"][0].as_py()[:1] == b"B"


@pytest.mark.full
def test_an_interrupted_large_transaction_leaves_no_file(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pgdecode.capture import recorder

    monkeypatch.setattr(recorder, "TAIL_BYTES", 100_000)
    database.create_slot()
    database.execute("INSERT INTO t VALUES (0, 'x')")
    database.execute("INSERT INTO t SELECT n, repeat('x', 1000) FROM generate_series(1, 30000) n")
    proxy = cluster.Proxy(database.server.server.socket_path)
    spill = recorder.Recorder._spill
    cuts: list[int] = []

    def cut(self: Any) -> None:
        spill(self)
        if not cuts:
            cuts.append(proxy.cut())

    monkeypatch.setattr(recorder.Recorder, "_spill", cut)
    dsn = f"host=127.0.0.1 port={proxy.port} user=postgres dbname={database.name}"
    made = Capture(dsn, tmp_path / "out", slot=database.slot, publication="p")
    assert made.run(until="now").reconnects == 1
    proxy.close()
    assert len(changes(tmp_path / "out")) == 30001
    found = rows(tmp_path / "out")
    assert found["seq"].to_pylist() == list(range(len(found)))
    assert not [path for path in (tmp_path / "out").iterdir() if "partial" in path.name]


@pytest.mark.full
@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_capture_survives_a_restart_of_the_server(tmp_path: Path, postgres: cluster.Cluster, mode: str) -> None:
    with cluster.running(postgres.programs) as server:
        database = Database(server, "restarted")
        database.create_slot()
        run = Running(database, tmp_path / "out", rules=FileRules())
        database.execute("INSERT INTO t VALUES (1, 'x')")
        time.sleep(0.5)
        begun = time.monotonic()
        server.restart(mode)
        # A walsender that shuts down waits until everything is confirmed, so files end early.
        assert time.monotonic() - begun < 15
        database.session.close()
        database.session = server.connect(database.name)
        database.execute("INSERT INTO t VALUES (2, 'x')")
        wait_for(lambda: database.execute("SELECT 1 FROM pg_replication_slots WHERE active") != [])
        time.sleep(0.5)
        assert run.stop().reconnects == 1
        database.session.close()
        assert [row[1]["id"] for row in changes(tmp_path / "out")] == ["1", "2"]


@pytest.mark.full
def test_a_dropped_publication_ends_the_capture_with_a_one_line_error(database: Database, tmp_path: Path) -> None:
    database.create_slot()
    database.execute("DROP PUBLICATION p; CREATE PUBLICATION p FOR TABLE t")
    database.execute("INSERT INTO t VALUES (0, 'x')")
    capture(database, tmp_path / "out")
    run = Running(database, tmp_path / "out")
    wait_for(lambda: database.execute("SELECT 1 FROM pg_replication_slots WHERE active") != [])
    database.execute("DROP PUBLICATION p")
    database.execute("INSERT INTO t VALUES (1, 'x')")
    error = run.wait()
    assert isinstance(error, StoppedError), error
    # PostgreSQL 18 only warns, and omits the row.
    seen = ('publication "p" does not exist', 'omits changes: skipped loading publication "p"')
    assert any(text in str(error) for text in seen), error
    assert "\n" not in str(error)
    assert changes(tmp_path / "out") == [("insert", {"id": "0", "v": "x"})]


def test_two_captures_do_not_share_a_folder(database: Database, tmp_path: Path) -> None:
    database.create_slot()
    run = Running(database, tmp_path / "out")
    wait_for(lambda: (tmp_path / "out" / "_capture.jsonl").exists())
    with pytest.raises(RequestError, match="another capture writes to this folder"):
        capture(database, tmp_path / "out")
    run.stop()


@pytest.mark.full
def test_files_beyond_the_retention_are_deleted(database: Database, tmp_path: Path) -> None:
    database.create_slot()
    rules, retention = FileRules(max_bytes=1), Retention(bytes=1)
    for number in range(3):
        database.execute(f"INSERT INTO t VALUES ({number}, 'x')")
        capture(database, tmp_path / "out", rules=rules, retention=retention)
    [left] = (tmp_path / "out").glob("*.parquet")
    log = read_log(tmp_path / "out")
    assert list(log.files) == [left.name]
    assert log.deleted_files == 2
    database.execute("INSERT INTO t VALUES (9, 'x')")
    capture(database, tmp_path / "out")
    assert changes(tmp_path / "out")[-1] == ("insert", {"id": "9", "v": "x"})


@pytest.mark.full
def test_a_lost_log_is_restored_from_the_footers(database: Database, tmp_path: Path) -> None:
    database.create_slot()
    database.execute("INSERT INTO t VALUES (1, 'x')")
    capture(database, tmp_path / "out")
    [path] = (tmp_path / "out").glob("*.parquet")
    recorded = json.loads(pq.read_metadata(path).metadata[b"pgdecode.capture"])["file"]["recorded"]
    (tmp_path / "out" / "_capture.jsonl").unlink()
    database.execute("INSERT INTO t VALUES (2, 'x')")
    # The log alone had an LSN that was confirmed after the file, if there was one.
    is_gap = pgdecode.lsn_from_text(recorded) < database.slot_lsn()
    with pytest.raises(GapError) if is_gap else contextlib.nullcontext():
        capture(database, tmp_path / "out")
    capture(database, tmp_path / "out", accept_gap=is_gap)
    assert [new["id"] for _, new in changes(tmp_path / "out")] == ["1", "2"]


def test_the_status_shows_lag_files_and_the_slot(database: Database, tmp_path: Path) -> None:
    database.create_slot()
    database.execute("INSERT INTO t VALUES (1, 'x')")
    capture(database, tmp_path / "out")
    database.execute("INSERT INTO t SELECT n, 'x' FROM generate_series(2, 100) n")
    status = read_status(database.dsn, tmp_path / "out", database.slot)
    assert (status.files, status.rows, status.first_seq, status.last_seq) == (1, 4, 0, 3)
    assert status.recorded == database.slot_lsn()
    assert status.lag_bytes is not None
    assert status.lag_bytes > 0
    assert status.slot["active"] is False
    assert status.warnings == []


def test_old_rows_are_decoded_with_the_table_as_it_was(database: Database, tmp_path: Path) -> None:
    database.create_slot()
    database.execute("INSERT INTO t VALUES (1, 'x')")
    # A walsender that had cached the present table would send two more columns, or read text as a number.
    database.execute("ALTER TABLE t ADD w text, DROP v, ADD v int")
    database.execute("INSERT INTO t VALUES (2, 'w', 3)")
    capture(database, tmp_path / "out")
    assert changes(tmp_path / "out") == [
        ("insert", {"id": "1", "v": "x"}),
        ("insert", {"id": "2", "w": "w", "v": "3"}),
    ]


# The command.


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pgdecode", "capture", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )


@pytest.mark.full
def test_the_command_captures_and_prints_a_summary(database: Database, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    database.execute("INSERT INTO t VALUES (0, 'before the slot')")
    common = (database.dsn, out, "--slot", database.slot, "--publication", "p")
    refused = command(*common, "--until", "now")
    assert refused.returncode == 2
    assert refused.stderr == f"pgdecode: slot '{database.slot}' does not exist; --create-slot makes it\n"
    assert command(*common, "--create-slot", "--until", "now").returncode == 0
    database.execute("INSERT INTO t VALUES (1, 'x')")
    done = command(*common, "--max-messages", "1")
    assert done.returncode == 0, done.stderr
    assert "4 messages" in done.stderr
    status = command(database.dsn, out, "--slot", database.slot, "--status", "--json")
    assert json.loads(status.stdout)["rows"] == 4
    shown = command(database.dsn, out, "--slot", database.slot, "--status").stdout
    assert re.search(r"^recorded up to +[0-9A-F]+/[0-9A-F]+ *$", shown, re.MULTILINE)
    assert re.search(r"^files +1 \([\d.]+ kB\), 4 messages *$", shown, re.MULTILINE)
    assert re.search(r"^slot active +no *$", shown, re.MULTILINE)
    refused = command(database.dsn, out, "--drop-slot")
    assert (refused.returncode, "Missing option '--slot'" in refused.stderr) == (2, True)
    dropped = command(database.dsn, out, "--slot", database.slot, "--drop-slot")
    assert dropped.returncode == 0, dropped.stderr
    assert database.execute(f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{database.slot}'") == []


@pytest.mark.full
def test_the_flag_of_messages_requests_logical_messages_and_takes_no_number(database: Database, tmp_path: Path) -> None:
    database.create_slot()
    out = tmp_path / "out"
    common = (database.dsn, str(out), "--slot", database.slot, "--publication", "p", "--messages")
    assert command(*common, "1").returncode == 2
    assert not out.exists()
    database.execute("SELECT pg_logical_emit_message(true, 'prefix', 'content')")
    done = command(*common, "--until", "now")
    assert done.returncode == 0, done.stderr
    kinds = [row[:1] for path in out.glob("*.parquet") for row in pq.read_table(path)["data"].to_pylist()]
    assert kinds == [b"B", b"M", b"C"]


@pytest.mark.full
def test_the_command_ends_in_order_on_a_signal(database: Database, tmp_path: Path) -> None:
    database.create_slot()
    arguments = [database.dsn, str(tmp_path / "out"), "--slot", database.slot, "--publication", "p"]
    process = subprocess.Popen([sys.executable, "-m", "pgdecode", "capture", *arguments], stderr=subprocess.PIPE)
    wait_for(lambda: database.execute("SELECT 1 FROM pg_replication_slots WHERE active") != [])
    database.execute("INSERT INTO t VALUES (1, 'x')")
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 0, said
    assert b"4 messages" in said
    assert read_log(tmp_path / "out").recorded == database.slot_lsn()


@pytest.mark.full
def test_a_gap_is_exit_code_3_with_both_lsns(database: Database, tmp_path: Path) -> None:
    database.create_slot()
    common = (database.dsn, str(tmp_path / "out"), "--slot", database.slot, "--publication", "p", "--until", "now")
    assert command(*common).returncode == 0
    database.execute("INSERT INTO t VALUES (1, 'lost')")
    database.execute(f"SELECT pg_replication_slot_advance('{database.slot}', pg_current_wal_flush_lsn())")
    refused = command(*common)
    assert refused.returncode == 3
    assert pgdecode.lsn_to_text(database.slot_lsn()) in refused.stderr
    assert "--accept-gap" in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert command(*common, "--accept-gap").returncode == 0


@pytest.mark.full
def test_a_password_is_in_no_file_and_no_output(database: Database, tmp_path: Path) -> None:
    database.create_slot()
    database.execute("INSERT INTO t VALUES (1, 'x')")
    common = (str(tmp_path / "out"), "--slot", database.slot, "--publication", "p", "--until", "now")
    secret = "s3cr3t-of-mine"
    said = [
        command(f"{database.dsn} password={secret}", *common),
        command(f"{database.dsn}x password={secret}", *common),
        command(f"postgresql://u:{secret}@127.0.0.1:1/x", *common),
        command(f"postgresql://u:a@{secret}@127.0.0.1:1/x", *common),
        command(f"nonsense {secret}", *common),
        command("", *common, PGHOST="127.0.0.1", PGPORT="1", PGPASSWORD=secret),
    ]
    assert [done.returncode for done in said] == [0, 2, 2, 2, 2, 2]
    for done in said:
        assert secret not in done.stdout + done.stderr
        assert done.stderr.count("\n") == 1, done.stderr
    for path in (tmp_path / "out").iterdir():
        assert secret.encode() not in path.read_bytes()


@pytest.mark.full
def test_a_lost_permission_ends_the_capture_at_once(database: Database, tmp_path: Path) -> None:
    role = f"{database.name}_role"
    database.execute(f"CREATE ROLE {role} LOGIN REPLICATION")
    database.create_slot()
    running = Running(database, tmp_path / "out", dsn=database.dsn.replace("user=postgres", f"user={role}"))
    database.execute("INSERT INTO t VALUES (1, 'x')")
    wait_for(lambda: bool(list((tmp_path / "out").glob("*.parquet"))))
    database.execute(f"ALTER ROLE {role} NOREPLICATION")
    database.execute(
        f"SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{database.slot}'"
    )
    found = running.wait()
    assert isinstance(found, StoppedError)
    # The second text is that of servers until PostgreSQL 15.
    assert any(text in str(found) for text in ("permission denied", "must be superuser or replication role")), found
    assert len(changes(tmp_path / "out")) == 1
    database.execute(f"DROP ROLE {role}")
