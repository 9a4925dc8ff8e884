"""The files of a folder in the order of their positions, while files are added to it."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from pgdecode.datasets.input_listing import find_files
from pgdecode.files.ordered_files import OrderFault, check_positions
from pgdecode.files.payload_file import FileFault, PayloadFile
from pgdecode.files.payload_files import payload_files
from pgdecode.storage.errors import PathError
from spark_udfs.sources.source_options import SourceOptions


class FilesChanged(FileFault):
    """Files that a stream has read are not as they were, or a file came too late."""


@dataclass(frozen=True)
class PositionedFile:
    """A file with at least one row.

    Attributes
    ----------
    file : PayloadFile
    first, last : int
        Its least and greatest position.
    digest : int
        Of its name in the folder, its footer and its number of rows, in 64 bits.
    """

    file: PayloadFile
    first: int
    last: int
    digest: int

    @property
    def path(self) -> Path:
        """Path of the file."""
        return Path(str(self.file.path))


class PayloadFolder:
    """Opens the files of a folder, and remembers them.

    Attributes
    ----------
    files : list of PositionedFile
        In the order of their positions.
    """

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.files: list[PositionedFile] = []
        self._known: dict[Path, tuple[tuple[int, int, int], PayloadFile]] = {}

    def refresh(self, needed_from: int = -1) -> list[PositionedFile]:
        """Look for files that are new, and return these in the order of their positions.

        Parameters
        ----------
        needed_from : int
            Files that end before this position may be removed.

        Raises
        ------
        FilesChanged
            If a file has changed, or a needed one was removed.
        OrderFault
            If the positions of two files overlap.
        FileFault, PathError
            If a file cannot be read.
        """
        found = self._listed()
        self._check_removed({*found}, needed_from)
        new = []
        for path in found:
            status = _status(path)
            if path in self._known and self._known[path][0] == status:
                continue
            file = self._opened(path)
            if path in self._known:
                if self._known[path][1].footer != file.footer:
                    raise FilesChanged(f"{path}: has changed since it was read; files must stay as they are")
            elif file.n_rows:
                new.append(self._positioned(file))
            self._known[path] = status, file
        new.sort(key=lambda item: item.first)
        self.files = sorted([*self.files, *new], key=lambda item: item.first)
        for before, after in pairwise(self.files):
            if before.last >= after.first:
                raise OrderFault(
                    f"{after.path}: begins at {self.options.position} {after.first}, but {before.path} ends at "
                    f"{before.last}: each file must have positions of its own"
                )
        return new

    def _listed(self) -> list[Path]:
        try:
            return [Path(str(path)) for path in find_files(self.options.path)]
        except PathError:
            if self.options.path.is_dir():
                return []
            raise

    def _check_removed(self, found: set[Path], needed_from: int) -> None:
        removed = [path for path in self._known if path not in found]
        for path in removed:
            last = next((item.last for item in self.files if item.path == path), -1)
            if last >= needed_from >= 0:
                raise FilesChanged(
                    f"{path}: was removed, but the stream still needs it: it has relations or an open transaction"
                )
            del self._known[path]
        self.files = [item for item in self.files if item.path not in removed]

    def _opened(self, path: Path) -> PayloadFile:
        options = self.options
        needed = dict.fromkeys((*options.needed, options.position))
        try:
            (file,) = payload_files(path, options.payload, tuple(needed), options.unwrap)
        except PathError as error:
            hint = "; files must be complete when they get their names" if ": not a Parquet file" in str(error) else ""
            raise FileFault(f"{error}{hint}") from None
        if file.converted is not None:
            raise PathError(f"{path}: not a Parquet file; on Spark, payloads are in Parquet")
        check_positions([file], options.position)
        return file

    def _positioned(self, file: PayloadFile) -> PositionedFile:
        first, last = file.range_of(self.options.position) or (None, None)
        if first is None or last is None:
            raise OrderFault(f"{file.path}: {self.options.position} is null in all rows")
        first, last = int(first), int(last)  # of a decimal
        if first < 0:
            raise OrderFault(f"{file.path}: {self.options.position} {first} is negative")
        name = os.path.relpath(str(file.path), self.options.path)
        content = hashlib.sha256(f"{name}\0{file.footer}\0{file.n_rows}".encode())
        return PositionedFile(file, first, last, int.from_bytes(content.digest()[:8], "big"))


def _status(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except OSError as error:
        raise FilesChanged(f"{path}: was removed while it was read") from error
    return found.st_ino, found.st_size, found.st_mtime_ns
