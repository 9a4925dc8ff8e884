"""Copies: the rows that a table has at an LSN, as a transaction with the xid 0 whose commit LSN is that LSN."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given

import pgdecode
from pgdecode import ChangeDecoder
from pgdecode.changes.replication_state import ReplicationState
from pgdecode.partitions.control_messages import control_messages
from pgdecode.partitions.partition_index import Partition, index_partitions
from pgdecode.protocol.boundaries import ALWAYS_NEEDED, BEGIN_COMMIT, needed
from support.change_rows import changes_of, decoded
from support.generators.sequences import (
    assert_same,
    damaged,
    expected,
    on_both,
    outcome,
    per_property,
    random_cuts,
    random_reader,
    seeds,
    sizes,
    with_copies,
)
from support.generators.slots import (
    STOP,
    begin,
    begin_prepare,
    commit,
    commit_prepared,
    insert,
    message,
    prepare,
    relation,
    start,
    stream_commit,
    truncate,
)
from support.oracles.reference_changes import Fold

X = 160


def copy(*ids: str, relation_id: int = 1, lsn: int = X) -> tuple[bytes, ...]:
    """A table `t1` or `t2` with some rows."""
    described = relation("id* v", relation_id=relation_id, name=f"t{relation_id}")
    rows = (insert(item, "copied", relation_id=relation_id) for item in ids)
    return (begin(0, lsn), message(1, lsn=lsn), described, truncate(relation_id), *rows, commit(lsn))


def transaction(xid: int, lsn: int, *ids: str) -> tuple[bytes, ...]:
    return (begin(xid, lsn), relation("id* v", name="t1"), *(insert(item, "x") for item in ids), commit(lsn))


STREAM = (start(21, first=True), relation("id* v", xid=21, name="t1"), insert("6", "x", xid=21), STOP)
PREPARED = (begin_prepare(30, "g", 150), insert("7", "x"), prepare(30, "g", 150))
BEFORE = (*transaction(7, 120, "1"), *STREAM, *PREPARED)
COPIES = (*copy("1", "2"), *copy("5", relation_id=2), *copy(relation_id=3))
# A transaction and others with the LSN of the copies, then the outcomes of those that were open.
AFTER = (*transaction(8, X, "3"), start(21, first=False), STOP, commit_prepared(30, "g", 190), stream_commit(21, 200))
ALL = (*BEFORE, *COPIES, *AFTER)


def test_copies_at_one_lsn_are_transactions_between_the_commits_before_and_after_it() -> None:
    wanted = on_both(*ALL)
    assert wanted.n_undecided == 0
    assert [(row["xid"], row["op"], (row["new"] or {}).get("id")) for row in wanted.changes] == [
        (7, "insert", "1"),
        *((0, "truncate", None), (0, "insert", "1"), (0, "insert", "2")),
        *((0, "truncate", None), (0, "insert", "5"), (0, "truncate", None)),
        *((8, "insert", "3"), (30, "insert", "7"), (21, "insert", "6")),
    ]


@pytest.mark.parametrize("drop_duplicates", [False, True])
def test_counted_positions_have_no_fault(drop_duplicates: bool) -> None:
    decoder = ChangeDecoder(drop_duplicates=drop_duplicates)
    assert changes_of(decoder.decode(ALL)) == on_both(*ALL).changes


def test_a_snapshot_begins_with_the_copy_and_goes_on_with_later_changes() -> None:
    rows = pgdecode.snapshot(ALL, "public.t1").select(["id", "v"]).to_pylist()
    assert sorted((row["id"], row["v"]) for row in rows) == [
        ("1", "copied"), ("2", "copied"), ("3", "x"), ("6", "x"), ("7", "x")
    ]  # fmt: skip
    again = (*ALL, *copy("9", lsn=300))
    assert pgdecode.snapshot(again, "public.t1")["id"].to_pylist() == ["9"]


def test_copies_that_are_delivered_again_with_what_follows_them_are_duplicates() -> None:
    once = on_both(*ALL, drop_duplicates=True).changes
    decoder = ChangeDecoder(drop_duplicates=True)
    found = changes_of(decoder.decode(ALL))
    decoder.reconnected()
    assert found + changes_of(decoder.decode([*STREAM, *COPIES, *AFTER])) == once
    assert on_both(*ALL, *COPIES, *transaction(8, X, "3"), drop_duplicates=True).changes == once


def test_a_copy_after_a_commit_at_its_lsn_is_out_of_order() -> None:
    with pytest.raises(pgdecode.CommitOrder, match=r"commit LSN 0/A0 at position \d+ does not come after 0/C8"):
        ChangeDecoder().decode([*ALL, *copy("1")])


def test_a_copy_without_its_commit_is_an_error_and_not_a_reconnect() -> None:
    for following in (copy("5", relation_id=2), transaction(8, X, "3")):
        with pytest.raises(pgdecode.TransactionDesync, match="begin inside a transaction"):
            ChangeDecoder().decode([*BEFORE, *copy("1", "2")[:-1], *following])


@pytest.mark.parametrize("bound", range(1, len(ALL)))
def test_a_partition_may_begin_anywhere_in_a_copy(bound: int) -> None:
    control = [at for at, payload in enumerate(ALL) if payload[0] in ALWAYS_NEEDED + BEGIN_COMMIT]
    state = _state_at(ALL, control, bound)
    decoder = ChangeDecoder()
    decoder.decode(ALL[:bound], range(bound))
    wanted = decoder.state
    assert (state.last_lsn, state.last_lsn_position, state.n_undecided) == (
        wanted["last_lsn"], wanted["last_lsn_position"], decoder.n_undecided
    )  # fmt: skip


def _state_at(payloads: Any, control: list[int], bound: int) -> ReplicationState:
    partitions = [Partition(a, b - 1) for a, b in pairwise((0, bound, len(payloads)))]
    chosen = []
    for item in partitions:
        inside = [at for at in control if item.first <= at <= item.last]
        chosen += [inside[at] for at in needed([payloads[at] for at in inside])]
    index = index_partitions(
        pa.array([payloads[at] for at in chosen], pa.binary()), pa.array(chosen, pa.int64()), partitions, in_full=True
    )
    return index.starts[1]


def test_an_index_keeps_the_commit_before_a_copy() -> None:
    whole = [payload for lsn in (100, 110, 120) for payload in (begin(lsn, lsn), commit(lsn))]
    bare = [begin(0, 130), commit(130)]
    assert needed([*whole, *bare]) == [0, 1, 4, 5, 6, 7]
    assert needed([begin(0, 90), commit(90), *whole]) == [0, 1, 2, 3, 6, 7]
    found = control_messages(pa.chunked_array([pa.array([*whole, *bare], pa.binary())]))
    assert found.rows.to_pylist() == [0, 1, 4, 5, 6, 7]


@pytest.mark.full
@per_property
@given(seeds, sizes)
def test_copies_in_random_sequences_are_what_the_fold_says(seed: int, n_steps: int) -> None:
    rng = random.Random(seed)
    payloads = with_copies(rng, random_reader(seed, n_steps).payloads)
    wanted = expected(Fold(enumerate(payloads)))
    for drop_duplicates in (False, True):
        assert_same(outcome(payloads, drop_duplicates=drop_duplicates), wanted)
        cuts = random_cuts(rng, payloads)
        assert_same(outcome(payloads, cuts=cuts, stored=True, drop_duplicates=drop_duplicates), wanted, counts=False)
    assert decoded(payloads) == wanted.changes  # with counted positions


@per_property
@given(seeds, sizes)
def test_damaged_sequences_with_copies_are_judged_as_the_fold_judges_them(seed: int, n_steps: int) -> None:
    rng = random.Random(seed)
    payloads = damaged(rng, with_copies(rng, random_reader(seed, n_steps).payloads))
    for drop_duplicates in (False, True):
        fold = Fold(enumerate(payloads), permissive=True, drop_duplicates=drop_duplicates)
        if fold.stray_relations:
            continue
        options: dict[str, Any] = {"mode": "PERMISSIVE", "drop_duplicates": drop_duplicates}
        assert_same(outcome(payloads, **options), expected(fold))
