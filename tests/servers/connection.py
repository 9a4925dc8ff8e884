"""A connection to a server over its Unix socket: simple queries, and the stream of a replication slot.

It implements the parts of the frontend protocol, version 3, that the tests need (PostgreSQL documentation, "Message
Formats"), so no driver is required. The server uses trust authentication on its socket.
"""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

PROTOCOL_VERSION = 3 << 16


class ServerError(Exception):
    """An error that the server reported, with its SQLSTATE."""

    def __init__(self, sqlstate: str, message: str) -> None:
        super().__init__(f"{sqlstate}: {message}")
        self.sqlstate = sqlstate


class Connection:
    """One session. Rows are lists of text or None."""

    def __init__(self, socket_path: Path, database: str, *, replication: bool = False) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(socket_path))
        self.received = b""
        options = {"user": "postgres", "database": database, "client_encoding": "UTF8"}
        if replication:
            options["replication"] = "database"
        body = b"".join(part.encode() + b"\0" for item in options.items() for part in item) + b"\0"
        self.socket.sendall(struct.pack("!II", len(body) + 8, PROTOCOL_VERSION) + body)
        self.finish()

    def close(self) -> None:
        self.socket.close()

    def send(self, tag: bytes, body: bytes) -> None:
        self.socket.sendall(tag + struct.pack("!I", len(body) + 4) + body)

    def receive(self) -> tuple[bytes, bytes]:
        """The next message: its tag and its body."""
        while not (length := self.message_length()):
            chunk = self.socket.recv(1 << 16)
            if not chunk:
                raise ServerError("08006", "the server closed the connection")
            self.received += chunk
        message, self.received = self.received[:length], self.received[length:]
        return message[:1], message[5:]

    def message_length(self) -> int:
        """Length of the next message including its header; 0 if it is incomplete."""
        length = 1 + int.from_bytes(self.received[1:5], "big")
        return length if len(self.received) >= max(length, 5) else 0

    def is_quiet(self, seconds: float) -> bool:
        """Whether nothing arrives for a while."""
        return not self.message_length() and not select.select([self.socket], [], [], seconds)[0]

    def finish(self) -> list[list[str | None]]:
        """Read until the server is ready for a query; return the rows. An error is raised at the end."""
        rows: list[list[str | None]] = []
        error: ServerError | None = None
        while True:
            tag, body = self.receive()
            if tag == b"D":
                rows.append(row_of(body))
            elif tag == b"E":
                error = error_of(body)
                if error.sqlstate.startswith(("28", "3D", "57P")):
                    raise error  # after these the server ends the session
            elif tag == b"W":
                return rows
            elif tag == b"Z":
                if error is not None:
                    raise error
                return rows

    def execute(self, sql: str) -> list[list[str | None]]:
        """Run statements and return the rows of all of them."""
        self.send(b"Q", sql.encode() + b"\0")
        return self.finish()

    def value(self, sql: str) -> str:
        """The value of a query that returns one value."""
        [[value]] = self.execute(sql)
        assert value is not None
        return value

    def stream(self, until_lsn: int) -> Iterator[tuple[int, bytes]]:
        """The LSN and payload of each message of a started replication, up to an LSN.

        Nothing is confirmed, so that the slot can be read again.
        """
        for frame in self.frames(until_lsn):
            if frame[:1] == b"w":
                yield int.from_bytes(frame[1:9], "big"), frame[25:]

    def frames(self, until_lsn: int) -> Iterator[bytes]:
        """The frames of a started replication, keepalives too, up to a keepalive with at least an LSN."""
        while True:
            # A status update that requests a reply: everything up to the LSN in the reply was sent before it.
            self.send(b"d", struct.pack("!cQQQqB", b"r", 0, 0, 0, 0, 1))
            while True:
                tag, body = self.receive()
                if tag == b"E":
                    raise error_of(body)
                yield body
                if body[:1] == b"k" and int.from_bytes(body[1:9], "big") >= until_lsn:
                    return
                # If asked again before it is idle, the walsender would only answer and never send.
                if self.is_quiet(0.005):
                    break


def row_of(body: bytes) -> list[str | None]:
    """Parse a DataRow."""
    values: list[str | None] = []
    at = 2
    for _ in range(int.from_bytes(body[:2], "big")):
        length = int.from_bytes(body[at : at + 4], "big", signed=True)
        at += 4
        values.append(None if length < 0 else body[at : at + length].decode())
        at += max(length, 0)
    return values


def error_of(body: bytes) -> ServerError:
    """Parse an ErrorResponse."""
    fields = {part[:1]: part[1:].decode() for part in body.split(b"\0") if part}
    return ServerError(fields.get(b"C", ""), fields.get(b"M", ""))
