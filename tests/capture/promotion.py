"""A capture of a standby that is promoted: the capture goes on, and so do later runs."""

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

from pgdecode import ChangeDecoder
from pgdecode.capture import Capture
from pgdecode.capture.journal import read_log
from servers.connection import Connection


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
        shutil.copytree(primary.data, standby.data)
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
            shutil.chown(path, server._owner)
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


def follow(programs: Path, out: Path, number: signal.Signals) -> list[str]:
    """Promote a standby while it is captured, end the capture by a signal, and capture again; return differences."""
    with pair(programs) as (primary, standby):
        create_slot(primary, standby)
        words = ["-m", "pgdecode", "capture", standby.dsn(), str(out), "--slot", "s", "--publication", "p"]
        with subprocess.Popen([sys.executable, *words, "--file-time", "200ms"], stderr=subprocess.DEVNULL) as running:
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
            Capture(standby.dsn(), out, slot="s", publication="p").run(until="now")
    contents = read_log(out)
    found = [] if (contents.gaps, contents.timeline) == ([], 2) else [f"{contents.gaps}, {contents.timeline}"]
    return found if ids(out) == ["1", "2", "3"] else [*found, f"rows {ids(out)}"]


def wait_for_files(folder: Path, count: int) -> None:
    deadline = time.monotonic() + 60
    while len(read_log(folder).files) < count:
        assert time.monotonic() < deadline, "the capture got nothing"
        time.sleep(0.05)


def wait_for_confirmation(session: Connection, folder: Path) -> None:
    sql = "SELECT (confirmed_flush_lsn - '0/0'::pg_lsn)::bigint FROM pg_replication_slots WHERE slot_name = 's'"
    last = max(entry.recorded for entry in read_log(folder).files.values())
    while int(session.value(sql)) < last:
        time.sleep(0.05)


def ids(folder: Path) -> list[str]:
    table = pa.concat_tables([pq.read_table(path) for path in sorted(folder.glob("*.parquet"))])
    return [dict(change["new"])["id"] for change in ChangeDecoder().decode(table["data"]).to_pylist()]
