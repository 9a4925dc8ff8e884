"""A capture that ends anywhere, also between a message of pg_logical_emit_message and the record after it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import cluster
import cuts
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import Database

from pgdecode import ChangeDecoder
from pgdecode.capture import Capture, PluginOptions
from servers.server import find_server

MESSAGES = PluginOptions(messages=True)


@pytest.fixture
def messages(database: Database) -> Database:
    if database.server.major < 14:
        pytest.skip("older servers do not send messages")
    return database


@pytest.mark.full
@pytest.mark.parametrize(
    ("seed", "name"), [(3, "v3twophase"), (2, "v2"), (4, "v1"), (5, "v3twophasenostream"), (6, "v4")]
)
def test_a_cut_after_any_frame_loses_and_repeats_nothing(tmp_path: Path, seed: int, name: str) -> None:
    programs = find_server()
    if programs is None:
        pytest.skip("no PostgreSQL server with test_decoding is installed")
    with cluster.running(programs) as server:
        modes = {mode.name: mode for mode in cuts.text_modes(server.major)}
        if name not in modes:
            pytest.skip(f"PostgreSQL {server.major} does not have the mode {name}")
        trial = cuts.run(server, seed, modes[name], 40, tmp_path)
    assert trial.problems == []
    assert trial.cuts > 10
    assert trial.messages > 0
    assert trial.keepalives > 0


# Source of the cases below: debezium/debezium/pull/7653 and /7492, where an offset after a message loses a transaction.


def capture(database: Database, folder: Path, **more: Any) -> None:
    options = more.pop("options", MESSAGES)
    end = more or {"until": "now"}
    Capture(database.dsn, folder, slot=database.slot, publication="p", options=options).run(**end)


def ids(folder: Path) -> list[int]:
    table = pa.concat_tables([pq.read_table(path) for path in sorted(folder.glob("*.parquet"))])
    return sorted(int(dict(change["new"])["id"]) for change in ChangeDecoder().decode(table["data"]).to_pylist())


def emitted(folder: Path) -> list[bytes]:
    """The contents of the messages outside transactions."""
    table = pa.concat_tables([pq.read_table(path) for path in sorted(folder.glob("*.parquet"))])
    return [data[data.index(b"\0", 10) + 5 :] for data in table["data"].to_pylist() if data[:2] == b"M\0"]


def test_a_run_that_ends_after_a_message_does_not_lose_the_transaction_that_emitted_it(
    messages: Database, tmp_path: Path
) -> None:
    messages.create_slot()
    messages.execute("INSERT INTO t VALUES (1)")
    messages.execute("BEGIN; INSERT INTO t VALUES (2); SELECT pg_logical_emit_message(false, 'm', 'hello'); COMMIT")
    for end in ({"max_messages": 1}, {"max_messages": 1}, {"until": "now"}, {"until": "now"}):
        capture(messages, tmp_path / "out", **end)
    assert ids(tmp_path / "out") == [1, 2]
    assert emitted(tmp_path / "out") == [b"hello"]


@pytest.mark.full
@pytest.mark.parametrize("emits_itself", [True, False], ids=["its own message", "of another session"])
@pytest.mark.parametrize(
    ("two_phase", "before", "after"),
    [
        pytest.param(False, "", "COMMIT", id="commit"),
        pytest.param(True, "", "PREPARE TRANSACTION 'g'; COMMIT PREPARED 'g'", id="prepare"),
        pytest.param(False, "PREPARE TRANSACTION 'g'", "COMMIT PREPARED 'g'", id="commit prepared"),
        pytest.param(True, "PREPARE TRANSACTION 'g'", "COMMIT PREPARED 'g'", id="commit prepared, two phases"),
    ],
)
def test_a_message_that_is_the_last_record_before_a_run_hides_no_outcome(
    messages: Database, tmp_path: Path, *, emits_itself: bool, two_phase: bool, before: str, after: str
) -> None:
    if messages.server.major < 17:
        pytest.skip("before PostgreSQL 17, a message alone is not flushed")
    options = PluginOptions(messages=True, two_phase=two_phase)
    flag = ", false, true" if two_phase else ""
    messages.execute(f"SELECT pg_create_logical_replication_slot('{messages.slot}', 'pgoutput'{flag})")
    with contextlib.closing(messages.server.connect(messages.name)) as session:
        session.execute("BEGIN; INSERT INTO t VALUES (1)")
        session.execute(before)
        emitting = session if emits_itself else messages
        emitting.execute("SELECT pg_logical_emit_message(false, 'm', 'hello', flush => true)")
        for _ in range(2):
            capture(messages, tmp_path / "out", options=options)
        for statement in after.split(";"):
            session.execute(statement)
        for _ in range(2):
            capture(messages, tmp_path / "out", options=options)
    assert ids(tmp_path / "out") == [1]
    assert emitted(tmp_path / "out") == [b"hello"]


def test_a_transaction_that_was_prepared_before_two_phases_were_asked_for_counts_once(
    database: Database, tmp_path: Path
) -> None:
    if database.server.major < 15:
        pytest.skip("two_phase came with PostgreSQL 15")
    database.create_slot()
    database.execute("BEGIN; INSERT INTO t VALUES (1); PREPARE TRANSACTION 'g'")
    database.execute("INSERT INTO t VALUES (2)")
    capture(database, tmp_path / "out", options=PluginOptions())
    database.execute("COMMIT PREPARED 'g'")
    # The server sends the prepare with the commit, and again in a session that begins between the two.
    two_phase = PluginOptions(two_phase=True)
    capture(database, tmp_path / "out", options=two_phase, max_messages=1)
    capture(database, tmp_path / "out", options=two_phase)
    payloads = [
        data.as_py() for path in sorted((tmp_path / "out").glob("*.parquet")) for data in pq.read_table(path)["data"]
    ]
    assert [data[:1] for data in payloads].count(b"P") == 2
    assert ids(tmp_path / "out") == [1, 2]
