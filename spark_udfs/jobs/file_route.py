"""Jobs whose tasks read and write files themselves: Spark deals out the tasks, and runs them again where they fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession

from pgdecode.files.payload_files import PayloadFile
from pgdecode.partitions.partition_index import PartitionIndex
from pgdecode.partitions.speculation import holds
from spark_udfs.dataframes.changes import tables_of
from spark_udfs.dataframes.control_index import SourceIndex, is_enough, source_index, unused_versions, with_used
from spark_udfs.dataframes.partition_worker import JsonIndex
from spark_udfs.jobs.file_tasks import (
    ChangeTask,
    MessageTask,
    SplitStatisticsResult,
    SplitStatisticsTask,
    SplitTask,
    Task,
    UsedTask,
)
from spark_udfs.jobs.job_config import ChangeJob, MessageJob
from spark_udfs.jobs.output_committer import DecodedFiles, Part, attempts, commit, part_name
from spark_udfs.jobs.split_statistics import SplitStatistics
from spark_udfs.jobs.splits import MESSAGES, Split, ordered, spans, speculation_of, split_previews, unpacked

# Tasks of less are not worth their start; and some more than there are cores, so that all end at about the same time.
_LEAST_TASK_BYTES = 8 << 20
_TASKS_PER_CORE = 2

Item = TypeVar("Item")
Sized = TypeVar("Sized", PayloadFile, Split)
Result = TypeVar("Result")


def write_messages(spark: SparkSession, files: Sequence[PayloadFile], folder: Path, asked: MessageJob) -> DecodedFiles:
    """Decode files to messages.

    Parameters
    ----------
    spark : SparkSession
    files : sequence of PayloadFile
        At least one.
    folder : Path
        To be made.
    asked : MessageJob
    """
    work = MessageTask(folder, files[0].schema, asked.fields, asked.in_stream, asked.mode, asked.empty, asked.format)
    # Where order tells the stream state, a task goes from the first row of a file to its last.
    tasks = _tasks(spark, files) if asked.in_stream == "ordered" else cut(spark, files)
    with attempts(folder):
        parts = [part for found in run_tasks(spark, work, tasks) for part in found]
        return commit(folder, parts, _inputs(tasks, asked.format))


def write_changes(
    spark: SparkSession,
    files: Sequence[PayloadFile],
    position: str,
    asked: ChangeJob,
    has_time: bool,
    folders: Mapping[str | None, Path],
    session: str | None = None,
) -> DecodedFiles | None:
    """Decode files to changes and tables.

    Tasks decode by a forecast of what transactions and relations let them know, and look through the payloads for what
    is true of them meanwhile. What was decoded by a wrong forecast is decoded again.

    Parameters
    ----------
    spark : SparkSession
    files : sequence of PayloadFile
        With the column of positions, and that of sessions.
    position : str
    asked : ChangeJob
    has_time : bool
        As of `TableOutput`.
    folders : mapping
        To be made, for what was asked.
    session : str, optional
        The column that tells connections apart.

    Returns
    -------
    DecodedFiles or None
        None where rows do not stand in the order of their positions, or files' ranges of positions overlap. Nothing
        is written then.

    Raises
    ------
    KeyError
        If nothing describes a table that was asked for.
    """
    pieces = [piece for piece in _pieces(spark, files) if piece.n_rows]
    looks = split_previews(pieces, position)
    if looks is None:
        return None
    pieces, looks = ordered(pieces, looks)
    cut_spans = spans(pieces, looks) if session is None else [Split(piece) for piece in pieces]
    tasks = [SplitTask(number, tuple(item)) for number, item in enumerate(_gathered(spark, cut_spans))]
    places = tuple(folders[name] for name in asked.names)

    def work_by(index: PartitionIndex, counts: tuple[int, ...]) -> ChangeTask:
        products = asked.products([SourceIndex(None, index, counts, may_move=False)], has_time, in_files=True)
        columns = tuple(asked.columns(product) for product in products)
        plain = JsonIndex.of(None, index, counts)
        return ChangeTask(places, tuple(products), columns, plain, position, asked.options, asked.format)

    told = speculation_of(looks, asked.catalog) if session is None else None
    try:
        early = None if told is None else work_by(told, tuple(span.n_rows for span in cut_spans))
    except (KeyError, ValueError):
        # The table, or a column that was asked for, may be described later.
        early = None
    with_head = asked.options.start == "anywhere"
    with ExitStack() as stack:
        for place in places:
            stack.enter_context(attempts(place))
        found = run_tasks(spark, SplitStatisticsTask(position, session, told is None, with_head, early), tasks)
        statistics = _in_order(found)
        if statistics is None:
            decoded = None
        else:
            indexed = _indexed(spark, tasks, found, SplitStatisticsTask(position, session, True, with_head), asked)
            index = indexed.index
            work = work_by(index, indexed.counts)
            done = [surveyed.parts for surveyed in found]
            if told is not None and early is not None:
                done = _standing(tasks, done, told, early, index, work)
            again = [task for task, parts in zip(tasks, done, strict=True) if parts is None]
            rest = iter(run_tasks(spark, work, again) if again else [])
            parts = [next(rest) if parts is None else parts for parts in done]
            inputs = _inputs(tasks, asked.format)
            bad_rows: Counter[str] = Counter()
            for number, place in enumerate(places):
                of_output = [of_task[number] for of_task in parts]
                bad_rows.update(commit(place, of_output, inputs, index.n_skipped, index.n_undecided).bad_rows)
            decoded = DecodedFiles(dict(sorted(bad_rows.items())), index.n_skipped, index.n_undecided)
    if decoded is None:
        for place in places:
            place.rmdir()
    return decoded


def _indexed(
    spark: SparkSession,
    tasks: Sequence[SplitTask],
    found: Sequence[SplitStatisticsResult],
    in_full: SplitStatisticsTask,
    asked: ChangeJob,
) -> SourceIndex:
    """Fold what tasks have found, once it is enough."""
    statistics = [split_statistics for item in found for split_statistics in item.statistics or ()]
    tables = tables_of(asked.options, *(name for name in asked.names if name is not None))
    indexed = _folded(statistics, asked)
    is_full = all(split_statistics.in_full for split_statistics in statistics)
    is_plain = all(split_statistics.is_plain for split_statistics in statistics)
    if not is_full and not (is_plain and is_enough(indexed, tables)):
        short = [
            task
            for task, item in zip(tasks, found, strict=True)
            if not all(split_statistics.in_full for split_statistics in item.statistics or ())
        ]
        rest = iter(run_tasks(spark, in_full, short))
        statistics = []
        for item in found:
            of_task = item.statistics or []
            statistics += (
                of_task
                if all(split_statistics.in_full for split_statistics in of_task)
                else next(rest).statistics or []
            )
        indexed = _folded(statistics, asked)
    doubtful = unused_versions(indexed.index, tables)
    if doubtful:
        plain = JsonIndex.of(None, indexed.index, indexed.counts)
        work = UsedTask(in_full.position, plain, doubtful, asked.options)
        used = {number for item in run_tasks(spark, work, tasks) for number in item}
        indexed = replace(indexed, index=with_used(indexed.index, used))
    return indexed


def _folded(statistics: Sequence[SplitStatistics], asked: ChangeJob) -> SourceIndex:
    in_full = all(split_statistics.in_full for split_statistics in statistics)
    return source_index(None, _runs(statistics), _messages(statistics), asked.catalog, asked.options, in_full=in_full)


def _in_order(found: Sequence[SplitStatisticsResult]) -> list[SplitStatistics] | None:
    """Surveys of all spans; None where positions do not ascend."""
    statistics: list[SplitStatistics] = []
    for item in found:
        if item.statistics is None:
            return None
        statistics += item.statistics
    runs = [run for split_statistics in statistics for run in split_statistics.runs]
    return statistics if all(before.last < after.first for before, after in pairwise(runs)) else None


def _standing(
    tasks: Sequence[SplitTask],
    done: Sequence[list[Part] | None],
    told: PartitionIndex,
    early: ChangeTask,
    index: PartitionIndex,
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


def _inputs(tasks: Sequence[Task] | Sequence[SplitTask], format: str) -> dict[str, list[dict[str, Any]]]:
    """Say by the name of each part which rows it is of."""
    found = {}
    for task in tasks:
        if isinstance(task, SplitTask):
            places = [place for span in task.spans for place in span.places]
        else:
            places = [(piece, piece.start, piece.n_rows) for piece in task.pieces]
        found[part_name(task.number, format)] = [
            {"file": str(file.path), "first_row": first, "rows": n_rows} for file, first, n_rows in places
        ]
    return found


def _runs(statistics: Sequence[SplitStatistics]) -> pa.Table:
    runs = [run for split_statistics in statistics for run in split_statistics.runs]
    columns = {
        "first": pa.array([run.first for run in runs], pa.int64()),
        "last": pa.array([run.last for run in runs], pa.int64()),
        "has_rows": pa.array([run.has_rows for run in runs], pa.bool_()),
        "n": pa.array([run.n_rows for run in runs], pa.int64()),
        "may_move": pa.array([False] * len(runs), pa.bool_()),
    }
    if any(run.session is not None for run in runs):
        # Numbers in their place: a column may be of any type.
        numbers: dict[Any, int] = {}
        columns["session"] = pa.array([numbers.setdefault(run.session, len(numbers)) for run in runs], pa.int64())
    return pa.table(columns)


def _messages(statistics: Sequence[SplitStatistics]) -> pa.Table:
    return pa.concat_tables(
        [MESSAGES.empty_table(), *(unpacked(split_statistics.messages) for split_statistics in statistics)]
    )
