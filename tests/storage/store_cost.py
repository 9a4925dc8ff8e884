"""CPU time of a job's tasks through the S3 emulator, beside copying: it reads the same columns, and writes other rows.

`make store-cost` runs it. The tasks run in this process, one after the other, so that only the client's time counts.
Each decodes 1,000,000 payloads.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.datasets import load
from benchmarks.spark import DATA_SET, SAMPLE, TABLE, Constant, Copying, decoded_sample
from pgdecode.datasets.run import Run
from pgdecode.datasets.target import target_at
from pgdecode.files.payload_file import PayloadFile
from pgdecode.files.payload_files import payload_files
from pgdecode.files.writers import CHANGE_LAYOUT, TABLE_LAYOUT, Layout, message_layout
from pgdecode.rows.options import Options
from pgdecode.storage.object_path import ObjectPath, object_path
from pgdecode.storage.object_store import store_of
from spark_udfs.jobs import file_route
from spark_udfs.jobs.file_tasks import MessageTask, Task
from spark_udfs.jobs.job_config import ChangeJob, MessageJob

N_ROWS = 4_000_000
FILES = 4
ROUNDS = 5
LAYOUTS: dict[str, Layout] = {"messages": message_layout(), "changes": CHANGE_LAYOUT, TABLE: TABLE_LAYOUT}


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the CPU time of this process for a call."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    work()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def landed(folder: ObjectPath) -> None:
    """Write payloads with their positions to a store."""
    payloads = load(DATA_SET, N_ROWS).payloads
    bounds = [0, *(number * N_ROWS // FILES + 3 for number in range(1, FILES)), N_ROWS]
    with TemporaryDirectory() as here:
        for number, (start, end) in enumerate(pairwise(bounds)):
            positions = pa.array(range(start, end), pa.int64())
            table = pa.table({"seq": positions, "data": payloads.slice(start, end - start)})
            pq.write_table(table, f"{here}/x.parquet")
            with open(f"{here}/x.parquet", "rb") as file:
                obstore.put(store_of(folder), f"{folder.key}/{number}.parquet", file)


def run_here(spark: None, work: Callable[[Any], Any], tasks: list[Any]) -> list[Any]:
    """Run tasks one after the other."""
    return [work(task) for task in tasks]


def measure(raw: ObjectPath, what: str) -> list[tuple[float, float]]:
    """Measure copying and decoding in turn."""
    keep = () if what == "messages" else ("seq",)
    rows = decoded_sample(what)
    layout = LAYOUTS[what]

    def copy(files: list[PayloadFile], run: Run) -> None:
        work = Copying(run.files, Constant(rows, len(rows) / SAMPLE), layout)
        for number, file in enumerate(files):
            work(Task(number, (file,)))

    def decode(files: list[PayloadFile], run: Run) -> None:
        if what == "messages":
            job = MessageJob(None, "auto")
            message_task = MessageTask(run.files, pa.schema([]), job)
            for number, file in enumerate(files):
                message_task(Task(number, (file,)))
            return
        name = None if what == "changes" else what
        config = ChangeJob((name,), None, Options(), None, "parquet")
        none: Any = None
        file_route.write_changes(none, files, "seq", config, True, run)

    found = []
    for number in range(ROUNDS + 1):
        seconds = []
        for work in (copy, decode):
            target = target_at(object_path(f"{raw.root}/{what}{number}{work.__name__}", dict(raw.options)))
            with target.begin((what,), {}) as run:
                seconds.append(cpu_seconds(lambda work=work, run=run: work(payload_files(raw, "data", keep), run)))
        found.append((seconds[0], seconds[1]))
    return found[1:]


def main() -> None:
    """Print the CPU time of each case."""
    from support.emulators import ENVIRONMENT, s3_emulator

    os.environ.update(ENVIRONMENT)
    replaced: Any = file_route
    replaced.run_tasks = run_here
    replaced.task_bytes = lambda *given: 8 << 20
    replaced.parallelism = lambda spark: 2
    replaced.partition_bytes = lambda spark: 128 << 20
    with s3_emulator() as emulator:
        raw = object_path(f"{emulator.new_bucket()}/raw", emulator.options)
        landed(raw)
        for what in sys.argv[1:] or LAYOUTS:
            found = measure(raw, what)
            copying, decoding = median(a for a, _ in found), median(b for _, b in found)
            ratios = [b / a for a, b in found]
            print(
                f"{what}: copying {copying:.2f} s, decoding {decoding:.2f} s of CPU for {N_ROWS:,} payloads; "
                f"ratio {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            )


if __name__ == "__main__":
    main()
