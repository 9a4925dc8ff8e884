"""The tasks of `decode_files`: they read row groups, decode them, and write parts of the output.

Only results pass through Spark. A task needs memory for a batch of payloads and a row group of the output.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple

import pyarrow as pa

from pgdecode.changes.committed_changes import ChangeSlice, values_of
from pgdecode.changes.record_batches import Builder
from pgdecode.datasets.new_files import NewFiles
from pgdecode.files.envelope_batches import DecodedBatch, decoded_batches, joined_batches
from pgdecode.files.ordered_files import OrderFault
from pgdecode.files.payload_file import FileFault, PayloadFile
from pgdecode.files.writers import message_layout
from pgdecode.jobs.message_export import decoded_fields, message_schema, with_kept_columns
from pgdecode.partitions.partition_decoder import used_versions
from pgdecode.partitions.partition_index import slices
from pgdecode.partitions.split_statistics import SplitStatistics, SplitStatisticsReader
from pgdecode.protocol.errors import DecodeError
from pgdecode.protocol.options import ChangeOptions, Format
from pgdecode.relations.version_tracker import SchemaChanged
from spark_udfs.dataframes.kept_changes import KeptChanges, KeptFile
from spark_udfs.dataframes.outputs import Output
from spark_udfs.dataframes.partition_worker import DecodedPartition, PackedIndex, RowsMoved
from spark_udfs.dataframes.stored_changes import StoredTask, decode_stored
from spark_udfs.jobs.job_config import MessageJob
from spark_udfs.jobs.output_committer import Part, new_part
from spark_udfs.jobs.splits import Batches, Split
from spark_udfs.jobs.task_times import TaskTimes
from spark_udfs.runtime.worker import WorkerFunction, enter_task


class Task(NamedTuple):
    """The number of a task, and its pieces of files in the order of the output."""

    number: int
    pieces: tuple[PayloadFile, ...]


@dataclass(frozen=True)
class MessageTask(WorkerFunction):
    """Decodes pieces to messages.

    Attributes
    ----------
    files : NewFiles or None
        Of the run; None for a task that does not write.
    kept : pa.Schema
        The `keep` columns with their types in the output.
    config : MessageJob
    """

    files: NewFiles | None
    kept: pa.Schema
    config: MessageJob

    def __call__(self, task: Task) -> list[Part]:
        """Write the part of a task."""
        enter_task()
        assert self.files is not None
        times = TaskTimes()
        parts: list[Part] = []
        layout = message_layout(self.kept.names, self.config.fields)
        bad_rows: Counter[str] = Counter()
        of_output = (self.files, "", task.number, self.config.format, self._schema, layout, 1)
        with new_part(*of_output, parts, bad_rows) as write:
            for decoded, batch in self.decoded(task.pieces):
                bad_rows.update(decoded.bad_rows)
                times.decode_seconds += decoded.seconds
                write(batch)
        return [times.noted(part) for part in parts]

    def decoded(self, pieces: Sequence[PayloadFile]) -> Iterator[tuple[DecodedBatch, pa.RecordBatch]]:
        """Decode pieces. Yield batches, each with its record batch of the `keep` columns and the envelope.

        Raises
        ------
        FileFault
            As in `decoded_batches`, and if a `keep` column has another type in another file.
        """
        schema = self._schema
        options = replace(self.config, fields=self._wanted)
        are_joined = options.in_stream != "ordered" and all(piece.schema == self.kept for piece in pieces)
        for piece, batch in (joined_batches if are_joined else decoded_batches)(pieces, options):
            yield batch, self._with_kept_types(piece, batch, schema)

    @property
    def _wanted(self) -> Sequence[str]:
        return decoded_fields(self.config.fields, self.config.format)

    @property
    def _schema(self) -> pa.Schema:
        return pa.schema([*self.kept, *message_schema(self._wanted)])

    def _with_kept_types(self, piece: PayloadFile, batch: DecodedBatch, schema: pa.Schema) -> pa.RecordBatch:
        source = batch.source
        for field in self.kept:
            column = source.column(field.name)
            if column.type == field.type:
                continue
            try:
                converted = column.cast(field.type)
            except pa.ArrowException:
                detail = (
                    f"column {field.name!r} is {column.type} and does not fit {field.type}, its type in another file"
                )
                raise FileFault(f"{piece.path}: {detail}") from None
            source = source.set_column(source.schema.get_field_index(field.name), field.name, converted)
        return with_kept_columns(replace(batch, source=source), self.kept.names, schema)


class SplitTask(NamedTuple):
    """The number of a task, and its split."""

    number: int
    split: Split


class TaskOutput(NamedTuple):
    """The output of a task.

    Attributes
    ----------
    parts : list of Part
        One for each output.
    kept : KeptFile or None
        The changes of transactions without an outcome.
    """

    parts: list[Part]
    kept: KeptFile | None = None


@dataclass(frozen=True)
class ChangeTask(WorkerFunction):
    """Decodes splits to changes and tables.

    Attributes
    ----------
    files : NewFiles
        Of the run.
    folders : tuple of str
        Of the outputs, below the target; empty for the target itself.
    outputs : tuple of Output
    columns : tuple of tuple of str
        The columns to write of each output.
    index : PackedIndex
        Of all partitions.
    position : str
    options : ChangeOptions
    format : str
    """

    files: NewFiles
    folders: tuple[str, ...]
    outputs: tuple[Output, ...]
    columns: tuple[tuple[str, ...], ...]
    index: PackedIndex
    position: str
    options: ChangeOptions
    format: Format

    def __call__(self, task: SplitTask | StoredTask) -> TaskOutput:
        """Write the task's part of each output."""
        enter_task()
        return self._write_stored(task) if isinstance(task, StoredTask) else self.write(task)

    def write(self, task: SplitTask, reader: SplitStatisticsReader | None = None) -> TaskOutput:
        """Write the task's part of each output. With a reader, decode speculatively and collect split statistics.

        Raises
        ------
        SchemaChanged
            If the speculation is wrong.
        """
        builders = [output.builder(None, self.index.unpacked, self.options) for output in self.outputs]
        if reader is not None:
            builders = [SpeculativeDecoding(builder) for builder in builders]
        kept = KeptChanges()
        times = TaskTimes()
        with (
            self._writers(task.number, times) as (written, bad_rows, write),
            as_file_fault(task.split, self.position) if reader is None else nullcontext(),
        ):
            rows = times.reading(task.split.batches(self.position))
            for number, batch in decode_split(rows, self.index, builders, self.options, bad_rows, reader, kept):
                write(number, batch)
        return TaskOutput(written, kept.write(self.files, task.number))

    def _write_stored(self, task: StoredTask) -> TaskOutput:
        """Write the task's part of each output, from changes that earlier runs have stored."""
        builders = [output.builder(None, self.index.unpacked, self.options) for output in self.outputs]
        with self._writers(task.number, TaskTimes()) as (written, bad_rows, write):
            try:
                for number, batch in decode_stored(task.parts, self.index, builders, self.options, bad_rows):
                    write(number, batch)
            except DecodeError as error:
                where = "" if error.position is None else f"position {error.position}: "
                raise FileFault(f"payloads of an earlier run: {where}{error.cell}") from error
        return TaskOutput(written)

    @contextmanager
    def _writers(
        self, number: int, times: TaskTimes
    ) -> Iterator[tuple[list[Part], list[Counter[str]], Callable[[int, pa.RecordBatch], None]]]:
        """Open the part of each output. The first list has the parts at the end."""
        written: list[Part] = []
        parts_by_output: list[list[Part]] = [[] for _ in self.outputs]
        bad_rows: list[Counter[str]] = [Counter() for _ in self.outputs]
        places = zip(self.folders, self.outputs, self.columns, parts_by_output, bad_rows, strict=True)

        def write(output: int, batch: pa.RecordBatch) -> None:
            with times.of_io():
                writers[output](batch.select(list(self.columns[output])))

        with ExitStack() as stack:
            writers = []
            for folder, output, names, parts, counts in places:
                schema = pa.schema([output.schema.field(name) for name in names])
                of_output = (self.files, folder, number, self.format, schema, output.layout, len(parts_by_output))
                part = new_part(*of_output, parts, counts)
                writers.append(stack.enter_context(part))
            yield written, bad_rows, write
            with times.of_io():
                stack.close()
        written += [times.noted(part) for parts in parts_by_output for part in parts]


