"""Bad Relation messages: no row is decoded with an older description of its relation."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from partitions.test_partitions import apart, bounds_of

import pgdecode
from pgdecode import ChangeDecoder, RelationCatalog, RelationVersion
from pgdecode.protocol.options import ChangeOptions
from support.change_rows import changes_of, permissive, seen, through_json, with_errors
from support.generators.slot import RandomSlot, Slot
from support.oracles import reference_changes

T = 16385
IN_DOUBT = f"REL_IN_DOUBT at offset 1: relation {T} is invalid at this insert: its last Relation message is an error"


def spoil(payload: bytes) -> bytes:
    """A Relation message without its last byte."""
    assert payload[:1] == b"R"
    return payload[:-1]


def described_badly(slot: Slot, columns: list[str], xid: int | None = None) -> None:
    slot.relation(T, columns, xid=xid)
    slot.payloads[-1] = spoil(slot.payloads[-1])


@pytest.fixture
def renamed() -> list[bytes]:
    """A column is renamed by a truncated Relation message, and later by a complete one."""
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["a"])
    slot.insert(T, "1")
    slot.commit()
    slot.begin(701)
    described_badly(slot, ["b"])
    slot.insert(T, "2")
    slot.truncate(T, T + 1)
    slot.commit()
    slot.begin(702)
    slot.insert(T, "3")
    slot.relation(T, ["b"])
    slot.insert(T, "4")
    slot.commit()
    return slot.payloads


def test_rows_after_a_bad_relation_message_are_errors_until_a_good_one(renamed: list[bytes]) -> None:
    rows = permissive(renamed)
    assert sorted(seen(rows), key=lambda row: row[0]) == [
        (2, {"a": "1"}),
        (5, "TRUNCATED"),
        (6, "REL_IN_DOUBT"),
        (7, "REL_IN_DOUBT"),
        (7, None),  # the other table of the truncate
        (10, "REL_IN_DOUBT"),
        (12, {"b": "4"}),
    ]
    reported = next(row for row in rows if row["position"] == 6)
    assert reported["error"] == IN_DOUBT
    assert (reported["op"], reported["relation_id"], reported["relation_name"], reported["new"]) == (
        "insert",
        T,
        None,
        None,
    )


def test_failfast_fails_at_the_relation_message(renamed: list[bytes]) -> None:
    with pytest.raises(pgdecode.TruncatedMessage, match="row 5, "):
        ChangeDecoder().decode(renamed)
    decoder = ChangeDecoder(mode="PERMISSIVE")
    decoder.decode(renamed[:9])
    later = ChangeDecoder(state=decoder.state)
    with pytest.raises(pgdecode.InvalidRelation) as caught:
        later.decode(renamed[9:])
    assert str(caught.value) == (
        f"row 1, offset 1: relation {T} is invalid at this insert: its last Relation message is an error"
    )
    assert isinstance(caught.value, pgdecode.UnknownRelation)
    assert (caught.value.tag, caught.value.relation) == ("I", T)


def test_dropping_them_leaves_the_other_rows(renamed: list[bytes]) -> None:
    rows = changes_of(ChangeDecoder(mode="DROPMALFORMED").decode(renamed))
    assert [(row["position"], row["new"]) for row in rows] == [(2, {"a": "1"}), (7, None), (12, {"b": "4"})]


def test_a_table_has_rows_of_an_invalid_relation_as_errors(renamed: list[bytes]) -> None:
    batch = ChangeDecoder(mode="PERMISSIVE").table(renamed, f"public.t{T}")
    rows = {row["_position"]: row for row in batch.to_pylist()}
    assert {at: bool(row["_error"]) for at, row in rows.items()} == {
        **{2: False, 5: True, 6: True},
        **{7: True, 10: True, 12: False},
    }
    assert {at: (row["a"], row["b"]) for at, row in rows.items() if not row["_error"]} == {
        2: ("1", None),
        12: (None, "4"),
    }


@pytest.mark.parametrize("last", [2**63 - 1, 2**63 - 2, 2**63 - 3, 2**63 - 4])
def test_an_invalid_relation_is_possible_at_the_last_positions(renamed: list[bytes], last: int) -> None:
    rows = permissive(renamed[:9])
    decoder = ChangeDecoder(mode="PERMISSIVE")
    found = with_errors(decoder.decode(renamed[:6], list(range(last - 5, last + 1))))
    assert [row["error"] for row in found] == [row["error"] for row in rows if row["position"] <= 5]
    state = through_json(decoder, mode="PERMISSIVE").state
    assert state == decoder.state


@pytest.mark.parametrize("cut", range(15))
def test_an_invalid_relation_stays_invalid_across_batches_and_json_states(renamed: list[bytes], cut: int) -> None:
    decoder = ChangeDecoder(mode="PERMISSIVE")
    rows = with_errors(decoder.decode(renamed[:cut]))
    rows += with_errors(through_json(decoder, mode="PERMISSIVE").decode(renamed[cut:]))
    by_place = sorted(rows, key=lambda row: (row["position"], row["relation_id"] or 0))
    whole = sorted(permissive(renamed), key=lambda row: (row["position"], row["relation_id"] or 0))
    assert by_place == whole


def test_runs_know_that_a_relation_is_invalid(renamed: list[bytes]) -> None:
    whole = sorted(permissive(renamed), key=lambda row: (row["position"], row["relation_id"] or 0))
    for bounds in ([], [5], [6], [7], [9], [10], [12], list(range(1, 14))):
        for size in (1, 100):
            assert apart(renamed, bounds, size, ChangeOptions("PERMISSIVE")) == whole


@pytest.mark.parametrize("end", ["commit", "prepare", "abort"])
def test_a_bad_relation_message_in_a_stream_affects_others_after_its_end(end: str) -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["a"])
    slot.commit()
    slot.start(800, first=True)
    described_badly(slot, ["b"], xid=800)
    slot.insert(T, "in its own stream", xid=800)
    slot.stop()
    slot.begin(701)
    slot.insert(T, "before the end of it")
    slot.commit()
    slot.start(900, first=True)
    slot.insert(T, "in another", xid=900)
    slot.stop()
    slot.stream_commit(900)
    {
        "commit": slot.stream_commit,
        "prepare": lambda xid: slot.stream_prepare(xid, "g"),
        "abort": slot.stream_abort,
    }[end](800)
    slot.begin(702)
    slot.insert(T, "after it")
    slot.commit()
    places = {row["position"]: row["error"] is None for row in permissive(slot.payloads)}
    own = {5: False} if end == "commit" else {}
    assert places == {4: False, **own, 8: True, 11: True, 16: end == "abort"}
    found, bad = reference_changes.permissive_changes(enumerate(slot.payloads))
    assert {change["position"] for change in found} == {at for at, good in places.items() if good}
    assert bad == {at for at, good in places.items() if not good}


def test_a_good_relation_message_outside_a_stream_does_not_replace_a_bad_one_inside() -> None:
    slot = Slot()
    slot.start(800, first=True)
    described_badly(slot, ["b"], xid=800)
    slot.stop()
    slot.begin(700)
    slot.relation(T, ["a"])
    slot.insert(T, "1")
    slot.commit()
    slot.start(800)
    slot.insert(T, "2", xid=800)
    slot.stop()
    slot.stream_commit(800)
    slot.begin(701)
    slot.insert(T, "3")
    slot.commit()
    # After the stream, the newer message applies, which is the one outside.
    assert seen(permissive(slot.payloads)) == [
        (1, "TRUNCATED"),
        (5, {"a": "1"}),
        (8, "REL_IN_DOUBT"),
        (12, {"a": "3"}),
    ]


def test_a_relation_message_that_contradicts_the_stream_state_is_invalid_everywhere() -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["a"])
    slot.commit()
    slot.start(800, first=True)
    slot.insert(T, "1", xid=800)
    slot.stop()
    # The start of the second block is missing.
    slot.relation(T, ["b"], xid=800)
    slot.stop()
    slot.start(800)
    slot.insert(T, "2", xid=800)
    slot.stop()
    slot.stream_commit(800)
    slot.begin(701)
    slot.insert(T, "3")
    slot.commit()
    assert seen(permissive(slot.payloads)) == [
        (6, "STATE_DESYNC"),
        (7, "STATE_DESYNC"),
        (4, {"a": "1"}),
        (9, "REL_IN_DOUBT"),
        (13, "REL_IN_DOUBT"),
    ]


def test_a_bad_relation_message_in_a_stream_that_began_before_the_input_affects_only_it() -> None:
    described = Slot()
    xid = 800
    described.relation(T, ["a"])
    described.relation(xid, ["z"])  # its OID is at the offset where a message outside a stream has its OID
    slot = Slot()
    described_badly(slot, ["b"], xid=xid)
    slot.stop()
    slot.begin(700)
    slot.insert(T, "1")
    slot.insert(xid, "2")
    slot.commit()
    slot.start(xid)
    slot.insert(T, "3", xid=xid)
    slot.stop()
    slot.stream_commit(xid)
    slot.begin(701)
    slot.insert(T, "4")
    slot.commit()
    catalog = RelationCatalog.from_messages(described.payloads)
    assert seen(permissive(slot.payloads, catalog=catalog)) == [
        (0, "TRUNCATED"),
        (3, {"a": "1"}),
        (4, {"z": "2"}),
        (6, "STATE_TRANSACTION"),
        (9, "STATE_TRANSACTION"),
        (11, "REL_IN_DOUBT"),
    ]


def test_a_message_too_short_for_its_oid_makes_no_relation_invalid() -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["a"])
    slot.payloads.append(slot.payloads[-1][:4])
    slot.insert(T, "1")
    slot.commit()
    assert seen(permissive(slot.payloads)) == [(2, "TRUNCATED"), (3, {"a": "1"})]


@given(st.randoms(use_true_random=False), st.integers(1, 30), st.integers(1, 12), st.integers(1, 200))
def test_random_bad_relation_messages_agree_with_the_reference_fold(
    rng: Any, n_steps: int, n_partitions: int, size: int
) -> None:
    payloads = RandomSlot(rng, n_steps).payloads
    for at, payload in enumerate(payloads):
        if payload[:1] == b"R" and rng.random() < 0.3:
            payloads[at] = spoil(payload)
    expected, bad = reference_changes.permissive_changes(enumerate(payloads))
    rows = permissive(payloads)
    good = [{key: row[key] for key in reference_changes.CHANGE_COLUMNS} for row in rows if row["error"] is None]
    assert good == expected
    assert {row["position"] for row in rows if row["error"]} == bad
    in_partitions = apart(payloads, bounds_of(rng, len(payloads), n_partitions), size, ChangeOptions("PERMISSIVE"))
    assert in_partitions == sorted(rows, key=lambda row: (row["position"], row["relation_id"] or 0))


# -- two columns of the same name ------------------------------------------------------------------------------------


def twice_named() -> list[bytes]:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["é", "b", "é"])
    slot.insert(T, "1", "2", "3")
    slot.commit()
    return slot.payloads


def test_a_relation_with_two_columns_of_the_same_name_is_an_error_and_so_are_its_rows() -> None:
    payloads = twice_named()
    # R, OID 4, 'public' 7, 't16385' 7, identity, count 2; 'é' 1 + 3 + 8; 'b' 1 + 2 + 8; flags.
    at = 1 + 4 + 7 + 7 + 1 + 2 + 12 + 11 + 1
    with pytest.raises(pgdecode.RepeatedColumn) as caught:
        ChangeDecoder().decode(payloads)
    assert str(caught.value) == f"row 1, offset {at}: name of column 2 is also the name of an earlier column"
    assert (caught.value.tag, caught.value.relation, caught.value.column) == ("R", T, 2)
    assert payloads[1][at : at + 3] == "é\0".encode()
    rows = permissive(payloads)
    assert [row["error"] for row in rows] == [
        f"REPEATED_COLUMN at offset {at}: name of column 2 is also the name of an earlier column",
        IN_DOUBT,
    ]


def test_names_that_differ_only_in_case_are_different() -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["a", "A"])
    slot.insert(T, "1", "2")
    slot.commit()
    assert seen(permissive(slot.payloads)) == [(2, {"a": "1", "A": "2"})]


def test_no_catalog_has_a_relation_with_two_columns_of_the_same_name() -> None:
    relation = pgdecode.decode(twice_named()[1])
    assert isinstance(relation, pgdecode.Relation)
    with pytest.raises(ValueError, match=f"relation {T} has two columns of the same name"):
        RelationCatalog([RelationVersion(relation)])
    with pytest.raises(pgdecode.RepeatedColumn):
        RelationCatalog.from_messages([relation])
    with pytest.raises(pgdecode.RepeatedColumn):
        RelationCatalog.from_messages(twice_named())
