"""Whole jobs: Parquet files of payloads in, decoded files out."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Literal

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pgdecode import DecodeError, RelationCatalog
from pgdecode.files.atomic_output import check_target
from pgdecode.files.change_export import table_file_name
from pgdecode.files.file_metadata import catalog_of, types_of
from pgdecode.files.ordered_files import OrderFault, check_positions
from pgdecode.files.payload_files import FileFault, PathError, PayloadFile, payload_files
from pgdecode.protocol.options import (
    ChangeOptions,
    Empty,
    Format,
    InStream,
    Mode,
    Start,
    UnrepresentableValues,
    check_option,
    stream_option,
)
from pgdecode.rows.value_options import ValueOptions
from spark_udfs.jobs import file_route, frame_route
from spark_udfs.jobs.job_config import CHANGES, MESSAGES, ChangeJob, MessageJob
from spark_udfs.jobs.output_committer import DecodedFiles
from spark_udfs.runtime.session import local_session
from spark_udfs.runtime.storage import Location, as_path, is_path, staged
from spark_udfs.schema.spark_types import session_has_time

Route = Literal["auto", "files", "dataframe"]
_SETTINGS = {
    # Names in a file may differ by case alone.
    "spark.sql.caseSensitive": "true",
    # Spark's default is INT96, which others read as nanoseconds: too narrow for what a payload can hold.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}
_OF_SPARK = (PySparkException, Py4JError)
# The last line of a traceback.
_RAISED = re.compile(r"^[\w.]+: .+", re.MULTILINE)
# An error of Spark's own.
_CONDITION = re.compile(r"\[[A-Z][A-Z0-9_.]+\] .*")
# How that begins for a bad payload, for a file that is at fault, and for all that these packages raise in a task.
_FAULT = f"{DecodeError.__module__}."
_FILE_FAULT = f"{FileFault.__module__}.{FileFault.__name__}: "
_OURS = re.compile(r"(?:pgdecode|spark_udfs)\.[\w.]+: ")


class JobFailed(FileFault):
    """A job that Spark gave up; the text is one line, which names file and row where a payload is at fault."""


def decode_files(
    spark: SparkSession | None,
    source: Location,
    target: Location,
    *,
    what: str | Sequence[str] = MESSAGES,
    payload: str = "data",
    position: str = "seq",
    keep: Sequence[str] = (),
    fields: Sequence[str] | None = None,
    in_stream: InStream | bool | None = "auto",
    mode: Mode = "FAILFAST",
    start: Start = "transaction",
    empty: Empty = "null",
    session: str | None = None,
    include_uncommitted: bool = False,
    catalog: RelationCatalog | None = None,
    types: Mapping[str | int, str] | None = None,
    columns: Mapping[str | int, Mapping[str, str]] | None = None,
    unrepresentable: UnrepresentableValues = "error",
    encoding: str = "UTF8",
    datestyle: str = "ISO, MDY",
    format: Format = "parquet",
    route: Route = "auto",
) -> DecodedFiles:
    """Decode Parquet files of payloads to a folder of files, as a Spark job.

    Parameters
    ----------
    spark : SparkSession or None
        None: the one that runs in this process, else a local one on all cores, which is stopped in the end. A session
        of Spark Connect will not do.
    source : path or URI
        A Parquet file, or a folder with `*.parquet` files at any depth. A path is one of this machine, and on a cluster
        one that all machines share; what a URI (`hdfs://...`, `s3a://...`) means is up to `spark.read.parquet`.
    target : path or URI
        The folder to write. It must not exist, and appears when it is complete.
    what : "messages", "changes", "schema.table", or a sequence of tables and "changes"
        A row per message; or per committed change of any table; or per change of one table, typed. A string makes one
        output, whose files lie in `target`. A sequence makes a folder in `target` for each of its outputs, under its
        name, also where it has one item; the files are read once. Messages are no item of a sequence.
    payload : str
        The column that holds the messages, binary.
    position : str
        For changes and tables: the column of integers that says the order in which the slot gave the payloads. All
        files together are one sequence.
    keep : sequence of str
        For messages: other columns of the input, which come first in the output.
    fields : sequence of str, optional
        Columns to write, in this order; by default all, of messages all but `xid_basis`.
    in_stream : {"auto", "ordered"} or bool
        For messages, as of `pgdecode.decode_messages`. "ordered" (None means the same): the rows of each file are in
        slot order, and one task decodes each file from its first row to its last. "auto" is the default because tasks
        otherwise read parts of files.
    mode : {"FAILFAST", "PERMISSIVE", "DROPMALFORMED"}
        At a bad payload: stop, and leave nothing; write a row of nulls with its `error`; leave the row out. What is
        written or left out so is counted.
    start : {"transaction", "anywhere"}
        For changes and tables, as of `spark_udfs.changes`: whether transactions whose beginning is missing are an
        error, or left out whole and counted.
    empty : {"null", "error"}
        What to make of payloads of no bytes: null messages, which are passed over in changes, or bad payloads.
    session : str, optional
        For changes and tables: the column whose value tells one connection to the server from the next, as of
        `spark_udfs.changes`.
    include_uncommitted, catalog, types, unrepresentable, encoding, datestyle
        For changes and tables, as of `spark_udfs.table_changes`; all years pass.
    columns : mapping of a table to a mapping of a column's name to a PostgreSQL type, optional
        For changes and tables, as of `pgdecode.ChangeDecoder`: {"public.orders": {"price": "numeric(20,4)"}}.
    format : {"parquet", "jsonl", "csv"}
        JSON lines and CSV have the form that `pgdecode decode` gives them.
    route : {"auto", "files", "dataframe"}
        Who reads and writes the files, see Notes: the tasks, in Python; or Spark. "auto" takes the first where it can.

    Returns
    -------
    DecodedFiles
        `bad_rows`, by the code of their error; `skipped` and `undecided` transactions. The manifest says the same.

    Raises
    ------
    FileExistsError
        If the target exists.
    PathError
        If there is no input, if a column is missing, not binary or not of integers, if no payload describes a table, if
        the target lies in the source, or if a route cannot be taken.
    TypeError, ValueError
        For options that do not exist or not for this output, and if a `keep` column has the name of an envelope column.
    JobFailed
        If a payload is bad in FAILFAST mode, which the text names by file, row and offset; if positions are null or
        come twice; or if Spark fails. Nothing is left behind.
    JavaNotFound
        If a local Spark is needed and there is no Java.

    Notes
    -----
    Where source and target are paths, the tasks read row groups with pyarrow, decode them and write Parquet with
    pyarrow; nothing but their reports passes through the JVM, which takes a fraction of the time. Each holds a batch of
    payloads and a row group of the output, for changes also the transaction that is open. An attempt at a task writes
    under a name of its own. The driver takes one for each task, and writes beside the parts `_manifest.json`, which
    says of each its rows, bytes, SHA-256 and the rows of the input that it is of, and counts `bad_rows`, `skipped` and
    `undecided`, and `_SUCCESS`; then the folder gets
    its name. Failures, retries and speculation leave no trace, and the same input, cut in the same way, gives the same
    bytes. A file that is replaced meanwhile fails the job.

    Changes and tables are decoded while the files are read for the first time, on what the beginnings of the files tell
    of relations. That is enough where transactions are neither streamed nor prepared and no table changes; a task for
    which it was not decodes its files again, knowing all that the other tasks have read.

    Spark reads and writes instead where one of the two is a URI, and for changes and tables where rows of a file do not
    stand in the order of their positions or the files' ranges of positions overlap. By both routes come the same rows
    in columns of the same names, which Spark reads as the same types; not the same bytes, nor files of the same sizes.
    In messages with `in_stream="auto"` the guesses (`xid_basis`) depend on what else is in a batch, and columns of
    `keep` are of Spark's types where Spark wrote them. Files whose names have a colon, or begin with `_` or `.`, Spark
    does not read.

    The rows of a file stay in their order, and so do the parts of a file that is cut; of several files, those whose
    tasks write do. Changes and tables on the route "dataframe" come in no order. (commit_position, position) says in
    which changes are to be applied.

    On a cluster, pgdecode must be there for the Python of the executors, in the version of the driver. It is compiled,
    so that `--py-files` does not carry it: install the wheel in the executors' image, or send a whole environment,
    packed with venv-pack or conda-pack, by `--archives env.tar.gz#env` and `PYSPARK_PYTHON=env/bin/python`.
    """
    names = (what,) if isinstance(what, str) else tuple(what)
    of_changes = {
        "start": start != "transaction",
        "session": session is not None,
        "include_uncommitted": include_uncommitted is not False,
        "catalog": catalog is not None,
        "types": types is not None,
        "columns": columns is not None,
        "unrepresentable": unrepresentable != "error",
        "encoding": encoding != "UTF8",
        "datestyle": datestyle != "ISO, MDY",
    }
    chosen = None if fields is None else tuple(fields)
    asked: MessageJob | ChangeJob
    if what == MESSAGES:
        _refuse(of_changes, "changes and tables")
        asked = MessageJob(tuple(dict.fromkeys(keep)), chosen, stream_option(in_stream), mode, format, empty)
        needed = asked.keep
    else:
        _refuse({"keep": bool(keep), "in_stream": in_stream != "auto"}, "messages")
        value_options = ValueOptions(types, unrepresentable, encoding, datestyle, columns)
        options = ChangeOptions(mode, include_uncommitted, start=start, empty=empty)
        asked = ChangeJob(
            _outputs(names), chosen, value_options, options, catalog, format, in_folders=not isinstance(what, str)
        )

        needed = (position,) if session is None else (position, session)
    # Tasks may be elsewhere than this process.
    files = payload_files(Path(source).absolute(), payload, needed) if is_path(source) else None
    if files is not None and isinstance(asked, ChangeJob):
        check_positions(files, position)
        paths = [file.path for file in files]
        said = replace(asked.value_options, types=types_of(paths, types))
        asked = replace(asked, value_options=said, catalog=asked.catalog or catalog_of(paths))
    direct = _is_direct(route, source, target)
    if is_path(target):
        _check_target(Path(target), Path(source) if is_path(source) else None)
    try:
        with nullcontext(spark) if spark is not None else local_session() as running, staged(running, target) as hidden:
            if isinstance(asked, MessageJob):
                return _messages(running, source, files, payload, hidden, asked, direct)
            return _changes(running, source, files, payload, (position, session), hidden, asked, direct, route)
    except _OF_SPARK as error:
        raise JobFailed(_said(error, source)) from error


def _outputs(names: Sequence[str]) -> tuple[str | None, ...]:
    if MESSAGES in names:
        raise ValueError('what="messages" is no item of a sequence: messages are the only output')
    unknown = [name for name in names if name != CHANGES and "." not in name]
    if unknown or not names:
        raise ValueError(f'what is "messages", "changes" or tables as "schema.table", not {(unknown or names)!r}')
    return tuple(dict.fromkeys(None if name == CHANGES else name for name in names))


def _refuse(given: Mapping[str, bool], of: str) -> None:
    wrong = [name for name, is_given in given.items() if is_given]
    if wrong:
        raise ValueError(f"{', '.join(wrong)}: only for {of}")


def _is_direct(route: Route, source: Location, target: Location) -> bool:
    check_option("route", route, Route)
    uri = next((place for place in (source, target) if not is_path(place)), None)
    if route == "files" and uri is not None:
        raise PathError(f'{uri}: is a URI, and the route "files" needs paths')
    return route != "dataframe" and uri is None


def _check_target(target: Path, source: Path | None) -> None:
    if os.path.lexists(target):
        raise FileExistsError(f"{target}: exists already")
    if source is not None:
        check_target(target, source, overwrite=False)


def _messages(
    spark: SparkSession,
    source: Location,
    files: Sequence[PayloadFile] | None,
    payload: str,
    hidden: str,
    asked: MessageJob,
    direct: bool,
) -> DecodedFiles:
    if direct and files:
        return file_route.write_messages(spark, files, as_path(hidden), asked)
    settings = {**_SETTINGS, **(frame_route.FILE_BY_FILE if asked.in_stream == "ordered" else {})}
    with _set(spark, settings):
        found = frame_route.read(spark, source, files, payload, asked.keep)
        try:
            return frame_route.write_messages(found, payload, hidden, asked)
        except _OF_SPARK as error:
            if not _one_line(error).startswith(_FAULT):
                raise
            fault = _first_fault(found, payload, asked)
            if fault is None:
                raise
            raise JobFailed(fault) from error


def _first_fault(found: DataFrame, payload: str, asked: MessageJob) -> str | None:
    try:
        return frame_route.first_fault(found, payload, asked)
    except _OF_SPARK:
        # It is named by its row in a batch, then.
        return None


def _changes(
    spark: SparkSession,
    source: Location,
    files: Sequence[PayloadFile] | None,
    payload: str,
    order: tuple[str, str | None],
    hidden: str,
    asked: ChangeJob,
    direct: bool,
    route: Route,
) -> DecodedFiles:
    position, session = order
    folders = {name: f"{hidden}/{table_file_name(name)}" if asked.in_folders else hidden for name in asked.names}
    try:
        if direct and files:
            places = {name: as_path(folder) for name, folder in folders.items()}
            done = file_route.write_changes(spark, files, position, asked, session_has_time(spark), places, session)
            if done is not None:
                return done
            if route == "files":
                raise PathError(f'{source}: not in the order of {position}, which the route "files" needs')
        with _set(spark, _SETTINGS):
            columns = (position,) if session is None else (position, session)
            found = frame_route.read(spark, source, files, payload, columns)
            return frame_route.write_changes(found, payload, position, folders, asked, session)
    except KeyError as error:
        raise PathError(f"{source}: {error.args[0]}") from error
    except OrderFault as error:
        raise JobFailed(f"{source}: {error}") from error
    except FileFault as error:
        raise JobFailed(str(error)) from error


@contextmanager
def _set(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Change settings of a session for a while."""
    former = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, before in former.items():
            if before is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, before)


def _said(error: Exception, source: Location) -> str:
    """Say in one line why a job failed, with the file where a worker or Spark knows it."""
    said = _one_line(error)
    if said.startswith(_FILE_FAULT):
        return said.removeprefix(_FILE_FAULT)
    return _OURS.sub(lambda _: f"{source}: ", said, count=1) if _OURS.match(said) else said


def _one_line(error: Exception) -> str:
    """Pick from many lines what the Python of a worker, or Spark, means to say."""
    texts = [str(error)]
    if isinstance(error, Py4JJavaError):
        texts = []
        cause = error.java_exception
        while cause is not None:
            texts.append(str(cause.toString()))
            cause = cause.getCause()
    for text in texts:
        raised = _RAISED.findall(text) if "Traceback (most recent call last)" in text else []
        if raised:
            return str(raised[-1]).strip()
    # Spark's words name the file or the table; those of what they were caused by seldom do.
    named = next((found for text in texts if (found := _CONDITION.search(text))), None)
    lines = [line for line in texts[-1].splitlines() if line.strip()]
    return (named[0] if named else lines[0] if lines else type(error).__name__).strip()
