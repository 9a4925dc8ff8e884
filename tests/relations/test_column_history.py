"""Renamed columns: in all outputs that have typed columns, and as events."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import pgdecode
from pgdecode import ChangeDecoder, RelationCatalog, snapshot
from pgdecode.relations.column_history import histories, rename_events, renames_of
from support import captures
from support.generators.random_tables import T
from support.generators.slot import Slot
from support.generators.slots import UNCHANGED

TABLE = f"public.t{T}"


def renamed() -> Slot:
    """A column `a` that becomes `b`, before a column that keeps its name."""
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["id", "a", "z"], types=[23, 23, 25], keys=["id"])
    slot.insert(T, "1", "5", "x")
    slot.insert(T, "2", "6", "y")
    slot.relation(T, ["id", "b", "z"], types=[23, 23, 25], keys=["id"])
    slot.update(T, "2", UNCHANGED, "z")
    slot.delete(T, "1", None, None, old_type="K")
    slot.commit()
    return slot


def test_a_renamed_column_has_its_last_name_in_all_rows_of_a_table() -> None:
    found = ChangeDecoder().table(renamed().payloads, TABLE)
    assert found.schema.names[-3:] == ["id", "b", "z"]
    assert [item.name for item in found.schema.field("_old").type] == ["id", "b", "z"]
    assert found["b"].to_pylist() == [5, 6, None, None]
    assert found["_unchanged"].to_pylist() == [[], [], ["b"], []]
    assert snapshot(renamed().payloads, TABLE).select(["id", "b", "z"]).to_pylist() == [{"id": 2, "b": 6, "z": "z"}]


def test_a_column_that_is_renamed_and_altered_has_the_type_of_all_its_values() -> None:
    slot = Slot()
    slot.begin(700)
    for names, kind in ((["id", "a", "z"], 21), (["id", "b", "z"], 21), (["id", "b", "z"], 20)):
        slot.relation(T, names, types=[23, kind, 25], keys=["id"])
        slot.insert(T, str(kind), "7", "x")
    slot.commit()
    found = ChangeDecoder().table(slot.payloads, TABLE)
    assert found.schema.field("b").type == pa.int64()
    assert found["b"].to_pylist() == [7, 7, 7]


def test_a_column_may_get_the_name_that_the_one_before_it_had() -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["id", "a", "z"], types=[25, 25, 25], keys=["id"])
    slot.insert(T, "1", "x", "y")
    slot.relation(T, ["key", "id", "z"], types=[25, 25, 25], keys=["key"])
    slot.update(T, "1", "x", "changed")
    slot.commit()
    assert snapshot(slot.payloads, TABLE).select(["_unknown", "key", "id", "z"]).to_pylist() == [
        {"_unknown": [], "key": "1", "id": "x", "z": "changed"}
    ]
    found = ChangeDecoder().table(slot.payloads, TABLE).select(["key", "id", "z"]).to_pylist()
    assert found == [{"key": "1", "id": "x", "z": "y"}, {"key": "1", "id": "x", "z": "changed"}]


def test_a_later_call_has_the_last_name_only() -> None:
    slot = renamed()
    decoder = ChangeDecoder()
    first = decoder.table(slot.payloads, TABLE)
    slot.begin(701)
    slot.relation(T, ["id", "c", "z"], types=[23, 23, 25], keys=["id"])
    slot.insert(T, "3", "8", "w")
    slot.commit()
    state = decoder.state
    later = ChangeDecoder(state=state).table(slot.payloads[len(renamed().payloads) :], TABLE)
    assert (first.schema.names[-3:], later.schema.names[-3:]) == (["id", "b", "z"], ["id", "c", "z"])
    assert later["c"].to_pylist() == [8]


@pytest.mark.parametrize("columns", [{"b": "text"}, {"a": "text", "b": "text"}])
def test_the_callers_type_of_the_last_name_counts_for_the_former_ones(columns: dict[str, str]) -> None:
    found = ChangeDecoder(columns={TABLE: columns}).table(renamed().payloads, TABLE)
    assert found["b"].to_pylist() == ["5", "6", None, None]


def test_a_dropped_column_keeps_its_name_unless_another_column_has_it_later() -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["id", "a", "b", "z"], keys=["id"])
    slot.insert(T, "1", "dropped", "renamed", "z")
    slot.relation(T, ["id", "b", "z"], keys=["id"])
    slot.relation(T, ["id", "a", "z"], keys=["id"])
    slot.insert(T, "2", "renamed", "z")
    slot.commit()
    rows = ChangeDecoder().table(slot.payloads, TABLE).select(["id", "a'", "a", "z"]).to_pylist()
    assert rows == [
        {"id": "1", "a'": "dropped", "a": "renamed", "z": "z"},
        {"id": "2", "a'": None, "a": "renamed", "z": "z"},
    ]


# -- stated renames --------------------------------------------------------------------------------------------------


def last_column_renamed() -> Slot:
    """Position 3 has the new name. The payloads could also be of a column that was dropped and another one added."""
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["id", "a"], keys=["id"])
    slot.insert(T, "1", "x")
    slot.relation(T, ["id", "b"], keys=["id"])
    slot.insert(T, "2", "y")
    slot.commit()
    return slot


def test_the_caller_states_a_rename_that_the_payloads_do_not_show() -> None:
    payloads = last_column_renamed().payloads
    assert snapshot(payloads, TABLE)["_unknown"].to_pylist() == [["b"], []]
    stated = [("a", "b", 3)]
    rows = snapshot(payloads, TABLE, renames=stated)
    assert rows.select(["_unknown", "b"]).to_pylist() == [{"_unknown": [], "b": "x"}, {"_unknown": [], "b": "y"}]
    assert ChangeDecoder(renames={TABLE: stated}).table(payloads, TABLE)["b"].to_pylist() == ["x", "y"]
    assert ChangeDecoder(renames={T: stated}).table(payloads, T)["b"].to_pylist() == ["x", "y"]


def test_a_key_that_was_added_copied_dropped_and_renamed_finds_its_rows() -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["id", "v"], types=[23, 25], keys=["id"])
    for number in ("1", "2", "3"):
        slot.insert(T, number, "x")
    slot.relation(T, ["id", "v", "id_new"], types=[23, 25, 20], keys=["id"])
    for number in ("1", "2", "3"):
        slot.update(T, number, "x", number)
    slot.commit()
    slot.begin(701)
    slot.relation(T, ["v", "id"], types=[25, 20], keys=["id"])
    slot.update(T, "y", "1")
    slot.delete(T, None, "2", old_type="K")
    slot.commit()
    with pytest.raises(ValueError, match=r"position 12: .* column 'id' is unknown in 3 rows"):
        snapshot(slot.payloads, TABLE)
    rows = snapshot(slot.payloads, TABLE, renames=[("id_new", "id", 11)]).select(["_unknown", "v", "id"])
    assert rows.to_pylist() == [{"_unknown": [], "v": "x", "id": 3}, {"_unknown": [], "v": "y", "id": 1}]


@pytest.mark.parametrize(
    ("names", "renames", "expected"),
    [
        pytest.param(["id", "b", "a"], [("a", "b", 3), ("b", "a", 3)], ("1", "A", "B"), id="two swap their names"),
        pytest.param(["id", "a"], [("b", "a", 3)], ("1", "B"), id="one is dropped and the last takes its name"),
    ],
)
def test_a_stated_rename_overrides_what_the_order_of_columns_says(
    names: list[str], renames: list[tuple[str, str, int]], expected: tuple[str, ...]
) -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["id", "a", "b"], keys=["id"])
    slot.insert(T, "1", "A", "B")
    slot.relation(T, names, keys=["id"])
    slot.insert(T, "2", *"XY"[: len(names) - 1])
    slot.commit()
    row = snapshot(slot.payloads, TABLE, renames=renames).to_pylist()[0]
    assert tuple(row[name] for name in names) == expected
    row = ChangeDecoder(renames={TABLE: renames}).table(slot.payloads, TABLE).to_pylist()[0]
    assert tuple(row[name] for name in names) == expected


@pytest.mark.parametrize("stated", [("a", "b", 1), ("a", "b", 4), ("a", "c", 3), ("c", "b", 3)])
def test_a_stated_rename_that_the_table_does_not_have_is_an_error(stated: tuple[str, str, int]) -> None:
    _, new, position = stated
    with pytest.raises(ValueError, match=f"at position {position}, table '{TABLE}' does not get a column '{new}'"):
        snapshot(last_column_renamed().payloads, TABLE, renames=[stated])
    if 1 < position < 4:
        # Later versions may come with the next payloads.
        with pytest.raises(ValueError, match="does not get a column"):
            ChangeDecoder(renames={TABLE: [stated]}).table(last_column_renamed().payloads, TABLE)


@pytest.mark.parametrize(
    ("renames", "message"),
    [
        (["a"], "renames maps tables to renamed columns, such as .* not list"),
        ({TABLE: "a=b@3"}, "has str"),
        ({TABLE: [("a", "b")]}, r"a rename has an old name, a new name and a position, not \('a', 'b'\)"),
        ({TABLE: [("a", "b", "3")]}, "a rename has an old name, a new name and a position"),
        ({1.5: []}, "a table is a name or an OID, not 1.5"),
    ],
)
def test_renames_of_another_form_are_refused(renames: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        ChangeDecoder(renames=renames)


# -- events ----------------------------------------------------------------------------------------------------------


def test_renames_are_events_with_their_positions() -> None:
    catalog = RelationCatalog.from_messages(captures.capture("16.shop.v1").column)
    assert rename_events(catalog) == [
        {"table": "public.order_items", "position": 565, "old": "qty", "new": "quantity", "stated": False}
    ]
    assert rename_events(catalog, position=566) == []


def test_two_tables_with_one_name_have_their_own_columns() -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["id", "a", "z"], keys=["id"])
    slot.relation(T + 1, ["id", "b", "z"], keys=["id"], name=f"t{T}")
    slot.commit()
    catalog = RelationCatalog.from_messages(slot.payloads)
    assert len(histories(dict(enumerate(catalog)))) == 2
    assert renames_of(catalog) == []
    assert pgdecode.ChangeDecoder().table(slot.payloads, TABLE).schema.names[-4:] == ["id", "a", "z", "b"]
