"""Jobs whose tasks read and write files themselves: Spark deals out the tasks, and runs them again where they fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession

from pgdecode.files import PayloadFile
from spark_udfs.asked import AskedChanges, AskedMessages
from spark_udfs.file_tasks import MESSAGES, ChangeTask, MessageTask, Survey, SurveyTask, Task
from spark_udfs.index import source_index
from spark_udfs.parts import attempts, commit, part_name
from spark_udfs.runs import PlainIndex

# Tasks of less are not worth their start; and some more than there are cores, so that all end at about the same time.
_LEAST_TASK_BYTES = 8 << 20
_TASKS_PER_CORE = 2

Result = TypeVar("Result")


def write_messages(spark: SparkSession, files: Sequence[PayloadFile], folder: Path, asked: AskedMessages) -> None:
    """Decode files to messages.

    Parameters
    ----------
    spark : SparkSession
    files : sequence of PayloadFile
        At least one.
    folder : Path
        To be made.
    asked : AskedMessages
    """
    work = MessageTask(folder, files[0].schema, asked.fields, asked.in_stream, asked.mode, asked.format)
    # Where order tells the stream state, a task goes from the first row of a file to its last.
    tasks = _tasks(spark, files) if asked.in_stream is None else cut(spark, files)
    with attempts(folder):
        parts = [part for found in run_tasks(spark, work, tasks) for part in found]
        commit(folder, parts, _inputs(tasks, asked.format))


def changes_writer(
    spark: SparkSession, files: Sequence[PayloadFile], position: str, asked: AskedChanges, has_time: bool
) -> Callable[[Mapping[str | None, Path]], None] | None:
    """Look through files for what changes are made of, and give what then writes them.

    Parameters
    ----------
    spark : SparkSession
    files : sequence of PayloadFile
        With the column of positions.
    position : str
    asked : AskedChanges
    has_time : bool
        As of `TableChanges`.

    Returns
    -------
    callable or None
        Takes the folders, to be made, for what was asked. None where rows do not stand in the order of their
        positions, or files' ranges of positions overlap.

    Raises
    ------
    KeyError
        If nothing describes a table that was asked for.
    """
    found = [survey for some in run_tasks(spark, SurveyTask(position), cut(spark, files)) for survey in some]
    surveys = [survey for survey in found if survey is not None]
    if len(surveys) < len(found):
        return None
    surveys.sort(key=lambda survey: survey.first)
    if any(before.last >= after.first for before, after in pairwise(surveys)):
        return None
    index = source_index(None, _runs(surveys), _messages(surveys), asked.catalog)
    products = asked.products([index], has_time, in_files=True)
    columns = tuple(asked.columns(product) for product in products)
    tasks = _tasks(spark, [survey.piece for survey in surveys])

    def write(folders: Mapping[str | None, Path]) -> None:
        plain = PlainIndex.of(None, index.index, index.counts)
        places = tuple(folders[name] for name in asked.names)
        work = ChangeTask(places, tuple(products), columns, plain, position, asked.options, asked.format)
        with ExitStack() as stack:
            for place in places:
                stack.enter_context(attempts(place))
            done = run_tasks(spark, work, tasks)
            inputs = _inputs(tasks, asked.format)
            for number, place in enumerate(places):
                commit(place, [parts[number] for parts in done], inputs)

    return write


def run_tasks(spark: SparkSession, work: Callable[[Task], list[Result]], tasks: Sequence[Task]) -> list[list[Result]]:
    """Have each task done once, whatever becomes of its attempts; results are in the order of the tasks."""
    done: list[list[Result]] = spark.sparkContext.parallelize(tasks, len(tasks)).map(work).collect()
    return done


def cut(spark: SparkSession, files: Sequence[PayloadFile]) -> list[Task]:
    """Cut files into tasks, between row groups."""
    return _tasks(spark, [piece for file in files for piece in _pieces(spark, file, files)])


def _task_bytes(spark: SparkSession, n_bytes: int) -> int:
    most = int(spark._jsparkSession.sessionState().conf().filesMaxPartitionBytes())
    share = n_bytes // (_TASKS_PER_CORE * spark.sparkContext.defaultParallelism)
    return min(most, max(share, _LEAST_TASK_BYTES))


def _pieces(spark: SparkSession, file: PayloadFile, files: Sequence[PayloadFile]) -> list[PayloadFile]:
    """Cut a file into pieces that are each worth a task, between row groups."""
    wanted = _task_bytes(spark, sum(item.n_bytes for item in files))
    pieces = []
    first = n_bytes = 0
    for place, group in enumerate(file.groups):
        if place > first and n_bytes + group.n_bytes > wanted:
            pieces.append(replace(file, groups=file.groups[first:place]))
            first, n_bytes = place, 0
        n_bytes += group.n_bytes
    return [*pieces, replace(file, groups=file.groups[first:])]


def _tasks(spark: SparkSession, pieces: Sequence[PayloadFile]) -> list[Task]:
    """Gather small pieces into tasks; there is one at least."""
    wanted = _task_bytes(spark, sum(piece.n_bytes for piece in pieces))
    gathered: list[list[PayloadFile]] = [[]]
    n_bytes = 0
    for piece in pieces:
        if gathered[-1] and n_bytes + piece.n_bytes > wanted:
            gathered.append([])
            n_bytes = 0
        gathered[-1].append(piece)
        n_bytes += piece.n_bytes
    return [Task(number, tuple(item)) for number, item in enumerate(gathered)]


def _inputs(tasks: Sequence[Task], format: str) -> dict[str, list[dict[str, Any]]]:
    """Say by the name of each part which rows it is of."""
    return {
        part_name(task.number, format): [
            {"file": str(piece.path), "first_row": piece.start, "rows": piece.n_rows} for piece in task.pieces
        ]
        for task in tasks
    }


def _runs(surveys: Sequence[Survey]) -> pa.Table:
    return pa.table(
        {
            "first": pa.array([survey.first for survey in surveys], pa.int64()),
            "last": pa.array([survey.last for survey in surveys], pa.int64()),
            "has_rows": pa.array([survey.has_rows for survey in surveys], pa.bool_()),
            "n": pa.array([survey.piece.n_rows for survey in surveys], pa.int64()),
            "may_move": pa.array([False] * len(surveys), pa.bool_()),
        }
    )


def _messages(surveys: Sequence[Survey]) -> pa.Table:
    return pa.concat_tables([MESSAGES.empty_table(), *(survey.table() for survey in surveys)])
