"""The local engine of `pgdecode decode` for messages: one output file for each input file, in constant memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

import pyarrow as pa

from pgdecode.datasets.manifest import OutputFile
from pgdecode.datasets.new_files import NewOutput
from pgdecode.datasets.run import Run
from pgdecode.envelope.schema import envelope_schema
from pgdecode.files.envelope_batches import DecodedBatch, FileEnd, prepared_batches
from pgdecode.files.envelope_text import fields_to_decode
from pgdecode.files.payload_file import BATCH_ROWS, PayloadFile
from pgdecode.files.writers import message_layout, writer_to
from pgdecode.payloads.workers import ONE_WORKER, Workers
from pgdecode.protocol.limits import LIMITS, Limits
from pgdecode.protocol.options import Empty, Format, InStream, Mode
from pgdecode.storage.object_path import FilePath


@dataclass
class MessageTotals:
    """Counts of decoded messages, and the files that were written."""

    rows: int = 0
    payload_bytes: int = 0
    bad_rows: Counter[str] = field(default_factory=Counter)  # by error code
    files: list[OutputFile] = field(default_factory=list)


def convert_messages(
    files: Sequence[PayloadFile],
    run: Run,
    open_output: Callable[[PayloadFile], NewOutput],
    *,
    format: Format,
    fields: Sequence[str] | None = None,
    in_stream: InStream | bool = "ordered",
    mode: Mode = "FAILFAST",
    empty: Empty = "null",
    limits: Limits = LIMITS,
    batch_rows: int = BATCH_ROWS,
    workers: Workers = ONE_WORKER,
    ends: dict[FilePath, FileEnd] | None = None,
    on_rows: Callable[[int], None] = lambda n_rows: None,
    on_bad: Callable[[pa.RecordBatch], object] = lambda bad: None,
) -> MessageTotals:
    """Decode files, each to a file of its own.

    Parameters
    ----------
    files : sequence of PayloadFile
    run : Run
        It accepts the files.
    open_output : callable
        Creates the output file of an input file.
    format : {"parquet", "jsonl", "csv"}
    fields, in_stream, mode, empty, limits, batch_rows
        As in `decoded_batches`.
    workers : Workers
        They read ahead, decode and encode the output, which does not depend on their number.
    ends : dict of path to FileEnd, optional
        As in `prepared_batches`.
    on_rows : callable
        Called with the number of rows after each batch.
    on_bad : callable
        Called with bad payloads, as `writers.BAD_PAYLOADS`.

    Raises
    ------
    FileFault
        As in `decoded_batches`.
    """
    totals = MessageTotals()
    wanted = fields_to_decode(fields) if format != "parquet" else envelope_schema(fields).names
    schemas = {
        file.path: pa.schema([*file.schema, *envelope_schema(dict.fromkeys((*wanted, "error")))]) for file in files
    }

    def prepared(file: PayloadFile, batch: DecodedBatch) -> pa.RecordBatch:
        return with_kept_columns(batch, file.keep, schemas[file.path])

    found = prepared_batches(
        files,
        prepared,
        wanted,
        in_stream,
        mode,
        empty=empty,
        limits=limits,
        batch_rows=batch_rows,
        workers=workers,
        ends=ends,
    )
    unfinished: list[tuple[NewOutput, int]] = []

    def accept() -> None:
        totals.files.extend(run.accept(output.written(n_rows)) for output, n_rows in unfinished)
        unfinished.clear()

    with closing(found), ExitStack() as ending:
        following = next(found, None)
        for file in files:
            n_rows = 0
            layout = message_layout(file.keep, fields)
            # Workers encode the end of the file before while they decode this one.
            with ending.pop_all():
                output = ending.enter_context(open_output(file))
                write = ending.enter_context(writer_to(output, format, schemas[file.path], layout, workers=workers))
                while following is not None and following[0] is file:
                    _, batch, rows = following
                    write(rows)
                    if batch.bad is not None:
                        on_bad(batch.bad)
                    n_rows += len(rows)
                    totals.rows += batch.n_read
                    totals.payload_bytes += batch.n_bytes
                    totals.bad_rows.update(batch.bad_rows)
                    on_rows(batch.n_read)
                    following = next(found, None)
                write.flush()
            accept()
            unfinished.append((output, n_rows))
    accept()
    return totals


def with_kept_columns(batch: DecodedBatch, keep: Sequence[str], schema: pa.Schema) -> pa.RecordBatch:
    """Make one batch of the `keep` columns and the decoded columns."""
    arrays = [*(batch.source.column(name) for name in keep), *batch.envelope.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
