"""Runs `lake_cases.py` with a version of Spark for which Delta and Iceberg have jars, in a process of its own.

pip puts that pyspark below build/, and Spark gets the jars by Maven. Without them, the tests are skipped.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pgdecode.datasets.errors import RunError
from spark_udfs import apply_stream, merge_into, net_changes, table_changes
from support import captures

pytest_plugins = ["support.spark_session"]
pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[3]
PYSPARK = "4.1.4"
FOLDER = ROOT / "build" / "spark-lake"


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """Install pyspark, without its dependencies, which are there."""
    target = FOLDER / f"pyspark-{PYSPARK}"
    if not (target / "pyspark").exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target)]
        done = subprocess.run([*pip, f"pyspark=={PYSPARK}", "py4j==0.10.9.9"], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"pyspark {PYSPARK} cannot be installed: {done.stderr.strip().splitlines()[-1]}")
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(target), str(ROOT), str(ROOT / "tests")]),
        "PGDECODE_TEST_IVY": str(FOLDER / "ivy"),
    }


@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_tables_that_spark_merges_net_changes_into_equal_those_of_the_server(
    environment: dict[str, str], format: str
) -> None:
    pytest_command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "", "-p", "no:cacheprovider", "--tb=short"]
    done = subprocess.run(
        [*pytest_command, "-k", format, str(Path(__file__).with_name("lake_cases.py"))],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    skipped = re.search(r"^SKIPPED .*?: (.*)$", done.stdout, re.MULTILINE)
    if skipped and " passed" not in done.stdout:
        pytest.skip(skipped[1])
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2_000:]


def test_what_cannot_be_merged_is_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    column = captures.capture("16.shop.v1").column
    raw = spark.createDataFrame(pa.table({"seq": pa.array(range(len(column)), pa.int64()), "data": column}))
    net = net_changes(table_changes(raw, "public.products"))
    with pytest.raises(
        ValueError, match=r"the columns '_action', '_key_before'.* are missing: net is what net_changes"
    ):
        merge_into(raw, "t")
    with pytest.raises(TypeError, match="use apply_stream, or call merge_into in foreachBatch"):
        merge_into(spark.readStream.format("rate").load(), "t")
    with pytest.raises(ValueError, match="table t does not exist: pass using='delta' or using='iceberg' to make it"):
        merge_into(net, "t")
    with pytest.raises(ValueError, match="using must be one of 'delta', 'iceberg', not 'hudi'"):
        merge_into(net, "t", using="hudi")  # type: ignore[arg-type]
    spark.sql("CREATE TABLE of_files (id INT) USING parquet")
    with pytest.raises(RunError, match="table of_files has the format 'parquet': merge needs Delta or Iceberg"):
        merge_into(net, "of_files")
    spark.sql("DROP TABLE of_files")
    with pytest.raises(TypeError, match="tables is a mapping"):
        apply_stream(spark, tmp_path, {}, checkpoint=tmp_path / "checkpoint")
    with pytest.raises(ValueError, match=r"key has the table 'public\.b', which is not one of tables"):
        apply_stream(spark, tmp_path, {"public.a": "a"}, checkpoint=tmp_path / "c", key={"public.b": ["id"]})
