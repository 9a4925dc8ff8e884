"""Payload files of a state: the changes of undecided transactions, and where in the files those of each are.

A file has one row per change, sorted by (begin_position, position). So the changes of a transaction in a file are a
range of rows. A transaction that continues over several runs has a range in the files of each. Files never change, and
stay until no transaction of the state needs them. A file may have further rows, of transactions that have ended.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from types import TracebackType
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from pgdecode.datasets.errors import RunFault
from pgdecode.datasets.file_digest import FileDigest, NewFile, check_file
from pgdecode.storage.object_path import FilePath
from pgdecode.storage.parquet_input import PARQUET_ERRORS, Source, opened, read_footer, readable

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


class PayloadRange(NamedTuple):
    """The changes of one transaction in one file.

    Attributes
    ----------
    file : str
        Name of the file.
    first_row, rows : int
    first_position, last_position : int
        Of the changes.
    """

    file: str
    first_row: int
    rows: int
    first_position: int
    last_position: int


class PayloadWriter:
    """Writes a payload file. It is created with the first change; without changes there is no file.

    Parameters
    ----------
    path : Path or ObjectPath
        From `NewFiles.payload_path`. Its folder exists.

    Attributes
    ----------
    ranges : dict of int to PayloadRange
        By begin_position. Complete once the writer is closed.
    file : FileDigest or None
        Set when the writer is closed, if it has written changes.
    """

    def __init__(self, path: FilePath) -> None:
        self.ranges: dict[int, PayloadRange] = {}
        self.file: FileDigest | None = None
        self._path = path
        self._rows = 0
        self._new: NewFile | None = None
        self._writer: pq.ParquetWriter | None = None
        self._batches: list[pa.RecordBatch] = []
        self._n_rows = self._n_bytes = 0

    def __enter__(self) -> PayloadWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._close()
        elif self._new is not None:
            self._new.__exit__(kind, error, trace)

    def write(self, batch: pa.RecordBatch) -> None:
        """Write changes of one transaction, with the schema `PAYLOADS`.

        Transactions come in the order of their beginnings, and the changes of each in the order of their positions.
        """
        n = len(batch)
        if not n:
            return
        begin, first = (batch.column(number)[0].as_py() for number in (0, 1))
        last = batch.column(1)[n - 1].as_py()
        former = self.ranges.get(begin)
        if former is None:
            self.ranges[begin] = PayloadRange(self._path.name, self._rows, n, first, last)
        else:
            self.ranges[begin] = former._replace(rows=former.rows + n, last_position=last)
        self._rows += n
        step = min(max(_GROUP_BYTES * n // batch.nbytes, 1), _GROUP_ROWS)
        for start in range(0, n, step):
            rows = batch.slice(start, step)
            self._batches.append(rows)
            self._n_rows += len(rows)
            self._n_bytes += rows.nbytes
            if self._n_bytes >= _GROUP_BYTES or self._n_rows >= _GROUP_ROWS:
                self._flush()

    def _flush(self) -> None:
        if self._writer is None:
            self._new = NewFile(self._path)
            self._writer = pq.ParquetWriter(
                self._new,
                PAYLOADS,
                compression="zstd",
                compression_level=1,
                use_dictionary=["xid", "relation_id", "version"],
                column_encoding={"begin_position": "DELTA_BINARY_PACKED", "position": "DELTA_BINARY_PACKED"},
                write_statistics=list(_NUMBERS),
                write_page_checksum=True,
                store_schema=False,
            )
        table = pa.Table.from_batches(self._batches)
        self._batches, self._n_rows, self._n_bytes = [], 0, 0
        self._writer.write_table(table, row_group_size=len(table))

    def _close(self) -> None:
        if self._batches:
            self._flush()
        if self._writer is None or self._new is None:
            return
        self._writer.close()
        self._new.close()
        self.file = self._new.digested(self._path.name, self._rows)


class PayloadReader:
    """Reads ranges of a payload file. It is opened and checked with the first range.

    Parameters
    ----------
    path : Path or ObjectPath
    file : FileDigest
        From the manifest.

    Attributes
    ----------
    copies : set of Path
        Spill files with ranges of this file that this process has written.
    """

    def __init__(self, path: FilePath, file: FileDigest) -> None:
        self.path = path
        self.file = file
        self.copies: set[object] = set()
        self._starts: list[int] = []  # of the row groups, and the number of rows
        self._metadata: pq.FileMetaData | None = None
        self._last: tuple[int, pa.Table] | None = None  # the last row group, which often has the next range too

    def read(self, payloads: PayloadRange) -> Iterator[pa.RecordBatch]:
        """Read a range, row group by row group, with the schema `PAYLOADS`.

        Raises
        ------
        RunFault
            If the file is missing or damaged, or has too few rows, nulls or other columns.
        """
        end = payloads.first_row + payloads.rows
        try:
            if self._metadata is None:
                check_file(self.path, self.file)
            with readable(self.path) as source:
                metadata = self._checked(source)
                if end > self._starts[-1]:
                    raise RunFault(f"{self.path}: has {self._starts[-1]} rows, expected {end} or more")
                for number in range(bisect_right(self._starts, payloads.first_row) - 1, metadata.num_row_groups):
                    start = self._starts[number]
                    if start >= end:
                        return
                    if self._last is None or self._last[0] != number:
                        with opened(source, metadata) as file:
                            self._last = number, file.read_row_group(number)
                    first = max(payloads.first_row - start, 0)
                    for batch in self._last[1].slice(first, end - start - first).to_batches():
                        if any(column.null_count for column in batch.columns):
                            raise RunFault(f"{self.path}: rows from {start + first}: a value is null")
                        yield batch
        except PARQUET_ERRORS as error:
            raise RunFault(f"{self.path}: is damaged: {type(error).__name__}") from error

    def _checked(self, source: Source) -> pq.FileMetaData:
        if self._metadata is None:
            metadata = read_footer(source).metadata
            if {field.name: field.type for field in metadata.schema.to_arrow_schema()} != _TYPES:
                raise RunFault(f"{self.path}: has other columns than the payload files of this version")
            counts = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
            self._starts = list(accumulate(counts, initial=0))
            self._metadata = metadata
        return self._metadata
