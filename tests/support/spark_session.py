"""One small Spark session for all tests that need it: `pytest_plugins = ["support.spark_session"]`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import SparkSession

from spark_udfs.runtime.session import local_session


def pytest_configure(config: pytest.Config) -> None:
    """Ignore the warnings about sockets that pyspark 4.0 and 4.1 leave to the garbage collector."""
    config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Start Spark with two threads. Its Python workers print a traceback if they crash."""
    settings = {
        "spark.python.worker.faulthandler.enabled": "true",
        "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
        "spark.sql.shuffle.partitions": "2",
        # Tests are too short for the optimizing compiler to pay.
        "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    with local_session("local[2]", settings) as session:
        yield session


@pytest.fixture
def configure(spark: SparkSession) -> Iterator[Callable[[str, object], None]]:
    """Return a function that changes a setting of the session until the test ends."""
    former: dict[str, str] = {}

    def change(name: str, value: object) -> None:
        former.setdefault(name, str(spark.conf.get(name)))
        spark.conf.set(name, str(value))

    yield change
    for name, value in former.items():
        spark.conf.set(name, value)


@pytest.fixture
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shuffle even few rows into several ranges, if they are not ordered."""
    monkeypatch.setattr("spark_udfs.dataframes.control_index._ROWS_PER_RANGE", 5000)
