"""The commands `inspect`, `decode` and `cat`: their options, and what they print."""

from __future__ import annotations

import functools
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import pyarrow.compute as pc
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from pgdecode.batches import MODES, DecodedBatch, decoded_batches
from pgdecode.convert import convert
from pgdecode.files import BATCH_ROWS, PayloadFile, payload_files
from pgdecode.messages import ENVELOPE, MESSAGES
from pgdecode.preview import first_lines
from pgdecode.render import fields_to_decode, json_lines, printable
from pgdecode.report import report_text, size_text
from pgdecode.staging import check_target, staged
from pgdecode.summary import FIELDS, Summary
from pgdecode.writers import FORMATS

IN_STREAM: dict[str, bool | str | None] = {"ordered": None, "auto": "auto", "true": True, "false": False}
ENVELOPE_NAMES = tuple(column.name for column in ENVELOPE)
KINDS = (*(message.kind for message in MESSAGES), "error")
CAT_BATCH_ROWS = 4096  # small, so that the first lines come at once


def _names(context: click.Context, option: click.Parameter, values: Sequence[str]) -> tuple[str, ...]:
    """Split names that were given with commas, by repeating the option, or both."""
    return tuple(dict.fromkeys(name for value in values for name in value.split(",") if name))


def _known(known: Sequence[str]) -> Callable[[click.Context, click.Parameter, Sequence[str]], tuple[str, ...]]:
    """Split names, and refuse those that are not known."""

    def split(context: click.Context, option: click.Parameter, values: Sequence[str]) -> tuple[str, ...]:
        names = _names(context, option, values)
        for name in names:
            if name not in known:
                raise click.BadParameter(f"no {name!r}; there are {', '.join(known)}", context, option)
        return names

    return split


_path = click.Path(path_type=Path)
_payload = click.option(
    "--payload", default="data", show_default=True, metavar="COLUMN", help="The column that holds the messages."
)
_in_stream = click.option(
    "--in-stream",
    type=click.Choice([*IN_STREAM]),
    default="ordered",
    show_default=True,
    help="Which messages carry the xid of a streamed transaction: 'ordered' follows stream_start and stream_stop in "
    "each file, which is exact; 'auto' looks at each message alone; 'true' and 'false' say so of all.",
)
_mode = click.option(
    "--mode",
    type=click.Choice(MODES, case_sensitive=False),
    metavar=f"[{'|'.join(MODES)}]",
    default="FAILFAST",
    show_default=True,
    help="At a bad message: stop; give its error instead; leave it out.",
)


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


@pgdecode.command(short_help="Say what is in a file or folder.")
@click.argument("path", type=_path)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, not tables.")
@_payload
@_in_stream
def inspect(path: Path, as_json: bool, payload: str, in_stream: str) -> None:
    """Say what is in PATH, a Parquet file or a folder of them.

    Messages by kind, transactions, the range of LSNs, protocol features, relations with their columns and changes,
    and messages that cannot be decoded: they are part of the report, the exit code is 0.
    """
    files = payload_files(path, payload)
    summary = Summary()
    with _progress(files) as on_rows:
        for file in files:
            batches = decoded_batches(file, fields=FIELDS, in_stream=IN_STREAM[in_stream], mode="PERMISSIVE")
            for batch in batches:
                summary.add(batch, file.path, payload)
                on_rows(batch.n_read)
    figures = {"path": printable(str(path)), "files": len(files), **summary.as_dict()}
    with _standard_output() as write:
        if as_json:
            write(json.dumps(figures, ensure_ascii=False, indent=2) + "\n")
        else:
            title = str(path) if path.is_file() else f"{path}: {_counted(len(files), 'file')}"
            write(report_text(figures, title, Console()))


