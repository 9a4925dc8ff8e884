"""Incomplete or malformed sequences: missing messages are reported, and all returned changes are correct."""

from __future__ import annotations

import random
from itertools import pairwise

import pyarrow as pa
import pytest

import pgdecode
from pgdecode import RelationCatalog
from pgdecode.changes.change_decoder import ChangeDecoder
from support import captures
from support.change_rows import changes_of, decoded, through_json, with_errors
from support.generators.slot import RandomSlot, Slot
from support.oracles.reference_changes import Change
from support.tiers import full

T = 16385
UNKNOWN = (
    f"relation {T} has not been described before this insert: pass catalog= with its Relation message"  # no period
)


# -- a message that is missing ---------------------------------------------------------------------------------------


def assert_flagged_and_right(payloads: list[bytes], missing: int) -> None:
    """Check that both modes report a missing message, and that every good row is a row of the complete sequence."""
    whole = {(change["position"], change["relation_id"]): change for change in decoded(payloads)}
    positions = [at for at in range(len(payloads)) if at != missing]
    rest = [payloads[at] for at in positions]
    with pytest.raises((pgdecode.StreamDesync, pgdecode.TransactionDesync)):
        ChangeDecoder().decode(rest, positions)
    rows = with_errors(ChangeDecoder(mode="PERMISSIVE").decode(rest, positions))
    assert any(row["error"] for row in rows)
    for row in rows:
        error = row.pop("error")
        if error is None:
            assert row == whole[row["position"], row["relation_id"]]
        else:
            assert (row["commit_position"], row["committed"]) == (None, None)
    dropped = changes_of(ChangeDecoder(mode="DROPMALFORMED").decode(rest, positions))
    assert dropped == [row for row in rows if row["commit_position"] is not None]


def places_of(payloads: list[bytes], tag: bytes) -> list[int]:
    """Places of messages of a kind that are followed by messages that can show their absence."""
    last = max(at for at, payload in enumerate(payloads) if payload[:1] in b"BSbc")
    return [at for at, payload in enumerate(payloads) if payload[:1] == tag and 0 < at < last]


@pytest.mark.parametrize("tag", ["S", "B", *map(full, "ECbP")])
def test_a_missing_delimiter_of_a_random_sequence_is_reported(tag: str, rng: random.Random) -> None:
    payloads = RandomSlot(rng, 60, with_versions=False).payloads
    for missing in places_of(payloads, tag.encode()):
        assert_flagged_and_right(payloads, missing)


@pytest.mark.full
@pytest.mark.parametrize(("name", "tag"), [("18.twophase.v3", "S"), ("18.twophase.v3", "E"), ("18.txns.v2", "S")])
def test_a_missing_end_of_a_block_of_a_capture_is_reported(name: str, tag: str) -> None:
    payloads = captures.capture(name).payloads
    places = places_of(payloads, tag.encode())
    assert places
    for missing in places:
        assert_flagged_and_right(payloads, missing)


