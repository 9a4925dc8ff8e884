"""Bytes in hexadecimal digits and base64, decoded a column at a time."""

from __future__ import annotations

import base64
import random

import pyarrow as pa
import pytest

from pgdecode._native.arrow.payload_array import Source
from pgdecode._native.literals.encoded_bytes import decoded_text
from support.oracles import encoded_texts

TYPES = [pa.binary(), pa.large_binary(), pa.binary_view()]


def decoded(parts: list[pa.Array], form: str) -> pa.Array:
    row, buffers = decoded_text(Source(parts), form)
    assert row == -1
    assert buffers is not None
    found = pa.Array.from_buffers(pa.large_binary(), sum(map(len, parts)), buffers)
    found.validate(full=True)
    return found


def random_bytes(rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice([0, 1, 2, 3, 4, 5, 7, 8, 9, 30, 31, 200]))


def hex_digits(value: bytes, rng: random.Random) -> bytes:
    digits = rng.choice([value.hex(), value.hex().upper()])
    return rng.choice(["", "\\x"]).encode() + digits.encode()


def base64_text(value: bytes, rng: random.Random) -> bytes:
    text = rng.choice([base64.b64encode, base64.encodebytes])(value)
    return rng.choice([text, text.replace(b"\n", b"\r\n"), b"\n".join(bytes([byte]) for byte in text)])


@pytest.mark.parametrize("type", TYPES, ids=str)
@pytest.mark.parametrize(("form", "written"), [("hex", hex_digits), ("base64", base64_text)], ids=["hex", "base64"])
def test_values_are_decoded_in_each_layout(type: pa.DataType, form: str, written: object, rng: random.Random) -> None:
    values = [None if rng.random() < 0.1 else random_bytes(rng) for _ in range(1000)]
    texts = [None if value is None else written(value, rng) for value in values]  # type: ignore[operator]
    parts = [pa.array(texts[:300], type), pa.array([b"!", *texts[300:]], type).slice(1)]
    assert decoded(parts, form).to_pylist() == values


def test_a_prefix_tells_hexadecimal_digits_from_base64() -> None:
    # Tags are letters, so hexadecimal digits of a payload begin with 4 to 7.
    values = pa.array([b"\\x45", b"RQ==", None, b"4545", b""])
    assert decoded([values], "auto").to_pylist() == [b"E", b"E", None, b"EE", b""]


@pytest.mark.parametrize(
    ("text", "form"),
    [
        *((text, "hex") for text in (b"4", b"4 5", b"4g", b"\\X45", b"\\x\\x45", b"45\n", b"4\xff", b"0" * 16 + b"g0")),
        *((text, "base64") for text in (b"R", b"RQ", b"RQ=", b"RQ===", b"=", b"====", b"RQ==RQ==", b"RQ==x", b"R=Q=")),
        *((text, "base64") for text in (b"UlFR=", b"UlFR====", b"R Q==", b"R-Q_", b"\xff\xff==", b"RQ=\n", b"UlF\n")),
    ],
)
def test_the_first_value_of_another_form_is_named(text: bytes, form: str) -> None:
    assert encoded_texts.decoded(text, form) is None
    good = b"45" if form == "hex" else b"RQ=="
    assert decoded_text(Source([pa.array([good, None, good, text, text])]), form) == (3, None)


@pytest.mark.full
def test_every_pair_of_characters_is_read_as_python_reads_it() -> None:
    for first in range(256):
        for text in (bytes([first, second]) for second in range(256)):
            for form, whole in (("hex", text), ("base64", text + b"RQ"), ("base64", text + b"==")):
                row, buffers = decoded_text(Source([[whole]]), form)
                expected = encoded_texts.decoded(whole, form)
                assert (row < 0) == (expected is not None)
                assert buffers is None or (buffers[2] or pa.py_buffer(b"")).to_pybytes() == expected


def test_offsets_outside_the_data_are_an_error_and_never_written_past_the_memory() -> None:
    # The last offset says that there are few bytes, one before that there are many.
    offsets = pa.array([0, 4000, 2], pa.int32()).buffers()[1]
    array = pa.Array.from_buffers(pa.binary(), 2, [None, offsets, pa.py_buffer(b"45" * 2000)])
    for form in ("hex", "base64", "auto"):
        with pytest.raises(ValueError, match=r"row 1: the Arrow array's offsets do not lie inside its data"):
            decoded_text(Source([array]), form)
