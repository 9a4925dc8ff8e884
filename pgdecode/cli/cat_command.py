"""The command `cat`: prints messages or changes."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import click
import pyarrow as pa
import pyarrow.compute as pc

from pgdecode.cli import parameters
from pgdecode.cli.row_history import RowHistory
from pgdecode.cli.tables import TypeNames, What, print_table
from pgdecode.cli.terminal import is_terminal, standard_output, table_console, warn
from pgdecode.datasets.single_file import scratch_folder
from pgdecode.files.change_reader import FileChangeOptions, FileChanges
from pgdecode.files.change_text import change_lines
from pgdecode.files.envelope_batches import DecodedBatch, MessageOptions, decoded_batches
from pgdecode.files.envelope_text import fields_to_decode, json_lines, printable
from pgdecode.files.file_metadata import notes_of, user_types_of
from pgdecode.files.message_statistics import CHANGES
from pgdecode.files.ordered_files import OrderedFiles, ordered_files
from pgdecode.files.payload_file import PayloadFile
from pgdecode.files.payload_files import payload_files
from pgdecode.protocol.errors import listed
from pgdecode.protocol.limits import Limits
from pgdecode.protocol.messages import MESSAGES
from pgdecode.protocol.options import InStream, Mode, Unwrap
from pgdecode.relations.catalog import RelationCatalog
from pgdecode.relations.relation_version import RelationVersion
from pgdecode.relations.table_names import normal_name
from pgdecode.storage.errors import PathError
from pgdecode.storage.object_path import file_path

KINDS = (*(message.kind for message in MESSAGES), "error")
KINDS_OF_CHANGES = (*CHANGES, "error")
_TABLE_ROWS = 500  # each table has its header
CAT_BATCH_ROWS = 4096  # small, so that the first lines are printed immediately


def _table(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    return None if value is None else normal_name(value)


def _values(context: click.Context, option: click.Parameter, values: Sequence[str]) -> dict[str, str]:
    """Parse COLUMN=VALUE."""
    for value in values:
        if "=" not in value.lstrip("="):
            raise click.BadParameter(f"{value!r} is not COLUMN=VALUE, such as id=2", context, option)
    return {name: text for name, _, text in (value.partition("=") for value in values)}


@click.command(cls=parameters.GroupedCommand, short_help="Print messages or changes.")
@click.argument("location", type=parameters.location, metavar="PATH")
@click.option("--changes", is_flag=True, help="Print committed changes instead of messages.")
@click.option(
    "--table",
    metavar="SCHEMA.TABLE",
    callback=_table,
    help="Print the committed changes of this table, as --changes does.",
)
@click.option(
    "--key",
    multiple=True,
    metavar="COLUMN=VALUE",
    callback=_values,
    help="With --table: print only the changes of the rows that at some time have these values, such as id=2, also "
    "their changes under other keys, and truncates. Repeatable.",
)
@click.option("--limit", type=click.IntRange(min=0), metavar="N", help="Stop after N messages or changes.")
@parameters.as_json
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    metavar="KIND,...",
    callback=parameters.names,
    help="Print only messages or changes of these kinds, such as insert,update. 'error' means bad ones.",
)
@parameters.payload
@parameters.unwrap
@parameters.in_stream
@parameters.changes
@parameters.mode
@parameters.max_value_bytes
@parameters.storage_options
def cat(
    location: str,
    changes: bool,
    table: str | None,
    key: dict[str, str],
    limit: int | None,
    as_json: bool | None,
    kinds: tuple[str, ...],
    payload: str,
    unwrap: Unwrap,
    in_stream: str,
    position: str | None,
    session: str | None,
    storage_options: dict[str, str],
    **given: Any,
) -> None:
    r"""Print each message in PATH, a Parquet file or a folder of them; also s3://, gs://, az:// or abfss://.

    On a terminal, and with --no-json, messages are rows of a table. Otherwise, and with --json, each is a JSON object
    on its own line.

    An object has the fields of its message that are not null. LSNs are in PostgreSQL's form (16/B374D848). Times are
    in UTC and ISO 8601; years before 1 end with " BC". Values of tuples are strings; those in binary format or not in
    UTF-8 are \x and hexadecimal digits. Columns whose TOASTed value was not sent are null, and "unchanged" has their
    ordinals, counted from 0. A null row is {}. With --mode PERMISSIVE a bad message is {"row": ..., "error": ...}.

    With --changes, print the changes that the transactions in PATH commit, in the order in which to apply them. "old"
    and "new" map columns to PostgreSQL's text form, also for binary values. They do not have columns that were not
    sent. "unchanged" names the columns whose TOASTed value was not sent. With --table and --key, a row is followed from
    key to key; the input is read twice.
    """
    context = click.get_current_context()
    path = file_path(location, storage_options)
    if table is None:
        parameters.refuse(context, ["key"], "--table")
    changes = changes or table is not None
    if changes:
        parameters.refuse(context, parameters.OF_MESSAGES, "messages")
    else:
        parameters.refuse(context, parameters.OF_CHANGES, "--changes and --table")
    options = parameters.options_from(given)
    lines: Iterator[list[str]]
    if changes:
        parameters.check_names("--kind", kinds, KINDS_OF_CHANGES)
        ordered = ordered_files(path, payload, position, session, unwrap)
        files: Sequence[PayloadFile] = ordered.files
        of_files = FileChangeOptions(options, given["catalog"])
        lines = _change_lines(_table_changes(ordered, of_files, table, key), kinds)
    else:
        parameters.check_names("--kind", kinds, KINDS)
        files = payload_files(path, payload, (), unwrap)
        lines = _message_lines(files, kinds, parameters.IN_STREAM[in_stream], options.mode, options.limits)
    for note in notes_of(files):
        warn(note)
    left = sys.maxsize if limit is None else limit
    remedy = "--mode PERMISSIVE prints the errors of bad messages"
    with standard_output() as write, parameters.suggesting(remedy):
        as_table = is_terminal() if as_json is None else not as_json
        types = TypeNames(user_types_of(files) if as_table and not changes else ())
        show = _rows_as_text(write, "changes" if changes else "messages", types, as_table=as_table)
        while left:
            found = next(lines, None)
            if found is None:
                break
            show(found[:left])
            left -= len(found[:left])


def _rows_as_text(
    write: Callable[[str], object], what: What, types: TypeNames, *, as_table: bool
) -> Callable[[list[str]], object]:
    """Return a function that writes rows, which are lines of JSON, as they are or as tables."""
    if not as_table:
        return lambda lines: write("".join(f"{line}\n" for line in lines))
    console = table_console()

    def tables(lines: list[str]) -> None:
        for start in range(0, len(lines), _TABLE_ROWS):
            with console.capture() as captured:
                rows = [json.loads(line) for line in lines[start : start + _TABLE_ROWS]]
                print_table(console, what, rows, types=types)
            write(captured.get())

    return tables


def _change_lines(changes: Iterable[pa.RecordBatch], kinds: tuple[str, ...]) -> Iterator[list[str]]:
    """Format changes of these kinds as lines, batch by batch."""
    for rows in changes:
        yield change_lines(rows.filter(_chosen(rows, "op", kinds)) if kinds else rows).to_pylist()


def _decoded(files: OrderedFiles, options: FileChangeOptions) -> Iterator[tuple[pa.RecordBatch, RelationCatalog]]:
    """Decode changes batch by batch, with the relations so far."""
    with scratch_folder() as spill:
        reader = FileChanges(files, replace(options, spill=spill))
        decoded = (rows for batch in files.batches(CAT_BATCH_ROWS) for _, rows in reader.decode(batch))
        for rows in chain(decoded, (reader.count(None, rows) for _, rows, _ in reader.finish())):
            yield rows, reader.engine.catalog


def _table_changes(
    files: OrderedFiles, options: FileChangeOptions, table: str | None, key: Mapping[str, str]
) -> Iterator[pa.RecordBatch]:
    """Yield the changes of a table, or of all tables, and bad ones; with `key`, only those of the rows that had it."""
    if table is None:
        yield from (rows for rows, _ in _decoded(files, options))
        return
    history = RowHistory(key)
    for rows, versions in _of_table(files, options, table) if key else ():
        history.add(rows.filter(rows["op"].is_valid()), versions)
    chosen = history.chosen()
    for rows, _ in _of_table(files, options, table):
        if key:
            rows = rows.filter(rows["op"].is_valid())
            mask, chosen = chosen[: len(rows)], chosen[len(rows) :]
            rows = rows.filter(pa.array(mask, pa.bool_()))
        yield rows


def _of_table(
    files: OrderedFiles, options: FileChangeOptions, table: str
) -> Iterator[tuple[pa.RecordBatch, list[RelationVersion]]]:
    """Yield the changes of a table under all of its names, and bad ones, with the versions of the table so far."""
    versions: list[RelationVersion] = []
    catalog = RelationCatalog()
    for rows, catalog in _decoded(files, options):
        relation_ids = {item.relation_id for item in catalog if item.qualified_name == table}
        versions = [item for item in catalog if item.relation_id in relation_ids]
        is_wanted = pc.is_in(rows["relation_id"], pa.array(sorted(relation_ids), pa.int64()))
        yield rows.filter(pc.or_(is_wanted, pc.and_(rows["error"].is_valid(), rows["op"].is_null()))), versions
    if not versions:
        raise PathError(f"table {table}: no message describes this table; there are {listed(catalog.names)}")


def _message_lines(
    files: Sequence[PayloadFile], kinds: tuple[str, ...], in_stream: InStream | bool, mode: Mode, limits: Limits
) -> Iterator[list[str]]:
    """Format messages of these kinds as lines, batch by batch."""
    options = MessageOptions(fields_to_decode(), in_stream, mode, limits=limits)
    for file, batch in decoded_batches(files, options, CAT_BATCH_ROWS):
        yield _lines(batch, kinds, str(file.path) if len(files) > 1 else None)


def _lines(batch: DecodedBatch, kinds: tuple[str, ...], file: str | None) -> list[str]:
    envelope = batch.envelope
    rows = batch.rows
    if kinds:
        chosen = _chosen(envelope, "kind", kinds)
        envelope = envelope.filter(chosen)
        rows = [row for row, is_chosen in zip(rows, chosen.to_pylist(), strict=True) if is_chosen]
    lines: list[str] = json_lines(envelope).to_pylist()
    errors = envelope.column("error")
    for index, error in enumerate(errors.to_pylist() if errors.null_count < len(errors) else ()):
        if error is not None:
            where = {} if file is None else {"file": printable(file)}
            lines[index] = json.dumps({**where, "row": rows[index], "error": error}, ensure_ascii=False)
    return lines


def _chosen(rows: pa.RecordBatch, column: str, kinds: tuple[str, ...]) -> pa.Array:
    """Find the rows of these kinds."""
    wanted = [rows.column("error").is_valid()] if "error" in kinds else []
    wanted += [pc.equal(rows.column(column), kind) for kind in kinds]
    return functools.reduce(pc.or_kleene, wanted)