@pytest.mark.full
@pytest.mark.parametrize("tag", ["B", "C"])
def test_a_missing_end_of_a_transaction_of_a_capture_is_reported(tag: str) -> None:
    payloads = captures.capture("16.txns.v1").payloads
    for missing in places_of(payloads, tag.encode()):
        assert_flagged_and_right(payloads, missing)


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        pytest.param(
            "B R I B", "begin inside a transaction: the commit before it is missing", id="begin in transaction"
        ),
        pytest.param("B R I S", "stream_start inside a transaction: the commit before it is missing", id="stream"),
        pytest.param("B R C I", "insert outside a transaction: its begin is missing", id="row outside"),
        pytest.param("B R C T", "truncate outside a transaction: its begin is missing", id="truncate"),
        pytest.param("B R C C", "commit outside a transaction: its begin is missing", id="commit outside"),
        pytest.param("B R C P", "prepare outside a transaction: its begin_prepare is missing", id="prepare outside"),
        pytest.param("B R C E", "stream_stop outside a stream: its stream_start is missing", id="stop outside"),
        pytest.param("S B", "begin inside a stream: the stream_stop before it is missing", id="begin in stream"),
        pytest.param(
            "S c", "stream_commit inside a stream: the stream_stop before it is missing", id="commit in stream"
        ),
        pytest.param(
            "S s", "stream_start inside a stream: the stream_stop before it is missing", id="stream in stream"
        ),
    ],
)
def test_a_missing_message_is_reported_at_the_message_that_shows_it(messages: str, text: str) -> None:
    slot = Slot()
    slot.plain = 1, 8
    write = {
        "B": lambda: slot.begin(700),
        "R": lambda: slot.relation(T, ["a"]),
        "I": lambda: slot.insert(T, "1"),
        "T": lambda: slot.truncate(T),
        "C": slot.commit,
        "P": lambda: slot.prepare("g"),
        "S": lambda: slot.start(800, first=True),
        "s": lambda: slot.start(900, first=True),
        "E": slot.stop,
        "c": lambda: slot.stream_commit(800),
    }
    for letter in messages.split():
        write[letter]()
    row = len(slot.payloads) - 1
    with pytest.raises(pgdecode.DecodeError) as caught:
        ChangeDecoder().decode(slot.payloads)
    assert type(caught.value) is (pgdecode.StreamDesync if "stream:" in text else pgdecode.TransactionDesync)
    hint = "; are the payloads in slot order? if the connection was lost before this message, call reconnected()"
    assert str(caught.value) == f"row {row}, offset 0: {text}{hint}"
    assert caught.value.tag == slot.payloads[row][:1].decode()
    reported = with_errors(ChangeDecoder(mode="PERMISSIVE").decode(slot.payloads))[-1]
    assert (reported["position"], reported["error"]) == (row, caught.value.cell)


# -- payloads that begin in the middle -------------------------------------------------------------------------------


def test_rows_before_the_first_boundary_are_errors_or_left_out_with_their_transaction() -> None:
    slot = Slot()
    slot.relation(T, ["a"])
    slot.insert(T, "1")
    slot.truncate(T)
    slot.plain = 700, 0x2000
    slot.commit()
    with pytest.raises(pgdecode.TransactionDesync) as caught:
        ChangeDecoder().decode(slot.payloads)
    assert str(caught.value) == (
        "row 1, offset 0: insert outside a transaction: its begin is missing; payloads are not in slot order, or begin "
        "inside a transaction: sort them by their sequence number, pass state= of the previous decoder, or "
        'start="anywhere" to leave such transactions out'
    )
    decoder = ChangeDecoder(mode="PERMISSIVE")
    rows = with_errors(decoder.decode(slot.payloads))
    assert [(row["position"], row["error"].partition(" ")[0]) for row in rows] == [
        (at, "STATE_TRANSACTION") for at in (1, 2, 3)
    ]
    assert decoder.bad_rows == {"STATE_TRANSACTION": 3}
    decoder = ChangeDecoder(start="anywhere")
    assert (changes_of(decoder.decode(slot.payloads)), decoder.skipped) == ([], 1)


@pytest.mark.parametrize(("size", "step"), [full(1, 7), full(2, 5), (100, 3), full(100, 1)])
def test_a_sequence_may_begin_with_any_message_outside_a_stream(size: int, step: int) -> None:
    # The transaction without its beginning is left out; the relations are those sent before.
    payloads = captures.capture("18.txns.v3nostream").payloads
    whole = decoded(payloads)
    for start in range(1, len(payloads), step):
        rest = ChangeDecoder(catalog=RelationCatalog.from_messages(payloads[:start]), start="anywhere")
        positions = list(range(start, len(payloads)))
        found = []
        for at in range(0, len(positions), size):
            found += changes_of(rest.decode(payloads[start:][at : at + size], positions[at : at + size]))
        assert found == [change for change in whole if begin_of(payloads, change) >= start]
        ends = [payload[:1] for payload in payloads[start:] if payload[:1] in b"BC"]
        assert rest.skipped == (ends[:1] == [b"C"])


def begin_of(payloads: list[bytes], change: Change) -> int:
    """Where the transaction of a change began, if none was streamed or prepared."""
    return max(at for at in range(change["position"]) if payloads[at][:1] == b"B")


def test_rows_of_a_block_without_its_start_are_reported_and_the_rest_is_correct() -> None:
    slot = Slot()
    slot.relation(T, ["a"], xid=800)
    slot.insert(T, "1", xid=800)
    slot.stop()
    slot.stream_commit(800)
    slot.begin(900)
    slot.relation(T, ["b"])
    slot.insert(T, "2")
    slot.commit()
    with pytest.raises(pgdecode.TransactionDesync, match="row 1, offset 0: insert outside a transaction"):
        ChangeDecoder().decode(slot.payloads)
    rows = with_errors(ChangeDecoder(mode="PERMISSIVE").decode(slot.payloads))
    assert [(row["position"], row["error"] is None, row["new"]) for row in rows] == [
        (1, False, None),
        (3, False, None),
        (6, True, {"b": "2"}),
    ]


