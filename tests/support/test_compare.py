"""Tests of the array comparison that other tests use."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from support.compare import same_values

NAN = float("nan")
PAST_DATETIME = 2**62
NESTED = pa.struct([("at", pa.timestamp("us")), ("of", pa.list_(pa.float32()))])

PAIRS: list[tuple[pa.DataType, list[Any], list[Any], bool]] = [
    (pa.float64(), [NAN, 1.5, None], [NAN, 1.5, None], True),
    (pa.float64(), [NAN, 1.5], [NAN, 2.5], False),
    (pa.float64(), [NAN, None], [NAN, NAN], False),
    (pa.float64(), [0.0, NAN], [-0.0, NAN], False),
    (pa.list_(pa.float32()), [[1.0, NAN], None, []], [[1.0, NAN], None, []], True),
    (pa.list_(pa.float32()), [[1.0, NAN], []], [[1.0], [NAN]], False),
    (pa.timestamp("us"), [PAST_DATETIME], [PAST_DATETIME], True),
    (pa.timestamp("us"), [PAST_DATETIME], [PAST_DATETIME + 1], False),
    (NESTED, [{"at": PAST_DATETIME, "of": [NAN]}, None], [{"at": PAST_DATETIME, "of": [NAN]}, None], True),
    (NESTED, [{"at": PAST_DATETIME, "of": [NAN]}], [{"at": 0, "of": [NAN]}], False),
]


@pytest.mark.parametrize(("kind", "one", "other", "same"), PAIRS)
def test_arrays_are_the_same_when_all_bits_of_their_values_are(
    kind: pa.DataType, one: list[Any], other: list[Any], same: bool
) -> None:
    assert same_values(pa.array(one, kind), pa.array(other, kind)) is same


def test_arrays_of_two_types_are_not_the_same() -> None:
    assert not same_values(pa.array([1], pa.int32()), pa.array([1], pa.int64()))
