"""A server for the tests of this folder, without which they are skipped; targets of all formats."""

from __future__ import annotations

from pathlib import Path

import pytest
from lake.lakes import FORMATS, Lake, new_lake

from servers.database import Database, database, postgres
from support.tiers import full

__all__ = ["Database", "database", "postgres"]


# The quick tier has the formats that need no other library. Each of the others has quick tests of its own.
@pytest.fixture(params=[name if name in ("memory", "parquet") else full(name) for name in FORMATS])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    """An empty place for tables, of each format."""
    return new_lake(request.param, tmp_path)
