"""Whole jobs: Parquet files of payloads in, decoded files out."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from pgdecode import DecodeError, RelationCatalog
from pgdecode.batches import MODES
from pgdecode.convert_changes import part_name
from pgdecode.files import FileFault, PathError, PayloadFile, payload_files
from pgdecode.messages import ENVELOPE
from pgdecode.readings import Reading
from pgdecode.render import fields_to_decode
from pgdecode.schemas import envelope_schema
from pgdecode.staging import check_target
from pgdecode.writers import FORMATS
from spark_udfs.dataframes import decoded, indexed_rows, options_of, product_of
from spark_udfs.executor import FaultFinder, Options, PartitionFunction
from spark_udfs.runs import AllChanges, Product
from spark_udfs.schemas import spark_schema
from spark_udfs.session import local_session, pandas_not_minded
from spark_udfs.storage import Location, as_location, as_pattern, change_suffix, is_path, staged

_SETTINGS = {
    # Names in a file may differ by case alone.
    "spark.sql.caseSensitive": "true",
    # Spark's default is INT96, which others read as nanoseconds: too narrow for what a payload can hold.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}
# To open a file is said to cost as much as a partition may hold, 2 TiB: each file is one partition, and none is cut.
# Spark adds these up in 64 bits, enough for four million files.
_FILE_BY_FILE = {
    "spark.sql.files.maxPartitionBytes": str(2**41),
    "spark.sql.files.openCostInBytes": str(2**41),
    "spark.sql.files.maxPartitionNum": str(2**31 - 1),
}
_OF_SPARK = (PySparkException, Py4JError)
# The last line of a traceback, and how it begins for a bad payload.
_RAISED = re.compile(r"^[\w.]+: .+", re.MULTILINE)
_FAULT = f"{DecodeError.__module__}."


class JobFailed(FileFault):
    """A job that Spark gave up; the text is one line, which names file and row where a payload is at fault."""


def decode_files(
    source: Location,
    target: Location,
    *,
    payload: str = "data",
    keep: Sequence[str] = (),
    fields: Sequence[str] | None = None,
    in_stream: bool | str | None = "auto",
    mode: str = "FAILFAST",
    format: str = "parquet",
    spark: SparkSession | None = None,
) -> None:
    """Decode Parquet files of payloads to a folder of files, as a Spark job.

    Parameters
    ----------
    source : path or URI
        A Parquet file, or a folder with `*.parquet` files at any depth. A path is one of this machine; what a URI
        (`hdfs://...`, `s3a://...`) means is up to `spark.read.parquet`.
    target : path or URI
        The folder to write. It must not exist, and appears when it is complete.
    payload : str
        The column that holds the messages, binary.
    keep : sequence of str
        Other columns of the input, which come first in the output.
    fields : sequence of str, optional
        Envelope columns to write, in this order; by default all but `xid_basis`.
    in_stream : "auto", bool or None
        As of `pgdecode.decode_messages`. None: the rows of each file are in slot order; each file is then decoded from
        its first row to its last by one task.
    mode : {"FAILFAST", "PERMISSIVE", "DROPMALFORMED"}
        At a bad payload: stop, and leave nothing; write a row of nulls with its `error`; leave the row out.
    format : {"parquet", "jsonl", "csv"}
        JSON lines and CSV have the form that `pgdecode decode` gives them.
    spark : SparkSession, optional
        By default the one that runs in this process, else a local one on all cores, which is stopped in the end. A
        session of Spark Connect will not do.

    Raises
    ------
    FileExistsError
        If the target exists.
    PathError
        If there is no input, or a column is missing or not binary, or the target lies in the source.
    TypeError, ValueError
        For options that do not exist, and if a `keep` column has the name of an envelope column.
    JobFailed
        If a payload is bad in FAILFAST mode, or Spark fails. Nothing is left behind.
    JavaNotFound
        If a local Spark is needed and there is no Java.

    Notes
    -----
    The rows of a file stay in their order; where a large file is cut into several tasks, so do its parts. The largest
    files come first.

    On a cluster, pgdecode must be there for the Python of the executors, in the version of the driver. It is compiled,
    so that `--py-files` does not carry it: install the wheel in the executors' image, or send a whole environment,
    packed with venv-pack or conda-pack, by `--archives env.tar.gz#env` and `PYSPARK_PYTHON=env/bin/python`.
    """
    columns = list(dict.fromkeys((*keep, payload)))
    function = _partition_function(columns.index(payload), tuple(dict.fromkeys(keep)), fields, in_stream, mode, format)
    files = payload_files(Path(source), payload, function.keep) if is_path(source) else None
    if is_path(target):
        _check_target(Path(target), Path(source) if is_path(source) else None)
    settings = {**_SETTINGS, **(_FILE_BY_FILE if in_stream is None else {})}
    try:
        with nullcontext(spark) if spark is not None else local_session() as session, _set(session, settings):
            found = _read(session, source, files, payload, function.keep)
            with staged(session, target) as hidden:
                try:
                    _write(found, columns, function, hidden)
                except _OF_SPARK as error:
                    said = _one_line(error)
                    fault = _first_fault(found, payload, function.options) if said.startswith(_FAULT) else None
                    raise JobFailed(fault or said) from error
    except _OF_SPARK as error:
        raise JobFailed(_one_line(error)) from error


def changes_files(
    source: Location,
    target: Location,
    *,
    relations: Sequence[str] = (),
    payload: str = "data",
    position: str = "seq",
    mode: str = "FAILFAST",
    include_uncommitted: bool = False,
    catalog: RelationCatalog | None = None,
    types: Mapping[str | int, str] | None = None,
    unrepresentable: str = "error",
    encoding: str = "UTF8",
    datestyle: str = "ISO, MDY",
    format: str = "parquet",
    spark: SparkSession | None = None,
) -> None:
    """Decode Parquet files of payloads to files of committed changes, or of tables' rows, as a Spark job.

    Parameters
    ----------
    source, target, spark
        As of `decode_files`. All files together are one sequence.
    relations : sequence of str
        Tables, as "schema.table"; without any, the changes of all tables. With several, the target has a folder for
        each, under its name.
    payload, position : str
        As of `spark_udfs.changes`.
    mode, include_uncommitted, catalog, types, unrepresentable, encoding, datestyle
        As of `spark_udfs.table_changes`; all years pass.
    format : {"parquet", "jsonl", "csv"}
        JSON lines and CSV have the form that `pgdecode decode` gives them.

    Raises
    ------
    FileExistsError, PathError, JavaNotFound
        As of `decode_files`; PathError also if no payload describes a table.
    TypeError, ValueError
        For options that do not exist.
    JobFailed
        If a payload is bad in FAILFAST mode, which the text names by its position; if positions are null or come twice;
        or if Spark fails. Nothing is left behind.

    Notes
    -----
    The rows come in no order: (commit_position, position) says in which they are to be applied.
    """
    if format not in FORMATS:
        raise ValueError(f"format is one of {', '.join(FORMATS)}, not {format!r}")
    options = options_of(mode, include_uncommitted)
    reading = Reading(types, unrepresentable, encoding, datestyle)
    files = payload_files(Path(source), payload, (position,)) if is_path(source) else None
    if is_path(target):
        _check_target(Path(target), Path(source) if is_path(source) else None)
    try:
        with nullcontext(spark) if spark is not None else local_session() as session, _set(session, _SETTINGS):
            rows = _read(session, source, files, payload, (position,))
            try:
                found = indexed_rows(rows, _column(payload), _column(position), None, catalog)
            except ValueError as error:
                raise JobFailed(f"{source}: {error}") from error
            try:
                products: dict[str | None, Product] = {
                    name: product_of(found, name, options, reading, True) for name in relations
                }
            except KeyError as error:
                raise PathError(f"{source}: {error.args[0]}") from error
            with staged(session, target) as hidden:
                for name, product in (products or {None: AllChanges(reading)}).items():
                    folder = f"{hidden}/{part_name(name)}" if len(products) > 1 else hidden
                    # Spark writes no struct without fields, which the old row of a table without columns is.
                    fields = [field.name for field in product.schema if field.type != pa.struct([])]
                    _write_as(decoded(found, product, options, fields, format), format, folder)
    except _OF_SPARK as error:
        said = _one_line(error)
        raise JobFailed(f"{source}: {said.partition(': ')[2]}" if said.startswith(_FAULT) else said) from error


def _partition_function(
    payload: int,
    keep: tuple[str, ...],
    fields: Sequence[str] | None,
    in_stream: bool | str | None,
    mode: str,
    format: str,
) -> PartitionFunction:
    """Check the options and make of them what the tasks do."""
    if mode not in MODES:
        raise ValueError(f"mode is one of {', '.join(MODES)}, not {mode!r}")
    if format not in FORMATS:
        raise ValueError(f"format is one of {', '.join(FORMATS)}, not {format!r}")
    # Readers with Spark's default could not tell them apart by case.
    taken = {column.name for column in ENVELOPE}
    collision = next((name for name in keep if name.lower() in taken), None)
    if collision is not None:
        raise ValueError(f"keep: a decoded column has the name {collision!r}")
    names = tuple(envelope_schema(fields).names)
    needed = names if format == "parquet" else fields_to_decode(fields)
    drop_bad = mode == "DROPMALFORMED"
    if drop_bad:
        needed, mode = tuple(dict.fromkeys((*needed, "error"))), "PERMISSIVE"
    options = Options(needed, in_stream, mode)
    options.decoder()
    return PartitionFunction(options, payload, keep, None if fields is None else names, format, drop_bad)


def _check_target(target: Path, source: Path | None) -> None:
    if os.path.lexists(target):
        raise FileExistsError(f"{target}: exists already")
    if source is not None:
        check_target(target, source, overwrite=False)


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


def _read(
    spark: SparkSession, source: Location, files: Sequence[PayloadFile] | None, payload: str, keep: Sequence[str]
) -> DataFrame:
    if files is None:
        found = spark.read.parquet(as_pattern(source))
        _check_columns(found, source, payload, keep)
        return found
    reader = spark.read
    # Told what to read, Spark does not fail on the types of other columns. What it has no name for, it may still read.
    with suppress(TypeError):
        others = (field for field in files[0].schema if field.name != payload)
        reader = reader.schema(spark_schema(pa.schema([*others, pa.field(payload, pa.binary())])))
    return reader.parquet(*(as_pattern(file.path) for file in files))


def _check_columns(found: DataFrame, source: Location, payload: str, keep: Sequence[str]) -> None:
    types = {field.name: field.dataType for field in found.schema.fields}
    for name in (payload, *keep):
        if name not in types:
            raise PathError(f"{source}: no column {name!r}; columns: {', '.join(types)}")
    if not isinstance(types[payload], BinaryType):
        raise PathError(f"{source}: column {payload!r} is {types[payload].simpleString()}, not binary")


def _column(name: str) -> Column:
    return F.col("`{}`".format(name.replace("`", "``")))


def _write(found: DataFrame, columns: Sequence[str], function: PartitionFunction, target: str) -> None:
    # Under names of their own, since mapInArrow trips over dots and backticks.
    rows = found.select(*(_column(name).alias(f"c{place}") for place, name in enumerate(columns)))
    envelope = envelope_schema(function.fields)
    if function.format == "parquet":
        fields = [*(found.schema[name] for name in function.keep), *spark_schema(envelope).fields]
    elif function.format == "csv":
        fields = [StructField(name, StringType()) for name in (*function.keep, *envelope.names)]
    else:
        fields = [StructField("value", StringType())]
    _write_as(_mapped(rows, function, fields), function.format, target)


def _write_as(rows: DataFrame, format: str, target: str) -> None:
    """Write rows that have the columns of a format."""
    if format == "parquet":
        rows.write.parquet(target)
    elif format == "csv":
        # Quotes are doubled and blanks kept, as other readers expect.
        rows.write.csv(target, header=True, escape='"', ignoreLeadingWhiteSpace=False, ignoreTrailingWhiteSpace=False)
    else:
        rows.write.text(target)
        change_suffix(rows.sparkSession, target, ".txt", ".jsonl")


def _mapped(rows: DataFrame, function: PartitionFunction | FaultFinder, fields: list[StructField]) -> DataFrame:
    with pandas_not_minded():
        return rows.mapInArrow(function, StructType(fields))


def _first_fault(found: DataFrame, payload: str, options: Options) -> str | None:
    """Find the first bad row again and name it by file and place.

    A second pass, only where one has failed: a task knows no more than a row's place in its batch, and to send each
    row's file and place along would slow down every job.
    """
    rows = found.select(_column(payload).alias("data"), F.col("_metadata.file_path"), F.col("_metadata.row_index"))
    finder = FaultFinder(replace(options, fields=("error",), mode="PERMISSIVE"))
    fields = [StructField("file", StringType()), StructField("row", LongType()), StructField("error", StringType())]
    try:
        fault = _mapped(rows, finder, fields).first()
    except _OF_SPARK:
        return None
    return f"{as_location(fault['file'])}: row {fault['row']}: {fault['error']}" if fault else None


def _one_line(error: Exception) -> str:
    """Pick from many lines what Spark, or the Python of a worker, means to say."""
    if isinstance(error, Py4JJavaError):
        cause = error.java_exception
        while cause.getCause() is not None:
            cause = cause.getCause()
        text = str(cause.toString())
    else:
        text = str(error)
    raised = _RAISED.findall(text) if "Traceback (most recent call last)" in text else []
    lines = [line for line in text.splitlines() if line.strip()]
    return str(raised[-1] if raised else lines[0] if lines else type(error).__name__).strip()
