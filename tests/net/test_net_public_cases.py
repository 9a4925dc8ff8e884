"""What users of other tools have reported of tables made from changes: each report is a test of `net_changes`.

The payloads are those that a server sends for the statements of the report, shortened.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from pgdecode import ChangeDecoder, NetChanges, Relation, RelationCatalog, decode, net_changes
from pgdecode.relations.relation_facts import RelationFacts, StatedFacts
from support.generators.slot import Slot
from support.generators.slots import UNCHANGED
from support.oracles.net_fold import applied

T = 16385
TABLE = f"public.t{T}"
INT4, TEXT, JSON, JSONB, BYTEA = 23, 25, 114, 3802, 17
LONG = "[" + ", ".join(["1"] * 5000) + "]"

Row = dict[str, Any]


def begun(columns: str = "id* state body", **described: Any) -> Slot:
    """An open transaction that has described the table. A star marks the key."""
    slot = Slot()
    slot.begin(700)
    slot.relation(T, columns, **described)
    return slot


def net_of(slot: Slot, key: Sequence[str] | None = None, start: int = 0, **options: Any) -> pa.Table:
    """The net changes of the payloads from one on; those before are of an earlier batch."""
    if slot.plain is not None:
        slot.commit()
        slot.plain = None
    decoder = ChangeDecoder(**options)
    decoder.decode(slot.payloads[:start], range(start))
    return net_changes(decoder.table(slot.payloads[start:], TABLE, range(start, len(slot.payloads))), key=key)


def rows_of(net: pa.Table) -> list[tuple[Any, ...]]:
    """Action, key before, the columns, and the unknown ones."""
    return [
        (
            row["_action"],
            *(tuple(row["_key_before"].values()) if row["_key_before"] else (None,)),
            *(value for name, value in row.items() if name[0] != "_"),
            row["_unknown"],
        )
        for row in net.to_pylist()
    ]


# -- values that were not sent ---------------------------------------------------------------------------------------


def test_a_long_jsonb_that_did_not_change_is_unknown_and_not_null() -> None:
    # Source: https://github.com/PostHog/posthog/issues/53253, https://github.com/PostHog/posthog/pull/72435.
    slot = begun(types=[INT4, TEXT, JSONB])
    slot.update(T, "1", "paid", UNCHANGED)
    net = net_of(slot)
    assert rows_of(net) == [("upsert", 1, 1, "paid", None, ["body"])]
    before = [{"id": 1, "state": "new", "body": LONG}]
    assert applied(before, net.to_pylist(), ["id"]) == [{"id": 1, "state": "paid", "body": LONG}]


def test_an_explicit_null_is_told_from_a_value_that_did_not_change() -> None:
    # Source: https://github.com/apache/paimon/issues/10671.
    slot = begun()
    slot.update(T, "1", "paid", None)
    slot.update(T, "2", "paid", UNCHANGED)
    assert rows_of(net_of(slot)) == [
        ("upsert", "1", "1", "paid", None, []),
        ("upsert", "2", "2", "paid", None, ["body"]),
    ]


def test_an_insert_and_a_partial_update_in_one_batch_keep_the_long_value() -> None:
    # Source: https://github.com/bruin-data/ingestr/issues/706, 707, 804 and 805 of the same repository.
    slot = begun()
    slot.insert(T, "1", "new", LONG)
    slot.update(T, "1", "paid", UNCHANGED)
    slot.commit()
    slot.begin(701)
    slot.update(T, "1", "sent", UNCHANGED)
    assert rows_of(net_of(slot)) == [("upsert", None, "1", "sent", LONG, [])]


def test_the_last_of_many_updates_keeps_the_value_that_the_first_one_sent() -> None:
    # Source: https://github.com/PeerDB-io/peerdb/pull/3790.
    slot = begun()
    slot.update(T, "1", "0", LONG)
    for number in range(1, 2000):
        slot.update(T, "1", str(number), UNCHANGED)
    assert rows_of(net_of(slot)) == [("upsert", "1", "1", "1999", LONG, [])]


@pytest.mark.parametrize("kind", [INT4, TEXT, JSON, JSONB, BYTEA, 1009, 3802])
def test_no_placeholder_is_ever_in_a_column(kind: int) -> None:
    # Source: https://github.com/datazip-inc/olake/issues/1175,
    # https://github.com/memiiso/debezium-server-iceberg/issues/196.
    slot = begun(types=[INT4, TEXT, kind])
    slot.update(T, "1", UNCHANGED, UNCHANGED)
    assert rows_of(net_of(slot)) == [("upsert", 1, 1, None, None, ["state", "body"])]


def test_the_only_copy_of_a_long_value_is_in_the_insert_of_a_copy() -> None:
    # Source: https://github.com/redpanda-data/connect/pull/4811.
    slot = begun()
    slot.truncate(T)
    slot.insert(T, "1", "copied", LONG)
    slot.commit()
    slot.begin(701)
    slot.update(T, "1", "streamed", UNCHANGED)
    assert rows_of(net_of(slot))[1:] == [("upsert", None, "1", "streamed", LONG, [])]


def test_an_update_of_a_table_with_a_full_identity_may_leave_a_value_out_too() -> None:
    # Source: https://github.com/spiceai/spiceai/issues/11293.
    slot = begun("id* state* body*", identity="f")
    slot.update(T, "1", "paid", UNCHANGED, old=["1", "new", LONG], old_type="O")
    assert rows_of(net_of(slot, ["id"])) == [("upsert", "1", "1", "paid", LONG, [])]


def test_a_long_key_that_did_not_change_is_taken_from_the_old_key() -> None:
    # Source: https://github.com/ClickHouse/ClickHouse/issues/111552.
    slot = begun()
    slot.update(T, UNCHANGED, "paid", "b", old=[LONG, None, None], old_type="K")
    assert rows_of(net_of(slot)) == [("upsert", LONG, LONG, "paid", "b", [])]
    slot = begun()
    slot.update(T, UNCHANGED, "paid", "b")
    with pytest.raises(ValueError, match="position 2: the change does not tell the key"):
        net_of(slot)


# -- keys ------------------------------------------------------------------------------------------------------------


def test_a_row_whose_key_was_updated_is_one_row_and_the_old_one_goes() -> None:
    # Source: https://github.com/spiceai/spiceai/issues/11551,
    # https://github.com/transferwise/pipelinewise-tap-postgres/issues/92, https://github.com/apache/hudi/issues/9186,
    # https://github.com/supabase/etl/issues/966, https://github.com/PeerDB-io/peerdb/issues/4480.
    slot = begun()
    slot.update(T, "2", "moved", UNCHANGED, old=["1", None, None], old_type="K")
    net = net_of(slot)
    assert rows_of(net) == [("upsert", "1", "2", "moved", None, ["body"])]
    before = [{"id": "1", "state": "new", "body": LONG}]
    assert applied(before, net.to_pylist(), ["id"]) == [{"id": "2", "state": "moved", "body": LONG}]


def test_a_row_that_takes_the_key_of_a_moved_row_does_not_remove_it() -> None:
    # Source: https://github.com/PeerDB-io/peerdb/issues/4480: "duplicates/missed deletes".
    slot = begun()
    slot.update(T, "2", "moved", UNCHANGED, old=["1", None, None], old_type="K")
    slot.insert(T, "1", "new", "short")
    slot.delete(T, "3", None, None, old_type="K")
    slot.update(T, "3", "to 3", UNCHANGED, old=["4", None, None], old_type="K")
    net = net_of(slot).to_pylist()
    before = [{"id": key, "state": "old", "body": f"body {key}"} for key in "134"]
    rows = applied(before, net, ["id"])
    assert sorted(tuple(row.values()) for row in rows) == [
        ("1", "new", "short"),
        ("2", "moved", "body 1"),
        ("3", "to 3", "body 4"),
    ]


def test_each_updated_row_is_in_the_net_changes_once() -> None:
    # Source: https://github.com/datazip-inc/olake/issues/1189.
    slot = begun()
    for state in ("a", "b", "c"):
        for key in range(50):
            slot.update(T, str(key), state, "body")
    net = net_of(slot)
    assert len(net) == len(set(net["id"].to_pylist())) == 50
    assert set(net["state"].to_pylist()) == {"c"}


def test_a_delete_with_the_key_alone_has_null_in_other_columns_which_may_be_null() -> None:
    # Source: https://github.com/airbytehq/airbyte/issues/8557.
    slot = begun(types=[INT4, INT4, JSONB])
    slot.delete(T, "1", None, None, old_type="K")
    net = net_of(slot)
    assert rows_of(net) == [("delete", 1, 1, None, None, [])]
    assert all(field.nullable for field in net.schema)


def test_equal_rows_of_a_table_without_a_key_are_as_many_as_on_the_server() -> None:
    # Source: https://github.com/cloudquery/cloudquery/issues/13256,
    # https://github.com/risingwavelabs/risingwave/issues/25201, https://github.com/ClickHouse/walshadow/issues/114.
    slot = begun("a* b*", identity="f")
    for _ in range(3):
        slot.insert(T, "1", None)
    slot.delete(T, "1", None, old_type="O")
    slot.delete(T, "2", None, old_type="O")
    slot.delete(T, "2", None, old_type="O")
    slot.update(T, "3", "x", old=["2", None], old_type="O")
    net = net_of(slot)
    before = [{"a": "2", "b": None}] * 4
    rows = applied(before, net.to_pylist(), None)
    assert sorted(map(repr, rows)) == sorted(
        map(repr, [{"a": "1", "b": None}] * 2 + [{"a": "2", "b": None}, {"a": "3", "b": "x"}])
    )


def test_a_table_without_a_replica_identity_has_its_inserts_and_no_other_columns() -> None:
    # Source: https://github.com/hexclave/hexclave/pull/2000, https://github.com/airbytehq/airbyte/issues/77738.
    slot = begun("a b", identity="n")
    slot.insert(T, "1", "x")
    slot.insert(T, "1", "x")
    slot.commit()
    slot.begin(701)
    slot.truncate(T)
    slot.insert(T, "1", "x")
    net = net_of(slot)
    assert [row[0] for row in rows_of(net)] == ["truncate", "upsert"]
    assert [name for name in net.schema.names if name[0] != "_"] == ["a", "b"]


# -- ALTER TABLE -----------------------------------------------------------------------------------------------------


def with_facts(slot: Slot, *missing: str | None, storage: int = T) -> StatedFacts:
    """What the server's catalog tells of the relation that was sent last: the values that older rows have."""
    relation = decode(slot.payloads[-1])
    assert isinstance(relation, Relation)
    numbers = tuple(range(1, len(relation.columns) + 1))
    values = (*[None] * (len(numbers) - len(missing)), *missing)
    facts = RelationFacts(numbers, values, (1,), ((T, storage),), max(numbers))
    return StatedFacts(relation, len(slot.payloads) - 1, facts)


