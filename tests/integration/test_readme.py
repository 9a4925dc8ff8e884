"""Every command and snippet of README.md runs alone, and generated parts of documents are up to date."""

from __future__ import annotations

import gzip
import re
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pgdecode.capture import RequestError, demo
from support import captures
from support.docs import generated, markdown

pytest_plugins = ["support.spark_session"]

ROOT = Path(__file__).parents[2]
TEXT = markdown.README.read_text()
PYTHON, SPARK = markdown.code_blocks(TEXT, "python")
MAIN, DEMO, ON_SPARK, TEST, WHEEL, SHELL, SYNC, CAPTURE = markdown.code_blocks(TEXT, "sh")
SHOWN = markdown.code_blocks(TEXT, "text")


@pytest.mark.parametrize(
    ("path", "marker"),
    [pytest.param(path, marker, id=marker) for path, parts in generated.GENERATED.items() for marker in parts],
)
def test_a_generated_part_is_up_to_date(path: Path, marker: str) -> None:
    assert markdown.between(path.read_text(), marker) == generated.GENERATED[path][marker](), "run `make readme`"


@pytest.mark.parametrize("path", generated.FILES, ids=lambda path: path.name)
def test_a_generated_file_is_up_to_date(path: Path) -> None:
    assert path.read_text() == generated.FILES[path](), "run `make readme`"


def test_the_readme_can_be_read_in_five_minutes() -> None:
    assert len(TEXT.splitlines()) < 200
    for marker, code in (("main command", MAIN), ("test command", TEST)):
        assert markdown.code_blocks(markdown.between(TEXT, marker), "sh") == [code]
    assert f"\n{TEST}" in (ROOT / ".ci" / "run").read_text()


