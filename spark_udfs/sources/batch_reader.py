"""Reads all files that a folder has when the DataFrame is made."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_udfs.runtime.worker import WorkerFunction
from spark_udfs.schema.spark_types import arrow_schema
from spark_udfs.sources.partition_reader import read


class PgoutputReader(WorkerFunction, DataSourceReader):
    """Reads partitions that are planned already."""

    def __init__(self, schema: StructType, planned: list[InputPartition]) -> None:
        self._schema = schema
        self._planned = planned

    def partitions(self) -> list[InputPartition]:
        """Return the partitions."""
        return self._planned

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Decode a partition."""
        return read(partition, arrow_schema(self._schema))
