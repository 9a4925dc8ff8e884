"""`snapshot`: the final rows, compared with the tables of the server."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from changes.test_changes import TYPES

import pgdecode
from pgdecode import RelationCatalog, snapshot
from pgdecode.arrow import batch_sizes
from pgdecode.net import snapshot as table_snapshot
from pgdecode.net import touched_rows
from pgdecode.net.snapshot import ABOUT
from support import captures
from support.generators.random_tables import T, random_table
from support.generators.slot import RandomSlot, Slot
from support.generators.slots import UNCHANGED
from support.oracles import expected_changes, replay
from support.oracles.expected_changes import BINARY, TEXT
from support.tiers import full, long


def table_names(catalog: RelationCatalog) -> list[str]:
    """The final names of the tables."""
    return list(dict.fromkeys(catalog[item.relation_id].qualified_name for item in catalog))


def as_text(catalog: RelationCatalog) -> dict[str | int, str]:
    """Options that decode every column of a catalog as the text that was sent."""
    return {column.type_id: "text" for item in catalog for column in item.columns}


def replayed(rows: pa.Table) -> list[dict[str, Any]]:
    """The rows in the form of `replay`."""
    found = []
    for row in rows.to_pylist():
        unknown = row.pop("_unknown")
        assert all(row[name] is None for name in unknown)
        values = {name: value for name, value in row.items() if name not in ABOUT}
        found.append({**values, **dict.fromkeys(unknown, replay.UNKNOWN)})
    return found


def differences(name: str, tables: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Differences between tables, by PostgreSQL's spelling of their names, and the tables of the server."""
    major, scenario, _ = name.split(".")
    state = replay.load_state(captures.DATA / f"{major}.{scenario}.state.json.gz")
    left_out = expected_changes.WITHOUT_COLUMNS
    if major == "10":
        left_out = left_out | expected_changes.TRUNCATED.get(scenario, set())
    found, unknown = replay.differences(tables, state, tables=left_out)
    never_sent = expected_changes.NEVER_SENT.get(scenario, {})
    left_out = left_out | expected_changes.RENAMED
    expected = {table: counts for table, counts in never_sent.items() if table in state and table not in left_out}
    return found if unknown == expected else [*found, f"unknown are {unknown}, expected {expected}"]


def spelled(catalog: RelationCatalog, name: str) -> str:
    return replay.table_name(catalog[name].namespace, catalog[name].name)


