"""The command group, and the commands `inspect` and `cat`."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console

from pgdecode.cli import parameters
from pgdecode.cli.capture_command import capture
from pgdecode.cli.clean_command import clean
from pgdecode.cli.decode_command import decode
from pgdecode.cli.demo_command import demo_command
from pgdecode.cli.report import report_text
from pgdecode.cli.state_report import state_figures, state_text
from pgdecode.cli.tables import What, print_table
from pgdecode.cli.terminal import counted, is_terminal, progress, standard_output, table_console
from pgdecode.files.atomic_output import scratch_folder, staged
from pgdecode.files.change_reader import FileChangeOptions, FileChanges
from pgdecode.files.change_text import change_lines
from pgdecode.files.envelope_batches import DecodedBatch, decoded_batches, prepared_batches
from pgdecode.files.envelope_text import fields_to_decode, json_lines, printable
from pgdecode.files.message_statistics import CHANGES, FIELDS, MessageStatistics
from pgdecode.files.ordered_files import OrderedFiles, ordered_files
from pgdecode.files.payload_files import FileFault, PathError, PayloadFile, payload_files
from pgdecode.files.transaction_statistics import TransactionStatistics
from pgdecode.payloads.unwrap import hint
from pgdecode.payloads.workers import Workers, all_cores
from pgdecode.protocol.messages import MESSAGES
from pgdecode.protocol.options import InStream, Mode, Unwrap
from pgdecode.storage.object_path import file_path

KINDS = (*(message.kind for message in MESSAGES), "error")
KINDS_OF_CHANGES = (*CHANGES, "error")
_TABLE_ROWS = 500  # each table has its header
CAT_BATCH_ROWS = 4096  # small, so that the first lines are printed immediately


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="pgdecode", message="%(prog)s %(version)s")
@click.pass_context
def pgdecode(context: click.Context) -> None:
    """Decode PostgreSQL logical replication messages (pgoutput) in Parquet files, one message per row.

    Exit codes: 0 done; 1 data cannot be decoded, or output cannot be written; 2 not possible as requested.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(2)


pgdecode.add_command(decode)
pgdecode.add_command(capture)
pgdecode.add_command(clean)
pgdecode.add_command(demo_command)


@pgdecode.command(short_help="Describe the messages in a file or folder.")
@click.argument("location", type=parameters.location, metavar="PATH")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object instead of tables.")
@click.option(
    "--catalog",
    is_flag=True,
    help="PATH is an output folder of 'decode' or a folder of 'decode --state'. Describe the state in it: the "
    "relations, and the transactions without an outcome.",
)
@parameters.payload
@parameters.unwrap
@parameters.in_stream
@parameters.position
@parameters.storage_options
@parameters.workers
@click.option(
    "--write-catalog",
    type=parameters.path,
    metavar="FILE",
    help="Write the relations with all their versions to a file, for --catalog. It must not exist.",
)
def inspect(
    location: str,
    as_json: bool,
    catalog: bool,
    payload: str,
    unwrap: Unwrap,
    in_stream: str,
    position: str | None,
    storage_options: dict[str, str],
    workers: int | None,
    write_catalog: Path | None,
) -> None:
    """Describe the messages in PATH, a Parquet file or a folder of them; also s3://, gs://, az:// or abfss://.

    The report has messages by kind, transactions, the range of LSNs, protocol features, and relations with their
    columns, versions and changes. Messages that cannot be decoded are part of the report. The exit code is 0, but 1 if
    no row is a pgoutput message and the rows have another known format, such as JSON. If the messages are in slot
    order, the report also has transactions without an outcome, and the position from which each version of a relation
    applies.
    """
    path = file_path(location, storage_options)
    if catalog:
        if not isinstance(path, Path):
            raise click.UsageError(f"--catalog is for local folders; {path} is in an object store")
        of_messages = ["payload", "unwrap", "in_stream", "position", "workers", "write_catalog"]
        parameters.refuse(click.get_current_context(), of_messages, "messages")
        state = state_figures(path)
        with standard_output() as write:
            write(_json(state) if as_json else state_text(state, Console()))
        return
    files = ordered_files(path, payload, position, unwrap=unwrap)
    if write_catalog is not None and write_catalog.exists():
        raise PathError(f"{write_catalog}: exists already")
    message_statistics = MessageStatistics()
    form = ""
    transaction_statistics = TransactionStatistics(files) if in_stream == "ordered" else None

    def counted_batch(file: PayloadFile, batch: DecodedBatch) -> MessageStatistics:
        return MessageStatistics.of(batch, file.path, payload)

    with Workers(workers or all_cores()) as threads, progress(files.n_rows) as on_rows:
        found = prepared_batches(
            files.files, counted_batch, FIELDS, parameters.IN_STREAM[in_stream], "PERMISSIVE", workers=threads
        )
        for file, batch, statistics in found:
            message_statistics.merge(statistics)
            if batch.n_bad and not form:
                bad = batch.envelope.column("error").is_valid().index(True).as_py()
                form = hint(batch.source.column(payload)[bad].as_py())
            if transaction_statistics is not None:
                transaction_statistics.add(file, batch)
            on_rows(batch.n_read)
    if write_catalog is not None:
        _write_catalog(write_catalog, transaction_statistics)
    figures = {
        "path": printable(str(path)),
        "files": len(files.files),
        **message_statistics.as_dict(transaction_statistics),
    }
    with standard_output() as write:
        if as_json:
            write(_json(figures))
        else:
            title = str(path) if files.files[0].path == path else f"{path}: {counted(len(files.files), 'file')}"
            write(report_text(figures, title, Console()))
    if form and not message_statistics.messages:
        raise FileFault(f"{path}: no row is a pgoutput message{form}")


