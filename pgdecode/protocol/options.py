"""Options that Python, Spark and the command line share: the values of each, and the one check of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from pgdecode.protocol.limits import MAX_PAYLOAD, Limits

Mode = Literal["FAILFAST", "PERMISSIVE", "DROPMALFORMED"]
RowMode = Literal["FAILFAST", "PERMISSIVE"]  # of functions that return a row for each payload
InStream = Literal["ordered", "auto"]
Start = Literal["transaction", "anywhere"]
Empty = Literal["null", "error"]
UnrepresentableValues = Literal["error", "null", "clamp", "text"]
NameClash = Literal["error", "rename"]
Format = Literal["parquet", "jsonl", "csv"]
Unwrap = Literal["auto", "none", "hex", "base64", "xlogdata"]
# The default of the option `max_value_bytes` of Spark and the command line, which is one of Python's `Limits`.
MAX_VALUE_BYTES = MAX_PAYLOAD


@dataclass(frozen=True, slots=True)
class ChangeOptions:
    """Options of changes, checked when they are made; `ChangeDecoder` documents them.

    Raises
    ------
    TypeError, ValueError
        For a value that an option does not have.
    """

    mode: Mode = "FAILFAST"
    include_uncommitted: bool = False
    drop_duplicates: bool = False
    limits: Limits = field(default_factory=Limits)
    strict_flags: bool = True
    start: Start = "transaction"
    empty: Empty = "null"

    def __post_init__(self) -> None:
        check_option("mode", self.mode, Mode)
        check_option("start", self.start, Start)
        check_option("empty", self.empty, Empty)
        check_limits(self.limits)


def limits_with(max_value_bytes: int) -> Limits:
    """Return the default limits with another one of values.

    Raises
    ------
    ValueError
        If it is not a number from 1 to the default.
    """
    try:
        return Limits(max_value_bytes=max_value_bytes)
    except ValueError as error:
        raise ValueError(str(error).removeprefix("Limits.")) from None


def check_option(name: str, value: object, values: Any) -> None:
    """Check a parameter that has few values.

    Parameters
    ----------
    name : str
        Name of the parameter.
    value : object
    values : Literal of str
        The values that the parameter has, such as `Mode`.

    Raises
    ------
    ValueError
        For another string, as in `mode is "FAILFAST" or "PERMISSIVE", not 'failfast'`.
    TypeError
        For a value that is no string.
    """
    # As get_args(values), which takes longer than all other checks of a call.
    known = values.__args__
    if isinstance(value, str) and value in known:
        return
    text = f"{name} is {any_of(known)}, not "
    if isinstance(value, str):
        raise ValueError(f"{text}{value!r}")
    raise TypeError(f"{text}{type(value).__name__}")


def check_row_mode(mode: object, error: str) -> None:
    """Check the mode of a function that returns a row for each payload; `error` names its column of errors.

    Raises
    ------
    TypeError, ValueError
        As `check_option`; "DROPMALFORMED" has a text of its own.
    """
    if mode == "DROPMALFORMED":
        raise ValueError(
            'mode is "FAILFAST" or "PERMISSIVE" here, not "DROPMALFORMED": the result has a row for each payload; '
            f'use "PERMISSIVE" and a filter on {error}'
        )
    check_option("mode", mode, RowMode)


def stream_option(in_stream: object, column: str = "a boolean column") -> InStream | bool:
    """Check the option `in_stream` where it is no column; None is "ordered".

    Parameters
    ----------
    in_stream : object
    column : str
        What else the parameter may be, for the text of the error.

    Raises
    ------
    ValueError
        For another string.
    TypeError
        For a value of another type.
    """
    if in_stream is None or in_stream == "ordered":
        return "ordered"
    if in_stream == "auto":
        return "auto"
    if isinstance(in_stream, bool):
        return in_stream
    text = f'in_stream is "ordered", "auto", a bool or {column}, not '
    if isinstance(in_stream, str):
        raise ValueError(f"{text}{in_stream!r}")
    raise TypeError(f"{text}{type(in_stream).__name__}")


def check_limits(limits: object) -> None:
    """Check that limits are a `Limits`.

    Raises
    ------
    TypeError
        If they are not.
    """
    if not isinstance(limits, Limits):
        raise TypeError(f"limits is a Limits, not {type(limits).__name__}")


def any_of(values: tuple[str, ...]) -> str:
    """Write values as a choice: `"null" or "error"`."""
    *others, last = [f'"{value}"' for value in values]
    return f"{', '.join(others)} or {last}" if others else last
