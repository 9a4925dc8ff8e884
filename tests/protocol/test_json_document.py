"""JSON documents that are damaged: an error that says where, for every document that is one of ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from pgdecode.protocol.json_document import load_json, record_from_json


@dataclass
class Part:
    name: str
    size: int | None


@dataclass
class Whole:
    kind: Literal["a", "b"]
    parts: Sequence[Part]
    seconds: float
    is_last: bool
    others: Mapping[str, int]
    anything: Any
    digest: str


PLAIN = {
    "kind": "a",
    "parts": [{"name": "x", "size": 1}, {"name": "y", "size": None}],
    "seconds": 1,
    "is_last": True,
    "others": {"z": 3},
    "anything": [None],
}


def test_an_object_with_all_fields_becomes_a_record() -> None:
    found = record_from_json(Whole, PLAIN, digest="d")
    assert found == Whole("a", [Part("x", 1), Part("y", None)], 1.0, True, {"z": 3}, [None], "d")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "c"}, "kind: expected a or b"),
        ({"kind": 1}, "kind: a JSON value of type number, expected a string"),
        ({"parts": {}}, "parts: a JSON value of type object, expected an array"),
        ({"parts": [None]}, "parts: a JSON value of type null, expected an object"),
        ({"parts": [{"name": "x"}]}, "parts: has no size"),
        ({"parts": [{"name": "a\0", "size": 1}]}, "parts: name: a string with a NUL character"),
        ({"parts": [{"name": "x", "size": True}]}, "parts: size: a JSON value of type boolean, expected an integer"),
        ({"seconds": "1"}, "seconds: a JSON value of type string, expected a number"),
        ({"is_last": 0}, "is_last: a JSON value of type number, expected true or false"),
        ({"others": {"z": []}}, "others: a JSON value of type array, expected an integer"),
        ({"more": 1}, "has a field that this pgdecode does not know"),
    ],
)
def test_another_object_is_refused_by_the_name_of_the_field(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        record_from_json(Whole, {**PLAIN, **change}, digest="d")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"[" * 100_000, "the JSON is nested too deeply"),
        (b'"\xff"', "the JSON is not UTF-8"),
        (b"{", "Expecting property name"),
        (b"1" * 5000, "integer string conversion"),
    ],
)
def test_text_that_is_not_json_is_a_value_error(text: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_json(text)
