"""Columns of any type as JSON and as text, compared with plain Python."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgdecode.arrow import json_text
from support.oracles.json_values import encode, json_values

TEXT = 'ab"\\\n\t\0\x7f\x9b\u202e\u061c\u2028é☃😀/ ,'
TEXTS = ["", "null", "a", *TEXT, TEXT]
# Among them 0001-12-31 BC, 0001-01-01, 9999-12-31, 10000-01-01 and 5874897-12-31.
DATES = [0, -1, 2**31 - 1, -(2**31), 19_000, -719_163, -719_162, 2_932_896, 2_932_897, 2_145_042_905]
FLOATS = [0.0, -0.0, 1.0, -1.5, 1e16, 1e-7, 1e22, 5e-324, math.pi, math.nan, math.inf, -math.inf]
MOMENTS = [0, -1, 1, 10**15, 2**62, -(2**62), -62_135_596_800_000_000, 253_402_300_799_999_999, 253_402_300_800_000_000]
SECONDS = [0, -1, 1, -62_135_596_800, -62_135_596_801, 253_402_300_799, 253_402_300_800, 2**61]


@pytest.fixture(autouse=True, scope="module", params=[0, 100], ids=["many", "few"])
def few_texts(request: pytest.FixtureRequest) -> Iterator[None]:
    """Treat all columns as long ones, or short ones as such."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_text, "_FEW_TEXTS", request.param)
        yield


# For each type of a column, its values.
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "null": (pa.null(), [None]),
    "int8": (pa.int8(), [0, -128, 127]),
    "uint64": (pa.uint64(), [0, 2**64 - 1]),
    "int64": (pa.int64(), [0, -(2**63), 2**63 - 1]),
    "bool": (pa.bool_(), [True, False]),
    "string": (pa.string(), TEXTS),
    "large_string": (pa.large_string(), TEXTS),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), TEXTS),
    "binary": (pa.binary(), [b"", b"a\0\xff"]),
    "fixed_size_binary": (pa.binary(2), [b"\0\xff"]),
    "float64": (pa.float64(), FLOATS),
    "float32": (pa.float32(), FLOATS),
    "decimal": (pa.decimal128(12, 9), [Decimal("1.5"), Decimal("0"), Decimal("-0.000000001")]),
    "date": (pa.date32(), DATES),
    "time": (pa.time64("us"), [0, 86_399_999_999]),
    "duration": (pa.duration("s"), [0, -5]),
    "timestamp": (pa.timestamp("us"), MOMENTS),
    "timestamp in UTC": (pa.timestamp("us", "UTC"), MOMENTS),
    "timestamp of another zone": (pa.timestamp("ms", "Europe/Berlin"), [second * 1000 for second in SECONDS[:-1]]),
    "timestamp in seconds": (pa.timestamp("s", "UTC"), SECONDS),
    "timestamp in nanoseconds": (pa.timestamp("ns", "UTC"), [0, -1, 2**62]),
}
NUMBERS = (pa.date32(), pa.time64("us"), pa.duration("s"))


def random_column(rng: random.Random, depth: int) -> pa.Array:
    """A column of any type, with nulls, that is a slice of a longer one."""
    n = rng.randrange(8)
    kinds: list[Callable[[], pa.Array]] = [lambda: simple_column(rng, n)] * 3
    if depth:
        kinds += [lambda: struct(rng, depth, n), lambda: lists(rng, depth, n), lambda: maps(rng, depth, n)]
    whole = rng.choice(kinds)()
    first = rng.randrange(n + 1)
    return whole.slice(first, rng.randrange(n - first + 1))


def simple_column(rng: random.Random, n: int) -> pa.Array:
    kind, values = VALUES[rng.choice([*VALUES])]
    chosen = [rng.choice([None, *values, *values]) for _ in range(n)]
    if pa.types.is_timestamp(kind) or kind in NUMBERS:
        return pa.array(chosen, pa.int64() if kind.bit_width == 64 else pa.int32()).view(kind)
    if pa.types.is_dictionary(kind):
        return pa.array(chosen, kind.value_type).dictionary_encode()
    return pa.array(chosen, kind)


def filled(rng: random.Random, depth: int, n: int) -> pa.Array:
    """A column of n values."""
    column = random_column(rng, depth)
    return pa.concat_arrays([column, pa.nulls(n, column.type)]).slice(0, n)


def validity(rng: random.Random, n: int) -> pa.Array:
    return pa.array([rng.random() < 0.2 for _ in range(n)], pa.bool_())


def struct(rng: random.Random, depth: int, n: int) -> pa.Array:
    names = rng.sample(["a", "b", 'c"\n'], rng.randrange(1, 4))
    return pa.StructArray.from_arrays([filled(rng, depth - 1, n) for _ in names], names, mask=validity(rng, n))


def offsets(rng: random.Random, n: int) -> pa.Array:
    ends = [0]
    for _ in range(n):
        ends.append(ends[-1] + rng.randrange(3))
    return pa.array(ends, pa.int32())


