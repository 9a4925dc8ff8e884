"""The same call again decodes what has come since: each row once, as in one call over everything."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from growing_input import FORMS, captured_file, in_parquet, sequence

from support.data_sets import Row, local
from support.shell import Done, Shell
from support.tiers import full, long

PAYLOADS, ENDS = sequence()
WHAT = {
    "messages": [],
    "changes": ["--changes"],
    "a table": ["--table", "public.a"],
    "tables": ["--table", "public.a", "--table", "public.b"],
    "uncommitted": ["--changes", "--include-uncommitted"],
    "a snapshot": ["--snapshot", "public.a"],
    "snapshots": ["--snapshot", "public.a", "--snapshot", "public.b"],
}
# The folders of the outputs; most have one, without a folder of its own.
FOLDERS: dict[str, list[str | None]] = {"tables": ["public.a", "public.b"], "snapshots": ["public.a", "public.b"]}


def said(done: Done) -> str:
    """What a call that succeeded wrote to standard error."""
    assert done.code == 0, done.err
    return done.err


def says_nothing_new(done: Done) -> bool:
    return "nothing new" in said(done)


def rows_of(out: Path, what: str) -> list[list[Row]]:
    data_set = local(out)
    data_set.checked()
    rows = [data_set.rows(below) for below in FOLDERS.get(what, [None])]
    if what == "messages":
        # One call decodes files in the order of their names.
        rows = [sorted(of_output, key=repr) for of_output in rows]
    elif what == "uncommitted":
        # Each run has the changes of transactions that had no outcome then.
        rows = [[row for row in of_output if row.get("committed") == "True"] for of_output in rows]
    return rows


@pytest.mark.parametrize(
    ("form", "what", "format"),
    [
        *(("captured", what, "parquet") for what in WHAT),
        *(full(form, "changes", "parquet") for form in FORMS if form != "captured"),
        *(long(form, what, "parquet") for form in FORMS for what in WHAT if form != "captured" and what != "changes"),
        *(full("captured", what, "jsonl") for what in ("changes", "tables")),
        *(full("captured", what, "csv") for what in ("messages", "a table")),
        *(long("pg_recvlogical", what, format) for what in WHAT for format in ("jsonl", "csv")),
    ],
)
def test_calls_over_growing_input_give_the_rows_of_one_call(run: Shell, form: str, what: str, format: str) -> None:
    growing = FORMS[form]
    words = ["decode", growing.name, "out", *WHAT[what], "--format", format]
    for number, (start, end) in enumerate(zip([0, *ENDS], ENDS, strict=False), 1):
        growing.add(Path(), PAYLOADS, start, end)
        assert not says_nothing_new(run(*words))
        assert local(Path("out")).manifests()[-1]["number"] == number
        before = local(Path("out")).contents()
        assert says_nothing_new(run(*words))
        assert local(Path("out")).contents() == before
    words[2] = "whole"
    assert not says_nothing_new(run(*words))
    assert rows_of(Path("out"), what) == rows_of(Path("whole"), what)


@pytest.mark.parametrize("what", ["messages", "changes", full("tables")])
def test_folders_of_days_are_named_one_after_the_other_or_together(run: Shell, what: str) -> None:
    words = [*WHAT[what], "--format", "jsonl"]
    for day, (start, end) in enumerate(zip([0, *ENDS], ENDS, strict=False), 1):
        in_parquet(Path(f"raw/day={day}/part-0.parquet"), PAYLOADS[start:end], seq=range(start, end))
        said(run("decode", "raw" if day == 3 else f"raw/day={day}", "out", *words))
    for source in ("raw", "raw/day=2", "raw/day=4"):
        assert says_nothing_new(run("decode", source, "out", *words))
    said(run("decode", "raw", "whole", *words))
    assert rows_of(Path("out"), what) == rows_of(Path("whole"), what)


# -- what happens to decoded files -------------------------------------------------------------------------------------


def grown(run: Shell, what: str, form: str = "captured", n_calls: int = 2) -> list[str]:
    """Make some calls, and return the words of the next one."""
    growing = FORMS[form]
    words = ["decode", growing.name, "out", *WHAT[what]]
    for start, end in zip([0, *ENDS[: n_calls - 1]], ENDS, strict=False):
        growing.add(Path(), PAYLOADS, start, end)
        said(run(*words))
    return words


def rest(form: str = "captured", n_calls: int = 2) -> None:
    for start, end in zip(ENDS[n_calls - 1 :], ENDS[n_calls:], strict=False):
        FORMS[form].add(Path(), PAYLOADS, start, end)


def whole(run: Shell, what: str) -> list[list[Row]]:
    """Decode all payloads from one file in one call."""
    path = captured_file(Path("all/0.parquet"), PAYLOADS, 0)
    said(run("decode", path.parent, "whole", *WHAT[what]))
    return rows_of(Path("whole"), what)


@pytest.mark.parametrize("what", ["changes", full("messages"), full("tables")])
@pytest.mark.parametrize("form", ["captured", full("days"), full("counted files")])
def test_files_that_were_decoded_may_be_deleted(run: Shell, what: str, form: str) -> None:
    words = grown(run, what, form)
    shutil.rmtree("raw")
    Path("raw").mkdir()
    if form == "days":
        for day in (1, 2):
            Path(f"raw/day={day}").mkdir()
    rest(form)
    said(run(*words))
    assert says_nothing_new(run(*words))
    assert rows_of(Path("out"), what) == whole(run, what)


def touch(paths: list[Path]) -> None:
    for path in paths:
        os.utime(path, (1, 1))


def move(paths: list[Path]) -> None:
    Path("raw/old").mkdir()
    for path in paths:
        path.rename(Path("raw/old") / f"x{path.name}")


def copy(paths: list[Path]) -> None:
    for path in paths:
        shutil.copy(path, path.with_stem("copy"))
        path.unlink()


def merge(paths: list[Path]) -> None:
    table = pa.concat_tables([pq.read_table(path) for path in sorted(paths)])
    for path in paths:
        path.unlink()
    pq.write_table(table, "raw/merged.parquet")


def compress(paths: list[Path]) -> None:
    for path in paths:
        pq.write_table(pq.read_table(path), path, compression="zstd")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        *((change, "changes") for change in (touch, move, copy, merge, compress)),
        # Messages are decoded file by file: a file with another name is another one.
        *(full(change, "messages") for change in (touch, compress)),
        *(full(change, "a table") for change in (touch, move, copy, merge, compress)),
    ],
)
def test_decoded_files_that_were_moved_or_written_anew_are_passed_over(run: Shell, change: Any, what: str) -> None:
    words = grown(run, what, "days", n_calls=1)
    change(sorted(Path("raw").rglob("*.parquet")))
    assert says_nothing_new(run(*words))
    in_parquet(Path("raw/zz/rest.parquet"), PAYLOADS[ENDS[0] :], seq=range(ENDS[0], len(PAYLOADS)))
    said(run(*words))
    assert says_nothing_new(run(*words))
    assert rows_of(Path("out"), what) == whole(run, what)


def test_files_without_rows_are_passed_over(run: Shell) -> None:
    in_parquet(Path("raw/0.parquet"), PAYLOADS[: ENDS[0]], seq=range(ENDS[0]))
    words = ["decode", "raw", "out", "--changes"]
    said(run(*words))
    in_parquet(Path("raw/00.parquet"), [], seq=pa.array([], pa.int64()))
    for _ in range(2):
        assert says_nothing_new(run(*words))
    in_parquet(Path("raw/9.parquet"), PAYLOADS[ENDS[0] :], seq=range(ENDS[0], len(PAYLOADS)))
    said(run(*words))
    assert rows_of(Path("out"), "changes") == whole(run, "changes")


# -- what happens to the output ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["deleted", "moved"])
@pytest.mark.parametrize("what", ["changes", "tables", full("messages")])
def test_outputs_may_be_moved_away(run: Shell, what: str, change: str) -> None:
    words = grown(run, what)
    away = Path("away")
    for name in local(Path("out")).outputs():
        (away / name).parent.mkdir(parents=True, exist_ok=True)
        Path("out", name).rename(away / name)
    if change == "deleted":
        # Folders of outputs, too.
        for folder in Path("out").iterdir():
            if folder.is_dir() and folder.name != "_pgdecode":
                folder.rmdir()
    assert says_nothing_new(run(*words))
    rest()
    said(run(*words))
    assert says_nothing_new(run(*words))
    # Together they are everything. No name is used twice.
    here = local(Path("out")).outputs()
    assert not set(here) & set(local(away).outputs())
    for name, content in here.items():
        (away / name).parent.mkdir(parents=True, exist_ok=True)
        (away / name).write_bytes(content)
    shutil.copytree("out/_pgdecode", "away/_pgdecode")
    assert rows_of(away, what) == whole(run, what)


def test_a_data_set_may_be_moved(run: Shell) -> None:
    words = grown(run, "changes")
    Path("elsewhere").mkdir()
    Path("out").rename("elsewhere/new name")
    rest()
    words[2] = "elsewhere/new name"
    said(run(*words))
    assert rows_of(Path("elsewhere/new name"), "changes") == whole(run, "changes")


def test_input_and_output_may_be_named_in_other_ways(
    run: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    words = grown(run, "changes")
    Path("work").mkdir()
    monkeypatch.chdir("work")
    Path("link").symlink_to("../raw")
    names = [("../raw", "../out"), (str(tmp_path / "raw"), str(tmp_path / "out")), ("link", "./../out")]
    for source, target in names:
        assert says_nothing_new(run("decode", source, target, *words[3:]))
    monkeypatch.chdir(tmp_path)
    rest()
    monkeypatch.chdir("work")
    said(run("decode", "link", "../out", *words[3:]))
    assert says_nothing_new(run("decode", "../raw", "../out", *words[3:]))
    monkeypatch.chdir(tmp_path)
    assert rows_of(Path("out"), "changes") == whole(run, "changes")


@pytest.mark.parametrize(
    "names", [("roh daten", "aus gabe"), ("raw", "raw-out"), ("ein/день=1", "aus/naïve"), ("a%20b", "#?x")]
)
def test_names_may_have_any_characters(run: Shell, names: tuple[str, str]) -> None:
    source, target = map(Path, names)
    target.parent.mkdir(exist_ok=True)
    for start, end in zip([0, *ENDS], ENDS, strict=False):
        captured_file(source / f"{start:09} ä.parquet", PAYLOADS[start:end], start)
        said(run("decode", source, target, "--changes"))
    assert says_nothing_new(run("decode", source, target, "--changes"))
    assert rows_of(target, "changes") == whole(run, "changes")


@pytest.mark.parametrize("what", ["changes", "tables"])
def test_overwrite_begins_anew(run: Shell, what: str) -> None:
    words = grown(run, what)
    first = set(local(Path("out")).outputs())
    Path("out/notes.txt").write_text("mine")
    said(run(*words, "--overwrite", "--format", "csv"))
    assert Path("out/notes.txt").read_text() == "mine"
    Path("out/notes.txt").unlink()
    assert not first & set(local(Path("out")).outputs())
    rest()
    said(run(*words, "--format", "csv"))
    assert says_nothing_new(run(*words, "--format", "csv"))
    path = captured_file(Path("all/0.parquet"), PAYLOADS, 0)
    said(run("decode", path.parent, "whole", *WHAT[what], "--format", "csv"))
    assert rows_of(Path("out"), what) == rows_of(Path("whole"), what)


def test_an_output_file_has_no_state(run: Shell) -> None:
    captured_file(Path("raw/0.parquet"), PAYLOADS, 0)
    said(run("decode", "raw", "out.parquet", "--changes"))
    assert sorted(os.listdir()) == ["out.parquet", "raw"]
    again = run("decode", "raw", "out.parquet", "--changes")
    assert (again.code, "--overwrite" in again.err) == (2, True)


def test_the_log_tells_what_each_run_read_and_wrote(run: Shell) -> None:
    grown(run, "changes", n_calls=3)
    runs = local(Path("out")).checked()
    starts = [0, *ENDS]
    for number, manifest in enumerate(runs):
        assert manifest["what"] == ["changes"]
        assert manifest["input"]["rows"] == ENDS[number] - starts[number]
        assert manifest["input"]["first_position"] == starts[number]
        assert manifest["input"]["last_position"] == ENDS[number] - 1
        assert [Path(file["path"]).name for file in manifest["input"]["files"]] == [f"{starts[number]:020}.parquet"]
    # The streamed and the prepared transaction, and the plain one inside which the first call ends.
    assert [manifest["undecided"] for manifest in runs] == [2, 2, 0]
    assert [file["name"] for manifest in runs for file in manifest["files"]] == [
        "changes.parquet",
        "changes-0000000002.parquet",
        "changes-0000000003.parquet",
    ]


def test_the_payloads_of_an_open_transaction_are_written_once(run: Shell) -> None:
    grown(run, "changes", n_calls=1)
    folder = Path("out/_pgdecode")
    first = {path.name: path.stat().st_ino for path in folder.glob("payloads-*")}
    assert first
    for n_calls in (2, 3):
        start, end = ENDS[n_calls - 2], ENDS[n_calls - 1]
        FORMS["captured"].add(Path(), PAYLOADS, start, end)
        said(run("decode", "raw", "out", "--changes"))
        found = {path.name: path.stat().st_ino for path in folder.glob("payloads-*")}
        # Until the transaction has ended.
        assert (first.items() <= found.items()) == (n_calls == 2)
        assert bool(found) == (n_calls == 2)
