"""Reconnects, announced or recognised: open transactions are discarded, prepared ones stay."""

from __future__ import annotations

from typing import Any

import pytest

import pgdecode
from pgdecode import ChangeDecoder
from support.change_rows import changes_of, through_json
from support.generators.slots import (
    STOP,
    begin,
    begin_prepare,
    commit,
    commit_prepared,
    insert,
    prepare,
    relation,
    rollback_prepared,
    start,
    stream_commit,
)

FIRST = (begin(7), relation("id* v"), commit(120))


def transaction(lsn: int, *ids: str) -> tuple[bytes, ...]:
    return (begin(lsn, lsn), *(insert(value, "x") for value in ids), commit(lsn))


def stream(xid: int, *ids: str) -> tuple[bytes, ...]:
    return (start(xid, first=True), *(insert(value, "x", xid=xid) for value in ids), STOP)


def ids(rows: list[dict[str, Any]]) -> list[str]:
    return [row["new"]["id"] for row in rows]


def in_sessions(*sessions: tuple[bytes, ...], stored: bool = False, **options: Any) -> tuple[list[Any], ChangeDecoder]:
    """Rows of several sessions, each announced."""
    decoder = ChangeDecoder(**options)
    rows = []
    for number, payloads in enumerate(sessions):
        if number:
            decoder.reconnected()
        rows += changes_of(decoder.decode(payloads))
        if stored:
            decoder = through_json(decoder, **options)
    return rows, decoder


PLAIN = transaction(160, "1", "2", "3")
CUTS = {
    "in a plain transaction": PLAIN[:3],
    "in a stream block": stream(21, "4", "5")[:2],
    "in a block and past others": (*stream(22, "6"), *stream(21, "4", "5")[:2]),
    "between blocks": stream(21, "4"),
    "in a transaction and a stream": (*stream(21, "4"), *PLAIN[:2]),
    "in a prepared transaction": (begin_prepare(30, "h"), insert("7", "x")),
    "between transactions": (),
}


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("where", CUTS)
def test_an_announced_reconnect_anywhere_is_no_error_and_gives_each_change_once(where: str, stored: bool) -> None:
    again = (*FIRST, *stream(21, "4", "5"), *PLAIN, stream_commit(21, 170))
    rows, decoder = in_sessions((*FIRST, *CUTS[where]), again, drop_duplicates=True, stored=stored)
    assert ids(rows) == ["1", "2", "3", "4", "5"]
    assert decoder.n_undecided == 0


def test_repeated_begins_after_a_reconnect_do_not_affect_streams_of_the_new_session() -> None:
    # The second session sends a block, and then the begin of a transaction that was already committed.
    again = (*stream(21, "4"), *transaction(105), *FIRST, *PLAIN, stream_commit(21, 170))
    rows, decoder = in_sessions(FIRST, again, drop_duplicates=True)
    assert ids(rows) == ["1", "2", "3", "4"]
    assert decoder.n_undecided == 0


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        pytest.param((commit_prepared(30, "g", 130),), ["first"], id="committed"),
        pytest.param((rollback_prepared(30, "g"),), [], id="rolled back"),
        pytest.param(
            (begin_prepare(30, "g"), insert("again", "x"), prepare(30, "g"), commit_prepared(30, "g", 130)),
            ["again"],
            id="prepared again",
        ),
    ],
)
def test_a_prepared_transaction_survives_a_reconnect(outcome: tuple[bytes, ...], expected: list[str]) -> None:
    prepared = (begin_prepare(30, "g"), insert("first", "x"), prepare(30, "g"))
    rows, decoder = in_sessions((*FIRST, *prepared), outcome)
    assert ids(rows) == expected
    assert decoder.n_undecided == 0


def test_the_relations_of_a_discarded_stream_are_discarded_with_it() -> None:
    block = (start(21, first=True), relation("id* w", xid=21), STOP)
    rows, _ = in_sessions((*FIRST, *block), (*stream(21, "4"), stream_commit(21, 170)))
    assert [row["new"] for row in rows] == [{"id": "4", "v": "x"}]


def test_an_announced_reconnect_of_a_new_decoder_changes_nothing() -> None:
    decoder = ChangeDecoder()
    decoder.reconnected()
    assert ids(changes_of(decoder.decode([*FIRST, *PLAIN]))) == ["1", "2", "3"]


def test_a_snapshot_of_several_sessions_has_each_row_once() -> None:
    payloads = [*FIRST, *PLAIN[:3], *FIRST, *PLAIN]
    found = pgdecode.snapshot(payloads, "public.t", drop_duplicates=True)
    assert found["id"].to_pylist() == ["1", "2", "3"]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_a_recognised_reconnect_does_not_depend_on_cuts_of_the_input(size: int) -> None:
    payloads = [*FIRST, *stream(21, "lost"), *PLAIN[:2], *FIRST, *stream(21, "4"), *PLAIN, stream_commit(21, 170)]
    decoder = ChangeDecoder(drop_duplicates=True)
    rows = []
    for at in range(0, len(payloads), size):
        rows += changes_of(decoder.decode(payloads[at : at + size]))
        decoder = through_json(decoder, drop_duplicates=True)
    assert ids(rows) == ["1", "2", "3", "4"]
    assert decoder.n_undecided == 0
