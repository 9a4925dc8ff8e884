"""The check of Parquet footers for what ends the process in pyarrow: nothing that writers write is refused."""

from __future__ import annotations

import random
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgdecode._native.arrow.parquet_footer import check_footer
from pgdecode.arrow.thrift import COLUMNS, I64, META_DATA, ROW_GROUPS, STRUCT, StructReader, Value, struct_bytes
from support import captures

SIZE_STATISTICS = 16
UNENCODED, REPETITION, DEFINITION = 1, 2, 3
TABLE = pa.table(
    {
        "text": ["a", None],
        "number": pa.array([1, 2], pa.int64()),
        "list": pa.array([[1], None], pa.list_(pa.int32())),
        "nested": pa.array([{"x": [{"y": ["a"]}]}, None]),
        "map": pa.array([[("a", 1.5)], []], pa.map_(pa.string(), pa.float64())),
        "required": pa.array([b"x", b"y"], pa.binary()),
    }
)


def footer_of(path: Path) -> bytes:
    content = path.read_bytes()
    return content[-8 - int.from_bytes(content[-8:-4], "little") : -8]


@pytest.mark.parametrize("version", ["1.0", "2.6"])
@pytest.mark.parametrize("groups", [1, 2, 20])
def test_footers_of_pyarrow_pass(tmp_path: Path, groups: int, version: str) -> None:
    path = tmp_path / "x.parquet"
    with pq.ParquetWriter(path, TABLE.schema, version=version) as writer:
        for _ in range(groups):
            writer.write_table(TABLE)
    check_footer(footer_of(path))


def test_footers_of_captures_pass() -> None:
    for path in captures.DATA.glob("*.parquet"):
        check_footer(footer_of(path))


def test_an_empty_schema_passes(tmp_path: Path) -> None:
    pq.write_table(pa.table({}), tmp_path / "x.parquet")
    check_footer(footer_of(tmp_path / "x.parquet"))


@pytest.mark.parametrize(
    ("column", "field", "value", "message"),
    [
        (0, DEFINITION, (I64, [1, 1, 1]), "a histogram of levels does not fit its column"),
        (0, REPETITION, (I64, [1, 1]), "a histogram of levels does not fit its column"),
        (2, DEFINITION, (I64, [1]), "a histogram of levels does not fit its column"),
        (1, UNENCODED, 5, "a column that is not of strings has a size of strings"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_where_pyarrow_ends_the_process(
    tmp_path: Path, column: int, field: int, value: object, message: str
) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(TABLE, path)
    footer = footer_of(path)
    plain = StructReader(footer).struct()
    chunk = plain[ROW_GROUPS].value[1][0][COLUMNS].value[1][column][META_DATA].value
    sizes = dict(chunk[SIZE_STATISTICS].value) if SIZE_STATISTICS in chunk else {}
    sizes[field] = Value(I64 if field == UNENCODED else 9, value)
    chunk[SIZE_STATISTICS] = Value(STRUCT, dict(sorted(sizes.items())))
    damaged = bytes(struct_bytes(plain))
    with pytest.raises(ValueError, match=message):
        check_footer(damaged)
    content = path.read_bytes()[: -8 - len(footer)] + damaged + len(damaged).to_bytes(4, "little") + b"PAR1"
    path.write_bytes(content)
    code = f"import pyarrow.parquet as pq; pq.read_metadata({str(path)!r}).row_group(0).column({column})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode != 0


def test_no_damage_is_read_out_of_bounds() -> None:
    rng = random.Random(7)
    footer = footer_of(captures.DATA / "18.types.v1.parquet")
    for end in range(len(footer)):
        with pytest.raises(ValueError, match="ends within"):
            check_footer(footer[:end])
    for _ in range(3000):
        damaged = bytearray(footer)
        for _ in range(rng.choice([1, 2, 10])):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        with suppress(ValueError):
            check_footer(bytes(damaged))
