"""The publications of a folder: changed, empty, or missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from conftest import Database

from pgdecode import ChangeDecoder, lsn_from_text
from pgdecode.capture import Capture, RequestError
from pgdecode.capture.journal import read_log


@pytest.fixture
def two_tables(database: Database) -> Database:
    """Tables a and b, each in a publication of its own."""
    database.execute("DROP PUBLICATION p; CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION pa FOR TABLE a; CREATE PUBLICATION pb FOR TABLE b")
    database.create_slot()
    return database


def capture(database: Database, folder: Path, *publications: str, **more: Any) -> list[str]:
    """Capture until now, and return the warnings."""
    said: list[str] = []
    made = Capture(database.dsn, folder, slot=database.slot, publication=publications, on_warning=said.append, **more)
    made.run(until="now")
    return said


def changes(folder: Path) -> list[tuple[str, str]]:
    payloads = [payload for path in sorted(folder.glob("*.parquet")) for payload in pq.read_table(path)["data"]]
    found = ChangeDecoder().decode([payload.as_py() for payload in payloads]).to_pylist()
    return [(change["relation_name"], dict(change["new"])["id"]) for change in found]


@pytest.mark.parametrize("asked", [("pb",), ("pb", "pc")], ids=["another", "another and a third"])
def test_a_run_without_a_publication_of_the_folder_is_refused_and_confirms_nothing(
    two_tables: Database, tmp_path: Path, asked: tuple[str, ...]
) -> None:
    # Source: https://github.com/PeerDB-io/peerdb/pull/2446
    database, raw = two_tables, tmp_path / "raw"
    database.execute("CREATE PUBLICATION pc FOR TABLE b")
    database.execute("INSERT INTO a VALUES (1)")
    capture(database, raw, "pa")
    before = database.slot_lsn()
    database.execute("INSERT INTO a VALUES (2)")
    with pytest.raises(RequestError, match=r"publication 'pa', and this call names publications? 'pb'.*'pa' would be"):
        capture(database, raw, *asked)
    assert database.slot_lsn() == before
    database.execute("INSERT INTO a VALUES (3)")
    capture(database, raw, "pa")
    assert changes(raw) == [("a", "1"), ("a", "2"), ("a", "3")]


def test_a_publication_that_is_left_out_by_request_is_in_the_log(two_tables: Database, tmp_path: Path) -> None:
    database, raw = two_tables, tmp_path / "raw"
    capture(database, raw, "pa")
    start = database.slot_lsn()
    database.execute("INSERT INTO a VALUES (1); INSERT INTO b VALUES (1)")
    capture(database, raw, "pb", change_publications=True)
    assert changes(raw) == [("b", "1")]
    # Opening the log rewrites it.
    capture(database, raw, "pb")
    [change] = read_log(raw).publication_changes
    assert (change["former"], change["publications"]) == (["pa"], ["pb"])
    assert lsn_from_text(change["from"]) == start
    assert read_log(raw).origin is not None
    assert read_log(raw).origin["publications"] == ["pb"]  # type: ignore[index]
    with pytest.raises(RequestError, match="this call names publication 'pa'"):
        capture(database, raw, "pa")


def test_a_publication_can_be_added(two_tables: Database, tmp_path: Path) -> None:
    database, raw = two_tables, tmp_path / "raw"
    capture(database, raw, "pa")
    database.execute("INSERT INTO a VALUES (1)")
    capture(database, raw, "pb", "pa")
    database.execute("INSERT INTO b VALUES (2)")
    # The order of names does not matter.
    capture(database, raw, "pa", "pb")
    assert changes(raw) == [("a", "1"), ("b", "2")]
    [change] = read_log(raw).publication_changes
    assert change["publications"] == ["pb", "pa"]
    with pytest.raises(RequestError, match="later changes of publication 'pb' would be passed over"):
        capture(database, raw, "pa")


def test_the_last_publications_are_known_without_the_log(two_tables: Database, tmp_path: Path) -> None:
    database, raw = two_tables, tmp_path / "raw"
    for number, names in enumerate([("pa",), ("pa", "pb")]):
        database.execute(f"INSERT INTO a VALUES ({number})")
        capture(database, raw, *names)
    (raw / "_capture.jsonl").unlink()
    with pytest.raises(RequestError, match="has changes of publications 'pa', 'pb'"):
        capture(database, raw, "pa")


def test_an_accepted_gap_does_not_change_publications(two_tables: Database, tmp_path: Path) -> None:
    database, raw = two_tables, tmp_path / "raw"
    capture(database, raw, "pa")
    database.execute("INSERT INTO a VALUES (1)")
    database.execute(f"SELECT pg_replication_slot_advance('{database.slot}', pg_current_wal_flush_lsn())")
    with pytest.raises(RequestError, match="change_publications does so"):
        capture(database, raw, "pb", accept_gap=True)
    capture(database, raw, "pb", accept_gap=True, change_publications=True)
    assert len(read_log(raw).gaps) == len(read_log(raw).publication_changes) == 1


def test_a_publication_without_tables_is_said(two_tables: Database, tmp_path: Path) -> None:
    database = two_tables
    database.execute("CREATE PUBLICATION empty; CREATE PUBLICATION everything FOR ALL TABLES")
    expected = ["publication 'empty' publishes no table: nothing of it is sent"]
    if database.server.major >= 15:
        database.execute("CREATE SCHEMA bare; CREATE PUBLICATION of_bare FOR TABLES IN SCHEMA bare")
        database.execute("CREATE PUBLICATION of_public FOR TABLES IN SCHEMA public")
        assert capture(database, tmp_path / "schema", "of_bare", "of_public") == [
            "publication 'of_bare' publishes no table: nothing of it is sent"
        ]
    found = capture(database, tmp_path / "raw", "empty", "everything", "pa")
    assert [text for text in found if "publishes" in text] == expected
    assert json.loads((tmp_path / "raw" / "_capture.jsonl").read_text().splitlines()[0])["publications"]
