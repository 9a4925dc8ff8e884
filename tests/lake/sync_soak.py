"""Many cycles of a sync with a small workload, in one process: `make sync-soak`.

    PYTHONPATH=tests:tests/lake python -m sync_soak --cycles 1000 --formats parquet delta
    PYTHONPATH=tests:tests/lake python -m sync_soak --cycles 300 --formats iceberg ducklake --maintain 100

`Sync.run(every=...)` captures and applies a few changes in each cycle: rows that are inserted, updated and deleted in a
table, and rows that are appended to another one, whose oldest rows are deleted. The tables stay as large as they are,
because a cycle needs memory for the files that it writes anew. Lines tell what the process has in memory and open, how
many files RAW and the targets have, and the CPU of a cycle. The CPU is also compared with that of a fixed piece of work
beside it, because other processes make both slower.

Allocators, and the threads of the libraries, need some hundred cycles until they have the memory that they use again.
So memory is compared in the second half: it must not grow there, nor files that are open, nor the CPU of a cycle. Nor
may the states in the targets, and the files of targets without a history of their own. At the end, every target equals
the server, and no other slot is left.

Iceberg and DuckLake have a list of snapshots, and DuckLake small files, of which each commit reads all. With
`--maintain`, the calls of docs/operations.md are made after each so many cycles.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from pgdecode.lake import Sync, lake_target, verify
from pgdecode.lake.duckdb.database import DuckDbTarget
from pgdecode.lake.duckdb.table import CATALOG
from servers.database import Database
from servers.server import find_server, running_cluster
from support.docs import markdown

FORMATS = ("parquet", "delta", "duckdb", "iceberg", "ducklake")
# Bytes of memory in a cycle of the second half. A line of the log of RAW takes less than one kilobyte.
MOST_GROWTH = 8 << 10
# The CPU of a cycle at the end of the second half, as a multiple of that at its beginning.
MOST_CPU = 1.25
# The table to which rows are appended has those of so many cycles.
LOG_CYCLES = 50
# Positions and LSNs get more digits.
MOST_STATE_GROWTH = 64


@dataclass(frozen=True)
class Sample:
    """What a process has after a cycle."""

    cpu: float
    reference: float  # the CPU of `reference_work` after it
    resident: int
    handles: int
    files: tuple[int, ...]  # of RAW and the targets


@dataclass
class Soak:
    """A sync that changes its database in each cycle, and stops itself."""

    database: Database
    folder: Path
    formats: list[str]
    n_cycles: int
    maintained: int | None = None
    samples: list[Sample] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def run(self) -> list[str]:
        """Run the cycles, and return what is wrong."""
        self.database.execute(
            "CREATE TABLE log (id bigserial PRIMARY KEY, t timestamptz DEFAULT now(), note text);"
            "INSERT INTO t SELECT i, 'first ' || i FROM generate_series(1, 2000) i"
        )
        targets = [f"{name}:{self.folder / name}" for name in self.formats]
        running = Sync(
            self.database.dsn,
            targets,
            self.folder / "raw",
            slot=self.database.slot,
            publications=["p"],
            create_slot=True,
            metrics=self.folder / "metrics.prom",
            on_report=lambda report: self._take(running, report),
            on_warning=self.problems.append,
        )
        self._targets = targets
        self._cpu = time.process_time()
        running.run(every=0.001)
        grown = self._state_bytes() - self._before
        if grown > MOST_STATE_GROWTH:
            self.problems.append(f"the states in the targets grew by {grown:,} bytes, of {self._before:,}")
        for name, *counts in zip(
            ["raw", *self.formats], *(item.files for item in second_half(self.samples)), strict=True
        ):
            if name in ("parquet", "duckdb") and len({*counts}) > 1:
                self.problems.append(f"files of {name}: {counts}")
        for target in [*targets, self.folder / "raw"]:
            found = verify(self.database.dsn, target, on_warning=self.problems.append)
            if not found.is_equal:
                self.problems.append(f"{target}: is not equal: {found}")
        name = self.database.name
        slots = self.database.execute(f"SELECT slot_name FROM pg_replication_slots WHERE database = '{name}'")
        if slots != [[self.database.slot]]:
            self.problems.append(f"slots are left: {slots}")
        left = list(self.folder.rglob("*.partial"))
        if left:
            self.problems.append(f"files are left: {left}")
        return self.problems

    def _take(self, running: Sync, report: Any) -> None:
        number = len(self.samples)
        if report.errors:
            self.problems += report.errors
        cpu = time.process_time() - self._cpu
        if number == self.n_cycles // 2:
            self._before = self._state_bytes()
        gc.collect()
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * 4096
        handles = len(os.listdir("/proc/self/fd"))
        self.samples.append(Sample(cpu, reference_work(), resident, handles, self._files()))
        tenth = max(self.n_cycles // 10, 1)
        if (number + 1) % tenth == 0:
            print(line(number + 1, self.samples[-tenth:], self.formats), flush=True)
        if self.maintained and (number + 1) % self.maintained == 0:
            for name in self.formats:
                MAINTENANCE.get(name, lambda place: None)(self.folder / name)
        if number + 1 >= self.n_cycles or self.problems:
            running.stop()
        self.database.execute(
            f"INSERT INTO log (note) SELECT 'cycle {number}' FROM generate_series(1, 20);"
            f"UPDATE t SET v = 'changed {number}' WHERE id % 97 = {number % 97};"
            f"DELETE FROM log WHERE id <= {(number - LOG_CYCLES) * 20};"
            f"DELETE FROM t WHERE id = {number + 1}; INSERT INTO t VALUES ({number + 100_000}, 'new')"
        )
        self._cpu = time.process_time()

    def _state_bytes(self) -> int:
        """Return the size of the states of all tables."""
        n_bytes = 0
        for uri in self._targets:
            with lake_target(uri).opened() as target:
                n_bytes += sum(len(applied.to_json()) for applied in target.applied.values())
        return n_bytes

    def _files(self) -> tuple[int, ...]:
        places = [self.folder / name for name in ["raw", *self.formats]]
        below = [[place, place.with_name(f"{place.name}.files")] for place in places]
        return tuple(
            sum(place.is_file() or sum(len(files) for _, _, files in os.walk(place)) for place in both)
            for both in below
        )


def reference_work() -> float:
    """Return the CPU of a piece of work that is always the same."""
    start = time.process_time()
    for number in range(20):
        json.loads(json.dumps({str(item): [item, number] for item in range(500)}))
    return time.process_time() - start


def maintain_iceberg(folder: Path) -> None:
    """Expire the snapshots of all tables, as docs/operations.md says."""
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("default", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
    for name in ("t", "log"):
        table = catalog.load_table(f"public.{name}")
        table.maintenance.expire_snapshots().older_than(datetime.now()).commit()
    catalog.close()


def maintain_ducklake(catalog: Path) -> None:
    """Join the files of all tables, and expire snapshots, with the calls of docs/operations.md, without their times."""
    page = (markdown.DOCS / "operations.md").read_text()
    [calls] = markdown.code_blocks(markdown.between(page, "maintenance: ducklake"), "sql")
    calls = calls.replace("'lake'", f"'{CATALOG}'").replace(" - INTERVAL 1 DAY", "")
    with lake_target(f"ducklake:{catalog}").opened() as target:
        assert isinstance(target, DuckDbTarget)
        for call in calls.splitlines():
            target.run(call)


MAINTENANCE = {"iceberg": maintain_iceberg, "ducklake": maintain_ducklake}


def second_half(samples: list[Sample]) -> list[Sample]:
    """Return the later cycles."""
    return samples[len(samples) // 2 :]


def growth(samples: list[Sample]) -> list[str]:
    """Say what has grown in the second half of the cycles."""
    later = second_half(samples)
    fifth = len(later) // 5 + 1
    found = []
    # Single values vary much: allocators give memory back now and then, and other processes take the caches of the
    # cores. The line through all values varies less.
    numbers = range(len(later))
    memory = statistics.linear_regression(numbers, [item.resident for item in later]).slope
    cpu = statistics.linear_regression(numbers, [item.cpu / item.reference for item in later])
    factor = 1 + cpu.slope * len(later) / cpu.intercept
    print(
        f"second half: memory grew by {memory / 1024:.1f} kB in a cycle; the CPU of a cycle became {factor:.2f} times"
    )
    if memory > MOST_GROWTH:
        found.append(f"memory grew by {memory / 1024:.1f} kB in a cycle")
    handles = [max(item.handles for item in part) for part in (later[:fifth], later[-fifth:])]
    if handles[1] > handles[0]:
        found.append(f"files that are open: {handles[0]}, then {handles[1]}")
    if factor > MOST_CPU:
        found.append(f"the CPU of a cycle became {factor:.2f} times as much, beside that of fixed work")
    return found


def line(number: int, part: list[Sample], formats: list[str]) -> str:
    """Describe the last cycles."""
    sample = part[-1]
    files = ", ".join(f"{count:,} {name}" for name, count in zip(["raw", *formats], sample.files, strict=True))
    cpu, work = (statistics.median(getattr(item, name) for item in part) for name in ("cpu", "reference"))
    return (
        f"{number:>6,} cycles: {cpu * 1000:6.1f} ms of CPU each, {cpu / work:5.1f} times fixed work, "
        f"{sample.resident / 2**20:6.1f} MiB resident, {sample.handles} open; files: {files}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=1000)
    parser.add_argument("--formats", nargs="+", default=["parquet", "delta", "duckdb"], choices=FORMATS)
    parser.add_argument("--maintain", type=int, help="maintain Iceberg and DuckLake after so many cycles")
    arguments = parser.parse_args()
    programs = find_server()
    if programs is None:
        sys.exit("this needs a PostgreSQL server")
    with running_cluster(programs) as cluster, tempfile.TemporaryDirectory() as folder:
        database = Database(cluster, "soak")
        soak = Soak(database, Path(folder), arguments.formats, arguments.cycles, arguments.maintain)
        problems = soak.run()
        database.close()
    problems += growth(soak.samples)
    print("\n".join(problems) or "no growth, all equal")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
