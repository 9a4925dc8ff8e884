"""Spark under faults: killed workers and executors, one corrupt row among many, corrupt files."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import pgdecode
from spark_udfs import changes, decode_files, parse_pgoutput, table_changes
from spark_udfs.jobs.decode_files import JobFailed
from support import captures, clone
from support.tiers import long

pytestmark = pytest.mark.full

pytest_plugins = ["support.spark_session"]

TABLE = "public.pgbench_accounts"
FILES = 4
ROWS = 80_000
ROWS_OF_TASKS = 200_000  # more than a task has
OF_SPARK = (PySparkException, Py4JJavaError)
GROUP_ROWS = 8_000


def pgbench(n_rows: int) -> pa.Array:
    """Repeated payloads of pgbench."""
    recorded = pa.concat_arrays(
        pq.read_table(clone.path_of("benchmarks/data/pgbench.text.parquet"), columns=["data"])["data"].chunks
    )
    times = n_rows // len(recorded) + 1
    return pa.concat_arrays([recorded] * times).slice(0, n_rows).cast(pa.binary())


def land(folder: Path, payloads: pa.Array) -> None:
    """Write payloads to files, with their positions."""
    folder.mkdir()
    for number in range(FILES):
        start, end = number * len(payloads) // FILES, (number + 1) * len(payloads) // FILES
        positions = pa.array(range(start, end), pa.int64())
        table = pa.table({"seq": positions, "data": payloads.slice(start, end - start)})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=GROUP_ROWS)


def without_times(manifest: str) -> Any:
    """A manifest without the times of its tasks, and the names of payload files, which each attempt has of its own."""
    found = json.loads(manifest)
    del found["state"]
    for task in found["tasks"]:
        del task["decode_seconds"], task["io_seconds"]
    return found


# -- tasks that do not finish ----------------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="finds the executor of a worker by /proc")
@pytest.mark.parametrize(
    "jobs",
    [
        pytest.param(["messages", "messages.worker"], id="a worker"),
        long(
            ["messages", "messages.worker", "messages.executor", "table", "table.worker", "dataframe"],
            id="workers and executors",
        ),
    ],
)
def test_killed_workers_and_lost_executors_leave_no_trace(tmp_path: Path, jobs: list[str]) -> None:
    land(tmp_path / "raw", pgbench(ROWS_OF_TASKS))
    ran = subprocess.run(
        [sys.executable, Path(__file__).with_name("spark_faults.py"), tmp_path, *jobs],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(Path(__file__).parent), *filter(None, sys.path)))},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout)
    assert [*said] == jobs
    for name, result in said.items():
        if "." in name:
            whole = said[name.partition(".")[0]]
            assert result["met"], name
            assert result["names"] == whole["names"], name
            assert without_times(result["manifest"]) == without_times(whole["manifest"]), name
    manifest = json.loads(said["messages"]["manifest"])
    assert sum(part["rows"] for part in manifest["files"]) == ROWS_OF_TASKS
    assert len(manifest["files"]) > 1
    if "dataframe" not in jobs:
        return
    assert said["dataframe"] == {"same": True, "met": True, "rows": said["dataframe"]["rows"]}
    assert said["dataframe"]["rows"] == sum(part["rows"] for part in json.loads(said["table"]["manifest"])["files"])


# -- one corrupt row -------------------------------------------------------------------------------------------------


class Spoilt:
    """Files of payloads. In the third file, an update of an account has lost its last byte."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "raw"
        self.good = pgbench(ROWS)
        start = 2 * ROWS // FILES
        accounts = next(
            payload[1:5] for payload in self.good.to_pylist() if payload[:1] == b"R" and b"pgbench_accounts" in payload
        )
        payloads = self.good.slice(start).to_pylist()
        self.row = next(row for row, payload in enumerate(payloads) if row > 13_333 and payload[:5] == b"U" + accounts)
        self.position = start + self.row
        bad = payloads[self.row][:-1]
        spoilt = [self.good.slice(0, self.position), pa.array([bad], pa.binary()), self.good.slice(self.position + 1)]
        land(self.folder, pa.concat_arrays(spoilt))
        self.file = self.folder / "2.parquet"
        with pytest.raises(pgdecode.DecodeError) as caught:
            pgdecode.decode(bad)
        self.offset = caught.value.offset
        self.error = f"{caught.value.code} at offset {self.offset}: {caught.value.detail}"


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory: pytest.TempPathFactory) -> Spoilt:
    return Spoilt(tmp_path_factory.mktemp("spoilt"))


def read_back(folder: Path) -> pa.Table:
    return pa.concat_tables([pq.read_table(part) for part in sorted(folder.glob("part-*.parquet"))])


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("messages", "{file}: row {row}: {error}"),
        ("changes", "{file}: row {row}, position {position}: {error}"),
        (TABLE, "{file}: row {row}, position {position}: {error}"),
    ],
)
def test_failfast_names_the_row_the_file_and_the_offset(
    spark: SparkSession, spoilt: Spoilt, tmp_path: Path, what: str, said: str
) -> None:
    with pytest.raises(JobFailed) as caught:
        decode_files(spark, spoilt.folder, tmp_path / "out", what=what)
    assert str(caught.value).startswith(said.format(**vars(spoilt)))
    assert os.listdir(tmp_path) == []


