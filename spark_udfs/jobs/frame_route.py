"""The route "dataframe": Spark reads and writes the files, in any storage that it supports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, DecimalType, LongType, StringType, StructField, StructType

from pgdecode.envelope.schema import envelope_schema
from pgdecode.files.envelope_text import fields_to_decode
from pgdecode.files.ordered_files import OrderFault
from pgdecode.files.payload_file import CAPTURE_SESSION, PayloadFile
from pgdecode.files.payload_files import is_hidden
from pgdecode.files.writers import rows_in
from pgdecode.payloads.unwrap import is_string
from pgdecode.protocol.errors import did_you_mean
from pgdecode.protocol.options import Format, Mode, RowMode, Unwrap
from pgdecode.runs.digested_file import sha256_of
from pgdecode.runs.errors import RunError
from pgdecode.runs.manifest import OutputFile
from pgdecode.storage.errors import PathError
from spark_udfs.dataframes.changes import codes, count_bad_rows, decode_indexed, indexed_rows, tables_of
from spark_udfs.dataframes.frame_options import FrameOptions
from spark_udfs.dataframes.replication_state import keep_changes, state_after
from spark_udfs.dataframes.unwrapped import unwrapped
from spark_udfs.jobs.job_config import ChangeJob, MessageJob
from spark_udfs.jobs.job_run import NEW_RUN, JobOutput, JobRun
from spark_udfs.jobs.run_result import RunResult
from spark_udfs.runtime.session import for_workers
from spark_udfs.runtime.storage import Location, as_location, as_path, as_pattern, change_suffix
from spark_udfs.runtime.worker import ERROR, FaultFinder, Options, PartitionFunction
from spark_udfs.schema.spark_types import session_has_time, spark_schema

# Make each file one partition: opening a file has the same cost as a whole partition of 2 TiB. Spark adds these costs
# in 64 bits, which is enough for four million files.
FILE_BY_FILE = {
    "spark.sql.files.maxPartitionBytes": str(2**41),
    "spark.sql.files.openCostInBytes": str(2**41),
    "spark.sql.files.maxPartitionNum": str(2**31 - 1),
}


def read(
    spark: SparkSession,
    source: Location,
    files: Sequence[PayloadFile] | None,
    payload: str,
    keep: Sequence[str],
    unwrap: Unwrap,
) -> DataFrame:
    """Read Parquet files. If `source` is a path, `files` are the files there. Keepalives are left out.

    Raises
    ------
    PathError
        If a column is missing or has a wrong type, or Spark ignores files with such a name.
    """
    if files is None:
        found = spark.read.parquet(as_pattern(source))
        _check_columns(found, source, payload, keep)
        return _unwrapped(found, payload, unwrap)
    paths = [Path(str(file.path)) for file in files]
    for file in files:
        # Spark would silently ignore this file. Hidden files in a folder are not in `files`.
        if is_hidden(file.path.name):
            raise PathError(f"{file.path}: Spark does not read files whose names begin with _ or .")
        if ":" in file.path.name:
            raise PathError(f"{file.path}: Spark does not read files with a colon in their names")
    reader = spark.read
    # With a schema, unsupported types of other columns do not matter. If a type of these columns cannot be converted
    # to Spark's, Spark may still be able to read it without a schema.
    with suppress(TypeError):
        others = (field for field in files[0].schema if field.name not in (payload, CAPTURE_SESSION))
        type = pa.string() if is_string(files[0].columns.field(payload).type) else pa.binary()
        reader = reader.schema(spark_schema(pa.schema([*others, pa.field(payload, type)])))
    found = reader.parquet(*map(as_pattern, paths))
    if CAPTURE_SESSION in keep:
        found = found.withColumn(CAPTURE_SESSION, _capture_session(files))
    return _unwrapped(found, payload, unwrap)


def _capture_session(files: Sequence[PayloadFile]) -> Column:
    """Return the session that received a row of captured files, by its position."""
    starts: dict[int, int] = {}
    captured = [file.captured for file in files if file.captured is not None]
    for item in sorted(captured, key=lambda item: item.first_seq):
        starts.setdefault(item.session, item.first_seq)
    found = F.lit(0).cast("bigint")
    for session, first_seq in starts.items():
        found = F.when(F.col("seq") >= first_seq, F.lit(session)).otherwise(found)
    return found


def _unwrapped(found: DataFrame, payload: str, unwrap: Unwrap) -> DataFrame:
    type = found.schema[payload].dataType
    if unwrap == "none" and isinstance(type, BinaryType):
        return found
    payloads = unwrapped(_column(payload), type, unwrap)
    # Keepalives have become null.
    return found.where(_column(payload).isNull() | payloads.isNotNull()).withColumn(payload, payloads)


def write_messages(found: DataFrame, payload: str, folder: str, config: MessageJob) -> RunResult:
    """Decode rows to messages."""
    function = partition_function(payload, config)
    # mapInArrow does not support dots and backticks in names, so columns are renamed.
    columns = dict.fromkeys((*config.keep, payload))
    rows = found.select(*(_column(name).alias(f"c{place}") for place, name in enumerate(columns)))
    envelope = envelope_schema(function.fields)
    if config.format == "parquet":
        fields = [*(found.schema[name] for name in function.keep), *spark_schema(envelope).fields]
    elif config.format == "csv":
        fields = [StructField(name, StringType()) for name in (*function.keep, *envelope.names)]
    else:
        fields = [StructField("value", StringType())]
    observation = Observation()
    made = _mapped(rows, function, [*fields, StructField(ERROR, StringType())])
    _write_as(count_bad_rows(made, ERROR, observation, function.drop_bad).drop(ERROR), config.format, folder)
    return RunResult(_n_rows(observation, config.mode), _bad_rows([observation]))


def _n_rows(observation: Observation, mode: Mode) -> int:
    """Return the number of rows that were written."""
    found = observation.get
    bad = sum(found[code] for code in codes()) if mode == "DROPMALFORMED" else 0
    return int(found["rows"] - bad)


def _bad_rows(observations: Sequence[Observation]) -> dict[str, int]:
    """Add up the observed numbers of bad rows."""
    known = codes()
    found: Counter[str] = Counter()
    for observation in observations:
        found.update({code: n for code, n in observation.get.items() if code in known and n})
    return dict(sorted(found.items()))


def partition_function(payload: str, config: MessageJob) -> PartitionFunction:
    """Make the function of the tasks for a job."""
    keep = tuple(dict.fromkeys(config.keep))
    names = tuple(envelope_schema(config.fields).names)
    needed = names if config.format == "parquet" else fields_to_decode(config.fields)
    needed = tuple(dict.fromkeys((*needed, "error")))
    mode: RowMode = "FAILFAST" if config.mode == "FAILFAST" else "PERMISSIVE"
    place = list(dict.fromkeys((*keep, payload))).index(payload)
    fields = None if config.fields is None else names
    options = Options(needed, config.in_stream, mode, config.empty, limits=config.limits)
    return PartitionFunction(options, place, keep, fields, config.format, config.mode == "DROPMALFORMED")


def write_changes(
    found: DataFrame,
    payload: str,
    position: str,
    folders: Mapping[str | None, str],
    config: ChangeJob,
    session: str | None = None,
    run: JobRun = NEW_RUN,
) -> JobOutput:
    """Decode rows to changes and tables, and write each output to its folder.

    Raises
    ------
    OrderFault
        If positions are null or negative.
    PathError
        If positions are not integers, or sessions have a type that cannot be compared.
    KeyError
        If no message describes a table.
    """
    positions = _column(position)
    # This is the type with which Spark reads unsigned 64-bit integers.
    if found.schema[position].dataType == DecimalType(20, 0):
        positions = positions.cast("bigint").alias(position)
    sessions = None if session is None else _column(session)
    options = config.options
    tables = None if run.kept is not None else tables_of(options, *(name for name in config.names if name is not None))
    try:
        frame = FrameOptions(_column(payload), position=positions, catalog=config.catalog, session=sessions)
        rows, _ = indexed_rows(found, frame, options, tables, run)
    except TypeError as error:
        raise PathError(str(error)) from error
    except RunError:
        raise
    except ValueError as error:
        raise OrderFault(str(error)) from error
    outputs = config.outputs(rows.indexes, session_has_time(found.sparkSession), in_files=False)
    observations = []
    files: list[OutputFile] = []
    for name, output in zip(config.names, outputs, strict=True):
        observations.append(Observation())
        columns = config.columns(output)
        made = decode_indexed(rows, output, options, columns, config.format, observations[-1])
        _write_as(made, config.format, folders[name])
        if run.kept is not None:
            files += _files_in(as_path(folders[name]), config.format, run.kept.parent)
    after = state_after(rows, run.start, options)
    kept = [] if run.kept is None else keep_changes(rows, options, run.kept, run.start.position)
    return JobOutput(
        replace(after.input, source=run.input.source, files=run.input.files),
        rows.indexes[0].index,
        _bad_rows(observations),
        sum(_n_rows(observation, options.mode) for observation in observations),
        files,
        kept,
        rows.last_session,
    )


def _files_in(folder: Path, format: Format, root: Path) -> list[OutputFile]:
    """Describe the files of an output that Spark has written."""
    return [
        OutputFile(path.relative_to(root).as_posix(), rows_in(path, format), path.stat().st_size, sha256_of(path))
        for path in sorted(folder.glob(f"part-*.{format}"))
    ]


def first_fault(found: DataFrame, payload: str, config: MessageJob) -> str | None:
    """Find the first bad row, and describe it with its file and row.

    This is a second pass after a failure, because a task knows only the row in its batch. Passing the file and row of
    each payload to the tasks would slow down every job.
    """
    rows = found.select(_column(payload).alias("data"), F.col("_metadata.file_path"), F.col("_metadata.row_index"))
    options = partition_function(payload, config).options
    finder = FaultFinder(replace(options, fields=("error",), mode="PERMISSIVE"))
    fields = [StructField("file", StringType()), StructField("row", LongType()), StructField("error", StringType())]
    fault = _mapped(rows, finder, fields).first()
    return f"{as_location(fault['file'])}: row {fault['row']}: {fault['error']}" if fault else None


def _check_columns(found: DataFrame, source: Location, payload: str, keep: Sequence[str]) -> None:
    types = {field.name: field.dataType for field in found.schema.fields}
    for name in (payload, *keep):
        if name not in types:
            raise PathError(f"{source}: no column {name!r}{did_you_mean(name, [*types])}; columns: {', '.join(types)}")
    if not isinstance(types[payload], BinaryType | StringType):
        raise PathError(f"{source}: column {payload!r} is {types[payload].simpleString()}, not binary")


def _column(name: str) -> Column:
    return F.col("`{}`".format(name.replace("`", "``")))


def _mapped(rows: DataFrame, function: PartitionFunction | FaultFinder, fields: list[StructField]) -> DataFrame:
    with for_workers():
        return rows.mapInArrow(function, StructType(fields))


def _write_as(rows: DataFrame, format: Format, target: str) -> None:
    """Write rows that already have the columns of the format."""
    if format == "parquet":
        rows.write.parquet(target)
    elif format == "csv":
        # Double quotes and keep blanks, as other readers expect.
        rows.write.csv(target, header=True, escape='"', ignoreLeadingWhiteSpace=False, ignoreTrailingWhiteSpace=False)
    else:
        rows.write.text(target)
        change_suffix(rows.sparkSession, target, ".txt", ".jsonl")
