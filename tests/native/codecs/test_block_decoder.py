"""Block decoders give what the decoders of single values give, for values and for what is none."""

from __future__ import annotations

import random
import struct
from typing import Any

import pyarrow as pa
import pytest

from pgdecode.protocol.errors import DecodeError
from pgdecode.types.pgtypes import Decoding, named, scalar
from support.oracles.recorded import renderings, values
from support.tiers import full
from support.values import composite, decode_inserts, decode_values, insert, inside

MODIFIERS = {"numeric": [(p << 16 | s) + 4 for p, s in ((14, 2), (18, 0), (4, 4), (38, 9), (20, 19), (9, 3))]}
TYPES = [
    *("bool", "int2", "int4", "int8", "oid", "float4", "float8", "numeric", "date", "time", "timestamp"),
    *("timestamptz", "uuid", "text", "jsonb", "jsonpath", "ltree", "bytea"),
]

# The edges of each question that a block decoder puts to a text, and what lies next to them; | stands between two.
EDGES = {
    "bool": "t|f|true|false|T|x|tt|tru|0|1|y",
    "int2": "0|-0|+1|32767|32768|-32768|-32769|00001|000001|-|+|1-|12a|99999",
    "int4": "0|2147483647|2147483648|-2147483648|-2147483649|12345678|123456789|0000000001|00000000001|-",
    "int8": "0|9223372036854775807|9223372036854775808|-9223372036854775808|-9223372036854775809|1234567812345678"
    "|12345678123456789|0000000000000000001|00000000000000000001|9999999999999999999|x234567812345678"
    "|1234567x12345678|12345678x2345678|x2345678123456789",
    "oid": "0|4294967295|4294967296|00000000001|-1|-0|+7|9999999999",
    "float4": "0|1e40|1e-50|NaN|-Infinity|3.4028236e38|x|1.5.2",
    "float8": "0|-0|1e400|1e-400|nan|Infinity|0.1|1e23|.|e5",
    "numeric": "0|0.00|-0.00|0.31|.31|-.31|31.|123456789012.34|1234567890123.45|-999999999999.99|0.1|0.001|NaN"
    "|Infinity|1e3|12|+1.00|-1.00|1.0a|1x.00|-|-.|000000000001.00|0.0000|9.9999|123456789012345678"
    "|-1234567890123456789",
    "date": "2024-02-29|2023-02-29|1900-02-29|2000-02-29|0001-01-01|0000-01-01|9999-12-31|10000-01-01|2024-13-01"
    "|2024-00-10|2024-04-31|2024-4-310|2024/02/29|02-29-2024|infinity|-infinity|20a4-02-29|2024-0x-29",
    "time": "00:00:00|23:59:59.999999|24:00:00|23:59:60|12:60:00|12:00:00.|12:00:00.1234567|1:00:00|12:00:0x",
    "timestamp": "2024-02-29 00:00:00|2024-02-29 23:59:59.5|2024-02-29 24:00:00|2024-02-29T00:00:00|infinity"
    "|0044-03-15 12:00:00 BC|2024-02-29 12:00:00.|294276-12-31 23:59:59.999999|2024-02-29 12:00:00+00"
    "|2024-02-29 12:00:00.1234567",
    "timestamptz": "2024-02-29 00:00:00+00|2024-02-29 23:59:59.5-07|2024-02-29 12:00:00+05:30|2024-02-29 12:00:00"
    "|2024-02-29 12:00:00 00|2024-02-29 12:00:00+0x|2024-02-29 12:00:00.000001-99|0044-03-15 12:00:00+01 BC"
    "|2024-02-29 12:00:00+15:59:59|2024-02-29 12:00:00+167:00|0001-01-01 00:00:00+24",
    "uuid": "c4ca4238-a0b9-2382-0dcc-509a6f75849b|C4CA4238-A0B9-2382-0DCC-509A6F75849B"
    "|c4ca4238-a0b9-2382-0dcc-509a6f75849g|c4ca4238-a0b9-2382-0dcc-509a6f75849|c4ca4238,a0b9-2382-0dcc-509a6f75849b"
    "|c4ca4238-a0b9/2382-0dcc-509a6f75849b|c4ca4238-a0b9-2382.0dcc-509a6f75849b|c4ca4238-a0b9-2382-0dcc+509a6f75849b"
    "|c4ca423/-a0b9-2382-0dcc-509a6f75849b|c4ca423`-a0b9-2382-0dcc-509a6f75849b|c4ca423:-a0b9-2382-0dcc-509a6f75849b",
    "bytea": r"|\x|\x0|\x00|\xAbCd|\x012345|\x01234567|\x0123456789abcdefABCDEF|\x0g|\x/0|\x:0|\x@0|\x`0|\xG0"
    r"|\x01234567G0|a|\000|\\x",
}
TEXTS = {pg_type: edges.split("|") for pg_type, edges in EDGES.items()}
LENGTHS = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 23, 31, 32, 33, 36, 40, 63, 64, 65, 127, 200, 1000]
PLAIN = "abcdefghij" * 100
for name in ("text", "jsonb", "jsonpath", "ltree"):
    # Of every length, with an odd byte at the front, in the middle and at the end.
    TEXTS[name] = [
        PLAIN[:at] + odd + PLAIN[at + 1 : length]
        for length in LENGTHS
        for at in sorted({0, length // 2, max(length - 1, 0)})
        for odd in ("", "x", "\0", "é", "\x01")
    ]


def outcome(decoding: Decoding, forms: list[bytes | None], binary: bool, alone: bool) -> Any:
    """The array, down to its buffers' bytes, or the code of the fault; `alone` calls the decoder of single values."""
    try:
        if alone:
            composites = [composite(form, decoding, binary=binary) for form in forms]
            array = decode_values(inside(decoding), composites, binary=binary).field("value")
        else:
            array = decode_values(decoding, forms, binary=binary)
    except DecodeError as error:
        return error.code
    array.validate(full=True)
    return array.type, array.null_count, [buffer and buffer.to_pybytes() for buffer in array.buffers()]


def binaries(pg_type: str) -> list[bytes]:
    """Binary forms, right and wrong ones: of every length about the right one, and of the edges of numbers."""
    found = [pair.binary for _, pair in values(pg_type)] + [pair.binary for pair in renderings(pg_type)]
    made = [form for form in found if form is not None]
    for width in {1, 2, 4, 8, 16, 20}:
        made += [bytes([first]) + bytes(width - 1) for first in (0, 1, 2, 0x7F, 0x80, 0xFF)]
        made += [b"\xff" * width, b"\x7f" + b"\xff" * (width - 1), bytes(range(width))]
    if pg_type == "numeric":
        made += [
            struct.pack(f">HhHH{len(groups)}H", len(groups) + extra, weight, sign, dscale, *groups)
            for groups in ((), (1,), (9999,), (10000,), (31, 0), (0, 31), (12, 3400), (12, 3450), (9999,) * 4, (1,) * 5)
            for weight in (-2, -1, 0, 1, 2, 3, 4, 32767, -32768)
            for sign in (0, 0x4000, 0xC000, 0xD000, 0x1234)
            for dscale in (0, 2, 3, 4, 9)
            for extra in (0, 1)
        ]
    if pg_type in ("text", "jsonb", "jsonpath", "ltree", "bytea"):
        made += [version + text.encode() for text in TEXTS[pg_type] for version in (b"", b"\1", b"\2")]
    return made


def mutated(forms: list[bytes], seed: int) -> list[bytes]:
    """Forms with a byte changed, one left out and one put in."""
    random_ = random.Random(seed)
    found = []
    for form in forms:
        at = random_.randrange(len(form) + 1)
        byte = bytes([random_.choice(b"0123456789-+.: eEaflnxT\0\x80\xff") if random_.random() < 0.9 else 0xC3])
        found += [form[:at] + byte + form[at + 1 :], form[:at] + form[at + 1 :], form[:at] + byte + form[at:]]
    return found


def forms_of(pg_type: str, binary: bool) -> list[bytes]:
    if binary:
        return binaries(pg_type)
    recorded = [pair.text for _, pair in values(pg_type)] + [pair.text for pair in renderings(pg_type)]
    return recorded + [text.encode() for text in TEXTS[pg_type]]


# These have the most forms.
MANY = [("numeric", True), *((name, binary) for name in ("jsonb", "jsonpath", "ltree") for binary in (False, True))]
CASES = [
    full(pg_type, binary) if (pg_type, binary) in MANY else (pg_type, binary)
    for pg_type in TYPES
    for binary in (False, True)
]


@pytest.mark.parametrize(("pg_type", "binary"), CASES)
def test_a_block_decoder_agrees_with_the_decoder_of_single_values(pg_type: str, binary: bool) -> None:
    forms = forms_of(pg_type, binary)
    assert len(forms) >= 10
    for number, typmod in enumerate(MODIFIERS.get(pg_type, [-1])):
        decoding = named(pg_type, typmod)
        assert decoding is not None
        good: list[bytes | None] = []
        # What is wrong in a form does not depend on the modifier.
        for form in forms + (mutated(forms, len(forms)) if number == 0 else []):
            alone = outcome(decoding, [form], binary, alone=True)
            assert outcome(decoding, [form], binary, alone=False) == alone, form
            if not isinstance(alone, str):
                good.append(form)
        # In one block too, with nulls among them: validity, offsets and values have to fall into step again.
        random.Random(1).shuffle(good)
        for column in (good, [None, *good], [value for form in good for value in (form, None)], [None] * 9 + good[:2]):
            together = outcome(decoding, column, binary, alone=False)
            assert together == outcome(decoding, column, binary, alone=True)
            assert not isinstance(together, str)


@pytest.mark.parametrize("pg_type", TYPES)
def test_a_column_without_values_is_one_of_nulls(pg_type: str) -> None:
    for n in (0, 1, 9):
        found = decode_values(pg_type, [None] * n, binary=True)
        found.validate(full=True)
        assert found.equals(pa.nulls(n, found.type))


ARRAYS = [pa.binary(), pa.large_binary(), pa.binary_view()]


@pytest.mark.parametrize("arrow_type", ARRAYS, ids=str)
def test_values_are_decoded_where_an_arrow_array_has_them(arrow_type: pa.DataType) -> None:
    numbers = [None if n % 7 == 0 else n * n for n in range(1500)]
    array = pa.array([insert(None if n is None else b"%d" % n, binary=False) for n in numbers], arrow_type)
    for start, length in ((0, 1500), (3, 600), (0, 0), (1499, 1)):
        found = decode_inserts(scalar("int8"), array.slice(start, length))
        found.validate(full=True)
        assert found.to_pylist() == numbers[start : start + length]


def test_the_bad_value_of_a_column_is_named() -> None:
    with pytest.raises(DecodeError, match="row 1500"):
        decode_values("int4", [b"%d" % n for n in range(1500)] + [b"x"], binary=False)
