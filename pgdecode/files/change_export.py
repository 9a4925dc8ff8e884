"""Changes by the local engine of `pgdecode decode`: all input files to one output file, or one for each table."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode.changes.change_rows import CHANGES
from pgdecode.files.atomic_output import remove
from pgdecode.files.change_reader import FileChangeOptions, FileChanges
from pgdecode.files.ordered_files import OrderedBatch, OrderedFiles
from pgdecode.files.payload_files import BATCH_ROWS, FileFault, PathError
from pgdecode.files.writers import CHANGE_LAYOUT, TABLE_LAYOUT, WriteBatch, open_writer
from pgdecode.payloads.parallel import prefetched
from pgdecode.protocol.options import Format
from pgdecode.relations.version_tracker import SchemaChanged


@dataclass
class ChangeTotals:
    """What has been decoded."""

    payload_bytes: int = 0
    changes: int = 0
    bad_rows: dict[str, int] = field(default_factory=dict)  # by the code of the error
    skipped: int = 0  # transactions without a beginning
    undecided: int = 0  # transactions without an outcome
    empty_payloads: int = 0


def convert_changes(
    files: OrderedFiles,
    target: Path,
    *,
    relations: Sequence[str] = (),
    as_file: bool,
    format: Format,
    options: FileChangeOptions,
    batch_rows: int = BATCH_ROWS,
    on_rows: Callable[[int], None] = lambda n_rows: None,
) -> ChangeTotals:
    """Decode files to changes, or to the rows of tables.

    Memory holds a batch of payloads and a piece of what it commits; transactions that are not decided yet go to files.

    Parameters
    ----------
    files : OrderedFiles
    target : Path
        Must not exist.
    relations : sequence of str
        Tables, as "schema.table". The columns of their output are those of all versions that they have had: of the
        versions in the first batch, which mostly are all. Where others come, or anything goes wrong, all is done anew,
        once the files have been gone over for the versions.
    as_file : bool
        Make `target` a file; else a folder with `changes`, or a file for each table under its name.
    format : {"parquet", "jsonl", "csv"}
    options : FileChangeOptions
    batch_rows : int
        Rows at a time, at most.
    on_rows : callable
        Told the number of rows after each batch; with tables twice as many as there are, and less than none where what
        was done does not count.

    Raises
    ------
    FileFault
        If a file is damaged or out of order, or in FAILFAST mode at a bad payload or value; what was written by then
        is left to the caller.
    PathError
        If no message describes a table.
    FileExistsError
    """
    if os.path.lexists(target):
        raise FileExistsError(target)
    told = 0

    def batches(times: int = 1) -> Iterator[OrderedBatch]:
        nonlocal told
        for batch in prefetched(files.batches(batch_rows)):
            yield batch
            told += times * len(batch.payloads)
            on_rows(times * len(batch.payloads))

    def anew(with_rows: bool) -> ChangeTotals:
        nonlocal told
        remove(target)
        on_rows(-told)
        told = 0
        reader = FileChanges(files, options, relations)
        for batch in batches():
            reader.follow(batch, with_rows)
        return _written(reader, batches(), target, reader.second_pass(with_rows=with_rows), as_file, format)

    reader = FileChanges(files, options, relations)
    if not relations:
        return _written(reader, batches(), target, {None: CHANGES}, as_file, format)
    for batch in islice(files.batches(batch_rows), 1):
        reader.follow(batch)
    # Types that come later may make room for a value that one now has no room for.
    with suppress(FileFault, PathError, SchemaChanged):
        return _written(reader, batches(2), target, reader.second_pass(is_fixed=True), as_file, format)
    # Where payloads are bad, rows may tell that a Relation message is not what it seems without them.
    with suppress(SchemaChanged):
        return anew(with_rows=False)
    return anew(with_rows=True)


def _written(
    reader: FileChanges,
    batches: Iterable[OrderedBatch],
    target: Path,
    schemas: Mapping[str | None, pa.Schema],
    as_file: bool,
    format: Format,
) -> ChangeTotals:
    """Decode batches to files of their own for each schema."""
    if not as_file:
        target.mkdir()
    totals = ChangeTotals()
    with ExitStack() as stack:
        writers: dict[str | None, WriteBatch] = {}
        for name, schema in schemas.items():
            part = target if as_file else target / f"{part_name(name)}.{format}"
            layout = CHANGE_LAYOUT if name is None else TABLE_LAYOUT
            writers[name] = stack.enter_context(open_writer(part, format, schema, layout, len(schemas)))
        for batch in batches:
            for name, rows in reader.decode(batch):
                writers[name](rows)
            totals.payload_bytes += pc.sum(pc.binary_length(batch.payloads)).as_py() or 0
        for name, rows in reader.rest():
            writers[name](rows)
    decoder = reader.decoder
    totals.changes, totals.bad_rows = reader.n_changes, dict(reader.bad_rows)
    totals.skipped, totals.undecided, totals.empty_payloads = (
        decoder.skipped,
        decoder.n_undecided,
        decoder.empty_payloads,
    )
    return totals


def part_name(relation: str | None) -> str:
    """Name the file of a table, without its format; None is all changes.

    What a file system or a reader of folders would take amiss is written as in a URL: a slash, a leading `_` or `.`.
    """
    if relation is None:
        return "changes"
    safe = "".join(_in_url(char) if char in "%/\\" or not char.isprintable() else char for char in relation)
    return _in_url(safe[0]) + safe[1:] if safe[0] in "_." else safe


def _in_url(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode())
