"""Formats the statistics of `pgdecode inspect` as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from pgdecode.files.envelope_text import printable
from pgdecode.files.message_statistics import CHANGES
from pgdecode.relations.table_names import qualified_name
from pgdecode.types.pgtypes import NAME_BY_OID
from pgdecode.types.type_parser import without_underscore

COLUMNS_SHOWN = 60
VERSIONS_SHOWN = 10
_BUILT_IN = frozenset(NAME_BY_OID.values())
_GLUE = "\u00a0"  # no-break space; in names it is escaped


def report_text(figures: dict[str, Any], title: str, console: Console) -> str:
    """Format the result of `MessageStatistics.as_dict` for the width and the colours of the console."""
    return printed(_parts(figures, title), console)


def printed(parts: Iterable[RenderableType], console: Console) -> str:
    """Format parts of a report, each followed by an empty line."""
    with console.capture() as captured:
        for part in parts:
            console.print(part, "", sep="\n")
    # Rich pads cells with spaces, which are not useful in a file.
    text = "\n".join(line.rstrip() for line in captured.get().rstrip().splitlines()) + "\n"
    return text.replace(_GLUE, " ")


def size_text(n_bytes: int) -> str:
    """Format a number of bytes with decimal units."""
    if n_bytes < 1000:
        return f"{n_bytes} bytes"
    for unit, size in (("kB", 1e3), ("MB", 1e6)):
        if n_bytes < 999.95 * size:
            return f"{n_bytes / size:.1f} {unit}"
    return f"{n_bytes / 1e9:,.1f} GB"


def _parts(figures: dict[str, Any], title: str) -> Iterator[RenderableType]:
    yield Group(safe_text(title, "bold"), _overview(figures))
    if figures["notes"]:
        yield Group(*(safe_text(f"note: {note}", "yellow") for note in figures["notes"]))
    if figures["kinds"]:
        yield _kinds(figures["kinds"])
    for name in ("largest", "open"):
        if figures[f"{name}_transactions"]:
            yield _sizes(name, figures[f"{name}_transactions"])
    if figures["copies"]:
        copies = plain_table("copy of table", "#rows", "#at")
        for item in figures["copies"]:
            copies.add_row(safe_text(item["table"]), f"{item['rows']:,}", item["lsn"])
        yield copies
    if figures["relations"]:
        yield _changes(figures["relations"])
        legend = safe_text("columns: name, * if in the key, type (its oid if not described)", "cyan")
        yield Group(legend, *map(_definition, figures["relations"]))
    if figures["types"]:
        yield _types(figures["types"])
    if figures["left_out"]:
        yield safe_text(f"{figures['left_out']:,} messages of further relations, versions or types are not listed")
    if figures["errors"]:
        yield _errors(figures["errors"])


def _overview(figures: dict[str, Any]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="cyan", no_wrap=True)
    grid.add_column(overflow="fold")
    n_bad = sum(error["rows"] for error in figures["errors"])
    notes = _counted({"null": figures["null_rows"], "empty payloads": figures["empty_payloads"], "bad": n_bad})
    grid.add_row("rows", f"{figures['rows']:,} ({size_text(figures['payload_bytes'])}{', ' + notes if notes else ''})")
    grid.add_row(
        "transactions",
        _counted(figures["transactions"]) or "none",
    )
    grid.add_row("order", _order(figures["order"]))
    for name in ("lsn", "time"):
        if figures[name]:
            grid.add_row(name, f"{figures[name]['first']} to {figures[name]['last']}")
    hints = figures["protocol"]
    seen = [name.replace("_", " ") for name, value in hints.items() if value is True] or ["nothing streamed"]
    grid.add_row("protocol", f"version {hints['version_at_least']} or later ({', '.join(seen)})")
    grid.add_row("values", _counted(figures["values"]) or "none")
    return grid


def _order(order: dict[str, Any]) -> Text:
    """Describe how the order of the messages was found, or the first fault in it."""
    if not order["followed"]:
        return safe_text(order["fault"] or "not followed")
    text = order["fault"] or ("as in the files" if order["position"] is None else f"by column {order['position']}")
    n = order["repeated"]
    if n:
        text += f"; {n:,} transaction{'' if n == 1 else 's'} with a commit LSN that is not greater than one before"
    return safe_text(text)


def _kinds(kinds: dict[str, dict[str, int]]) -> Table:
    table = plain_table("kind", "#messages", "#bytes", "#bytes each")
    for kind, found in kinds.items():
        each = found["bytes"] / found["messages"]
        table.add_row(kind, f"{found['messages']:,}", f"{found['bytes']:,}", f"{each:,.1f}")
    return table


def _sizes(name: str, transactions: list[dict[str, Any]]) -> Table:
    """List the largest or the open transactions."""
    last = "time" if name == "largest" else "gid"
    table = plain_table(f"{name} transactions (xid)", "#changes", "#begins at", last)
    for item in transactions:
        table.add_row(
            str(item["xid"]), f"{item['changes']:,}", str(item["position"]), safe_text(str(item[last] or "-"))
        )
    return table


def _changes(relations: list[dict[str, Any]]) -> Table:
    table = plain_table("relation", "#oid", *(f"#{kind}s" for kind in CHANGES))
    for relation in relations:
        changes = (f"{relation[f'{kind}s']:,}" if relation[f"{kind}s"] else "-" for kind in CHANGES)
        table.add_row(safe_text(_qualified(relation)), str(relation["relation_id"]), *changes)
    return table


def _definition(relation: dict[str, Any]) -> RenderableType:
    """Format the last definition of a relation, or all its versions with their positions if there are several."""
    n_versions = relation["versions"]
    versions = f"{n_versions} version{'' if n_versions == 1 else 's'}"
    identity = relation["replica_identity"]
    notes = f"  {relation['relation_id']}, {versions}, replica identity {identity or 'unknown'}"
    parts: list[RenderableType] = [safe_text(_qualified(relation)).append(notes, "dim")]
    history = relation["history"]
    if len(history) < 2 and all(version["visible_from"] is not None for version in history):
        return Group(*parts, _indented(_columns(relation["columns"])))
    if len(history) > VERSIONS_SHOWN:
        parts.append(_indented(f"{len(history) - VERSIONS_SHOWN:,} versions before (--json has all)"))
    for version in history[-VERSIONS_SHOWN:]:
        counts = "" if version["visible_from"] is not None else ", not committed"
        renamed = "" if version["name"] == relation["name"] else f", as {printable(_qualified(version))}"
        listed = _columns(version["columns"])
        if version["renamed"]:
            pairs = ", ".join(f"{printable(old)} to {printable(new)}" for old, new in version["renamed"].items())
            listed += f"; renamed {pairs}"
        time = f" ({version['time']})" if version["time"] else ""
        parts.append(_indented(f"at {version['position']}{time}{counts}{renamed}: {listed}"))
    return Group(*parts)


def _indented(text: str) -> Padding:
    return Padding(Text(text), (0, 0, 0, 4))


def columns_text(columns: list[dict[str, Any]], space: str = " ") -> str:
    """List columns with their types, after a space of this kind; * marks those of the key."""
    listed = [
        f"{column['name']}{'*' * column['key']} {column['type'] or column['type_id']}"
        for column in columns[:COLUMNS_SHOWN]
    ]
    listed = [printable(item).replace(" ", space) for item in listed]
    if len(columns) > COLUMNS_SHOWN:
        listed.append(f"and {len(columns) - COLUMNS_SHOWN:,} more (--json has all)")
    return ", ".join(listed) or "no columns"


def _columns(columns: list[dict[str, Any]]) -> str:
    """List columns so that a name and its type stay on one line."""
    return columns_text(columns, _GLUE)


def _types(types: list[dict[str, Any]]) -> Table:
    table = plain_table("type", "#oid")
    for type in types:
        # Only the Type message of a domain has the name of a built-in type.
        is_domain = not type["namespace"] and without_underscore(type["name"]) in _BUILT_IN
        sent = f"{'domain over ' if is_domain else ''}{_qualified(type)}"
        table.add_row(safe_text(type["described"] or sent), str(type["type_id"]))
    return table


def _errors(errors: list[dict[str, Any]]) -> Table:
    table = plain_table("error", "#rows", "first")
    for error in errors:
        first = error["first"]
        # The first column has the code.
        detail = first["error"].removeprefix(f"{error['code']} ")
        table.add_row(error["code"], f"{error['rows']:,}", safe_text(f"{first['file']}: row {first['row']}: {detail}"))
    return table


def plain_table(*headers: str) -> Table:
    """Make a table with headers. A header that begins with # is of a numeric column."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="cyan")
    for header in headers:
        number = header.startswith("#")
        table.add_column(
            header.removeprefix("#"), justify="right" if number else "left", no_wrap=number, overflow="fold"
        )
    return table


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items() if count)


def _qualified(item: dict[str, Any]) -> str:
    if item["name"] is None:
        return "(not described)"
    # The protocol sends pg_catalog as an empty namespace.
    return qualified_name(item["namespace"] or "pg_catalog", item["name"])


def safe_text(text: str, style: str = "") -> Text:
    """Make a text safe to print, without markup and control characters."""
    return Text(printable(text), style=style)
