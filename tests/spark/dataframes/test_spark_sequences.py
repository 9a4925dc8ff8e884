"""Random and broken sequences on Spark: `changes`, tables and snapshots give the same as the reference.

Many sequences are sources of one DataFrame, so that all of them cost one job.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from changes.test_transaction_rules import AFTER, HEADLESS
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from relations.test_relation_scopes import OLDER_AND_NEWER, PREPARED, T1

import pgdecode
from pgdecode import ChangeDecoder
from spark_udfs import changes, snapshot, table_changes
from support.generators.sequences import Error, damaged, random_reader, spread, with_copies
from support.generators.slots import STOP, begin, commit, insert, relation, rollback_prepared, start
from support.generators.workload import Workload
from support.oracles.reference_changes import CHANGE_COLUMNS, Change, Fold
from support.tiers import long

pytest_plugins = ["support.spark_session"]
pytestmark = pytest.mark.full

N = 20  # sequences in one DataFrame
Found = dict[str, tuple[list[Change], list[Error]]]


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divide even short sequences into several ranges."""
    monkeypatch.setattr("spark_udfs.dataframes.control_index._ROWS_PER_RANGE", 25)


def frame(
    spark: SparkSession, sequences: dict[str, Sequence[bytes]], sessions: dict[str, list[int]] | None = None
) -> DataFrame:
    """Sequences as sources of one DataFrame, with the number of each payload's session."""
    sources, positions, payloads = zip(*spread(list(sequences.items())), strict=True)
    columns = {"server": sources, "seq": pa.array(positions, pa.int64()), "data": pa.array(payloads, pa.binary())}
    if sessions is not None:
        columns["session"] = pa.array(
            [sum(first <= at for first in sessions[source]) for source, at in zip(sources, positions, strict=True)]
        )
    return spark.createDataFrame(pa.table(columns))


def found(df: DataFrame) -> Found:
    """The committed changes of each source in order, and its errors."""
    rows = df.toArrow()
    rows = rows.set_column(
        rows.schema.get_field_index("commit_timestamp"),
        "commit_timestamp",
        rows["commit_timestamp"].cast(pa.timestamp("us", "UTC")).cast(pa.int64()),
    )
    by_source: Found = defaultdict(lambda: ([], []))
    for row in rows.to_pylist():
        good, errors = by_source[row["server"]]
        if row["error"]:
            errors.append((row["position"], row["error"].split()[0]))
        else:
            for part in ("old", "new"):
                row[part] = None if row[part] is None else dict(row[part])
            good.append({name: row[name] for name in CHANGE_COLUMNS})
    for good, errors in by_source.values():
        good.sort(key=lambda row: (row["commit_position"], row["position"], row["relation_id"]))
        errors.sort()
    return dict(by_source)


def expected(folds: dict[str, Fold]) -> Found:
    by_source = {}
    for source, fold in folds.items():
        good, errors = fold.results()
        if good or errors:
            good.sort(key=lambda row: (row["commit_position"], row["position"], row["relation_id"]))
            by_source[source] = good, errors
    return by_source


def assert_same(ours: Found, wanted: Found) -> None:
    assert {source: errors for source, (_, errors) in ours.items()} == {
        source: errors for source, (_, errors) in wanted.items()
    }
    for source, (good, _) in wanted.items():
        assert ours[source][0] == good, source


@pytest.mark.parametrize(("n_partitions", "mode"), [long(1, "PERMISSIVE"), long(3, "FAILFAST"), (7, "PERMISSIVE")])
def test_valid_sequences_give_the_references_changes_in_any_number_of_partitions(
    spark: SparkSession, rng: random.Random, n_partitions: int, mode: str
) -> None:
    sequences = {f"{n}": random_reader(rng.getrandbits(40), rng.randrange(1, 80)).payloads for n in range(N)}
    sequences |= {f"{n} with copies": with_copies(rng, sequences[f"{n}"]) for n in range(0, N, 2)}
    wanted = expected({name: Fold(enumerate(payloads)) for name, payloads in sequences.items()})
    df = frame(spark, sequences).repartition(n_partitions)
    assert_same(found(changes(df, source="server", mode=mode)), wanted)


