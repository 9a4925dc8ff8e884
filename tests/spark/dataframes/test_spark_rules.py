"""Shapes, sessions and bad rows: jobs and functions of DataFrames return the same as the local functions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from changes.test_transaction_rules import AFTER
from pyspark.sql import DataFrame, Observation, SparkSession
from relations.test_relation_scopes import PREPARED, T1

import pgdecode
from pgdecode import ChangeDecoder
from spark_udfs import changes, decode_files, from_pgoutput, parse_pgoutput, snapshot, table_changes
from support.generators.slots import STOP, begin, commit, insert, relation, rollback_prepared, start, stream_commit
from support.tiers import long

pytest_plugins = ["support.spark_session"]
pytestmark = pytest.mark.full

# A committed row uses the version with x, but the transaction that sent it was rolled back.
USED = (*T1, *PREPARED, rollback_prepared(9, "g"), begin(60), insert("4", "r"), commit(160))
# The connection is lost in the transactions 8 and 9. The server then sends them again.
CUT = (
    begin(7), relation("id*"), insert("1"), commit(40),
    start(9, first=True), relation("id*", xid=9), insert("2", xid=9), STOP,
    begin(8), insert("3"),
)  # fmt: skip
AGAIN = (
    begin(8), relation("id*"), insert("3"), commit(50),
    start(9, first=True), relation("id*", xid=9), insert("2", xid=9), STOP, stream_commit(9, 60),
)  # fmt: skip


def frame(spark: SparkSession, payloads: Sequence[bytes], sessions: Sequence[int] | None = None) -> DataFrame:
    return spark.createDataFrame(table(payloads, sessions))


def table(payloads: Sequence[bytes], sessions: Sequence[int] | None = None) -> pa.Table:
    columns = {"seq": pa.array(range(len(payloads)), pa.int64()), "data": pa.array(payloads, pa.binary())}
    if sessions is not None:
        columns["session"] = pa.array(sessions, pa.int32())
    return pa.table(columns)


def written(folder: Path, payloads: Sequence[bytes], sessions: Sequence[int] | None = None) -> Path:
    """A folder of three files."""
    whole = table(payloads, sessions)
    folder.mkdir()
    n = -(-len(whole) // 3)
    for at in range(0, len(whole), n):
        pq.write_table(whole.slice(at, n), folder / f"{at:03}.parquet")
    return folder


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [row for part in sorted(folder.glob("*.parquet")) for row in pq.read_table(part).to_pylist()]


@pytest.mark.parametrize("n_partitions", [long(1), 3])
def test_a_version_that_only_a_later_transaction_has_used_is_in_the_shape(
    spark: SparkSession, n_partitions: int
) -> None:
    df = frame(spark, USED).repartition(n_partitions)
    rows = table_changes(df, "public.t")
    local = ChangeDecoder().table(USED, "public.t")
    assert rows.columns == local.schema.names
    assert sorted(row["id"] for row in rows.collect()) == sorted(local["id"].to_pylist())
    found = snapshot(df, "public.t")
    assert found.columns == pgdecode.snapshot(USED, "public.t").column_names
    assert sorted(row["id"] for row in found.collect()) == ["1", "4"]


def test_a_job_finds_such_a_version_too(spark: SparkSession, tmp_path: Path) -> None:
    decode_files(spark, written(tmp_path / "raw", USED), tmp_path / "out", what="public.t")
    rows = sorted(rows_of(tmp_path / "out"), key=lambda row: row["_position"])
    assert [(row["id"], row["v"], row["x"]) for row in rows] == [("1", "x", None), ("4", None, "r")]


def test_a_job_counts_what_it_leaves_out(spark: SparkSession, tmp_path: Path) -> None:
    payloads = [insert("0"), commit(40), *AFTER, b"Z", begin(90), relation("id*"), insert("5")]
    source = written(tmp_path / "raw", payloads)
    found = decode_files(spark, source, tmp_path / "out", what="changes", mode="DROPMALFORMED", start="anywhere")
    assert (found.bad_rows, found.skipped, found.undecided) == ({"UNKNOWN_TAG": 1}, 1, 1)
    assert [dict(row["new"]) for row in rows_of(tmp_path / "out")] == [{"id": "good"}]
    manifest = json.loads((tmp_path / "out" / "_pgdecode" / "0000000001.json").read_text())
    assert (manifest["bad_rows"], manifest["skipped"], manifest["undecided"]) == ({"UNKNOWN_TAG": 1}, 1, 1)
    found = decode_files(spark, source, tmp_path / "kept", what="public.t", mode="PERMISSIVE")
    assert (found.bad_rows, found.skipped) == ({"STATE_TRANSACTION": 2, "UNKNOWN_TAG": 1}, 0)
    assert sum(row["_error"] is not None for row in rows_of(tmp_path / "kept")) == 3


def test_a_job_counts_bad_messages(spark: SparkSession, tmp_path: Path) -> None:
    source = written(tmp_path / "raw", [*AFTER, b"Z", b"", insert("1")[:-1]])
    found = decode_files(spark, source, tmp_path / "out", mode="DROPMALFORMED")
    assert found.bad_rows == {"TRUNCATED": 1, "UNKNOWN_TAG": 1}
    assert len(rows_of(tmp_path / "out")) == len(AFTER) + 1
    found = decode_files(spark, source, tmp_path / "no", mode="PERMISSIVE", empty="error")
    assert found.bad_rows == {"EMPTY": 1, "TRUNCATED": 1, "UNKNOWN_TAG": 1}


@pytest.mark.parametrize("sessions", [[1, 2], [None, 1], [2, 1]], ids=["ascending", "from null", "descending"])
@pytest.mark.parametrize("n_partitions", [long(1), 3])
def test_a_session_that_changes_is_a_reconnect(
    spark: SparkSession, n_partitions: int, sessions: list[int | None]
) -> None:
    # The next messages could also continue the transaction.
    payloads = [*CUT, insert("lost"), *AGAIN]
    column = [sessions[0]] * (len(CUT) + 1) + [sessions[1]] * len(AGAIN)
    df = frame(spark, payloads, column).repartition(n_partitions)
    rows = changes(df, session="session").orderBy("commit_position", "position")
    assert [row["new"]["id"] for row in rows.collect()] == ["1", "3", "2"]


def test_a_repeated_session_is_a_reconnect_each_time(spark: SparkSession) -> None:
    payloads = [*CUT, *CUT[4:], *AGAIN]
    column = [1] * len(CUT) + [2] * (len(CUT) - 4) + [1] * len(AGAIN)
    observation = Observation()
    rows = changes(frame(spark, payloads, column), session="session", observation=observation)
    assert sorted(row["new"]["id"] for row in rows.collect()) == ["1", "2", "3"]
    assert (observation.get["rows"], observation.get["undecided"]) == (3, 0)


def test_a_job_takes_sessions(spark: SparkSession, tmp_path: Path) -> None:
    payloads = [*CUT, insert("lost"), *AGAIN]
    source = written(tmp_path / "raw", payloads, [1] * (len(CUT) + 1) + [2] * len(AGAIN))
    found = decode_files(spark, source, tmp_path / "out", what="changes", session="session")
    assert sorted(dict(row["new"])["id"] for row in rows_of(tmp_path / "out")) == ["1", "2", "3"]
    assert (found.bad_rows, found.undecided) == ({}, 0)


@pytest.mark.parametrize("mode", ["PERMISSIVE", "DROPMALFORMED"])
def test_a_snapshot_keeps_bad_changes_as_rows_or_leaves_them_out(spark: SparkSession, mode: Any) -> None:
    payloads = [insert("0"), *AFTER, b"Z", begin(90), insert("1", "2"), insert("5"), commit(140)]
    observation = Observation()
    rows = snapshot(frame(spark, payloads).repartition(3), "public.t", mode=mode, observation=observation)
    local = pgdecode.snapshot(payloads, "public.t", range(len(payloads)), mode=mode)
    assert rows.columns == local.column_names
    assert sorted(map(repr, rows.toArrow().to_pylist())) == sorted(map(repr, local.to_pylist()))
    counts = {name: n for name, n in observation.get.items() if n}
    assert counts.pop("rows") == 5
    assert counts == json.loads(local.schema.metadata[b"pgdecode:bad_rows"])


def test_an_observation_counts_transactions_that_are_left_out(spark: SparkSession) -> None:
    observation = Observation()
    payloads = [insert("0"), commit(40), *AFTER, begin(90), insert("5")]
    assert changes(frame(spark, payloads), start="anywhere", observation=observation).count() == 1
    assert {name: n for name, n in observation.get.items() if n} == {"rows": 1, "skipped": 1, "undecided": 1}


def test_options_that_do_not_exist_are_refused(spark: SparkSession) -> None:
    df = frame(spark, AFTER)
    for wrong in ({"start": "middle"}, {"empty": "drop"}, {"mode": "IGNORE"}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} is "):
            changes(df, **wrong)
    with pytest.raises(TypeError, match=r"session is a column of strings, .*'data' is binary"):
        changes(df, session="data")
    with pytest.raises(ValueError, match="session, start: only for changes and tables"):
        decode_files(spark, "raw", "out", start="anywhere", session="session")
    version = pgdecode.RelationCatalog.from_messages(AFTER)["public.t"]
    with pytest.raises(ValueError, match="DROPMALFORMED"):
        parse_pgoutput("data", mode="DROPMALFORMED")
    with pytest.raises(ValueError, match="DROPMALFORMED"):
        from_pgoutput("data", version, mode="DROPMALFORMED")
