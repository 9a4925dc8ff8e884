"""Rows of COPY become Insert messages, wherever the data are cut, and wrong data are errors."""

from __future__ import annotations

import random
import struct

import pyarrow as pa
import pytest

import pgdecode
from pgdecode._native.wire.copy_rows import copied_rows

# Rows of COPY in text, and their values. Source: PostgreSQL documentation, "COPY", File Formats.
TEXT = (
    rb"1" b"\t" rb"a\\b" b"\t" rb"\N" b"\n"
    b"\t" rb"\b\f\n\r\t\v" b"\t" rb"\\N" b"\n"
    rb"\N" b"\t" rb"12345678\\1234567" b"\t" rb"\\." b"\n"
)  # fmt: skip
VALUES = [
    (b"1", b"a\\b", None),
    (b"", b"\b\f\n\r\t\v", b"\\N"),
    (None, b"12345678\\1234567", b"\\."),
]


def binary(values: list[tuple[bytes | None, ...]]) -> bytes:
    """Rows of COPY in binary."""
    return b"".join(
        struct.pack("!h", len(row))
        + b"".join(struct.pack("!i", -1) if item is None else struct.pack("!i", len(item)) + item for item in row)
        for row in values
    )


def payloads(content: bytes, kinds: bytes, is_binary: bool) -> tuple[list[bytes], int]:
    n_rows, buffers, end = copied_rows(content, 4294967295, kinds, is_binary)
    array = pa.Array.from_buffers(pa.binary(), n_rows, buffers)
    array.validate(full=True)
    return array.to_pylist(), end


@pytest.mark.parametrize("is_binary", [False, True], ids=["text", "binary"])
def test_rows_are_the_same_wherever_the_data_are_cut(is_binary: bool) -> None:
    content = binary(VALUES) + b"\xff\xff" if is_binary else TEXT
    kinds = b"tbt" if is_binary else b"ttt"
    whole, end = payloads(content, kinds, is_binary)
    assert end == len(content)
    inserts = [pgdecode.decode(payload) for payload in whole]
    assert [insert.new for insert in inserts] == VALUES
    assert {insert.relation_id for insert in inserts} == {4294967295}
    formats = [
        "".join("n" if item is None else chr(kind) for item, kind in zip(row, kinds, strict=False)) for row in VALUES
    ]
    assert [insert.new_formats for insert in inserts] == formats
    for cut in range(len(content) + 1):
        first, end = payloads(content[:cut], kinds, is_binary)
        assert end <= cut
        second, rest = payloads(content[end:], kinds, is_binary)
        assert (first + second, end + rest) == (whole, len(content))


def test_a_table_without_columns_has_rows() -> None:
    empty = bytes.fromhex("49 ffffffff 4e 0000")
    assert payloads(b"\n\n", b"", False) == ([empty] * 2, 2)
    assert payloads(b"\0\0\0\0\xff\xff", b"", True) == ([empty] * 2, 6)


@pytest.mark.parametrize(
    ("content", "is_binary", "error"),
    [
        pytest.param(b"1\n1\t2\t3\n", False, "row 0 of the answer to COPY has another number of fields", id="few"),
        pytest.param(b"1\t2\n1\t2\t3\n", False, "row 1 of the answer to COPY has another number", id="many"),
        pytest.param(b"1\t\\.\n", False, "row 0 of the answer to COPY has an unknown escape", id="end of data"),
        pytest.param(b"\\Nx\t2\n", False, "row 0 .* unknown escape", id="null with more"),
        pytest.param(b"x\\Ny\t2\n", False, "row 0 .* unknown escape", id="null in a value"),
        pytest.param(binary([(b"1",)]), True, "row 0 .* another number of fields", id="few in binary"),
        pytest.param(b"\0\2\xff\xff\xff\xfe", True, "row 0 .* unknown escape sequence or length", id="length -2"),
        pytest.param(b"\0\2\x80\0\0\0", True, "row 0 .* unknown escape sequence or length", id="length 2 GiB"),
        pytest.param(b"\xff\xff\0", True, "row 0 .* bytes after the end", id="after the end"),
    ],
)
def test_data_that_the_server_does_not_write_are_errors(content: bytes, is_binary: bool, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        payloads(content, b"tt", is_binary)


def test_a_claimed_length_is_not_reserved() -> None:
    before = pa.total_allocated_bytes()
    assert payloads(b"\0\2\x7f\xff\xff\xffx", b"tt", True) == ([], 0)
    assert pa.total_allocated_bytes() - before < 2**16


def test_random_bytes_are_errors_or_well_formed_messages(rng: random.Random) -> None:
    for _ in range(3000):
        is_binary = rng.random() < 0.5
        content = bytearray(binary(VALUES) if is_binary else TEXT)
        for _ in range(rng.randrange(6)):
            content[rng.randrange(len(content))] = rng.choice(b"\t\n\\N\0\1\2\3\xff") if rng.random() < 0.7 else 7
        try:
            found, _ = payloads(bytes(content[: rng.randrange(len(content) + 1)]), b"tbt", is_binary)
        except ValueError:
            continue
        for payload in found:
            assert pgdecode.decode(payload).tag == "I"
