"""A Spark session with the catalogs of Delta and Iceberg, for `lake_cases.py`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from spark_udfs.runtime.session import local_session

PACKAGES = "io.delta:delta-spark_4.1_2.13:4.4.0,org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
EXTENSIONS = "io.delta.sql.DeltaSparkSessionExtension,org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"


def pytest_configure(config: pytest.Config) -> None:
    """Ignore the warnings about sockets that pyspark 4.1 leaves to the garbage collector."""
    config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the tables are."""
    return tmp_path_factory.mktemp("lake")


def settings(folder: Path) -> dict[str, str]:
    """The settings of a session whose tables are in a folder."""
    return {
        "spark.jars.packages": PACKAGES,
        "spark.jars.ivy": os.environ["PGDECODE_TEST_IVY"],
        "spark.sql.extensions": EXTENSIONS,
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.catalog.iceberg": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.iceberg.type": "hadoop",
        "spark.sql.catalog.iceberg.warehouse": str(folder / "iceberg"),
        # A stream has a session of its own, whose commits this one would see only after 30 s.
        "spark.sql.catalog.iceberg.cache-enabled": "false",
        "spark.sql.warehouse.dir": str(folder / "delta"),
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "1",
        # Tests are too short for generated code to pay.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": "false",
        "spark.ui.enabled": "false",
    }


@pytest.fixture(scope="session")
def spark(folder: Path) -> Iterator[SparkSession]:
    with ExitStack() as stack:
        try:
            session = stack.enter_context(local_session("local[2]", settings(folder)))
        except PySparkRuntimeError:
            pytest.skip("Spark did not start: the jars of Delta and Iceberg are not reachable by Maven")
        session.sql("CREATE SCHEMA IF NOT EXISTS spark_catalog.lake")
        yield session


class Lake:
    """One of the two formats."""

    def __init__(self, spark: SparkSession, format: str, folder: Path) -> None:
        self.spark = spark
        self.format = format
        self.folder = folder
        self.catalog = "spark_catalog" if format == "delta" else "iceberg"

    def name(self, table: str) -> str:
        return f"{self.catalog}.lake.{table}"

    def rows(self, table: str) -> list[dict[str, Any]]:
        """The rows that Spark reads, sorted."""
        return as_rows(self.spark.table(self.name(table)).toArrow())

    def rows_of_reader(self, table: str) -> list[dict[str, Any]]:
        """The rows that the Python library of the format reads, sorted."""
        return rows_of_reader(self.format, self.folder, table)

    def n_commits(self, table: str) -> int:
        name = self.name(table)
        history = f"DESCRIBE HISTORY {name}" if self.format == "delta" else f"SELECT * FROM {name}.snapshots"
        return self.spark.sql(history).count()


def as_rows(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=repr)


def rows_of_reader(format: str, folder: Path, table: str) -> list[dict[str, Any]]:
    """The rows that the Python library of a format reads, sorted."""
    if format == "delta":
        from deltalake import DeltaTable

        return as_rows(DeltaTable(str(folder / "delta" / "lake.db" / table)).to_pyarrow_table())
    from pyiceberg.table import StaticTable

    # A run that was killed may have left a hint to the version before.
    versions = (folder / "iceberg" / "lake" / table / "metadata").glob("v*.metadata.json")
    last = max(versions, key=lambda path: int(path.name.removeprefix("v").partition(".")[0]))
    return as_rows(StaticTable.from_metadata(str(last)).scan().to_arrow())


@pytest.fixture(params=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest, spark: SparkSession, folder: Path) -> Lake:
    return Lake(spark, request.param, folder)
