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
from pgdecode.forecast import holds
from pgdecode.runs import RunIndex
from spark_udfs.asked import AskedChanges, AskedMessages
from spark_udfs.file_tasks import ChangeTask, MessageTask, SpanTask, Surveyed, SurveyTask, Task
from spark_udfs.index import SourceIndex, source_index
from spark_udfs.parts import Part, attempts, commit, part_name
from spark_udfs.runs import PlainIndex
from spark_udfs.spans import MESSAGES, Span, forecast_of, looks_at, ordered, spans, unpacked
from spark_udfs.surveys import Survey

# Tasks of less are not worth their start; and some more than there are cores, so that all end at about the same time.
_LEAST_TASK_BYTES = 8 << 20
_TASKS_PER_CORE = 2

Item = TypeVar("Item")
Sized = TypeVar("Sized", PayloadFile, Span)
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


def write_changes(
    spark: SparkSession,
    files: Sequence[PayloadFile],
    position: str,
    asked: AskedChanges,
    has_time: bool,
    folders: Mapping[str | None, Path],
) -> bool:
    """Decode files to changes and tables.

    Tasks decode by a forecast of what transactions and relations let them know, and look through the payloads for what
    is true of them meanwhile. What was decoded by a wrong forecast is decoded again.

    Parameters
    ----------
    spark : SparkSession
    files : sequence of PayloadFile
        With the column of positions.
    position : str
    asked : AskedChanges
    has_time : bool
        As of `TableChanges`.
    folders : mapping
        To be made, for what was asked.

    Returns
    -------
    bool
        False where rows do not stand in the order of their positions, or files' ranges of positions overlap. Nothing
        is written then.

    Raises
    ------
    KeyError
        If nothing describes a table that was asked for.
    """
    pieces = [piece for piece in _pieces(spark, files) if piece.n_rows]
    looks = looks_at(pieces, position)
    if looks is None:
        return False
    pieces, looks = ordered(pieces, looks)
    tasks = [SpanTask(number, tuple(item)) for number, item in enumerate(_gathered(spark, spans(pieces, looks)))]
    places = tuple(folders[name] for name in asked.names)

    def work_by(index: RunIndex) -> ChangeTask:
        counts = tuple(span.n_rows for task in tasks for span in task.spans)
        products = asked.products([SourceIndex(None, index, counts, may_move=False)], has_time, in_files=True)
        columns = tuple(asked.columns(product) for product in products)
        plain = PlainIndex.of(None, index, counts)
        return ChangeTask(places, tuple(products), columns, plain, position, asked.options, asked.format)

    told = forecast_of(looks, asked.catalog)
    try:
        early = work_by(told) if told is not None else None
    except (KeyError, ValueError):
        # The table, or a column that was asked for, may be described later.
        early = None
    with ExitStack() as stack:
        for place in places:
            stack.enter_context(attempts(place))
        found = run_tasks(spark, SurveyTask(position, early), tasks)
        surveys = _in_order(found)
        if surveys is not None:
            index = source_index(None, _runs(surveys, tasks), _messages(surveys), asked.catalog).index
            work = work_by(index)
            done = [surveyed.parts for surveyed in found]
            if told is not None and early is not None:
                done = _standing(tasks, done, told, early, index, work)
            again = [task for task, parts in zip(tasks, done, strict=True) if parts is None]
            rest = iter(run_tasks(spark, work, again) if again else [])
            parts = [next(rest) if parts is None else parts for parts in done]
            inputs = _inputs(tasks, asked.format)
            for number, place in enumerate(places):
                commit(place, [of_task[number] for of_task in parts], inputs)
    if surveys is None:
        for place in places:
            place.rmdir()
    return surveys is not None


def _in_order(found: Sequence[Surveyed]) -> list[Survey] | None:
    """Surveys of all spans; None where positions do not ascend."""
    surveys: list[Survey] = []
    for item in found:
        if item.surveys is None:
            return None
        surveys += item.surveys
    return surveys if all(before.last < after.first for before, after in pairwise(surveys)) else None


