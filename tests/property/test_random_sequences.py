"""Random sequences: ChangeDecoder, tables and snapshots give what the plain fold gives, whole and in pieces.

`make properties` runs them for long. The fold itself is held to what is known of the transactions beforehand.
"""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import pgdecode
from pgdecode import ChangeDecoder, RelationCatalog
from support.compare import rows_of
from support.generators.sequences import (
    assert_same,
    damaged,
    expected,
    outcome,
    per_property,
    random_cuts,
    random_reader,
    seeds,
    sizes,
)
from support.generators.workload import Reader, Workload
from support.oracles.reference_changes import DELIMITERS, STREAM_DESYNC, Change, Fold, Refused, continued

sessions = st.integers(1, 4)


def reported(changes: list[Change]) -> list[Any]:
    """Changes by what is known of them beforehand."""
    return [
        (c["xid"], c["op"], c["relation_name"], None if c["new"] is None else tuple(c["new"].values())) for c in changes
    ]


def known(reader: Reader) -> list[Any]:
    return [(xid, op, name, new) for xid, _, op, name, new in reader.workload.committed(reader.until)]


# -- the fold ----------------------------------------------------------------------------------------------------------


@per_property
@given(seeds, sizes, sessions)
def test_the_fold_gives_each_transaction_once_however_often_the_reader_connects(
    seed: int, n_steps: int, n_sessions: int
) -> None:
    reader = random_reader(seed, n_steps, n_sessions)
    fold = Fold(enumerate(reader.payloads), drop_duplicates=True, reconnects=reader.sessions)
    assert reported(fold.committed()) == known(reader)


@per_property
@given(seeds, sizes, sessions)
def test_without_being_told_of_reconnects_the_fold_refuses_or_is_right(
    seed: int, n_steps: int, n_sessions: int
) -> None:
    reader = random_reader(seed, n_steps, n_sessions)
    try:
        fold = Fold(enumerate(reader.payloads), drop_duplicates=True)
    except Refused:
        assert n_sessions > 1
        return
    assert reported(fold.committed()) == known(reader)


@per_property
@given(seeds, sizes, st.integers(0, 200))
def test_the_fold_leaves_out_whole_transactions_where_input_begins_anywhere(
    seed: int, n_steps: int, first: int
) -> None:
    reader = random_reader(seed, n_steps)
    whole = Fold(enumerate(reader.payloads)).committed()
    part = Fold(list(enumerate(reader.payloads))[first:], permissive=True, anywhere=True)
    if not part.begun:
        assert part.committed() == []
        return
    # Without a catalog, some rows have no relation.
    unknown = {position for position, code in part.errors() if code == "REL_UNKNOWN"}
    assert len(unknown) == len(part.errors())
    begins = {c["commit_position"]: min(d["position"] for d in whole if d["commit_position"] == c["commit_position"])
              for c in whole}  # fmt: skip
    found = {c["commit_position"] for c in part.committed()} | {
        c["commit_position"] for c in whole if c["position"] in unknown
    }
    # A transaction is given whole or not at all; whole if even its first row lies behind the cut and its begin too.
    for commit_position in found:
        assert begins[commit_position] >= first
    n_whole = sum(c["commit_position"] in found and c["position"] not in unknown for c in whole)
    assert len(part.committed()) <= n_whole


# -- ChangeDecoder -----------------------------------------------------------------------------------------------------


@pytest.mark.full
@per_property
@given(seeds, sizes, sessions, st.booleans())
def test_a_decoder_that_is_told_of_reconnects_gives_what_the_fold_gives(
    seed: int, n_steps: int, n_sessions: int, drop_duplicates: bool
) -> None:
    reader = random_reader(seed, n_steps, n_sessions)
    fold = Fold(enumerate(reader.payloads), drop_duplicates=drop_duplicates, reconnects=reader.sessions)
    wanted = expected(fold)
    for mode in ("FAILFAST", "PERMISSIVE"):
        options: dict[str, Any] = {"mode": mode, "drop_duplicates": drop_duplicates, "sessions": reader.sessions}
        assert_same(outcome(reader.payloads, **options), wanted)
        cuts = random_cuts(random.Random(seed), reader.payloads)
        assert_same(outcome(reader.payloads, cuts=cuts, **options), wanted)
        assert_same(outcome(reader.payloads, cuts=cuts, stored=True, **options), wanted, counts=False)


@pytest.mark.full
@per_property
@given(seeds, sizes, sessions, st.booleans())
def test_a_decoder_recognises_reconnects_where_the_fold_does(
    seed: int, n_steps: int, n_sessions: int, drop_duplicates: bool
) -> None:
    reader = random_reader(seed, n_steps, n_sessions)
    options: dict[str, Any] = {"drop_duplicates": drop_duplicates}
    try:
        Fold(enumerate(reader.payloads), is_counted=True, **options)
    except Refused:
        with pytest.raises(pgdecode.DecodeError):
            ChangeDecoder(**options).decode(reader.payloads)
    else:
        ChangeDecoder(**options).decode(reader.payloads)
    wanted = expected(Fold(enumerate(reader.payloads), permissive=True, **options))
    options["mode"] = "PERMISSIVE"
    assert_same(outcome(reader.payloads, **options), wanted)
    cuts = random_cuts(random.Random(seed), reader.payloads)
    assert_same(outcome(reader.payloads, cuts=cuts, stored=True, **options), wanted, counts=False)


