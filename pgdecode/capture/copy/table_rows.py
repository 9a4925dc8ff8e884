"""The rows of one table in a snapshot, as the payloads of a transaction of inserts."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa

from pgdecode._native.wire.copy_rows import copied_rows
from pgdecode.capture.connection import Connection
from pgdecode.capture.copy.published_tables import PublishedColumn, PublishedTable
from pgdecode.capture.copy.snapshot import Snapshot
from pgdecode.capture.errors import StoppedError
from pgdecode.capture.options import quoted_name
from pgdecode.protocol.encoder import encode
from pgdecode.protocol.lsn import lsn_to_text
from pgdecode.protocol.messages import Begin, Column, Commit, LogicalMessage, Relation, Truncate, Type
from pgdecode.types.encodings import CODECS

PREFIX = "pgdecode.copy"
# Client encodings whose characters may have the byte of a backslash. COPY escapes bytes of the server's encoding only.
_EMBEDS_ASCII = ("BIG5", "GB18030", "GBK", "JOHAB", "SHIFT_JIS_2004", "SJIS", "UHC")
_SIGNATURE = b"PGCOPY\n\xff\r\n\0"
# Bytes of COPY's answer that become one batch.
_BATCH_BYTES = 2**20


class TableRows:
    """The rows of a table, as batches of Insert payloads.

    Parameters
    ----------
    snapshot : Snapshot
    table : PublishedTable
    binary : bool
        Whether values are sent in binary form if their type has one.

    Attributes
    ----------
    count : int
        Number of rows, counted by the server.

    Raises
    ------
    ServerError
    """

    def __init__(self, snapshot: Snapshot, table: PublishedTable, *, binary: bool = False) -> None:
        self._snapshot = snapshot
        self._table = table
        self._binary = binary
        self._codec = CODECS[snapshot.encoding]
        # Output functions give text that is not escaped.
        self._is_binary = binary or snapshot.encoding in _EMBEDS_ASCII
        self._kinds = bytes(ord("b" if binary and column.has_binary else "t") for column in table.columns)
        self.count = sum(
            int(snapshot.catalog.row(f"SELECT pg_catalog.count(*) {self._source(leaf.sql)}", 1, lambda: None)[0] or 0)
            for leaf in table.leaves
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
            Begin(snapshot.lsn, snapshot.time, 0),
            LogicalMessage(1, snapshot.lsn, PREFIX, json.dumps(content, ensure_ascii=False).encode()),
            *(Type(column.type_id, *column.user_type) for column in table.columns if column.user_type),
            Relation(
                table.oid,
                "" if table.namespace == "pg_catalog" else table.namespace,
                table.name,
                table.replica_identity,
                tuple(Column(item.is_key, item.name, item.type_id, item.type_modifier) for item in table.columns),
            ),
            Truncate(0, (table.oid,)),
        ]
        return [encode(message, self._codec) for message in messages]

    def footer_payloads(self) -> list[bytes]:
        """Make the payloads after the rows: Commit."""
        lsn = self._snapshot.lsn
        return [encode(Commit(0, lsn, lsn, self._snapshot.time))]

    def __iter__(self) -> Iterator[pa.BinaryArray]:
        """Read the rows.

        Raises
        ------
        ServerError
        StoppedError
            If the server has counted another number of rows.
        """
        n_rows = 0
        for leaf in self._table.leaves:
            for batch in self._read(self._snapshot.readers[0], leaf.sql):
                n_rows += len(batch)
                yield batch
        if n_rows != self.count:
            raise StoppedError(
                f"table {self._table.full_name}: {n_rows:,} rows were copied, the server has counted {self.count:,}"
            )

    def _source(self, leaf: str) -> str:
        condition = self._table.row_filter
        return f"FROM ONLY {leaf}" + (f" WHERE ({condition})" if condition else "")

    def _value(self, column: PublishedColumn, kind: int) -> str:
        name = quoted_name(column.name)
        # A cast to text is not the output function: of bool and char(n), for example.
        return f"{column.output}({name})" if self._is_binary and kind == ord("t") else name

    def _read(self, connection: Connection, leaf: str) -> Iterator[pa.BinaryArray]:
        values = ", ".join(map(self._value, self._table.columns, self._kinds))
        options = " (FORMAT binary)" if self._is_binary else ""
        rest = b""
        begins = self._is_binary
        for content in connection.copy_out(
            f"COPY (SELECT {values} {self._source(leaf)}) TO STDOUT{options}", _BATCH_BYTES
        ):
            if begins:
                begins = False
                content = content[_header_length(content) :]
            n_rows, buffers, end = copied_rows(rest + content, self._table.oid, self._kinds, self._is_binary)
            rest = (rest + content)[end:]
            if n_rows:
                yield pa.Array.from_buffers(pa.binary(), n_rows, buffers)
        if rest:
            raise StoppedError(f"table {self._table.full_name}: the answer to COPY ends within a row")


def _header_length(content: bytearray) -> int:
    """Find the length of the header of COPY's binary form."""
    if not content.startswith(_SIGNATURE) or len(content) < 19:
        raise StoppedError("the answer to COPY is not in PostgreSQL's binary form: connect to it directly")
    return 19 + int.from_bytes(content[15:19], "big")