@pgdecode.command(short_help="Print messages as JSON, one object a line.")
@click.argument("path", type=_path)
@click.option("--limit", type=click.IntRange(min=0), metavar="N", help="Stop after N lines.")
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    metavar="KIND,...",
    callback=_known(KINDS),
    help="Only messages of these kinds, such as insert,update; 'error' means bad ones.",
)
@_payload
@_in_stream
@_mode
def cat(path: Path, limit: int | None, kinds: tuple[str, ...], payload: str, in_stream: str, mode: str) -> None:
    r"""Print the messages in PATH, a Parquet file or a folder of them, as one JSON object each.

    An object has the fields of its message that are not null. LSNs are as in PostgreSQL (16/B374D848), times in UTC
    (as microseconds since 1970 where ISO 8601 does not reach). Values of tuples are strings; those in binary format
    or not in UTF-8 are \x and hexadecimal digits. Columns whose TOASTed value was not sent are null, and their
    ordinals, counted from 0, are in "unchanged". A null row is {}. With --mode PERMISSIVE a bad message is
    {"row": ..., "error": ...}.
    """
    files = payload_files(path, payload)
    with _standard_output() as write:
        left = sys.maxsize if limit is None else limit
        for file in files:
            batches = decoded_batches(
                file,
                fields=fields_to_decode(),
                in_stream=IN_STREAM[in_stream],
                mode=mode,
                batch_rows=CAT_BATCH_ROWS,
            )
            for batch in batches if left else ():
                lines = _lines(batch, kinds, left, str(file.path) if len(files) > 1 else None)
                write("".join(f"{line}\n" for line in lines))
                left -= len(lines)
                if not left:
                    break


def _lines(batch: DecodedBatch, kinds: tuple[str, ...], limit: int, file: str | None) -> list[str]:
    """Render the rows of these kinds, `limit` at most."""
    envelope = batch.envelope
    rows: Sequence[int] = range(batch.start, batch.start + len(envelope))
    if kinds:
        wanted = [envelope.column("error").is_valid()] if "error" in kinds else []
        wanted += [pc.equal(envelope.column("kind"), kind) for kind in kinds]
        chosen = functools.reduce(pc.or_kleene, wanted)
        envelope = envelope.filter(chosen)
        rows = [row for row, is_chosen in zip(rows, chosen.to_pylist(), strict=True) if is_chosen]
    envelope = envelope.slice(0, limit)
    lines = json_lines(envelope)
    errors = envelope.column("error")
    for index, error in enumerate(errors.to_pylist() if errors.null_count < len(errors) else ()):
        if error is not None:
            where = {} if file is None else {"file": printable(file)}
            lines[index] = json.dumps({**where, "row": rows[index], "error": error}, ensure_ascii=False)
    return lines


