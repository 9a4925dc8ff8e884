"""Checks of the oracles against the server: its own output for the same WAL, and its tables at the end."""

from __future__ import annotations

import pytest

from support import captures
from support.oracles import expected_changes, reference_changes, testdecoding
from support.oracles.expected_changes import BINARY, TEXT


@pytest.mark.parametrize("name", captures.NAMES)
def test_the_reference_reads_the_changes_that_test_decoding_prints(name: str) -> None:
    changes = expected_changes.as_text(name)
    assert expected_changes.differences_from_test_decoding(name, changes) == []


@pytest.mark.parametrize("name", TEXT)
def test_the_references_changes_replayed_are_the_tables_that_the_server_held(name: str) -> None:
    changes = expected_changes.as_text(name)
    assert expected_changes.differences_from_state(name, changes) == []


@pytest.mark.parametrize("name", BINARY)
def test_a_binary_capture_has_the_changes_of_its_twin_in_text(name: str) -> None:
    def shape(change: reference_changes.Change) -> list[object]:
        apart = {"position", "commit_position", "old", "new"}
        tuples = [
            None if values is None else [(column, value is None) for column, value in values.items()]
            for values in (change["old"], change["new"])
        ]
        return [*tuples, *(value for column, value in change.items() if column not in apart)]

    twin = expected_changes.text_twin(name)
    for all_of_them in (False, True):
        ours = expected_changes.as_sent(name, all_of_them)
        assert [shape(change) for change in ours] == [
            shape(change) for change in expected_changes.as_sent(twin, all_of_them)
        ]


@pytest.mark.parametrize("name", BINARY)
def test_a_cell_sent_as_text_in_a_binary_capture_is_the_text_of_its_twin(name: str) -> None:
    as_text = expected_changes.as_text(name)
    for change, text in zip(expected_changes.as_sent(name), as_text, strict=True):
        for part in ("old", "new"):
            sent = change[part] or {}
            assert {c: v for c, v in sent.items() if not isinstance(v, bytes)} == {
                c: v for c, v in (text[part] or {}).items() if not isinstance(sent[c], bytes)
            }


@pytest.mark.parametrize("name", captures.NAMES)
def test_the_references_changes_come_in_the_order_in_which_to_apply_them(name: str) -> None:
    changes = expected_changes.as_sent(name, True)
    assert all(list(change) == list(reference_changes.CHANGE_COLUMNS) for change in changes)
    n_committed = len(expected_changes.as_sent(name))
    committed, others = changes[:n_committed], changes[n_committed:]
    assert {change["committed"] for change in committed} <= {True}
    assert True not in {change["committed"] for change in others}
    keys = [(change["commit_position"], change["position"]) for change in committed]
    assert keys == sorted(keys)
    assert [change["position"] for change in others] == sorted(change["position"] for change in others)


def test_every_shape_of_a_printed_change_is_parsed() -> None:
    # Each line as test_decoding of PostgreSQL 18 prints it.
    text = (
        "BEGIN 7\n"
        'table "Odd Schema"."T ""able": UPDATE: old-key: "Key"[integer]:1 new-tuple: "Key"[integer]:-2 v[text]:\'\'\n'
        "table public.a: INSERT: b[boolean]:true c[bit varying]:B'01' d[integer[]]:'{1,2}'"
        " e[\"char\"]:'it''s\nBEGIN 9' f[text]:null g[text]:unchanged-toast-datum h[text]:'null'\n"
        "table public.a, public.b: TRUNCATE: restart_seqs cascade\n"
        "table public.zero: INSERT:\n"
        "table public.nokey: DELETE: (no-tuple-data)\n"
        "message: transactional: 1 prefix: p, sz: 4 content:a\nbc\n"
        "PREPARE TRANSACTION 'it''s', txid 7\n"
        "BEGIN 8\nCOMMIT 8\n"
        "COMMIT PREPARED 'it''s', txid 7\n"
    )
    [transaction] = testdecoding.parse(text)
    assert (transaction.xid, transaction.gid) == (7, "it's")
    assert transaction.changes == [
        testdecoding.TextChange('Odd Schema.T "able', "update", old=[("Key", "1")], new=[("Key", "-2"), ("v", "")]),
        testdecoding.TextChange(
            "public.a",
            "insert",
            new=[
                *(("b", "t"), ("c", "01"), ("d", "{1,2}"), ("e", "it's\nBEGIN 9"), ("f", None)),
                *(("g", testdecoding.UNCHANGED), ("h", "null")),
            ],
        ),
        testdecoding.TextChange("public.a", "truncate"),
        testdecoding.TextChange("public.b", "truncate"),
        testdecoding.TextChange("public.zero", "insert", new=[]),
        testdecoding.TextChange("public.nokey", "delete"),
    ]


@pytest.mark.parametrize("part", ["position", "xid", "relation_name", "op", "old", "new"])
def test_a_wrong_change_is_seen_by_the_comparison_with_test_decoding(part: str) -> None:
    name = "18.txns.v1"
    changes = expected_changes.as_text(name)
    at = next(i for i, change in enumerate(changes) if change["op"] == "update" and change["old"])
    spoilt = {
        "position": [*changes[:at], changes[at + 1], changes[at], *changes[at + 2 :]],
        # A transaction has the xid of its first change.
        "xid": [{**changes[0], "xid": 1}, *changes[1:]],
        "relation_name": [*changes[:at], {**changes[at], "relation_name": "other"}, *changes[at + 1 :]],
        "op": [*changes[:at], {**changes[at], "op": "delete"}, *changes[at + 1 :]],
        "old": [*changes[:at], {**changes[at], "old": None}, *changes[at + 1 :]],
        "new": [*changes[:at], {**changes[at], "new": {**changes[at]["new"], "id": "999"}}, *changes[at + 1 :]],
    }[part]
    assert expected_changes.differences_from_test_decoding(name, spoilt) != []


@pytest.mark.parametrize("op", ["insert", "update", "delete"])
def test_a_missing_change_is_seen_by_the_replay(op: str) -> None:
    name = "18.shop.v1"
    changes = expected_changes.as_text(name)
    at = max(i for i, change in enumerate(changes) if change["op"] == op)
    assert expected_changes.differences_from_state(name, changes[:at] + changes[at + 1 :]) != []
