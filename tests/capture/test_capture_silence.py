"""Connections on which nothing comes, although they are open."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cluster
import pyarrow.parquet as pq
import pytest
from conftest import Database, Warnings

from pgdecode import ChangeDecoder
from pgdecode.capture import Capture, FileRules, channel
from pgdecode.capture.capture import CaptureResult
from pgdecode.capture.journal import read_log


def wait_for(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


class Run:
    """A capture in a thread, over a proxy."""

    def __init__(self, database: Database, proxy: cluster.Proxy, folder: Path) -> None:
        dsn = f"host=127.0.0.1 port={proxy.port} user=postgres dbname={database.name} connect_timeout=2"
        self.said = Warnings()
        self.result: CaptureResult | BaseException | None = None
        self.capture = Capture(
            dsn,
            folder,
            slot=database.slot,
            publication="p",
            rules=FileRules(max_seconds=0.1, position_seconds=0.1),
            check_seconds=3600,
            on_warning=self.said.append,
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self.capture.run()
        except BaseException as error:
            self.result = error

    def stop(self) -> CaptureResult:
        self.capture.stop()
        self._thread.join(60)
        assert not self._thread.is_alive()
        assert isinstance(self.result, CaptureResult), self.result
        return self.result


@pytest.fixture
def proxy(postgres: cluster.Cluster) -> Iterator[cluster.Proxy]:
    found = cluster.Proxy(postgres.server.socket_path)
    yield found
    found.close()


def ids(folder: Path) -> list[str]:
    payloads = [payload for path in sorted(folder.glob("*.parquet")) for payload in pq.read_table(path)["data"]]
    found = ChangeDecoder().decode([payload.as_py() for payload in payloads]).to_pylist()
    return [dict(change["new"])["id"] for change in found]


@pytest.mark.full
@pytest.mark.parametrize("timeout", ["2s", "0"])
def test_a_silent_connection_is_given_up_and_nothing_is_lost(
    database: Database, proxy: cluster.Proxy, tmp_path: Path, timeout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Source: https://github.com/powersync-ja/powersync-service/issues/700
    monkeypatch.setattr(channel, "_SILENT_SECONDS", 2.0)
    if database.server.major >= 12:
        database.execute(f"ALTER DATABASE {database.name} SET wal_sender_timeout = '{timeout}'")
    database.create_slot()
    database.execute("INSERT INTO t VALUES (1, 'x')")
    run = Run(database, proxy, tmp_path / "raw")
    wait_for(lambda: list((tmp_path / "raw").glob("*.parquet")))
    proxy.forwards.clear()
    database.execute("INSERT INTO t VALUES (2, 'while silent')")
    wait_for(lambda: run.said)
    proxy.forwards.set()
    wait_for(lambda: len(list((tmp_path / "raw").glob("*.parquet"))) == 2)
    assert run.stop().reconnects == 1
    assert run.said[0] == (
        "connection lost, connecting again: the server has sent nothing for 2 s, although a keepalive was requested"
    )
    assert ids(tmp_path / "raw") == ["1", "2"]


@pytest.mark.full
def test_a_server_that_works_on_a_transaction_is_waited_for(
    database: Database, proxy: cluster.Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if database.server.major < 12:
        pytest.skip("wal_sender_timeout cannot be set for a database")
    monkeypatch.setattr(channel, "_SILENT_SECONDS", 0.5)
    monkeypatch.setattr(Capture, "_is_working", lambda self, pid: True)
    database.execute(f"ALTER DATABASE {database.name} SET wal_sender_timeout = 0")
    database.create_slot()
    run = Run(database, proxy, tmp_path / "raw")
    wait_for(lambda: read_log(tmp_path / "raw").sessions)
    proxy.forwards.clear()
    wait_for(lambda: run.said)
    proxy.forwards.set()
    database.execute("INSERT INTO t VALUES (1, 'x')")
    wait_for(lambda: list((tmp_path / "raw").glob("*.parquet")))
    assert run.stop().reconnects == 0
    assert run.said == [
        "the server has sent nothing for 0.5 s, although a keepalive was requested; it is working on the slot"
    ]


@pytest.mark.full
def test_an_idle_connection_is_not_silent(database: Database, proxy: cluster.Proxy, tmp_path: Path) -> None:
    database.create_slot()
    run = Run(database, proxy, tmp_path / "raw")
    wait_for(lambda: database.execute("SELECT 1 FROM pg_replication_slots WHERE active"))
    # More than wal_sender_timeout.
    time.sleep(3)
    assert run.stop().reconnects == 0
    assert run.said == []


@pytest.mark.full
def test_a_stop_is_heeded_while_the_server_is_silent(database: Database, proxy: cluster.Proxy, tmp_path: Path) -> None:
    database.create_slot()
    database.execute("INSERT INTO t VALUES (1, 'x')")
    run = Run(database, proxy, tmp_path / "raw")
    wait_for(lambda: list((tmp_path / "raw").glob("*.parquet")))
    proxy.forwards.clear()
    wait_for(lambda: run.said)
    assert run.stop().messages == 4
    assert run.said[-1] == "stopped while the server could not be reached"
