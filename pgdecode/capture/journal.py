"""The log of a capture's folder: its files, and the LSN up to which everything is recorded."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from pgdecode.capture.errors import FolderBusyError, RequestError, StoppedError, reported
from pgdecode.capture.frames import CopiedTable
from pgdecode.capture.options import PluginOptions
from pgdecode.capture.server import Identity
from pgdecode.files.payload_file import CAPTURE_KEY
from pgdecode.protocol.lsn import lsn_from_text, lsn_to_text
from pgdecode.storage.durable import locked, make_folders, write_durably
from pgdecode.storage.parquet_input import read_metadata

FORMAT_VERSION = 1
_ORIGIN = ("system", "timeline", "database", "slot", "publications", "encoding")
LOG_NAME = "_capture.jsonl"
LOCK_NAME = "_capture.lock"
# So many obsolete lines stay, such as positions of an idle slot, besides as many as there are others. So the log is
# rewritten rarely, also if it is long.
_MOST_OBSOLETE = 256
_FILE_NAME = re.compile(r"\d{20}\.parquet")
_PARTIAL_NAME = re.compile(r"\.\d{20}\.parquet\.partial|\._capture\.jsonl\..*partial")


def file_name(first_seq: int) -> str:
    """Make the name of a file. Names sort in the order of messages."""
    return f"{first_seq:020d}.parquet"


def partial_name(first_seq: int) -> str:
    """Make the name of a file that is being written. Readers ignore hidden files."""
    return f".{file_name(first_seq)}.partial"


@dataclass(frozen=True, slots=True)
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
    copies : tuple of CopiedTable
        The tables whose rows it has.
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
    copies: tuple[CopiedTable, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Convert the entry to JSON values, with LSNs in PostgreSQL's text form."""
        lsns = {name: lsn_to_text(getattr(self, name)) for name in ("first_lsn", "last_lsn", "recorded")}
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "copies"}
        copies = {"copies": [item.as_dict() for item in self.copies]} if self.copies else {}
        return {**plain, **lsns, **copies}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> FileEntry:
        """Convert back what `as_dict` returned.

        Raises
        ------
        KeyError, TypeError, ValueError
            If a value is missing or wrong.
        """
        lsns = {name: lsn_from_text(plain[name]) for name in ("first_lsn", "last_lsn", "recorded")}
        names = [name for name in cls.__dataclass_fields__ if name not in ("name", "copies", *lsns)]
        if not _FILE_NAME.fullmatch(plain["name"]):
            raise ValueError("the name is not that of a captured file")
        copies = tuple(map(CopiedTable.from_dict, plain.get("copies", ())))
        return cls(plain["name"], **lsns, **{name: _whole(plain[name]) for name in names}, copies=copies)


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
    beginning : dict or None
        Where the folder begins: the LSN, whether the slot had been read before, and the first file once there is one.
    session_start : int
        LSN at which the last session began.
    gaps : list
        Gaps that were accepted, each with the name of the file after it once there is one.
    copies : dict of (CopiedTable, int) by OID
        The last copy of each table after the last gap, with the first number of its file, which may be deleted.
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
    beginning: dict[str, Any] | None = None
    session_start: int = 0
    gaps: list[dict[str, Any]] = field(default_factory=list)
    copies: dict[int, tuple[CopiedTable, int]] = field(default_factory=dict)
    publication_changes: list[dict[str, Any]] = field(default_factory=list)
    deleted_files: int = 0
    deleted_bytes: int = 0

    @property
    def encoding(self) -> str:
        """client_encoding of the sessions."""
        return str((self.origin or {}).get("encoding", "UTF8"))

    def take(self, line: dict[str, Any]) -> None:
        """Apply a line of the log.

        Raises
        ------
        KeyError, TypeError, ValueError
            If a value is missing or wrong.
        """
        event = line["event"]
        if (event == "begin") != (self.origin is None):
            raise ValueError("the first line, and no other one, is the beginning")
        if event == "begin":
            if _whole(line["version"]) > FORMAT_VERSION:
                raise RequestError(f"{LOG_NAME} has version {line['version']}, this pgdecode reads {FORMAT_VERSION}")
            self.origin = checked_origin({name: line[name] for name in _ORIGIN if name in line})
            self.recorded = lsn_from_text(line["recorded"])
            self.next_seq = _whole(line.get("next_seq", 0))
            self.sessions = _whole(line.get("sessions", 0))
            self.session_start = lsn_from_text(line.get("session_start", "0/0"))
            self.beginning = None if line.get("beginning") is None else dict(line["beginning"])
            if self.beginning is not None:
                lsn_from_text(self.beginning["lsn"])
                self.beginning["slot_was_read"] = bool(self.beginning["slot_was_read"])
            self.deleted_files, self.deleted_bytes = map(_whole, line.get("deleted", (0, 0)))
            for item in line.get("copies", ()):
                self._add_copies([CopiedTable.from_dict(item)], _whole(item["first_seq"]))
        elif event == "file":
            entry = FileEntry.from_dict(line)
            for before in self.before_next_file():
                # A log that was written anew has all gaps before all files.
                if entry.first_seq >= before.get("next_seq", 0):
                    before["file"] = entry.name
            self.files[entry.name] = entry
            self._add_copies(entry.copies, entry.first_seq)
            self.recorded = entry.recorded
            self.next_seq = max(self.next_seq, entry.last_seq + 1)
            self.sessions = max(self.sessions, entry.session)
        elif event == "position":
            self.recorded = lsn_from_text(line["recorded"])
        elif event == "session":
            self.sessions = max(self.sessions, _whole(line["session"]))
            self.session_start = lsn_from_text(line["start"])
            # A standby may have been promoted while it was captured.
            self.origin = checked_origin({**(self.origin or {}), "timeline": line.get("timeline", self.timeline)})
        elif event == "gap":
            lsn_from_text(line["from"])
            _whole(line.get("next_seq", 0))
            self.origin = checked_origin({**(self.origin or {}), **line["server"]})
            self.recorded = lsn_from_text(line["to"])
            self.gaps.append(line)
            self.copies = {oid: item for oid, item in self.copies.items() if item[1] >= self._gap_seq}
        elif event == "encoding":
            self.origin = checked_origin({**(self.origin or {}), "encoding": line["encoding"]})
        elif event == "publications":
            self.origin = checked_origin({**(self.origin or {}), "publications": line["publications"]})
            self.publication_changes.append(line)
        elif event == "deleted":
            gone = self.files.pop(line["name"], None)
            self.deleted_files += 1
            self.deleted_bytes += gone.bytes if gone else 0
        else:
            raise ValueError("there is no such event")

    @property
    def _gap_seq(self) -> int:
        """Number of the first message after the last gap."""
        return max((_whole(gap.get("next_seq", 0)) for gap in self.gaps if gap["from"] != gap["to"]), default=0)

    def _add_copies(self, copies: Iterable[CopiedTable], first_seq: int) -> None:
        # Changes are missing since an earlier copy.
        if first_seq >= self._gap_seq:
            self.copies |= {item.oid: (item, first_seq) for item in copies}

    @property
    def timeline(self) -> int:
        """The timeline of the folder; 0 before its beginning."""
        return 0 if self.origin is None else int(self.origin["timeline"])

    def before_next_file(self) -> list[dict[str, Any]]:
        """List the beginning of the folder and the gaps after which no file has been completed."""
        description = [*([] if self.beginning is None else [self.beginning]), *self.gaps]
        return [item for item in description if "file" not in item]


