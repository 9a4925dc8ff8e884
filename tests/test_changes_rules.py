"""The rules of transactions, streams and relations, one by one, on a slot's output written by hand.

Each is what the documentation of the protocol or a live server says; here the reference is held to them.
"""

from __future__ import annotations

from typing import Any

import pytest
import reference_changes
import slots
from slots import (
    NULL,
    STOP,
    UNCHANGED,
    abort,
    begin,
    begin_prepare,
    commit,
    commit_prepared,
    delete,
    insert,
    prepare,
    relation,
    rollback_prepared,
    start,
    stream_commit,
    stream_prepare,
    truncate,
    update,
)


def changes(*payloads: bytes) -> list[dict[str, Any]]:
    return reference_changes.changes(enumerate(payloads))


def all_changes(*payloads: bytes) -> list[dict[str, Any]]:
    return reference_changes.changes(enumerate(payloads), include_uncommitted=True)


def new_values(found: list[dict[str, Any]]) -> list[list[str | None]]:
    return [list(change["new"].values()) for change in found]


def fates(found: list[dict[str, Any]]) -> list[tuple[str | None, bool | None]]:
    """The first new value of each change, and whether it is committed."""
    return [(next(iter(change["new"].values())), change["committed"]) for change in found]


PLAIN = (begin(7), relation("id* v"))


def test_a_committed_row_has_every_column() -> None:
    [change] = changes(*PLAIN, insert("1", NULL), commit(50))
    assert change == {
        **{"position": 2, "commit_position": 3, "op": "insert", "xid": 7, "subxid": None, "commit_lsn": 50},
        **{"commit_timestamp": 1_687_698_793_088_502, "gid": None, "relation_id": 1, "namespace": "public"},
        **{"relation_name": "t", "old_type": None, "old": None, "new": {"id": "1", "v": None}, "unchanged": []},
        "committed": True,
    }


def test_changes_come_by_the_commit_and_then_by_the_position() -> None:
    found = changes(
        start(7, first=True), relation("id*", xid=7), insert("1", xid=7), insert("2", xid=7), STOP,
        begin(8), relation("id*"), insert("3"), commit(50),
        stream_commit(7, 60),
    )  # fmt: skip
    assert [(c["commit_position"], c["position"]) for c in found] == [(8, 7), (9, 2), (9, 3)]


def test_an_aborted_sub_transaction_loses_its_own_rows_alone() -> None:
    found = all_changes(
        start(7, first=True), relation("id*", xid=7), insert("top", xid=7), insert("sub", xid=8),
        insert("child", xid=9), STOP, abort(7, 8), start(7, first=False), insert("later", xid=10), STOP,
        stream_commit(7, 60),
    )  # fmt: skip
    assert fates(found) == [("top", True), ("child", True), ("later", True), ("sub", False)]
    assert [(c["xid"], c["subxid"]) for c in found] == [(7, None), (7, 9), (7, 10), (7, 8)]
    assert [c["commit_lsn"] for c in found] == [60, 60, 60, None]


def test_an_aborted_transaction_loses_all_its_rows() -> None:
    found = all_changes(
        start(7, first=True), relation("id*", xid=7), insert("top", xid=7), insert("sub", xid=8), STOP, abort(7, 7)
    )
    assert fates(found) == [("top", False), ("sub", False)]


@pytest.mark.parametrize("subxid", [9, 11], ids=["whole", "sub-transaction"])
def test_the_abort_of_an_unknown_transaction_does_nothing(subxid: int) -> None:
    # PostgreSQL 18 sends a version 1 client the aborts of sub-transactions that it never streamed.
    plain = (*PLAIN, insert("1", "x"), commit(50))
    assert new_values(changes(*plain, abort(9, subxid), *plain)) == [["1", "x"], ["1", "x"]]


def test_a_first_segment_sent_again_discards_the_unfinished_copy() -> None:
    block = (start(7, first=True), relation("id*", xid=7), insert("1", xid=7), STOP)
    found = all_changes(*block, *block, stream_commit(7, 60))
    assert [(c["position"], c["committed"]) for c in found] == [(6, True)]


def test_a_block_cut_off_and_sent_again_counts_once() -> None:
    cut = (start(7, first=True), relation("id*", xid=7), insert("1", xid=7))
    found = all_changes(*cut, start(7, first=True), relation("id*", xid=7), insert("1", xid=7), STOP, begin(8))
    assert [(c["position"], c["committed"]) for c in found] == [(5, None)]


def test_a_plain_row_after_a_block_without_its_end_is_plain() -> None:
    found = changes(start(9, first=True), *PLAIN, insert("1", "x"), commit(50))
    assert [(c["xid"], c["subxid"]) for c in found] == [(7, None)]


def test_what_nothing_decides_is_undecided() -> None:
    found = all_changes(
        start(7, first=True), relation("id*", xid=7), insert("streamed", xid=7), STOP,
        begin_prepare(8, "g"), relation("id*"), insert("prepared"), prepare(8, "g"),
        begin(9), insert("plain"),
    )  # fmt: skip
    assert fates(found) == [("streamed", None), ("prepared", None), ("plain", None)]
    assert [c["gid"] for c in found] == [None, "g", None]


