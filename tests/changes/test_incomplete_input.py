"""Input that begins inside a transaction, dropped rows, and empty payloads: every loss is reported."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

import pytest
from changes.test_transaction_rules import AFTER, block_of

import pgdecode
from pgdecode import ChangeDecoder, RelationCatalog
from pgdecode.changes.record_batches import code_of
from support.change_rows import changes_of, permissive, seen, through_json, with_errors
from support.generators.slots import STOP, begin, commit, commit_prepared, insert, prepare, relation, start

T1 = (begin(7), relation("id*"), insert("1"), insert("2"), insert("3"), commit(40))
CATALOG = RelationCatalog.from_messages(T1)


def values(rows: list[dict[str, Any]]) -> list[list[str | None]]:
    return [list(row["new"].values()) for row in rows]


def anywhere(**options: Any) -> ChangeDecoder:
    return ChangeDecoder(start="anywhere", **options)


def test_a_transaction_of_three_inserts_cut_after_two_gives_no_committed_row_in_either_input() -> None:
    first, second = T1[:4], (*T1[4:], *AFTER)
    decoder = ChangeDecoder()
    assert changes_of(decoder.decode(first)) == []
    assert decoder.n_undecided == 1
    rows = permissive(list(second), catalog=CATALOG)
    assert sorted(seen(rows), key=itemgetter(0)) == [
        (0, "STATE_TRANSACTION"),
        (1, "STATE_TRANSACTION"),
        (4, {"id": "good"}),
    ]
    with pytest.raises(pgdecode.TransactionDesync) as caught:
        ChangeDecoder(catalog=CATALOG).decode(second)
    assert (caught.value.row, caught.value.tag) == (0, "I")


def test_the_second_input_has_the_whole_transaction_if_it_continues_the_state_of_the_first() -> None:
    decoder = ChangeDecoder()
    decoder.decode(T1[:4])
    assert values(changes_of(through_json(decoder).decode(T1[4:]))) == [["1"], ["2"], ["3"]]


def test_the_second_input_leaves_out_the_transaction_with_start_anywhere() -> None:
    decoder = anywhere(catalog=CATALOG)
    assert values(changes_of(decoder.decode([*T1[4:], *AFTER]))) == [["good"]]
    assert (decoder.skipped, decoder.n_undecided) == (1, 0)


def test_a_table_and_a_snapshot_follow_the_same_rule() -> None:
    second = [*T1[4:], *AFTER]
    for decode in (
        lambda **options: ChangeDecoder(catalog=CATALOG, **options).table(second, "public.t"),
        lambda **options: pgdecode.snapshot(second, "public.t", catalog=CATALOG, **options),
    ):
        with pytest.raises(pgdecode.TransactionDesync):
            decode()
        assert decode(start="anywhere")["id"].to_pylist() == ["good"]
    found = pgdecode.snapshot(second, "public.t", catalog=CATALOG, mode="DROPMALFORMED")
    assert found["id"].to_pylist() == ["good"]


def test_rows_of_a_block_of_an_unknown_stream_are_not_separate_errors() -> None:
    rows = permissive([*AFTER, *block_of(7, "1", "2", "3")])
    assert sorted(seen(rows), key=itemgetter(0)) == [(2, {"id": "good"}), (4, "STATE_TRANSACTION")]


def test_start_has_two_values() -> None:
    with pytest.raises(ValueError, match="start"):
        ChangeDecoder(start="somewhere")


# -- dropped rows ---------------------------------------------------------------------------------------------------


def test_dropped_rows_are_counted_by_the_code_of_their_error() -> None:
    payloads = [insert("0"), *AFTER[:3], b"Z", insert("1", "2"), AFTER[3], commit(60)]
    counts = {"STATE_TRANSACTION": 2, "UNKNOWN_TAG": 1, "ARITY": 1}
    for mode in ("PERMISSIVE", "DROPMALFORMED"):
        decoder = ChangeDecoder(mode=mode)
        n_rows = len(decoder.decode(payloads))
        assert n_rows == (5 if mode == "PERMISSIVE" else 1)
        assert decoder.bad_rows == counts


def test_failfast_counts_nothing() -> None:
    decoder = ChangeDecoder()
    with pytest.raises(pgdecode.DecodeError):
        decoder.decode([commit(60)])
    assert decoder.bad_rows == {}


# -- empty payloads -------------------------------------------------------------------------------------------------


def test_an_empty_payload_is_a_null_row_of_the_envelope() -> None:
    batch = pgdecode.decode_messages([AFTER[0], b"", None, STOP])
    assert batch["kind"].to_pylist() == ["begin", None, None, "stream_stop"]
    assert all(batch[name][1].as_py() is None for name in batch.schema.names)
    with pytest.raises(pgdecode.EmptyPayload):
        pgdecode.decode_messages([b""], empty="error")


def test_an_empty_payload_in_a_snapshot_is_ignored_or_an_error() -> None:
    payloads = [*AFTER[:2], b"", *AFTER[2:]]
    assert pgdecode.snapshot(payloads, "public.t")["id"].to_pylist() == ["good"]
    with pytest.raises(pgdecode.EmptyPayload):
        pgdecode.snapshot(payloads, "public.t", empty="error")


def test_a_prepare_inside_a_block_is_an_error_and_its_commit_is_not_counted_as_well() -> None:
    head = (begin(6), commit(30), start(7, first=True), insert("1", xid=7))
    decoder = anywhere(mode="PERMISSIVE")
    rows = with_errors(decoder.decode([*head, prepare(8, "g"), commit_prepared(8, "g", 40), *AFTER]))
    assert [(row["position"], code_of(row["error"])) for row in rows if row["error"]] == [(4, "STATE_DESYNC")]
    assert decoder.skipped == 0
