"""Faults that a real server does not produce: garbage in the stream, half a frame, silence. The server is scripted."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pgdecode.capture import Capture, CaptureError, FileRules, RequestError, StoppedError
from pgdecode.capture.connection import Connection
from pgdecode.capture.errors import ServerError

pytest.importorskip("psycopg")

BEGIN = bytes.fromhex("420000000000000200000000000000000000000005")
COMMIT = bytes.fromhex("4300000000000000020000000000000003000000000000000000")
SLOT = (
    '{"slot_name": "s", "slot_type": "logical", "plugin": "pgoutput", "database": "d", "active": false, '
    '"confirmed_flush_lsn": "0/100", "wal_status": "reserved"}'
)
PUBLICATION = (
    '{"pubname": "p", "puballtables": true, '
    '"pubinsert": true, "pubupdate": false, "pubdelete": false, "pubtruncate": false}'
)


def message(tag: bytes, body: bytes) -> bytes:
    return tag + struct.pack("!I", len(body) + 4) + body


def frame(payload: bytes) -> bytes:
    return message(b"d", b"w" + struct.pack("!qqq", 0x200, 0x300, 0) + payload)


def keepalive(lsn: int) -> bytes:
    return message(b"d", b"k" + struct.pack("!qqb", lsn, 0, 1))


def rows(*values: str) -> bytes:
    column = b"c\0" + struct.pack("!IhIhih", 0, 0, 25, -1, -1, 0)
    columns = message(b"T", struct.pack("!h", len(values)) + column * len(values))
    cells = b"".join(struct.pack("!i", len(value)) + value.encode() for value in values)
    return columns + message(b"D", struct.pack("!h", len(values)) + cells) + message(b"C", b"SELECT 1\0")


READY = message(b"Z", b"I")


class Script:
    """A server that answers the few queries of a capture, and then sends the bytes of a test."""

    def __init__(self, streams: list[Callable[[socket.socket], None]]) -> None:
        self.streams = iter(streams)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.dsn = f"host=127.0.0.1 port={self.listener.getsockname()[1]} user=u dbname=d sslmode=disable"
        self.starts: list[str] = []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            client.recv(4096)
            status = message(b"S", b"server_version\x0015.3\0") + message(b"S", b"client_encoding\0UTF8\0")
            client.sendall(message(b"R", struct.pack("!I", 0)) + status + READY)
            while head := client.recv(5, socket.MSG_WAITALL):
                body = client.recv(struct.unpack("!I", head[1:])[0] - 4, socket.MSG_WAITALL)
                if head[:1] == b"X":
                    return
                sql = body[:-1].decode()
                if sql.startswith("START_REPLICATION"):
                    self.starts.append(sql.split()[4])
                    client.sendall(message(b"W", b"\0\0\0"))
                    next(self.streams)(client)
                    return
                client.sendall(self.answer(sql) + READY)

    def answer(self, sql: str) -> bytes:
        known = {
            "IDENTIFY_SYSTEM": rows("77", "1", "0/1000", "d"),
            "SHOW wal_sender_timeout": rows("1s"),
            "pg_replication_slots s WHERE": rows(SLOT),
            "pg_catalog.pg_publication p": rows(PUBLICATION),
            "pg_current_wal_flush_lsn": rows("0/1000"),
        }
        return next((found for part, found in known.items() if part in sql), message(b"C", b"SET\0"))


def garbage(client: socket.socket) -> None:
    client.sendall(frame(BEGIN) + frame(COMMIT) + message(b"d", b"?" * 40))
    client.recv(4096)


def half_a_frame(client: socket.socket) -> None:
    client.sendall(frame(BEGIN) + frame(COMMIT) + frame(BEGIN) + frame(b"M" * 100)[:50])


def error_in_the_stream(client: socket.socket) -> None:
    fields = b'SERROR\0C42704\0Mpublication "p" does not exist\0\0'
    client.sendall(frame(BEGIN) + frame(COMMIT) + frame(BEGIN) + message(b"E", fields) + READY)


def internal_error(client: socket.socket) -> None:
    fields = b"SERROR\0CXX000\0Mpg_attribute catalog is missing 1 attribute(s) for relation OID 16384\0\0"
    client.sendall(message(b"E", fields) + READY)


def in_order(client: socket.socket) -> None:
    client.sendall(frame(BEGIN) + frame(COMMIT) + keepalive(0x1000))
    # Until the client ends the stream.
    while content := client.recv(4096):
        if content.endswith(message(b"c", b"")):
            client.sendall(message(b"c", b"") + message(b"C", b"COPY 0\0") + READY)
            return


@pytest.fixture
def script() -> Iterator[Callable[..., Script]]:
    made: list[Script] = []

    def make(*streams: Callable[[socket.socket], None]) -> Script:
        made.append(Script(list(streams)))
        return made[-1]

    yield make
    for server in made:
        server.close()


def run(server: Script, folder: Path, **more: Any) -> Any:
    rules = FileRules(max_seconds=0.1)
    made = Capture(server.dsn, folder, slot="s", publication="p", rules=rules, check_seconds=3600, **more)
    return made.run(until="0/1000")


def payloads(folder: Path) -> list[bytes]:
    return [payload for path in sorted(folder.glob("*.parquet")) for payload in pq.read_table(path)["data"].to_pylist()]


def test_the_script_works_as_a_server(tmp_path: Path, script: Callable[..., Script]) -> None:
    server = script(in_order)
    assert run(server, tmp_path / "out").messages == 2
    assert payloads(tmp_path / "out") == [BEGIN, COMMIT]
    assert server.starts == ["0/100"]


def test_after_half_a_frame_complete_messages_are_kept_and_the_rest_is_sent_again(
    tmp_path: Path, script: Callable[..., Script]
) -> None:
    server = script(half_a_frame, in_order)
    assert run(server, tmp_path / "out").reconnects == 1
    assert payloads(tmp_path / "out") == [BEGIN, COMMIT, BEGIN, COMMIT]
    # The end of the commit that was recorded.
    assert server.starts == ["0/100", "0/300"]


def test_garbage_in_the_stream_ends_the_capture_with_a_one_line_error(
    tmp_path: Path, script: Callable[..., Script]
) -> None:
    with pytest.raises(CaptureError, match="neither XLogData nor a keepalive"):
        run(script(garbage), tmp_path / "out")
    assert not [path for path in (tmp_path / "out").iterdir() if "partial" in path.name]


def test_an_error_of_the_server_keeps_complete_messages(tmp_path: Path, script: Callable[..., Script]) -> None:
    with pytest.raises(StoppedError, match=r'^the server ended the capture: publication "p" does not exist$'):
        run(script(error_in_the_stream), tmp_path / "out")
    assert payloads(tmp_path / "out") == [BEGIN, COMMIT]


def test_an_internal_error_of_the_server_says_what_may_help(tmp_path: Path, script: Callable[..., Script]) -> None:
    with pytest.raises(StoppedError, match=r"OID 16384; .* A newer version may decode it\. Or drop_slot, and then"):
        run(script(internal_error), tmp_path / "out")


def test_an_unreachable_server_ends_the_capture(tmp_path: Path, script: Callable[..., Script]) -> None:
    def last(client: socket.socket) -> None:
        server.close()

    server = script(last)
    with pytest.raises(StoppedError, match=r"^the server ended the capture: .*refused"):
        run(server, tmp_path / "out", retry_seconds=0.5)


@pytest.mark.full
def test_a_server_that_does_not_answer_is_a_timeout(script: Callable[..., Script]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(ServerError, match=r"^the server did not answer in time$"):
            Connection(f"host=127.0.0.1 port={port} user=u connect_timeout=2 sslmode=disable")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_is_a_one_line_error_and_leaves_complete_files(
    tmp_path: Path, script: Callable[..., Script], monkeypatch: pytest.MonkeyPatch
) -> None:
    import pgdecode.capture.file_writer as file_writer

    class Full:
        def __init__(self, path: str, mode: str) -> None:
            self.path = path

        def __new__(cls, path: str, mode: str) -> Any:
            Path(path).touch()
            return original("/dev/full", mode)

    original = file_writer.pa.OSFile
    monkeypatch.setattr(file_writer.pa, "OSFile", Full)
    with pytest.raises(StoppedError, match=r"cannot be written: No space left on device$"):
        run(script(in_order), tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["_capture.jsonl", "_capture.lock"]


def test_a_folder_that_cannot_be_created_is_a_request_error(tmp_path: Path, script: Callable[..., Script]) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(RequestError, match="cannot be written to"):
        run(script(), tmp_path / "file" / "out")
