"""Servers send the commits of a session in ascending order of LSN: what is sent again, or out of order, is an error."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

import pgdecode
from pgdecode import ChangeDecoder
from support import captures
from support.change_rows import changes_of, decoded, through_json, with_errors
from support.generators.slots import (
    STOP,
    begin,
    begin_prepare,
    commit,
    commit_prepared,
    insert,
    prepare,
    relation,
    start,
    stream_commit,
)

NAMES = ("18.shop.v1", "18.streams.v4", "18.twophase.v3", "18.txns.v2")
FIRST = (begin(7), relation("id*"), insert("1"), commit(120))
STREAM = (start(21, first=True), insert("2", xid=21), STOP)
PREPARED = (begin_prepare(30, "g"), insert("3"), prepare(30, "g"))

# By the message that is late: what a session has sent, and the last message.
LATE = {
    "commit": ((*FIRST, begin(8), insert("2")), commit(110)),
    "commit with the same LSN": ((*FIRST, begin(8), insert("2")), commit(120)),
    "commit of a transaction without changes": ((*FIRST, begin(8)), commit(110)),
    "commit after a relation message": ((*FIRST, begin(8), relation("id* w"), insert("2", "x")), commit(110)),
    "stream commit": ((*FIRST, *STREAM), stream_commit(21, 110)),
    "commit after a stream commit": ((*FIRST, *STREAM, stream_commit(21, 130), begin(8), insert("4")), commit(125)),
    "commit prepared": (
        (begin(6), relation("id*"), commit(106), *PREPARED, begin(7), insert("1"), commit(120)),
        commit_prepared(30, "g", 110),
    ),
    "commit prepared of an unknown transaction": (FIRST, commit_prepared(30, "h", 110)),
    "commit after a commit prepared": (
        (*FIRST, *PREPARED, commit_prepared(30, "g", 130), begin(8), insert("4")),
        commit(125),
    ),
}


@pytest.mark.parametrize("cut", [False, True], ids=["in one call", "in another call"])
@pytest.mark.parametrize("what", LATE)
def test_a_commit_whose_lsn_does_not_ascend_is_an_error(what: str, cut: bool) -> None:
    before, last = LATE[what]
    decoder = ChangeDecoder()
    if cut:
        decoder.decode(before)
        decoder = through_json(decoder)
    text = rf"at position {len(before)} does not come after 0/\w+ at position \d+: put the payloads into slot order; .*"
    with pytest.raises(pgdecode.CommitOrder, match=text) as caught:
        decoder.decode([last] if cut else [*before, last])
    assert caught.value.row == (0 if cut else len(before))
    assert isinstance(caught.value, pgdecode.TransactionDesync)


@pytest.mark.parametrize("what", LATE)
def test_in_permissive_mode_the_error_is_a_row_and_no_change_is_missing(what: str) -> None:
    before, last = LATE[what]
    decoder = ChangeDecoder(mode="PERMISSIVE")
    rows = with_errors(decoder.decode([*before, last]))
    [error] = [row for row in rows if row["error"]]
    assert (error["position"], error["error"].split()[0]) == (len(before), "STATE_COMMIT_ORDER")
    assert decoder.bad_rows == {"STATE_COMMIT_ORDER": 1}
    n_inserts = sum(payload[:1] == b"I" for payload in before)
    assert sum(row["error"] is None for row in rows) == n_inserts


def test_an_announced_session_may_send_transactions_again_but_its_own_commits_ascend() -> None:
    decoder = ChangeDecoder()
    decoder.decode([*FIRST, begin(8), commit(130)])
    decoder.reconnected()
    decoder = through_json(decoder)
    assert len(decoder.decode(FIRST)) == 1
    with pytest.raises(pgdecode.CommitOrder, match="0/78 at position 13 does not come after 0/78: put"):
        through_json(decoder).decode([*FIRST])
    assert len(decoder.decode([begin(9), insert("2"), commit(125)])) == 1
    assert decoder.repeated == 2


@pytest.mark.parametrize("name", NAMES)
def test_a_capture_that_is_there_twice_is_refused_unless_something_explains_it(name: str) -> None:
    payloads = captures.capture(name).payloads
    ends = [at for at, payload in enumerate(payloads) if payload[:1] in b"CcK"]
    once = decoded(payloads)
    decoder = ChangeDecoder()
    with pytest.raises(pgdecode.CommitOrder) as caught:
        decoder.decode([*payloads, *payloads])
    assert caught.value.row == len(payloads) + ends[0]
    # The same, in PERMISSIVE mode: each commit has an error, and each change is there twice.
    permissive = ChangeDecoder(mode="PERMISSIVE")
    rows = with_errors(permissive.decode([*payloads, *payloads]))
    assert permissive.bad_rows == {"STATE_COMMIT_ORDER": len(ends)}
    assert len(rows) == 2 * len(once) + len(ends)
    # What explains it.
    dropping = ChangeDecoder(drop_duplicates=True)
    assert changes_of(dropping.decode([*payloads, *payloads])) == once
    decoder.decode(payloads)
    assert decoder.repeated == 0
    decoder.reconnected()
    assert len(decoder.decode(payloads)) == len(once)
    assert dropping.repeated == decoder.repeated == permissive.repeated == len(ends)
    assert through_json(decoder).repeated == len(ends)


@pytest.mark.parametrize("name", NAMES)
def test_two_transactions_that_have_changed_places_are_refused(name: str) -> None:
    payloads = captures.capture(name).payloads
    # Pairs of plain transactions that follow each other.
    begins = [at for at, payload in enumerate(payloads) if payload[:1] == b"B"]
    ends = [next(at for at in range(first, len(payloads)) if payloads[at][:1] == b"C") + 1 for first in begins]
    pairs = [(a, b, c) for (a, b), (first, c) in pairwise(zip(begins, ends, strict=True)) if first == b]
    for a, b, c in pairs[:: max(1, len(pairs) // 20)]:
        swapped = [*payloads[:a], *payloads[b:c], *payloads[a:b], *payloads[c:]]
        with pytest.raises(pgdecode.DecodeError) as caught:
            decoded(swapped)
        if isinstance(caught.value, pgdecode.CommitOrder):
            assert caught.value.row == c - 1


def test_an_error_leaves_the_decoder_unchanged() -> None:
    decoder = ChangeDecoder()
    decoder.decode(FIRST)
    before = decoder.state
    with pytest.raises(pgdecode.CommitOrder):
        decoder.decode([begin(8), insert("2"), commit(110)])
    assert decoder.state == before
    assert changes_of(decoder.decode([begin(8), insert("2"), commit(130)]))[0]["new"] == {"id": "2"}


def test_a_state_of_an_earlier_release_continues_the_session_of_its_last_commit() -> None:
    decoder = ChangeDecoder()
    decoder.decode(FIRST)
    state: dict[str, Any] = {**decoder.state}
    del state["session_lsn"], state["n_repeated"]
    with pytest.raises(pgdecode.CommitOrder):
        ChangeDecoder(state=state).decode([begin(8), insert("2"), commit(110)])


def test_a_transaction_that_is_cut_and_sent_again_is_no_error() -> None:
    payloads = [*FIRST, begin(40), insert("2"), *(begin(40), insert("2"), commit(140))]
    assert [row["new"]["id"] for row in decoded(payloads)] == ["1", "2"]
