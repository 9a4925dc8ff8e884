"""Runs whose output is in an object store, where nothing can be renamed.

A run claims its target by creating `_claim.json`. Its files get unique names at once, `part-<run>-<task>-<attempt>`.
The manifest, which names them, is written last, only if there is none, or with `overwrite` only if it is still the
former one: that is the commit. Then the claim is removed. An attempt that ends later finds no claim, and removes its
file. A run that was killed before the commit leaves a claim and files that no manifest names; `clean` removes them.
"""

from __future__ import annotations

import json
import re
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from pgdecode.protocol.json_document import load_json
from pgdecode.protocol.options import Format
from pgdecode.runs.errors import RunError
from pgdecode.runs.manifest import MANIFEST, Manifest, OutputFile, manifest_bytes, parse_manifest
from pgdecode.storage.errors import PathError, StorageError, TargetExists
from pgdecode.storage.object_files import written_object
from pgdecode.storage.object_path import FilePath, ObjectPath
from pgdecode.storage.object_store import (
    Version,
    create_object,
    delete_objects,
    listed,
    read_object,
    replace_object,
)

_BLOCK = 1 << 20
CLAIM = "_claim.json"
PART = re.compile(r"part-([0-9a-f]{32})-.+")


@dataclass(frozen=True)
class ObjectRun:
    """A run that has claimed its target. It is sent to tasks.

    Attributes
    ----------
    path : ObjectPath
        The target.
    run : str
        Identifies the run.
    """

    path: ObjectPath
    run: str

    def part(self, folder: str, number: int, format: Format) -> ObjectPath:
        """Return the key of a file, which is different for each attempt. `folder` is empty for a single output."""
        name = f"part-{self.run}-{number:05}-{uuid.uuid4().hex[:12]}.{format}"
        return self.path / (f"{folder}/{name}" if folder else name)

    def keep(self, part: ObjectPath) -> None:
        """Remove a complete file if the run has ended meanwhile.

        Raises
        ------
        RunError
            If the run has ended.
        """
        if _run_of(self.path) != self.run:
            delete_objects([part])
            raise RunError(f"{self.path}: the run of this task has ended")


@dataclass(frozen=True)
class ObjectOutput:
    """An output of a run. `folder` is below the target, and is empty for a single output."""

    run: ObjectRun
    folder: str


class OpenRun:
    """A run on the driver, from its claim to its commit."""

    def __init__(self, run: ObjectRun, former: tuple[Manifest, Version] | None) -> None:
        self.run = run
        self._former = former
        # Whether a manifest may have been written: files that it names must stay.
        self._may_be_committed = False
        self._kept: set[str] = set()

    def output(self, folder: str = "") -> ObjectOutput:
        """Make an output."""
        return ObjectOutput(self.run, folder)

    def upload(self, number: int, path: Path, folder: str, format: Format, n_rows: int) -> OutputFile:
        """Copy a local file to a new object, and describe it."""
        part = self.run.part(folder, number, format)
        with written_object(part) as raw, open(path, "rb") as file:
            while block := file.read(_BLOCK):
                raw.write(block)
        return OutputFile(part.below(self.run.path), n_rows, raw.n_bytes, raw.digest.hexdigest())

    def commit(self, manifest: Manifest) -> None:
        """Remove the files of other attempts, and write the manifest.

        Parameters
        ----------
        manifest : Manifest
            The names of its files are relative to the target.

        Raises
        ------
        TargetExists
            If another run has written a manifest meanwhile.
        StorageError
            If a file is missing or has another size.
        """
        path = self.run.path
        found = {item.below(path): item for item, _ in listed(path)}
        for file in manifest.files:
            size = found[file.name].size if file.name in found else None
            if size != file.bytes:
                raise StorageError(path / file.name, f"has {size} bytes, its task wrote {file.bytes}")
        self._kept = {file.name for file in manifest.files}
        self._remove_parts(found)
        content = manifest_bytes(manifest)
        self._may_be_committed = True
        if not self._write(content):
            # A request that was repeated after a lost response finds its own manifest.
            there = read_object(path / MANIFEST)
            if there is None or there[0] != content:
                self._may_be_committed = False
                raise TargetExists(f"{path}: another run has written it meanwhile")
        if self._former is not None:
            delete_objects([path / file.name for file in self._former[0].files if file.name not in self._kept])

    def _write(self, content: bytes) -> bool:
        path = self.run.path / MANIFEST
        return create_object(path, content) if self._former is None else replace_object(path, content, self._former[1])

    def close(self) -> None:
        """Remove the claim, and the files that no manifest names."""
        if _run_of(self.run.path) == self.run.run:
            delete_objects([self.run.path / CLAIM])
        if not self._may_be_committed:
            self._kept = set()
        elif not self._kept:
            return
        self._remove_parts({item.below(self.run.path): item for item, _ in listed(self.run.path)})

    def _remove_parts(self, found: dict[str, ObjectPath]) -> None:
        ours = f"part-{self.run.run}-"
        delete_objects([item for name, item in found.items() if item.name.startswith(ours) and name not in self._kept])


