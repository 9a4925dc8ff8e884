"""Relation messages that repeat an earlier one byte by byte; messages in between decide whether it is a new version."""

from __future__ import annotations

from typing import Any

import pytest

import pgdecode
from pgdecode import ChangeDecoder, RelationCatalog
from pgdecode.protocol.limits import Limits
from support.change_rows import through_json
from support.generators.slot import Slot, one_row
from support.generators.slots import begin, commit, relation

T = 16385
MOOD = 20_000


def rows_of(slot: Slot, size: int, **options: Any) -> list[dict[str, Any]]:
    """Decode payloads in batches, and check that the decoder's catalog equals that of the messages."""
    decoder = ChangeDecoder(**options)
    rows = []
    for at in range(0, len(slot.payloads), size):
        rows += decoder.decode(slot.payloads[at : at + size]).to_pylist()
    if not options:
        assert list(decoder.catalog) == list(RelationCatalog.from_messages(slot.payloads))
    return rows


def names_of_new(slot: Slot, size: int) -> list[str]:
    """Name of the only column of each change."""
    return [name for row in rows_of(slot, size) for name, _ in row["new"]]


def row_of(slot: Slot, xid: int, *described: str) -> None:
    """A transaction with one row, and optionally its Relation message."""
    slot.begin(xid)
    if described:
        slot.relation(T, described)
    slot.insert(T, str(xid))
    slot.commit()


@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_repeated_description_makes_no_version(size: int) -> None:
    slot = Slot()
    for xid in range(700, 704):
        row_of(slot, xid, "a")
    assert names_of_new(slot, size) == ["a"] * 4
    assert len(RelationCatalog.from_messages(slot.payloads)) == 1


@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_description_applies_again_after_another_one(size: int) -> None:
    slot = Slot()
    for xid, name in enumerate(["a", "b", "a", "a", "b"], 700):
        row_of(slot, xid, name)
    assert names_of_new(slot, size) == ["a", "b", "a", "a", "b"]


@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_description_repeated_after_that_of_a_stream_applies_after_the_stream_commits(size: int) -> None:
    slot = Slot()
    row_of(slot, 700, "a")
    slot.start(800, first=True)
    slot.relation(T, ["b"], xid=800)
    slot.insert(T, "800", xid=800)
    slot.stop()
    row_of(slot, 701, "a")
    slot.stream_commit(800)
    row_of(slot, 702)
    row_of(slot, 703, "a")
    assert names_of_new(slot, size) == ["a", "a", "b", "a", "a"]


@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_repeated_description_in_a_stream_is_visible_only_to_that_stream(size: int) -> None:
    slot = Slot()
    row_of(slot, 700, "a")
    slot.start(800, first=True)
    slot.relation(T, ["b"], xid=800)
    slot.relation(T, ["a"], xid=800)
    slot.insert(T, "800", xid=800)
    slot.stop()
    slot.stream_abort(800)
    row_of(slot, 701)
    assert names_of_new(slot, size) == ["a"] * 2


@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_description_with_a_renamed_type_is_another_version(size: int) -> None:
    slot = Slot()
    for xid, name in enumerate(["mood", "mood", "spirits"], 700):
        slot.begin(xid)
        slot.send(pgdecode.Type(type_id=MOOD, namespace="public", name=name))
        slot.relation(T, ["a"], types=[MOOD])
        slot.insert(T, "1")
        slot.commit()
    assert names_of_new(slot, size) == ["a"] * 3
    assert [version.types[0].name for version in RelationCatalog.from_messages(slot.payloads)] == ["mood", "spirits"]


@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_description_with_a_type_renamed_by_a_committed_stream_is_another_version(size: int) -> None:
    slot = Slot()
    slot.send(pgdecode.Type(type_id=MOOD, namespace="public", name="mood"))
    for xid in (700, 701, 702):
        slot.begin(xid)
        slot.relation(T, ["a"], types=[MOOD])
        slot.insert(T, "1")
        slot.commit()
        if xid == 700:
            slot.start(800, first=True)
            slot.send(pgdecode.Type(xid=800, type_id=MOOD, namespace="public", name="spirits"))
            slot.stop()
        if xid == 701:
            slot.stream_commit(800)
    assert names_of_new(slot, size) == ["a"] * 3
    assert [version.types[0].name for version in RelationCatalog.from_messages(slot.payloads)] == ["mood", "spirits"]


@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_description_applies_again_after_a_bad_one(size: int) -> None:
    slot = one_row(T)
    again = slot.payloads[1]
    slot.begin(701)
    slot.payloads += [again[:-1], again]
    slot.insert(T, "2")
    slot.commit()
    rows = rows_of(slot, size, mode="PERMISSIVE")
    assert [row["error"] is None for row in rows] == [True, False, True]
    assert rows[1]["error"].startswith("TRUNCATED")
    assert rows[2]["new"] == [("a", "2")]


@pytest.mark.parametrize("size", [1, 3, 100])
def test_an_invalid_description_is_refused_each_time(size: int) -> None:
    slot = one_row(T)
    slot.begin(701)
    slot.relation(T + 1, ["a"])
    slot.relation(T + 1, ["a"])
    slot.commit()
    rows = rows_of(slot, size, mode="PERMISSIVE", limits=Limits(max_relations=1))
    errors = [row["error"] for row in rows]
    assert [error and error.split()[0] for error in errors] == [None, "LIMIT_RELATIONS", "LIMIT_RELATIONS"]


def test_a_version_that_a_lost_transaction_sent_first_is_of_the_one_that_commits() -> None:
    sent = [begin(7), relation("id*")]
    decoder = ChangeDecoder()
    decoder.decode(sent)
    decoder.reconnected()
    decoder.decode([*sent, commit(40)])
    assert decoder.table_schema("public.t").names[-1] == "id"
    assert through_json(decoder).table_schema("public.t").names[-1] == "id"
