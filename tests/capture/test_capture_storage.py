"""A folder that cannot be written, and a slot that the server invalidates: one line, exit 2 or 3, complete files."""

from __future__ import annotations

import functools
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import cluster
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import Database

from pgdecode import ChangeDecoder

IS_ROOT = os.geteuid() == 0
# Root may write everywhere, unless it gives up that capability.
UNPRIVILEGED = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] * IS_ROOT
# The script mounts file systems that nobody else sees, and that are gone when it ends.
PRIVATE = ["unshare", "--mount", *["--map-root-user"] * (not IS_ROOT), "bash", "-c"]


@functools.cache
def can_mount() -> bool:
    return subprocess.run([*PRIVATE, "mount -t tmpfs none /mnt"], capture_output=True, check=False).returncode == 0


@pytest.fixture
def proxy(database: Database) -> Iterator[cluster.Proxy]:
    """Only the server's user may use its socket."""
    found = cluster.Proxy(database.server.server.socket_path)
    yield found
    found.close()


def command(database: Database, folder: str | Path, *more: str) -> list[str]:
    options = ["--slot", database.slot, "--publication", "p", "--file-size", "200kB", *more]
    return [sys.executable, "-m", "pgdecode", "capture", database.dsn, str(folder), *options]


def on_small_disk(script: str, words: list[str], place: Path) -> tuple[str, list[str]]:
    """Run a script with a command as its arguments, in a folder with the mount point `disk`."""
    if not can_mount():
        pytest.skip("this user cannot mount a file system")
    (place / "disk").mkdir()
    done = subprocess.run(
        [*PRIVATE, script, "bash", *words], cwd=place, capture_output=True, text=True, timeout=120, check=False
    )
    return done.stdout, done.stderr.splitlines()


def ids(folder: Path) -> list[int]:
    """The keys of the rows that were inserted, in FAILFAST."""
    files = sorted(folder.glob("*.parquet"))
    rows = pa.concat_tables([pq.read_table(path) for path in files]) if files else pa.table({"data": [], "seq": []})
    assert rows["seq"].to_pylist() == list(range(len(rows)))
    for path in files:
        tags = [payload[:1] for payload in pq.read_table(path)["data"].to_pylist()]
        assert (tags[0], tags[-1]) == (b"B", b"C")
    return [int(dict(new)["id"]) for new in ChangeDecoder().decode(rows["data"].cast(pa.binary()))["new"].to_pylist()]


def fill(database: Database, transactions: int, rows: int) -> None:
    """Insert rows of about 3 kB that hardly become smaller by compression."""
    database.create_slot()
    value = "(SELECT string_agg(md5(n::text || i), '') FROM generate_series(1, 100) i)"
    for number in range(transactions):
        range_ = f"generate_series({number * rows}, {(number + 1) * rows - 1})"
        database.execute(f"INSERT INTO t SELECT n, {value} FROM {range_} n")


@pytest.mark.full
@pytest.mark.parametrize(("transactions", "rows"), [(20, 100), (1, 20_000)], ids=["files", "a large transaction"])
def test_a_full_disk_is_one_line_and_the_next_capture_continues(
    database: Database, tmp_path: Path, transactions: int, rows: int
) -> None:
    fill(database, transactions, rows)
    script = """
        mount -t tmpfs -o size=2M none disk
        "$@"; echo $?
        cp -a disk first
        mount -o remount,size=200M disk
        "$@"; echo $?
        cp -a disk second
    """
    codes, said = on_small_disk(script, command(database, "disk", "--until", "now"), tmp_path)
    assert codes == "3\n0\n", said
    assert len(said) == 2
    assert "No space left on device" in said[0]
    found = ids(tmp_path / "first")
    assert found == list(range(len(found)))
    assert len(found) < transactions * rows
    assert (transactions == 1) == (not found)
    assert not [path for path in (tmp_path / "first").iterdir() if "partial" in path.name]
    assert ids(tmp_path / "second") == list(range(transactions * rows))


