"""The engine of `decode_files`: tasks read and write files with pyarrow. Spark distributes and retries them."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal

import pyarrow as pa
from pyspark.sql import SparkSession

from pgdecode.changes.replication_state import ReplicationState
from pgdecode.changes.stored_state import replication_of
from pgdecode.datasets.errors import RunError
from pgdecode.datasets.run import Run
from pgdecode.files.file_metadata import catalog_of, with_footers
from pgdecode.files.ordered_files import OrderedFiles, OrderFault, in_slot_order, interruptions, session_text
from pgdecode.files.payload_file import CAPTURE_SESSION, PayloadFile
from pgdecode.files.payload_files import payload_files
from pgdecode.jobs.decode_run import CHANGES, DecodeJob, RunOutput, SequenceEnd
from pgdecode.jobs.new_input import NewInput
from pgdecode.partitions.partition_index import PartitionIndex
from pgdecode.partitions.source_index import SourceIndex, index_of_statistics, is_enough, unused_versions, with_used
from pgdecode.partitions.speculation import holds
from pgdecode.storage.errors import PathError
from pgdecode.types.user_types import UserType
from spark_udfs.dataframes.control_index import in_session
from spark_udfs.dataframes.kept_changes import add_kept
from spark_udfs.dataframes.partition_worker import PackedIndex
from spark_udfs.dataframes.stored_changes import StoredTask, stored_parts, used_of_stored
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
from spark_udfs.runtime.session import local_session
from spark_udfs.runtime.tasks import parallelism, partition_bytes, run_tasks
from spark_udfs.schema.spark_types import session_has_time


class SparkEngine:
    """Decodes by tasks of Spark. It checks the options of the job.

    Parameters
    ----------
    spark : SparkSession or None
        None: a local session is started.
    job : DecodeJob
    """

    name: Literal["spark"] = "spark"

    def __init__(self, spark: SparkSession | None, job: DecodeJob) -> None:
        self._spark = spark
        self._config: MessageJob | ChangeJob
        if job.is_of_messages:
            self._config = MessageJob(**vars(job.message_options), keep=job.keep, format=job.format)
        else:
            tables = tuple(None if name == CHANGES else name for name in job.what)
            self._config = ChangeJob(tables, job.fields, job.options, job.catalog, job.format, job.in_folders)

    def _session(self) -> AbstractContextManager[SparkSession]:
        return nullcontext(self._spark) if self._spark is not None else local_session()

    def messages(self, job: DecodeJob, run: Run, found: NewInput) -> RunOutput:
        """Decode files to messages, as `Engine.messages`."""
        assert isinstance(self._config, MessageJob)
        _check_parquet(job, found)
        for file, (_, n_before) in zip(found.files, found.selection.new, strict=True):
            if n_before and job.in_stream == "ordered":
                raise RunError(f'{file.path}: has grown, but on Spark, in_stream="ordered" decodes whole files')
        with self._session() as spark:
            # Without rows, the first file still has the columns of the output.
            files = found.files or payload_files(job.source, job.payload, job.keep, job.unwrap)[:1]
            return RunOutput(*write_messages(spark, files, run, self._config))

    def changes(self, job: DecodeJob, run: Run, found: NewInput) -> RunOutput:
        """Decode files to changes and tables, as `Engine.changes`."""
        assert isinstance(self._config, ChangeJob)
        _check_parquet(job, found)
        before = replication_of(run.state)
        position, files, session = _columns(job, found.sequence, before)
        options, types = with_footers(job.options, files, [UserType(*item) for item in run.state.user_types])
        config = replace(self._config, options=options, catalog=job.catalog or catalog_of(files))
        state = None if run.last is None else before
        try:
            with self._session() as spark:
                has_time = session_has_time(spark)
                written, index, last_session = write_changes(
                    spark, files, position, config, has_time, run, state, session
                )
        except KeyError as error:
            raise PathError(f"{job.source}: {error.args[0]}") from error
        partitions = index.partitions
        first, last = (partitions[0].first, partitions[-1].last) if partitions else (None, None)
        captured = files[-1].captured if files else None
        sessions = (last_session, None if captured is None else session_text(captured.session), run.state.session)
        end = SequenceEnd(
            index.end,
            first,
            last,
            index.n_skipped,
            [(item.oid, item.name, item.declaration) for item in types],
            next((item for item in sessions if item is not None), None),
        )
        return RunOutput(*written, end=end)


def _check_parquet(job: DecodeJob, found: NewInput) -> None:
    if any(file.converted for file in found.files):
        raise PathError(f"{job.source}: not a Parquet file; on Spark, payloads are in Parquet")


def _columns(
    job: DecodeJob, ordered: OrderedFiles, before: ReplicationState
) -> tuple[str, Sequence[PayloadFile], str | None]:
    """Return the position column, the files with the columns to read, and the session column.

    Sessions of captured files matter only if one of them ended with an open transaction.
    """
    if ordered.position is None:
        raise PathError(f"{job.source}: needs a column with positions, because rows on Spark have no order")
    files, session = ordered.files, ordered.session
    if files and session == CAPTURE_SESSION and not before.undecided and not interruptions(files):
        kept = tuple(name for name in files[0].keep if name != CAPTURE_SESSION)
        schema = pa.schema([files[0].schema.field(name) for name in kept])
        files, session = tuple(replace(file, keep=kept, schema=schema) for file in files), None
    return ordered.position, files, session


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
) -> tuple[Committed, PartitionIndex, str | None]:
    """Decode files to changes and tables. Return also the index, and the last value of the session column, as text.

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
    of_footers = [SplitStatisticsResult(item) for item in from_footers]
    first_pass = SplitStatisticsTask(position, session, speculative)
    found = of_footers if has_footers else run_tasks(spark, first_pass, tasks)
    _check_order(tasks, found, position)
    in_full = SplitStatisticsTask(position, session)
    indexed, state, last_session = _indexed(spark, tasks, found, in_full, config, state, run.state.session)
    index = indexed.index
    work = work_by(index, indexed.counts)
    done = [result.output for result in found]
    if speculated is not None and speculative is not None:
        done = _confirmed(done, speculated, speculative, index, work)
    rejected = [task for task, output in zip(tasks, done, strict=True) if output is None]
    stored = [StoredTask(number, parts) for number, parts in enumerate(stored_parts(state, index, options), len(tasks))]
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
    add_kept(index.end, [output.kept for output in complete if output.kept is not None])
    return written, index, last_session


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
    known = frozenset() if state is None else frozenset(state.relations.in_layout)
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
        index = indexed.index
        work = UsedTask(in_full.position, PackedIndex.of(None, index, indexed.counts), uncertain, config.options)
        stored = stored_parts(state, index, config.options)
        used = used_of_stored(stored, index, uncertain, config.options).union(*run_tasks(spark, work, tasks))
        indexed = replace(indexed, index=with_used(index, used))
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
