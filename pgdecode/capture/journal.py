"""The log of a capture's folder: its files, and the LSN up to which everything is recorded."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pgdecode.capture.errors import RequestError, StoppedError
from pgdecode.capture.server import Identity
from pgdecode.files.payload_file import CAPTURE_KEY
from pgdecode.protocol.lsn import lsn_from_text, lsn_to_text

FORMAT_VERSION = 1
LOG_NAME = "_capture.jsonl"
LOCK_NAME = "_capture.lock"
# After this many positions of an idle slot, the log is rewritten without the obsolete ones.
_MOST_POSITIONS = 4096
_FILE_NAME = re.compile(r"\d{20}\.parquet")
_PARTIAL_NAME = re.compile(r"\.\d{20}\.parquet\.partial")


def file_name(first_seq: int) -> str:
    """Make the name of a file. Names sort in the order of messages."""
    return f"{first_seq:020d}.parquet"


def partial_name(first_seq: int) -> str:
    """Make the name of a file that is being written. Readers ignore hidden files."""
    return f".{file_name(first_seq)}.partial"


@dataclass(frozen=True)
class FileEntry:
    """A complete file.

    Attributes
    ----------
    name : str
    rows, bytes : int
    first_seq, last_seq : int
    first_lsn, last_lsn : int
        LSNs of its first and last message.
    recorded : int
        LSN up to which this file and the earlier files have everything.
    session : int
        Number of the session that received it.
    open_streams, prepared : int
        Number of streamed and number of prepared transactions without an outcome at its end.
    sealed_us : int
        Time of its completion, in microseconds since 1970.
    """

    name: str
    rows: int
    bytes: int
    first_seq: int
    last_seq: int
    first_lsn: int
    last_lsn: int
    recorded: int
    session: int
    open_streams: int
    prepared: int
    sealed_us: int

    def as_dict(self) -> dict[str, Any]:
        """Convert the entry to JSON values, with LSNs in PostgreSQL's text form."""
        lsns = {name: lsn_to_text(getattr(self, name)) for name in ("first_lsn", "last_lsn", "recorded")}
        return {**vars(self), **lsns}

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> FileEntry:
        """Convert back what `as_dict` returned."""
        lsns = {name: lsn_from_text(found[name]) for name in ("first_lsn", "last_lsn", "recorded")}
        names = cls.__dataclass_fields__
        return cls(**{name: lsns.get(name, found[name]) for name in names})


@dataclass
class Contents:
    """The contents of a log.

    Attributes
    ----------
    origin : dict or None
        The server, slot and publications of the folder, from the first line.
    files : dict of FileEntry by name
        Files that were not deleted.
    recorded : int or None
        LSN up to which the files have everything that belongs in a file.
    next_seq : int
        Number of the next message.
    sessions : int
        Number of sessions so far.
    gaps : list
        Gaps that were accepted.
    publication_changes : list
        From which LSN the folder has other publications than before.
    deleted_files, deleted_bytes : int
        Number and size of the files that a retention rule has deleted.
    """

    origin: dict[str, Any] | None = None
    files: dict[str, FileEntry] = field(default_factory=dict)
    recorded: int | None = None
    next_seq: int = 0
    sessions: int = 0
    gaps: list[dict[str, Any]] = field(default_factory=list)
    publication_changes: list[dict[str, Any]] = field(default_factory=list)
    deleted_files: int = 0
    deleted_bytes: int = 0

    def take(self, line: dict[str, Any]) -> None:
        """Apply a line of the log."""
        event = line["event"]
        if event == "begin":
            if line["version"] > FORMAT_VERSION:
                raise RequestError(f"{LOG_NAME} has version {line['version']}, this pgdecode reads {FORMAT_VERSION}")
            self.origin = line
            self.recorded = lsn_from_text(line["recorded"])
            self.next_seq = max(self.next_seq, line.get("next_seq", 0))
            self.sessions = max(self.sessions, line.get("sessions", 0))
            self.deleted_files, self.deleted_bytes = line.get("deleted", (0, 0))
        elif event == "file":
            entry = FileEntry.from_dict(line)
            self.files[entry.name] = entry
            self.recorded = entry.recorded
            self.next_seq = max(self.next_seq, entry.last_seq + 1)
            self.sessions = max(self.sessions, entry.session)
        elif event == "position":
            self.recorded = lsn_from_text(line["recorded"])
        elif event == "session":
            self.sessions = max(self.sessions, line["session"])
        elif event == "gap":
            self.gaps.append(line)
            self.origin = {**(self.origin or {}), **line["server"]}
            self.recorded = lsn_from_text(line["to"])
        elif event == "publications":
            self.publication_changes.append(line)
            self.origin = {**(self.origin or {}), "publications": line["publications"]}
        elif event == "deleted":
            gone = self.files.pop(line["name"], None)
            self.deleted_files += 1
            self.deleted_bytes += gone.bytes if gone else 0


