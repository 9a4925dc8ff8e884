"""The local engine of `pgdecode decode` for changes: writes one output file, or one for each table."""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO, Protocol, cast

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode.changes.change_rows import CHANGES
from pgdecode.files.change_reader import FileChangeOptions, FileChanges, Slice
from pgdecode.files.envelope_batches import bad_batch
from pgdecode.files.ordered_files import OrderedBatch, OrderedFiles
from pgdecode.files.payload_file import BATCH_ROWS, FileFault
from pgdecode.files.writers import CHANGE_LAYOUT, TABLE_LAYOUT, WriteBatch, Writer, writer_to
from pgdecode.payloads.workers import ONE_WORKER, Workers
from pgdecode.protocol.options import Format
from pgdecode.relations.version_tracker import SchemaChanged
from pgdecode.runs.atomic_output import remove
from pgdecode.runs.digested_file import DigestedFile
from pgdecode.runs.manifest import OutputFile
from pgdecode.storage.errors import PathError

_BUFFER = 1 << 20


class Outputs(Protocol):
    """Creates the files that `convert_changes` writes."""

    def open(self, table: str | None, schema: pa.Schema, number: int) -> BinaryIO:
        """Create a file for rows of a table, or for all changes if `table` is None. The caller closes it.

        `number` counts the files of the table from 1: there is one for each schema that the table's rows have.
        """

    def discard(self) -> None:
        """Remove all files so far, which may be open. They are opened again, because the input is read again."""


@dataclass(frozen=True)
class WrittenFile:
    """A file from `Outputs.open` that is complete, with the arguments of `open` and the number of its rows."""

    table: str | None
    number: int
    rows: int


class LocalOutputs:
    """Creates one file, or in a folder a file for each table and schema: `public.t.parquet`, `public.t-2.parquet`.

    Parameters
    ----------
    target : Path
        Must not exist. It is created with the first file.
    format : {"parquet", "jsonl", "csv"}
    as_file : bool
        Make `target` a file.

    Raises
    ------
    FileExistsError
    """

    def __init__(self, target: Path, format: Format, *, as_file: bool) -> None:
        if os.path.lexists(target):
            raise FileExistsError(target)
        self._target, self._format, self._as_file = target, format, as_file
        self._files: dict[tuple[str | None, int], DigestedFile] = {}

    def open(self, table: str | None, schema: pa.Schema, number: int) -> BinaryIO:
        """Create a file."""
        path = self._target
        if not self._as_file:
            path.mkdir(exist_ok=True)
            path = path / f"{table_file_name(table)}{'' if number == 1 else f'-{number}'}.{self._format}"
        self._files[table, number] = DigestedFile(path)
        return cast(BinaryIO, io.BufferedWriter(self._files[table, number], _BUFFER))

    def discard(self) -> None:
        """Remove all files."""
        self._files.clear()
        remove(self._target)

    def output_files(self, files: Iterable[WrittenFile]) -> list[OutputFile]:
        """Describe the complete files, for a manifest."""
        found = []
        for item in files:
            file = self._files[item.table, item.number]
            found.append(OutputFile(**vars(file.digested(Path(str(file.name)).name, item.rows))))
        return found


@dataclass
class ChangeTotals:
    """Counts of decoded data."""

    payload_bytes: int = 0
    changes: int = 0  # or rows of snapshots
    bad_rows: dict[str, int] = field(default_factory=dict)  # by error code
    skipped: int = 0  # transactions without a beginning that this run has left out
    undecided: int = 0  # transactions without an outcome
    repeated: int = 0  # transactions whose commit LSN is not greater than that of all before
    empty_payloads: int = 0
    files: list[WrittenFile] = field(default_factory=list)
    text_columns: int = 0  # columns of tables with composites whose type was altered
    altered_types: tuple[str, ...] = ()


