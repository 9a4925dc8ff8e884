"""Which values of columns are equal."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from pgdecode.arrow.distinct_values import plain_values


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        pytest.param([1, None, 2], pa.int32(), id="integers"),
        pytest.param([True, None, False], pa.bool_(), id="booleans"),
        pytest.param(["a", "", None], pa.string(), id="strings"),
        pytest.param([b"a", b"", None], pa.binary(), id="bytes"),
        pytest.param([Decimal("1.50"), None, Decimal("-1.50")], pa.decimal128(5, 2), id="decimals"),
        pytest.param([0, None, -1], pa.timestamp("us", "UTC"), id="timestamps"),
        pytest.param([math.nan, 0.0, -0.0, None], pa.float64(), id="floats"),
        pytest.param([math.nan, 0.0, -0.0], pa.float32(), id="short floats"),
        pytest.param([[], None, [1, None], [1]], pa.list_(pa.int32()), id="lists"),
        pytest.param([{"a": 1, "b": [2.0]}, None, {"a": None, "b": None}, {"a": 1, "b": []}],
                     pa.struct([("a", pa.int32()), ("b", pa.list_(pa.float64()))]), id="structs"),
        pytest.param([[("a", "b")], [], None, [("a", None)]], pa.map_(pa.string(), pa.string()), id="maps"),
    ],
)  # fmt: skip
def test_values_are_equal_if_their_bits_are(values: list[Any], kind: pa.DataType) -> None:
    array = pa.array([*values, *values], kind)
    for found in (plain_values(array), plain_values(pa.chunked_array([array.slice(0, 1), array.slice(1)]))):
        n = len(values)
        assert found[:n] == found[n:]
        assert len(set(found)) == n
        assert plain_values(array.slice(n - 1)) == found[n - 1 :]


def test_dates_that_python_does_not_support_are_values() -> None:
    dates = pa.array([-1_000_000, 10_000_000, None], pa.int32()).view(pa.date32())
    assert plain_values(dates) == [-1_000_000, 10_000_000, None]
    times = pa.array([-(2**62), 2**62], pa.int64()).view(pa.timestamp("us"))
    assert plain_values(pa.array([[0], [1]]).cast(pa.list_(pa.int64()))) == [(0,), (1,)]
    assert plain_values(times) == [-(2**62), 2**62]