class Journal:
    """The log of a folder, locked by one capture at a time.

    Parameters
    ----------
    folder : Path
        Created if it does not exist.

    Raises
    ------
    RequestError
        If the folder cannot be written to, another capture is writing to it, or it contains other Parquet files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(exist_ok=True)
            self._lock = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise RequestError(f"{folder}: cannot be written to: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise RequestError(f"{folder}: another capture writes to this folder") from error
        self._file: int | None = None
        self._positions = 0
        try:
            self._open()
        except OSError as error:
            self.close()
            raise RequestError(f"{folder}: cannot be written to: {error.strerror or error}") from error
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        self.contents = read_log(self.folder)
        unlogged = self._repair()
        self._rewrite([*self._lines(), *({"event": "file", **entry.as_dict()} for entry in unlogged)])
        for entry in unlogged:
            self.contents.take({"event": "file", **entry.as_dict()})

    def _repair(self) -> list[FileEntry]:
        """Delete incomplete files, and find the complete files that the log does not have."""
        unlogged = []
        names = sorted(os.listdir(self.folder))
        for name in set(self.contents.files).difference(names):
            self.contents.take({"event": "deleted", "name": name})
        for name in names:
            if _PARTIAL_NAME.fullmatch(name):
                (self.folder / name).unlink()
            elif _FILE_NAME.fullmatch(name):
                # A file with an earlier number was deleted, and restored by a user.
                if name not in self.contents.files and int(name[:20]) >= self.contents.next_seq:
                    unlogged.append(entry_of(self.folder / name))
            elif name.endswith(".parquet"):
                raise RequestError(f"{self.folder}: contains {name}, which no capture has written")
        if self.contents.origin is None and unlogged:
            # The log is lost. The footers have its contents, except gaps and the positions of an idle slot.
            self.contents.origin = metadata_of(self.folder / unlogged[-1].name)["origin"]
            self.contents.recorded = unlogged[-1].recorded
        return unlogged

    def _lines(self) -> list[dict[str, Any]]:
        """Make the lines of the log, without obsolete ones."""
        contents = self.contents
        if contents.origin is None:
            return []
        begin = {
            **{name: contents.origin[name] for name in ("system", "timeline", "database", "slot", "publications")},
            "event": "begin",
            "version": FORMAT_VERSION,
            "recorded": lsn_to_text(contents.recorded or 0),
            "next_seq": contents.next_seq,
            "sessions": contents.sessions,
            "deleted": [contents.deleted_files, contents.deleted_bytes],
        }
        events = sorted([*contents.gaps, *contents.publication_changes], key=lambda line: str(line.get("time")))
        lines = [begin, *events, *({"event": "file", **item.as_dict()} for item in contents.files.values())]
        # The last line sets the recorded LSN, because lines of files and gaps set it too.
        return [*lines, {"event": "position", "recorded": lsn_to_text(contents.recorded or 0)}]

    def _rewrite(self, lines: list[dict[str, Any]]) -> None:
        target = self.folder / LOG_NAME
        hidden = self.folder / f".{LOG_NAME}.partial"
        try:
            with open(hidden, "w", encoding="utf-8") as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)
                file.flush()
                os.fsync(file.fileno())
            hidden.replace(target)
        except OSError:
            hidden.unlink(missing_ok=True)
            raise
        sync_folder(self.folder)
        if self._file is not None:
            os.close(self._file)
        self._file = os.open(target, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        self._positions = 0

    def append(self, event: str, **values: Any) -> None:
        """Add a line. It is on disk when this returns.

        Raises
        ------
        StoppedError
            If it cannot be written.
        """
        line = {"event": event, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **values}
        content = (json.dumps(line) + "\n").encode()
        assert self._file is not None
        try:
            size = os.fstat(self._file).st_size
            try:
                written = 0
                while written < len(content):
                    written += os.write(self._file, content[written:])
                os.fsync(self._file)
            except OSError:
                # Readers stop at an incomplete line, so it would hide later lines.
                with contextlib.suppress(OSError):
                    os.ftruncate(self._file, size)
                raise
            self.contents.take(line)
            self._positions += event == "position"
            if self._positions >= _MOST_POSITIONS:
                self._rewrite(self._lines())
        except OSError as error:
            raise StoppedError(f"{self.folder / LOG_NAME}: cannot be written: {error.strerror or error}") from error

    def begin(self, identity: Identity, slot: str, publications: tuple[str, ...], recorded: int) -> None:
        """Write the origin of the folder and its first LSN."""
        origin = origin_of(identity, slot, publications)
        self.append("begin", version=FORMAT_VERSION, **origin, recorded=lsn_to_text(recorded))

    def add_file(self, entry: FileEntry) -> None:
        """Add a complete file that is in the folder."""
        self.append("file", **entry.as_dict())

    def add_position(self, recorded: int) -> None:
        """Record an LSN up to which nothing is missing."""
        self.append("position", recorded=lsn_to_text(recorded))

    def close(self) -> None:
        """Close the log and unlock the folder."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        os.close(self._lock)


def origin_of(identity: Identity, slot: str, publications: tuple[str, ...]) -> dict[str, Any]:
    """Make the description of the server, slot and publications of a folder."""
    return {
        "system": identity.system,
        "timeline": identity.timeline,
        "database": identity.database,
        "slot": slot,
        "publications": list(publications),
    }


def read_log(folder: Path) -> Contents:
    """Read a folder's log up to the first incomplete line."""
    contents = Contents()
    try:
        content = (folder / LOG_NAME).read_bytes()
    except FileNotFoundError:
        return contents
    for line in content.splitlines(keepends=True):
        try:
            found = json.loads(line) if line.endswith(b"\n") else None
        except ValueError:
            found = None
        if not isinstance(found, dict):
            # A crash can damage only the last line. Files that are missing in the log are found by their footers.
            break
        contents.take(found)
    return contents


def metadata_of(path: Path) -> dict[str, Any]:
    """Read the metadata that a capture wrote into a file's footer.

    Raises
    ------
    StoppedError
        If it is not a file of a capture.
    """
    try:
        found = pq.read_metadata(path).metadata or {}
        metadata: dict[str, Any] = json.loads(found[CAPTURE_KEY])
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        raise StoppedError(f"{path}: not a complete file of a capture") from error
    return metadata


def entry_of(path: Path) -> FileEntry:
    """Make a log entry from a file's footer."""
    return FileEntry.from_dict({**metadata_of(path)["file"], "name": path.name, "bytes": path.stat().st_size})


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
