"""The manifest of a run: what it read, what it wrote, and which run it continues. Writing it commits the run."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pgdecode
from pgdecode.protocol.json_document import load_json, record_from_json
from pgdecode.protocol.lsn import lsn_from_text, lsn_to_text
from pgdecode.runs.digested_file import FileDigest
from pgdecode.runs.errors import RunFault
from pgdecode.storage.durable import write_durably
from pgdecode.storage.object_path import FilePath, Location, ObjectPath, file_path, real_path
from pgdecode.storage.object_store import read_object

FORMAT = "pgdecode.Manifest"
FORMAT_VERSION = 2
MANIFEST = "_manifest.json"

Engine = Literal["python", "local", "spark"]


@dataclass(frozen=True)
class OutputFile(FileDigest):
    """A file of the output. `input` names the files and rows that it was decoded from, if the engine knows them."""

    input: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class TaskSummary:
    """What a task did.

    Attributes
    ----------
    task : int
        Its number.
    rows, bad_rows : int
        Rows that it has written to all outputs, and rows with an error, written or left out.
    decode_seconds, io_seconds : float
        How long it decoded; and how long it read and decompressed the input, and encoded and wrote the output.
    """

    task: int
    rows: int
    bad_rows: int
    decode_seconds: float
    io_seconds: float


@dataclass(frozen=True)
class Input:
    """The payloads of a run.

    Attributes
    ----------
    rows : int
    first_position, last_position : int or None
        Of the payloads; None without payloads.
    is_counted : bool
        Whether positions are numbers of payloads, counted across all runs, because the payloads had no positions.
    source : dict or None
        Where they were captured, from the footers of the files: system, timeline, database, slot, publications.
    files : sequence of dict
        Path, rows and bytes of each file.
    gaps : sequence of dict
        Gaps that were accepted, at the capture and now: the file, the LSNs before and after the gap, and the reason.
    """

    rows: int = 0
    first_position: int | None = None
    last_position: int | None = None
    is_counted: bool = False
    source: Mapping[str, Any] | None = None
    files: Sequence[Mapping[str, Any]] = ()
    gaps: Sequence[Mapping[str, str]] = ()

    @property
    def is_dense(self) -> bool:
        """Whether each position from the first to the last occurs, and there are some."""
        if self.first_position is None or self.last_position is None or self.rows < 2:
            return False
        return self.last_position - self.first_position + 1 == self.rows


@dataclass(frozen=True)
class Previous:
    """The run before. `path` is relative to the folder of this run, `manifest` is the SHA-256 of its manifest."""

    path: str
    manifest: str


@dataclass(frozen=True)
class Manifest:
    """A manifest.

    Attributes
    ----------
    engine : {"python", "local", "spark"}
    what : sequence of str
        The outputs: "messages", "changes", tables as "schema.table".
    options : mapping
        Options that change the result, as JSON values.
    input : Input
    previous : Previous or None
        None if the run did not continue another one.
    rows : int
        Of all output files.
    bad_rows : mapping
        Number of rows with an error, written or left out, by error code.
    skipped : int
        Number of transactions that this run left out because their beginning is missing.
    undecided : int
        Number of transactions without an outcome at the end. Their changes are in the state.
    last_lsn : int
        The greatest commit LSN so far; -1 without a commit.
    files : sequence of OutputFile
    tasks : sequence of TaskSummary
        Empty if the engine has no tasks, or does not know what they did.
    renames : sequence of mapping
        The columns that were renamed in this run's input: `table`, `position` of the Relation message with the new
        name, `old` and `new` name, and whether it was `stated` by the caller or found by the order of the columns.
    state : sequence of FileDigest
        The files in `_state`; empty for a run without a state, which no run can continue.
    pgdecode : str
        Version of the package, once it is written.
    sha256 : str
        Of the manifest itself, once it is written.
    """

    engine: Engine
    what: Sequence[str]
    options: Mapping[str, Any] = field(default_factory=dict)
    input: Input = field(default_factory=Input)
    previous: Previous | None = None
    rows: int = 0
    bad_rows: Mapping[str, int] = field(default_factory=dict)
    skipped: int = 0
    undecided: int = 0
    last_lsn: int = -1
    files: Sequence[OutputFile] = ()
    tasks: Sequence[TaskSummary] = ()
    renames: Sequence[Mapping[str, Any]] = ()
    state: Sequence[FileDigest] = ()
    pgdecode: str = ""
    sha256: str = ""


def write_manifest(folder: Path, manifest: Manifest) -> Manifest:
    """Write `_manifest.json` into the folder of a run, atomically, and return the manifest with its SHA-256.

    All files that it names must be complete.
    """
    content = manifest_bytes(manifest)
    write_durably(folder / MANIFEST, content)
    return replace(manifest, pgdecode=pgdecode.__version__, sha256=hashlib.sha256(content).hexdigest())


def manifest_bytes(manifest: Manifest) -> bytes:
    """Return the content of `_manifest.json`."""
    plain = {"format": FORMAT, "version": FORMAT_VERSION, **vars(manifest)}
    del plain["sha256"]
    plain["pgdecode"] = pgdecode.__version__
    plain["last_lsn"] = None if manifest.last_lsn < 0 else lsn_to_text(manifest.last_lsn)
    return json.dumps(plain, default=_fields, indent=1).encode() + b"\n"


def _fields(part: Any) -> dict[str, Any]:
    # `asdict` would copy the list of files, which takes twice as long as all of this.
    if not is_dataclass(part):
        raise TypeError(f"{type(part).__name__} is not a JSON value")
    return vars(part)


def read_manifest(folder: Location, storage_options: Mapping[str, Any] | None = None) -> Manifest:
    """Read the manifest of a run, which lists its files.

    Parameters
    ----------
    folder : path or URI
        Of the run.
    storage_options : mapping, optional
        How to connect to an object store, as in `spark_udfs.decode_files`.

    Returns
    -------
    Manifest
        The names of its files are relative to the folder.

    Raises
    ------
    RunFault
        If there is no manifest, or it is damaged or of another version.
    AccessDenied, StoreUnreachable
        If an object store refuses the request, or does not answer.
    """
    path = file_path(folder, storage_options) / MANIFEST
    content = _content(path)
    if content is None:
        raise RunFault(f"{path.parent}: has no {MANIFEST}: it is not the folder of a complete run")
    return parse_manifest(content, path)


def _content(path: FilePath) -> bytes | None:
    if isinstance(path, ObjectPath):
        found = read_object(path)
        return None if found is None else found[0]
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def parse_manifest(content: bytes, path: object) -> Manifest:
    """Read the content of the `_manifest.json` at `path`.

    Raises
    ------
    RunFault
        If it is damaged or of another version.
    """
    try:
        plain = load_json(content)
        if not isinstance(plain, dict) or plain.pop("format", None) != FORMAT:
            raise RunFault(f"{path}: is not a {FORMAT}")
        version = plain.pop("version", None)
        if version != FORMAT_VERSION:
            raise RunFault(
                f"{path}: has version {_number(version)} of {FORMAT}, this pgdecode reads {FORMAT_VERSION}: decode its "
                "input again"
            )
        lsn = plain.pop("last_lsn", None)
        last_lsn = -1 if lsn is None else lsn_from_text(lsn)
        return record_from_json(Manifest, plain, last_lsn=last_lsn, sha256=hashlib.sha256(content).hexdigest())
    except RunFault:
        raise
    except (ValueError, TypeError) as error:
        raise RunFault(f"{path}: is damaged: {error}") from None


def previous_of(folder: Path, previous: Path, manifest: Manifest) -> Previous:
    """Make the reference from a run in `folder` to the run in the folder `previous`, which has `manifest`."""
    return Previous(Path(os.path.relpath(real_path(previous), real_path(folder))).as_posix(), manifest.sha256)


def _number(value: Any) -> str:
    return str(value) if type(value) is int else type(value).__name__
