"""Reading of JSON documents that may be damaged."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache, partial
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

Record = TypeVar("Record")

_TYPE_NAMES = {NoneType: "null", bool: "boolean", str: "string", list: "array", dict: "object"}


def load_json(text: str | bytes) -> Any:
    """Parse JSON.

    Raises
    ------
    ValueError
        If it is not JSON, or is nested too deeply to be a document that pgdecode writes.
    """
    try:
        return json.loads(text)
    except UnicodeDecodeError:
        raise ValueError("the JSON is not UTF-8") from None
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def record_from_json(kind: type[Record], plain: Any, **others: Any) -> Record:
    """Make a dataclass from a JSON object that has all its fields. Values must have the types of the fields.

    Parameters
    ----------
    kind : type
        Its fields have types of JSON values and other dataclasses, or mappings, sequences and unions of them.
    plain : JSON value
    others : any
        Values of fields that the object does not have. They are not checked.

    Raises
    ------
    ValueError
        If it is not an object, or a field is missing, unknown, or has another type. The text has no values.
    """
    record = _of_type(dict, plain, "an object")
    checks = _checks(cast(Any, kind))
    values = {}
    for name, check in checks.items():
        if name in others:
            continue
        if name not in record:
            raise ValueError(f"has no {name}")
        try:
            values[name] = check(record[name])
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    if len(values) < len(record):
        raise ValueError("has a field that this pgdecode does not know")
    return kind(**values, **others)


def json_type(value: Any) -> str:
    """Name the type of a JSON value as JSON does."""
    return _TYPE_NAMES.get(type(value), "number")


@cache
def _checks(kind: Any) -> dict[str, Callable[[Any], Any]]:
    """Return a function for each field that checks its value."""
    hints = get_type_hints(kind)
    return {item.name: _check(hints[item.name]) for item in fields(kind)}


def _check(hint: Any) -> Callable[[Any], Any]:
    """Return a function that checks a JSON value against a type, and returns it."""
    origin, parts = get_origin(hint), get_args(hint)
    if hint is Any:
        return lambda value: value
    if is_dataclass(hint):
        return partial(record_from_json, cast(type, hint))
    if origin is Literal:
        return partial(_one_of, parts)
    if origin in (Union, UnionType):
        return partial(_optional, *(_check(part) for part in parts if part is not NoneType))
    if origin is not None and issubclass(origin, Mapping):
        return partial(_object, _check(parts[1]))
    if origin is not None and issubclass(origin, Sequence):
        return partial(_list, _check(parts[0]))
    of_values: dict[Any, Callable[[Any], Any]] = {
        int: partial(_of_type, int, expected="an integer"),
        float: _number,
        str: _text,
        bool: partial(_of_type, bool, expected="true or false"),
    }
    return of_values[hint]


def _optional(check: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else check(value)


def _object(check: Callable[[Any], Any], value: Any) -> dict[str, Any]:
    return {name: check(item) for name, item in _of_type(dict, value, "an object").items()}


def _list(check: Callable[[Any], Any], value: Any) -> list[Any]:
    return [check(item) for item in _of_type(list, value, "an array")]


def _one_of(values: tuple[str, ...], value: Any) -> str:
    if _text(value) not in values:
        raise ValueError(f"expected {' or '.join(values)}")
    return str(value)


def _number(value: Any) -> float:
    return value if type(value) is float else float(_of_type(int, value, "a number"))


def _text(value: Any) -> str:
    if "\0" in _of_type(str, value, "a string"):
        raise ValueError("a string with a NUL character")
    return str(value)


def _of_type(kind: type, value: Any, expected: str) -> Any:
    # Not `isinstance`, because true and false are integers of Python.
    if type(value) is not kind:
        raise ValueError(f"a JSON value of type {json_type(value)}, expected {expected}")
    return value
