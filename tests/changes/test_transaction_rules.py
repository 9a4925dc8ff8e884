"""The rules of transactions, streams and relations, one by one, with handwritten slot output.

Each rule comes from the protocol's documentation or from a live server. Each case runs on ChangeDecoder, whole and in
parts, and on the reference fold.
"""

from __future__ import annotations

from typing import Any

import pytest

from pgdecode import ChangeDecoder
from support.generators.sequences import on_both
from support.generators.slots import (
    STOP,
    UNCHANGED,
    abort,
    begin,
    begin_prepare,
    commit,
    commit_prepared,
    delete,
    insert,
    message,
    prepare,
    relation,
    rollback_prepared,
    start,
    stream_commit,
    stream_prepare,
    truncate,
    update,
)
from support.oracles.reference_changes import Fold, Refused, UnknownRelation


def changes(*payloads: bytes, **options: Any) -> list[dict[str, Any]]:
    return on_both(*payloads, **options).changes


def all_changes(*payloads: bytes, **options: Any) -> list[dict[str, Any]]:
    found = on_both(*payloads, **options)
    return found.changes + found.others


def new_values(found: list[dict[str, Any]]) -> list[list[str | None]]:
    return [list(change["new"].values()) for change in found]


def transaction_outcomes(found: list[dict[str, Any]]) -> list[tuple[str | None, bool | None]]:
    """The first new value of each change, and whether it is committed."""
    return [(next(iter(change["new"].values())), change["committed"]) for change in found]


PLAIN = (begin(7), relation("id* v"))


def test_a_committed_row_has_every_column() -> None:
    [change] = changes(*PLAIN, insert("1", None), commit(50))
    assert change == {
        **{"position": 2, "commit_position": 3, "op": "insert", "xid": 7, "subxid": None, "commit_lsn": 50},
        **{"commit_timestamp": 1_687_698_793_088_502, "gid": None, "relation_id": 1, "namespace": "public"},
        **{"relation_name": "t", "old_type": None, "old": None, "new": {"id": "1", "v": None}, "unchanged": []},
        "committed": True,
    }


def test_changes_are_ordered_by_commit_and_then_by_position() -> None:
    found = changes(
        start(7, first=True), relation("id*", xid=7), insert("1", xid=7), insert("2", xid=7), STOP,
        begin(8), relation("id*"), insert("3"), commit(50),
        stream_commit(7, 60),
    )  # fmt: skip
    assert [(c["commit_position"], c["position"]) for c in found] == [(8, 7), (9, 2), (9, 3)]


def test_an_aborted_sub_transaction_loses_only_its_own_rows() -> None:
    found = all_changes(
        start(7, first=True), relation("id*", xid=7), insert("top", xid=7), insert("sub", xid=8),
        insert("child", xid=9), STOP, abort(7, 8), start(7, first=False), insert("later", xid=10), STOP,
        stream_commit(7, 60),
    )  # fmt: skip
    assert transaction_outcomes(found) == [("top", True), ("child", True), ("later", True), ("sub", False)]
    assert [(c["xid"], c["subxid"]) for c in found] == [(7, None), (7, 9), (7, 10), (7, 8)]
    assert [c["commit_lsn"] for c in found] == [60, 60, 60, None]


def test_an_aborted_transaction_loses_all_its_rows() -> None:
    found = all_changes(
        start(7, first=True), relation("id*", xid=7), insert("top", xid=7), insert("sub", xid=8), STOP, abort(7, 7)
    )
    assert transaction_outcomes(found) == [("top", False), ("sub", False)]


@pytest.mark.parametrize("subxid", [9, 11], ids=["whole", "sub-transaction"])
def test_the_abort_of_an_unknown_transaction_does_nothing(subxid: int) -> None:
    # PostgreSQL 18 sends aborts of sub-transactions that it never streamed, even with protocol version 1.
    plain = (*PLAIN, insert("1", "x"))
    assert new_values(changes(*plain, commit(50), abort(9, subxid), *plain, commit(60))) == [["1", "x"], ["1", "x"]]


