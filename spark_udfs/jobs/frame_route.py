"""Jobs through DataFrames: Spark reads and writes the files, on any store that it reaches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, DecimalType, LongType, StringType, StructField, StructType

from pgdecode.envelope.schema import envelope_schema
from pgdecode.files.envelope_text import fields_to_decode
from pgdecode.files.ordered_files import OrderFault
from pgdecode.files.payload_files import PathError, PayloadFile, is_hidden
from pgdecode.protocol.options import Format, RowMode
from spark_udfs.dataframes.changes import codes, decoded, indexed_rows, observed, tables_of
from spark_udfs.jobs.job_config import ChangeJob, MessageJob
from spark_udfs.jobs.output_committer import DecodedFiles
from spark_udfs.runtime.session import pandas_not_minded
from spark_udfs.runtime.storage import Location, as_location, as_pattern, change_suffix
from spark_udfs.runtime.worker import ERROR, FaultFinder, Options, PartitionFunction
from spark_udfs.schema.spark_types import session_has_time, spark_schema

# To open a file is said to cost as much as a partition may hold, 2 TiB: each file is one partition, and none is cut.
# Spark adds these up in 64 bits, enough for four million files.
FILE_BY_FILE = {
    "spark.sql.files.maxPartitionBytes": str(2**41),
    "spark.sql.files.openCostInBytes": str(2**41),
    "spark.sql.files.maxPartitionNum": str(2**31 - 1),
}


def read(
    spark: SparkSession, source: Location, files: Sequence[PayloadFile] | None, payload: str, keep: Sequence[str]
) -> DataFrame:
    """Read what lies at a place; `files` is what was found there, where it is a path.

    Raises
    ------
    PathError
        If a column is missing or not binary, or Spark does not read a file of such a name.
    """
    if files is None:
        found = spark.read.parquet(as_pattern(source))
        _check_columns(found, source, payload, keep)
        return found
    for file in files:
        # Spark would leave it out without a word; what is hidden in a folder is not among the files.
        if is_hidden(file.path.name):
            raise PathError(f"{file.path}: Spark reads no file whose name begins with _ or .")
        if ":" in file.path.name:
            raise PathError(f"{file.path}: Spark reads no file with a colon in its name")
    reader = spark.read
    # Told what to read, Spark does not fail on the types of other columns. What it has no name for, it may still read.
    with suppress(TypeError):
        others = (field for field in files[0].schema if field.name != payload)
        reader = reader.schema(spark_schema(pa.schema([*others, pa.field(payload, pa.binary())])))
    return reader.parquet(*(as_pattern(file.path) for file in files))


def write_messages(found: DataFrame, payload: str, folder: str, asked: MessageJob) -> DecodedFiles:
    """Decode rows to messages."""
    function = partition_function(payload, asked)
    # Under names of their own, since mapInArrow trips over dots and backticks.
    columns = dict.fromkeys((*asked.keep, payload))
    rows = found.select(*(_column(name).alias(f"c{place}") for place, name in enumerate(columns)))
    envelope = envelope_schema(function.fields)
    if asked.format == "parquet":
        fields = [*(found.schema[name] for name in function.keep), *spark_schema(envelope).fields]
    elif asked.format == "csv":
        fields = [StructField(name, StringType()) for name in (*function.keep, *envelope.names)]
    else:
        fields = [StructField("value", StringType())]
    observation = Observation()
    made = _mapped(rows, function, [*fields, StructField(ERROR, StringType())])
    _write_as(observed(made, ERROR, observation, function.drop_bad).drop(ERROR), asked.format, folder)
    return DecodedFiles(_bad_rows([observation]))


def _bad_rows(observations: Sequence[Observation]) -> dict[str, int]:
    """Sum up the bad rows that were observed."""
    known = codes()
    found: Counter[str] = Counter()
    for observation in observations:
        found.update({code: n for code, n in observation.get.items() if code in known and n})
    return dict(sorted(found.items()))


def partition_function(payload: str, asked: MessageJob) -> PartitionFunction:
    """Make of what was asked what the tasks do."""
    keep = tuple(dict.fromkeys(asked.keep))
    names = tuple(envelope_schema(asked.fields).names)
    needed = names if asked.format == "parquet" else fields_to_decode(asked.fields)
    needed = tuple(dict.fromkeys((*needed, "error")))
    mode: RowMode = "FAILFAST" if asked.mode == "FAILFAST" else "PERMISSIVE"
    place = list(dict.fromkeys((*keep, payload))).index(payload)
    fields = None if asked.fields is None else names
    options = Options(needed, asked.in_stream, mode, asked.empty)
    return PartitionFunction(options, place, keep, fields, asked.format, asked.mode == "DROPMALFORMED")


def write_changes(
    found: DataFrame,
    payload: str,
    position: str,
    folders: Mapping[str | None, str],
    asked: ChangeJob,
    session: str | None = None,
) -> DecodedFiles:
    """Decode rows to changes and tables, each to its folder.

    Raises
    ------
    OrderFault
        If positions are null or negative.
    PathError
        If they are not integers, or sessions of a type that cannot be compared.
    KeyError
        If nothing describes a table.
    """
    positions = _column(position)
    # So Spark reads unsigned integers of 64 bits.
    if found.schema[position].dataType == DecimalType(20, 0):
        positions = positions.cast("bigint").alias(position)
    sessions = None if session is None else _column(session)
    tables = tables_of(asked.options, *(name for name in asked.names if name is not None))
    try:
        rows = indexed_rows(found, _column(payload), positions, None, asked.catalog, sessions, asked.options, tables)
    except TypeError as error:
        raise PathError(str(error)) from error
    except ValueError as error:
        raise OrderFault(str(error)) from error
    products = asked.products(rows.indexes, session_has_time(found.sparkSession), in_files=False)
    observations = []
    for name, product in zip(asked.names, products, strict=True):
        observations.append(Observation())
        columns = asked.columns(product)
        made = decoded(rows, product, asked.options, columns, asked.format, observations[-1])
        _write_as(made, asked.format, folders[name])
    skipped = sum(item.index.n_skipped for item in rows.indexes)
    undecided = sum(item.index.n_undecided for item in rows.indexes)
    return DecodedFiles(_bad_rows(observations), skipped, undecided)


def first_fault(found: DataFrame, payload: str, asked: MessageJob) -> str | None:
    """Find the first bad row again and name it by file and place.

    A second pass, only where one has failed: a task knows no more than a row's place in its batch, and to send each
    row's file and place along would slow down every job.
    """
    rows = found.select(_column(payload).alias("data"), F.col("_metadata.file_path"), F.col("_metadata.row_index"))
    options = partition_function(payload, asked).options
    finder = FaultFinder(replace(options, fields=("error",), mode="PERMISSIVE"))
    fields = [StructField("file", StringType()), StructField("row", LongType()), StructField("error", StringType())]
    fault = _mapped(rows, finder, fields).first()
    return f"{as_location(fault['file'])}: row {fault['row']}: {fault['error']}" if fault else None


def _check_columns(found: DataFrame, source: Location, payload: str, keep: Sequence[str]) -> None:
    types = {field.name: field.dataType for field in found.schema.fields}
    for name in (payload, *keep):
        if name not in types:
            raise PathError(f"{source}: no column {name!r}; columns: {', '.join(types)}")
    if not isinstance(types[payload], BinaryType):
        raise PathError(f"{source}: column {payload!r} is {types[payload].simpleString()}, not binary")


def _column(name: str) -> Column:
    return F.col("`{}`".format(name.replace("`", "``")))


def _mapped(rows: DataFrame, function: PartitionFunction | FaultFinder, fields: list[StructField]) -> DataFrame:
    with pandas_not_minded():
        return rows.mapInArrow(function, StructType(fields))


def _write_as(rows: DataFrame, format: Format, target: str) -> None:
    """Write rows that have the columns of a format."""
    if format == "parquet":
        rows.write.parquet(target)
    elif format == "csv":
        # Quotes are doubled and blanks kept, as other readers expect.
        rows.write.csv(target, header=True, escape='"', ignoreLeadingWhiteSpace=False, ignoreTrailingWhiteSpace=False)
    else:
        rows.write.text(target)
        change_suffix(rows.sparkSession, target, ".txt", ".jsonl")
