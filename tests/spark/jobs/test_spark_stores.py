"""Jobs between object stores: the rows and the manifest of local paths, and what is left by attempts and failures."""

from __future__ import annotations

import hashlib
import logging
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from pgdecode.datasets.errors import RunError, RunFault
from pgdecode.datasets.manifest import Manifest
from pgdecode.datasets.state import State
from pgdecode.datasets.target import target_at
from pgdecode.storage.errors import PathError, StoreUnreachable
from pgdecode.storage.object_path import ObjectPath, StorageOptionError, object_path
from pgdecode.storage.object_store import listed, store_of
from spark_udfs import decode_files, read_run
from spark_udfs.jobs import file_route
from support import captures
from support.emulators import SECRETS, Emulator
from support.tiers import long

pytest_plugins = ["support.stores", "support.spark_session"]
FILE = captures.DATA / "18.shop.v1.parquet"
# Runs a task, and kills the process when its part is complete, before the driver knows.
_KILLED = """
import os, pickle, signal, sys
from pgdecode.datasets.new_files import NewOutput
NewOutput.written = lambda self, n_rows: os.kill(os.getpid(), signal.SIGKILL)
work, task = pickle.load(sys.stdin.buffer)
work(task)
"""
OPTIONS: dict[str, dict[str, Any]] = {
    "messages": {"keep": ["seq"]},
    "changes": {"what": "changes"},
    "public.orders": {"what": "public.orders"},
    "tables": {"what": ["public.orders", "public.customers"]},
}


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with payloads in four files, of several row groups."""
    folder = tmp_path_factory.mktemp("raw")
    table = pq.read_table(FILE)
    for number in range(4):
        start = number * len(table) // 4
        part = table.slice(start, (number + 1) * len(table) // 4 - start)
        pq.write_table(part, folder / f"{number}.parquet", row_group_size=100)
    return folder


@pytest.fixture
def raw(store: Emulator, local: Path) -> ObjectPath:
    """The same files in a new bucket."""
    folder = object_path(f"{store.new_bucket()}/raw", store.options)
    for file in sorted(local.iterdir()):
        obstore.put(store_of(folder), f"raw/{file.name}", file)
    return folder


def table_of(folder: ObjectPath, manifest: Manifest, below: str = "") -> pa.Table:
    """Read the files that a manifest names, in the order of their tasks."""
    names = sorted(file.name for file in manifest.files if file.name.startswith(below))
    contents = [bytes(obstore.get(store_of(folder), f"{folder.key}/{name}").bytes()) for name in names]
    digests = {file.name: file.sha256 for file in manifest.files}
    assert [hashlib.sha256(content).hexdigest() for content in contents] == [digests[name] for name in names]
    return pa.concat_tables([pq.read_table(pa.BufferReader(content)) for content in contents])


def keys(folder: ObjectPath) -> set[str]:
    return {item.below(folder) for item, _ in listed(folder)}


def outputs(folder: ObjectPath) -> set[str]:
    """The objects that are not in the log, which has one state."""
    found = keys(folder)
    assert len([name for name in found if name.startswith("_pgdecode/state-")]) == 1
    return {name for name in found if not name.startswith("_pgdecode/")}


def last(folder: ObjectPath) -> Manifest:
    manifest = target_at(folder).last()
    assert manifest is not None
    return manifest


@pytest.mark.full
@pytest.mark.parametrize("name", ["messages", "changes", "public.orders", "tables"])
def test_rows_and_manifest_are_those_of_local_paths(
    spark: SparkSession, store: Emulator, raw: ObjectPath, local: Path, tmp_path: Path, name: str
) -> None:
    options = OPTIONS[name]
    out = object_path(f"{raw.root}/lake/x", store.options)
    there = decode_files(spark, str(raw), str(out), storage_options=store.options, **options)
    here = decode_files(spark, local, tmp_path / "out", **options)
    assert (there.bad_rows, there.skipped, there.undecided) == (here.bad_rows, here.skipped, here.undecided)
    manifest = last(out)
    of_outputs = [("", tmp_path / "out")]
    if name == "tables":
        of_outputs = [(f"{table}/", tmp_path / "out" / table) for table in options["what"]]
    for below, folder in of_outputs:
        expected = pa.concat_tables([pq.read_table(file) for file in sorted(folder.glob("*.parquet"))])
        assert table_of(out, manifest, below) == expected
        local_digests = {hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.glob("*.parquet")}
        assert {file.sha256 for file in manifest.files if file.name.startswith(below)} == local_digests
    assert manifest.what == ([options.get("what", name)] if name != "tables" else options["what"])
    assert sum(item["rows"] for file in manifest.files for item in file.input) > 0
    assert all(item["file"].startswith(str(raw)) for file in manifest.files for item in file.input)
    # Nothing else is left.
    assert outputs(out) == {file.name for file in manifest.files}


@pytest.mark.full
@pytest.mark.parametrize("store", ["s3", long("azure")], indirect=True)
@pytest.mark.parametrize("what", ["changes", long("messages")])
def test_the_same_call_again_adds_what_has_come_to_a_store(
    spark: SparkSession, store: Emulator, local: Path, tmp_path: Path, what: str
) -> None:
    bucket = store.new_bucket()
    raw, out = (object_path(f"{bucket}/{name}", store.options) for name in ("raw", "out"))
    for file in sorted(local.iterdir()):
        obstore.put(store_of(raw), f"raw/{file.name}", file)
        done = decode_files(spark, str(raw), str(out), what=what, storage_options=store.options)
        assert done.manifest is not None
        before = keys(out)
        again = decode_files(spark, str(raw), str(out), what=what, storage_options=store.options)
        assert (again.rows, again.manifest, keys(out)) == (0, None, before)
    decode_files(spark, local, tmp_path / "whole", what=what)
    found = read_run(spark, str(out), storage_options=store.options).toArrow()
    expected = pa.concat_tables(pq.read_table(file) for file in sorted((tmp_path / "whole").glob("part-*")))
    assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, expected.cast(found.schema).to_pylist()))
    assert outputs(out) == {file.name for manifest in target_at(out).manifests() for file in manifest.files}


def test_an_output_is_replaced_only_on_request(spark: SparkSession, store: Emulator, raw: ObjectPath) -> None:
    place = object_path(f"{raw.root}/x", store.options)
    decode_files(spark, str(raw), str(place), storage_options=store.options, fields=["kind"])
    with pytest.raises(RunError, match=r'x: was written with fields \["kind"\], not \["lsn"\]'):
        decode_files(spark, str(raw), str(place), storage_options=store.options, fields=["lsn"])
    decode_files(spark, str(raw), str(place), storage_options=store.options, fields=["lsn"], overwrite=True)
    second = last(place)
    assert (second.number, second.is_first) == (2, True)
    assert table_of(place, second).schema.names == ["lsn"]
    assert outputs(place) == {file.name for file in second.files}
    with pytest.raises(PathError, match="is inside the input"):
        decode_files(spark, str(raw), str(raw / "x"), storage_options=store.options)
    with pytest.raises(PathError, match=r"has an object that pgdecode did not write: 0\.parquet"):
        decode_files(spark, FILE, str(raw), storage_options=store.options, overwrite=True)


def test_of_two_jobs_to_one_target_one_fails_by_name(spark: SparkSession, store: Emulator, raw: ObjectPath) -> None:
    out = object_path(f"{raw.root}/x", store.options)
    with target_at(out).begin(("messages",), {}) as first:
        decode_files(spark, str(raw), str(out), storage_options=store.options)
        with pytest.raises(RunError, match=r"x: another run has written _pgdecode/0000000001\.json meanwhile"):
            first.commit(Manifest("spark", ("messages",)), State())
    assert last(out).rows == pq.read_metadata(FILE).num_rows
    assert outputs(out) == {file.name for file in last(out).files}


def test_a_failed_job_leaves_nothing(spark: SparkSession, store: Emulator, raw: ObjectPath) -> None:
    bad = pa.table({"seq": [10**9], "data": [b"zTOPSECRET"]})
    sink = pa.BufferOutputStream()
    pq.write_table(bad, sink)
    obstore.put(store_of(raw), "raw/9.parquet", sink.getvalue().to_pybytes())
    out = object_path(f"{raw.root}/x", store.options)
    with pytest.raises(Exception, match=r"raw/9\.parquet: row 0: UNKNOWN_TAG") as error:
        decode_files(spark, str(raw), str(out), storage_options=store.options)
    assert not any(secret in str(error.value) for secret in SECRETS)
    assert keys(out) == set()


def test_credentials_are_refused_before_the_job(
    spark: SparkSession, s3: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**s3.options, "secret_access_key": "TOPSECRET"}
    for source, target in ((FILE, "s3://lake/x"), ("s3://raw", "out")):
        with pytest.raises(StorageOptionError, match="may be a credential") as error:
            decode_files(spark, source, target, storage_options=options)
        assert "TOPSECRET" not in str(error.value)


@pytest.mark.full
def test_no_credential_is_in_a_task_the_plan_the_manifest_or_a_log(
    spark: SparkSession,
    store: Emulator,
    raw: ObjectPath,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    pytestconfig: pytest.Config,
) -> None:
    sent: list[bytes] = []
    run = file_route.run_tasks

    def recorded(spark: SparkSession, work: Any, tasks: Any) -> Any:
        sent.append(pickle.dumps((work, tasks)))
        return run(spark, work, tasks)

    monkeypatch.setattr(file_route, "run_tasks", recorded)
    caplog.set_level(logging.DEBUG)
    out = object_path(f"{raw.root}/x", store.options)
    decode_files(spark, str(raw), str(out), storage_options=store.options, what="changes")
    manifest = bytes(obstore.get(store_of(out), "x/_pgdecode/0000000001.json").bytes())
    shown = capfd.readouterr()
    # The JVM started before this test.
    of_jvm = pytestconfig.pluginmanager.getplugin("capturemanager").read_global_capture()
    assert sent
    searched = b"".join([*sent, manifest, *(text.encode() for text in (caplog.text, *shown, *of_jvm))])
    assert [secret for secret in (*SECRETS, "S3-KEY-CANARY") if secret.encode() in searched] == []


@pytest.mark.full
def test_a_store_that_does_not_answer_is_named(spark: SparkSession, s3: Emulator) -> None:
    options = {**s3.options, "endpoint": "http://127.0.0.1:9"}
    with pytest.raises(StoreUnreachable, match="s3://lake/x"):
        decode_files(spark, FILE, "s3://lake/x", storage_options=options)


@pytest.mark.full
def test_read_run_reads_the_files_of_the_manifest_alone(spark: SparkSession, store: Emulator, raw: ObjectPath) -> None:
    out = object_path(f"{raw.root}/x", store.options)
    tables = ["public.orders", "public.customers"]
    decode_files(spark, str(raw), str(out), storage_options=store.options, what=tables)
    for folder in tables:
        obstore.put(store_of(out), f"x/{folder}/part-0000000002-00000-{'0' * 16}.parquet", b"of a run that was killed")
    manifest = last(out)
    for table in tables:
        found = read_run(spark, str(out), table, storage_options=store.options)
        expected = table_of(out, manifest, f"{table}/")
        assert found.toArrow().sort_by("_position")["_position"] == expected.sort_by("_position")["_position"]
    with pytest.raises(PathError, match=r"name one of its outputs: public\.customers, public\.orders"):
        read_run(spark, str(out), storage_options=store.options)
    with pytest.raises(RunFault, match="has no _pgdecode"):
        read_run(spark, str(raw), storage_options=store.options)


@pytest.mark.full
def test_read_run_reads_a_local_run(spark: SparkSession, tmp_path: Path) -> None:
    decode_files(spark, FILE, tmp_path / "out", what=["public.orders", "changes"])
    n_rows = pq.read_table(tmp_path / "out" / "public.orders").num_rows
    assert read_run(spark, tmp_path / "out", "public.orders").count() == n_rows


@pytest.mark.full
@pytest.mark.parametrize("store", ["s3", long("azure")], indirect=True)
@pytest.mark.parametrize("what", ["messages", long("public.orders")])
def test_duplicates_of_tasks_and_killed_attempts_leave_nothing(
    spark: SparkSession, store: Emulator, raw: ObjectPath, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    run = file_route.run_tasks
    out = object_path(f"{raw.root}/x", store.options)
    seen: list[set[str]] = []
    kills: list[int] = []

    def twice(spark: SparkSession, work: Any, tasks: Any) -> Any:
        # A speculative duplicate writes its part too; and an attempt is killed while it writes.
        run(spark, work, tasks)
        killed = subprocess.run([sys.executable, "-c", _KILLED], input=pickle.dumps((work, tasks[0])), timeout=120)
        # 0: the task only collected statistics, because its speculation was wrong, and wrote no part.
        kills.append(killed.returncode)
        done = run(spark, work, tasks)
        seen.append(keys(out))
        return done

    monkeypatch.setattr(file_route, "run_tasks", twice)
    decode_files(spark, str(raw), str(out), storage_options=store.options, what=what)
    manifest = last(out)
    assert len(seen[-1]) > len(manifest.files) + 2
    assert set(kills) <= {0, -signal.SIGKILL}
    assert -signal.SIGKILL in kills
    assert outputs(out) == {file.name for file in manifest.files}
    monkeypatch.undo()
    decode_files(spark, str(raw), f"{raw.root}/y", storage_options=store.options, what=what)
    alone = object_path(f"{raw.root}/y", store.options)
    assert table_of(out, manifest) == table_of(alone, last(alone))
