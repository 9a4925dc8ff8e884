"""The same call again: `decode_files` and the functions of DataFrames continue what earlier calls have decoded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from pgdecode import ChangeDecoder
from pgdecode.datasets.errors import RunError, RunFault
from pgdecode.datasets.target import target_at
from spark_udfs import changes, decode_files, read_run, replication_state, table_changes
from spark_udfs.dataframes import partition_worker
from spark_udfs.jobs import file_route
from support.generators.slot import Slot
from support.shell import written
from support.tiers import full

pytest_plugins = ["support.spark_session"]

T = 20001


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def streamed() -> list[list[bytes]]:
    """Three parts of a sequence with one streamed transaction. Its first rows of xid 10 are rolled back."""
    slot = Slot()
    parts = []
    for number in range(3):
        done = len(slot.payloads)
        slot.start(9, first=number == 0)
        if number == 0:
            slot.relation(T, ["id"], xid=9)
        for row in range(3):
            slot.insert(T, f"{number}.{row}", xid=9)
        slot.insert(T, "rolled back", xid=10)
        slot.stop()
        if number == 1:
            slot.stream_abort(9, 10)
        if number == 2:
            slot.stream_commit(9)
        parts.append(slot.payloads[done:])
    return parts


def add_part(number: int, folder: str = "raw") -> None:
    """Write a part of the sequence to a file."""
    parts = streamed()
    first = sum(map(len, parts[:number]))
    written(f"{folder}/{number}.parquet", parts[number], seq=range(first, first + len(parts[number])))


def read(spark: SparkSession, name: str) -> DataFrame:
    return spark.read.parquet(str(Path(name).absolute()))  # the JVM has another working directory


def rows_of(folder: str | Path, column: str = "new", prefix: str = "") -> list[Any]:
    found = pa.concat_tables([pq.read_table(path, partitioning=None) for path in sorted(Path(folder).glob("part-*"))])
    order = [(f"{prefix}commit_position", "ascending"), (f"{prefix}position", "ascending")]
    return found.sort_by(order)[column].to_pylist()


def ids_of(values: list[Any]) -> list[str]:
    return [dict(value)["id"] for value in values]


ALIVE = ["0.0", "0.1", "0.2", "1.0", "1.1", "1.2", "2.0", "2.1", "2.2", "rolled back"]


def test_a_transaction_goes_on_over_three_calls(spark: SparkSession) -> None:
    done = []
    for number in range(3):
        add_part(number)
        done.append(decode_files(spark, "raw", "out", what="changes"))
    assert [(item.rows, item.undecided) for item in done] == [(0, 1), (0, 1), (10, 0)]
    assert [(item.first_position, item.last_position) for item in done] == [(0, 6), (7, 13), (14, 20)]
    assert ids_of(rows_of("out")) == ALIVE
    manifests = target_at(Path("out")).manifests()
    assert [(item.engine, item.number, item.rows) for item in manifests] == [
        ("spark", 1, 0),
        ("spark", 2, 0),
        ("spark", 3, 10),
    ]
    assert done[2].manifest == manifests[2]
    # The state of each run has the payloads of the transaction that is open after it.
    assert [len(item.state) - 1 for item in manifests] == [1, 2, 0]
    assert not list(Path("out/_pgdecode").glob("payloads-*"))


@pytest.mark.full
def test_one_source_may_be_named_by_its_parts(spark: SparkSession) -> None:
    for number in range(3):
        add_part(number)
        decode_files(spark, f"raw/{number}.parquet", "out", what="changes")
    assert decode_files(spark, "raw", "out", what="changes").manifest is None
    assert ids_of(rows_of("out")) == ALIVE
    assert read_run(spark, Path("out").absolute()).count() == len(ALIVE)


def test_an_input_that_ends_inside_a_transaction_is_decoded_once(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot = Slot()
    for xid in range(700, 705):
        slot.begin(xid)
        if xid == 700:
            slot.relation(T, ["id"], name="t")
            slot.relation(T + 1, ["id"], name="other")
        slot.insert(T, f"{xid}")
        if xid == 704:
            # The version with which the row before was sent must not be mistaken for this one.
            slot.relation(T + 2, ["id"], name="third")
        slot.insert(T + 1, f"{xid}")
        slot.insert(T, f"{xid} too")
        slot.commit()
    jobs = []

    def run(spark: None, work: Any, tasks: list[Any]) -> list[Any]:
        jobs.append(type(work).__name__)
        return [work(task) for task in tasks]

    monkeypatch.setattr(file_route, "run_tasks", run)
    monkeypatch.setattr(partition_worker, "_ENOUGH_ROWS", 2)  # rows that are decoded at once
    n = len(slot.payloads)
    for end in range(n - 5, n):
        jobs.clear()
        written("0.parquet", slot.payloads[:end], seq=range(end))
        written("1.parquet", slot.payloads[end:], seq=range(end, n))
        first = decode_files(spark, "0.parquet", f"out{end}", what=["public.t", "public.other"])
        assert (first.undecided, first.rows) == (1, 12), end
        assert "ChangeTask" not in jobs, end
        decode_files(spark, "1.parquet", f"out{end}", what=["public.t", "public.other"])
        found = [rows_of(f"out{end}/public.{name}", "id", "_")[-2:] for name in ("t", "other")]
        assert found == [["704", "704 too"], ["703", "704"]], end


@pytest.mark.full
@pytest.mark.parametrize("is_dense", [True, False], ids=["dense", "with holes"])
def test_a_file_that_has_grown_goes_on_where_it_ended(spark: SparkSession, is_dense: bool) -> None:
    slot = Slot()
    for xid in range(700, 740):
        slot.begin(xid)
        if xid == 700:
            slot.relation(T, ["id"], name="t")
        slot.insert(T, f"{xid}")
        slot.commit()
    positions = range(0, len(slot.payloads) * (1 if is_dense else 2), 1 if is_dense else 2)
    for n in (17, 17, 40, len(slot.payloads)):
        written("raw/1.parquet", slot.payloads[:n], seq=positions[:n])
        decode_files(spark, "raw", "out", what="changes")
    assert [item.input.rows for item in target_at(Path("out")).manifests()] == [17, 23, len(slot.payloads) - 40]
    assert ids_of(rows_of("out")) == [str(xid) for xid in range(700, 740)]


@pytest.mark.parametrize("what", ["messages", "changes"])
def test_nothing_new_starts_no_session_and_opens_no_file(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    add_part(0)
    decode_files(spark, "raw", "out", what=what)
    monkeypatch.setattr("spark_udfs.jobs.file_route.local_session", lambda: pytest.fail("a session was asked for"))
    monkeypatch.setattr("pgdecode.files.payload_files.read_footer", lambda *given: pytest.fail("a file was opened"))
    again = decode_files(None, "raw", "out", what=what)
    assert (again.rows, again.manifest) == (0, None)


@pytest.mark.full
def test_columns_of_later_runs_are_read_with_those_before(spark: SparkSession) -> None:
    slot = Slot()
    for xid, columns in ((700, ["id"]), (701, ["id", "b"])):
        first = len(slot.payloads)
        slot.begin(xid)
        slot.relation(T, columns, name="t")
        slot.insert(T, *[f"{xid}"] * len(columns))
        slot.commit()
        written(f"raw/{xid}.parquet", slot.payloads[first:], seq=range(first, len(slot.payloads)))
        decode_files(spark, "raw", "out", what="public.t")
    rows = read_run(spark, Path("out").absolute(), "public.t").orderBy("_position").select("id", "b").collect()
    assert [tuple(row) for row in rows] == [("700", None), ("701", "701")]
    Path("out/part-00000.parquet").rename("elsewhere.parquet")
    with pytest.warns(RuntimeWarning, match=r"out: 1 of its 2 files are missing, such as part-00000\.parquet"):
        assert read_run(spark, Path("out").absolute()).count() == 1


@pytest.mark.full
def test_duplicates_are_dropped_as_in_the_shell(spark: SparkSession) -> None:
    slot = Slot()
    for xid in (7, 8, 9):
        slot.begin(xid)
        slot.relation(T, ["id"])
        slot.insert(T, str(xid))
        slot.commit()
    for drop, expected in ((True, ["7", "8", "9"]), (False, ["7", "8", "8", "9"])):
        # A session column tells that the second connection may send a transaction again.
        options: dict[str, Any] = {"drop_duplicates": drop, "session": None if drop else "session"}
        raw, out = f"raw-{drop}", f"out-{drop}"
        written(f"{raw}/0.parquet", slot.payloads[:8], seq=range(8), session=[0] * 8)
        decode_files(spark, raw, out, what="changes", **options)
        written(f"{raw}/1.parquet", slot.payloads[4:], seq=range(8, 16), session=[1] * 8)
        found = changes(read(spark, f"{raw}/1.parquet"), state=out, **options).orderBy("position")
        assert ids_of(found.toArrow()["new"].to_pylist()) == expected[2:]
        decode_files(spark, raw, out, what="changes", **options)
        assert ids_of(rows_of(out)) == expected


@pytest.mark.full
def test_an_overlap_and_a_gap_name_both_positions(spark: SparkSession) -> None:
    parts = streamed()
    written("raw/0.parquet", parts[0], seq=range(100, 107))
    decode_files(spark, "raw", "out", what="changes")
    for first, of_files, of_rows in (
        (
            103,
            r"1\.parquet: came too late: it has the positions 103 to 109, but all up to 106 have been decoded",
            "the input begins at position 103, but the payloads before the state ended at position 106",
        ),
        (
            120,
            "begins at position 120, but the last decoded position is 106: 13 payloads between them are missing",
            "begins at position 120, but the last decoded position is 106: 13 payloads between them are missing",
        ),
    ):
        written("raw/1.parquet", parts[1], seq=range(first, first + len(parts[1])))
        with pytest.raises(RunError, match=of_files):
            decode_files(spark, "raw", "out", what="changes")
        with pytest.raises(RunError, match=of_rows):
            changes(read(spark, "raw/1.parquet"), state="out")
    decoder = ChangeDecoder()
    decoder.decode(pa.array(parts[0], pa.binary()), range(100, 107))
    written("raw/1.parquet", parts[1], seq=range(103, 110))
    with pytest.raises(RunError, match=r"begins at position 103, but the payloads before the state ended at .* 106"):
        changes(read(spark, "raw/1.parquet"), state=decoder.state)


@pytest.mark.full
def test_a_state_of_dataframes_is_continued_once(spark: SparkSession) -> None:
    for number in range(3):
        add_part(number)
    rows = read(spark, "raw/0.parquet")
    first = replication_state(rows)
    first.save("state")
    after = replication_state(read(spark, "raw/1.parquet"), state="state")
    assert (after.undecided, after.input.first_position, after.input.last_position) == (1, 7, 13)
    after.save("state")
    for stale in (first, after):
        with pytest.raises(RunError, match="state: its last run is number 2, which this state does not follow"):
            stale.save("state")
    last = changes(read(spark, "raw/2.parquet"), state="state").orderBy("position").toArrow()
    assert ids_of(last["new"].to_pylist()) == ALIVE
    table = table_changes(read(spark, "raw/2.parquet"), f"public.t{T}", state="state", fields=["_position", "id"])
    assert [row["id"] for row in table.orderBy("_position").collect()] == ALIVE
    # A job goes on from there.
    decode_files(spark, "raw/2.parquet", "state", what="changes")
    assert ids_of(rows_of("state")) == ALIVE


@pytest.mark.full
def test_options_that_do_not_fit_are_refused(spark: SparkSession) -> None:
    add_part(0)
    rows = read(spark, "raw/0.parquet")
    replication_state(rows).save("state")
    with pytest.raises(TypeError, match="state cannot be used with source"):
        changes(rows, state="state", source="seq")
    with pytest.raises(ValueError, match=r"^the folder of a data set must be a local path, not s3://$"):
        changes(rows, state="s3://lake/x")
    with pytest.raises(ValueError, match=r"^the folder of a data set must be a local path, not s3://$"):
        replication_state(rows).save("s3://lake/x")
    with pytest.raises(TypeError, match="state is the folder of a data set, or the state of a ChangeDecoder, not int"):
        changes(rows, state=1)  # type: ignore[arg-type]
    with pytest.raises(RunFault, match="none: has no _pgdecode"):
        changes(rows, state="none")
    with pytest.raises(TypeError, match="has no option 'resume'"):
        decode_files(spark, "raw", "new", what="changes", resume="out")


@pytest.mark.parametrize("name", ["state-*", full("payloads-*")])
def test_a_state_that_was_changed_is_refused(spark: SparkSession, name: str) -> None:
    add_part(0)
    decode_files(spark, "raw", "out", what="changes")
    (path,) = Path("out/_pgdecode").glob(name)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    add_part(1)
    add_part(2)
    with pytest.raises(ValueError, match=f"{path.name}: has another SHA-256 than in the manifest"):
        decode_files(spark, "raw", "out", what="changes")
    assert not list(Path("out").glob("part-0000000002*"))
