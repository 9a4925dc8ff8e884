"""Tables of decoded rows for a terminal. The rows are the JSON objects that commands print if there is no terminal."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pgdecode.arrow.json_text import encode
from pgdecode.cli.report import columns_text
from pgdecode.files.envelope_text import printable
from pgdecode.files.message_statistics import REPLICA_IDENTITIES
from pgdecode.protocol.messages import Type
from pgdecode.relations.table_names import qualified_name
from pgdecode.rows.row_schema import sql_type_name
from pgdecode.types.user_types import UserType

# How SQL NULL and a value that was not sent are shown.
NULL, UNCHANGED = "NULL", "unchanged"
What = Literal["messages", "changes", "table"]
Row = Mapping[str, Any]

WIDEST_COLUMN = 40
_GAP = 3  # columns between two cells: padding, and a space of the box
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_NO_FRACTION = re.compile(r"^(\d{4,}-\d\d-\d\dT\d\d:\d\d:\d\d)\.000000")
_STYLES = {
    **{"insert": "green", "update": "yellow", "delete": "red", "truncate": "magenta"},
    **{"begin": "cyan", "commit": "cyan", "relation": "blue", "type": "blue"},
}
# The column that takes the rest of the width.
_TEXT = {"messages": "fields", "changes": "row"}


class TypeNames:
    """Names of types, from the footers of files and from the Type messages that have been printed."""

    def __init__(self, user_types: Iterable[UserType] = ()) -> None:
        self._described = {item.oid: item for item in user_types}
        self._messages: dict[int, Type] = {}

    def of(self, type_id: int) -> str | None:
        """Return the name of a type; None if nothing describes it."""
        return sql_type_name(type_id, self._messages, self._described)

    def add(self, message: Row) -> None:
        """Add a Type message."""
        self._messages[message["type_id"]] = Type(message["type_id"], message["namespace"], message["name"])


def print_table(
    console: Console, what: What, rows: Sequence[Row], heading: str = "", types: TypeNames | None = None
) -> None:
    """Print rows as one table.

    Columns of a table that begin with `_`, which are not its data, come last. SQL NULL is shown as NULL, and a TOASTed
    value that was not sent as unchanged. Texts that could be mistaken for them, and empty ones, are in quotes. Long
    values are cut. Columns that do not fit the width are named below the table.

    Parameters
    ----------
    console : Console
    what : {"messages", "changes", "table"}
        What the rows are: objects of messages, of changes, or of the rows of one table.
    rows : sequence of mapping
    heading : str
    types : TypeNames, optional
        For messages: names of types. Those that the rows describe are added.
    """
    if heading:
        console.print(Text(printable(heading), style="bold"))
    if not rows:
        console.print(Text("no rows", style="dim"))
        return
    known = TypeNames() if types is None else types
    cells = [_of_message(row, known) if what == "messages" else _CELLS[what](row) for row in rows]
    names = list(dict.fromkeys(name for row in cells for name in row))
    shown, left = _fitting(names, cells, console.width, _TEXT.get(what))
    table = Table(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0), header_style="cyan"
    )
    for name, width in shown.items():
        is_number = all(_NUMBER.fullmatch(row[name].plain) or row[name].style == "dim" for row in cells if name in row)
        table.add_column(
            printable(name),
            justify="right" if is_number else "left",
            no_wrap=True,
            overflow="ellipsis",
            max_width=width,
        )
    for row in cells:
        table.add_row(*(row.get(name, Text()) for name in shown))
    console.print(table)
    if left:
        note = f"{len(left)} more: {', '.join(left)}"
        console.print(Text(printable(note), style="dim"), no_wrap=True, overflow="ellipsis")


def _fitting(
    names: Sequence[str], cells: Sequence[Mapping[str, Text]], width: int, last: str | None
) -> tuple[dict[str, int], list[str]]:
    """Choose the columns that fit a width. Return their widths, and the names of the others."""
    widest = {name: max(len(printable(name)), *(row[name].cell_len for row in cells if name in row)) for name in names}
    # The operation is always shown, as the last column if not all fit.
    room = width - (widest["_op"] + _GAP if "_op" in names else 0)
    shown: dict[str, int] = {}
    left: list[str] = []
    for name in names:
        own = room if name == last else min(widest[name], WIDEST_COLUMN)
        if name == "_op":
            shown[name] = own
        elif (own <= room and not (left and name.startswith("_"))) or not shown:
            shown[name] = max(min(own, room), 1)
            room -= own + _GAP
        else:
            left.append(name)
    return shown, left


def _of_message(row: Row, types: TypeNames) -> dict[str, Text]:
    kind = "error" if "error" in row else row.get("kind") or "null"
    if kind in ("type", "relation") and row.keys() >= {"namespace", "name"}:
        row = _definition(row, types)
    fields = "  ".join(f"{name} {_plain(value)}" for name, value in row.items() if name != "kind")
    return {"kind": Text(kind, style=_STYLES.get(kind, "red" if kind == "error" else "")), "fields": _text(fields)}


def _definition(row: Row, types: TypeNames) -> Row:
    """Write names and columns of a Relation or Type message as `inspect` does."""
    shown = {name: value for name, value in row.items() if name != "namespace"}
    if row["kind"] == "type":
        types.add(row)
    if "columns" in shown and "replica_identity" in shown:
        columns = [
            {**item, "key": bool(item["flags"] & 1), "type": types.of(item["type_id"])} for item in row["columns"]
        ]
        del shown["replica_identity"], shown["columns"]
        identity = REPLICA_IDENTITIES.get(row["replica_identity"], row["replica_identity"])
        shown.update(columns=columns_text(columns), replica_identity=identity)
    # The protocol sends pg_catalog as an empty namespace.
    return {**shown, "name": qualified_name(row["namespace"] or "pg_catalog", row["name"])}


def _of_change(row: Row) -> dict[str, Text]:
    if row.get("error"):
        return {"op": Text("error", style="red"), "table": Text(), "row": _text(row["error"])}
    op = row.get("op") or ""
    old, new = row.get("old") or {}, row.get("new")
    values = old if new is None else new
    changed = [name for name in values if new is not None and name in old and old[name] != new[name]]
    shown = Text()
    unchanged = row.get("unchanged") or ()
    for name in dict.fromkeys((*changed, *unchanged, *values)):
        if name in unchanged:
            shown.append(f"{', ' if shown else ''}{printable(name)} {UNCHANGED}", style="dim")
            continue
        value = values[name]
        shown.append(f"{', ' if shown else ''}{printable(name)} ", style="dim")
        if name in changed:
            shown.append_text(_cell(old[name])).append(" → ")
        shown.append_text(_cell(value))
    name = qualified_name(row.get("namespace") or "", row.get("relation_name") or "")
    return {"op": Text(op, style=_STYLES.get(op, "")), "table": _text(name), "xid": _cell(row.get("xid")), "row": shown}


def _of_table(row: Row) -> dict[str, Text]:
    data = {name: value for name, value in row.items() if not name.startswith("_")}
    unchanged = row.get("_unchanged") or ()
    cells = {name: _UNCHANGED if name in unchanged else _cell(value) for name, value in data.items()}
    for name, value in row.items():
        # Fields that say nothing about this row, such as `_old` of an insert, take no width.
        if name.startswith("_") and value not in (None, []) and name != "_unchanged":
            cells[name] = Text(value, style=_STYLES.get(value, "")) if name == "_op" else _cell(value)
    return cells


_CELLS: dict[str, Callable[[Row], dict[str, Text]]] = {
    "changes": _of_change,
    "table": _of_table,
}
_UNCHANGED = Text(UNCHANGED, style="dim")


def _cell(value: Any) -> Text:
    if value is None:
        return Text(NULL, style="dim")
    text = _plain(value)
    return _text(f'"{text}"' if text in ("", NULL, UNCHANGED) else text)


def _plain(value: Any) -> str:
    text = value if isinstance(value, str) else encode(value)
    return _NO_FRACTION.sub(r"\1", text)


def _text(text: str) -> Text:
    return Text(printable(text))