def test_a_column_counts_from_the_position_at_which_it_was_added() -> None:
    # Source: https://github.com/airbytehq/airbyte/issues/80920.
    slot = begun("id* a")
    slot.insert(T, "1", "x")
    slot.relation(T, ["id", "a", "added"], keys=["id"])
    slot.insert(T, "2", "y", "told")
    assert rows_of(net_of(slot)) == [
        ("upsert", None, "1", "x", None, ["added"]),
        ("upsert", None, "2", "y", "told", []),
    ]


@pytest.mark.parametrize(("missing", "expected"), [("11", "11"), (None, None)], ids=["a default", "no default"])
def test_rows_from_before_a_column_have_the_value_that_the_server_gave_them(missing: str | None, expected: str) -> None:
    # `ADD COLUMN n int DEFAULT 11`, then `SET DEFAULT 12`: rows from before have 11, which pg_attribute.attmissingval
    # has, and not today's default.
    # Source: https://github.com/risingwavelabs/risingwave/issues/23320, https://github.com/rocicorp/mono/issues/6194,
    # https://github.com/rocicorp/mono/pull/6229.
    slot = begun("id* a")
    facts = [with_facts(slot)]
    slot.insert(T, "1", "x")
    slot.relation(T, ["id", "a", "n"], keys=["id"])
    facts.append(with_facts(slot, missing))
    slot.insert(T, "2", "y", "12")
    net = net_of(slot, catalog=RelationCatalog((), facts))
    assert rows_of(net) == [("upsert", None, "1", "x", expected, []), ("upsert", None, "2", "y", "12", [])]


