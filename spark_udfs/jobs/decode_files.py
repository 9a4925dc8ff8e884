"""The job `decode_files`: decodes Parquet files of payloads to files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from pyspark.sql import SparkSession

from pgdecode import RelationCatalog
from pgdecode.datasets.target import target_at
from pgdecode.files.ordered_files import OrderFault
from pgdecode.files.payload_file import FileFault
from pgdecode.jobs.decode_run import CHANGES, MESSAGES, DecodeJob, decode
from pgdecode.protocol.options import Format, InStream, Unwrap, stream_option
from pgdecode.relations.table_names import normal_name
from pgdecode.rows.options import DEFAULTS, FileKeywords, Options, with_options
from pgdecode.storage.errors import PathError
from pgdecode.storage.object_path import FilePath, ObjectPath, file_path, is_object
from spark_udfs.jobs.file_route import SparkEngine
from spark_udfs.jobs.run_result import RunResult
from spark_udfs.runtime.jvm import SPARK_ERRORS, error_texts
from spark_udfs.runtime.storage import Location, is_path

# Options of messages too.
_OF_ALL = ("mode", "empty", "max_value_bytes")
# The last line of a traceback.
_RAISED = re.compile(r"^[\w.]+: .+", re.MULTILINE)


class JobFailed(FileFault):
    """The Spark job failed. The text is one line, with the file and row if a payload is bad."""


@with_options()
def decode_files(
    spark: SparkSession | None,
    source: Location,
    target: Location,
    *,
    what: str | Sequence[str] = MESSAGES,
    payload: str = "data",
    unwrap: Unwrap = "auto",
    position: str | None = None,
    session: str | None = None,
    catalog: RelationCatalog | None = None,
    keep: Sequence[str] = (),
    fields: Sequence[str] | None = None,
    in_stream: InStream | bool | None = "auto",
    format: Format = "parquet",
    accept_gap: bool = False,
    overwrite: bool = False,
    storage_options: Mapping[str, str] | None = None,
    **options: Unpack[FileKeywords],
) -> RunResult:
    """Decode what has come since the last call from Parquet files of payloads, as a Spark job, and add it to a folder.

    Parameters
    ----------
    spark : SparkSession or None
        None: the active session of this process, or a new local session on all cores, which is stopped at the end. A
        session of Spark Connect is possible too.
    source : path or URI
        A Parquet file, or a folder with `*.parquet` files at any depth, which may grow. A path is on this machine; on a
        cluster, all machines must share it. Tasks read s3://, gs://, az:// and abfss:// themselves. For other URIs
        (`hdfs://...`, `s3a://...`), use `spark.read.parquet` and `spark_udfs.changes` or `table_changes`.
    target : path or URI
        The folder of the data set, see docs/runs.md. The same call again decodes the files that have come since, and
        adds its output as new files. The folder `_pgdecode` in it has the manifests and the state. In an object store,
        the manifests say which files count: see `read_run`.
    what : "messages", "changes", "schema.table", or a sequence of tables and "changes"
        One row per message; or one row per committed change of all tables; or one row per change of a table, with typed
        columns. A string makes one output, whose files are in `target`. A sequence, also of one item, makes a folder in
        `target` for each output, under its name; the input is read once. Messages cannot be an item of a sequence.
    payload : str
        The payload column.
    unwrap : {"auto", "none", "hex", "base64", "xlogdata"}
        The form of the payloads, as in `pgdecode.unwrap`. Text files, such as CSV, must be converted to Parquet first.
    position : str, optional
        For changes and tables: the column with positions, which are integers in slot order; by default `seq` or
        `position`. All files together are one sequence, and the rows of each file are in this order.
    session : str, optional
        For changes and tables: the column whose value identifies the connection to the server, as in
        `spark_udfs.changes`. By default, the footers of files from `pgdecode capture` say it.
    catalog : RelationCatalog, optional
        For changes and tables: relations that the first payloads do not describe.
    keep : sequence of str
        For messages: other columns of the input. They come first in the output.
    fields : sequence of str, optional
        Columns to write, in this order; by default all, but for messages without `xid_basis`.
    in_stream : {"auto", "ordered"} or bool
        For messages, as in `pgdecode.decode_messages`. "ordered" (None means the same): the rows of each file are in
        slot order, and one task decodes the whole file. The default is "auto", so that several tasks can decode parts
        of one file.
    format : {"parquet", "jsonl", "csv"}
        JSON lines and CSV have the same form as those of `pgdecode decode`.
    accept_gap : bool
        Decode over gaps between captured files, where changes are missing. Otherwise they are an error, and nothing is
        written. The manifest lists them.
    overwrite : bool
        Begin anew: decode all files, and then remove what earlier calls have written.
    storage_options : mapping, optional
        How to connect to object stores, such as {"region": "eu-west-1"}. They are sent to the tasks, so they must not
        have credentials, which each machine takes from its environment or its role.

    Other Parameters
    ----------------
    max_value_bytes : int
        A longer value is bad, as with `pgdecode.Limits`. By default as much as a server can send.
    **options
        As in `pgdecode.ChangeDecoder`. All but `mode` and `empty` are only for changes and tables. In the mode
        "FAILFAST", a bad payload leaves no output; in the others, bad rows are counted. Dates and timestamps of all
        years are allowed.

    Returns
    -------
    RunResult
        What this call has added: `rows`, `bad_rows` by error code, `skipped` and `undecided` transactions,
        `first_position` and `last_position` of the payloads, and the `manifest`, which is None if there was nothing
        new.

    Raises
    ------
    TargetExists
        If the target has files, but is not a data set. It is a FileExistsError.
    RunError
        If another run is writing the target, or has written it meanwhile; if options that change the rows differ from
        those of the last call; if a file came too late, or was changed after it was decoded; if payloads before a file
        are missing; or if there is a gap that the capture of a file accepted, without `accept_gap`.
    RunFault
        If the state of the last call is damaged or missing.
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
    the open transaction. Each attempt of a task writes files with unique names, and the driver accepts those of one
    attempt. Creating the manifest commits them together with the state. The manifest has the rows, bytes, SHA-256 and
    input rows of each file, and `bad_rows`, `skipped` and `undecided`. Failures, retries and Spark's speculative
    execution do not change the output. The same input with the same splits gives the same bytes. If an input file is
    replaced during the job, the job fails.

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
    >>> spark_udfs.read_run(spark, folder).count()
    149
    """
    given = Options.of(options)
    if what == MESSAGES:
        of_changes = {"session": session is not None, "catalog": catalog is not None}
        of_changes |= {name: getattr(given, name) != DEFAULTS[name] for name in options if name not in _OF_ALL}
        _refuse(of_changes, "changes and tables")
        names: tuple[str, ...] = (MESSAGES,)
    else:
        _refuse({"keep": bool(keep), "in_stream": in_stream != "auto"}, "messages")
        names = _outputs((what,) if isinstance(what, str) else tuple(what))
    job = for_tasks(
        DecodeJob(
            _file_path(source, storage_options),
            target_at(_file_path(target, storage_options)),
            names,
            format,
            payload,
            unwrap,
            position,
            session,
            given,
            catalog=catalog,
            keep=tuple(dict.fromkeys(keep)),
            fields=None if fields is None else tuple(fields),
            in_stream=stream_option(in_stream),
            in_folders=not isinstance(what, str),
            accept_gap=accept_gap,
            overwrite=overwrite,
        )
    )
    with job_errors():
        return RunResult.of(decode(job, SparkEngine(spark, job)))


@contextmanager
def job_errors() -> Iterator[None]:
    """Convert errors of files and of Spark to JobFailed."""
    try:
        yield
    except OrderFault as error:
        raise JobFailed(f"{error}; spark_udfs.changes decodes rows in any order") from error
    except FileFault as error:
        raise JobFailed(str(error)) from error
    except SPARK_ERRORS as error:
        raise JobFailed(_one_line(error)) from error


def _file_path(location: Location, options: Mapping[str, str] | None) -> FilePath:
    """Return where tasks read or write files.

    Raises
    ------
    PathError
        If only Spark can read and write there.
    """
    if not is_path(location) and not is_object(location):
        raise PathError(
            f"{location}: only Spark reads and writes this, not the tasks of decode_files: use a path, s3://, gs://, "
            "az:// or abfss://; or spark_udfs.changes(spark.read.parquet(...)).write, parse_pgoutput for messages"
        )
    return file_path(location, options)


def for_tasks(job: DecodeJob) -> DecodeJob:
    """Return a job whose paths are those of tasks, which may have another working directory.

    Raises
    ------
    PathError
        If a path has credentials, which are not sent to tasks.
    """
    paths = []
    for path in (job.source, job.target.path):
        if isinstance(path, ObjectPath):
            path.check_public()
        paths.append(path.absolute() if isinstance(path, Path) else path)
    return replace(job, source=paths[0], target=target_at(paths[1]))


def _outputs(names: Sequence[str]) -> tuple[str, ...]:
    if MESSAGES in names:
        raise ValueError('what: "messages" cannot be an item of a sequence: messages are the only output')
    unknown = [name for name in names if name != CHANGES and "." not in name]
    if unknown or not names:
        raise ValueError(f'what is "messages", "changes" or tables as "schema.table", not {(unknown or names)!r}')
    return tuple(dict.fromkeys(name if name == CHANGES else normal_name(name) for name in names))


def _refuse(given: Mapping[str, bool], of: str) -> None:
    wrong = [name for name, is_given in given.items() if is_given]
    if wrong:
        raise ValueError(f"{', '.join(wrong)}: only for {of}")


def _one_line(error: Exception) -> str:
    """Find the essential line of an error of Spark."""
    texts = error_texts(error)
    for text in texts:
        raised = _RAISED.findall(text) if "Traceback (most recent call last)" in text else []
        if raised:
            return str(raised[-1]).strip()
    lines = [line for line in texts[-1].splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).strip()
