"""One file of raw payloads, whose columns are read in batches of limited size."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pgdecode.arrow.batch_sizes import split_batch
from pgdecode.files.text_files import ConvertedFile
from pgdecode.payloads.unwrap import UnwrapError, is_string, unwrap_in_place
from pgdecode.protocol.options import Unwrap
from pgdecode.storage.errors import StorageError
from pgdecode.storage.object_files import ObjectReader
from pgdecode.storage.object_path import FilePath
from pgdecode.storage.object_store import ObjectChanged
from pgdecode.storage.parquet_input import (
    PARQUET_ERRORS,
    Footer,
    Source,
    leaves_of,
    opened,
    plan,
    read_footer,
    readable,
)

# The size of a batch: large enough for an efficient decoder, small compared with the interpreter's own memory.
BATCH_ROWS = 131_072
BATCH_BYTES = 32 * 2**20
# Dictionaries are not read first where they cannot expand a batch beyond this size.
_EXPANDED_BYTES = 8 * BATCH_BYTES
# The least number of rows that are read at once if values may share their beginnings.
_FEW_ROWS = 64
PLAIN_BINARY = (pa.binary(), pa.large_binary())
_VIEWS = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
_BINARY_IDS = {type.id for type in PLAIN_BINARY}
_CONVERTED_IDS = {type.id for type in (pa.dictionary(pa.int32(), pa.string()), *_VIEWS)}
# Columns that files do not have: the LSN of a frame, and the number of the session in which a capture received a row.
FRAME_LSN = "frame_lsn"
CAPTURE_SESSION = "capture_session"
# The key in the footer under which `pgdecode capture` describes a file.
CAPTURE_KEY = b"pgdecode.capture"
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
    end : int
        Offset in the file at which the last of the columns that are read ends.
    """

    number: int
    start: int
    n_rows: int
    n_bytes: int
    ranges: tuple[tuple[str, int, int], ...] = ()
    end: int = 0

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
    encoding : str
        client_encoding of the session.
    first_lsn : int
        LSN of the first message that has one.
    """

    session: int
    first_seq: int
    open_streams: int
    encoding: str = "UTF8"
    first_lsn: int = 0


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
    skip : int
        Number of rows at the beginning of the first row group that are left out: they have been decoded.
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
    skip: int = 0

    def __str__(self) -> str:
        return str(self.path)

    @property
    def parquet(self) -> FilePath:
        """The Parquet file that is read."""
        return self.path if self.converted is None else self.converted.path

    @property
    def start(self) -> int:
        """Number of the first row to read in the file."""
        return self.groups[0].start + self.skip if self.groups else 0

    @property
    def n_rows(self) -> int:
        """Number of rows to read."""
        return sum(group.n_rows for group in self.groups) - self.skip

    def after(self, n_rows: int) -> PayloadFile:
        """Return the file without its first rows."""
        groups = tuple(group for group in self.groups if group.start + group.n_rows > n_rows)
        return replace(self, groups=groups, skip=n_rows - groups[0].start if groups else 0)

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
        batches: list[pa.RecordBatch] = []
        n_read = n_bytes = 0
        # Read as dictionaries in any case, because checking whether values may expand takes as long. Batches then end
        # at the end of row groups.
        with self._reader(groups, only_first_rows=True) as reader:
            chunks = reader.chunks(groups, self._texts)
            batch_rows = self._rows_that_fit(n_rows)
            if _repeats_beginnings(chunks):
                batch_rows = min(batch_rows, _FEW_ROWS)
            with reader(_as_dictionaries(chunks, self._texts)) as encoded:
                for batch in self._read(encoded, batch_rows, groups):
                    batches.append(batch)
                    n_read += len(batch)
                    n_bytes += batch.nbytes
                    if n_read >= n_rows or n_bytes >= BATCH_BYTES:
                        break
        if not batches:
            raise FileFault(f"{self.path}: has no rows")
        return self.unwrapped(one_batch(batches).slice(0, n_rows), self.start)

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
        if name not in self.columns.names:
            return self.first_rows(1).column(name)[0].as_py() if self.n_rows else None
        return next((column[0].as_py() for column in self._column(name, 1)), None)

    def range_of(self, name: str) -> tuple[Any, Any] | None:
        """Read a column, and find its least and greatest value; None without values.

        Raises
        ------
        FileFault
            If the file is damaged.
        """
        ranges = [pc.min_max(column) for column in self._column(name, BATCH_ROWS)]
        values = [item for item in ranges if item["min"].is_valid]
        if not values:
            return None
        return min(item["min"].as_py() for item in values), max(item["max"].as_py() for item in values)

    def _column(self, name: str, batch_rows: int) -> Iterator[pa.Array]:
        """Yield the values of a column in batches. LSNs of frames and sessions of captured files come with payloads."""
        if name not in self.columns.names:
            yield from (batch.column(name) for batch in self.batches(batch_rows))
            return
        with self._reader() as reader, reader() as file:
            for batch in file.iter_batches(batch_rows, row_groups=self._numbers, columns=[name], use_threads=False):
                yield batch.column(0)

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
        start, first_row = self.start - self.skip, self.start
        with self._reader(self._numbers) as reader:
            for (as_dictionary, most), groups in self._alike(reader, n_rows):
                with reader(as_dictionary) as file:
                    batches = self._read(file, most, [group.number for group in groups])
                    for batch in batches if most == n_rows else _joined(batches, n_rows):
                        skipped = min(max(first_row - start, 0), len(batch))
                        if skipped < len(batch):
                            yield RawBatch(self, start + skipped, batch.slice(skipped))
                        start += len(batch)
                # pyarrow skips pages of an unknown type, and reads as many values as a column chunk says it has.
                first, last = groups[0], groups[-1]
                n_read, expected = start - first.start, last.start + last.n_rows - first.start
                if n_read != expected:
                    detail = f"has {n_read:,} rows in place of the {expected:,} that its footer says"
                    raise FileFault(f"{self.path}: {detail}: it is damaged")

    def pieces(self, n_bytes: int) -> list[PayloadFile]:
        """Divide the file into pieces of about `n_bytes`, between row groups. There is at least one."""
        if len(self.groups) <= 1 and not self.entries:
            return [self]
        pieces = []
        first = size = 0
        for end, group in enumerate(self.groups):
            if end > first and size + group.n_bytes > n_bytes:
                pieces.append(replace(self, groups=self.groups[first:end], entries={}, skip=0 if first else self.skip))
                first, size = end, 0
            size += group.n_bytes
        return [*pieces, replace(self, groups=self.groups[first:], entries={}, skip=0 if first else self.skip)]

    def _read(self, file: pq.ParquetFile, n_rows: int, groups: Sequence[int]) -> Iterator[pa.RecordBatch]:
        # Threads do not make one column faster, and each uses additional memory.
        for batch in file.iter_batches(n_rows, row_groups=groups, columns=self._names, use_threads=False):
            if batch.get_total_buffer_size() <= 2 * BATCH_BYTES and _is_plain(batch, self.payload):
                yield batch
                continue
            for piece in _decoded_pieces(batch):
                # The number of rows is based on the average size, and sizes may vary.
                yield from split_batch(_plain(piece, self.payload), 2 * BATCH_BYTES)

    def unwrapped(self, batch: pa.RecordBatch, start: int) -> pa.RecordBatch:
        """Replace frames or text by their payloads. `start` is the number of the first row.

        Raises
        ------
        FileFault
            If a value does not have the form of the payloads.
        """
        column = batch.column(self.payload)
        try:
            form = unwrap_in_place(column, self.unwrap, is_text=holds_text(self.columns.field(self.payload).type))
        except UnwrapError as error:
            raise FileFault(f"{self.path}: row {start + error.row}: {error.reason}") from None
        if form.payloads is not column:
            batch = batch.set_column(batch.schema.get_field_index(self.payload), self.payload, form.payloads)
        if FRAME_LSN in self.schema.names and FRAME_LSN not in self.columns.names:
            lsn = pa.nulls(len(batch), pa.int64()) if form.lsn is None else form.lsn
            batch = batch.append_column(FRAME_LSN, lsn)
        if CAPTURE_SESSION in self.schema.names and CAPTURE_SESSION not in self.columns.names:
            assert self.captured is not None
            session = pa.repeat(pa.scalar(self.captured.session, pa.int64()), len(batch))
            batch = batch.append_column(CAPTURE_SESSION, session)
        if form.is_keepalive is not None and form.is_keepalive.true_count:
            batch = batch.append_column(IS_KEEPALIVE, pc.fill_null(form.is_keepalive, False))
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
        # A dictionary may have stored a value of constant width once for many rows.
        constant = sum(_constant_width(self.columns.field(name).type) for name in self._names)
        return max(1, min(batch_rows, int(BATCH_BYTES / max(widest, constant, 1.0))))

    def _alike(self, reader: Reader, n_rows: int) -> Iterator[tuple[_Way, list[RowGroup]]]:
        """Group consecutive row groups that are read alike, in batches of at most `n_rows` rows.

        A dictionary stores a value once for any number of rows, and DELTA_BYTE_ARRAY does not repeat how values begin.
        So a few kilobytes can become gigabytes. No value is larger than its row group. Reading a small one is faster
        than looking at its dictionary.
        """

        def way(group: RowGroup) -> _Way:
            is_small = group.n_bytes * min(n_rows, group.n_rows) <= _EXPANDED_BYTES
            if is_small or not self._texts:
                return (), n_rows
            chunks = reader.chunks([group.number], self._texts)
            if _repeats_beginnings(chunks):
                return (), min(n_rows, max(2 * BATCH_BYTES // group.n_bytes, _FEW_ROWS))
            expands = _may_expand(reader, group.number, chunks, min(n_rows, group.n_rows))
            return _as_dictionaries(chunks, self._texts) if expands else (), n_rows

        # The row groups of an object are fetched one by one.
        at_once = 1 if isinstance(reader.source, ObjectReader) else len(self.groups)
        for start in range(0, len(self.groups), max(at_once, 1)):
            for chosen_way, groups in groupby(self.groups[start : start + at_once], way):
                yield chosen_way, list(groups)

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
        except PARQUET_ERRORS as error:
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


# How row groups are read: which columns as dictionaries, and how many rows at once.
_Way = tuple[tuple[str, ...], int]


class Reader(NamedTuple):
    """Opens a file several times, whose footer has been read."""

    source: Source
    footer: Footer

    def __call__(self, as_dictionary: Sequence[str] = ()) -> pq.ParquetFile:
        """Open the file; read some columns as dictionaries."""
        if self.footer.file is not None and not as_dictionary:
            return self.footer.file
        return opened(self.source, self.footer.metadata, as_dictionary)

    def chunks(self, groups: Iterable[int], names: Sequence[str]) -> list[pq.ColumnChunkMetaData]:
        """List the chunks of some columns in some row groups."""
        metadata = self.footer.metadata
        leaves = leaves_of(metadata, names)
        return [metadata.row_group(number).column(leaf) for number in groups for leaf in leaves]


def _as_dictionaries(chunks: Iterable[pq.ColumnChunkMetaData], names: Sequence[str]) -> tuple[str, ...]:
    """List the columns that pyarrow can read as dictionaries: not those with a chunk in a DELTA encoding."""
    others = {chunk.path_in_schema for chunk in chunks if any(name.startswith("DELTA_") for name in chunk.encodings)}
    return tuple(name for name in names if name not in others)


def _repeats_beginnings(chunks: Iterable[pq.ColumnChunkMetaData]) -> bool:
    """Whether a value may be stored without its beginning, which is that of the value before."""
    return any("DELTA_BYTE_ARRAY" in chunk.encodings for chunk in chunks)


def _may_expand(reader: Reader, group: int, chunks: Sequence[pq.ColumnChunkMetaData], n_rows: int) -> bool:
    """Whether `n_rows` rows may exceed the size of a batch, if all have the longest value of their dictionary."""
    names = [chunk.path_in_schema for chunk in chunks if chunk.has_dictionary_page]
    longest = sum(_longest_value(reader, group, name) for name in names)
    return bool(longest * n_rows > 2 * BATCH_BYTES)


def _longest_value(reader: Reader, group: int, name: str) -> int:
    """Find the length of the longest value in a column's dictionary, which pyarrow reads with the first row."""
    with reader([name]) as encoded:
        for batch in encoded.iter_batches(1, row_groups=[group], columns=[name], use_threads=False):
            return int(pc.max(pc.binary_length(batch.column(name).dictionary)).as_py() or 0)
    return 0


