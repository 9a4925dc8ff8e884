"""The generated parts of the pages under docs/: types, errors, commands, and the message table for the inspector."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq

import pgdecode
from pgdecode.cli.commands import COMMANDS, command_named
from pgdecode.cli.parameters import GroupedCommand
from pgdecode.lake.stored_types import Format, stored_field
from pgdecode.protocol.errors import DecodeError
from pgdecode.protocol.limits import Limits
from pgdecode.protocol.messages import MESSAGES, Column
from pgdecode.protocol.wire import MAX_LSN, wire_fields
from pgdecode.types import pgtypes

DATA = Path(__file__).parents[2] / "data"


def summary(item: object) -> str:
    """The first paragraph of a docstring, on one line."""
    return " ".join((inspect.getdoc(item) or "").split("\n\n")[0].split())


# -- types -----------------------------------------------------------------------------------------------------------


def families() -> Iterator[tuple[str, pa.DataType]]:
    """PostgreSQL types as a reader looks for them, with their Arrow types."""
    for item in pgtypes.TYPES:
        if item.name not in ("numeric", "money"):
            yield item.name, item.arrow(-1)
    for name in ("numeric(12,2)", "numeric", "money", "money(2)"):
        base, _, modifier = name.partition("(")
        if name == "numeric(12,2)":
            yield name, pgtypes.scalar("numeric", (12 << 16 | 2) + 4).arrow
        else:
            found = pgtypes.named(name if modifier and base == "money" else base)
            assert found is not None
            yield name, found.arrow
    for item in pgtypes.RANGES:
        yield item.name, pgtypes.range_of(pgtypes.scalar(item.bound)).arrow
    for name in ("hstore", "vector", "halfvec", "int2vector", "oidvector"):
        found = pgtypes.named(name)
        assert found is not None
        yield name, found.arrow
    for item in pgtypes.NAMED:
        yield item.name, item.arrow(-1)


def type_table() -> str:
    """One line per PostgreSQL type: its Arrow type and its Spark type."""
    from spark_udfs.schema.spark_types import spark_schema, supported_schema

    lines = ["| PostgreSQL | Arrow | Spark |", "|---|---|---|"]
    for name, arrow in sorted(families()):
        supported = supported_schema(pa.schema([("v", arrow)]), has_time=False)
        spark = re.sub(r"([:,])(?=\w*[a-z])", r"\1 ", spark_schema(supported).fields[0].dataType.simpleString())
        lines.append(f"| `{name}` | `{arrow}` | `{spark}` |")
    return "\n".join(lines) + "\n"


def stored_type_table() -> str:
    """One line per Arrow type: the types in which the formats of lakes store it, by the names that they have there."""
    import duckdb
    from deltalake import Schema
    from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids

    def leaf(kind: pa.DataType, format: Format) -> str:
        schema = pa.schema([("v", kind)])
        if format == "delta":
            return str(json.loads(Schema.from_arrow(schema).to_json())["fields"][0]["type"])
        if format == "iceberg":
            return str(_pyarrow_to_schema_without_ids(schema).fields[0].field_type)
        return str(duckdb.from_arrow(schema.empty_table()).types[0])

    def text(kind: pa.DataType, format: Format) -> str:
        if pa.types.is_struct(kind):
            fields = ", ".join(f"{item.name}: {text(item.type, format)}" for item in kind)
            return f"struct&lt;{fields}>"
        if pa.types.is_map(kind):
            return f"map&lt;{text(kind.key_type, format)}, {text(kind.item_type, format)}>"
        if pa.types.is_list(kind):
            return f"list&lt;{text(kind.value_type, format)}>"
        return leaf(kind, format)

    lines = ["| Arrow | Delta | Iceberg | DuckDB |", "|---|---|---|---|"]
    known = dict.fromkeys(arrow for name, arrow in families() if not name.endswith(("range", "vector")))
    for kind in (*known, pgtypes.range_of(pgtypes.scalar("int4")).arrow):
        cells = [str(kind).replace("<", "&lt;")]
        for format in ("delta", "iceberg", "duckdb"):
            stored = stored_field(pa.field("v", kind), format).type
            is_text = stored == pa.string() and kind != stored
            cells.append("**text**" if is_text else text(stored, format))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


# -- errors ----------------------------------------------------------------------------------------------------------


@cache
def error_classes() -> tuple[type[DecodeError], ...]:
    """The classes with a code, in the order in which errors.py defines them."""
    found = {value for value in vars(pgdecode).values() if isinstance(value, type) and issubclass(value, DecodeError)}
    coded = [item for item in found if item.code]
    return tuple(sorted(coded, key=lambda item: inspect.getsourcelines(item)[1]))


def error_table() -> str:
    """One line per error code: its class, what it means, and what to do."""
    lines = ["| code | class | meaning | what to do |", "|---|---|---|---|"]
    for item in error_classes():
        anchor = item.code.lower()
        lines.append(
            f'| <span id="{anchor}"></span>`{item.code}` | `{item.__name__}` | {summary(item)} | {item.remedy} |'
        )
    return "\n".join(lines) + "\n"


# -- commands --------------------------------------------------------------------------------------------------------


def commands() -> str:
    """The help of every command, in Markdown."""
    parts = []
    for name in COMMANDS:
        command = command_named(name)
        context = click.Context(command, info_name=f"pgdecode {name}")
        usage = " ".join(context.get_usage().removeprefix("Usage: ").split())
        parts += [f"## pgdecode {name}\n", f"    {usage}\n"]
        parts += [" ".join(text.split()) + "\n" for text in inspect.cleandoc(command.help or "").split("\n\n")]
        groups = command.groups(context) if isinstance(command, GroupedCommand) else [("option", command.params)]
        for heading, options in groups:
            rows = [record for option in options if option.name != "help" if (record := option_record(option, context))]
            if rows:
                parts.append("\n".join([f"| {heading.lower()} | meaning |", "|---|---|", *rows]) + "\n")
    return "\n".join(parts)


def option_record(parameter: click.Parameter, context: click.Context) -> str | None:
    """A row of the table of options; None for an argument."""
    record = parameter.get_help_record(context)
    if record is None or isinstance(parameter, click.Argument):
        return None
    # In the site's tables, a bar in code is no end of a cell, and a backslash before it would be shown.
    names, meaning = (" ".join(text.split()) for text in record)
    return f"| `{names}` | {meaning.replace('|', '&#124;').replace('<', '&lt;')} |"


# -- the message table as JSON ---------------------------------------------------------------------------------------


def wire_json(owner: type) -> list[dict[str, Any]]:
    """The fields of a message in wire order, with what is allowed in each."""
    found = []
    for item in wire_fields(owner):
        wire = item.wire
        field = {"name": item.name, "form": wire.form.name, "column": wire.column}
        field |= {name: value for name in wire._fields[2:] if (value := getattr(wire, name))}
        found.append({key: value for key, value in field.items() if value is not None})
    return found


def examples() -> list[dict[str, str]]:
    """The first message of each kind that real servers sent, if it is short."""
    found: dict[str, bytes] = {}
    for capture in ("16.shop.v1", "18.streams.v4", "18.twophase.v4bin", "18.txns.v2"):
        payloads = pq.read_table(DATA / f"{capture}.parquet")["data"]
        kinds = pgdecode.decode_messages(payloads, fields=["kind"])["kind"].to_pylist()
        for kind, payload in zip(kinds, payloads.to_pylist(), strict=True):
            if len(payload) <= 300:
                found.setdefault(kind, payload)
    names = [message.kind for message in MESSAGES if message.kind in found]
    return [
        {"name": kind.replace("_", " "), "payload": found[kind].hex()}
        for kind in sorted(names, key=lambda kind: kind != "insert")
    ] + [{"name": "an insert that was cut", "payload": found["insert"][:40].hex()}]


def message_json() -> str:
    """The message table for docs/assets/inspector.js."""
    limits = Limits()
    table = {
        "messages": [
            {
                "tag": item.tag,
                "kind": item.kind,
                "name": item.__name__,
                "about": summary(item),
                "fields": wire_json(item),
            }
            for item in MESSAGES
        ],
        "column": wire_json(Column),
        "limits": {name: getattr(limits, name) for name in ("max_columns", "max_name_bytes", "max_value_bytes")},
        # Numbers of 64 bits are text: JavaScript's numbers would round them.
        "max_lsn": str(MAX_LSN),
        "errors": {item.code: {"about": summary(item), "remedy": item.remedy} for item in error_classes()},
        "examples": examples(),
        "types": {str(oid): name for oid, name in sorted(pgtypes.NAME_BY_OID.items())},
    }
    return re.sub(r"\n {6,}", " ", json.dumps(table, indent=2, ensure_ascii=False)) + "\n"