def test_a_first_segment_sent_again_discards_the_unfinished_copy() -> None:
    block = (start(7, first=True), relation("id*", xid=7), insert("1", xid=7), STOP)
    found = all_changes(*block, *block, stream_commit(7, 60))
    assert [(c["position"], c["committed"]) for c in found] == [(6, True), (2, None)]


def test_a_block_that_was_cut_off_and_sent_again_counts_once() -> None:
    cut = (start(7, first=True), relation("id*", xid=7), insert("1", xid=7))
    found = all_changes(*cut, start(7, first=True), relation("id*", xid=7), insert("1", xid=7), STOP, begin(8))
    assert [(c["position"], c["committed"]) for c in found] == [(2, None), (5, None)]


def test_a_plain_row_after_a_block_without_its_end_is_not_streamed() -> None:
    payloads = (start(9, first=True), *PLAIN, insert("1", "x"), commit(50))
    found = on_both(*payloads, mode="PERMISSIVE")
    assert found.errors == [(1, "STATE_DESYNC")]
    assert [(c["xid"], c["subxid"]) for c in found.changes] == [(7, None)]
    with pytest.raises(Refused, match=r"position 1: begin inside a stream, reconnected\(\) was"):
        changes(*payloads)


def test_a_transaction_without_an_outcome_is_undecided() -> None:
    found = all_changes(
        start(7, first=True), relation("id*", xid=7), insert("streamed", xid=7), STOP,
        begin_prepare(8, "g"), relation("id*"), insert("prepared"), prepare(8, "g"),
        begin(9), insert("plain"),
    )  # fmt: skip
    assert transaction_outcomes(found) == [("streamed", None), ("prepared", None), ("plain", None)]
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
        commit_prepared(8, "b", 60), rollback_prepared(7, "a"), rollback_prepared(71, "unknown"),
    )  # fmt: skip
    assert transaction_outcomes(found) == [("b", True), ("a", False), ("c", None)]
    assert [c["gid"] for c in found] == ["b", "a", "c"]
    assert (found[0]["commit_lsn"], found[0]["xid"]) == (60, 8)


def test_a_gid_can_be_used_again() -> None:
    def prepared(xid: int) -> tuple[bytes, ...]:
        return (begin_prepare(xid, "g"), relation("id*"), insert(str(xid)), prepare(xid, "g"))

    found = all_changes(*prepared(7), rollback_prepared(7, "g"), *prepared(8), commit_prepared(8, "g", 60))
    assert transaction_outcomes(found) == [("8", True), ("7", False)]


def test_a_relation_sent_in_a_stream_is_not_visible_outside_before_the_commit() -> None:
    found = changes(
        *PLAIN, commit(40),
        start(8, first=True), relation("id* w", xid=8), insert("1", "in", xid=8), STOP,
        begin(9), insert("2", "out"), commit(50),
        stream_commit(8, 60),
        begin(10), insert("3", "after"), commit(70),
    )  # fmt: skip
    assert [list(c["new"]) for c in found] == [["id", "v"], ["id", "w"], ["id", "w"]]


def test_a_relation_of_an_aborted_stream_is_never_visible_outside_it() -> None:
    found = changes(
        *PLAIN, commit(40),
        start(8, first=True), relation("id* w", xid=8), insert("1", "in", xid=8), STOP, abort(8, 8),
        begin(9), insert("2", "out"), commit(50),
    )  # fmt: skip
    assert [list(c["new"]) for c in found] == [["id", "v"]]


def test_a_relation_of_an_aborted_sub_transaction_is_not_visible_after_the_commit() -> None:
    found = changes(
        *PLAIN, commit(40),
        start(8, first=True), relation("id* w", xid=9), insert("1", "sub", xid=9), STOP, abort(8, 9),
        stream_commit(8, 60),
        begin(10), insert("2", "after"), commit(70),
    )  # fmt: skip
    assert [list(c["new"]) for c in found] == [["id", "v"]]


