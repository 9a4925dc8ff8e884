"""Reads the first rows of an output as lines of text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pgdecode.datasets.input_listing import is_hidden
from pgdecode.datasets.local_folder import LocalFolder
from pgdecode.files.change_export import table_file_name

# More than any output has, and less than what integers of C hold.
_MOST_ROWS = 2**31 - 1


def outputs(target: Path, tables: Sequence[str], format: str) -> dict[str, list[Path]]:
    """Find the files of each output of `decode`: of each table, or of OUT as a whole.

    Parameters
    ----------
    target : Path
        A file, or the folder of a data set.
    tables : sequence of str
        The decoded tables; none for messages and for changes.
    format : {"parquet", "jsonl", "csv"}

    Returns
    -------
    dict
        Files in the order in which they were written, by the name of the table or of OUT.
    """
    files = _files(target, format)
    if len(tables) > 1:
        return {name: [file for file in files if file.parent.name == table_file_name(name)] for name in tables}
    return {tables[0] if tables else target.name: files}


def _files(target: Path, format: str) -> list[Path]:
    if target.is_file():
        return [target]
    folder = LocalFolder(target)
    if folder.numbers():
        names = [file.name for manifest in folder.manifests() for file in manifest.files]
        return [target / name for name in names if (target / name).exists()]
    below = (path for path in target.rglob(f"*.{format}") if not any(map(is_hidden, path.relative_to(target).parts)))
    return sorted(below)


def first_lines(
    files: Sequence[Path], n_rows: int, format: str, lines: Callable[[pa.RecordBatch], pa.Array]
) -> Iterator[str]:
    """Read the first rows of an output of `decode`. Parquet is converted to JSON lines.

    Parameters
    ----------
    files : sequence of Path
    n_rows : int
        The greatest number of rows. The header of a CSV file is not counted.
    format : {"parquet", "jsonl", "csv"}
    lines : callable
        Converts each row of a batch to a line.
    """
    n_rows = min(n_rows, _MOST_ROWS)
    if format == "parquet":
        return islice((line for file in files for line in _parquet_lines(file, n_rows, lines)), n_rows)
    header = min(len(files), 1) if format == "csv" else 0
    return islice((line for file in files for line in _text_lines(file)), n_rows + header)


def _parquet_lines(path: Path, n_rows: int, lines: Callable[[pa.RecordBatch], pa.Array]) -> Iterator[str]:
    with pq.ParquetFile(path.absolute()) as file:
        for batch in file.iter_batches(n_rows, use_threads=False):
            yield from lines(batch).to_pylist()


def _text_lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", newline="\n") as file:
        for line in file:
            yield line.removesuffix("\n")
