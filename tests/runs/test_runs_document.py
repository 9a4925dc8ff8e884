"""The code of docs/runs.md runs."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgdecode import ChangeDecoder
from support import captures, clone
from support.compare import rows_of
from support.docs import markdown
from support.shell import Shell

TEXT = clone.path_of("docs/runs.md").read_text()
SHELL = markdown.code_blocks(TEXT, "sh")
PYTHON = markdown.code_blocks(TEXT, "python")[0]


@pytest.fixture
def whole() -> pa.Table:
    """A recorded capture as three days in raw/."""
    payloads = pq.read_table(captures.DATA / "16.shop.v1.parquet")
    n = len(payloads) // 3
    for day, start in enumerate((0, n, 2 * n), 1):
        Path(f"raw/day={day}").mkdir(parents=True)
        pq.write_table(payloads.slice(start, n if day < 3 else None), f"raw/day={day}/part.parquet")
    return payloads


@pytest.mark.parametrize("number", range(len(SHELL)))
def test_every_day_in_the_shell(run: Shell, whole: pa.Table, number: int) -> None:
    for line in SHELL[number].splitlines():
        program, *words = shlex.split(line)
        if program == "mkdir":
            Path(*words).mkdir()
        else:
            assert program == "pgdecode"
            assert run(*words).code == 0
    decoder = ChangeDecoder()
    if "--changes" in SHELL[number]:
        expected = decoder.decode(whole["data"], whole["seq"])
        found = [pq.read_table(f"out/day={day}/changes.parquet", partitioning=None) for day in (1, 2, 3)]
    else:
        expected = decoder.table(whole["data"], "public.orders", whole["seq"])
        found = [pq.read_table(f"orders-{day}.parquet") for day in (1, 2, 3)]
    assert rows_of(pa.concat_tables(found)) == rows_of(pa.Table.from_batches([expected]))


def test_every_day_in_python(run: Shell, whole: pa.Table) -> None:
    names: dict[str, Any] = {}
    exec(compile(PYTHON, "docs/runs.md", "exec"), names)
    out = [Path(f"out/day={day}") for day in (1, 2, 3)]
    for day, folder in enumerate(out):
        names["decode_day"](f"raw/day={day + 1}/part.parquet", folder, out[day - 1] if day else None)
    found = [pq.read_table(folder / "changes.parquet", partitioning=None) for folder in out]
    expected = ChangeDecoder().decode(whole["data"], whole["seq"])
    assert rows_of(pa.concat_tables(found)) == rows_of(pa.Table.from_batches([expected]))
