"""`Case`: how a benchmark case is prepared, verified and timed, and the names of its baselines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.datasets import MESSAGES, DataSet

MEMORY_READ = "memory read"
C_WALK = "C walk"
C_ROWS = "C rows"
TUPLES_LINE = "envelope, tuples"
FILTER_AND_ROWS = "filter and rows"
LAST_CHANGES = "pyarrow, last changes"
CAST = "pyarrow cast"
TEXT = "text"
BINARY = "binary"
PLAIN_PYTHON = "plain Python decoder"
PYPGOUTPUT = "pypgoutput"
NODE = "pg-logical-replication"
PGWIRE = "pgwire"
COPIES = ("Parquet read, write", "Parquet read, write, one table")
TWO_THREADS = ", two threads"
ONE_WORKER = ", one worker"
TWO_WORKERS = ", two workers"

# Cases with one thread that are baselines of cases with two threads.
ONE_THREAD = (
    "envelope",
    "envelope, tuples",
    "envelope, one call",
    "envelope, tuples, one call",
    "typed rows",
    "typed rows, one call",
)

Work = Callable[[], Any]


class WrongResult(AssertionError):
    """A case returned a wrong result, so its time is meaningless."""


def can_run(data: DataSet) -> str | None:
    """Report nothing as missing."""
    return None


@dataclass(frozen=True)
class Case:
    """A benchmark case: one row of the table.

    `prepare` is not timed; it returns the function that is timed. `verify` calls that function at least once and
    compares its whole result with an independent source. `digest` makes a small value from a result. It must be the
    same for each repetition. `missing` returns the reason why the case cannot run on a data set, or None. `sample` is
    the number of messages for a slow case in a full run; a quick run, or a data set with large messages, uses fewer.
    `baselines` are the names of the cases that run right before each repetition. `kinds` are the kinds of data sets
    that the case can use.
    """

    name: str
    group: str
    prepare: Callable[[DataSet], Work]
    verify: Callable[[DataSet, Any], None]
    digest: Callable[[Any], Any]
    missing: Callable[[DataSet], str | None] = can_run
    sample: int | None = None
    baselines: tuple[str, ...] = (MEMORY_READ, C_WALK)
    kinds: tuple[str, ...] = (MESSAGES,)


def require(data: DataSet, what: str, seen: int, expected: int) -> None:
    """Stop the run over a wrong result."""
    if seen != expected:
        raise WrongResult(f"{data.name}: {what} is {seen}, not {expected}")
