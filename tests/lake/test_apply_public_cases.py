"""What users of other tools have reported of tables in lakes: each report is a test of `apply` with every target.

The payloads are those that a server sends for the statements of the report, shortened.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lake.lakes import Lake
from net.test_net_public_cases import LONG, T, begun, with_facts

from pgdecode import RelationCatalog
from support.generators.slot import Slot
from support.generators.slots import UNCHANGED

TABLE = f"public.t{T}"


def next_transaction(slot: Slot, xid: int) -> int:
    """End a transaction and begin another one; return the number of payloads before."""
    slot.commit()
    cut = len(slot.payloads)
    slot.begin(xid)
    return cut


def applied(lake: Lake, folder: Path, slot: Slot, *cuts: int, **options: Any) -> list[tuple[Any, ...]]:
    slot.commit()
    lake.apply_batches(folder / "raw", slot.payloads, cuts, **options)
    return lake.rows()


def test_a_long_jsonb_that_did_not_change_stays_at_every_update(lake: Lake, tmp_path: Path) -> None:
    # Source: https://github.com/PostHog/posthog/issues/53253, https://github.com/PostHog/posthog/pull/72435.
    slot = begun(types=[25, 25, 3802])
    slot.insert(T, "1", "new", LONG)
    slot.insert(T, "2", "new", "{}")
    first = next_transaction(slot, 701)
    slot.update(T, "1", "paid", UNCHANGED)
    second = next_transaction(slot, 702)
    slot.update(T, "1", "sent", UNCHANGED)
    assert applied(lake, tmp_path, slot, first, second) == [("1", "sent", LONG), ("2", "new", "{}")]


def test_an_insert_and_a_partial_update_in_one_batch_keep_the_long_value(lake: Lake, tmp_path: Path) -> None:
    # Source: https://github.com/bruin-data/ingestr/issues/706, 707, 804 and 805 of the same repository.
    slot = begun()
    slot.insert(T, "1", "new", LONG)
    slot.update(T, "1", "paid", UNCHANGED)
    next_transaction(slot, 701)
    slot.update(T, "1", "sent", UNCHANGED)
    assert applied(lake, tmp_path, slot) == [("1", "sent", LONG)]


def test_moved_and_swapped_keys_leave_no_old_row_and_keep_long_values(lake: Lake, tmp_path: Path) -> None:
    # Source: https://github.com/spiceai/spiceai/issues/11551,
    # https://github.com/transferwise/pipelinewise-tap-postgres/issues/92, https://github.com/apache/hudi/issues/9186,
    # https://github.com/supabase/etl/issues/966, https://github.com/PeerDB-io/peerdb/issues/4480.
    slot = begun()
    for key in "134":
        slot.insert(T, key, "old", f"body {key}")
    cut = next_transaction(slot, 701)
    slot.update(T, "2", "moved", UNCHANGED, old=["1", None, None], old_type="K")
    slot.insert(T, "1", "new", "short")
    slot.update(T, "9", "swapped", UNCHANGED, old=["3", None, None], old_type="K")
    slot.update(T, "3", "swapped", UNCHANGED, old=["4", None, None], old_type="K")
    slot.update(T, "4", "swapped", UNCHANGED, old=["9", None, None], old_type="K")
    assert applied(lake, tmp_path, slot, cut) == [
        ("1", "new", "short"),
        ("2", "moved", "body 1"),
        ("3", "swapped", "body 4"),
        ("4", "swapped", "body 3"),
    ]


def test_an_added_column_has_the_value_that_older_rows_have_on_the_server(lake: Lake, tmp_path: Path) -> None:
    # Source: https://github.com/risingwavelabs/risingwave/issues/23320, https://github.com/PeerDB-io/peerdb/pull/4635,
    # https://github.com/rocicorp/mono/issues/6194, https://github.com/airbytehq/airbyte/issues/80920.
    slot = begun("id* a")
    facts = [with_facts(slot)]
    slot.insert(T, "1", "x")
    cut = next_transaction(slot, 701)
    slot.relation(T, ["id", "a", "added"], keys=["id"])
    facts.append(with_facts(slot, "11"))
    slot.insert(T, "2", "y", "told")
    rows = applied(lake, tmp_path, slot, cut, catalog=RelationCatalog([], facts))
    assert rows == [("1", "x", "11"), ("2", "y", "told")]


def test_equal_rows_of_a_table_without_a_key_are_as_many_as_on_the_server(lake: Lake, tmp_path: Path) -> None:
    # Source: https://github.com/cloudquery/cloudquery/issues/13256,
    # https://github.com/risingwavelabs/risingwave/issues/25201, https://github.com/ClickHouse/walshadow/issues/114.
    slot = begun("a* b*", identity="f")
    for row in (("1", None), ("1", None), ("1", None), ("2", "x"), ("2", "x")):
        slot.insert(T, *row)
    cut = next_transaction(slot, 701)
    slot.delete(T, "1", None, old_type="O")
    slot.update(T, "3", "x", old=["2", "x"], old_type="O")
    slot.insert(T, "2", "x")
    assert applied(lake, tmp_path, slot, cut) == [("1", None), ("1", None), ("2", "x"), ("2", "x"), ("3", "x")]


def test_a_truncate_and_an_insert_leave_the_inserted_row(lake: Lake, tmp_path: Path) -> None:
    # Source: https://github.com/redpanda-data/connect/pull/4811.
    slot = begun()
    slot.insert(T, "1", "a", "b")
    slot.insert(T, "2", "a", "b")
    cut = next_transaction(slot, 701)
    slot.truncate(T)
    slot.insert(T, "1", "again", LONG)
    second = next_transaction(slot, 702)
    slot.update(T, "1", "streamed", UNCHANGED)
    assert applied(lake, tmp_path, slot, cut, second) == [("1", "streamed", LONG)]


def test_a_row_with_a_long_key_is_deleted(lake: Lake, tmp_path: Path) -> None:
    # Source: https://github.com/ClickHouse/ClickHouse/issues/111552, https://github.com/airbytehq/airbyte/issues/8557.
    slot = begun()
    slot.insert(T, LONG, "a", "b")
    slot.insert(T, "short", "a", "b")
    cut = next_transaction(slot, 701)
    slot.update(T, UNCHANGED, "paid", "b", old=[LONG, None, None], old_type="K")
    second = next_transaction(slot, 702)
    slot.delete(T, LONG, None, None, old_type="K")
    assert applied(lake, tmp_path, slot, cut, second) == [("short", "a", "b")]
