"""Commits the files that tasks write.

Spark may run a task several times, even concurrently. Each attempt writes a file with a unique name. Spark returns the
result of one attempt of each task to the driver, which renames its file and deletes the others.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from pgdecode.files.writers import Layout, WriteBatch, writer_to
from pgdecode.protocol.options import Format
from pgdecode.runs.digested_file import DigestedFile
from pgdecode.runs.manifest import OutputFile, TaskSummary
from pgdecode.runs.object_run import ObjectOutput
from pgdecode.storage.errors import storage_errors
from pgdecode.storage.object_files import ObjectWriter, written_object

SUCCESS = "_SUCCESS"
# What tasks call the target in errors. The driver, which knows it, replaces this.
OUTPUT = "output"
_ATTEMPTS = "_temporary"
_BUFFER = 1 << 20
_OBJECT_PART = re.compile(r"(?:.*/)?part-[0-9a-f]{32}-(\d+)-[0-9a-f]+\.(\w+)", re.DOTALL)

_TASK_NAME = re.compile(r"part-(\d+)\.\w+")

# Where the files of an output are written.
Folder = Path | ObjectOutput


class Committed(NamedTuple):
    """The files of an output, the number of its bad rows by error code, and what each task did."""

    files: list[OutputFile]
    bad_rows: dict[str, int]
    tasks: list[TaskSummary]


@dataclass(frozen=True)
class Part:
    """A file that one attempt has written.

    Attributes
    ----------
    attempt : str
        Name of the file before the commit.
    name : str
        Name of the file after the commit.
    n_rows, n_bytes : int
    sha256 : str
        Of its bytes, which are the same for all attempts of a task.
    bad_rows : mapping
        Number of rows with an error, written or left out, by error code.
    decode_seconds, io_seconds : float
        How long the task decoded, and how long it read and wrote files.
    """

    attempt: str
    name: str
    n_rows: int
    n_bytes: int
    sha256: str
    bad_rows: Mapping[str, int] = field(default_factory=dict)
    decode_seconds: float = 0.0
    io_seconds: float = 0.0


def part_name(number: int, format: str) -> str:
    """Return the name of a task's file."""
    return f"part-{number:05}.{format}"


@contextmanager
def attempted(
    folder: Folder,
    number: int,
    format: Format,
    schema: pa.Schema,
    layout: Layout,
    n_writers: int,
    parts: list[Part],
    bad_rows: Mapping[str, int],
) -> Iterator[WriteBatch]:
    """Write the file of an attempt. Once it is complete, append it to `parts`.

    Parameters
    ----------
    folder : Path or ObjectOutput
        A folder of `attempts`.
    number : int
        Of the task.
    format, schema, layout, n_writers
        As in `writer_to`.
    parts : list of Part
    bad_rows : mapping
        As in `Part`. It is read when all rows have been written.
    """
    n_rows = 0
    with (
        storage_errors(OUTPUT),
        _new_file(folder, number, format) as (attempt, raw),
        io.BufferedWriter(raw, _BUFFER) as file,
        writer_to(file, format, schema, layout, n_writers) as write,
    ):

        def counted(batch: pa.RecordBatch) -> None:
            nonlocal n_rows
            n_rows += len(batch)
            write(batch)

        yield counted
    name = part_name(number, format) if isinstance(folder, Path) else attempt
    parts.append(Part(attempt, name, n_rows, raw.n_bytes, raw.digest.hexdigest(), dict(bad_rows)))


@contextmanager
def _new_file(folder: Folder, number: int, format: Format) -> Iterator[tuple[str, DigestedFile | ObjectWriter]]:
    """Create the file of an attempt, and yield its name. Remove it on any exception."""
    if isinstance(folder, ObjectOutput):
        part = folder.run.part(folder.folder, number, format)
        with written_object(part) as raw:
            yield part.below(folder.run.path), raw
        folder.run.keep(part)
        return
    attempt = f"{number:05}.{uuid.uuid4().hex}"
    path = folder / _ATTEMPTS / attempt
    try:
        yield attempt, DigestedFile(path)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


@contextmanager
def attempts(folder: Folder) -> Iterator[None]:
    """Make a folder for attempts. At the end, remove all files that were not committed. An object store needs none."""
    if isinstance(folder, ObjectOutput):
        yield
        return
    place = folder / _ATTEMPTS
    place.mkdir(parents=True)
    try:
        yield
    finally:
        # Rename first: an attempt that is still running can then not create a file while the folder is being removed.
        former = place.rename(folder / f"{_ATTEMPTS}.{uuid.uuid4().hex}")
        shutil.rmtree(former)


def commit(folder: Folder, parts: Sequence[Part], about: Mapping[str, Sequence[Mapping[str, Any]]]) -> Committed:
    """Rename the parts, and write the file `_SUCCESS`. In an object store, parts have their names already.

    Parameters
    ----------
    folder : Path or ObjectOutput
        Of the attempts.
    parts : sequence of Part
        One for each task. Parts without rows are left out. If none has rows, the first stays, for its schema.
    about : mapping
        The input rows of each part, by its name.

    Raises
    ------
    OSError
        If a part is missing or has another size.
    """
    chosen = [part for part in parts if part.n_rows] or list(parts[:1])
    if isinstance(folder, Path):
        _rename(folder, chosen)
    files = [
        OutputFile(part.name, part.n_rows, part.n_bytes, part.sha256, about[_task_name(part.name)]) for part in chosen
    ]
    bad_rows: Counter[str] = Counter()
    for part in parts:
        bad_rows.update(part.bad_rows)
    return Committed(files, dict(sorted(bad_rows.items())), [_summary(part) for part in parts])


def _summary(part: Part) -> TaskSummary:
    number = int(_TASK_NAME.fullmatch(_task_name(part.name))[1])  # type: ignore[index]
    n_bad = sum(part.bad_rows.values())
    return TaskSummary(number, part.n_rows, n_bad, round(part.decode_seconds, 3), round(part.io_seconds, 3))


def merged(tasks: Iterable[TaskSummary]) -> list[TaskSummary]:
    """Add the rows of several outputs of the same tasks."""
    found: dict[int, TaskSummary] = {}
    for task in tasks:
        before = found.get(task.task)
        if before is not None:
            task = replace(task, rows=before.rows + task.rows, bad_rows=before.bad_rows + task.bad_rows)
        found[task.task] = task
    return list(found.values())


def _rename(folder: Path, parts: Sequence[Part]) -> None:
    """Give the files of the chosen attempts their names."""
    for part in parts:
        attempt = folder / _ATTEMPTS / part.attempt
        n_bytes = attempt.stat().st_size
        if n_bytes != part.n_bytes:
            raise OSError(f"{attempt}: has {n_bytes} bytes, its task wrote {part.n_bytes}")
        os.replace(attempt, folder / part.name)
    (folder / SUCCESS).touch()


def _task_name(name: str) -> str:
    """Return the name of a task's file without the run, the attempt and the folder: that of `part_name`."""
    return _OBJECT_PART.sub(r"part-\1.\2", name)
