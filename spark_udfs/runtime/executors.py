"""`check_executors`: the Python of each executor, and what it has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

import pgdecode
from spark_udfs.runtime.jvm import SPARK_ERRORS, error_texts, is_connect
from spark_udfs.runtime.session import for_workers
from spark_udfs.runtime.tasks import parallelism

# Tasks for each core, and how long each waits, so that all executors get some.
_TASKS_PER_CORE = 2
_SECONDS = 0.2
_FIELDS = ("host", "folder", "python", "python_version", "pgdecode", "pyarrow", "missing")
_MISMATCH = re.compile(r"\[PYTHON_VERSION_MISMATCH\] .*")
_NO_ARROW = re.compile(r"ModuleNotFoundError: No module named 'pyarrow'|.*PACKAGE_NOT_INSTALLED.*[Pp]y[Aa]rrow.*")


@dataclass(frozen=True)
class Executor:
    """The Python of an executor.

    Attributes
    ----------
    host : str
    folder : str
        The working directory of its Python workers, which tells executors of a host apart.
    python, python_version : str
        Path and version of the interpreter.
    pgdecode : str or None
        Its version; None if it cannot be imported.
    pyarrow : str
        Its version.
    missing : str or None
        Why pgdecode cannot be imported.
    """

    host: str
    folder: str
    python: str
    python_version: str
    pgdecode: str | None
    pyarrow: str
    missing: str | None = None


class ExecutorError(RuntimeError):
    """Executors cannot run the functions of this package. `executors` has all that were found."""

    def __init__(self, text: str, executors: list[Executor]) -> None:
        super().__init__(text)
        self.executors = executors


def check_executors(spark: SparkSession) -> list[Executor]:
    """Find the Python of each executor, and check that it has pgdecode in the version of the driver.

    Parameters
    ----------
    spark : SparkSession
        Classic or of Spark Connect. Its executors must have free cores.

    Returns
    -------
    list of Executor
        In the order of hosts. Executors that are registered later are not included.

    Raises
    ------
    ExecutorError
        If an executor has no pgdecode or another version, or if its Python has another version than the driver's. The
        text names host, interpreter and remedy.

    Examples
    --------
    >>> executors = spark_udfs.check_executors(spark)
    >>> executors[0].missing is None
    True
    """
    n_tasks = _TASKS_PER_CORE * parallelism(spark)
    columns = ", ".join(f"{name} string" for name in _FIELDS)
    try:
        with for_workers():
            rows = spark.range(0, n_tasks, 1, n_tasks).mapInArrow(_reporter(), columns).collect()
    except SPARK_ERRORS as error:
        text = " ".join(error_texts(error))
        mismatch = _MISMATCH.search(text)
        if mismatch is not None:
            raise ExecutorError(f"{mismatch[0]} {_remedy(spark)}", []) from error
        without_arrow = _NO_ARROW.search(text)
        if without_arrow is not None:
            raise ExecutorError(f"an executor has no pyarrow: {without_arrow[0]}. {_remedy(spark)}", []) from error
        raise
    found = sorted({Executor(*row) for row in rows}, key=lambda item: (item.host, item.folder))
    wrong = [item for item in found if item.pgdecode != pgdecode.__version__]
    if wrong:
        texts = [
            f"the Python worker on {item.host} ({item.python}) "
            + (f"has pgdecode {item.pgdecode}" if item.pgdecode else f"cannot import pgdecode: {item.missing}")
            for item in wrong
        ]
        raise ExecutorError(
            f"{'; '.join(texts)}. Install pgdecode {pgdecode.__version__} there. {_remedy(spark)}", found
        )
    return found


def _remedy(spark: SparkSession) -> str:
    where = "for the Connect server" if is_connect(spark) else "before the driver starts"
    return f"Or let Spark use another Python: PYSPARK_PYTHON=/path/to/python {where}"


def _reporter() -> Any:
    """Make the function of the tasks. It is nested, so that it is sent as code: a worker may not have this package."""
    fields, seconds = _FIELDS, _SECONDS

    def report(batches: Iterator[Any]) -> Iterator[Any]:
        import importlib
        import os
        import platform
        import socket
        import sys
        import time

        import pyarrow

        version = missing = None
        try:
            version = importlib.import_module("pgdecode").__version__
            importlib.import_module("spark_udfs")
        except ImportError as error:
            missing = str(error)
        values = [socket.gethostname(), os.getcwd(), sys.executable, platform.python_version(), version]
        values += [pyarrow.__version__, missing]
        for _ in batches:
            time.sleep(seconds)
            columns = [pyarrow.array([value], pyarrow.string()) for value in values]
            yield pyarrow.RecordBatch.from_arrays(columns, names=list(fields))

    return report