def _json(figures: dict[str, Any]) -> str:
    return json.dumps(figures, ensure_ascii=False, indent=2) + "\n"


def _write_catalog(target: Path, transaction_statistics: TransactionStatistics | None) -> None:
    if transaction_statistics is None or not transaction_statistics.complete:
        why = (
            "with this --in-stream, messages have no order"
            if transaction_statistics is None
            else transaction_statistics.fault
        )
        raise FileFault(f"{target}: not written: {why}")
    with staged(target) as hidden:
        hidden.write_text(transaction_statistics.catalog.to_json(), encoding="utf-8")


@pgdecode.command(cls=parameters.GroupedCommand, short_help="Print messages or changes.")
@click.argument("location", type=parameters.location, metavar="PATH")
@click.option("--changes", is_flag=True, help="Print committed changes instead of messages.")
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
@parameters.storage_options
def cat(
    location: str,
    changes: bool,
    limit: int | None,
    as_json: bool | None,
    kinds: tuple[str, ...],
    payload: str,
    unwrap: Unwrap,
    in_stream: str,
    position: str | None,
    session: str | None,
    mode: Mode,
    storage_options: dict[str, str],
    **of_changes: Any,
) -> None:
    r"""Print each message in PATH, a Parquet file or a folder of them; also s3://, gs://, az:// or abfss://.

    On a terminal, and with --no-json, messages are rows of a table. Otherwise, and with --json, each is a JSON object
    on its own line.

    An object has the fields of its message that are not null. LSNs are in PostgreSQL's form (16/B374D848). Times are
    in UTC; outside the years 1 to 9999 they are microseconds since 1970. Values of tuples are strings; those in binary
    format or not in UTF-8 are \x and hexadecimal digits. Columns whose TOASTed value was not sent are null, and
    "unchanged" has their ordinals, counted from 0. A null row is {}. With --mode PERMISSIVE a bad message is
    {"row": ..., "error": ...}.

    With --changes, print the changes that the transactions in PATH commit, in the order in which to apply them. "old"
    and "new" map columns to PostgreSQL's text form, also for binary values. They do not have columns that were not
    sent. "unchanged" names the columns whose TOASTed value was not sent.
    """
    context = click.get_current_context()
    path = file_path(location, storage_options)
    lines: Iterator[list[str]]
    if changes:
        parameters.refuse(context, parameters.OF_MESSAGES, "messages")
        parameters.check_names("--kind", kinds, KINDS_OF_CHANGES)
        options = parameters.change_parameters(mode, of_changes)
        lines = _change_lines(ordered_files(path, payload, position, session, unwrap), options, kinds)
    else:
        parameters.refuse(context, parameters.OF_CHANGES, "--changes")
        parameters.check_names("--kind", kinds, KINDS)
        lines = _message_lines(payload_files(path, payload, (), unwrap), kinds, parameters.IN_STREAM[in_stream], mode)
    left = sys.maxsize if limit is None else limit
    remedy = "--mode PERMISSIVE prints the errors of bad messages"
    with standard_output() as write, parameters.suggesting(remedy):
        show = _rows_as_text(
            write, "changes" if changes else "messages", is_terminal() if as_json is None else not as_json
        )
        while left:
            found = next(lines, None)
            if found is None:
                break
            show(found[:left])
            left -= len(found[:left])


def _rows_as_text(write: Callable[[str], object], what: What, as_table: bool) -> Callable[[list[str]], object]:
    """Return a function that writes rows, which are lines of JSON, as they are or as tables."""
    if not as_table:
        return lambda lines: write("".join(f"{line}\n" for line in lines))
    console = table_console()

    def tables(lines: list[str]) -> None:
        for start in range(0, len(lines), _TABLE_ROWS):
            with console.capture() as captured:
                print_table(console, what, [json.loads(line) for line in lines[start : start + _TABLE_ROWS]])
            write(captured.get())

    return tables


def _change_lines(files: OrderedFiles, options: FileChangeOptions, kinds: tuple[str, ...]) -> Iterator[list[str]]:
    """Format changes of these kinds as lines, batch by batch."""
    with scratch_folder() as spill:
        reader = FileChanges(files, replace(options, spill=spill))
        found = (rows for batch in files.batches(CAT_BATCH_ROWS) for _, rows in reader.decode(batch))
        for rows in chain(found, (rows for _, rows in reader.finish())):
            yield change_lines(rows.filter(_chosen(rows, "op", kinds)) if kinds else rows)


def _message_lines(
    files: Sequence[PayloadFile], kinds: tuple[str, ...], in_stream: InStream | bool, mode: Mode
) -> Iterator[list[str]]:
    """Format messages of these kinds as lines, batch by batch."""
    batches = decoded_batches(
        files, fields=fields_to_decode(), in_stream=in_stream, mode=mode, batch_rows=CAT_BATCH_ROWS
    )
    for file, batch in batches:
        yield _lines(batch, kinds, str(file.path) if len(files) > 1 else None)


def _lines(batch: DecodedBatch, kinds: tuple[str, ...], file: str | None) -> list[str]:
    envelope = batch.envelope
    rows = batch.rows
    if kinds:
        chosen = _chosen(envelope, "kind", kinds)
        envelope = envelope.filter(chosen)
        rows = [row for row, is_chosen in zip(rows, chosen.to_pylist(), strict=True) if is_chosen]
    lines = json_lines(envelope)
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
