"""The first rows of an output, read back as lines of text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def first_lines(target: Path, n_rows: int, format: str, lines: Callable[[pa.RecordBatch], list[str]]) -> Iterator[str]:
    """Read what `decode` wrote: Parquet as JSON lines, JSON lines and CSV as they are.

    Parameters
    ----------
    target : Path
        A file, or a folder of files, which are read in the order of their names.
    n_rows : int
        How many rows at most. A CSV file's header comes in addition.
    format : {"parquet", "jsonl", "csv"}
    lines : callable
        Makes a line of each row of a batch.
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
