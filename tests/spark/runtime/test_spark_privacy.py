"""Spark's logs of failing jobs: they have no bytes of payloads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.generators.planted import PLANTED_SEQUENCE, leaks

pytestmark = pytest.mark.full

# Jobs of a user whose data have a bad payload and a bad value. Each fails with an error.
JOBS = """
import sys
from pathlib import Path
from pyspark.sql import functions as F
import pgdecode
from pgdecode import Column, Relation
from spark_udfs import changes, from_pgoutput, parse_pgoutput, relation_catalog, snapshot, table_changes
from spark_udfs.runtime.session import local_session

folder = Path(sys.argv[1])
settings = {
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.dir": (folder / "events").as_uri(),
    "spark.sql.shuffle.partitions": "2",
    "spark.log.level": "INFO",
}
relation = Relation(
    relation_id=16385, namespace="s", name="t", replica_identity="d",
    columns=tuple(Column(1, name, 23, -1) for name in "abc"),
)
with local_session("local[2]", settings) as spark:
    spark.sparkContext.setLogLevel("INFO")
    raw = spark.read.parquet(str(folder / "raw.parquet"))
    rows = raw.where("substring(data, 1, 1) = cast('I' as binary)")
    jobs = {
        "parse_pgoutput": lambda: raw.select(parse_pgoutput("data", in_stream=False).alias("m")).select("m.*"),
        "from_pgoutput": lambda: rows.select(from_pgoutput("data", relation).alias("r")).select("r.*"),
        "pandas": lambda: rows.select(from_pgoutput("data", relation, adapter="pandas").alias("r")).select("r.*"),
        "changes": lambda: changes(raw),
        "table_changes": lambda: table_changes(raw, "s.t"),
        "snapshot": lambda: snapshot(raw, "s.t"),
        "relation_catalog": lambda: relation_catalog(raw),
    }
    for name, job in jobs.items():
        try:
            job().collect()
        except Exception as error:
            print("FAILED", name, type(error).__name__, error)
        else:
            print("PASSED", name)
    permissive = table_changes(raw, "s.t", mode="PERMISSIVE").where("_error is not null")
    print("ERRORS", [row["_error"] for row in permissive.select("_error").collect()])
"""


def test_no_log_of_a_failing_job_holds_what_payloads_hold(tmp_path: Path) -> None:
    payloads = [*PLANTED_SEQUENCE]
    (tmp_path / "events").mkdir()
    pq.write_table(
        pa.table({"data": pa.array(payloads, pa.binary()), "seq": pa.array(range(len(payloads)), pa.int64())}),
        tmp_path / "raw.parquet",
    )
    script = tmp_path / "jobs.py"
    script.write_text(JOBS)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, env=dict(os.environ)
    )
    events = "".join(path.read_text() for path in (tmp_path / "events").rglob("*") if path.is_file())
    assert done.returncode == 0, done.stderr[-3000:]
    failed = {line.split()[1] for line in done.stdout.splitlines() if line.startswith("FAILED")}
    assert {"parse_pgoutput", "from_pgoutput", "changes", "table_changes"} <= failed, done.stdout
    assert "column 'a'" in done.stderr
    assert "column 'a'" in events
    assert leaks(done.stdout) == []
    assert leaks(done.stderr) == []
    assert leaks(events) == []
