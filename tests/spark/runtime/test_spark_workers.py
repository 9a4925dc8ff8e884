"""Spark's Python workers: sockets, memory and shutdown."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from spark_udfs.runtime import jvm
from spark_udfs.runtime.session import _sockets
from spark_udfs.runtime.worker import enter_task

pytest_plugins = ["support.spark_session"]


def test_objects_that_a_worker_has_loaded_are_not_garbage_collected_but_later_ones_are(spark: SparkSession) -> None:
    # A nested function is pickled by value.
    def counts(_: int) -> list[int]:
        found = []
        made = []
        for _ in range(3):
            found.append(gc.get_freeze_count())
            enter_task()
            made.append([[] for _ in range(1000)])
        return found

    [(first, second, third)] = spark.sparkContext.parallelize([0], 1).map(counts).collect()
    assert first in (0, second)
    assert second == third > 10_000


def test_the_process_of_the_caller_is_unchanged() -> None:
    before = gc.get_freeze_count()
    enter_task()
    assert gc.get_freeze_count() == before


def test_workers_of_a_local_session_keep_free_memory(spark: SparkSession) -> None:
    # Arrow's allocator reads the variable when it is loaded.
    def reported(_: int) -> str | None:
        return os.environ.get("MIMALLOC_PURGE_DELAY")

    assert spark.sparkContext.parallelize([0], 1).map(reported).collect() == ["-1"]


def test_a_local_session_uses_its_own_unix_sockets_for_workers(spark: SparkSession) -> None:
    folder = Path(spark.conf.get("spark.python.unix.domain.socket.dir") or "")
    assert spark.conf.get("spark.python.unix.domain.socket.enabled") == "true"
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.full
def test_a_process_may_have_one_session_after_the_other() -> None:
    # A separate process, because the JVM uses the settings of the first session.
    program = """
from pyspark.sql import SparkSession
from spark_udfs.runtime.session import local_session

for _ in range(2):
    with local_session("local[1]") as spark:
        print(spark.sparkContext.parallelize([1, 2], 1).map(lambda item: item + 1).collect())
with SparkSession.builder.master("local[1]").getOrCreate() as spark:
    print(spark.range(2).toArrow().num_rows, spark.conf.get("spark.python.unix.domain.socket.enabled", "as it is"))
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert found.stdout.splitlines() == ["[2, 3]", "[2, 3]", "2 as it is"], found.stderr


@pytest.mark.long
@pytest.mark.full
def test_workers_are_stopped_before_spark(tmp_path: Path) -> None:
    # Quick workers would print part of a traceback. This daemon delays their end, so that the test is reliable.
    (tmp_path / "late_daemon.py").write_text("""
import os, time
from pathlib import Path
from pyspark import daemon

reported, worked = os.kill, daemon.worker

def tell_late(pid, signal_number):
    time.sleep(0.5)
    reported(pid, signal_number)

def work(*given):
    code = None
    try:
        code = worked(*given)
    finally:
        if code != 0:
            Path(__file__).with_name("lost").touch()
    return code

os.kill, daemon.worker = tell_late, work
daemon.manager()
""")
    program = """
from spark_udfs.runtime.session import local_session

with local_session("local[2]", {"spark.python.daemon.module": "late_daemon"}) as spark:
    print(spark.sparkContext.parallelize([1, 2], 2).map(lambda item: item + 1).collect())
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    found = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert found.stdout == "[2, 3]\n", found.stderr
    assert "incubator modules" not in found.stderr
    assert not (tmp_path / "lost").exists()


@pytest.mark.long
@pytest.mark.full
def test_a_driver_that_spark_submit_started_goes_on_behind_its_session(tmp_path: Path) -> None:
    # It is a child of the JVM, like the workers' daemon.
    program = tmp_path / "program.py"
    program.write_text("""
from spark_udfs.runtime.session import local_session

with local_session("local[1]") as spark:
    print(spark.sparkContext.parallelize([1, 2], 1).map(lambda item: item + 1).collect())
print("went on")
""")
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    found = subprocess.run([submit, program], env=environment, capture_output=True, text=True, check=False)
    assert found.stdout == "[2, 3]\nwent on\n", found.stderr
    assert found.returncode == 0


@pytest.mark.parametrize(
    ("folder", "master"),
    [("/tmp/" + "x" * 53, "local[2]"), ("/tmp/" + "\u00e9" * 27, "local[2]"), ("/tmp/x", "spark://host:7077")],
    ids=["too long", "too long in bytes", "workers elsewhere"],
)
def test_without_unix_sockets_spark_uses_its_default(folder: str, master: str) -> None:
    assert _sockets(Path(folder), master) == {}


@pytest.mark.parametrize("master", ["local[2]", "local[*]", "local-cluster[2,1,1024]"])
def test_the_longest_folder_still_makes_a_path_that_the_system_takes(master: str) -> None:
    folder = Path("/tmp/" + "x" * 52)
    assert _sockets(folder, master)["spark.python.unix.domain.socket.dir"] == str(folder)
    assert len(str(folder / ".00000000-0000-0000-0000-000000000000.sock")) == 100


def test_what_the_jvm_prints_goes_where_standard_error_was_at_its_start_but_for_javas_warning(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"WARNING: Using incubator modules: jdk.incubator.vector\nERROR: no memory\n")
    os.close(writer)
    jvm._pass_on(reader, os.open(tmp_path / "errors", os.O_WRONLY | os.O_CREAT))
    assert (tmp_path / "errors").read_text() == "ERROR: no memory\n"
    assert capfd.readouterr().err == ""
