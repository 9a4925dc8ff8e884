"""Finds files of raw payloads, and reads their columns in batches of limited size."""

from __future__ import annotations

import csv
import json
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pgdecode.files.text_files import TEXT_SUFFIXES, ConvertedFile
from pgdecode.payloads.unwrap import LOOKS_LIKE, UnwrapError, has_frames, is_string, unwrap_in_place
from pgdecode.payloads.workers import Workers, map_io, prefetched
from pgdecode.protocol.errors import did_you_mean
from pgdecode.protocol.options import Unwrap, check_option
from pgdecode.storage.errors import PathError as PathError
from pgdecode.storage.errors import StorageError
from pgdecode.storage.object_files import ObjectReader
from pgdecode.storage.object_path import FilePath, ObjectPath
from pgdecode.storage.object_store import ObjectChanged, found_object, listed
from pgdecode.storage.parquet_input import Footer, Source, is_parquet, opened, plan, read_footer, readable

# The size of a batch: large enough for an efficient decoder, small compared with the interpreter's own memory.
BATCH_ROWS = 32_768
BATCH_BYTES = 32 * 2**20
# Sizes of what a worker reads ahead: of a piece, by its metadata, and at most in memory.
_PIECE_BYTES = 8 * 2**20
_AHEAD_BYTES = 64 * 2**20
# Limits of the batches of small files that are joined: their size, which is copied, and their number, because each has
# some kilobytes of objects.
_TOGETHER_BYTES = BATCH_BYTES // 2
_TOGETHER_BATCHES = 2048
_PLAIN_BINARY = (pa.binary(), pa.large_binary())
_VIEWS = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
_BINARY_IDS = {type.id for type in _PLAIN_BINARY}
_CONVERTED_IDS = {type.id for type in (pa.dictionary(pa.int32(), pa.string()), *_VIEWS)}
# Dictionaries are not read first where they cannot expand a batch beyond this size.
_EXPANDED_BYTES = 8 * BATCH_BYTES
# How many files are opened at the same time if this mostly waits for an object store or a disk.
FILES_AT_ONCE = 32
# Columns that files do not have: the LSN of a frame, and the number of the session in which a capture received a row.
_FRAME_LSN = "frame_lsn"
CAPTURE_SESSION = "capture_session"
# The key in the footer under which `pgdecode capture` describes a file.
CAPTURE_KEY = b"pgdecode.capture"
_OUR_KEYS = b"pgdecode."
# A column of batches with keepalives, which are null payloads but not messages.
IS_KEEPALIVE = "pgdecode.is_keepalive"


class FileFault(ValueError):
    """Data in a file that cannot be read or decoded. The text begins with the file's path."""


class RowGroup(NamedTuple):
    """A row group.

    Attributes
    ----------
    number : int
    start : int
        Number of its first row in the file.
    n_rows : int
    n_bytes : int
        Uncompressed size of the columns that are read.
    ranges : tuple of (str, int, int)
        Integer columns without nulls, with their least and greatest values according to the file's statistics.
    """

    number: int
    start: int
    n_rows: int
    n_bytes: int
    ranges: tuple[tuple[str, int, int], ...] = ()

    def counted_from(self, name: str) -> int | None:
        """Return the first value of a column that increases by one from row to row, else None.

        This is deduced from the file's statistics, and holds if these are correct and the column ascends.
        """
        return next(
            (low for column, low, high in self.ranges if column == name and high - low == self.n_rows - 1), None
        )


class Captured(NamedTuple):
    """What the footer of a captured file says of its session, which is one for all rows.

    Attributes
    ----------
    session : int
        Number of the session.
    first_seq : int
    open_streams : int
        Number of streamed transactions without an outcome at the end of the file.
    """

    session: int
    first_seq: int
    open_streams: int


