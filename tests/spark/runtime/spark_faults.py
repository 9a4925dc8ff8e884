"""Tasks on Spark that fail once. `python spark_faults.py FOLDER NAME ...` runs jobs with them on a cluster."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark


def kill_worker() -> None:
    """Kill this Python process, as the kernel does if memory is short."""
    os.kill(os.getpid(), signal.SIGKILL)


def kill_executor() -> None:
    """Kill the JVM that started the daemon of this worker."""
    status = Path(f"/proc/{os.getppid()}/status").read_text()
    os.kill(next(int(line.split()[1]) for line in status.splitlines() if line.startswith("PPid:")), signal.SIGKILL)


def first_time(marker: str) -> bool:
    """Whether this is the first call with the marker."""
    try:
        Path(marker).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


@dataclass(frozen=True)
class FaultyTask:
    """A task function that fails in the first attempt of the second task, after it has written a batch."""

    work: Callable[[Any], Any]
    marker: str
    failure: Callable[[], None]

    def __call__(self, task: Any) -> Any:
        """Run the task."""
        if task.number == 1 and first_time(self.marker):
            from spark_udfs.jobs import output_committer

            write_to = output_committer.writer_to

            @contextmanager
            def writer_to(*given: Any) -> Iterator[Callable[[pa.RecordBatch], None]]:
                with write_to(*given) as write:

                    def fatal(batch: pa.RecordBatch) -> None:
                        write(batch)
                        self.failure()

                    yield fatal

            vars(output_committer)["writer_to"] = writer_to
        return self.work(task)


@dataclass(frozen=True)
class FaultyFunction:
    """A function for `mapInArrow`. Its first worker is killed after it has returned a batch."""

    function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    marker: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Decode."""
        for batch in self.function(batches):
            yield batch
            if batch.num_rows and first_time(self.marker):
                kill_worker()


def digest(rows: pa.Table) -> list[str]:
    """Rows as sorted texts."""
    return sorted(map(repr, rows.to_pylist()))


TABLE = "public.pgbench_accounts"
# By name: what to decode, and how a task fails.
JOBS: dict[str, tuple[str, Callable[[], None] | None]] = {
    "messages": ("messages", None),
    "messages.worker": ("messages", kill_worker),
    "messages.executor": ("messages", kill_executor),
    "table": (TABLE, None),
    "table.worker": (TABLE, kill_worker),
}


def main(folder: Path, names: list[str]) -> None:
    """Run jobs for the files in `folder/raw`, and print their results."""
    from spark_udfs import decode_files
    from spark_udfs.jobs import file_route
    from spark_udfs.runtime.session import local_session

    # A cluster of two executors on this machine, with one core each. Only such a cluster can lose executors.
    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    os.environ["SPARK_WORKER_DIR"] = str(folder / "workers")
    said: dict[str, Any] = {}
    with local_session("local-cluster[2,1,1024]") as spark:
        run = file_route.run_tasks

        def decoded(name: str, what: str, failure: Callable[[], None] | None) -> None:
            work_of = run
            if failure is not None:

                def work_of(session: Any, work: Any, tasks: Any) -> Any:
                    return run(session, FaultyTask(work, str(folder / f"{name}.met"), failure), tasks)

            vars(file_route)["run_tasks"] = work_of
            decode_files(spark, folder / "raw", folder / name, what=what)
            said[name] = {
                "manifest": (folder / name / "_pgdecode" / "0000000001.json").read_text(),
                "names": sorted(os.listdir(folder / name)),
                "met": (folder / f"{name}.met").exists(),
            }

        for name in names:
            if name in JOBS:
                decoded(name, *JOBS[name])
        if "dataframe" in names:
            said["dataframe"] = of_dataframe(spark, folder)
    print(json.dumps(said))


def of_dataframe(spark: Any, folder: Path) -> dict[str, Any]:
    """Compare the rows of a query with those of one whose worker is killed."""
    from spark_udfs import table_changes
    from spark_udfs.dataframes import changes

    rows = spark.read.parquet(str(folder / "raw"))
    whole = digest(table_changes(rows, TABLE).toArrow())
    function = changes.PartitionDecodingFunction
    marker = str(folder / "dataframe.met")
    vars(changes)["PartitionDecodingFunction"] = lambda *given: FaultyFunction(function(*given), marker)
    again = digest(table_changes(rows, TABLE).toArrow())
    return {"same": whole == again, "rows": len(whole), "met": Path(marker).exists()}


if __name__ == "__main__":
    # Workers import the classes by the name of the module.
    import spark_faults

    spark_faults.main(Path(sys.argv[1]), sys.argv[2:])
