"""Options that Python, Spark and the command line share: one declaration of each, and the one check of its values.

An option of changes is a field of `ChangeOptions`, and one of values a field of `ValueOptions`, with its type, default
and help. The key of the same name in a TypedDict beside the class lists it in the signatures of public functions. The
parameters of commands, the options of the data source, the manifest and the tables of docs/options.md derive from the
field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Literal, TypedDict, TypeVar

from pgdecode.protocol.as_of import AsOf
from pgdecode.protocol.limits import LIMITS, MAX_PAYLOAD, Limits

Mode = Literal["FAILFAST", "PERMISSIVE", "DROPMALFORMED"]
RowMode = Literal["FAILFAST", "PERMISSIVE"]  # of functions that return a row for each payload
InStream = Literal["ordered", "auto"]
Start = Literal["transaction", "anywhere"]
Empty = Literal["null", "error"]
UnrepresentableValues = Literal["error", "null", "clamp", "text"]
NameClash = Literal["error", "rename"]
Shape = Literal["changes", "delta"]
SchemaChanges = Literal["evolve", "ignore", "fail"]
Format = Literal["parquet", "jsonl", "csv"]
Unwrap = Literal["auto", "none", "hex", "base64", "xlogdata"]
# The default of the option `max_value_bytes` of Spark and the command line, which is one of Python's `Limits`.
MAX_VALUE_BYTES = MAX_PAYLOAD
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Option:
    """What is declared of an option beside its type and default.

    Attributes
    ----------
    help : str
        What it means, in a sentence or two.
    is_in_manifest : bool
        Whether another value gives rows another meaning. Then all runs that write one data set must have the same.
    flag : str
        Its name on the command line, if it is not that of the parameter.
    metavar : str
        What to write for its value on the command line.
    is_of_commands : bool
        Whether commands have it.
    """

    help: str
    is_in_manifest: bool = True
    flag: str = ""
    metavar: str = ""
    is_of_commands: bool = True


def option(default: _Value, help: str, **more: Any) -> _Value:
    """Declare a field of an options class. `more` are further attributes of `Option`."""
    return field(default=default, metadata={"option": Option(help, **more)})


class TransactionKeywords(TypedDict, total=False):
    """Options of all functions that follow transactions."""

    start: Start
    empty: Empty
    drop_duplicates: bool


class CommittedKeywords(TransactionKeywords, total=False):
    """Options of functions that apply committed changes."""

    mode: Mode


class ChangeKeywords(CommittedKeywords, total=False):
    """Options of functions that return changes."""

    include_uncommitted: bool


class AsOfKeywords(TypedDict, total=False):
    """The option of functions that return the rows of a table."""

    as_of: AsOf | int | str | datetime | None


class LimitKeywords(TypedDict, total=False):
    """Options of Python functions about what a payload may contain."""

    limits: Limits
    strict_flags: bool


class SizeKeywords(TypedDict, total=False):
    """The limit that Spark and the command line have as an option."""

    max_value_bytes: int


@dataclass(frozen=True)
class ChangeOptions:
    """Options of changes, checked when they are made; `ChangeDecoder` documents them.

    Raises
    ------
    TypeError, ValueError
        For a value that an option does not have.
    """

    mode: Mode = option("FAILFAST", "At a bad message: stop; write its error; leave it out.")
    include_uncommitted: bool = option(
        False,
        "Include changes that were rolled back (committed is false) or have no outcome (it is null). Such rows of a "
        "table have no _commit_position.",
    )
    drop_duplicates: bool = option(
        False,
        "Leave out transactions that servers send again after a reconnect: those whose commit LSN is not greater than "
        "all earlier ones.",
    )
    limits: Limits = option(
        LIMITS, "Sizes above which a payload or a value is bad.", is_in_manifest=False, is_of_commands=False
    )
    strict_flags: bool = option(
        True, "Refuse flag bits that no server defines today.", is_in_manifest=False, is_of_commands=False
    )
    start: Start = option(
        "transaction",
        "Where the messages begin. A message of a transaction without a beginning is an error; with 'anywhere' such "
        "transactions are left out and counted.",
    )
    empty: Empty = option(
        "null",
        "How to treat messages of 0 bytes, which servers send for an origin without a name: ignore and count them, or "
        "treat them as bad.",
    )
    as_of: AsOf | int | str | datetime | None = option(
        None,
        "Apply the commits up to and including this LSN, such as 16/B374D848, or this time with a time zone, such as "
        "2026-11-28T00:00:00Z: those before the first later commit. Messages from there on are not decoded.",
        metavar="LSN|TIME",
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "as_of", AsOf.of(self.as_of))
        check_option("mode", self.mode, Mode)
        check_option("start", self.start, Start)
        check_option("empty", self.empty, Empty)
        check_limits(self.limits)


def declared_options(options: Any) -> dict[str, Option]:
    """Return the declarations of the options of a class, or of an object of it, by name."""
    return {item.name: item.metadata["option"] for item in fields(options)}


def options_of(options: Any) -> dict[str, Any]:
    """Return the options that change what rows mean, as JSON values, for a manifest."""
    return {
        name: _plain(getattr(options, name)) for name, item in declared_options(options).items() if item.is_in_manifest
    }


def _plain(value: Any) -> Any:
    """Copy a value with plain containers."""
    if isinstance(value, AsOf):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


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
