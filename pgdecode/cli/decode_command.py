"""The command `decode`: writes messages, changes, tables, net changes or snapshots to files."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import click
from click.core import ParameterSource

from pgdecode.cli import parameters
from pgdecode.cli.preview import first_lines, outputs
from pgdecode.cli.report import size_text
from pgdecode.cli.tables import What, print_table
from pgdecode.cli.terminal import (
    counted,
    fitting,
    is_terminal,
    plain_warnings,
    progress,
    standard_output,
    table_console,
    task_progress,
    warn,
)
from pgdecode.datasets.manifest import Manifest
from pgdecode.datasets.single_file import check_target
from pgdecode.datasets.target import target_at
from pgdecode.files.change_export import ChangeTotals
from pgdecode.files.envelope_text import printable
from pgdecode.files.payload_file import BATCH_ROWS
from pgdecode.files.writers import CHANGE_LAYOUT, TABLE_LAYOUT, message_layout
from pgdecode.jobs.decode_run import CHANGES, MESSAGES, DecodeJob
from pgdecode.jobs.decode_run import decode as run_job
from pgdecode.jobs.local_run import LocalEngine
from pgdecode.jobs.message_export import MessageTotals
from pgdecode.payloads.workers import all_cores
from pgdecode.protocol.messages import ENVELOPE
from pgdecode.protocol.options import AsOfKeywords, Format, Mode
from pgdecode.rows.options import OF_TABLES
from pgdecode.rows.value_options import ShapeKeywords
from pgdecode.storage.object_path import FilePath, file_path, real_path
from pgdecode.storage.object_store import found_object

Engine = Literal["local", "spark"]
# A folder may be called 2026.11.23, but not orders.parq.
_UNKNOWN_ENDING = re.compile(r"\.[A-Za-z]\w*")
ENVELOPE_NAMES = tuple(column.name for column in ENVELOPE)


def _settings(context: click.Context, option: click.Parameter, values: Sequence[str]) -> dict[str, str]:
    """Parse NAME=VALUE."""
    found = {}
    for value in values:
        name, equals, setting = value.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{value!r} is not NAME=VALUE, such as spark.executor.memory=4g", context, option)
        found[name] = setting
    return found


@click.command(cls=parameters.GroupedCommand, short_help="Decode to Parquet, JSON lines or CSV.")
@click.argument("source_location", type=parameters.location, metavar="IN")
@click.argument("target_location", type=parameters.location, metavar="OUT")
@click.option("--messages", is_flag=True, help="Write one row per message (this is the default).")
@click.option("--changes", is_flag=True, help="Write one row per committed change of all tables.")
@parameters.tables
@parameters.snapshots
@parameters.nets
@parameters.key
@click.option(
    "--engine",
    type=click.Choice(get_args(Engine)),
    default="local",
    show_default=True,
    help="local: in this process, with constant memory; spark: as a job on Spark.",
)
@click.option(
    "--master",
    metavar="URL",
    help="With --engine spark: Spark's master, such as spark://host:7077 or yarn. Default: the one that spark-submit "
    "has set, or else a local Spark on all cores.",
)
@click.option(
    "--remote", metavar="URL", help="With --engine spark: a server of Spark Connect, such as sc://host:15002."
)
@click.option(
    "--conf",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_settings,
    help="With --engine spark: a setting of Spark. Repeatable.",
)
@click.option("--format", type=click.Choice(get_args(Format)), help="Default: the suffix of OUT, or else parquet.")
@parameters.payload
@parameters.unwrap
@click.option(
    "--keep",
    multiple=True,
    metavar="COLUMN,...",
    callback=parameters.names,
    help="Columns of the input to write before the decoded columns.",
)
@click.option(
    "--fields",
    multiple=True,
    metavar="FIELD,...",
    callback=parameters.names,
    help="Decoded columns to write, in this order. Default: all but xid_basis.",
)
@parameters.in_stream
@parameters.changes
@parameters.renames
@parameters.unrepresentable
@parameters.name_clash
@parameters.shape
@parameters.as_of
@parameters.mode
@parameters.max_value_bytes
@parameters.workers
@click.option("--batch-rows", type=click.IntRange(min=1), metavar="N", help=f"Rows per batch. Default: {BATCH_ROWS}.")
@parameters.accept_gap
@parameters.storage_options
@click.option(
    "--bad",
    type=parameters.path,
    metavar="FILE",
    help="Leave bad messages out, and add them to this Parquet file: file, row, position, payload and error. With "
    "--mode PERMISSIVE, OUT has their errors, too.",
)
@click.option("--overwrite", is_flag=True, help="Begin anew: replace what earlier calls have written.")
@click.option(
    "--show", type=click.IntRange(min=0), default=0, metavar="N", help="Print the first N rows of each output."
)
@parameters.as_json
def decode(source_location: str, target_location: str, **given: Any) -> None:
    """Decode IN, a Parquet file or a folder of them, to OUT.

    OUT is a folder that grows: the same call again decodes what has come to IN since, and adds it to OUT as new files.
    IN may be a folder that grows, or a text file. Files that have been decoded may be deleted, and OUT's files moved
    away; its folder _pgdecode must stay. Options that change rows must be those of the first call.

    Messages: a file for each input file, under the same name. In JSON lines, each object has the fields of its message,
    as in "pgdecode cat". With --fields, it has all of these fields, including null ones. In CSV, nested columns are
    JSON text. An empty string is "", and null is empty.

    Changes and tables: IN is one sequence in slot order (see --position). OUT has the committed changes in the order in
    which to apply them, in the files "changes", or in files named after the table; several tables have a folder each.
    Transactions without an outcome are kept for the next call. Large transactions are kept in files until they end.
    With --engine spark, rows have no order.

    Snapshots: OUT has the rows of a table after all changes, each with the position and commit of its last change;
    _unknown lists the columns whose values are in no message. SCHEMA.TABLE is the last name of the table. The rows are
    in memory. If something has come, they are made anew from all files. With --as-of, they are the rows of then.

    Net changes: OUT has one row for each row of a table that the changes of a call touched, as it is after them, with
    the key that it had before. Each call adds one file. To apply it to the table: remove the rows with the keys in
    _key_before, then add the rows whose _action is upsert, with the columns in _unknown from the removed row.

    OUT is a single file, without a state for the next call, if it ends in .parquet, .jsonl or .csv, and there is one
    table or input file.

    Object stores: IN and OUT may be s3://, gs://, az:// or abfss://. Files have unique names, and the manifests in
    _pgdecode name those that count.
    """
    source, target = (file_path(item, given["storage_options"]) for item in (source_location, target_location))
    context = click.get_current_context()
    tables, snapshots, nets, engine, bad = (given[name] for name in ("tables", "snapshots", "nets", "engine", "bad"))
    if given["messages"] + given["changes"] + bool(tables) + bool(snapshots) + bool(nets) > 1:
        raise click.UsageError("use only one of --messages, --changes, --table, --snapshot and --net")
    what = tables or snapshots or nets or ((CHANGES,) if given["changes"] else (MESSAGES,))
    _check_options(context, what, engine, is_snapshot=bool(snapshots), is_net=bool(nets))
    if unknown := [name for name in given["renames"] if name not in what]:
        raise click.UsageError(f"--rename {unknown[0]}: not a table of --table, --snapshot or --net")
    parameters.check_names("--fields", given["fields"], ENVELOPE_NAMES)
    # By default, Spark does not distinguish names by case.
    collision = next((name for name in given["keep"] if name.lower() in ENVELOPE_NAMES), None)
    if collision is not None:
        raise click.UsageError(f"--keep {collision}: a decoded column has that name")
    options = parameters.options_from(given)
    if bad is not None:
        options = replace(options, mode=_mode_with_bad(context, options.mode, bad, source, target))
    format = _format(target, given["format"])
    is_file = engine == "local" and isinstance(target, Path) and target.suffix == f".{format}"
    if is_file and what == (MESSAGES,):
        is_file = source.is_file() if isinstance(source, Path) else found_object(source) is not None
    names = ("payload", "unwrap", "position", "session", "catalog", "keep", "accept_gap", "overwrite")
    job = DecodeJob(
        source=source,
        target=target_at(target, as_file=is_file and len(what) == 1),
        what=what,
        format=format,
        options=options,
        is_snapshot=bool(snapshots),
        is_net=bool(nets),
        key=given["key"],
        fields=given["fields"] or None,
        in_stream=parameters.IN_STREAM[given["in_stream"]],
        in_folders=len(what) > 1,
        **{name: given[name] for name in names},
    )
    started = time.monotonic()
    with parameters.suggesting(
        f"{'--mode DROPMALFORMED' if engine == 'spark' else '--bad FILE'} leaves bad messages out"
    ):
        if engine == "spark":
            report = _decode_on_spark(job, given)
        else:
            local = LocalEngine(bad, given["batch_rows"] or BATCH_ROWS, given["workers"] or all_cores(), progress)
            manifest = run_job(job, local, warn)
            report = _report(job, manifest, local.totals, time.monotonic() - started)
    click.echo(f"{printable(str(target))}: {report}", err=True)
    if given["show"] and isinstance(target, Path):
        as_tables = is_terminal() if given["as_json"] is None else not given["as_json"]
        _show(job, target, given["show"], as_tables=as_tables)


def _check_options(
    context: click.Context, what: tuple[str, ...], engine: Engine, *, is_snapshot: bool, is_net: bool
) -> None:
    """Refuse options that do not apply."""
    of_messages, of_changes = what == (MESSAGES,), what == (CHANGES,)
    if of_messages:
        parameters.refuse(context, parameters.OF_CHANGES, "--changes, --table, --snapshot and --net")
    else:
        parameters.refuse(context, parameters.OF_MESSAGES, "messages")
    if of_messages or of_changes:
        parameters.refuse(context, OF_TABLES, "--table, --snapshot and --net")
    if is_snapshot or is_net:
        parameters.refuse(context, ["include_uncommitted"], "--changes and --table")
        parameters.refuse(context, ShapeKeywords.__annotations__, "--table")
    if not is_net:
        parameters.refuse(context, ["key"], "--net")
    elif context.params["key"] and len(what) > 1:
        raise click.UsageError("--key is for one table of --net")
    elif context.params["mode"] == "PERMISSIVE":
        raise click.UsageError("--mode PERMISSIVE is not for --net: rows with an error are not changes of a row")
    if not is_snapshot:
        parameters.refuse(context, AsOfKeywords.__annotations__, "--snapshot")
    if engine == "spark":
        parameters.refuse(context, ["workers", "batch_rows", "bad"], "--engine local")
        parameters.refuse(context, ["snapshots"], "--engine local; on Spark, use spark_udfs.snapshot")
        parameters.refuse(context, ["nets"], "--engine local; on Spark, use spark_udfs.net_changes")
    else:
        parameters.refuse(context, ["master", "remote", "conf"], "--engine spark")
    if context.params["master"] is not None and context.params["remote"] is not None:
        raise click.UsageError("use only one of --master and --remote")


def _mode_with_bad(context: click.Context, mode: Mode, bad: Path, source: FilePath, target: FilePath) -> Mode:
    """Check --bad, and return the mode that it implies."""
    if mode == "FAILFAST" and context.get_parameter_source("mode") is not ParameterSource.DEFAULT:
        raise click.UsageError("--bad is not for --mode FAILFAST, which stops at the first bad message")
    if bad.suffix != ".parquet":
        raise click.UsageError(f"--bad {bad}: the file must end in .parquet")
    place = real_path(bad)
    if isinstance(target, Path) and (place == real_path(target) or real_path(target) in place.parents):
        raise click.UsageError(f"--bad {bad}: must not be OUT or in OUT")
    check_target(bad, source if isinstance(source, Path) else None, overwrite=True)
    return "DROPMALFORMED" if mode == "FAILFAST" else mode


def _report(
    job: DecodeJob, manifest: Manifest | None, totals: MessageTotals | ChangeTotals | None, seconds: float
) -> str:
    """Describe what a call has read and written. Tasks of Spark have no totals."""
    if manifest is None:
        return "nothing new"
    mode, of_changes = job.options.mode, not job.is_of_messages
    counts = _bad(manifest.bad_rows, mode, by_class=of_changes)
    if of_changes:
        what = counted(manifest.rows, "net change" if job.is_net else "change")
        what = f"{counted(manifest.rows, 'row')} at the end" if job.is_snapshot else what
        keeps = job.target.has_log and not job.is_snapshot
        counts = f"{what}, {counts}{_without_rows(job, manifest.skipped, manifest.undecided, keeps=keeps)}"
    if isinstance(totals, ChangeTotals):
        counts += _of_changes(totals, job)
    written = size_text(sum(file.bytes for file in manifest.files))
    size = f" ({size_text(totals.payload_bytes)} of messages)" if totals is not None and totals.payload_bytes else ""
    return f"{counted(manifest.input.rows, 'row')}{size} in {seconds:.2f} s, {counts}; {written} written"


def _of_changes(totals: ChangeTotals, job: DecodeJob) -> str:
    text = ""
    if totals.repeated:
        text += f", {counted(totals.repeated, 'transaction')} sent again or out of order"
        text += " left out" if job.options.drop_duplicates else ""
    if totals.empty_payloads:
        text += f", {counted(totals.empty_payloads, 'empty payload')} ignored"
    if totals.text_columns:
        columns = counted(totals.text_columns, "column")
        text += f", {columns} as text, because types were altered ({', '.join(totals.altered_types)})"
    return text


def _without_rows(job: DecodeJob, skipped: int, undecided: int, *, keeps: bool) -> str:
    """Describe how many transactions have no beginning or no outcome."""
    text = f", {counted(skipped, 'transaction')} without a beginning left out" if skipped else ""
    if undecided:
        verb = "included" if job.options.include_uncommitted else "kept for the next call" if keeps else "left out"
        text += f", {counted(undecided, 'transaction')} without an outcome {verb}"
    return text


def _decode_on_spark(job: DecodeJob, given: Mapping[str, Any]) -> str:
    """Run the job on Spark, and describe what it has read and written."""
    try:
        from spark_udfs.jobs.decode_files import for_tasks, job_errors
        from spark_udfs.jobs.file_route import SparkEngine
        from spark_udfs.runtime.java import JavaNotFound
        from spark_udfs.runtime.progress import watched
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("pyspark", "pandas"):
            raise
        raise click.UsageError("--engine spark needs: pip install 'pgdecode[spark]'") from error
    which = given["master"], given["remote"], given["conf"]
    started = time.monotonic()
    try:
        with (
            task_progress() as on_tasks,
            _session(*which) if any(which) else nullcontext(None) as session,
            nullcontext() if on_tasks is None else watched(session, on_tasks),
            plain_warnings(),
            job_errors(),
        ):
            job = for_tasks(job)
            manifest = run_job(job, SparkEngine(session, job), warn)
    except JavaNotFound as error:
        raise click.UsageError(str(error)) from error
    return _report(job, manifest, None, time.monotonic() - started)


@contextmanager
def _session(master: str | None, remote: str | None, conf: Mapping[str, str]) -> Iterator[Any]:
    """Open a session, and check its executors if they are not in this process."""
    from spark_udfs.runtime.executors import ExecutorError, check_executors
    from spark_udfs.runtime.jvm import SPARK_ERRORS
    from spark_udfs.runtime.session import local_session, remote_session

    with ExitStack() as stack:
        try:
            if remote is not None:
                session = stack.enter_context(remote_session(remote, conf))
            else:
                session = stack.enter_context(local_session(master, conf))
            if remote is not None or not (master or "local").startswith("local"):
                check_executors(session)
        except ExecutorError as error:
            raise click.UsageError(str(error)) from error
        except ImportError as error:
            raise click.UsageError(f"--remote needs: pip install 'pgdecode[connect]' ({error})") from error
        except SPARK_ERRORS as error:
            where = f"--remote {remote}" if remote else f"--master {master}"
            raise click.UsageError(f"{where}: {str(error).strip().splitlines()[0]}") from error
        yield session


def _format(target: FilePath, format: Format | None) -> Format:
    formats: tuple[Format, ...] = get_args(Format)
    ending = next((name for name in formats if target.suffix == f".{name}"), None)
    if ending is None and _UNKNOWN_ENDING.fullmatch(target.suffix):
        endings = ", ".join(f".{name}" for name in formats)
        raise click.UsageError(f"OUT ends in {target.suffix}: a file ends in {endings}; a folder has no such ending")
    if None not in (ending, format) and format != ending:
        raise click.UsageError(f"--format {format}, but {target.name} ends in .{ending}")
    return ending or format or "parquet"


def _bad(bad_rows: Mapping[str, int], mode: str, *, by_class: bool = True) -> str:
    n_rows = sum(bad_rows.values())
    if n_rows == 0:
        return "no bad rows"
    text = f"{counted(n_rows, 'bad row')} {'left out' if mode == 'DROPMALFORMED' else 'with an error'}"
    classes = ", ".join(f"{rows:,} {code}" for code, rows in sorted(bad_rows.items()))
    return f"{text} ({classes})" if by_class else text


def _show(job: DecodeJob, target: Path, n_rows: int, *, as_tables: bool) -> None:
    """Print the first rows of each output: as a table of what they are, or as lines. CSV stays CSV."""
    tables = () if job.what[0] in (MESSAGES, CHANGES) else job.what
    what: What = "table" if tables else "changes" if job.what == (CHANGES,) else "messages"
    layouts = {"table": TABLE_LAYOUT, "changes": CHANGE_LAYOUT, "messages": message_layout(job.keep, job.fields)}
    lines = layouts[what].lines
    found = outputs(target, tables, job.format)
    with standard_output() as write:
        if not as_tables or job.format == "csv":
            for files in found.values():
                for line in first_lines(files, n_rows, job.format, lines):
                    write(fitting(line) + "\n")
            return
        console = table_console()
        for name, files in found.items():
            rows = [json.loads(line) for line in first_lines(files, n_rows, job.format, lines)]
            heading = f"{name}: {'all rows' if len(rows) < n_rows else f'first {n_rows} rows'}"
            with console.capture() as captured:
                print_table(console, what, rows, heading)
                console.print()
            write(captured.get())
