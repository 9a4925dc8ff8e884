"""Gaps that a capture accepted, on Spark: jobs and the data source refuse them unless they are accepted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgdecode.datasets.errors import RunError
from spark_udfs import decode_files, register
from spark_udfs.runtime.jvm import SPARK_ERRORS
from support.captured_files import GAP, captured
from support.tiers import full, long

pytest_plugins = ["support.spark_session"]

REFUSED = r"the changes from 0/20 to 0/1A0 are missing before it; its capture accepted that.*accept_gap=True"


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    return captured(tmp_path / "raw", [{}, {"gaps": [GAP]}, {}])


@pytest.mark.parametrize("options", [{"what": "changes"}, full({"what": "messages"}), full({"what": ["p.t"]})], ids=str)
def test_a_job_refuses_a_gap_and_lists_one_that_is_accepted(
    spark: SparkSession, raw: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    out = tmp_path / "out"
    with pytest.raises(RunError, match=REFUSED):
        decode_files(spark, raw, out, **options)
    assert not out.exists()
    done = decode_files(spark, raw, out, accept_gap=True, **options)
    assert done.rows == (12 if options["what"] == "messages" else 3)
    assert done.manifest is not None
    [listed] = done.manifest.input.gaps
    assert (listed["from"], listed["to"], listed["reason"]) == ("0/20", "0/1A0", GAP["reason"])


@pytest.mark.full
def test_the_data_source_refuses_a_gap(spark: SparkSession, raw: Path) -> None:
    register(spark)
    with pytest.raises(SPARK_ERRORS, match=REFUSED):
        spark.read.format("pgoutput").options(what="messages").load(str(raw)).count()
    accepted = spark.read.format("pgoutput").options(what="messages", accept_gap="true").load(str(raw))
    assert accepted.count() == 12


@pytest.mark.full
@pytest.mark.parametrize("what", ["changes", long("messages")])
def test_streams_refuse_a_gap(spark: SparkSession, raw: Path, tmp_path: Path, what: str) -> None:
    register(spark)

    def stream(name: str, **options: str) -> None:
        found = spark.readStream.format("pgoutput").options(what=what, **options).load(str(raw))
        writer = found.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / f"{name}.checkpoint"))
        writer.trigger(availableNow=True).start(str(tmp_path / name)).awaitTermination()

    with pytest.raises(SPARK_ERRORS, match=REFUSED):
        stream("refused")
    stream("accepted", accept_gap="true")
    assert spark.read.parquet(str(tmp_path / "accepted")).count() == (3 if what == "changes" else 12)
