"""Runs of `spark_udfs.jobs.file_route` in tests, without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pgdecode.datasets.manifest import Input, Manifest
from pgdecode.datasets.state import State
from pgdecode.datasets.target import target_at
from pgdecode.files.file_metadata import gaps_of
from pgdecode.files.payload_file import PayloadFile
from spark_udfs.jobs import file_route
from spark_udfs.jobs.job_config import ChangeJob, MessageJob
from spark_udfs.jobs.output_committer import Committed


def write_changes(files: Sequence[PayloadFile], job: ChangeJob, folder: Path, *, has_time: bool = True) -> Manifest:
    """Decode files to changes and tables in a new data set."""
    none: Any = None
    what = [name or "changes" for name in job.names]
    with target_at(folder).begin(what, {}) as run:
        written, _, _ = file_route.write_changes(none, files, "seq", job, has_time, run)
        return run.commit(_manifest(what, files, written), State())


def write_messages(files: Sequence[PayloadFile], job: MessageJob, folder: Path) -> Manifest:
    """Decode files to messages in a new data set."""
    none: Any = None
    with target_at(folder).begin(["messages"], {}) as run:
        written = file_route.write_messages(none, files, run, job)
        return run.commit(_manifest(["messages"], files, written), State())


def _manifest(what: Sequence[str], files: Sequence[PayloadFile], written: Committed) -> Manifest:
    input = Input(gaps=[gap.as_dict() for gap in gaps_of(files)])
    rows = sum(file.rows for file in written.files)
    return Manifest(
        "spark",
        what,
        input=input,
        rows=rows,
        bad_rows=written.bad_rows,
        files=written.files,
        tasks=written.tasks,
    )


def folders_of(job: ChangeJob, target: Path) -> dict[str | None, Path]:
    """The folder of each output."""
    return {name: target / below for name, below in zip(job.names, job.folders, strict=True)}
