"""Runs on Spark: they continue those of any engine, and refuse what does not follow."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from pgdecode import ChangeDecoder
from pgdecode.cli.main import main
from pgdecode.runs.claim import LOCK
from pgdecode.runs.errors import RunError, RunFault
from pgdecode.runs.manifest import MANIFEST, read_manifest
from pgdecode.runs.payload_ranges import STATE
from pgdecode.storage.durable import locked
from spark_udfs import changes, decode_files, replication_state, snapshot, table_changes
from spark_udfs.dataframes import partition_worker
from spark_udfs.jobs import file_route
from support import captures, clone
from support.docs import markdown
from support.generators.slot import Slot
from support.shell import written
from support.tiers import full

sys.path.insert(0, str(Path(__file__).parent))
from run_campaign import trials
from test_runs import T, positions, saved, streamed

pytest_plugins = ["support.spark_session"]

TEXT = clone.path_of("docs/runs.md").read_text()
_, FILES, FUNCTIONS = markdown.code_blocks(TEXT, "python")


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def parts_in_files() -> list[list[bytes]]:
    """Write a sequence with one streamed transaction as three files."""
    parts = streamed()
    for number in range(3):
        written(f"{number}.parquet", parts[number], seq=positions(parts, number))
    return parts


def read(spark: SparkSession, name: str) -> DataFrame:
    return spark.read.parquet(str(Path(name).absolute()))  # the JVM has another working directory


def rows_of(folder: str | Path, column: str = "new", prefix: str = "") -> list[Any]:
    found = pa.concat_tables([pq.read_table(path, partitioning=None) for path in sorted(Path(folder).glob("part-*"))])
    order = [(f"{prefix}commit_position", "ascending"), (f"{prefix}position", "ascending")]
    return found.sort_by(order)[column].to_pylist()


def ids_of(values: list[Any]) -> list[str]:
    return [dict(value)["id"] for value in values]


ALIVE = ["0.0", "0.1", "0.2", "1.0", "1.1", "1.2", "2.0", "2.1", "2.2", "rolled back"]


@pytest.mark.parametrize("seed", [full(10), full(6), full(9), full(15), full(16), *map(full, range(30, 34))])
def test_the_union_of_runs_on_any_engine_equals_one_run(spark: SparkSession, seed: int) -> None:
    (trial,) = trials([seed], spark=spark)
    assert trial.problems == []


def test_a_transaction_goes_on_over_three_runs(spark: SparkSession) -> None:
    parts_in_files()
    done = [
        decode_files(spark, f"{n}.parquet", f"out{n}", what="changes", resume=f"out{n - 1}" if n else None)
        for n in range(3)
    ]
    assert [(item.rows, item.undecided) for item in done] == [(0, 1), (0, 1), (10, 0)]
    assert [(item.first_position, item.last_position) for item in done] == [(0, 6), (7, 13), (14, 20)]
    assert ids_of(rows_of("out2")) == ALIVE
    written_manifest = read_manifest(Path("out2"))
    assert (written_manifest.engine, written_manifest.rows) == ("spark", 10)
    assert done[2].manifest is not None
    assert done[2].manifest.sha256 == written_manifest.sha256
    assert [len(list(Path(f"out{n}", STATE).glob("payloads-*"))) for n in range(3)] == [1, 2, 0]
    again = decode_files(spark, "2.parquet", "out2", what="changes", resume="out1")
    assert again.was_complete
    assert again.rows == 10


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
        first = decode_files(spark, "0.parquet", f"a{end}", what="public.t")
        assert (first.undecided, first.rows) == (1, 8), end
        assert "ChangeTask" not in jobs, end
        # The state has the changes of all tables.
        decode_files(spark, "1.parquet", f"b{end}", what=["public.t", "public.other"], resume=f"a{end}")
        found = [rows_of(f"b{end}/public.{name}", "id", "_") for name in ("t", "other")]
        assert found == [["704", "704 too"], ["704"]], end


@pytest.mark.full
def test_a_run_of_the_shell_continues_on_spark_and_back(spark: SparkSession) -> None:
    parts = parts_in_files()
    saved(Path("out0"), parts[0])
    decode_files(spark, "1.parquet", "out1", what="changes", resume="out0")
    assert main(["decode", "2.parquet", "out2", "--changes", "--resume", "out1"]) == 0
    assert ids_of(pq.read_table("out2/changes.parquet")["new"].to_pylist()) == ALIVE


def test_the_shell_runs_spark_with_a_state_folder(spark: SparkSession) -> None:
    parts_in_files()
    for number, engine in enumerate(["spark", "local", "spark"]):
        words = ["--changes", "--state", "state", "--engine", engine]
        assert main(["decode", f"{number}.parquet", f"out{number}", *words]) == 0
        assert main(["decode", f"{number}.parquet", f"out{number}", *words]) == 0
    assert ids_of(rows_of("out2")) == ALIVE
    assert sorted(path.name for path in Path("state").iterdir()) == ["00000002", "00000003", "_lock", "current"]


@pytest.mark.full
@pytest.mark.parametrize("form", ["folder", "json"])
def test_functions_take_a_state(spark: SparkSession, form: str) -> None:
    parts = parts_in_files()
    decoder = saved(Path("out1"), [*parts[0], *parts[1]])
    state: Any = "out1" if form == "folder" else json.loads(json.dumps(decoder.state))
    rows = read(spark, "2.parquet")
    found = changes(rows, state=state).orderBy("position").toArrow()
    assert ids_of(found["new"].to_pylist()) == ALIVE
    name = f"public.t{T}"
    table = table_changes(rows, name, state=state, fields=["_position", "id"]).orderBy("_position")
    assert [row["id"] for row in table.collect()] == ALIVE
    assert snapshot(rows, name, state=state).count() == len(ALIVE)
    after = replication_state(rows, state=state)
    assert (after.undecided, after.input.first_position, after.input.last_position) == (0, 14, 20)


def test_duplicates_are_dropped_as_in_the_shell(spark: SparkSession) -> None:
    slot = Slot()
    for xid in (7, 8, 9):
        slot.begin(xid)
        slot.relation(T, ["id"])
        slot.insert(T, str(xid))
        slot.commit()
    written("0.parquet", slot.payloads[:8], seq=range(8), session=[0] * 8)
    written("1.parquet", slot.payloads[4:], seq=range(8, 16), session=[1] * 8)
    for drop, expected in ((True, ["9"]), (False, ["8", "9"])):
        first, second = f"out0-{drop}", f"out1-{drop}"
        decode_files(
            spark, "0.parquet", first, what="changes", drop_duplicates=drop, session=None if drop else "session"
        )
        # A session column tells that the second connection may send a transaction again.
        session = None if drop else "session"
        decode_files(spark, "1.parquet", second, what="changes", drop_duplicates=drop, resume=first, session=session)
        assert ids_of(rows_of(second)) == expected
        found = changes(read(spark, "1.parquet"), drop_duplicates=drop, state=first, session=session)
        found = found.orderBy("position")
        assert ids_of(found.toArrow()["new"].to_pylist()) == expected


def test_an_overlap_and_a_gap_name_both_positions(spark: SparkSession) -> None:
    parts = streamed()
    written("0.parquet", parts[0], seq=range(100, 107))
    decode_files(spark, "0.parquet", "out", what="changes")
    for first, text in (
        (103, "the input begins at position 103, but .*out ended at position 106: the input overlaps"),
        (
            120,
            "the input begins at position 120, but .*out ended at position 106: 13 payloads between them are missing",
        ),
    ):
        written("1.parquet", parts[1], seq=range(first, first + len(parts[1])))
        with pytest.raises(RunError, match=text):
            decode_files(spark, "1.parquet", "next", what="changes", resume="out")
        assert not Path("next").exists()
        with pytest.raises(RunError, match=text):
            changes(read(spark, "1.parquet"), state="out")
    decoder = ChangeDecoder()
    decoder.decode(pa.array(parts[0], pa.binary()), range(100, 107))
    written("1.parquet", parts[1], seq=range(103, 110))
    with pytest.raises(RunError, match=r"begins at position 103, but the payloads before the state ended at .* 106"):
        changes(read(spark, "1.parquet"), state=decoder.state)


def test_a_state_is_continued_by_one_run_at_a_time_and_once(spark: SparkSession) -> None:
    parts_in_files()
    decode_files(spark, "0.parquet", "out0", what="changes")
    taken = RunError("taken")
    with locked(Path("out0", STATE, LOCK), taken), pytest.raises(RunError, match="another run is continuing it now"):
        decode_files(spark, "1.parquet", "out1", what="changes", resume="out0")
    after = replication_state(read(spark, "1.parquet"), state="out0")
    after.save("out1")
    with pytest.raises(FileExistsError, match="out1 has the output of an earlier run; remove it, or pass it as state="):
        after.save("out1")
    with pytest.raises(RunError, match=r"out0: was continued already, by .*out1"):
        decode_files(spark, "1.parquet", "other", what="changes", resume="out0")
    (Path("out0", STATE) / "state.json").write_text("{}")
    with pytest.raises(RunFault, match=r"state\.json: has 2 bytes"):
        changes(read(spark, "1.parquet"), state="out0")


def test_options_that_do_not_fit_are_refused(spark: SparkSession) -> None:
    parts_in_files()
    rows = read(spark, "0.parquet")
    saved(Path("out"), streamed()[0])
    with pytest.raises(TypeError, match="state cannot be used with source"):
        changes(rows, state="out", source="seq")
    with pytest.raises(ValueError, match=r"^the folder of a run must be a local path, not s3://$"):
        changes(rows, state="s3://lake/x")
    with pytest.raises(ValueError, match=r"^the folder of a run must be a local path, not s3://$"):
        replication_state(rows).save("s3://lake/x")
    with pytest.raises(TypeError, match="state is the folder of a run, or the state of a ChangeDecoder, not int"):
        changes(rows, state=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="use only one of resume and state"):
        decode_files(spark, "0.parquet", "new", what="changes", resume="out", state="state")
    with pytest.raises(ValueError, match="resume: only for changes and tables"):
        decode_files(spark, "0.parquet", "new", resume="out")
    with pytest.raises(ValueError, match="is a URI, and the output of a run with a state must be a path"):
        decode_files(spark, "0.parquet", "file:/nowhere/new", what="changes", resume="out")


@pytest.mark.full
def test_a_payload_file_that_was_changed_is_refused(spark: SparkSession) -> None:
    parts = parts_in_files()
    saved(Path("out"), [*parts[0], *parts[1]])
    (path,) = Path("out", STATE).glob("payloads-*")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"{path.name}: has another SHA-256 than in the manifest"):
        decode_files(spark, "2.parquet", "next", what="changes", resume="out")
    assert not Path("next").exists()


@pytest.mark.parametrize("code", [pytest.param(FILES, id="files"), full(FUNCTIONS, id="functions")])
def test_every_day_on_spark(spark: SparkSession, code: str) -> None:
    whole = pq.read_table(captures.DATA / "16.shop.v1.parquet")
    n = len(whole) // 3
    for day, start in enumerate((0, n, 2 * n), 1):
        Path(f"raw/day={day}").mkdir(parents=True)
        pq.write_table(whole.slice(start, n if day < 3 else None), f"raw/day={day}/part.parquet")
    Path("out").mkdir()
    here = code if code == FILES else code.replace('f"', f'f"{Path.cwd()}/')  # the JVM has another working directory
    exec(compile(here, "docs/runs.md", "exec"), {"spark": spark})
    if code == FILES:
        folders = [f"out/day={day}/public.orders" for day in (1, 2, 3)]
        expected = ChangeDecoder().table(whole["data"], "public.orders", whole["seq"])["_position"]
        found = [pq.read_table(part) for folder in folders for part in sorted(Path(folder).glob("part-*"))]
        assert sorted(pa.concat_tables(found)["_position"].to_pylist()) == sorted(expected.to_pylist())
    else:
        expected = ChangeDecoder().decode(whole["data"], whole["seq"])["position"]
        found = [pos for day in (1, 2, 3) for pos in rows_of(f"out/day={day}/changes", "position")]
        assert sorted(found) == sorted(expected.to_pylist())
    assert all((Path(f"out/day={day}") / MANIFEST).exists() for day in (1, 2, 3))
