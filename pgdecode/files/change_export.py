"""The local engine of `pgdecode decode` for changes: writes one output file, or one for each table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode.changes.record_batches import LimitedBuilder
from pgdecode.datasets.manifest import OutputFile
from pgdecode.datasets.new_files import NewOutput
from pgdecode.datasets.run import Run
from pgdecode.files.change_reader import (
    FileChangeOptions,
    FileChanges,
    LayoutUnknown,
    Slice,
    TableError,
    TableVersions,
    ValueFault,
)
from pgdecode.files.envelope_batches import bad_batch
from pgdecode.files.ordered_files import OrderedBatch, OrderedFiles
from pgdecode.files.payload_file import BATCH_ROWS, FileFault
from pgdecode.files.writers import CHANGE_LAYOUT, TABLE_LAYOUT, Writer, writer_to
from pgdecode.payloads.workers import ONE_WORKER, Workers
from pgdecode.protocol.options import Format


@dataclass
class ChangeTotals:
    """Counts of decoded data."""

    payload_bytes: int = 0
    changes: int = 0  # or net changes, or rows of snapshots
    bad_rows: dict[str, int] = field(default_factory=dict)  # by error code
    skipped: int = 0  # transactions without a beginning that this run has left out
    repeated: int = 0  # transactions whose commit LSN is not greater than that of all before
    empty_payloads: int = 0
    files: list[OutputFile] = field(default_factory=list)
    text_columns: int = 0  # columns of tables with composites whose type was altered
    altered_types: tuple[str, ...] = ()


def convert_changes(
    files: OrderedFiles,
    run: Run,
    *,
    relations: Sequence[str] = (),
    is_snapshot: bool = False,
    net_key: Sequence[str] | None = None,
    in_folders: bool = False,
    format: Format,
    options: FileChangeOptions,
    batch_rows: int = BATCH_ROWS,
    workers: Workers = ONE_WORKER,
    on_rows: Callable[[int], None] = lambda n_rows: None,
) -> tuple[ChangeTotals, FileChanges]:
    """Decode files to changes, to the changes of tables, or to the rows of tables at the end.

    Memory use is limited to a batch of payloads and part of the changes that it commits; the rows of tables at the end,
    and net changes, are in memory. Undecided transactions are spilled to files.

    Parameters
    ----------
    files : OrderedFiles
    run : Run
        It creates and accepts the files: one for all changes, or one for each table and schema. If its target is a
        file, the columns are those of all versions. The input is read a second time if they change, and if a value is
        faulty, but a later version may have a type that it fits.
    relations : sequence of str
        Tables, as "schema.table". Rows have the columns of the versions of their table so far, as those of
        `ChangeDecoder.table`. If a version changes the columns, a new file begins; a file of JSON lines continues.
    is_snapshot : bool
        Write the rows that the tables have at the end, as `snapshot` returns them.
    net_key : sequence of str, optional
        Write the net changes of the tables by this key, as `net_changes` returns them; empty for the replica identity.
    in_folders : bool
        Write the files of each table into a folder of its own.
    format : {"parquet", "jsonl", "csv"}
    options : FileChangeOptions
    batch_rows : int
        The greatest number of rows to read at once.
    workers : Workers
        They read ahead, build the changes and encode the output. Transactions are assembled in the calling thread. The
        output does not depend on the number of workers.
    on_rows : callable
        Called with the number of rows after each batch. A second reading begins with a negative number.

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
    n_reported = 0

    def batches() -> Iterator[OrderedBatch]:
        nonlocal n_reported
        for batch in files.batches(batch_rows, workers):
            yield batch
            n_reported += len(batch.payloads)
            on_rows(len(batch.payloads))

    how = FileFormat(run, format, in_folders, workers)
    reader = FileChanges(files, options, relations, is_snapshot=is_snapshot, net_key=net_key)
    first = _Batches(batches())
    try:
        return _write(reader, first, how), reader
    except (ValueFault, TableError, LayoutUnknown) as error:
        fault = error.with_traceback(None)
    versions = _last_versions(reader, first, fault)
    del reader, first, fault
    on_rows(-n_reported)
    reader = FileChanges(files, options, relations, is_snapshot=is_snapshot, net_key=net_key, versions=versions)
    return _write(reader, _Batches(batches()), how), reader


class _Batches:
    """An iterator of batches whose last one can be put back."""

    def __init__(self, batches: Iterator[OrderedBatch]) -> None:
        self._batches = batches
        self._again: list[OrderedBatch] = []

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> OrderedBatch:
        return self._again.pop() if self._again else next(self._batches)

    def put_back(self, batch: OrderedBatch) -> None:
        """Return a batch that was not processed."""
        self._again.append(batch)


