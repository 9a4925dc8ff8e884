"""Writes payload files, also such as no writer makes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pgdecode.arrow.thrift import Struct, StructReader, struct_bytes

# Fields of RowGroup, and of ColumnMetaData.
N_ROWS = 3
PHYSICAL_TYPE, N_VALUES, DICTIONARY_OFFSET = 1, 5, 11


def written(path: Path, payloads: Sequence[bytes | None], *, rows_per_group: int = 1000, **columns: Any) -> Path:
    """Write a Parquet file with a column `data` and others."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"data": pa.array(payloads, pa.binary()), **columns})
    pq.write_table(table, path, row_group_size=rows_per_group)
    return path


def with_footer(path: Path, change: Callable[[Struct], object]) -> Path:
    """Change the metadata in the footer of a Parquet file."""
    content = path.read_bytes()
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    footer = StructReader(content[start:-8]).struct()
    change(footer)
    written = struct_bytes(footer)
    path.write_bytes(content[:start] + written + len(written).to_bytes(4, "little") + content[-4:])
    return path