def decode_split(
    batches: Batches,
    plain: PackedIndex,
    builders: Sequence[Builder],
    options: ChangeOptions,
    bad_rows: list[Counter[str]] | None = None,
    reader: SplitStatisticsReader | None = None,
    kept: KeptChanges | None = None,
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Decode the rows of a split with several builders. Yield each batch with the number of its builder.

    Changes of transactions without an outcome are added to `kept`.

    Raises
    ------
    RowsMoved
        If the rows differ from those that were indexed.
    DecodeError
        In FAILFAST mode, with its position.
    """
    index = plain.unpacked
    on_assembled = None if reader is None else reader.add_assembled
    partition = None
    for positions, payloads in batches:
        try:
            found = list(slices(index, values_of(positions)))
        except LookupError as error:
            raise RowsMoved(str(error)) from None
        for number, start, end in found:
            if partition is None or partition.number != number:
                if partition is not None:
                    yield from partition.finish()
                partition = DecodedPartition(number, plain, builders, options, on_assembled, bad_rows, kept)
            yield from partition.add(positions.slice(start, end - start), payloads.slice(start, end - start))
    if partition is not None:
        yield from partition.finish()


@contextmanager
def as_file_fault(split: Split, position: str) -> Iterator[None]:
    """Convert a DecodeError to a FileFault with the row in the file, which is found by the position."""
    try:
        yield
    except DecodeError as error:
        file, row, _ = split.places[0]
        path, where = file.path, f"rows from {row}"
        if error.position is not None:
            found = split.row_of(error.position, position)
            where = f"position {error.position}"
            if found is not None:
                path, where = found[0].path, f"row {found[1]}, {where}"
        raise FileFault(f"{path}: {where}: {error.cell}") from error
    except (RowsMoved, OrderFault) as error:
        names = list(dict.fromkeys(str(piece) for piece in split.pieces))
        which = names[0] if len(names) == 1 else f"one of the files from {names[0]} to {names[-1]}"
        raise FileFault(f"{which}: has changed while it was decoded") from error


class SplitStatisticsResult(NamedTuple):
    """The result of a `SplitStatisticsTask`.

    Attributes
    ----------
    statistics : SplitStatistics
    output : TaskOutput or None
        The output of speculative decoding, if that was requested and succeeded.
    """

    statistics: SplitStatistics
    output: TaskOutput | None = None


@dataclass(frozen=True)
class SplitStatisticsTask(WorkerFunction):
    """Collects the statistics of a split, and decodes it speculatively at the same time.

    Attributes
    ----------
    position : str
    session : str or None
        The session column.
    work : ChangeTask or None
        The task for speculative decoding. If it fails, or without it, statistics are collected in full.
    """

    position: str
    session: str | None
    work: ChangeTask | None = None

    def __call__(self, task: SplitTask) -> SplitStatisticsResult:
        """Collect the statistics of a task's split.

        Raises
        ------
        OrderFault
            If rows are not in the order of their positions.
        """
        enter_task()
        if self.work is not None:
            reader = SplitStatisticsReader(in_full=False, with_head=self.work.options.start == "anywhere")
            # Errors of payloads are reported when the split is decoded again with the final index.
            with suppress(DecodeError, RowsMoved, SchemaChanged):
                output = self.work.write(task, reader)
                return SplitStatisticsResult(reader.split_statistics(), output)
        reader = SplitStatisticsReader(in_full=True)
        if self.session is None:
            for positions, payloads in task.split.batches(self.position):
                reader.add(positions, payloads)
        else:
            for positions, payloads, sessions in task.split.batches_with(self.position, self.session):
                reader.add(positions, payloads, sessions)
        return SplitStatisticsResult(reader.split_statistics())


class SpeculativeDecoding:
    """Builds batches speculatively: only if all changes have a version of their relation."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.error = builder.error
        self.numbers = builder.numbers

    def batch(self, change_slice: ChangeSlice) -> pa.RecordBatch:
        """Build a batch.

        Raises
        ------
        SchemaChanged
            If a relation is unknown, or a payload is bad, because it may be a Relation message.
        """
        if not change_slice.changes.is_known:
            raise SchemaChanged
        return self.builder.batch(change_slice)


@dataclass(frozen=True)
class UsedTask(WorkerFunction):
    """Finds which of some versions of relations the committed changes use.

    Attributes
    ----------
    position : str
    index : PackedIndex
    among : frozenset of int
        Numbers of the versions.
    options : ChangeOptions
    """

    position: str
    index: PackedIndex
    among: frozenset[int]
    options: ChangeOptions

    def __call__(self, task: SplitTask) -> set[int]:
        """Find the versions that the changes of a task use."""
        enter_task()
        index = self.index.unpacked
        found: set[int] = set()

        def pieces() -> Iterator[tuple[int, tuple[pa.Array, pa.Array]]]:
            for positions, payloads in task.split.batches(self.position):
                for number, start, end in slices(index, values_of(positions)):
                    yield number, (payloads.slice(start, end - start), positions.slice(start, end - start))

        for number, of_run in groupby(pieces(), lambda piece: piece[0]):
            found |= used_versions(index, (piece for _, piece in of_run), number, self.among, self.options)
        return found