class Log:
    """The log of a folder. What was read is not parsed again, as long as the file still begins with it.

    Attributes
    ----------
    contents : Contents
    n_lines : int
        Number of lines that the contents are from.
    is_torn : bool
        Whether an incomplete line follows them.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / LOG_NAME
        self._clear()

    def _clear(self) -> None:
        self.contents, self.n_lines, self.is_torn = Contents(), 0, False
        # Of the lines that the contents are from.
        self._n_bytes, self._digest = 0, hashlib.sha256()

    def read(self) -> Contents:
        """Read the log up to an incomplete last line.

        Raises
        ------
        RequestError
            If the log is damaged, or of another version.
        """
        with reported(self._path, "cannot be read", RequestError):
            try:
                content = self._path.read_bytes()
            except FileNotFoundError:
                self._clear()
                return self.contents
        begins_same = hashlib.sha256(memoryview(content)[: self._n_bytes]).digest() == self._digest.digest()
        if not (self.n_lines and begins_same):
            self._clear()
        try:
            self._take_lines(content[self._n_bytes :].split(b"\n"))
        except RequestError:
            self._clear()
            raise
        self.is_torn = self._n_bytes < len(content)
        return self.contents

    def _take_lines(self, lines: list[bytes]) -> None:
        # A crash can damage only the last line, and not the first one, which is written under another name. Files that
        # are missing in the log are found by their footers.
        last = self.n_lines + len(lines) - (1 if lines[-1] else 2)
        for line in lines[:-1] or ([] if self.n_lines else [b""]):
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                event = None
                if self.n_lines == last > 0:
                    break
            try:
                self.add(line + b"\n", event)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise RequestError(
                    f"{self._path}: line {self.n_lines + 1} is damaged: restore the log from a copy; without the log, "
                    "a capture goes on from the footers of the files in the folder, and begins anew if there are none"
                ) from error

    def add(self, content: bytes, line: dict[str, Any]) -> None:
        """Add a line that the file has now."""
        self.contents.take(line)
        self._digest.update(content)
        self._n_bytes += len(content)
        self.n_lines += 1

    def set_written(self, content: bytes, n_lines: int) -> None:
        """Take note that the file was written anew, with the same contents."""
        self._digest, self._n_bytes = hashlib.sha256(content), len(content)
        self.n_lines, self.is_torn = n_lines, False


class Journal:
    """The log of a folder, locked by one capture at a time.

    Parameters
    ----------
    folder : Path
        Created if it does not exist, with the folders above it.
    log : Log, optional
        As an earlier journal has left it.

    Raises
    ------
    RequestError
        If the folder cannot be written to, another capture is writing to it, or it contains other Parquet files.
    """

    def __init__(self, folder: Path, log: Log | None = None) -> None:
        self.folder = folder
        self._file: int | None = None
        self._log = log or Log(folder)
        taken = FolderBusyError(f"{folder}: another capture writes to this folder")
        with reported(folder, "cannot be written to", RequestError), contextlib.ExitStack() as closing:
            self._made = make_folders(folder)
            closing.enter_context(locked(folder / LOCK_NAME, taken))
            closing.callback(self._close_log)
            self.contents = self._log.read()
            if self._repair() or self._log.is_torn:
                self._rewrite(self._lines())
            elif self.contents.origin is not None:
                self._open()
                if not os.access(folder, os.W_OK):
                    # Files could not be written later.
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            self._closing = closing.pop_all()

    def _repair(self) -> bool:
        """Delete incomplete files, and make the contents those of the folder. Return whether they have changed."""
        unlogged = []
        names, known = {*os.listdir(self.folder)}, self.contents.files.keys()
        deleted = known - names
        for name in deleted:
            self.contents.take({"event": "deleted", "name": name})
        for name in sorted(names - known):
            if _PARTIAL_NAME.fullmatch(name):
                (self.folder / name).unlink()
            elif _FILE_NAME.fullmatch(name):
                # A file with an earlier number was deleted, and restored by a user.
                if int(name[:20]) >= self.contents.next_seq:
                    unlogged.append(entry_of(self.folder / name))
            elif name.endswith(".parquet"):
                raise RequestError(f"{self.folder}: contains {name}, which no capture has written")
        if self.contents.origin is None and unlogged:
            # The log is lost. The footers have its contents, except the positions of an idle slot.
            for entry in unlogged:
                metadata = metadata_of(self.folder / entry.name)
                settings = metadata.get("settings")
                encoding = settings.get("client_encoding", "UTF8") if isinstance(settings, dict) else "UTF8"
                self.contents.origin = {**metadata["origin"], "encoding": encoding}
                self.contents.gaps += [{**gap, "file": entry.name} for gap in metadata.get("gaps", ())]
            self.contents.recorded = unlogged[-1].recorded
        for entry in unlogged:
            self.contents.take({"event": "file", **entry.as_dict()})
        return bool(deleted or unlogged)

    def _lines(self) -> list[dict[str, Any]]:
        """Make the lines of the log, without obsolete ones."""
        contents = self.contents
        if contents.origin is None:
            return []
        begin = {
            **contents.origin,
            "encoding": contents.encoding,
            "event": "begin",
            "version": FORMAT_VERSION,
            "recorded": lsn_to_text(contents.recorded or 0),
            "next_seq": contents.next_seq,
            "sessions": contents.sessions,
            "session_start": lsn_to_text(contents.session_start),
            "beginning": contents.beginning,
            "deleted": [contents.deleted_files, contents.deleted_bytes],
            "copies": [{**item.as_dict(), "first_seq": first_seq} for item, first_seq in contents.copies.values()],
        }
        gaps = [{**gap, "event": "gap", "server": gap.get("server", {})} for gap in contents.gaps]
        events = sorted([*gaps, *contents.publication_changes], key=lambda line: str(line.get("time")))
        lines = [begin, *events, *({"event": "file", **item.as_dict()} for item in contents.files.values())]
        # The last line sets the recorded LSN, because lines of files and gaps set it too.
        return [*lines, {"event": "position", "recorded": lsn_to_text(contents.recorded or 0)}]

    def _rewrite(self, lines: list[dict[str, Any]]) -> None:
        content = "".join(json.dumps(line) + "\n" for line in lines).encode()
        write_durably(self.folder / LOG_NAME, content)
        self._log.set_written(content, len(lines))
        self._open()

    def _open(self) -> None:
        if self._file is not None:
            os.close(self._file)
        self._file = os.open(self.folder / LOG_NAME, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

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
        with reported(self.folder / LOG_NAME):
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
            self._log.add(content, line)
            contents = self.contents
            n_needed = 2 + len(contents.files) + len(contents.gaps) + len(contents.publication_changes)
            if self._log.n_lines > 2 * n_needed + _MOST_OBSOLETE:
                self._rewrite(self._lines())

    def begin(
        self,
        identity: Identity,
        slot: str,
        publications: tuple[str, ...],
        recorded: int,
        encoding: str = "UTF8",
        *,
        was_read: bool = False,
    ) -> None:
        """Write the origin of the folder, its first LSN and its encoding. They are on disk, or there is no log.

        Raises
        ------
        StoppedError
            If they cannot be written.
        """
        beginning = {"lsn": lsn_to_text(recorded), "slot_was_read": was_read}
        origin = origin_of(identity, slot, publications)
        line = {
            "event": "begin",
            "version": FORMAT_VERSION,
            **origin,
            "encoding": encoding,
            "recorded": lsn_to_text(recorded),
        }
        self.contents.take({**line, "beginning": beginning})
        with reported(self.folder / LOG_NAME):
            self._rewrite(self._lines()[:1])

    def before_next_file(self) -> dict[str, Any]:
        """Describe for a footer what comes before a file: the beginning of the folder, and accepted gaps."""
        description: dict[str, Any] = {}
        for item in self.contents.before_next_file():
            if item is self.contents.beginning:
                description["beginning"] = dict(item)
            elif item["from"] != item["to"]:
                gap = {name: item.get(name) for name in ("time", "from", "to", "reason")}
                description.setdefault("gaps", []).append(gap)
        return description

    def add_gap(self, recorded: int, start: int, reason: str, server: dict[str, Any]) -> None:
        """Record that changes between two LSNs are missing, and the origin of what comes next."""
        lsns = {"from": lsn_to_text(recorded), "to": lsn_to_text(start)}
        self.append("gap", **lsns, reason=reason, server=server, next_seq=self.contents.next_seq)

    def add_file(self, entry: FileEntry) -> None:
        """Add a complete file that is in the folder."""
        self.append("file", **entry.as_dict())

    def add_position(self, recorded: int) -> None:
        """Record an LSN up to which nothing is missing."""
        self.append("position", recorded=lsn_to_text(recorded))

    def close(self) -> None:
        """Close the log and unlock the folder. A folder that was created for nothing is removed."""
        self._closing.close()

    def _close_log(self) -> None:
        if self._file is not None:
            os.close(self._file)
        elif self._made:
            # Nothing has begun. A folder stays if another program has written to it.
            with contextlib.suppress(OSError):
                (self.folder / LOCK_NAME).unlink()
                for folder in self._made:
                    folder.rmdir()


def origin_of(identity: Identity, slot: str, publications: tuple[str, ...]) -> dict[str, Any]:
    """Make the description of the server, slot and publications of a folder."""
    return {
        "system": identity.system,
        "timeline": identity.timeline,
        "database": identity.database,
        "slot": slot,
        "publications": list(publications),
    }


def checked_origin(origin: dict[str, Any]) -> dict[str, Any]:
    """Check the description of the origin of a folder.

    Raises
    ------
    KeyError, TypeError, ValueError
        If a value is missing or wrong.
    """
    _whole(origin["timeline"])
    encoding = origin.get("encoding", "UTF8")
    texts = [origin["system"], origin["database"], origin["slot"], encoding, *origin["publications"]]
    if not isinstance(origin["publications"], list) or not all(isinstance(text, str) for text in texts):
        raise TypeError("the origin is not text")
    return origin


def _whole(value: Any) -> int:
    """Check that a value is a whole number that is not negative."""
    if type(value) is not int or value < 0:
        raise TypeError("not a whole number")
    return value


def read_log(folder: Path) -> Contents:
    """Read a folder's log, as `Log.read`."""
    return Log(folder).read()


