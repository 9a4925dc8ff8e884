"""Payload files of a state: the changes of undecided transactions, and where in the files those of each are.

A file has one row per change, sorted by (begin_position, position). So the changes of a transaction in a file are a
range of rows. A transaction that continues over several runs has a range in the files of each. Files never change. The
next run links those that it still needs. A file may have further rows, of transactions that have been decided since.
"""

from __future__ import annotations

import os
import shutil
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from types import TracebackType

import pyarrow as pa
import pyarrow.parquet as pq

from pgdecode.datasets.payload_ranges import PayloadRange as PayloadRange
from pgdecode.runs.digested_file import DigestedFile, FileDigest, check_file
from pgdecode.runs.errors import RunFault
from pgdecode.storage.durable import sync
from pgdecode.storage.parquet_input import PARQUET_ERRORS

STATE = "_state"
# Small row groups, because to read a small transaction means to read its row group.
_GROUP_BYTES = 2 * 2**20
_GROUP_ROWS = 2**16

PAYLOADS = pa.schema(
    [
        pa.field("begin_position", pa.int64(), nullable=False),  # of the message that began the transaction
        pa.field("position", pa.int64(), nullable=False),  # of the payload
        # The xid in the message, that of a sub-transaction if there is one; 0 outside streams.
        pa.field("xid", pa.int64(), nullable=False),
        pa.field("relation_id", pa.int64(), nullable=False),
        # Number of the relation's version in the catalog; negative without a valid version.
        pa.field("version", pa.int32(), nullable=False),
        # Of a Truncate only the tag, because it has one row for each of its tables.
        pa.field("payload", pa.large_binary(), nullable=False),
    ]
)
_NUMBERS = ("begin_position", "position", "xid", "relation_id", "version")
# Parquet has one type for binary values.
_TYPES = {field.name: pa.binary() if field.name == "payload" else field.type for field in PAYLOADS}


def payload_file_name(first_position: int, number: int = 0) -> str:
    """Name a payload file. Names of different runs differ, because the next run links files of the previous one.

    Parameters
    ----------
    first_position : int
        The first position of the run's input.
    number : int
        Of the task that writes the file.
    """
    return f"payloads-{first_position:020}-{number:05}.parquet"


