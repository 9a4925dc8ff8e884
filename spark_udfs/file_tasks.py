"""What Spark's Python workers do with files themselves: read row groups, decode them, and write a part of the output.

Nothing but what became of it passes through Spark. A task holds a batch of payloads and a row group of the output.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

import pgdecode
from pgdecode.batches import DecodedBatch, decoded_batches
from pgdecode.building import Builder
from pgdecode.convert import side_by_side
from pgdecode.errors import DecodeError
from pgdecode.files import FileFault, PayloadFile
from pgdecode.ledger import Options
from pgdecode.ordered import OrderFault, Positions
from pgdecode.render import fields_to_decode
from pgdecode.runs import AT_THE_ENDS, EVERYWHERE
from pgdecode.schemas import envelope_schema
from pgdecode.writers import message_layout
from spark_udfs.executor import require_version
from spark_udfs.parts import Part, attempted
from spark_udfs.runs import RUN_ROWS, DecodedRun, PlainIndex, Product, RowsMoved

_ROWS = b"IUDT"
# Of the messages that a survey gives.
MESSAGES = pa.schema([("position", pa.int64()), ("payload", pa.large_binary())])


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
        require_version(self.version)
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


class Survey(NamedTuple):
    """What is to be known of a piece before changes are decoded.

    Attributes
    ----------
    piece : PayloadFile
    first, last : int
        Positions.
    has_rows : bool
        Whether inserts, updates, deletes or truncates are in it.
    messages : bytes
        Arrow stream of the messages that `pgdecode.runs.index_runs` needs.
    """

    piece: PayloadFile
    first: int
    last: int
    has_rows: bool
    messages: bytes

    def table(self) -> pa.Table:
        """Positions and payloads of the messages."""
        with pa.ipc.open_stream(self.messages) as reader:
            return reader.read_all()


@dataclass(frozen=True)
class SurveyTask:
    """Surveys pieces: None for one whose rows are not in the order of their positions; without rows, nothing."""

    position: str
    version: str = pgdecode.__version__

    def __call__(self, task: Task) -> list[Survey | None]:
        """Look through a task's pieces."""
        require_version(self.version)
        return [self._survey(piece) for piece in task.pieces if piece.n_rows]

    def _survey(self, piece: PayloadFile) -> Survey | None:
        first = last = -1  # which is no position
        has_rows = False
        found: list[pa.RecordBatch] = []
        last_end: pa.RecordBatch | None = None
        try:
            for positions, payloads in _read(piece, self.position):
                first = positions[0].as_py() if first < 0 else first
                if first < 0:
                    return None
                last = positions[-1].as_py()
                tags = pc.binary_slice(payloads, 0, 1)
                has_rows = has_rows or pc.any(_among(tags, _ROWS)).as_py() is True
                rows = pc.indices_nonzero(_among(tags, EVERYWHERE))
                ends = pc.indices_nonzero(_among(tags, AT_THE_ENDS))
                if len(ends):
                    if last_end is None:
                        found.append(_messages(positions, payloads, ends.slice(0, 1)))
                    last_end = _messages(positions, payloads, ends.slice(len(ends) - 1))
                if len(rows):
                    found.append(_messages(positions, payloads, rows))
        except OrderFault:
            return None
        if first < 0:
            return None
        found += [last_end] if last_end is not None else []
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, MESSAGES) as stream:
            for batch in found:
                stream.write_batch(batch)
        return Survey(piece, first, last, has_rows, sink.getvalue().to_pybytes())


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

    def __call__(self, task: Task) -> list[Part]:
        """Write the task's part of each output."""
        require_version(self.version)
        index = self.index.unpacked
        builders = [product.builder(None, index, self.options) for product in self.products]
        outputs: list[list[Part]] = [[] for _ in self.products]
        places = zip(self.folders, self.products, self.columns, outputs, strict=True)
        with ExitStack() as stack:
            writers = []
            for folder, product, names, parts in places:
                schema = pa.schema([product.schema.field(name) for name in names])
                part = attempted(folder, task.number, self.format, schema, product.layout, len(outputs), parts)
                writers.append(stack.enter_context(part))
            for piece in task.pieces:
                with self._placed(piece):
                    for number, batch in self._decoded(piece, builders):
                        writers[number](batch.select(list(self.columns[number])))
        return [part for parts in outputs for part in parts]

    def _decoded(self, piece: PayloadFile, builders: Sequence[Builder]) -> Iterator[tuple[int, pa.RecordBatch]]:
        run = None
        for positions, payloads in _read(piece, self.position):
            if run is None:
                run = self._run_at(positions[0].as_py(), builders)
            yield from run.take(positions, payloads)
        if run is not None:
            yield from run.finish()

    def _run_at(self, position: int, builders: Sequence[Builder]) -> DecodedRun:
        try:
            number = self.index.unpacked.number_of(position)
        except LookupError as error:
            raise RowsMoved(str(error)) from None
        return DecodedRun(number, self.index, builders, self.options)

    @contextmanager
    def _placed(self, piece: PayloadFile) -> Iterator[None]:
        """Turn a bad payload into a fault of its file, found again by its position."""
        try:
            yield
        except DecodeError as error:
            where = f"rows from {piece.start}"
            if error.position is not None:
                row = self._row_of(piece, error.position)
                where = f"position {error.position}" if row is None else f"row {row}, position {error.position}"
            raise FileFault(f"{piece.path}: {where}: {error.cell}") from error
        except (RowsMoved, OrderFault) as error:
            raise FileFault(f"{piece.path}: has changed while it was decoded") from error

    def _row_of(self, piece: PayloadFile, position: int) -> int | None:
        """Find the row of a file that has a position."""
        row = piece.start
        for positions, _ in _read(piece, self.position):
            place = pc.index(positions, position).as_py()
            if place >= 0:
                return row + int(place)
            row += len(positions)
        return None


def _read(piece: PayloadFile, position: str) -> Iterator[tuple[pa.Array, pa.Array]]:
    """Positions and payloads of a piece in batches of at least one row."""
    positions = Positions(position)
    start = piece.start
    for source in piece.batches(RUN_ROWS):
        if len(source):
            yield positions.of(piece, start, source), source.column(piece.payload)
        start += len(source)


def _among(tags: pa.Array, wanted: bytes) -> pa.Array:
    return pc.is_in(tags, pa.array([bytes([tag]) for tag in wanted], tags.type))


def _messages(positions: pa.Array, payloads: pa.Array, rows: pa.Array) -> pa.RecordBatch:
    columns = [positions.take(rows), payloads.take(rows).cast(pa.large_binary())]
    return pa.RecordBatch.from_arrays(columns, schema=MESSAGES)