@per_property
@given(seeds, sizes)
def test_with_what_was_not_committed_a_decoder_gives_what_the_fold_gives(seed: int, n_steps: int) -> None:
    reader = random_reader(seed, n_steps, 1)
    wanted = expected(Fold(enumerate(reader.payloads)), include_uncommitted=True)
    assert_same(outcome(reader.payloads, include_uncommitted=True), wanted)
    cuts = random_cuts(random.Random(seed), reader.payloads)
    found = outcome(reader.payloads, cuts=cuts, stored=True, include_uncommitted=True)
    assert_same(found, wanted, counts=False)


@per_property
@given(seeds, sizes, st.floats(0, 1), st.sampled_from(["transaction", "anywhere"]), st.booleans())
def test_input_that_begins_anywhere_gives_what_the_fold_gives(
    seed: int, n_steps: int, share: float, start: str, with_catalog: bool
) -> None:
    payloads = random_reader(seed, n_steps).payloads
    first = int(share * len(payloads))
    before, rest = payloads[:first], payloads[first:]
    relations = [item.message for item in Fold(enumerate(before)).relations if counts_at_the_end(item)]
    fold = Fold(
        enumerate(rest, first),
        permissive=True,
        anywhere=start == "anywhere",
        known=relations if with_catalog else (),
    )
    options: dict[str, Any] = {"mode": "PERMISSIVE", "start": start, "first": first}
    if with_catalog:
        options["catalog"] = RelationCatalog.from_messages(before)
    if not fold.begun:
        return  # without a boundary, only the structure of a message tells whether it stands in a block
    wanted = expected(fold)
    assert_same(outcome(rest, **options), wanted)
    # A piece without a boundary may not tell a row of a block from another: only the position of an error is certain.
    boundary = next((at for at, payload in enumerate(rest) if payload[0] in b"BCSEcAbPKrp"), len(rest))
    cuts = [at for at in random_cuts(random.Random(seed), rest) if at > boundary]
    assert_same(outcome(rest, cuts=cuts, **options), wanted)
    assert_same(outcome(rest, cuts=cuts, stored=True, **options), wanted, counts=False)


def counts_at_the_end(item: Any) -> bool:
    transaction = item.transaction
    return transaction is None or not transaction.streamed or transaction.settled_position is not None


@per_property
@given(seeds, sizes, sessions, st.sampled_from(["transaction", "anywhere"]), st.booleans())
def test_damaged_sequences_have_one_verdict_in_one_call_and_in_pieces(
    seed: int, n_steps: int, n_sessions: int, start: str, drop_duplicates: bool
) -> None:
    rng = random.Random(seed)
    payloads = damaged(rng, random_reader(seed, n_steps, n_sessions).payloads)
    options: dict[str, Any] = {"mode": "PERMISSIVE", "drop_duplicates": drop_duplicates}
    if start != "transaction":
        options["start"] = start
    whole = outcome(payloads, **options)
    cuts = random_cuts(rng, payloads)
    boundary = next((at for at, payload in enumerate(payloads) if payload[0] in b"BCSEcAbPKrp"), len(payloads))
    cuts = [at for at in cuts if at > boundary]
    assert_same(outcome(payloads, cuts=cuts, **options), whole)
    assert_same(outcome(payloads, cuts=cuts, stored=True, **options), whole, counts=False)


@per_property
@given(seeds, sizes, st.sampled_from(["transaction", "anywhere"]), st.booleans())
def test_damaged_sequences_are_judged_as_the_fold_judges_them(
    seed: int, n_steps: int, start: str, drop_duplicates: bool
) -> None:
    payloads = damaged(random.Random(seed), random_reader(seed, n_steps).payloads)
    fold = Fold(enumerate(payloads), permissive=True, anywhere=start == "anywhere", drop_duplicates=drop_duplicates)
    if fold.stray_relations or not fold.begun:
        return  # of which transaction a Relation message is that contradicts the stream state, the fold does not say
    first_end = next((at for at, item in enumerate(payloads) if item and item[0] in DELIMITERS), len(payloads))
    if any(at < first_end and code == STREAM_DESYNC for at, code in fold.errors()):
        return  # where one contradicts, the decoder refuses all before the first boundary that can be read both ways
    options: dict[str, Any] = {"mode": "PERMISSIVE", "drop_duplicates": drop_duplicates}
    if start != "transaction":
        options["start"] = start
    assert_same(outcome(payloads, **options), expected(fold))