def test_a_relation_of_a_prepared_stream_is_visible_after_the_prepare() -> None:
    found = changes(
        *PLAIN, commit(40),
        start(8, first=True), relation("id* w", xid=8), insert("1", "in", xid=8), STOP, stream_prepare(8, "g"),
        begin(9), insert("2", "after"), commit(50),
    )  # fmt: skip
    assert [list(c["new"]) for c in found] == [["id", "w"]]


def test_a_row_in_a_stream_falls_back_to_the_last_committed_relation() -> None:
    found = changes(*PLAIN, commit(40), start(8, first=True), insert("1", "in", xid=8), STOP, stream_commit(8, 60))
    assert [list(c["new"]) for c in found] == [["id", "v"]]


def test_a_row_without_a_relation_is_refused_with_its_position() -> None:
    with pytest.raises(UnknownRelation, match="position 1: relation 1 was not sent"):
        changes(begin(7), insert("1"), commit(50))


def test_a_truncate_is_one_change_per_table_known_or_not() -> None:
    found = changes(begin(7), relation("id*"), truncate(1, 2), commit(50))
    assert [(c["op"], c["relation_id"], c["relation_name"], c["new"]) for c in found] == [
        ("truncate", 1, "t", None),
        ("truncate", 2, None, None),
    ]


def test_in_a_key_a_null_outside_the_key_was_not_sent() -> None:
    found = changes(begin(7), relation("id* v k*"), update(("2", "x", "y"), key=("1", None, None)),
                    delete("2", None, "y"), commit(50))  # fmt: skip
    assert [c["old"] for c in found] == [{"id": "1", "k": None}, {"id": "2", "k": "y"}]


def test_in_a_whole_old_row_a_null_is_a_null() -> None:
    [change] = changes(*PLAIN, update(("1", "x"), full=("1", None)), commit(50))
    assert (change["old_type"], change["old"]) == ("O", {"id": "1", "v": None})


@pytest.mark.parametrize(
    ("payload", "new", "unchanged"),
    [
        pytest.param(update(("1", UNCHANGED)), {"id": "1"}, ["v"], id="no old row"),
        pytest.param(update(("2", UNCHANGED), key=("1", None)), {"id": "2"}, ["v"], id="old key without it"),
        pytest.param(update((UNCHANGED, "x"), key=("1", None)), {"id": "1", "v": "x"}, [], id="old key with it"),
        pytest.param(update(("1", UNCHANGED), full=("1", "x")), {"id": "1", "v": "x"}, [], id="whole old row"),
        pytest.param(update(("1", UNCHANGED), full=("1", "")), {"id": "1", "v": ""}, [], id="empty in the old row"),
        pytest.param(insert("1", UNCHANGED), {"id": "1"}, ["v"], id="an insert that a row filter made"),
    ],
)
def test_an_unchanged_value_is_taken_from_the_old_row_or_listed(
    payload: bytes, new: dict[str, str], unchanged: list[str]
) -> None:
    [change] = changes(*PLAIN, payload, commit(50))
    assert (change["new"], change["unchanged"]) == (new, unchanged)


# -- where input begins ------------------------------------------------------------------------------------------------


def block_of(xid: int, *values: str, first: bool = False) -> tuple[bytes, ...]:
    return (start(xid, first=first), *(insert(value, xid=xid) for value in values), STOP)


