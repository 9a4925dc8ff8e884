"""A ChangeDecoder continues a state: over calls, through JSON, after an exception, after a reconnect."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pgdecode
from pgdecode.changes.change_decoder import ChangeDecoder
from support import captures
from support.change_rows import changes_of, decoded, in_pieces, through_json, with_errors
from support.generators.slot import RandomSlot, Slot
from support.oracles import reference_changes
from support.oracles.reference_changes import Change

T = 16385


# -- cuts ------------------------------------------------------------------------------------------------------------


def assert_cut_anywhere(column: pa.Array, cuts: list[int], **options: Any) -> None:
    """Check that a decoder for the first part, and another with its state for the rest, give the same changes."""
    whole = ChangeDecoder(**options)
    batch = whole.decode(column)
    for cut in cuts:
        first = ChangeDecoder(**options)
        before = first.decode(column[:cut])
        second = through_json(first, **options)
        after = second.decode(column[cut:])
        assert pa.concat_batches([before, after]).equals(batch), cut
        assert second.undecided().equals(whole.undecided())


@pytest.mark.full
def test_a_streamed_sequence_may_be_cut_anywhere(rng: random.Random) -> None:
    payloads = pa.array(RandomSlot(rng, 40).payloads, pa.binary())
    for include_uncommitted in (False, True):
        assert_cut_anywhere(payloads, list(range(len(payloads) + 1)), include_uncommitted=include_uncommitted)


@pytest.mark.parametrize("name", ["14.txns.v2", "18.txns.v3nostream", "18.txns.v1"])
def test_a_capture_may_be_cut_anywhere(name: str) -> None:
    column = captures.capture(name).column
    assert_cut_anywhere(column, list(range(len(column) + 1)), include_uncommitted=True)


@pytest.mark.parametrize("name", ["14.streams.v2", "18.streams.v4", "16.twophase.v4bin", "18.twophase.v3"])
def test_a_capture_with_streams_may_be_cut_at_the_ends_of_blocks(name: str, rng: random.Random) -> None:
    capture = captures.capture(name)
    ends = [at for at, payload in enumerate(capture.payloads) if payload[:1] in b"SEcAbPKrp"]
    cuts = rng.sample(ends, 6) + rng.sample(range(len(capture.payloads)), 3)
    assert_cut_anywhere(capture.column, [cut + 1 for cut in cuts])


@pytest.mark.parametrize("name", ["18.txns.v2", "16.txns.v1", "18.types.v2"])
def test_each_message_may_be_decoded_by_a_new_decoder(name: str) -> None:
    payloads = captures.capture(name).payloads
    for include_uncommitted in (False, True):
        whole = decoded(payloads, include_uncommitted=include_uncommitted)
        assert in_pieces(payloads, range(1, len(payloads)), include_uncommitted=include_uncommitted) == whole


@given(st.randoms(use_true_random=False), st.integers(1, 25), st.integers(1, 20), st.booleans())
def test_calls_of_any_size_give_the_same(rng: Any, n_steps: int, size: int, include_uncommitted: bool) -> None:
    payloads = RandomSlot(rng, n_steps).payloads
    expected = reference_changes.changes(enumerate(payloads), include_uncommitted=include_uncommitted)
    bounds = range(size, len(payloads), size)
    assert in_pieces(payloads, bounds, include_uncommitted=include_uncommitted) == expected


def test_a_state_does_not_depend_on_what_an_aborted_subtransaction_sent_first() -> None:
    # Relation 20003 comes first from the sub-transaction, and 20001 from one that stays: only these count at the end.
    slot = Slot()
    slot.start(700, first=True)
    slot.relation(20003, ["a"], xid=701)
    slot.stop()
    slot.stream_abort(700, 701)
    slot.start(700)
    slot.relation(20002, ["a"], xid=700)
    slot.relation(20001, ["a"], xid=700)
    slot.relation(20003, ["a"], xid=702)
    slot.stop()
    slot.stream_commit(700)
    whole = ChangeDecoder()
    whole.decode(slot.payloads)
    for cut in range(len(slot.payloads)):
        first = ChangeDecoder()
        first.decode(slot.payloads[:cut])
        second = through_json(first)
        second.decode(slot.payloads[cut:])
        assert json.dumps(second.state) == json.dumps(whole.state), cut


@given(st.randoms(use_true_random=False), st.integers(1, 40), st.data())
def test_relations_after_a_cut_anywhere_are_those_of_one_decoder(rng: Any, n_steps: int, data: st.DataObject) -> None:
    payloads = RandomSlot(rng, n_steps).payloads
    cut = data.draw(st.integers(0, len(payloads)))
    whole, first = ChangeDecoder(), ChangeDecoder()
    whole.decode(payloads)
    first.decode(payloads[:cut])
    second = through_json(first)
    second.decode(payloads[cut:])
    assert json.dumps(second.state["catalog"]) == json.dumps(whole.state["catalog"])


def test_a_decoder_does_not_change_the_state_that_it_starts_from() -> None:
    column = captures.capture("18.streams.v2").column
    decoder = ChangeDecoder()
    decoder.decode(column[:3000])
    state = decoder.state
    before = copy.deepcopy(state)
    ChangeDecoder(state=state).decode(column[3000:])
    decoder.decode(column[3000:])
    assert state == before


def test_a_state_between_transactions_is_small() -> None:
    decoder = ChangeDecoder()
    decoder.decode(captures.capture("18.shop.v1").column)
    state = decoder.state
    assert (state["open"], state["streamed"], state["prepared"], state["stream"]) == (None, [], [], None)
    assert len(json.dumps(state)) < 12_000  # 8 versions of 4 tables


# -- before the first payload ----------------------------------------------------------------------------------------


def two_versions() -> Slot:
    """Two transactions that insert into a table. The second one follows a change of its column."""
    slot = Slot()
    for xid, name in ((700, "a"), (701, "b")):
        slot.begin(xid)
        slot.relation(T, [name])
        slot.insert(T, name)
        slot.commit()
    return slot


@pytest.mark.parametrize("calls", [[], [[]], [[], []]])
@pytest.mark.parametrize("first", [None, 2, 6])
def test_a_catalog_is_kept_by_a_state_from_before_the_first_payload(calls: list[list[bytes]], first: int) -> None:
    slot = two_versions()
    catalog = pgdecode.RelationCatalog.from_messages(slot.payloads)
    payloads = [slot.payloads[0], slot.payloads[2], slot.payloads[3]]
    positions = None if first is None else range(first, first + 3)
    decoder = ChangeDecoder(catalog=catalog)
    for call in calls:
        decoder.decode(call)
    later = through_json(through_json(decoder))
    assert later.catalog == catalog
    # As without a state: the last version from before the first payload applies.
    expected = decoded(payloads, positions, catalog=catalog)
    assert changes_of(later.decode(payloads, positions)) == expected
    assert [change["new"] for change in expected] == [{"a": "a"} if first == 2 else {"b": "a"}]


def test_a_catalog_applies_to_a_state_from_before_the_first_payload() -> None:
    slot = two_versions()
    catalogs = [pgdecode.RelationCatalog.from_messages(slot.payloads[:n]) for n in (4, 8)]
    payloads = [slot.payloads[0], slot.payloads[2], slot.payloads[3]]
    for before in (None, catalogs[0]):
        decoder = through_json(ChangeDecoder(catalog=before), catalog=catalogs[1])
        assert [change["new"] for change in changes_of(decoder.decode(payloads))] == [{"b": "a"}]


def test_a_catalog_is_ignored_with_a_state_from_after_the_first_payload() -> None:
    slot = two_versions()
    catalog = pgdecode.RelationCatalog.from_messages(slot.payloads)
    decoder = ChangeDecoder()
    decoder.decode(slot.payloads[:2])
    later = through_json(decoder, catalog=catalog)
    assert later.catalog == decoder.catalog
    assert [change["new"] for change in changes_of(later.decode(slot.payloads[2:4]))] == [{"a": "a"}]


# -- after an exception ----------------------------------------------------------------------------------------------


def described(relation_id: int, column: str) -> Slot:
    slot = Slot()
    slot.begin(700)
    slot.relation(relation_id, [column])
    slot.insert(relation_id, "1")
    slot.commit()
    return slot


BAD = {
    "a payload that is cut": lambda slot: slot.payloads.append(b"I\0"),
    "a row with too many columns": lambda slot: slot.insert(T + 1, "1", "2"),
    "a row of an unknown relation": lambda slot: slot.insert(T + 9, "1"),
    "a value that is not UTF-8": lambda slot: slot.payloads.append(slot.payloads[2][:-1] + b"\xff"),
    "a transaction in another": lambda slot: slot.begin(701),
    "a stream that was not started": lambda slot: slot.stop(),
}


@pytest.mark.parametrize("what", BAD)
@pytest.mark.parametrize(
    "decode",
    [
        pytest.param(lambda decoder, payloads: list(decoder.decode_batches(payloads, max_rows=1)), id="decode"),
        pytest.param(lambda decoder, payloads: decoder.table(payloads, f"public.t{T + 1}"), id="table"),
    ],
)
def test_a_bad_payload_leaves_the_decoder_unchanged(what: str, decode: Callable[..., object]) -> None:
    decoder = ChangeDecoder()
    decoder.decode(described(T, "a").payloads)
    # Each of the slots here begins with the same LSN, as that of another server.
    decoder.reconnected()
    before = decoder.state
    # Two batches of output are good. The relation is known, and one of its rows has been read.
    slot = described(T + 1, "b")
    slot.begin(702)
    BAD[what](slot)
    slot.commit()
    with pytest.raises(pgdecode.DecodeError) as caught:
        decode(decoder, slot.payloads)
    assert caught.value.row in (5, 6)  # the payload, or the message that shows that it is one too many
    assert decoder.state == before
    # The next payloads are decoded with their own relation, not with the one that was undone.
    [change] = changes_of(decoder.decode(described(T + 2, "c").payloads))
    assert (change["relation_name"], change["new"]) == (f"t{T + 2}", {"c": "1"})


def test_an_unknown_type_is_refused_before_anything_is_decoded() -> None:
    with pytest.raises(ValueError, match="'no such type' is not a valid type"):
        ChangeDecoder(types={25: "no such type"})


def test_an_abandoned_generator_has_processed_its_payloads() -> None:
    column = captures.capture("18.shop.v1").column
    decoder, twin = ChangeDecoder(), ChangeDecoder()
    batches = decoder.decode_batches(column, max_rows=1)
    assert decoder.state == twin.state
    next(batches)
    batches.close()
    twin.decode(column)
    assert decoder.state == twin.state


# -- after a reconnect -----------------------------------------------------------------------------------------------


def without_positions(changes: list[Change]) -> list[Change]:
    return [{k: v for k, v in change.items() if k not in ("position", "commit_position")} for change in changes]


def quiet_points(payloads: list[bytes]) -> list[int]:
    """Places where a transaction begins while no other one is open: a server may restart there."""
    points = []
    open_ones = 0
    streams = set()
    for at, payload in enumerate(payloads):
        tag, xid = payload[:1], payload[1:5]
        if tag in b"BbS" and not open_ones and not streams:
            points.append(at)
        open_ones += (tag in b"BbS") - (tag in b"CPE")
        if tag == b"S":
            streams.add(xid)
        elif tag in b"cp" or (tag == b"A" and xid == payload[5:9]):
            streams.discard(xid)
    return points


@pytest.mark.full
@pytest.mark.parametrize("seed", range(3))
def test_a_reconnect_anywhere_gives_each_change_once(seed: int, rng: random.Random) -> None:
    slot_rng = random.Random(rng.getrandbits(32) + seed)
    payloads = RandomSlot(slot_rng, 25, with_versions=False, with_copies=False).payloads
    expected = without_positions(decoded(payloads))
    points = quiet_points(payloads)
    for cut in range(1, len(payloads)):
        again = rng.choice([point for point in points if point < cut])
        sent = payloads[:cut] + payloads[again:]
        for is_announced in (False, True):
            decoder = ChangeDecoder(drop_duplicates=True, mode="PERMISSIVE")
            rows = with_errors(decoder.decode(sent[:cut]))
            if is_announced:
                decoder.reconnected()
            rows += with_errors(decoder.decode(sent[cut:]))
            errors = [row.pop("error") for row in rows]
            assert without_positions([row for row, error in zip(rows, errors, strict=True) if not error]) == expected
            flagged = [error for error in errors if error]
            assert len(flagged) <= (not is_announced), (cut, again, flagged)
            assert all("reconnected()" in error for error in flagged)


def test_without_drop_duplicates_commit_lsn_and_xid_identify_a_repeated_transaction(rng: random.Random) -> None:
    payloads = RandomSlot(rng, 25, with_versions=False).payloads
    ends = [at for at, payload in enumerate(payloads) if payload[:1] in b"CcK"]
    for cut in ends:
        again = rng.choice([point for point in quiet_points(payloads) if point < cut])
        decoder = ChangeDecoder()
        found = changes_of(decoder.decode(payloads[: cut + 1]))
        decoder.reconnected()
        found += changes_of(decoder.decode(payloads[again:]))
        first: dict[tuple[int, int], int] = {}
        kept = [
            change
            for change in found
            if first.setdefault((change["commit_lsn"], change["xid"]), change["commit_position"])
            == change["commit_position"]
        ]
        assert without_positions(kept) == without_positions(decoded(payloads))


def test_a_captured_sequence_sent_twice_gives_each_change_once() -> None:
    for name in ("18.twophase.v3", "18.shop.v1", "18.streams.v2"):
        column = captures.capture(name).column
        decoder = ChangeDecoder(drop_duplicates=True)
        batch = decoder.decode(pa.concat_arrays([column, column]))
        assert batch.equals(ChangeDecoder().decode(column))
        assert len(decoder.decode(column)) == 0


# -- states that were not written by a decoder -----------------------------------------------------------------------


def busy_state() -> dict[str, Any]:
    """A state with an open stream, other streams, prepared transactions, types and versions."""
    slot = Slot()
    slot.begin(700)
    slot.send(pgdecode.Type(type_id=20000, namespace="public", name="mood"))
    slot.relation(T, ["a", "b"], types=[25, 20000])
    slot.commit()
    slot.begin_prepare(701, "g")
    slot.insert(T, "1", "x")
    slot.prepare("g")
    slot.start(800, first=True)
    slot.insert(T, "2", None, xid=800)
    slot.insert(T, "3", None, xid=801)
    slot.truncate(T, xid=800)
    slot.stop()
    slot.stream_abort(800, 801)
    slot.start(900, first=True)
    slot.send(pgdecode.Type(xid=900, type_id=20001, namespace="public", name="sad"))
    slot.relation(T, ["c", "d"], xid=900, types=[25, 20001])
    slot.insert(T, "4", "y", xid=900)
    decoder = ChangeDecoder()
    decoder.decode(slot.payloads)
    state: dict[str, Any] = json.loads(json.dumps(decoder.state))
    return state


def rest() -> list[bytes]:
    """Messages that end all transactions of the busy state."""
    slot = Slot()
    slot.lsn = 0x9000
    slot.insert(T, "5", "z", xid=900)
    slot.stop()
    slot.stream_commit(900)
    slot.stream_commit(800)
    slot.commit_prepared(701, "g")
    slot.begin(1000)
    slot.insert(T, "6", "z")
    slot.commit()
    return slot.payloads


def places_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """All paths of keys and indices in a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, item in items for place in [(*path, key), *places_in(item, (*path, key))]]


