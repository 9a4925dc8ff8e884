"""Payloads of a table in batches: the net changes of each, against the plain fold, and applied one after the other."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa

from pgdecode import ChangeDecoder, NetChanges, net_changes
from support.oracles.net_fold import Net, applied, net_rows
from support.oracles.reference_changes import Change
from support.oracles.replay import UNKNOWN, Row, Tables

ABOUT = ("_action", "_key_before", "_unknown", "_position", "_commit_position", "_commit_lsn", "_commit_timestamp")


def random_cuts(rng: random.Random, n: int) -> list[int]:
    """Where batches begin and end: none, few or many."""
    return sorted({0, n, *(rng.randrange(n + 1) for _ in range(rng.choice([0, 1, 3, 10, n])))})


def typed_changes(typed: pa.RecordBatch) -> list[Change]:
    """The rows of a typed table as changes of the reference, of one version."""
    names = [name for name in typed.schema.names if name[0] != "_"]
    found = []
    for row in typed.to_pylist():
        about = {name: row[f"_{name}"] for name in ("position", "commit_position", "commit_lsn", "commit_timestamp")}
        new = None if row["_op"] in ("delete", "truncate") else {name: row[name] for name in names}
        change = {"op": row["_op"], "old_type": row["_old_type"], "old": row["_old"], "new": new, "relation_id": 0}
        found.append({**about, **change, "unchanged": row["_unchanged"] or []})
    return found


def of_batch(changes: Iterable[Change], start: int, end: int) -> list[Change]:
    return [item for item in changes if start <= item["commit_position"] < end]


def known_key(net: pa.Table) -> list[str] | None:
    """The key by which net changes are applied; None if rows are found whole."""
    whole = (net.schema.metadata or {}).get(b"pg:replica_identity") == b"f"
    key = [field.name for field in net.schema if b"pg:key" in (field.metadata or {})]
    columns = [field.name for field in net.schema if field.name not in ABOUT]
    return None if whole and key == columns else key


def net_of(rng: random.Random, typed: pa.RecordBatch, key: Sequence[str] | None = None) -> pa.Table:
    """Net changes of a batch, at once or piece by piece, in the same rows."""
    if rng.random() < 0.5:
        return net_changes(typed, key=key)
    pieces = NetChanges(key)
    for start, end in pairwise(random_cuts(rng, len(typed))):
        pieces.add(typed.slice(start, end - start))
    return pieces.table() if len(typed) else net_changes(typed, key=key)


def assert_net(found: Sequence[Net], expected: Sequence[Net], columns: Sequence[str]) -> None:
    """Compare net changes with those of the plain fold, in the columns that the table has."""
    by_position = [(item["_position"], item["_action"]) for item in found]
    assert by_position == [(item["_position"], item["_action"]) for item in expected]
    for ours, theirs in zip(found, expected, strict=True):
        for name in ("_key_before", "_commit_position", "_commit_lsn"):
            assert repr(ours[name]) == repr(theirs[name]), (theirs["_position"], name)
        if ours["_action"] != "upsert":
            assert ours["_unknown"] == []
            own = ours["_key_before"] or {}
            assert {name: ours[name] for name in columns if ours[name] is not None and name not in own} == {}
            continue
        assert repr(values_of(ours, columns)) == repr({name: theirs["values"].get(name, UNKNOWN) for name in columns})


def values_of(net: Mapping[Any, Any], columns: Iterable[Any]) -> dict[Any, Any]:
    """The values of an upsert; those that are unknown must be null."""
    assert all(net[name] is None for name in net["_unknown"])
    return {name: UNKNOWN if name in net["_unknown"] else net[name] for name in columns}


def assert_rows(ours: Sequence[Row], theirs: Sequence[Row], columns: Sequence[str], key: Sequence[str] | None) -> None:
    """Compare rows of a table with the replayed ones: the same values are known, and equal."""
    assert len(ours) == len(theirs)
    found, expected = (
        sorted(repr({name: row.get(name, UNKNOWN) for name in columns}) for row in rows) for rows in (ours, theirs)
    )
    assert found == expected


def replayed(tables: Tables, changes: Iterable[Change]) -> list[Row]:
    """Apply changes to the rows of the only table, and return these."""
    for change in changes:
        tables.apply({"namespace": "s", "relation_name": "t", **change})
    return [row for rows in tables.rows.values() for row in rows]


def check_batches(
    rng: random.Random,
    payloads: Any,
    table: str,
    changes: Sequence[Change],
    keys: Mapping[tuple[int, int], list[str]],
    *,
    key: Sequence[str] | None = None,
    cuts: Sequence[int] | None = None,
    **options: Any,
) -> list[Row]:
    """Decode payloads in batches, and return the rows that their net changes leave.

    The net changes of each batch are those of the plain fold, and leave the rows that the changes leave one by one.
    """
    decoder, rows, tables = ChangeDecoder(**options), list[Row](), Tables(keys)
    for start, end in pairwise(cuts or random_cuts(rng, len(payloads))):
        try:
            typed = decoder.table(payloads[start:end], table, range(start, end))
        except KeyError:  # not described yet
            decoder.decode(payloads[start:end], range(start, end))
            continue
        net = net_of(rng, typed, key)
        columns = [name for name in net.schema.names if name not in ABOUT]
        batch = of_batch(changes, start, end)
        by = [*key] if key else known_key(net)
        if by is not None:
            assert_net(net.to_pylist(), net_rows(batch, keys, by), columns)
        rows = applied(rows, net.to_pylist(), by)
        assert_rows(rows, replayed(tables, batch), columns, by)
        decoder = ChangeDecoder(state=json.loads(json.dumps(decoder.state)), **options)
    return rows
