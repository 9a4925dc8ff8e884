"""Benchmark of `pgdecode capture` beside psycopg2's cursor and pg_recvlogical: `python -m benchmarks.capture`.

All read the same WAL from a slot of the demonstration server. The first two write the same columns to Parquet with the
same settings; pg_recvlogical writes the payloads alone, without lengths or positions. Each run is a process. Time and
CPU are counted without imports, from connecting until the file is on disk and confirmed. The CPU of the walsender of
each run is read from /proc, so this needs Linux.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

try:
    from pgdecode.capture import Capture, demo
    from pgdecode.capture.connection import Connection
    from pgdecode.capture.file_writer import GROUP_BYTES
    from pgdecode.capture.frames import SCHEMA
    from pgdecode.files.text_files import split_messages
except ImportError as problem:
    sys.exit(f"{problem}\nthis needs the compiled package and extras: python -m pip install -e '.[demo]'")

CLIENTS = ("pgdecode", "psycopg2", "pg_recvlogical")
_TICKS = os.sysconf("SC_CLK_TCK")

# A transaction of pgbench, TRANSACTIONS times; and rows of twelve columns, inserted, updated and deleted.
WORKLOADS = {
    "pgbench": """
        CREATE TABLE accounts (aid int PRIMARY KEY, bid int, abalance int, filler char(84));
        CREATE TABLE tellers (tid int PRIMARY KEY, bid int, tbalance int, filler char(84));
        CREATE TABLE branches (bid int PRIMARY KEY, bbalance int, filler char(88));
        CREATE TABLE history (tid int, bid int, aid int, delta int, mtime timestamp, filler char(22));
        INSERT INTO accounts SELECT i, 1, 0, '' FROM generate_series(1, 10000) i;
        INSERT INTO tellers SELECT i, 1, 0, '' FROM generate_series(1, 10) i;
        INSERT INTO branches VALUES (1, 0, '');
        CREATE PROCEDURE work(n int) LANGUAGE plpgsql AS $$ BEGIN FOR i IN 1..n LOOP
            UPDATE accounts SET abalance = abalance + i % 100 WHERE aid = 1 + i % 10000;
            UPDATE tellers SET tbalance = tbalance + i % 100 WHERE tid = 1 + i % 10;
            UPDATE branches SET bbalance = bbalance + i % 100 WHERE bid = 1;
            INSERT INTO history VALUES (1 + i % 10, 1, 1 + i % 10000, i % 100, now());
            COMMIT;
        END LOOP; END $$;
    """,
    "wide": """
        CREATE TABLE wide (id bigint PRIMARY KEY, a int, b smallint, c float8, d numeric(14,2), e bool, f date,
            g timestamptz, h uuid, i text, j jsonb, k text);
        CREATE PROCEDURE work(n int) LANGUAGE plpgsql AS $$ BEGIN FOR t IN 1..n LOOP
            INSERT INTO wide SELECT t * 100 + i, i, i, i / 7.0, i * 1.25, i % 2 = 0, '2026-01-01'::date + i, now(),
                md5(i::text)::uuid, repeat(md5(t::text), 3), jsonb_build_object('n', i, 'name', md5(i::text)), NULL
                FROM generate_series(1, 40) i;
            UPDATE wide SET a = a + 1 WHERE id BETWEEN t * 100 AND t * 100 + 15;
            DELETE FROM wide WHERE id BETWEEN t * 100 AND t * 100 + 4;
            COMMIT;
        END LOOP; END $$;
    """,
}
TRANSACTIONS = {"pgbench": 150_000, "wide": 12_000}


# The clients, each in its own process.


def capture_by_pgdecode(dsn: str, slot: str, n_messages: int, folder: Path) -> None:
    """Write the messages with `Capture`."""
    Capture(dsn, folder / "out", slot=slot, publication="bench").run(max_messages=n_messages)


def capture_by_psycopg2(dsn: str, slot: str, n_messages: int, folder: Path) -> None:
    """Write the messages with psycopg2's replication cursor, from its callback for each message."""
    # It has no types, and is not a dependency.
    extras = importlib.import_module("psycopg2.extras")
    connection = importlib.import_module("psycopg2").connect(
        dsn, connection_factory=extras.LogicalReplicationConnection
    )
    cursor = connection.cursor()
    options = {"proto_version": "1", "publication_names": "bench"}
    cursor.start_replication(slot_name=slot, decode=False, options=options)
    target = folder / "out.parquet"
    sink = pa.OSFile(str(target), "wb")
    writer = pq.ParquetWriter(
        sink,
        SCHEMA,
        compression="zstd",
        compression_level=1,
        use_dictionary=["received"],
        column_encoding={"seq": "DELTA_BINARY_PACKED", "lsn": "DELTA_BINARY_PACKED", "data": "PLAIN"},
        write_statistics=["seq", "lsn", "received"],
        store_schema=False,
    )
    lsns: list[int] = []
    payloads: list[bytes] = []
    n_before = n_bytes = 0

    def flush() -> None:
        nonlocal n_before, n_bytes
        count = len(payloads)
        now = pa.scalar(time.time_ns() // 1000, SCHEMA.field("received").type)
        columns = [
            pa.array(range(n_before, n_before + count), pa.int64()),
            pa.array(lsns, pa.int64()),
            pa.repeat(now, count),
            pa.array(payloads, pa.binary()),
        ]
        writer.write_table(pa.Table.from_arrays(columns, schema=SCHEMA), row_group_size=count)
        n_before += count
        n_bytes = 0
        lsns.clear()
        payloads.clear()

    def consume(message: Any) -> None:
        nonlocal n_bytes
        payload = message.payload
        payloads.append(payload)
        lsns.append(message.data_start)
        n_bytes += len(payload)
        if n_bytes >= GROUP_BYTES or n_before + len(payloads) >= n_messages:
            last = message.data_start
            flush()
            if n_before >= n_messages:
                writer.close()
                sink.close()
                with target.open("rb") as file:
                    os.fsync(file.fileno())
                cursor.send_feedback(flush_lsn=last, apply_lsn=last, reply=True, force=True)
                raise extras.StopReplication

    with contextlib.suppress(extras.StopReplication):
        cursor.consume_stream(consume)
    connection.close()


def capture_by_pg_recvlogical(dsn: str, slot: str, n_messages: int, folder: Path) -> None:
    """Write the messages with the server's own program, up to the end of the WAL."""
    with contextlib.closing(Connection(dsn)) as connection:
        end = str(connection.value("SELECT pg_current_wal_lsn()"))
    command = [str(demo.programs() / "pg_recvlogical"), "-d", dsn, "--slot", slot, "--start", "-P", "pgoutput"]
    command += ["-o", "proto_version=1", "-o", "publication_names=bench", "--endpos", end, "-f", str(folder / "out")]
    subprocess.run(command, check=True)


def messages_in(folder: Path) -> int:
    """Return the number of messages in the files of a client."""
    raw = folder / "out"
    if raw.is_file():
        return sum(len(array) for array in split_messages(raw.read_bytes(), 9))
    return sum(pq.read_metadata(path).num_rows for path in folder.rglob("*.parquet"))


def run_client(client: str, dsn: str, slot: str, n_messages: int, folder: Path) -> None:
    """Run a client in this process, and print its time, CPU and the number of messages in its files."""
    if client == "psycopg2":
        importlib.import_module("psycopg2.extras")
    # The first call imports pandas, if it is installed.
    pa.array([0])
    run = {
        "pgdecode": capture_by_pgdecode,
        "psycopg2": capture_by_psycopg2,
        "pg_recvlogical": capture_by_pg_recvlogical,
    }[client]
    begun, cpu = time.perf_counter(), cpu_seconds()
    run(dsn, slot, n_messages, folder)
    seconds, cpu = time.perf_counter() - begun, cpu_seconds() - cpu
    print(json.dumps({"seconds": seconds, "cpu": cpu, "messages": messages_in(folder)}))


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


# The server and the walsender.


class Walsender(threading.Thread):
    """Follows the CPU of the walsender of a slot."""

    def __init__(self, dsn: str, slot: str) -> None:
        super().__init__(daemon=True)
        self.cpu = 0.0
        self._dsn = dsn
        self._slot = slot
        self._done = threading.Event()

    def run(self) -> None:
        """Find the process, and read its CPU until it ends."""
        pid = None
        with contextlib.closing(Connection(self._dsn)) as connection:
            query = f"SELECT active_pid FROM pg_replication_slots WHERE slot_name = '{self._slot}'"
            while pid is None and not self._done.is_set():
                pid = connection.value(query)
                time.sleep(0.005)
        while not self._done.is_set():
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                return
            self.cpu = (int(fields[11]) + int(fields[12])) / _TICKS
            time.sleep(0.02)

    def stop(self) -> None:
        """End the thread."""
        self._done.set()
        self.join()


def prepare(dsn: str, workload: str, scale: float, n_slots: int) -> int:
    """Create a database with slots and run the workload after them; return the number of messages."""
    with contextlib.closing(Connection(dsn)) as admin:
        admin.rows(f"CREATE DATABASE {workload}")
    dsn = f"{dsn} dbname={workload}"
    with contextlib.closing(Connection(dsn, settings={"search_path": "public"})) as connection:
        connection.rows("SET synchronous_commit = off")
        connection.rows(WORKLOADS[workload])
        connection.rows("CREATE PUBLICATION bench FOR ALL TABLES")
        for number in range(n_slots):
            connection.rows(f"SELECT pg_create_logical_replication_slot('{workload}_{number}', 'pgoutput')")
        connection.rows(f"CALL work({int(TRANSACTIONS[workload] * scale)})")
        connection.rows("CHECKPOINT")
    with tempfile.TemporaryDirectory() as folder:
        found = Capture(dsn, Path(folder, "out"), slot=f"{workload}_0", publication="bench").run(until="now")
    return found.messages


def measured(dsn: str, workload: str, clients: Sequence[str], n_messages: int, rounds: int) -> Iterator[dict[str, Any]]:
    """Run the clients in turn, each on a slot of its own."""
    slots = iter(range(1, 1 + len(clients) * rounds))
    for number in range(rounds):
        # The client that reads WAL first may find less of it in the cache.
        for client in clients if number % 2 else reversed(clients):
            slot = f"{workload}_{next(slots)}"
            with tempfile.TemporaryDirectory() as folder:
                sender = Walsender(dsn, slot)
                sender.start()
                command = [sys.executable, "-m", "benchmarks.capture", "--client", client, dsn, slot]
                done = subprocess.run([*command, str(n_messages), folder], check=True, capture_output=True, text=True)
                sender.stop()
            yield {"workload": workload, "client": client, "walsender": sender.cpu, **json.loads(done.stdout)}


def summary(runs: list[dict[str, Any]]) -> str:
    """Compare the clients: medians of the runs, and of the ratios of each round."""
    lines = []
    for workload in dict.fromkeys(run["workload"] for run in runs):
        of_client = {
            client: [run for run in runs if (run["workload"], run["client"]) == (workload, client)]
            for client in dict.fromkeys(run["client"] for run in runs)
        }
        for client, found in of_client.items():
            rate, cpu, walsender = (
                statistics.median(values)
                for values in (
                    [run["messages"] / run["seconds"] for run in found],
                    [run["cpu"] / run["messages"] * 1e6 for run in found],
                    [run["walsender"] / run["messages"] * 1e6 for run in found],
                )
            )
            lines.append(
                f"{workload:8} {client:14} {rate:9,.0f} messages/s, CPU per message {cpu:5.2f} us, of the walsender "
                f"{walsender:5.2f} us, ratio {cpu / walsender:.2f}"
            )
        own = of_client.pop("pgdecode")
        for client, others in of_client.items():
            pairs = list(zip(own, others, strict=True))
            rates = [a["messages"] / a["seconds"] / (b["messages"] / b["seconds"]) for a, b in pairs]
            cpus = [a["cpu"] / b["cpu"] for a, b in pairs]
            lines.append(
                f"{workload:8} pgdecode / {client}: rate {statistics.median(rates):.2f} ({min(rates):.2f} to "
                f"{max(rates):.2f}), CPU {statistics.median(cpus):.2f} ({min(cpus):.2f} to {max(cpus):.2f})"
            )
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark, or one client."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.capture", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="size of the workloads")
    parser.add_argument("--rounds", type=int, default=3, choices=range(1, 4))
    parser.add_argument("--only", choices=list(WORKLOADS))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every run here")
    parser.add_argument("--client", nargs=5, metavar=("CLIENT", "DSN", "SLOT", "N", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        client, dsn, slot, n_messages, folder = options.client
        run_client(client, dsn, slot, int(n_messages), Path(folder))
        return
    clients = [name for name in CLIENTS if name != "psycopg2" or importlib.util.find_spec("psycopg2")]
    if len(clients) < len(CLIENTS):
        print("without psycopg2: python -m pip install psycopg2-binary", file=sys.stderr)
    runs: list[dict[str, Any]] = []
    for workload in [options.only] if options.only else WORKLOADS:
        with demo.server() as dsn:
            n_messages = prepare(dsn, workload, options.scale, 1 + len(clients) * options.rounds)
            for run in measured(f"{dsn} dbname={workload}", workload, clients, n_messages, options.rounds):
                runs.append(run)
                print(run, file=sys.stderr, flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(runs, indent=1) + "\n")
    print(summary(runs))


if __name__ == "__main__":
    main()