@pytest.mark.parametrize("n_partitions", [long(1), 7])
def test_sequences_of_several_announced_sessions_give_the_references_changes(
    spark: SparkSession, rng: random.Random, n_partitions: int
) -> None:
    readers = {f"{n}": random_reader(rng.getrandbits(40), rng.randrange(1, 80), rng.randrange(2, 5)) for n in range(N)}
    folds = {name: Fold(enumerate(reader.payloads), reconnects=reader.sessions) for name, reader in readers.items()}
    df = frame(
        spark,
        {name: reader.payloads for name, reader in readers.items()},
        {name: reader.sessions for name, reader in readers.items()},
    )
    df = df.repartition(n_partitions)
    assert_same(found(changes(df, source="server", session="session")), expected(folds))


@pytest.mark.parametrize(
    ("n_partitions", "start"),
    [
        long(1, "anywhere"),
        (3, "transaction"),
        long(7, "anywhere"),
    ],
)
def test_damaged_and_cut_sequences_give_what_one_decoder_gives(
    spark: SparkSession, rng: random.Random, n_partitions: int, start: str
) -> None:
    sequences: dict[str, Sequence[bytes]] = {}
    for n in range(N):
        payloads = random_reader(rng.getrandbits(40), rng.randrange(1, 80), rng.randrange(1, 3)).payloads
        payloads = damaged(rng, payloads) if n % 2 else payloads[rng.randrange(len(payloads) + 1) :]
        if payloads:
            sequences[f"{n}"] = payloads
    options: dict[str, Any] = (
        {"mode": "PERMISSIVE"} if start == "transaction" else {"mode": "PERMISSIVE", "start": start}
    )
    wanted = {}
    for name, payloads in sequences.items():
        table = ChangeDecoder(**options).decode(payloads, range(len(payloads)))
        wanted[name] = Counter((row["position"], row["op"], row["error"]) for row in table.to_pylist())
    df = frame(spark, sequences).repartition(n_partitions)
    ours: dict[str, Counter[Any]] = defaultdict(Counter)
    for row in changes(df, source="server", **options).select("server", "position", "op", "error").collect():
        ours[row["server"]][row["position"], row["op"], row["error"]] += 1
    assert dict(ours) == {name: rows for name, rows in wanted.items() if rows}


@pytest.mark.parametrize(("n_partitions", "n_steps"), [(3, 30), long(1, 120), long(3, 120)])
def test_tables_and_snapshots_are_those_of_the_local_functions(
    spark: SparkSession, rng: random.Random, n_partitions: int, n_steps: int
) -> None:
    payloads = random_reader(rng.getrandbits(40), n_steps, ends=True).payloads
    df = frame(spark, {"one": payloads}).repartition(n_partitions)
    fold = Fold(enumerate(payloads))
    for table in Workload.TABLES:
        versions = fold.versions(table)
        if not versions:
            continue
        name = f"public.{versions[-1]['name']}"
        names = fold.column_names(table)
        rows = snapshot(df, name)
        try:
            local = pgdecode.snapshot(payloads, name, range(len(payloads)))
        except ValueError:
            with pytest.raises(PySparkException, match="the changed row is not found by its replica identity"):
                rows.collect()
            continue
        assert rows.columns == local.column_names
        ours, theirs = (item.drop("_commit_timestamp").sort_by("_position") for item in (rows.toArrow(), local))
        assert ours.to_pylist() == theirs.to_pylist()
        if len({item["name"] for item in versions}) == 1:
            typed = table_changes(df, name)
            assert typed.columns[typed.columns.index("_error") + 1 :] == names
            assert typed.count() == sum(change["relation_id"] == table for change in fold.committed())


# -- by hand -----------------------------------------------------------------------------------------------------------


def test_a_stream_stop_out_of_place_is_one_error_and_spoils_nothing_before_it(spark: SparkSession) -> None:
    payloads = [begin(7), relation("id*"), insert("1"), commit(40), STOP, begin(8)]
    for n_partitions in (1, 3, 7):
        df = frame(spark, {"one": payloads}).repartition(n_partitions)
        [(good, errors)] = found(changes(df, source="server", mode="PERMISSIVE")).values()
        assert [change["new"] for change in good] == [{"id": "1"}]
        assert errors == [(4, "STATE_DESYNC")]


