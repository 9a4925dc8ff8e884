"""Benchmark of `pgdecode sync` beside a busy server: `python -m benchmarks.sync`.

Transactions of pgbench run in a procedure, as fast as the server can, with pg_recvlogical to /dev/null beside it: that
is the rate that the server and its walsender give on this machine. What was written meanwhile is then read as a
backlog, by pg_recvlogical and by a sync into each target. At last, pgbench runs at a share of the rate, with `sync
--every` beside it, and the target is verified. All programs run on the same cores.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

try:
    from pgdecode.capture import demo
    from pgdecode.capture.connection import Connection
    from pgdecode.lake import verify
except ImportError as problem:
    sys.exit(f"{problem}\nthis needs the compiled package and extras: python -m pip install -e '.[demo,duckdb,delta]'")

TARGETS = ("duckdb", "delta", "parquet", "iceberg")
# pgbench's transaction has three updates and an insert. A call has many transactions: round trips would take the time.
CHANGES, CALL = 4, 100
WORK = f"""
    CREATE PROCEDURE work(scale int) LANGUAGE plpgsql AS $$
        DECLARE account int; teller int; branch int; amount int;
        BEGIN FOR i IN 1..{CALL} LOOP
            account := 1 + random() * (100000 * scale - 1);
            teller := 1 + random() * (10 * scale - 1);
            branch := 1 + random() * (scale - 1);
            amount := random() * 10000 - 5000;
            UPDATE pgbench_accounts SET abalance = abalance + amount WHERE aid = account;
            UPDATE pgbench_tellers SET tbalance = tbalance + amount WHERE tid = teller;
            UPDATE pgbench_branches SET bbalance = bbalance + amount WHERE bid = branch;
            INSERT INTO pgbench_history VALUES (teller, branch, account, amount, now());
            COMMIT;
        END LOOP; END $$
"""
TRANSACTIONS = re.compile(r"number of transactions actually processed: (\d+)")


@contextlib.contextmanager
def running(*command: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program beside others, and end it."""
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=sys.stderr) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def ended(process: subprocess.Popen[bytes]) -> float:
    """Wait for a process, and return the seconds of its CPU."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{process.args!r}: ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime


class Server:
    """The demonstration server, with the tables of pgbench.

    Parameters
    ----------
    dsn : str
    folder : Path
    scale : int
        Of pgbench: 100,000 accounts each.
    """

    def __init__(self, dsn: str, folder: Path, scale: int) -> None:
        self.dsn, self.folder = dsn, folder
        self.environment = {**os.environ, **dict(zip(("PGHOST", "PGUSER", "PGDATABASE"), _values(dsn), strict=True))}
        self._program("pgbench", "-i", "-q", "-s", str(scale))
        self.query(WORK)
        self.query("CREATE PUBLICATION pgdecode FOR ALL TABLES")
        self._script = folder / "work.sql"
        self._script.write_text(f"CALL work({scale});\n")

    def query(self, text: str) -> str:
        """Run a statement, and return its first value."""
        with contextlib.closing(Connection(self.dsn, settings={"search_path": "public"})) as connection:
            rows = connection.rows(text)
        return str(rows[0][0]) if rows else ""

    def _program(self, *command: str) -> str:
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout

    def load(self, seconds: float, rate: float | None = None) -> tuple[int, float]:
        """Run pgbench, and return the number of changes and the seconds."""
        start = time.perf_counter()
        limit = [] if rate is None else ["-R", f"{rate / CHANGES / CALL:.2f}"]
        text = self._program("pgbench", "-n", "-f", str(self._script), "-T", str(round(seconds)), *limit)
        found = TRANSACTIONS.search(text)
        assert found is not None, text
        return int(found[1]) * CALL * CHANGES, time.perf_counter() - start

    @contextlib.contextmanager
    def reader(self, slot: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run pg_recvlogical to /dev/null."""
        options = ["-o", "proto_version=1", "-o", "publication_names=pgdecode", "-F", "0", "-s", "1"]
        command = ["pg_recvlogical", "-d", self.environment["PGDATABASE"], "-S", slot, "--start", "-n"]
        command += [*options, "-f", "/dev/null"]
        with subprocess.Popen(command, env=self.environment, stderr=subprocess.DEVNULL) as process:
            try:
                yield process
            finally:
                process.send_signal(signal.SIGINT)

    def wait_for(self, slot: str, lsn: str, reader: subprocess.Popen[bytes]) -> float:
        """Wait until a slot is confirmed up to an LSN by its reader, and return when."""
        query = f"SELECT confirmed_flush_lsn >= '{lsn}' FROM pg_replication_slots WHERE slot_name = '{slot}'"
        while self.query(query) != "t":
            if reader.poll() is not None:
                sys.exit(f"{reader.args!r}: ended with {reader.returncode}")
            time.sleep(0.05)
        return time.perf_counter()

    def uri(self, name: str) -> str:
        """Return the URI of a target."""
        return f"{name}:{self.folder / name}"

    def sync(self, name: str, *words: str) -> list[str]:
        """Make the command that syncs a target."""
        raw = ["--raw", str(self.folder / f"{name}.raw"), "--slot", name, "--json"]
        return [sys.executable, "-m", "pgdecode", "sync", self.dsn, self.uri(name), *raw, *words]

    def run(self, name: str, *words: str) -> tuple[list[dict[str, Any]], float, float]:
        """Run a sync once, and return its cycles, seconds and CPU."""
        log, start = self.folder / "log", time.perf_counter()
        with running(*self.sync(name, *words), log=log) as process:
            cpu = ended(process)
        return reports(log), time.perf_counter() - start, cpu