def test_links_of_the_readme_are_absolute_and_defined() -> None:
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", TEXT, flags=re.DOTALL)
    labels = {label.lower() for label in re.findall(r"\[([^\]\[]+)\](?!\[|\(|: https)", prose)}
    defined = re.findall(r"^\[([^\]]+)\]: https://", TEXT, re.MULTILINE)
    assert labels == set(defined)


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with the captures where a clone has them."""
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def of_binary_capture(code: str) -> str:
    """Put a folder of `pgdecode capture --binary` and its columns in place of those of a snippet."""
    changed = code.replace("16.shop.v1.parquet", "capture").replace('"placed"', '"ordered_at"')
    return changed.replace('"state", "total"', '"status", "quantity"').replace('"total"', '"status"')


def recorded_operations(capture: str, table: str) -> dict[str, int]:
    """How many operations of a table test_decoding printed on the server."""
    text = gzip.decompress((captures.DATA / f"{capture}.test_decoding.txt.gz").read_bytes()).decode()
    return Counter(operation.lower() for operation in re.findall(rf"table {re.escape(table)}: (\w+): ", text))


def test_the_python_snippet_runs_alone(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    operations = recorded_operations("16.shop", "public.orders")
    for _ in range(2):
        exec(compile(PYTHON, "README.md", "exec"), {})
        printed = capsys.readouterr().out
        assert f"{sum(operations.values())} changes leave {operations['insert']} orders" in printed
        assert printed.splitlines() == re.findall(r"^print.*  # (.*)$", PYTHON, re.MULTILINE)


@pytest.mark.full
def test_the_spark_snippet_runs_alone(spark: Any, clone: Path, capfd: pytest.CaptureFixture[str]) -> None:
    exec(compile(SPARK, "README.md", "exec"), {})
    shown = capfd.readouterr().out
    for operation, n in recorded_operations("16.shop", "public.orders").items():
        assert re.search(rf"\| *{operation}\| *{n}\|", shown)
    assert "639.51" in shown


def command_lines(block: str) -> list[str]:
    """The commands of a block, each on one line."""
    return re.sub(r" *\\\n *", " ", block).splitlines()


def run(line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *shlex.split(line)], capture_output=True, text=True)


def unpadded(text: str) -> str:
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


@pytest.mark.full
def test_the_commands_of_the_shell_run_alone_and_again(clone: Path) -> None:
    for line in 2 * command_lines(SHELL):
        done = run(line)
        assert done.returncode == 0, done.stderr
        assert done.stdout or "decode " in line
        if "cat " in line:
            assert unpadded(done.stdout) == SHOWN[2]


def decoded_by(block: str) -> subprocess.CompletedProcess[str]:
    """Run the last command of a line that first installs the package."""
    line = command_lines(block)[0].split("&&")[-1].strip()
    assert line.startswith(".venv/bin/pgdecode ")
    return run(line.removeprefix(".venv/bin/"))


def check_tables(folder: str, done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stderr
    for table, value in (("orders", "639.51"), ("products", "SKU-00001")):
        rows = pq.read_table(f"{folder}/public.{table}")
        counted = {item["values"]: item["counts"] for item in rows["_op"].value_counts().to_pylist()}
        assert counted == recorded_operations("16.shop", f"public.{table}")
        assert value in done.stdout


def test_the_main_command_decodes_and_shows(clone: Path) -> None:
    for _ in range(2):
        done = decoded_by(MAIN)
        assert unpadded(done.stdout).startswith(SHOWN[0])
        check_tables("shop", done)


def test_the_python_snippet_runs_on_a_binary_capture(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(of_binary_capture(PYTHON), "README.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == ["string", "timestamp[us, tz=UTC]", "7 changes leave 2 orders"]


@pytest.mark.full
def test_the_spark_snippet_runs_on_a_binary_capture(spark: Any, clone: Path, capfd: pytest.CaptureFixture[str]) -> None:
    exec(compile(of_binary_capture(SPARK), "README.md", "exec"), {})
    assert re.search(r"\| *1\| *paid\| *1\|", capfd.readouterr().out)


@pytest.mark.full
def test_the_same_command_on_spark_decodes_and_shows(clone: Path) -> None:
    check_tables("shop-spark", decoded_by(ON_SPARK))


@pytest.fixture
def programs() -> Path:
    try:
        return demo.programs()
    except RequestError as error:
        pytest.skip(str(error))


@pytest.mark.full
def test_the_demonstration_prints_what_is_shown(programs: Path, clone: Path) -> None:
    line = DEMO.split("&&")[-1].strip()
    done = run(line.removeprefix(".venv/bin/"))
    assert done.returncode == 0, done.stderr
    assert set(SHOWN[1].splitlines()) <= set(done.stdout.splitlines())


def pasted(block: str, dsn: str) -> None:
    """Run a block of commands as a shell does, for a server. Each line must succeed."""
    text = re.sub(r'^DSN=".*"$', f'DSN="{dsn}"', block, flags=re.MULTILINE)
    command = f'pgdecode() {{ {shlex.quote(sys.executable)} -m pgdecode "$@"; }}\nset -e\n{text}'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.full
def test_the_commands_for_a_server_run_alone_and_again(programs: Path, clone: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    with demo.server() as dsn:
        demo.open_shop(dsn)
        for block in (SYNC, CAPTURE):
            pasted(block, dsn)
        demo.run_shop(dsn)
        for block in (CAPTURE, SYNC):
            pasted(block, dsn)
        expected = {name: len(demo.table_rows(dsn, name)) for name in demo.TABLES}
    with duckdb.connect("shop.duckdb", read_only=True) as target:
        synced = {name: target.sql(f"SELECT count(*) FROM {name}").fetchone()[0] for name in demo.TABLES}
    applied = {name: pq.read_table(f"tables/{name}").num_rows for name in demo.TABLES}
    assert synced == applied == expected
    operations = pq.read_table("changes")["op"].to_pylist()
    assert Counter(operations) == {"truncate": 3, "insert": 9, "update": 6, "delete": 1}  # demo.BEFORE and DAY
