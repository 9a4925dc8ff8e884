"""A state folder: numbered generations of a state, apart from the outputs. The file `current` names one of them.

    current                    number, output and SHA-256 of the manifest of the last complete run
    00000002/                  manifest and state of run 2, as in an output folder, and a copy of what `current` will be
    00000001/                  those of the run before, to decode the last output again

A run writes its output under a hidden name, then its generation, renames the output, and replaces `current`. If it ends
in between, the next run looks whether the output has its name. If so, it replaces `current`; if not, it removes the
generation.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pgdecode.protocol.json_document import load_json, record_from_json
from pgdecode.runs.claim import LOCK
from pgdecode.runs.digested_file import check_file
from pgdecode.runs.errors import RunError, RunFault
from pgdecode.runs.manifest import MANIFEST, Manifest, read_manifest
from pgdecode.runs.payload_ranges import STATE, take_over
from pgdecode.storage.durable import locked, sync, write_durably
from pgdecode.storage.object_path import real_path

FORMAT = "pgdecode.Generation"
FORMAT_VERSION = 1
CURRENT = "current"
_PARTIAL = ".partial"


@dataclass(frozen=True)
class Generation:
    """A run whose state is in a state folder.

    Attributes
    ----------
    number : int
        From 1.
    output : str
        Path of its output, a file or a folder, relative to the state folder.
    manifest : str
        SHA-256 of its manifest.
    """

    number: int
    output: str
    manifest: str

    @property
    def name(self) -> str:
        """Name of its folder in the state folder."""
        return f"{self.number:08}"


class StateFolder:
    """A state folder that this process has locked. `current` is the last complete run, None before the first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.current = _read(folder / CURRENT)
        for item in folder.iterdir():
            if item.name.endswith(_PARTIAL):
                # A generation, or a file that `write_durably` had not renamed yet.
                shutil.rmtree(item) if item.is_dir() else item.unlink()
        following = _read(folder / f"{self._number + 1:08}" / CURRENT)
        if following is not None and self.has_output(following):
            self._advance(following)

    @property
    def _number(self) -> int:
        return 0 if self.current is None else self.current.number

    def folder_of(self, generation: Generation) -> Path:
        """Return the folder with the manifest and the state of a run."""
        return self.folder / generation.name

    def output_of(self, generation: Generation) -> Path:
        """Return the path of a run's output."""
        return Path(os.path.normpath(self.folder / generation.output))

    def step_back(self) -> None:
        """Make the run before the current one current, to decode the last output again.

        Raises
        ------
        RunFault
            If its generation is missing.
        """
        if self._number < 2:
            (self.folder / CURRENT).unlink(missing_ok=True)
            self.current = None
            return
        path = self.folder / f"{self._number - 1:08}" / CURRENT
        before = _read(path)
        if before is None:
            raise RunFault(f"{path}: is missing: the run before the last one cannot be continued again")
        self._advance(before)

    def begin(self) -> Path:
        """Make the hidden folder of the next generation."""
        hidden = self.folder / f"{self._number + 1:08}{_PARTIAL}"
        hidden.mkdir()
        return hidden

    def seal(self, hidden: Path, output: Path, manifest: Manifest) -> Generation:
        """Complete the next generation, once its manifest is written, before the output gets its name."""
        path = Path(os.path.relpath(real_path(output), real_path(self.folder))).as_posix()
        generation = Generation(self._number + 1, path, manifest.sha256)
        _write(hidden / CURRENT, generation)
        final = self.folder_of(generation)
        if final.exists():
            shutil.rmtree(final)
        hidden.rename(final)
        sync(self.folder)
        return generation

    def commit(self, generation: Generation) -> None:
        """Make a generation current, once the output has its name. Remove generations that are not needed anymore."""
        self._advance(generation)
        for item in self.folder.iterdir():
            if item.name.isdigit() and int(item.name) < generation.number - 1:
                shutil.rmtree(item)

    def _advance(self, generation: Generation) -> None:
        _write(self.folder / CURRENT, generation)
        self.current = generation

    def has_output(self, generation: Generation) -> bool:
        """Whether the output of a generation has its name."""
        output = self.output_of(generation)
        try:
            if output.is_dir():
                return read_manifest(output).sha256 == generation.manifest
            folder = self.folder_of(generation)
            for item in read_manifest(folder).files:
                check_file(folder / item.name, item)
        except RunFault:
            return False
        return True


@contextmanager
def opened(folder: Path) -> Iterator[StateFolder]:
    """Open a state folder, make it if it is missing, and complete or remove what an interrupted run has left.

    Raises
    ------
    RunError
        If another process has it open.
    RunFault
        If it is damaged, or not a state folder.
    """
    try:
        folder.mkdir(exist_ok=True)
    except FileExistsError:
        raise RunFault(f"{folder}: is not a state folder: it is a file, or a link that leads nowhere") from None
    for name in sorted(item.name for item in folder.iterdir()):
        if not name[:8].isdigit() and not name.startswith((CURRENT, LOCK, f".{CURRENT}.")):
            raise RunFault(f"{folder}: is not a state folder: it has {name!r}")
    with locked(folder / LOCK, RunError(f"{folder}: another run is using this state folder now")):
        yield StateFolder(folder)


def copy_run(source: Path, target: Path) -> None:
    """Link the manifest and the state of a run into another folder."""
    (target / STATE).mkdir()
    for item in read_manifest(source).state:
        take_over(source / item.name, target / item.name)
    take_over(source / MANIFEST, target / MANIFEST)


def current_folder(folder: Path) -> Path | None:
    """Return the folder of the last complete run of a state folder; None if it is not a state folder.

    An interrupted run is neither completed nor removed.
    """
    current = _read(folder / CURRENT)
    return None if current is None else folder / current.name


def _read(path: Path) -> Generation | None:
    try:
        plain = load_json(path.read_bytes())
        if not isinstance(plain, dict) or plain.pop("format", None) != FORMAT:
            raise RunFault(f"{path}: is not a {FORMAT}")
        if plain.pop("version", None) != FORMAT_VERSION:
            raise RunFault(f"{path}: has another version than {FORMAT_VERSION}, the one that this pgdecode reads")
        return record_from_json(Generation, plain)
    except FileNotFoundError:
        return None
    except RunFault:
        raise
    except ValueError as error:
        raise RunFault(f"{path}: is damaged: {error}") from None


def _write(path: Path, generation: Generation) -> None:
    plain = {"format": FORMAT, "version": FORMAT_VERSION, **vars(generation)}
    write_durably(path, json.dumps(plain, indent=1).encode() + b"\n")
