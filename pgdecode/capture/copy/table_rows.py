"""The rows of one table in a snapshot, as the payloads of a transaction of inserts."""

from __future__ import annotations

import contextlib
import json
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from queue import Full, Queue
from threading import Thread
from typing import Any

import pyarrow as pa

from pgdecode._native.wire.copy_rows import copied_rows
from pgdecode.capture.connection import Connection
from pgdecode.capture.copy.published_tables import PublishedColumn, PublishedTable
from pgdecode.capture.copy.snapshot import Snapshot, forget_locks
from pgdecode.capture.errors import StoppedError, StopRequestedError
from pgdecode.protocol.encoder import encode
from pgdecode.protocol.lsn import lsn_to_text
from pgdecode.protocol.messages import (
    COPY_PREFIX,
    COPY_XID,
    Begin,
    Column,
    Commit,
    LogicalMessage,
    Relation,
    Truncate,
    Type,
)
from pgdecode.relations.table_names import quoted_name
from pgdecode.types.encodings import CODECS

# Client encodings whose characters may have the byte of a backslash. COPY escapes bytes of the server's encoding only.
_EMBEDS_ASCII = ("BIG5", "GB18030", "GBK", "JOHAB", "SHIFT_JIS_2004", "SJIS", "UHC")
_SIGNATURE = b"PGCOPY\n\xff\r\n\0"
# Bytes of COPY's answer that become one batch.
_BATCH_BYTES = 2**20
# Batches that may wait for the caller, and as many more as there are readers.
_WAITING = 4
# Seconds between checks whether the copy was cancelled.
_WAIT_SECONDS = 0.2
# Pages of a range, and about how many ranges each connection reads: the last ones should end at the same time.
_LEAST_PAGES, _MOST_PAGES = 2**10, 2**15
_RANGES_EACH = 4


