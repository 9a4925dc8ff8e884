"""The job `decode_files`: decodes Parquet files of payloads to files."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

from pyspark.sql import SparkSession

from pgdecode import RelationCatalog
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
    limits_with,
    options_of,
    stream_option,
)
from pgdecode.relations.column_history import Renames
from pgdecode.relations.table_names import normal_name
from pgdecode.rows.options import Options
from pgdecode.runs.atomic_output import check_target, staged
from pgdecode.runs.manifest import Input, Manifest
from pgdecode.runs.object_run import check_apart, check_object_target, object_run
from pgdecode.runs.state_files import SourceState
from pgdecode.storage.errors import PathError, StorageError
from pgdecode.storage.object_path import FilePath, ObjectPath, is_object, local_path, object_path
from spark_udfs.jobs import file_route
from spark_udfs.jobs.job_config import CHANGES, MESSAGES, ChangeJob, MessageJob
from spark_udfs.jobs.job_run import JobOutput, JobRun
from spark_udfs.jobs.output_committer import OUTPUT, Folder
from spark_udfs.jobs.run_result import RunResult
from spark_udfs.runtime.jvm import SPARK_ERRORS, error_texts
from spark_udfs.runtime.session import local_session
from spark_udfs.runtime.storage import Location, is_path
from spark_udfs.schema.spark_types import session_has_time

# The last line of a traceback.
_RAISED = re.compile(r"^[\w.]+: .+", re.MULTILINE)


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
        machines must share it. Tasks read s3://, gs://, az:// and abfss:// themselves. For other URIs (`hdfs://...`,
        `s3a://...`), use `spark.read.parquet` and `spark_udfs.changes` or `table_changes`.
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
        sequence, and the rows of each file are in this order.
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
        written. The manifest lists them.
    include_uncommitted, drop_duplicates, catalog, types, unrepresentable, name_clash, encoding, datestyle
        For changes and tables, as in `spark_udfs.table_changes`. Dates and timestamps of all years are allowed.
    columns : mapping of a table to a mapping of a column's name to a PostgreSQL type, optional
        For changes and tables, as in `pgdecode.ChangeDecoder`: {"public.orders": {"price": "numeric(20,4)"}}.
    renames : mapping of a table to a list of (old name, new name, position), optional
        For tables, as in `pgdecode.ChangeDecoder`: {"public.orders": [("price", "total", 4711)]}.
    format : {"parquet", "jsonl", "csv"}
        JSON lines and CSV have the same form as those of `pgdecode decode`.
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
        is inside the source, or if only Spark can read or write one of them.
    TypeError, ValueError
        For options that do not exist or do not apply, and if a `keep` column has the name of an envelope column.
    JobFailed
        If a payload is bad in FAILFAST mode (the text has its file, row and offset); if a position is null, or rows are
        not in the order of their positions; or if Spark fails. There is no output then.
    JavaNotFound
        If a local Spark is needed and there is no Java.

    Notes
    -----
    The tasks read row groups, decode them, and write files with pyarrow. Rows do not pass through the JVM, which saves
    most of the time. Each task needs memory for a batch of payloads and a row group of the output; for changes also for
    the open transaction. Each attempt of a task writes a file with a unique name. The driver commits one attempt of
    each task. It also writes `_SUCCESS` and `_manifest.json`, which has the rows, bytes, SHA-256 and input rows of each
    file, and `bad_rows`, `skipped` and `undecided`. Then the folder gets its name. Failures, retries and Spark's
    speculative execution do not change the output. The same input with the same splits gives the same bytes. If an
    input file is replaced during the job, the job fails.

    Changes and tables are decoded speculatively while the files are read for the first time. For this, the relations at
    the beginnings of the files are enough, if there are no streamed or prepared transactions and no table changes. If
    that was wrong for a task, it decodes its files again, with the complete index.

    For messages with `in_stream="auto"`, guesses (`xid_basis`) depend on the other rows of a batch.

    The rows of a file keep their order, also if it was split. Several files are in the order of their tasks. Apply
    changes in the order of (commit_position, position).

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
    place, out = _file_path(source, storage_options), _file_path(target, storage_options)
    files = payload_files(place, payload, needed, unwrap)
    if any(file.converted for file in files):
        raise PathError(f"{source}: not a Parquet file; on Spark, payloads are in Parquet")
    accepted_gaps(files, accept_gap=accept_gap)
    try:
        if isinstance(config, ChangeJob):
            if session is None and position == "seq" and has_interrupted_streams(files):
                session = CAPTURE_SESSION
                files = [file.with_session() for file in files]
            check_positions(files, position)
            files = in_slot_order(files, position)
            if isinstance(out, Path):
                before, kept = (None if at is None else Path(os.path.abspath(at)) for at in (resume, state))
                folders = RunFolders(place, out, False, overwrite, before, kept)
                return _run(spark, source, files, position, session, folders, config)
        if isinstance(out, ObjectPath):
            return _to_objects(spark, source, place, files, position, session, out, overwrite, config)
        assert isinstance(config, MessageJob)
        check_target(out, place if isinstance(place, Path) else None, overwrite=overwrite)
        with _session(spark) as running, staged(out, overwrite=overwrite) as hidden:
            return file_route.write_messages(running, files, hidden, config)
    except OrderFault as error:
        raise JobFailed(f"{error}; spark_udfs.changes decodes rows in any order") from error
    except FileFault as error:
        raise JobFailed(str(error)) from error
    except StorageError as error:
        # Tasks do not know the target.
        raise type(error)(target, error.cause) if error.target == OUTPUT else error from error
    except SPARK_ERRORS as error:
        raise JobFailed(_one_line(error)) from error


def _file_path(location: Location, options: Mapping[str, str] | None) -> FilePath:
    """Return where tasks read or write files.

    Raises
    ------
    PathError
        If only Spark can read and write there.
    """
    if is_path(location):
        # Absolute, because tasks may have another working directory.
        return Path(location).absolute()
    if not is_object(location):
        raise PathError(
            f"{location}: only Spark reads and writes this, not the tasks of decode_files: use a path, s3://, gs://, "
            "az:// or abfss://; or spark_udfs.changes(spark.read.parquet(...)).write, parse_pgoutput for messages"
        )
    found = object_path(str(location), options)
    found.check_public()
    return found


def _session(spark: SparkSession | None) -> AbstractContextManager[SparkSession]:
    return nullcontext(spark) if spark is not None else local_session()


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
    files: Sequence[PayloadFile],
    position: str,
    session: str | None,
    folders: RunFolders,
    config: ChangeJob,
) -> RunResult:
    """Decode changes and tables to a path, and leave a manifest and a state."""
    known = _known_manifest(config, files, position, folders.source)

    def write(begun: StagedRun) -> WrittenRun[JobOutput | None]:
        chosen, after = _with_types(config, files, begun.stored)
        outputs = {name: begun.hidden / folder for name, folder in _folders_below(config).items()}
        with _session(spark) as running:
            output = _changes(running, source, files, position, session, chosen, outputs, JobRun(known.input, begun))
        return output.written(begun, known, after)

    output, manifest = run(folders, known, write, with_spill=False)
    assert manifest is not None
    return RunResult.of(manifest, was_complete=output is None)


def _with_types(
    config: ChangeJob, files: Sequence[PayloadFile], stored: StoredState | None
) -> tuple[ChangeJob, SourceState]:
    """Add the types and relations from the footers of files, and what the run before knows."""
    before = SourceState() if stored is None else stored.source
    types = user_types_of(files, [UserType(*item) for item in before.user_types])
    given = config.options
    encoding = encoding_of(files, given.encoding)
    with_types = replace(given, types=overridden(types, given.types) or None, encoding=encoding)
    catalog = config.catalog or catalog_of(files)
    after = replace(before, user_types=[(item.oid, item.name, item.declaration) for item in types])
    return replace(config, options=with_types, catalog=catalog), after


def _to_objects(
    spark: SparkSession | None,
    source: Location,
    place: FilePath,
    files: Sequence[PayloadFile],
    position: str,
    session: str | None,
    target: ObjectPath,
    overwrite: bool,
    config: MessageJob | ChangeJob,
) -> RunResult:
    """Decode to an object store, and leave a manifest without a state."""
    if isinstance(place, ObjectPath):
        check_apart(place, target)
    check_object_target(target, overwrite=overwrite)
    with _session(spark) as running, object_run(target, overwrite=overwrite) as run:
        if isinstance(config, MessageJob):
            done = file_route.write_messages(running, files, run.output(""), config)
            assert done.manifest is not None
            manifest = done.manifest
        else:
            chosen, _ = _with_types(config, files, None)
            known = _known_manifest(config, files, position, place)
            outputs = {name: run.output(folder) for name, folder in _folders_below(config).items()}
            output = _changes(running, source, files, position, session, chosen, outputs, JobRun(known.input))
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


def _folders_below(config: ChangeJob) -> dict[str | None, str]:
    """Return the folder of each output, below the target."""
    return {name: table_file_name(name) if config.in_folders else "" for name in config.names}


def _changes(
    spark: SparkSession,
    source: Location,
    files: Sequence[PayloadFile],
    position: str,
    session: str | None,
    config: ChangeJob,
    folders: Mapping[str | None, Folder],
    job: JobRun,
) -> JobOutput:
    try:
        has_time = session_has_time(spark)
        return file_route.write_changes(spark, files, position, config, has_time, folders, session, job)
    except KeyError as error:
        raise PathError(f"{source}: {error.args[0]}") from error


def _one_line(error: Exception) -> str:
    """Find the essential line of an error of Spark."""
    texts = error_texts(error)
    for text in texts:
        raised = _RAISED.findall(text) if "Traceback (most recent call last)" in text else []
        if raised:
            return str(raised[-1]).strip()
    lines = [line for line in texts[-1].splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).strip()
