"""A data set in a local folder.

The files of a run are below `_pgdecode/new` until the commit. Then they get their names. If the process ends in
between, the next run renames them. It also removes what no manifest names. Only one run at a time has the lock.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pgdecode.datasets.errors import OtherWriter
from pgdecode.datasets.file_digest import FileDigest
from pgdecode.datasets.manifest import Manifest
from pgdecode.datasets.new_files import NEW, NewFiles, WrittenFile, unique
from pgdecode.datasets.run import MANIFEST, STATE, Run, Target, numbers_in, state_digest
from pgdecode.datasets.state import LOG
from pgdecode.storage.durable import locked, sync, write_durably
from pgdecode.storage.errors import PathError, StorageError, TargetExists, storage_errors
from pgdecode.storage.object_path import real_path

# Names of files that pgdecode and Spark write. A folder with any other file is not replaced.
_OURS = (".parquet", ".jsonl", ".csv", ".crc", "_SUCCESS")
_LOCK, _SPILL = "lock", "spill"


class LocalFolder(Target):
    """A data set in a local folder."""

    folder: Path

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder = path.absolute()
        self.log = self.folder / LOG

    @contextmanager
    def opened(self) -> Iterator[Path]:
        """Keep other local runs out, and yield a folder for temporary files."""
        if not self.folder.is_dir():
            if os.path.lexists(self.folder):
                raise PathError(f"{self.path}: is not a folder")
            if not real_path(self.folder).parent.is_dir():
                raise PathError(f"{self.path}: there is no folder {self.path.parent}")
        is_new = not self.folder.exists()
        with storage_errors(self.path):
            self.log.mkdir(parents=True, exist_ok=True)
            taken = OtherWriter(f"{self.path}: another process is writing it now")
            try:
                with locked(self.log / _LOCK, taken, remove=True):
                    yield self.log / _SPILL
            finally:
                with suppress(OSError):
                    # A first run that fails leaves nothing. The folder stays if it is not empty.
                    self.log.rmdir()
                    if is_new:
                        self.folder.rmdir()

    def numbers(self) -> list[int]:
        """List the numbers of all manifests, in order."""
        return numbers_in(self._names())

    def _names(self) -> list[str]:
        try:
            return os.listdir(self.log)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def read(self, name: str) -> bytes | None:
        """Read a file of the log; None if it is missing."""
        try:
            return (self.log / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def prepare(self) -> None:
        """Make the folder of new files."""
        (self.log / NEW).mkdir()

    def replaced(self, *, has_log: bool, overwrite: bool) -> Collection[str]:
        """List the files that a first run replaces, or raise TargetExists or PathError, as `begin` does."""
        found = []
        for folder, below, names in os.walk(self.folder):
            below[:] = [name for name in below if not name.startswith(("_", ".")) or "=" in name]
            found += [Path(folder, name).relative_to(self.folder).as_posix() for name in names]
        # Names such as _SUCCESS and .DS_Store are no output.
        outputs = [name for name in found if not name.rpartition("/")[2].startswith(("_", "."))]
        if not overwrite and outputs:
            raise TargetExists(f"{self.path}: has files such as {min(outputs)}, but no {LOG}: it is not a data set")
        if has_log and (known := self._known_outputs()) is not None:
            return known
        foreign = next((name for name in sorted(outputs) if not name.endswith(_OURS)), None)
        if foreign is not None:
            raise PathError(f"{self.path}: not replaced, because it has a file that pgdecode did not write: {foreign}")
        return outputs

    def accept(self, written: WrittenFile) -> None:
        """Take a complete file into the output of a run, as `Run.accept` does."""
        assert isinstance(written.path, Path)
        n_bytes = written.path.stat().st_size if written.path.exists() else None
        if n_bytes != written.file.bytes:
            raise StorageError(
                self.path / written.file.name, f"has {n_bytes} bytes, its task wrote {written.file.bytes}"
            )
        new = self.log / NEW / written.file.name
        new.parent.mkdir(parents=True, exist_ok=True)
        written.path.replace(new)

    def write_state(self, files: NewFiles, content: bytes) -> FileDigest:
        """Write the state of a run."""
        name = f"state-{files.number:010}.json.zst"
        write_durably(self.log / name, content)
        return state_digest(name, content)

    def create(self, files: NewFiles, content: bytes) -> None:
        """Create the manifest of a run, or raise RunError."""
        for folder, _, _ in os.walk(self.log / NEW):
            sync(Path(folder))
        try:
            write_durably(self.log / f"{files.number:010}.json", content, create=True)
        except FileExistsError:
            raise self.lost(files.number) from None

    def finish(self, last: Manifest | None) -> None:
        """Complete the last run after its commit, and remove what no manifest names. It may be called again."""
        kept = set()
        if last is not None:
            kept = {item.name.rpartition("/")[2] for item in last.state}
            if (self.log / NEW).exists():
                self._rename(last)
            names = {file.name for file in last.files}
            for name in last.replaced:
                if name not in names:
                    _remove_file(self.folder, name)
        for name in self._names():
            found = MANIFEST.fullmatch(name)
            is_before = found is not None and last is not None and last.is_first and int(found[1]) < last.number
            if is_before or (STATE.fullmatch(name) and name not in kept) or name.endswith(".partial"):
                (self.log / name).unlink(missing_ok=True)
        self._remove_new()

    def _rename(self, last: Manifest) -> None:
        """Give the files of a committed run their names, unless they have them already."""
        folders = set()
        for file in last.files:
            new, path = self.log / NEW / file.name, self.folder / file.name
            if new.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                new.replace(path)
                folders.add(path.parent)
        for folder in folders:
            sync(folder)

    def discard(self, run: Run) -> None:
        """Remove what a run has left that has not committed."""
        for name in self._names():
            found = STATE.fullmatch(name)
            if found is not None and int(found[1]) == run.files.number:
                (self.log / name).unlink(missing_ok=True)
        self._remove_new()

    def _remove_new(self) -> None:
        # Renamed first, so that a task of a run that was killed cannot create a file while the folder is removed.
        if (self.log / NEW).exists():
            (self.log / NEW).rename(self.log / f"{NEW}-{unique()}")
        for name in self._names():
            if name.startswith((f"{NEW}-", _SPILL)):
                shutil.rmtree(self.log / name, ignore_errors=True)


def _remove_file(folder: Path, name: str) -> None:
    """Remove a file, and the folders below `folder` that are then empty."""
    (folder / name).unlink(missing_ok=True)
    for parent in Path(name).parents[:-1]:
        with suppress(OSError):
            (folder / parent).rmdir()
