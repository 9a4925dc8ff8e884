"""The keys of `net_changes`: replica identities that change in a batch, and types whose values are odd keys."""

from __future__ import annotations

from typing import Any

import pytest

from pgdecode import ChangeDecoder, Relation, RelationCatalog, decode, net_changes
from pgdecode.relations.relation_facts import RelationFacts, StatedFacts
from support.generators.slot import Slot
from support.generators.slots import UNCHANGED
from support.oracles.net_fold import applied
from support.oracles.replay import Row

T = 16385
TABLE = f"public.t{T}"
BPCHAR, CITEXT, FLOAT8, JSON, POINT, XML, TEXT, NUMERIC = 1042, 16999, 701, 114, 600, 142, 25, 1700
TYPES: dict[str | int, str] = {CITEXT: "text"}


def begun(columns: str, identity: str = "d", types: list[int] | None = None) -> Slot:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, columns, identity=identity, types=types or [])
    return slot


def net_rows(slot: Slot, key: list[str] | None = None, **options: Any) -> list[dict[str, Any]]:
    slot.commit()
    typed = ChangeDecoder(types=TYPES, **options).table(slot.payloads, TABLE)
    found: list[dict[str, Any]] = net_changes(typed, key=key).to_pylist()
    return found


@pytest.mark.parametrize("first", ["d", "f"])
def test_a_table_that_becomes_full_in_a_batch_keeps_its_key_and_one_that_was_full_gets_it(first: str) -> None:
    slot = Slot()
    slot.begin(700)
    before: list[Row] = [{"id": str(key), "v": "old", "toast": f"long {key}"} for key in range(6)]
    for identity in (first, "f" if first == "d" else "d"):
        is_full = identity == "f"
        slot.relation(T, ["id", "v", "toast"], keys=["id", "v", "toast"] if is_full else ["id"], identity=identity)
        at = 0 if identity == first else 3
        if is_full:
            slot.update(T, f"{at}", "new", UNCHANGED, old=[f"{at}", "old", f"long {at}"], old_type="O")
            slot.delete(T, f"{at + 1}", "old", f"long {at + 1}", old_type="O")
        else:
            slot.update(T, f"{at}", "new", UNCHANGED)
            slot.delete(T, f"{at + 1}", None, None, old_type="K")
    rows = applied(before, net_rows(slot), ["id"])
    assert sorted(tuple(row.values()) for row in rows) == [
        ("0", "new", "long 0"),
        ("2", "old", "long 2"),
        ("3", "new", "long 3"),
        ("5", "old", "long 5"),
    ]


