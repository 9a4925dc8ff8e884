"""`cat --table T --key id=2`: the changes of a row, through changes of its key."""

from __future__ import annotations

import json

from support.generators.random_tables import T
from support.generators.slot import Slot
from support.generators.slots import UNCHANGED
from support.shell import SHOP, Shell, written

TABLE = f"public.t{T}"


def moved() -> Slot:
    """Row a: 1 -> 2 -> 5. Row b: 2 -> 3, before row a gets its key. Row c: 4."""
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["id", "v"], keys=["id"])
    slot.relation(T + 1, ["id", "v"], keys=["id"])
    for key, value in ("1a", "2b", "4c"):
        slot.insert(T, key, value)
        slot.insert(T + 1, key, "other")
    slot.update(T, "3", UNCHANGED, old=["2", None], old_type="K")
    slot.update(T, "2", "A", old=["1", None], old_type="K")
    slot.commit()
    slot.begin(8)
    slot.update(T, "5", "AA", old=["2", None], old_type="K")
    slot.delete(T, "3", None, old_type="K")
    slot.update(T, "4", "C")
    slot.insert(T, "3", "again")
    slot.commit()
    return slot


def changes_of(run: Shell, slot: Slot, *options: str) -> list[tuple[str, str | None]]:
    done = run("cat", written("in.parquet", slot.payloads), "--table", TABLE, *options)
    assert done.code == 0, done.err
    rows = [json.loads(line) for line in done.out.splitlines()]
    return [(row["op"], (row.get("new") or row.get("old") or {}).get("id")) for row in rows]


def test_a_row_is_followed_from_key_to_key(run: Shell) -> None:
    slot = moved()
    assert len(changes_of(run, slot)) == 9
    of_a = [("insert", "1"), ("update", "2"), ("update", "5")]
    of_b = [("insert", "2"), ("update", "3"), ("delete", "3")]
    assert changes_of(run, slot, "--key", "id=5") == of_a
    assert changes_of(run, slot, "--key", "v=A") == of_a
    assert sorted(changes_of(run, slot, "--key", "id=2")) == sorted(of_a + of_b)
    assert changes_of(run, slot, "--key", "id=3") == [*of_b, ("insert", "3")]
    assert changes_of(run, slot, "--key", "id=4", "--key", "v=C", "--kind", "update") == [("update", "4")]
    assert changes_of(run, slot, "--key", "id=7") == []


def test_a_swap_of_deferred_keys_keeps_rows_apart(run: Shell) -> None:
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["id", "v"], keys=["id"])
    slot.insert(T, "1", "a")
    slot.insert(T, "2", "b")
    slot.update(T, "2", "a", old=["1", None], old_type="K")
    slot.update(T, "1", "b", old=["2", None], old_type="K")
    slot.update(T, "2", "aa")
    slot.truncate(T)
    slot.insert(T, "2", "c")
    slot.commit()
    assert changes_of(run, slot, "--key", "v=aa") == [
        ("insert", "1"),
        ("update", "2"),
        ("update", "2"),
        ("truncate", None),
    ]


def test_with_replica_identity_full_the_given_columns_are_the_key(run: Shell) -> None:
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["id", "v"], keys=["id", "v"], identity="f")
    slot.insert(T, "1", "a")
    slot.update(T, "2", "a", old=["1", "a"], old_type="O")
    slot.insert(T, "1", "b")
    slot.delete(T, "2", "a", old_type="O")
    slot.commit()
    assert changes_of(run, slot, "--key", "id=2") == [("insert", "1"), ("update", "2"), ("delete", "2")]


def test_options_of_cat_that_do_not_fit_are_refused(run: Shell) -> None:
    done = run("cat", SHOP, "--key", "id=2")
    assert (done.code, "--key is for --table" in done.err) == (2, True)
    done = run("cat", SHOP, "--table", "public.orders", "--key", "id")
    assert (done.code, "'id' is not COLUMN=VALUE" in done.err) == (2, True)
    done = run("cat", SHOP, "--table", "public.missing")
    assert (done.code, "table public.missing: no message describes this table" in done.err) == (2, True)
