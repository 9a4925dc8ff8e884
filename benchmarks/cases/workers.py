"""Benchmark cases of whole runs of the command line over a folder of files, with one worker and with two."""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.cases.case import can_run, require
from benchmarks.cases.changes import TABLES, committed_rows, keys_at_end, without_transactions
from benchmarks.cases.files import run_command, write_payloads
from benchmarks.datasets import DataSet

# Rows in each file, but there are at least so many files.
FILE_ROWS, LEAST_FILES = 250_000, 8
TABLE = TABLES["pgbench"]


@dataclass(frozen=True)
class Command:
    """A command: its arguments, the name of its output, and the number of rows to find in it."""

    name: str
    arguments: tuple[str, ...]
    target: str
    expected: Callable[[DataSet], int]
    missing: Callable[[DataSet], str | None] = without_transactions


DECODE = ("decode", "--overwrite")
COMMANDS = (
    Command("messages", DECODE, "decoded", lambda data: data.n_rows, can_run),
    Command("changes", (*DECODE, "--changes"), "decoded.parquet", lambda data: committed_rows(data, None)),
    Command("one table", (*DECODE, "--table", TABLE), "decoded.parquet", lambda data: committed_rows(data, TABLE)),
    Command("snapshot", (*DECODE, "--snapshot", TABLE), "decoded.parquet", lambda data: len(keys_at_end(data, TABLE))),
    Command("inspect", ("inspect", "--json"), "report.json", lambda data: data.n_rows),
)


@contextlib.contextmanager
def one_arrow_thread() -> Iterator[None]:
    """Give Arrow's own pools one thread each, so that only the workers are compared."""
    before = pa.cpu_count(), pa.io_thread_count()
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    try:
        yield
    finally:
        pa.set_cpu_count(before[0])
        pa.set_io_thread_count(before[1])


@dataclass
class WholeRun:
    """A command over the data set in several Parquet files."""

    data: DataSet
    command: Command
    workers: int
    folder: Any = field(default_factory=lambda: tempfile.TemporaryDirectory(prefix="pgdecode-benchmarks-"))

    def __post_init__(self) -> None:
        self.source.mkdir()
        n_files = max(self.data.n_rows // FILE_ROWS, LEAST_FILES)
        bounds = [number * self.data.n_rows // n_files for number in range(n_files + 1)]
        for number, start in enumerate(bounds[:-1]):
            payloads = self.data.payloads.slice(start, bounds[number + 1] - start)
            write_payloads(self.source / f"{number}.parquet", payloads, start)

    @property
    def source(self) -> Path:
        """The folder of payloads."""
        return Path(self.folder.name, "raw")

    def __call__(self) -> Path:
        """Run the command."""
        return self.run(self.workers)

    def run(self, workers: int) -> Path:
        """Run the command with a number of workers; return its output or its report."""
        target = Path(self.folder.name, self.command.target)
        command, *options = self.command.arguments
        paths = [str(self.source), *([str(target)] if command == "decode" else [])]
        with one_arrow_thread():
            printed = run_command([command, *paths, *options, "--workers", str(workers)])
        if command == "inspect":
            target.write_bytes(printed)
        return target


def files_of(output: Path) -> list[Path]:
    """List the files of an output."""
    if not output.is_dir():
        return [output]
    return sorted(path for path in output.rglob("*") if path.is_file() and path.parent.name != "_pgdecode")


def rows_of(output: Path) -> int:
    """Count the rows in an output, or those of a report."""
    if output.suffix == ".json":
        return int(json.loads(output.read_bytes())["rows"])
    return sum(pq.read_metadata(path).num_rows for path in files_of(output))


def digest_output(output: Path) -> dict[str, str]:
    """Hash the bytes of each file."""
    found = {}
    for path in files_of(output):
        with path.open("rb") as file:
            found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def verify_one_worker(data: DataSet, work: WholeRun) -> None:
    """Compare the number of rows with plain Python."""
    require(data, "number of rows", rows_of(work()), work.command.expected(data))


def verify_two_workers(data: DataSet, work: WholeRun) -> None:
    """Compare the bytes of each file with those that one worker writes."""
    expected, found = digest_output(work.run(1)), digest_output(work())
    require(data, "number of files", len(found), len(expected))
    require(data, "number of equal files", len(found.items() & expected.items()), len(expected))
