"""The local engine of `pgdecode decode` for messages: one output file for each input file, in constant memory."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace

import pyarrow as pa

from pgdecode.datasets.manifest import OutputFile
from pgdecode.datasets.new_files import NewOutput
from pgdecode.datasets.run import Run
from pgdecode.datasets.state import State
from pgdecode.envelope.schema import envelope_schema
from pgdecode.files.envelope_batches import DecodedBatch, FileEnd, MessageOptions, prepared_batches
from pgdecode.files.envelope_text import fields_to_decode
from pgdecode.files.payload_file import BATCH_ROWS, PayloadFile
from pgdecode.files.writers import message_layout, writer_to
from pgdecode.payloads.workers import ONE_WORKER, Workers
from pgdecode.protocol.options import Format
from pgdecode.storage.object_path import FilePath

# The end of the stem of a file that has the number of its run.
_NUMBERED = re.compile(r"-\d{10}$")


@dataclass
class MessageTotals:
    """Counts of decoded messages, and the files that were written."""

    payload_bytes: int = 0
    bad_rows: Counter[str] = field(default_factory=Counter)  # by error code
    files: list[OutputFile] = field(default_factory=list)


def convert_messages(
    files: Sequence[PayloadFile],
    run: Run,
    stems: Sequence[str],
    *,
    format: Format,
    options: MessageOptions,
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
        It creates and accepts the output files.
    stems : sequence of str
        The name of each output file, without its format.
    format : {"parquet", "jsonl", "csv"}
    options, batch_rows
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
    wanted = decoded_fields(options.fields, format)
    schemas = {file.path: pa.schema([*file.schema, *message_schema(wanted)]) for file in files}
    is_taken = taken_names(run.state)

    def prepared(file: PayloadFile, batch: DecodedBatch) -> pa.RecordBatch:
        return with_kept_columns(batch, file.keep, schemas[file.path])

    found = prepared_batches(
        files, prepared, replace(options, fields=wanted), batch_rows=batch_rows, workers=workers, ends=ends
    )
    unfinished: list[tuple[NewOutput, int]] = []

    def accept() -> None:
        totals.files.extend(run.accept(output.written(n_rows)) for output, n_rows in unfinished)
        unfinished.clear()

    with closing(found), ExitStack() as ending:
        following = next(found, None)
        for file, stem in zip(files, stems, strict=True):
            n_rows = 0
            layout = message_layout(file.keep, options.fields)
            # Workers encode the end of the file before while they decode this one.
            with ending.pop_all():
                output = ending.enter_context(run.files.open(stem, format, is_numbered=is_taken(stem)))
                write = ending.enter_context(writer_to(output, format, schemas[file.path], layout, workers=workers))
                while following is not None and following[0] is file:
                    _, batch, rows = following
                    write(rows)
                    if batch.bad is not None:
                        on_bad(batch.bad)
                    n_rows += len(rows)
                    totals.payload_bytes += batch.n_bytes
                    totals.bad_rows.update(batch.bad_rows)
                    on_rows(batch.n_read)
                    following = next(found, None)
                write.flush()
            accept()
            unfinished.append((output, n_rows))
    accept()
    return totals


def taken_names(state: State) -> Callable[[str], bool]:
    """Return a function that tells whether an earlier run may have given an output the name of a stem.

    It may have named it after an input file whose path ends with the stem, or have added its number.
    """
    by_name: dict[str, list[str]] = {}
    for item in state.files:
        path = f"/{item.path}".removesuffix(".parquet")
        by_name.setdefault(path.rpartition("/")[2], []).append(path)

    def is_taken(stem: str) -> bool:
        has_number = bool(state.files) and _NUMBERED.search(stem) is not None
        return has_number or any(path.endswith(f"/{stem}") for path in by_name.get(stem.rpartition("/")[2], ()))

    return is_taken


def decoded_fields(fields: Sequence[str] | None, format: Format) -> Sequence[str]:
    """Return the envelope columns that are decoded to write `fields` in a format."""
    return fields_to_decode(fields) if format != "parquet" else envelope_schema(fields).names


def message_schema(decoded: Sequence[str]) -> pa.Schema:
    """Return the envelope columns that are written: the decoded ones, and `error`."""
    return envelope_schema(dict.fromkeys((*decoded, "error")))


def with_kept_columns(batch: DecodedBatch, keep: Sequence[str], schema: pa.Schema) -> pa.RecordBatch:
    """Make one batch of the `keep` columns and the decoded columns."""
    arrays = [*(batch.source.column(name) for name in keep), *batch.envelope.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
