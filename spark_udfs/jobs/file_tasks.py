"""What Spark's Python workers do with files themselves: read row groups, decode them, and write a part of the output.

Nothing but what became of it passes through Spark. A task holds a batch of payloads and a row group of the output.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

import pgdecode
from pgdecode.changes.committed_changes import values_of
from pgdecode.changes.record_batches import Builder
from pgdecode.envelope.schema import envelope_schema
from pgdecode.files.envelope_batches import DecodedBatch, decoded_batches
from pgdecode.files.envelope_text import fields_to_decode
from pgdecode.files.message_export import with_kept_columns
from pgdecode.files.ordered_files import OrderFault
from pgdecode.files.payload_files import FileFault, PayloadFile
from pgdecode.files.writers import message_layout
from pgdecode.partitions.partition_decoder import used_versions
from pgdecode.partitions.partition_index import slices
from pgdecode.protocol.errors import DecodeError
from pgdecode.protocol.options import ChangeOptions, Empty, Format, InStream, Mode
from pgdecode.relations.version_tracker import SchemaChanged
from spark_udfs.dataframes.outputs import Output
from spark_udfs.dataframes.partition_worker import DecodedPartition, JsonIndex, RowsMoved
from spark_udfs.jobs.output_committer import Part, attempted
from spark_udfs.jobs.split_statistics import SpeculativeDecoding, SplitStatistics, SplitStatisticsReader
from spark_udfs.jobs.splits import Batches, Split
from spark_udfs.runtime.worker import enter_task


class Task(NamedTuple):
    """Pieces of files, in the order of the output."""

    number: int
    pieces: tuple[PayloadFile, ...]


@dataclass(frozen=True)
class MessageTask:
    """Decodes pieces to messages.

    Attributes
    ----------
    folder : Path
        Of the output.
    kept : pa.Schema
        The columns that are carried along, as the output has them.
    fields, in_stream, mode, empty
        As of `decoded_batches`.
    format : str
    version : str
        Of pgdecode on the driver.
    """

    folder: Path
    kept: pa.Schema
    fields: tuple[str, ...] | None
    in_stream: InStream | bool
    mode: Mode
    empty: Empty
    format: Format
    version: str = pgdecode.__version__

    def __call__(self, task: Task) -> list[Part]:
        """Write the part of a task."""
        enter_task(self.version)
        fields = self.fields
        wanted = fields_to_decode(fields) if self.format != "parquet" else envelope_schema(fields).names
        schema = pa.schema([*self.kept, *envelope_schema(dict.fromkeys((*wanted, "error")))])
        parts: list[Part] = []
        layout = message_layout(self.kept.names, fields)
        bad_rows: Counter[str] = Counter()
        with attempted(self.folder, task.number, self.format, schema, layout, 1, parts, bad_rows) as write:
            for piece in task.pieces:
                for batch in decoded_batches(
                    piece, fields=wanted, in_stream=self.in_stream, mode=self.mode, empty=self.empty
                ):
                    bad_rows.update(batch.bad_rows)
                    write(self._fitted(piece, batch, schema))
        return parts

    def _fitted(self, piece: PayloadFile, batch: DecodedBatch, schema: pa.Schema) -> pa.RecordBatch:
        source = batch.source
        for field in self.kept:
            column = source.column(field.name)
            if column.type == field.type:
                continue
            try:
                fitted = column.cast(field.type)
            except pa.ArrowException:
                detail = f"column {field.name!r} is {column.type} and does not fit {field.type}, as another file has it"
                raise FileFault(f"{piece.path}: {detail}") from None
            source = source.set_column(source.schema.get_field_index(field.name), field.name, fitted)
        return with_kept_columns(replace(batch, source=source), self.kept.names, schema)


class SplitTask(NamedTuple):
    """Spans of files, in the order of the output."""

    number: int
    spans: tuple[Split, ...]


@dataclass(frozen=True)
class ChangeTask:
    """Decodes pieces, each of them a run, to changes and tables.

    Attributes
    ----------
    folders : tuple of Path
        Of the outputs.
    products : tuple of Product
        What is written to each.
    columns : tuple of tuple of str
        Columns of each product that are written.
    index : JsonIndex
        Of all runs.
    position : str
    options : ChangeOptions
    format : str
    version : str
        Of pgdecode on the driver.
    """

    folders: tuple[Path, ...]
    products: tuple[Output, ...]
    columns: tuple[tuple[str, ...], ...]
    index: JsonIndex
    position: str
    options: ChangeOptions
    format: Format
    version: str = pgdecode.__version__

    def __call__(self, task: SplitTask) -> list[Part]:
        """Write the task's part of each output."""
        enter_task(self.version)
        return self.written(task)

    def written(self, task: SplitTask, looks: Sequence[SplitStatisticsReader] = ()) -> list[Part]:
        """Write them; where spans are looked through meanwhile, by a forecast.

        Raises
        ------
        SchemaChanged
            If the forecast does not hold.
        """
        index = self.index.unpacked
        builders = [product.builder(None, index, self.options) for product in self.products]
        if looks:
            builders = [SpeculativeDecoding(builder) for builder in builders]
        outputs: list[list[Part]] = [[] for _ in self.products]
        bad_rows: list[Counter[str]] = [Counter() for _ in self.products]
        places = zip(self.folders, self.products, self.columns, outputs, bad_rows, strict=True)
        with ExitStack() as stack:
            writers = []
            for folder, product, names, parts, counts in places:
                schema = pa.schema([product.schema.field(name) for name in names])
                part = attempted(folder, task.number, self.format, schema, product.layout, len(outputs), parts, counts)
                writers.append(stack.enter_context(part))
            for number, span in enumerate(task.spans):
                look = looks[number] if looks else None
                with nullcontext() if looks else self._placed(span):
                    for output, batch in self._decoded(span.batches(self.position), builders, look, bad_rows):
                        writers[output](batch.select(list(self.columns[output])))
        return [part for parts in outputs for part in parts]

    def _decoded(
        self,
        batches: Batches,
        builders: Sequence[Builder],
        look: SplitStatisticsReader | None,
        bad_rows: list[Counter[str]],
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        index = self.index.unpacked
        followed = None if look is None else look.follow
        run = None
        for positions, payloads in batches:
            try:
                found = list(slices(index, values_of(positions)))
            except LookupError as error:
                raise RowsMoved(str(error)) from None
            for number, start, end in found:
                if run is None or run.number != number:
                    if run is not None:
                        yield from run.finish()
                    run = DecodedPartition(number, self.index, builders, self.options, followed, bad_rows)
                yield from run.take(positions.slice(start, end - start), payloads.slice(start, end - start))
        if run is not None:
            yield from run.finish()

    @contextmanager
    def _placed(self, span: Split) -> Iterator[None]:
        """Turn a bad payload into a fault of its file, found again by its position."""
        try:
            yield
        except DecodeError as error:
            path, where = span.piece.path, f"rows from {span.piece.start + span.n_skipped}"
            if error.position is not None:
                found = span.row_of(error.position, self.position)
                where = f"position {error.position}"
                if found is not None:
                    path, where = found[0].path, f"row {found[1]}, {where}"
            raise FileFault(f"{path}: {where}: {error.cell}") from error
        except (RowsMoved, OrderFault) as error:
            raise FileFault(f"{span.piece.path}: has changed while it was decoded") from error


class SplitStatisticsResult(NamedTuple):
    """What a task found.

    Attributes
    ----------
    surveys : list of Survey or None
        One for each span; None where rows do not stand in the order of their positions.
    parts : list of Part or None
        What it wrote, if it was to decode meanwhile and nothing came that was not foreseen.
    """

    statistics: list[SplitStatistics] | None
    parts: list[Part] | None = None


@dataclass(frozen=True)
class SplitStatisticsTask:
    """Surveys spans; and decodes them meanwhile, by a forecast.

    Attributes
    ----------
    position : str
    session : str or None
        The column that tells connections apart.
    in_full, with_head : bool
        As of `SplitStatisticsReader`.
    work : ChangeTask or None
        What is to be done by the forecast; spans for which that fails are surveyed in full.
    version : str
        Of pgdecode on the driver.
    """

    position: str
    session: str | None
    in_full: bool
    with_head: bool
    work: ChangeTask | None = None
    version: str = pgdecode.__version__

    def __call__(self, task: SplitTask) -> SplitStatisticsResult:
        """Look through a task's spans."""
        enter_task(self.version)
        in_full = self.in_full
        try:
            if self.work is not None:
                looks = [SplitStatisticsReader(with_head=self.with_head) for _ in task.spans]
                # Whatever is wrong with the payloads is said where they are decoded by the index of the whole.
                with suppress(DecodeError, RowsMoved, SchemaChanged):
                    parts = self.work.written(task, looks)
                    return SplitStatisticsResult([look.split_statistics() for look in looks], parts)
                in_full = True
            looks = [SplitStatisticsReader(in_full=in_full, with_head=self.with_head) for _ in task.spans]
            for span, look in zip(task.spans, looks, strict=True):
                if self.session is None:
                    for positions, payloads in span.batches(self.position):
                        look.take(positions, payloads)
                else:
                    for positions, payloads, sessions in span.batches_with(self.position, self.session):
                        look.take(positions, payloads, sessions)
            return SplitStatisticsResult([look.split_statistics() for look in looks])
        except OrderFault:
            return SplitStatisticsResult(None)


@dataclass(frozen=True)
class UsedTask:
    """Finds the versions of relations that committed changes use, among some.

    Attributes
    ----------
    position : str
    index : JsonIndex
    among : frozenset of int
    options : ChangeOptions
    version : str
        Of pgdecode on the driver.
    """

    position: str
    index: JsonIndex
    among: frozenset[int]
    options: ChangeOptions
    version: str = pgdecode.__version__

    def __call__(self, task: SplitTask) -> set[int]:
        """Look through a task's spans."""
        enter_task(self.version)
        index = self.index.unpacked
        found: set[int] = set()

        def pieces(span: Split) -> Iterator[tuple[int, tuple[pa.Array, pa.Array]]]:
            for positions, payloads in span.batches(self.position):
                for number, start, end in slices(index, values_of(positions)):
                    yield number, (payloads.slice(start, end - start), positions.slice(start, end - start))

        for span in task.spans:
            for number, of_run in groupby(pieces(span), lambda piece: piece[0]):
                found |= used_versions(index, (piece for _, piece in of_run), number, self.among, self.options)
        return found
