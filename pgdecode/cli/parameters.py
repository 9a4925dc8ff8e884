"""Options that commands share, and functions that parse their values."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import click
from click.core import ParameterSource

from pgdecode.files.payload_file import FileFault
from pgdecode.protocol.errors import unknown_names
from pgdecode.protocol.options import (
    MAX_VALUE_BYTES,
    AsOfKeywords,
    InStream,
    Unwrap,
    declared_options,
)
from pgdecode.relations.catalog import RelationCatalog
from pgdecode.relations.table_names import normal_name
from pgdecode.rows.options import DEFAULTS, OF_TABLES, DecoderKeywords, Options, option_types
from pgdecode.storage.errors import PathError
from pgdecode.storage.object_path import local_path
from pgdecode.types.type_parser import builtin_name, declared

IN_STREAM: dict[str, InStream | bool] = {"ordered": "ordered", "auto": "auto", "true": True, "false": False}


_HAS_REMEDY = re.compile(r"--|types=|looks like")
# Errors of a single payload, which the following ones do not depend on.
_OF_ONE_PAYLOAD = re.compile(
    r": (UNKNOWN_TAG|TRUNCATED|TRAILING|BAD_\w+|NO_NUL|EMPTY_NAME|ENCODING|OUT_OF_RANGE|WRONG_SIZE)( at offset \d+)?: "
)
# The faults of a value in a typed column, and what else may be the reason.
_OF_A_VALUE = re.compile(r": (BAD_VALUE|WRONG_SIZE|OUT_OF_RANGE|ENCODING)( at offset \d+)?: column '")
_REMEDIES = {
    **dict.fromkeys(
        ("BAD_VALUE", "WRONG_SIZE", "OUT_OF_RANGE"),
        "is its type another one? --types NAME=TYPE declares it, --types NAME=text reads it as text",
    ),
    "ENCODING": "--encoding names the client_encoding of the capture",
}


class GroupedCommand(click.Command):
    """A command whose help has its options in groups, in the order of `GROUPS`. The rest are the last group.

    The page of --help explains the options that most users need, and names the others; --help-all explains all.
    """

    def get_params(self, context: click.Context) -> list[click.Parameter]:
        """Return the parameters, with --help-all before --help."""
        *found, last = super().get_params(context)
        everything = click.Option(
            ["--help-all"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=self._print_all,
            help="Explain all options.",
        )
        return [*found, everything, last]

    def _print_all(self, context: click.Context, option: click.Parameter, is_wanted: bool) -> None:
        if is_wanted and not context.resilient_parsing:
            context.meta[__name__] = "all"
            click.echo(context.get_help(), color=context.color)
            context.exit()

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options."""
        others = []
        for heading, options in self.groups(context):
            first = [
                item for item in options if item.name in FIRST or not item.expose_value or __name__ in context.meta
            ]
            records = [record for item in first if (record := item.get_help_record(context))]
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)
            more = [item.opts[0] for item in options if item not in first]
            others += [(heading, ", ".join(more))] if more else []
        if others:
            with formatter.section("More options, which --help-all explains"):
                formatter.write_dl(others)

    def groups(self, context: click.Context) -> list[tuple[str, list[click.Parameter]]]:
        """Return the groups with their options."""
        rest: dict[str, click.Parameter] = {
            item.name or "": item for item in self.get_params(context) if isinstance(item, click.Option)
        }
        found = [(heading, [rest.pop(name) for name in names if name in rest]) for heading, names in GROUPS.items()]
        return [(heading, options) for heading, options in [*found, ("Other options", [*rest.values()])] if options]


def names(context: click.Context, option: click.Parameter, values: Sequence[str]) -> tuple[str, ...]:
    """Split names that are separated by commas. The option may also be repeated."""
    return tuple(dict.fromkeys(name for value in values for name in value.split(",") if name))


def check_names(option: str, values: Sequence[str], known: Sequence[str]) -> None:
    """Refuse unknown names among the values of an option."""
    unknown = [name for name in values if name not in known]
    if unknown:
        raise click.BadParameter(f"no {unknown_names(unknown, known)}", param_hint=repr(option))


