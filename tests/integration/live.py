"""A PostgreSQL server of one's own, where its programs are installed: started for a test session, gone after it."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PLACES = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql*/bin", "/usr/local/pgsql/bin")


def programs() -> Path | None:
    """The folder with initdb, postgres and psql of the newest server there is; PGDECODE_TEST_PGBIN names another."""
    named = os.environ.get("PGDECODE_TEST_PGBIN")
    found = [Path(named)] if named else [path for place in PLACES for path in Path("/").glob(place[1:])]
    on_path = shutil.which("initdb")
    if on_path and not named:
        found.append(Path(on_path).resolve().parent)
    whole = [path for path in found if all((path / name).exists() for name in ("initdb", "pg_ctl", "psql"))]
    return max(whole, key=lambda path: [int(part) for part in path.parts if part.isdigit()], default=None)


def owner() -> str | None:
    """The user to run the server as, which must not be root; None where that is who runs the tests."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    raise LookupError("there is no user to run a server as")


class Server:
    """A running server, reached by its socket alone."""

    def __init__(self, bin_folder: Path, folder: Path, user: str | None) -> None:
        self._bin = bin_folder
        self._folder = folder
        self._user = user
        self.version = ""

    def start(self) -> None:
        data = str(self._folder / "data")
        self._run("initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync")
        options = f"-c listen_addresses= -c unix_socket_directories={self._folder} -c wal_level=logical -c fsync=off"
        log = str(self._folder / "log")
        self._run("pg_ctl", "-D", data, "-o", options, "-l", log, "-w", "start")
        self.version = self.rows("show server_version")[0]

    def stop(self) -> None:
        self._run("pg_ctl", "-D", str(self._folder / "data"), "-m", "immediate", "-w", "stop")

    def rows(self, query: str, **settings: str) -> list[str]:
        """Run statements under settings; the rows of all, unaligned, as psql prints them."""
        sets = "".join(f"set {name} to '{value}';\n" for name, value in settings.items())
        arguments = ("-h", str(self._folder), "-U", "postgres", "-d", "postgres", "-XAtq", "-v", "ON_ERROR_STOP=1")
        return self._run("psql", *arguments, stdin=(sets + query).encode()).decode("latin-1").splitlines()

    def payloads(self, slot: str, *, binary: bool, **settings: str) -> list[bytes]:
        """What pgoutput sends of a slot, under settings of the session; the slot stays where it is."""
        query = (
            "select encode(data, 'hex') from pg_logical_slot_peek_binary_changes("
            f"'{slot}', null, null, 'proto_version', '1', 'publication_names', 'p', 'binary', '{str(binary).lower()}')"
        )
        return [bytes.fromhex(row) for row in self.rows(query, **settings)]

    def _run(self, program: str, *arguments: str, stdin: bytes | None = None) -> bytes:
        result = subprocess.run(
            [self._bin / program, *arguments],
            input=stdin,
            stdout=subprocess.PIPE if program == "psql" else subprocess.DEVNULL,
            stderr=subprocess.PIPE if program == "psql" else subprocess.DEVNULL,
            user=self._user,
            cwd=self._folder,
            check=False,
            timeout=300,
        )
        if result.returncode:
            raise RuntimeError(f"{program} failed: {(result.stderr or b'').decode(errors='replace')}")
        return result.stdout or b""


@contextmanager
def running(bin_folder: Path) -> Iterator[Server]:
    """Start a server in a folder of its own; afterwards both are gone."""
    user = owner()
    folder = Path(tempfile.mkdtemp(prefix="pgdecode-"))
    if user:
        shutil.chown(folder, user)
    server = Server(bin_folder, folder, user)
    try:
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