# Transactions whose beginning is missing: the messages, the positions of errors, and the number of
# transactions that start="anywhere" leaves out.
HEADLESS = [
    pytest.param((relation("id*"), insert("1"), insert("2"), commit(40)), [1, 2, 3], 1, id="rows and a commit"),
    pytest.param((commit(40),), [0], 1, id="a commit alone"),
    pytest.param((message(1), commit(40)), [0, 1], 1, id="a transactional message"),
    pytest.param((message(1),), [0], 1, id="a transactional message and nothing else"),
    pytest.param((message(0),), [], 0, id="a message outside transactions"),
    pytest.param((relation("id*"), truncate(1, 2), commit(40)), [1, 2], 1, id="a truncate"),
    pytest.param((insert("1"), prepare(7, "g")), [0, 1], 1, id="a prepare"),
    pytest.param((insert("1"), prepare(7, "g"), commit_prepared(7, "g", 40)), [0, 1, 2], 1, id="and its commit"),
    pytest.param((insert("1"), prepare(7, "g"), rollback_prepared(7, "g")), [0, 1], 1, id="and its rollback"),
    pytest.param((*block_of(7, "1"), stream_commit(7, 40)), [0, 3], 1, id="a block and the commit of its stream"),
    pytest.param((*block_of(7, "1"), *block_of(7, "2"), stream_commit(7, 40)), [0, 3, 6], 1, id="two blocks"),
    pytest.param((*block_of(7, "1"), abort(7, 7)), [0], 1, id="a block and the abort of its stream"),
    pytest.param((insert("1", xid=7), STOP), [0], 1, id="the end of a block"),
    pytest.param((insert("1", xid=8), STOP, *block_of(7, "2"), stream_commit(7, 40)), [0, 2, 5], 1,
                 id="the end of a block and the stream that it was of"),
    pytest.param((insert("1", xid=7), STOP, stream_commit(7, 40)), [0, 2], 1, id="the end of a block and its commit"),
    pytest.param((insert("1", xid=7), STOP, stream_commit(7, 40), stream_commit(8, 41)), [0, 2, 3], 2,
                 id="the end of a block and two commits"),
    pytest.param((stream_prepare(7, "g"), commit_prepared(7, "g", 40)), [0, 1], 1, id="a streamed prepare"),
    pytest.param((commit_prepared(7, "g", 40),), [0], 1, id="the commit of a prepared transaction"),
    pytest.param((rollback_prepared(7, "g"), abort(7, 7), abort(7, 8)), [], 0, id="a rollback and aborts"),
]  # fmt: skip
AFTER = (begin(9), relation("id*"), insert("good"), commit(50))


@pytest.mark.parametrize(("head", "bad", "n_skipped"), HEADLESS)
def test_a_transaction_without_its_beginning_is_an_error_or_left_out_whole(
    head: tuple[bytes, ...], bad: list[int], n_skipped: int
) -> None:
    payloads = (*head, *AFTER)
    found = on_both(*payloads, mode="PERMISSIVE")
    assert found.errors == [(position, "STATE_TRANSACTION") for position in bad]
    assert new_values(found.changes) == [["good"]]
    if bad:
        with pytest.raises(Refused, match=f"^position {bad[0]}: ") as caught:
            changes(*payloads)
        assert caught.value.code == "STATE_TRANSACTION"
    for mode in ("FAILFAST", "PERMISSIVE"):
        found = on_both(*payloads, start="anywhere", mode=mode)
        assert new_values(found.changes) == [["good"]]
        assert (found.skipped, found.n_undecided, found.bad_rows, found.others) == (n_skipped, 0, {}, [])


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        pytest.param(insert("1"), "STATE_TRANSACTION", id="row"),
        pytest.param(message(1), "STATE_TRANSACTION", id="transactional message"),
        pytest.param(commit(60), "STATE_TRANSACTION", id="commit"),
        pytest.param(prepare(7, "g"), "STATE_TRANSACTION", id="prepare"),
        pytest.param(STOP, "STATE_DESYNC", id="stream stop"),
    ],
)
def test_after_the_first_boundary_plain_messages_without_a_begin_are_always_errors(payload: bytes, code: str) -> None:
    for beginning in ("transaction", "anywhere"):
        found = on_both(*AFTER, payload, start=beginning, mode="PERMISSIVE")
        assert (found.errors, found.skipped) == ([(4, code)], 0)


def test_streams_without_their_beginning_are_left_out_at_any_time() -> None:
    ends = (stream_commit(7, 60), stream_commit(8, 61), commit_prepared(9, "g", 62))
    found = on_both(*AFTER, *block_of(7, "1"), *ends, start="anywhere")
    assert (new_values(found.changes), found.skipped) == ([["good"]], 3)


