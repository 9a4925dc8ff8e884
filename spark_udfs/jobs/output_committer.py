"""Files that tasks write and the driver commits.

A task may be run several times, at once even: each attempt writes under a name of its own and tells the driver of it.
Spark takes the result of one attempt for each task. What that one wrote gets the task's name; the rest goes.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

import pgdecode
from pgdecode.files.writers import Layout, WriteBatch, writer_to
from pgdecode.protocol.options import Format

MANIFEST = "_manifest.json"
SUCCESS = "_SUCCESS"
_ATTEMPTS = "_temporary"
_BUFFER = 1 << 20


@dataclass(frozen=True)
class Part:
    """What one attempt wrote.

    Attributes
    ----------
    attempt : str
        Name of the file among the attempts.
    name : str
        That it gets.
    n_rows, n_bytes : int
    sha256 : str
        Of its bytes: the same for all attempts at a task.
    bad_rows : mapping
        Rows with an error, given or left out, by its code.
    """

    attempt: str
    name: str
    n_rows: int
    n_bytes: int
    sha256: str
    bad_rows: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class DecodedFiles:
    """What a job has decoded.

    Attributes
    ----------
    bad_rows : dict
        Rows with an error, given or left out, by the code of the error; of all outputs together.
    skipped : int
        Transactions that were left out because their beginning is missing, with `start="anywhere"`.
    undecided : int
        Transactions without an outcome.
    """

    bad_rows: dict[str, int]
    skipped: int = 0
    undecided: int = 0


def part_name(number: int, format: str) -> str:
    """Name what a task writes."""
    return f"part-{number:05}.{format}"


class _Digested(io.FileIO):
    """A new file whose bytes are digested while they are written."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "xb")
        self.digest = hashlib.sha256()
        self.n_bytes = 0

    def write(self, data: Any) -> int:
        """Write as much as goes."""
        n = super().write(data)
        self.digest.update(memoryview(data).cast("B")[:n])
        self.n_bytes += n
        return n


@contextmanager
def attempted(
    folder: Path,
    number: int,
    format: Format,
    schema: pa.Schema,
    layout: Layout,
    n_writers: int,
    parts: list[Part],
    bad_rows: Mapping[str, int],
) -> Iterator[WriteBatch]:
    """Write the part of a task; once it is complete, it is appended to `parts`.

    Parameters
    ----------
    folder : Path
        Where `attempts` are awaited.
    number : int
        Of the task.
    format, schema, layout, n_writers
        As of `writer_to`.
    parts : list of Part
    bad_rows : mapping
        As of `Part`, when all is written.
    """
    attempt = f"{number:05}.{uuid.uuid4().hex}"
    path = folder / _ATTEMPTS / attempt
    n_rows = 0
    raw = _Digested(path)
    try:
        with io.BufferedWriter(raw, _BUFFER) as file, writer_to(file, format, schema, layout, n_writers) as write:

            def counted(batch: pa.RecordBatch) -> None:
                nonlocal n_rows
                n_rows += len(batch)
                write(batch)

            yield counted
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    parts.append(Part(attempt, part_name(number, format), n_rows, raw.n_bytes, raw.digest.hexdigest(), dict(bad_rows)))


@contextmanager
def attempts(folder: Path) -> Iterator[None]:
    """Make a folder into which tasks may write; in the end what was not committed is removed."""
    place = folder / _ATTEMPTS
    place.mkdir(parents=True)
    try:
        yield
    finally:
        # An attempt that is still under way finds no folder any more, and can put nothing into one that is removed.
        former = place.rename(folder / f"{_ATTEMPTS}.{uuid.uuid4().hex}")
        shutil.rmtree(former)


def commit(
    folder: Path,
    parts: Sequence[Part],
    about: Mapping[str, Sequence[Mapping[str, Any]]],
    skipped: int = 0,
    undecided: int = 0,
) -> DecodedFiles:
    """Give parts their names, and write beside them what they are and that they are all.

    Parameters
    ----------
    folder : Path
        Of the attempts.
    parts : sequence of Part
        One for each task. Those without rows are left out, but for one if there is no other, which has the columns.
    about : mapping
        By the name of a part, the rows of the input that it was made of.
    skipped, undecided : int
        As of `DecodedFiles`.

    Raises
    ------
    OSError
        If a part is not there as its task wrote it.
    """
    chosen = [part for part in parts if part.n_rows] or list(parts[:1])
    for part in chosen:
        attempt = folder / _ATTEMPTS / part.attempt
        n_bytes = attempt.stat().st_size
        if n_bytes != part.n_bytes:
            raise OSError(f"{attempt}: has {n_bytes} bytes, its task wrote {part.n_bytes}")
        os.replace(attempt, folder / part.name)
    files = [
        {
            "name": part.name,
            "rows": part.n_rows,
            "bytes": part.n_bytes,
            "sha256": part.sha256,
            "input": about[part.name],
        }
        for part in chosen
    ]
    bad_rows: Counter[str] = Counter()
    for part in parts:
        bad_rows.update(part.bad_rows)
    decoded = DecodedFiles(dict(sorted(bad_rows.items())), skipped, undecided)
    manifest = {
        "format": "pgdecode.Manifest",
        "version": 1,
        "pgdecode": pgdecode.__version__,
        **asdict(decoded),
        "files": files,
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    (folder / SUCCESS).touch()
    return decoded
