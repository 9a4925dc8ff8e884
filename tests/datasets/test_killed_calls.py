"""Calls that are killed, fail or race: the next call makes the data set whole, and readers never see half a run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import obstore
import pytest
from growing_input import captured_file, sequence
from run_campaign import ARM

from support.data_sets import LOG, Row, local, objects, ordered, stored
from support.emulators import Emulator
from support.shell import Shell
from support.tiers import full, long

pytest_plugins = ["support.stores"]

PAYLOADS, ENDS = sequence()
WHAT = {
    "changes": ["--changes"],
    "messages": [],
    "tables": ["--table", "public.a", "--table", "public.b"],
    "a snapshot": ["--snapshot", "public.a"],
    "anew": ["--changes", "--overwrite"],
}
FOLDERS: dict[str, list[str | None]] = {"tables": ["public.a", "public.b"]}
_MOST_OPERATIONS = 200


def raw(*bounds: int) -> None:
    for start, end in pairwise(bounds):
        captured_file(Path(f"raw/{start:020}.parquet"), PAYLOADS[start:end], start)


def rows_of(out: Path, what: str) -> list[list[str]]:
    return [ordered(local(out).rows(below)) for below in FOLDERS.get(what, [None])]


# Makes each call that it reads in a process of its own, which begins with all modules imported.
_CALLS = f"""{ARM}
for line in sys.stdin:
    number, when, words = json.loads(line)
    pid = os.fork()
    if not pid:
        arm(number, when, words)
        code = main(words)
        sys.stderr.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class Caller:
    """Makes calls that may be killed at a file operation."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", _CALLS]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def __call__(self, *words: str | Path, number: int = -1, when: str = "after") -> int:
        """Make a call. Return its exit code; it is negative if the call was killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([number, when, [str(word) for word in words]]) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture
def caller(run: Shell) -> Iterator[Caller]:
    """A process that makes calls in the folder of the test."""
    made = Caller()
    yield made
    made.close()


def committed(what: str) -> list[Row]:
    """The rows that a reader of the folder sees. All files must be named by a manifest."""
    data_set = local(Path("out"))
    named = {file["name"] for manifest in data_set.manifests() for file in manifest["files"]}
    assert set(data_set.outputs()) <= named
    return [row for below in FOLDERS.get(what, [None]) for row in data_set.rows(below)]


@pytest.mark.parametrize(
    ("what", "calls_before", "step"),
    [
        ("changes", 1, 31),
        *(full("changes", 0, 11), full("changes", 1, 7), full("messages", 1, 11), full("tables", 0, 17)),
        *(full("tables", 1, 13), full("a snapshot", 1, 11), full("anew", 0, 17), full("anew", 1, 11)),
        *(long("changes", 0, 3), long("changes", 1, 1), long("messages", 1, 3), long("tables", 0, 4)),
        *(long("tables", 1, 2), long("a snapshot", 1, 3), long("anew", 0, 4), long("anew", 1, 3)),
    ],
)
def test_a_call_may_be_killed_at_each_file_operation(
    run: Shell, caller: Caller, what: str, calls_before: int, step: int
) -> None:
    raw(0, ENDS[0])
    call = ["decode", "raw", "out", *WHAT[what]]
    if calls_before:
        assert run(*call).code == 0
        Path("out").rename("before")
    raw(ENDS[0], ENDS[1], ENDS[3])
    assert run("decode", "raw", "whole", *WHAT[what]).code == 0
    expected = rows_of(Path("whole"), what)
    for number in range(0, _MOST_OPERATIONS, step):
        shutil.rmtree("out", ignore_errors=True)
        if calls_before:
            shutil.copytree("before", "out")
        was_killed = caller(*call, number=number) == -signal.SIGKILL
        if what not in ("anew", "a snapshot"):
            committed(what)
        assert caller(*call) == 0, number
        local(Path("out")).checked()
        assert rows_of(Path("out"), what) == expected, number
        if not was_killed:
            break
    assert 10 < number < _MOST_OPERATIONS - step


