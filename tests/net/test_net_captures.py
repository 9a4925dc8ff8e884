"""`net_changes` of the captures, cut anywhere: the rows before, with the net changes, are the rows after."""

from __future__ import annotations

import random
from typing import Any

import pytest

from pgdecode import RelationCatalog
from support import captures
from support.net_batches import check_batches
from support.oracles import expected_changes, replay
from support.oracles.expected_changes import TEXT

# Tables whose columns or replica identity change while there are rows: below.
ALTERED = {"public.a2", "public.d", "public.order_items"}


def tables_of(name: str) -> dict[str, str]:
    """The tables of a capture by the server's spelling of their names."""
    catalog = RelationCatalog.from_messages(captures.capture(name).column)
    last = {item.relation_id: catalog[item.relation_id] for item in catalog}
    return {replay.table_name(item.namespace, item.name): item.qualified_name for item in last.values()}


@pytest.mark.parametrize("name", TEXT)
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
