"""After a failover, the server has another timeline: capture refuses it, and continues without a loss on request."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import cluster
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgdecode import ChangeDecoder
from pgdecode.capture import Capture, GapError
from pgdecode.capture.journal import Journal, read_log
from servers.connection import Connection

pytestmark = pytest.mark.full


def capture(dsn: str, folder: Path, *, accept_gap: bool = False) -> None:
    Capture(dsn, folder, slot="s", publication="p", accept_gap=accept_gap).run(until="now")


def ids(folder: Path) -> list[str]:
    table = pa.concat_tables([pq.read_table(path) for path in sorted(folder.glob("*.parquet"))])
    return [dict(change["new"])["id"] for change in ChangeDecoder().decode(table["data"]).to_pylist()]


@pytest.mark.parametrize("has_lost_changes", [False, True], ids=["behind", "ahead"])
def test_a_promoted_server_is_refused_and_then_captured_from_where_its_timeline_began(
    postgres: cluster.Cluster, tmp_path: Path, *, has_lost_changes: bool
) -> None:
    if postgres.major < 16:
        pytest.skip("older standbys have no logical slots")
    with cluster.running(postgres.programs) as server:
        with contextlib.closing(server.connect()) as session:
            session.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR ALL TABLES")
            session.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
            session.execute("INSERT INTO t VALUES (1)")
        capture(server.dsn(), tmp_path / "out")
        server.stop("fast")
        (server.data / "standby.signal").touch()
        server.start()
        server._run("pg_ctl", "-D", str(server.data), "-w", "promote")
        if has_lost_changes:
            # As if the former primary had committed more, which the standby never received.
            journal = Journal(tmp_path / "out")
            journal.add_position((journal.contents.recorded or 0) + 2**16)
            journal.close()
        with contextlib.closing(server.connect()) as session:
            session.execute("INSERT INTO t SELECT generate_series(2, 5)")
            # More WAL than was recorded on the former timeline.
            session.execute("SELECT pg_logical_emit_message(false, 'p', repeat('x', 200000))")
        with pytest.raises(GapError, match="belongs to timeline 1, the server is on 2, which branched off at"):
            capture(server.dsn(), tmp_path / "out")
        capture(server.dsn(), tmp_path / "out", accept_gap=True)
        capture(server.dsn(), tmp_path / "out")
    assert ids(tmp_path / "out") == ["1", "2", "3", "4", "5"]


@contextlib.contextmanager
def pair(programs: Path) -> Iterator[tuple[cluster.Cluster, cluster.Cluster]]:
    """A primary with a table and a publication, and its standby."""
    with cluster.running(programs, hot_standby_feedback="on") as primary, contextlib.ExitStack() as closing:
        with contextlib.closing(primary.connect()) as session:
            session.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR ALL TABLES")
            session.execute("SELECT pg_create_physical_replication_slot('phys')")
        standby = cluster.Cluster(programs, {})
        closing.callback(standby.close)
        primary.stop("fast")
        shutil.rmtree(standby.data)
        shutil.copytree(primary.data, standby.data, copy_function=shutil.copy2)
        with (standby.data / "postgresql.conf").open("a") as conf:
            conf.write(f"primary_conninfo = 'host={primary.place} user=postgres'\nprimary_slot_name = 'phys'\n")
        (standby.data / "standby.signal").touch()
        own(standby)
        primary.start()
        standby.start()
        yield primary, standby


def own(server: cluster.Cluster) -> None:
    """Give the copied files to the user that runs the server."""
    if server._owner is not None:
        for path in (server.data, *server.data.rglob("*")):
            shutil.chown(path, server._owner, server._owner if server._owner == "postgres" else None)
    server.data.chmod(0o700)


def create_slot(primary: cluster.Cluster, standby: cluster.Cluster) -> None:
    """Create the slot on the standby, which waits for a record that an idle primary writes rarely."""

    def create() -> None:
        with contextlib.closing(standby.connect()) as session:
            session.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")

    creating = threading.Thread(target=create)
    creating.start()
    with contextlib.closing(primary.connect()) as session:
        while creating.is_alive():
            session.execute("SELECT pg_log_standby_snapshot()")
            creating.join(0.1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
def test_a_capture_follows_the_promotion_of_its_standby_over_runs(
    postgres: cluster.Cluster, tmp_path: Path, number: signal.Signals
) -> None:
    # Source: https://github.com/viggy28/streambed/issues/94
    if postgres.major < 16:
        pytest.skip("older standbys have no logical slots")
    out = tmp_path / "out"
    with pair(postgres.programs) as (primary, standby):
        create_slot(primary, standby)
        words = ["-m", "pgdecode", "capture", standby.dsn(), str(out), "--slot", "s", "--publication", "p"]
        with subprocess.Popen([sys.executable, *words, "--file-time", "200ms"]) as running:
            with contextlib.closing(primary.connect()) as session:
                session.execute("INSERT INTO t VALUES (1)")
            wait_for_files(out, 1)
            primary.stop("fast")
            standby._run("pg_ctl", "-D", str(standby.data), "-w", "promote")
            with contextlib.closing(standby.connect()) as session:
                session.execute("INSERT INTO t VALUES (2)")
                wait_for_files(out, 2)
                wait_for_confirmation(session, out)
                running.send_signal(number)
                running.wait(30)
                session.execute("INSERT INTO t VALUES (3)")
        for _ in range(2):
            capture(standby.dsn(), out)
    contents = read_log(out)
    assert (contents.gaps, contents.timeline) == ([], 2)
    assert ids(out) == ["1", "2", "3"]


def wait_for_files(folder: Path, count: int) -> None:
    deadline = time.monotonic() + 30
    while len(read_log(folder).files) < count:
        assert time.monotonic() < deadline, "the capture got nothing"
        time.sleep(0.05)


def wait_for_confirmation(session: Connection, folder: Path) -> None:
    sql = "SELECT (confirmed_flush_lsn - '0/0'::pg_lsn)::bigint FROM pg_replication_slots WHERE slot_name = 's'"
    last = max(entry.recorded for entry in read_log(folder).files.values())
    while int(session.value(sql)) < last:
        time.sleep(0.05)