def lists(rng: random.Random, depth: int, n: int) -> pa.Array:
    if rng.random() < 0.2:
        return pa.FixedSizeListArray.from_arrays(filled(rng, depth - 1, 2 * n), 2, mask=validity(rng, n))
    ends = offsets(rng, n)
    return pa.ListArray.from_arrays(ends, filled(rng, depth - 1, ends[-1].as_py()), mask=validity(rng, n))


def maps(rng: random.Random, depth: int, n: int) -> pa.Array:
    ends = offsets(rng, n)
    keys = pa.array([f'{rng.choice(TEXTS)}{number}"' for number in range(ends[-1].as_py())], pa.string())
    return pa.MapArray.from_arrays(ends, keys, filled(rng, depth - 1, len(keys)))


def expected(column: pa.Array) -> list[str | None]:
    return [None if value is None else encode(value) for value in json_values(column)]


@pytest.mark.parametrize("name", VALUES)
def test_values_are_json(name: str) -> None:
    kind, values = VALUES[name]
    rng = random.Random(1)
    for _ in range(20):
        column = simple_column(rng, 12)
        assert json_text.json_text(column).to_pylist() == expected(column)
    if pa.types.is_timestamp(kind) or kind in NUMBERS:
        column = pa.array([*values, None], pa.int64() if kind.bit_width == 64 else pa.int32()).view(kind)
    elif pa.types.is_dictionary(kind):
        column = pa.array([*values, None], kind.value_type).dictionary_encode()
    else:
        column = pa.array([*values, None], kind)
    assert json_text.json_text(column).to_pylist() == expected(column)


@given(st.lists(st.integers(-(2**31), 2**31 - 1) | st.none()), st.integers(0, 3))
def test_any_day_is_a_date(days: list[int | None], first: int) -> None:
    column = pa.array(days, pa.int32()).cast(pa.date32())[first:]
    assert json_text.flat(column).to_pylist() == json_values(column)


@given(
    st.sampled_from([pa.timestamp(unit, zone) for unit in ("s", "ms", "us") for zone in (None, "UTC", "Asia/Tokyo")]),
    st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-(10**17), 10**18) | st.none()),
)
def test_any_moment_is_a_timestamp(kind: pa.DataType, numbers: list[int | None]) -> None:
    column = pa.array(numbers, pa.int64()).cast(kind)
    assert json_text.flat(column).to_pylist() == json_values(column)
    if kind == pa.timestamp("us", "UTC"):
        texts = [None if number is None else json_text.timestamp_to_text(number) for number in numbers]
        assert texts == json_values(column)


@given(st.randoms(use_true_random=False))
def test_columns_of_columns_are_json(rng: random.Random) -> None:
    column = random_column(rng, 3)
    found = json_text.json_text(column)
    found.validate(full=True)
    assert found.to_pylist() == expected(column)
    flat = json_text.flat(column).to_pylist()
    if pa.types.is_nested(column.type):
        assert flat == expected(column)
    else:
        texts = [None if value is None else str(value) for value in json_values(column)]
        assert [None if value is None else str(value) for value in flat] == texts


@given(st.lists(st.text() | st.none()))
def test_any_text_is_a_json_string(texts: list[str | None]) -> None:
    found = json_text.quote(pa.array(texts, pa.string())).to_pylist()
    assert [None if line is None else json.loads(line) for line in found] == texts
    assert found == [None if text is None else encode(text) for text in texts]


NESTED = pa.array([[1, None], None, []], pa.list_(pa.int32()))


@pytest.mark.parametrize(
    "column",
    [
        pa.ExtensionArray.from_storage(pa.opaque(NESTED.type, "t", "v"), NESTED),
        pa.DictionaryArray.from_arrays(pa.array([0, 1, 2]), NESTED),
        pa.DictionaryArray.from_arrays(pa.array([0, 1, 2]), pa.array([{"a": 1}, None, {"a": 2}])),
        pa.array([0.1, math.nan, None, math.inf, -math.inf], pa.float64()).cast(pa.float16()),
    ],
    ids=["extension type", "dictionary of lists", "dictionary of structs", "float16"],
)
def test_unusual_columns_are_json(column: pa.Array) -> None:
    assert json_text.json_text(column).to_pylist() == expected(column)


def test_text_that_is_not_utf_8_is_an_error() -> None:
    with pytest.raises(pa.ArrowInvalid, match="UTF8"):
        json_text.json_text(pa.array([b"a\xff", b"ok"]).view(pa.string()))


def test_rows_are_objects() -> None:
    texts = [pa.array(["1", None]), pa.array([None, None], pa.string())]
    assert json_text.objects(["a", "b"], texts, 2).to_pylist() == ['{"a": 1, "b": null}', '{"a": null, "b": null}']
    assert json_text.objects([], [], 2).to_pylist() == ["{}", "{}"]
    assert json_text.sparse_objects("ab", texts, 2).to_pylist() == ['{"a": 1}', "{}"]
    assert json_text.sparse_objects([], [], 2).to_pylist() == ["{}", "{}"]
    assert json_text.sparse_objects(["{, "], [pa.array(['"{, "'])], 1).to_pylist() == ['{"{, ": "{, "}']