@pytest.mark.full
def test_a_read_only_file_system_is_refused_at_the_start(database: Database, tmp_path: Path) -> None:
    fill(database, 1, 10)
    script = """
        mount -t tmpfs none disk
        mount -o remount,ro disk
        "$@"; echo $?
        mount -o remount,rw disk
        "$@"; echo $?
        mount -o remount,ro disk
        "$@"; echo $?
        cp -a disk kept
    """
    codes, said = on_small_disk(script, command(database, "disk", "--until", "now"), tmp_path)
    assert codes == "2\n0\n2\n", said
    assert len(said) == 3
    assert said[0] == said[2] == "pgdecode: disk: cannot be written to: Read-only file system"
    assert ids(tmp_path / "kept") == list(range(10))


@pytest.mark.full
def test_a_folder_that_loses_its_permission_ends_the_capture(
    database: Database, tmp_path: Path, proxy: cluster.Proxy
) -> None:
    fill(database, 1, 10)
    database.dsn = f"host=127.0.0.1 port={proxy.port} user=postgres dbname={database.name}"
    out = tmp_path / "out"
    words = [*UNPRIVILEGED, *command(database, out, "--file-time", "100ms")]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as running:
        deadline = time.monotonic() + 30
        while not list(out.glob("*.parquet")) and time.monotonic() < deadline:
            time.sleep(0.05)
        out.chmod(0o555)
        database.execute("INSERT INTO t SELECT n FROM generate_series(10, 19) n")
        _, said = running.communicate(timeout=60)
    assert (running.returncode, said.count("\n")) == (3, 1), said
    assert "Permission denied" in said
    assert ids(out) == list(range(10))
    refused = subprocess.run([*words, "--until", "now"], capture_output=True, text=True, timeout=60, check=False)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1), refused.stderr
    assert "out: cannot be written to: Permission denied" in refused.stderr
    out.chmod(0o755)
    assert subprocess.run([*words, "--until", "now"], capture_output=True, timeout=60, check=False).returncode == 0
    assert ids(out) == list(range(20))


@pytest.mark.full
def test_a_slot_that_the_server_invalidates_ends_the_capture(postgres: cluster.Cluster, tmp_path: Path) -> None:
    if postgres.major < 13:
        pytest.skip("servers before 13 keep the WAL of every slot")
    settings = {"max_slot_wal_keep_size": "1MB", "max_wal_size": "32MB", "min_wal_size": "32MB"}
    with cluster.running(postgres.programs, **settings) as server:
        database = Database(server, "invalidated")
        fill(database, 1, 10)
        words = command(database, tmp_path / "out", "--file-time", "100ms")
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as running:
            deadline = time.monotonic() + 30
            while not list((tmp_path / "out").glob("*.parquet")) and time.monotonic() < deadline:
                time.sleep(0.05)
            # WAL is kept from the beginning of the oldest transaction.
            other = server.connect(database.name)
            other.execute("BEGIN; INSERT INTO t VALUES (99, 'x')")
            while running.poll() is None and time.monotonic() < deadline + 30:
                database.execute("SELECT pg_switch_wal()")
                database.execute("INSERT INTO t VALUES (10, 'x') ON CONFLICT DO NOTHING")
                database.execute("CHECKPOINT")
            _, said = running.communicate(timeout=60)
        errors = [line for line in said.splitlines() if "warning: " not in line]
        assert running.returncode == 3, said
        assert len(errors) == 1, said
        assert f"slot '{database.slot}' was invalidated by the server" in errors[0]
        assert ids(tmp_path / "out")[:10] == list(range(10))
        again = subprocess.run([*words, "--until", "now"], capture_output=True, text=True, timeout=60, check=False)
        assert again.returncode == 3, again.stderr
        assert again.stderr.splitlines()[-1].replace(" --until now", "") == errors[0]
        status = [*words, "--status", "--json"]
        asked = subprocess.run(status, capture_output=True, text=True, timeout=60, check=False)
        assert asked.returncode == 3
        shown = json.loads(asked.stdout)
        assert any("was invalidated by the server" in text for text in shown["warnings"])
        other.close()
        # The error names commands that can be pasted.
        named = again.stderr.splitlines()[-1].partition("a new slot and a gap: ")[2]
        ours = f"{sys.executable} -m pgdecode capture {shlex.quote(database.dsn)}"
        pasted = named.replace("pgdecode capture DSN", ours)
        done = subprocess.run(pasted, shell=True, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, named.count(" && ")) == (0, 1), done.stderr
        database.session.close()
