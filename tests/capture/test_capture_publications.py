"""The publications of a folder: changed, empty, or missing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from conftest import Database, Warnings

from pgdecode import ChangeDecoder, lsn_from_text
from pgdecode.capture import Capture, RequestError, StoppedError
from pgdecode.capture.journal import read_log
from support.tiers import full


@pytest.fixture
def two_tables(database: Database) -> Database:
    """Tables a and b, each in a publication of its own."""
    database.execute("DROP PUBLICATION p; CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION pa FOR TABLE a; CREATE PUBLICATION pb FOR TABLE b")
    database.create_slot()
    return database


def capture(database: Database, folder: Path, *publications: str, **more: Any) -> list[str]:
    """Capture until now, and return the warnings."""
    said = Warnings()
    made = Capture(database.dsn, folder, slot=database.slot, publication=publications, on_warning=said.append, **more)
    made.run(until="now")
    return said


def changes(folder: Path) -> list[tuple[str, str]]:
    payloads = [payload for path in sorted(folder.glob("*.parquet")) for payload in pq.read_table(path)["data"]]
    found = ChangeDecoder().decode([payload.as_py() for payload in payloads]).to_pylist()
    return [(change["relation_name"], dict(change["new"])["id"]) for change in found]


@pytest.mark.parametrize("asked", [full(("pb",), id="another"), pytest.param(("pb", "pc"), id="another and a third")])
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
    database.execute(
        f"SELECT count(*) FROM pg_logical_slot_get_binary_changes('{database.slot}', NULL, NULL, 'proto_version', '1', "
        "'publication_names', 'pa')"
    )
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


def test_a_publication_that_does_not_exist_leaves_no_folder(two_tables: Database, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="publication 'missing' does not exist"):
        capture(two_tables, tmp_path / "raw", "missing")
    assert not (tmp_path / "raw").exists()
    (tmp_path / "raw").mkdir()
    with pytest.raises(RequestError):
        capture(two_tables, tmp_path / "raw", "missing")
    assert (tmp_path / "raw").exists()


def test_the_folders_above_the_output_are_made_and_removed_if_nothing_begins(
    two_tables: Database, tmp_path: Path
) -> None:
    raw = tmp_path / "lake" / "shop" / "raw"
    with pytest.raises(RequestError, match="publication 'missing' does not exist"):
        capture(two_tables, raw, "missing")
    assert not (tmp_path / "lake").exists()
    two_tables.execute("INSERT INTO a VALUES (1)")
    capture(two_tables, raw, "pa")
    assert list(raw.glob("*.parquet"))
    (tmp_path / "file").touch()
    with pytest.raises(RequestError, match=r"cannot be written to: .*[Nn]ot a directory"):
        capture(two_tables, tmp_path / "file" / "raw", "pa")


def test_a_slot_that_is_older_than_the_publication_is_named(two_tables: Database, tmp_path: Path) -> None:
    # Source: https://github.com/ihippik/wal-listener/issues/2
    database = two_tables
    database.execute("INSERT INTO a VALUES (1); CREATE PUBLICATION late FOR TABLE a; INSERT INTO a VALUES (2)")
    with pytest.raises(StoppedError, match="drop_slot, and then create_slot with accept_gap") as caught:
        capture(database, tmp_path / "raw", "late")
    if database.server.major < 18:
        assert "although it exists now: the slot is older" in str(caught.value)


def test_replication_in_the_dsn_is_ignored(two_tables: Database, tmp_path: Path) -> None:
    for value in ("true", "database"):
        made = Capture(
            f"{two_tables.dsn} replication={value}", tmp_path / "raw", slot=two_tables.slot, publication="pa"
        )
        made.run(until="now")


def test_tables_without_identity_are_a_warning_if_updates_of_them_are_published(
    two_tables: Database, tmp_path: Path
) -> None:
    database, said = two_tables, "tables without a replica identity, on which the server refuses UPDATE and DELETE: "
    database.execute(
        "CREATE TABLE bare (id int); CREATE PUBLICATION inserts FOR TABLE bare WITH (publish = 'insert'); "
        "CREATE TABLE by_index (id int NOT NULL UNIQUE); "
        "ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_id_key; CREATE PUBLICATION pi FOR TABLE by_index"
    )
    operations = "update, delete, truncate" if database.server.major >= 11 else "update, delete"
    left_out = f"publication 'inserts' leaves out {operations}"
    assert capture(database, tmp_path / "inserts", "inserts", "pa", "pi") == [left_out]
    database.execute("ALTER TABLE by_index DROP CONSTRAINT by_index_id_key")
    assert capture(database, tmp_path / "index", "pi")[:1] == [f"{said}public.by_index"]


def test_partitions_without_identity_below_a_published_root_are_a_warning(two_tables: Database, tmp_path: Path) -> None:
    if two_tables.server.major < 13:
        pytest.skip("partitioned tables cannot be published")
    two_tables.execute(
        "CREATE TABLE root (id int) PARTITION BY LIST (id); "
        "CREATE TABLE middle PARTITION OF root FOR VALUES IN (1, 2) PARTITION BY LIST (id); "
        "CREATE TABLE leaf PARTITION OF middle FOR VALUES IN (1); CREATE PUBLICATION pr FOR TABLE root"
    )
    [warning] = capture(two_tables, tmp_path / "raw", "pr")
    assert warning.endswith("refuses UPDATE and DELETE: public.leaf")


def test_generated_columns_that_are_left_out_are_a_warning(two_tables: Database, tmp_path: Path) -> None:
    if two_tables.server.major < 12:
        pytest.skip("the server has no generated columns")
    database = two_tables
    database.execute("CREATE TABLE g (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED)")
    database.execute("CREATE PUBLICATION pg FOR TABLE g")
    [warning] = capture(database, tmp_path / "raw", "pg", "pa")
    assert warning.startswith("generated columns are left out: public.g.twice")
    if database.server.major >= 18:
        database.execute("CREATE PUBLICATION stored FOR TABLE g WITH (publish_generated_columns = stored)")
        database.execute("CREATE PUBLICATION listed FOR TABLE g (id, twice)")
        for name in ("stored", "listed"):
            assert not any(text.startswith("generated") for text in capture(database, tmp_path / name, name))
        database.execute("ALTER TABLE g ADD thrice int GENERATED ALWAYS AS (id * 3) VIRTUAL")
        [warning] = [text for text in capture(database, tmp_path / "stored", "stored") if text.startswith("generated")]
        assert warning.startswith("generated columns are left out: public.g.thrice;")


@pytest.mark.full
def test_the_status_of_a_slot_that_is_gone_is_an_obstacle_with_the_calls_that_continue(
    two_tables: Database, tmp_path: Path
) -> None:
    database = two_tables
    capture(database, tmp_path / "raw", "pa")
    command = [sys.executable, "-m", "pgdecode", "capture", database.dsn, str(tmp_path / "raw")]
    # Slot and publication are those of the folder, as in the remedy of `apply`.
    database.execute("INSERT INTO a VALUES (7)")
    again = subprocess.run([*command, "--until", "now", "--copy", "public.a"], capture_output=True, text=True)
    assert (again.returncode, "public.a: 1 row copied at" in again.stderr) == (0, True)
    assert subprocess.run([*command, "--status"], capture_output=True).returncode == 0
    database.execute(f"SELECT pg_drop_replication_slot('{database.slot}')")
    done = subprocess.run([*command, "--status", "--json"], capture_output=True, text=True)
    assert done.returncode == 3
    assert json.loads(done.stdout)["obstacle"].startswith(
        f"slot '{database.slot}' does not exist; create_slot with accept_gap "
    )