def test_failfast_of_functions_names_the_row_of_the_batch_or_the_position(spark: SparkSession, spoilt: Spoilt) -> None:
    rows = spark.read.parquet(str(spoilt.folder))
    with pytest.raises(OF_SPARK, match=rf"row \d+, offset {spoilt.offset}: "):
        rows.select(parse_pgoutput("data", fields=["kind"]).alias("m")).groupBy("m.kind").count().collect()
    for found in (changes(rows), table_changes(rows, TABLE)):
        with pytest.raises(OF_SPARK, match=f"position {spoilt.position}, offset {spoilt.offset}: "):
            found.write.format("noop").mode("overwrite").save()


def test_permissive_loses_nothing_but_the_corrupt_message(spark: SparkSession, spoilt: Spoilt, tmp_path: Path) -> None:
    fields = ["kind", "xid", "relation_id", "new", "error"]
    decode_files(spark, spoilt.folder, tmp_path / "out", keep=["seq"], fields=fields, mode="PERMISSIVE")
    found = read_back(tmp_path / "out").sort_by("seq")
    assert found["seq"].to_pylist() == list(range(ROWS))
    bad = found.slice(spoilt.position, 1).to_pylist()
    nothing = dict.fromkeys(fields)
    assert bad == [{"seq": spoilt.position, **nothing, "error": spoilt.error}]
    expected = pa.Table.from_batches([pgdecode.decode_messages(spoilt.good, fields=fields)])
    for start, length in ((0, spoilt.position), (spoilt.position + 1, ROWS)):
        part = found.slice(start, length).drop_columns("seq").cast(expected.schema)
        assert part.combine_chunks().equals(expected.slice(start, length).combine_chunks())


def test_permissive_loses_nothing_but_the_corrupt_change(spark: SparkSession, spoilt: Spoilt, tmp_path: Path) -> None:
    decode_files(spark, spoilt.folder, tmp_path / "out", what=TABLE, mode="PERMISSIVE")
    found = read_back(tmp_path / "out").sort_by("_position")
    expected = pgdecode.ChangeDecoder().table(spoilt.good, TABLE, range(len(spoilt.good)))
    found = found.cast(expected.schema)
    is_bad = pa.compute.is_valid(found["_error"])
    (bad,) = found.filter(is_bad).to_pylist()
    assert (bad["_position"], bad["_error"]) == (spoilt.position, spoilt.error)
    others = pa.Table.from_batches([expected]).sort_by("_position")
    others = others.filter(pa.compute.not_equal(others["_position"], spoilt.position))
    assert found.filter(pa.compute.invert(is_bad)).combine_chunks().equals(others.combine_chunks())
    assert others.num_rows == expected.num_rows - 1


# -- corrupt files ---------------------------------------------------------------------------------------------------


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A file without pages, but with its footer."""
    path = tmp_path / "damaged.parquet"
    column = captures.capture("18.shop.v1").column
    pq.write_table(pa.table({"seq": range(len(column)), "data": column}), path)
    with path.open("r+b") as file:
        file.seek(4)
        file.write(b"\xff" * (path.stat().st_size * 3 // 4))
    return path


@pytest.mark.parametrize(
    "decoded",
    [
        pytest.param(lambda rows: rows.select(parse_pgoutput("data", fields=["kind"])), id="parse_pgoutput"),
        pytest.param(changes, id="changes"),
        pytest.param(lambda rows: table_changes(rows, "public.orders"), id="table_changes"),
    ],
)
def test_functions_report_a_corrupt_file_with_sparks_error(
    spark: SparkSession, damaged: Path, decoded: Callable[[DataFrame], DataFrame]
) -> None:
    with pytest.raises(OF_SPARK) as caught:
        decoded(spark.read.parquet(str(damaged))).collect()
    assert re.search(rf"\[FAILED_READ_FILE\.\w+\] .*{damaged}", str(caught.value))


@pytest.mark.parametrize("what", ["messages", "changes"])
def test_a_job_reports_a_corrupt_file_as_its_reader_does(
    spark: SparkSession, damaged: Path, tmp_path: Path, what: str
) -> None:
    with pytest.raises(JobFailed) as by_tasks:
        decode_files(spark, damaged, tmp_path / "out", what=what)
    with pytest.raises((pa.ArrowException, OSError)) as by_pyarrow:
        pq.read_table(damaged, columns=["data"])
    assert str(by_tasks.value) == f"{damaged}: cannot be read further: {str(by_pyarrow.value).splitlines()[0]}"
    assert os.listdir(tmp_path) == [damaged.name]


def test_a_file_that_is_no_parquet_is_named_before_spark_reads_it(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "1.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(ValueError, match=r"raw/1\.parquet: not a Parquet file"):
        decode_files(spark, tmp_path / "raw", tmp_path / "out")
    assert os.listdir(tmp_path) == ["raw"]
