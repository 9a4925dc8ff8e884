"""A server that speaks PostgreSQL's protocol, but answers with errors, nonsense, or not at all."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import struct
import threading
from collections.abc import Iterator

_SLOT = {
    "slot_name": "s",
    "plugin": "pgoutput",
    "slot_type": "logical",
    "database": "shop",
    "active": False,
    "restart_lsn": "0/5",
    "confirmed_flush_lsn": "0/5",
    "wal_status": "reserved",
    "safe_wal_size": None,
    "two_phase": False,
}
_PUBLICATION = {"pubname": "p", "puballtables": True, "pubinsert": True, "pubupdate": True, "pubdelete": True}
_ODD = (None, "", "x", "0/0", "-1", "NaN", "9" * 400, "{}", "null", "[]", "0/FFFFFFFFF", "\x01", "é" * 100)
_STATES = ("57P01", "55006", "42501", "42704", "42883", "08006", "53300", "XX000", "22P02", "", "28000")
_BEGIN = b"B" + struct.pack("!qqi", 100, 0, 700)
_COMMIT = b"C\0" + struct.pack("!qqq", 100, 101, 0)


class FakeServer:
    """Listens on a port of this machine until it is closed. What it does depends on the random generator."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._oddity = rng.choice([0.0, 0.03, 0.1, 0.3])
        self._greeting = rng.choices(["full", "close", "noise", "hang", "refuse"], [12, 1, 1, 1, 1])[0]
        self._version = rng.choice(["18.1", "18.1", "18.1", "14.9", "10.23", "9.6", "x", "18devel"])
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self._accepted: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        """Close all connections."""
        for item in (self._socket, *self._accepted):
            with contextlib.suppress(OSError):
                item.shutdown(socket.SHUT_RDWR)
            item.close()
        for thread in self._threads:
            thread.join(5)

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._socket.accept()
            except OSError:
                return
            accepted.settimeout(2)
            self._accepted.append(accepted)
            thread = threading.Thread(target=self._serve, args=(accepted,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, peer: socket.socket) -> None:
        with contextlib.suppress(OSError, struct.error), peer:
            if self._greet(peer):
                while self._reply(peer):
                    pass

    def _greet(self, peer: socket.socket) -> bool:
        while True:
            content = _exactly(peer, int.from_bytes(_exactly(peer, 4), "big") - 4)
            if content != struct.pack("!i", 80877103):  # SSLRequest
                break
            peer.sendall(b"N")
        if self._greeting != "full":
            if self._greeting == "noise":
                peer.sendall(self._rng.randbytes(200))
            elif self._greeting == "refuse":
                peer.sendall(_error("28P01", 'password authentication failed for user "é"'))
            elif self._greeting == "hang":
                with contextlib.suppress(TimeoutError):
                    peer.settimeout(0.3)
                    peer.recv(1)
            return False
        settings = {"server_version": self._version, "client_encoding": "UTF8", "integer_datetimes": "on"}
        status = b"".join(_message(b"S", f"{name}\0{value}\0".encode()) for name, value in settings.items())
        peer.sendall(_message(b"R", bytes(4)) + status + _message(b"K", bytes(8)) + _message(b"Z", b"I"))
        return True

    def _reply(self, peer: socket.socket) -> bool:
        tag = _exactly(peer, 1)
        content = _exactly(peer, int.from_bytes(_exactly(peer, 4), "big") - 4)
        if tag != b"Q":
            return tag != b"X"
        sql = content.rstrip(b"\0").decode(errors="replace")
        odd = self._rng.random() < self._oddity and self._rng.choice(["error", "close", "noise", "rows", "none"])
        if odd == "close":
            return False
        if odd == "noise":
            peer.sendall(self._rng.randbytes(300))
            return False
        if odd == "error":
            text = self._rng.choice(["", "out of luck", "two\nlines", "secret é"])
            peer.sendall(_error(self._rng.choice(_STATES), text) + _message(b"Z", b"I"))
            return True
        if sql.startswith("START_REPLICATION"):
            peer.sendall(_message(b"W", b"\0\0\0"))
            return self._stream(peer)
        rows = self._rows(sql)
        if odd == "none":
            rows = []
        elif odd == "rows":
            n = self._rng.randrange(4)
            rows = [[self._rng.choice(_ODD) for _ in range(n)] for _ in range(self._rng.randrange(3))]
        peer.sendall(b"".join(_result(rows)) + _message(b"Z", b"I"))
        return True

    def _rows(self, sql: str) -> list[list[str | None]]:
        if sql == "IDENTIFY_SYSTEM":
            return [["7", self._rng.choice(["2", "2", "2", "1", "3"]), "0/5000", "shop"]]
        if sql.startswith("TIMELINE_HISTORY"):
            return [["x", "1\t0/4000\treason\n"]]
        if sql.startswith("CREATE_REPLICATION_SLOT"):
            return [["s", "0/5", None, "pgoutput"]]
        if "wal_sender_timeout" in sql:
            return [["60s"]]
        if "current_setting" in sql:
            return [[self._rng.choice([None, "-1", "0", "1GB"])]]
        if "row_to_json(s)" in sql:
            return [[json.dumps(self._varied(_SLOT))]]
        if "row_to_json(p)" in sql:
            return [[json.dumps(self._varied(_PUBLICATION))]]
        return [["0/5000"]] if "lsn" in sql and "pg_is_in_recovery" in sql else []

    def _varied(self, row: dict[str, object]) -> dict[str, object]:
        """Change values as a server may, and rarely as none does."""
        found = dict(row)
        if self._rng.random() < 0.3:
            changes: dict[str, object] = {
                "confirmed_flush_lsn": self._rng.choice([None, "0/4000", "0/1"]),
                "restart_lsn": None,
                "wal_status": self._rng.choice(["lost", "unreserved", "extended", None]),
                "safe_wal_size": self._rng.choice([-5, 0, 10**15]),
                "plugin": self._rng.choice([None, "test_decoding"]),
                "database": self._rng.choice([None, "other"]),
                "invalidation_reason": "wal_removed",
                "conflicting": True,
                "pubinsert": False,
            }
            name = self._rng.choice([*changes])
            found[name] = changes[name]
        return found

    def _stream(self, peer: socket.socket) -> bool:
        for _ in range(self._rng.choice([0, 1, 3, 10])):
            payload = self._rng.choice([_BEGIN, _COMMIT, b"", b"R", b"\xff", b"Z" * 50, b"M\0" + bytes(20)])
            data = b"w" + struct.pack("!qqq", 100, 200, 0) + payload
            keepalive = b"k" + struct.pack("!qqb", self._rng.choice([0, 50, 2**62]), 0, self._rng.randrange(2))
            frame = self._rng.choices([data, keepalive, b"", b"w", b"k\0", b"?x"], [20, 20, 1, 1, 1, 1])[0]
            peer.sendall(_message(b"d", frame))
        end = self._rng.choice(["close", "error", "done", "noise"])
        if end == "error":
            peer.sendall(_error(self._rng.choice(_STATES), "the end"))
        elif end == "done":
            peer.sendall(_message(b"c", b""))
        elif end == "noise":
            peer.sendall(self._rng.randbytes(100))
        return False


def _exactly(peer: socket.socket, size: int) -> bytes:
    content = b""
    while len(content) < size:
        part = peer.recv(min(size - len(content), 1 << 16))
        if not part:
            raise OSError("closed")
        content += part
    return content


def _message(tag: bytes, content: bytes) -> bytes:
    return tag + struct.pack("!i", len(content) + 4) + content


def _error(state: str, text: str) -> bytes:
    fields = [b"SFATAL", b"VFATAL", b"C" + state.encode(), b"M" + text.encode()]
    return _message(b"E", b"".join(field + b"\0" for field in fields) + b"\0")


def _result(rows: list[list[str | None]]) -> Iterator[bytes]:
    n_columns = len(rows[0]) if rows else 1
    column = b"c\0" + struct.pack("!ihihih", 0, 0, 25, -1, -1, 0)
    yield _message(b"T", struct.pack("!h", n_columns) + column * n_columns)
    for row in rows:
        values = [None if value is None else value.encode() for value in row]
        fields = [struct.pack("!i", -1 if value is None else len(value)) + (value or b"") for value in values]
        yield _message(b"D", struct.pack("!h", len(row)) + b"".join(fields))
    yield _message(b"C", b"SELECT 1\0")
