"""Columns of nulls equal those of pyarrow, and use memory only when they are read."""

from __future__ import annotations

import mmap
import pickle
from typing import Any

import pyarrow as pa
import pytest

from pgdecode.arrow.null_arrays import null_array
from pgdecode.envelope.schema import ENVELOPE_TYPES
from pgdecode.types.pgtypes import TYPES
from support.each import each

MANY = 100_000
COMMON = sorted({*(item.arrow(-1) for item in TYPES), *ENVELOPE_TYPES.values()}, key=str)
SELDOM = [
    pa.map_(pa.string(), pa.string()),
    pa.struct([("a", pa.int32()), ("b", pa.struct([("c", pa.decimal256(76, 1)), ("d", pa.list_(pa.string()))]))]),
    pa.struct([]),
    pa.null(),
    pa.large_string(),
    pa.binary(40),
    pa.dictionary(pa.int8(), pa.string()),
    pa.list_(pa.int8(), 3),
]


@pytest.mark.parametrize("n", [0, 1, MANY])
@each("type", [*COMMON, *SELDOM], ids=str)
def test_a_column_of_nulls_equals_that_of_pyarrow(type: pa.DataType, n: int) -> None:
    array = null_array(n, type)
    array.validate(full=True)
    assert array.type == type
    assert array.null_count == n
    assert array.equals(pa.nulls(n, type))


def test_columns_of_many_types_share_their_zeros() -> None:
    types = [type for type in COMMON if not pa.types.is_nested(type)]
    batch = pa.RecordBatch.from_arrays([null_array(MANY, type) for type in types], names=[str(type) for type in types])
    batch.validate(full=True)
    assert batch.schema.types == types
    assert len({buffer.address for column in batch.columns for buffer in column.buffers()}) == 1


def test_values_under_nulls_are_zeros() -> None:
    values = null_array(MANY, pa.decimal128(38, 0)).buffers()[1]
    assert values.to_pybytes() == bytes(len(values))
    assert not values.is_mutable


def test_columns_of_nulls_can_be_written_and_read() -> None:
    columns = [null_array(MANY, type) for type in (pa.int64(), pa.string(), pa.bool_())]
    batch = pa.RecordBatch.from_arrays(columns, names=list("abc"))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch.slice(1, MANY - 2))
    with pa.ipc.open_stream(sink.getvalue()) as reader:
        assert reader.read_next_batch().equals(batch.slice(1, MANY - 2))


def test_nulls_of_many_rows_use_no_memory_of_the_pool() -> None:
    before = pa.total_allocated_bytes()
    array = null_array(10_000_000, pa.int64())
    assert pa.total_allocated_bytes() - before < 1000
    assert array.null_count == 10_000_000


@pytest.mark.parametrize("type", [pa.int64(), pa.string(), pa.list_(pa.int32())], ids=str)
@pytest.mark.parametrize(("n", "is_kept"), [(3, True), (10_000, False)])
def test_a_short_column_after_a_long_one_is_sent_without_the_rest_of_the_zeros(
    type: pa.DataType, n: int, is_kept: bool
) -> None:
    long = null_array(1_000_000, pa.int64())
    column = null_array(n, type, is_kept=is_kept)
    assert len(long) == 1_000_000
    sink = pa.BufferOutputStream()
    batch = pa.RecordBatch.from_arrays([column], ["x"])
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write(batch)
    assert sink.tell() < 100 * n + 2000
    assert len(pickle.dumps(column)) < 100 * n + 2000
    assert column.null_count == len(column) == n


def test_without_address_space_nulls_use_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refuse)
    monkeypatch.setattr("pgdecode.arrow.null_arrays._last", [])
    assert null_array(MANY, pa.string()).equals(pa.nulls(MANY, pa.string()))
