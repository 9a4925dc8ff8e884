"""A plain fold of changes to net changes, and the lines of Python that apply net changes to the rows of a table.

Both are written from the contract of `net_changes` alone. A change is one of `reference_changes`, a row of a table a
dict with `UNKNOWN` for a value that no change told. Values are the same if they are written the same: NaN and -0 too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from support.oracles.reference_changes import Change
from support.oracles.replay import UNKNOWN, Keys, Row

Net = dict[str, Any]


@dataclass(eq=False)
class Touched:
    """A row that changes have touched: its key before them, its values now, and the last change."""

    before: Row | None = None
    values: Row = field(default_factory=dict)
    change: Change = field(default_factory=dict)


class Rows:
    """Rows that are found by some of their values, and removed then. An unknown value may be any."""

    def __init__(self, rows: Iterable[Touched] = ()) -> None:
        self.rows = {id(row): row for row in rows}
        self.names: tuple[str, ...] = ()
        self.index: dict[tuple[str, ...], list[Touched]] = {}

    def __iter__(self) -> Iterator[Touched]:
        return iter(self.rows.values())

    def add(self, row: Touched) -> None:
        self.rows[id(row)] = row
        self.index.setdefault(self.key(row.values), []).append(row)

    def key(self, values: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(repr(values.get(name, UNKNOWN)) for name in self.names)

    def take(self, wanted: Mapping[str, Any]) -> Touched | None:
        """Remove a row with these values: the one of which most are known, and of those the last that was added."""
        if tuple(wanted) != self.names:
            self.names, self.index = tuple(wanted), {}
            for row in self.rows.values():
                self.index.setdefault(self.key(row.values), []).append(row)
        wanted_key, unknown = self.key(wanted), repr(UNKNOWN)
        keys = [wanted_key] if wanted_key in self.index else []
        possible = [
            key
            for key in self.index
            if unknown in (*key, *wanted_key)
            and all(a == b or unknown in (a, b) for a, b in zip(key, wanted_key, strict=True))
        ]
        keys += sorted(possible, key=lambda key: key.count(unknown))
        for key in keys:
            if self.index[key]:
                return self.rows.pop(id(self.index[key].pop()))
        return None


def net_rows(changes: Iterable[Change], keys: Keys, key: Sequence[Any] | None = None) -> list[Net]:
    """Fold the changes of one table: rows with `_action`, `_key_before`, `_position` and the known `values`."""
    live, deleted, truncates = Rows(), list[Touched](), list[Change]()
    for change in changes:
        if change["op"] == "truncate":
            live, deleted, truncates = Rows(), [], [change]
            continue
        row, sent = Touched(), dict(change["new"] or {})
        for name in change["unchanged"]:
            sent.pop(name, None)
        if change["op"] != "insert":
            old = change["old"] if change["old_type"] else sent
            wanted = {name: old[name] for name in key or keys[change["position"], change["relation_id"]]}
            row = live.take(wanted) or Touched(wanted)
        row.change = change
        if change["op"] != "delete":
            row.values = {**{name: row.values.get(name, UNKNOWN) for name in change["unchanged"]}, **sent}
            live.add(row)
        elif row.before is not None:
            row.values = {}
            deleted.append(row)
    rows = [*((row, "delete") for row in deleted), *((row, "upsert") for row in live)]
    rows.sort(key=lambda item: item[0].change["position"])
    about = ("position", "commit_position", "commit_lsn", "commit_timestamp")
    return [
        {
            "_action": action,
            "_key_before": row.before,
            **{f"_{name}": row.change[name] for name in about},
            "values": row.values,
        }
        for row, action in [*((Touched(change=change), "truncate") for change in truncates), *rows]
    ]


def applied(rows: Iterable[Row], net: Sequence[Net], key: Sequence[Any] | None) -> list[Row]:
    """Apply net changes to the rows of a table. Without a key, rows are found whole. Asserts that they are found."""
    target = Rows(Touched(values=row) for row in ([] if net and net[0]["_action"] == "truncate" else rows))
    removed: dict[int, Row] = {}
    for number, change in enumerate(net):
        if change["_key_before"] is not None:
            row = target.take(change["_key_before"])
            assert row is not None, f"position {change['_position']}: no row with the key before"
            removed[number] = row.values
    for number, change in enumerate(net):
        if change["_action"] == "upsert":
            new = {name: value for name, value in change.items() if str(name)[0] != "_"}
            new |= {name: removed.get(number, {}).get(name, UNKNOWN) for name in change["_unknown"]}
            if key is not None:
                target.take({name: new[name] for name in key})
            target.add(Touched(values=new))
    return [row.values for row in target]