class PayloadWriter:
    """Writes a payload file. It is created with the first change; without changes there is no file.

    Parameters
    ----------
    folder : Path
        `_state` of the run.
    name : str
        From `payload_file_name`.

    Attributes
    ----------
    ranges : dict of int to PayloadRange
        By begin_position. Complete once the writer is closed.
    file : FileDigest or None
        Set when the writer is closed, if it has written changes.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.ranges: dict[int, PayloadRange] = {}
        self.file: FileDigest | None = None
        self._path = folder / name
        self._rows = 0
        self._raw: DigestedFile | None = None
        self._writer: pq.ParquetWriter | None = None
        self._batches: list[pa.RecordBatch] = []
        self._n_rows = self._n_bytes = 0

    def __enter__(self) -> PayloadWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def write(self, batch: pa.RecordBatch) -> None:
        """Write changes of one transaction, with the schema `PAYLOADS`.

        Transactions come in the order of their beginnings, and the changes of each in the order of their positions.
        """
        n = len(batch)
        if not n:
            return
        begin, first = (batch.column(place)[0].as_py() for place in (0, 1))
        last = batch.column(1)[n - 1].as_py()
        former = self.ranges.get(begin)
        if former is None:
            found = PayloadRange(self._path.name, self._rows, n, first, last)
        else:
            found = PayloadRange(former.file, former.first_row, former.rows + n, former.first_position, last)
        self.ranges[begin] = found
        self._rows += n
        step = min(max(_GROUP_BYTES * n // batch.nbytes, 1), _GROUP_ROWS)
        for start in range(0, n, step):
            part = batch.slice(start, step)
            self._batches.append(part)
            self._n_rows += len(part)
            self._n_bytes += part.nbytes
            if self._n_bytes >= _GROUP_BYTES or self._n_rows >= _GROUP_ROWS:
                self._flush()

    def _flush(self) -> None:
        if self._writer is None:
            self._raw = DigestedFile(self._path)
            self._writer = pq.ParquetWriter(
                self._raw,
                PAYLOADS,
                compression="zstd",
                compression_level=1,
                use_dictionary=["xid", "relation_id", "version"],
                column_encoding={"begin_position": "DELTA_BINARY_PACKED", "position": "DELTA_BINARY_PACKED"},
                write_statistics=list(_NUMBERS),
                store_schema=False,
            )
        table = pa.Table.from_batches(self._batches)
        self._batches, self._n_rows, self._n_bytes = [], 0, 0
        self._writer.write_table(table, row_group_size=len(table))

    def close(self) -> None:
        """Complete the file."""
        if self._batches:
            self._flush()
        if self._writer is None or self._raw is None:
            return
        self._writer.close()
        self._raw.flush()
        os.fsync(self._raw.fileno())
        self._raw.close()
        self.file = self._raw.digested(f"{STATE}/{self._path.name}", self._rows)
        self._writer = None


class PayloadReader:
    """Reads ranges of a payload file. It is opened, and its SHA-256 is checked, with the first range.

    Parameters
    ----------
    folder : Path
        Of the run.
    file : FileDigest
        From the manifest.

    Attributes
    ----------
    copies : set of Path
        Spill files with ranges of this file that this process has written.
    """

    def __init__(self, folder: Path, file: FileDigest) -> None:
        self.path = folder / file.name
        self.file = file
        self.copies: set[Path] = set()
        self._parquet: pq.ParquetFile | None = None
        self._starts: list[int] = []  # of the row groups, and the number of rows
        self._last: tuple[int, pa.Table] | None = None  # the last row group, which often has the next range too

    def read(self, place: PayloadRange) -> Iterator[pa.RecordBatch]:
        """Read a range, row group by row group, with the schema `PAYLOADS`.

        Raises
        ------
        RunFault
            If the file is missing or damaged, or has too few rows, nulls or other columns.
        """
        try:
            parquet = self._open()
            end = place.first_row + place.rows
            if end > self._starts[-1]:
                raise RunFault(f"{self.path}: has {self._starts[-1]} rows, expected {end} or more")
            for number in range(bisect_right(self._starts, place.first_row) - 1, parquet.num_row_groups):
                start = self._starts[number]
                if start >= end:
                    return
                first = max(place.first_row - start, 0)
                for batch in self._group(parquet, number).slice(first, end - start - first).to_batches():
                    if any(column.null_count for column in batch.columns):
                        raise RunFault(f"{self.path}: rows from {start + first}: a value is null")
                    yield batch
        except PARQUET_ERRORS as error:
            raise RunFault(f"{self.path}: is damaged: {type(error).__name__}") from error

    def _open(self) -> pq.ParquetFile:
        if self._parquet is None:
            check_file(self.path, self.file)
            parquet = pq.ParquetFile(self.path)
            if {field.name: field.type for field in parquet.schema_arrow} != _TYPES:
                raise RunFault(f"{self.path}: has other columns than the payload files of this version")
            counts = [parquet.metadata.row_group(number).num_rows for number in range(parquet.num_row_groups)]
            self._starts = list(accumulate(counts, initial=0))
            self._parquet = parquet
        return self._parquet

    def _group(self, parquet: pq.ParquetFile, number: int) -> pa.Table:
        if self._last is None or self._last[0] != number:
            self._last = number, parquet.read_row_group(number)
        return self._last[1]


def take_over(source: Path, target: Path) -> None:
    """Link a file of the previous state into the next one, or copy it where the file system has no links."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise RunFault(f"{source}: is missing: the state needs it") from None
    except OSError:
        with open(source, "rb") as read, open(target, "xb") as write:
            shutil.copyfileobj(read, write, 1 << 20)
        sync(target)
