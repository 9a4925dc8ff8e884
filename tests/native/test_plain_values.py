"""Byte arrays in Parquet's plain encoding."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pgdecode._native.arrow.plain_values import longest


def page_of(values: list[bytes]) -> bytes:
    return b"".join(len(value).to_bytes(4, "little") + value for value in values)


@given(st.lists(st.binary(max_size=300)))
def test_the_longest_value_of_a_page_is_found(values: list[bytes]) -> None:
    assert longest(pa.py_buffer(page_of(values))) == max(map(len, values), default=0)


@given(st.lists(st.binary(max_size=20), min_size=1), st.data())
def test_a_page_that_ends_within_a_value_has_none(values: list[bytes], data: st.DataObject) -> None:
    page = page_of(values)
    ends = {len(page_of(values[:n])) for n in range(len(values) + 1)}
    end = data.draw(st.sampled_from(sorted({*range(len(page))} - ends)))
    assert longest(pa.py_buffer(page[:end])) == -1


def test_a_length_beyond_the_page_is_refused() -> None:
    for length in (1, 2**31 - 1, 2**31, 2**32 - 1):
        assert longest(pa.py_buffer(page_of([b"ab"]) + length.to_bytes(4, "little"))) == -1
