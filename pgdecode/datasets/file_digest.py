"""New files and objects, whose SHA-256 is computed while they are written."""

from __future__ import annotations

import hashlib
import io
import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from pgdecode.datasets.errors import RunFault
from pgdecode.storage.object_files import written_object
from pgdecode.storage.object_path import FilePath, ObjectPath
from pgdecode.storage.object_store import delete_objects, found_object

_BLOCK = 1 << 20


@dataclass(frozen=True)
class FileDigest:
    """A complete file.

    Attributes
    ----------
    name : str
        Relative to the folder of the data set, with "/".
    rows, bytes : int
    sha256 : str
        Of its bytes, in hexadecimal.
    """

    name: str
    rows: int
    bytes: int
    sha256: str


class DigestedFile(io.FileIO):
    """A new file that computes the SHA-256 of its bytes while they are written."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "xb")
        self.digest = hashlib.sha256()
        self.n_bytes = 0

    def write(self, data: Any) -> int:
        """Write bytes, and return how many were written."""
        n = super().write(data)
        self.digest.update(memoryview(data).cast("B")[:n])
        self.n_bytes += n
        return n


class NewFile(io.BufferedWriter):
    """A new file or object.

    Closing it makes it complete and durable. Leaving its block with an exception removes it.

    Raises
    ------
    FileExistsError
        If it is a local file that exists.
    """

    def __init__(self, path: FilePath) -> None:
        with ExitStack() as stack:
            raw = stack.enter_context(written_object(path)) if isinstance(path, ObjectPath) else DigestedFile(path)
            super().__init__(raw, _BLOCK)
            self._end = stack.pop_all()
        self._digested = raw
        self.path = path

    @property
    def name(self) -> str:
        """The path or URI."""
        return str(self.path)

    def close(self) -> None:
        """Complete the file."""
        if self.closed:
            return
        try:
            self.flush()
            if isinstance(self.path, Path):
                os.fsync(self.fileno())
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        super().close()
        self._end.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        # What is buffered is not written any more.
        self._digested.close()
        self._end.__exit__(kind, error, trace)
        self.discard()

    def discard(self) -> None:
        """Remove the file."""
        if isinstance(self.path, Path):
            self._digested.close()
            self.path.unlink(missing_ok=True)
        elif self._digested.closed:
            delete_objects([self.path])
        else:
            self.close()
            delete_objects([self.path])

    def digested(self, name: str, n_rows: int) -> FileDigest:
        """Describe the file, once it is complete."""
        return FileDigest(name, n_rows, self._digested.n_bytes, self._digested.digest.hexdigest())


def check_file(path: FilePath, expected: FileDigest) -> None:
    """Check that a file is the one that a manifest describes. Of an object, only the size is checked.

    Raises
    ------
    RunFault
        If it is missing, or has another size or SHA-256.
    """
    try:
        found = found_object(path) if isinstance(path, ObjectPath) else path.stat()
    except FileNotFoundError:
        found = None
    if found is None:
        raise RunFault(f"{path}: is missing: the manifest names it")
    n_bytes = found.size if isinstance(found, ObjectPath) else found.st_size
    if n_bytes != expected.bytes:
        raise RunFault(
            f"{path}: has {n_bytes} bytes, the manifest has {expected.bytes}: it is not the file of this run"
        )
    if isinstance(path, ObjectPath):
        return
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    if digest.hexdigest() != expected.sha256:
        raise RunFault(f"{path}: has another SHA-256 than in the manifest: it was changed or is damaged")
