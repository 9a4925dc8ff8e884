"""Objects as files: read in few large ranges, and written in parts while their SHA-256 is computed."""

from __future__ import annotations

import functools
import hashlib
import io
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from pgdecode.storage.object_path import ObjectPath
from pgdecode.storage.object_store import found_object, import_obstore, read_range, store_errors, store_of

# The end of a Parquet file, which usually has the whole footer.
_TAIL_BYTES = 64 * 2**10
# Ranges that are closer than this are read by one request: it costs more than the bytes between them.
_GAP_BYTES = 2**20
# Row groups up to this size are read at once, and the next one in advance. Others are read in windows. Small row groups
# are read together, up to the size of a window.
_GROUP_BYTES = 64 * 2**20
_WINDOW_BYTES = 8 * 2**20
# For the first rows of a column: usually enough for its dictionary, or its first page.
_FIRST_BYTES = 2**20
# The size of a part of a multipart upload. A smaller object is written by one request.
_PART_BYTES = 8 * 2**20

Range = tuple[int, int]


class ObjectReader:
    """An object as a file for pyarrow.

    Parameters
    ----------
    path : ObjectPath
        With size and ETag. Otherwise they are requested.

    Raises
    ------
    FileNotFoundError
        If there is no object.
    """

    def __init__(self, path: ObjectPath) -> None:
        found = path if path.size >= 0 else found_object(path)
        if found is None:
            raise FileNotFoundError(f"{path}: no such object")
        self.path = found
        self.closed = False
        self._position = 0
        self._blocks: list[tuple[int, pa.Buffer]] = []
        self._groups: list[list[Range]] = []
        self._only_first_rows = False
        self._next: tuple[int, Future[list[tuple[int, pa.Buffer]]]] | None = None
        self._thread: ThreadPoolExecutor | None = None

    def plan(self, groups: Sequence[Sequence[Range]], only_first_rows: bool = False) -> None:
        """Set the ranges of each row group that will be read, in the order of reading.

        Consecutive row groups are joined if they are one small range together.
        """
        self._groups = []
        for group in groups:
            joined = _coalesced([*self._groups[-1], *group]) if self._groups else []
            if len(joined) == 1 and _size(joined) <= _WINDOW_BYTES:
                self._groups[-1] = joined
            else:
                self._groups.append(_coalesced(group))
        self._only_first_rows = only_first_rows

    def tail(self, n_bytes: int) -> pa.Buffer:
        """Read the last bytes."""
        return _tail(self.path, min(max(n_bytes, _TAIL_BYTES), self.path.size))[-n_bytes:]

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position."""
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.path.size}[whence]
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def read(self, n_bytes: int = -1) -> bytes:
        """Read bytes at the position."""
        return bytes(self.read_buffer(n_bytes))

    def read_buffer(self, n_bytes: int = -1) -> pa.Buffer:
        """Read bytes at the position, without copying them."""
        start = self._position
        end = self.path.size if n_bytes < 0 else min(start + n_bytes, self.path.size)
        self._position = end
        return self._range(start, end)

    def readable(self) -> bool:
        """Whether it can be read."""
        return True

    seekable = readable

    def writable(self) -> bool:
        """Whether it can be written."""
        return False

    def flush(self) -> None:
        """Do nothing, because nothing is written."""

    def close(self) -> None:
        """Release what was read."""
        self.closed = True
        self._blocks, self._next = [], None
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
            self._thread = None

    def _range(self, start: int, end: int) -> pa.Buffer:
        if start >= end:
            return pa.py_buffer(b"")
        if end == self.path.size and end - start <= _TAIL_BYTES:
            return self.tail(end - start)
        found = self._in_blocks(start, end)
        if found is not None:
            return found
        self._fetch(start, end)
        found = self._in_blocks(start, end)
        # A range that was not planned.
        return _fetched(self.path, start, end) if found is None else found

    def _in_blocks(self, start: int, end: int) -> pa.Buffer | None:
        for first, block in self._blocks:
            if first <= start and end <= first + block.size:
                return block[start - first : end - first]
        return None

    def _fetch(self, start: int, end: int) -> None:
        """Fetch the row group of a range, or a window of it if it is large."""
        for number, group in enumerate(self._groups):
            part = next((item for item in group if item[0] <= start < item[1]), None)
            if part is None:
                continue
            if not self._is_read_at_once(group):
                window = _FIRST_BYTES if self._only_first_rows else _WINDOW_BYTES
                last = max(end, min(start + window, part[1]))
                # Columns are read alternately, each with a window.
                self._blocks = [*self._blocks[-3:], (start, _fetched(self.path, start, last))]
                return
            if self._next is not None and self._next[0] == number:
                self._blocks = self._next[1].result()
            else:
                self._blocks = self._group(group)
            self._next = None
            self._read_ahead(number + 1)
            return

    def _is_read_at_once(self, group: Sequence[Range]) -> bool:
        return not self._only_first_rows and _size(group) <= _GROUP_BYTES

    def _read_ahead(self, number: int) -> None:
        if number >= len(self._groups) or not self._is_read_at_once(self._groups[number]):
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1)
        self._next = number, self._thread.submit(self._group, self._groups[number])

    def _group(self, group: Sequence[Range]) -> list[tuple[int, pa.Buffer]]:
        return [(start, _fetched(self.path, start, end)) for start, end in group]


def _coalesced(ranges: Sequence[Range]) -> list[Range]:
    """Join ranges that are close to each other."""
    found: list[Range] = []
    for start, end in sorted(ranges):
        if found and start - found[-1][1] <= _GAP_BYTES:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def _size(ranges: Sequence[Range]) -> int:
    return sum(end - start for start, end in ranges)


def _fetched(path: ObjectPath, start: int, end: int) -> pa.Buffer:
    return pa.py_buffer(read_range(path, start, end))


@functools.lru_cache(256)
def _cached_tail(path: ObjectPath, e_tag: str | None, n_bytes: int) -> pa.Buffer:
    return _fetched(path, path.size - n_bytes, path.size)


def _tail(path: ObjectPath, n_bytes: int) -> pa.Buffer:
    """Read the end of an object. Footers are read several times, by one task after the other."""
    if path.e_tag is None:
        return _fetched(path, path.size - n_bytes, path.size)
    return _cached_tail(path, path.e_tag, n_bytes)


class ObjectWriter(io.RawIOBase):
    """A new object that computes the SHA-256 of its bytes while they are written, by `written_object`."""

    def __init__(self, path: ObjectPath, upload: Any) -> None:
        self.path = path
        self.upload = upload
        self.digest = hashlib.sha256()
        self.n_bytes = 0

    def writable(self) -> bool:
        """Whether it can be written."""
        return True

    def write(self, data: Any) -> int:
        """Write bytes, and return how many were written."""
        # A copy, because the store keeps a reference until the part is sent, and the caller uses its buffer again.
        content = bytes(data)
        with store_errors(self.path):
            self.upload.write(content)
        self.digest.update(content)
        self.n_bytes += len(content)
        return len(content)


@contextmanager
def written_object(path: ObjectPath) -> Iterator[ObjectWriter]:
    """Write an object, which appears when it is complete. On any exception, the upload is aborted.

    A process that is killed leaves an upload without a key, which costs storage until it is removed.
    """
    obstore = import_obstore(path)
    with store_errors(path):
        upload = obstore.open_writer(store_of(path), path.key, buffer_size=_PART_BYTES, max_concurrency=4)
    try:
        yield ObjectWriter(path, upload)
    except BaseException as error:
        # This aborts the upload.
        upload.__exit__(type(error), error, error.__traceback__)
        raise
    with store_errors(path):
        upload.close()
