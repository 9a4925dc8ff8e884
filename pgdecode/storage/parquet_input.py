"""Opens Parquet files: local ones, and objects, whose wanted columns are read in few large ranges."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pgdecode.storage.object_files import ObjectReader
from pgdecode.storage.object_path import FilePath

# Size of the buffer for reading pages. Without a buffer, pyarrow loads the whole column chunk of a row group.
_READ_BUFFER = 2**20


@contextmanager
def readable(path: FilePath) -> Iterator[Path | ObjectReader]:
    """Yield what `opened` reads. Several readers of an object share what was fetched."""
    if isinstance(path, Path):
        yield path.absolute()
        return
    reader = ObjectReader(path)
    try:
        yield reader
    finally:
        reader.close()


def opened(source: Path | ObjectReader, as_dictionary: Sequence[str] = ()) -> pq.ParquetFile:
    """Open a Parquet file that `readable` has yielded."""
    # An absolute path, because pyarrow would treat "s3:x/y" as a URI.
    where = source if isinstance(source, Path) else pa.PythonFile(source, mode="r")
    return pq.ParquetFile(where, pre_buffer=False, buffer_size=_READ_BUFFER, read_dictionary=list(as_dictionary))


def plan(source: Path | ObjectReader, metadata: pq.FileMetaData, groups: Sequence[int], names: Sequence[str]) -> None:
    """Tell the reader of an object which columns of which row groups will be read."""
    if isinstance(source, ObjectReader):
        source.plan([_ranges(metadata.row_group(number), names) for number in groups])


def _ranges(group: Any, names: Sequence[str]) -> list[tuple[int, int]]:
    found = []
    for leaf in range(group.num_columns):
        chunk = group.column(leaf)
        path = chunk.path_in_schema
        if path in names or path.partition(".")[0] in names:
            offsets = [chunk.data_page_offset]
            offsets += [chunk.dictionary_page_offset] if chunk.has_dictionary_page else []
            found.append((min(offsets), min(offsets) + chunk.total_compressed_size))
    return found


def read_metadata(path: FilePath) -> pq.FileMetaData:
    """Read the footer of a Parquet file."""
    with readable(path) as source, opened(source) as file:
        return file.metadata


def footer_checksum(source: Path | ObjectReader) -> int:
    """Compute the checksum of a file's footer. Opening the file has checked the footer's length (last 8 bytes)."""
    if isinstance(source, ObjectReader):
        return zlib.crc32(source.tail(int.from_bytes(source.tail(8)[:4], "little") + 8), source.path.size)
    with source.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - 8, 0))
        length = int.from_bytes(file.read(4), "little")
        file.seek(max(size - 8 - length, 0))
        return zlib.crc32(file.read(), size)


def is_parquet(path: Path) -> bool:
    """Whether a file is a Parquet file, or is named like one."""
    with path.open("rb") as file:
        return file.read(4) == b"PAR1" or path.suffix == ".parquet"
