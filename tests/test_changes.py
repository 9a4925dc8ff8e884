"""A ChangeDecoder gives what was committed: the reference's changes, which are the server's own, of every capture."""

from __future__ import annotations

import json
import threading
from typing import Any

import captures
import expected_changes
import pyarrow as pa
import pytest
import reference_changes
from change_rows import changes_of, decoded, with_errors
from expected_changes import BINARY, TEXT
from hypothesis import given
from hypothesis import strategies as st
from samples import MOMENT
from slot import UNCHANGED, RandomSlot, Slot

from pgdecode.change_maps import CHANGES
from pgdecode.changes import ChangeDecoder

# Enums and composites, which a stream describes by their names alone.
TYPES = {
    "public.order_state": "enum",
    "public.colour": "enum",
    "public.mood": "enum",
    "public._mood": "enum[]",
    "public.pair": "record",
}
NOT_FROM_BINARY = {"c_money"}  # it needs the server's lc_monetary

T = 16385  # OID of a table


# -- captures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("include_uncommitted", [False, True])
@pytest.mark.parametrize("name", TEXT)
def test_the_changes_of_a_capture_are_those_of_the_reference(name: str, include_uncommitted: bool) -> None:
    changes = decoded(captures.capture(name).column, include_uncommitted=include_uncommitted)
    assert changes == expected_changes.as_text(name, include_uncommitted)


@pytest.mark.parametrize("name", [name for name in BINARY if ".types." not in name])
def test_the_changes_of_a_binary_capture_are_those_of_its_twin_in_text(name: str) -> None:
    changes = decoded(captures.capture(name).column, types=TYPES, include_uncommitted=True)
    assert changes == expected_changes.as_text(name, True)


@pytest.mark.parametrize("name", [name for name in BINARY if ".types." in name])
def test_binary_values_of_all_types_are_those_of_the_twin_in_text_but_for_money(name: str) -> None:
    decoder = ChangeDecoder(mode="PERMISSIVE", types=TYPES)
    changes = with_errors(decoder.decode(captures.capture(name).column))
    expected = expected_changes.as_text(name)
    assert len(changes) == len(expected)
    for change, wanted in zip(changes, expected, strict=True):
        assert (change.pop("error") is not None) == any(
            (wanted[part] or {}).get(column) is not None for part in ("old", "new") for column in NOT_FROM_BINARY
        )
        assert without_columns(change, NOT_FROM_BINARY) == without_columns(wanted, NOT_FROM_BINARY)


def without_columns(change: dict[str, Any], columns: set[str]) -> dict[str, Any]:
    tuples = {part: {c: v for c, v in (change[part] or {}).items() if c not in columns} for part in ("old", "new")}
    return {**change, **tuples}


@pytest.mark.parametrize("name", TEXT)
def test_the_changes_of_a_capture_are_what_test_decoding_prints(name: str) -> None:
    changes = decoded(captures.capture(name).column)
    assert expected_changes.differences_from_test_decoding(name, changes) == []


@pytest.mark.parametrize("name", [name for name in TEXT if ".streams." not in name] + ["18.streams.v4"])
def test_the_changes_of_a_capture_replayed_are_the_tables_that_the_server_held(name: str) -> None:
    changes = decoded(captures.capture(name).column)
    assert expected_changes.differences_from_state(name, changes) == []


@given(st.randoms(use_true_random=False), st.integers(1, 25), st.booleans())
def test_the_changes_of_random_transactions_are_those_of_the_reference(
    rng: Any, n_steps: int, include_uncommitted: bool
) -> None:
    payloads = RandomSlot(rng, n_steps).payloads
    expected = reference_changes.changes(enumerate(payloads), include_uncommitted=include_uncommitted)
    assert decoded(payloads, include_uncommitted=include_uncommitted) == expected