def apply_at_a_time(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Build and apply so many changes at once."""
    for name in ("_CHANGES", "_BATCH_ROWS"):
        monkeypatch.setattr(table_snapshot, name, n)


@pytest.mark.parametrize("at_a_time", [full(None), 100])
@pytest.mark.parametrize("name", TEXT)
def test_a_snapshot_of_every_table_equals_the_table_of_the_server(
    name: str, at_a_time: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if at_a_time is not None:
        # Many batches, so that rows are kept from one to the next.
        apply_at_a_time(at_a_time, monkeypatch)
    payloads = captures.capture(name).column
    catalog = RelationCatalog.from_messages(payloads)
    types = as_text(catalog)
    tables = {
        spelled(catalog, table): replayed(snapshot(payloads, table, types=types)) for table in table_names(catalog)
    }
    assert differences(name, tables) == []


@pytest.mark.parametrize("name", [name for name in BINARY if ".types." not in name])
def test_a_snapshot_of_binary_rows_equals_that_of_their_text_twin(name: str) -> None:
    payloads, twin = (captures.capture(item).column for item in (name, expected_changes.text_twin(name)))
    for table in table_names(RelationCatalog.from_messages(payloads)):
        ours, theirs = (
            snapshot(column, table, types=TYPES, unrepresentable="text").drop(ABOUT) for column in (payloads, twin)
        )
        assert ours.to_pylist() == theirs.to_pylist()


def test_columns_identify_the_change_that_last_wrote_a_row() -> None:
    payloads = captures.capture("16.shop.v1").column
    changes = pgdecode.ChangeDecoder().table(payloads, "public.orders").to_pylist()
    last = {row["id"]: row for row in changes if row["_op"] != "delete"}
    rows = snapshot(payloads, "public.orders").to_pylist()
    assert rows
    for row in rows:
        assert [row[name] for name in ABOUT] == [last[row["id"]][name] for name in ABOUT]


# -- rules, one by one -----------------------------------------------------------------------------------------------


def table_of(slot: Slot, **options: Any) -> list[tuple[Any, ...]]:
    """Rows of a snapshot of the only table, unordered, each with a list of its unknown columns at the end."""
    rows = snapshot(slot.payloads, f"public.t{T}", **options).drop(ABOUT).to_pylist()
    return sorted(((*(v for k, v in row.items() if k != "_unknown"), row["_unknown"]) for row in rows), key=repr)


def transaction(slot: Slot) -> Slot:
    """Put all changes into one transaction."""
    slot.begin(700)
    slot.relation(T, ["id", "v", "toast"], keys=["id"])
    return slot


def test_an_update_keeps_unsent_values_of_the_row() -> None:
    slot = transaction(Slot())
    slot.insert(T, "1", "a", "long")
    slot.update(T, "1", "b", UNCHANGED)
    slot.update(T, "1", "c", UNCHANGED)
    slot.commit()
    assert table_of(slot) == [("1", "c", "long", [])]


def test_a_changed_key_moves_the_row_with_its_unsent_values() -> None:
    slot = transaction(Slot())
    slot.insert(T, "1", "a", "long")
    slot.insert(T, "2", "b", "other")
    slot.update(T, "3", "c", UNCHANGED, old=["1", None, None], old_type="K")
    slot.update(T, "1", "d", UNCHANGED, old=["2", None, None], old_type="K")
    slot.update(T, "4", "e", UNCHANGED, old=["3", None, None], old_type="K")
    slot.commit()
    assert table_of(slot) == [("1", "d", "other", []), ("4", "e", "long", [])]


def test_a_value_is_unknown_until_it_is_sent() -> None:
    slot = transaction(Slot())
    slot.update(T, "1", "a", UNCHANGED)
    slot.update(T, "2", "a", UNCHANGED)
    slot.update(T, "2", "b", "long")
    slot.update(T, "2", "c", UNCHANGED)
    slot.commit()
    assert table_of(slot) == [("1", "a", None, ["toast"]), ("2", "c", "long", [])]


def test_a_row_deleted_and_inserted_again_has_no_old_values() -> None:
    slot = transaction(Slot())
    slot.insert(T, "1", "a", "long")
    slot.delete(T, "1", None, None, old_type="K")
    slot.update(T, "1", "b", UNCHANGED)
    slot.delete(T, "2", None, None, old_type="K")
    slot.commit()
    assert table_of(slot) == [("1", "b", None, ["toast"])]


def test_a_truncate_keeps_only_later_rows() -> None:
    slot = transaction(Slot())
    slot.insert(T, "1", "a", "long")
    slot.truncate(T)
    slot.insert(T, "2", "b", "short")
    slot.commit()
    assert table_of(slot) == [("2", "b", "short", [])]


def test_without_a_key_the_whole_row_identifies_one_of_several_equal_rows() -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["a", "b"], keys=["a", "b"], identity="f")
    for row in (("1", None), ("1", None), ("1", None), ("2", "x")):
        slot.insert(T, *row)
    slot.delete(T, "1", None, old_type="O")
    slot.update(T, "1", "y", old=["1", None], old_type="O")
    slot.commit()
    assert table_of(slot) == [("1", "y", []), ("1", None, []), ("2", "x", [])]


def test_without_a_replica_identity_all_inserts_remain() -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["a"], identity="n")
    slot.insert(T, "1")
    slot.insert(T, "1")
    slot.commit()
    assert table_of(slot) == [("1", []), ("1", [])]


def test_a_new_replica_identity_finds_earlier_rows() -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["a", "b"], keys=["a"])
    slot.insert(T, "1", "x")
    slot.insert(T, "2", "y")
    slot.relation(T, ["a", "b"], keys=["b"])
    slot.update(T, "3", "x")
    slot.relation(T, ["a", "b", "c"], keys=["a", "b", "c"], identity="f")
    # The old row has the default of the new column, which was never sent.
    slot.delete(T, "2", "y", "default", old_type="O")
    slot.commit()
    assert table_of(slot) == [("3", "x", None, ["c"])]


def test_a_key_is_found_by_its_value_after_its_type_was_altered() -> None:
    # Source: risingwavelabs/risingwave issue 22368, PostHog/posthog pull 86510.
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["id", "v"], types=[16, 25], keys=["id"])
    slot.insert(T, "t", "x")
    slot.insert(T, "f", "y")
    slot.relation(T, ["id", "v"], types=[25, 25], keys=["id"])
    slot.update(T, "true", "z")
    slot.delete(T, "false", None, old_type="K")
    slot.commit()
    assert table_of(slot) == [("true", "z", [])]


@pytest.mark.parametrize("identity", ["d", "f"])
@pytest.mark.parametrize("at_a_time", [1, 3, 1000])
def test_rows_that_no_later_change_touches_have_the_new_value_of_their_key(
    identity: str, at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply_at_a_time(at_a_time, monkeypatch)
    keys = ["id", "v"] if identity == "f" else ["id"]
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["id", "v"], types=[650, 25], keys=keys, identity=identity)
    for key in ("10.0.0.1/32", "10.0.0.0/8", "::1/128"):
        slot.insert(T, key, "x")
    slot.relation(T, ["id", "v"], types=[869, 25], keys=keys, identity=identity)
    if identity == "f":
        slot.update(T, "10.0.0.1", "y", old=["10.0.0.1", "x"], old_type="O")
    else:
        slot.update(T, "10.0.0.1", "y")
    slot.relation(T, ["id", "v"], types=[25, 25], keys=keys, identity=identity)
    slot.insert(T, "10.0.0.2/32", "z")
    slot.commit()
    expected = [("10.0.0.0/8", "x"), ("10.0.0.1/32", "y"), ("10.0.0.2/32", "z"), ("::1/128", "x")]
    assert table_of(slot) == [(*row, []) for row in expected]


def test_a_key_that_using_has_computed_is_an_error_at_the_change_that_finds_no_row() -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["a", "id"], types=[25, 23], keys=["a", "id"])
    slot.insert(T, "x", "1")
    slot.insert(T, "y", "2")
    slot.relation(T, ["a", "id"], types=[25, 25], keys=["a", "id"])
    # A row from before the first payload, because no row has its other column.
    slot.update(T, "z", "k3")
    slot.commit()
    assert table_of(slot) == [("x", "1", []), ("y", "2", []), ("z", "k3", [])]
    slot.begin(701)
    slot.delete(T, "y", "k2", old_type="K")
    slot.truncate(T)
    slot.commit()
    message = (
        "position 8: the changed row is not found by its replica identity: column 'id' was written with another type "
        r"in 1 rows, and ALTER COLUMN ... TYPE ... USING may have computed other values"
    )
    with pytest.raises(ValueError, match=message):
        table_of(slot)


def test_a_key_whose_new_value_is_not_certain_is_unknown() -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["id", "v"], types=[25, 25], keys=["id"])
    slot.insert(T, "1", "x")
    slot.relation(T, ["id", "v"], types=[23, 25], keys=["id"])
    slot.insert(T, "2", "y")
    slot.commit()
    assert table_of(slot) == [("2", "y", []), (None, "x", ["id"])]
    slot.begin(701)
    slot.update(T, "1", "z")
    slot.commit()
    with pytest.raises(ValueError, match=r"position 7: .* column 'id' is unknown in 1 rows, .* renamed or altered"):
        table_of(slot)


@pytest.mark.parametrize("at_a_time", [1, 1000])
def test_other_columns_are_unknown_after_their_type_was_altered_until_they_are_sent(
    at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply_at_a_time(at_a_time, monkeypatch)
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["id", "n", "toast"], types=[25, 25, 1043], keys=["id"])
    for number in range(4):
        slot.insert(T, str(number), "5", "long")
    # USING n::int * 10. PostgreSQL does not rewrite varchar to text.
    slot.relation(T, ["id", "n", "toast"], types=[25, 23, 25], keys=["id"])
    slot.update(T, "1", "50", UNCHANGED)
    slot.update(T, "2", UNCHANGED, "short")
    slot.delete(T, "3", None, None, old_type="K")
    slot.commit()
    expected = [("0", None, "long", ["n"]), ("1", "50", "long", []), ("2", None, "short", ["n"])]
    assert table_of(slot) == expected


def test_an_alteration_counts_that_no_change_of_a_row_follows() -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["id", "n"], types=[23, 25], keys=["id"])
    slot.insert(T, "1", "5")
    slot.relation(T, ["id", "n"], types=[23, 23], keys=["id"])
    slot.relation(T, ["id", "n"], types=[20, 25], keys=["id"])
    slot.commit()
    assert table_of(slot) == [(1, None, ["n"])]


def test_transactions_that_are_delivered_again_after_an_alteration_have_their_own_types() -> None:
    slot = Slot()
    for _ in range(2):
        for xid, kind, value in ((700, 23, "t"), (701, 20, "long")):
            slot.begin(xid)
            slot.relation(T, ["id", "b"], types=[kind, 16 if kind == 23 else 25], keys=["id"])
            slot.update(T, "1", value)
            slot.insert(T, str(xid), value)
            slot.commit()
    assert table_of(slot) == [(1, "long", []), (700, None, ["b"]), (701, "long", [])]


def test_a_column_that_was_dropped_and_added_again_is_another_column() -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["a", "b"], keys=["a"])
    slot.insert(T, "1", "x")
    slot.relation(T, ["a"], keys=["a"])
    slot.insert(T, "2")
    slot.relation(T, ["a", "b"], keys=["a"])
    slot.insert(T, "3", "z")
    slot.commit()
    assert table_of(slot) == [("1", None, ["b"]), ("2", None, ["b"]), ("3", "z", [])]


def test_a_renamed_column_keeps_its_values_and_finds_its_rows() -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["id", "a", "b"], keys=["id"])
    slot.insert(T, "1", "x", "y")
    slot.insert(T, "2", "x", "y")
    slot.insert(T, "3", "x", "y")
    slot.relation(T, ["key", "c", "b"], keys=["key"])
    slot.update(T, "2", "new", UNCHANGED)
    slot.update(T, "4", UNCHANGED, "z", old=("3", None, None), old_type="K")
    slot.insert(T, "5", "x", "y")
    slot.relation(T, ["key", "id", "b"], keys=["key"])
    slot.delete(T, "5", None, None, old_type="K")
    slot.commit()
    assert table_of(slot) == [("1", "x", "y", []), ("2", "new", "y", []), ("4", "x", "z", [])]


def test_a_key_that_is_dropped_later_finds_its_rows_before() -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["id", "u"], keys=["id"])
    slot.insert(T, "1", "u1")
    slot.insert(T, "2", "u2")
    slot.insert(T, "2", "u2")  # sent twice
    slot.update(T, "1", "u3")
    slot.relation(T, ["id", "u"], keys=["u"])
    slot.delete(T, None, "u2", old_type="K")
    slot.relation(T, ["u"], keys=["u"])
    slot.update(T, "u4", old=("u3",), old_type="K")
    slot.commit()
    assert table_of(slot) == [("u4", [])]


def test_rows_of_a_full_identity_are_found_by_a_column_that_is_dropped_later() -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["a", "b"], keys=["a", "b"], identity="f")
    slot.insert(T, "1", "x")
    slot.insert(T, "1", "y")
    slot.delete(T, "1", "y")
    slot.relation(T, ["a"], keys=["a"], identity="f")
    slot.commit()
    found = snapshot(slot.payloads, f"public.t{T}")
    assert found["_position"].to_pylist() == [2]


def test_a_column_behind_its_former_place_was_dropped_and_added() -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["id", "x", "b"], keys=["id"])
    slot.insert(T, "1", "old", "y")
    slot.relation(T, ["id", "b", "x"], keys=["id"])
    slot.insert(T, "2", "z", "new")
    slot.commit()
    assert table_of(slot) == [("1", "y", None, ["x"]), ("2", "z", "new", [])]


def test_a_renamed_column_whose_type_grew_keeps_its_values() -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["a", "b"], types=[23, 25], keys=["a"])
    slot.insert(T, "1", "x")
    slot.relation(T, ["key", "b"], types=[23, 25], keys=["key"])
    slot.relation(T, ["key", "b"], types=[20, 25], keys=["key"])
    slot.update(T, "1", "y")
    slot.commit()
    assert table_of(slot) == [(1, "y", [])]


def test_a_renamed_column_has_the_type_of_the_changes_and_keeps_only_values_that_are_certain() -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["id", "a", "b"], types=[20, 20, 25], keys=["id"])
    slot.insert(T, "1", "10", "x")
    slot.relation(T, ["key", "n", "b"], types=[20, 20, 25], keys=["key"])
    slot.relation(T, ["key", "n", "b"], types=[23, 25, 25], keys=["key"])
    slot.update(T, "1", UNCHANGED, "y")
    slot.insert(T, "2", "20", "z")
    slot.commit()
    assert table_of(slot) == [(1, None, "y", ["n"]), (2, "20", "z", [])]
    changes = pgdecode.ChangeDecoder().table(slot.payloads, f"public.t{T}").schema
    found = snapshot(slot.payloads, f"public.t{T}").schema
    assert [found.field(name).type for name in ("key", "n", "b")] == [pa.int64(), pa.string(), pa.string()]
    assert all(found.field(name).equals(changes.field(name), check_metadata=True) for name in ("key", "n", "b"))


@pytest.mark.parametrize("key", ["id", "a"])
def test_a_change_of_an_earlier_version_does_not_tell_a_column_that_was_added_since(key: str) -> None:
    slot = Slot()
    slot.begin_prepare(9, "g")
    slot.relation(T, ["id", "a"], keys=[key])
    slot.insert(T, "1", "former")
    slot.prepare("g")
    for number, columns in enumerate((["id"], ["id", "a"])):
        slot.begin(10 + number)
        slot.relation(T, columns, keys=[key] if key in columns else ["id"])
        slot.insert(T, *f"{number}x"[: len(columns)])
        slot.commit()
    # A server would have kept the table locked until here.
    slot.commit_prepared(9, "g")
    if key == "id":
        assert table_of(slot) == [("0", None, ["a"]), ("1", None, ["a"])]
        return
    with pytest.raises(ValueError, match="position 2: the change does not tell column 'a' of the key"):
        table_of(slot)


def test_the_dropped_name_of_one_column_may_be_that_of_another() -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["u", "a", "b", "z"], types=[25, 23, 23, 25], keys=["u"])
    slot.insert(T, "u1", "1", "2", "z")
    slot.relation(T, ["u", "a", "z"], types=[25, 23, 25], keys=["u"])
    slot.relation(T, ["u", "a", "z", "a'"], types=[25, 23, 25, 25], keys=["u"])
    slot.update(T, "u1", UNCHANGED, "y", UNCHANGED)
    slot.commit()
    assert table_of(slot) == [("u1", 1, "y", None, ["a'"])]


def test_a_bad_change_has_its_values_under_the_last_names() -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["id", "a", "n"], types=[25, 25, 23], keys=["id"])
    slot.insert(T, "1", "x", "no number")
    slot.relation(T, ["id", "c", "n"], types=[25, 25, 23], keys=["id"])
    slot.insert(T, "2", "y", "7")
    slot.commit()
    found = snapshot(slot.payloads, f"public.t{T}", mode="PERMISSIVE").to_pylist()
    assert [(row["id"], row["c"], row["n"]) for row in found] == [("2", "y", 7), ("1", "x", None)]


def test_a_key_that_may_be_another_column_is_an_error_where_rows_would_be_guessed() -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["a", "id"], keys=["id"])
    slot.insert(T, "x", "1")
    # Renamed, or dropped and added.
    slot.relation(T, ["a", "key"], keys=["key"])
    slot.insert(T, "y", "2")
    slot.update(T, "z", "2")
    slot.commit()
    assert table_of(slot) == [("x", None, ["key"]), ("z", "2", [])]
    slot.begin(701)
    slot.delete(T, None, "1", old_type="K")
    slot.commit()
    with pytest.raises(
        ValueError,
        match=r"position 8: the changed row is not found by its replica identity: column 'key' is unknown in 1 rows",
    ):
        table_of(slot)


def test_a_renamed_table_exists_only_under_its_last_name() -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["a"], keys=["a"], name="before")
    slot.insert(T, "1")
    slot.relation(T, ["a"], keys=["a"])
    slot.insert(T, "2")
    slot.commit()
    assert table_of(slot) == [("1", []), ("2", [])]
    with pytest.raises(KeyError, match=rf"'public\.before' was renamed to 'public\.t{T}'"):
        snapshot(slot.payloads, "public.before")


def test_a_table_created_again_under_the_same_name_is_the_later_one() -> None:
    slot = Slot()
    slot.begin(700)
    for relation_id, value in ((T, "1"), (T + 1, "2")):
        slot.relation(relation_id, ["a"], keys=["a"], name=f"t{T}")
        slot.insert(relation_id, value)
    slot.commit()
    assert table_of(slot) == [("2", [])]


def test_the_last_version_is_the_one_that_became_visible_last() -> None:
    slot = Slot()
    slot.start(9, first=True)
    slot.relation(T, ["a", "b"], keys=["a"], xid=9)
    slot.insert(T, "1", "x", xid=9)
    slot.stop()
    slot.begin(8)
    slot.relation(T, ["a", "c"], keys=["a"])
    slot.insert(T, "2", "y")
    slot.commit()
    slot.start(9)
    slot.relation(T, ["a", "b"], keys=["a"], xid=9)
    slot.insert(T, "3", "z", xid=9)
    slot.stop()
    slot.stream_commit(9)
    assert table_of(slot) == [("1", "x", []), ("2", None, ["b"]), ("3", "z", [])]


@pytest.mark.parametrize(
    ("columns", "inserts"),
    [
        (["ab", "b", "a"], ["AB", "B", "A"]),  # a is dropped, and b is renamed to a
        (["", "b", "bc"], ["", "B", "BC"]),  # two columns are added
        (["ak", "k", "kn", "mn"], ["AK", "K", "KN", "MN"]),
    ],
    ids=["renamed", "added", "dropped, added and renamed"],
)
def test_versions_of_one_stream_follow_each_other_as_in_a_plain_transaction(
    columns: list[str], inserts: list[str]
) -> None:
    found = []
    for xid in (None, 9):
        slot = Slot()
        slot.begin(7)
        slot.relation(T, ["id", *columns[0]], keys=["id"])
        slot.insert(T, "0", *inserts[0])
        slot.commit()
        if xid is None:
            slot.begin(9)
        else:
            slot.start(xid, first=True)
        for number, (names, values) in enumerate(zip(columns[1:], inserts[1:], strict=True), 1):
            slot.relation(T, ["id", *names], keys=["id"], xid=xid)
            slot.insert(T, str(number), *values, xid=xid)
        if xid is None:
            slot.commit()
        else:
            slot.stop()
            slot.stream_commit(xid)
        found.append(table_of(slot))
    assert found[1] == found[0]


def with_open_stream() -> Slot:
    """A table and a row, and the stream of transaction 9 with another version and row."""
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["id", "a"], keys=["id"])
    slot.insert(T, "1", "a1")
    slot.commit()
    slot.start(9, first=True)
    slot.relation(T, ["id", "a", "b"], keys=["id"], xid=9)
    slot.insert(T, "2", "a2", "b2", xid=9)
    slot.stop()
    return slot


def test_a_version_that_another_one_overtakes_is_not_the_last() -> None:
    slot = with_open_stream()
    slot.begin(10)
    slot.relation(T, ["id", "b"], keys=["id"])
    slot.insert(T, "3", "b3")
    slot.commit()
    slot.stream_commit(9)
    assert table_of(slot) == [("1", None, ["b"]), ("2", "b2", []), ("3", "b3", [])]


def test_a_catalog_is_from_before_payloads_without_positions() -> None:
    before = Slot()
    for xid in range(7, 20):
        before.begin(xid)
        before.commit()
    before.begin(20)
    before.relation(T, ["id", "a"], keys=["id"])
    before.commit()
    slot = Slot()
    slot.begin(30)
    slot.insert(T, "1", "a1")
    slot.relation(T, ["id", "a", "b"], keys=["id"])
    slot.insert(T, "2", "a2", "b2")
    slot.commit()
    catalog = RelationCatalog.from_messages(before.payloads)
    assert table_of(slot, catalog=catalog) == [("1", "a1", None, ["b"]), ("2", "a2", "b2", [])]


def test_a_catalog_may_have_an_undecided_version_of_the_same_payloads() -> None:
    slot = with_open_stream()
    catalog = RelationCatalog.from_messages(slot.payloads, range(len(slot.payloads)))
    slot.stream_commit(9)
    positions = range(len(slot.payloads))
    assert table_of(slot, catalog=catalog, position=positions) == table_of(slot)


@pytest.mark.parametrize("n_versions", [1, 2])
def test_versions_of_a_catalog_from_later_positions_are_ignored(n_versions: int) -> None:
    slot = Slot()
    for number, names in enumerate((["a", "b"], ["b", "a"])):
        slot.begin(7 + number)
        slot.relation(T, ["id", *names], keys=["id"])
        slot.insert(T, str(number), *names)
        slot.commit()
    catalog = RelationCatalog.from_messages(slot.payloads, range(8))
    del slot.payloads[4 * n_versions :]
    assert table_of(slot, catalog=catalog, position=range(4 * n_versions)) == table_of(slot)


@pytest.mark.parametrize("has_positions", [False, True])
def test_the_last_visible_version_of_a_catalog_applies(has_positions: bool) -> None:
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["id", "z"], keys=["id"])
    slot.commit()
    slot.start(9, first=True)
    slot.relation(T, ["id", "a"], keys=["id"], xid=9)
    slot.stop()
    slot.begin(10)
    slot.relation(T, ["id", "b"], keys=["id"])
    slot.commit()
    slot.start(9)
    slot.relation(T, ["id", "a"], keys=["id"], xid=9)
    slot.stop()
    slot.stream_commit(9)
    catalog = RelationCatalog.from_messages(slot.payloads)
    n = len(slot.payloads)
    slot.begin(20)
    slot.insert(T, "5", "val")
    slot.commit()
    decoder = pgdecode.ChangeDecoder(catalog=catalog)
    changes = decoder.decode(slot.payloads[n:], range(n, n + 3) if has_positions else None)
    assert changes["new"].to_pylist() == pgdecode.ChangeDecoder().decode(slot.payloads)["new"].to_pylist()
    assert changes["new"].to_pylist() == [[("id", "5"), ("a", "val")]]


def decide(slot: Slot, outcome: str) -> None:
    """Commit the prepared transaction 10, roll it back, or leave it."""
    if outcome == "commit":
        slot.commit_prepared(10, "g")
    elif outcome == "rollback":
        slot.rollback_prepared(10, "g")


@pytest.mark.parametrize("outcome", ["commit", "rollback", "none"])
def test_a_committed_version_counts_that_a_prepared_transaction_overtakes(outcome: str) -> None:
    slot = Slot()
    slot.start(9, first=True)
    slot.relation(T, ["id", "a"], keys=["id"], xid=9)
    slot.insert(T, "1", "x", xid=9)
    slot.stop()
    slot.begin_prepare(10, "g")
    slot.relation(T, ["id", "a"], keys=["id"])
    slot.insert(T, "2", "y")
    slot.prepare("g")
    decide(slot, outcome)
    slot.stream_commit(9)
    prepared = [("2", "y", [])] if outcome == "commit" else []
    assert table_of(slot) == [("1", "x", []), *prepared]


@pytest.mark.parametrize("outcome", ["commit", "rollback", "none"])
def test_a_new_column_and_name_are_kept_that_a_prepared_transaction_has_sent_later(outcome: str) -> None:
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["id", "z"], keys=["id"], name="old")
    slot.insert(T, "0", "z0")
    slot.commit()
    slot.start(9, first=True)
    slot.relation(T, ["id", "z", "a"], keys=["id"], xid=9, name="new")
    slot.insert(T, "1", "x", "y", xid=9)
    slot.stop()
    slot.begin_prepare(10, "g")
    slot.relation(T, ["id", "z", "a"], keys=["id"], name="new")
    slot.insert(T, "2", "x2", "y2")
    slot.prepare("g")
    decide(slot, outcome)
    slot.stream_commit(9)
    rows = pgdecode.snapshot(slot.payloads, "public.new").select(["id", "z", "a"]).to_pylist()
    prepared = [{"id": "2", "z": "x2", "a": "y2"}] if outcome == "commit" else []
    assert rows == [{"id": "0", "z": "z0", "a": None}, *prepared, {"id": "1", "z": "x", "a": "y"}]
    with pytest.raises(KeyError, match=r"renamed to 'public\.new'"):
        pgdecode.snapshot(slot.payloads, "public.old")


class RepeatingSlot(RandomSlot):
    """Random transactions that send few versions of one relation, each again and again."""

    def describe(self, table: int, xid: int | None) -> None:
        """Send one of three versions."""
        number = self.rng.randrange(3)
        self.relation(table, ["k", f"a{number}", f"b{number}"], keys=["k"], xid=xid)

    def rows(self, xids: list[int | None]) -> None:
        """Send rows of one table."""
        for _ in range(self.rng.randrange(5)):
            if self.rng.random() < 0.4:
                self.describe(self.TABLES[0], xids[0])
            else:
                self.insert(self.TABLES[0], str(len(self.payloads)), "x", "y", xid=self.rng.choice(xids))


@pytest.mark.parametrize("seed", [*range(30), *(full(seed) for seed in range(30, 600))])
def test_a_version_that_becomes_visible_again_is_the_last(seed: int) -> None:
    rng = random.Random(seed)
    slot = RepeatingSlot(rng, rng.randrange(3, 20))
    while slot.streams:
        slot.end_stream()
    while seed % 2 and slot.prepared:
        slot.decide_prepared()
    n = len(slot.payloads)
    slot.begin(9999)
    slot.insert(slot.TABLES[0], "key", "tail1", "tail2")
    slot.commit()
    expected = pgdecode.ChangeDecoder().decode(slot.payloads)["new"].to_pylist()[-1]
    catalog = RelationCatalog.from_messages(slot.payloads[:n])
    for positions in (None, range(n, n + 3)):
        changes = pgdecode.ChangeDecoder(catalog=catalog).decode(slot.payloads[n:], positions)
        assert changes["new"].to_pylist() == [expected]
    rows = pgdecode.snapshot(slot.payloads, f"public.t{slot.TABLES[0]}").to_pylist()
    (row,) = (row for row in rows if row["k"] == "key")
    assert {name: value for name, value in row.items() if name[0] != "_"} == dict(expected)
    assert row["_unknown"] == []


def test_uncommitted_changes_are_left_out() -> None:
    slot = transaction(Slot())
    slot.insert(T, "1", "a", "b")
    slot.commit()
    slot.begin(701)
    slot.insert(T, "2", "a", "b")
    assert table_of(slot) == [("1", "a", "b", [])]


def test_a_transaction_sent_twice_counts_once_on_request() -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["a"], identity="n")
    slot.insert(T, "1")
    slot.commit()
    slot.payloads *= 2
    assert table_of(slot, drop_duplicates=True) == [("1", [])]
    with pytest.raises(pgdecode.CommitOrder, match="position 7 does not come after 0/1008 at position 3"):
        table_of(slot)


def test_a_column_with_the_name_of_a_snapshot_column_is_refused() -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["_unknown"])
    slot.commit()
    with pytest.raises(ValueError, match="a column '_unknown'"):
        table_of(slot)


def test_a_table_may_have_a_column_called_version() -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["_version"])
    slot.insert(T, "1")
    slot.relation(T, ["_version", "a"])
    slot.insert(T, "2", "x")
    slot.commit()
    assert table_of(slot) == [("1", None, ["a"]), ("2", "x", [])]


# -- random tables ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("identity", ["d", "f", "n"])
@pytest.mark.parametrize("at_a_time", [5, 100_000])
def test_random_changes_leave_the_expected_rows(
    identity: str, at_a_time: int, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply_at_a_time(at_a_time, monkeypatch)
    slot, rows = random_table(rng, identity)
    assert table_of(slot) == sorted(((*row, []) for row in rows), key=repr)


def slot_of_unknown_values(rng: random.Random, *, has_versions: bool) -> tuple[Slot, list[tuple[Any, ...]]]:
    """Changes of rows from before the first payload too, of columns that come, go and are left out.

    The rows at the end are right if there is one version: then no column is another one.
    """
    slot, columns = Slot(), ["id", "a", "b", "c"]
    rows: dict[str, list[str | None]] = {}
    for number in range(12):
        if number % 4 == 3 and has_versions:
            columns = ["id", *rng.sample("abcd", rng.randrange(1, 5))]
        slot.begin(700 + number)
        slot.relation(T, columns, keys=["id"])
        for _ in range(rng.randrange(12)):
            key, old = str(rng.randrange(12)), str(rng.randrange(12))
            row = [key, *(rng.choice(["x", "y", None, UNCHANGED, UNCHANGED]) for _ in columns[1:])]
            op = rng.choices(["insert", "update", "move", "delete", "truncate"], [3, 8, 4, 2, 0.3])[0]
            others = [None] * (len(columns) - 1)
            before = rows.pop(old if op == "move" else key, None)
            if op == "truncate":
                slot.truncate(T)
                rows.clear()
            elif op == "delete":
                slot.delete(T, key, *others, old_type="K")
            elif op == "move":
                slot.update(T, *row, old=[old, *others], old_type="K")
            else:
                # A server does not send an insert with a value left out, but it can be decoded.
                (slot.insert if op == "insert" else slot.update)(T, *row)
            if op not in ("truncate", "delete"):
                before = row if op == "insert" or before is None else before
                rows[key] = [old if new is UNCHANGED else new for old, new in zip(before, row, strict=False)]
        slot.commit()
    names = ["id", "a", "b", "c"]
    expected = [
        (
            *(None if value is UNCHANGED else value for value in row),
            [name for name, value in zip(names, row, strict=False) if value is UNCHANGED],
        )
        for row in rows.values()
    ]
    return slot, sorted(expected, key=repr)


@pytest.mark.parametrize(
    "seed", [*range(6), *(full(seed) for seed in range(6, 200)), *(long(seed) for seed in range(200, 1500))]
)
def test_unknown_values_are_the_same_however_many_changes_are_applied_at_once(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    slot, expected = slot_of_unknown_values(rng, has_versions=seed % 3 > 0)
    found = snapshot(slot.payloads, f"public.t{T}")
    if seed % 3 == 0:
        assert table_of(slot) == expected
    apply_at_a_time(rng.choice([1, 5, 1000]), monkeypatch)
    monkeypatch.setattr(table_snapshot, "_BYTES", rng.choice([1, 2000, 10**9]))
    monkeypatch.setattr(touched_rows, "_FEW_ROWS", rng.choice([0, 10, 1000]))
    # With 0, small batches are not joined.
    monkeypatch.setattr(batch_sizes, "_FEW_ROWS", rng.choice([0, 8192]))
    assert snapshot(slot.payloads, f"public.t{T}") == found


def test_an_insert_does_not_keep_values_of_an_earlier_copy_of_its_row() -> None:
    slot = transaction(Slot())
    slot.insert(T, "1", "a", "long")
    slot.insert(T, "1", "b", UNCHANGED)
    slot.commit()
    assert table_of(slot) == [("1", "b", None, ["toast"])]


@pytest.mark.parametrize("at_a_time", [5, 40, 100_000])
def test_random_changes_of_random_versions_leave_the_expected_rows(
    at_a_time: int, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply_at_a_time(at_a_time, monkeypatch)
    slot, columns = Slot(), ["id", "a", "z"]
    rows: dict[str, dict[str, str | None]] = {}
    for number in range(60):
        if number % 10 == 9:
            if rng.random() < 0.5:
                columns.append(f"c{number}")
            elif len(columns) > 3:
                columns.pop(rng.randrange(3, len(columns)))
            # Renamed, because z stays behind it.
            columns[1] = rng.choice("ab")
        slot.begin(700 + number)
        slot.relation(T, columns, keys=["id"])
        for _ in range(rng.randrange(8)):
            op = rng.choices(["insert", "update", "delete", "truncate"], [6, 6, 3, 1 if number < 50 else 0])[0]
            key = str(rng.randrange(30))
            row = [key, *(rng.choice(["x", "y", None]) for _ in columns[1:])]
            if op == "truncate":
                slot.truncate(T)
                rows.clear()
            elif op == "delete":
                slot.delete(T, key, *[None] * (len(columns) - 1), old_type="K")
                rows.pop(key, None)
            else:
                (slot.insert if op == "insert" else slot.update)(T, *row)
                rows[key] = dict(zip(["id", "a", *columns[2:]], row, strict=True))
        slot.commit()
    last = ["id", "a", *columns[2:]]
    expected = [
        (*(row.get(name) for name in last), sorted(columns[at] for at, name in enumerate(last) if name not in row))
        for row in rows.values()
    ]
    assert table_of(slot) == sorted(expected, key=repr)
