"""Joined Parquet files: pyarrow's own writer, with the same row groups, is the oracle."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgdecode.arrow.parquet_joiner import ParquetJoiner

N = 1000
WIDE = pa.table({f"column {number}": pa.array(range(N), pa.int64()) for number in range(40)})
NESTED = pa.table(
    {
        "text": pa.array([f"value {number % 7}" for number in range(N)]),
        "flag": pa.array([None, True, False, True] * (N // 4)),
        "map": pa.array([[("a", "1"), ("b", None)], None] * (N // 2), pa.map_(pa.string(), pa.string())),
        "list": pa.array([[1, 2], []] * (N // 2), pa.list_(pa.int32())),
        "struct": pa.array([{"x": 1.5}, {"x": None}] * (N // 2), pa.struct([("x", pa.float64())])),
        "decimal": pa.array([None] * N, pa.decimal128(38, 4)),
        "time": pa.array(range(N), pa.timestamp("us", "UTC")),
    },
    schema=None,
).replace_schema_metadata({"key": "value"})


def _written(tables: list[pa.Table], schema: pa.Schema) -> bytes:
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
        for table in tables:
            writer.write_table(table, row_group_size=max(len(table), 1))
    return sink.getvalue()


@pytest.mark.parametrize("table", [WIDE, NESTED], ids=["wide", "nested"])
@pytest.mark.parametrize("sizes", [(1000,), (1, 999), (300, 300, 300), (7,) * 15], ids=str)
def test_joined_files_have_the_bytes_that_one_writer_writes(table: pa.Table, sizes: tuple[int, ...]) -> None:
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    parts = [table.slice(start, size) for start, size in zip(starts, sizes, strict=True)]
    joined = io.BytesIO()
    joiner = ParquetJoiner(joined)
    for part in parts:
        joiner.add(memoryview(_written([part], table.schema)))
    joiner.close()
    assert joined.getvalue() == _written(parts, table.schema)
    assert pq.read_table(io.BytesIO(joined.getvalue())).equals(pa.concat_tables(parts))


def test_a_file_without_row_groups_keeps_its_schema() -> None:
    joined = io.BytesIO()
    joiner = ParquetJoiner(joined)
    assert joiner.is_empty
    joiner.add(memoryview(_written([], NESTED.schema)))
    joiner.close()
    assert joined.getvalue() == _written([], NESTED.schema)
    assert not joiner.is_empty
