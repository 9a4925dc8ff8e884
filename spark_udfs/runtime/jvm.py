"""The JVM of a classic session: the only module that calls it. A session of Spark Connect has none here."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

try:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
except ModuleNotFoundError:
    # pyspark-client, which has only Spark Connect.
    SPARK_ERRORS: tuple[type[Exception], ...] = (PySparkException,)
else:
    SPARK_ERRORS = (PySparkException, Py4JError)

# How long to wait for the end of the workers' daemon.
_SECONDS_TO_END = 5


# Spark starts every JVM with such a module.
_NEEDLESS = re.compile(rb"WARNING: Using incubator modules: [\w.]+\r?\n")


def start_jvm(settings: Mapping[str, str]) -> None:
    """Start the JVM of this process with settings of Spark, without Java's warning about Spark's own options."""
    from pyspark import SparkConf, SparkContext, java_gateway

    if SparkContext._gateway is not None:
        return
    reader, writer = os.pipe()
    # As a process that inherits it, the JVM keeps the standard error of its start.
    threading.Thread(target=_pass_on, args=(reader, os.dup(2)), name="stderr of the JVM", daemon=True).start()
    try:
        launch: Any = java_gateway.launch_gateway
        gateway = launch(SparkConf().setAll(list(settings.items())), {"stderr": writer})
    finally:
        os.close(writer)
    SparkContext._ensure_initialized(gateway=gateway)


def _pass_on(reader: int, stderr: int) -> None:
    """Copy what the JVM and its processes print on standard error, until they end."""
    while chunk := os.read(reader, 1 << 16):
        # Whoever writes into a full pipe waits: reading goes on even if nothing can be printed.
        with suppress(OSError):
            os.write(stderr, _NEEDLESS.sub(b"", chunk))
    os.close(reader)
    os.close(stderr)


def is_connect(spark: SparkSession) -> bool:
    """Whether this is a session of Spark Connect. It is a client of a server, which has the JVM."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def end_workers(spark: SparkSession) -> None:
    """Stop the JVM's worker daemon and with it all workers. A worker that loses Spark first prints a traceback."""
    jvm: Any = spark._jvm
    daemon = spark.conf.get("spark.python.daemon.module", "pyspark.daemon")
    for process in jvm.java.lang.ProcessHandle.current().children().toArray():
        # If spark-submit started the JVM, this process is a child of it too.
        if f" -m {daemon} " in process.info().commandLine().orElse("") + " ":
            process.destroy()
            seconds = jvm.java.util.concurrent.TimeUnit.SECONDS
            process.onExit().completeOnTimeout(process, _SECONDS_TO_END, seconds).get()


def clear_properties(jvm: Any, names: Iterable[str]) -> None:
    """Remove settings that the JVM keeps after its session. Sessions that are created later must not inherit them."""
    for name in names:
        jvm.java.lang.System.clearProperty(name)


def jvm_of(spark: SparkSession) -> Any:
    """Return the JVM, which outlives the session."""
    return spark._jvm


def error_texts(error: Exception) -> list[str]:
    """Return the texts of an error of Spark and of its causes."""
    cause = getattr(error, "java_exception", None)
    if cause is None:
        return [str(error)]
    return list(_causes(cause))


def _causes(cause: Any) -> Iterator[str]:
    while cause is not None:
        yield str(cause.toString())
        cause = cause.getCause()
