"""Tables replayed from changes, and their differences from the tables on the server.

A slot's changes contain a row as it was last written. A column that the row's relation did not have then is not known
(`UNKNOWN`), although a default, a rename or a generated column may have set it since. `differences` accepts any value
for it and counts it. Changes may come from the package or from the reference; both have the same columns.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

# The replica identity by which a row finds its old version, by (position, relation_id): reference_changes.key_columns.
Keys = Mapping[tuple[int, int], list[str]]
Row = dict[str, Any]


class _Unknown:
    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = _Unknown()


class Tables:
    """Rows by relation, written by changes in the order in which to apply them."""

    def __init__(self, keys: Keys) -> None:
        self.keys = keys
        self.rows: dict[int, list[Row]] = {}
        self.names: dict[int, str] = {}

    def apply(self, change: Mapping[str, Any]) -> None:
        relation_id = change["relation_id"]
        rows = self.rows.setdefault(relation_id, [])
        self.names[relation_id] = table_name(change["namespace"], change["relation_name"])
        if change["op"] == "truncate":
            rows.clear()
        elif change["op"] == "insert":
            # A row filter may turn an update into an insert in which some values are not sent.
            rows.append({**change["new"], **dict.fromkeys(change["unchanged"], UNKNOWN)})
        elif change["op"] == "delete":
            del rows[self.find(change)]
        else:
            at = self.find(change)
            carried = {name: rows[at].get(name, UNKNOWN) for name in change["unchanged"]}
            rows[at] = {**change["new"], **carried}

    def find(self, change: Mapping[str, Any]) -> int:
        """Find the old version of a row by the whole old tuple, by the old key, or by an unchanged key."""
        if change["old_type"] == "O":
            wanted = change["old"]
        else:
            key = self.keys[change["position"], change["relation_id"]]
            assert key, f"position {change['position']}: {change['op']} without a replica identity"
            wanted = {name: (change["old"] or change["new"])[name] for name in key}
        for at, row in enumerate(self.rows[change["relation_id"]]):
            if all(row.get(name, UNKNOWN) in (UNKNOWN, value) for name, value in wanted.items()):
                return at
        raise AssertionError(f"position {change['position']}: no row for this {change['op']} to find")


def replay(changes: Iterable[Mapping[str, Any]], keys: Keys, *, names: Mapping[int, str] = {}) -> dict[str, list[Row]]:
    """Apply committed changes in order; return the remaining rows by table in PostgreSQL's spelling.

    A table has the name under which it was last sent, unless `names` has another name for its relation_id.
    """
    tables = Tables(keys)
    for change in changes:
        tables.apply(change)
    remaining: dict[str, list[Row]] = {}
    for relation_id, name in tables.names.items():
        remaining.setdefault(names.get(relation_id, name), []).extend(tables.rows[relation_id])
    return remaining


def table_name(namespace: str, name: str) -> str:
    """`schema.table` as quote_identifier spells it, without regard to keywords."""
    return ".".join(
        part if re.fullmatch(r"[a-z_][a-z0-9_]*", part) else '"' + part.replace('"', '""') + '"'
        for part in (namespace, name)
    )


def load_state(path: Path) -> dict[str, Any]:
    """A recorded state: columns and rows as text, by table."""
    state: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return state


def differences(
    replayed: Mapping[str, list[Row]], state: Mapping[str, Any], *, tables: Collection[str] = ()
) -> tuple[list[str], dict[str, dict[str, int]]]:
    """Differences between replayed tables and a recorded state, and the number of unknown values by table and column.

    `tables` are ignored. The texts contain names of tables and counts, never a value.
    """
    found = []
    unknown: dict[str, dict[str, int]] = {}
    for name in sorted({*replayed, *state} - set(tables)):
        held = state.get(name, {"columns": [], "rows": []})
        columns: list[str] = held["columns"]
        rows = replayed.get(name, [])
        if len(rows) != len(held["rows"]):
            found.append(f"{name}: {len(rows)} rows, the server has {len(held['rows'])}")
        missed = unmatched([[row.get(column, UNKNOWN) for column in columns] for row in rows], held["rows"])
        if missed:
            found.append(f"{name}: {missed} rows that the server does not have")
        counts = {column: sum(row.get(column, UNKNOWN) is UNKNOWN for row in rows) for column in columns}
        if any(counts.values()):
            unknown[name] = {column: count for column, count in counts.items() if count}
    return found, unknown


def unmatched(ours: list[list[Any]], theirs: list[list[Any]]) -> int:
    """Count rows of ours without a matching row of theirs. An unknown value matches any; each row matches once."""
    known_columns = [tuple(at for at, value in enumerate(row) if value is not UNKNOWN) for row in ours]
    missed = 0
    # Fully known rows are matched first, so that rows with unknown values do not take their match.
    for known in sorted(set(known_columns), key=lambda known: (-len(known), known)):
        left: dict[tuple[Any, ...], list[list[Any]]] = {}
        for row in theirs:
            left.setdefault(tuple(row[at] for at in known), []).append(row)
        for row in (row for row, columns in zip(ours, known_columns, strict=True) if columns == known):
            same = left.get(tuple(row[at] for at in known))
            if same:
                same.pop()
            else:
                missed += 1
        theirs = [row for rows in left.values() for row in rows]
    return missed