def test_many_tables_inside_and_outside_streams_are_told_apart() -> None:
    slot = Slot()
    slot.begin(700)
    for table in range(T, T + 300):
        slot.relation(table, [f"plain{table}"])
    slot.commit()
    for xid, tables in ((800, range(T, T + 300, 2)), (900, range(T, T + 300, 3))):
        slot.start(xid, first=True)
        for table in tables:
            slot.relation(table, [f"of{xid}_{table}"], xid=xid)
        slot.stop()
    for xid in (800, 900, 800):
        slot.begin(1000)
        slot.insert(T + 6, "1")
        slot.commit()
        slot.start(xid)
        for table in range(T, T + 300):
            slot.insert(table, "1", xid=xid)
        slot.stop()
    slot.stream_commit(900)
    slot.begin(1001)
    for table in range(T, T + 300):
        slot.insert(table, "1")
    slot.commit()
    slot.stream_commit(800)
    assert decoded(slot.payloads) == reference_changes.changes(enumerate(slot.payloads))


# -- what is handed over ---------------------------------------------------------------------------------------------

STREAMS = "18.streams.v2"


def sliced(column: pa.Array) -> pa.Array:
    framed = pa.concat_arrays([pa.array([b"?"], column.type), column, pa.array([b"?"], column.type)])
    return framed.slice(1, len(column))


@pytest.mark.parametrize(
    "as_input",
    [
        pytest.param(lambda column: column.to_pylist(), id="list"),
        pytest.param(lambda column: iter(column.to_pylist()), id="iterator"),
        pytest.param(lambda column: column.cast(pa.large_binary()), id="large_binary"),
        pytest.param(lambda column: column.cast(pa.binary_view()), id="binary_view"),
        pytest.param(lambda column: column.dictionary_encode(), id="dictionary"),
        pytest.param(sliced, id="sliced"),
        pytest.param(lambda column: sliced(column.cast(pa.large_binary())), id="sliced large_binary"),
        pytest.param(lambda column: pa.chunked_array([column]), id="one chunk"),
        pytest.param(
            lambda column: pa.chunked_array([column[:1], column[1:1], column[1:700], column[700:]]), id="chunks"
        ),
        pytest.param(
            lambda column: pa.chunked_array([column[:700].cast(pa.binary_view()), column[700:].cast(pa.binary_view())]),
            id="binary_view chunks",
        ),
    ],
)
def test_payloads_come_in_any_layout(as_input: Any) -> None:
    assert decoded(as_input(captures.capture(STREAMS).column)) == expected_changes.as_text(STREAMS)


def test_calls_may_have_payloads_in_different_layouts() -> None:
    column = captures.capture(STREAMS).column
    decoder = ChangeDecoder()
    changes = []
    types = [pa.binary(), pa.large_binary(), pa.binary_view()]
    for number, start in enumerate(range(0, len(column), 500)):
        changes += changes_of(decoder.decode(column[start : start + 500].cast(types[number % 3])))
    assert changes == expected_changes.as_text(STREAMS)