def test_a_column_that_a_rewrite_has_filled_is_unknown_in_rows_from_before() -> None:
    # `ADD COLUMN n float DEFAULT random()` rewrites the table: no catalog has the values.
    # Source: https://github.com/rocicorp/mono/issues/6194.
    slot = begun("id* a")
    facts = [with_facts(slot)]
    slot.insert(T, "1", "x")
    slot.relation(T, ["id", "a", "n"], keys=["id"])
    facts.append(with_facts(slot, None, storage=T + 1))
    slot.insert(T, "2", "y", "0.5")
    net = net_of(slot, catalog=RelationCatalog((), facts))
    assert rows_of(net) == [("upsert", None, "1", "x", None, ["n"]), ("upsert", None, "2", "y", "0.5", [])]


def test_a_version_that_is_sent_again_changes_nothing() -> None:
    # Source: https://github.com/supabase/etl: docs/schema-changes.md, a replayed schema dropped newer columns.
    slot = begun("id* a")
    slot.insert(T, "1", "x")
    slot.commit()
    slot.begin(701)
    slot.relation(T, ["id", "a", "b"], keys=["id"])
    slot.insert(T, "2", "y", "z")
    slot.relation(T, ["id", "a", "b"], keys=["id"])
    slot.update(T, "2", "w", "z")
    net = net_of(slot)
    assert rows_of(net) == [("upsert", None, "1", "x", None, ["b"]), ("upsert", None, "2", "w", "z", [])]


def test_schema_changes_between_batches_need_no_other_copy_of_the_table() -> None:
    # Source: https://github.com/bruin-data/ingestr: docs/supported-sources/cdc.md, any change copies the table again.
    slot = begun("id* a z")
    slot.insert(T, "1", "x", LONG)
    slot.commit()
    n = len(slot.payloads)
    slot.begin(701)
    slot.relation(T, ["id", "b", "z", "more"], keys=["id"])
    slot.update(T, "1", "y", UNCHANGED, "m")
    decoder, net = ChangeDecoder(), NetChanges()
    slot.commit()
    net.add(decoder.table(slot.payloads[:n], TABLE, range(n)))
    net.add(decoder.table(slot.payloads[n:], TABLE, range(n, len(slot.payloads))))
    assert rows_of(net.table()) == [("upsert", None, "1", "y", LONG, "m", [])]
    assert net.table().schema.names[-4:] == ["id", "b", "z", "more"]
