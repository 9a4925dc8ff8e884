"""A PostgreSQL cluster that can be stopped and restarted, and a TCP proxy that cuts connections."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from servers.connection import Connection
from servers.server import PORT, Server, major_version, settings_for, user_exists


class Cluster:
    """A cluster in a temporary folder."""

    def __init__(self, programs: Path, settings: Mapping[str, str]) -> None:
        self.programs = programs
        self.major = major_version(programs)
        # A server refuses to run as root, so root runs it as a user that always exists.
        self._owner = ("postgres" if user_exists("postgres") else "nobody") if os.geteuid() == 0 else None
        self.place = Path(tempfile.mkdtemp(prefix="pg"))
        if self._owner is not None:
            shutil.chown(self.place, self._owner)
        self.data = self.place / "data"
        self._run("initdb", "-D", str(self.data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "-N")
        with (self.data / "postgresql.conf").open("a") as conf:
            conf.writelines(f"{name} = '{value}'\n" for name, value in {**settings_for(self.major), **settings}.items())

    @property
    def server(self) -> Server:
        return Server(self.major, self.place / f".s.PGSQL.{PORT}")

    def dsn(self, database: str = "postgres", **more: str) -> str:
        found = {"host": str(self.place), "port": str(PORT), "user": "postgres", "dbname": database, **more}
        return " ".join(f"{name}={value}" for name, value in found.items())

    def connect(self, database: str = "postgres") -> Connection:
        return self.server.connect(database)

    def start(self) -> None:
        self._run("pg_ctl", "-D", str(self.data), "-w", "-o", f"-k {self.place} -p {PORT}", "start")

    def stop(self, mode: str = "immediate") -> None:
        self._run("pg_ctl", "-D", str(self.data), "-w", "-m", mode, "stop")

    def restart(self, mode: str) -> None:
        self.stop(mode)
        self.start()

    def set(self, name: str, value: str) -> None:
        """Change a setting for new sessions."""
        with contextlib.closing(self.connect()) as connection:
            connection.execute(f"ALTER SYSTEM SET {name} = '{value}'")
            connection.execute("SELECT pg_reload_conf()")
        time.sleep(0.2)

    def close(self) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):
            self.stop()
        shutil.rmtree(self.place, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        # Not a pipe, because the server would inherit it and keep it open.
        with (self.place / "log").open("ab") as log:
            subprocess.run(
                [self.programs / program, *arguments],
                check=True,
                user=self._owner,
                cwd=self.place,
                stdout=log,
                stderr=log,
                umask=0o077,
            )


@contextlib.contextmanager
def running(programs: Path, **settings: str) -> Iterator[Cluster]:
    cluster = Cluster(programs, settings)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


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
