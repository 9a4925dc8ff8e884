"""Reads the output of a run as a DataFrame: the files that its manifest names, and no others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from pgdecode.runs.manifest import OutputFile, read_manifest
from pgdecode.storage.errors import PathError
from pgdecode.storage.object_path import FilePath, Location, ObjectPath, file_path
from pgdecode.storage.parquet_input import opened, read_footer, read_metadata, readable
from spark_udfs.runtime.session import for_workers
from spark_udfs.runtime.storage import as_pattern
from spark_udfs.runtime.worker import WorkerFunction, enter_task
from spark_udfs.schema.spark_types import spark_schema

_BATCH_ROWS = 32_768


def read_run(
    spark: SparkSession, uri: Location, what: str | None = None, *, storage_options: Mapping[str, str] | None = None
) -> DataFrame:
    """Read the output of a run as a DataFrame.

    In an object store, only the manifest says which files are complete: a run that was killed, or is still running,
    leaves others.

    Parameters
    ----------
    spark : SparkSession
    uri : path or URI
        The target of the run, whose format is Parquet.
    what : str, optional
        The output, as "schema.table" or "changes", if the run has several.
    storage_options : mapping, optional
        As in `decode_files`.

    Returns
    -------
    DataFrame
        In an object store, tasks read the files with pyarrow, one file each, so that Spark needs no connector.

    Raises
    ------
    RunFault
        If there is no manifest.
    PathError
        If the run has no such output, or is not in Parquet.

    Examples
    --------
    >>> read_run(spark, "s3://lake/orders", storage_options={"region": "eu-west-1"})  # doctest: +SKIP
    """
    folder = file_path(uri, storage_options)
    if isinstance(folder, ObjectPath):
        folder.check_public()
    manifest = read_manifest(folder)
    files = _files_of(folder, manifest.files, what)
    if any(file.suffix != ".parquet" for file in files):
        raise PathError(f"{folder}: its files are not Parquet")
    if not isinstance(folder, ObjectPath):
        return spark.read.parquet(*(as_pattern(file) for file in files if not isinstance(file, ObjectPath)))
    schema = read_metadata(files[0]).schema.to_arrow_schema()
    rows = spark.createDataFrame([(number,) for number in range(len(files))], "number int").repartition(
        len(files), "number"
    )
    with for_workers():
        return rows.mapInArrow(_FileReader(tuple(files)), spark_schema(schema))


def _files_of(folder: FilePath, files: Sequence[OutputFile], what: str | None) -> list[FilePath]:
    outputs: dict[str, list[FilePath]] = {}
    for file in files:
        below, _, name = file.name.rpartition("/")
        outputs.setdefault(below or name.rpartition(".")[0], []).append(folder / file.name)
    whole = [path for found in outputs.values() for path in found]
    folders = {file.name.rpartition("/")[0] for file in files} - {""}
    if not folders:
        return whole
    if what is None and len(folders) == 1:
        return whole
    if what not in folders:
        raise PathError(f"{folder}: name one of its outputs: {', '.join(sorted(folders))}")
    return outputs[what]


@dataclass(frozen=True)
class _FileReader(WorkerFunction):
    """A function for `mapInArrow` that reads the files with the given numbers."""

    files: tuple[FilePath, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the files."""
        enter_task()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                with readable(self.files[number]) as source, opened(source, read_footer(source).metadata) as file:
                    yield from file.iter_batches(_BATCH_ROWS, use_threads=False)
