"""The shape "delta": compared with typed changes, and with the rows before a change."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from changes.test_changes import TYPES

import pgdecode
from pgdecode import ChangeDecoder, RelationCatalog
from pgdecode.rows.change_feed import FEED
from support import captures
from support.generators.random_tables import T
from support.generators.slot import Slot
from support.generators.slots import UNCHANGED
from support.tiers import full

TABLE = f"public.t{T}"


def feed_of(payloads: Any, table: str = TABLE, **options: Any) -> pa.RecordBatch:
    return ChangeDecoder(**options).table(payloads, table, shape="delta")


def told(slot: Slot, **options: Any) -> list[tuple[Any, ...]]:
    """The type, the unknown columns and the values of each row."""
    rows = feed_of(slot.payloads, **options).to_pylist()
    return [
        (row["_change_type"], row["_unknown"], *(value for name, value in row.items() if name not in FEED.names))
        for row in rows
    ]


@pytest.mark.parametrize("name", ["16.shop.v1", full("18.shop.v1bin"), "18.txns.v2", full("16.streams.v4")])
def test_the_known_values_before_an_update_or_delete_are_those_of_the_row(name: str) -> None:
    payloads = captures.capture(name).column
    for table in RelationCatalog.from_messages(payloads).names:
        versions = list(RelationCatalog.from_messages(payloads).versions(table))
        keys = [item.name for item in versions[-1].columns if item.flags & 1]
        options: dict[str, Any] = {"unrepresentable": "text", "types": TYPES}
        changes = ChangeDecoder(**options).table(payloads, table)
        feed = feed_of(payloads, table, **options)
        n_updates = changes["_op"].to_pylist().count("update")
        assert len(feed) == len(changes) + n_updates
        assert feed.schema.names == [*changes.schema.names[10:], *FEED.names]
        assert feed["_commit_version"].to_pylist() == [
            lsn
            for op, lsn in zip(changes["_op"].to_pylist(), changes["_commit_lsn"].to_pylist(), strict=True)
            for _ in range(2 if op == "update" else 1)
        ]
        table_rows: dict[Any, dict[str, Any]] = {}
        before: dict[str, Any] | None = None
        for row in feed.to_pylist():
            kind, unknown = row["_change_type"], row["_unknown"]
            values = {name: value for name, value in row.items() if name not in FEED.names}
            assert all(values[name] is None for name in unknown)
            known = {name: value for name, value in values.items() if name not in unknown}
            key = repr([values[name] for name in keys])
            if kind == "truncate":
                table_rows.clear()
            elif kind in ("delete", "update_preimage"):
                before = table_rows.pop(key, None)
                if before is not None:
                    assert {name: before[name] for name in known if name in before} == {
                        name: value for name, value in known.items() if name in before
                    }
            else:
                table_rows[key] = known


def two_updates(replica_identity: str, old: Any) -> Slot:
    """Row 1 is inserted, updated without its TOAST value, updated to the key 2, and deleted."""
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["id", "a", "toast"], keys=["id"] if replica_identity != "f" else ["id", "a", "toast"])
    slot.insert(T, "1", "x", "t")
    if old is None:
        slot.update(T, "1", "y", UNCHANGED)
        slot.update(T, "2", "y", UNCHANGED, old=("1", None, None), old_type="K")
        slot.delete(T, "2", None, None, old_type="K")
    else:
        slot.update(T, "1", "y", UNCHANGED, old=("1", "x", "t"), old_type="O")
        slot.update(T, "2", "y", UNCHANGED, old=("1", "y", "t"), old_type="O")
        slot.delete(T, "2", "y", "t", old_type="O")
    slot.commit()
    return slot


def test_what_a_change_does_not_tell_is_unknown() -> None:
    assert told(two_updates("d", None)) == [
        ("insert", [], "1", "x", "t"),
        ("update_preimage", ["a", "toast"], "1", None, None),
        ("update_postimage", ["toast"], "1", "y", None),
        ("update_preimage", ["a", "toast"], "1", None, None),
        ("update_postimage", ["toast"], "2", "y", None),
        ("delete", ["a", "toast"], "2", None, None),
    ]


def test_with_replica_identity_full_everything_is_known() -> None:
    assert told(two_updates("f", "all")) == [
        ("insert", [], "1", "x", "t"),
        ("update_preimage", [], "1", "x", "t"),
        ("update_postimage", [], "1", "y", "t"),
        ("update_preimage", [], "1", "y", "t"),
        ("update_postimage", [], "2", "y", "t"),
        ("delete", [], "2", "y", "t"),
    ]


def test_truncates_and_bad_changes_are_one_row_each() -> None:
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["id", "a"], keys=["id"], types=[25, 23])
    slot.update(T, "1", "x")
    slot.truncate(T)
    slot.commit()
    options: dict[str, Any] = {"mode": "PERMISSIVE"}
    first, second = feed_of(slot.payloads, **options).to_pylist()
    assert (first["_change_type"], first["_error"].partition(" ")[0], first["_position"]) == (None, "BAD_VALUE", 2)
    assert (second["_change_type"], second["_unknown"], second["id"]) == ("truncate", [], None)
    options["mode"] = "DROPMALFORMED"
    assert feed_of(slot.payloads, **options)["_change_type"].to_pylist() == ["truncate"]


def test_columns_that_a_version_does_not_have_are_not_unknown() -> None:
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["id", "a"], keys=["id"])
    slot.update(T, "1", "x")
    slot.relation(T, ["id", "a", "more"], keys=["id"])
    slot.delete(T, "1", None, None, old_type="K")
    slot.commit()
    assert told(slot) == [
        ("update_preimage", ["a"], "1", None, None),
        ("update_postimage", [], "1", "x", None),
        ("delete", ["a", "more"], "1", None, None),
    ]


def test_only_the_names_of_the_feed_clash() -> None:
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["_op", "_change_type", "_position"], keys=["_op"])
    slot.update(T, "1", "x", UNCHANGED)
    slot.commit()
    with pytest.raises(ValueError, match="columns '_change_type', '_position', but these are names of metadata"):
        feed_of(slot.payloads)
    found = feed_of(slot.payloads, name_clash="rename")
    assert found.schema.names[:4] == ["_op", "_change_type_", "_position_", "_change_type"]
    assert found["_unknown"].to_pylist() == [["_change_type_", "_position_"], ["_position_"]]


def test_batches_and_a_decoder_with_the_shape_give_the_same_rows() -> None:
    payloads = captures.capture("16.shop.v1").column
    expected = feed_of(payloads, "public.orders")
    decoder = ChangeDecoder(shape="delta")
    found = pa.Table.from_batches(list(decoder.table_batches(payloads, "public.orders", max_rows=7)))
    assert found.combine_chunks().to_batches()[0].equals(expected)
    assert decoder.table_schema("public.orders") == expected.schema
    assert ChangeDecoder(shape="delta").table(payloads, "public.orders", shape="changes").schema.names[0] == "_op"
    with pytest.raises(ValueError, match='shape is "changes" or "delta", not \'Delta\''):
        pgdecode.ChangeDecoder(shape="Delta")  # type: ignore[arg-type]
