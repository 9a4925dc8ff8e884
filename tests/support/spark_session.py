"""One small Spark session for all tests that need it: `pytest_plugins = ["support.spark_session"]`.

PGDECODE_TEST_SPARK names the kind of session: "local" (default), "connect" (a server of Spark Connect), or "cluster" (a
standalone cluster of two workers). A process can have one kind only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack

import pytest
from pyspark.sql import SparkSession

from spark_udfs.runtime.session import local_session, remote_session
from support.emulators import ENVIRONMENT
from support.spark_servers import connect_server, standalone_cluster

KIND = os.environ.get("PGDECODE_TEST_SPARK", "local")
# For tests of the JVM, of RDDs, and of what this process starts.
LOCAL = pytest.mark.skipif(KIND != "local", reason="about a local Spark")

_SETTINGS = {
    "spark.python.worker.faulthandler.enabled": "true",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
    "spark.sql.shuffle.partitions": "2",
    # Tests are too short for generated code to pay.
    "spark.sql.codegen.wholeStage": "false",
}


def pytest_configure(config: pytest.Config) -> None:
    """Ignore the warnings about sockets that pyspark 4.0 and 4.1 leave to the garbage collector."""
    config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")
    if KIND == "connect":
        config.addinivalue_line("filterwarnings", "ignore:PySpark does not yet fully support pandas:FutureWarning")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Start Spark with two threads. Its Python workers print a traceback if they crash."""
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            # The workers inherit them from the JVM: one session serves all tests of a process.
            for name, value in ENVIRONMENT.items():
                patch.setenv(name, value)
            session = stack.enter_context(_session(stack))
        yield session


def _session(stack: ExitStack) -> AbstractContextManager[SparkSession]:
    if KIND == "connect":
        return remote_session(stack.enter_context(connect_server(_SETTINGS, {"PYSPARK_PYTHON": sys.executable})))
    if KIND == "cluster":
        cluster = stack.enter_context(standalone_cluster(n_workers=2))
        settings = {"spark.pyspark.python": sys.executable, "spark.driver.host": "127.0.0.1"}
        return local_session(cluster.master, {**_SETTINGS, **settings})
    return local_session("local[2]", _SETTINGS)


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
