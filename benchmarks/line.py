"""What a line of the table is: how it is prepared, verified and timed, and which lines it stands beside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.datasets import MESSAGES, DataSet

MEMORY_READ = "memory read"
C_WALK = "C walk"
C_ROWS = "C rows"
CAST = "pyarrow cast"
TEXT = "text"
BINARY = "binary"
PLAIN_PYTHON = "plain Python decoder"
PYPGOUTPUT = "pypgoutput"
NODE = "pg-logical-replication"
COPIES = ("Parquet read, write", "Parquet read, write, one table")

# Lines of one thread that others stand beside.
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
    """A line did not give what the data hold; its time would mean nothing."""


def can_run(data: DataSet) -> str | None:
    """Find nothing missing."""
    return None


@dataclass(frozen=True)
class Line:
    """One line of the table.

    `prepare` is not timed and returns what is. `verify` calls that once or more and compares all of its result with
    another source of the truth; `digest` makes something small of a result, which has to be the same each time.
    `missing` says why a line cannot run on a data set here, or None. `sample` is the number of messages that a slow
    line is tried on in a full run; of large ones, and in a quick run, it is tried on fewer. `baselines` are the lines
    that run right before each repetition. `kinds` are those of the data sets that it is for.
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
