"""Runs tasks on Spark. Only the tasks and their results pass through Spark, as pickled objects."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_udfs.runtime.jvm import is_connect
from spark_udfs.runtime.session import for_workers
from spark_udfs.runtime.worker import WorkerFunction

Item = TypeVar("Item")
Result = TypeVar("Result")

_BYTES = re.compile(r"(\d+)\s*([kmgtp]?)i?b?", re.IGNORECASE)


def run_tasks(spark: SparkSession, work: Callable[[Item], Result], tasks: Sequence[Item]) -> list[Result]:
    """Run the tasks with Spark, which retries failed attempts. Return the results in the order of the tasks.

    Parameters
    ----------
    spark : SparkSession
        Spark Connect has no RDDs. There, the tasks are rows of a frame with one partition for each. In a classic
        session, this would take a few hundred milliseconds more.
    work : WorkerFunction
    tasks : sequence
    """
    if not is_connect(spark):
        with for_workers():
            done: list[Result] = spark.sparkContext.parallelize(tasks, len(tasks)).map(work).collect()
        return done
    pickled = [pickle.dumps(task) for task in tasks]
    frame = pa.table({"number": pa.array(range(len(tasks)), pa.int64()), "task": pa.array(pickled, pa.binary())})
    with for_workers(), changed_settings(spark, {"spark.sql.leafNodeDefaultParallelism": str(len(tasks))}):
        found = spark.createDataFrame(frame).mapInArrow(RowTask(work), "number bigint, result binary").toArrow()
    return [pickle.loads(result) for result in found.sort_by("number")["result"].to_pylist()]


@dataclass(frozen=True)
class RowTask(WorkerFunction):
    """A function for `mapInArrow` that runs the task in each row."""

    work: Callable[[Any], Any]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the tasks one after the other."""
        for batch in batches:
            for number, task in zip(batch.column(0), batch.column(1), strict=True):
                result = pickle.dumps(self.work(pickle.loads(task.as_py())))
                columns = [pa.array([number.as_py()], pa.int64()), pa.array([result], pa.binary())]
                yield pa.RecordBatch.from_arrays(columns, names=["number", "result"])


def parallelism(spark: SparkSession) -> int:
    """Return how many tasks run at the same time, if the session has all of Spark for itself."""
    if not is_connect(spark):
        return int(spark.sparkContext.defaultParallelism)
    # Only the server knows it. It is the number of partitions of a frame.
    numbers = spark.range(1 << 16).select(F.spark_partition_id().alias("partition"))
    row = numbers.agg(F.max("partition")).first()
    return 1 + int(row[0] if row is not None else 0)


def partition_bytes(spark: SparkSession) -> int:
    """Return the setting spark.sql.files.maxPartitionBytes."""
    text = str(spark.conf.get("spark.sql.files.maxPartitionBytes"))
    found = _BYTES.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"spark.sql.files.maxPartitionBytes is {text!r}, which is no size in bytes")
    return int(found[1]) << 10 * " kmgtp".index(found[2].lower() or " ")


@contextmanager
def changed_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Change settings of a session temporarily."""
    former = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, before in former.items():
            if before is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, before)
