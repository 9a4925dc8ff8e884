"""Damaged files and folders, and values that no command can use: one line that names them, never a traceback."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.shell import BEGIN, COMMIT, SHOP, Shell, written


def test_a_footer_with_a_name_that_is_not_utf8_is_refused(run: Shell) -> None:
    path = written("in.parquet", [BEGIN, COMMIT])
    content = path.read_bytes()
    # The schema of Arrow in the footer repeats the name, and counts.
    for at in (found.start() for found in re.finditer(b"data", content)):
        path.write_bytes(content[:at] + b"\xff" + content[at + 1 :])
        done = run("inspect", path)
        assert (done.code, len(done.err.splitlines())) in ((0, 0), (1, 1), (2, 1)), done.err
    assert done.err


def test_a_named_pipe_in_a_folder_is_refused_at_once(run: Shell) -> None:
    written("raw/0.parquet", [BEGIN, COMMIT])
    os.mkfifo("raw/1.parquet")
    done = run("inspect", "raw")
    assert (done.code, done.err) == (2, "pgdecode: raw/1.parquet: not a Parquet file\n")


@pytest.mark.parametrize("words", [["inspect"], ["decode", "out"], ["decode", "out", "--changes"]])
def test_a_link_to_itself_is_refused(run: Shell, words: list[str]) -> None:
    Path("in.parquet").symlink_to("in.parquet")
    command, *rest = words
    done = run(command, "in.parquet", *rest)
    assert done.code == 2
    assert done.err == "pgdecode: in.parquet: no such file or folder\n"


def test_a_catalog_in_a_footer_that_is_nested_too_deeply_is_refused(run: Shell) -> None:
    table = pa.table({"data": pa.array([BEGIN, COMMIT], pa.binary())})
    pq.write_table(table.replace_schema_metadata({"pgdecode.catalog": "[" * 100_000}), "in.parquet")
    done = run("cat", "in.parquet", "--changes")
    assert done.code == 1
    assert done.err == "pgdecode: in.parquet: relations in the footer: the JSON is nested too deeply\n"


def test_a_word_with_a_nul_character_is_refused(run: Shell) -> None:
    assert run("inspect", "a\0b") == (2, "", "pgdecode: an argument has a NUL character\n")


@pytest.mark.parametrize("words", [["cat", SHOP, "--changes"], ["decode", SHOP, "out", "--changes"]])
def test_a_type_that_a_column_cannot_have_is_refused(run: Shell, words: list[Any]) -> None:
    done = run(*words, "--types", "int4=date")
    assert (done.code, done.out) == (2, "")
    assert re.fullmatch(r"pgdecode: --types: column '\w+' is int4 and cannot be read as 'date': .*\n", done.err)


def test_a_type_without_its_schema_is_refused_before_anything_is_read(run: Shell) -> None:
    done = run("cat", "nope", "--changes", "--types", "x=int4")
    assert done.code == 2
    assert "types has the key 'x': a user-defined type needs its schema" in done.err


@pytest.mark.parametrize("words", [["decode", "out", "--changes"], ["cat", "--changes"]])
def test_a_position_below_zero_is_refused(run: Shell, words: list[str]) -> None:
    written("in.parquet", [BEGIN, COMMIT], seq=[-2, -1])
    command, *rest = words
    done = run(command, "in.parquet", *rest)
    assert (done.code, done.out) == (1, "")
    assert done.err == "pgdecode: in.parquet: position starts at -2, but earlier payloads end at -1\n"


def test_rows_of_changes_are_shown_and_not_those_of_the_state(run: Shell) -> None:
    done = run("decode", SHOP, "out", "--changes", "--show", "2")
    assert done.code == 0
    assert [row["op"] for row in done.objects] == ["insert", "insert"]


def test_more_rows_are_shown_than_there_can_be(run: Shell) -> None:
    done = run("decode", written("in.parquet", [BEGIN, COMMIT]), "out", "--show", "9" * 20)
    assert done.code == 0
    assert len(done.objects) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": "x"}, "rows: a JSON value of type string, expected an integer"),
        ({"what": [None]}, "what: a JSON value of type null, expected a string"),
        ({"input": []}, "input: a JSON value of type array, expected an object"),
    ],
)
def test_a_manifest_with_another_type_is_refused_by_the_field(run: Shell, change: dict[str, Any], message: str) -> None:
    assert run("decode", SHOP, "out", "--changes").code == 0
    path = Path("out/_pgdecode/0000000001.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    done = run("inspect", "out", "--catalog")
    assert (done.code, done.err) == (1, f"pgdecode: {path}: is damaged: {message}\n")


@pytest.mark.parametrize(
    "words",
    [
        ["inspect", "in.parquet"],
        ["cat", "in.parquet"],
        ["cat", "in.parquet", "--changes", "--mode", "PERMISSIVE"],
        ["decode", "in.parquet", "out"],
        ["decode", "in.parquet", "out", "--bad", "bad.parquet"],
        ["decode", "in.parquet", "out", "--changes", "--bad", "bad.parquet"],
    ],
)
def test_the_column_of_payloads_is_found_in_lower_case_by_every_command(run: Shell, words: list[str]) -> None:
    written("in.parquet", [BEGIN, COMMIT, b"\xff"])
    expected = run(*words)
    for name in ("out", "bad.parquet"):
        if Path(name).exists():
            Path(name).rename(f"{name}.former")
    found = run(*words, "--payload", "DATA")
    assert (found.code, found.out) == (expected.code, expected.out)
    assert re.sub(r"[\d.]+ s", "", found.err) == re.sub(r"[\d.]+ s", "", expected.err)
