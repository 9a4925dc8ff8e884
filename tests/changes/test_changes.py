"""A ChangeDecoder returns the committed changes: those of the reference and of the server, for every capture."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgdecode.changes.change_decoder import ChangeDecoder
from support import captures
from support.change_rows import decoded, with_errors
from support.generators.samples import MOMENT
from support.generators.slot import RandomSlot, Slot, one_row
from support.generators.slots import UNCHANGED
from support.oracles import expected_changes, reference_changes
from support.oracles.expected_changes import BINARY, TEXT
from support.tiers import full

# Enums and composites, of which a Type message gives only the name.
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


@pytest.mark.parametrize("include_uncommitted", [full(False), True])
@pytest.mark.parametrize("name", TEXT)
def test_the_changes_of_a_capture_equal_those_of_the_reference(name: str, include_uncommitted: bool) -> None:
    changes = decoded(captures.capture(name).column, include_uncommitted=include_uncommitted)
    assert changes == expected_changes.as_text(name, include_uncommitted)


@pytest.mark.parametrize("name", [name for name in BINARY if ".types." not in name])
def test_the_changes_of_a_binary_capture_equal_those_of_its_text_twin(name: str) -> None:
    changes = decoded(captures.capture(name).column, types=TYPES, include_uncommitted=True)
    assert changes == expected_changes.as_text(name, True)


@pytest.mark.parametrize("name", [name for name in BINARY if ".types." in name])
def test_binary_values_of_all_types_except_money_equal_those_of_the_text_twin(name: str) -> None:
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
def test_the_changes_of_a_capture_equal_those_of_test_decoding(name: str) -> None:
    changes = decoded(captures.capture(name).column)
    assert expected_changes.differences_from_test_decoding(name, changes) == []


@pytest.mark.parametrize("name", [name for name in TEXT if ".streams." not in name] + ["18.streams.v4"])
def test_replaying_the_changes_of_a_capture_gives_the_tables_of_the_server(name: str) -> None:
    changes = decoded(captures.capture(name).column)
    assert expected_changes.differences_from_state(name, changes) == []


@given(st.randoms(use_true_random=False), st.integers(1, 25), st.booleans())
def test_the_changes_of_random_transactions_equal_those_of_the_reference(
    rng: Any, n_steps: int, include_uncommitted: bool
) -> None:
    payloads = RandomSlot(rng, n_steps).payloads
    expected = reference_changes.changes(enumerate(payloads), include_uncommitted=include_uncommitted)
    assert decoded(payloads, include_uncommitted=include_uncommitted) == expected


def test_many_tables_inside_and_outside_streams_are_kept_apart() -> None:
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


# -- tuples ----------------------------------------------------------------------------------------------------------


def only_change(slot: Slot) -> dict[str, Any]:
    [change] = decoded(slot.payloads)
    assert [change] == reference_changes.changes(enumerate(slot.payloads))
    return change


def of_table_with_key() -> Slot:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["id", "v", "big"], keys=["id"])
    return slot


def test_all_columns_of_an_insert() -> None:
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
def test_an_unchanged_value_is_filled_from_the_old_tuple_or_listed(
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


def test_an_insert_may_have_unchanged_values() -> None:
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


@pytest.mark.parametrize("letter", ["a", "é", "\U0001f40d"])
def test_values_of_all_short_lengths_are_kept_anywhere_in_a_row(letter: str) -> None:
    slot = of_table_with_key()
    values = [letter * n for n in (*range(40), 255, 256, 257, 1000)] + [None]
    for value in values:
        slot.insert(T, value, "1", value)
        slot.update(T, "1", value, "", old=None, old_type=None)
        slot.delete(T, value, "1", None)
    slot.truncate(T)
    slot.insert(T, "last", None, letter)
    slot.commit()
    changes = decoded(slot.payloads)
    assert changes == reference_changes.changes(enumerate(slot.payloads))
    assert [change["new"]["big"] for change in changes[0 : 3 * len(values) : 3]] == values


def test_a_bad_value_between_good_rows_is_null_alone() -> None:
    slot = of_table_with_key()
    for value in ("1", "a\0b", "2"):
        slot.insert(T, value, "x", "y")
    slot.commit()
    changes = ChangeDecoder(mode="PERMISSIVE").decode(slot.payloads).to_pylist()
    rows = [dict(change["new"]) for change in changes]
    assert rows == [{"id": item, "v": "x", "big": "y"} for item in ("1", None, "2")]
    assert [change["error"] is None for change in changes] == [True, False, True]


def test_an_empty_namespace_becomes_pg_catalog() -> None:
    # On the wire pg_catalog is an empty name: logicalrep_write_namespace, replication/logical/proto.c.
    slot = one_row()
    slot.payloads[1] = slot.payloads[1].replace(b"public\0", b"\0")
    assert [change["namespace"] for change in decoded(slot.payloads)] == ["pg_catalog"]


@pytest.mark.parametrize("behind", [b"", b"n" * 20], ids=["last column", "nulls behind it"])
def test_a_binary_int4_has_its_digits_and_one_of_another_length_is_a_fault(behind: bytes) -> None:
    slot = Slot()
    slot.begin(700)
    # 23 is the OID of int4 in pg_type.
    columns = [f"c{i}" for i in range(2 + len(behind))]
    slot.relation(T, columns, types=[23] * len(columns))
    head = b"I" + struct.pack(">IcH", T, b"N", len(columns))
    numbers = [0, 9, 10, 99, 100, 99999, 12345678, 99999999, 100000000, 2**31 - 1, -1, -(2**31)]
    for number in numbers:
        cell = b"b" + struct.pack(">ii", 4, number)
        slot.payloads.append(head + cell + cell + behind)
    short = b"b" + struct.pack(">i", 3) + bytes(3)
    slot.payloads.append(head + cell + short + behind)
    slot.commit()
    changes = ChangeDecoder(mode="PERMISSIVE").decode(slot.payloads).to_pylist()
    assert [dict(change["new"])["c1"] for change in changes[: len(numbers)]] == [str(number) for number in numbers]
    assert [change["error"] is None for change in changes] == [True] * len(numbers) + [False]


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


def test_a_truncate_of_an_undescribed_table_has_its_oid_and_no_names() -> None:
    slot = Slot()
    slot.begin(700)
    slot.truncate(T)
    slot.commit()
    change = only_change(slot)
    assert (change["relation_id"], change["namespace"], change["relation_name"]) == (T, None, None)


def test_a_truncate_of_many_tables_is_buffered_once() -> None:
    n_tables = 2000
    slot = Slot()
    slot.begin(700)
    slot.truncate(*range(T, T + n_tables))
    decoder = ChangeDecoder()
    decoder.decode(slot.payloads)
    assert len(json.dumps(decoder.state)) < 100 * n_tables  # the payload has 4 bytes per table
    slot.payloads.clear()
    slot.commit()
    assert decoder.decode(slot.payloads)["relation_id"].to_pylist() == list(range(T, T + n_tables))


def test_a_truncate_of_no_table_gives_no_change() -> None:
    slot = Slot()
    slot.begin(700)
    slot.truncate()
    slot.commit()
    assert decoded(slot.payloads) == []


def test_blocks_of_one_stream_that_follow_each_other_equal_those_in_calls_of_their_own() -> None:
    slot = Slot()
    for xid in (700, 800):
        slot.start(xid, first=True)
        slot.relation(T, ["id", "v", "big"], keys=["id"], xid=xid)
        slot.insert(T, "1", "a", None, xid=xid)
        slot.stop()
    for n in range(200):
        # Most blocks go on with the stream of the one before them.
        xid = 700 if n % 7 else 800
        slot.start(xid)
        slot.insert(T, str(n), "b", None, xid=xid + n % 3)
        slot.stop()
        if n % 50 == 49:
            slot.stream_abort(xid, xid + 1)
    slot.stream_commit(700)
    whole, single = ChangeDecoder(), ChangeDecoder()
    changes = whole.decode(slot.payloads)
    pieces = [single.decode([payload]) for payload in slot.payloads]
    assert changes.num_rows > 100
    assert changes.to_pylist() == [change for piece in pieces for change in piece.to_pylist()]
    assert decoded(slot.payloads) == reference_changes.changes(enumerate(slot.payloads))
    blocks = [[item["block_position"] for item in decoder.state["streamed"]] for decoder in (whole, single)]
    assert blocks[0] == blocks[1] != []
    table = ChangeDecoder().table(slot.payloads, f"public.t{T}")
    assert table["_position"].equals(changes["position"])


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
