"""`pgdecode decode --engine spark`: it writes what the local engine writes."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from support.change_files import T, two_transactions
from support.shell import BEGIN, SHOP, STREAMS, Shell, started, written

# Commands that run in this process use its session.
pytest_plugins = ["support.spark_session"]
pytestmark = pytest.mark.full


def lines_of(target: Path) -> list[str]:
    """The sorted lines of a file, or of the files in a folder."""
    files = [target] if target.is_file() else target.glob("*.jsonl")
    return sorted(line for path in files for line in path.read_text("utf-8").splitlines())


def test_spark_writes_the_lines_that_the_local_engine_writes(run: Shell, spark: SparkSession) -> None:
    done = run("decode", STREAMS, "spark", "--engine", "spark", "--format", "jsonl", "--keep", "seq", "--show", "1")
    assert done.code == 0, done.err
    assert re.search(r"^spark: 6,256 rows in [\d.]+ s, no bad rows; .* written$", done.err, re.MULTILINE)
    assert json.loads(done.out)["seq"] == 0
    assert run("decode", STREAMS, "local.jsonl", "--keep", "seq").code == 0
    assert lines_of(Path("spark")) == lines_of(Path("local.jsonl"))


@pytest.mark.parametrize("what", [["--changes"], ["--table", "public.orders"]], ids=["changes", "a table"])
def test_spark_writes_the_changes_that_the_local_engine_writes(
    run: Shell, spark: SparkSession, what: list[str]
) -> None:
    done = run("decode", SHOP, "spark", *what, "--engine", "spark", "--format", "jsonl")
    assert done.code == 0, done.err
    assert run("decode", SHOP, "local.jsonl", *what).code == 0
    assert lines_of(Path("spark")) == lines_of(Path("local.jsonl")) != []
    assert {path.parent for path in Path("spark").rglob("*.jsonl")} == {Path("spark")}


def test_spark_writes_one_table_to_the_folder_that_has_the_name_of_a_file(run: Shell, spark: SparkSession) -> None:
    done = run("decode", SHOP, "orders.jsonl", "--table", "public.orders", "--engine", "spark")
    assert done.code == 0, done.err
    assert {path.parent for path in Path("orders.jsonl").rglob("*.jsonl")} == {Path("orders.jsonl")}


def test_spark_says_how_many_rows_are_bad_and_which_transactions_have_no_outcome(
    run: Shell, spark: SparkSession
) -> None:
    slot = two_transactions()
    slot.payloads.append(b"z")
    slot.begin(9)
    slot.insert(T, "2", "b")
    written("in.parquet", slot.payloads, seq=list(range(len(slot.payloads))))
    words = ["--changes", "--position", "seq", "--mode", "DROPMALFORMED", "--format", "jsonl"]
    expected = "changes, 1 bad row left out (1 UNKNOWN_TAG), 1 transaction without an outcome kept for the next call"
    for engine in ("spark", "local"):
        done = run("decode", "in.parquet", engine, *words, "--engine", engine)
        assert done.code == 0, done.err
        assert expected in done.err


def test_a_bad_row_in_a_spark_job_is_named_and_leaves_nothing(run: Shell) -> None:
    # A separate process, which prints nothing else: it also starts and stops Spark.
    path = written("in.parquet", [BEGIN] * 5 + [b"z"])
    process = started("decode", path, "out", "--engine", "spark")
    out, err = process.communicate()
    assert (process.returncode, out) == (1, b"")
    assert err.decode().splitlines()[-1] == (
        f"pgdecode: {path.absolute()}: row 5: UNKNOWN_TAG at offset 0: unknown message tag 0x7a 'z'; "
        "--mode DROPMALFORMED leaves bad messages out"
    )
    assert b"Traceback" not in err
    assert os.listdir() == ["in.parquet"]
