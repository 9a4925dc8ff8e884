"""Calls that cannot continue a data set say why in one line, and leave it as it was."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from growing_input import FORMS, captured_file, in_parquet, sequence

from support.captured_files import GAP, ORIGIN, transaction
from support.data_sets import DataSet, local
from support.shell import Done, Shell
from support.tiers import full

PAYLOADS, ENDS = sequence()
CHANGES = ["decode", "raw", "out", "--changes"]


def contents(data_set: DataSet) -> dict[str, bytes]:
    return {name: content for name, content in data_set.contents().items() if name != "_pgdecode/lock"}


def refused(run: Shell, *words: str | Path, says: str, out: str = "out") -> Done:
    """Make a call that must be refused in one line, with a data set that stays as it was."""
    before = contents(local(Path(out)))
    done = run(*words)
    assert done.code in (1, 2), done
    assert done.err.startswith("pgdecode: "), done.err
    assert done.err.count("\n") == 1, done.err
    assert re.search(says, done.err), done.err
    assert contents(local(Path(out))) == before
    return done


def files(*bounds: int, folder: str = "raw") -> None:
    for start, end in pairwise(bounds):
        captured_file(Path(folder, f"{start:020}.parquet"), PAYLOADS[start:end], start)


@pytest.fixture
def begun(run: Shell) -> Shell:
    """A data set of one call."""
    files(0, ENDS[0])
    assert run(*CHANGES).code == 0
    return run


def goes_on(run: Shell) -> None:
    """The data set is continued, and has each row once."""
    files(ENDS[0], len(PAYLOADS))
    assert run(*CHANGES).code == 0
    shutil.rmtree("raw")
    files(0, len(PAYLOADS), folder="all")
    assert run("decode", "all", "whole", "--changes").code == 0
    local(Path("out")).checked()
    assert local(Path("out")).rows() == local(Path("whole")).rows()


# -- input -------------------------------------------------------------------------------------------------------------


def transactions(*numbers: int) -> None:
    """Write a file for each of some whole transactions. Positions have holes, so that a missing file is no gap."""
    for number in numbers:
        in_parquet(Path(f"raw/{number}.parquet"), transaction(number), seq=range(100 * number, 100 * number + 8, 2))


@pytest.mark.parametrize("words", [["--changes"], full(["--table", "p.t"])], ids=" ".join)
def test_a_file_that_came_too_late_is_named(run: Shell, words: list[str]) -> None:
    transactions(1, 3)
    assert run("decode", "raw", "out", *words).code == 0
    transactions(2, 4)
    done = refused(run, "decode", "raw", "out", *words, says=r"raw/2\.parquet")
    # Where it begins, and the last position that was decoded.
    assert re.search(r"\b200\b.*\b306\b", done.err)
    assert "came too late" in done.err
    Path("raw/2.parquet").unlink()
    assert run("decode", "raw", "out", *words).code == 0
    assert [manifest["rows"] for manifest in local(Path("out")).checked()] == [2, 1]


def test_messages_are_decoded_file_by_file(run: Shell) -> None:
    transactions(1, 3)
    assert run("decode", "raw", "out").code == 0
    transactions(2)
    assert run("decode", "raw", "out").code == 0
    assert sorted(local(Path("out")).outputs()) == ["1.parquet", "2.parquet", "3.parquet"]


@pytest.mark.parametrize(
    ("first", "last"),
    [
        pytest.param(2, ENDS[0] + 4, id="overlaps the end"),
        full(0, ENDS[0] + 1, id="more than a decoded file"),
    ],
)
def test_a_new_file_with_decoded_positions_is_refused(begun: Shell, first: int, last: int) -> None:
    captured_file(Path("raw/other.parquet"), PAYLOADS[first:last], first)
    done = refused(begun, *CHANGES, says="came too late")
    assert "other.parquet" in done.err
    Path("raw/other.parquet").unlink()
    goes_on(begun)


@pytest.mark.parametrize("n_rows", [ENDS[0], ENDS[0] - 4])
def test_a_file_whose_positions_begin_again_is_not_taken_for_a_decoded_one(begun: Shell, n_rows: int) -> None:
    # Each file of this writer begins at 0. The rows are others.
    in_parquet(Path("raw/day-2.parquet"), PAYLOADS[ENDS[0] :][:n_rows], seq=range(n_rows))
    refused(begun, *CHANGES, says="day-2.parquet")


def test_a_file_that_lacks_some_decoded_rows_is_refused(begun: Shell) -> None:
    rows = [row for row in range(ENDS[0]) if row != 3]
    in_parquet(Path("raw/other.parquet"), [PAYLOADS[row] for row in rows], seq=rows)
    refused(begun, *CHANGES, says="other.parquet.*came too late")


@pytest.mark.parametrize("form", ["pg_recvlogical", "CSV", "JSON lines", "rewritten, counted", full("rewritten")])
@pytest.mark.parametrize("change", ["other content", "shorter", "other content and more"])
def test_a_file_that_was_changed_after_it_was_decoded_is_refused(run: Shell, form: str, change: str) -> None:
    growing = FORMS[form]
    growing.add(Path(), PAYLOADS, 0, ENDS[0])
    words = ["decode", growing.name, "out", "--changes"]
    assert run(*words).code == 0
    original = Path(growing.name).read_bytes()
    Path(growing.name).unlink()
    if change == "shorter":
        growing.add(Path(), PAYLOADS, 0, ENDS[0] - 1)
    else:
        other = [PAYLOADS[0], PAYLOADS[2], PAYLOADS[1], *PAYLOADS[3:4], *PAYLOADS[3:]]
        growing.add(Path(), other, 0, ENDS[0] if change == "other content" else ENDS[1])
    done = refused(run, *words, says=growing.name)
    assert re.search("changed|decoded", done.err), done.err
    Path(growing.name).write_bytes(original)
    assert run(*words).code == 0


def test_without_positions_a_new_file_must_sort_after_the_decoded_ones(run: Shell) -> None:
    in_parquet(Path("raw/b.parquet"), PAYLOADS[: ENDS[0]])
    assert run(*CHANGES).code == 0
    in_parquet(Path("raw/a.parquet"), PAYLOADS[ENDS[0] : ENDS[1]])
    done = refused(run, *CHANGES, says="came too late")
    assert "a.parquet" in done.err
    Path("raw/a.parquet").rename("raw/c.parquet")
    assert run(*CHANGES).code == 0


@pytest.mark.parametrize(
    "origin",
    [
        {**ORIGIN, "slot": "other"},
        full({**ORIGIN, "system": "8"}),
        full({**ORIGIN, "database": "other"}),
    ],
)
def test_input_of_another_slot_is_refused(begun: Shell, origin: dict[str, Any]) -> None:
    path = Path(f"raw/{ENDS[0]:020}.parquet")
    captured_file(path, PAYLOADS[ENDS[0] : ENDS[1]], ENDS[0], origin=origin)
    refused(begun, *CHANGES, says="slot|system|server|database")
    path.unlink()
    goes_on(begun)


def test_missing_payloads_are_a_gap(begun: Shell) -> None:
    files(ENDS[1], ENDS[2])
    done = refused(begun, *CHANGES, says="missing")
    assert re.search(rf"\b{ENDS[1]}\b.*\b{ENDS[0] - 1}\b|\b{ENDS[0] - 1}\b.*\b{ENDS[1]}\b", done.err)
    shutil.rmtree("raw")
    goes_on(begun)


def test_a_gap_that_the_capture_has_accepted_needs_to_be_accepted(begun: Shell) -> None:
    path = Path(f"raw/{ENDS[0]:020}.parquet")
    file = {"session": 1, "first_seq": ENDS[0], "open_streams": 0}
    captured_file(path, PAYLOADS[ENDS[0] :], ENDS[0], gaps=[GAP], file=file)
    refused(begun, *CHANGES, says="gap")
    assert begun(*CHANGES, "--accept-gap").code == 0
    # It is reported once: the file is decoded.
    assert begun(*CHANGES).code == 0


def test_a_damaged_file_leaves_the_data_set_as_it_was(begun: Shell) -> None:
    path = captured_file(Path(f"raw/{ENDS[0]:020}.parquet"), PAYLOADS[ENDS[0] : ENDS[1]], ENDS[0])
    content = bytearray(path.read_bytes())
    for damage in (content[: len(content) // 2], b"", b"x" * 100):
        path.write_bytes(damage)
        refused(begun, *CHANGES, says=path.name)
    captured_file(path, [*PAYLOADS[ENDS[0] : ENDS[1]], b"Z"], ENDS[0])
    refused(begun, *CHANGES, says=f"{path.name}.*unknown message tag")
    path.unlink()
    goes_on(begun)


@pytest.mark.parametrize("form", ["CSV", "JSON lines", "pg_recvlogical", "hexadecimal lines"])
def test_a_line_that_is_not_complete_is_not_lost(run: Shell, form: str) -> None:
    # The writer of the file is in the middle of a line.
    growing = FORMS[form]
    growing.add(Path(), PAYLOADS, 0, ENDS[1])
    path = Path(growing.name)
    content = path.read_bytes()
    path.unlink()
    growing.add(Path(), PAYLOADS, 0, ENDS[0])
    words = ["decode", growing.name, "out", "--changes"]
    assert run(*words).code == 0
    half = path.stat().st_size
    for n_bytes in (1, 9):
        path.write_bytes(content[: half + n_bytes])
        before = contents(local(Path("out")))
        done = run(*words)
        # Either it is an error, or the line is left for the next call.
        assert done.code == 0 or contents(local(Path("out"))) == before
        assert done.err.count("\n") == 1, done.err
    path.write_bytes(content)
    assert run(*words).code == 0
    assert run("decode", growing.name, "whole", "--changes").code == 0
    assert local(Path("out")).rows() == local(Path("whole")).rows()


def test_a_snapshot_needs_all_files_again(run: Shell) -> None:
    files(0, ENDS[0], ENDS[1])
    words = ["decode", "raw", "out", "--snapshot", "public.a"]
    assert run(*words).code == 0
    Path(f"raw/{0:020}.parquet").unlink()
    files(ENDS[1], ENDS[2])
    refused(run, *words, says=f"{0:020}.parquet")


# -- options -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "names"),
    [
        pytest.param(["--changes", "--mode", "PERMISSIVE"], ["mode", "FAILFAST", "PERMISSIVE"], id="mode"),
        pytest.param(["--table", "public.a"], ["changes", "public.a"], id="what"),
        pytest.param([], ["changes", "messages"], id="messages"),
        pytest.param(["--changes", "--include-uncommitted"], ["uncommitted"], id="include_uncommitted"),
        pytest.param(["--changes", "--drop-duplicates"], ["duplicates"], id="drop_duplicates"),
        pytest.param(["--changes", "--format", "csv"], ["format", "parquet", "csv"], id="format"),
        pytest.param(["--changes", "--start", "anywhere"], ["start", "anywhere"], id="start"),
        pytest.param(["--changes", "--empty", "error"], ["empty", "error"], id="empty"),
    ],
)
def test_other_options_are_named_with_both_values(begun: Shell, words: list[str], names: list[str]) -> None:
    done = refused(begun, "decode", "raw", "out", *words, says="--overwrite")
    for name in names:
        assert name in done.err.replace("-", "_").replace("__", "--") or name in done.err, done.err
    goes_on(begun)


@pytest.mark.parametrize(
    ("words", "other", "names"),
    [
        (["--table", "public.a"], ["--table", "public.a", "--table", "public.b"], ["public.a", "public.b"]),
        (["--table", "public.a"], ["--table", "public.a", "--types", "public.mood=text"], ["types", "public.mood"]),
        (["--table", "public.a"], ["--table", "public.a", "--unrepresentable", "null"], ["unrepresentable", "null"]),
        (["--table", "public.a"], ["--snapshot", "public.a"], ["snapshot"]),
        ([], ["--fields", "kind,xid"], ["fields"]),
        (["--fields", "kind"], ["--fields", "xid"], ["fields"]),
        ([], ["--keep", "seq"], ["keep"]),
    ],
)
def test_other_options_of_tables_and_messages_are_named(
    run: Shell, words: list[str], other: list[str], names: list[str]
) -> None:
    files(0, ENDS[0])
    assert run("decode", "raw", "out", *words).code == 0
    done = refused(run, "decode", "raw", "out", *other, says="--overwrite")
    for name in names:
        assert name in done.err


@pytest.mark.parametrize(
    "words",
    [
        ["--batch-rows", "7"],
        ["--workers", "2"],
        ["--show", "0"],
        ["--format", "parquet"],
        ["--mode", "FAILFAST"],
        ["--position", "seq"],
        ["--accept-gap"],
    ],
)
def test_options_that_do_not_change_rows_may_change(begun: Shell, words: list[str]) -> None:
    files(ENDS[0], ENDS[1])
    assert begun(*CHANGES, *words).code == 0
    assert begun(*CHANGES, *words).code == 0


# -- the folder --------------------------------------------------------------------------------------------------------


def test_a_folder_without_a_log_is_refused(begun: Shell) -> None:
    shutil.move("out/_pgdecode", "kept")
    done = refused(begun, *CHANGES, says="_pgdecode")
    assert "--overwrite" in done.err
    shutil.move("kept", "out/_pgdecode")
    goes_on(begun)


def test_a_folder_of_others_is_refused_and_an_empty_one_is_not(run: Shell) -> None:
    files(0, len(PAYLOADS))
    Path("out").mkdir()
    Path("out/notes.txt").write_text("mine")
    refused(run, *CHANGES, says="out.*--overwrite")
    Path("out/notes.txt").unlink()
    assert run(*CHANGES).code == 0
    assert run(*CHANGES, "--overwrite").code == 0
    local(Path("out")).checked()


def hold(ready: Any, end: Any) -> None:
    """Hold the lock of the data set, as a call at work does."""
    import fcntl

    with open("out/_pgdecode/lock", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        ready.set()
        end.wait(60)


@pytest.mark.full
def test_a_second_call_at_the_same_time_is_refused(begun: Shell) -> None:
    files(ENDS[0], ENDS[1])
    context = multiprocessing.get_context("spawn")
    ready, end = context.Event(), context.Event()
    other = context.Process(target=hold, args=(ready, end))
    other.start()
    try:
        assert ready.wait(60)
        refused(begun, *CHANGES, says="out.*another")
        refused(begun, *CHANGES, "--overwrite", says="out.*another")
    finally:
        end.set()
        other.join()
    Path(f"raw/{ENDS[0]:020}.parquet").unlink()
    goes_on(begun)


def state_of(out: Path) -> Path:
    (path,) = (out / "_pgdecode").glob("state-*")
    return path


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def other_version(path: Path) -> None:
    plain = json.loads(path.read_bytes())
    path.write_text(json.dumps({**plain, "version": 99}))


def no_files(path: Path) -> None:
    plain = json.loads(path.read_bytes())
    del plain["files"]
    path.write_text(json.dumps(plain))


def hostile_file(path: Path) -> None:
    plain = json.loads(path.read_bytes())
    plain["files"][0]["name"] = "../raw/00000000000000000000.parquet"
    path.write_text(json.dumps(plain))


def hostile_state(path: Path) -> None:
    plain = json.loads(path.read_bytes())
    for file in plain["state"]:
        file["name"] = f"../{file['name']}"
    path.write_text(json.dumps(plain))


def hostile_replaced(path: Path) -> None:
    plain = json.loads(path.read_bytes())
    path.write_text(json.dumps({**plain, "replaced": ["../raw/00000000000000000000.parquet"]}))


@pytest.mark.parametrize(
    ("of", "change"),
    [
        *(pytest.param("state", change, id=f"state, {change.__name__}") for change in (flip, cut, empty, os.unlink)),
        *(
            pytest.param("manifest", change, id=f"manifest, {change.__name__}")
            for change in (cut, empty, other_version, no_files, hostile_file, hostile_state, hostile_replaced)
        ),
        *(pytest.param("payloads", change, id=f"payloads, {change.__name__}") for change in (flip, cut, os.unlink)),
    ],
)
@pytest.mark.parametrize("overwrite", [False, full(True)])
def test_a_log_or_state_that_is_damaged_is_named(
    begun: Shell, of: str, change: Callable[[Path], object], overwrite: bool
) -> None:
    folder = Path("out/_pgdecode")
    (path,) = folder.glob({"manifest": "0*.json", "state": "state-*", "payloads": "payloads-*"}[of])
    change(path)
    files(ENDS[0], len(PAYLOADS))  # ends the transactions, so that their payloads are needed
    if overwrite:
        done = begun(*CHANGES, "--overwrite")
        if done.code == 0:
            local(Path("out")).rows()
        else:
            assert done.err.count("\n") == 1
        return
    refused(begun, *CHANGES, says=re.escape(path.name))


def test_a_lost_manifest_takes_nothing_with_it(begun: Shell) -> None:
    path = Path("out/_pgdecode/0000000001.json")
    path.rename("lost.json")
    refused(begun, *CHANGES, says="out.*_pgdecode.*--overwrite")
    Path("lost.json").rename(path)
    goes_on(begun)


def test_a_missing_manifest_in_the_middle_is_refused(begun: Shell) -> None:
    for start, end in ((ENDS[0], ENDS[1]), (ENDS[1], ENDS[2])):
        files(start, end)
        assert begun(*CHANGES).code == 0
    Path("out/_pgdecode/0000000002.json").unlink()
    files(ENDS[2], ENDS[3])
    done = begun(*CHANGES)
    # The last one is enough to continue.
    assert done.code == 0 or ("0000000002" in done.err and done.err.count("\n") == 1), done.err


@pytest.mark.parametrize(
    ("source", "target", "says"),
    [
        pytest.param("raw", "raw", "input", id="the input itself"),
        pytest.param("raw", "raw/out", "inside the input", id="inside the input"),
        pytest.param("out/raw", "out", "contains the input", id="around the input"),
    ],
)
def test_input_and_output_are_apart(run: Shell, source: str, target: str, says: str) -> None:
    files(0, ENDS[0], folder=source)
    before = local(Path(source)).contents()
    for words in ([], ["--overwrite"]):
        done = run("decode", source, target, "--changes", *words)
        assert done.code == 2, done
        assert done.err.count("\n") == 1
        assert says in done.err
        assert local(Path(source)).contents() == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_named(begun: Shell) -> None:
    files(ENDS[0], len(PAYLOADS))
    for folder in (Path("out/_pgdecode"), Path("out")):
        folder.chmod(0o500)
    try:
        refused(begun, *CHANGES, says="out")
    finally:
        for folder in (Path("out"), Path("out/_pgdecode")):
            folder.chmod(0o700)


def test_a_full_disk_leaves_the_data_set_as_it_was(begun: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    files(ENDS[0], len(PAYLOADS))
    original = os.fsync
    for n_before in range(4):
        calls = iter(range(1000))

        def full_disk(descriptor: int, calls: Any = calls, n_before: int = n_before) -> None:
            if next(calls) == n_before:
                raise OSError(28, "No space left on device")
            original(descriptor)

        monkeypatch.setattr(os, "fsync", full_disk)
        done = begun(*CHANGES)
        monkeypatch.setattr(os, "fsync", original)
        if done.code == 0:
            break
        assert re.fullmatch(r"pgdecode: .*out.*space.*\n", done.err), done.err
        assert len(local(Path("out")).manifests()) == 1
    goes_on_after(begun)


def goes_on_after(run: Shell) -> None:
    assert run(*CHANGES).code == 0
    local(Path("out")).checked()
    assert run("decode", "raw", "whole", "--changes").code == 0
    assert local(Path("out")).rows() == local(Path("whole")).rows()


def test_rows_without_integers_as_positions_are_refused(begun: Shell) -> None:
    path = in_parquet(
        Path("raw/9.parquet"), PAYLOADS[ENDS[0] :], seq=pa.array(map(float, range(ENDS[0], len(PAYLOADS))))
    )
    refused(begun, *CHANGES, says="seq")
    path.unlink()
    goes_on(begun)


@pytest.mark.parametrize("has", [True, False])
def test_files_with_and_without_positions_are_not_mixed(run: Shell, has: bool) -> None:
    bounds = (0, ENDS[0], len(PAYLOADS))
    for number, (start, end) in enumerate(pairwise(bounds)):
        columns = {"seq": range(start, end)} if has == (number == 0) else {}
        in_parquet(Path(f"raw/{number}.parquet"), PAYLOADS[start:end], **columns)
        if number == 0:
            assert run(*CHANGES).code == 0
    refused(run, *CHANGES, says="position|seq")
