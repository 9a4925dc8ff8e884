"""The command `apply`: its summary, its exit codes, and its errors of one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support import captures
from support.shell import Shell

CAPTURE = str(captures.DATA / "capture")


def test_apply_prints_a_line_for_each_table_and_changes_nothing_the_second_time(run: Shell, tmp_path: Path) -> None:
    target = f"parquet:{tmp_path / 'lake'}"
    done = run("apply", CAPTURE, target, "--table", "public.orders", "--dry-run")
    assert (done.code, done.err.splitlines()[0]) == (0, "public.orders: 1 truncate, 2 upserts; 2 rows now")
    assert not (tmp_path / "lake").exists()
    done = run("apply", CAPTURE, target)
    first, *_, last = done.err.splitlines()
    assert done.code == 1
    assert first.startswith("public.orders: 1 truncate, 2 upserts; 1 file (")
    assert last == (
        "pgdecode: table public.customers: position 41: column 'email' was added, and its values in older rows are not "
        "known; copy it again: pgdecode capture DSN RAW --until now --copy public.customers"
    )
    done = run("apply", CAPTURE, target, "--json", "--table", "public.orders")
    found = json.loads(done.out)
    table = found["tables"]["public.orders"]
    assert (done.code, table["upserts"], table["rows"], table["position"]) == (0, 0, 2, 51)
    assert (found["position"], found["stale"], found["commit_lsn"]) == (51, {}, "0/1735A50")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["lake"], "pgdecode: target is parquet:FOLDER, delta:FOLDER"),
        (["parquet:lake", "--until", "yesterday"], "pgdecode: --until: it is an LSN, such as"),
        (["parquet:lake", "--key", "a", "--key", "public.b=c"], "pgdecode: Invalid value for '--key': is COLUMN,..."),
        (["parquet:lake", "--encoding", "nope"], "pgdecode: --encoding is 'nope'"),
        (["parquet:lake", "--table", "public.nope"], "pgdecode: table public.nope: no committed transaction"),
    ],
)
def test_what_is_not_possible_is_one_line_and_exit_code_2(run: Shell, options: list[str], error: str) -> None:
    done = run("apply", CAPTURE, *options)
    assert (done.code, len(done.err.splitlines())) == (2, 1)
    assert done.err.startswith(error)
