"""Columns of integers in native code."""

from __future__ import annotations

import random
from array import array

import pyarrow as pa
import pytest

from pgdecode._native.arrow.int64_kernels import ChunkedInt64, counted, descent, grouped


def test_numbers_are_counted_from_the_first_one() -> None:
    assert memoryview(counted(7, 3)).cast("B").cast("q").tolist() == [7, 8, 9]
    assert counted(7, 0).size == 0


@pytest.mark.parametrize("n", [0, 1, 50])
def test_places_are_grouped_and_indexes_without_a_group_are_passed_over(rng: random.Random, n: int) -> None:
    indexes = [rng.randrange(-2, 60) for _ in range(rng.randrange(500))]
    groups = [rng.randrange(-1, index + 1) for index in range(n)]
    found, buffer = grouped(array("i", indexes), array("i", groups))
    places = memoryview(buffer).cast("B").cast("q").tolist()
    group_of = [groups[item] if 0 <= item < n else -1 for item in indexes]
    assert [group for group, _, _ in found] == list(dict.fromkeys(group for group in group_of if group >= 0))
    for group, start, end in found:
        assert places[start:end] == [place for place, item in enumerate(group_of) if item == group]
    assert len(places) == sum(group >= 0 for group in group_of)


def test_a_group_past_the_last_index_is_an_index_error() -> None:
    with pytest.raises(IndexError, match="no such group"):
        grouped(array("i", [0, 1]), array("i", [0, 2]))


@pytest.mark.parametrize(
    ("values", "place"),
    [
        ([], -1),
        ([5], -1),
        ([1, 2, 9], -1),
        ([1, 1, 2], 1),
        ([1, 5, 4, 3], 2),
        ([2**63 - 1, -(2**63)], 1),
        (list(range(1000)), -1),
        ([*range(256), 255, 3], 256),
        ([*range(257), 256, 3], 257),
        ([*range(700), 0], 700),
    ],
)
def test_the_first_value_that_does_not_ascend_is_found(values: list[int], place: int) -> None:
    assert descent(array("q", values)) == place


@pytest.mark.parametrize("lengths", [[5], [3, 0, 4], [0, 1, 200, 2, 0]])
def test_rows_are_taken_from_columns_that_follow_each_other(rng: random.Random, lengths: list[int]) -> None:
    values = [[rng.randrange(2**63) for _ in range(n)] for n in lengths]
    columns = [pa.array([7, *column, 8], pa.int64()).slice(1, len(column)) for column in values]
    whole = [item for column in values for item in column]
    rows = [rng.randrange(-1, len(whole)) for _ in range(300)]
    found = memoryview(ChunkedInt64(columns).taken(array("q", rows))).cast("B").cast("q").tolist()
    assert found == [-1 if row < 0 else whole[row] for row in rows]


def test_a_row_past_the_last_column_is_an_index_error() -> None:
    columns = [pa.array([1, 2], pa.int64()), pa.array([3], pa.int64())]
    with pytest.raises(IndexError, match="no such row"):
        ChunkedInt64(columns).taken(array("q", [0, 3]))
    with pytest.raises(IndexError):
        ChunkedInt64([]).taken(array("q", [0]))


def test_a_column_may_lie_in_a_buffer_of_any_length_that_holds_it() -> None:
    values = pa.array([4, 5, 6], pa.int64()).buffers()[1].to_pybytes()[:24]
    column = pa.Array.from_buffers(pa.int64(), 3, [None, pa.py_buffer(values + b"xyz")])
    odd = pa.Array.from_buffers(pa.int64(), 3, [None, pa.py_buffer(b"x" + values).slice(1)])
    found = ChunkedInt64([column, odd]).taken(array("q", [5, 0, 2]))
    assert memoryview(found).cast("B").cast("q").tolist() == [6, 4, 6]