def test_a_call_with_nothing_new_completes_what_was_committed(run: Shell) -> None:
    raw(0, ENDS[1])
    assert run("decode", "raw", "out", "--changes").code == 0
    local(Path("out")).checked()
    # As after a kill between the commit and the renames.
    name = "changes.parquet"
    Path(f"out/{LOG}/new").mkdir()
    Path("out", name).rename(f"out/{LOG}/new/{name}")
    Path(f"out/{LOG}/new/leftover").write_bytes(b"x")
    done = run("decode", "raw", "out", "--changes")
    assert (done.code, "nothing new" in done.err) == (0, True)
    local(Path("out")).checked()


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")], ids=["signal", "disk"])
def test_what_comes_just_after_the_commit_does_not_undo_it(
    run: Shell, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    raw(0, ENDS[0])
    assert run("decode", "raw", "out", "--changes").code == 0
    raw(ENDS[0], ENDS[3])
    original = os.link

    def link(*names: Any) -> None:
        original(*names)
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", link)
        assert run("decode", "raw", "out", "--changes").code != 0
    assert "nothing new" in run("decode", "raw", "out", "--changes").err
    assert len(local(Path("out")).checked()) == 2
    assert run("decode", "raw", "whole", "--changes").code == 0
    assert rows_of(Path("out"), "changes") == rows_of(Path("whole"), "changes")


@pytest.mark.full
def test_of_calls_at_the_same_time_one_decodes(run: Shell) -> None:
    raw(0, ENDS[0])
    assert run("decode", "raw", "out", "--changes").code == 0
    raw(ENDS[0], ENDS[3])
    command = [sys.executable, "-m", "pgdecode", "decode", "raw", "out", "--changes"]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    said = [process.communicate()[1] for process in processes]
    for process, text in zip(processes, said, strict=True):
        assert process.returncode == 0 or "another" in text, said
        assert text.count("\n") == 1, said
    assert sum("nothing new" not in text and "another" not in text for text in said) == 1, said
    assert len(local(Path("out")).checked()) == 2
    assert run("decode", "raw", "whole", "--changes").code == 0
    assert rows_of(Path("out"), "changes") == rows_of(Path("whole"), "changes")


# -- object stores -----------------------------------------------------------------------------------------------------


def bucket_with(store: Emulator, *bounds: int) -> tuple[str, list[str]]:
    """Make a bucket with captured files, and a call that decodes them."""
    uri = store.new_bucket()
    add(uri, store, *bounds)
    return uri, ["decode", f"{uri}/raw", f"{uri}/out", "--changes", *store.shell]


def add(uri: str, store: Emulator, *bounds: int) -> None:
    bucket = objects(uri, store)
    for start, end in pairwise(bounds):
        obstore.put(bucket, f"raw/{start:020}.parquet", captured_file(Path("new.parquet"), PAYLOADS[start:end], start))


def whole(run: Shell) -> list[str]:
    captured_file(Path("all/0.parquet"), PAYLOADS, 0)
    assert run("decode", "all", "whole", "--changes").code == 0
    return ordered(local(Path("whole")).rows())


def fail_at(number: int, when: str, patch: pytest.MonkeyPatch) -> list[str]:
    """Let one request fail, before or after the store has done it. Return a list that then has its name."""
    numbers = count()
    failed: list[str] = []

    def failing(name: str) -> Any:
        original = getattr(obstore, name)

        def request(*words: Any, **options: Any) -> Any:
            is_due = next(numbers) == number
            if is_due:
                failed.append(name)
            if is_due and when == "before":
                raise obstore.exceptions.GenericError("status code: 503 Service Unavailable")
            result = original(*words, **options)
            if is_due:
                raise obstore.exceptions.GenericError("status code: 503 Service Unavailable")
            return result

        return request

    for name in ("put", "delete", "list", "head", "get", "open_writer"):
        patch.setattr(obstore, name, failing(name))
    return failed


@pytest.mark.full
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("calls_before", [0, 1])
@pytest.mark.parametrize("step", [8, long(1)])
def test_any_request_of_a_store_may_fail(
    run: Shell, store: Emulator, monkeypatch: pytest.MonkeyPatch, when: str, calls_before: int, step: int
) -> None:
    expected = whole(run)
    for number in count(step=step):
        assert number < _MOST_OPERATIONS
        uri, call = bucket_with(store, 0, ENDS[0])
        if calls_before:
            assert run(*call).code == 0
        add(uri, store, ENDS[0], ENDS[3])
        with monkeypatch.context() as patch:
            failed = fail_at(number, when, patch)
            done = run(*call)
        if not failed:
            break
        assert done.code == 0 or done.err.count("\n") == 1, (number, failed, done.err)
        again = run(*call)
        assert again.code == 0, (number, failed, done.err, again.err)
        data_set = stored(f"{uri}/out", store)
        assert ordered(data_set.rows()) == expected, (number, failed)
        # What was left is removed after a commit.
        if "nothing new" not in again.err:
            data_set.checked()
    assert number > 5


@pytest.mark.full
@pytest.mark.parametrize("calls_before", [0, 1])
def test_of_calls_to_a_store_at_the_same_time_one_decodes(run: Shell, store: Emulator, calls_before: int) -> None:
    for _ in range(2):
        uri, call = bucket_with(store, 0, ENDS[0])
        if calls_before:
            assert run(*call).code == 0
        add(uri, store, ENDS[0], ENDS[3])
        command = [sys.executable, "-m", "pgdecode", *call]
        processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
        said = [process.communicate()[1] for process in processes]
        for process, text in zip(processes, said, strict=True):
            assert process.returncode == 0 or "another run" in text, said
            assert text.count("\n") == 1, said
        assert any(process.returncode == 0 for process in processes), said
        assert run(*call).code == 0
        data_set = stored(f"{uri}/out", store)
        assert ordered(data_set.rows()) == whole(run)
        contents = data_set.contents()
        named = {file["name"] for manifest in data_set.manifests() for file in manifest["files"]}
        assert named <= set(contents), json.dumps(said)