def check_apart(source: FilePath, target: ObjectPath) -> None:
    """Check that neither of input and output contains the other.

    Raises
    ------
    PathError
        If one does.
    """
    if isinstance(source, ObjectPath) and (source.contains(target) or target.contains(source)):
        raise PathError(f"{target}: {'is inside' if source.contains(target) else 'contains'} the input")


def check_object_target(path: ObjectPath, *, overwrite: bool) -> tuple[Manifest, Version] | None:
    """Check a target before any work is done. Return the manifest that a run is to replace.

    Raises
    ------
    TargetExists
        If it has a manifest, and is not to be overwritten.
    PathError
        If it has objects that pgdecode did not write.
    """
    there = read_object(path / MANIFEST)
    if there is not None and not overwrite:
        raise TargetExists(f"{path}: exists already")
    former = None if there is None else (parse_manifest(there[0], path / MANIFEST), there[1])
    named = set() if former is None else {file.name for file in former[0].files}
    for item, _ in listed(path):
        name = item.below(path)
        if item.name not in (MANIFEST, CLAIM) and not PART.fullmatch(item.name) and name not in named:
            raise PathError(f"{path}: has an object that pgdecode did not write: {name}")
    return former


@contextmanager
def object_run(path: ObjectPath, *, overwrite: bool = False) -> Iterator[OpenRun]:
    """Claim a target for a run. At the end, remove the claim and what was not committed.

    Raises
    ------
    TargetExists, PathError
        As in `check_object_target`.
    RunError
        If another run has claimed the target.
    """
    check_object_target(path, overwrite=overwrite)
    run = ObjectRun(replace(path, size=-1, e_tag=None), uuid.uuid4().hex)
    claim = {"run": run.run, "host": socket.gethostname(), "started": datetime.now(UTC).isoformat(timespec="seconds")}
    if not create_object(path / CLAIM, json.dumps(claim).encode()):
        _refuse(path)
    opened = OpenRun(run, None)
    try:
        # Another run may have committed between the check and the claim.
        opened = OpenRun(run, check_object_target(path, overwrite=overwrite))
        yield opened
    finally:
        opened.close()


def _refuse(path: ObjectPath) -> None:
    found = _claim(path)
    who = f"since {found.get('started')} on {found.get('host')}" if found else "now"
    raise RunError(f"{path}: another run is writing it {who}; 'pgdecode clean' removes what a killed run has left")


def _claim(path: ObjectPath) -> dict[str, str]:
    there = read_object(path / CLAIM)
    try:
        return {} if there is None else dict(load_json(there[0]))
    except (ValueError, TypeError):
        return {}


def _run_of(path: ObjectPath) -> str | None:
    """Return the run that has claimed a target."""
    return _claim(path).get("run")