class TableRows:
    """The rows of a table, as batches of Insert payloads.

    Parameters
    ----------
    snapshot : Snapshot
    table : PublishedTable
    binary : bool
        Whether values are sent in binary form if their type has one.
    sample : float, optional
        Read about so many percent of the rows: those of pages that are drawn at random, the same in each reading.

    Attributes
    ----------
    count : int
        Number of rows that are read, counted by the server.
    total : int
        Number of all rows.

    Raises
    ------
    ServerError
    """

    def __init__(
        self, snapshot: Snapshot, table: PublishedTable, *, binary: bool = False, sample: float | None = None
    ) -> None:
        self._snapshot = snapshot
        self._table = table
        self._binary = binary
        self._codec = CODECS[snapshot.encoding]
        # Output functions give text that is not escaped.
        self._is_binary = binary or snapshot.encoding in _EMBEDS_ASCII
        self._kinds = bytes(ord("b" if binary and column.has_binary else "t") for column in table.columns)
        self._sources = snapshot.sources(table)
        self.count = self.total = self._counted()
        if sample is not None:
            draw = f"TABLESAMPLE SYSTEM ({sample!r}) REPEATABLE (1)"
            self._sources = [replace(source, table=f"{source.table} {draw}", oid=None) for source in self._sources]
            self.count = self._counted()

    def _counted(self) -> int:
        found = sum(
            int(self._snapshot.catalog.row(f"SELECT pg_catalog.count(*) {rows}", 1, lambda: None)[0] or 0)
            for rows in (source.rows(self._table.row_filter) for source in self._sources)
        )
        forget_locks(self._snapshot.catalog)
        return found

    @property
    def types(self) -> list[Type]:
        """The messages of types before the Relation."""
        return [Type(column.type_id, *column.user_type) for column in self._table.columns if column.user_type]

    @property
    def relation(self) -> Relation:
        """The message of the table."""
        table = self._table
        return Relation(
            table.oid,
            "" if table.namespace == "pg_catalog" else table.namespace,
            table.name,
            table.replica_identity,
            tuple(Column(item.is_key, item.name, item.type_id, item.type_modifier) for item in table.columns),
        )

    def header_payloads(self) -> list[bytes]:
        """Make the payloads before the rows: Begin, the message of the copy, types, Relation and Truncate."""
        snapshot, table = self._snapshot, self._table
        content = {
            "table": table.full_name,
            "lsn": lsn_to_text(snapshot.lsn),
            "rows": self.count,
            "server_version": snapshot.server_version,
        }
        messages = [
            Begin(snapshot.lsn, snapshot.time, COPY_XID),
            LogicalMessage(1, snapshot.lsn, COPY_PREFIX, json.dumps(content, ensure_ascii=False).encode()),
            *self.types,
            self.relation,
            Truncate(0, (table.oid,)),
        ]
        return [encode(message, self._codec) for message in messages]

    def footer_payloads(self) -> list[bytes]:
        """Make the payloads after the rows: Commit."""
        lsn = self._snapshot.lsn
        return [encode(Commit(0, lsn, lsn, self._snapshot.time))]

    def __iter__(self) -> Iterator[pa.BinaryArray]:
        """Read the rows. If that ends early, the snapshot can only be closed.

        Raises
        ------
        ServerError
        StoppedError
            If the server has counted another number of rows.
        """
        readers = self._snapshot.readers
        ranges = deque(self._ranges(len(readers)))
        results: Queue[pa.BinaryArray | Exception | None] = Queue(_WAITING + len(readers))
        threads = [
            Thread(target=self._read_ranges, args=(reader, ranges, results), name="pgdecode-copy", daemon=True)
            for reader in readers[: len(ranges)]
        ]
        n_rows, n_reading = 0, len(threads)
        try:
            for thread in threads:
                thread.start()
            while n_reading:
                item = results.get()
                if isinstance(item, Exception):
                    raise item
                if item is None:
                    n_reading -= 1
                else:
                    n_rows += len(item)
                    yield item
        finally:
            if n_reading:
                self._snapshot.cancel()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
        if n_rows != self.count:
            raise StoppedError(
                f"table {self._table.full_name}: {n_rows:,} rows were copied, the server has counted {self.count:,}"
            )

    def _ranges(self, n_readers: int) -> Iterator[str]:
        """Divide the table into ranges of pages: clauses FROM and WHERE.

        Before PostgreSQL 14, the server would read the whole table for each range.
        """
        snapshot, row_filter = self._snapshot, self._table.row_filter
        for source in self._sources:
            step = 0
            if source.oid is not None and n_readers > 1 and snapshot.server_version >= 140000:
                size = f"pg_catalog.pg_relation_size({source.oid}) / pg_catalog.current_setting('block_size')::int"
                n_pages = int(snapshot.catalog.value(f"SELECT {size}") or 0)
                step = min(max(n_pages // (_RANGES_EACH * n_readers), _LEAST_PAGES), _MOST_PAGES)
            if not step or n_pages <= step:
                yield source.rows(row_filter)
                continue
            for first in range(0, n_pages, step):
                # The table may have grown, so the last range has no end.
                end = f" AND ctid < '({first + step},0)'" if first + step < n_pages else ""
                yield source.rows(f"ctid >= '({first},0)'{end}", row_filter)

    def _read_ranges(self, reader: Connection, ranges: deque[str], results: Queue[Any]) -> None:
        """Read ranges until there are none, in a thread of its own."""
        try:
            for rows in _taken(ranges):
                for batch in self._read(reader, rows):
                    self._put(results, batch)
            self._put(results, None)
        except Exception as error:
            with contextlib.suppress(StopRequestedError):
                self._put(results, error)

    def _put(self, results: Queue[Any], item: object) -> None:
        while not self._snapshot.is_cancelled:
            with contextlib.suppress(Full):
                results.put(item, timeout=_WAIT_SECONDS)
                return
        raise StopRequestedError

    def _read(self, reader: Connection, rows: str) -> Iterator[pa.BinaryArray]:
        values = ", ".join(map(self._value, self._table.columns, self._kinds))
        options = " (FORMAT binary)" if self._is_binary else ""
        begins, rest = self._is_binary, bytearray()
        for content in reader.copy_out(f"COPY (SELECT {values} {rows}) TO STDOUT{options}", _BATCH_BYTES):
            if begins:
                del content[: _header_length(content)]
                begins = False
            if rest:
                content[:0] = rest
            n_rows, buffers, end = copied_rows(content, self._table.oid, self._kinds, self._is_binary)
            rest = content[end:]
            if n_rows:
                yield pa.Array.from_buffers(pa.binary(), n_rows, buffers)
        forget_locks(reader)
        if rest:
            raise StoppedError(f"table {self._table.full_name}: the answer to COPY ends within a row")

    def _value(self, column: PublishedColumn, kind: int) -> str:
        name = quoted_name(column.name)
        # A cast to text is not the output function: of bool and char(n), for example.
        return f"{column.output}({name})" if self._is_binary and kind == ord("t") else name


def _taken(ranges: deque[str]) -> Iterator[str]:
    """Take ranges until there are none. Other threads take some too."""
    while True:
        try:
            rows = ranges.popleft()
        except IndexError:
            return
        yield rows


def _header_length(content: bytearray) -> int:
    """Find the length of the header of COPY's binary form."""
    if not content.startswith(_SIGNATURE) or len(content) < 19:
        raise StoppedError("the answer to COPY is not in PostgreSQL's binary form: connect to it directly")
    return 19 + int.from_bytes(content[15:19], "big")
