"""What changed in the tables that messages describe, and where: the report of `inspect --schema-changes`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pgdecode.arrow.json_text import timestamp_to_text
from pgdecode.cli.report import COLUMNS_SHOWN
from pgdecode.files.envelope_text import printable
from pgdecode.files.message_statistics import REPLICA_IDENTITIES
from pgdecode.protocol.messages import Column
from pgdecode.relations.column_history import histories
from pgdecode.relations.relation_version import RelationVersion
from pgdecode.rows.row_schema import sql_type_name
from pgdecode.types.pgtypes import numeric_modifier
from pgdecode.types.user_types import UserType

SchemaChange = dict[str, Any]


def schema_changes(
    versions: Iterable[RelationVersion],
    time_of: Callable[[RelationVersion], int | None],
    user_types: Iterable[UserType] = (),
) -> list[SchemaChange]:
    """List what changed from one version of each relation to the next, in the order of positions.

    Parameters
    ----------
    versions : iterable of RelationVersion
    time_of : callable
        Returns the time of a version in microseconds, if it is known.
    user_types : iterable of UserType
        From the footers of the files.

    Returns
    -------
    list of dict
        `position` and `time` of the version, `table`, `relation_id`, `change`, `column`, `before` and `after`. `change`
        is table seen, table renamed, column added, column dropped, column renamed, type changed, key changed or replica
        identity changed. A table is seen with its first columns.
    """
    described = {item.oid: item for item in user_types}
    committed = [version for version in versions if version.visible_from is not None]
    found = []
    for history in histories(dict(enumerate(committed))):
        before, names = None, dict[str, str]()
        for number, next_names in reversed([*history.steps()]):
            after = committed[number]
            time_us = time_of(after)
            about = {
                "position": after.position,
                "time": None if time_us is None else timestamp_to_text(time_us),
                "table": after.qualified_name,
                "relation_id": after.relation_id,
            }
            for change, column, old, new in _steps(before, after, names, described):
                found.append({**about, "change": change, "column": column, "before": old, "after": new})
            before, names = after, next_names
    return sorted(found, key=lambda item: item["position"])


def schema_changes_text(changes: list[SchemaChange]) -> str:
    """Format the changes, one a line."""
    return "".join(printable(_line(item)) + "\n" for item in changes) or "no table is described\n"


def _line(item: SchemaChange) -> str:
    change, column, before, after = (item[name] for name in ("change", "column", "before", "after"))
    if change == "table seen":
        listed = (after or "no columns").split(", ")
        more = f", and {len(listed) - COLUMNS_SHOWN:,} more (--json has all)" if len(listed) > COLUMNS_SHOWN else ""
        text = f"seen with {', '.join(listed[:COLUMNS_SHOWN])}{more}"
    elif change in ("column added", "column dropped"):
        text = f"{change}: {column} {before or after}"
    else:
        name = f" of {column}" if change == "type changed" else ""
        text = f"{change}{name}: {before or 'none'} to {after or 'none'}"
    time = f" ({item['time']})" if item["time"] else ""
    return f"at {item['position']}{time}: {item['table']}: {text}"


def _steps(
    before: RelationVersion | None,
    after: RelationVersion,
    names: Mapping[str, str],
    described: Mapping[int, UserType],
) -> Iterator[tuple[str, str | None, str | None, str | None]]:
    """Yield each change: what, the column, and what it was and is. `names` has the new names of columns that stay."""
    types = _types(after, described)
    if before is None:
        yield "table seen", None, None, ", ".join(f"{name} {type}" for name, type in types.items()) or None
        return
    if before.qualified_name != after.qualified_name:
        yield "table renamed", None, before.qualified_name, after.qualified_name
    for old, type in _types(before, described).items():
        new = names.get(old)
        if new is None:
            yield "column dropped", old, type, None
            continue
        if new != old:
            yield "column renamed", new, old, new
        if types[new] != type:
            yield "type changed", new, type, types[new]
    for name in (name for name in types if name not in names.values()):
        yield "column added", name, None, types[name]
    if before.replica_identity != after.replica_identity:
        was, now = (REPLICA_IDENTITIES.get(item.replica_identity) for item in (before, after))
        yield "replica identity changed", None, was, now
    keys = [[item.name for item in version.columns if item.flags & 1] for version in (before, after)]
    if (
        "f" not in (before.replica_identity, after.replica_identity)
        and [names.get(name) for name in keys[0]] != keys[1]
    ):
        yield "key changed", None, ", ".join(keys[0]) or None, ", ".join(keys[1]) or None


def _types(version: RelationVersion, described: Mapping[int, UserType]) -> dict[str, str]:
    known = {item.type_id: item for item in version.types}
    return {item.name: _type(sql_type_name(item.type_id, known, described), item) for item in version.columns}


def _type(known: str | None, column: Column) -> str:
    """Return a type as it is written in SQL, such as "numeric(10,2)"; its OID if the messages do not describe it."""
    name, modifier = known or f"type {column.type_id}", column.type_modifier
    if modifier < 0:
        return name
    base, array = (name[:-2], "[]") if name.endswith("[]") else (name, "")
    if base == "numeric":
        digits = numeric_modifier(modifier)
        return name if digits is None else f"numeric({digits[0]},{digits[1]}){array}"
    if base in ("varchar", "bpchar"):
        return f"{base}({modifier - 4}){array}"
    return f"{base}({modifier}){array}" if base != "interval" else name