@dataclass(frozen=True)
class PayloadFile:
    """A Parquet file, or some row groups of one, whose `payload` column holds one message per row.

    Attributes
    ----------
    path : Path or ObjectPath
    payload : str
        The payload column, which is binary.
    keep : tuple of str
        Other columns to read. The file has them.
    schema : pa.Schema
        Of the `keep` columns.
    columns : pa.Schema
        Of all columns of the file, without metadata.
    groups : tuple of RowGroup
        The consecutive row groups to read.
    footer : int
        Checksum of the file's footer, to recognise that the file was replaced.
    unwrap : {"auto", "none", "hex", "base64", "xlogdata"}
        The form of the payloads, as in `pgdecode.unwrap`. Keepalives become null payloads.
    converted : ConvertedFile or None
        The Parquet file that replaces a text file.
    captured : Captured or None
        None for a file that `pgdecode capture` has not written.
    entries : mapping
        What the footer says under the keys of pgdecode. Pieces do not have it.
    """

    path: FilePath
    payload: str
    keep: tuple[str, ...]
    schema: pa.Schema
    columns: pa.Schema
    groups: tuple[RowGroup, ...]
    footer: int
    unwrap: Unwrap = "auto"
    converted: ConvertedFile | None = None
    captured: Captured | None = None
    entries: Mapping[bytes, bytes] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        return str(self.path)

    @property
    def parquet(self) -> FilePath:
        """The Parquet file that is read."""
        return self.path if self.converted is None else self.converted.path

    @property
    def start(self) -> int:
        """Number of the first row in the file."""
        return self.groups[0].start if self.groups else 0

    @property
    def n_rows(self) -> int:
        """Number of rows to read."""
        return sum(group.n_rows for group in self.groups)

    @property
    def n_bytes(self) -> int:
        """Uncompressed size of the columns that are read."""
        return sum(group.n_bytes for group in self.groups)

    def first_rows(self, n_rows: int) -> pa.RecordBatch:
        """Read the payload and `keep` columns of the first `n_rows` rows, or of about `BATCH_BYTES`.

        Raises
        ------
        FileFault
            If the file is damaged, or has no rows.
        """
        groups = [group.number for group in self.groups if group.start < self.start + n_rows]
        found: list[pa.RecordBatch] = []
        n_found = n_bytes = 0
        # Read as dictionaries in any case, because checking whether values may expand takes as long. Batches then end
        # at the end of row groups.
        with self._reader(groups, only_first_rows=True) as reader, reader(self._texts) as encoded:
            for batch in self._read(encoded, self._rows_that_fit(n_rows), groups):
                found.append(batch)
                n_found += len(batch)
                n_bytes += batch.nbytes
                if n_found >= n_rows or n_bytes >= BATCH_BYTES:
                    break
        if not found:
            raise FileFault(f"{self.path}: has no rows")
        return self.unwrapped(one_batch(found).slice(0, n_rows), self.start)

    def first_value(self, name: str) -> Any:
        """Return the value of a column in the first row; None if the file has no rows.

        If statistics have the least value of the first row group, it is that, which is not read. It is the first value
        if the column ascends.

        Raises
        ------
        FileFault
            If the file is damaged.
        """
        for column, low, _ in self.groups[0].ranges if self.groups else ():
            if column == name:
                return low
        with self._reader() as reader, reader() as file:
            for batch in file.iter_batches(1, row_groups=self._numbers, columns=[name], use_threads=False):
                return batch.column(0)[0].as_py()
        return None

    def range_of(self, name: str) -> tuple[Any, Any] | None:
        """Read a column, and find its least and greatest value; None without values.

        Raises
        ------
        FileFault
            If the file is damaged.
        """
        found = []
        with self._reader() as reader, reader() as file:
            for batch in file.iter_batches(row_groups=self._numbers, columns=[name], use_threads=False):
                found.append(pc.min_max(batch.column(0)).as_py())
        values = [item for item in found if item["min"] is not None]
        return (min(item["min"] for item in values), max(item["max"] for item in values)) if values else None

    def batches(self, batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Read the payload and `keep` columns in order, at most `batch_rows` and about `BATCH_BYTES` at once.

        Raises
        ------
        FileFault
            If the file is damaged.
        """
        return (self.unwrapped(source, start) for _, start, source in self.raw_batches(batch_rows))

    def raw_batches(self, batch_rows: int = BATCH_ROWS) -> Iterator[RawBatch]:
        """Read as `batches` does, but leave payloads in their form.

        Raises
        ------
        FileFault
            If the file is damaged.
        """
        n_rows = self._rows_that_fit(batch_rows)
        start = self.start
        with self._reader(self._numbers) as reader:
            for may_expand, groups in self._alike(reader, n_rows):
                with reader(self._texts if may_expand else ()) as file:
                    for batch in self._read(file, n_rows, groups):
                        yield RawBatch(self, start, batch)
                        start += len(batch)

    def with_session(self) -> PayloadFile:
        """Return the captured file with `CAPTURE_SESSION` as another column to read."""
        kept = self.schema.append(pa.field(CAPTURE_SESSION, pa.int64()))
        return replace(self, keep=(*self.keep, CAPTURE_SESSION), schema=kept)

    def pieces(self, n_bytes: int) -> list[PayloadFile]:
        """Divide the file into pieces of about `n_bytes`, between row groups. There is at least one."""
        if len(self.groups) <= 1 and not self.entries:
            return [self]
        found = []
        first = size = 0
        for place, group in enumerate(self.groups):
            if place > first and size + group.n_bytes > n_bytes:
                found.append(replace(self, groups=self.groups[first:place], entries={}))
                first, size = place, 0
            size += group.n_bytes
        return [*found, replace(self, groups=self.groups[first:], entries={})]

    def _read(self, file: pq.ParquetFile, n_rows: int, groups: Sequence[int]) -> Iterator[pa.RecordBatch]:
        # Threads do not make one column faster, and each uses additional memory.
        for batch in file.iter_batches(n_rows, row_groups=groups, columns=self._names, use_threads=False):
            if batch.get_total_buffer_size() <= 2 * BATCH_BYTES and _is_plain(batch, self.payload):
                yield batch
                continue
            for piece in _decoded_pieces(batch):
                yield from _pieces(_plain(piece, self.payload))

    def unwrapped(self, batch: pa.RecordBatch, start: int) -> pa.RecordBatch:
        """Replace frames or text by their payloads. `start` is the number of the first row.

        Raises
        ------
        FileFault
            If a value does not have the form of the payloads.
        """
        column = batch.column(self.payload)
        try:
            found = unwrap_in_place(column, self.unwrap, is_text=_holds_text(self.columns.field(self.payload).type))
        except UnwrapError as error:
            raise FileFault(f"{self.path}: row {start + error.row}: {error.reason}") from None
        if found.payloads is not column:
            batch = batch.set_column(batch.schema.get_field_index(self.payload), self.payload, found.payloads)
        if _FRAME_LSN in self.schema.names and _FRAME_LSN not in self.columns.names:
            lsn = pa.nulls(len(batch), pa.int64()) if found.lsn is None else found.lsn
            batch = batch.append_column(_FRAME_LSN, lsn)
        if CAPTURE_SESSION in self.schema.names and CAPTURE_SESSION not in self.columns.names:
            assert self.captured is not None
            session = pa.repeat(pa.scalar(self.captured.session, pa.int64()), len(batch))
            batch = batch.append_column(CAPTURE_SESSION, session)
        if found.is_keepalive is not None and found.is_keepalive.true_count:
            batch = batch.append_column(IS_KEEPALIVE, pc.fill_null(found.is_keepalive, False))
        return batch

    @property
    def _names(self) -> list[str]:
        there = self.columns.names
        return [name for name in dict.fromkeys((*self.keep, self.payload)) if name in there]

    @property
    def _texts(self) -> list[str]:
        return [name for name in self._names if _is_text(self.columns.field(name).type)]

    @property
    def _numbers(self) -> list[int]:
        return [group.number for group in self.groups]

    def _rows_that_fit(self, batch_rows: int) -> int:
        """Find how many rows of the row group with the widest rows have `BATCH_BYTES`; at most `batch_rows`."""
        widest = max((group.n_bytes / max(group.n_rows, 1) for group in self.groups), default=1.0)
        return max(1, min(batch_rows, int(BATCH_BYTES / max(widest, 1.0))))

    def _alike(self, reader: Reader, n_rows: int) -> Iterator[tuple[bool, list[int]]]:
        """Group consecutive row groups that are read alike: whether their dictionaries may expand a batch.

        A dictionary stores a value once for any number of rows, so a few kilobytes can become gigabytes. No value is
        larger than its row group. Reading a small one is faster than looking at its dictionary.
        """

        def may_expand(group: RowGroup) -> bool:
            is_small = group.n_bytes * min(n_rows, group.n_rows) <= _EXPANDED_BYTES
            return not is_small and bool(self._texts) and _may_expand(reader, group.number, self._texts, n_rows)

        # The row groups of an object are fetched one by one.
        at_once = 1 if isinstance(reader.source, ObjectReader) else len(self.groups)
        for start in range(0, len(self.groups), max(at_once, 1)):
            for expands, found in groupby(self.groups[start : start + at_once], may_expand):
                yield expands, [group.number for group in found]

    @contextmanager
    def _reader(self, groups: Sequence[int] = (), only_first_rows: bool = False) -> Iterator[Reader]:
        """Yield a function that opens the file, of which these row groups will be read."""
        try:
            with readable(self.parquet, at_once=True) as source:
                footer = read_footer(source)
                if footer.checksum != self.footer:
                    raise FileFault(f"{self.path}: has changed since it was found")
                plan(source, footer.metadata, groups, self._names, only_first_rows)
                yield Reader(source, footer)
        except ObjectChanged as error:
            raise FileFault(str(error)) from None
        except (pa.ArrowException, OSError) as error:
            cause = error.cause if isinstance(error, StorageError) else _first_line(error)
            raise FileFault(f"{self.path}: cannot be read further: {cause}") from error


class RawBatch(NamedTuple):
    """Consecutive rows of a file, as they are read.

    Attributes
    ----------
    file : PayloadFile
    start : int
        Number of the first row in the file.
    source : pa.RecordBatch
    """

    file: PayloadFile
    start: int
    source: pa.RecordBatch

    @property
    def payloads(self) -> pa.Array:
        """The payload column."""
        return self.source.column(self.file.payload)

    def is_like(self, other: RawBatch) -> bool:
        """Whether the batch may be joined with another one: it has the same columns and the same form of payloads."""
        file, of = self.file, other.file
        return (
            (file.columns is of.columns or file.columns.equals(of.columns))
            and (file.payload, file.keep, file.unwrap) == (of.payload, of.keep, of.unwrap)
            # Where columns were read as dictionaries, large types have become the usual ones.
            and self.source.schema.equals(other.source.schema)
        )


def read_together(files: Iterable[PayloadFile], batch_rows: int) -> Iterator[list[RawBatch]]:
    """Read files in order. Yield consecutive batches that may be joined, at most `batch_rows` rows together.

    Raises
    ------
    FileFault
        If a file is damaged, after all batches before the damage.
    """
    found: list[RawBatch] = []
    n_rows = n_bytes = 0
    try:
        for file in files:
            for batch in file.raw_batches(batch_rows):
                rows, size = len(batch.source), batch.source.get_total_buffer_size()
                is_full = n_rows + rows > batch_rows or n_bytes + size > _TOGETHER_BYTES
                is_full = is_full or len(found) == _TOGETHER_BATCHES
                if found and (is_full or not batch.is_like(found[0])):
                    yield found
                    found, n_rows, n_bytes = [], 0, 0
                found.append(batch)
                n_rows, n_bytes = n_rows + rows, n_bytes + size
    except FileFault:
        if found:
            yield found
        raise
    if found:
        yield found


def are_payloads(batches: Sequence[RawBatch]) -> bool:
    """Whether batches that `read_together` yields are complete as they are: none has text, frames or keepalives."""
    file = batches[0].file
    return (
        file.unwrap in ("auto", "none")
        and not _holds_text(file.columns.field(file.payload).type)
        and all(name in file.columns.names for name in file.keep)
        and all(batch.payloads.type in _PLAIN_BINARY for batch in batches)
        and not (file.unwrap == "auto" and has_frames([batch.payloads for batch in batches]))
    )


class Reader(NamedTuple):
    """Opens a file several times, whose footer has been read."""

    source: Source
    footer: Footer

    def __call__(self, as_dictionary: Sequence[str] = ()) -> pq.ParquetFile:
        """Open the file; read some columns as dictionaries."""
        if self.footer.file is not None and not as_dictionary:
            return self.footer.file
        return opened(self.source, self.footer.metadata, as_dictionary)


def read_files(
    files: Iterable[PayloadFile], batch_rows: int, workers: Workers
) -> Iterator[tuple[PayloadFile, pa.RecordBatch]]:
    """Read files in order, as `PayloadFile.batches` does, and yield each batch with its file.

    Each worker reads a piece of a file ahead, at most `_AHEAD_BYTES` of it.

    Raises
    ------
    FileFault
        If a file is damaged, after all batches before the damage.
    """
    pieces = ((file, piece) for file in files for piece in file.pieces(_PIECE_BYTES))
    is_ahead = workers.n > 1

    def read(item: tuple[PayloadFile, PayloadFile]) -> tuple[PayloadFile, Iterator[pa.RecordBatch]]:
        file, piece = item
        return file, _ahead(piece.batches(batch_rows)) if is_ahead else piece.batches(batch_rows)

    for file, batches in workers.map(read, pieces):
        for batch in batches:
            yield file, batch


def _ahead(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Read the first batches now, and the others when they are needed, each while the one before it is used."""
    found: deque[pa.RecordBatch] = deque()
    failure = None
    n_bytes = 0
    try:
        for batch in batches:
            found.append(batch)
            n_bytes += batch.nbytes
            if n_bytes >= _AHEAD_BYTES:
                break
    except FileFault as error:
        failure = error

    def rest() -> Iterator[pa.RecordBatch]:
        while found:
            yield found.popleft()
        if failure is not None:
            raise failure
        if n_bytes >= _AHEAD_BYTES:
            yield from prefetched(batches)

    return rest()


def payload_files(path: FilePath, payload: str, keep: Sequence[str] = (), unwrap: Unwrap = "auto") -> list[PayloadFile]:
    """Open and check a Parquet file, or all `*.parquet` files below a folder in sorted order.

    As in Spark, files and folders whose names begin with `_` or `.` are ignored, except partitions such as `_x=1`.
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
        If a file that is not Parquet cannot be converted.
    """
    check_option("unwrap", unwrap, Unwrap)
    found = find_files(path)
    checked = partial(_checked, payload=payload, keep=tuple(keep), unwrap=unwrap, shared=_Shared())
    return list(map_io(checked, found, FILES_AT_ONCE, is_remote=isinstance(path, ObjectPath)))


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


def find_files(path: FilePath) -> Sequence[FilePath]:
    """List the files of a path as `payload_files` does, without opening them.

    Raises
    ------
    PathError
        If the path does not exist, or has no Parquet files.
    """
    if isinstance(path, ObjectPath):
        return _find_objects(path)
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise PathError(f"{path}: {'not a file or folder' if path.exists() else 'no such file or folder'}")
    found = []
    for folder, below, names in os.walk(path):
        below[:] = [name for name in below if not is_hidden(name)]
        found += [Path(folder, name) for name in names if name.endswith(".parquet") and not is_hidden(name)]
    if not found:
        raise PathError(f"{path}: no Parquet file (*.parquet) in this folder")
    return sorted(found)


def _find_objects(path: ObjectPath) -> list[ObjectPath]:
    try:
        found = found_object(path)
        if found is not None:
            return [found]
        below = [item for item, _ in listed(path)]
    except FileNotFoundError as error:
        raise PathError(f"{path}: {error.strerror}") from None
    kept = [item for item in below if not any(map(is_hidden, item.below(path).split("/")))]
    kept = [item for item in kept if item.name.endswith(".parquet")]
    if not kept:
        raise PathError(f"{path}: {'no Parquet object (*.parquet) below it' if below else 'no such object or prefix'}")
    return sorted(kept, key=lambda item: item.key)


def is_hidden(name: str) -> bool:
    """Whether Spark ignores files and folders with this name."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def _checked(path: FilePath, payload: str, keep: tuple[str, ...], unwrap: Unwrap, shared: _Shared) -> PayloadFile:
    converted = None
    try:
        if isinstance(path, Path) and unwrap != "none" and not is_parquet(path):
            converted = ConvertedFile(path, payload)
        with readable(path if converted is None else converted.path) as source:
            checksum, metadata, _ = read_footer(source)
        schema, groups = metadata.schema.to_arrow_schema().remove_metadata(), _row_groups(metadata, (payload, *keep))
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
            raise PathError(f"{path}: not a Parquet file") from None
        raise FileFault(f"{path}: not a Parquet file, and cannot be read as text: {error}") from None
    except (pa.ArrowException, OSError, UnicodeDecodeError, csv.Error) as error:
        raise PathError(f"{path}: not a Parquet file") from error
    known = shared.columns.get(schema)
    if known is None or (CAPTURE_SESSION in keep and captured is None):
        kept = _kept_columns(path, schema, payload, keep, unwrap, is_captured=captured is not None)
        known = shared.columns.setdefault(schema, (schema, kept))
    columns, kept = known
    return PayloadFile(path, payload, keep, kept, columns, groups, checksum, unwrap, converted, captured, entries)


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
        if found == 0 and name == _FRAME_LSN and unwrap in ("auto", "xlogdata"):
            continue
        if found == 0 and name == CAPTURE_SESSION and is_captured:
            continue
        if found != 1:
            there = f"binary columns: {binary}" if name == payload else f"columns: {', '.join(schema.names)}"
            near = "" if found else did_you_mean(name, schema.names)
            raise PathError(f"{path}: {'no' if found == 0 else 'more than one'} column {name!r}{near}; {there}")
    type = schema.field(payload).type
    if not _is_binary(type) and not (_holds_text(type) and unwrap in ("auto", "hex", "base64")):
        raise PathError(f"{path}: column {payload!r} is {type}, not binary; binary columns: {binary}")
    return pa.schema(
        [(name, _plain_type(schema.field(name).type) if name in schema.names else pa.int64()) for name in keep]
    )


def _captured(content: bytes | None) -> Captured | None:
    """Read what `pgdecode capture` wrote into the footer; None if it did not, or another program changed it."""
    if content is None:
        return None
    try:
        file = json.loads(content)["file"]
        return Captured(int(file["session"]), int(file["first_seq"]), int(file["open_streams"]))
    except (ValueError, KeyError, TypeError):
        return None


def _is_binary(type: pa.DataType) -> bool:
    if pa.types.is_dictionary(type):
        type = type.value_type
    if pa.types.is_fixed_size_binary(type) or pa.types.is_null(type):
        return True
    return _plain_type(type) in (pa.binary(), pa.large_binary())


def _holds_text(type: pa.DataType) -> bool:
    return is_string(type.value_type if pa.types.is_dictionary(type) else type)


def _is_text(type: pa.DataType) -> bool:
    """Whether values have variable length, so that a dictionary may have long values."""
    if pa.types.is_dictionary(type):
        type = type.value_type
    return _plain_type(type) in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


def _plain_type(type: pa.DataType) -> pa.DataType:
    """Replace a view type, because pyarrow can neither filter views nor compute their size."""
    return _VIEWS.get(type, type)


def _is_plain(batch: pa.RecordBatch, payload: str) -> bool:
    """Whether `_decoded_pieces` and `_plain` have nothing to convert."""
    ids = [type.id for type in batch.schema.types]
    return ids[batch.schema.get_field_index(payload)] in _BINARY_IDS and _CONVERTED_IDS.isdisjoint(ids)


def _plain(batch: pa.RecordBatch, payload: str) -> pa.RecordBatch:
    """Convert columns to types that pyarrow's functions support, and payloads to binary."""
    for index, found in enumerate(batch.schema):
        plain = _plain_type(found.type)
        if found.name == payload and plain != pa.large_binary():
            plain = pa.binary()
        if plain != found.type:
            batch = batch.set_column(index, found.name, batch.column(index).cast(plain))
    return batch


def _row_groups(metadata: pq.FileMetaData, columns: Sequence[str]) -> tuple[RowGroup, ...]:
    paths = [metadata.schema.column(leaf).path for leaf in range(metadata.num_columns)]
    leaves = [leaf for leaf, path in enumerate(paths) if path in columns or path.partition(".")[0] in columns]
    found = []
    start = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        chunks = [group.column(leaf) for leaf in leaves]
        n_bytes = sum(chunk.total_uncompressed_size for chunk in chunks)
        ranges = tuple((chunk.path_in_schema, *limits) for chunk in chunks if (limits := _range(chunk)) is not None)
        found.append(RowGroup(number, start, group.num_rows, n_bytes, ranges))
        start += group.num_rows
    return tuple(found)


def _range(chunk: pq.ColumnChunkMetaData) -> tuple[int, int] | None:
    """Return the least and greatest value of an integer column without nulls, if both are known and not negative."""
    found = chunk.statistics if chunk.physical_type in ("INT32", "INT64") else None
    if found is None or not found.has_min_max or not found.has_null_count or found.null_count:
        return None
    # Raw values, because Python cannot represent all dates and timestamps of a column.
    low, high = int(found.min_raw), int(found.max_raw)
    return (low, high) if 0 <= low <= high else None


def _may_expand(reader: Reader, group: int, texts: Sequence[str], n_rows: int) -> bool:
    """Whether `n_rows` rows may exceed the size of a batch, if all have the longest value of their dictionary."""
    metadata = reader.footer.metadata.row_group(group)
    chunks = [metadata.column(leaf) for leaf in range(metadata.num_columns)]
    names = {chunk.path_in_schema for chunk in chunks if chunk.has_dictionary_page}.intersection(texts)
    if not names:
        return False
    longest = 0
    with reader(texts) as encoded:
        for name in names:
            for batch in encoded.iter_batches(1, row_groups=[group], columns=[name], use_threads=False):
                longest += pc.max(pc.binary_length(batch.column(0).dictionary)).as_py() or 0
                break
    return bool(longest * min(n_rows, metadata.num_rows) > 2 * BATCH_BYTES)


def one_batch(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Make one batch of some, of which there is at least one."""
    return batches[0] if len(batches) == 1 else pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _decoded_pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Decode dictionaries, in pieces of about `BATCH_BYTES`."""
    encoded = [at for at, field in enumerate(batch.schema) if pa.types.is_dictionary(field.type)]
    if not encoded or not len(batch):
        yield batch
        return
    sizes = pa.array([0] * len(batch), pa.int64())
    for at in encoded:
        column = batch.column(at)
        if _is_text(column.type):
            lengths = pc.binary_length(column.dictionary).cast(pa.int64())
            sizes = pc.add(sizes, pc.fill_null(lengths.take(column.indices), 0))
    start = 0
    # The number of each row's piece, from the bytes before the row.
    numbers = pc.divide(pc.subtract(pc.cumulative_sum(sizes), sizes), BATCH_BYTES)
    for length in pc.run_end_encode(numbers).run_ends.to_pylist():
        piece = batch.slice(start, length - start)
        for at in encoded:
            name, column = batch.schema.field(at).name, piece.column(at)
            piece = piece.set_column(at, name, column.dictionary.take(column.indices))
        yield piece
        start = length


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split a batch that is too large. The number of rows is based on the average size, and sizes may vary."""
    if batch.nbytes <= 2 * BATCH_BYTES or batch.num_rows < 2:
        yield batch
        return
    half = batch.num_rows // 2
    yield from _pieces(batch.slice(0, half))
    yield from _pieces(batch.slice(half))


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
