"""The process ends at every call that changes the folder or confirms, one after the other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import Database

from pgdecode import ChangeDecoder


@pytest.mark.full
def test_a_crash_at_any_call_loses_and_repeats_nothing(database: Database, tmp_path: Path) -> None:
    database.create_slot()
    script = Path(__file__).with_name("crashes.py")
    command = [sys.executable, str(script), database.dsn, str(tmp_path / "out"), database.slot]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    crashes, n_rows = map(int, done.stdout.split())
    assert crashes > 30, done.stdout
    paths = sorted((tmp_path / "out").glob("*.parquet"))
    found = pa.concat_tables([pq.read_table(path) for path in paths])
    first = found["seq"][0].as_py()
    assert found["seq"].to_pylist() == list(range(first, first + len(found)))
    decoder = ChangeDecoder(catalog=None, start="anywhere")
    ids = [int(dict(change["new"])["id"]) for change in decoder.decode(found["data"]).to_pylist()]
    assert ids == list(range(n_rows - len(ids), n_rows))
    # Old files were deleted meanwhile.
    assert 5 < len(ids) < n_rows
    assert not [path for path in (tmp_path / "out").iterdir() if "partial" in path.name]
