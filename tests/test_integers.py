"""Columns of integers in native code."""

from __future__ import annotations

import random
from array import array

import pytest

from pgdecode._integers import counted, descent, grouped


def test_numbers_are_counted_from_the_first_one() -> None:
    assert memoryview(counted(7, 3)).cast("B").cast("q").tolist() == [7, 8, 9]
    assert counted(7, 0).size == 0


@pytest.mark.parametrize("n", [0, 1, 50])
def test_places_are_grouped_by_index_and_others_are_passed_over(rng: random.Random, n: int) -> None:
    indexes = [rng.randrange(-2, 60) for _ in range(rng.randrange(500))]
    found, buffer = grouped(array("i", indexes), n)
    places = memoryview(buffer).cast("B").cast("q").tolist()
    assert [index for index, _, _ in found] == list(dict.fromkeys(item for item in indexes if 0 <= item < n))
    for index, start, end in found:
        assert places[start:end] == [place for place, item in enumerate(indexes) if item == index]
    assert len(places) == sum(0 <= item < n for item in indexes)


@pytest.mark.parametrize(
    ("values", "place"),
    [([], -1), ([5], -1), ([1, 2, 9], -1), ([1, 1, 2], 1), ([1, 5, 4, 3], 2), ([2**63 - 1, -(2**63)], 1)],
)
def test_the_first_value_that_does_not_ascend_is_found(values: list[int], place: int) -> None:
    assert descent(array("q", values)) == place
