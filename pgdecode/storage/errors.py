"""Errors of storage. Each names the target and the cause."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager


class PathError(ValueError):
    """A path or column that cannot be used: the mistake is in the arguments, not in the data."""


class TargetExists(PathError, FileExistsError):
    """An output that exists and is not to be replaced."""


class StorageError(OSError):
    """A file or object that cannot be read or written.

    Parameters
    ----------
    target : str
        The path or URI.
    cause : str
    """

    def __init__(self, target: object, cause: str) -> None:
        super().__init__(f"{target}: {cause}")
        self.target = str(target)
        self.cause = cause

    def __reduce__(self) -> tuple[type[StorageError], tuple[str, str]]:
        return type(self), (self.target, self.cause)


class DiskFull(StorageError):
    """There is no space left, or a quota is used up."""


class ReadOnlyStorage(StorageError):
    """The file system is read-only."""


class AccessDenied(StorageError):
    """There is no permission, or the store does not accept the credentials."""


class StoreUnreachable(StorageError):
    """An object store does not answer, or does not work."""


# The operating system's numbers of errors.
_CLASSES: dict[int | None, type[StorageError]] = {
    errno.ENOSPC: DiskFull,
    errno.EDQUOT: DiskFull,
    errno.EROFS: ReadOnlyStorage,
    errno.EACCES: AccessDenied,
    errno.EPERM: AccessDenied,
}


@contextmanager
def storage_errors(target: object) -> Iterator[None]:
    """Convert errors of the operating system to those of this module, if there is a class for them."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        found = _CLASSES.get(error.errno)
        if found is None:
            raise
        where = f" ({os.fsdecode(error.filename)})" if isinstance(error.filename, str | bytes) else ""
        raise found(target, f"{os.strerror(error.errno or 0).lower()}{where}") from error
