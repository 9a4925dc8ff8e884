"""The local engine of `pgdecode decode` for messages: one output file for each input file, in constant memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from pgdecode.envelope.schema import envelope_schema
from pgdecode.files.envelope_batches import DecodedBatch, prepared_batches
from pgdecode.files.envelope_text import fields_to_decode
from pgdecode.files.payload_file import BATCH_ROWS, PayloadFile
from pgdecode.files.writers import message_layout, open_writer
from pgdecode.payloads.workers import ONE_WORKER, Workers
from pgdecode.protocol.limits import LIMITS, Limits
from pgdecode.protocol.options import Format, InStream, Mode
from pgdecode.storage.object_path import FilePath, relative_name


@dataclass
class Totals:
    """Counts of decoded data so far."""

    rows: int = 0
    payload_bytes: int = 0
    bad_rows: Counter[str] = field(default_factory=Counter)  # by error code
    files: list[tuple[str, int]] = field(default_factory=list)  # names, relative to a folder, and rows


def convert(
    files: Sequence[PayloadFile],
    source: FilePath,
    target: Path,
    *,
    as_file: bool,
    format: Format,
    fields: Sequence[str] | None = None,
    in_stream: InStream | bool = "ordered",
    mode: Mode = "FAILFAST",
    limits: Limits = LIMITS,
    batch_rows: int = BATCH_ROWS,
    workers: Workers = ONE_WORKER,
    on_rows: Callable[[int], None] = lambda n_rows: None,
    on_bad: Callable[[pa.RecordBatch], object] = lambda bad: None,
) -> Totals:
    """Decode files.

    Parameters
    ----------
    files : sequence of PayloadFile
        The result of `payload_files(source, ...)`.
    source : Path or ObjectPath
        The path of the input.
    target : Path
        Must not exist.
    as_file : bool
        Make `target` a file, for a single input file; otherwise a folder with a file for each input file, under its
        relative path.
    format : {"parquet", "jsonl", "csv"}
    fields, in_stream, mode, limits, batch_rows
        As in `decoded_batches`.
    workers : Workers
        They read ahead, decode and encode the output, which does not depend on their number.
    on_rows : callable
        Called with the number of rows after each batch.
    on_bad : callable
        Called with bad payloads, as `writers.BAD_PAYLOADS`.

    Returns
    -------
    Totals

    Raises
    ------
    FileFault
        As in `decoded_batches`. The caller must remove the incomplete output.
    """
    totals = Totals()
    wanted = fields_to_decode(fields) if format != "parquet" else envelope_schema(fields).names
    schemas = {
        file.path: pa.schema([*file.schema, *envelope_schema(dict.fromkeys((*wanted, "error")))]) for file in files
    }

    def prepared(file: PayloadFile, batch: DecodedBatch) -> pa.RecordBatch:
        return with_kept_columns(batch, file.keep, schemas[file.path])

    found = prepared_batches(
        files, prepared, wanted, in_stream, mode, limits=limits, batch_rows=batch_rows, workers=workers
    )
    with closing(found), ExitStack() as unfinished:
        following = next(found, None)
        for file in files:
            name = _part_name(file.path, source, format)
            n_rows = 0
            part = target if as_file else target / name
            part.parent.mkdir(parents=True, exist_ok=True)
            layout = message_layout(file.keep, fields)
            # Workers encode the end of the file before while they decode this one.
            with unfinished.pop_all():
                write = unfinished.enter_context(open_writer(part, format, schemas[file.path], layout, workers=workers))
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
            totals.files.append((name.as_posix(), n_rows))
    return totals


def _part_name(path: FilePath, source: FilePath, format: str) -> Path:
    relative = Path(relative_name(path, source))
    return relative.with_name(f"{relative.name.removesuffix('.parquet')}.{format}")


def with_kept_columns(batch: DecodedBatch, keep: Sequence[str], schema: pa.Schema) -> pa.RecordBatch:
    """Make one batch of the `keep` columns and the decoded columns."""
    arrays = [*(batch.source.column(name) for name in keep), *batch.envelope.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