def _is_text(type: pa.DataType) -> bool:
    """Whether values have variable length, so that a dictionary may have long values."""
    if pa.types.is_dictionary(type):
        type = type.value_type
    return plain_type(type) in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


def _constant_width(type: pa.DataType) -> int:
    """Return the number of bytes of values that have a constant number of bytes; 0 for others."""
    if pa.types.is_dictionary(type):
        type = type.value_type
    return type.byte_width if pa.types.is_fixed_size_binary(type) else 0


def holds_text(type: pa.DataType) -> bool:
    """Whether values are text, in a dictionary or not."""
    return is_string(type.value_type if pa.types.is_dictionary(type) else type)


def plain_type(type: pa.DataType) -> pa.DataType:
    """Replace a view type, because pyarrow can neither filter views nor compute their size."""
    return _VIEWS.get(type, type)


def _is_plain(batch: pa.RecordBatch, payload: str) -> bool:
    """Whether `_decoded_pieces` and `_plain` have nothing to convert."""
    ids = [type.id for type in batch.schema.types]
    return ids[batch.schema.get_field_index(payload)] in _BINARY_IDS and _CONVERTED_IDS.isdisjoint(ids)


def _plain(batch: pa.RecordBatch, payload: str) -> pa.RecordBatch:
    """Convert columns to types that pyarrow's functions support, and payloads to binary."""
    for index, column in enumerate(batch.schema):
        plain = plain_type(column.type)
        if column.name == payload and plain != pa.large_binary():
            plain = pa.binary()
        if plain != column.type:
            batch = batch.set_column(index, column.name, batch.column(index).cast(plain))
    return batch


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


def _joined(batches: Iterable[pa.RecordBatch], n_rows: int) -> Iterator[pa.RecordBatch]:
    """Join small batches, up to `n_rows` rows or about `BATCH_BYTES`."""
    joined: list[pa.RecordBatch] = []
    n_joined = n_bytes = 0
    for batch in batches:
        if joined and (n_joined + len(batch) > n_rows or n_bytes + batch.nbytes > BATCH_BYTES):
            yield one_batch(joined)
            joined, n_joined, n_bytes = [], 0, 0
        joined.append(batch)
        n_joined, n_bytes = n_joined + len(batch), n_bytes + batch.nbytes
    if joined:
        yield one_batch(joined)


def one_batch(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Make one batch of some, of which there is at least one."""
    return batches[0] if len(batches) == 1 else pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


def fingerprint_of(payload: pa.Scalar) -> str:
    """Compute a fingerprint of a row by its payload, to recognise it when its file has grown."""
    return hashlib.sha256(payload.as_buffer() if payload.is_valid else b"").hexdigest()[:32]
