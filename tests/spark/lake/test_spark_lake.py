"""Runs the cases of this folder with a Spark for which Delta and Iceberg have jars, in a process of its own.

pip puts that pyspark below build/, and Spark gets the jars by Maven. Without them, the tests are skipped.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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
    options = ["-q", "-n", "0", "-m", "", "-p", "no:cacheprovider", "-p", "spark.lake.lake_session", "--tb=short"]
    files = [str(Path(__file__).with_name(f"{name}_cases.py")) for name in ("lake", "stream")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-k", format, *files],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    skipped = re.search(r"^SKIPPED .*?: (.*)$", done.stdout, re.MULTILINE)
    if skipped and " passed" not in done.stdout:
        pytest.skip(skipped[1])
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2_000:]
