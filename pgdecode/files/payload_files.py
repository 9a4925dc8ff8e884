"""Opens files of raw payloads, and checks their columns."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pgdecode._native.arrow.parquet_footer import check_footer
from pgdecode.arrow.thrift import COLUMNS, CRYPTO_METADATA, ROW_GROUPS, StructReader
from pgdecode.datasets.input_listing import find_files
from pgdecode.files.payload_file import (
    CAPTURE_KEY,
    CAPTURE_SESSION,
    FRAME_LSN,
    Captured,
    FileFault,
    PayloadFile,
    RowGroup,
    holds_text,
    plain_type,
)
from pgdecode.files.text_files import ConvertedFile
from pgdecode.payloads.text_rows import TEXT_SUFFIXES, layout_hint
from pgdecode.payloads.unwrap import LOOKS_LIKE, UnwrapError
from pgdecode.payloads.workers import map_io
from pgdecode.protocol.errors import did_you_mean
from pgdecode.protocol.json_document import load_json
from pgdecode.protocol.lsn import lsn_from_text
from pgdecode.protocol.options import Unwrap, check_option
from pgdecode.storage.errors import PathError, StorageError
from pgdecode.storage.object_path import FilePath, ObjectPath
from pgdecode.storage.parquet_input import (
    PARQUET_ERRORS,
    EncryptedFile,
    Footer,
    is_parquet,
    leaves_of,
    read_footer,
    readable,
)

# Default names of the position column. The first is that of captured files.
USUAL_NAMES = ("seq", "position")
# How many files are opened at the same time if this mostly waits for an object store or a disk.
FILES_AT_ONCE = 32
_PARQUET = b"PAR1"  # at the beginning and the end of a file
_HEAD_BYTES = 4096
# The beginning of the keys that are kept of a footer.
_OUR_KEYS = b"pgdecode."


def payload_files(path: FilePath, payload: str, keep: Sequence[str] = (), unwrap: Unwrap = "auto") -> list[PayloadFile]:
    """Open and check a Parquet file, or all files below a folder, as `find_files` lists them.

    A single file may also be CSV, JSON lines, or from `pg_recvlogical`, see `pgdecode.files.text_files`. It is
    converted to a temporary Parquet file.

    Parameters
    ----------
    path : Path or ObjectPath
        The object, or all objects below it as below a folder.
    payload : str
        The payload column, which is binary, or with `unwrap` also a string column.
    keep : sequence of str
        Other columns to read. Files do not have "frame_lsn", the LSN of a frame, which is null for a payload without
        a frame, and "capture_session", the number of the session in which `pgdecode capture` received the row.
    unwrap : {"auto", "none", "hex", "base64", "xlogdata"}
        The form of the payloads, as in `pgdecode.unwrap`.

    Raises
    ------
    PathError
        If the path does not exist, has no Parquet files, or a column is missing or has another type.
    AccessDenied, StoreUnreachable
        If an object store refuses a request, or does not answer.
    FileFault
        If a file that is not Parquet cannot be converted, or the footer of a Parquet file contradicts itself.
    """
    return open_files(find_files(path), payload, keep, unwrap)


def open_files(
    paths: Sequence[FilePath],
    payload: str,
    keep: Sequence[str] = (),
    unwrap: Unwrap = "auto",
    opened: Sequence[PayloadFile] = (),
) -> list[PayloadFile]:
    """Open and check files.

    Parameters
    ----------
    paths : sequence of Path or ObjectPath
        At least one, as `find_files` lists them.
    payload, keep, unwrap
        As in `payload_files`.
    opened : sequence of PayloadFile
        Some of the files with other `keep` columns. A file that was converted for these is not converted again.

    Raises
    ------
    PathError, AccessDenied, StoreUnreachable, FileFault
        As in `payload_files`.
    """
    check_option("unwrap", unwrap, Unwrap)
    converted = {file.path: file.converted for file in opened if file.converted is not None}
    checked = partial(_checked, payload=payload, keep=tuple(keep), unwrap=unwrap, converted=converted, shared=_Shared())
    return list(map_io(checked, paths, FILES_AT_ONCE, is_remote=isinstance(paths[0], ObjectPath)))


class _Shared:
    """One object for what is equal in most files, so that many files are small, also when they are pickled.

    Attributes
    ----------
    columns : dict of pa.Schema to (pa.Schema, pa.Schema)
        The schemas of all columns and of the `keep` columns.
    entries : dict of bytes to bytes
        Values in footers.
    """

    def __init__(self) -> None:
        self.columns: dict[pa.Schema, tuple[pa.Schema, pa.Schema]] = {}
        self.entries: dict[bytes, bytes] = {}


def _checked(
    path: FilePath,
    payload: str,
    keep: tuple[str, ...],
    unwrap: Unwrap,
    converted: Mapping[FilePath, ConvertedFile],
    shared: _Shared,
) -> PayloadFile:
    content = converted.get(path)
    try:
        if content is None and isinstance(path, Path) and unwrap != "none" and not is_parquet(path):
            content = ConvertedFile(path, payload, unwrap)
        with readable(path if content is None else content.path) as source:
            footer = read_footer(source)
        metadata = footer.metadata
        payload = _name_in(metadata.schema.names, payload)
        names = (payload, *keep)
        _check_sizes(path, footer)
        if footer.signed is not None:
            _check_plain(footer.signed, metadata, names)
        schema, groups = (
            metadata.schema.to_arrow_schema().remove_metadata(),
            _row_groups(path, metadata, names, () if footer.signed else USUAL_NAMES),
        )
        entries = {
            key: shared.entries.setdefault(value, value)
            for key, value in (metadata.metadata or {}).items()
            if key.startswith(_OUR_KEYS)
        }
        captured = _captured(entries.get(CAPTURE_KEY))
    except StorageError:
        raise
    except PermissionError as error:
        raise PathError(f"{path}: no permission to read it") from error
    except UnwrapError as error:
        if error.row == 0 and LOOKS_LIKE not in error.reason and path.suffix not in TEXT_SUFFIXES:
            raise PathError(f"{path}: not a Parquet file{_why_not(path)}") from None
        raise FileFault(f"{path}: not a Parquet file, and cannot be read as text: {error}") from None
    except EncryptedFile as error:
        raise PathError(f"{path}: {error}") from None
    except (*PARQUET_ERRORS, csv.Error) as error:
        raise PathError(f"{path}: not a Parquet file{_why_not(path)}") from error
    known = shared.columns.get(schema)
    if known is None or (CAPTURE_SESSION in keep and captured is None):
        kept = _kept_columns(path, schema, payload, keep, unwrap, is_captured=captured is not None)
        known = shared.columns.setdefault(schema, (schema, kept))
    columns, kept = known
    if content is not None:
        # The conversion has decoded the text.
        unwrap = "auto"
    return PayloadFile(path, payload, keep, kept, columns, groups, footer.checksum, unwrap, content, captured, entries)


def _name_in(names: Sequence[str], wanted: str) -> str:
    """Find a column whose name differs in upper and lower case alone, if there is one such; else the name itself."""
    alike = [name for name in names if name.casefold() == wanted.casefold()]
    return alike[0] if len(alike) == 1 and wanted not in names else wanted


def _why_not(path: FilePath) -> str:
    """Say what a file that is no Parquet file seems to be, for the end of an error text."""
    # Opening a named pipe would wait for a process that writes to it.
    if not isinstance(path, Path) or not path.is_file():
        return ""
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
        file.seek(-min(len(_PARQUET), path.stat().st_size), os.SEEK_END)
        tail = file.read()
    if not head:
        return ": it is empty"
    if head.startswith(_PARQUET):
        return ": its footer is damaged" if tail == _PARQUET else ": its end is missing. Was it truncated?"
    return layout_hint(head)


def _kept_columns(
    path: FilePath, schema: pa.Schema, payload: str, keep: Sequence[str], unwrap: Unwrap, *, is_captured: bool
) -> pa.Schema:
    """Check the payload column and the `keep` columns, and return the schema of the latter.

    Raises
    ------
    PathError
    """
    binary = ", ".join(field.name for field in schema if _is_binary(field.type)) or "none"
    for name in (payload, *keep):
        found = schema.names.count(name)
        if found == 0 and name == FRAME_LSN and unwrap in ("auto", "xlogdata"):
            continue
        if found == 0 and name == CAPTURE_SESSION and is_captured:
            continue
        if found != 1:
            there = f"binary columns: {binary}" if name == payload else f"columns: {', '.join(schema.names)}"
            near = "" if found else did_you_mean(name, schema.names)
            raise PathError(f"{path}: {'no' if found == 0 else 'more than one'} column {name!r}{near}; {there}")
    type = schema.field(payload).type
    if not _is_binary(type) and not (holds_text(type) and unwrap in ("auto", "hex", "base64")):
        raise PathError(f"{path}: column {payload!r} is {type}, not binary; binary columns: {binary}")
    return pa.schema(
        [(name, plain_type(schema.field(name).type) if name in schema.names else pa.int64()) for name in keep]
    )


def _captured(content: bytes | None) -> Captured | None:
    """Read what `pgdecode capture` wrote into the footer; None if it did not, or another program changed it."""
    if content is None:
        return None
    try:
        found = load_json(content)
        file, settings = found["file"], found.get("settings", {})
        encoding = str(settings.get("client_encoding", "UTF8"))
        first_lsn = lsn_from_text(file.get("first_lsn", "0/0"))
        return Captured(int(file["session"]), int(file["first_seq"]), int(file["open_streams"]), encoding, first_lsn)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _is_binary(type: pa.DataType) -> bool:
    if pa.types.is_dictionary(type):
        type = type.value_type
    if pa.types.is_fixed_size_binary(type) or pa.types.is_null(type):
        return True
    return plain_type(type) in (pa.binary(), pa.large_binary())


def _check_sizes(path: FilePath, footer: Footer) -> None:
    """Check statistics of sizes, because pyarrow would end the process.

    Raises
    ------
    FileFault
    """
    try:
        # Some buffers, such as those of object stores, have items of another type.
        check_footer(memoryview(footer.content).cast("B"))
    except ValueError as error:
        raise FileFault(f"{path}: {error}: the footer is damaged") from None


def _check_plain(signed: bytes, metadata: pq.FileMetaData, columns: Sequence[str]) -> None:
    """Check that no column is encrypted, because pyarrow would end the process.

    Raises
    ------
    EncryptedFile
    """
    leaves = leaves_of(metadata, columns)
    for group in StructReader(signed).struct()[ROW_GROUPS].value[1]:
        chunks = group[COLUMNS].value[1]
        for leaf in leaves:
            if CRYPTO_METADATA in chunks[leaf]:
                path = metadata.schema.column(leaf).path
                raise EncryptedFile(f"column {path!r} is encrypted; decrypt the file first")


def _row_groups(
    path: FilePath, metadata: pq.FileMetaData, columns: Sequence[str], ranged: Sequence[str]
) -> tuple[RowGroup, ...]:
    """List the row groups, with the ranges of some columns and of those that are `ranged`.

    Raises
    ------
    FileFault
        If the numbers of columns or values, or the types of a column, contradict each other.
    """
    leaves = leaves_of(metadata, columns)
    others = [leaf for leaf in leaves_of(metadata, ranged) if leaf not in leaves]
    types = [metadata.schema.column(leaf).physical_type for leaf in leaves]
    is_flat = [metadata.schema.column(leaf).max_repetition_level == 0 for leaf in leaves]
    found = []
    start = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        if group.num_columns != metadata.num_columns:
            seen = f"{group.num_columns:,} columns in place of {metadata.num_columns:,}"
            raise FileFault(f"{path}: row group {number}: has {seen}: the footer is damaged")
        chunks = [group.column(leaf) for leaf in leaves]
        for chunk, type, flat in zip(chunks, types, is_flat, strict=True):
            of_column = f"{path}: row group {number}, column {chunk.path_in_schema!r}"
            if chunk.physical_type != type:
                raise FileFault(f"{of_column}: is {chunk.physical_type} in place of {type}: the footer is damaged")
            # pyarrow would read as many rows as the row group has, or as its columns have values.
            if flat and chunk.num_values != group.num_rows:
                seen = f"{chunk.num_values:,} values in place of {group.num_rows:,}"
                raise FileFault(f"{of_column}: has {seen}: the footer is damaged")
        n_bytes = sum(chunk.total_uncompressed_size for chunk in chunks)
        chunks += [group.column(leaf) for leaf in others]
        ranges = tuple((chunk.path_in_schema, *limits) for chunk in chunks if (limits := _limits(chunk)) is not None)
        end = max(map(_end_of, chunks), default=0)
        found.append(RowGroup(number, start, group.num_rows, n_bytes, ranges, end))
        start += group.num_rows
    return tuple(found)


def _end_of(chunk: pq.ColumnChunkMetaData) -> int:
    first = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
    return int(first or 0) + int(chunk.total_compressed_size)


def _limits(chunk: pq.ColumnChunkMetaData) -> tuple[int, int] | None:
    """Return the least and greatest value of an integer column without nulls, if both are known and not negative."""
    found = chunk.statistics if chunk.physical_type in ("INT32", "INT64") else None
    if found is None or not found.has_min_max or not found.has_null_count or found.null_count:
        return None
    # Raw values, because Python cannot represent all dates and timestamps of a column.
    low, high = int(found.min_raw), int(found.max_raw)
    return (low, high) if 0 <= low <= high else None