@pytest.mark.parametrize("streamed", [False, True])
def test_a_prepared_transaction_is_decided_by_its_gid(streamed: bool) -> None:
    def prepared(xid: int, gid: str) -> tuple[bytes, ...]:
        if streamed:
            block = (start(xid, first=True), relation("id*", xid=xid), insert(gid, xid=xid), STOP)
            return (*block, stream_prepare(xid, gid))
        return (begin_prepare(xid, gid), relation("id*"), insert(gid), prepare(xid, gid))

    found = all_changes(
        *prepared(7, "a"), *prepared(8, "b"), *prepared(9, "c"),
        commit_prepared(8, "b", 60), rollback_prepared(7, "a"),
        commit_prepared(70, "unknown", 61), rollback_prepared(71, "unknown"),
    )  # fmt: skip
    assert fates(found) == [("b", True), ("a", False), ("c", None)]
    assert [c["gid"] for c in found] == ["b", "a", "c"]
    assert (found[0]["commit_lsn"], found[0]["xid"]) == (60, 8)


def test_a_gid_can_be_used_again() -> None:
    def prepared(xid: int) -> tuple[bytes, ...]:
        return (begin_prepare(xid, "g"), relation("id*"), insert(str(xid)), prepare(xid, "g"))

    found = all_changes(*prepared(7), rollback_prepared(7, "g"), *prepared(8), commit_prepared(8, "g", 60))
    assert fates(found) == [("8", True), ("7", False)]


def test_a_relation_sent_in_a_stream_does_not_count_outside_it_before_the_commit() -> None:
    found = changes(
        *PLAIN, commit(40),
        start(8, first=True), relation("id* w", xid=8), insert("1", "in", xid=8), STOP,
        begin(9), insert("2", "out"), commit(50),
        stream_commit(8, 60),
        begin(10), insert("3", "after"), commit(70),
    )  # fmt: skip
    assert [list(c["new"]) for c in found] == [["id", "v"], ["id", "w"], ["id", "w"]]


def test_a_relation_of_an_aborted_stream_never_counts_outside_it() -> None:
    found = changes(
        *PLAIN, commit(40),
        start(8, first=True), relation("id* w", xid=8), insert("1", "in", xid=8), STOP, abort(8, 8),
        begin(9), insert("2", "out"), commit(50),
    )  # fmt: skip
    assert [list(c["new"]) for c in found] == [["id", "v"]]


def test_a_relation_of_an_aborted_sub_transaction_does_not_count_after_the_commit() -> None:
    found = changes(
        *PLAIN, commit(40),
        start(8, first=True), relation("id* w", xid=9), insert("1", "sub", xid=9), STOP, abort(8, 9),
        stream_commit(8, 60),
        begin(10), insert("2", "after"), commit(70),
    )  # fmt: skip
    assert [list(c["new"]) for c in found] == [["id", "v"]]


def test_a_relation_of_a_prepared_stream_counts_from_the_prepare_on() -> None:
    found = changes(
        *PLAIN, commit(40),
        start(8, first=True), relation("id* w", xid=8), insert("1", "in", xid=8), STOP, stream_prepare(8, "g"),
        begin(9), insert("2", "after"), commit(50),
    )  # fmt: skip
    assert [list(c["new"]) for c in found] == [["id", "w"]]


def test_a_row_in_a_stream_falls_back_on_the_last_committed_relation() -> None:
    found = changes(*PLAIN, commit(40), start(8, first=True), insert("1", "in", xid=8), STOP, stream_commit(8, 60))
    assert [list(c["new"]) for c in found] == [["id", "v"]]


def test_a_row_without_a_relation_is_refused_and_its_place_named() -> None:
    with pytest.raises(reference_changes.UnknownRelation, match="position 1: relation 1 was not sent"):
        changes(begin(7), insert("1"), commit(50))


def test_a_truncate_is_one_change_for_each_table_known_or_not() -> None:
    found = changes(begin(7), relation("id*"), truncate(1, 2), commit(50))
    assert [(c["op"], c["relation_id"], c["relation_name"], c["new"]) for c in found] == [
        ("truncate", 1, "t", None),
        ("truncate", 2, None, None),
    ]


def test_in_a_key_a_null_outside_the_key_was_not_sent() -> None:
    found = changes(begin(7), relation("id* v k*"), update(("2", "x", "y"), key=("1", NULL, NULL)),
                    delete("2", NULL, "y"), commit(50))  # fmt: skip
    assert [c["old"] for c in found] == [{"id": "1", "k": None}, {"id": "2", "k": "y"}]


def test_in_a_whole_old_row_a_null_is_a_null() -> None:
    [change] = changes(*PLAIN, update(("1", "x"), full=("1", NULL)), commit(50))
    assert (change["old_type"], change["old"]) == ("O", {"id": "1", "v": None})


@pytest.mark.parametrize(
    ("payload", "new", "unchanged"),
    [
        pytest.param(update(("1", UNCHANGED)), {"id": "1"}, ["v"], id="no old row"),
        pytest.param(update(("2", UNCHANGED), key=("1", NULL)), {"id": "2"}, ["v"], id="old key without it"),
        pytest.param(update((UNCHANGED, "x"), key=("1", NULL)), {"id": "1", "v": "x"}, [], id="old key with it"),
        pytest.param(update(("1", UNCHANGED), full=("1", "x")), {"id": "1", "v": "x"}, [], id="whole old row"),
        pytest.param(update(("1", UNCHANGED), full=("1", "")), {"id": "1", "v": ""}, [], id="empty in the old row"),
        pytest.param(insert("1", UNCHANGED), {"id": "1"}, ["v"], id="an insert that a row filter made"),
    ],
)
def test_an_unchanged_value_is_had_from_the_old_row_or_named(
    payload: bytes, new: dict[str, str], unchanged: list[str]
) -> None:
    [change] = changes(*PLAIN, payload, commit(50))
    assert (change["new"], change["unchanged"]) == (new, unchanged)


def test_the_hand_written_slot_says_what_it_is_told() -> None:
    assert slots.cells(("a", NULL, UNCHANGED, "")) == ((b"a", None, None, b""), "tnut")
