"""Tasks on Spark that fail once. `python spark_faults.py FOLDER` runs them on a cluster."""

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


def main(folder: Path) -> None:
    """Run jobs with and without faults for the files in `folder/raw`, and print their results."""
    from spark_udfs import decode_files, table_changes
    from spark_udfs.dataframes import changes
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

        table = "public.pgbench_accounts"
        decoded("messages", "messages", None)
        decoded("messages.worker", "messages", kill_worker)
        decoded("messages.executor", "messages", kill_executor)
        decoded("table", table, None)
        decoded("table.worker", table, kill_worker)

        rows = spark.read.parquet(str(folder / "raw"))
        whole = digest(table_changes(rows, table).toArrow())
        function = changes.PartitionDecodingFunction
        marker = str(folder / "dataframe.met")
        vars(changes)["PartitionDecodingFunction"] = lambda *given: FaultyFunction(function(*given), marker)
        again = digest(table_changes(rows, table).toArrow())
        said["dataframe"] = {"same": whole == again, "rows": len(whole), "met": Path(marker).exists()}
    print(json.dumps(said))


if __name__ == "__main__":
    # Workers import the classes by the name of the module.
    import spark_faults

    spark_faults.main(Path(sys.argv[1]))
