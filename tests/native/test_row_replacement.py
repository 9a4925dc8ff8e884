"""Which row each change replaces, and where values that were left out come from, in native code."""

from __future__ import annotations

import random
from array import array
from typing import Any

import pytest

from pgdecode._native.changes.row_replacement import replaced_rows, value_rows


def integers(buffer: Any) -> list[int]:
    return memoryview(buffer).cast("B").cast("q").tolist()


@pytest.mark.parametrize("n_keys", [1, 3, 50])
@pytest.mark.parametrize("n_present", [0, 1, 30])
def test_a_change_removes_the_last_row_with_its_key(n_keys: int, n_present: int, rng: random.Random) -> None:
    keys = [rng.randrange(n_keys) for _ in range(n_present + rng.randrange(60))]
    removed = [rng.randrange(-1, n_keys) for _ in keys[n_present:]]
    is_added = [rng.random() < 0.8 for _ in removed]
    present = list(range(n_present))
    expected = []
    for at, (key, adds) in enumerate(zip(removed, is_added, strict=True)):
        same = [row for row in present if keys[row] == key]
        expected.append(same[-1] if same else -1)
        present = [row for row in present if row not in same[-1:]] + [n_present + at] * adds
    before, left = replaced_rows(array("i", keys), array("i", removed), bytes(is_added), n_keys)
    assert integers(before) == expected
    assert list(left.to_pybytes()) == [row in present for row in range(len(keys))]


def test_a_value_that_was_left_out_comes_from_the_row_before(rng: random.Random) -> None:
    n_present, n_changes = 10, 50
    before = [rng.randrange(-1, n_present + at) for at in range(n_changes)]
    unchanged = sorted(rng.sample(range(n_changes), 30))
    groups = [rng.randrange(3) for _ in range(n_present + n_changes)]
    is_unknown = [False, True, False]
    expected: list[int] = []
    for row, group in enumerate(groups):
        at = row - n_present
        if at in unchanged:
            expected.append(expected[before[at]] if before[at] >= 0 else -1)
        else:
            expected.append(-1 if is_unknown[group] else row)
    found = value_rows(array("q", before), array("q", unchanged), array("i", groups), bytes(is_unknown))
    assert integers(found) == expected


def test_without_rows_there_are_none() -> None:
    before, left = replaced_rows(array("i"), array("i"), b"", 0)
    assert integers(before) == list(left.to_pybytes()) == []
    assert integers(value_rows(array("q"), array("q"), array("i"), b"")) == []


@pytest.mark.parametrize(("keys", "removed"), [([5], [0]), ([-1], [0]), ([0], [5]), ([2**31 - 1], [-1])])
def test_a_key_that_does_not_exist_is_an_index_error(keys: list[int], removed: list[int]) -> None:
    with pytest.raises(IndexError, match="no such key"):
        replaced_rows(array("i", keys), array("i", removed), b"\1", 5)


@pytest.mark.parametrize(("keys", "is_added"), [([], b"\1"), ([0], b""), ([0], b"\1\1")])
def test_each_change_has_a_row_and_a_flag(keys: list[int], is_added: bytes) -> None:
    with pytest.raises(ValueError, match="each change"):
        replaced_rows(array("i", keys), array("i", [0]), is_added, 1)


def test_a_value_cannot_come_from_a_later_row() -> None:
    with pytest.raises(IndexError, match="earlier row"):
        value_rows(array("q", [0]), array("q", [0]), array("i", [0]), b"\0")


@pytest.mark.parametrize("groups", [[1], [-1]])
def test_a_group_that_does_not_exist_is_an_index_error(groups: list[int]) -> None:
    with pytest.raises(IndexError):
        value_rows(array("q"), array("q"), array("i", groups), b"\0")
