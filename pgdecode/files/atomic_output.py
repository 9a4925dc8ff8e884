"""Outputs that appear under their name only when they are complete."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pgdecode.files.payload_files import PathError

# What a folder of earlier output can hold; a folder with anything else in it is not replaced.
_OURS = (".parquet", ".jsonl", ".csv", ".json", ".crc", "_SUCCESS")


class TargetExists(PathError):
    """An output that exists and is not to be replaced."""


def check_target(target: Path, source: Path, *, overwrite: bool) -> None:
    """Refuse a target before any work is done.

    Raises
    ------
    TargetExists
        If it exists and is not to be overwritten.
    PathError
        If it cannot be replaced safely, or has no folder to be in.
    """
    real, raw = target.resolve(), source.resolve()
    if real == raw:
        raise PathError(f"{target}: is the input")
    if real in raw.parents or raw in real.parents:
        raise PathError(f"{target}: {'the input lies in it' if real in raw.parents else 'lies in the input'}")
    if not real.parent.is_dir():
        raise PathError(f"{target}: there is no folder {target.parent}")
    if not os.path.lexists(target):
        return
    if not overwrite:
        raise TargetExists(f"{target}: exists already")
    if target.is_file() and not target.name.endswith(_OURS):
        raise PathError(f"{target}: not replaced, it is a file of a kind that pgdecode does not write")
    foreign = _foreign(target)
    if foreign is not None:
        raise PathError(f"{target}: not replaced, it holds what pgdecode did not write: {foreign.relative_to(target)}")


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """Lend a path beside `target` to write a file or folder to; it takes the target's name at the end.

    On any exception what was written is removed and a former target stays as it was.
    """
    hidden = target.parent / f".{target.name}.{secrets.token_hex(4)}.partial"
    former = hidden.with_suffix(".former")
    try:
        yield hidden
        # One file replaces another in one step; a folder has to be moved out of the way first.
        if os.path.lexists(target) and (target.is_dir() or hidden.is_dir()):
            target.rename(former)
        hidden.replace(target)
    finally:
        if os.path.lexists(former) and not os.path.lexists(target):
            former.rename(target)
        remove(hidden)
        remove(former)


@contextmanager
def scratch_folder(beside: Path | None = None) -> Iterator[Path]:
    """Lend a folder for what is too much for memory, where there is room for an output; it goes in the end."""
    with tempfile.TemporaryDirectory(prefix=".pgdecode-", dir=beside, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _foreign(target: Path) -> Path | None:
    """Find a file in a folder that is not of a kind that pgdecode or Spark writes."""
    for folder, _, names in os.walk(target):
        for name in sorted(names):
            if not name.endswith(_OURS):
                return Path(folder, name)
    return None


def remove(path: Path) -> None:
    """Remove a file, or a folder with all in it, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
