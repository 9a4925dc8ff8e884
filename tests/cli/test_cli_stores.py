"""Commands that read and write object stores, on emulators."""

from __future__ import annotations

import json
from pathlib import Path

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgdecode.datasets.target import read_manifests
from pgdecode.files.payload_files import payload_files
from pgdecode.storage.object_path import ObjectPath, object_path
from pgdecode.storage.object_store import listed, store_of
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
    for file in read_manifests(folder)[-1].files:
        content = bytes(obstore.get(store_of(folder), f"{folder.key}/{file.name}").bytes())
        found.setdefault(file.name.rpartition("/")[0], []).append(content)
    return found


def test_inspect_and_cat_read_a_uri(run: Shell, store: Emulator, raw: ObjectPath) -> None:
    there = json.loads(run("inspect", str(raw), "--json", *store.shell).out)
    here = json.loads(run("inspect", str(FILE), "--json").out)
    assert {**there, "path": ""} == {**here, "path": ""}
    for words in ([], ["--changes"]):
        assert run("cat", str(raw), *words, *store.shell).out == run("cat", str(FILE), *words).out


@pytest.mark.full
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
        path.read_bytes() for path in Path("here").rglob("*.jsonl")
    )
    manifest = read_manifests(target, store.options)[-1]
    assert (
        manifest.rows
        == sum(file.rows for file in manifest.files)
        == sum(content.count(b"\n") for contents in found.values() for content in contents)
    )
    if words:
        local = read_manifests("here")[-1]
        assert (manifest.rows, manifest.what, manifest.options) == (local.rows, local.what, local.options)
        assert sorted(file.sha256 for file in manifest.files) == sorted(file.sha256 for file in local.files)


def test_a_local_file_is_decoded_to_a_store_and_back(run: Shell, store: Emulator, raw: ObjectPath) -> None:
    assert run("decode", str(FILE), f"{raw.root}/x", "--keep", "data", *store.shell).code == 0
    [file] = payload_files(object_path(f"{raw.root}/x", store.options), "data")
    assert pa.Table.from_batches(file.batches())["data"] == pq.read_table(FILE)["data"]
    assert run("decode", str(raw / "1.parquet"), "here.parquet", *store.shell).code == 0
    assert Path("here.parquet").is_file()


def test_an_output_is_replaced_only_on_request(run: Shell, store: Emulator, raw: ObjectPath) -> None:
    target = f"{raw.root}/lake/x"
    assert run("decode", str(raw), target, *store.shell).code == 0
    first = {file.name for file in read_manifests(target, store.options)[-1].files}
    assert "lake/x: nothing new" in run("decode", str(raw), target, *store.shell).err
    assert run("decode", str(raw), target, "--overwrite", *store.shell).code == 0
    second = {file.name for file in read_manifests(target, store.options)[-1].files}
    folder = object_path(target, store.options)
    keys = {item.below(folder) for item, _ in listed(folder)}
    assert (first & second, {key for key in keys if not key.startswith("_")}) == (set(), second)


def test_a_foreign_target_is_refused(run: Shell, store: Emulator, raw: ObjectPath) -> None:
    refused = run("decode", str(FILE), str(raw), "--overwrite", *store.shell)
    assert refused.code == 2
    assert "has an object that pgdecode did not write: 1.parquet" in refused.err
    for target in (raw, raw / "x"):
        refused = run("decode", str(raw), str(target), *store.shell)
        assert (refused.code, "is inside the input" in refused.err) == (2, True)


def test_a_local_only_option_is_refused(run: Shell) -> None:
    refused = run("decode", str(FILE), "s3://lake/x", "--storage-option", "SECRET")
    assert (refused.code, "SECRET" in refused.err) == (2, False)
    refused = run("decode", str(FILE), "out", "--changes", "--bad", "s3://lake/x.parquet")
    assert (refused.code, "this must be a local path, not s3://" in refused.err) == (2, True)
    assert not Path("s3:").exists()


def test_a_store_may_hold_days_of_a_growing_input(run: Shell, store: Emulator, tmp_path: Path) -> None:
    folder = object_path(store.new_bucket(), store.options)
    whole = pq.read_table(FILE)
    for day, (start, length) in enumerate(((0, 500), (500, len(whole) - 500))):
        pq.write_table(whole.slice(start, length), tmp_path / "part.parquet")
        obstore.put(store_of(folder), f"day={day}/1.parquet", tmp_path / "part.parquet")
        done = run("decode", f"{folder.root}/day={day}", str(tmp_path / "out"), "--changes", *store.shell)
        assert done.code == 0, done.err
    found = [
        pq.read_table(tmp_path / "out" / file.name)
        for manifest in read_manifests(tmp_path / "out")
        for file in manifest.files
    ]
    assert run("decode", str(FILE), str(tmp_path / "changes.parquet"), "--changes").code == 0
    assert pa.concat_tables(found) == pq.read_table(tmp_path / "changes.parquet")
