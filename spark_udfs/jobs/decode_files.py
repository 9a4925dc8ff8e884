"""The job `decode_files`: decodes Parquet files of payloads to files."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pyspark.sql import DataFrame, SparkSession

from pgdecode import DecodeError, RelationCatalog
from pgdecode.changes.run_start import renames_since
from pgdecode.changes.stored_state import StoredState
from pgdecode.files.change_export import table_file_name
from pgdecode.files.change_run import RunFolders, StagedRun, WrittenRun, input_of, run
from pgdecode.files.file_metadata import (
    UserType,
    accepted_gaps,
    catalog_of,
    encoding_of,
    overridden,
    user_types_of,
)
from pgdecode.files.ordered_files import OrderFault, check_positions, has_interrupted_streams, in_slot_order
from pgdecode.files.payload_file import CAPTURE_SESSION, FileFault, PayloadFile
from pgdecode.files.payload_files import payload_files
from pgdecode.protocol.options import (
    MAX_VALUE_BYTES,
    Empty,
    Format,
    InStream,
    Mode,
    NameClash,
    Start,
    UnrepresentableValues,
    Unwrap,
    check_option,
    limits_with,
    options_of,
    stream_option,
)
from pgdecode.relations.column_history import Renames
from pgdecode.relations.table_names import normal_name
from pgdecode.rows.options import Options
from pgdecode.runs.atomic_output import check_target
from pgdecode.runs.errors import RunFault
from pgdecode.runs.manifest import Input, Manifest
from pgdecode.runs.object_run import OpenRun, check_apart, check_object_target, object_run
from pgdecode.runs.state_files import SourceState
from pgdecode.storage.errors import CLASSES, PathError, StorageError
from pgdecode.storage.object_path import FilePath, ObjectPath, is_object, local_path, object_path
from spark_udfs.jobs import file_route, frame_route
from spark_udfs.jobs.job_config import CHANGES, MESSAGES, ChangeJob, MessageJob
from spark_udfs.jobs.job_run import NEW_RUN, JobOutput, JobRun
from spark_udfs.jobs.output_committer import Folder
from spark_udfs.jobs.run_result import RunResult
from spark_udfs.runtime.jvm import SPARK_ERRORS, error_texts
from spark_udfs.runtime.session import local_session
from spark_udfs.runtime.storage import Location, as_path, as_uri, is_path, staged
from spark_udfs.runtime.tasks import changed_settings
from spark_udfs.schema.spark_types import session_has_time

Route = Literal["auto", "files", "dataframe"]
_SETTINGS = {
    # Names in a file may differ only by case.
    "spark.sql.caseSensitive": "true",
    # Spark's default is INT96, which other readers read as nanoseconds. Their range is too small for PostgreSQL.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}
# The last line of a traceback.
_RAISED = re.compile(r"^[\w.]+: .+", re.MULTILINE)
# An error condition of Spark.
_CONDITION = re.compile(r"\[[A-Z][A-Z0-9_.]+\] .*")
# How the last line of a traceback begins: for a bad payload, for a FileFault, and for all errors of these packages.
_FAULT = f"{DecodeError.__module__}."
_FILE_FAULTS = tuple(f"{cls.__module__}.{cls.__name__}: " for cls in (FileFault, RunFault))
# An error of storage that a task has raised for the target.
_STORAGE_ERROR = re.compile(rf"{re.escape(StorageError.__module__)}\.(\w+): .+?: (.+)")
_OURS = re.compile(r"(?:pgdecode|spark_udfs)\.[\w.]+: ")


class JobFailed(FileFault):
    """The Spark job failed. The text is one line, with the file and row if a payload is bad."""


def decode_files(
    spark: SparkSession | None,
    source: Location,
    target: Location,
    *,
    what: str | Sequence[str] = MESSAGES,
    payload: str = "data",
    unwrap: Unwrap = "auto",
    position: str = "seq",
    keep: Sequence[str] = (),
    fields: Sequence[str] | None = None,
    in_stream: InStream | bool | None = "auto",
    mode: Mode = "FAILFAST",
    start: Start = "transaction",
    empty: Empty = "null",
    max_value_bytes: int = MAX_VALUE_BYTES,
    session: str | None = None,
    accept_gap: bool = False,
    include_uncommitted: bool = False,
    drop_duplicates: bool = False,
    catalog: RelationCatalog | None = None,
    types: Mapping[str | int, str] | None = None,
    columns: Mapping[str | int, Mapping[str, str]] | None = None,
    renames: Renames | None = None,
    unrepresentable: UnrepresentableValues = "error",
    name_clash: NameClash = "error",
    encoding: str = "UTF8",
    datestyle: str = "ISO, MDY",
    format: Format = "parquet",
    route: Route = "auto",
    overwrite: bool = False,
    storage_options: Mapping[str, str] | None = None,
    resume: str | os.PathLike[str] | None = None,
    state: str | os.PathLike[str] | None = None,
) -> RunResult:
    """Decode Parquet files of payloads to a folder of files, as a Spark job.

    Parameters
    ----------
    spark : SparkSession or None
        None: the active session of this process, or a new local session on all cores, which is stopped at the end. A
        session of Spark Connect is possible too.
    source : path or URI
        A Parquet file, or a folder with `*.parquet` files at any depth. A path is on this machine; on a cluster, all
        machines must share it. Tasks read s3://, gs://, az:// and abfss:// themselves. Another URI (`hdfs://...`,
        `s3a://...`) is passed to `spark.read.parquet`.
    target : path or URI
        The folder to write. It appears when it is complete. Without `overwrite`, it must not exist. In an object store
        (s3://, gs://, az://, abfss://), files are written under unique names, and the manifest, which is written last,
        names those that count: see `read_run`. Such a run has no state.
    what : "messages", "changes", "schema.table", or a sequence of tables and "changes"
        One row per message; or one row per committed change of all tables; or one row per change of a table, with typed
        columns. A string makes one output, whose files are in `target`. A sequence, also of one item, makes a folder in
        `target` for each output, under its name; the input is read once. Messages cannot be an item of a sequence.
    payload : str
        The payload column.
    unwrap : {"auto", "none", "hex", "base64", "xlogdata"}
        The form of the payloads, as in `pgdecode.unwrap`. Text files, such as CSV, must be converted to Parquet first.
    position : str
        For changes and tables: the column with positions, which are integers in slot order. All files together are one
        sequence.
    keep : sequence of str
        For messages: other columns of the input. They come first in the output.
    fields : sequence of str, optional
        Columns to write, in this order; by default all, but for messages without `xid_basis`.
    in_stream : {"auto", "ordered"} or bool
        For messages, as in `pgdecode.decode_messages`. "ordered" (None means the same): the rows of each file are in
        slot order, and one task decodes the whole file. The default is "auto", so that several tasks can decode parts
        of one file.
    mode : {"FAILFAST", "PERMISSIVE", "DROPMALFORMED"}
        At a bad payload: fail, and leave no output; write a row of nulls with its `error`; leave the row out. Bad rows
        are counted in the last two modes.
    start : {"transaction", "anywhere"}
        For changes and tables, as in `spark_udfs.changes`: whether transactions without a beginning are an error, or
        are left out and counted.
    empty : {"null", "error"}
        How to treat payloads of 0 bytes: as null messages, which changes ignore, or as bad payloads.
    max_value_bytes : int
        A longer value is bad, as with `pgdecode.Limits`. By default as much as a server can send.
    session : str, optional
        For changes and tables: the column whose value identifies the connection to the server, as in
        `spark_udfs.changes`. By default, the footers of files from `pgdecode capture` say it.
    accept_gap : bool
        Decode over gaps between captured files, where changes are missing. Otherwise they are an error, and nothing is
        written. The manifest lists them. They are not known if Spark reads the source (route "dataframe" with a URI).
    include_uncommitted, drop_duplicates, catalog, types, unrepresentable, name_clash, encoding, datestyle
        For changes and tables, as in `spark_udfs.table_changes`. Dates and timestamps of all years are allowed.
    columns : mapping of a table to a mapping of a column's name to a PostgreSQL type, optional
        For changes and tables, as in `pgdecode.ChangeDecoder`: {"public.orders": {"price": "numeric(20,4)"}}.
    renames : mapping of a table to a list of (old name, new name, position), optional
        For tables, as in `pgdecode.ChangeDecoder`: {"public.orders": [("price", "total", 4711)]}.
    format : {"parquet", "jsonl", "csv"}
        JSON lines and CSV have the same form as those of `pgdecode decode`.
    route : {"auto", "files", "dataframe"}
        What reads and writes the files, see Notes: the tasks, with pyarrow ("files"), or Spark ("dataframe"). "auto"
        uses "files" if possible.
    overwrite : bool
        Replace a target that pgdecode or Spark has written, when the new one is complete.
    storage_options : mapping, optional
        How to connect to object stores, such as {"region": "eu-west-1"}. They are sent to the tasks, so they must not
        have credentials, which each machine takes from its environment or its role.
    resume : path, optional
        For changes and tables: the target of the run before, of any engine, whose input ended where this one begins.
        The target is a path, and has the state for the next run, see docs/runs.md. The source may be a URI.
    state : path, optional
        For changes and tables: a folder that keeps the state between runs. The first run makes it. Use it or `resume`.
        After the first payload, it has the relations, and `catalog` is ignored.

    Returns
    -------
    RunResult
        `rows`, `bad_rows` by error code, `skipped` and `undecided` transactions, `first_position` and `last_position`
        of the payloads, and the `manifest`.

    Raises
    ------
    TargetExists
        If the target exists. It is a FileExistsError.
    RunError
        If another process is writing the target, which is a path; if the input overlaps that of the run before, or
        payloads between both are missing (the text has both positions); if there is a gap before a file that its
        capture accepted, without `accept_gap`; or if another run continues that run.
    RunFault
        If the state of the run before is damaged or missing.
    DiskFull, ReadOnlyStorage, AccessDenied
        If the target cannot be written. They are OSErrors that name the target and the cause.
    PathError
        If there is no input, if a column is missing or has a wrong type, if no payload describes a table, if the target
        is inside the source, or if the route is not possible.
    TypeError, ValueError
        For options that do not exist or do not apply, and if a `keep` column has the name of an envelope column.
    JobFailed
        If a payload is bad in FAILFAST mode (the text has its file, row and offset); if a position is null or occurs
        twice; or if Spark fails. There is no output then.
    JavaNotFound
        If a local Spark is needed and there is no Java.

    Notes
    -----
    On the route "files", the tasks read row groups, decode them, and write files with pyarrow. Rows do not pass through
    the JVM, which saves most of the time. Each task needs memory for a batch of payloads and a row group of the output;
    for changes also for the open transaction. Each attempt of a task writes a file with a unique name. The driver
    commits one attempt of each task. It also writes `_SUCCESS` and `_manifest.json`, which has the rows, bytes, SHA-256
    and input rows of each file, and `bad_rows`, `skipped` and `undecided`. Then the folder gets its name. Failures,
    retries and Spark's speculative execution do not change the output. The same input with the same splits gives the
    same bytes. If an input file is replaced during the job, the job fails.

    Changes and tables are decoded speculatively while the files are read for the first time. For this, the relations at
    the beginnings of the files are enough, if there are no streamed or prepared transactions and no table changes. If
    that was wrong for a task, it decodes its files again, with the complete index.

    The route "dataframe" is used if the source or the target is a URI; also for changes and tables, if the rows of a
    file are not in the order of their positions, or if the files' ranges of positions overlap. Both routes give the
    same rows, and columns with the same names and, when Spark reads them, the same types. Bytes and sizes of files
    differ. For messages with `in_stream="auto"`, guesses (`xid_basis`) depend on the other rows of a batch. Columns of
    `keep` have Spark's types on the route "dataframe". Spark does not read files whose names have a colon or begin with
    `_` or `.`.

    The rows of a file keep their order, also if it was split. Several files are in the order of their tasks. On the
    route "dataframe", changes and tables have no order. Apply changes in the order of (commit_position, position).

    On a cluster, the Python of the executors needs pgdecode in the same version as the driver. `--py-files` cannot
    distribute it, because it is compiled. Install the wheel in the executors' image, or send an environment that
    venv-pack or conda-pack has made, with `--archives env.tar.gz#env` and `PYSPARK_PYTHON=env/bin/python`.

    Examples
    --------
    >>> result = spark_udfs.decode_files(spark, "tests/data/16.shop.v1.parquet", folder, what="public.orders")
    >>> spark.read.parquet(folder).count()
    149
    """
    names = (what,) if isinstance(what, str) else tuple(what)
    of_changes = {
        "start": start != "transaction",
        "session": session is not None,
        "include_uncommitted": include_uncommitted is not False,
        "drop_duplicates": drop_duplicates is not False,
        "resume": resume is not None,
        "state": state is not None,
        "catalog": catalog is not None,
        "types": types is not None,
        "columns": columns is not None,
        "renames": bool(renames),
        "unrepresentable": unrepresentable != "error",
        "name_clash": name_clash != "error",
        "encoding": encoding != "UTF8",
        "datestyle": datestyle != "ISO, MDY",
    }
    chosen = None if fields is None else tuple(fields)
    config: MessageJob | ChangeJob
    limits = limits_with(max_value_bytes)
    if what == MESSAGES:
        _refuse(of_changes, "changes and tables")
        config = MessageJob(tuple(dict.fromkeys(keep)), chosen, stream_option(in_stream), mode, format, empty, limits)
        needed = config.keep
    else:
        _refuse({"keep": bool(keep), "in_stream": in_stream != "auto"}, "messages")
        options = Options(
            mode=mode,
            include_uncommitted=include_uncommitted,
            drop_duplicates=drop_duplicates,
            start=start,
            empty=empty,
            limits=limits,
            types=types,
            columns=columns,
            renames=renames,
            unrepresentable=unrepresentable,
            name_clash=name_clash,
            encoding=encoding,
            datestyle=datestyle,
        )
        _check_run(target, resume, state, catalog)
        config = ChangeJob(_outputs(names), chosen, options, catalog, format, in_folders=not isinstance(what, str))

        needed = (position,) if session is None else (position, session)
    # Absolute, because tasks may have another working directory.
    files = None
    place = _files_at(source, storage_options, route)
    if place is not None:
        files = payload_files(place, payload, needed, unwrap)
    if any(file.converted for file in files or ()):
        raise PathError(f"{source}: not a Parquet file; on Spark, payloads are in Parquet")
    accepted_gaps(files or (), accept_gap=accept_gap)
    if place is not None and files is not None and isinstance(config, ChangeJob):
        if session is None and position == "seq" and has_interrupted_streams(files):
            session = CAPTURE_SESSION
            files = [file.with_session() for file in files]
        check_positions(files, position)
        try:
            files = in_slot_order(files, position)
        except FileFault as error:
            raise JobFailed(str(error)) from error
    out = _files_at(target, storage_options, route)
    direct = _is_direct(route, source if place is None else target if out is None else None)
    if (isinstance(place, ObjectPath) or isinstance(out, ObjectPath)) and not direct:
        uri = source if place is None else target
        raise PathError(f"{uri}: a job with an object store has a path or an object store at its other end")
    wrapped, order = (payload, unwrap), (position, session)
    if isinstance(out, ObjectPath):
        if isinstance(place, ObjectPath):
            check_apart(place, out)
        check_object_target(out, overwrite=overwrite)
    elif isinstance(config, MessageJob) and is_path(target):
        check_target(Path(target), place if isinstance(place, Path) else None, overwrite=overwrite)
    try:
        if isinstance(config, ChangeJob) and is_path(target):
            # Absolute, because tasks may have another working directory.
            before, kept = (None if at is None else Path(os.path.abspath(at)) for at in (resume, state))
            folders = RunFolders(place, Path(os.path.abspath(target)), False, overwrite, before, kept)
            return _run(spark, source, files, wrapped, order, folders, config, direct, route)
        if isinstance(out, ObjectPath):
            with nullcontext(spark) if spark is not None else local_session() as running:
                return _to_objects(running, source, place, files, wrapped, order, out, overwrite, config)
        with (
            nullcontext(spark) if spark is not None else local_session() as running,
            staged(running, target, overwrite=overwrite) as hidden,
        ):
            if isinstance(config, MessageJob):
                return _messages(running, source, files, wrapped, hidden, config, direct)
            config, _ = _with_types(config, files, None)
            output = _changes(running, source, files, wrapped, order, hidden, config, direct, route, NEW_RUN)
            return RunResult(
                output.rows,
                output.bad_rows,
                output.index.n_skipped,
                output.index.n_undecided,
                output.input.first_position,
                output.input.last_position,
            )
    except SPARK_ERRORS as error:
        line = _one_line(error)
        of_storage = _STORAGE_ERROR.fullmatch(line)
        if of_storage:
            raise CLASSES[of_storage[1]](target, of_storage[2]) from error
        raise JobFailed(_described(line, source)) from error


def _outputs(names: Sequence[str]) -> tuple[str | None, ...]:
    if MESSAGES in names:
        raise ValueError('what: "messages" cannot be an item of a sequence: messages are the only output')
    unknown = [name for name in names if name != CHANGES and "." not in name]
    if unknown or not names:
        raise ValueError(f'what is "messages", "changes" or tables as "schema.table", not {(unknown or names)!r}')
    return tuple(dict.fromkeys(None if name == CHANGES else normal_name(name) for name in names))


def _refuse(given: Mapping[str, bool], of: str) -> None:
    wrong = [name for name, is_given in given.items() if is_given]
    if wrong:
        raise ValueError(f"{', '.join(wrong)}: only for {of}")


def _check_run(
    target: Location,
    resume: str | os.PathLike[str] | None,
    state: str | os.PathLike[str] | None,
    catalog: RelationCatalog | None,
) -> None:
    if resume is not None and state is not None:
        raise ValueError("use only one of resume and state")
    if resume is not None and catalog is not None:
        raise ValueError("catalog is for the first run; with resume, the state has the relations")
    for folder, what in ((resume, "resume"), (state, "state")):
        if folder is not None:
            local_path(folder, what)
    if not is_path(target) and (resume is not None or state is not None):
        raise PathError(f"{target}: is a URI, and the output of a run with a state must be a path")


def _run(
    spark: SparkSession | None,
    source: Location,
    files: Sequence[PayloadFile] | None,
    wrapped: tuple[str, Unwrap],
    order: tuple[str, str | None],
    folders: RunFolders,
    config: ChangeJob,
    direct: bool,
    route: Route,
) -> RunResult:
    """Decode changes and tables to a path, and leave a manifest and a state."""
    try:
        known = _known_manifest(config, files or (), order[0], folders.source)
    except FileFault as error:
        raise JobFailed(str(error)) from error

    def write(begun: StagedRun) -> WrittenRun[JobOutput | None]:
        job = JobRun(known.input, begun)
        chosen, after = _with_types(config, files, begun.stored)
        with nullcontext(spark) if spark is not None else local_session() as running:
            hidden = as_uri(begun.hidden)
            output = _changes(running, source, files, wrapped, order, hidden, chosen, direct, route, job)
        return output.written(begun, known, after)

    output, manifest = run(folders, known, write, with_spill=False)
    assert manifest is not None
    return RunResult.of(manifest, was_complete=output is None)


def _with_types(
    config: ChangeJob, files: Sequence[PayloadFile] | None, stored: StoredState | None
) -> tuple[ChangeJob, SourceState]:
    """Add the types and relations from the footers of files, and what the run before knows."""
    before = SourceState() if stored is None else stored.source
    types = user_types_of(files or (), [UserType(*item) for item in before.user_types])
    given = config.options
    encoding = encoding_of(files or (), given.encoding)
    with_types = replace(given, types=overridden(types, given.types) or None, encoding=encoding)
    catalog = config.catalog or catalog_of(files or ())
    after = replace(before, user_types=[(item.oid, item.name, item.declaration) for item in types])
    return replace(config, options=with_types, catalog=catalog), after


def _to_objects(
    spark: SparkSession,
    source: Location,
    place: FilePath | None,
    files: Sequence[PayloadFile] | None,
    wrapped: tuple[str, Unwrap],
    order: tuple[str, str | None],
    target: ObjectPath,
    overwrite: bool,
    config: MessageJob | ChangeJob,
) -> RunResult:
    """Decode to an object store, and leave a manifest without a state."""
    with object_run(target, overwrite=overwrite) as run:
        if isinstance(config, MessageJob):
            done = _messages(spark, source, files, wrapped, run, config, True)
            assert done.manifest is not None
            manifest = done.manifest
        else:
            chosen, _ = _with_types(config, files, None)
            known = _known_manifest(config, files or (), order[0], place)
            output = _changes(spark, source, files, wrapped, order, run, chosen, True, "files", JobRun(known.input))
            manifest = replace(
                known,
                input=output.input,
                rows=output.rows,
                bad_rows=output.bad_rows,
                skipped=output.index.n_skipped,
                undecided=output.index.n_undecided,
                files=output.files,
                tasks=output.tasks,
                renames=renames_since(output.index.end, known),
            )
        run.commit(manifest)
    return RunResult.of(manifest)


def _known_manifest(
    config: ChangeJob, files: Sequence[PayloadFile], position: str, source: FilePath | None
) -> Manifest:
    """Make what is known of the manifest before the run."""
    input = Input()
    if files:
        input = input_of(files, position, source)
    what = [name or CHANGES for name in config.names]
    options = {**options_of(config.options), "format": config.format}
    return Manifest("spark", what, options, input)


def _files_at(location: Location, options: Mapping[str, str] | None, route: Route) -> FilePath | None:
    """Return where tasks read or write files; None if only Spark can."""
    if is_path(location):
        # Absolute, because tasks may have another working directory.
        return Path(location).absolute()
    if not is_object(location) or route == "dataframe":
        return None
    found = object_path(str(location), options)
    found.check_public()
    return found


def _folder(hidden: str | OpenRun, name: str) -> Folder:
    """Return the folder of an output for the tasks."""
    if isinstance(hidden, OpenRun):
        return hidden.output(name)
    return as_path(f"{hidden}/{name}" if name else hidden)


def _is_direct(route: Route, uri: Location | None) -> bool:
    check_option("route", route, Route)
    if route == "files" and uri is not None:
        raise PathError(f'{uri}: is a URI, and the route "files" needs paths')
    return route != "dataframe" and uri is None


def _messages(
    spark: SparkSession,
    source: Location,
    files: Sequence[PayloadFile] | None,
    wrapped: tuple[str, Unwrap],
    hidden: str | OpenRun,
    config: MessageJob,
    direct: bool,
) -> RunResult:
    if direct and files:
        return file_route.write_messages(spark, files, _folder(hidden, ""), config)
    settings = {**_SETTINGS, **(frame_route.FILE_BY_FILE if config.in_stream == "ordered" else {})}
    with changed_settings(spark, settings):
        payload, unwrap = wrapped
        found = frame_route.read(spark, source, files, payload, config.keep, unwrap)
        try:
            return frame_route.write_messages(found, payload, str(hidden), config)
        except SPARK_ERRORS as error:
            if not _one_line(error).startswith(_FAULT):
                raise
            fault = _first_fault(found, payload, config)
            if fault is None:
                raise
            raise JobFailed(fault) from error


def _first_fault(found: DataFrame, payload: str, config: MessageJob) -> str | None:
    try:
        return frame_route.first_fault(found, payload, config)
    except SPARK_ERRORS:
        # The original error is raised. It has the row in the batch.
        return None


def _changes(
    spark: SparkSession,
    source: Location,
    files: Sequence[PayloadFile] | None,
    wrapped: tuple[str, Unwrap],
    order: tuple[str, str | None],
    hidden: str | OpenRun,
    config: ChangeJob,
    direct: bool,
    route: Route,
    job: JobRun,
) -> JobOutput:
    position, session = order
    below = {name: table_file_name(name) if config.in_folders else "" for name in config.names}
    try:
        if direct and files:
            places = {name: _folder(hidden, folder) for name, folder in below.items()}
            has_time = session_has_time(spark)
            done = file_route.write_changes(spark, files, position, config, has_time, places, session, job)
            if done is not None:
                return done
            if route == "files" or is_object(source):
                raise PathError(f'{source}: not in the order of {position}, which the route "files" needs')
        with changed_settings(spark, _SETTINGS):
            columns = (position,) if session is None else (position, session)
            payload, unwrap = wrapped
            found = frame_route.read(spark, source, files, payload, columns, unwrap)
            folders = {name: f"{hidden}/{folder}" if folder else str(hidden) for name, folder in below.items()}
            return frame_route.write_changes(found, payload, position, folders, config, session, job)
    except KeyError as error:
        raise PathError(f"{source}: {error.args[0]}") from error
    except OrderFault as error:
        raise JobFailed(f"{source}: {error}") from error
    except FileFault as error:
        raise JobFailed(str(error)) from error


def _described(line: str, source: Location) -> str:
    """Describe in one line why a job failed, with the file if it is known."""
    for name in _FILE_FAULTS:
        if line.startswith(name):
            return line.removeprefix(name)
    return _OURS.sub(lambda _: f"{source}: ", line, count=1) if _OURS.match(line) else line


def _one_line(error: Exception) -> str:
    """Find the essential line of an error from a Python worker or from Spark."""
    texts = error_texts(error)
    for text in texts:
        raised = _RAISED.findall(text) if "Traceback (most recent call last)" in text else []
        if raised:
            return str(raised[-1]).strip()
    # Spark's error conditions name the file or the table. Their causes usually do not.
    named = next((found for text in texts if (found := _CONDITION.search(text))), None)
    lines = [line for line in texts[-1].splitlines() if line.strip()]
    return (named[0] if named else lines[0] if lines else type(error).__name__).strip()
