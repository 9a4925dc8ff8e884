"""Footers say what the server's catalog tells of relations: column numbers, missing values and primary keys."""

from __future__ import annotations

import re
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import Database

from pgdecode import ChangeDecoder, Column, Relation, RelationCatalog, read_capture, snapshot
from pgdecode.capture import Capture, FileRules, PluginOptions, receiver
from pgdecode.capture.catalog.relation_facts import read_facts
from pgdecode.capture.connection import Connection
from pgdecode.files.file_metadata import CATALOG_KEY, catalog_of
from pgdecode.relations.relation_version import values_before
from support.tiers import full

# What is done to the table, the column whose old value is asked for, and whether it is known since version 11.
STEPS = (
    ("ALTER TABLE a ADD plain int", "plain", True),
    ("ALTER TABLE a ADD n numeric(9,2) DEFAULT 4.5", "n", True),
    ("ALTER TABLE a ADD t text DEFAULT 'it''s {\"a\",b}'; ALTER TABLE a ALTER t SET DEFAULT 'other'", "t", True),
    ("ALTER TABLE a ADD l text[] DEFAULT '{x,\"y z\"}'; ALTER TABLE a ALTER l DROP DEFAULT", "l", True),
    ("ALTER TABLE a ADD b box DEFAULT '(1,1),(0,0)'", "b", True),
    ("ALTER TABLE a ADD empty text NOT NULL DEFAULT ''", "empty", True),
    ("ALTER TABLE a ADD at timestamptz DEFAULT now()", "at", True),
    ("ALTER TABLE a RENAME COLUMN empty TO renamed", None, True),
    ("ALTER TABLE a ADD r float8 DEFAULT random()", "r", False),
    ("ALTER TABLE a DROP t; ALTER TABLE a ADD t text DEFAULT 'again'", "t", True),
    ("ALTER TABLE a ADD s serial", "s", False),
    ("ALTER TABLE a ADD later int", "later", True),
)


def capture(database: Database, folder: Path, **options: bool) -> list[Path]:
    given = PluginOptions(**options)
    Capture(database.dsn, folder, slot=database.slot, publication="p", options=given).run(until="now")
    return sorted(folder.glob("*.parquet"))


def catalog_from(paths: list[Path]) -> RelationCatalog:
    """Decode files with what their footers say, and return the versions of relations."""
    payloads = pa.concat_tables([pq.read_table(path) for path in paths])
    decoder = ChangeDecoder(catalog=catalog_of(paths))
    decoder.decode(payloads["data"], payloads["seq"])
    return decoder.catalog


@pytest.mark.parametrize(
    "is_late", [full(False, id="captured after each step"), pytest.param(True, id="captured at the end")]
)
def test_old_rows_have_the_value_that_the_server_shows_in_a_column_that_was_added(
    database: Database, tmp_path: Path, is_late: bool
) -> None:
    database.create_slot()
    database.execute("CREATE TABLE a (id int PRIMARY KEY, v text); INSERT INTO a VALUES (1, 'x')")
    has_missing = int(database.session.value("SHOW server_version_num")) >= 110000
    paths = [] if is_late else capture(database, tmp_path)
    shown: list[tuple[str | None, str | None, bool]] = []
    for at, (sql, column, is_known) in enumerate(STEPS, 2):
        database.execute(f"{sql}; INSERT INTO a (id) VALUES ({at})")
        paths = paths if is_late else capture(database, tmp_path)
        text = None if column is None else database.execute(f"SELECT {column}::text FROM a WHERE id = 1")[0][0]
        shown.append((column, text, is_known and (has_missing or text is None)))
    paths = capture(database, tmp_path) if is_late else paths
    versions = catalog_from(paths).versions("public.a")
    assert len(versions) == len(STEPS) + 1
    for before, after, (column, text, is_known) in zip(versions, versions[1:], shown, strict=False):
        found = values_before(before, after)
        assert found.get(column or "", text) == text
        if is_known and not is_late:
            assert found == ({} if column is None else {column: text})
        assert is_known or column not in found
    [number] = database.execute("SELECT attnum FROM pg_attribute WHERE attrelid = 'a'::regclass AND attname = 't'")
    assert versions[-1].facts is not None
    names = [item.name for item in versions[-1].columns]
    assert str(versions[-1].facts.attnums[names.index("t")]) == number[0]
    assert versions[-1].primary_key == ("id",)


def test_a_column_that_was_dropped_and_added_again_between_files_has_another_number(
    database: Database, tmp_path: Path
) -> None:
    database.create_slot()
    database.execute("CREATE TABLE a (id int PRIMARY KEY, v text); INSERT INTO a VALUES (1, 'x')")
    capture(database, tmp_path)
    database.execute("ALTER TABLE a DROP v; ALTER TABLE a ADD v text; INSERT INTO a VALUES (2, 'y')")
    versions = catalog_from(capture(database, tmp_path)).versions("public.a")
    assert [item.facts and item.facts.attnums for item in versions] == [(1, 2), (1, 3)]
    # The server may have sent the first message again after the first file, and before the change.
    assert values_before(*versions) == {}


