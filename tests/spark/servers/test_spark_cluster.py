"""A standalone cluster: executors whose Python is not the driver's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pyspark
import pytest

from support.spark_servers import Cluster, standalone_cluster

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "tests/data/16.shop.v1.parquet"
PACKAGES = Path(pq.__file__).parents[2]

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    # Executors import only what their Python has, also where the tests run with a PYTHONPATH.
    with standalone_cluster(n_workers=2, environment={"PYTHONPATH": ""}) as found:
        yield found


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a Python that has pyarrow alone ("bare"), and one that has also the package as from a wheel."""
    folder = tmp_path_factory.mktemp("environments")
    for name in ("bare", "whole", "other"):
        venv.create(folder / name, with_pip=False, symlinks=True)
        packages = next((folder / name).glob("lib/python*/site-packages"))
        for found in PACKAGES.glob("pyarrow*"):
            (packages / found.name).symlink_to(found)
        if name != "bare":
            copied(packages)
    other = next((folder / "other").glob("lib/python*/site-packages")) / "pgdecode" / "__init__.py"
    other.write_text(other.read_text() + '\n__version__ = "0.0.1"\n')
    return folder


def copied(packages: Path) -> None:
    """Copy what a wheel has: modules and compiled modules."""
    for name in ("pgdecode", "spark_udfs"):
        for file in (ROOT / name).rglob("*"):
            if file.suffix in (".py", ".so"):
                target = packages / file.relative_to(ROOT)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(file.read_bytes())


def decode(cluster: Cluster, target: Path, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pgdecode", "decode", str(SOURCE), str(target), "--table", "public.orders"]
    command += ["--engine", "spark", "--master", cluster.master, "--conf", "spark.driver.host=127.0.0.1", *options]
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", **variables}
    environment.pop("PYTHONPATH", None)
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def rows_of(target: Path) -> list[object]:
    found: list[object] = pq.read_table(target, columns=["id", "_op", "_position"]).to_pylist()
    return found


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    target = tmp_path_factory.mktemp("local") / "out.parquet"
    command = [sys.executable, "-m", "pgdecode", "decode", str(SOURCE), str(target), "--table", "public.orders"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return rows_of(target)


def test_executors_need_the_package_alone(
    cluster: Cluster, environments: Path, expected: list[object], tmp_path: Path
) -> None:
    python = environments / "whole" / "bin" / "python"
    done = decode(cluster, tmp_path / "out", "--conf", f"spark.pyspark.python={python}")
    assert done.returncode == 0, done.stderr
    assert rows_of(tmp_path / "out") == expected


def test_an_environment_is_sent_with_archives(
    cluster: Cluster, environments: Path, expected: list[object], tmp_path: Path
) -> None:
    venv_pack = pytest.importorskip("venv_pack")
    packages = next((environments / "whole").glob("lib/python*/site-packages"))
    # Links to packages would not be packed.
    for link in packages.glob("pyarrow*"):
        target = link.resolve()
        link.unlink()
        subprocess.run(["cp", "-r", str(target), str(link)], check=True)
    archive = tmp_path / "environment.tar.gz"
    venv_pack.pack(prefix=str(environments / "whole"), output=str(archive), compress_level=1)
    options = [
        "--conf",
        f"spark.archives={archive}#environment",
        "--conf",
        "spark.pyspark.python=environment/bin/python",
    ]
    done = decode(cluster, tmp_path / "out", *options)
    assert done.returncode == 0, done.stderr
    assert rows_of(tmp_path / "out") == expected


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param("bare", "cannot import pgdecode: No module named 'pgdecode'", id="missing"),
        pytest.param("other", "has pgdecode 0.0.1", id="another version"),
    ],
)
def test_a_python_without_the_package_is_named_before_the_job(
    cluster: Cluster, environments: Path, tmp_path: Path, name: str, text: str
) -> None:
    python = environments / name / "bin" / "python"
    done = decode(cluster, tmp_path / "out", "--conf", f"spark.pyspark.python={python}")
    assert done.returncode != 0
    line = done.stderr.strip().splitlines()[-1]
    assert f"({python}) {text}" in line
    assert "PYSPARK_PYTHON=/path/to/python before the driver starts" in line
    assert not (tmp_path / "out").exists()


PROGRAM = """
import sys
from pyspark.sql import SparkSession
from spark_udfs import check_executors, decode_files, parse_pgoutput
from spark_udfs.jobs.decode_files import JobFailed

spark = SparkSession.builder.getOrCreate()
try:
    decode_files(spark, *sys.argv[1:], what="changes")
except JobFailed as error:
    print("failed:", error)
else:
    print("done on", spark.sparkContext.master)
"""


def test_a_job_in_a_session_of_the_user_names_host_and_python_too(
    cluster: Cluster, environments: Path, tmp_path: Path
) -> None:
    done = submitted(cluster, tmp_path, environments / "bare" / "bin" / "python")
    python = environments / "bare" / "bin" / "python"
    assert done.stdout, done.stderr
    # spark-submit also prints pyspark's warnings there.
    last = done.stdout.splitlines()[-1]
    assert last.startswith("failed: ")
    assert f"({python}) cannot import pgdecode: No module named 'pgdecode'" in last


def test_the_master_of_spark_submit_is_kept(cluster: Cluster, environments: Path, tmp_path: Path) -> None:
    python = environments / "whole" / "bin" / "python"
    done = submitted(cluster, tmp_path, python)
    assert done.stdout.splitlines()[-1:] == [f"done on {cluster.master}"], done.stderr
    command = ["-m", "pgdecode", "decode", SOURCE, tmp_path / "cli", "--changes", "--engine", "spark"]
    program = tmp_path / "command.py"
    program.write_text(
        "import sys\nfrom pgdecode.cli.main import main\nfrom spark_udfs.runtime import session\n"
        "start = session._start\n"
        "def noted(*given):\n    spark = start(*given)\n    print(spark.sparkContext.master)\n    return spark\n"
        f"session._start = noted\nsys.argv[1:] = {[str(word) for word in command[2:]]!r}\nmain()\n"
    )
    done = submitted(cluster, tmp_path, python, program)
    assert cluster.master in done.stdout.splitlines(), done.stderr


def submitted(
    cluster: Cluster, folder: Path, python: Path, program: Path | None = None
) -> subprocess.CompletedProcess[str]:
    if program is None:
        program = folder / "program.py"
        program.write_text(PROGRAM)
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    environment = {**os.environ, "PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": sys.executable}
    environment |= {"PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [submit, "--master", cluster.master, "--conf", "spark.ui.enabled=false", program, SOURCE, folder / "out"]
    return subprocess.run(
        [str(word) for word in command], env=environment, capture_output=True, text=True, check=False, cwd=folder
    )


def test_without_pyspark_python_a_local_session_uses_the_python_of_the_driver(tmp_path: Path) -> None:
    # As `.venv/bin/python script.py`, where `python3` on the PATH is another Python, here none.
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.replace("builder.", "builder.master('local[1]')."))
    (tmp_path / "bin").mkdir()
    for name in ("bash", "sh", "dirname", "readlink", "uname", "java", "ps", "rm", "nice", "env", "cat", "id"):
        found = shutil.which(name)
        if found:
            (tmp_path / "bin" / name).symlink_to(found)
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    environment |= {"PATH": str(tmp_path / "bin"), "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, str(program), str(SOURCE), str(tmp_path / "out")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "done on local[1]\n", done.stderr