def convert_changes(
    files: OrderedFiles,
    outputs: Outputs,
    *,
    relations: Sequence[str] = (),
    is_snapshot: bool = False,
    format: Format,
    options: FileChangeOptions,
    batch_rows: int = BATCH_ROWS,
    workers: Workers = ONE_WORKER,
    on_rows: Callable[[int], None] = lambda n_rows: None,
) -> tuple[ChangeTotals, FileChanges]:
    """Decode files to changes, to the changes of tables, or to the rows of tables at the end.

    Memory use is limited to a batch of payloads and part of the changes that it commits; the rows of tables at the end
    are in memory. Undecided transactions are spilled to files.

    Parameters
    ----------
    files : OrderedFiles
    outputs : Outputs
        Creates the files: one for all changes, or one for each table.
    relations : sequence of str
        Tables, as "schema.table". The columns of an output are those of all versions of the table. The first attempt
        uses the versions in the first batch, which usually are all. If there are others, or an error occurs, the files
        are read again: once for the versions, and once to decode them; and both once more if rows must be processed to
        know the versions.
    is_snapshot : bool
        Write the rows that the tables have at the end, as `snapshot` returns them.
    format : {"parquet", "jsonl", "csv"}
    options : FileChangeOptions
    batch_rows : int
        The greatest number of rows to read at once.
    workers : Workers
        They read ahead, build the changes and encode the output. Transactions are assembled in the calling thread. The
        output does not depend on the number of workers.
    on_rows : callable
        Called with the number of rows after each batch. A restart is reported as a negative number.

    Returns
    -------
    ChangeTotals, FileChanges
        The reader has the state after the files.

    Raises
    ------
    FileFault
        If a file is damaged or out of order, or in FAILFAST mode at a bad payload or value. The caller must remove the
        incomplete output.
    PathError
        If no message describes a table; with `is_snapshot`, as `snapshot` raises KeyError and ValueError.
    """
    reported = 0

    def reported_rows(found: Iterable[OrderedBatch]) -> Iterator[OrderedBatch]:
        nonlocal reported
        if reported:
            on_rows(-reported)
            reported = 0
        for batch in found:
            yield batch
            reported += len(batch.payloads)
            on_rows(len(batch.payloads))

    def batches() -> Iterator[OrderedBatch]:
        return reported_rows(files.batches(batch_rows, workers))

    def new_reader() -> FileChanges:
        return FileChanges(files, options, relations, is_snapshot=is_snapshot)

    def one_pass() -> tuple[ChangeTotals, FileChanges]:
        reader = new_reader()
        found = files.batches(batch_rows, workers)
        first = list(islice(found, 1))
        schemas = _schemas_of(reader, first, is_fixed=True)
        # The list does not keep its batch.
        every = chain((first.pop() for _ in range(len(first))), found)
        return _write(reader, reported_rows(every), outputs, schemas, format, workers)

    def two_passes(with_rows: bool) -> tuple[ChangeTotals, FileChanges]:
        outputs.discard()
        reader = new_reader()
        schemas = _schemas_of(reader, batches(), with_rows=with_rows)
        return _write(reader, batches(), outputs, schemas, format, workers)

    if not relations:
        return _write(new_reader(), batches(), outputs, {None: CHANGES}, format, workers)
    # A value that does not fit the present column type may fit after a later version has widened the column. So errors
    # are not final here.
    with suppress(FileFault, PathError, SchemaChanged):
        return one_pass()
    # After bad payloads, the meaning of a Relation message may depend on the rows.
    with suppress(SchemaChanged):
        return two_passes(with_rows=False)
    return two_passes(with_rows=True)


def _schemas_of(
    reader: FileChanges, batches: Iterable[OrderedBatch], *, is_fixed: bool = False, with_rows: bool = False
) -> dict[str | None, pa.Schema]:
    """Find the versions of tables in batches, and start the second pass."""
    for batch in batches:
        reader.follow(batch, with_rows)
    return reader.second_pass(is_fixed=is_fixed, with_rows=with_rows)


