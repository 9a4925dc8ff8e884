"""The commands `inspect`, `cat` and `decode`: their options, and what they print."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Iterator, Sequence
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
from pgdecode.cli.decode_command import decode
from pgdecode.cli.demo_command import demo_command
from pgdecode.cli.report import report_text
from pgdecode.cli.terminal import counted, progress, standard_output
from pgdecode.files.atomic_output import scratch_folder, staged
from pgdecode.files.change_reader import FileChangeOptions, FileChanges
from pgdecode.files.change_text import change_lines
from pgdecode.files.envelope_batches import DecodedBatch, decoded_batches
from pgdecode.files.envelope_text import fields_to_decode, json_lines, printable
from pgdecode.files.message_statistics import CHANGES, FIELDS, MessageStatistics
from pgdecode.files.ordered_files import OrderedFiles, ordered_files
from pgdecode.files.payload_files import FileFault, PathError, PayloadFile, payload_files
from pgdecode.files.transaction_statistics import TransactionStatistics
from pgdecode.protocol.messages import MESSAGES
from pgdecode.protocol.options import InStream, Mode

KINDS = (*(message.kind for message in MESSAGES), "error")
KINDS_OF_CHANGES = (*CHANGES, "error")
CAT_BATCH_ROWS = 4096  # small, so that the first lines come at once


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="pgdecode", message="%(prog)s %(version)s")
@click.pass_context
def pgdecode(context: click.Context) -> None:
    """Decode PostgreSQL logical replication messages (pgoutput) kept in Parquet files, one message per row.

    Exit codes: 0 done; 1 data that cannot be decoded, or output that cannot be written; 2 what was asked for cannot
    be done.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(2)


pgdecode.add_command(decode)
pgdecode.add_command(capture)
pgdecode.add_command(demo_command)


@pgdecode.command(short_help="Say what is in a file or folder.")
@click.argument("path", type=parameters.path)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, not tables.")
@parameters.payload
@parameters.in_stream
@parameters.position
@click.option(
    "--write-catalog",
    type=parameters.path,
    metavar="FILE",
    help="Write the relations with all their versions to a file, for --catalog. It must not exist.",
)
def inspect(
    path: Path, as_json: bool, payload: str, in_stream: str, position: str | None, write_catalog: Path | None
) -> None:
    """Say what is in PATH, a Parquet file or a folder of them.

    Messages by kind, transactions, the range of LSNs, protocol features, relations with their columns, versions and
    changes, and messages that cannot be decoded: they are part of the report, the exit code is 0. Which transactions
    have no outcome, and from where on a version of a relation counts, is known if messages are in slot order.
    """
    files = ordered_files(path, payload, position)
    if write_catalog is not None and write_catalog.exists():
        raise PathError(f"{write_catalog}: exists already")
    summary = MessageStatistics()
    transaction_statistics = TransactionStatistics(files) if in_stream == "ordered" else None
    with progress(files.n_rows) as on_rows:
        for file in files.files:
            batches = decoded_batches(file, fields=FIELDS, in_stream=parameters.IN_STREAM[in_stream], mode="PERMISSIVE")
            for batch in batches:
                summary.add(batch, file.path, payload)
                if transaction_statistics is not None:
                    transaction_statistics.add(file, batch)
                on_rows(batch.n_read)
    if write_catalog is not None:
        _write_catalog(write_catalog, transaction_statistics)
    figures = {"path": printable(str(path)), "files": len(files.files), **summary.as_dict(transaction_statistics)}
    with standard_output() as write:
        if as_json:
            write(json.dumps(figures, ensure_ascii=False, indent=2) + "\n")
        else:
            title = str(path) if path.is_file() else f"{path}: {counted(len(files.files), 'file')}"
            write(report_text(figures, title, Console()))


def _write_catalog(target: Path, transaction_statistics: TransactionStatistics | None) -> None:
    if transaction_statistics is None or not transaction_statistics.complete:
        why = (
            "--in-stream says that messages are in no order"
            if transaction_statistics is None
            else transaction_statistics.fault
        )
        raise FileFault(f"{target}: not written: {why}")
    with staged(target) as hidden:
        hidden.write_text(transaction_statistics.catalog.to_json(), encoding="utf-8")


