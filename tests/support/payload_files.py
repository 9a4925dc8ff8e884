"""Writes payload files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


def written(path: Path, payloads: Sequence[bytes | None], *, rows_per_group: int = 1000, **columns: Any) -> Path:
    """Write a Parquet file with a column `data` and others."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"data": pa.array(payloads, pa.binary()), **columns})
    pq.write_table(table, path, row_group_size=rows_per_group)
    return path
