"""Captured files: the control messages in their footers give the index, so tasks read each row once."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from files.test_footer_control import CAPTURES, messages_of, written
from spark.jobs.test_spark_files import ORDER, as_rows, change_job, read_back

from pgdecode import ChangeDecoder
from pgdecode.capture import file_writer
from pgdecode.datasets.manifest import Manifest
from pgdecode.files.payload_file import PayloadFile
from spark_udfs.jobs import file_route
from support.file_jobs import write_changes
from support.tiers import full


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kinds of the tasks that run here. A task has few row groups."""
    kinds: list[str] = []

    def run(spark: None, work: Any, tasks: list[Any]) -> list[Any]:
        kinds.extend(type(work).__name__ for _ in tasks)
        return [work(task) for task in tasks]

    monkeypatch.setattr(file_route, "run_tasks", run)
    monkeypatch.setattr(file_route, "_task_bytes", lambda spark, n_bytes: max(n_bytes // 7, 1))
    monkeypatch.setattr(file_writer, "GROUP_ROWS", 41)
    return kinds


def decoded(files: list[PayloadFile], target: Path, **options: Any) -> tuple[pa.Table, Manifest]:
    manifest = write_changes(files, change_job(mode="PERMISSIVE", **options), target)
    return read_back(target), manifest


@pytest.mark.parametrize("name", [name if name.startswith("18.twophase.v3.") else full(name) for name in CAPTURES])
def test_tasks_decode_captured_files_with_the_index_of_their_footers(
    name: str, tasks: list[str], tmp_path: Path
) -> None:
    payloads = messages_of(name)
    found, _ = decoded(written(tmp_path / "raw", payloads, 3), tmp_path / "out")
    expected = ChangeDecoder(mode="PERMISSIVE").decode(payloads, range(len(payloads)))
    assert as_rows(found) == as_rows(pa.Table.from_batches([expected]))
    assert set(tasks) <= {"ChangeTask", "UsedTask"}
    assert tasks.count("ChangeTask") > 2


@pytest.mark.full
@pytest.mark.parametrize("options", [{"drop_duplicates": True}, {"start": "anywhere"}, {"include_uncommitted": True}])
def test_the_options_of_transactions_hold_with_footers(
    options: dict[str, Any], tasks: list[str], tmp_path: Path
) -> None:
    payloads = messages_of("18.streams.v4.parquet")
    found, _ = decoded(written(tmp_path / "raw", payloads, 3), tmp_path / "out", **options)
    decoder = ChangeDecoder(mode="PERMISSIVE", **options)
    expected = [decoder.decode(payloads, range(len(payloads)))]
    expected += [decoder.undecided()] if "include_uncommitted" in options else []
    assert as_rows(found) == as_rows(pa.Table.from_batches(expected))
    assert "SplitStatisticsTask" not in tasks


def test_files_without_control_messages_are_read_for_the_index(tasks: list[str], tmp_path: Path) -> None:
    payloads = messages_of("18.shop.v1.parquet")
    files = written(tmp_path / "raw", payloads, 3)
    plain = [files[0], *(PayloadFile(**{**vars(file), "entries": {}}) for file in files[1:])]
    found, manifest = decoded(plain, tmp_path / "out")
    expected = ChangeDecoder().decode(payloads, range(len(payloads)))
    assert found.sort_by(ORDER).cast(expected.schema).to_pylist() == expected.to_pylist()
    assert "SplitStatisticsTask" in tasks
    rows = [(item["first_row"], item["rows"]) for file in manifest.files for item in file.input]
    assert sum(n for _, n in rows) == len(payloads)
    assert all(before <= after for (before, _), (after, _) in pairwise(sorted(rows)))
