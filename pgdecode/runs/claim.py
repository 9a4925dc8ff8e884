"""A claim on the state of a run: only one run continues it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pgdecode.protocol.json_document import load_json, record_from_json
from pgdecode.runs.errors import RunError, RunFault
from pgdecode.runs.manifest import Manifest, read_manifest
from pgdecode.runs.payload_ranges import STATE
from pgdecode.storage.durable import locked, write_durably
from pgdecode.storage.object_path import real_path

LOCK = "_lock"
NEXT = "_next.json"


@dataclass(frozen=True)
class Next:
    """The run that has claimed a state. `path` of its folder is relative to the folder with the state."""

    path: str


@contextmanager
def claimed(folder: Path, manifest: Manifest, target: Path) -> Iterator[None]:
    """Claim the state of a run for a run that continues it. The claim ends with the block, or with the process.

    Parameters
    ----------
    folder : Path
        Of the run to continue.
    manifest : Manifest
        Of that run.
    target : Path
        The folder of the run that continues it.

    Raises
    ------
    RunError
        If another run is continuing it, or has continued it to another folder.
    RunFault
        If the state is missing.
    """
    if not (folder / STATE).is_dir():
        raise RunFault(f"{folder}: has no {STATE}: the run was removed, or has no state")
    with locked(folder / STATE / LOCK, RunError(f"{folder}: another run is continuing it now")):
        other = next_of(folder)
        if other is not None and real_path(other) != real_path(target) and _continues(other, manifest):
            raise RunError(
                f"{folder}: was continued already, by {other}: continue from there, or remove that folder to continue "
                "from here again"
            )
        path = os.path.relpath(real_path(target), real_path(folder))
        write_durably(folder / STATE / NEXT, json.dumps(vars(Next(Path(path).as_posix()))).encode() + b"\n")
        yield


def next_of(folder: Path) -> Path | None:
    """Return the folder of the run that has claimed the state of a run last; None if no run has."""
    try:
        plain = load_json((folder / STATE / NEXT).read_bytes())
        return Path(os.path.normpath(folder / record_from_json(Next, plain).path))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise RunFault(f"{folder / STATE / NEXT}: is damaged: {error}") from None


def _continues(folder: Path, manifest: Manifest) -> bool:
    """Whether a folder has a complete run that continues the run with `manifest`."""
    try:
        other = read_manifest(folder)
    except RunFault:
        return False
    return other.previous is not None and other.previous.manifest == manifest.sha256
