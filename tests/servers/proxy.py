"""A TCP proxy that cuts connections to a PostgreSQL cluster."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path


class Proxy:
    """Forwards TCP connections to a server's socket until it cuts them, or is silent."""

    def __init__(self, socket_path: Path) -> None:
        self._target = str(socket_path)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.n_cuts = 0
        # While cleared, nothing is forwarded, and connections stay open.
        self.forwards = threading.Event()
        self.forwards.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> int:
        """Cut all connections, possibly in the middle of a message; return their number."""
        with self._lock:
            found, self._open = self._open, set()
        for end in found:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self.n_cuts += bool(found)
        return len(found) // 2

    def close(self) -> None:
        self.forwards.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            try:
                server.connect(self._target)
            except OSError:
                client.close()
                server.close()
                continue
            with self._lock:
                self._open |= {client, server}
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self._pass_on, args=(source, target), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self.forwards.wait()
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        with self._lock:
            self._open -= {source, target}
