"""The progress of a job's tasks: on a terminal, and nowhere else."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_udfs.runtime.progress import watched
from support.captures import DATA
from support.shell import on_terminal

pytest_plugins = ["support.spark_session"]


@pytest.mark.full
def test_completed_tasks_are_reported_while_a_job_runs(spark: SparkSession) -> None:
    seen: list[tuple[int, int]] = []
    with watched(None, lambda n_done, n_tasks: seen.append((n_done, n_tasks))):
        spark.sparkContext.parallelize([0.3] * 6, 6).map(time.sleep).collect()
    assert {n_tasks for _, n_tasks in seen} == {6}
    assert seen == sorted(seen)
    assert seen[-1][0] > seen[0][0]


@pytest.mark.long
@pytest.mark.full
def test_a_terminal_shows_tasks_of_spark(tmp_path: Path) -> None:
    text = on_terminal("decode", DATA / "18.shop.v1.parquet", tmp_path / "out", "--engine", "spark")
    assert "starting Spark" in text
    assert " of 1 tasks" in text
