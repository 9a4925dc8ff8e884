"""The rules of `net_changes`, one by one, with rows worked out by hand from its contract."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from pgdecode import ChangeDecoder, NetChanges, net_changes, snapshot
from pgdecode.net import net_changes as module
from pgdecode.net import touched_rows
from support.generators.random_tables import T
from support.generators.slot import Slot
from support.generators.slots import UNCHANGED

Row = tuple[Any, ...]


def transaction(identity: str = "d") -> Slot:
    slot = Slot()
    slot.begin(700)
    keys = {"d": ["id"], "f": ["id", "v", "toast"], "n": []}[identity]
    slot.relation(T, ["id", "v", "toast"], keys=keys, identity=identity)
    return slot


def net_of(slot: Slot, cuts: Sequence[int] = (), key: Sequence[str] | None = None) -> pa.Table:
    """The net changes of the only table, decoded in parts."""
    decoder, net = ChangeDecoder(), NetChanges(key)
    for start, end in pairwise([0, *cuts, len(slot.payloads)]):
        net.add(decoder.table(slot.payloads[start:end], f"public.t{T}"))
    return net.table()


def rows_of(net: pa.Table) -> list[Row]:
    """Action, key before, the columns of the table, and the unknown ones if there are any."""
    found = []
    for row in net.to_pylist():
        before = row["_key_before"] and tuple(row["_key_before"].values())
        values = [value for name, value in row.items() if name[0] != "_"]
        found.append((row["_action"], before, *values, *([row["_unknown"]] if row["_unknown"] else [])))
    return found


def test_a_row_is_followed_through_its_keys_with_the_values_that_updates_left_out() -> None:
    slot = transaction()
    slot.insert(T, "1", "a", "long")
    slot.update(T, "2", "b", UNCHANGED, old=["1", None, None], old_type="K")
    slot.update(T, "9", "c", UNCHANGED, old=["8", None, None], old_type="K")
    slot.update(T, "7", "d", "told")
    slot.update(T, "7", "e", UNCHANGED)
    slot.delete(T, "5", None, None, old_type="K")
    slot.insert(T, "6", "f", "x")
    slot.delete(T, "6", None, None, old_type="K")
    slot.commit()
    assert rows_of(net_of(slot)) == [
        ("upsert", None, "2", "b", "long"),
        ("upsert", ("8",), "9", "c", None, ["toast"]),
        ("upsert", ("7",), "7", "e", "told"),
        ("delete", ("5",), "5", None, None),
    ]


def test_keys_that_swap_stay_with_their_rows() -> None:
    slot = transaction()
    for before, after in (("1", "tmp"), ("2", "1"), ("tmp", "2")):
        slot.update(T, after, f"from {before}", UNCHANGED, old=[before, None, None], old_type="K")
    slot.commit()
    assert rows_of(net_of(slot)) == [
        ("upsert", ("2",), "1", "from 2", None, ["toast"]),
        ("upsert", ("1",), "2", "from tmp", None, ["toast"]),
    ]


def test_a_deleted_row_has_the_key_from_before_all_changes() -> None:
    slot = transaction()
    slot.update(T, "2", "a", "b", old=["1", None, None], old_type="K")
    slot.delete(T, "2", None, None, old_type="K")
    slot.insert(T, "1", "new", "row")
    slot.commit()
    assert rows_of(net_of(slot)) == [("delete", ("1",), "1", None, None), ("upsert", None, "1", "new", "row")]


def test_a_truncate_comes_first_and_nothing_is_left_from_before_it() -> None:
    slot = transaction()
    slot.insert(T, "1", "a", "b")
    slot.delete(T, "2", None, None, old_type="K")
    slot.truncate(T)
    slot.insert(T, "3", "c", "d")
    slot.commit()
    assert rows_of(net_of(slot)) == [("truncate", None, None, None, None), ("upsert", None, "3", "c", "d")]


def test_without_a_key_rows_are_found_whole_one_for_each_change() -> None:
    slot = transaction("f")
    slot.insert(T, "1", None, "x")
    slot.insert(T, "1", None, "x")
    slot.delete(T, "1", None, "x", old_type="O")
    slot.update(T, "2", "b", UNCHANGED, old=["2", "a", "y"], old_type="O")
    slot.delete(T, "2", "a", "y", old_type="O")
    slot.commit()
    assert rows_of(net_of(slot)) == [
        ("upsert", None, "1", None, "x"),
        ("upsert", ("2", "a", "y"), "2", "b", "y"),
        ("delete", ("2", "a", "y"), "2", "a", "y"),
    ]


def test_without_a_replica_identity_all_inserts_are_rows() -> None:
    slot = transaction("n")
    slot.insert(T, "1", "a", "b")
    slot.insert(T, "1", "a", "b")
    slot.commit()
    assert rows_of(net_of(slot)) == [("upsert", None, "1", "a", "b")] * 2


@pytest.mark.parametrize("cuts", [(), (6,)])
def test_renamed_added_and_altered_columns(cuts: Sequence[int]) -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["id", "a", "n", "last"], types=[23, 25, 25, 25], keys=["id"])
    slot.insert(T, "1", "x", "5", "y")
    slot.update(T, "2", "x", "6", "y")
    slot.commit()
    slot.begin(701)
    slot.relation(T, ["id", "b", "n", "last", "added"], types=[23, 25, 23, 25, 25], keys=["id"])
    slot.update(T, "2", "z", UNCHANGED, UNCHANGED, UNCHANGED)
    slot.insert(T, "3", "z", "7", "y", None)
    slot.commit()
    net = net_of(slot, cuts)
    assert rows_of(net) == [
        ("upsert", None, 1, "x", None, "y", None, ["n", "added"]),
        ("upsert", (2,), 2, "z", None, "y", None, ["n", "added"]),
        ("upsert", None, 3, "z", "7", "y", None),
    ]


def _not_the_identity(slot: Slot) -> None:
    slot.update(T, "1", "a", "b")


def _unsent_key(slot: Slot) -> None:
    slot.update(T, UNCHANGED, "a", "b")


@pytest.mark.parametrize(
    ("write", "key", "message"),
    [
        (
            _not_the_identity,
            ["v"],
            r"position 2: the change does not tell the former values of the key v, which is not",
        ),
        (_unsent_key, None, r"position 2: the change does not tell the key: id is an unchanged TOAST value"),
        (_not_the_identity, ["w"], r"key must name different columns of the table: 'w'"),
    ],
)
def test_a_key_that_is_not_told_is_an_error(
    write: Callable[[Slot], None], key: Sequence[str] | None, message: str
) -> None:
    slot = transaction()
    write(slot)
    slot.commit()
    with pytest.raises(ValueError, match=message):
        net_of(slot, key=key)


def test_changes_must_be_in_order_and_say_what_their_key_is() -> None:
    slot = transaction()
    slot.insert(T, "1", "a", "b")
    slot.commit()
    changes = ChangeDecoder().table(slot.payloads, f"public.t{T}")
    with pytest.raises(ValueError, match=r"position 2: changes are not in the order of _commit_position"):
        net_changes([changes, changes])
    with pytest.raises(ValueError, match=r"do not say which of them are the replica identity .* pass key"):
        net_changes(pa.table(changes.to_pydict()))


def test_the_schema_names_the_key() -> None:
    slot = transaction()
    slot.commit()
    net = net_of(slot)
    assert net.schema.names[:7] == [
        *("_action", "_key_before", "_unknown", "_position", "_commit_position", "_commit_lsn", "_commit_timestamp")
    ]
    assert [item.name for item in net.schema if b"pg:key" in (item.metadata or {})] == ["id"]
    assert net.schema.field("_key_before").type == pa.struct([("id", pa.string())])


def test_a_column_behind_its_former_place_was_dropped_and_added() -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["id", "x", "b"], keys=["id"])
    slot.insert(T, "1", "old", "y")
    slot.relation(T, ["id", "b", "x"], keys=["id"])
    slot.insert(T, "2", "z", "new")
    slot.commit()
    net = net_of(slot)
    assert net.select(["id", "x", "b", "_unknown"]).to_pylist() == [
        {"id": "1", "x": None, "b": "y", "_unknown": ["x"]},
        {"id": "2", "x": "new", "b": "z", "_unknown": []},
    ]


def test_a_column_whose_type_keeps_its_values_has_them_as_the_server_prints_them() -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["id", "net", "old"], types=[23, 650, 650], keys=["id", "old"])
    slot.insert(T, "1", "10.0.0.1/32", "10.0.0.2/32")
    # The server does not rewrite the table; inet is printed without /32.
    slot.relation(T, ["id", "net", "old"], types=[23, 869, 869], keys=["id"])
    slot.update(T, "2", "10.0.0.3", "10.0.0.4")
    slot.commit()
    assert rows_of(net_of(slot)) == [
        ("upsert", None, 1, "10.0.0.1", "10.0.0.2"),
        ("upsert", (2,), 2, "10.0.0.3", "10.0.0.4"),
    ]
    rows = snapshot(slot.payloads, f"public.t{T}").select(["id", "net", "old"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [(1, "10.0.0.1", "10.0.0.2"), (2, "10.0.0.3", "10.0.0.4")]


@pytest.mark.parametrize("few", [0, 1 << 16])
def test_a_key_that_using_may_have_computed_is_an_error_after_other_versions_and_changes(
    few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(touched_rows, "_FEW_ROWS", few)
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["a", "id"], types=[25, 23], keys=["a", "id"])
    for number in ("1", "2", "3"):
        slot.insert(T, "x", number)
    slot.relation(T, ["a", "id"], types=[25, 25], keys=["a", "id"])
    slot.delete(T, "x", "1", old_type="K")
    slot.relation(T, ["a", "id", "b"], types=[25, 25, 25], keys=["id", "a"])
    for number in range(20):
        slot.update(T, "y", "y", str(number))
    slot.commit()
    assert [row["id"] for row in snapshot(slot.payloads, f"public.t{T}").to_pylist()] == ["2", "3", "y"]
    slot.begin(701)
    slot.update(T, "x", "k2", "b")
    slot.commit()
    for fold in (net_of, lambda slot: snapshot(slot.payloads, f"public.t{T}")):
        with pytest.raises(ValueError, match=r"column 'id' was written with another type in 2 rows"):
            fold(slot)


def _swap_of_rows_from_before(slot: Slot) -> None:
    slot.update(T, "2", "a", "x", old=["1", "a", "x"], old_type="O")
    slot.update(T, "1", "b", "x", old=["2", "b", "x"], old_type="O")


def _swap_of_inserted_rows(slot: Slot) -> None:
    slot.insert(T, "1", "a", "x")
    slot.insert(T, "2", "b", "x")
    _swap_of_rows_from_before(slot)


def _insert_before_a_delete(slot: Slot) -> None:
    slot.insert(T, "1", "new", "x")
    slot.delete(T, "1", "a", "x", old_type="O")


def _insert_of_a_key_that_a_row_has(slot: Slot) -> None:
    slot.update(T, "1", "b", "x", old=["1", "a", "x"], old_type="O")
    slot.commit()
    slot.begin(701)
    slot.insert(T, "1", "new", "x")
    slot.update(T, "2", "b", "x", old=["1", "b", "x"], old_type="O")


@pytest.mark.parametrize(
    ("write", "position", "expected"),
    [
        (
            _swap_of_rows_from_before,
            3,
            [("upsert", ("1", "a", "x"), "2", "a", "x"), ("upsert", ("2", "b", "x"), "1", "b", "x")],
        ),
        (_swap_of_inserted_rows, 4, [("upsert", None, "2", "a", "x"), ("upsert", None, "1", "b", "x")]),
        (_insert_before_a_delete, 3, [("upsert", None, "1", "new", "x"), ("delete", ("1", "a", "x"), "1", "a", "x")]),
        (
            _insert_of_a_key_that_a_row_has,
            5,
            [("upsert", None, "1", "new", "x"), ("upsert", ("1", "a", "x"), "2", "b", "x")],
        ),
    ],
)
def test_two_rows_with_one_key_are_exact_without_it_and_an_error_with_it(
    write: Callable[[Slot], None], position: int, expected: list[Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    # PostgreSQL checks a deferrable key at the commit. It is no replica identity: only FULL sends such changes.
    slot = transaction("f")
    write(slot)
    slot.commit()
    assert rows_of(net_of(slot)) == expected
    changes = ChangeDecoder().table(slot.payloads, f"public.t{T}")
    for at_a_time in (1000, 1):
        monkeypatch.setattr(module, "_CHANGES", at_a_time)
        with pytest.raises(ValueError, match=rf"position {position}: two rows have the same key \(id\)"):
            net_changes([changes.slice(at, 1) for at in range(len(changes))], key=["id"])


def test_rows_that_are_written_often_or_delivered_again_have_one_key() -> None:
    slot = transaction("f")
    slot.insert(T, "1", "a", "x")
    slot.update(T, "2", "b", "x", old=["1", "a", "x"], old_type="O")
    slot.update(T, "1", "b", "x", old=["2", "b", "x"], old_type="O")
    slot.insert(T, "2", "c", "y")
    slot.commit()
    slot.begin(701)
    slot.delete(T, "2", "c", "y", old_type="O")
    slot.update(T, "2", "d", "x", old=["1", "b", "x"], old_type="O")
    slot.commit()
    once = rows_of(net_of(slot, key=["id"]))
    assert once == [("upsert", None, "2", "d", "x")]
    for again in (0, 7):
        decoder, net = ChangeDecoder(), NetChanges(["id"])
        for payloads in (slot.payloads, slot.payloads[again:]):
            net.add(decoder.table(payloads, f"public.t{T}"))
            decoder.reconnected()
        assert [row for row in rows_of(net.table()) if row[0] == "upsert"][-1][2:] == once[0][2:]
