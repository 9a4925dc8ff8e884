"""All options of changes and tables in one object, and the keywords by which public functions take them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Self, TypeVar, get_args, get_type_hints

from pgdecode.protocol.errors import did_you_mean
from pgdecode.protocol.options import (
    MAX_VALUE_BYTES,
    AsOfKeywords,
    ChangeKeywords,
    ChangeOptions,
    CommittedKeywords,
    LimitKeywords,
    SizeKeywords,
    TransactionKeywords,
    limits_with,
)
from pgdecode.rows.value_options import (
    ShapeKeywords,
    TableKeywords,
    TablesKeywords,
    TextKeywords,
    ValueOptions,
    renames_of,
)

_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Options(ChangeOptions, ValueOptions):
    """The options of one call, from its keywords to the workers. They are checked on creation."""

    def __post_init__(self) -> None:
        ChangeOptions.__post_init__(self)
        ValueOptions.__post_init__(self)

    @classmethod
    def of(cls, given: Mapping[str, Any], relation: str | None = None) -> Self:
        """Convert the keywords of a function; of one table, if `relation` is its name."""
        found = dict(given)
        if "max_value_bytes" in found:
            found["limits"] = limits_with(found.pop("max_value_bytes"))
        if relation is not None:
            found["renames"] = renames_of(relation, found.get("renames"))
            found["columns"] = None if found.get("columns") is None else {relation: found["columns"]}
        return cls(**found)


class DecoderKeywords(ChangeKeywords, TablesKeywords, ShapeKeywords, LimitKeywords, total=False):
    """Options of `ChangeDecoder`."""


class SnapshotKeywords(CommittedKeywords, AsOfKeywords, TableKeywords, LimitKeywords, total=False):
    """Options of `pgdecode.snapshot`."""


class ApplyKeywords(TransactionKeywords, TablesKeywords, SizeKeywords, total=False):
    """Options of `pgdecode.lake.apply`."""


class ChangeFrameKeywords(ChangeKeywords, TextKeywords, SizeKeywords, total=False):
    """Options of `spark_udfs.changes`."""


class TableFrameKeywords(ChangeKeywords, TableKeywords, ShapeKeywords, SizeKeywords, total=False):
    """Options of `spark_udfs.table_changes`."""


class SnapshotFrameKeywords(CommittedKeywords, AsOfKeywords, TableKeywords, SizeKeywords, total=False):
    """Options of `spark_udfs.snapshot`."""


class FileKeywords(ChangeKeywords, TablesKeywords, ShapeKeywords, SizeKeywords, total=False):
    """Options of `spark_udfs.decode_files`."""


DEFAULTS: dict[str, Any] = {"max_value_bytes": MAX_VALUE_BYTES, **{item.name: item.default for item in fields(Options)}}


# Options that only typed tables have.
OF_TABLES = (
    *(name for name in TableKeywords.__annotations__ if name not in TextKeywords.__annotations__),
    *ShapeKeywords.__annotations__,
)


@functools.cache
def option_types() -> dict[str, Any]:
    """Return the type of each option."""
    return {name: hint for name, hint in get_type_hints(Options).items() if name in DEFAULTS}


def with_options(*classes: type, is_listed: bool = True) -> Callable[[_Function], _Function]:
    """Decorate a function that takes `**options: Unpack[Keywords]`.

    Its signature lists the options with their defaults, for `help` and for programs that complete code. An unknown
    keyword is a TypeError that names the nearest.

    Parameters
    ----------
    *classes : dataclass
        Those that have the defaults, in addition to `Options`.
    is_listed : bool
        Whether the signature lists the options. Otherwise it has them as one group, `**options`.
    """
    defaults = {**DEFAULTS, **{item.name: item.default for cls in classes for item in fields(cls)}}

    def decorated(function: _Function) -> _Function:
        own = inspect.signature(function)
        *named, last = own.parameters.values()
        (keywords,) = get_args(get_type_hints(function)[last.name])
        options = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=defaults[name],
                # As it is written, like those of other parameters.
                annotation=getattr(hint, "__forward_arg__", hint),
            )
            for name, hint in keywords.__annotations__.items()
        ]
        parameters = [*named, *options]
        known = {item.name for item in parameters}

        @functools.wraps(function)
        def checked(*arguments: Any, **given: Any) -> Any:
            if not known.issuperset(given):
                what = function.__qualname__.removesuffix(".__init__")
                unknown = next(name for name in given if name not in known)
                names = [item.name for item in parameters if item.kind is item.KEYWORD_ONLY]
                hint = did_you_mean(unknown, names)
                raise TypeError(f"{what}() has no option {unknown!r}{hint}; there are {', '.join(names)}")
            return function(*arguments, **given)

        if is_listed:
            checked.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        return checked  # type: ignore[return-value]

    return decorated
