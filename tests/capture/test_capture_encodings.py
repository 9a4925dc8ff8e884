"""Databases whose text is not clean UTF-8."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cluster
import pyarrow.parquet as pq
import pytest
from conftest import Database

from pgdecode.capture import Capture, PluginOptions, RequestError, StoppedError
from pgdecode.files.change_reader import FileChangeOptions, FileChanges
from pgdecode.files.file_metadata import encoding_of
from pgdecode.files.ordered_files import ordered_files
from pgdecode.files.payload_file import FileFault
from pgdecode.rows.options import Options


@pytest.fixture
def encoded(postgres: cluster.Cluster) -> Iterator[Callable[[str], Database]]:
    """Make a database with an encoding, and a slot."""
    made: list[Database] = []

    def make(encoding: str) -> Database:
        name = f"encoded_{len(made)}_{encoding.lower()}"
        more = f"ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
        found = Database(postgres, name, more)
        made.append(found)
        found.create_slot()
        return found

    yield make
    for database in made:
        database.close()


def capture(database: Database, folder: Path, **more: Any) -> None:
    Capture(database.dsn, folder, slot=database.slot, publication="p", **more).run(until="now")


def values(folder: Path, encoding: str = "UTF8") -> list[str]:
    """Decode as the command does."""
    files = ordered_files(folder, "data")
    changes = FileChanges(files, FileChangeOptions(Options(encoding=encoding)))
    found = [row for batch in files.batches() for _, rows in changes.decode(batch) for row in rows.to_pylist()]
    return [dict(row["new"])["v"] for row in found]


@pytest.mark.full
@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
def test_a_database_without_encoding_is_captured_as_it_is(
    encoded: Callable[[str], Database], tmp_path: Path, binary: bool
) -> None:
    # Source: https://github.com/dimitri/pgcopydb/issues/874
    database, raw = encoded("SQL_ASCII"), tmp_path / "raw"
    if binary and database.server.major < 14:
        pytest.skip("the server has no binary form")
    options = PluginOptions(binary=binary)
    database.execute(r"INSERT INTO t VALUES (1, E'caf\xc3\xa9')")
    capture(database, raw, options=options)
    assert values(raw) == ["café"]
    database.execute(r"INSERT INTO t VALUES (2, E'caf\xe9')")
    with pytest.raises(StoppedError, match=r'"UTF8": 0xe9; encoding=SQL_ASCII captures text as the database has it$'):
        capture(database, raw, options=options)
    # The folder has UTF8 so far, which for such a database is the same.
    capture(database, raw, options=options, encoding="sql-ascii")
    capture(database, raw, options=options, encoding="SQL_ASCII")
    with pytest.raises(FileFault, match=r"column 'v' has bytes that are not valid in the declared encoding"):
        values(raw)
    assert values(raw, "LATIN1") == ["cafÃ©", "café"]
    footer = json.loads(pq.read_metadata(sorted(raw.glob("*.parquet"))[-1]).metadata[b"pgdecode.capture"])
    assert footer["settings"]["client_encoding"] == "SQL_ASCII"


@pytest.mark.full
@pytest.mark.parametrize("command", ["decode", "cat"])
def test_the_commands_use_the_encoding_of_the_footer(
    encoded: Callable[[str], Database], tmp_path: Path, command: str
) -> None:
    database, raw = encoded("WIN1252"), tmp_path / "raw"
    database.execute(r"INSERT INTO t VALUES (1, convert_from('\x80', 'WIN1252'))")
    capture(database, raw, encoding="WIN1252")
    more = [str(tmp_path / "out.jsonl")] if command == "decode" else ["--json"]
    done = subprocess.run(
        [sys.executable, "-m", "pgdecode", command, str(raw), *more, "--changes"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "out.jsonl").read_text() if command == "decode" else done.stdout
    assert "€" in json.dumps(json.loads(text), ensure_ascii=False)


def test_a_character_without_a_counterpart_is_named_with_the_way_to_capture_it(
    encoded: Callable[[str], Database], tmp_path: Path
) -> None:
    database = encoded("WIN1252")
    database.execute(r"INSERT INTO t VALUES (1, convert_from('\x8081', 'WIN1252'))")
    with pytest.raises(StoppedError, match=r"0x81 .* has no equivalent .*; encoding=WIN1252 captures text"):
        capture(database, tmp_path / "raw")
    capture(database, tmp_path / "other", encoding="WIN1252")
    with pytest.raises(FileFault, match="column 'v' has bytes"):
        values(tmp_path / "other")
    database.execute("INSERT INTO t VALUES (2, 'x')")
    with pytest.raises(RequestError, match="has text in WIN1252, and this call asks for UTF8: capture to a new folder"):
        capture(database, tmp_path / "other")


def test_publications_are_found_by_names_that_are_not_ascii(encoded: Callable[[str], Database], tmp_path: Path) -> None:
    database = encoded("LATIN1")
    database.execute('CREATE PUBLICATION "größe" FOR ALL TABLES')
    database.execute("DELETE FROM t; SELECT pg_drop_replication_slot('" + database.slot + "')")
    database.create_slot()
    database.execute("INSERT INTO t VALUES (1, 'é')")
    made = Capture(database.dsn, tmp_path / "raw", slot=database.slot, publication="größe", encoding="LATIN1")
    made.run(until="now")
    assert values(tmp_path / "raw") == ["é"]


def test_names_that_are_not_utf8_are_an_error_that_names_the_way(
    encoded: Callable[[str], Database], tmp_path: Path
) -> None:
    database = encoded("LATIN1")
    database.execute('CREATE TABLE "größe" (id int PRIMARY KEY); INSERT INTO "größe" VALUES (1)')
    capture(database, tmp_path / "utf8")
    database.execute('INSERT INTO "größe" VALUES (2)')
    with pytest.raises(StoppedError, match=r"relation name is not UTF-8 .*; names of tables and types must be ASCII$"):
        capture(database, tmp_path / "raw", encoding="LATIN1")


def test_an_unknown_encoding_is_refused() -> None:
    with pytest.raises(RequestError, match=re.escape("encoding is 'EBCDIC', expected one of BIG5")):
        Capture("", "raw", slot="s", publication="p", encoding="EBCDIC")


def test_files_of_two_encodings_are_refused_and_an_explicit_one_wins(
    encoded: Callable[[str], Database], tmp_path: Path
) -> None:
    database = encoded("LATIN1")
    for name in ("LATIN1", "UTF8"):
        database.execute("INSERT INTO t SELECT count(*), 'é' FROM t")
        capture(database, tmp_path / name, encoding=name, accept_gap=True)
    files = [ordered_files(tmp_path / name, "data").files[0] for name in ("LATIN1", "UTF8")]
    with pytest.raises(FileFault, match="text is in UTF8, in files before it in LATIN1: decode them apart"):
        encoding_of(files, "UTF8")
    assert encoding_of(files, "WIN1252") == "WIN1252"
    assert encoding_of(files[:1], "UTF8") == "LATIN1"
