"""What a capture finds missing before its first file or between files: it is in the footers and in the log."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from conftest import Database

from pgdecode.capture import Capture, GapError, server
from pgdecode.capture.journal import LOG_NAME, read_log
from pgdecode.protocol.lsn import lsn_to_text


def capture(database: Database, folder: Path, **more: Any) -> list[str]:
    """Capture until now, and return the warnings."""
    said: list[str] = []
    made = Capture(database.dsn, folder, slot=database.slot, publication="p", on_warning=said.append, **more)
    made.run(until="now")
    return said


def footers(folder: Path) -> list[dict[str, Any]]:
    found = [pq.read_metadata(path).metadata for path in sorted(folder.glob("*.parquet"))]
    return [json.loads(item[b"pgdecode.capture"]) for item in found]


def advance(database: Database) -> int:
    """Let another client read and confirm everything."""
    options = "'proto_version', '1', 'publication_names', 'p'"
    database.execute(
        f"SELECT count(*) FROM pg_logical_slot_get_binary_changes('{database.slot}', NULL, NULL, {options})"
    )
    return database.slot_lsn()


def test_an_accepted_gap_is_in_the_footer_of_the_next_file(database: Database, tmp_path: Path) -> None:
    # Source: https://github.com/dbtrail/dbtrail/issues/765
    database.create_slot()
    out = tmp_path / "out"
    database.execute("INSERT INTO t VALUES (1)")
    capture(database, out)
    recorded = read_log(out).recorded or 0
    database.execute("INSERT INTO t VALUES (2)")
    confirmed = advance(database)
    with pytest.raises(GapError):
        capture(database, out)
    capture(database, out, accept_gap=True)
    assert not any("gaps" in footer for footer in footers(out))
    for number in (3, 4):
        database.execute(f"INSERT INTO t VALUES ({number})")
        capture(database, out)
    first, second, third = footers(out)
    assert "gaps" not in first
    [gap] = second["gaps"]
    assert (gap["from"], gap["to"]) == (lsn_to_text(recorded), lsn_to_text(confirmed))
    assert gap["reason"].startswith("gap: recorded up to")
    assert "gaps" not in third
    assert [item["file"] for item in read_log(out).gaps] == [f"{second['file']['first_seq']:020}.parquet"]


def test_a_folder_that_begins_within_a_used_slot_says_so(database: Database, tmp_path: Path) -> None:
    database.create_slot()
    database.execute("INSERT INTO t VALUES (1)")
    assert capture(database, tmp_path / "first") == []
    start = database.slot_lsn()
    database.execute("INSERT INTO t VALUES (2)")
    [said] = capture(database, tmp_path / "second")
    assert "was read or advanced before" in said
    assert said.endswith("earlier changes of the slot are not in it; copy=True adds the rows that its tables have")
    assert lsn_to_text(start) in said
    [first], [second] = footers(tmp_path / "first"), footers(tmp_path / "second")
    assert first["beginning"]["slot_was_read"] is False
    assert second["beginning"] == {"lsn": lsn_to_text(start), "slot_was_read": True}


def test_a_slot_that_the_capture_creates_was_not_read(database: Database, tmp_path: Path) -> None:
    assert capture(database, tmp_path / "out", create_slot=True) == []
    database.execute("INSERT INTO t VALUES (1)")
    assert capture(database, tmp_path / "out") == []
    assert [footer["beginning"]["slot_was_read"] for footer in footers(tmp_path / "out")] == [False]


def test_a_slot_that_was_advanced_by_sql_was_read(database: Database, tmp_path: Path) -> None:
    if database.server.major < 11:
        pytest.skip("pg_replication_slot_advance came with PostgreSQL 11")
    database.create_slot()
    database.execute("INSERT INTO t SELECT generate_series(1, 100)")
    database.execute(f"SELECT pg_replication_slot_advance('{database.slot}', pg_current_wal_lsn())")
    assert len(capture(database, tmp_path / "out")) == 1


@pytest.mark.full
def test_a_new_folder_that_waits_for_the_slot_begins_once_it_holds_the_slot(database: Database, tmp_path: Path) -> None:
    # Source: https://github.com/xtdb/xtdb/pull/5486
    database.create_slot()
    out = tmp_path / "out"
    other = Capture(database.dsn, tmp_path / "other", slot=database.slot, publication="p")
    holding = threading.Thread(target=other.run)
    holding.start()
    try:
        waiting = threading.Thread(target=capture, args=(database, out))
        while not read_log(tmp_path / "other").sessions:
            time.sleep(0.05)
        waiting.start()
        time.sleep(1)
        assert not (out / LOG_NAME).exists()
        database.execute("INSERT INTO t VALUES (1)")
    finally:
        other.stop()
        holding.join(30)
    confirmed = database.slot_lsn()
    waiting.join(60)
    assert not waiting.is_alive()
    contents = read_log(out)
    assert contents.gaps == []
    assert contents.beginning is not None
    assert contents.beginning["lsn"] == lsn_to_text(confirmed)


def test_a_slot_that_is_advanced_just_before_the_stream_begins_is_a_gap(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.create_slot()
    database.execute("INSERT INTO t VALUES (1)")
    capture(database, tmp_path / "out")
    database.execute("INSERT INTO t VALUES (2)")
    usable_slot = server.usable_slot
    left = [None]

    def read_and_advance(*arguments: Any) -> server.SlotState:
        state = usable_slot(*arguments)
        if left:
            left.pop()
            advance(database)
        return state

    monkeypatch.setattr(server, "usable_slot", read_and_advance)
    with pytest.raises(GapError, match="gap: recorded up to"):
        capture(database, tmp_path / "out")
    capture(database, tmp_path / "out", accept_gap=True)
    assert len(read_log(tmp_path / "out").gaps) == 1
