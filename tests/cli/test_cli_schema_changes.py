"""`inspect --schema-changes`: what changed in the tables, from which position on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.generators.slot import Slot
from support.shell import Shell, written

T = 16385
INT4, INT8, TEXT, NUMERIC, VARCHAR = 23, 20, 25, 1700, 1043


def lines(run: Shell, slot: Slot) -> list[str]:
    done = run("inspect", written("in.parquet", slot.payloads), "--schema-changes")
    assert (done.code, done.err) == (0, "")
    return [line.partition("public.t16385: ")[2] for line in done.out.splitlines()]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param("id* a z", "id* z b", ["column dropped: a text", "column added: b text"], id="dropped, added"),
        pytest.param("id* a z", "id* x z", ["column renamed: a to x"], id="renamed"),
        # `a` is dropped, and `b` gets its name.
        pytest.param(
            "id* a b z", "id* x z", ["column dropped: a text", "column dropped: b text", "column added: x text"],
            id="not certain",
        ),
        pytest.param("id* a b", "id* b a", ["column dropped: a text", "column added: a text"], id="added again"),
        pytest.param("id* a", "id a*", ["key changed: id to a"], id="another key"),
        pytest.param("id* a", "k* a", ["column renamed: id to k"], id="renamed key"),
        pytest.param("id* a", "id a", ["key changed: id to none"], id="no key"),
        pytest.param("id* a", "id* a", [], id="nothing"),
    ],
)  # fmt: skip
def test_columns_and_keys_that_changed_are_listed(run: Shell, before: str, after: str, expected: list[str]) -> None:
    slot = Slot()
    for xid, columns in ((7, before), (8, after)):
        slot.begin(xid)
        slot.relation(
            T, [name.rstrip("*") for name in columns.split()], keys=[n[:-1] for n in columns.split() if "*" in n]
        )
        slot.commit()
    first, *rest = lines(run, slot)
    assert first == "seen with " + ", ".join(f"{name.rstrip('*')} text" for name in before.split())
    assert rest == expected


def test_names_types_and_identities_that_changed_are_listed_with_their_positions(run: Shell) -> None:
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["id", "n"], types=[INT4, VARCHAR], keys=["id"])
    slot.commit()
    slot.begin(8)
    slot.relation(T, ["id", "n"], types=[INT8, TEXT], keys=["id", "n"], identity="f", name="renamed")
    slot.commit()
    slot.start(9, first=True)
    slot.relation(T, ["id", "n", "gone"], xid=9, name="renamed")
    slot.stop()
    slot.stream_abort(9, 9)
    path = written("in.parquet", slot.payloads, seq=range(100, 100 + len(slot.payloads)))
    found: list[dict[str, Any]] = json.loads(run("inspect", path, "--schema-changes", "--json").out)
    names = ("position", "table", "change", "column", "before", "after")
    assert [tuple(item[name] for name in names) for item in found] == [
        (101, "public.t16385", "table seen", None, None, "id int4, n varchar"),
        (104, "public.renamed", "table renamed", None, "public.t16385", "public.renamed"),
        (104, "public.renamed", "type changed", "id", "int4", "int8"),
        (104, "public.renamed", "type changed", "n", "varchar", "text"),
        (104, "public.renamed", "replica identity changed", None, "default", "full"),
    ]  # fmt: skip
    assert all(item["relation_id"] == T and item["time"] for item in found)


def test_schema_changes_need_the_order_of_messages(run: Shell) -> None:
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["id"])
    slot.commit()
    path = written("in.parquet", slot.payloads)
    done = run("inspect", path, "--schema-changes", "--in-stream", "auto")
    assert done.code == 2
    assert "--schema-changes is for --in-stream ordered" in done.err
