"""The command `decode`: writes messages, changes, tables or snapshots to files."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import click
from click.core import ParameterSource

from pgdecode.cli import parameters
from pgdecode.cli.object_output import write_changes, write_messages
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
from pgdecode.files.change_export import ChangeTotals
from pgdecode.files.change_reader import FileChangeOptions
from pgdecode.files.change_run import RunFolders, RunRequest, decode_changes
from pgdecode.files.envelope_text import printable
from pgdecode.files.file_metadata import accepted_gaps, notes_of
from pgdecode.files.message_export import convert
from pgdecode.files.ordered_files import OrderedFiles, ordered_files
from pgdecode.files.payload_file import BATCH_ROWS, PayloadFile
from pgdecode.files.payload_files import payload_files
from pgdecode.files.writers import CHANGE_LAYOUT, TABLE_LAYOUT, Layout, bad_payload_writer, message_layout
from pgdecode.payloads.workers import Workers, all_cores
from pgdecode.protocol.limits import Limits
from pgdecode.protocol.messages import ENVELOPE
from pgdecode.protocol.options import Format, InStream, Mode, NameClash, UnrepresentableValues, Unwrap, limits_with
from pgdecode.rows.options import OF_TABLES
from pgdecode.runs.atomic_output import check_target, staged
from pgdecode.runs.manifest import read_manifest
from pgdecode.storage.object_path import FilePath, ObjectPath, file_path, real_path

Engine = Literal["local", "spark"]
# A folder may be called 2026.11.23, but not orders.parq.
_UNKNOWN_ENDING = re.compile(r"\.[A-Za-z]\w*")
_COMPLETE = "complete already, by an earlier call"
ENVELOPE_NAMES = tuple(column.name for column in ENVELOPE)


@dataclass(frozen=True)
class SparkOptions:
    """Which Spark to use. Without any, the one of spark-submit or a local one."""

    master: str | None
    remote: str | None
    settings: Mapping[str, str]

    @property
    def is_given(self) -> bool:
        """Whether there are any."""
        return bool(self.master or self.remote or self.settings)


@dataclass(frozen=True)
class Request:
    """The arguments of `decode` that messages and changes share."""

    source: FilePath
    target: FilePath
    storage_options: dict[str, str]
    engine: Engine
    spark: SparkOptions
    format: Format
    payload: str
    unwrap: Unwrap
    mode: Mode
    limits: Limits
    batch_rows: int
    overwrite: bool
    workers: int

    @property
    def as_file(self) -> bool:
        """Whether the target is a file and not a folder, according to its name."""
        is_here = self.engine == "local" and isinstance(self.target, Path)
        return is_here and self.target.suffix == f".{self.format}"


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
@parameters.mode
@parameters.max_value_bytes
@parameters.workers
@click.option("--batch-rows", type=click.IntRange(min=1), metavar="N", help=f"Rows per batch. Default: {BATCH_ROWS}.")
@click.option(
    "--resume",
    type=parameters.path,
    metavar="FOLDER",
    help="The output folder of the run before, whose input ended where this one begins. OUT is another folder.",
)
@click.option(
    "--state",
    type=parameters.path,
    metavar="FOLDER",
    help="A folder that keeps the state between runs, apart from the outputs. The first run makes it.",
)
@parameters.accept_gap
@parameters.storage_options
@click.option(
    "--bad",
    type=parameters.path,
    metavar="FILE",
    help="Leave bad messages out, and write them to this Parquet file: file, row, position, payload and error. With "
    "--mode PERMISSIVE, OUT has their errors, too.",
)
@click.option("--overwrite", is_flag=True, help="Replace OUT when the new output is complete.")
@click.option(
    "--show", type=click.IntRange(min=0), default=0, metavar="N", help="Print the first N rows of each output."
)
@parameters.as_json
def decode(
    source_location: str,
    target_location: str,
    messages: bool,
    changes: bool,
    tables: tuple[str, ...],
    snapshots: tuple[str, ...],
    engine: Engine,
    master: str | None,
    remote: str | None,
    conf: dict[str, str],
    format: Format | None,
    payload: str,
    unwrap: Unwrap,
    keep: tuple[str, ...],
    fields: tuple[str, ...],
    in_stream: str,
    position: str | None,
    session: str | None,
    renames: dict[str | int, list[tuple[str, str, int]]],
    unrepresentable: UnrepresentableValues,
    name_clash: NameClash,
    mode: Mode,
    max_value_bytes: int,
    workers: int | None,
    batch_rows: int | None,
    resume: Path | None,
    state: Path | None,
    accept_gap: bool,
    storage_options: dict[str, str],
    bad: Path | None,
    overwrite: bool,
    show: int,
    as_json: bool | None,
    **of_changes: Any,
) -> None:
    """Decode IN, a Parquet file or a folder of them, to OUT.

    Messages: OUT is a file if IN is a file and OUT ends in .parquet, .jsonl or .csv. Otherwise it is a folder with a
    file for each input file, under the same name. With --engine spark it is always a folder. OUT appears only when it
    is complete.

    In JSON lines, each object has the fields of its message, as in "pgdecode cat". With --fields, it has all of these
    fields, including null ones. In CSV, nested columns are JSON text. An empty string is "", and null is empty.

    Changes and tables: IN is one sequence in slot order (see --position). OUT has the committed changes in the order in
    which to apply them. OUT is a file if it ends in .parquet, .jsonl or .csv. Otherwise, and always with several
    tables, it is a folder with the file "changes", or with a file for each table, named after it. All versions of a
    table must be known before its first row is written. Versions after the beginning, and some errors, make it read the
    files again, up to four times. Large transactions are kept in files beside OUT until they end. With --engine spark,
    the rows have no order, and a file named above is a folder of files.

    Snapshots: IN and OUT are as for tables. OUT has the rows of a table after all changes, each with the position and
    commit of its last change; _unknown lists the columns whose values are in no message. SCHEMA.TABLE is the last name
    of the table. The rows are in memory.

    Runs: OUT as a folder also has _manifest.json and _state, with all that the next run needs: "--resume OUT" continues
    there with the messages that have come since. With --state FOLDER, the state is kept there, and OUT may be a file. A
    call that was interrupted can be repeated.

    Object stores: IN and OUT may be s3://, gs://, az:// or abfss://. OUT is then a folder of files with unique names.
    Its _manifest.json is written last and names them; it has no state.
    """
    source, target = file_path(source_location, storage_options), file_path(target_location, storage_options)
    context = click.get_current_context()
    if messages + changes + bool(tables) + bool(snapshots) > 1:
        raise click.UsageError("use only one of --messages, --changes, --table and --snapshot")
    relations = tables or snapshots
    if changes or relations:
        parameters.refuse(context, parameters.OF_MESSAGES, "messages")
    else:
        parameters.refuse(context, parameters.OF_CHANGES, "--changes, --table and --snapshot")
        parameters.check_names("--fields", fields, ENVELOPE_NAMES)
    if not relations:
        parameters.refuse(context, OF_TABLES, "--table and --snapshot")
    if unknown := [name for name in renames if name not in relations]:
        raise click.UsageError(f"--rename {unknown[0]}: not a table of --table or --snapshot")
    if snapshots:
        parameters.refuse(context, ["include_uncommitted", "resume", "state"], "--changes and --table")
    if engine == "spark":
        parameters.refuse(context, ["workers", "batch_rows", "bad"], "--engine local")
        parameters.refuse(context, ["snapshots"], "--engine local; on Spark, use spark_udfs.snapshot")
    else:
        parameters.refuse(context, ["master", "remote", "conf"], "--engine spark")
    if master is not None and remote is not None:
        raise click.UsageError("use only one of --master and --remote")
    if resume is not None and state is not None:
        raise click.UsageError("use only one of --resume and --state")
    if resume is not None and of_changes["catalog"] is not None:
        raise click.UsageError("--catalog is for the first run; with --resume, the state has the relations")
    if isinstance(target, ObjectPath):
        parameters.refuse(context, ["resume", "state", "show", "bad"], "local folders")
    if bad is not None:
        mode = _mode_with_bad(context, mode, bad, source, target, overwrite=overwrite)
    chosen = _format(target, format)
    spark = SparkOptions(master, remote, conf)
    request = Request(
        *(source, target, storage_options, engine, spark, chosen, payload, unwrap, mode),
        limits_with(max_value_bytes),
        *(batch_rows or BATCH_ROWS, overwrite, workers or all_cores()),
    )
    no_bad_file = engine == "spark" or isinstance(target, ObjectPath)
    remedy = f"{'--mode DROPMALFORMED' if no_bad_file else '--bad FILE'} leaves bad messages out"
    started = time.monotonic()
    if changes or relations:
        options = parameters.change_parameters(mode, of_changes, request.limits, unrepresentable, renames, name_clash)
        files = ordered_files(source, payload, position, session, unwrap)
        _report_gaps(files.files, accept_gap)
        n_rows = files.n_rows
        layout = TABLE_LAYOUT if relations else CHANGE_LAYOUT
        if engine == "spark" and files.position is None:
            raise click.UsageError("--engine spark needs --position COLUMN, because rows on Spark have no order")
        if engine == "spark":
            done = _with_spark_changes(request, files, tables, options, resume, state)
        else:
            as_file = len(relations) < 2 and request.as_file
            if resume is not None and as_file:
                raise click.UsageError(
                    f"--resume {resume}: {target.name} must be a folder, because the state for the next run is in it; "
                    "with a file, keep the state by --state FOLDER"
                )
            folders = RunFolders(
                source, target if isinstance(target, Path) else Path(), as_file, overwrite, resume, state
            )
            run = RunRequest(
                *(files, folders, relations, chosen, options, request.batch_rows, request.workers, bad),
                is_snapshot=bool(snapshots),
            )
            with parameters.suggesting(remedy):
                done = _decode_changes(run, target)
        written = _size(target)
    else:
        # By default, Spark does not distinguish names by case.
        collision = next((name for name in keep if name.lower() in ENVELOPE_NAMES), None)
        if collision is not None:
            raise click.UsageError(f"--keep {collision}: a decoded column has that name")
        layout = message_layout(keep, fields or None)
        found = payload_files(source, payload, keep, unwrap)
        _report_gaps(found, accept_gap)
        n_rows = sum(file.n_rows for file in found)
        with parameters.suggesting(remedy):
            done = _decode_messages(request, found, keep, fields, parameters.IN_STREAM[in_stream], bad)
        written = _size(target)
    read, counts = done
    seconds = time.monotonic() - started
    click.echo(
        f"{printable(str(target))}: {counted(n_rows, 'row')}{read} in {seconds:.2f} s, {counts}; "
        f"{size_text(written)} written",
        err=True,
    )
    if show and isinstance(target, Path):
        what: What = "table" if relations else "changes" if changes else "messages"
        as_tables = is_terminal() if as_json is None else not as_json
        _show(target, show, chosen, layout, relations, what if as_tables else None)


def _report_gaps(files: Sequence[PayloadFile], accept_gap: bool) -> None:
    """Refuse gaps that are not accepted, and warn of the others, and of folders that begin within a used slot."""
    accepted_gaps(files, accept_gap=accept_gap)
    for note in notes_of(files):
        warn(note)


def _mode_with_bad(
    context: click.Context, mode: Mode, bad: Path, source: FilePath, target: FilePath, *, overwrite: bool
) -> Mode:
    """Check --bad, and return the mode that it implies."""
    if mode == "FAILFAST" and context.get_parameter_source("mode") is not ParameterSource.DEFAULT:
        raise click.UsageError("--bad is not for --mode FAILFAST, which stops at the first bad message")
    if bad.suffix != ".parquet":
        raise click.UsageError(f"--bad {bad}: the file must end in .parquet")
    place = real_path(bad)
    if isinstance(target, Path) and (place == real_path(target) or real_path(target) in place.parents):
        raise click.UsageError(f"--bad {bad}: must not be OUT or in OUT")
    check_target(bad, source if isinstance(source, Path) else None, overwrite=overwrite)
    return "DROPMALFORMED" if mode == "FAILFAST" else mode


def _decode_messages(
    request: Request,
    files: Sequence[PayloadFile],
    keep: tuple[str, ...],
    fields: tuple[str, ...],
    in_stream: InStream | bool,
    bad: Path | None = None,
) -> tuple[str, str]:
    """Decode messages with the chosen engine. Return the texts for the report: input and output."""
    if request.engine == "spark":
        decoded = _with_spark(request, keep=keep, fields=fields or None, in_stream=in_stream)
        return "", _bad_by_class(decoded.bad_rows, request.mode)
    target, source = request.target, request.source
    chosen: dict[str, Any] = {
        "format": request.format,
        "fields": fields or None,
        "in_stream": in_stream,
        "mode": request.mode,
        "limits": request.limits,
        "batch_rows": request.batch_rows,
    }
    n_rows = sum(file.n_rows for file in files)
    with Workers(request.workers, caller_works=False) as workers, progress(n_rows) as on_rows:
        chosen["workers"] = workers
        if isinstance(target, ObjectPath):
            totals = write_messages(files, source, target, overwrite=request.overwrite, on_rows=on_rows, **chosen)
        else:
            local = source if isinstance(source, Path) else None
            check_target(target, local, overwrite=request.overwrite)
            as_file = request.as_file and [file.path for file in files] == [source]
            with ExitStack() as stack:
                hidden = stack.enter_context(staged(target))
                if bad is not None:
                    chosen["on_bad"] = stack.enter_context(bad_payload_writer(stack.enter_context(staged(bad))))
                totals = convert(files, source, hidden, as_file=as_file, on_rows=on_rows, **chosen)
    n_bad = sum(totals.bad_rows.values())
    return f" ({size_text(totals.payload_bytes)} of messages)", _bad(n_bad, request.mode)


def _decode_changes(run: RunRequest, target: FilePath) -> tuple[str, str]:
    """Decode changes, tables or snapshots here. Return the texts for the report, as `_decode_messages` does."""
    with progress(run.files.n_rows) as on_rows:
        totals = _changes_at(run, target, on_rows)
    if totals is None:
        return "", _COMPLETE
    is_file = run.folders.as_file and run.folders.state is None
    kept = "left out" if isinstance(target, ObjectPath) or is_file else "kept for the next run"
    left = _without_rows(totals.skipped, totals.undecided, run.options, kept)
    if totals.repeated:
        left += f", {counted(totals.repeated, 'transaction')} sent again or out of order"
        left += " left out" if run.options.change_options.drop_duplicates else ""
    if totals.empty_payloads:
        left += f", {counted(totals.empty_payloads, 'empty payload')} ignored"
    if totals.text_columns:
        columns = counted(totals.text_columns, "column")
        left += f", {columns} as text, because types were altered ({', '.join(totals.altered_types)})"
    mode = run.options.change_options.mode
    what = f"{counted(totals.changes, 'row')} at the end" if run.is_snapshot else counted(totals.changes, "change")
    made = f"{what}, {_bad_by_class(totals.bad_rows, mode)}{left}"
    return f" ({size_text(totals.payload_bytes)} of messages)", made


def _changes_at(run: RunRequest, target: FilePath, on_rows: Callable[[int], None]) -> ChangeTotals | None:
    return write_changes(run, target, on_rows) if isinstance(target, ObjectPath) else decode_changes(run, on_rows)


def _with_spark_changes(
    request: Request,
    files: OrderedFiles,
    tables: tuple[str, ...],
    options: FileChangeOptions,
    resume: Path | None,
    state: Path | None,
) -> tuple[str, str]:
    """Decode changes or tables on Spark. Return the texts for the report, as `_decode_messages` does."""
    decoded = _with_spark(
        request,
        what=_what(request, tables),
        position=files.position,
        session=files.session,
        start=options.change_options.start,
        empty=options.change_options.empty,
        include_uncommitted=options.change_options.include_uncommitted,
        drop_duplicates=options.change_options.drop_duplicates,
        resume=resume,
        state=state,
        catalog=options.catalog,
        types=options.value_options.types,
        renames=options.value_options.renames,
        unrepresentable=options.value_options.unrepresentable,
        name_clash=options.value_options.name_clash,
        encoding=options.value_options.encoding,
        datestyle=options.value_options.datestyle,
    )
    if decoded.was_complete:
        return "", _COMPLETE
    left = _without_rows(decoded.skipped, decoded.undecided, options, "kept for the next run")
    return "", f"{counted(decoded.rows, 'change')}, {_bad_by_class(decoded.bad_rows, request.mode)}{left}"


def _without_rows(skipped: int, undecided: int, options: FileChangeOptions, kept: str = "left out") -> str:
    """Describe how many transactions have no beginning or no outcome."""
    text = f", {counted(skipped, 'transaction')} without a beginning left out" if skipped else ""
    if undecided:
        verb = "included" if options.change_options.include_uncommitted else kept
        text += f", {counted(undecided, 'transaction')} without an outcome {verb}"
    return text


def _what(request: Request, tables: tuple[str, ...]) -> str | tuple[str, ...]:
    """Say what Spark is to write: one output if OUT is named as a file, else a folder for each table."""
    if not tables:
        return "changes"
    is_one = len(tables) == 1 and request.target.suffix == f".{request.format}"
    return tables[0] if is_one else tables


def _with_spark(request: Request, **options: Any) -> Any:
    """Run the job on Spark, and return its `RunResult`."""
    try:
        from spark_udfs import decode_files
        from spark_udfs.runtime.java import JavaNotFound
        from spark_udfs.runtime.progress import watched
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("pyspark", "pandas"):
            raise
        raise click.UsageError("--engine spark needs: pip install 'pgdecode[spark]'") from error
    try:
        with (
            task_progress() as on_tasks,
            nullcontext(None) if not request.spark.is_given else _session(request.spark) as session,
            nullcontext() if on_tasks is None else watched(session, on_tasks),
            plain_warnings(),
        ):
            return decode_files(
                session,
                _location(request.source),
                _location(request.target),
                storage_options=request.storage_options,
                payload=request.payload,
                unwrap=request.unwrap,
                # Gaps that are not accepted have been refused.
                accept_gap=True,
                mode=request.mode,
                max_value_bytes=request.limits.max_value_bytes,
                format=request.format,
                overwrite=request.overwrite,
                **options,
            )
    except JavaNotFound as error:
        raise click.UsageError(str(error)) from error


def _location(path: FilePath) -> Path | str:
    return path if isinstance(path, Path) else str(path)


@contextmanager
def _session(options: SparkOptions) -> Iterator[Any]:
    """Open a session, and check its executors if they are not in this process."""
    from spark_udfs.runtime.executors import ExecutorError, check_executors
    from spark_udfs.runtime.jvm import SPARK_ERRORS
    from spark_udfs.runtime.session import local_session, remote_session

    with ExitStack() as stack:
        try:
            if options.remote is not None:
                session = stack.enter_context(remote_session(options.remote, options.settings))
            else:
                session = stack.enter_context(local_session(options.master, options.settings))
            if options.remote is not None or not (options.master or "local").startswith("local"):
                check_executors(session)
        except ExecutorError as error:
            raise click.UsageError(str(error)) from error
        except ImportError as error:
            raise click.UsageError(f"--remote needs: pip install 'pgdecode[connect]' ({error})") from error
        except SPARK_ERRORS as error:
            where = f"--remote {options.remote}" if options.remote else f"--master {options.master}"
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


def _size(path: FilePath) -> int:
    """Return the size of a file, or of all files in a folder, in bytes."""
    if isinstance(path, ObjectPath):
        return sum(file.bytes for file in read_manifest(path).files)
    return sum(part.stat().st_size for part in (path, *path.rglob("*")) if part.is_file())


def _bad(n_rows: int, mode: str) -> str:
    if n_rows == 0:
        return "no bad rows"
    return f"{counted(n_rows, 'bad row')} {'left out' if mode == 'DROPMALFORMED' else 'with an error'}"


def _bad_by_class(bad_rows: Mapping[str, int], mode: str) -> str:
    text = _bad(sum(bad_rows.values()), mode)
    classes = ", ".join(f"{n_rows:,} {code}" for code, n_rows in sorted(bad_rows.items()))
    return f"{text} ({classes})" if bad_rows else text


def _show(
    target: Path, n_rows: int, format: Format, layout: Layout, tables: tuple[str, ...], what: What | None
) -> None:
    """Print the first rows of each output: as a table of what they are, or as lines. CSV stays CSV."""
    found = outputs(target, tables, format)
    with standard_output() as write:
        if what is None or format == "csv":
            for files in found.values():
                for line in first_lines(files, n_rows, format, layout.lines):
                    write(fitting(line) + "\n")
            return
        console = table_console()
        for name, files in found.items():
            rows = [json.loads(line) for line in first_lines(files, n_rows, format, layout.lines)]
            heading = f"{name}: {'all rows' if len(rows) < n_rows else f'first {n_rows} rows'}"
            with console.capture() as captured:
                print_table(console, what, rows, heading)
                console.print()
            write(captured.get())