def test_a_relation_of_a_block_without_its_start_is_visible_only_to_its_stream() -> None:
    slot = Slot()
    slot.relation(T, ["aborted"], xid=800)
    slot.stop()
    slot.stream_abort(800)
    slot.begin(900)
    slot.insert(T, "2")
    slot.commit()
    catalog = RelationCatalog.from_messages(described("a"))
    assert [change["new"] for change in decoded(slot.payloads, catalog=catalog)] == [{"a": "2"}]


def test_a_stream_whose_first_blocks_were_not_captured_is_an_error_or_left_out() -> None:
    slot = Slot()
    slot.start(800)
    slot.relation(T, ["a"], xid=800)
    slot.insert(T, "1", xid=800)
    slot.stop()
    slot.stream_commit(800)
    with pytest.raises(pgdecode.TransactionDesync, match="row 0, offset 0: stream_start of an unknown transaction"):
        ChangeDecoder().decode(slot.payloads)
    rows = with_errors(ChangeDecoder(mode="PERMISSIVE").decode(slot.payloads))
    assert [(row["position"], row["error"] is None) for row in rows] == [(0, False), (4, False)]
    decoder = ChangeDecoder(start="anywhere")
    assert (changes_of(decoder.decode(slot.payloads)), decoder.skipped) == ([], 1)


# -- relations that were not described -------------------------------------------------------------------------------


def described(*columns: str) -> list[bytes]:
    slot = Slot()
    slot.relation(T, columns)
    return slot.payloads


def without_relation() -> list[bytes]:
    """A good row, and one of a relation that nothing describes."""
    slot = Slot()
    slot.begin(700)
    slot.insert(T, "1")
    slot.relation(T + 1, ["b"])
    slot.insert(T + 1, "2")
    slot.commit()
    return slot.payloads


def test_a_row_of_an_unknown_relation_is_an_error_that_suggests_a_catalog() -> None:
    with pytest.raises(pgdecode.UnknownRelation) as caught:
        ChangeDecoder().decode(without_relation())
    assert str(caught.value) == f"row 1, offset 1: {UNKNOWN}"
    assert (caught.value.relation, caught.value.tag, caught.value.row) == (T, "I", 1)


def test_a_row_of_an_unknown_relation_is_kept_in_permissive_mode_without_its_tuples() -> None:
    first, second = with_errors(ChangeDecoder(mode="PERMISSIVE").decode(without_relation()))
    assert first["error"] == f"REL_UNKNOWN at offset 1: {UNKNOWN}"
    kept = {name: value for name, value in first.items() if value is not None}
    assert {"position": 1, "commit_position": 4, "op": "insert", "xid": 700, "relation_id": T}.items() <= kept.items()
    assert {"old", "new", "unchanged", "namespace", "relation_name"}.isdisjoint(kept)
    assert (second["error"], second["new"]) == (None, {"b": "2"})


def test_a_row_of_an_unknown_relation_is_dropped_on_request() -> None:
    [change] = changes_of(ChangeDecoder(mode="DROPMALFORMED").decode(without_relation()))
    assert change["new"] == {"b": "2"}


def test_a_catalog_describes_relations_that_the_payloads_do_not() -> None:
    catalog = RelationCatalog.from_messages(described("a"))
    assert [change["new"] for change in decoded(without_relation(), catalog=catalog)] == [{"a": "1"}, {"b": "2"}]


def test_a_relation_of_the_payloads_replaces_that_of_the_catalog() -> None:
    slot = Slot()
    slot.begin(700)
    slot.insert(T, "1")
    slot.relation(T, ["new"])
    slot.insert(T, "2")
    slot.commit()
    catalog = RelationCatalog.from_messages(described("a"))
    assert [change["new"] for change in decoded(slot.payloads, catalog=catalog)] == [{"a": "1"}, {"new": "2"}]


# -- bad payloads ----------------------------------------------------------------------------------------------------