def _write(reader: FileChanges, batches: _Batches, how: FileFormat) -> ChangeTotals:
    """Decode batches, and write the files. Rows of snapshots and net changes are written at the end."""
    totals = ChangeTotals()

    def slices() -> Iterator[Slice]:
        for batch in batches:
            try:
                yield from reader.slices(batch)
            except (TableError, LayoutUnknown):
                batches.put_back(batch)
                raise
            totals.payload_bytes += pc.sum(pc.binary_length(batch.payloads)).as_py() or 0

    with ExitStack() as stack:
        n_outputs = len(reader.bad_rows)
        files = {name: stack.enter_context(TableFiles(name, how, n_outputs)) for name in reader.bad_rows}

        def write(name: str | None, rows: pa.RecordBatch, builder: LimitedBuilder) -> None:
            rows = reader.count(name, rows)
            if name is not None and reader.collects:
                reader.apply(name, rows, builder)
            else:
                files[name].write(rows, builder)

        for built in how.workers.map(lambda build: build(), slices()):
            for item in built:
                write(*item)
        for item in reader.finish():
            write(*item)
        reader.check_renames()
        schemas = []
        for name, builder in reader.last_builders():
            schemas.append(builder.schema)
            if name is not None and reader.collects:
                reader.apply(name, None, builder)
                files[name].write_table(reader.collected(name))
            else:
                files[name].end(builder)
        # Workers encode the ends of all outputs side by side.
        for output in files.values():
            output.flush()
    totals.altered_types = reader.altered_types
    if totals.altered_types:
        metadata = (column.metadata or {} for schema in schemas for column in schema)
        totals.text_columns = sum(item.get(b"pg:form") == b"text" for item in metadata)
    totals.files = [file for output in files.values() for file in output.accepted()]
    totals.changes = sum(file.rows for file in totals.files)
    totals.bad_rows = dict(sum(reader.bad_rows.values(), Counter()))
    totals.skipped, totals.repeated = reader.n_skipped, reader.n_repeated
    totals.empty_payloads = reader.engine.counts.n_empty
    return totals


def _last_versions(reader: FileChanges, batches: Iterator[OrderedBatch], fault: Exception) -> TableVersions:
    """Read the rest of the files, and return all versions of the tables.

    Raise the fault if the versions are no others than before it.
    """
    with suppress(FileFault):
        # A fault there comes after the present one. The second reading finds it, if it gets there.
        for batch in batches:
            reader.advance(batch)
    if not isinstance(fault, ValueFault):
        return reader.last_versions()
    with suppress(TableError):
        versions = reader.last_versions()
        if reader.has_other_columns(versions):
            return versions
    raise fault


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


# -- files of one table -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FileFormat:
    """How files are written.

    Attributes
    ----------
    run : Run
    format : {"parquet", "jsonl", "csv"}
    in_folders : bool
    workers : Workers
    """

    run: Run
    format: Format
    in_folders: bool
    workers: Workers

    @property
    def as_file(self) -> bool:
        """Whether all rows are in one file, so that their schema must not change."""
        return not self.run.target.has_log

    def are_alike(self, schema: pa.Schema, other: pa.Schema) -> bool:
        """Whether rows with these schemas can be in one file."""
        if self.format == "jsonl" and not self.as_file:
            return True
        return schema is other or schema.equals(other, check_metadata=self.format == "parquet")


class TableFiles:
    """Writes the rows of one table, or all changes if `name` is None. Use it as a context manager.

    Parameters
    ----------
    name : str or None
    format : FileFormat
    n_outputs : int
        Number of tables that are written at the same time.
    """

    def __init__(self, name: str | None, format: FileFormat, n_outputs: int) -> None:
        self._name = name
        self._format = format
        self._n_outputs = n_outputs
        self._open = ExitStack()  # the file
        self._writer: Writer | None = None
        self._schema: pa.Schema  # of the file
        self._written: list[tuple[NewOutput, int]] = []  # each file, and its rows

    def __enter__(self) -> TableFiles:
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)
        if error[0] is not None:
            for file, _ in self._written:
                file.discard()

    def accepted(self) -> list[OutputFile]:
        """Take the files, which are complete, into the output of the run."""
        return [self._format.run.accept(file.written(n_rows)) for file, n_rows in self._written]

    def write(self, rows: pa.RecordBatch, builder: LimitedBuilder) -> None:
        """Write rows that a builder has made.

        Raises
        ------
        LayoutUnknown
            If they cannot be in the same file as the rows before them.
        """
        if not len(rows):
            return
        if self._writer is None or not self._format.are_alike(builder.schema, self._schema):
            self._begin(builder.schema)
        self._add(rows)

    def write_table(self, table: pa.Table) -> None:
        """Write all rows."""
        self._begin(table.schema)
        for rows in table.to_batches(BATCH_ROWS):
            self._add(rows)

    def end(self, builder: LimitedBuilder) -> None:
        """Process the end of the rows. The builder has all versions of the table. It raises as `write`."""
        has_other = self._writer is not None and not self._format.are_alike(builder.schema, self._schema)
        if self._writer is None or (has_other and self._format.as_file):
            self._begin(builder.schema)

    def flush(self) -> None:
        """Let the workers encode the rows so far."""
        if self._writer is not None:
            self._writer.flush()

    def _add(self, rows: pa.RecordBatch) -> None:
        assert self._writer is not None
        self._writer(rows)
        file, n_rows = self._written[-1]
        self._written[-1] = file, n_rows + len(rows)

    def _begin(self, schema: pa.Schema) -> None:
        """Begin a file for rows of another schema."""
        if self._writer is not None and self._format.as_file:
            raise LayoutUnknown
        self._open.close()
        how, name = self._format, table_file_name(self._name)
        output = how.run.files.open(name, how.format, folder=name if how.in_folders else "", nth=len(self._written) + 1)
        file = self._open.enter_context(output)
        layout = CHANGE_LAYOUT if self._name is None else TABLE_LAYOUT
        self._schema = schema
        self._writer = self._open.enter_context(
            writer_to(file, how.format, schema, layout, self._n_outputs, how.workers)
        )
        self._written.append((output, 0))
