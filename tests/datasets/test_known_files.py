"""Files that have been decoded are known by their names, sizes and times, and are not opened again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import obstore
import pytest
from growing_input import captured_file, in_parquet

from pgdecode.datasets.manifest import Manifest
from pgdecode.datasets.run import Target
from support.captured_files import transaction
from support.data_sets import local, objects
from support.emulators import Emulator
from support.shell import Shell
from support.tiers import full

pytest_plugins = ["support.stores"]


def captured(first: int, end: int) -> None:
    """Write a file for each transaction."""
    for number in range(first, end):
        captured_file(Path(f"raw/{4 * number:020}.parquet"), transaction(number), 4 * number)


def overwrite_in_place(path: Path) -> None:
    """Make the content unreadable, with the same size and times."""
    stat = path.stat()
    path.write_bytes(bytes(stat.st_size))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@pytest.mark.parametrize("words", [[], ["--changes"], ["--table", "p.t"]], ids=str)
@pytest.mark.parametrize("has_positions", [True, full(False)])
def test_decoded_files_are_not_opened(run: Shell, words: list[str], has_positions: bool) -> None:
    def write(first: int, end: int) -> None:
        if has_positions:
            captured(first, end)
        else:
            for number in range(first, end):
                in_parquet(Path(f"raw/{number:03}.parquet"), transaction(number))

    write(0, 3)
    call = ["decode", "raw", "out", *words]
    assert run(*call).code == 0
    for path in Path("raw").iterdir():
        overwrite_in_place(path)
    done = run(*call)
    assert (done.code, "nothing new" in done.err) == (0, True), done.err
    write(3, 5)
    for _ in range(2):
        assert run(*call).code == 0
    runs = local(Path("out")).checked()
    assert [manifest["rows"] for manifest in runs] == ([12, 8] if not words else [3, 2])


def test_a_text_file_that_did_not_grow_is_not_opened(run: Shell) -> None:
    Path("raw.csv").write_text("data\n" + "".join(f"\\x{payload.hex()}\n" for payload in transaction(0)))
    assert run("decode", "raw.csv", "out", "--changes").code == 0
    overwrite_in_place(Path("raw.csv"))
    done = run("decode", "raw.csv", "out", "--changes")
    assert (done.code, "nothing new" in done.err) == (0, True), done.err


def test_files_that_were_moved_or_touched_are_opened_once(run: Shell) -> None:
    captured(0, 3)
    call = ["decode", "raw", "out", "--changes"]
    assert run(*call).code == 0
    for path in list(Path("raw").iterdir()):
        path.rename(path.with_stem(f"x{path.stem}"))
    captured(3, 4)
    assert run(*call).code == 0
    # The next state knows them under their new names.
    for path in Path("raw").iterdir():
        overwrite_in_place(path)
    done = run(*call)
    assert (done.code, "nothing new" in done.err) == (0, True), done.err


def test_the_manifest_of_a_run_names_only_its_own_input(run: Shell) -> None:
    sizes = []
    for number in range(6):
        captured(10 * number, 10 * (number + 1))
        assert run("decode", "raw", "out", "--changes").code == 0
        runs = local(Path("out")).manifests()
        assert len(runs[-1]["input"]["files"]) == 10
        sizes.append(Path(f"out/_pgdecode/{number + 1:010}.json").stat().st_size)
    assert max(sizes) < 1.2 * min(sizes)


def test_decoded_objects_are_not_requested(run: Shell, store: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = store.new_bucket()
    bucket = objects(uri, store)
    captured(0, 3)
    for path in Path("raw").iterdir():
        obstore.put(bucket, f"raw/{path.name}", path)
    call = ["decode", f"{uri}/raw", "out", "--changes", *store.shell]
    assert run(*call).code == 0
    requested = []

    for name in ("get", "get_range", "get_ranges", "head"):
        original = getattr(obstore, name)

        def request(store: Any, path: str, *rest: Any, original: Any = original, **options: Any) -> Any:
            requested.append(path)
            return original(store, path, *rest, **options)

        monkeypatch.setattr(obstore, name, request)
    done = run(*call)
    assert (done.code, "nothing new" in done.err) == (0, True), done.err
    assert not [path for path in requested if path.endswith(".parquet")]


def test_a_call_for_messages_reads_the_last_manifest_only(run: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Target.manifest
    numbers: list[int] = []

    def counted(target: Target, number: int) -> Manifest:
        numbers.append(number)
        return read(target, number)

    monkeypatch.setattr(Target, "manifest", counted)
    for number in range(4):
        numbers.clear()
        captured(number, number + 1)
        assert run("decode", "raw", "out").code == 0
        assert set(numbers) == ({number} if number else set())


def test_files_of_the_same_name_in_other_folders_do_not_replace_each_other(run: Shell) -> None:
    # "a-0000000002" is also the name of what the second call makes of "a".
    for number, name in enumerate(["1/a", "2/a", "3/a-0000000002", "4/b/a"]):
        in_parquet(Path(f"raw/{name}.parquet"), transaction(number))
        assert run("decode", f"raw/{name.partition('/')[0]}", "out").code == 0
    names = {file["name"] for manifest in local(Path("out")).checked() for file in manifest["files"]}
    assert len(names) == 4