def tampered(state: dict[str, Any], place: tuple[Any, ...], change: Any) -> dict[str, Any]:
    spoilt = copy.deepcopy(state)
    holder: Any = spoilt
    for key in place[:-1]:
        holder = holder[key]
    change(holder, place[-1])
    return spoilt


def put(value: Any) -> Any:
    def change(holder: Any, key: Any) -> None:
        holder[key] = value

    return change


TAMPERINGS = [
    lambda holder, key: holder.pop(key),
    *map(
        put, [None, -1, 0, 1, 2, 3.5, 2**31, 2**63, 2**64, True, "", "a", "5\0", "SQ==", "RQ==", "é", [], {}, [[]], [1]]
    ),
    *map(put, [[[1, 2]], [[1, 2, 3]], {"a": 1}]),
]


def test_the_busy_state_can_be_continued() -> None:
    decoder = ChangeDecoder(state=busy_state())
    assert [change["new"] for change in changes_of(decoder.decode(rest())) if change["op"] == "insert"] == [
        {"c": "4", "d": "y"},
        {"c": "5", "d": "z"},
        {"a": "2", "b": None},
        {"a": "1", "b": "x"},
        {"c": "6", "d": "z"},
    ]


@pytest.mark.full
def test_a_state_that_was_tampered_with_is_refused_or_works() -> None:
    state = busy_state()
    refused = worked = 0
    for place in places_in(state):
        for change in TAMPERINGS:
            spoilt = tampered(state, place, change)
            try:
                decoder = ChangeDecoder(state=spoilt, mode="PERMISSIVE", include_uncommitted=True)
            except ValueError:
                refused += 1
                continue
            decoder.undecided().validate(full=True)
            after = [decoder.state["position"] + at for at in range(8)]
            if after[-1] < 2**63:
                decoder.decode(rest(), after).validate(full=True)
            json.dumps(decoder.state)
            worked += 1
    assert refused > 1000
    assert worked > 100


@pytest.mark.parametrize(
    "state",
    [
        pytest.param([], id="list"),
        pytest.param("{}", id="text"),
        pytest.param({"format": "pgdecode.RelationCatalog", "version": 1}, id="another format"),
        pytest.param({"format": "pgdecode.ChangeDecoder", "version": 2}, id="a later version"),
        pytest.param({"format": "pgdecode.ChangeDecoder", "version": 1}, id="nothing in it"),
    ],
)
def test_other_values_are_refused_as_state(state: Any) -> None:
    with pytest.raises(ValueError, match="state"):
        ChangeDecoder(state=state)
