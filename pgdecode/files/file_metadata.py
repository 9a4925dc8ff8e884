"""Metadata in the footers of payload files: user-defined types, relations described before the first row, and gaps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode.datasets.errors import RunError
from pgdecode.datasets.input_selection import IDENTITY
from pgdecode.files.payload_file import CAPTURE_KEY, FileFault, PayloadFile
from pgdecode.partitions.control_messages import from_footer
from pgdecode.partitions.partition_index import Partition
from pgdecode.protocol.json_document import load_json
from pgdecode.protocol.lsn import lsn_from_text, lsn_to_text
from pgdecode.relations.catalog import RelationCatalog
from pgdecode.relations.relation_version import used_from
from pgdecode.rows.options import Options
from pgdecode.storage.object_path import FilePath, relative_name
from pgdecode.storage.parquet_input import PARQUET_ERRORS, read_metadata
from pgdecode.types.encodings import SQL_ASCII, encoding_name
from pgdecode.types.user_types import UserType, from_json, merged, overridden, readable

TYPES_KEY = b"pgdecode.types"
CATALOG_KEY = b"pgdecode.catalog"
CONTROL_KEY = b"pgdecode.control"
# In the text of a catalog that has facts.
_FACTS = b'"facts": ['

# The footer of a `PayloadFile` has been read.
FileWithFooter = FilePath | PayloadFile


def user_types_of(files: Iterable[FileWithFooter], before: Iterable[UserType] = ()) -> tuple[UserType, ...]:
    """Read the types in the footers of files. If two files have a type, the later one applies.

    Parameters
    ----------
    files : iterable of Path, ObjectPath or PayloadFile
        In order. Files without types are ignored.
    before : iterable of UserType
        Types of earlier files.

    Raises
    ------
    FileFault
        If a footer cannot be read.
    """
    versions = [*before]
    contents: dict[bytes, None] = {}
    for file in files:
        content = _entry(file, TYPES_KEY)
        if content is not None:
            # Most files have equal types. A repeated value moves to the end, because the later one applies.
            contents.pop(content, None)
            contents[content] = None
    for content in contents:
        try:
            versions += from_json(content)
        except ValueError as error:
            raise FileFault(f"types in the footers of the files: {error}") from error
    return readable(merged(versions))


def source_of(files: Iterable[FileWithFooter]) -> dict[str, Any] | None:
    """Read where files were captured, from the footers that `pgdecode capture` writes; None without any.

    Raises
    ------
    FileFault
        If a footer cannot be read, or two files were captured from different slots.
    """
    source: dict[str, Any] | None = None
    first: FileWithFooter | None = None
    for file in files:
        content = _entry(file, CAPTURE_KEY)
        if content is None:
            continue
        try:
            origin = dict(load_json(content)["origin"])
        except (ValueError, KeyError, TypeError) as error:
            raise FileFault(f"{file}: description of the capture in the footer: {type(error).__name__}") from error
        if source is not None and any(origin.get(name) != source.get(name) for name in IDENTITY):
            raise FileFault(f"{file}: was captured from another slot or server than {first}")
        source, first = origin, first or file
    return source


def encoding_of(files: Iterable[PayloadFile], given: str) -> str:
    """Find the encoding of values: the caller's, if it is not UTF8, else that of the session that captured the files.

    Raises
    ------
    FileFault
        If files have different encodings, or one that pgdecode does not know.
    """
    encodings: dict[str, PayloadFile] = {}
    for file in files if given == "UTF8" else ():
        if file.captured is not None:
            encodings.setdefault(file.captured.encoding, file)
    # A database without an encoding sends the same bytes for both.
    if encodings.keys() == {"UTF8", SQL_ASCII}:
        return SQL_ASCII
    if len(encodings) > 1:
        (first, _), (second, file) = list(encodings.items())[:2]
        raise FileFault(f"{file}: text is in {second}, in files before it in {first}: decode them apart")
    for name, file in encodings.items():
        try:
            return encoding_name(name)
        except ValueError as error:
            raise FileFault(f"{file}: {error}") from error
    return given


def with_footers(
    options: Options, files: Sequence[PayloadFile], before: Iterable[UserType] = ()
) -> tuple[Options, tuple[UserType, ...]]:
    """Add the types and the encoding in the footers of files to options, which take precedence.

    Return also the types of these and of earlier files.

    Raises
    ------
    FileFault
        As in `user_types_of` and `encoding_of`.
    """
    types = user_types_of(files, before)
    encoding = encoding_of(files, options.encoding)
    return replace(options, types=overridden(types, options.types) or None, encoding=encoding), types


def catalog_of(files: Sequence[FileWithFooter]) -> RelationCatalog | None:
    """Read relations from the footers of files: those described before the first row, and facts of all.

    A footer has the relations that its file uses. The first file may not use all that later files use. None if no
    footer has any.

    Raises
    ------
    FileFault
        If a footer cannot be read.
    """
    if not files:
        return None
    catalog = _catalog_in(files[0])
    versions, facts = {version.relation_id: version for version in catalog}, [*catalog.facts]
    first, session = _first_seq_and_session(files[0])
    for file in files[1:] if first is not None else ():
        # The server describes all relations again in another session.
        if _first_seq_and_session(file)[1] != session:
            break
        for version in _catalog_in(file):
            # Later ones are in the payloads.
            if first is not None and used_from(version) < first and version.position < first:
                versions.setdefault(version.relation_id, version)
    for file in files[1:]:
        if _FACTS in (_entry(file, CATALOG_KEY) or b""):
            facts += _catalog_in(file).facts
    return RelationCatalog(sorted(versions.values(), key=used_from), facts) or None


def _catalog_in(file: FileWithFooter) -> RelationCatalog:
    content = _entry(file, CATALOG_KEY)
    try:
        return RelationCatalog() if content is None else RelationCatalog.from_json(content)
    except (ValueError, KeyError, TypeError) as error:
        raise FileFault(f"{file}: relations in the footer: {error}") from error


def _first_seq_and_session(file: FileWithFooter) -> tuple[int | None, int | None]:
    """Return the number of a captured file's first message, and its session; None for another file."""
    content = _entry(file, CAPTURE_KEY)
    try:
        captured = load_json(content or b"{}")
        return int(captured["file"]["first_seq"]), int(captured["file"]["session"])
    except (ValueError, KeyError, TypeError):
        return None, None


