"""What Spark's Python workers do with files themselves: read row groups, decode them, and write a part of the output.

Nothing but what became of it passes through Spark. A task holds a batch of payloads and a row group of the output.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

import pgdecode
from pgdecode.batches import DecodedBatch, decoded_batches
from pgdecode.building import Builder
from pgdecode.convert import side_by_side
from pgdecode.errors import DecodeError
from pgdecode.files import FileFault, PayloadFile
from pgdecode.ledger import Options
from pgdecode.ordered import OrderFault
from pgdecode.render import fields_to_decode
from pgdecode.schemas import envelope_schema
from pgdecode.visibility import Unforeseen
from pgdecode.writers import message_layout
from spark_udfs.executor import enter_task
from spark_udfs.parts import Part, attempted
from spark_udfs.products import Product
from spark_udfs.runs import DecodedRun, PlainIndex, RowsMoved
from spark_udfs.spans import Batches, Span
from spark_udfs.surveys import Foreseen, SpanLook, Survey


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
    fields, in_stream, mode
        As of `decoded_batches`.
    format : str
    version : str
        Of pgdecode on the driver.
    """

    folder: Path
    kept: pa.Schema
    fields: tuple[str, ...] | None
    in_stream: bool | str | None
    mode: str
    format: str
    version: str = pgdecode.__version__

    def __call__(self, task: Task) -> list[Part]:
        """Write the part of a task."""
        enter_task(self.version)
        fields = self.fields
        wanted = fields_to_decode(fields) if self.format != "parquet" else envelope_schema(fields).names
        schema = pa.schema([*self.kept, *envelope_schema(dict.fromkeys((*wanted, "error")))])
        parts: list[Part] = []
        layout = message_layout(self.kept.names, fields)
        with attempted(self.folder, task.number, self.format, schema, layout, 1, parts) as write:
            for piece in task.pieces:
                for batch in decoded_batches(piece, fields=wanted, in_stream=self.in_stream, mode=self.mode):
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
        return side_by_side(replace(batch, source=source), self.kept.names, schema)


class SpanTask(NamedTuple):
    """Spans of files, in the order of the output."""

    number: int
    spans: tuple[Span, ...]


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
    index : PlainIndex
        Of all runs.
    position : str
    options : Options
    format : str
    version : str
        Of pgdecode on the driver.
    """

    folders: tuple[Path, ...]
    products: tuple[Product, ...]
    columns: tuple[tuple[str, ...], ...]
    index: PlainIndex
    position: str
    options: Options
    format: str
    version: str = pgdecode.__version__

    def __call__(self, task: SpanTask) -> list[Part]:
        """Write the task's part of each output."""
        enter_task(self.version)
        return self.written(task)

    def written(self, task: SpanTask, looks: Sequence[SpanLook] = ()) -> list[Part]:
        """Write them; where spans are looked through meanwhile, by a forecast.

        Raises
        ------
        Unforeseen
            If the forecast does not hold.
        """
        index = self.index.unpacked
        builders = [product.builder(None, index, self.options) for product in self.products]
        if looks:
            builders = [Foreseen(builder) for builder in builders]
        outputs: list[list[Part]] = [[] for _ in self.products]
        places = zip(self.folders, self.products, self.columns, outputs, strict=True)
        with ExitStack() as stack:
            writers = []
            for folder, product, names, parts in places:
                schema = pa.schema([product.schema.field(name) for name in names])
                part = attempted(folder, task.number, self.format, schema, product.layout, len(outputs), parts)
                writers.append(stack.enter_context(part))
            for number, span in enumerate(task.spans):
                look = looks[number] if looks else None
                with nullcontext() if looks else self._placed(span):
                    for output, batch in self._decoded(span.batches(self.position), builders, look):
                        writers[output](batch.select(list(self.columns[output])))
        return [part for parts in outputs for part in parts]

    def _decoded(
        self, batches: Batches, builders: Sequence[Builder], look: SpanLook | None
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        run = None
        for positions, payloads in batches:
            if run is None:
                run = self._run_at(positions[0].as_py(), builders, look)
            yield from run.take(positions, payloads)
        if run is not None:
            yield from run.finish()

    def _run_at(self, position: int, builders: Sequence[Builder], look: SpanLook | None) -> DecodedRun:
        try:
            number = self.index.unpacked.number_of(position)
        except LookupError as error:
            raise RowsMoved(str(error)) from None
        return DecodedRun(number, self.index, builders, self.options, None if look is None else look.follow)

    @contextmanager
    def _placed(self, span: Span) -> Iterator[None]:
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


class Surveyed(NamedTuple):
    """What a task found.

    Attributes
    ----------
    surveys : list of Survey or None
        One for each span; None where rows do not stand in the order of their positions.
    parts : list of Part or None
        What it wrote, if it was to decode meanwhile and nothing came that was not foreseen.
    """

    surveys: list[Survey] | None
    parts: list[Part] | None = None


@dataclass(frozen=True)
class SurveyTask:
    """Surveys spans; and decodes them meanwhile, by a forecast.

    Attributes
    ----------
    position : str
    work : ChangeTask or None
        What is to be done by the forecast.
    version : str
        Of pgdecode on the driver.
    """

    position: str
    work: ChangeTask | None = None
    version: str = pgdecode.__version__

    def __call__(self, task: SpanTask) -> Surveyed:
        """Look through a task's spans."""
        enter_task(self.version)
        try:
            if self.work is not None:
                looks = [SpanLook() for _ in task.spans]
                # Whatever is wrong with the payloads is said where they are decoded by the index of the whole.
                with suppress(DecodeError, RowsMoved, Unforeseen):
                    parts = self.work.written(task, looks)
                    return Surveyed([look.survey() for look in looks], parts)
            looks = [SpanLook() for _ in task.spans]
            for span, look in zip(task.spans, looks, strict=True):
                for positions, payloads in span.batches(self.position):
                    look.take(positions, payloads)
            return Surveyed([look.survey() for look in looks])
        except OrderFault:
            return Surveyed(None)