@pgdecode.command(short_help="Print messages or changes as JSON, one object a line.")
@click.argument("path", type=parameters.path)
@click.option("--changes", is_flag=True, help="Print committed changes, not messages.")
@click.option("--limit", type=click.IntRange(min=0), metavar="N", help="Stop after N lines.")
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    metavar="KIND,...",
    callback=parameters.known(KINDS),
    help="Only messages (or changes) of these kinds, such as insert,update; 'error' means bad ones.",
)
@parameters.payload
@parameters.in_stream
@parameters.changes
@parameters.mode
def cat(
    path: Path,
    changes: bool,
    limit: int | None,
    kinds: tuple[str, ...],
    payload: str,
    in_stream: str,
    position: str | None,
    session: str | None,
    mode: Mode,
    **of_changes: Any,
) -> None:
    r"""Print the messages in PATH, a Parquet file or a folder of them, as one JSON object each.

    An object has the fields of its message that are not null. LSNs are as in PostgreSQL (16/B374D848), times in UTC
    (as microseconds since 1970 where ISO 8601 does not reach). Values of tuples are strings; those in binary format
    or not in UTF-8 are \x and hexadecimal digits. Columns whose TOASTed value was not sent are null, and their
    ordinals, counted from 0, are in "unchanged". A null row is {}. With --mode PERMISSIVE a bad message is
    {"row": ..., "error": ...}.

    With --changes, print what the transactions in PATH commit, in the order in which to apply it. "old" and "new" map
    columns to PostgreSQL's text form, binary values too; a column that was not sent is not in them, and "unchanged"
    names those whose TOASTed value was not.
    """
    context = click.get_current_context()
    lines: Iterator[list[str]]
    if changes:
        parameters.refuse(context, parameters.OF_MESSAGES, "messages")
        unknown = next((kind for kind in kinds if kind not in KINDS_OF_CHANGES), None)
        if unknown is not None:
            raise click.UsageError(f"--kind {unknown}: with --changes there are {', '.join(KINDS_OF_CHANGES)}")
        asked = parameters.change_parameters(mode, of_changes)
        lines = _change_lines(ordered_files(path, payload, position, session), asked, kinds)
    else:
        parameters.refuse(context, parameters.OF_CHANGES, "--changes")
        lines = _message_lines(payload_files(path, payload), kinds, parameters.IN_STREAM[in_stream], mode)
    left = sys.maxsize if limit is None else limit
    with standard_output() as write:
        while left:
            found = next(lines, None)
            if found is None:
                break
            write("".join(f"{line}\n" for line in found[:left]))
            left -= len(found[:left])


def _change_lines(files: OrderedFiles, asked: FileChangeOptions, kinds: tuple[str, ...]) -> Iterator[list[str]]:
    """Render changes of these kinds, batch by batch."""
    with scratch_folder() as spill:
        reader = FileChanges(files, replace(asked, spill=spill))
        found = (rows for batch in files.batches(CAT_BATCH_ROWS) for _, rows in reader.decode(batch))
        for rows in chain(found, (rows for _, rows in reader.finish())):
            yield change_lines(rows.filter(_chosen(rows, "op", kinds)) if kinds else rows)


def _message_lines(
    files: Sequence[PayloadFile], kinds: tuple[str, ...], in_stream: InStream | bool, mode: Mode
) -> Iterator[list[str]]:
    """Render messages of these kinds, batch by batch."""
    for file in files:
        batches = decoded_batches(
            file, fields=fields_to_decode(), in_stream=in_stream, mode=mode, batch_rows=CAT_BATCH_ROWS
        )
        for batch in batches:
            yield _lines(batch, kinds, str(file.path) if len(files) > 1 else None)


def _lines(batch: DecodedBatch, kinds: tuple[str, ...], file: str | None) -> list[str]:
    envelope = batch.envelope
    rows: Sequence[int] = range(batch.start, batch.start + len(envelope))
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
    """Tell the rows of these kinds."""
    wanted = [rows.column("error").is_valid()] if "error" in kinds else []
    wanted += [pc.equal(rows.column(column), kind) for kind in kinds]
    return functools.reduce(pc.or_kleene, wanted)
