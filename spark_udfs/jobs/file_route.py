"""Decodes files by tasks, which read and write files with pyarrow. Spark only distributes and retries the tasks."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from pyspark.sql import SparkSession

from pgdecode.changes.replication_state import ReplicationState
from pgdecode.datasets.run import Run
from pgdecode.files.ordered_files import OrderFault, in_slot_order, session_text
from pgdecode.files.payload_file import PayloadFile
from pgdecode.partitions.partition_index import PartitionIndex
from pgdecode.partitions.source_index import SourceIndex, index_of_statistics, is_enough, unused_versions, with_used
from pgdecode.partitions.speculation import holds
from pgdecode.protocol.options import ChangeOptions
from spark_udfs.dataframes.control_index import in_session
from spark_udfs.dataframes.kept_changes import KeptFile
from spark_udfs.dataframes.partition_worker import PackedIndex
from spark_udfs.dataframes.stored_changes import StoredTask, stored_parts
from spark_udfs.jobs.file_tasks import (
    ChangeTask,
    MessageTask,
    SplitStatisticsResult,
    SplitStatisticsTask,
    SplitTask,
    Task,
    TaskOutput,
    UsedTask,
)
from spark_udfs.jobs.job_config import ChangeJob, MessageJob
from spark_udfs.jobs.output_committer import Committed, commit, merged
from spark_udfs.jobs.splits import (
    Sized,
    Split,
    controls_of,
    grouped,
    large_row_group,
    make_splits,
    pieces_of,
    speculation_of,
    split_previews,
    statistics_of,
    task_bytes,
)
from spark_udfs.runtime.tasks import parallelism, partition_bytes, run_tasks


@dataclass(frozen=True)
class JobOutput:
    """The output of a job that decodes changes.

    Attributes
    ----------
    index : PartitionIndex
        With the state after the run.
    rows : int
        Number of payloads.
    written : Committed
        Of all outputs.
    kept : list of KeptFile
        In the order of the input.
    session : str or None
        The last value of the session column, as text.
    """

    index: PartitionIndex
    rows: int
    written: Committed
    kept: list[KeptFile]
    session: str | None


def write_messages(spark: SparkSession, files: Sequence[PayloadFile], run: Run, config: MessageJob) -> Committed:
    """Decode files, at least one, to messages."""
    work = MessageTask(run.files, files[0].schema, config)
    # With "ordered", the stream state depends on earlier rows, so files are not split.
    tasks = _tasks(spark, files) if config.in_stream == "ordered" else cut(spark, files)
    parts = [part for found in run_tasks(spark, work, tasks) for part in found]
    return commit(run, parts, _inputs(tasks))


def write_changes(
    spark: SparkSession,
    files: Sequence[PayloadFile],
    position: str,
    config: ChangeJob,
    has_time: bool,
    run: Run,
    state: ReplicationState | None = None,
    session: str | None = None,
) -> JobOutput:
    """Decode files to changes and tables.

    If the footers of all files have their control messages, they give the index, and tasks decode with it at once.
    Otherwise tasks decode their splits speculatively with a preliminary index, and collect split statistics at the same
    time. Splits whose speculation was wrong are decoded again with the final index.

    Parameters
    ----------
    spark : SparkSession
    files : sequence of PayloadFile
        They have the position column and the session column.
    position : str
    config : ChangeJob
    has_time : bool
        As in `TableOutput`.
    run : Run
    state : ReplicationState, optional
        After the last run.
    session : str, optional
        The session column.

    Raises
    ------
    OrderFault
        If rows are not in the order of their positions, or if the files' ranges of positions overlap.
    KeyError
        If no message describes a table of the job.
    """
    pieces = in_slot_order([piece for piece in _pieces(spark, files) if piece.n_rows], position)
    groups = [group for group in _grouped(spark, pieces) if group]
    controls = controls_of(files, position)
    from_footers = [item for group in groups if (item := statistics_of(group, controls)) is not None]
    has_footers = bool(groups) and len(from_footers) == len(groups)
    previews = [] if has_footers else split_previews(groups, position)
    moves_heads = bool(previews) and session is None
    splits = make_splits(groups, previews) if moves_heads else [Split(tuple(group)) for group in groups]
    splits = splits or [Split(())]
    tasks = [SplitTask(number, split) for number, split in enumerate(splits)]
    options = config.options

    def work_by(index: PartitionIndex, counts: tuple[int, ...]) -> ChangeTask:
        outputs = config.outputs([SourceIndex(None, index, counts, may_move=False)], has_time, in_files=True)
        columns = tuple(config.columns(output) for output in outputs)
        packed = PackedIndex.of(None, index, counts)
        return ChangeTask(run.files, config.folders, tuple(outputs), columns, packed, position, options, config.format)

    # With drop_duplicates, a partition depends on all commits before it.
    may_speculate = moves_heads and not options.drop_duplicates
    speculated = speculation_of(previews, config.catalog, state) if may_speculate else None
    try:
        speculative = None if speculated is None else work_by(speculated, tuple(split.n_rows for split in splits))
    except (KeyError, ValueError):
        # A later message may describe the table or the column.
        speculative = None
    with_head = options.start == "anywhere"
    first_pass = SplitStatisticsTask(position, session, speculative is None, with_head, speculative)
    of_footers = [SplitStatisticsResult(item) for item in from_footers]
    found = of_footers if has_footers else run_tasks(spark, first_pass, tasks)
    _check_order(tasks, found, position)
    in_full = SplitStatisticsTask(position, session, True, with_head)
    indexed, state, last_session = _indexed(spark, tasks, found, in_full, config, state, run.state.session)
    index = indexed.index
    work = work_by(index, indexed.counts)
    done = [result.output for result in found]
    if speculated is not None and speculative is not None:
        done = _confirmed(done, speculated, speculative, index, work)
    rejected = [task for task, output in zip(tasks, done, strict=True) if output is None]
    stored = _stored_tasks(state, index, options, len(tasks))
    last: list[SplitTask | StoredTask] = [*rejected, *stored]
    rest = iter(run_tasks(spark, work, last) if last else [])
    complete = [next(rest) if output is None else output for output in done]
    complete += rest
    inputs = {**_inputs(tasks), **{task.number: task.places for task in stored}}
    outputs = [
        commit(run, [output.parts[number] for output in complete], inputs) for number in range(len(config.names))
    ]
    bad_rows: Counter[str] = Counter()
    for output in outputs:
        bad_rows.update(output.bad_rows)
    written = Committed(
        [file for output in outputs for file in output.files],
        dict(sorted(bad_rows.items())),
        merged(task for output in outputs for task in output.tasks),
    )
    kept = [output.kept for output in complete if output.kept is not None]
    return JobOutput(index, sum(indexed.counts), written, kept, last_session)


def _stored_tasks(
    state: ReplicationState | None, index: PartitionIndex, options: ChangeOptions, first: int
) -> list[StoredTask]:
    """Make the tasks for the changes that earlier runs have stored. Their numbers begin with `first`."""
    return [StoredTask(first + number, parts) for number, parts in enumerate(stored_parts(state, index, options))]


def _indexed(
    spark: SparkSession,
    tasks: Sequence[SplitTask],
    found: Sequence[SplitStatisticsResult],
    in_full: SplitStatisticsTask,
    config: ChangeJob,
    state: ReplicationState | None,
    session_before: str | None,
) -> tuple[SourceIndex, ReplicationState | None, str | None]:
    """Make the final index from the split statistics. Collect more messages first if they are not enough.

    Return also the state before the run, and the last session.
    """
    statistics = [item.statistics for item in found]
    sessions = [partition.session for item in statistics for partition in item.partitions]
    has_sessions = in_full.session is not None or any(item is not None for item in sessions)
    if has_sessions and sessions:
        state = in_session(state, session_before, sessions[0])
    # The state after the run needs the shapes of all tables.
    known = frozenset() if state is None else frozenset(state.relations.in_shape)
    indexed = index_of_statistics(statistics, config.catalog, config.options, state)
    is_full = all(split_statistics.in_full for split_statistics in statistics)
    is_plain = all(split_statistics.is_plain for split_statistics in statistics)
    is_simple = is_plain and (state is None or not state.streamed)
    if not is_full and not (is_simple and is_enough(indexed, None, known)):
        short = [task for task, item in zip(tasks, statistics, strict=True) if not item.in_full]
        rest = iter(run_tasks(spark, in_full, short))
        statistics = [item if item.in_full else next(rest).statistics for item in statistics]
        indexed = index_of_statistics(statistics, config.catalog, config.options, state)
    uncertain = unused_versions(indexed.index, None)
    if uncertain:
        plain = PackedIndex.of(None, indexed.index, indexed.counts)
        work = UsedTask(in_full.position, plain, uncertain, config.options)
        stored = _stored_tasks(state, indexed.index, config.options, 0)
        all_tasks: list[SplitTask | StoredTask] = [*tasks, *stored]
        used = {number for item in run_tasks(spark, work, all_tasks) for number in item}
        indexed = replace(indexed, index=with_used(indexed.index, used))
    return indexed, state, session_text(sessions[-1]) if has_sessions and sessions else None


def _check_order(tasks: Sequence[SplitTask], found: Sequence[SplitStatisticsResult], position: str) -> None:
    """Check that the positions of each split come after those of the splits before."""
    ends = [
        (task.split, item.statistics.partitions[0].first, item.statistics.partitions[-1].last)
        for task, item in zip(tasks, found, strict=True)
        if item.statistics.partitions
    ]
    for (before, _, last), (split, first, _) in pairwise(ends):
        if last >= first:
            raise OrderFault(
                f"{split.pieces[0].path}: begins at {position} {first}, but {before.pieces[-1].path} ends at {last}"
            )


def _confirmed(
    done: Sequence[TaskOutput | None],
    speculated: PartitionIndex,
    speculative: ChangeTask,
    index: PartitionIndex,
    work: ChangeTask,
) -> list[TaskOutput | None]:
    """Replace the outputs of tasks whose speculation was wrong by None."""
    if [item.apart_from_numbers for item in speculative.outputs] != [item.apart_from_numbers for item in work.outputs]:
        return [None] * len(done)
    confirmed: list[TaskOutput | None] = []
    # Changes that were kept have the numbers of versions.
    same_numbers = list(speculated.catalog) == list(index.catalog)
    for number, output in enumerate(done):
        is_right = holds(speculated, index, number)
        if output is not None and output.kept is not None and not same_numbers:
            is_right = False
        confirmed.append(output if is_right else None)
    return confirmed


def cut(spark: SparkSession, files: Sequence[PayloadFile]) -> list[Task]:
    """Divide files into tasks, between row groups."""
    return _tasks(spark, _pieces(spark, files))


def _task_bytes(spark: SparkSession, n_bytes: int) -> int:
    return task_bytes(n_bytes, partition_bytes(spark), parallelism(spark))


def _pieces(spark: SparkSession, files: Sequence[PayloadFile]) -> list[PayloadFile]:
    large = large_row_group(files)
    if large is not None:
        warnings.warn(large, RuntimeWarning, stacklevel=2)
    return pieces_of(files, _task_bytes(spark, sum(file.n_bytes for file in files)))


def _tasks(spark: SparkSession, pieces: Sequence[PayloadFile]) -> list[Task]:
    return [Task(number, tuple(item)) for number, item in enumerate(_grouped(spark, pieces))]


def _grouped(spark: SparkSession, pieces: Sequence[Sized]) -> list[list[Sized]]:
    return grouped(pieces, _task_bytes(spark, sum(piece.n_bytes for piece in pieces)))


def _inputs(tasks: Sequence[Task] | Sequence[SplitTask]) -> dict[int, list[dict[str, Any]]]:
    """List the input rows of each task, by its number."""
    found = {}
    for task in tasks:
        if isinstance(task, SplitTask):
            places = task.split.places
        else:
            places = [(piece, piece.start, piece.n_rows) for piece in task.pieces]
        found[task.number] = [
            {"file": str(file.path), "first_row": first, "rows": n_rows} for file, first, n_rows in places
        ]
    return found
