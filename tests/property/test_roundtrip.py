"""Random values of every typed column, written in both forms by tests/support/oracles/printer.py and
tests/support/generators/writer.py, come back."""

from __future__ import annotations

import re
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pgdecode
from pgdecode.types.pgtypes import Decoding
from pgdecode.types.session_settings import settings_of, under
from pgdecode.types.type_parser import declared
from support.generators.writer import MICROSECONDS, written
from support.oracles.printer import BOUNDS, DAY, printed, types_of
from support.tiers import full
from support.values import decode_values

MIN_DAY, END_DATE, END_TIMESTAMP = -2451545, 2145031949, 9223371331200000000  # datatype/timestamp.h, since 2000-01-01
TEXT = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=8) | st.text(
    "{}()[],\"\\' NULaé", max_size=8
)
EXACT = Context(prec=100)
DATES = st.integers(MIN_DAY + 10957, END_DATE - 1 + 10957) | st.integers(-1_000_000, 40_000)
MOMENTS = st.integers(MIN_DAY * DAY + MICROSECONDS, 2**63 - 1) | st.integers(-(10**16), 10**16)
SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int2": st.integers(-(2**15), 2**15 - 1),
    "int4": st.integers(-(2**31), 2**31 - 1),
    "int8": st.integers(-(2**63), 2**63 - 1),
    "oid": st.integers(0, 2**32 - 1),
    # NaN is not equal to itself; test_values has it.
    "float4": st.floats(width=32, allow_nan=False),
    "float8": st.floats(allow_nan=False),
    "numeric": st.decimals(
        allow_nan=True, allow_infinity=False, places=None, min_value=-(10**40), max_value=10**40
    ).map(lambda number: "NaN" if number.is_nan() else format(abs(number) if number == 0 else number, "f")),
    "numeric(12,2)": st.integers(-(10**12) + 1, 10**12 - 1).map(lambda units: Decimal(units).scaleb(-2)),
    "text": TEXT,
    "jsonb": TEXT,
    "bytea": st.binary(max_size=12),
    "date": DATES,
    "time": st.integers(0, DAY - 1),
    "timestamp": MOMENTS,
    "timestamptz": MOMENTS,
    "interval": st.fixed_dictionaries(
        {
            "months": st.integers(-(2**31) + 1, 2**31 - 1) | st.integers(-30, 30),
            "days": st.integers(-(2**31) + 1, 2**31 - 2) | st.integers(-30, 30),
            "microseconds": st.integers(-(2**63) + 1, 2**63 - 1)
            | st.integers(-99, 99).map(lambda second: second * 10**6),
        }
    ),
    "hstore": st.dictionaries(TEXT, st.none() | TEXT, max_size=4).map(lambda pairs: list(pairs.items())),
    "vector": st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=4),
    "int2vector": st.lists(st.integers(-(2**15), 2**15 - 1), max_size=4),
    "oidvector": st.lists(st.integers(0, 2**32 - 1), max_size=4),
}
PERSON = "(text, date, (text, int4, numeric(12,2)), text[], (int4, tstzrange)[], interval, bytea)"
TYPES = [
    *SCALARS,
    *BOUNDS,
    *(name.replace("range", "multirange") for name in BOUNDS),
    *(f"{name}[]" for name in SCALARS if name not in ("hstore", "vector")),
    "daterange[]",
    "tsmultirange[]",
    "(bool)",
    PERSON,
    PERSON + "[]",
]
# Of these, the quick tier has the items, and other arrays and multiranges.
LIKE_OTHERS = {
    name for name in TYPES if name.endswith(("[]", "multirange")) and name not in ("text[]", "date[]", "nummultirange")
}
STYLES = ["ISO, MDY", "SQL, MDY", "SQL, DMY", "Postgres, MDY", "Postgres, DMY", "German, DMY"]


def strategy(pg_type: str) -> st.SearchStrategy[Any]:
    """Values of a type as pyarrow takes them, days and microseconds as integers."""
    if pg_type.endswith("[]"):
        return st.lists(st.none() | strategy(pg_type[:-2]), max_size=4)
    if pg_type.startswith("("):
        fields = {f"f{i}": st.none() | strategy(name) for i, name in enumerate(types_of(pg_type))}
        return st.fixed_dictionaries(fields)
    if pg_type.endswith("multirange"):
        return st.lists(ranges(BOUNDS[pg_type.replace("multi", "")]).filter(lambda item: not item["empty"]), max_size=1)
    return ranges(BOUNDS[pg_type]) if pg_type in BOUNDS else SCALARS[pg_type]


def in_order(value: Any) -> Any:
    """What a bound is compared by: a numeric is drawn as text, and NaN is the greatest."""
    if not isinstance(value, str):
        return value
    return Decimal("Infinity") if value == "NaN" else Decimal(value)


