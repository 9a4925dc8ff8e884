"""Benchmark of `pgdecode capture --copy`, compared with psql: `python -m benchmarks.initial_copy`.

psql's COPY TO STDOUT to /dev/null is the rate of the server. Both read the same tables of the demonstration server.
Each run is a process. Time and CPU of pgdecode are counted without imports, from connecting until files are on disk.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

try:
    from pgdecode.capture import Capture, PluginOptions, demo, drop_slot
    from pgdecode.capture.connection import Connection
except ImportError as problem:
    sys.exit(f"{problem}\nthis needs the compiled package and extras: python -m pip install -e '.[demo]'")

# Rows of three columns, and of the twelve columns of benchmarks/capture.py.
TABLES = {
    "narrow": """CREATE TABLE rows AS SELECT i::bigint AS id, (i % 1000)::int AS a, 'v' || i % 100 AS b
        FROM generate_series(1, {}) i""",
    "wide": """CREATE TABLE rows AS SELECT i::bigint AS id, i::int AS a, (i % 100)::smallint AS b, i / 7.0::float8 AS c,
        (i * 1.25)::numeric(14,2) AS d, i % 2 = 0 AS e, '2026-01-01'::date + i % 999 AS f, now() AS g,
        md5(i::text)::uuid AS h, repeat(md5(i::text), 3) AS i, jsonb_build_object('n', i, 'name', md5(i::text)) AS j,
        NULL::text AS k FROM generate_series(1, {}) i""",
}
ROWS = {"narrow": 5_000_000, "wide": 1_000_000}
# By name: binary, and number of connections.
CLIENTS = {"text": (False, 1), "binary": (True, 1), "text, 2 connections": (False, 2)}


def run_client(client: str, dsn: str, folder: Path) -> None:
    """Copy in this process, and print time, CPU, rows and peak memory."""
    binary, connections = CLIENTS[client]
    # The first call imports pandas, if it is installed.
    pa.array([0])
    begun, cpu = time.perf_counter(), time.process_time()
    found = Capture(
        dsn,
        folder / "out",
        slot="bench",
        publication="bench",
        create_slot=True,
        copy=True,
        connections=connections,
        options=PluginOptions(binary=binary),
    ).run(until="now")
    seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"seconds": seconds, "cpu": cpu, "rows": found.messages, "peak_mb": peak / 1024}))


def prepare(dsn: str, table: str, n_rows: int) -> None:
    """Create a database with the table and a publication."""
    with contextlib.closing(Connection(dsn)) as admin:
        admin.rows(f"CREATE DATABASE {table}")
    with contextlib.closing(Connection(f"{dsn} dbname={table}", settings={"search_path": "public"})) as connection:
        connection.rows(TABLES[table].format(n_rows), lambda: None)
        connection.rows("CREATE PUBLICATION bench FOR ALL TABLES")
        connection.rows("VACUUM (FREEZE, ANALYZE) rows", lambda: None)
        connection.rows("CHECKPOINT", lambda: None)


def measured(dsn: str, table: str, n_rows: int, rounds: int) -> Iterator[dict[str, Any]]:
    """Run psql and all clients in turn."""
    psql = [str(demo.programs() / "psql"), "-X", "-c", "COPY rows TO STDOUT", dsn]
    for _ in range(rounds):
        begun = time.perf_counter()
        subprocess.run(psql, check=True, stdout=subprocess.DEVNULL)
        yield {"table": table, "client": "psql", "rows": n_rows, "seconds": time.perf_counter() - begun}
        for client in CLIENTS:
            with tempfile.TemporaryDirectory() as folder:
                command = [sys.executable, "-m", "benchmarks.initial_copy", "--client", client, dsn, folder]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
            drop_slot(dsn, "bench")
            yield {"table": table, "client": client, **json.loads(done.stdout)}


def summary(runs: list[dict[str, Any]]) -> str:
    """Give the medians of the runs, and rates as parts of psql's."""
    lines = []
    for table, client in dict.fromkeys((run["table"], run["client"]) for run in runs):
        found = [run for run in runs if (run["table"], run["client"]) == (table, client)]
        rate = statistics.median(run["rows"] / run["seconds"] for run in found)
        line = f"{table:7} {client:20} {rate / 1e6:5.2f} M rows/s"
        if client == "psql":
            of_server = rate
        else:
            cpu = statistics.median(run["cpu"] / run["rows"] * 1e6 for run in found)
            line += f", {rate / of_server:.2f} of psql, {cpu:.2f} CPU s a million rows"
            line += f", peak memory {max(run['peak_mb'] for run in found):,.0f} MB"
        lines.append(line)
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark, or one client."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.initial_copy", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="size of the tables")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=list(TABLES))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every run here")
    parser.add_argument("--client", nargs=3, metavar=("CLIENT", "DSN", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        client, dsn, folder = options.client
        run_client(client, dsn, Path(folder))
        return
    runs: list[dict[str, Any]] = []
    with demo.server() as dsn:
        for table in [options.only] if options.only else TABLES:
            n_rows = int(ROWS[table] * options.scale)
            prepare(dsn, table, n_rows)
            for run in measured(f"{dsn} dbname={table}", table, n_rows, options.rounds):
                runs.append(run)
                print(run, file=sys.stderr, flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(runs, indent=1) + "\n")
    print(summary(runs))


if __name__ == "__main__":
    main()
