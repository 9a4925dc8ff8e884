"""Reads the output of a data set as a DataFrame: the files that its manifests name, and no others."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from pgdecode.datasets.manifest import Manifest
from pgdecode.datasets.target import target_at
from pgdecode.files.change_export import table_file_name
from pgdecode.storage.errors import PathError
from pgdecode.storage.object_path import FilePath, Location, ObjectPath, file_path
from pgdecode.storage.object_store import listed
from pgdecode.storage.parquet_input import opened, read_footer, read_metadata, readable
from spark_udfs.runtime.session import for_workers
from spark_udfs.runtime.storage import as_pattern
from spark_udfs.runtime.worker import WorkerFunction, enter_task
from spark_udfs.schema.spark_types import spark_schema

_BATCH_ROWS = 32_768
CHANGES = "changes"


def read_run(
    spark: SparkSession, uri: Location, what: str | None = None, *, storage_options: Mapping[str, str] | None = None
) -> DataFrame:
    """Read the output of all runs in a data set as a DataFrame.

    In an object store, only the manifests say which files are complete: a run that was killed, or is still running,
    leaves others.

    Parameters
    ----------
    spark : SparkSession
    uri : path or URI
        The data set, whose format is Parquet.
    what : str, optional
        The output, as "schema.table" or "changes", if there are several.
    storage_options : mapping, optional
        As in `decode_files`.

    Returns
    -------
    DataFrame
        In an object store, tasks read the files with pyarrow, one file each, so that Spark needs no connector. A table
        has the columns of all runs. Files that were moved or deleted are left out, with a RuntimeWarning.

    Raises
    ------
    RunFault
        If there is no data set, or a manifest is damaged.
    PathError
        If there is no such output, if it is not in Parquet, if no file is left, or if a column has types in its files
        that do not fit each other.

    Examples
    --------
    >>> read_run(spark, "s3://lake/orders", storage_options={"region": "eu-west-1"})  # doctest: +SKIP
    """
    folder = file_path(uri, storage_options)
    if isinstance(folder, ObjectPath):
        folder.check_public()
    manifests = target_at(folder).manifests()
    names = _present(folder, _names_of(folder, manifests, what))
    if any(not name.endswith(".parquet") for name in names):
        raise PathError(f"{folder}: its files are not Parquet")
    files = [folder / name for name in names]
    schema = _schema_of(folder, manifests, names)
    return read_parquet(spark, files, schema)


def read_parquet(spark: SparkSession, files: Sequence[FilePath], schema: pa.Schema) -> DataFrame:
    """Read files with the columns of a schema. In an object store, tasks read them with pyarrow, one file each."""
    if not isinstance(files[0], ObjectPath):
        # Names in a file may differ only by case.
        return spark.read.schema(spark_schema(schema)).parquet(
            *(as_pattern(file) for file in files if not isinstance(file, ObjectPath))
        )
    files[0].check_public()
    rows = spark.createDataFrame([(number,) for number in range(len(files))], "number int").repartition(
        len(files), "number"
    )
    with for_workers():
        return rows.mapInArrow(_FileReader(tuple(files), schema), spark_schema(schema))


def _names_of(folder: FilePath, manifests: Sequence[Manifest], what: str | None) -> list[str]:
    """List the files of an output."""
    outputs = {table_file_name(None if name == CHANGES else name): name for name in manifests[-1].what}
    if what is None and len(outputs) == 1:
        (what,) = outputs.values()
    if what not in outputs.values():
        raise PathError(f"{folder}: name one of its outputs: {', '.join(sorted(outputs.values()))}")
    names = [file.name for manifest in manifests for file in manifest.files]
    # A single output may be in the folder itself.
    return [name for name in names if outputs.get(name.rpartition("/")[0], what if len(outputs) == 1 else None) == what]


def _present(folder: FilePath, names: Sequence[str]) -> list[str]:
    """Leave out files that were moved or deleted."""
    if isinstance(folder, ObjectPath):
        known = {item.below(folder) for item, _ in listed(folder)}
        found = [name for name in names if name in known]
    else:
        found = [name for name in names if (folder / name).is_file()]
    if not found:
        raise PathError(f"{folder}: none of its {len(names)} files is left")
    if len(found) < len(names):
        missing = next(name for name in names if name not in set(found))
        text = f"{folder}: {len(names) - len(found)} of its {len(names)} files are missing, such as {missing}"
        warnings.warn(text, RuntimeWarning, stacklevel=3)
    return found


def _schema_of(folder: FilePath, manifests: Sequence[Manifest], names: Sequence[str]) -> pa.Schema:
    """Unite the schemas of the runs, each of which has one for all its files of an output."""
    left = set(names)
    of_runs = [next((file.name for file in item.files if file.name in left), None) for item in manifests]
    schemas = [read_metadata(folder / name).schema.to_arrow_schema() for name in of_runs if name is not None]
    try:
        return pa.unify_schemas([schema.remove_metadata() for schema in schemas], promote_options="permissive")
    except pa.ArrowException as error:
        raise PathError(f"{folder}: the types of a column in several runs do not fit: {error}") from error


@dataclass(frozen=True)
class _FileReader(WorkerFunction):
    """A function for `mapInArrow` that reads the files with the given numbers, with the columns of a schema."""

    files: tuple[FilePath, ...]
    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the files."""
        enter_task()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                with readable(self.files[number]) as source, opened(source, read_footer(source).metadata) as file:
                    for rows in file.iter_batches(_BATCH_ROWS, use_threads=False):
                        yield self._with_all_columns(rows)

    def _with_all_columns(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        columns = [
            rows.column(field.name).cast(field.type)
            if field.name in rows.schema.names
            else pa.nulls(len(rows), field.type)
            for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)
