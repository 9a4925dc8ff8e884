"""Outcomes of prepared, streamed and unfinished transactions."""

from __future__ import annotations

import pytest

from pgdecode.changes.change_decoder import ChangeDecoder
from support.change_rows import changes_of, decoded, with_errors
from support.generators.slot import Slot, one_row
from support.oracles import reference_changes

T = 16385  # OID of a table


def two_phase(*, streamed: bool) -> Slot:
    slot = one_row()
    if streamed:
        slot.start(800, first=True)
        slot.insert(T, "2", xid=800)
        slot.insert(T, "3", xid=801)
        slot.stop()
        slot.stream_abort(800, 801)
        slot.stream_prepare(800, "gid é")
    else:
        slot.begin_prepare(800, "gid é")
        slot.insert(T, "2")
        slot.prepare("gid é")
    return slot


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize(
    ("outcome", "committed"),
    [("commit_prepared", True), ("rollback_prepared", False), (None, None)],
)
def test_a_prepared_transaction_has_the_outcome_of_its_gid(
    outcome: str | None, committed: bool | None, streamed: bool
) -> None:
    slot = two_phase(streamed=streamed)
    slot.begin(900)
    slot.insert(T, "4")
    slot.commit()
    if outcome is not None:
        getattr(slot, outcome)(800, "gid é")
    for include_uncommitted in (False, True):
        changes = decoded(slot.payloads, include_uncommitted=include_uncommitted)
        assert changes == reference_changes.changes(enumerate(slot.payloads), include_uncommitted=include_uncommitted)
    [prepared] = [change for change in changes if change["new"] == {"a": "2"}]
    assert (prepared["committed"], prepared["gid"]) == (committed, "gid é")


def test_a_rollback_of_an_unknown_gid_or_stream_is_ignored() -> None:
    slot = one_row()
    slot.rollback_prepared(801, "nobody")
    slot.stream_abort(803)
    slot.stream_abort(803, 804)
    assert len(decoded(slot.payloads, include_uncommitted=True)) == 1


def test_a_commit_or_prepare_of_an_unknown_gid_or_stream_is_an_error_or_counted() -> None:
    slot = one_row()
    slot.commit_prepared(800, "nobody")
    slot.stream_commit(802)
    slot.stream_prepare(805, "h")
    slot.commit_prepared(805, "h")
    first = len(slot.payloads) - 4
    rows = with_errors(ChangeDecoder(mode="PERMISSIVE", include_uncommitted=True).decode(slot.payloads))
    assert [row["position"] for row in rows if row["error"]] == list(range(first, first + 4))
    assert len(rows) == 5
    decoder = ChangeDecoder(start="anywhere")
    assert (len(decoder.decode(slot.payloads)), decoder.skipped) == (1, 3)


def test_undecided_returns_undecided_changes_and_keeps_them() -> None:
    slot = two_phase(streamed=True)
    decoder = ChangeDecoder()
    decoder.decode(slot.payloads)
    before = decoder.state
    for _ in range(2):
        assert [(c["new"], c["committed"]) for c in changes_of(decoder.undecided())] == [({"a": "2"}, None)]
    assert decoder.state == before
    slot.payloads.clear()
    slot.commit_prepared(800, "gid é")
    assert [c["new"] for c in changes_of(decoder.decode(slot.payloads))] == [{"a": "2"}]
    assert len(decoder.undecided()) == 0


def test_undecided_returns_changes_of_rolled_back_sub_transactions_on_request() -> None:
    decoder = ChangeDecoder(include_uncommitted=True)
    decoder.decode(two_phase(streamed=True).payloads)
    undecided = [(c["new"], c["subxid"], c["committed"]) for c in changes_of(decoder.undecided())]
    assert undecided == [({"a": "2"}, None, None), ({"a": "3"}, 801, False)]


def test_a_streamed_transaction_sent_again_from_its_start_replaces_the_unfinished_copy() -> None:
    slot = one_row()
    slot.start(800, first=True)
    slot.insert(T, "lost", xid=800)
    slot.stop()
    slot.start(800, first=True)
    slot.insert(T, "kept", xid=800)
    slot.stop()
    slot.stream_commit(800)
    assert decoded(slot.payloads) == reference_changes.changes(enumerate(slot.payloads))
    decoder = ChangeDecoder(include_uncommitted=True)
    changes = [(c["new"]["a"], c["committed"]) for c in changes_of(decoder.decode(slot.payloads))]
    assert changes == [("1", True), ("lost", None), ("kept", True)]
    assert len(decoder.undecided()) == 0


@pytest.mark.parametrize("size", [1, 2, 100])
def test_a_transaction_sent_again_before_its_commit_replaces_the_unfinished_copy(size: int) -> None:
    slot = one_row()
    slot.begin(800)
    begin = slot.payloads[-1]
    slot.insert(T, "lost")
    slot.payloads.append(begin)
    slot.insert(T, "kept")
    slot.commit()
    for include_uncommitted, outcomes in (
        (False, [("1", True), ("kept", True)]),
        (True, [("1", True), ("lost", None), ("kept", True)]),
    ):
        decoder = ChangeDecoder(include_uncommitted=include_uncommitted)
        batches = [decoder.decode(slot.payloads[at : at + size]) for at in range(0, len(slot.payloads), size)]
        changes = [change for batch in batches for change in changes_of(batch)]
        assert [(change["new"]["a"], change["committed"]) for change in changes] == outcomes
        assert len(decoder.undecided()) == 0
    assert decoded(slot.payloads) == reference_changes.changes(enumerate(slot.payloads))