class FileControl(NamedTuple):
    """The control messages of a captured file.

    Attributes
    ----------
    partitions : tuple of Partition
        One for each row group.
    n_rows : tuple of int
        Number of rows of each.
    positions : tuple of pa.Array of int64
        Positions of the messages in each.
    payloads : tuple of pa.Array of binary
        The messages of each, as `index_partitions` requires them with `in_full`.
    """

    partitions: tuple[Partition, ...]
    n_rows: tuple[int, ...]
    positions: tuple[pa.Array, ...]
    payloads: tuple[pa.Array, ...]


def control_of(file: PayloadFile, position: str) -> FileControl | None:
    """Read the control messages in the footer of a captured file; None if they must be found in its rows.

    They replace reading the file for `pgdecode.partitions.partition_index.index_partitions`: concatenate the messages
    of the files, join the partitions of row groups that one task decodes, and pass `in_full=True`. Rows before the
    first boundary of a row group are missing. They do not matter, because a captured file begins at a boundary.

    Parameters
    ----------
    file : PayloadFile
        A whole file, opened with `position` among its `keep` columns. Pieces have no footer. `RowGroup.number` is the
        index of a row group in the result.
    position : str
        The position column. Its values in the file's statistics must increase by one from row to row.

    Returns
    -------
    FileControl or None
        None for a file that `pgdecode capture` has not written; if the messages would have been
        a large part of the file; if another program wrote the file anew, or the footer is damaged.
    """
    content = file.entries.get(CONTROL_KEY)
    firsts = [group.counted_from(position) for group in file.groups]
    if content is None or file.payload != "data" or file.unwrap not in ("auto", "none") or not firsts or None in firsts:
        return None
    try:
        groups = from_footer(content, [(group.n_rows, group.end) for group in file.groups])
    except ValueError:
        return None
    placed = [(first, group) for first, group in zip(firsts, groups, strict=True) if first is not None]
    if any(first + group.n_rows > after for (first, group), (after, _) in pairwise(placed)):
        return None
    return FileControl(
        tuple(Partition(first, first + group.n_rows - 1, group.has_rows) for first, group in placed),
        tuple(group.n_rows for group in groups),
        tuple(pc.add(group.rows, first) for first, group in placed),
        tuple(group.payloads for group in groups),
    )


