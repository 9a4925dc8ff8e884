"""`net_changes` of the captures, cut anywhere: the rows before, with the net changes, are the rows after."""

from __future__ import annotations

import random
from typing import Any

import pytest
from changes.test_changes import TYPES

from pgdecode import ChangeDecoder, RelationCatalog, net_changes, snapshot
from support import captures
from support.net_batches import check_batches
from support.oracles import expected_changes, replay
from support.oracles.expected_changes import BINARY, TEXT
from support.tiers import full

# Tables whose columns or replica identity change while there are rows: below.
ALTERED = {"public.a2", "public.d", "public.order_items"}


def tables_of(name: str) -> dict[str, str]:
    """The tables of a capture by the server's spelling of their names."""
    catalog = RelationCatalog.from_messages(captures.capture(name).column)
    last = {item.relation_id: catalog[item.relation_id] for item in catalog}
    return {replay.table_name(item.namespace, item.name): item.qualified_name for item in last.values()}


@pytest.mark.parametrize("name", [full(name) if ".streams." in name else name for name in TEXT])
def test_rows_before_a_batch_and_its_net_changes_are_the_rows_after_it(name: str, rng: random.Random) -> None:
    major, scenario, _ = name.split(".")
    column = captures.capture(name).column
    types: dict[str | int, str] = {
        item.type_id: "text" for version in RelationCatalog.from_messages(column) for item in version.columns
    }
    changes, keys = expected_changes.as_text(name), expected_changes.key_columns(name)
    found: dict[str, list[replay.Row]] = {}
    left_out = expected_changes.WITHOUT_COLUMNS | ALTERED
    for spelled, table in tables_of(name).items():
        if spelled not in left_out:
            own = [item for item in changes if replay.table_name(item["namespace"], item["relation_name"]) == spelled]
            found[spelled] = check_batches(rng, column, table, own, keys, types=types)
    assert found
    left_out |= expected_changes.TRUNCATED.get(scenario, set()) if major == "10" else set()
    state: dict[str, Any] = replay.load_state(captures.DATA / f"{major}.{scenario}.state.json.gz")
    differences, unknown = replay.differences(found, state, tables=left_out)
    never_sent = expected_changes.NEVER_SENT.get(scenario, {})
    assert differences == []
    assert unknown == {table: counts for table, counts in never_sent.items() if table in found and table in state}


TABLES = {"shop": ("customers", "products", "orders", "order_items"), "txns": ("b", "d", "full_", "idx", "nokey")}
TWINS = [f"18.{scenario}.v1" for scenario in TABLES]


@pytest.mark.parametrize("name", [*TWINS, *(full(f"{major}.{item}.v1") for major in (14, 16) for item in TABLES)])
def test_typed_net_changes_of_all_changes_are_the_rows_of_a_snapshot_and_those_of_the_binary_twin(name: str) -> None:
    column, twin = (captures.capture(item).column for item in (name, f"{name}bin"))
    assert f"{name}bin" in BINARY
    for table in TABLES[name.split(".")[1]]:
        net, of_twin = (
            net_changes(ChangeDecoder(types=TYPES).table(payloads, f"public.{table}")) for payloads in (column, twin)
        )
        # Binary captures have other Type messages between.
        ours, theirs = (item.drop_columns(["_position", "_commit_position"]).to_pylist() for item in (net, of_twin))
        assert repr(ours) == repr(theirs)
        rows = snapshot(column, f"public.{table}", types=TYPES)
        names = ["_unknown", *(item for item in rows.schema.names if item[0] != "_")]
        left = [row for row in net.to_pylist() if row["_action"] == "upsert"]
        assert all(row["_key_before"] is None for row in left)
        assert sorted(repr([sorted(row["_unknown"]), *(row[item] for item in names[1:])]) for row in left) == sorted(
            repr([sorted(row["_unknown"]), *(row[item] for item in names[1:])]) for row in rows.to_pylist()
        )