def metadata_of(path: Path) -> dict[str, Any]:
    """Read the metadata that a capture wrote into a file's footer.

    Raises
    ------
    StoppedError
        If it is not a file of a capture.
    """
    try:
        entries = read_metadata(path).metadata or {}
        metadata: dict[str, Any] = json.loads(entries[CAPTURE_KEY])
        checked_origin(metadata["origin"])
        for gap in metadata.get("gaps", ()):
            lsn_from_text(gap["from"])
            lsn_from_text(gap["to"])
        if not all(isinstance(gid, str) for gid in metadata.get("prepared", ())):
            raise TypeError("prepared has other things than GIDs")
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError, RecursionError) as error:
        raise StoppedError(f"{path}: not a complete file of a capture") from error
    return metadata


def plugin_options(folder: Path, contents: Contents) -> PluginOptions:
    """Return the options of pgoutput with which the last file of a folder was captured.

    Raises
    ------
    StoppedError
        If it is not a file of a capture.
    """
    last = next(reversed(contents.files.values()), None)
    return PluginOptions() if last is None else PluginOptions.of(metadata_of(folder / last.name).get("options", {}))


def entry_of(path: Path) -> FileEntry:
    """Make a log entry from a file's footer.

    Raises
    ------
    StoppedError
        If it is not a file of a capture.
    """
    metadata = metadata_of(path)
    try:
        return FileEntry.from_dict({**metadata["file"], "name": path.name, "bytes": path.stat().st_size})
    except (KeyError, TypeError, ValueError) as error:
        raise StoppedError(f"{path}: not a complete file of a capture") from error