def _write(
    reader: FileChanges,
    batches: Iterable[OrderedBatch],
    outputs: Outputs,
    schemas: Mapping[str | None, pa.Schema],
    format: Format,
    workers: Workers,
) -> tuple[ChangeTotals, FileChanges]:
    """Decode batches, and write one file for each schema. Rows of snapshots are written at the end."""
    totals = ChangeTotals()
    n_rows: Counter[str | None] = Counter()
    with ExitStack() as stack:
        writers: dict[str | None, WriteBatch] = {}
        unfinished: list[Writer] = []

        def write(found: Iterable[tuple[str | None, pa.RecordBatch]]) -> None:
            for name, rows in found:
                writers[name](rows)
                n_rows[name] += len(rows)

        def open_output(name: str | None, schema: pa.Schema) -> WriteBatch:
            layout = CHANGE_LAYOUT if name is None else TABLE_LAYOUT
            file = stack.enter_context(outputs.open(name, schema, 1))
            unfinished.append(stack.enter_context(writer_to(file, format, schema, layout, len(schemas), workers)))
            return unfinished[-1]

        def slices() -> Iterator[Slice]:
            for batch in batches:
                yield from reader.slices(batch)
                totals.payload_bytes += pc.sum(pc.binary_length(batch.payloads)).as_py() or 0

        for name, schema in schemas.items():
            if not reader.is_snapshot:
                writers[name] = open_output(name, schema)
        for name in reader.snapshots:
            writers[name] = partial(reader.apply, name)
        for built in workers.map(lambda build: build(), slices()):
            write((name, reader.count(name, rows)) for name, rows in built)
        write(reader.finish())
        reader.check_renames()
        for name in reader.snapshots:
            table = reader.snapshot(name)
            writers[name], n_rows[name] = open_output(name, table.schema), 0
            write((name, rows) for rows in table.to_batches(BATCH_ROWS))
        # Workers encode the ends of all outputs side by side.
        for output in unfinished:
            output.flush()
    totals.altered_types = reader.altered_types
    if totals.altered_types:
        metadata = (column.metadata or {} for schema in schemas.values() for column in schema)
        totals.text_columns = sum(item.get(b"pg:form") == b"text" for item in metadata)
    totals.files = [WrittenFile(name, 1, n_rows[name]) for name in schemas]
    decoder = reader.decoder
    totals.changes = n_rows.total()
    totals.bad_rows = dict(sum(reader.bad_rows.values(), Counter()))
    totals.skipped, totals.undecided, totals.empty_payloads = (
        reader.n_skipped,
        decoder.n_undecided,
        decoder.empty_payloads,
    )
    totals.repeated = reader.n_repeated
    return totals, reader


def bad_payloads(files: OrderedFiles, errors: Mapping[int, str], workers: Workers) -> Iterator[pa.RecordBatch]:
    """Read the payloads at some positions, with their errors, as `writers.BAD_PAYLOADS`.

    A payload from an earlier run is missing.
    """
    if not errors:
        return
    wanted = pa.array(errors, pa.int64())
    for batch in files.batches(workers=workers):
        rows = pc.indices_nonzero(pc.is_in(batch.positions, wanted))
        if len(rows):
            found = pa.array([errors[position] for position in batch.positions.take(rows).to_pylist()], pa.string())
            yield bad_batch(batch.file, batch.start, rows, batch.positions, batch.payloads, found)


def table_file_name(relation: str | None) -> str:
    """Return the name of a table's file, without its format. None means all changes.

    Characters that are not safe in a file name are percent-encoded: slashes, and a leading `_` or `.`.
    """
    if relation is None:
        return "changes"
    safe = "".join(_in_url(char) if char in "%/\\" or not char.isprintable() else char for char in relation)
    return _in_url(safe[0]) + safe[1:] if safe[0] in "_." else safe


def _in_url(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode())
