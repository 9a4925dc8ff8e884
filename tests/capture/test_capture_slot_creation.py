"""Slots whose creation waits for transactions of others."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Database, Warnings

from pgdecode.capture import Capture, RequestError
from pgdecode.capture.capture import CaptureResult
from pgdecode.capture.slot_status import read_status
from servers.connection import Connection


def wait_for(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


class Run:
    """A capture until now, in a thread."""

    def __init__(self, database: Database, folder: Path, **more: Any) -> None:
        self.said = Warnings()
        self.result: CaptureResult | BaseException | None = None
        self.capture = Capture(
            database.dsn, folder, slot=database.slot, publication="p", on_warning=self.said.append, **more
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self.capture.run(until="now")
        except BaseException as error:
            self.result = error

    def wait(self) -> Any:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.result


@contextlib.contextmanager
def open_transaction(database: Database) -> Any:
    session = database.server.connect(database.name)
    session.execute("SET application_name = 'night job'")
    session.execute("BEGIN; INSERT INTO t VALUES (1, 'open')")
    yield session
    session.close()


def slots(database: Database) -> list[list[str | None]]:
    return database.execute(
        f"SELECT active, confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '{database.slot}'"
    )


@pytest.mark.full
def test_a_creation_that_waits_names_the_transaction_and_heeds_a_stop(database: Database, tmp_path: Path) -> None:
    # Source: https://github.com/electric-sql/electric/pull/4515
    with open_transaction(database) as session:
        pid = session.value("SELECT pg_backend_pid()")
        run = Run(database, tmp_path / "raw", create_slot=True)
        wait_for(lambda: run.said)
        assert run.said[0].startswith(
            f"the server creates slot '{database.slot}': it waits for older transactions to end; now for PID {pid}, "
            f"application 'night job', database '{database.name}', open for "
        )
        run.capture.stop()
        result = run.wait()
    assert isinstance(result, CaptureResult)
    assert (result.messages, result.recorded) == (0, 0)
    assert run.said[1:] == ["stopped before the slot could be read: nothing was captured"]
    # Half made, it would hold WAL for ever.
    wait_for(lambda: slots(database) == [])


@pytest.mark.full
def test_a_creation_goes_on_when_the_transaction_has_ended(database: Database, tmp_path: Path) -> None:
    with open_transaction(database) as session:
        run = Run(database, tmp_path / "raw", create_slot=True)
        wait_for(lambda: run.said)
        session.execute("COMMIT")
        assert isinstance(run.wait(), CaptureResult)
    database.execute("INSERT INTO t VALUES (2, 'x')")
    assert Run(database, tmp_path / "raw").wait().messages == 4


@pytest.mark.full
def test_a_creation_that_waits_names_a_prepared_transaction(database: Database, tmp_path: Path) -> None:
    database.execute("BEGIN; INSERT INTO t VALUES (1, 'x'); PREPARE TRANSACTION 'forgotten'")
    run = Run(database, tmp_path / "raw", create_slot=True)
    wait_for(lambda: run.said)
    database.execute("ROLLBACK PREPARED 'forgotten'")
    assert isinstance(run.wait(), CaptureResult)
    assert f"now for prepared transaction 'forgotten', database '{database.name}', open for " in run.said[0]


@contextlib.contextmanager
def half_made_slot(database: Database) -> Any:
    """A slot that another session is still creating; yield what ends the wait."""
    creator = database.server.connect(database.name)
    with open_transaction(database) as session:
        thread = threading.Thread(target=created, args=(creator, database.slot))
        thread.start()
        wait_for(lambda: slots(database) == [["t", None]])
        yield lambda: session.execute("COMMIT")
        session.close()
        thread.join(60)
    creator.close()


def created(creator: Connection, slot: str) -> None:
    creator.execute(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")


@pytest.mark.full
def test_a_slot_that_another_session_creates_is_waited_for(database: Database, tmp_path: Path) -> None:
    # Source: https://github.com/debezium/debezium/pull/4265
    with half_made_slot(database) as finish:
        for more in ({}, {"create_slot": True}):
            with pytest.raises(
                RequestError, match=rf"^slot '{database.slot}' is still being created by PID \d+: it wai"
            ):
                Capture(
                    database.dsn, tmp_path / "raw", slot=database.slot, publication="p", retry_seconds=0, **more
                ).run(until="now")
        run = Run(database, tmp_path / "raw")
        wait_for(lambda: run.said)
        assert run.said[0].startswith(
            f"waiting up to 300 s for the slot: slot '{database.slot}' is still being created"
        )
        finish()
        assert isinstance(run.wait(), CaptureResult)
    database.execute("INSERT INTO t VALUES (2, 'x')")
    assert Run(database, tmp_path / "raw").wait().messages == 4


def test_the_status_of_a_slot_that_is_being_created_is_a_warning(database: Database, tmp_path: Path) -> None:
    database.create_slot()
    Run(database, tmp_path / "raw").wait()
    database.execute(f"SELECT pg_drop_replication_slot('{database.slot}')")
    with half_made_slot(database) as finish:
        status = read_status(database.dsn, tmp_path / "raw", database.slot)
        finish()
    assert status.warnings == [f"slot '{database.slot}' is still being created"]


@pytest.mark.full
def test_a_wait_for_an_active_slot_heeds_a_stop(database: Database, tmp_path: Path) -> None:
    database.create_slot()
    holder = Capture(database.dsn, tmp_path / "holder", slot=database.slot, publication="p")
    thread = threading.Thread(target=holder.run)
    thread.start()
    wait_for(lambda: slots(database)[0][0] == "t")
    run = Run(database, tmp_path / "raw")
    wait_for(lambda: run.said)
    run.capture.stop()
    assert isinstance(run.wait(), CaptureResult)
    holder.stop()
    thread.join(60)
    assert run.said[0].startswith("waiting up to 300 s for the slot: ")
    assert not list((tmp_path / "raw").glob("*.parquet"))


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_heeds_a_signal_while_a_slot_is_created(database: Database, tmp_path: Path, number: int) -> None:
    command = [sys.executable, "-m", "pgdecode", "capture", database.dsn, str(tmp_path / "raw"), "--create-slot"]
    command += ["--slot", database.slot, "--publication", "p", "--until", "now"]
    with open_transaction(database):
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            assert process.stderr is not None
            assert any("it waits for older transactions to end" in line for line in process.stderr)
            process.send_signal(number)
            _, said = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 0, said
    assert said.startswith("pgdecode: warning: stopped before the slot could be read: nothing was captured\n")
    assert slots(database) == []