def good_and_bad() -> tuple[list[bytes], dict[int, tuple[str, str]]]:
    """Payloads and, by row, the error of each bad payload: its code and the text after it."""
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["a"])
    slot.insert(T, "1")
    slot.payloads.append(b"I")
    slot.insert(T, "1", "2")
    slot.payloads.append(b"Z")
    slot.insert(T, "3")
    slot.payloads.append(slot.payloads[2][:-1] + b"\xff")
    slot.payloads.append(slot.payloads[2][:-1])
    slot.commit()
    return slot.payloads, {
        3: ("TRUNCATED", "offset 1: insert relation_id needs 4 bytes, 0 left"),
        4: ("ARITY", "offset 6: insert new tuple has 2 columns, the relation has 1"),
        5: ("UNKNOWN_TAG", "offset 0: unknown message tag 0x5a 'Z'"),
        7: (
            "ENCODING",
            "offset 13: column 'a' has bytes that are not valid in the declared encoding (encoding=, default UTF8)",
        ),
        8: ("TRUNCATED", "offset 13: insert new column 0 needs 1 bytes, 0 left"),
    }


def test_bad_payloads_are_rows_with_errors_among_the_good_ones() -> None:
    payloads, bad = good_and_bad()
    rows = with_errors(ChangeDecoder(mode="PERMISSIVE").decode(payloads))
    assert {row["position"]: row["error"] for row in rows if row["error"]} == {
        at: f"{code} at {detail}" for at, (code, detail) in bad.items()
    }
    assert [row["new"] for row in rows if not row["error"]] == [{"a": "1"}, {"a": "3"}]
    # The transaction is known for a row that can be read in part.
    in_part = {row["position"]: row["op"] for row in rows if row["xid"] is not None}
    assert in_part == {2: "insert", 4: "insert", 6: "insert", 7: "insert"}
    assert [row["new"] for row in changes_of(ChangeDecoder(mode="DROPMALFORMED").decode(payloads))] == [
        {"a": "1"},
        {"a": "3"},
    ]


@pytest.mark.parametrize("bounds", [[], [1], [3], [2, 5, 9], [4, 4]], ids=str)
def test_an_error_names_the_row_of_the_call_whatever_the_chunks_and_batches(bounds: list[int]) -> None:
    payloads, bad = good_and_bad()
    for at, (_, detail) in bad.items():
        # Two good transactions before it, and no other bad payload.
        kept = [None if other in bad and other != at else payload for other, payload in enumerate(payloads)]
        cuts = [0, *bounds, len(kept)]
        chunks = [pa.array(kept[a:b], pa.binary()) for a, b in pairwise(cuts)]
        # A value is decoded when its transaction commits. By then, a payload of an earlier chunk has no row number.
        is_held = at in (4, 7) and any(at < bound for bound in bounds)
        for max_rows in (1, 2, 100):
            with pytest.raises(pgdecode.DecodeError) as caught:
                list(ChangeDecoder().decode_batches(pa.chunked_array(chunks), max_rows=max_rows))
            assert str(caught.value) == (detail if is_held else f"row {at}, {detail}")


def test_an_error_of_a_payload_from_an_earlier_call_names_no_row() -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["a"])
    slot.insert(T, "1", "2")
    decoder = ChangeDecoder()
    decoder.decode(slot.payloads)
    decoder = through_json(decoder)
    slot.payloads.clear()
    slot.commit()
    with pytest.raises(pgdecode.ArityMismatch) as caught:
        decoder.decode(slot.payloads)
    assert caught.value.row is None
    assert str(caught.value) == "offset 6: insert new tuple has 2 columns, the relation has 1"


@pytest.mark.parametrize("tag", ["R", "C", "S", "c", "K"])
def test_both_modes_agree_about_a_truncated_message_that_is_not_a_row(tag: str) -> None:
    slot = RandomSlot(random.Random(7), 60)
    at = next(at for at, payload in enumerate(slot.payloads) if payload[:1] == tag.encode() and at > 5)
    slot.payloads[at] = slot.payloads[at][:-1]
    with pytest.raises(pgdecode.DecodeError, match=f"row {at}, ") as caught:
        ChangeDecoder().decode(slot.payloads)
    rows = with_errors(ChangeDecoder(mode="PERMISSIVE").decode(slot.payloads))
    assert [row["error"] for row in rows if row["position"] == at] == [caught.value.cell]
