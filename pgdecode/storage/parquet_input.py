"""Opens Parquet files: local ones, and objects, whose wanted columns are read in few large ranges."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from pgdecode.storage.object_files import ObjectReader
from pgdecode.storage.object_path import FilePath

# The key of a footer with the size of the file and a checksum of the footer, as hexadecimal numbers. The checksum
# counts their digits as zeros. Checksums of pages do not cover the footer.
CHECK_KEY = b"pgdecode.check"
NO_CHECK = b"0" * 24
# Between a key and its value: the number and type of the value's field, and its length.
_VALUE = bytes([0x18, len(NO_CHECK)])
# Size of the buffer for reading pages. Without a buffer, pyarrow loads the whole column chunk of a row group.
_READ_BUFFER = 2**20
# The end of a file, which usually has the whole footer.
_TAIL_BYTES = 16 * 2**10
_SMALL_BYTES = 2**20
# Opening a named pipe, which a folder may have instead of a file, does not wait for a process that writes to it.
_READ = os.O_RDONLY | os.O_NONBLOCK
# A nonce and a tag, behind the metadata of a file with encrypted columns.
_SIGNATURE_BYTES = 12 + 16

# An object; a local file; or the bytes of a small one.
Source: TypeAlias = "ObjectReader | Path | pa.Buffer"


# What pyarrow raises for a damaged file: a damaged footer has names that are not UTF-8.
PARQUET_ERRORS = (pa.ArrowException, OSError, UnicodeDecodeError)


class EncryptedFile(OSError):
    """A file, or a column of it, that pgdecode cannot read because it is encrypted."""


class Footer(NamedTuple):
    """The footer of a file.

    Attributes
    ----------
    checksum : int
        Of its bytes and of the file's size.
    metadata : pq.FileMetaData
    content : bytes or pa.Buffer
        The bytes of the metadata, and what follows them in the file.
    file : pq.ParquetFile or None
        The open file, if its bytes are in memory.
    signed : bytes or None
        The bytes of the metadata, if a signature follows them. Then columns may be encrypted.
    """

    checksum: int
    metadata: pq.FileMetaData
    content: pa.Buffer | bytes
    file: pq.ParquetFile | None = None
    signed: bytes | None = None


@contextmanager
def readable(path: FilePath, *, at_once: bool = False) -> Iterator[Source]:
    """Yield what `read_footer` and `opened` read. Several readers of an object share what was fetched.

    With `at_once`, a small local file is read now, because each system call costs more than its bytes.

    Raises
    ------
    UnicodeEncodeError
        If a path is not UTF-8, which pyarrow needs for larger files.
    """
    if isinstance(path, Path):
        str(path).encode()
        content = _small(path) if at_once else None
        yield path.absolute() if content is None else pa.py_buffer(content)
        return
    reader = ObjectReader(path)
    try:
        yield reader
    finally:
        reader.close()


def _small(path: Path) -> bytes | None:
    file = os.open(path, _READ)
    try:
        size = os.fstat(file).st_size
        return os.read(file, size) if size <= _SMALL_BYTES else None
    finally:
        os.close(file)


def opened(source: Source, metadata: pq.FileMetaData, as_dictionary: Sequence[str] = ()) -> pq.ParquetFile:
    """Open a Parquet file that `readable` has yielded, without reading its footer again.

    Pages with a checksum are verified, also where the file is not compressed: captured files have checksums.
    """
    buffer_size = 0
    if isinstance(source, pa.Buffer):
        where: Any = pa.BufferReader(source)
    else:
        # An absolute path, because pyarrow would treat "s3:x/y" as a URI.
        where = source if isinstance(source, Path) else pa.PythonFile(source, mode="r")
        buffer_size = _READ_BUFFER
    return pq.ParquetFile(
        where,
        metadata=metadata,
        pre_buffer=False,
        buffer_size=buffer_size,
        read_dictionary=list(as_dictionary),
        page_checksum_verification=True,
    )


def plan(
    source: Source,
    metadata: pq.FileMetaData,
    groups: Sequence[int],
    names: Sequence[str],
    only_first_rows: bool = False,
) -> None:
    """Tell the reader of an object which columns of which row groups will be read.

    Raises
    ------
    OSError
        If a column is outside the object, according to the footer.
    """
    if isinstance(source, ObjectReader):
        leaves = leaves_of(metadata, names)
        ranges = [[chunk_range(metadata.row_group(number).column(leaf)) for leaf in leaves] for number in groups]
        for start, end in chain.from_iterable(ranges):
            if not 0 <= start <= end <= source.path.size:
                raise OSError("a column chunk is outside the file, according to its footer")
        source.plan(ranges, only_first_rows)


def leaves_of(metadata: pq.FileMetaData, names: Sequence[str]) -> list[int]:
    """Return the numbers of the Parquet columns that belong to some columns."""
    paths = [metadata.schema.column(leaf).path for leaf in range(metadata.num_columns)]
    # Beside a column "data", one called "data.x" is not a part of it.
    parts = tuple(f"{name}." for name in names if name not in paths)
    return [leaf for leaf, path in enumerate(paths) if path in names or path.startswith(parts)]


def chunk_range(chunk: pq.ColumnChunkMetaData) -> tuple[int, int]:
    """Return where the bytes of a column of a row group begin and end."""
    start = chunk.data_page_offset
    if chunk.has_dictionary_page:
        start = min(start, chunk.dictionary_page_offset)
    return start, start + chunk.total_compressed_size


def read_metadata(path: FilePath) -> pq.FileMetaData:
    """Read the footer of a Parquet file."""
    with readable(path) as source:
        return read_footer(source).metadata


def read_footer(source: Source) -> Footer:
    """Read the footer of a file.

    Raises
    ------
    pa.ArrowException, OSError, UnicodeDecodeError
        If the file does not end with a footer, or with a damaged one (`PARQUET_ERRORS`). The footer of a captured file
        has a checksum, which counts unless another program has written the file anew.
    EncryptedFile
        If the footer is encrypted.
    """
    content, size = _tail(source)
    if bytes(content[-4:]) == b"PARE":
        raise EncryptedFile("is encrypted; decrypt it first")
    _verify(bytes(content), size)
    is_whole = isinstance(source, pa.Buffer)
    # pyarrow reads the footer from the end, wherever it begins.
    file = pq.ParquetFile(
        pa.BufferReader(source if is_whole else content), pre_buffer=False, page_checksum_verification=True
    )
    n_bytes = file.metadata.serialized_size
    signed = bytes(content[:n_bytes]) if len(content) == n_bytes + _SIGNATURE_BYTES + 8 else None
    return Footer(zlib.crc32(content, size), file.metadata, content, file if is_whole else None, signed)


def _check_of(footer: bytes, size: int, at: int) -> bytes:
    """Compute the value of `CHECK_KEY`, which is at an offset of the footer."""
    plain = footer[:at] + NO_CHECK + footer[at + len(NO_CHECK) :]
    return b"%016x%08x" % (size, zlib.crc32(plain))


def _value_at(footer: bytes) -> int:
    """Find the value of `CHECK_KEY`; -1 without one."""
    at = footer.rfind(CHECK_KEY + _VALUE)
    return at if at < 0 else at + len(CHECK_KEY + _VALUE)


def _verify(footer: bytes, size: int) -> None:
    at = _value_at(footer)
    expected = _check_of(footer, size, at) if at >= 0 else b""
    found = footer[at : at + len(expected)]
    # Another program that copies the keys makes a file of another size.
    if found != expected and found[:16] == expected[:16]:
        raise OSError("the footer does not have its checksum")


def add_check(path: Path) -> None:
    """Write the value of `CHECK_KEY` into the footer of a file, which has `NO_CHECK` in its place."""
    footer, size = _tail(path)
    footer = bytes(footer)
    at = _value_at(footer)
    with path.open("r+b") as file:
        file.seek(size - len(footer) + at)
        file.write(_check_of(footer, size, at))


def _tail(source: Source) -> tuple[pa.Buffer | bytes, int]:
    """Read the footer with its length and the last four bytes, and the size of the file."""
    if isinstance(source, ObjectReader):
        return source.tail(_length(source.tail(8))), source.path.size
    if isinstance(source, pa.Buffer):
        return source[-min(_length(source[-min(source.size, 8) :]), source.size) :], source.size
    file = os.open(source, _READ)
    try:
        size = os.fstat(file).st_size
        found = os.pread(file, _TAIL_BYTES, max(size - _TAIL_BYTES, 0))
        length = _length(found[-8:])
        if length > len(found):
            found = os.pread(file, length, max(size - length, 0))
        return found[-length:], size
    finally:
        os.close(file)


def _length(end: pa.Buffer | bytes) -> int:
    return int.from_bytes(bytes(end)[:4], "little") + 8


def is_parquet(path: Path) -> bool:
    """Whether a file is a Parquet file, or is named like one."""
    if path.suffix == ".parquet":
        return True
    with path.open("rb") as file:
        return file.read(4) == b"PAR1"
