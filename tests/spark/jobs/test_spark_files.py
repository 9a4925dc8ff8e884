"""`decode_files`: the same rows for any splits and attempts."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pgdecode
from pgdecode.datasets.manifest import Manifest
from pgdecode.datasets.state import LOG
from pgdecode.files import payload_file
from pgdecode.files import payload_files as payload_files_module
from pgdecode.files.ordered_files import OrderFault
from pgdecode.files.payload_file import FileFault
from pgdecode.files.payload_files import payload_files
from pgdecode.rows.options import Options
from spark_udfs.jobs import file_route
from spark_udfs.jobs.file_tasks import Task
from spark_udfs.jobs.job_config import ChangeJob, MessageJob
from support import captures, clone
from support.file_jobs import folders_of, write_changes, write_messages

pytest_plugins = ["support.spark_session"]

SHOP = ["public.orders", "public.products"]
# The manifest of the first run.
FIRST = Path(LOG, "0000000001.json")
ORDER = [("commit_position", "ascending"), ("position", "ascending")]


@pytest.fixture
def tasks_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run tasks one after the other in this process, after pickling. Each task has few row groups."""

    def run(spark: None, work: Callable[[Task], Any], tasks: list[Task]) -> list[Any]:
        return [pickle.loads(pickle.dumps(work))(pickle.loads(pickle.dumps(task))) for task in tasks]

    monkeypatch.setattr(file_route, "run_tasks", run)
    monkeypatch.setattr(file_route, "_task_bytes", lambda spark, n_bytes: max(n_bytes // 7, 1))


def write_cut(folder: Path, column: pa.Array, cuts: list[int], group_rows: int) -> None:
    """Write a file for each slice of payloads between cuts. The names do not show the order."""
    folder.mkdir()
    bounds = [0, *cuts, len(column)]
    for start, end in pairwise(bounds):
        # Positions have gaps.
        positions = pa.array(range(3 * start, 3 * end, 3), pa.int32())
        name = hashlib.sha256(str(start).encode()).hexdigest()
        table = pa.table({"seq": positions, "data": column.slice(start, end - start)})
        pq.write_table(table, folder / f"{name}.parquet", row_group_size=group_rows)


def changes_of(folder: Path, config: ChangeJob, target: Path) -> dict[str | None, pa.Table]:
    """Decode a folder, and read the outputs."""
    files = payload_files(folder, "data", ("seq",))
    write_changes(files, config, target)
    return {name: read_back(place) for name, place in folders_of(config, target).items()}


def read_back(folder: Path) -> pa.Table:
    return pa.concat_tables([pq.read_table(part) for part in sorted(folder.glob("part-*.parquet"))])


def change_job(*names: str | None, **options: Any) -> ChangeJob:
    return ChangeJob(names or (None,), None, Options(**options), None, "parquet")


def as_rows(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


@pytest.mark.full
@pytest.mark.usefixtures("tasks_here")
@pytest.mark.parametrize("include_uncommitted", [False, True], ids=["committed", "everything"])
def test_splits_of_a_capture_give_the_changes_of_one_decoder(
    capture: captures.Capture, include_uncommitted: bool, rng: random.Random, tmp_path: Path
) -> None:
    column = capture.column
    cuts = sorted(rng.sample(range(1, len(column)), 3))
    write_cut(tmp_path / "raw", column, cuts, max(len(column) // 9, 1))
    wanted = change_job(mode="PERMISSIVE", include_uncommitted=include_uncommitted)
    found = changes_of(tmp_path / "raw", wanted, tmp_path / "out")[None]
    decoder = pgdecode.ChangeDecoder(mode="PERMISSIVE", include_uncommitted=include_uncommitted)
    expected = [decoder.decode(column, pa.array(range(0, 3 * len(column), 3), pa.int64()))]
    expected += [decoder.undecided()] if include_uncommitted else []
    assert as_rows(found) == as_rows(pa.Table.from_batches(expected))


@pytest.mark.full
@pytest.mark.usefixtures("tasks_here")
@pytest.mark.parametrize("mode", ["FAILFAST", "DROPMALFORMED"])
def test_several_tables_are_decoded_together_as_each_alone(mode: str, tmp_path: Path) -> None:
    column = captures.capture("18.shop.v1").column
    write_cut(tmp_path / "raw", column, [100, 700], 50)
    found = changes_of(tmp_path / "raw", change_job(*SHOP, None, mode=mode), tmp_path / "out")
    positions = pa.array(range(0, 3 * len(column), 3), pa.int64())
    for name in SHOP:
        expected = pgdecode.ChangeDecoder().table(column, name, positions)
        assert found[name].cast(expected.schema).schema.equals(expected.schema)
        assert [dict(field.metadata or {}).get(b"pg:type") for field in found[name].schema] == [
            (field.metadata or {}).get(b"pg:type") for field in expected.schema
        ]
        assert as_rows(found[name]) == as_rows(pa.Table.from_batches([expected]))
    assert as_rows(found[None]) == as_rows(pa.Table.from_batches([pgdecode.ChangeDecoder().decode(column, positions)]))


@pytest.mark.usefixtures("tasks_here")
def test_rows_of_ordered_files_come_in_slot_order(tmp_path: Path) -> None:
    column = captures.capture("18.shop.v1").column
    write_cut(tmp_path / "raw", column, [100, 700], 50)
    found = changes_of(tmp_path / "raw", change_job(), tmp_path / "out")[None]
    assert len(list((tmp_path / "out").glob("part-*"))) > 3
    assert found.to_pylist() == found.sort_by(ORDER).to_pylist()


@pytest.mark.usefixtures("tasks_here")
@pytest.mark.parametrize(
    ("positions", "text"),
    [
        pytest.param([[0, 2, 1], [3, 4, 5]], r"row 2: seq 1 does not come after 2", id="a file out of order"),
        pytest.param([[0, 1, 4], [3, 5, 6]], r"1\.parquet: begins at seq 3, but .*0\.parquet ends at 4", id="overlap"),
        pytest.param(
            [[0, 1, 2], [2, 3, 4]], r"1\.parquet: begins at seq 2, but .*0\.parquet ends at 2", id="a position twice"
        ),
        pytest.param([[0, 1, 2], [3, None, 4]], r"1\.parquet: row 1: seq is null", id="a null"),
        pytest.param([[-1, 1, 2], [3, 4, 5]], r"0\.parquet: seq -1 is negative", id="negative"),
        pytest.param([[*range(-3, 70_000)], [70_001]], "seq -3 is negative", id="negative before many"),
        pytest.param([[0, 1, 2], [3, 4, 2**63]], r"1\.parquet: rows from 0: seq exceeds 2\*\*63 - 1", id="too large"),
    ],
)
def test_files_without_ascending_positions_are_refused(
    positions: list[list[int | None]], text: str, tmp_path: Path
) -> None:
    for number, of_file in enumerate(positions):
        table = pa.table(
            {"seq": pa.array(of_file, pa.uint64() if 2**63 in of_file else pa.int64()), "data": [b""] * len(of_file)}
        )
        pq.write_table(table, tmp_path / f"{number}.parquet")
    files = payload_files(tmp_path, "data", ("seq",))
    with pytest.raises(OrderFault, match=text):
        write_changes(files, change_job(), tmp_path / "out", has_time=False)


@pytest.mark.usefixtures("tasks_here")
@pytest.mark.parametrize("rows", [0, 3])
def test_an_input_without_changes_gives_an_output_with_their_columns(rows: int, tmp_path: Path) -> None:
    table = pa.table({"seq": pa.array(range(rows), pa.int64()), "data": pa.array([None] * rows, pa.binary())})
    pq.write_table(table, tmp_path / "raw.parquet")
    found = changes_of(tmp_path / "raw.parquet", change_job(), tmp_path / "out")[None]
    assert found.schema.names == pgdecode.ChangeDecoder().decode([]).schema.names
    assert found.num_rows == 0


@pytest.mark.usefixtures("tasks_here")
def test_a_bad_payload_is_reported_by_its_row_in_the_file_for_any_splits(tmp_path: Path) -> None:
    payloads = captures.capture("18.shop.v1").payloads
    row = next(at for at, payload in enumerate(payloads) if at > 400 and payload[:1] == b"U")
    spoilt = [payload[:-1] if at == row else payload for at, payload in enumerate(payloads)]
    write_cut(tmp_path / "raw", pa.array(spoilt, pa.binary()), [], 60)
    (file,) = (tmp_path / "raw").iterdir()
    with pytest.raises(FileFault) as caught:
        changes_of(tmp_path / "raw", change_job(), tmp_path / "out")
    said = str(caught.value)
    assert said.startswith(f"{file}: row {row}, position {3 * row}: TRUNCATED at offset ")
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("tasks_here")
@pytest.mark.parametrize(
    ("shift", "n_less", "message"),
    [
        (0, 1, "has 1,052 rows in place of the 1,053 that its footer says"),
        (10_000, 0, "has changed while it was decoded"),
    ],
    ids=["fewer rows", "other positions"],
)
def test_rows_that_differ_from_the_indexed_ones_are_reported_with_their_file(
    shift: int, n_less: int, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # The new file has the footer of the old one.
    read = payload_file.read_footer
    for module in (payload_file, payload_files_module):
        monkeypatch.setattr(module, "read_footer", lambda source: read(source)._replace(checksum=0))
    column = captures.capture("18.shop.v1").column
    pq.write_table(pa.table({"seq": range(len(column)), "data": column}), tmp_path / "raw.parquet")
    files = payload_files(tmp_path / "raw.parquet", "data", ("seq",))
    n = len(column) - n_less
    run = file_route.run_tasks

    def run_and_replace(spark: Any, work: Any, tasks: list[Any]) -> Any:
        done = run(spark, work, tasks)
        rows = pa.table({"seq": range(shift, shift + n), "data": column.slice(0, n)})
        pq.write_table(rows, tmp_path / "raw.parquet")
        return done

    monkeypatch.setattr(file_route, "speculation_of", lambda *given: None)
    monkeypatch.setattr(file_route, "run_tasks", run_and_replace)
    with pytest.raises(FileFault, match=rf"raw\.parquet: {message}"):
        write_changes(files, change_job(), tmp_path / "out")


@pytest.mark.usefixtures("tasks_here")
@pytest.mark.parametrize("group_rows", [100, 200, 2000], ids=["shorter", "same", "longer"])
def test_a_file_that_is_replaced_before_its_tasks_read_it_is_named(
    group_rows: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    column = captures.capture("18.shop.v1").column
    source = tmp_path / "raw.parquet"
    pq.write_table(pa.table({"data": column}), source, row_group_size=200)
    run = file_route.run_tasks

    def run_late(spark: Any, work: Any, tasks: list[Task]) -> Any:
        pq.write_table(pa.table({"data": column[::-1]}), source, row_group_size=group_rows)
        return run(spark, work, tasks)

    monkeypatch.setattr(file_route, "run_tasks", run_late)
    with pytest.raises(FileFault, match=r"raw\.parquet: has changed since it was found"):
        messages_of(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def messages_of(source: Path, folder: Path, **options: Any) -> Manifest:
    """Decode a file to messages."""
    given = {
        "keep": (),
        "fields": None,
        "in_stream": "auto",
        "mode": "FAILFAST",
        "empty": "null",
        "format": "parquet",
        **options,
    }
    files = payload_files(source, "data", given["keep"])
    return write_messages(files, MessageJob(**given), folder)


@pytest.mark.usefixtures("tasks_here")
@pytest.mark.parametrize("format", ["parquet", "jsonl", "csv"])
def test_the_manifest_says_what_the_parts_are_and_of_what(format: str, tmp_path: Path) -> None:
    column = captures.capture("16.streams.v2").column
    write_cut(tmp_path / "raw", column, [1000, 1700], 300)
    messages_of(tmp_path / "raw", tmp_path / "out", format=format)
    manifest = json.loads((tmp_path / "out" / FIRST).read_text())
    names = [part["name"] for part in manifest["files"]]
    assert sorted(os.listdir(tmp_path / "out")) == sorted([LOG, *names])
    assert len(names) > 3
    for part in manifest["files"]:
        written = (tmp_path / "out" / part["name"]).read_bytes()
        assert (len(written), hashlib.sha256(written).hexdigest()) == (part["bytes"], part["sha256"])
        assert sum(piece["rows"] for piece in part["input"]) == part["rows"]
    read = [(piece["file"], piece["first_row"], piece["rows"]) for part in manifest["files"] for piece in part["input"]]
    expected = {}
    for file in (tmp_path / "raw").iterdir():
        expected[str(file)] = pq.read_metadata(file).num_rows
        of_file = sorted(item[1:] for item in read if item[0] == str(file))
        assert [first for first, _ in of_file] == [sum(n for _, n in of_file[:at]) for at in range(len(of_file))]
    assert sum(expected.values()) == sum(rows for _, _, rows in read) == len(column)


def without_times(folder: Path) -> dict[str, Any]:
    """The manifest without the times of its tasks."""
    found: dict[str, Any] = json.loads((folder / FIRST).read_bytes())
    for task in found["tasks"]:
        assert min(task.pop("decode_seconds"), task.pop("io_seconds")) >= 0
    return found


@pytest.mark.parametrize("what", ["messages", "changes"])
@pytest.mark.usefixtures("tasks_here")
def test_the_manifest_tells_what_each_task_did(what: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    payloads = captures.capture("16.shop.v1").payloads
    bad = [at for at, payload in enumerate(payloads) if payload[:1] == b"I" and at % 5 == 0]
    spoilt = [payload[:-1] if at in bad else payload for at, payload in enumerate(payloads)]
    write_cut(tmp_path / "raw", pa.array(spoilt, pa.binary()), [500], 300)
    times: list[float] = []

    def clock() -> float:
        times.append(len(times))
        return times[-1]

    monkeypatch.setattr("spark_udfs.jobs.task_times.perf_counter", clock)
    if what == "messages":
        config = MessageJob(None, "auto", "PERMISSIVE")
        tasks = write_messages(payload_files(tmp_path / "raw", "data"), config, tmp_path / "out").tasks
    else:
        files = payload_files(tmp_path / "raw", "data", ("seq",))
        config = change_job("public.orders", None, mode="PERMISSIVE")
        done = write_changes(files, config, tmp_path / "out")
        assert done.rows == sum(task.rows for task in done.tasks)
        tasks = done.tasks
    assert [task.task for task in tasks] == list(range(len(tasks)))
    assert len(tasks) > 2
    assert sum(task.bad_rows for task in tasks) == len(bad) * (1 if what == "messages" else 2)
    assert all(task.io_seconds > 0 and task.decode_seconds > 0 for task in tasks)


@pytest.mark.usefixtures("tasks_here")
def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    write_cut(tmp_path / "raw", captures.capture("16.streams.v2").column, [1000], 300)
    for name in ("one", "two"):
        messages_of(tmp_path / "raw", tmp_path / name)
    one, two = (without_times(tmp_path / name) for name in ("one", "two"))
    assert one == two


@pytest.mark.usefixtures("tasks_here")
def test_files_of_other_attempts_are_not_in_the_output(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_cut(tmp_path / "raw", captures.capture("16.streams.v2").column, [], 300)
    messages_of(tmp_path / "raw", tmp_path / "once")
    run = file_route.run_tasks

    def run_more(spark: Any, work: Any, tasks: list[Task]) -> Any:
        run(spark, work, tasks[:3])
        # A killed attempt has no result, and its file is incomplete.
        (tmp_path / "out" / LOG / "new" / "killed").write_bytes(b"PAR1")
        done = run(spark, work, tasks)
        run(spark, work, tasks[1:])
        return done

    monkeypatch.setattr(file_route, "run_tasks", run_more)
    messages_of(tmp_path / "raw", tmp_path / "out")
    assert sorted(os.listdir(tmp_path / "out")) == sorted(os.listdir(tmp_path / "once"))
    once, out = (without_times(tmp_path / name) for name in ("once", "out"))
    assert once == out


@pytest.mark.usefixtures("tasks_here")
def test_a_part_that_is_not_as_its_task_wrote_it_is_not_committed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_cut(tmp_path / "raw", captures.capture("16.streams.v2").column, [], 300)
    run = file_route.run_tasks

    def run_and_cut(spark: Any, work: Any, tasks: list[Task]) -> Any:
        done = run(spark, work, tasks)
        os.truncate(done[2][0].written.path, 10)
        return done

    monkeypatch.setattr(file_route, "run_tasks", run_and_cut)
    with pytest.raises(OSError, match="has 10 bytes, its task wrote"):
        messages_of(tmp_path / "raw", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("tasks_here")
def test_kept_columns_take_the_type_of_the_first_file_or_the_job_fails(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    for name, kept in (("a", pa.array([1], pa.int64())), ("b", pa.array([2], pa.int32()))):
        pq.write_table(pa.table({"kept": kept, "data": [b"E"]}), raw / f"{name}.parquet")
    messages_of(raw, tmp_path / "out", keep=("kept",), fields=("kind",))
    found = read_back(tmp_path / "out")
    assert found.schema.field("kept").type == pa.int64()
    assert sorted(found["kept"].to_pylist()) == [1, 2]
    pq.write_table(pa.table({"kept": ["x"], "data": [b"E"]}), raw / "c.parquet")
    with pytest.raises(FileFault, match=r"c\.parquet: column 'kept' is string and does not fit int64"):
        messages_of(raw, tmp_path / "new", keep=("kept",))


MEASURED = """
import sys
from pathlib import Path
from pgdecode.files.payload_files import payload_files
from pgdecode.rows.options import Options
from spark_udfs.jobs import file_route
from spark_udfs.jobs.job_config import ChangeJob
from support.file_jobs import write_changes
file_route.run_tasks = lambda spark, work, tasks: [work(task) for task in tasks]
file_route._task_bytes = lambda spark, n_bytes: 2**40
files = payload_files(Path(sys.argv[1]), "data", ("seq",))
names = ("public.pgbench_accounts", None)
config = ChangeJob(names, None, Options(), None, "parquet")
write_changes(files, config, Path(sys.argv[2]), has_time=False)
with open("/proc/self/status") as status:
    print(next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")))
"""


@pytest.mark.full
@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_memory_of_a_task_does_not_grow_with_its_file(tmp_path: Path) -> None:
    recorded = pq.read_table(clone.path_of("benchmarks/data/pgbench.text.parquet"))["data"]
    column = recorded.combine_chunks()
    column = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
    peaks = []
    for times in (16, 64):
        source = tmp_path / f"{times}.parquet"
        with pq.ParquetWriter(source, pa.schema([("seq", pa.int64()), ("data", pa.binary())])) as file:
            for number in range(times):
                positions = pa.array(range(number * len(column), (number + 1) * len(column)), pa.int64())
                file.write_table(pa.table({"seq": positions, "data": column.cast(pa.binary())}))
        command = [sys.executable, "-c", MEASURED, str(source), str(tmp_path / f"{times}")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        peaks.append(int(done.stdout))
    # The larger file has 100 MB more payloads, and even more changes. The allocator alone makes 40 MB of difference.
    assert peaks[1] - peaks[0] < 70_000, peaks
