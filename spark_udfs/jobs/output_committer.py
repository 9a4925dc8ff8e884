"""The files that tasks write, and those of them that the driver takes into the output.

Spark may run a task several times, even concurrently. Each attempt writes files with unique names. Spark returns the
result of one attempt of each task to the driver, which accepts its files. The others are removed after the commit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pyarrow as pa

from pgdecode.datasets.manifest import OutputFile, TaskSummary
from pgdecode.datasets.new_files import NewFiles, WrittenFile
from pgdecode.datasets.run import Run
from pgdecode.files.writers import Layout, WriteBatch, writer_to
from pgdecode.protocol.options import Format
from pgdecode.storage.errors import storage_errors


class Committed(NamedTuple):
    """The files of an output, the number of its bad rows by error code, and what each task did."""

    files: list[OutputFile]
    bad_rows: dict[str, int]
    tasks: list[TaskSummary]


@dataclass(frozen=True)
class Part:
    """A file that one attempt of a task has written.

    Attributes
    ----------
    task : int
    written : WrittenFile
    bad_rows : mapping
        Number of rows with an error, written or left out, by error code.
    decode_seconds, io_seconds : float
        How long the task decoded, and how long it read and wrote files.
    """

    task: int
    written: WrittenFile
    bad_rows: Mapping[str, int]
    decode_seconds: float = 0.0
    io_seconds: float = 0.0

    @property
    def n_rows(self) -> int:
        """Number of rows in the file."""
        return self.written.file.rows

    @property
    def summary(self) -> TaskSummary:
        """What the task did for this file."""
        n_bad = sum(self.bad_rows.values())
        return TaskSummary(self.task, self.n_rows, n_bad, round(self.decode_seconds, 3), round(self.io_seconds, 3))


@contextmanager
def new_part(
    files: NewFiles,
    folder: str,
    task: int,
    format: Format,
    schema: pa.Schema,
    layout: Layout,
    n_writers: int,
    parts: list[Part],
    bad_rows: Mapping[str, int],
) -> Iterator[WriteBatch]:
    """Write a file of an attempt. Once it is complete, append it to `parts`.

    Parameters
    ----------
    files : NewFiles
        Of the run.
    folder : str
        Of the output, below the target; empty if it is the target.
    task : int
        Number of the task.
    format, schema, layout, n_writers
        As in `writer_to`.
    parts : list of Part
    bad_rows : mapping
        As in `Part`. It is read when all rows have been written.
    """
    n_rows = 0
    with (
        storage_errors(files.folder),
        files.open("part", format, folder=folder, task=task) as file,
        writer_to(file, format, schema, layout, n_writers) as write,
    ):

        def counted(batch: pa.RecordBatch) -> None:
            nonlocal n_rows
            n_rows += len(batch)
            write(batch)

        yield counted
    parts.append(Part(task, file.written(n_rows), dict(bad_rows)))


def commit(run: Run, parts: Sequence[Part], about: Mapping[int, Sequence[Mapping[str, Any]]]) -> Committed:
    """Take the files of an output into the run.

    Parameters
    ----------
    run : Run
    parts : sequence of Part
        One for each task. Parts without rows are left out. If none has rows, the first stays in the first run, for its
        schema.
    about : mapping
        The input rows of each task, by its number.
    """
    chosen = [part for part in parts if part.n_rows] or list(parts[: run.files.is_first])
    files = [replace(run.accept(part.written), input=about[part.task]) for part in chosen]
    bad_rows: Counter[str] = Counter()
    for part in parts:
        bad_rows.update(part.bad_rows)
    return Committed(files, dict(sorted(bad_rows.items())), [part.summary for part in parts])


def merged(tasks: Iterable[TaskSummary]) -> list[TaskSummary]:
    """Add the rows of several outputs of the same tasks."""
    found: dict[int, TaskSummary] = {}
    for task in tasks:
        before = found.get(task.task)
        if before is not None:
            task = replace(task, rows=before.rows + task.rows, bad_rows=before.bad_rows + task.bad_rows)
        found[task.task] = task
    return list(found.values())
