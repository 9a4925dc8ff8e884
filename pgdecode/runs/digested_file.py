"""Files with the SHA-256 of their bytes, which become durable under a final name."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

from pgdecode.datasets.file_digest import FileDigest as FileDigest
from pgdecode.runs.errors import RunFault

_BLOCK = 1 << 20


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

    def digested(self, name: str, n_rows: int) -> FileDigest:
        """Describe the file, once everything is written."""
        return FileDigest(name, n_rows, self.n_bytes, self.digest.hexdigest())


def sha256_of(path: Path) -> str:
    """Compute the SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def check_file(path: Path, expected: FileDigest, *, only_size: bool = False) -> None:
    """Check that a file is the one that a manifest describes.

    Raises
    ------
    RunFault
        If it is missing, or has another size or SHA-256.
    """
    try:
        n_bytes = path.stat().st_size
    except FileNotFoundError:
        raise RunFault(f"{path}: is missing: the manifest names it") from None
    if n_bytes != expected.bytes:
        raise RunFault(
            f"{path}: has {n_bytes} bytes, the manifest has {expected.bytes}: it is not the file of this run"
        )
    if not only_size and sha256_of(path) != expected.sha256:
        raise RunFault(f"{path}: has another SHA-256 than in the manifest: it was changed or is damaged")
