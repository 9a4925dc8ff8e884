"""Decoding uses the metadata in footers of captured files; the caller's options take precedence."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from conftest import Database

from pgdecode import ChangeDecoder
from pgdecode.capture import Capture, FileRules, PluginOptions
from pgdecode.files.file_metadata import catalog_of
from pgdecode.types.user_types import UserType, by_oid, from_json, merged, overridden, to_json
from support.footers import types_of

SQL = """
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE DOMAIN price AS numeric(12,2);
CREATE TYPE pair AS (x int, label varchar(10), cost price);
CREATE TYPE span AS RANGE (subtype = float8);
CREATE TABLE typed (id int PRIMARY KEY, m mood, ms mood[], p price, pr pair, s span);
INSERT INTO typed VALUES (1, 'sad', '{sad,happy}', 12.5, (7, 'a b', 3), '[1,2.5)');
"""
EXPECTED = {
    "m": "sad",
    "ms": ["sad", "happy"],
    "p": "12.50",
    "pr": {"x": 7, "label": "a b", "cost": "3.00"},
    "s": {"lower": 1.0, "upper": 2.5, "lower_inclusive": True, "upper_inclusive": False, "empty": False},
}


def decoded(source: Path, target: Path, *arguments: str) -> dict[str, object]:
    command = [sys.executable, "-m", "pgdecode", "decode", str(source), str(target), "--table", "public.typed"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [row] = pq.read_table(target).to_pylist()
    return {name: str(row[name]) if name == "p" else row[name] for name in EXPECTED}


@pytest.mark.full
@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
def test_types_of_the_database_are_decoded_without_declaration(
    database: Database, tmp_path: Path, *, binary: bool
) -> None:
    database.create_slot()
    database.execute(SQL)
    options = PluginOptions(binary=binary)
    Capture(database.dsn, tmp_path / "raw", slot=database.slot, publication="p", options=options).run(until="now")
    found = decoded(tmp_path / "raw", tmp_path / "out.parquet")
    found["pr"] = {name: str(v) if name == "cost" else v for name, v in dict(found["pr"]).items()}  # type: ignore[call-overload]
    assert found == EXPECTED
    command = [sys.executable, "-m", "pgdecode", "cat", str(tmp_path / "raw"), "--changes"]
    [line] = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert json.loads(line)["new"]["pr"] == '(7,"a b",3.00)'


@pytest.mark.full
def test_the_caller_s_declaration_of_a_type_takes_precedence(database: Database, tmp_path: Path) -> None:
    database.create_slot()
    database.execute(SQL)
    Capture(database.dsn, tmp_path / "raw", slot=database.slot, publication="p").run(until="now")
    said = ("--types", "public.pair=text", "--types", "public.price=text")
    found = decoded(tmp_path / "raw", tmp_path / "out.parquet", *said)
    assert found["pr"] == '(7,"a b",3.00)'
    schema = pq.read_schema(tmp_path / "out.parquet")
    assert str(schema.field("p").type) == "string"


@pytest.mark.full
def test_files_are_decoded_alone_once_older_ones_are_deleted(database: Database, tmp_path: Path) -> None:
    database.create_slot()
    rules = FileRules(max_bytes=1)
    database.execute("INSERT INTO t VALUES (1, 'a')")
    database.execute("INSERT INTO t VALUES (2, 'b')")
    folder = tmp_path / "raw"
    from pgdecode.capture import receiver

    receiver.CHUNK_ROWS, former = 4, receiver.CHUNK_ROWS
    try:
        Capture(database.dsn, folder, slot=database.slot, publication="p", rules=rules).run(until="now")
    finally:
        receiver.CHUNK_ROWS = former
    first, *rest = sorted(folder.glob("*.parquet"))
    first.unlink()
    assert catalog_of(rest) is not None
    command = [sys.executable, "-m", "pgdecode", "cat", str(folder), "--changes"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["new"]["id"] for line in done.stdout.splitlines()] == ["2"]


def test_the_types_of_files_are_available_in_python(database: Database, tmp_path: Path) -> None:
    database.create_slot()
    database.execute(SQL)
    Capture(database.dsn, tmp_path / "raw", slot=database.slot, publication="p").run(until="now")
    paths = sorted((tmp_path / "raw").glob("*.parquet"))
    [row] = ChangeDecoder(types=types_of(paths)).table(pq.read_table(paths[0])["data"], "public.typed").to_pylist()
    assert row["ms"] == ["sad", "happy"]


TYPES = (UserType(20000, "public.mood", "enum"), UserType(20001, "public.price", "numeric(12,2)"))


def test_types_survive_writing_and_reading() -> None:
    assert from_json(to_json(TYPES)) == TYPES


@pytest.mark.parametrize("content", ["{}", "[1]", '[["x", "y", "z"]]', "[[1, 2]]"])
def test_other_json_than_a_list_of_types_is_refused(content: str) -> None:
    if content == "{}":
        assert from_json(content) == ()
        return
    with pytest.raises(ValueError, match="the JSON is not a list of types"):
        from_json(content)


def test_types_that_cannot_be_read_are_left_out() -> None:
    odd = UserType(20002, "public.odd", "(a public.nowhere)")
    outer = UserType(20003, "public.outer", "(a public.odd)")
    assert from_json(to_json((*TYPES, odd, outer))) == TYPES


@pytest.mark.parametrize("key", [20001, "public.price"], ids=["by OID", "by name"])
def test_the_caller_declares_a_type_by_oid_or_name(key: int | str) -> None:
    assert overridden(TYPES, {key: "text"})[20001] == "text"


MOOD = by_oid(20000, "public.mood", "enum")


def pair(fields: str, name: str = "public.pair") -> UserType:
    return by_oid(20001, name, fields)


@pytest.mark.parametrize(
    ("versions", "declaration"),
    [
        pytest.param((pair("(m 20000)"), MOOD, pair("(m 20000)", "public.two")), "(m 20000)", id="renamed"),
        pytest.param((pair("(m 20000)"), MOOD, pair("(m 20000, n int4)")), "record", id="altered"),
        pytest.param((MOOD, pair("(m 20000)"), pair("(k 20000)"), pair("(m 20000)")), "record", id="altered and back"),
        pytest.param((MOOD, pair("record"), pair("(m 20000)")), "record", id="altered within a file"),
        pytest.param((MOOD, pair("(a numeric(12, 2))"), pair("(a numeric(12,2))")), "(a numeric(12,2))", id="spelling"),
    ],
)
def test_a_composite_that_was_described_in_different_ways_is_text(
    versions: tuple[UserType, ...], declaration: str
) -> None:
    assert {item.oid: item.declaration for item in merged(versions)}[20001] == declaration


def test_a_type_that_is_found_by_oid_is_overridden_by_its_name() -> None:
    array = by_oid(20002, "public.mood[]", "20000[]")
    found = overridden((MOOD, array), {"public.mood": "text", "public.outer": "(a public.mood)"})
    assert (found[20000], found[20002]) == ("text", "20000[]")
    assert overridden((MOOD, array), {"public.mood[]": "text"})[20002] == "text"
