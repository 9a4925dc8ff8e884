"""Single files as outputs: they get their final name only when they are complete."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from pgdecode.datasets.errors import OtherWriter
from pgdecode.datasets.file_digest import FileDigest
from pgdecode.datasets.manifest import Manifest
from pgdecode.datasets.new_files import NewFiles, WrittenFile, unique
from pgdecode.datasets.run import Run, Target, check_apart, state_digest
from pgdecode.datasets.state import State
from pgdecode.storage.durable import locked
from pgdecode.storage.errors import PathError, TargetExists, storage_errors
from pgdecode.storage.object_path import FilePath, real_path

# Hidden files beside an output that is being written.
_KINDS = ("partial", "spill", "lock")
# Ends of the names of files that pgdecode writes. Others are not replaced.
_OURS = (".parquet", ".jsonl", ".csv", ".json")


def check_target(target: Path, source: Path | None, *, overwrite: bool) -> None:
    """Check a target before any work is done. `source` is None if it is not a local path.

    Raises
    ------
    TargetExists
        If it exists and is not to be overwritten.
    PathError
        If it cannot be replaced safely, or if its parent folder is missing.
    """
    check_apart(target, source)
    if not real_path(target).parent.is_dir():
        raise PathError(f"{target}: there is no folder {target.parent}")
    clean(target)
    if not os.path.lexists(target):
        return
    if not overwrite:
        raise TargetExists(f"{target}: exists already")
    if target.is_dir():
        raise PathError(f"{target}: not replaced by a file, because it is a folder")
    if target.is_file() and not target.name.endswith(_OURS):
        raise PathError(f"{target}: not replaced, because pgdecode does not write files of this kind")


@contextmanager
def staged(target: Path, *, overwrite: bool = True) -> Iterator[Path]:
    """Yield a temporary path beside `target` for a file, and rename it to `target` at the end.

    On any exception the temporary file is removed, and a former target stays unchanged. A process that is killed leaves
    hidden files. The next call for the same target removes them.

    Raises
    ------
    RunError
        If another process is writing the same target.
    TargetExists
        Without `overwrite`, if the target exists at the end.
    DiskFull, ReadOnlyStorage, AccessDenied
        If the target cannot be written.
    """
    hidden = _hidden(target, "partial")
    with storage_errors(target):
        clean(target)
        with _locked(target):
            try:
                yield hidden
                if not overwrite and os.path.lexists(target):
                    raise TargetExists(f"{target}: cannot be renamed to this; was it created meanwhile?")
                hidden.replace(target)
            finally:
                remove(hidden)


def clean(target: Path) -> None:
    """Remove what a process that was killed has left beside a target, unless another process is writing it.

    Raises
    ------
    RunError
        If another process is writing the target.
    """
    if any(os.path.lexists(_hidden(target, kind)) for kind in _KINDS):
        with _locked(target):
            for kind in _KINDS:
                remove(_hidden(target, kind))


@contextmanager
def spill_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder beside a target that is `staged`, for data that is too large for memory."""
    folder = _hidden(target, "spill")
    remove(folder)
    folder.mkdir()
    try:
        yield folder
    finally:
        remove(folder)


def _locked(target: Path) -> AbstractContextManager[None]:
    return locked(_hidden(target, "lock"), OtherWriter(f"{target}: another process is writing it now"), remove=True)


def _hidden(target: Path, kind: str) -> Path:
    return target.parent / f".{target.name}.{kind}"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a temporary folder for data that is too large for memory."""
    with tempfile.TemporaryDirectory(prefix=".pgdecode-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def remove(path: Path) -> None:
    """Remove a file, or a folder with its contents, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


class SingleFile(Target):
    """A local file, without a log and a state."""

    has_log = False

    def __init__(self, path: Path) -> None:
        self.path = self.folder = self.file = path

    @contextmanager
    def begin(
        self,
        what: Sequence[str],
        options: Mapping[str, Any],
        *,
        source: FilePath | None = None,
        overwrite: bool = False,
    ) -> Iterator[Run]:
        """Begin to write the file under a hidden name. It gets its name at the end of the block.

        Raises
        ------
        TargetExists, PathError, RunError
            As in `single_file.check_target` and `single_file.staged`.
        """
        check_target(self.file, source if isinstance(source, Path) else None, overwrite=overwrite)
        with staged(self.file, overwrite=overwrite) as hidden, spill_folder(self.file) as spill:
            yield Run(self, None, State(), NewFiles(self.path, 1, True, unique(), hidden), spill)

    def accept(self, written: WrittenFile) -> None:
        """Take the file, which has its hidden name."""

    def write_state(self, files: NewFiles, content: bytes) -> FileDigest:
        """Describe the state, which is not written."""
        return state_digest("", content)

    def create(self, files: NewFiles, content: bytes) -> None:
        """Do nothing, because there is no log."""

    def finish(self, last: Manifest | None) -> None:
        """Do nothing. The file gets its name at the end of the block."""
