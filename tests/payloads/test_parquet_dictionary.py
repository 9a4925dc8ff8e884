"""The longest value in the dictionary of a Parquet column chunk."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgdecode.payloads.parquet_dictionary import longest_value

VALUES = [b"x" * (number % 700) for number in range(3000)]


def chunk_of(values: list[bytes | None], compression: str) -> tuple[pa.Buffer, str]:
    """The dictionary page of a file that pyarrow has written, and the name of its compression."""
    file = io.BytesIO()
    pq.write_table(pa.table({"data": pa.array(values, pa.binary())}), file, compression=compression)
    chunk = pq.read_metadata(file).row_group(0).column(0)
    assert chunk.has_dictionary_page
    return pa.py_buffer(file.getvalue()[chunk.dictionary_page_offset : chunk.data_page_offset]), chunk.compression


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "brotli", "zstd", "lz4"])
def test_the_longest_value_is_found_whatever_the_compression(compression: str) -> None:
    chunk, name = chunk_of([*VALUES, None], compression)
    assert longest_value(chunk, name, 2**20) == 699
    chunk, name = chunk_of([b"", b""], compression)
    assert longest_value(chunk, name, 2**20) == 0


def test_it_is_not_known_of_a_dictionary_that_is_larger_than_requested() -> None:
    chunk, name = chunk_of(VALUES, "zstd")
    n_bytes = sum(4 + length for length in range(700))
    assert longest_value(chunk, name, n_bytes) == 699
    assert longest_value(chunk, name, n_bytes - 1) is None


def test_it_is_not_known_of_another_compression() -> None:
    chunk, _ = chunk_of(VALUES, "lz4")
    assert longest_value(chunk, "LZO", 2**20) is None


@given(st.data(), st.sampled_from(["none", "zstd", "gzip"]))
def test_a_damaged_page_is_not_known_or_has_a_value_that_fits(data: st.DataObject, compression: str) -> None:
    chunk, name = chunk_of(VALUES, compression)
    damaged = bytearray(chunk.to_pybytes())
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, 30))] = data.draw(st.integers(0, 255))
    del damaged[data.draw(st.integers(0, len(damaged))) :]
    found = longest_value(pa.py_buffer(bytes(damaged)), name, 2**20)
    assert found is None or 0 <= found <= 2**20


@pytest.mark.parametrize(
    "header",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\x1c" * 256, id="structures within structures"),
        pytest.param(b"\x19\xf1\xff\xff\xff\xff\x0f" + b"\0" * 20, id="a list of four billion booleans"),
        pytest.param(b"\x18\xff\xff\xff\xff\x0f", id="a text of four billion bytes"),
        pytest.param(b"\x15" + b"\xff" * 255, id="a number without end"),
        pytest.param(b"\x1d\0", id="an unknown type"),
        pytest.param(b"\x15\0\x15\2\x15\2\0\0\0", id="a page of data"),
    ],
)
def test_a_hostile_header_is_not_known(header: bytes) -> None:
    assert longest_value(pa.py_buffer(header), "UNCOMPRESSED", 2**20) is None


def test_a_page_that_is_cut_is_not_known() -> None:
    chunk, name = chunk_of(VALUES, "none")
    assert longest_value(chunk[: chunk.size - 1], name, 2**20) is None