def _standing(
    tasks: Sequence[SpanTask],
    done: Sequence[list[Part] | None],
    told: RunIndex,
    early: ChangeTask,
    index: RunIndex,
    work: ChangeTask,
) -> list[list[Part] | None]:
    """Leave out parts of which the forecast was wrong."""
    if [item.apart_from_numbers for item in early.products] != [item.apart_from_numbers for item in work.products]:
        return [None] * len(tasks)
    first = 0
    standing = []
    for task, parts in zip(tasks, done, strict=True):
        runs = range(first, first + len(task.spans))
        standing.append(parts if all(holds(told, index, run) for run in runs) else None)
        first += len(task.spans)
    return standing


def run_tasks(spark: SparkSession, work: Callable[[Item], Result], tasks: Sequence[Item]) -> list[Result]:
    """Have each task done once, whatever becomes of its attempts; results are in the order of the tasks."""
    done: list[Result] = spark.sparkContext.parallelize(tasks, len(tasks)).map(work).collect()
    return done


def cut(spark: SparkSession, files: Sequence[PayloadFile]) -> list[Task]:
    """Cut files into tasks, between row groups."""
    return _tasks(spark, _pieces(spark, files))


def _task_bytes(spark: SparkSession, n_bytes: int) -> int:
    most = int(spark._jsparkSession.sessionState().conf().filesMaxPartitionBytes())
    share = n_bytes // (_TASKS_PER_CORE * spark.sparkContext.defaultParallelism)
    return min(most, max(share, _LEAST_TASK_BYTES))


def _pieces(spark: SparkSession, files: Sequence[PayloadFile]) -> list[PayloadFile]:
    """Cut files into pieces that are each worth a task, between row groups."""
    wanted = _task_bytes(spark, sum(file.n_bytes for file in files))
    pieces = []
    for file in files:
        first = n_bytes = 0
        for place, group in enumerate(file.groups):
            if place > first and n_bytes + group.n_bytes > wanted:
                pieces.append(replace(file, groups=file.groups[first:place]))
                first, n_bytes = place, 0
            n_bytes += group.n_bytes
        pieces.append(replace(file, groups=file.groups[first:]))
    return pieces


def _tasks(spark: SparkSession, pieces: Sequence[PayloadFile]) -> list[Task]:
    return [Task(number, tuple(item)) for number, item in enumerate(_gathered(spark, pieces))]


def _gathered(spark: SparkSession, pieces: Sequence[Sized]) -> list[list[Sized]]:
    """Gather small pieces into tasks; there is one at least."""
    wanted = _task_bytes(spark, sum(piece.n_bytes for piece in pieces))
    gathered: list[list[Sized]] = [[]]
    n_bytes = 0
    for piece in pieces:
        if gathered[-1] and n_bytes + piece.n_bytes > wanted:
            gathered.append([])
            n_bytes = 0
        gathered[-1].append(piece)
        n_bytes += piece.n_bytes
    return gathered


def _inputs(tasks: Sequence[Task] | Sequence[SpanTask], format: str) -> dict[str, list[dict[str, Any]]]:
    """Say by the name of each part which rows it is of."""
    found = {}
    for task in tasks:
        if isinstance(task, SpanTask):
            places = [place for span in task.spans for place in span.places]
        else:
            places = [(piece, piece.start, piece.n_rows) for piece in task.pieces]
        found[part_name(task.number, format)] = [
            {"file": str(file.path), "first_row": first, "rows": n_rows} for file, first, n_rows in places
        ]
    return found


def _runs(surveys: Sequence[Survey], tasks: Sequence[SpanTask]) -> pa.Table:
    return pa.table(
        {
            "first": pa.array([survey.first for survey in surveys], pa.int64()),
            "last": pa.array([survey.last for survey in surveys], pa.int64()),
            "has_rows": pa.array([survey.has_rows for survey in surveys], pa.bool_()),
            "n": pa.array([span.n_rows for task in tasks for span in task.spans], pa.int64()),
            "may_move": pa.array([False] * len(surveys), pa.bool_()),
        }
    )


def _messages(surveys: Sequence[Survey]) -> pa.Table:
    return pa.concat_tables([MESSAGES.empty_table(), *(unpacked(survey.messages) for survey in surveys)])
