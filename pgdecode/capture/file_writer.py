"""Writes one Parquet file of messages. The file gets its final name once it is complete and on disk."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pgdecode.capture.errors import reported
from pgdecode.capture.frames import SCHEMA, CopiedTable
from pgdecode.capture.journal import FileEntry, file_name, partial_name
from pgdecode.files.file_metadata import CONTROL_KEY
from pgdecode.files.payload_file import CAPTURE_KEY
from pgdecode.partitions.control_messages import FooterMessages
from pgdecode.storage.durable import rename_durably
from pgdecode.storage.parquet_input import CHECK_KEY, NO_CHECK, add_check

# Approximate size of a row group: large enough to read fast, small compared to the interpreter's own memory.
GROUP_BYTES = 16 * 2**20
GROUP_ROWS = 2**18


class FileWriter:
    """A file that is being written.

    Parameters
    ----------
    folder : Path
    first_seq : int
        Number of its first message.
    compression : str
        Name of the codec in pyarrow.

    Raises
    ------
    StoppedError
        All methods that write raise it if the file cannot be written.
    """

    def __init__(self, folder: Path, first_seq: int, compression: str) -> None:
        self.first_seq = first_seq
        self.n_rows = 0
        self.payload_bytes = 0
        self.began_at = time.monotonic()
        self._folder = folder
        self._hidden = folder / partial_name(first_seq)
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = self._pending_rows = 0
        self._first_lsn = self._last_lsn = 0
        self._control = FooterMessages()
        with reported(self._folder), contextlib.ExitStack() as closing:
            closing.callback(self._hidden.unlink, missing_ok=True)
            self._sink = pa.OSFile(str(self._hidden), "wb")
            self._writer = pq.ParquetWriter(
                self._sink,
                SCHEMA,
                compression=compression,
                compression_level=1 if compression == "zstd" else None,
                # Payloads rarely repeat, so a dictionary does not help. Ascending numbers are smaller as differences.
                use_dictionary=["received"],
                column_encoding={"seq": "DELTA_BINARY_PACKED", "lsn": "DELTA_BINARY_PACKED", "data": "PLAIN"},
                write_statistics=["seq", "lsn", "received"],
                store_schema=False,
                write_page_checksum=True,
            )
            closing.pop_all()

    def add(self, rows: pa.RecordBatch) -> None:
        """Add messages. They are buffered until there are enough for a row group."""
        if not len(rows):
            return
        # The server sends Relation and Type messages with an LSN of 0.
        lsns = rows.column("lsn")
        if not self._first_lsn:
            self._first_lsn = next((lsn for lsn in lsns.to_pylist() if lsn), 0)
        self._last_lsn = max(self._last_lsn, pc.max(lsns).as_py())
        self.n_rows += len(rows)
        self._pending.append(rows)
        self._pending_rows += len(rows)
        self._pending_bytes += rows.nbytes
        self.payload_bytes += rows.column("data").nbytes
        if self._pending_bytes >= GROUP_BYTES or self._pending_rows >= GROUP_ROWS:
            self._write_group()

    def _write_group(self) -> None:
        if not self._pending:
            return
        table = pa.Table.from_batches(self._pending)
        self._pending, self._pending_bytes, self._pending_rows = [], 0, 0
        with reported(self._folder):
            self._writer.write_table(table, row_group_size=len(table))
            end = self._sink.tell()
        self._control.add(table["data"], end)

    def seal(
        self,
        recorded: int,
        session: int,
        undecided: tuple[int, int],
        metadata: Mapping[str, Any],
        others: Mapping[bytes, str],
        copies: tuple[CopiedTable, ...] = (),
    ) -> FileEntry:
        """Complete the file: footer, fsync, rename, fsync of the folder.

        Parameters
        ----------
        recorded : int
            LSN up to which this file and the earlier files have everything.
        session : int
            Number of the session.
        undecided : tuple of int
            Number of streamed and number of prepared transactions without an outcome at its end.
        metadata : mapping
            Metadata of the capture and the server, as JSON values.
        others : mapping
            More keys of the footer.
        copies : tuple of CopiedTable
            The tables whose rows it has.
        """
        name = file_name(self.first_seq)
        entry = FileEntry(
            name=name,
            rows=self.n_rows,
            bytes=0,
            first_seq=self.first_seq,
            last_seq=self.first_seq + self.n_rows - 1,
            first_lsn=self._first_lsn,
            last_lsn=self._last_lsn,
            recorded=recorded,
            session=session,
            open_streams=undecided[0],
            prepared=undecided[1],
            sealed_us=time.time_ns() // 1000,
            copies=copies,
        )
        self._write_group()
        with reported(self._folder):
            control = self._control.to_text(self._sink.tell())
            self._writer.add_key_value_metadata(
                {
                    CAPTURE_KEY: json.dumps({**metadata, "file": entry.as_dict()}),
                    **others,
                    **({} if control is None else {CONTROL_KEY: control}),
                    CHECK_KEY: NO_CHECK,
                }
            )
            self._writer.close()
            self._sink.close()
            add_check(self._hidden)
            size = self._hidden.stat().st_size
            rename_durably(self._hidden, self._folder / name)
        return replace(entry, bytes=size)

    def discard(self) -> None:
        """Delete the file."""
        self._pending = []
        # On a full disk, closing fails because it writes the footer and the buffer.
        with contextlib.suppress(OSError, pa.ArrowException):
            self._writer.close()
        with contextlib.suppress(OSError, pa.ArrowException):
            self._sink.close()
        self._hidden.unlink(missing_ok=True)