def test_the_commit_of_an_unknown_gid_before_the_newest_commit_was_delivered_before() -> None:
    again = commit_prepared(7, "g", 50)
    assert new_values(changes(*AFTER, again)) == [["good"]]
    assert on_both(*AFTER, again, start="anywhere").skipped == 0
    decoder = ChangeDecoder()
    decoder.decode(AFTER)
    decoder.reconnected()
    assert len(decoder.decode([again])) == decoder.skipped == 0
    assert on_both(*AFTER, commit_prepared(7, "g", 51), mode="PERMISSIVE").errors == [(4, "STATE_TRANSACTION")]


def test_a_relation_of_a_stream_without_its_beginning_is_visible_after_its_commit() -> None:
    found = on_both(
        *PLAIN, commit(40),
        start(8, first=False), relation("id* w", xid=8), insert("1", "in", xid=8), STOP,
        begin(9), insert("2", "before"), commit(50),
        stream_commit(8, 60),
        begin(10), insert("3", "after"), commit(70),
        start="anywhere",
    )  # fmt: skip
    assert [list(c["new"]) for c in found.changes] == [["id", "v"], ["id", "w"]]


# -- the relation that was sent last -----------------------------------------------------------------------------------


def test_the_last_message_of_a_relation_applies_not_the_first() -> None:
    found = changes(
        begin(7), relation("a b"), commit(40),
        start(9, first=True), relation("a c", xid=10), STOP, abort(9, 10),
        begin(11), relation("a b"), commit(50),
        stream_commit(9, 60),
        begin(12), insert("7", "8"), commit(70),
    )  # fmt: skip
    assert [c["new"] for c in found] == [{"a": "7", "b": "8"}]


@pytest.mark.parametrize("end", [stream_commit(9, 60), stream_prepare(9, "g")], ids=["commit", "prepare"])
@pytest.mark.parametrize("repeats", [False, True])
def test_after_the_end_of_a_stream_the_relation_that_was_sent_last_applies(end: bytes, repeats: bool) -> None:
    found = changes(
        begin(7), relation("a b"), commit(40),
        start(9, first=True), relation("a c", xid=9), STOP,
        # The same description as before, but sent after the stream's.
        begin(11), relation("a b"), commit(50),
        *((start(9, first=False), relation("a c", xid=9), STOP) if repeats else ()),
        end,
        begin(12), insert("7", "8"), commit(70),
    )  # fmt: skip
    assert [c["new"] for c in found] == [{"a": "7", "c" if repeats else "b": "8"}]


@pytest.mark.parametrize("of_stream", [(), (relation("a b", xid=9),)], ids=["the committed one", "its own"])
def test_after_the_abort_of_a_sub_transaction_its_stream_uses_the_previous_relation(
    of_stream: tuple[bytes, ...],
) -> None:
    found = changes(
        begin(7), relation("a z"), commit(40),
        start(9, first=True), *of_stream, relation("a c", xid=10), insert("1", "sub", xid=10), STOP, abort(9, 10),
        start(9, first=False), insert("7", "8", xid=9), STOP, stream_commit(9, 60),
        begin(12), insert("7", "8"), commit(70),
    )  # fmt: skip
    assert [c["new"] for c in found] == [{"a": "7", "b" if of_stream else "z": "8"}] * 2


# -- reconnects --------------------------------------------------------------------------------------------------------


def test_an_announced_reconnect_discards_open_transactions_and_keeps_prepared_ones() -> None:
    found = on_both(
        *PLAIN, commit(40),
        begin_prepare(20, "g"), insert("prepared", "x"), prepare(20, "g"),
        start(21, first=True), insert("lost in a stream", "x", xid=21), STOP,
        begin(22), insert("lost", "x"),
        # The reader connects again here.
        begin(23), insert("kept", "x"), commit(50),
        commit_prepared(20, "g", 60),
        sessions={11},
    )  # fmt: skip
    assert new_values(found.changes) == [["kept", "x"], ["prepared", "x"]]
    assert [change["new"]["id"] for change in found.others] == ["lost in a stream", "lost"]
    assert found.n_undecided == 0