def test_a_relation_of_an_aborted_sub_transaction_does_not_override_a_newer_one(spark: SparkSession) -> None:
    df = frame(spark, {"one": OLDER_AND_NEWER}).repartition(7)
    [(good, errors)] = found(changes(df, source="server")).values()
    assert ([change["new"] for change in good], errors) == ([{"a": "7", "b": "8"}], [])
    assert table_changes(df, "public.t").select("a", "b").collect() == [("7", "8")]


def test_a_transaction_without_a_beginning_is_an_error_or_left_out(spark: SparkSession) -> None:
    cases = {str(case.id): case.values for case in HEADLESS}
    df = frame(spark, {name: (*head, *AFTER) for name, (head, _, _) in cases.items()}).repartition(3)
    by_source = found(changes(df, source="server", mode="PERMISSIVE"))
    assert {name: errors for name, (_, errors) in by_source.items()} == {
        name: [(position, "STATE_TRANSACTION") for position in bad] for name, (_, bad, _) in cases.items()
    }
    assert {repr([change["new"] for change in good]) for good, _ in by_source.values()} == {"[{'id': 'good'}]"}
    by_source = found(changes(df, source="server", start="anywhere"))
    assert {name: ([change["new"] for change in good], errors) for name, (good, errors) in by_source.items()} == {
        name: ([{"id": "good"}], []) for name in cases
    }


@pytest.mark.parametrize(("head", "bad", "n_skipped"), HEADLESS[:2])
def test_a_transaction_without_a_beginning_fails_the_query(
    spark: SparkSession, head: tuple[bytes, ...], bad: list[int], n_skipped: int
) -> None:
    with pytest.raises(PySparkException, match=f"TransactionDesync: position {bad[0]}"):
        changes(frame(spark, {"one": (*head, *AFTER)})).collect()


def test_an_empty_payload_is_ignored_or_an_error(spark: SparkSession) -> None:
    df = frame(spark, {"one": [*AFTER[:2], b"", *AFTER[2:]]})
    assert [row["new"] for row in changes(df).collect()] == [{"id": "good"}]
    with pytest.raises(PySparkException, match="EmptyPayload: position 2"):
        changes(df, empty="error").collect()


def test_dropped_rows_are_observed(spark: SparkSession) -> None:
    from pyspark.sql import Observation

    observation = Observation()
    df = frame(spark, {"one": [insert("0"), *AFTER, b"Z", start(7, first=False), STOP]})
    rows = changes(df, mode="DROPMALFORMED", observation=observation)
    assert rows.count() == 1
    counts = {name: count for name, count in observation.get.items() if count}
    assert counts == {"STATE_TRANSACTION": 2, "UNKNOWN_TAG": 1, "rows": 4}


@pytest.mark.parametrize(
    "ending",
    [
        pytest.param((*PREPARED,), id="pending"),
        pytest.param((*PREPARED, rollback_prepared(9, "g")), id="rolled back"),
        pytest.param((begin(60), relation("id* x"), insert("3", "q")), id="open at the end"),
    ],
)
def test_a_transaction_that_did_not_commit_leaves_the_shape_of_a_snapshot_as_it_is(
    spark: SparkSession, ending: tuple[bytes, ...]
) -> None:
    df = frame(spark, {"one": [*T1, *ending]})
    rows = snapshot(df, "public.t")
    assert rows.columns[-2:] == ["id", "v"]
    assert rows.select("id", "v").collect() == [("1", "x")]
    assert table_changes(df, "public.t").columns[-2:] == ["id", "v"]


def test_a_snapshot_has_its_columns_in_the_order_of_the_last_shape(spark: SparkSession) -> None:
    payloads = [
        begin(7),
        relation("id* a b"),
        insert("1", "x", "y"),
        relation("id* c b"),
        insert("2", "z", "w"),
        commit(40),
    ]
    rows = snapshot(frame(spark, {"one": payloads}), "public.t")
    assert rows.columns == pgdecode.snapshot(payloads, "public.t").column_names
    assert rows.columns[-3:] == ["id", "c", "b"]
