"""A data set in an object store, where nothing can be renamed.

Files get names of their own at once, with the number of the run. A run that loses against another one removes its
files. What a killed run has left has a number that is not greater than that of the next commit, and is removed after
it.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from pgdecode.datasets.file_digest import FileDigest
from pgdecode.datasets.manifest import Manifest
from pgdecode.datasets.new_files import NewFiles, WrittenFile
from pgdecode.datasets.run import MANIFEST, STATE, Run, Target, numbers_in, state_digest
from pgdecode.datasets.single_file import scratch_folder
from pgdecode.datasets.state import LOG
from pgdecode.storage.errors import PathError, TargetExists
from pgdecode.storage.object_path import ObjectPath
from pgdecode.storage.object_store import create_object, created_object, delete_objects, listed, read_object

_OBJECT = re.compile(r"part-(\d{10})-\d{5}-([0-9a-f]{8})[0-9a-f]{8}\.\w+")
# It says that a first run has begun. Then files without a manifest are what it has left.
_BEGUN = "begun"


class ObjectFolder(Target):
    """A data set in an object store."""

    folder: ObjectPath

    def __init__(self, path: ObjectPath) -> None:
        self.path = self.folder = replace(path, size=-1, e_tag=None)

    def opened(self) -> AbstractContextManager[Path]:
        """Yield a folder for temporary files. Nothing keeps other runs out."""
        return scratch_folder()

    def numbers(self) -> list[int]:
        """List the numbers of all manifests, in order."""
        return numbers_in(item.name for item in self._log())

    def _log(self) -> list[ObjectPath]:
        return [item for item, _ in listed(self.folder / LOG)]

    def read(self, name: str) -> bytes | None:
        """Read an object of the log; None if it is missing."""
        return read_object(self.folder / LOG / name)

    def replaced(self, *, has_log: bool, overwrite: bool) -> Collection[str]:
        """List the objects that a first run replaces, or raise TargetExists or PathError, as `begin` does."""
        if has_log and (known := self._known_outputs()) is not None:
            return known
        found = [item.below(self.folder) for item, _ in listed(self.folder)]
        outputs = [name for name in found if not name.startswith(f"{LOG}/")]
        has_begun = len(outputs) < len(found)
        if outputs and not has_begun and not overwrite:
            raise TargetExists(f"{self.path}: has objects such as {min(outputs)}, but no {LOG}: it is not a data set")
        foreign = next((name for name in outputs if not _OBJECT.fullmatch(name.rpartition("/")[2])), None)
        if foreign is not None:
            raise PathError(
                f"{self.path}: not replaced, because it has an object that pgdecode did not write: {foreign}"
            )
        create_object(self.folder / LOG / _BEGUN, b"")
        return outputs if overwrite else ()

    def accept(self, written: WrittenFile) -> None:
        """Take a complete object into the output of a run, as `Run.accept` does."""
        # The store has confirmed its bytes when the upload was completed.

    def write_state(self, files: NewFiles, content: bytes) -> FileDigest:
        """Write the state of a run."""
        name = f"state-{files.number:010}-{files.run}.json.zst"
        create_object(self.folder / LOG / name, content)
        return state_digest(name, content)

    def create(self, files: NewFiles, content: bytes) -> None:
        """Create the manifest of a run, or raise RunError."""
        if created_object(self.folder / LOG / f"{files.number:010}.json", content) is not None:
            raise self.lost(files.number)

    def may_have(self, number: int) -> bool:
        """Return True, because the store may complete a request later. The next run removes what is left."""
        return True

    def finish(self, last: Manifest | None) -> None:
        """Remove what no manifest names, and whose number says that no later run may name it."""
        if last is None:
            return
        kept = {item.name.rpartition("/")[2] for item in last.state}
        manifests = [last]
        obsolete = []
        for item in self._log():
            found, number = STATE.fullmatch(item.name), MANIFEST.fullmatch(item.name)
            is_before = number is not None and last.is_first and int(number[1]) < last.number
            if is_before or item.name == _BEGUN or (found and int(found[1]) <= last.number and item.name not in kept):
                obsolete.append(item)
            elif number is not None and int(number[1]) == last.number - 1:
                manifests.append(self.manifest(last.number - 1))
        named = {file.name for manifest in manifests for file in manifest.files}
        obsolete += [self.folder / name for name in last.replaced if name not in named]
        # The runs of these two numbers; those before were looked at by the runs before.
        numbers = {manifest.number for manifest in manifests}
        for folder in {name.rpartition("/")[0] for name in named} or {""}:
            place = self.folder / folder if folder else self.folder
            for item, _ in listed(place, after=f"part-{min(numbers):010}"):
                found = _OBJECT.fullmatch(item.name)
                if found and int(found[1]) in numbers and item.below(self.folder) not in named:
                    obsolete.append(item)
        delete_objects(obsolete)

    def discard(self, run: Run) -> None:
        """Remove what a run has left that has not committed."""
        files = run.files
        ours = f"-{files.number:010}-"
        left = [item for item, _ in listed(self.folder) if ours in item.name and f"-{files.run}" in item.name]
        delete_objects(left)
        rest = [item for item, _ in listed(self.folder)]
        if [item.name for item in rest] == [_BEGUN]:
            delete_objects(rest)
