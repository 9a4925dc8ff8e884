"""Options that commands share, and how their values are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import click
from click.core import ParameterSource

from pgdecode.batches import MODES
from pgdecode.catalog import RelationCatalog
from pgdecode.files import PathError
from pgdecode.pgtypes import named

IN_STREAM: dict[str, bool | str | None] = {"ordered": None, "auto": "auto", "true": True, "false": False}


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
            raise click.BadParameter(f"{value!r} is not NAME=TYPE, such as public.price=numeric", context, option)
        if named(type, -1) is None:
            raise click.BadParameter(f"no type {type!r}", context, option)
        found[int(name) if name.isascii() and name.isdigit() else name] = type
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
    type=click.Choice(MODES, case_sensitive=False),
    metavar=f"[{'|'.join(MODES)}]",
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
uncommitted = click.option(
    "--include-uncommitted",
    is_flag=True,
    help="Also changes that were rolled back (committed is false) or have no outcome (it is null). Rows of a table "
    "then have no _commit_position.",
)
types = click.option(
    "--types",
    multiple=True,
    metavar="NAME=TYPE",
    callback=_types,
    help="What a type is that the messages do not describe, by name or OID: public.price=numeric, 790=money(2). "
    "Repeatable.",
)
catalog = click.option(
    "--catalog",
    type=path,
    metavar="FILE",
    callback=_catalog,
    help="Relations that the messages do not describe, since they begin mid-stream, as RelationCatalog.to_json or "
    "'pgdecode inspect --write-catalog' wrote them.",
)
tables = click.option(
    "--table",
    "tables",
    multiple=True,
    metavar="SCHEMA.TABLE",
    callback=_distinct,
    help="Write the committed changes of a table as typed columns. Repeatable.",
)
# What is of use for changes and tables alone, and for messages alone, by the parameters' names.
OF_CHANGES = ("position", "include_uncommitted", "types", "catalog")
OF_MESSAGES = ("in_stream", "keep", "fields")
