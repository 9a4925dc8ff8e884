"""The state after a run: all that the next run needs, on any engine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pyarrow as pa

from pgdecode.datasets.errors import RunFault
from pgdecode.datasets.file_digest import FileDigest
from pgdecode.datasets.payload_ranges import PayloadRange, PayloadReader
from pgdecode.protocol.json_document import load_json
from pgdecode.storage.object_path import FilePath

FORMAT = "pgdecode.State"
FORMAT_VERSION = 1
# The folder with the log and the states, below that of the data set.
LOG = "_pgdecode"


class InputFile(NamedTuple):
    """An input file that has been decoded.

    Attributes
    ----------
    path : str
        Its real path or URI.
    bytes : int
    version : str
        Its time of modification in nanoseconds, or its ETag.
    rows : int
        Number of its rows, all of which have been decoded.
    first, last : int or None
        Its first and last position; None if it has no rows, or no positions.
    fingerprint : str or None
        Of its last rows, to recognise them if it grows.
    in_stream : bool or None
        For messages: whether it ends within a stream block.
    """

    path: str
    bytes: int
    version: str
    rows: int
    first: int | None = None
    last: int | None = None
    fingerprint: str | None = None
    in_stream: bool | None = None


_TYPES = ((str,), (int,), (str,), (int,), *[(int, type(None))] * 2, (str, type(None)), (bool, type(None)))


@dataclass(frozen=True)
class State:
    """The state after a run. `State()` is the state before the first one.

    Attributes
    ----------
    replication : mapping or None
        `checkpoint.state_to_json(state, with_payloads=False)`; None before the first run and for messages.
    payloads : mapping of int to sequence of PayloadRange
        The payloads of each undecided transaction, by its begin_position, in the order of its changes.
    user_types : sequence of (OID, name, declaration)
        Types from the footers of all payload files so far.
    session : str or None
        The last value of the session column, as text. None if there was no such column.
    position : str or None
        The column with positions, if files have one.
    is_counted : bool
        Whether positions are numbers of payloads, because the payloads have no positions.
    source : mapping or None
        Where the payloads were captured, as `Input.source`; None if they were not captured by pgdecode.
    files : sequence of InputFile
        The files decoded so far, in the order of decoding.
    payload_files : mapping of str to FileDigest
        The files of `payloads`, by name. This and `folder` are not in the file of the state, but in its manifest.
    folder : Path, ObjectPath or None
        The folder of the payload files.
    """

    replication: Mapping[str, Any] | None = None
    payloads: Mapping[int, Sequence[PayloadRange]] = field(default_factory=dict)
    user_types: Sequence[tuple[int, str, str]] = ()
    session: str | None = None
    position: str | None = None
    is_counted: bool = False
    source: Mapping[str, Any] | None = None
    files: Sequence[InputFile] = ()
    payload_files: Mapping[str, FileDigest] = field(default_factory=dict)
    folder: FilePath | None = None

    def readers(self) -> dict[str, PayloadReader]:
        """Make a reader for each payload file."""
        if self.folder is None:
            return {}
        return {name: PayloadReader(self.folder / name, file) for name, file in self.payload_files.items()}

    def to_bytes(self) -> bytes:
        """Return the content of the file: JSON, compressed by zstd."""
        plain = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "replication": self.replication,
            "payloads": [[begin, [[*item] for item in items]] for begin, items in self.payloads.items()],
            "user_types": [[*item] for item in self.user_types],
            "session": self.session,
            "position": self.position,
            "is_counted": self.is_counted,
            "source": self.source,
            "files": [[*item] for item in self.files],
        }
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, "zstd") as stream:
            stream.write(json.dumps(plain, separators=(",", ":")).encode())
        return bytes(sink.getvalue())


def parse_state(content: bytes, path: object, folder: FilePath, payload_files: Sequence[FileDigest]) -> State:
    """Read the content of the state at `path`.

    Parameters
    ----------
    content : bytes
    path : object
        For errors.
    folder : Path or ObjectPath
        Of the payload files.
    payload_files : sequence of FileDigest
        From the manifest.

    Raises
    ------
    RunFault
        If it is damaged or of another version.
    """
    try:
        plain = load_json(pa.CompressedInputStream(pa.BufferReader(content), "zstd").read())
        if not isinstance(plain, dict) or plain.get("format") != FORMAT:
            raise RunFault(f"{path}: is not a {FORMAT}")
        if plain.get("version") != FORMAT_VERSION:
            raise RunFault(f"{path}: has another version than {FORMAT_VERSION}, the one that this pgdecode reads")
        known = {name: replace(item, name=name) for item in payload_files if (name := item.name.rpartition("/")[2])}
        payloads = {_whole(begin): [_range(*item) for item in items] for begin, items in plain["payloads"]}
        if not {item.file for items in payloads.values() for item in items} <= set(known):
            raise RunFault(f"{path}: names a payload file that the manifest does not")
        return State(
            _typed(plain["replication"], dict),
            payloads,
            [(_whole(oid), str(name), str(text)) for oid, name, text in plain["user_types"]],
            _typed(plain["session"], str),
            _typed(plain["position"], str),
            bool(plain["is_counted"]),
            _typed(plain["source"], dict),
            [_input_file(item) for item in plain["files"]],
            known,
            folder,
        )
    except RunFault:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, pa.ArrowException, OSError) as error:
        raise RunFault(f"{path}: is damaged: {type(error).__name__}") from error


def _range(file: str, first_row: int, rows: int, first_position: int, last_position: int) -> PayloadRange:
    if not isinstance(file, str) or min(first_row, rows - 1, first_position, last_position - first_position) < 0:
        raise ValueError("a range of payloads is negative")
    return PayloadRange(file, first_row, rows, first_position, last_position)


def _input_file(values: Sequence[Any]) -> InputFile:
    if not all(type(value) in types for value, types in zip(values, _TYPES, strict=True)):
        raise ValueError("an input file has a value of another type")
    return InputFile(*values)


def _typed(value: Any, kind: type) -> Any:
    if value is not None and not isinstance(value, kind):
        raise ValueError(f"{type(value).__name__} in place of {kind.__name__}")
    return value


def _whole(value: Any) -> int:
    if type(value) is not int or value < -1:
        raise ValueError("not a whole number")
    return value
