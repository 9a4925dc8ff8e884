"""Data sets in object stores grow as those in folders do, on emulators."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import obstore
import pytest
from growing_input import captured_file, sequence

from support.data_sets import DataSet, local, objects, ordered, stored
from support.emulators import Emulator
from support.shell import Done, Shell
from support.tiers import full

pytest_plugins = ["support.stores"]

PAYLOADS, ENDS = sequence()
BOUNDS = [0, *ENDS]
FOLDERS: dict[str, list[str | None]] = {"tables": ["public.a", "public.b"]}
WHAT = {
    "messages": [],
    "changes": ["--changes"],
    "a table": ["--table", "public.a"],
    "tables": ["--table", "public.a", "--table", "public.b"],
    "a snapshot": ["--snapshot", "public.a"],
}


class Bucket:
    """A bucket with captured files and a data set."""

    def __init__(self, run: Shell, emulator: Emulator) -> None:
        self.run = run
        self.emulator = emulator
        self.uri = emulator.new_bucket()
        self.store: Any = objects(self.uri, emulator)

    def put(self, start: int, end: int, name: str | None = None) -> str:
        path = captured_file(Path("new.parquet"), PAYLOADS[start:end], start)
        key = f"raw/{name or f'{start:020}.parquet'}"
        obstore.put(self.store, key, path)
        return key

    def decode(self, what: str, *words: str, source: str = "raw", target: str = "out") -> Done:
        where = [f"{self.uri}/{source}", f"{self.uri}/{target}"]
        return self.run("decode", *where, *WHAT[what], *words, *self.emulator.shell)

    def out(self, target: str = "out") -> DataSet:
        return stored(f"{self.uri}/{target}", self.emulator)


@pytest.fixture
def bucket(run: Shell, store: Emulator) -> Bucket:
    return Bucket(run, store)


def whole(run: Shell, what: str, *words: str) -> DataSet:
    """Decode everything by one call, in a folder."""
    captured_file(Path("all/0.parquet"), PAYLOADS, 0)
    done = run("decode", "all", "whole", *WHAT[what], *words)
    assert done.code == 0, done.err
    return local(Path("whole"))


@pytest.mark.full
@pytest.mark.parametrize("what", ["changes", "tables", "messages", "a table", "a snapshot"])
def test_the_same_call_again_decodes_what_has_come_since(run: Shell, bucket: Bucket, what: str) -> None:
    for number, (start, end) in enumerate(pairwise(BOUNDS), 1):
        bucket.put(start, end)
        done = bucket.decode(what, "--format", "jsonl")
        assert done.code == 0, done.err
        assert bucket.out().checked()[-1]["number"] == number
        before = bucket.out().contents()
        done = bucket.decode(what, "--format", "jsonl")
        assert (done.code, "nothing new" in done.err) == (0, True), done.err
        assert bucket.out().contents() == before
    expected = whole(run, what, "--format", "jsonl")
    for below in FOLDERS.get(what, [None]):
        assert ordered(bucket.out().rows(below)) == ordered(expected.rows(below))


@pytest.mark.parametrize("stored_side", ["input", full("output")])
def test_one_side_may_be_a_folder(run: Shell, bucket: Bucket, stored_side: str) -> None:
    source, target = "raw", f"{bucket.uri}/out"
    if stored_side == "input":
        source, target = f"{bucket.uri}/raw", "out"
    for start, end in pairwise(BOUNDS):
        if stored_side == "input":
            bucket.put(start, end)
        else:
            captured_file(Path(f"raw/{start}.parquet"), PAYLOADS[start:end], start)
        done = run("decode", source, target, "--changes", *bucket.emulator.shell)
        assert done.code == 0, done.err
    out = local(Path("out")) if stored_side == "input" else bucket.out()
    assert len(out.checked()) == len(ENDS)
    assert out.rows() == whole(run, "changes").rows()


@pytest.mark.full
def test_decoded_objects_may_be_deleted_and_copied_and_outputs_moved(run: Shell, bucket: Bucket) -> None:
    keys = [bucket.put(start, end) for start, end in pairwise(BOUNDS[:3])]
    assert bucket.decode("changes").code == 0
    first = bucket.out().outputs()
    obstore.rename(bucket.store, keys[0], "raw/copy.parquet")
    assert "nothing new" in bucket.decode("changes").err
    obstore.delete(bucket.store, [keys[1], "raw/copy.parquet"])
    for name in first:
        obstore.rename(bucket.store, f"out/{name}", f"away/{name}")
    bucket.put(ENDS[1], len(PAYLOADS))
    assert bucket.decode("changes").code == 0
    assert not set(first) & set(bucket.out().outputs())
    for name in first:
        obstore.rename(bucket.store, f"away/{name}", f"out/{name}")
    bucket.out().checked()
    assert bucket.out().rows() == whole(run, "changes").rows()


def refused(bucket: Bucket, done: Done, before: dict[str, bytes], *texts: str) -> None:
    assert done.code in (1, 2)
    assert done.err.startswith("pgdecode: ")
    assert done.err.count("\n") == 1, done.err
    for text in texts:
        assert text in done.err, done.err
    assert bucket.out().contents() == before


@pytest.mark.full
def test_what_does_not_continue_is_refused(bucket: Bucket) -> None:
    bucket.put(0, ENDS[0])
    assert bucket.decode("changes").code == 0
    before = bucket.out().contents()
    refused(bucket, bucket.decode("changes", "--mode", "PERMISSIVE"), before, "mode", "FAILFAST", "PERMISSIVE")
    refused(bucket, bucket.decode("a table"), before, "public.a")
    late = bucket.put(2, ENDS[0] + 3, name="late.parquet")
    refused(bucket, bucket.decode("changes"), before, "late.parquet", "came too late")
    obstore.delete(bucket.store, [late])
    missing = bucket.put(ENDS[1], ENDS[2])
    refused(bucket, bucket.decode("changes"), before, "missing")
    obstore.delete(bucket.store, [missing])
    for source, target in (("raw", "raw/x"), ("raw", "raw"), ("out/x", "out")):
        done = bucket.decode("changes", source=source, target=target)
        assert (done.code, done.err.count("\n")) == (2, 1), done.err
    # Without its log, the folder has files of nobody.
    log = {name: content for name, content in before.items() if name.startswith("_pgdecode/")}
    obstore.delete(bucket.store, [f"out/{name}" for name in log])
    left = bucket.out().contents()
    refused(bucket, bucket.decode("changes"), left, "_pgdecode", "--overwrite")
    for name, content in log.items():
        obstore.put(bucket.store, f"out/{name}", content)
    bucket.put(ENDS[0], ENDS[1])
    assert bucket.decode("changes").code == 0
    bucket.out().checked()


def test_overwrite_begins_anew_and_removes_only_what_calls_have_written(bucket: Bucket) -> None:
    bucket.put(0, ENDS[0])
    assert bucket.decode("changes").code == 0
    first = set(bucket.out().outputs())
    obstore.put(bucket.store, "out/notes.txt", b"mine")
    assert bucket.decode("a table", "--overwrite").code == 0
    assert not first & set(bucket.out().outputs())
    assert "notes.txt" in bucket.out().outputs()
    obstore.delete(bucket.store, ["out/notes.txt"])
    bucket.put(ENDS[0], ENDS[1])
    assert bucket.decode("a table").code == 0
    bucket.out().checked()


@pytest.mark.full
def test_of_two_runs_at_a_time_one_wins_and_the_other_fails_by_name(
    run: Shell, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.put(0, ENDS[0])
    assert bucket.decode("changes").code == 0
    bucket.put(ENDS[0], ENDS[1])
    # The other call is complete between this one's files and its manifest.
    original = obstore.put
    codes: list[int] = []

    def put(store: Any, path: str, *rest: Any, **options: Any) -> Any:
        if path.endswith("_pgdecode/0000000002.json") and not codes:
            codes.append(-1)
            codes[0] = bucket.decode("changes").code
        return original(store, path, *rest, **options)

    with monkeypatch.context() as patch:
        patch.setattr(obstore, "put", put)
        done = bucket.decode("changes")
    assert codes == [0]
    assert (done.code, done.err.count("\n")) == (1, 1) or (done.code, done.err.count("\n")) == (2, 1), done.err
    assert "another run" in done.err
    bucket.put(ENDS[1], len(PAYLOADS))
    assert bucket.decode("changes").code == 0
    # What the loser has left is gone by now.
    bucket.out().checked()
    shutil.rmtree("raw", ignore_errors=True)
    assert bucket.out().rows() == whole(run, "changes").rows()


def test_a_state_that_another_run_has_just_removed_is_no_damage(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.put(0, ENDS[0])
    assert bucket.decode("changes").code == 0
    bucket.put(ENDS[0], ENDS[1])
    original = obstore.get
    codes: list[int] = []

    def get(store: Any, path: str, *rest: Any, **options: Any) -> Any:
        if "_pgdecode/state-0000000001" in path and not codes:
            codes.append(-1)
            codes[0] = bucket.decode("changes").code
        return original(store, path, *rest, **options)

    with monkeypatch.context() as patch:
        patch.setattr(obstore, "get", get)
        done = bucket.decode("changes")
    assert (codes, "another run" in done.err, done.err.count("\n")) == ([0], True, 1), done.err
    bucket.out().checked()


@pytest.mark.full
@pytest.mark.parametrize("error", ["AlreadyExistsError", "GenericError"])
def test_an_error_after_the_commit_does_not_undo_it(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    bucket.put(0, ENDS[0])
    assert bucket.decode("changes").code == 0
    bucket.put(ENDS[0], ENDS[1])
    original = obstore.put

    def put(store: Any, path: str, *rest: Any, **options: Any) -> Any:
        result = original(store, path, *rest, **options)
        if path.endswith("_pgdecode/0000000002.json"):
            # The store has the object, but its answer is lost; obstore may have repeated the request.
            raise getattr(obstore.exceptions, error)("status code: 503 Service Unavailable")
        return result

    with monkeypatch.context() as patch:
        patch.setattr(obstore, "put", put)
        done = bucket.decode("changes")
    # Its own manifest is there: the run is complete.
    assert done.code == 0, done.err
    bucket.put(ENDS[1], len(PAYLOADS))
    assert bucket.decode("changes").code == 0
    assert len(bucket.out().checked()) == 3
