"""The manifest of a run: what it read and what it wrote. Creating it commits the run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from typing import Any, Literal

import pgdecode
from pgdecode.datasets.errors import RunFault
from pgdecode.datasets.file_digest import FileDigest
from pgdecode.protocol.json_document import load_json, record_from_json
from pgdecode.protocol.lsn import lsn_from_text, lsn_to_text

FORMAT = "pgdecode.Manifest"
FORMAT_VERSION = 3

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
        Name, rows and bytes of each file that had new payloads.
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


@dataclass(frozen=True)
class Manifest:
    """A manifest.

    Attributes
    ----------
    engine : {"python", "local", "spark"}
    what : sequence of str
        The outputs: "messages", "changes", tables as "schema.table". Empty if the caller of `save` wrote the output.
    options : mapping
        Options that change the result, as JSON values.
    input : Input
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
    number : int
        Of the run, from 1. This and the following are set by the commit.
    is_first : bool
        Whether the data set begins with this run: outputs of earlier runs do not belong to it.
    replaced : sequence of str
        With `is_first`: the output files that are removed.
    state : sequence of FileDigest
        The file of the state, and the files with payloads that it needs.
    pgdecode : str
        Version of the package.
    sha256 : str
        Of the manifest itself.
    """

    engine: Engine
    what: Sequence[str]
    options: Mapping[str, Any] = field(default_factory=dict)
    input: Input = field(default_factory=Input)
    rows: int = 0
    bad_rows: Mapping[str, int] = field(default_factory=dict)
    skipped: int = 0
    undecided: int = 0
    last_lsn: int = -1
    files: Sequence[OutputFile] = ()
    tasks: Sequence[TaskSummary] = ()
    renames: Sequence[Mapping[str, Any]] = ()
    number: int = 0
    is_first: bool = True
    replaced: Sequence[str] = ()
    state: Sequence[FileDigest] = ()
    pgdecode: str = ""
    sha256: str = ""

    def to_bytes(self) -> bytes:
        """Return the content of the file."""
        plain = {"format": FORMAT, "version": FORMAT_VERSION, **vars(self)}
        del plain["sha256"]
        plain["pgdecode"] = pgdecode.__version__
        plain["last_lsn"] = None if self.last_lsn < 0 else lsn_to_text(self.last_lsn)
        return json.dumps(plain, default=_fields, indent=1).encode() + b"\n"


def parse_manifest(content: bytes, path: object) -> Manifest:
    """Read the content of the manifest at `path`.

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
            seen = version if type(version) is int else type(version).__name__
            raise RunFault(
                f"{path}: has version {seen} of {FORMAT}, this pgdecode reads {FORMAT_VERSION}: decode its input again"
            )
        lsn = plain.pop("last_lsn", None)
        last_lsn = -1 if lsn is None else lsn_from_text(lsn)
        found = record_from_json(Manifest, plain, last_lsn=last_lsn, sha256=hashlib.sha256(content).hexdigest())
        names = [*found.replaced, *(item.name for item in (*found.files, *found.state))]
        # Files with these names are renamed and removed.
        if any(not name or name.startswith("/") or ".." in name.split("/") for name in names):
            raise RunFault(f"{path}: is damaged: a name of a file is not below the folder")
        return found
    except RunFault:
        raise
    except (ValueError, TypeError) as error:
        raise RunFault(f"{path}: is damaged: {error}") from None


def _fields(part: Any) -> dict[str, Any]:
    # `asdict` would copy the list of files, which takes twice as long as all of this.
    if not is_dataclass(part):
        raise TypeError(f"{type(part).__name__} is not a JSON value")
    return vars(part)
