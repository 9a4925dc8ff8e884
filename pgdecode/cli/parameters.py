"""Options that commands share, and how their values are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import click
from click.core import ParameterSource

from pgdecode.files.change_reader import FileChangeOptions
from pgdecode.files.payload_files import PathError
from pgdecode.protocol.options import ChangeOptions, Empty, InStream, Mode, Start, UnrepresentableValues
from pgdecode.relations.catalog import RelationCatalog
from pgdecode.rows.value_options import ValueOptions
from pgdecode.types.type_parser import declared

IN_STREAM: dict[str, InStream | bool] = {"ordered": "ordered", "auto": "auto", "true": True, "false": False}


def names(context: click.Context, option: click.Parameter, values: Sequence[str]) -> tuple[str, ...]:
    """Split names that were given with commas, by repeating the option, or both."""
    return tuple(dict.fromkeys(name for value in values for name in value.split(",") if name))


def known(expected: Sequence[str]) -> Callable[[click.Context, click.Parameter, Sequence[str]], tuple[str, ...]]:
    """Split names, and refuse those that are not expected."""

    def split(context: click.Context, option: click.Parameter, values: Sequence[str]) -> tuple[str, ...]:
        found = names(context, option, values)
        for name in found:
            if name not in expected:
                raise click.BadParameter(f"no {name!r}; there are {', '.join(expected)}", context, option)
        return found

    return split


def _distinct(context: click.Context, option: click.Parameter, values: Sequence[str]) -> tuple[str, ...]:
    """Leave out what was given before; a table's name may have a comma in it."""
    return tuple(dict.fromkeys(values))


def _types(context: click.Context, option: click.Parameter, values: Sequence[str]) -> dict[str | int, str]:
    """Read NAME=TYPE, where the name may be an OID."""
    found: dict[str | int, str] = {}
    for value in values:
        name, _, type = value.rpartition("=")
        if not name or not type:
            raise click.BadParameter(f"{value!r} is not NAME=TYPE, such as public.price=numeric(12,2)", context, option)
        found[int(name) if name.isascii() and name.isdigit() else name] = type
    try:
        for type in found.values():
            declared(type, found)
    except ValueError as error:
        raise click.BadParameter(str(error), context, option) from error
    return found


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


def refuse(context: click.Context, parameters: Sequence[str], use: str) -> None:
    """Refuse parameters that were given, but are of use elsewhere only."""
    for option in context.command.params:
        given = context.get_parameter_source(option.name or "") is not ParameterSource.DEFAULT
        if option.name in parameters and given:
            raise click.UsageError(f"{option.opts[0]} is for {use}")


path = click.Path(path_type=Path)
payload = click.option(
    "--payload", default="data", show_default=True, metavar="COLUMN", help="The column that holds the messages."
)
in_stream = click.option(
    "--in-stream",
    type=click.Choice([*IN_STREAM]),
    default="ordered",
    show_default=True,
    help="Which messages carry the xid of a streamed transaction: 'ordered' follows stream_start and stream_stop in "
    "each file, which is exact; 'auto' looks at each message alone; 'true' and 'false' say so of all.",
)
mode = click.option(
    "--mode",
    type=click.Choice(get_args(Mode), case_sensitive=False),
    metavar=f"[{'|'.join(get_args(Mode))}]",
    default="FAILFAST",
    show_default=True,
    help="At a bad message: stop; give its error instead; leave it out.",
)
position = click.option(
    "--position",
    metavar="COLUMN",
    help="The column that tells the order of the messages, by integers that ascend. Default: seq or position, if there "
    "is one, else the order of the rows and of the files' names.",
)
_changes = (
    position,
    click.option(
        "--session",
        metavar="COLUMN",
        help="A column whose value changes where the connection to the server was made anew: what was open then is "
        "sent again. Without it, a reconnect is recognised where messages could not follow each other otherwise.",
    ),
    click.option(
        "--start",
        type=click.Choice(get_args(Start)),
        default="transaction",
        show_default=True,
        help="Where the messages begin. What belongs to a transaction whose beginning is missing is an error; with "
        "'anywhere' such transactions are left out whole, and counted.",
    ),
    click.option(
        "--empty",
        type=click.Choice(get_args(Empty)),
        default="null",
        show_default=True,
        help="Messages of no bytes, which servers send for an origin without a name: pass over and count them, or "
        "refuse them.",
    ),
    click.option(
        "--drop-duplicates",
        is_flag=True,
        help="Leave out transactions that were sent before, as servers do after a reconnect: those whose commit LSN is "
        "not past all earlier ones.",
    ),
    click.option(
        "--include-uncommitted",
        is_flag=True,
        help="Also changes that were rolled back (committed is false) or have no outcome (it is null). Rows of a table "
        "then have no _commit_position.",
    ),
    click.option(
        "--catalog",
        type=path,
        metavar="FILE",
        callback=_catalog,
        help="Relations that the messages do not describe, since they begin mid-stream, as RelationCatalog.to_json or "
        "'pgdecode inspect --write-catalog' wrote them.",
    ),
    click.option(
        "--types",
        multiple=True,
        metavar="NAME=TYPE",
        callback=_types,
        help="What a type is that the messages do not describe, by name or OID: public.price=numeric(12,2), "
        "790=money(2). Repeatable.",
    ),
    click.option(
        "--encoding",
        default="UTF8",
        show_default=True,
        metavar="NAME",
        help="client_encoding of the session that captured the messages.",
    ),
    click.option(
        "--datestyle",
        default="ISO, MDY",
        show_default=True,
        metavar="STYLE",
        help="DateStyle of the session that captured the messages.",
    ),
)


def changes(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of changes, which `change_parameters` reads."""
    for option in reversed(_changes):
        command = option(command)
    return command


# What is of use for changes and tables alone, and for messages alone, by the parameters' names.
OF_CHANGES = (
    *("position", "session", "start", "empty", "drop_duplicates"),
    *("include_uncommitted", "catalog", "types", "encoding", "datestyle"),
)
OF_MESSAGES = ("in_stream", "keep", "fields")


def change_parameters(
    mode: Mode, given: Mapping[str, Any], unrepresentable: UnrepresentableValues = "error"
) -> FileChangeOptions:
    """Read the options of changes, all but the position and the session."""
    try:
        value_options = ValueOptions(given["types"], unrepresentable, given["encoding"], given["datestyle"])
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    change_options = ChangeOptions(
        mode=mode,
        include_uncommitted=given["include_uncommitted"],
        drop_duplicates=given["drop_duplicates"],
        start=given["start"],
        empty=given["empty"],
    )
    return FileChangeOptions(change_options, value_options, given["catalog"])


tables = click.option(
    "--table",
    "tables",
    multiple=True,
    metavar="SCHEMA.TABLE",
    callback=_distinct,
    help="Write the committed changes of a table as typed columns. Repeatable.",
)
unrepresentable = click.option(
    "--unrepresentable",
    type=click.Choice(get_args(UnrepresentableValues)),
    default="error",
    show_default=True,
    help="What becomes of values of a table that PostgreSQL has and the column's type has not, such as NaN in a "
    "decimal: a bad value; null; the nearest there is; or columns with such values are text.",
)
