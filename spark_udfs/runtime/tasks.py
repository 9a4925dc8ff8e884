"""Runs tasks on Spark. Only the tasks and their results pass through Spark, as pickled objects."""

from __future__ import annotations

import base64
import pickle
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_udfs.runtime.jvm import SPARK_ERRORS, error_texts, is_connect
from spark_udfs.runtime.session import for_workers
from spark_udfs.runtime.worker import WorkerFunction

Item = TypeVar("Item")
Result = TypeVar("Result")

_BYTES = re.compile(r"(\d+)\s*([kmgtp]?)i?b?", re.IGNORECASE)
_PACKAGES = ("pgdecode.", "spark_udfs.")


class TaskError(Exception):
    """An error of these packages in a task. Its text is the pickled error, which the driver raises."""

    PATTERN = re.compile(r"TaskError: ([A-Za-z0-9+/=]+)")

    @classmethod
    def of(cls, error: Exception) -> TaskError:
        """Wrap an error."""
        return cls(base64.b64encode(pickle.dumps(error)).decode())

    @classmethod
    def in_text(cls, text: str) -> Exception | None:
        """Find the error that a task raised in the text of an error of Spark."""
        found = cls.PATTERN.search(text)
        if found is None:
            return None
        error: Exception = pickle.loads(base64.b64decode(found[1]))
        return error


def run_tasks(spark: SparkSession, work: Callable[[Item], Result], tasks: Sequence[Item]) -> list[Result]:
    """Run the tasks with Spark, which retries failed attempts. Return the results in the order of the tasks.

    Parameters
    ----------
    spark : SparkSession
        Spark Connect has no RDDs. There, the tasks are rows of a frame with one partition for each. In a classic
        session, this would take a few hundred milliseconds more.
    work : WorkerFunction
    tasks : sequence

    Raises
    ------
    Exception
        The error of these packages that a task has raised, or an error of Spark.
    """
    try:
        return _results(spark, _RaisingErrors(work), tasks)
    except SPARK_ERRORS as error:
        for text in error_texts(error):
            raised = TaskError.in_text(text)
            if raised is not None:
                raise raised from error
        raise


@dataclass(frozen=True)
class _RaisingErrors(WorkerFunction):
    """A function for tasks, whose errors come to the driver as they are."""

    work: Callable[[Any], Any]

    def __call__(self, task: Any) -> Any:
        """Run a task."""
        try:
            return self.work(task)
        except Exception as error:
            if type(error).__module__.startswith(_PACKAGES):
                raise TaskError.of(error) from None
            raise


def _results(spark: SparkSession, work: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
    if not is_connect(spark):
        with for_workers():
            return list(spark.sparkContext.parallelize(tasks, len(tasks)).map(work).collect())
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