# After a commit at 120, with a prepared transaction "p", stream 21, and after its block, a Begin with final LSN 160.
SENT_AGAIN = [
    pytest.param("plain", begin(60), True, id="begin with the same final LSN"),
    pytest.param("plain", begin(61), False, id="begin past the final LSN"),
    pytest.param("plain", commit_prepared(5, "p", 160), True, id="commit prepared with the final LSN"),
    pytest.param("plain", commit_prepared(5, "p", 161), False, id="commit prepared past it"),
    pytest.param("plain", rollback_prepared(5, "p"), True, id="rollback prepared, long past"),
    pytest.param("plain", start(21, first=True), True, id="first segment of an open stream"),
    pytest.param("plain", start(22, first=True), False, id="first segment of another"),
    pytest.param("plain", start(21, first=False), False, id="second segment"),
    pytest.param("block", begin(20), True, id="begin in a block, not past the newest commit"),
    pytest.param("block", begin(21), False, id="begin in a block, past it"),
    pytest.param("block", start(21, first=True), True, id="first segment in its own block"),
    pytest.param("block", stream_commit(21, 110), False, id="stream commit in its block"),
]


@pytest.mark.parametrize(("where", "payload", "is_one"), SENT_AGAIN)
def test_an_otherwise_impossible_message_is_a_reconnect(where: str, payload: bytes, is_one: bool) -> None:
    before = [begin_prepare(5, "p"), prepare(5, "p"), *PLAIN, commit(120)]
    before += [start(21, first=True), insert("1", "x", xid=21)]
    before += [STOP, begin(60), insert("2", "x")] if where == "plain" else []
    found = on_both(*before, payload, drop_duplicates=True, mode="PERMISSIVE")
    assert [position for position, _ in found.errors] == ([] if is_one else [len(before)])
    streams = {21} if payload[:1] == b"S" or not is_one else set()
    streams |= {22} if payload == start(22, first=True) else set()
    assert open_streams(*before, payload) == streams - ({21} if payload[:1] == b"c" else set())
    if not is_one:
        with pytest.raises(Refused, match=r"reconnected\(\)"):
            on_both(*before, payload, drop_duplicates=True)


def open_streams(*payloads: bytes) -> set[int]:
    on_both(*payloads, mode="PERMISSIVE", drop_duplicates=True)
    return set(Fold(enumerate(payloads), permissive=True, drop_duplicates=True).streams)


def test_a_begin_not_after_the_newest_commit_discards_streams_that_began_before_that_commit() -> None:
    block = (start(21, first=True), relation("id* w", xid=21), insert("1", "x", xid=21), STOP)
    for again, still_open in ((begin(20), set()), (begin(21), {21})):
        assert open_streams(*block, *PLAIN, commit(120), again) == still_open
        # A stream that began after that commit may belong to the present session.
        assert open_streams(*PLAIN, commit(120), *block, again) == {21}


def test_a_prepared_transaction_that_is_prepared_again_counts_once() -> None:
    part = (begin_prepare(7, "g"), relation("id*"), insert("1"), prepare(7, "g"))
    found = on_both(*part, *part, commit_prepared(7, "g", 60))
    assert [(c["position"], c["committed"]) for c in found.changes] == [(6, True)]
    # A decoder drops the unfinished copy, and the fold remembers it.
    assert found.n_undecided == 0


# -- empty payloads ----------------------------------------------------------------------------------------------------


def test_an_empty_payload_is_ignored_and_counted_or_an_error() -> None:
    payloads = (*PLAIN, b"", insert("1", "x"), commit(50), b"")
    for mode in ("FAILFAST", "PERMISSIVE"):
        found = on_both(*payloads, mode=mode)
        assert (new_values(found.changes), found.empty_payloads, found.bad_rows) == ([["1", "x"]], 2, {})
    found = on_both(*payloads, empty="error", mode="PERMISSIVE")
    assert (found.errors, found.bad_rows, found.empty_payloads) == ([(2, "EMPTY"), (5, "EMPTY")], {"EMPTY": 2}, 0)
    with pytest.raises(Refused, match="position 2: EMPTY at offset 0"):
        on_both(*payloads, empty="error")
