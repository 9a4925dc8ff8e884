"""Commands that read and write object stores, on emulators."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgdecode.files.payload_files import payload_files
from pgdecode.runs.atomic_output import staged
from pgdecode.runs.manifest import read_manifest
from pgdecode.runs.object_run import CLAIM, ObjectRun
from pgdecode.storage.object_files import written_object
from pgdecode.storage.object_path import ObjectPath, object_path
from pgdecode.storage.object_store import create_object, listed, store_of
from support import captures
from support.emulators import SECRETS, Emulator
from support.shell import Shell

pytest_plugins = ["support.stores"]
FILE = captures.DATA / "18.shop.v1.parquet"


@pytest.fixture
def raw(store: Emulator) -> ObjectPath:
    """A bucket with a payload file."""
    folder = object_path(f"{store.new_bucket()}/raw", store.options)
    obstore.put(store_of(folder), "raw/1.parquet", FILE)
    return folder


def output(uri: str, store: Emulator) -> dict[str, list[bytes]]:
    """The bytes of the files that a manifest names, by their folder."""
    folder = object_path(uri, store.options)
    found: dict[str, list[bytes]] = {}
    for file in read_manifest(folder).files:
        content = bytes(obstore.get(store_of(folder), f"{folder.key}/{file.name}").bytes())
        found.setdefault(file.name.rpartition("/")[0], []).append(content)
    return found


def test_inspect_and_cat_read_a_uri(run: Shell, store: Emulator, raw: ObjectPath) -> None:
    there = json.loads(run("inspect", str(raw), "--json", *store.shell).out)
    here = json.loads(run("inspect", str(FILE), "--json").out)
    assert {**there, "path": ""} == {**here, "path": ""}
    for words in ([], ["--changes"]):
        assert run("cat", str(raw), *words, *store.shell).out == run("cat", str(FILE), *words).out


@pytest.mark.parametrize(
    ("words", "folders"),
    [
        pytest.param([], [""], id="messages"),
        pytest.param(["--changes"], [""], id="changes"),
        pytest.param(["--table", "public.orders"], [""], id="a table"),
        pytest.param(["--snapshot", "public.orders"], [""], id="a snapshot"),
        pytest.param(
            ["--table", "public.orders", "--table", "public.customers"],
            ["public.customers", "public.orders"],
            id="tables",
        ),
    ],
)
def test_decode_writes_the_bytes_of_a_local_output(
    run: Shell, store: Emulator, raw: ObjectPath, words: list[str], folders: list[str]
) -> None:
    target = f"{raw.root}/lake/x"
    done = run("decode", str(raw), target, *words, "--format", "jsonl", *store.shell)
    # A Python worker that Spark ends after an earlier test may write to the same stderr.
    assert (done.code, done.err.count(f"{target}: ")) == (0, 1), done.err
    assert not any(secret in done.err for secret in SECRETS)
    assert run("decode", str(FILE), "here", *words, "--format", "jsonl").code == 0
    found = output(target, store)
    assert sorted(found) == folders
    assert sorted(b for bs in found.values() for b in bs) == sorted(
        path.read_bytes() for path in Path("here").glob("*.jsonl")
    )
    manifest = read_manifest(target, store.options)
    assert (
        manifest.rows
        == sum(file.rows for file in manifest.files)
        == sum(content.count(b"\n") for contents in found.values() for content in contents)
    )
    if words:
        local = read_manifest("here")
        assert (manifest.rows, manifest.what, manifest.options) == (local.rows, local.what, local.options)
        assert sorted(file.sha256 for file in manifest.files) == sorted(file.sha256 for file in local.files)
    assert not any(item.name == CLAIM for item, _ in listed(object_path(target, store.options)))


def test_a_local_file_is_decoded_to_a_store_and_back(run: Shell, store: Emulator, raw: ObjectPath) -> None:
    assert run("decode", str(FILE), f"{raw.root}/x", "--keep", "data", *store.shell).code == 0
    [file] = payload_files(object_path(f"{raw.root}/x", store.options), "data")
    assert pa.Table.from_batches(file.batches())["data"] == pq.read_table(FILE)["data"]
    assert run("decode", str(raw / "1.parquet"), "here.parquet", *store.shell).code == 0
    assert Path("here.parquet").is_file()


def test_an_output_is_replaced_only_on_request(run: Shell, store: Emulator, raw: ObjectPath) -> None:
    target = f"{raw.root}/lake/x"
    assert run("decode", str(raw), target, *store.shell).code == 0
    first = {file.name for file in read_manifest(target, store.options).files}
    refused = run("decode", str(raw), target, *store.shell)
    assert refused.code == 2
    assert refused.err.endswith("lake/x: exists already (--overwrite replaces it)\n")
    assert run("decode", str(raw), target, "--overwrite", *store.shell).code == 0
    second = {file.name for file in read_manifest(target, store.options).files}
    keys = {item.name for item, _ in listed(object_path(target, store.options))}
    assert (first & second, keys) == (set(), {"_manifest.json", *second})


def test_a_claimed_or_foreign_target_is_refused(run: Shell, store: Emulator, raw: ObjectPath) -> None:
    create_object(raw / "x" / CLAIM, b'{"run": "1", "host": "there", "started": "then"}')
    refused = run("decode", str(FILE), str(raw / "x"), *store.shell)
    assert refused.code == 2
    assert "raw/x: another run is writing it since then on there; 'pgdecode clean' removes" in refused.err
    refused = run("decode", str(FILE), str(raw), "--overwrite", *store.shell)
    assert refused.code == 2
    assert "has an object that pgdecode did not write: 1.parquet" in refused.err
    for target in (raw, raw / "x"):
        refused = run("decode", str(raw), str(target), *store.shell)
        assert (refused.code, "is inside the input" in refused.err) == (2, True)


def test_a_local_only_option_is_refused(run: Shell) -> None:
    refused = run("decode", str(FILE), "s3://lake/x", "--changes", "--state", "s")
    assert (refused.code, "--state is for local folders" in refused.err) == (2, True)
    refused = run("decode", str(FILE), "s3://lake/x", "--storage-option", "SECRET")
    assert (refused.code, "SECRET" in refused.err) == (2, False)
    assert run("inspect", "s3://lake/x", "--catalog").code == 2
    for option in ("--resume", "--state"):
        refused = run("decode", str(FILE), "out", "--changes", option, "s3://lake/x")
        assert (refused.code, "this must be a local path, not s3://" in refused.err) == (2, True)
    assert not Path("s3:").exists()


def test_runs_over_the_files_of_a_store_continue_each_other(run: Shell, store: Emulator, tmp_path: Path) -> None:
    folder = object_path(store.new_bucket(), store.options)
    whole = pq.read_table(FILE)
    found = []
    for day, (start, length) in enumerate(((0, 500), (500, len(whole) - 500))):
        pq.write_table(whole.slice(start, length), tmp_path / "part.parquet")
        obstore.put(store_of(folder), f"day={day}/1.parquet", tmp_path / "part.parquet")
        words = ["decode", f"{folder.root}/day={day}", str(tmp_path / f"out{day}"), "--changes", *store.shell]
        done = run(*words, *(["--resume", str(tmp_path / "out0")] if day else []))
        assert done.code == 0, done.err
        found.append(pq.read_table(tmp_path / f"out{day}" / "changes.parquet"))
    assert run("decode", str(FILE), str(tmp_path / "changes.parquet"), "--changes").code == 0
    assert pa.concat_tables(found) == pq.read_table(tmp_path / "changes.parquet")


def test_clean_removes_what_killed_runs_have_left(run: Shell, store: Emulator, raw: ObjectPath) -> None:
    target = object_path(f"{raw.root}/lake/x", store.options)
    assert run("decode", str(raw), str(target), *store.shell).code == 0
    kept = {item.key for item, _ in listed(target)}
    dead = ObjectRun(target, "0" * 32)
    for folder in ("", "public.orders"):
        with written_object(dead.part(folder, 0, "parquet")) as file:
            file.write(b"x")
    create_object(target / CLAIM, b"{}")
    upload: Any = obstore.open_writer(store_of(target), dead.part("", 1, "parquet").key, buffer_size=5 << 20)
    upload.write(b"x" * (12 << 20))
    del upload
    # No object is a day old. All uploads of the emulator are of the year 2010.
    young = run("clean", str(raw.root), *store.shell).out.splitlines()
    assert [line.endswith(" (upload)") for line in young] == [True] * (store.kind == "s3")
    done = run("clean", str(raw.root), "--older-than", "0s", *store.shell)
    assert done.code == 0, done.err
    assert len(done.out.splitlines()) == 3
    assert {item.key for item, _ in listed(target)} == kept
    assert [item.name for item, _ in listed(raw)] == ["1.parquet"]


def test_clean_removes_what_is_left_beside_local_outputs(run: Shell) -> None:
    left = [Path("lake/.x.partial"), Path(f"lake/y.{'0' * 32}.partial"), Path("lake/.x.spill")]
    for folder in left:
        folder.mkdir(parents=True)
        (folder / "part").touch()
    Path("lake/.z.former").mkdir()
    Path("lake/x.partial").mkdir()
    done = run("clean", "lake", "--older-than", "0s")
    assert done.out.splitlines() == sorted(map(str, left))
    assert sorted(os.listdir("lake")) == ["x.partial", "z"]
    with staged(Path("lake/w")) as hidden:
        hidden.mkdir()
        assert run("clean", "lake", "--older-than", "0s").out == ""
    assert run("clean", "lake", "--older-than", "soon").code == 2
