"""Reads the first rows of an output as lines of text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def first_lines(target: Path, n_rows: int, format: str, lines: Callable[[pa.RecordBatch], list[str]]) -> Iterator[str]:
    """Read the first rows of an output of `decode`. Parquet is converted to JSON lines.

    Parameters
    ----------
    target : Path
        A file, or a folder of files, which are read in the order of their names.
    n_rows : int
        The greatest number of rows. The header of a CSV file is not counted.
    format : {"parquet", "jsonl", "csv"}
    lines : callable
        Converts each row of a batch to a line.
    """
    files = [target] if target.is_file() else sorted(target.rglob(f"*.{format}"))
    if format == "parquet":
        return islice((line for file in files for line in _parquet_lines(file, n_rows, lines)), n_rows)
    header = min(len(files), 1) if format == "csv" else 0
    return islice((line for file in files for line in _text_lines(file)), n_rows + header)


def _parquet_lines(path: Path, n_rows: int, lines: Callable[[pa.RecordBatch], list[str]]) -> Iterator[str]:
    with pq.ParquetFile(path.absolute()) as file:
        for batch in file.iter_batches(n_rows, use_threads=False):
            yield from lines(batch)


def _text_lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", newline="\n") as file:
        for line in file:
            yield line.removesuffix("\n")