def test_footers_of_later_files_have_the_facts_of_relations_that_earlier_ones_describe(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.create_slot()
    database.execute("CREATE TABLE a (id int, k int UNIQUE, PRIMARY KEY (k, id)); INSERT INTO a VALUES (1, 1)")
    database.execute("ALTER TABLE a REPLICA IDENTITY FULL; INSERT INTO a VALUES (2, 2)")
    monkeypatch.setattr(receiver, "CHUNK_ROWS", 3)
    database.execute("INSERT INTO a VALUES (3, 3)")
    rules = FileRules(max_bytes=1)
    Capture(database.dsn, tmp_path, slot=database.slot, publication="p", rules=rules).run(until="now")
    *_, last = sorted(tmp_path.glob("*.parquet"))
    catalog = RelationCatalog.from_json((pq.read_metadata(last).metadata or {})[CATALOG_KEY])
    assert [item.primary_key for item in catalog] == [("k", "id")]


def test_facts_are_of_the_columns_that_a_publication_sends(database: Database) -> None:
    if int(database.session.value("SHOW server_version_num")) < 150000:
        pytest.skip("publications have no lists of columns")
    database.execute(
        "CREATE TABLE q (id int, k text, z int, PRIMARY KEY (id)) PARTITION BY RANGE (id); "
        "CREATE TABLE q1 PARTITION OF q FOR VALUES FROM (0) TO (9); INSERT INTO q VALUES (1); "
        "ALTER TABLE q ADD w int DEFAULT 7; CREATE TABLE q2 PARTITION OF q FOR VALUES FROM (9) TO (20); "
        "CREATE PUBLICATION listed FOR TABLE q (id, w) WITH (publish_via_partition_root)"
    )
    oid, leaf = (int(database.session.value(f"SELECT '{name}'::regclass::oid")) for name in ("q", "q1"))
    columns = (Column(1, "id", 23, -1), Column(0, "w", 23, -1))
    root, part = Relation(oid, "public", "q", "d", columns), Relation(leaf, "public", "q1", "d", columns)
    others = [
        Relation(oid, "public", "q", "d", columns[:1]),
        Relation(oid, "public", "q", "f", columns),
        Relation(oid, "public", "q", "d", (columns[0], Column(0, "w", 25, -1))),
        Relation(oid, "public", "other", "d", columns),
    ]
    with closing(Connection(database.dsn)) as connection:
        found, *_ = read_facts(connection, [root, part, *others], database.slot, ["listed"])
        assert root not in read_facts(connection, [root], database.slot, ["p"])[0]
    assert found.keys() == {root, part}
    assert {(item.attnums, item.missing, item.primary_key) for item in found.values()} == {((1, 4), (None, "7"), (1,))}


@pytest.mark.full
@pytest.mark.parametrize("is_binary", [False, True], ids=["text", "binary"])
@pytest.mark.parametrize("is_late", [False, True], ids=["captured after each step", "captured at the end"])
def test_a_snapshot_has_the_values_that_the_server_shows_in_columns_that_were_added(
    database: Database, tmp_path: Path, is_late: bool, is_binary: bool
) -> None:
    if is_binary and int(database.session.value("SHOW server_version_num")) < 140000:
        pytest.skip("pgoutput does not send binary values")
    database.create_slot()
    database.execute("CREATE TABLE a (id int PRIMARY KEY, v text); INSERT INTO a VALUES (1, 'x')")
    for at, (sql, _, _) in enumerate(STEPS, 2):
        if not is_late:
            capture(database, tmp_path, binary=is_binary)
        database.execute(f"{sql}; INSERT INTO a (id) VALUES ({at}); UPDATE a SET v = 'y' WHERE id = {at}")
    files = read_capture([*capture(database, tmp_path, binary=is_binary)])
    found = snapshot(files.payloads, "public.a", files.positions, **files.options)
    names = [name for name in found.column_names if not name.startswith("_") and name not in ("r", "s")]
    assert set(names) >= {"plain", "n", "t", "l", "b", "renamed", "at", "later"}
    database.execute("SET TIME ZONE 'UTC'")
    expected = database.execute(f"SELECT {', '.join(f'{name}::text' for name in names)} FROM a ORDER BY a.id")
    rows = found.sort_by("id").select([*names, "_unknown"]).to_pylist()
    n_known = 0
    for row, texts in zip(rows, expected, strict=True):
        for name, text in zip(names, texts, strict=True):
            if name not in row["_unknown"]:
                assert text_of(row[name]) == text, name
                n_known += 1
    if not is_late and int(database.session.value("SHOW server_version_num")) >= 110000:
        # All but the columns that PostgreSQL has filled by rewriting the table.
        assert {name for row in rows for name in row["_unknown"]} <= {"r", "s"}
    assert n_known > len(rows) * 4


def text_of(value: Any) -> str | None:
    """Write a value as PostgreSQL does."""
    if isinstance(value, list):
        return "{" + ",".join(f'"{item}"' if " " in item else item for item in value) + "}"
    if isinstance(value, datetime):
        return re.sub(r"(\.\d*?)0+\+", r"\1+", value.strftime("%Y-%m-%d %H:%M:%S.%f+00")).replace(".+", "+")
    return None if value is None else str(value)
