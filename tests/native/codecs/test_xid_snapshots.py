"""pg_snapshot and txid_snapshot, against what servers wrote and refuse."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.oracles.recorded import Pair, both, decoded, refused, values

XIDS = st.integers(1, (1 << 63) - 1)


def binary(xmin: int, xmax: int, *xids: int) -> bytes:
    return struct.pack(f">IQQ{len(xids)}Q", len(xids), xmin, xmax, *xids)


@pytest.mark.parametrize("pg_type", ["pg_snapshot", "txid_snapshot"])
def test_a_recorded_snapshot_is_the_same_in_both_forms(pg_type: str) -> None:
    recorded = values(pg_type)
    assert recorded
    for _, pair in recorded:
        assert both(pg_type, pair) == {pair.text.decode()}


@given(st.sets(XIDS, min_size=2))
def test_any_snapshot_is_its_limits_and_what_lies_between(xids: set[int]) -> None:
    xmin, *between, xmax = sorted(xids)
    text = f"{xmin}:{xmax}:" + ",".join(map(str, between))
    assert both("pg_snapshot", Pair(text.encode(), binary(xmin, xmax, *between))) == {text}


def test_a_transaction_that_comes_twice_is_printed_once() -> None:
    # pg_snapshot_recv skips duplicates.
    assert decoded("pg_snapshot", [binary(10, 20, 10, 10, 14, 14)], binary=True) == ["10:20:10,14"]


@pytest.mark.parametrize(
    ("form", "code"),
    [
        pytest.param(b"", "WRONG_SIZE", id="empty"),
        pytest.param(binary(10, 20)[:-1], "WRONG_SIZE", id="cut"),
        pytest.param(binary(10, 20) + bytes(1), "WRONG_SIZE", id="a byte too many"),
        pytest.param(binary(10, 20) + bytes(8), "WRONG_SIZE", id="a transaction too many"),
        pytest.param(b"\xff" * 4 + binary(10, 20)[4:], "WRONG_SIZE", id="a claim costs nothing"),
        pytest.param(binary(0, 20), "BAD_VALUE", id="no xmin"),
        pytest.param(binary(0, 0), "BAD_VALUE", id="no xmax"),
        pytest.param(binary(20, 10), "BAD_VALUE", id="limits the wrong way round"),
        pytest.param(binary(10, 20, 9), "BAD_VALUE", id="below xmin"),
        pytest.param(binary(10, 20, 20), "BAD_VALUE", id="xmax"),
        pytest.param(binary(10, 20, 14, 12), "BAD_VALUE", id="out of order"),
    ],
)
def test_what_the_server_does_not_take_is_refused(form: bytes, code: str) -> None:
    assert refused("pg_snapshot", form, binary=True) == code
