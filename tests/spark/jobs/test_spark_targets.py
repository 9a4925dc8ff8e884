"""The target of a job: it is claimed at the start, replaced only on request, and named by errors of writing."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from pgdecode.datasets.errors import RunError
from pgdecode.datasets.single_file import staged
from pgdecode.datasets.target import target_at
from pgdecode.storage.errors import AccessDenied, DiskFull, PathError, ReadOnlyStorage, TargetExists
from spark_udfs import decode_files
from support import captures
from support.tiers import full

pytest_plugins = ["support.spark_session"]
FILE = captures.DATA / "18.shop.v1.parquet"


def columns_of(folder: Path) -> list[str]:
    return list(ds.dataset(folder, exclude_invalid_files=True).schema.names)


def test_overwrite_replaces_an_output_when_the_new_one_is_complete(spark: SparkSession, tmp_path: Path) -> None:
    target = tmp_path / "out"
    first = decode_files(spark, FILE, target, fields=["kind"])
    assert first.manifest is not None
    again = decode_files(spark, FILE, target, fields=["kind"])
    assert (again.rows, again.manifest) == (0, None)
    with pytest.raises(RunError, match=r'out: was written with fields \["kind"\], not \["kind", "lsn"\]: .*overwrite'):
        decode_files(spark, FILE, target, fields=["kind", "lsn"])
    second = decode_files(spark, FILE, target, fields=["kind", "lsn"], overwrite=True)
    assert columns_of(target) == ["kind", "lsn"]
    assert (second.rows, os.listdir(tmp_path)) == (first.rows, ["out"])
    assert ds.dataset(target, exclude_invalid_files=True).count_rows() == first.rows
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").touch()
    with pytest.raises(TargetExists, match=r"other: has files such as notes\.txt, but no _pgdecode"):
        decode_files(spark, FILE, other)
    with pytest.raises(PathError, match=r"has a file that pgdecode did not write: notes\.txt"):
        decode_files(spark, FILE, other, overwrite=True)


def test_a_second_job_fails_before_it_reads(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_udfs.jobs.file_route.run_tasks", lambda *given: pytest.fail("a job was started"))
    with (
        target_at(tmp_path / "out").begin(("messages",), {}),
        pytest.raises(RunError, match="out: another process is writing it now"),
    ):
        decode_files(spark, FILE, tmp_path / "out")
    assert os.listdir(tmp_path) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 kB."""
    place = tmp_path / "small"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "pgdecode", place], capture_output=True)
    if made.returncode:
        pytest.skip(f"no file system can be mounted: {made.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.mark.parametrize("what", ["messages", full("changes")])
def test_a_full_disk_is_named_with_the_target(spark: SparkSession, small_disk: Path, what: str) -> None:
    with pytest.raises(DiskFull) as error:
        decode_files(spark, FILE, small_disk / "out", what=what, format="jsonl")
    assert str(error.value) == f"{small_disk / 'out'}: no space left on device"
    assert os.listdir(small_disk) == []


def test_a_read_only_target_is_named(spark: SparkSession, small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(ReadOnlyStorage, match=r"small/out: read-only file system") as error:
        decode_files(spark, FILE, small_disk / "out")
    assert error.value.target == str(small_disk / "out")


def test_a_missing_permission_is_named(tmp_path: Path) -> None:
    former = os.geteuid()
    tmp_path.chmod(0o555)
    if former == 0:
        # Root may write everywhere.
        os.seteuid(65534)
    try:
        with pytest.raises(AccessDenied, match="out: permission denied"), staged(tmp_path / "out"):
            pytest.fail("the target was claimed")
    finally:
        os.seteuid(former)
        tmp_path.chmod(0o755)