@pgdecode.command(short_help="Decode to Parquet, JSON lines or CSV.")
@click.argument("source", type=_path, metavar="IN")
@click.argument("target", type=_path, metavar="OUT")
@click.option("--messages", is_flag=True, default=True, help="Write one row per message (this is the default).")
@click.option(
    "--engine",
    type=click.Choice(["local", "spark"]),
    default="local",
    show_default=True,
    help="In this process, in constant memory; or as a job of a local Spark.",
)
@click.option("--format", type=click.Choice(FORMATS), help="Default: what the name OUT ends in, else parquet.")
@_payload
@click.option(
    "--keep",
    multiple=True,
    metavar="COLUMN,...",
    callback=_names,
    help="Columns of the input to carry along, in front of the decoded ones.",
)
@click.option(
    "--fields",
    multiple=True,
    metavar="FIELD,...",
    callback=_known(ENVELOPE_NAMES),
    help="Decoded columns to write, in this order. Default: all but xid_basis.",
)
@_in_stream
@_mode
@click.option("--batch-rows", type=click.IntRange(min=1), metavar="N", help=f"Rows at a time. Default: {BATCH_ROWS}.")
@click.option("--overwrite", is_flag=True, help="Replace OUT, once the new output is complete.")
@click.option("--show", type=click.IntRange(min=0), default=0, metavar="N", help="Then print the first N rows of OUT.")
def decode(
    source: Path,
    target: Path,
    messages: bool,
    engine: str,
    format: str | None,
    payload: str,
    keep: tuple[str, ...],
    fields: tuple[str, ...],
    in_stream: str,
    mode: str,
    batch_rows: int | None,
    overwrite: bool,
    show: int,
) -> None:
    """Decode IN, a Parquet file or a folder of them, to OUT.

    OUT is a file if IN is one and OUT ends in .parquet, .jsonl or .csv; else a folder, with a file for each input
    under the same name. With --engine spark it is always a folder. It appears when it is complete, or not at all.

    In JSON lines each object has the fields of its message, as "pgdecode cat" prints them; with --fields it has all
    of these, null where empty. In CSV nested columns are JSON text and an empty string is "", unlike null.
    """
    chosen = _format(target, format)
    # Spark would not tell apart names that differ in case only.
    collision = next((name for name in keep if name.lower() in ENVELOPE_NAMES), None)
    if collision is not None:
        raise click.UsageError(f"--keep {collision}: a decoded column has that name")
    if engine == "spark" and batch_rows is not None:
        raise click.UsageError("--batch-rows is for --engine local")
    files = payload_files(source, payload, keep)
    check_target(target, source, overwrite=overwrite)
    begun = time.monotonic()
    with staged(target) as hidden:
        if engine == "local":
            with _progress(files) as on_rows:
                totals = convert(
                    files,
                    source,
                    hidden,
                    as_file=source.is_file() and target.suffix == f".{chosen}",
                    format=chosen,
                    fields=fields or None,
                    in_stream=IN_STREAM[in_stream],
                    mode=mode,
                    batch_rows=batch_rows or BATCH_ROWS,
                    on_rows=on_rows,
                )
            read, bad = f" ({size_text(totals.payload_bytes)} of messages)", _bad(totals.bad_rows, mode)
        else:
            _decode_with_spark(
                source,
                hidden,
                payload=payload,
                keep=keep,
                fields=fields or None,
                in_stream=IN_STREAM[in_stream],
                mode=mode,
                format=chosen,
            )
            read, bad = "", "no bad ones" if mode == "FAILFAST" else "bad ones not counted"
        written = sum(part.stat().st_size for part in (hidden, *hidden.rglob("*")) if part.is_file())
    n_rows = sum(file.n_rows for file in files)
    done = f"{_counted(n_rows, 'row')}{read} in {time.monotonic() - begun:.2f} s, {bad}; {size_text(written)} written"
    click.echo(f"{printable(str(target))}: {done}", err=True)
    if show:
        with _standard_output() as write:
            for line in first_lines(target, show, chosen, keep=keep, fields=fields or None):
                write(_fitting(line) + "\n")


def _fitting(line: str) -> str:
    """Cut a line to the width of the terminal, if it goes to one."""
    width = shutil.get_terminal_size().columns
    return line if len(line) <= width or not sys.stdout.isatty() else f"{line[: width - 1]}…"


def _decode_with_spark(source: Path, target: Path, **options: Any) -> None:
    try:
        from spark_udfs.java import JavaNotFound
        from spark_udfs.jobs import decode_files
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("pyspark", "pandas"):
            raise
        raise click.UsageError("--engine spark needs: pip install 'pgdecode[spark]'") from error
    try:
        decode_files(source, target, **options)
    except JavaNotFound as error:
        raise click.UsageError(str(error)) from error


def _format(target: Path, format: str | None) -> str:
    ending = target.suffix.removeprefix(".")
    if ending in FORMATS:
        if format not in (None, ending):
            raise click.UsageError(f"--format {format}, but {target.name} ends in .{ending}")
        return ending
    return format or "parquet"


def _bad(n_rows: int, mode: str) -> str:
    if n_rows == 0:
        return "no bad ones"
    return f"{n_rows:,} bad ones {'left out' if mode == 'DROPMALFORMED' else 'with their error'}"


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


@contextmanager
def _progress(files: Sequence[PayloadFile]) -> Iterator[Callable[[int], None]]:
    """Show on a terminal how many rows are done; give what to tell each batch's number of rows."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda n_rows: None
        return
    count = TextColumn("{task.completed:,.0f} of {task.total:,.0f} rows")
    columns = (BarColumn(), count, TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=sum(file.n_rows for file in files))
        yield lambda n_rows: progress.advance(task, n_rows)


@contextmanager
def _standard_output() -> Iterator[Callable[[str], object]]:
    """Give what writes text to standard output; a reader who has seen enough is no error."""
    stream = sys.stdout.buffer
    try:
        try:
            yield lambda text: stream.write(text.encode())
        finally:
            # Lines before a bad message come before the error that names it.
            stream.flush()
    except BrokenPipeError:
        # Python would flush once more at its end, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