@contextmanager
def suggesting(remedy: str) -> Iterator[None]:
    """Add a remedy to the error of a single payload, unless its text has one."""
    try:
        yield
    except FileFault as error:
        text = str(error)
        if _OF_ONE_PAYLOAD.search(text) and not _HAS_REMEDY.search(text):
            of_value = _OF_A_VALUE.search(text)
            if of_value is not None:
                # The value may be good: leaving it out is not the first remedy.
                remedy = f"{_REMEDIES[of_value[1]]}. For corrupt messages: {remedy}"
            raise FileFault(f"{text}; {remedy}") from error.__cause__
        raise


def _distinct(context: click.Context, option: click.Parameter, values: Sequence[str]) -> tuple[str, ...]:
    """Remove repeated names of tables. They are not split, because a table's name may have a comma."""
    return tuple(dict.fromkeys(map(normal_name, values)))


def _types(context: click.Context, option: click.Parameter, values: Sequence[str]) -> dict[str | int, str]:
    """Parse NAME=TYPE. The name may be an OID."""
    found: dict[str | int, str] = {}
    for value in values:
        name, _, type = value.rpartition("=")
        if not name or not type:
            raise click.BadParameter(f"{value!r} is not NAME=TYPE, such as public.price=numeric(12,2)", context, option)
        found[int(name) if name.isascii() and name.isdigit() else name] = type
    try:
        for name_or_oid, type in found.items():
            declared(type, found)
            if isinstance(name_or_oid, str):
                builtin_name(name_or_oid)
    except ValueError as error:
        raise click.BadParameter(str(error), context, option) from error
    return found


# A name, which has quotes around it if it contains a dot, an equals sign or a quote.
_NAME = r'(?:"(?:[^"]|"")+"|[^".=]+)'
_RENAME = re.compile(rf"({_NAME}\.{_NAME})\.({_NAME})=({_NAME})@(\d+)")


def _renames(
    context: click.Context, option: click.Parameter, values: Sequence[str]
) -> dict[str | int, list[tuple[str, str, int]]]:
    """Parse SCHEMA.TABLE.OLD=NEW@POSITION."""
    found: dict[str | int, list[tuple[str, str, int]]] = {}
    for value in values:
        parts = _RENAME.fullmatch(value)
        if parts is None:
            example = "SCHEMA.TABLE.OLD=NEW@POSITION, such as public.orders.price=total@4711"
            raise click.BadParameter(f"{value!r} is not {example}", context, option)
        table, old, new, position = parts.groups()
        old, new = (name[1:-1].replace('""', '"') if name.startswith('"') else name for name in (old, new))
        found.setdefault(normal_name(table), []).append((old, new, int(position)))
    return found


def _storage_options(context: click.Context, option: click.Parameter, values: Sequence[str]) -> dict[str, str]:
    """Parse NAME=VALUE. The text of an error does not have the value."""
    for value in values:
        if not value.partition("=")[0] or "=" not in value:
            raise click.BadParameter("is not NAME=VALUE, such as region=eu-west-1", context, option)
    return {name: value for name, _, value in (item.partition("=") for item in values)}


def _catalog(context: click.Context, option: click.Parameter, value: Path | None) -> RelationCatalog | None:
    """Read a catalog."""
    if value is None:
        return None
    try:
        return RelationCatalog.from_json(value.read_bytes())
    except OSError as error:
        raise PathError(f"{value}: {error.strerror}") from error
    except ValueError as error:
        raise PathError(f"{value}: not relations as RelationCatalog.to_json writes them: {error}") from error


def refuse(context: click.Context, parameters: Collection[str], use: str) -> None:
    """Refuse parameters that do not apply here. `use` is what they are for."""
    for option in context.command.params:
        given = context.get_parameter_source(option.name or "") is not ParameterSource.DEFAULT
        if option.name in parameters and given:
            raise click.UsageError(f"{option.opts[0]} is for {use}")