# -- tables ------------------------------------------------------------------------------------------------------------


@per_property
@example(218, 77, 1)
@given(seeds, sizes, sessions)
def test_a_table_has_the_columns_and_the_rows_that_the_fold_gives(seed: int, n_steps: int, n_sessions: int) -> None:
    reader = random_reader(seed, n_steps, n_sessions)
    try:
        fold = Fold(enumerate(reader.payloads), drop_duplicates=True)
    except Refused:
        return
    changes = fold.committed()
    sent = {(row.position, relation_id): item for row in fold.rows for relation_id, item in row.relations.items()}
    for table in Workload.TABLES:
        names, last_names = fold.column_names(table), fold.last_names(table)
        if not names:
            continue
        batch = ChangeDecoder(drop_duplicates=True).table(reader.payloads, table)
        assert batch.schema.names[batch.schema.names.index("_error") + 1 :] == names
        found = [
            (row["_op"], row["_position"], row["_commit_position"], {name: row[name] for name in names})
            for row in rows_of(batch)
        ]
        expected_rows = []
        for c in changes:
            if c["relation_id"] == table:
                last, values = last_names.get(sent[c["position"], table], {}), c["new"] or c["old"] or {}
                row = dict.fromkeys(names) | {last[name]: value for name, value in values.items()}
                expected_rows.append((c["op"], c["position"], c["commit_position"], row))
        assert found == expected_rows


def replayed(fold: Fold, table: int) -> dict[int, dict[str, Any]]:
    """The rows of a table in the end, by the position of the change that wrote each last: what was sent of it then."""
    keys = {
        (row.position, relation_id): sent.message["columns"][0]["name"]
        for row in fold.rows
        for relation_id, sent in row.relations.items()
        if sent is not None
    }
    rows: dict[Any, tuple[int, dict[str, Any]]] = {}
    for change in fold.committed():
        if change["relation_id"] != table:
            continue
        if change["op"] == "truncate":
            rows = {}
            continue
        key = keys[change["position"], table]
        if change["op"] != "insert":
            rows.pop((change["old"] or change["new"])[key], None)
        if change["op"] != "delete":
            rows[change["new"][key]] = change["position"], change["new"]
    return dict(rows.values())


def under_last_names(values: dict[str, Any], versions: list[dict[str, Any]]) -> dict[str, Any]:
    """Name the values of a row, which were sent under the names of one version, as the last version does."""
    shapes = [[column["name"] for column in version["columns"]] for version in versions]
    first = max(place for place, shape in enumerate(shapes) if list(values) == shape)
    for before, after in pairwise(versions[first:]):
        kept = continued(before, after)
        values = {kept[name]: value for name, value in values.items() if name in kept}
        # As many places as columns, so that the names of the next version are found.
        values = {column["name"]: values.get(column["name"]) for column in after["columns"]}
    return values


def snapshot_unless_ambiguous(payloads: list[bytes], name: str) -> pa.Table | None:
    """A snapshot; None where the key was renamed, and no column behind it has kept its name."""
    try:
        return pgdecode.snapshot(payloads, name, drop_duplicates=True)
    except ValueError as error:
        if "the changed row is not found by its replica identity" in str(error):
            return None
        raise


@per_property
@given(seeds, sizes, sessions)
def test_a_snapshot_has_the_rows_that_the_fold_leaves(seed: int, n_steps: int, n_sessions: int) -> None:
    reader = random_reader(seed, n_steps, n_sessions)
    try:
        fold = Fold(enumerate(reader.payloads), drop_duplicates=True)
    except Refused:
        return
    for table in Workload.TABLES:
        versions = fold.versions(table)
        if not versions:
            continue
        found = snapshot_unless_ambiguous(reader.payloads, f"public.{versions[-1]['name']}")
        if found is None:
            keys = {column["name"] for version in versions for column in version["columns"] if column["flags"]}
            assert len(keys) > 1
            continue
        names = [column["name"] for column in versions[-1]["columns"]]
        assert found.column_names[found.column_names.index("_unknown") + 1 :] == names
        rows = replayed(fold, table)
        assert set(found["_position"].to_pylist()) == set(rows)
        for row in found.to_pylist():
            sent = under_last_names(rows[row["_position"]], versions)
            assert {n: row[n] for n in names if n not in row["_unknown"]} == {
                n: sent[n] for n in names if n not in row["_unknown"]
            }
            assert all(row[name] is None for name in row["_unknown"])
            if len(versions) == 1:
                assert row["_unknown"] == []


@per_property
@given(seeds, sizes)
def test_the_rows_that_the_fold_leaves_are_those_of_the_database(seed: int, n_steps: int) -> None:
    reader = random_reader(seed, n_steps, ends=True)
    fold = Fold(enumerate(reader.payloads))
    for table in Workload.TABLES:
        keys = [next(iter(new.values())) for new in replayed(fold, table).values()]
        assert sorted(keys) == sorted(reader.workload.rows[table])