def _entry(file: FileWithFooter, key: bytes) -> bytes | None:
    if isinstance(file, PayloadFile):
        return file.entries.get(key)
    try:
        metadata = read_metadata(file).metadata or {}
    except PARQUET_ERRORS as error:
        raise FileFault(f"{file}: not a Parquet file") from error
    content: bytes | None = metadata.get(key)
    return content


@dataclass(frozen=True)
class Gap:
    """A gap before a file, which its capture accepted.

    Attributes
    ----------
    file : Path or ObjectPath
    start, end : int
        LSN up to which earlier files have everything, and LSN at which the file begins. The end is less than the start
        after a failover to a server that lacks the end of the earlier files.
    reason : str
        What the capture found.
    """

    file: FilePath
    start: int
    end: int
    reason: str

    def __str__(self) -> str:
        start, end = lsn_to_text(self.start), lsn_to_text(self.end)
        if self.end < self.start:
            return f"{self.file}: the server lost the changes from {end} to {start}, which earlier files have"
        return f"{self.file}: the changes from {start} to {end} are missing before it"

    def as_dict(self, source: FilePath | None = None) -> dict[str, str]:
        """Convert the gap to JSON values, with the name of the file below a folder or as it is."""
        name = str(self.file) if source is None else relative_name(self.file, source)
        return {"file": name, "from": lsn_to_text(self.start), "to": lsn_to_text(self.end), "reason": self.reason}


def gaps_of(files: Iterable[PayloadFile]) -> list[Gap]:
    """Read the gaps from the footers of files, in the order of the files.

    Raises
    ------
    FileFault
        If a footer is damaged.
    """
    found: list[Gap] = []
    for file, gaps in _values(files, "gaps"):
        try:
            found += [
                Gap(file.path, lsn_from_text(gap["from"]), lsn_from_text(gap["to"]), str(gap["reason"])) for gap in gaps
            ]
        except (TypeError, KeyError, ValueError) as error:
            raise _damaged(file) from error
    return found


def accepted_gaps(files: Iterable[PayloadFile], *, accept_gap: bool) -> list[Gap]:
    """Read the gaps from the footers of files, and refuse them unless they are accepted.

    Raises
    ------
    RunError
        If there is a gap, and it is not accepted.
    FileFault
        If a footer is damaged.
    """
    gaps = gaps_of(files)
    if gaps and not accept_gap:
        more = f" (and {len(gaps) - 1:,} more)" if len(gaps) > 1 else ""
        raise RunError(
            f"{gaps[0]}{more}; its capture accepted that. Copy the tables again, unless that was done since, and "
            "decode what there is with accept_gap=True"
        )
    return gaps


def late_beginnings(files: Iterable[PayloadFile]) -> list[tuple[FilePath, int]]:
    """List the files with which a folder begins within a slot that was read before, each with the LSN.

    Raises
    ------
    FileFault
        If a footer is damaged.
    """
    beginnings = []
    for file, beginning in _values(files, "beginning"):
        try:
            if beginning["slot_was_read"]:
                beginnings.append((file.path, lsn_from_text(beginning["lsn"])))
        except (TypeError, KeyError, ValueError) as error:
            raise _damaged(file) from error
    return beginnings


def notes_of(files: Iterable[PayloadFile]) -> list[str]:
    """Describe gaps and late beginnings, one line for each."""
    listed = list(files)
    beginnings = [
        f"{file}: begins at {lsn_to_text(lsn)}, in a slot that was read or advanced before: earlier changes of the "
        "slot are not in this folder"
        for file, lsn in late_beginnings(listed)
    ]
    return [*beginnings, *map(str, gaps_of(listed))]


def _values(files: Iterable[PayloadFile], name: str) -> Iterator[tuple[PayloadFile, Any]]:
    """Yield the files whose footers have a value under a name."""
    key = f'"{name}"'.encode()
    for file in files:
        content = file.entries.get(CAPTURE_KEY)
        # Most footers have none, and there may be a hundred thousand of them.
        if content is not None and key in content:
            try:
                value = load_json(content).get(name)
            except (ValueError, AttributeError) as error:
                raise _damaged(file) from error
            if value is not None:
                yield file, value


def _damaged(file: PayloadFile) -> FileFault:
    return FileFault(f"{file}: the description of gaps in the footer is damaged")