@pytest.mark.parametrize("size", [1, 3, 44, 45, 1000])
def test_batches_hold_at_most_max_rows_and_all_the_changes(size: int) -> None:
    column = captures.capture("18.txns.v2").column
    batches = list(ChangeDecoder().decode_batches(column, max_rows=size))  # 45 changes
    assert [len(batch) for batch in batches[:-1]] == [size] * (45 // size - (45 % size == 0))
    assert 0 < len(batches[-1]) <= size
    assert pa.concat_batches(batches).equals(ChangeDecoder().decode(column))


def test_no_payloads_give_no_changes_and_change_nothing() -> None:
    decoder = ChangeDecoder()
    before = decoder.state
    for nothing in ([], pa.array([], pa.binary()), pa.chunked_array([], pa.binary())):
        batch = decoder.decode(nothing)
        assert batch.schema == CHANGES
        assert len(batch) == 0
    assert decoder.undecided().equals(decoder.decode([]))
    assert decoder.state == before


def test_null_payloads_are_passed_over_and_count_as_positions() -> None:
    payloads = captures.capture("18.txns.v2").payloads
    holes = [None, *(item for payload in payloads for item in (payload, None))]
    found = decoded(holes)
    expected = expected_changes.as_text("18.txns.v2")
    positions = {"position", "commit_position"}
    assert [{k: v * 2 + 1 if k in positions else v for k, v in change.items()} for change in expected] == found


def test_positions_may_have_gaps_and_be_of_any_integer_type() -> None:
    column = captures.capture(STREAMS).column
    positions = pa.array([10 + 7 * i for i in range(len(column))])
    expected = reference_changes.changes(zip(positions.to_pylist(), column.to_pylist(), strict=True))
    for given_as in (positions, positions.cast(pa.uint64()), positions.to_pylist(), pa.chunked_array([positions])):
        assert decoded(column, given_as) == expected


def test_without_positions_payloads_are_counted_on_from_call_to_call() -> None:
    slot = one_row()
    decoder = ChangeDecoder()
    assert [row["position"] for row in changes_of(decoder.decode(slot.payloads))] == [2]
    decoder.decode([b"E"[:0] or None], [99])
    assert [row["position"] for row in changes_of(decoder.decode(slot.payloads))] == [102]


@pytest.mark.parametrize(
    ("position", "error", "text"),
    [
        pytest.param([3, 4, 4, 5], ValueError, "row 2: position 4 does not come after 4", id="repeated"),
        pytest.param([3, 4, 5, 1], ValueError, "row 3: position 1 does not come after 5", id="descending"),
        pytest.param([1, 2, 3], ValueError, "position has 3 values for 4 payloads", id="too few"),
        pytest.param([1, 2, 3, None], ValueError, "position has 1 nulls", id="null"),
        pytest.param([1.0, 2.0, 3.0, 4.0], TypeError, "position is a column of integers, not double", id="floats"),
        pytest.param(["1", "2", "3", "4"], TypeError, "position is a column of integers, not string", id="texts"),
        pytest.param([-1, 0, 1, 2], ValueError, "position starts at -1", id="negative"),
        pytest.param([1, 2, 3, 2**63], ValueError, "position is past int64", id="past int64"),
        pytest.param([1, 2, 3, 2**70], ValueError, "position is past int64", id="past uint64"),
    ],
)
def test_positions_that_are_no_order_are_refused(position: list[Any], error: type[Exception], text: str) -> None:
    decoder = ChangeDecoder()
    before = decoder.state
    with pytest.raises(error, match=text):
        decoder.decode(one_row().payloads, position)
    assert decoder.state == before


def test_a_position_before_those_of_an_earlier_call_is_refused() -> None:
    decoder = ChangeDecoder()
    decoder.decode(one_row().payloads, [5, 6, 7, 8])
    with pytest.raises(ValueError, match="position starts at 8, but the payloads before reach to 8"):
        decoder.decode([b"E"], [8])


def test_the_last_position_that_int64_has_can_be_used() -> None:
    decoder = ChangeDecoder()
    last = 2**63 - 1
    assert len(decoder.decode(one_row().payloads, [1, 2, 3, last])) == 1
    assert len(decoder.decode([])) == 0
    with pytest.raises(ValueError, match=f"no position is left for 1 payloads after {last}"):
        decoder.decode([b"E"])


@pytest.mark.parametrize(
    ("options", "error"),
    [
        pytest.param({"mode": "failfast"}, ValueError, id="mode"),
        pytest.param({"limits": {}}, TypeError, id="limits"),
        pytest.param({"state": {}}, ValueError, id="state"),
    ],
)
def test_options_that_are_none_are_refused(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        ChangeDecoder(**options)


def test_a_batch_of_no_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="max_rows is at least 1, not 0"):
        list(ChangeDecoder().decode_batches([], max_rows=0))


def test_decoders_in_threads_do_not_disturb_each_other() -> None:
    name = "18.shop.v1"
    column = captures.capture(name).column
    wrong: list[object] = []

    def work(step: int) -> None:
        decoder = ChangeDecoder()
        changes = [
            change
            for start in range(0, len(column), step)
            for change in changes_of(decoder.decode(column[start : start + step]))
        ]
        if changes != expected_changes.as_text(name):
            wrong.append(step)

    expected_changes.as_text(name)
    threads = [threading.Thread(target=work, args=(step,)) for step in (97, 193, 389, 5000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# -- tuples ----------------------------------------------------------------------------------------------------------


def one_row(relation_id: int = T, xid: int = 700, columns: tuple[str, ...] = ("a",)) -> Slot:
    slot = Slot()
    slot.begin(xid)
    slot.relation(relation_id, columns)
    slot.insert(relation_id, *"1" * len(columns))
    slot.commit()
    return slot


def only_change(slot: Slot) -> dict[str, Any]:
    [change] = decoded(slot.payloads)
    assert [change] == reference_changes.changes(enumerate(slot.payloads))
    return change


def of_table_with_key() -> Slot:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["id", "v", "big"], keys=["id"])
    return slot


def test_an_insert_is_said_in_full() -> None:
    slot = one_row()
    lsn = slot.plain[1] if slot.plain else 0
    row = ChangeDecoder().decode(slot.payloads, [10, 20, 30, 40]).to_pylist()[0]
    assert row == {
        "position": 30,
        "commit_position": 40,
        "op": "insert",
        "xid": 700,
        "subxid": None,
        "commit_lsn": lsn,
        "commit_timestamp": MOMENT,
        "gid": None,
        "relation_id": T,
        "namespace": "public",
        "relation_name": f"t{T}",
        "old_type": None,
        "old": None,
        "new": [("a", "1")],
        "unchanged": [],
        "committed": True,
        "error": None,
    }


def test_a_null_outside_the_key_of_a_key_tuple_was_not_sent() -> None:
    slot = of_table_with_key()
    slot.delete(T, "1", None, None, old_type="K")
    slot.commit()
    assert only_change(slot)["old"] == {"id": "1"}


def test_a_null_in_an_old_row_is_a_null() -> None:
    slot = of_table_with_key()
    slot.delete(T, "1", None, "x", old_type="O")
    slot.commit()
    assert only_change(slot)["old"] == {"id": "1", "v": None, "big": "x"}


@pytest.mark.parametrize(
    ("old", "old_type", "new", "unchanged"),
    [
        pytest.param(None, None, {"id": "1", "v": "2"}, ["big"], id="no old tuple"),
        pytest.param(["9", None, None], "K", {"id": "1", "v": "2"}, ["big"], id="a key without it"),
        pytest.param(["9", None, "old"], "O", {"id": "1", "v": "2", "big": "old"}, [], id="an old row with it"),
        pytest.param(["9", None, None], "O", {"id": "1", "v": "2"}, ["big"], id="an old row where it is null"),
        pytest.param(["9", None, UNCHANGED], "O", {"id": "1", "v": "2"}, ["big"], id="an old row without it"),
        pytest.param(["9", None, ""], "O", {"id": "1", "v": "2", "big": ""}, [], id="an old row where it is empty"),
    ],
)
def test_an_unchanged_value_is_filled_from_the_old_tuple_or_named(
    old: list[str] | None, old_type: str | None, new: dict[str, str], unchanged: list[str]
) -> None:
    slot = of_table_with_key()
    slot.update(T, "1", "2", UNCHANGED, old=old, old_type=old_type)
    slot.commit()
    change = only_change(slot)
    assert (change["new"], change["unchanged"]) == (new, unchanged)


def test_an_unchanged_key_is_filled_from_the_key_tuple() -> None:
    slot = of_table_with_key()
    slot.update(T, UNCHANGED, "2", "3", old=["1", None, None], old_type="K")
    slot.commit()
    assert only_change(slot)["new"] == {"id": "1", "v": "2", "big": "3"}


def test_an_insert_may_name_unchanged_values() -> None:
    slot = of_table_with_key()
    slot.insert(T, "1", UNCHANGED, None)
    slot.commit()
    change = only_change(slot)
    assert (change["new"], change["unchanged"]) == ({"id": "1", "big": None}, ["v"])


def test_a_row_of_a_table_without_columns_has_empty_maps() -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, [])
    slot.insert(T)
    slot.update(T, old=[], old_type="O")
    slot.delete(T)
    slot.commit()
    changes = decoded(slot.payloads)
    assert changes == reference_changes.changes(enumerate(slot.payloads))
    assert [(change["old"], change["new"]) for change in changes] == [(None, {}), ({}, {}), ({}, None)]


def test_a_relation_of_pg_catalog_has_its_namespace_written_out() -> None:
    # On the wire pg_catalog is an empty name: logicalrep_write_namespace, replication/logical/proto.c.
    slot = one_row()
    slot.payloads[1] = slot.payloads[1].replace(b"public\0", b"\0")
    assert [change["namespace"] for change in decoded(slot.payloads)] == ["pg_catalog"]


# -- truncates and messages ------------------------------------------------------------------------------------------


def test_a_truncate_gives_a_change_for_each_of_its_tables_in_their_order() -> None:
    slot = one_row()
    slot.begin(701)
    slot.relation(T + 1, ["b"])
    slot.truncate(T + 1, T)
    slot.commit()
    changes = decoded(slot.payloads)
    assert changes == reference_changes.changes(enumerate(slot.payloads))
    assert [(c["op"], c["relation_id"], c["position"]) for c in changes[1:]] == [
        ("truncate", T + 1, 6),
        ("truncate", T, 6),
    ]


def test_a_truncate_of_a_table_that_was_not_described_has_its_oid_and_no_names() -> None:
    slot = Slot()
    slot.begin(700)
    slot.truncate(T)
    slot.commit()
    change = only_change(slot)
    assert (change["relation_id"], change["namespace"], change["relation_name"]) == (T, None, None)


def test_a_truncate_of_many_tables_is_not_held_once_for_each() -> None:
    n_tables = 2000
    slot = Slot()
    slot.begin(700)
    slot.truncate(*range(T, T + n_tables))
    decoder = ChangeDecoder()
    decoder.decode(slot.payloads)
    assert len(json.dumps(decoder.state)) < 100 * n_tables  # the payload is of 4 bytes a table
    slot.payloads.clear()
    slot.commit()
    assert decoder.decode(slot.payloads)["relation_id"].to_pylist() == list(range(T, T + n_tables))


def test_a_truncate_of_no_table_gives_nothing() -> None:
    slot = Slot()
    slot.begin(700)
    slot.truncate()
    slot.commit()
    assert decoded(slot.payloads) == []


def test_a_truncate_in_a_stream_is_undone_with_its_sub_transaction() -> None:
    slot = one_row()
    slot.start(800, first=True)
    slot.truncate(T, xid=801)
    slot.truncate(T, xid=800)
    slot.stop()
    slot.stream_abort(800, 801)
    slot.stream_commit(800)
    for include_uncommitted in (False, True):
        changes = decoded(slot.payloads, include_uncommitted=include_uncommitted)
        assert changes == reference_changes.changes(enumerate(slot.payloads), include_uncommitted=include_uncommitted)
    assert [(c["position"], c["subxid"], c["committed"]) for c in changes] == [
        (2, None, True),
        (6, None, True),
        (5, 801, False),
    ]


@pytest.mark.parametrize("flags", [0, 1])
def test_logical_messages_anywhere_change_nothing(flags: int) -> None:
    slot = Slot()
    slot.message(flags=0)
    slot.begin(700)
    slot.relation(T, ["a"])
    slot.message(flags=flags)
    slot.insert(T, "1")
    slot.commit()
    slot.message(flags=0)
    slot.start(800, first=True)
    slot.insert(T, "2", xid=800)
    slot.message(flags=flags, xid=800)
    slot.stop()
    slot.message(flags=0)
    slot.stream_commit(800)
    changes = decoded(slot.payloads)
    assert changes == reference_changes.changes(enumerate(slot.payloads))
    assert [change["xid"] for change in changes] == [700, 800]


# -- outcomes --------------------------------------------------------------------------------------------------------


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
def test_a_prepared_transaction_is_what_its_gid_becomes(
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


def test_the_outcome_of_an_unknown_gid_or_stream_is_passed_over() -> None:
    slot = one_row()
    slot.commit_prepared(800, "nobody")
    slot.rollback_prepared(801, "nobody")
    slot.stream_commit(802)
    slot.stream_abort(803)
    slot.stream_abort(803, 804)
    slot.stream_prepare(805, "h")
    slot.commit_prepared(805, "h")
    assert len(decoded(slot.payloads, include_uncommitted=True)) == 1


def test_undecided_gives_what_waits_and_takes_nothing_away() -> None:
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


def test_undecided_tells_what_a_sub_transaction_has_undone_where_that_is_wanted() -> None:
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
