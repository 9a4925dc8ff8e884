"""The code of README.md runs, and its tables are up to date."""

from __future__ import annotations

import gzip
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import pgdecode
from support import readme

pytest_plugins = ["support.spark_session"]

ROOT = Path(__file__).parents[2]
TEXT = readme.README.read_text()
SNIPPETS = readme.code_blocks(TEXT, "python")


@pytest.mark.parametrize(
    ("path", "marker"),
    [pytest.param(path, marker, id=marker) for path, parts in readme.GENERATED.items() for marker in parts],
)
def test_a_generated_part_is_up_to_date(path: Path, marker: str) -> None:
    assert readme.between(path.read_text(), marker) == readme.GENERATED[path][marker](), "run `make readme`"


@pytest.fixture(scope="module")
def namespace() -> dict[str, Any]:
    """Names that the snippets share, as if a reader pasted them one after the other."""
    return {}


@pytest.mark.parametrize("number", [i for i, code in enumerate(SNIPPETS) if "spark_udfs" not in code])
def test_a_snippet_runs(
    number: int, namespace: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    exec(compile(SNIPPETS[number], f"README.md snippet {number}", "exec"), namespace)
    printed = capsys.readouterr().out
    assert bool(printed) == ("print(" in SNIPPETS[number])


@pytest.mark.full
def test_the_spark_snippets_run(
    spark: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {}
    envelope, rows, changes, files = [code for code in SNIPPETS if "spark_udfs" in code]
    exec(compile(envelope, "README.md spark", "exec"), names)
    assert "relation" in capfd.readouterr().out
    exec(compile(rows, "README.md typed columns on spark", "exec"), names)
    shown = capfd.readouterr().out
    # As the server wrote them, see the first table.
    assert "SKU-00000|505.94|" in shown
    assert "avg(" in shown
    # The number of rows of this table in test_decoding's output.
    recorded = gzip.decompress((ROOT / "tests/data/16.shop.test_decoding.txt.gz").read_bytes()).decode()
    assert names["table"].count() == recorded.count("table public.products: ") > 0
    exec(compile(changes, "README.md changes on spark", "exec"), names)
    shown = capfd.readouterr().out
    recorded = gzip.decompress((ROOT / "tests/data/18.shop.test_decoding.txt.gz").read_bytes()).decode()
    for op in ("insert", "update"):
        counted = recorded.count(f"table public.orders: {op.upper()}: ")
        assert counted > 0
        assert re.search(rf"\| *{op}\| *{counted}\|", shown)
    exec(compile(files.replace('"shop', f'"{tmp_path}/shop'), "README.md files on spark", "exec"), names)
    assert re.search(rf"\| *update\| *{counted}\|", capfd.readouterr().out)
    assert sorted(path.name for path in (tmp_path / "shop").iterdir()) == ["public.orders", "public.products"]


def pgdecode_commands() -> list[str]:
    """Command lines of the shell section."""
    blocks = [block for block in readme.code_blocks(TEXT, "sh") if block.startswith("pgdecode ")]
    return [line for block in blocks for line in block.splitlines()]


@pytest.mark.parametrize("line", pgdecode_commands())
def test_a_command_line_runs(line: str, tmp_path: Path) -> None:
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    command = [sys.executable, "-m", *shlex.split(line)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout or "decode " in line


@pytest.mark.full
def test_the_main_command_decodes_and_shows(tmp_path: Path) -> None:
    line = readme.between(TEXT, "main command").splitlines()[1].split("&&")[-1].strip()
    words = shlex.split(line)
    assert words[0] == ".venv/bin/pgdecode"
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    done = subprocess.run([sys.executable, "-m", "pgdecode", *words[1:]], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "products" in done.stdout
    decoded = pq.read_table(tmp_path / "decoded").sort_by("seq")
    landed = pq.read_table(ROOT / "tests/data/16.shop.v1.parquet")["data"]
    assert decoded.drop_columns("seq").to_batches()[0].to_pylist() == pgdecode.decode_messages(landed).to_pylist()
