"""Options of all entry points and their defaults, read from the signatures: the tables of docs/options.md."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any, Literal, Unpack, get_args, get_origin, get_type_hints, is_typeddict

import click

import pgdecode
import spark_udfs
from pgdecode.cli.commands import command_named
from pgdecode.protocol.limits import Limits
from pgdecode.protocol.options import AsOfKeywords, declared_options
from pgdecode.rows.options import DEFAULTS, DecoderKeywords, Options

# Options in the order of the tables; those that are not here follow in the order of the signatures.
ORDER = (
    *(
        "what",
        "payload",
        "unwrap",
        "position",
        "source",
        "session",
        "keep",
        "fields",
        "in_stream",
        "mode",
        "start",
        "empty",
    ),
    *("accept_gap", "include_uncommitted", "drop_duplicates", "catalog", "state", "types", "columns", "renames"),
    "as_of",
    "type_messages",
    *("unrepresentable", "name_clash", "encoding", "datestyle", "others", "years", "threads", "limits", "strict_flags"),
)
# Options by what they are for, as docs/options.md lists them.
TASKS = {
    "Read payloads": ("payload", "unwrap", "position", "session", "in_stream"),
    "Begin, and go on": ("start", "catalog", "drop_duplicates", "accept_gap"),
    "Bad payloads and values": ("mode", "empty", "unrepresentable", "limits", "strict_flags"),
    "Types and names": ("types", "columns", "renames", "name_clash", "encoding", "datestyle"),
    "Rows and columns of the result": ("as_of", "include_uncommitted", "shape", "fields", "keep"),
}
PYTHON: dict[str, Callable[..., Any]] = {
    "decode_messages": pgdecode.decode_messages,
    "decode_rows": pgdecode.decode_rows,
    "ChangeDecoder": pgdecode.ChangeDecoder.__init__,
    "snapshot": pgdecode.snapshot,
}
SPARK: dict[str, Callable[..., Any]] = {
    name: getattr(spark_udfs, name)
    for name in ("parse_pgoutput", "from_pgoutput", "changes", "table_changes", "snapshot", "decode_files")
}
COMMANDS = ("decode", "cat", "inspect")


def literals(hint: Any) -> list[str]:
    """Strings among the values that a type allows by name."""
    if get_origin(hint) is Literal:
        return [value for value in get_args(hint) if isinstance(value, str)]
    return [value for item in get_args(hint) for value in literals(item)]


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Types of the parameters of a function, and of the options that it takes as `**options: Unpack[Keywords]`."""
    hints = get_type_hints(function)
    for hint in [*hints.values()]:
        (keywords,) = get_args(hint) if get_origin(hint) is Unpack else (None,)
        hints.update(get_type_hints(keywords) if is_typeddict(keywords) else {})
    return hints


def defaults_of(function: Callable[..., Any]) -> dict[str, str]:
    """Options of a function, which are its keyword-only parameters, with their defaults as source text."""
    parameters = inspect.signature(function).parameters
    grouped = [] if "options" not in parameters else [name for name in hints_of(function) if name in DEFAULTS]
    return {
        **{item.name: source_text(item.default) for item in parameters.values() if item.kind is item.KEYWORD_ONLY},
        **{name: source_text(DEFAULTS[name]) for name in grouped},
    }


def source_text(value: Any) -> str:
    """A default as it is written in a call."""
    if isinstance(value, Limits):
        return "Limits()"
    return f'"{value}"' if isinstance(value, str) else f"{value:_}" if type(value) is int else repr(value)


def flags_of(command: str) -> dict[str, str]:
    """Options of a command with their defaults as they are given on the command line."""
    found = {}
    for item in command_named(command).params:
        if isinstance(item, click.Option):
            found[item.opts[0]] = flag_text(item)
    return found


def flag_text(option: click.Option) -> str:
    """A default of a command, as it is given there."""
    if option.is_flag:
        return "off"
    value = option.default
    return "none" if option.multiple or not isinstance(value, str | int) else str(value)


def table(entries: dict[str, dict[str, str]]) -> str:
    """One line per option, one column per entry point; empty where an entry point has no such option."""
    names = dict.fromkeys(name for options in entries.values() for name in options)
    known = [name for name in ORDER if name in names]
    lines = [f"| option | {' | '.join(f'`{name}`' for name in entries)} |", "|---" * (len(entries) + 1) + "|"]
    for name in dict.fromkeys([*known, *names]):
        cells = [f"`{options[name]}`" if name in options else "" for options in entries.values()]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def python_defaults() -> str:
    """Options of the Python functions."""
    return table({name: defaults_of(function) for name, function in PYTHON.items()})


def spark_defaults() -> str:
    """Options of the Spark functions."""
    return table({name: defaults_of(function) for name, function in SPARK.items()})


def command_defaults() -> str:
    """Options of the commands, those that functions have too first."""
    order = {f"--{name.replace('_', '-')}": None for name in ORDER}
    entries = {f"pgdecode {name}": flags_of(name) for name in COMMANDS}
    return table(
        {
            entry: dict(sorted(flags.items(), key=lambda item: list(order).index(item[0]) if item[0] in order else 99))
            for entry, flags in entries.items()
        }
    )


def declared() -> str:
    """The options of each task: default, and what they mean."""
    declarations = declared_options(Options)
    flags = {item.name: item for item in command_named("decode").params if isinstance(item, click.Option)}
    names = {*DecoderKeywords.__annotations__, *AsOfKeywords.__annotations__}
    missing = names - {name for task in TASKS.values() for name in task}
    assert not missing, f"TASKS has no {sorted(missing)}"
    lines = []
    for heading, task in TASKS.items():
        lines += [f"### {heading}", "", "| option | default | meaning |", "|---|---|---|"]
        for name in task:
            if name in names:
                default, meaning = source_text(DEFAULTS[name]), declarations[name].help
            else:
                default = {"none": "None", "off": "False"}.get(flag_text(flags[name]), f'"{flag_text(flags[name])}"')
                meaning = flags[name].help or ""
            meaning = re.sub(r"'(\w+)'", r'`"\1"`', meaning)
            lines.append(f"| `{name}` | `{default}` | {meaning} |")
        lines.append("")
    return "\n".join(lines)


def values() -> str:
    """One line per option with few values, and the functions that have it with just these."""
    found: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for name, values, function in typed_options():
        found.setdefault((name, values), []).append(function)
    lines = ["| option | values | of |", "|---|---|---|"]
    order = {name: place for place, name in enumerate(ORDER)}
    for (name, texts), functions in sorted(found.items(), key=lambda item: order.get(item[0][0], 99)):
        choices = ", ".join(f'`"{text}"`' for text in texts)
        lines.append(f"| `{name}` | {choices} | {', '.join(f'`{item}`' for item in functions)} |")
    return "\n".join(lines) + "\n"


def typed_options() -> Iterator[tuple[str, tuple[str, ...], str]]:
    """Options with few values: name, values, and the function."""
    named = {**PYTHON, **{f"spark_udfs.{name}": function for name, function in SPARK.items()}}
    for function, item in named.items():
        hints = hints_of(item)
        for name in defaults_of(item):
            texts = tuple(literals(hints[name]))
            if texts:
                yield name, texts, function
