"""Many cycles of a sync with a small workload, in one process: `make sync-soak`.

    PYTHONPATH=tests:tests/lake python -m sync_soak --cycles 1000 --formats parquet delta

`Sync.run(every=...)` captures and applies a few changes in each cycle: rows that are inserted, updated and deleted in a
table, and rows that are appended to another one. Lines tell what the process has in memory and open, how many files RAW
and the targets have, and the CPU of a cycle. After the first tenth of the cycles, memory and files that are open must
not grow, the CPU of a cycle at the end must not be much more than at the beginning. The states in the targets must not
grow, nor the files of targets without a history of their own. At the end, every target equals the server, and no other
slot is left.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from pgdecode.lake import Sync, lake_target, verify
from servers.database import Database
from servers.server import find_server, running_cluster

FORMATS = ("parquet", "delta", "duckdb", "iceberg", "ducklake")
# What the allocator keeps varies. Growth of 10 kB in each of 1,000 cycles is more.
MOST_GROWTH = 10 << 20
# Positions and LSNs get more digits.
MOST_STATE_GROWTH = 64


@dataclass(frozen=True)
class Sample:
    """What a process has after a cycle."""

    cpu: float
    seconds: float
    resident: int
    handles: int
    files: Counter[str]


@dataclass
class Soak:
    """A sync that changes its database in each cycle, and stops itself."""

    database: Database
    folder: Path
    formats: list[str]
    n_cycles: int
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
        for name in ("parquet", "duckdb"):
            counts = [item.files[name] for item in self.samples[len(self.samples) // 2 :] if name in item.files]
            if len({*counts}) > 1:
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
        self.samples.append(Sample(cpu, report.seconds, resident, handles, self._files()))
        tenth = max(self.n_cycles // 10, 1)
        if (number + 1) % tenth == 0:
            print(line(number + 1, self.samples[-tenth:]), flush=True)
        if number + 1 >= self.n_cycles or self.problems:
            running.stop()
        self.database.execute(
            f"INSERT INTO log (note) SELECT 'cycle {number}' FROM generate_series(1, 20);"
            f"UPDATE t SET v = 'changed {number}' WHERE id % 97 = {number % 97};"
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

    def _files(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for name in ["raw", *self.formats]:
            place = self.folder / name
            found[name] = 1 if place.is_file() else sum(len(files) for _, _, files in os.walk(place))
        return found


def growth(samples: list[Sample]) -> list[str]:
    """Say what has grown since the first tenth of the cycles."""
    tenth = max(len(samples) // 10, 1)
    first, last = samples[tenth : 2 * tenth], samples[-tenth:]
    grown = max(item.resident for item in last) - max(item.resident for item in first)
    found = []
    if grown > MOST_GROWTH:
        found.append(f"memory grew by {grown / 2**20:.1f} MiB")
    if max(item.handles for item in last) > max(item.handles for item in first):
        found.append(f"files that are open: {first[0].handles}, then {last[-1].handles}")
    before, after = (statistics.median(item.cpu for item in part) for part in (first, last))
    if after > 1.5 * before:
        found.append(f"a cycle took {before:.3f} s of CPU, then {after:.3f} s")
    return found


def line(number: int, part: list[Sample]) -> str:
    """Describe the last cycles."""
    sample = part[-1]
    files = ", ".join(f"{count:,} {name}" for name, count in sample.files.items())
    cpu = statistics.median(item.cpu for item in part)
    return (
        f"{number:>6,} cycles: {cpu * 1000:6.1f} ms of CPU each, {sample.resident / 2**20:6.1f} MiB resident, "
        f"{pa.total_allocated_bytes() / 2**20:5.1f} MiB of Arrow's pool, {sample.handles} open; files: {files}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=1000)
    parser.add_argument("--formats", nargs="+", default=["parquet", "delta", "duckdb"], choices=FORMATS)
    arguments = parser.parse_args()
    programs = find_server()
    if programs is None:
        sys.exit("this needs a PostgreSQL server")
    with running_cluster(programs) as cluster, tempfile.TemporaryDirectory() as folder:
        database = Database(cluster, "soak")
        soak = Soak(database, Path(folder), arguments.formats, arguments.cycles)
        problems = soak.run()
        database.close()
    problems += growth(soak.samples)
    print("\n".join(problems) or "no growth, all equal")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
