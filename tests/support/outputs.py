"""Output files of `convert_changes` without a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from pgdecode.datasets.single_file import remove
from pgdecode.files.change_export import table_file_name


class LocalOutputs:
    """One file, or in a folder a file for each table and schema: `public.t.parquet`, `public.t-2.parquet`."""

    def __init__(self, target: Path, format: str, *, as_file: bool) -> None:
        if os.path.lexists(target):
            raise FileExistsError(target)
        self._target, self._format, self._as_file = target, format, as_file

    def open(self, table: str | None, schema: pa.Schema, number: int) -> BinaryIO:
        """Create a file."""
        path = self._target
        if not self._as_file:
            path.mkdir(exist_ok=True)
            path = path / f"{table_file_name(table)}{'' if number == 1 else f'-{number}'}.{self._format}"
        return path.open("xb")

    def discard(self) -> None:
        """Remove all files."""
        remove(self._target)