@st.composite
def ranges(draw: st.DrawFn, bound: str) -> dict[str, Any]:
    """A range as it is decoded; bounds that are not there are exclusive."""
    lower, upper = draw(st.none() | SCALARS[bound]), draw(st.none() | SCALARS[bound])
    # The server makes no range whose bounds are equal or the wrong way round, but for [a,a], which is left out here.
    if lower is not None and upper is not None and not in_order(lower) < in_order(upper):
        upper = None
    if draw(st.sampled_from([True, *[False] * 5])):
        return {"lower": None, "upper": None, "lower_inclusive": False, "upper_inclusive": False, "empty": True}
    return {
        "lower": lower,
        "upper": upper,
        "lower_inclusive": lower is not None and draw(st.booleans()),
        "upper_inclusive": upper is not None and draw(st.booleans()),
        "empty": False,
    }


def declaration(pg_type: str) -> str:
    """A type as `types=` takes it: the fields of a composite have names."""
    if not pg_type.startswith("("):
        return pg_type
    shape, brackets = (pg_type[:-2], "[]") if pg_type.endswith("[]") else (pg_type, "")
    return f"({', '.join(f'f{i} {declaration(name)}' for i, name in enumerate(types_of(shape)))}){brackets}"


def stored(arrow: pa.DataType) -> pa.DataType:
    """The Arrow type with integers for dates and times, which Python has not all of."""
    if pa.types.is_temporal(arrow):
        return pa.int32() if pa.types.is_date32(arrow) else pa.int64()
    if pa.types.is_list(arrow):
        return pa.list_(stored(arrow.value_type))
    if pa.types.is_struct(arrow):
        return pa.struct([(field.name, stored(field.type)) for field in arrow])
    return arrow


def column(decoding: Decoding, values: list[Any]) -> pa.Array:
    found = pa.array(values, stored(decoding.arrow))
    return found if found.type == decoding.arrow else found.cast(decoding.arrow)


@pytest.mark.parametrize("pg_type", [full(name) if name in LIKE_OTHERS else name for name in TYPES])
@given(data=st.data())
def test_any_value_comes_back_from_both_forms(pg_type: str, data: st.DataObject) -> None:
    style = data.draw(st.sampled_from(STYLES))
    decoding = under(settings_of("UTF8", style), declared(declaration(pg_type)))
    wanted = column(decoding, data.draw(st.lists(st.none() | strategy(pg_type), max_size=3)))
    plain = re.sub(r"\(\d+,\d+\)", "", pg_type)
    texts = [None if text is None else text.encode() for text in printed(plain, wanted, {"datestyle": style})]
    binaries = [written(plain, item) for item in wanted]
    for forms, binary in ((texts, False), (binaries, True)):
        found = decode_values(decoding, forms, binary=binary)
        found.validate(full=True)
        assert found.type == wanted.type
        assert found.equals(wanted), (forms, found)


@pytest.mark.full
@pytest.mark.parametrize("pg_type", [*BOUNDS, PERSON, PERSON + "[]", "numeric(12,2)[]", "hstore", "tsmultirange[]"])
@given(data=st.data())
def test_a_written_value_with_a_byte_changed_or_cut_is_a_value_or_a_fault(pg_type: str, data: st.DataObject) -> None:
    decoding = under(settings_of("UTF8", data.draw(st.sampled_from(STYLES))), declared(declaration(pg_type)))
    value = column(decoding, [data.draw(strategy(pg_type))])
    plain = re.sub(r"\(\d+,\d+\)", "", pg_type)
    for form, binary in ((printed(plain, value)[0].encode(), False), (written(plain, value[0]), True)):
        at = data.draw(st.integers(0, max(len(form) - 1, 0)))
        changed = form[:at] + data.draw(st.binary(min_size=1, max_size=2)) + form[at + 1 :]
        for broken in (form[:at], changed):
            try:
                found = decode_values(decoding, [broken], binary=binary)
            except pgdecode.DecodeError:
                continue
            found.validate(full=True)
            assert len(found) == 1


@pytest.mark.parametrize("text", [PERSON, PERSON + "[]", "numeric(12,2)[]", "(hstore, vector, jsonb)"])
@given(value=st.binary(max_size=60), binary=st.booleans())
def test_random_bytes_are_a_composite_or_a_fault(text: str, value: bytes, binary: bool) -> None:
    for encoding in ("UTF8", "SJIS"):
        decoding = under(settings_of(encoding, "German"), declared(declaration(text)))
        try:
            found = decode_values(decoding, [value], binary=binary)
        except pgdecode.DecodeError:
            continue
        found.validate(full=True)
        assert len(found) == 1
