"""`apply` to Parquet: folders have the rows that a target in memory has, however payloads are cut."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lake.memory_target import MemoryTarget
from lake.test_apply_captures import apply_known, payload_cuts, text_types, write_payloads
from lake.test_file_table import plain_rows, read_folder

from pgdecode.lake import apply_run, file_writer
from pgdecode.lake.targets import lake_target
from support import captures
from support.data_sets import local
from support.oracles.expected_changes import TEXT

QUICK = "18.shop.v1"


@pytest.mark.full
@pytest.mark.parametrize("name", TEXT)
def test_folders_have_the_rows_of_a_target_in_memory(
    name: str, rng: random.Random, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply_run, "_NET_BYTES", 20_000)
    monkeypatch.setattr(apply_run, "_COMMIT_BYTES", 200_000)
    monkeypatch.setattr(file_writer, "GROUP_BYTES", 4000)
    column, memory, raw, lake = captures.capture(name).column, MemoryTarget(), tmp_path / "raw", tmp_path / "lake"
    # Python has no dates after the year 9999.
    types = text_types(name) if name.split(".")[1] in ("types", "txns") else None
    options = {"workers": 1, "unrepresentable": "null", "types": types}
    for start, end in pairwise(payload_cuts(rng, len(column))):
        write_payloads(raw, column, start, end)
        target = lake_target(f"parquet:{lake}")
        target.file_bytes = 20_000  # type: ignore[attr-defined]
        assert apply_known(raw, target, **options) == apply_known(raw, memory, **options)  # type: ignore[arg-type]
        assert not memory.committed or local(lake).checked()
    for table, (schema, rows) in memory.committed.items():
        assert plain_rows(read_folder(lake / table)) == plain_rows(rows), table
        for path in (lake / table).iterdir():
            assert pq.read_schema(path).remove_metadata().equals(schema.remove_metadata())
        if name == QUICK:
            files = str(lake / table / "*.parquet")
            others = [
                polars.read_parquet(files).to_arrow(),
                duckdb.sql(f"FROM read_parquet('{files}')").to_arrow_table(),
            ]
            for other in others:
                as_known = pa.table([other[item.name].cast(item.type) for item in schema], schema=schema)
                assert plain_rows(as_known.to_pylist()) == plain_rows(rows), table
