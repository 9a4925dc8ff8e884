"""Durable local files: fsync, names that files get only when they are complete, and locks."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folders(path: Path) -> list[Path]:
    """Make a folder and those above it, so that they are there after a crash; return those that were missing."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        sync(folder.parent)
    return missing


def rename_durably(hidden: Path, path: Path) -> None:
    """Give a complete file its name: after a crash, the name has its former content or the new one."""
    sync(hidden)
    hidden.replace(path)
    sync(path.parent)


def write_durably(path: Path, content: bytes, *, create: bool = False) -> None:
    """Write a small file: after a crash it has its former content or the new one.

    Raises
    ------
    FileExistsError
        With `create`, if the file exists. Of several processes that create a file, one succeeds.
    """
    hidden = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        hidden.write_bytes(content)
        if create:
            sync(hidden)
            os.link(hidden, path)
            sync(path.parent)
        else:
            rename_durably(hidden, path)
    finally:
        hidden.unlink(missing_ok=True)


@contextmanager
def locked(path: Path, otherwise: Exception, *, remove: bool = False) -> Iterator[None]:
    """Hold a lock file. The operating system releases it when the process ends. With `remove`, remove it at the end.

    Raises
    ------
    otherwise
        If another process or thread holds it.
    """
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        held = False
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise otherwise from None
            held = _is_at(handle, path)
            if held:
                yield
                return
        finally:
            try:
                if held and remove:
                    path.unlink(missing_ok=True)
            finally:
                os.close(handle)


def _is_at(handle: int, path: Path) -> bool:
    """Whether an open file still has its name: another process may have removed it before it was locked."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False
