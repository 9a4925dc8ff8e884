"""The code of docs/runs.md runs."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgdecode import ChangeDecoder
from support import captures
from support.compare import rows_of
from support.data_sets import local, ordered
from support.docs import markdown
from support.shell import Shell

TEXT = (markdown.ROOT / "docs" / "runs.md").read_text()
SHELL = markdown.code_blocks(TEXT, "sh")
PYTHON = markdown.code_blocks(TEXT, "python")[0]


@pytest.fixture
def whole() -> pa.Table:
    """A recorded capture."""
    return pq.read_table(captures.DATA / "16.shop.v1.parquet")


def day(whole: pa.Table, number: int) -> Path:
    """Write one of three days to raw/."""
    n = len(whole) // 3
    path = Path(f"raw/day={number}/part.parquet")
    path.parent.mkdir(parents=True)
    pq.write_table(whole.slice((number - 1) * n, n if number < 3 else None), path)
    return path


@pytest.mark.parametrize("number", range(len(SHELL)))
def test_every_day_in_the_shell(run: Shell, whole: pa.Table, number: int) -> None:
    lines = markdown.commands(SHELL[number])
    for at, line in enumerate([*lines, lines[-1]], 1):
        if at <= 3:
            day(whole, at)
        program, *words = shlex.split(line)
        assert program == "pgdecode"
        assert run(*words).code == 0
    runs = local(Path("out")).checked()
    assert len(runs) == 3
    options = words[words.index("out") + 1 :]
    assert run("decode", "raw", "one", *options).code == 0
    for below in ["public.orders", "public.customers"] if "--table" in options else [None]:
        assert ordered(local(Path("out")).rows(below)) == ordered(local(Path("one")).rows(below))


def test_every_day_in_python(run: Shell, whole: pa.Table) -> None:
    names: dict[str, Any] = {}
    exec(compile(PYTHON, "docs/runs.md", "exec"), names)
    out = [Path(f"{number}.parquet") for number in (1, 2, 3)]
    for number, path in enumerate(out, 1):
        names["decode_day"](day(whole, number), path, Path("state"))
    found = [pq.read_table(path) for path in out]
    expected = ChangeDecoder().decode(whole["data"], whole["seq"])
    assert rows_of(pa.concat_tables(found)) == rows_of(pa.Table.from_batches([expected]))