class _LocalPath(click.Path):
    """A path. Without this, a URI would be the name of a local folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return local_path(os.fsdecode(super().convert(value, param, ctx)), "this")
        except PathError as error:
            self.fail(str(error), param, ctx)


path = _LocalPath()
# A path or a URI; `file_path` converts it.
location = click.Path()
storage_options = click.option(
    "--storage-option",
    "storage_options",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_storage_options,
    help="For s3://, gs://, az:// and abfss://: how to connect to the store, such as region=eu-west-1 or endpoint=URL. "
    "Credentials are better in the environment, as for the store's own tools. Repeatable.",
)
payload = click.option(
    "--payload", default="data", show_default=True, metavar="COLUMN", help="The column with the messages."
)
unwrap = click.option(
    "--unwrap",
    type=click.Choice(get_args(Unwrap)),
    default="auto",
    show_default=True,
    help="The form of the messages. 'auto' recognises replication frames, and in text columns hexadecimal and base64.",
)
in_stream = click.option(
    "--in-stream",
    type=click.Choice([*IN_STREAM]),
    default="ordered",
    show_default=True,
    help="Which messages carry the xid of a streamed transaction: 'ordered' uses stream_start and stream_stop in each "
    "file, which is exact; 'auto' uses each message alone; 'true' means all, 'false' none.",
)
as_json = click.option(
    "--json/--no-json",
    "as_json",
    default=None,
    help="Print rows as JSON lines, or as tables for people. Default: tables on a terminal, otherwise JSON lines.",
)
workers = click.option(
    "--workers",
    type=click.IntRange(min=1),
    metavar="N",
    help="Threads that read, decode and write side by side. The result does not depend on it. Default: all cores.",
)
max_value_bytes = click.option(
    "--max-value-bytes",
    type=click.IntRange(1, MAX_VALUE_BYTES),
    default=MAX_VALUE_BYTES,
    metavar="N",
    help="A longer value is bad. With --mode PERMISSIVE, it is null in its row of a table or change. Default: "
    f"{MAX_VALUE_BYTES:,}, all that a server can send.",
)


def _declared(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make the parameter of a declared option: its values, default and help are those of the declaration."""
    item, kind = declared_options(Options)[name], option_types()[name]
    flag = f"--{item.flag or name.replace('_', '-')}"
    if kind is bool:
        return click.option(flag, name, is_flag=True, help=item.help)
    if name in _PARSERS:
        return click.option(
            flag, name, multiple=True, metavar=item.metavar, callback=_PARSERS[name], help=f"{item.help} Repeatable."
        )
    values = get_args(kind) if get_origin(kind) is Literal else ()
    any_case = bool(values) and values[0].isupper()
    return click.option(
        flag,
        name,
        type=click.Choice(values, case_sensitive=not any_case) if values else str,
        metavar=f"[{'|'.join(values)}]" if any_case else item.metavar or None,
        default=DEFAULTS[name],
        show_default=True,
        help=item.help,
    )


# The options of changes and tables that commands have.
DECLARED = tuple(name for name in DecoderKeywords.__annotations__ if declared_options(Options)[name].is_of_commands)
# Also those of snapshots.
OF_OPTIONS = (*DECLARED, *AsOfKeywords.__annotations__)
_PARSERS: dict[str, Callable[..., Any]] = {"types": _types, "renames": _renames}
mode = _declared("mode")
renames = _declared("renames")
types = _declared("types")
unrepresentable = _declared("unrepresentable")
name_clash = _declared("name_clash")
as_of = _declared("as_of")
shape = _declared("shape")
position = click.option(
    "--position",
    metavar="COLUMN",
    help="The column with ascending integers in the order of the messages. Default: seq or position, if it exists; "
    "otherwise the order of rows and of files' names.",
)
_UNCOMMITTED = _declared("include_uncommitted")
_changes: tuple[Callable[[Any], Any], ...] = (
    position,
    click.option(
        "--session",
        metavar="COLUMN",
        help="A column whose value changes at a reconnect, after which the server sends open transactions again. "
        "Without it, a reconnect is recognised only from an impossible order of messages.",
    ),
    *map(_declared, ("start", "empty", "drop_duplicates")),
    _UNCOMMITTED,
    click.option(
        "--catalog",
        type=path,
        metavar="FILE",
        callback=_catalog,
        help="Relations that the messages do not describe, because they begin in the middle of a session: a file from "
        "RelationCatalog.to_json or 'pgdecode inspect --write-catalog'. It is for the first messages: later calls have "
        "the relations, and ignore the file.",
    ),
    *map(_declared, ("types", "encoding", "datestyle")),
)