def reports(log: Path) -> list[dict[str, Any]]:
    """Read the cycles of a sync."""
    return [json.loads(line) for line in log.read_text().splitlines()]


def _values(dsn: str) -> list[str]:
    return [item.partition("=")[2] for item in dsn.split()]


def per_million(cpu: float, n_changes: int) -> float:
    """Return the CPU of a million changes, in seconds."""
    return round(cpu / n_changes * 1e6, 2)


def measured(
    server: Server, targets: list[str], seconds: float, every: float, share: float
) -> Iterator[dict[str, Any]]:
    """Measure the rate of the server, the backlog, and the syncs beside pgbench."""
    for slot in ("live", "backlog"):
        server.query(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    for name in targets:
        [report], took, cpu = server.run(name, "--create-slot")
        yield {"case": "copy", "target": name, "messages": report["messages"], "seconds": took, "cpu": cpu}
    with server.reader("live") as reader:
        start = time.perf_counter()
        n_changes, loaded = server.load(seconds)
        end = server.query("SELECT pg_current_wal_lsn()")
        took = server.wait_for("live", end, reader) - start
    server.query("SELECT pg_drop_replication_slot('live')")
    rate = n_changes / took
    yield {"case": "walsender", "changes": n_changes, "seconds": took, "pgbench seconds": loaded, "changes/s": rate}
    start = time.perf_counter()
    with server.reader("backlog") as reader:
        took = server.wait_for("backlog", end, reader) - start
    server.query("SELECT pg_drop_replication_slot('backlog')")
    alone = n_changes / took
    yield {"case": "backlog, walsender", "changes": n_changes, "seconds": took, "changes/s": alone}
    for name in targets:
        [report], took, cpu = server.run(name)
        cycle = report["seconds"]
        yield {
            "case": "backlog",
            "target": name,
            "seconds": took,
            "changes/s": n_changes / took,
            "of the walsender": n_changes / took / alone,
            "cycle": cycle,  # without the start of the process, as with --every
            "cycle of the walsender": n_changes / cycle / alone,
            "cpu per million": per_million(cpu, n_changes),
        }
    for name in targets:
        log = server.folder / "log"
        with running(*server.sync(name, "--every", f"{every}s"), log=log) as process:
            n_changes, loaded = server.load(seconds, rate * share)
            end = server.query("SELECT pg_current_wal_lsn()")
            start = time.perf_counter()
            late = server.wait_for(name, end, process) - start
            process.send_signal(signal.SIGTERM)
            cpu = ended(process)
        cycles = [cycle["seconds"] for cycle in reports(log)]
        yield {
            "case": f"{share:g} of the rate",
            "target": name,
            "changes/s": n_changes / loaded,
            "cycles": len(cycles),
            "median cycle": statistics.median(cycles),
            "longest cycle": max(cycles),
            "captured after": late,
            "cpu per million": per_million(cpu, n_changes),
            "kept up": max(cycles) <= every,
            "equal": verify(server.dsn, server.uri(name)).is_equal,
        }
        server.query(f"SELECT pg_drop_replication_slot('{name}')")


def main(words: list[str] | None = None) -> list[dict[str, Any]]:
    """Run the benchmark, and print a line of JSON for each figure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sync", description=__doc__)
    parser.add_argument("--target", action="append", choices=TARGETS, help="default: duckdb and delta")
    parser.add_argument("--scale", type=int, default=10, help="of pgbench; 100,000 accounts each")
    parser.add_argument("--seconds", type=float, default=60, help="of each run of pgbench")
    parser.add_argument("--every", type=float, default=10, help="seconds between cycles")
    parser.add_argument("--share", type=float, default=0.5, help="of the rate, for pgbench beside a sync")
    options = parser.parse_args(words)
    missing = [name for name in ("pgbench", "pg_recvlogical") if shutil.which(name) is None]
    if missing:
        sys.exit(f"this needs {' and '.join(missing)}: install the programs of PostgreSQL's client and contrib")
    found = []
    with demo.server() as dsn, tempfile.TemporaryDirectory() as folder:
        server = Server(dsn, Path(folder), options.scale)
        targets = options.target or ["duckdb", "delta"]
        for item in measured(server, targets, options.seconds, options.every, options.share):
            found.append({name: round(value, 2) if isinstance(value, float) else value for name, value in item.items()})
            print(json.dumps(found[-1]), flush=True)
    return found


if __name__ == "__main__":
    main()