@pytest.mark.parametrize("key", [None, (), (1,)], ids=["unknown", "no key", "the same key"])
def test_the_former_key_of_a_table_that_becomes_full_is_kept_only_if_it_may_be_unique(
    key: tuple[int, ...] | None,
) -> None:
    slot = begun("id* v")
    for number in "123":
        slot.insert(T, number, "old")
    slot.relation(T, ["id", "v"], keys=["id", "v"], identity="f")
    relation = decode(slot.payloads[-1])
    assert isinstance(relation, Relation)
    facts = RelationFacts((1, 2), (None, None), key or (), ((T, T),), 2)
    catalog = RelationCatalog([], [] if key is None else [StatedFacts(relation, len(slot.payloads) - 1, facts)])
    if key == (1,):
        slot.update(T, "1", "new", old=["1", "old"], old_type="O")
        assert sorted((row["id"], row["v"]) for row in net_rows(slot, catalog=catalog)) == [
            *(("1", "new"), ("2", "old"), ("3", "old")),
        ]
        return
    slot.insert(T, "1", "twin")
    slot.update(T, "2", "old", old=["3", "old"], old_type="O")
    slot.delete(T, "1", "old", old_type="O")
    if key is None:
        with pytest.raises(
            ValueError, match=r"position 6: two rows have the same key \(id\), which is not unique any more"
        ):
            net_rows(slot, catalog=catalog)
    else:
        rows = [(row["_action"], row["id"], row["v"]) for row in net_rows(slot, catalog=catalog)]
        assert sorted(rows) == [("upsert", "1", "twin"), ("upsert", "2", "old"), ("upsert", "2", "old")]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        # citext and numeric: equal values that are written in other ways. The server sends the old key.
        pytest.param(CITEXT, ("Key", "KEY", "key"), id="citext"),
        pytest.param(NUMERIC, ("1", "1.0", "1.00"), id="numeric"),
        pytest.param(BPCHAR, ("a   ", "b   ", "c   "), id="bpchar"),
        pytest.param(FLOAT8, ("NaN", "0", "-0"), id="NaN and -0"),
        pytest.param(FLOAT8, ("Infinity", "-Infinity", "1e-300"), id="infinities"),
    ],
)
def test_a_row_is_followed_through_values_of_its_key_that_the_server_has_as_equal(
    kind: int, values: tuple[str, str, str]
) -> None:
    first, second, third = values
    slot = begun("k* v toast", types=[kind, TEXT, TEXT])
    slot.insert(T, first, "inserted", "long")
    slot.update(T, second, "moved", UNCHANGED, old=[first, None, None], old_type="K")
    slot.update(T, third, "moved again", UNCHANGED, old=[second, None, None], old_type="K")
    slot.update(T, third, "last", UNCHANGED)
    [row] = net_rows(slot)
    expected = float(third) if kind == FLOAT8 else third
    assert (row["_action"], row["_key_before"], row["_unknown"]) == ("upsert", None, [])
    assert repr([row["k"], row["v"], row["toast"]]) == repr([expected, "last", "long"])
    slot = begun("k* v toast", types=[kind, TEXT, TEXT])
    slot.delete(T, first, None, None, old_type="K")
    slot.insert(T, second, "another", "short")
    deleted, inserted = net_rows(slot)
    assert (deleted["_action"], inserted["_action"], inserted["_key_before"]) == ("delete", "upsert", None)


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        pytest.param(JSON, ('{"a": 1}', '{"a":1}'), id="json"),
        pytest.param(POINT, ("(1,2)", "(1.0,2)"), id="point"),
        pytest.param(XML, ("<a/>", "<a></a>"), id="xml"),
        pytest.param(FLOAT8, ("NaN", "NaN"), id="NaN"),
        pytest.param(FLOAT8, ("-0", "0"), id="-0"),
        pytest.param(TEXT, (None, ""), id="null"),
    ],
)
def test_whole_rows_are_found_by_the_text_of_values_without_equality(
    kind: int, values: tuple[str | None, str | None], named: bool
) -> None:
    first, second = values
    slot = begun("k* v*", "f", [TEXT, kind])
    slot.insert(T, "1", first)
    slot.insert(T, "2", first)
    slot.update(T, "1", second, old=["1", first], old_type="O")
    slot.update(T, "9", second, old=["8", first], old_type="O")
    slot.delete(T, "1", second, old_type="O")
    slot.delete(T, "7", second, old_type="O")
    rows = net_rows(slot, ["k"] if named else None)
    assert [(row["_action"], (row["_key_before"] or {}).get("k"), row["k"]) for row in rows] == [
        ("upsert", None, "2"),
        ("upsert", "8", "9"),
        ("delete", "7", "7"),
    ]
    if not named:
        typed = [float(value or 0) if kind == FLOAT8 else value for value in values]
        assert repr([rows[1]["_key_before"]["v"], rows[2]["_key_before"]["v"]]) == repr(typed)


@pytest.mark.parametrize("key", [["a", "b"], None], ids=["key", "whole rows"])
def test_nulls_in_the_key_of_a_full_table_are_a_value(key: list[str] | None) -> None:
    slot = begun("a* b* v*", "f")
    slot.insert(T, None, "x", "1")
    slot.update(T, None, "x", "2", old=[None, "x", "1"], old_type="O")
    slot.update(T, None, None, "3", old=["a", None, "2"], old_type="O")
    slot.delete(T, "b", None, "0", old_type="O")
    assert [(row["_action"], row["a"], row["b"], row["v"]) for row in net_rows(slot, key)] == [
        ("upsert", None, "x", "2"),
        ("upsert", None, None, "3"),
        ("delete", "b", None, None if key else "0"),
    ]
