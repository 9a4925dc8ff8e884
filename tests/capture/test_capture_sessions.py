"""The footers of captured files say where a session began, and decoding uses it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Database

from pgdecode.capture import Capture, PluginOptions
from pgdecode.datasets.target import read_manifests
from pgdecode.files.change_reader import FileChangeOptions, FileChanges
from pgdecode.files.ordered_files import interruptions, ordered_files
from support.footers import check_footers


def capture_cut_off_stream(database: Database, folder: Path) -> None:
    """Capture a transaction that is streamed in one session, and rolled back before the next one."""
    database.execute("SELECT pg_create_logical_replication_slot('" + database.slot + "', 'pgoutput')")
    database.execute(f"ALTER DATABASE {database.name} SET logical_decoding_work_mem = '64kB'")
    options = PluginOptions(streaming="on")
    made = Capture(database.dsn, folder, slot=database.slot, publication="p", options=options)
    database.execute("BEGIN")
    database.execute("INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, 5000) i")
    # WAL of an open transaction is not flushed at once.
    with_another_session(database, "SELECT pg_logical_emit_message(true, 'p', 'x', true)")
    made.run(until="now")
    database.execute("ROLLBACK")
    database.execute("INSERT INTO t VALUES (1, 'after')")
    made.run(until="now")


def with_another_session(database: Database, sql: str) -> None:
    session = database.server.connect(database.name)
    session.execute(sql.replace(", true)", ")") if database.server.major < 17 else sql)
    session.close()


@pytest.mark.full
def test_a_stream_that_its_session_left_open_is_discarded_where_the_next_session_begins(
    database: Database, tmp_path: Path
) -> None:
    if database.server.major < 18:
        pytest.skip("older servers send a rolled-back transaction again")
    capture_cut_off_stream(database, tmp_path / "raw")
    files = ordered_files(tmp_path / "raw", "data")
    assert interruptions(files.files)
    assert [file.captured.open_streams for file in files.files if file.captured] == [1, 0]
    changes = FileChanges(files, FileChangeOptions())
    found = [row for batch in files.batches() for _, rows in changes.decode(batch) for row in rows.to_pylist()]
    assert [dict(row["new"]) for row in found] == [{"id": "1", "v": "after"}]
    assert changes.engine.state.n_undecided == 0
    command = [sys.executable, "-m", "pgdecode", "decode", str(tmp_path / "raw"), str(tmp_path / "out"), "--changes"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "undecided" not in done.stderr
    assert read_manifests(tmp_path / "out")[-1].undecided == 0


@pytest.mark.full
def test_footers_give_the_index_of_the_rows_over_streams_two_phase_commits_and_sessions(
    database: Database, tmp_path: Path
) -> None:
    if database.server.major < 15:
        pytest.skip("two_phase came with PostgreSQL 15")
    database.execute(f"SELECT pg_create_logical_replication_slot('{database.slot}', 'pgoutput', false, true)")
    database.execute(f"ALTER DATABASE {database.name} SET logical_decoding_work_mem = '64kB'")
    options = PluginOptions(streaming="on", two_phase=True)
    made = Capture(database.dsn, tmp_path / "raw", slot=database.slot, publication="p", options=options)
    for number in range(3):
        first = 9000 * number
        rows = f"INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series({first}, {first + 5000}) i"
        database.execute(f"BEGIN; {rows}; SAVEPOINT s; INSERT INTO t VALUES (-1, 'no'); ROLLBACK TO s; COMMIT")
        database.execute(f"ALTER TABLE t ADD c{number} int; INSERT INTO t VALUES ({-2 - number}, 'plain')")
        database.execute(f"BEGIN; UPDATE t SET v = 'y' WHERE id < 4000; PREPARE TRANSACTION 'streamed{number}'")
        database.execute("BEGIN; DELETE FROM t WHERE id = 4500; PREPARE TRANSACTION 'small'")
        database.execute("ROLLBACK PREPARED 'small'")
        made.run(until="now")
        database.execute(f"{'COMMIT' if number else 'ROLLBACK'} PREPARED 'streamed{number}'")
    made.run(until="now")
    assert len(list((tmp_path / "raw").glob("*.parquet"))) == 4
    assert check_footers(tmp_path / "raw")