def changes(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of changes to a command. `options_from` reads those that are declared."""
    for option in reversed(_changes):
        command = option(command)
    return command


def transactions(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add those of the options of changes that are not of changes without a commit."""
    for option in reversed(_changes):
        if option is not _UNCOMMITTED:
            command = option(command)
    return command


def connections(help: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option for the number of connections that read a table."""
    return click.option(
        "--connections", type=click.IntRange(min=1), default=1, show_default=True, metavar="N", help=help
    )


accept_gap = click.option(
    "--accept-gap",
    is_flag=True,
    help="Decode over gaps that 'pgdecode capture --accept-gap' has left between files: changes are missing there.",
)

# Names of the parameters that apply only to changes and tables, and only to messages.
OF_CHANGES = (
    *("position", "session", "catalog"),
    *(name for name in DECLARED if name not in ("mode", *OF_TABLES)),
)
OF_MESSAGES = ("in_stream", "keep", "fields")
GROUPS: Mapping[str, Sequence[str]] = {
    "What to write": (
        *("messages", "changes", "tables", "table", "snapshots", "nets", "key"),
        *("until", "schema_changes", "dry_run"),
        *("format", "overwrite", "show", "as_json", "limit", "kinds"),
    ),
    "Input": ("payload", "unwrap", "position", "session", "accept_gap", "storage_options"),
    "Messages": OF_MESSAGES,
    "Changes and tables": (*(name for name in OF_OPTIONS if name != "mode"), "catalog"),
    "Bad messages": ("mode", "bad", "max_value_bytes"),
    "Engine": ("engine", "workers", "batch_rows", "master", "remote", "conf"),
}
# The parameters on the first page of help.
FIRST = frozenset(
    (
        *("messages", "changes", "tables", "snapshots", "nets", "format", "overwrite", "limit", "kinds"),
        *("payload", "position", "storage_options", "fields", "start", "drop_duplicates", "types"),
        *("mode", "bad", "engine", "workers"),
        *("until", "schema_changes", "dry_run"),
    )
)


def options_from(given: Mapping[str, Any]) -> Options:
    """Take the options of changes and tables, which are checked, out of the parameters of a command."""
    found = {name: given[name] for name in ("max_value_bytes", *OF_OPTIONS) if name in given}
    # Without values, an option that may be repeated is empty.
    found |= {name: found[name] or None for name in _PARSERS if name in found}
    try:
        return Options.of(found)
    except ValueError as error:
        # Texts begin with the name of the parameter.
        name, _, rest = str(error).partition(" ")
        flag = f"--{name.replace('_', '-')}" if name in found else name
        raise click.UsageError(f"{flag} {rest}") from error


def _written(flag: str, name: str, help: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make an option that names tables to write."""
    return click.option(
        flag, name, multiple=True, metavar="SCHEMA.TABLE", callback=_distinct, help=f"{help} Repeatable."
    )


tables = _written("--table", "tables", "Write the committed changes of a table as typed columns.")
snapshots = _written(
    "--snapshot", "snapshots", "Write the rows that a table has at the end, after all committed changes."
)
nets = _written(
    "--net", "nets", "Write the net changes of a table: one row for each row that the call's changes touched."
)
applied = _written("--table", "tables", "Apply only this table. Default: all.")
excluded = _written("--exclude", "exclude", "Do not apply this table.")
compared = _written("--table", "tables", "Compare only this table. Default: all.")
key = click.option(
    "--key",
    multiple=True,
    metavar="COLUMN,...",
    callback=names,
    help="With --net: the columns that tell rows apart, such as the primary key, if the replica identity is FULL. "
    "Default: those of the replica identity.",
)
