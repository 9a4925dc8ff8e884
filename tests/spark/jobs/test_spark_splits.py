"""Speculative decoding of splits: one pass if it succeeds, and the same output if it fails."""

from __future__ import annotations

import pickle
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pgdecode
from pgdecode._native.arrow.payload_array import Source
from pgdecode._native.wire.message_filter import tagged
from pgdecode.datasets.manifest import OutputFile
from pgdecode.files.ordered_files import OrderFault
from pgdecode.files.payload_file import FileFault
from pgdecode.files.payload_files import payload_files
from pgdecode.partitions.split_statistics import SplitStatistics, SplitStatisticsReader, from_ipc, row_numbers
from pgdecode.protocol.boundaries import ALWAYS_NEEDED, BEGIN_COMMIT
from pgdecode.rows.options import Options
from spark_udfs.dataframes import partition_worker
from spark_udfs.dataframes.partition_worker import DecodedPartition
from spark_udfs.jobs import file_route, splits
from spark_udfs.jobs.file_tasks import ChangeTask, SplitStatisticsTask, SplitTask
from spark_udfs.jobs.job_config import ChangeJob
from support import captures, clone
from support.file_jobs import folders_of, write_changes
from support.generators.slot import Slot

A, B = 20001, 20002


class Tasks:
    """Runs tasks one after the other in this process, after pickling. Counts the tasks of each kind.

    The split statistics with speculative decoding must equal those without it, except for repeated relations.
    """

    def __init__(self, attempts: int = 1) -> None:
        self.attempts = attempts
        self.n_by_kind: dict[str, int] = {}

    def __call__(self, spark: None, work: Any, tasks: list[Any]) -> list[Any]:
        name = type(work).__name__
        self.n_by_kind[name] = self.n_by_kind.get(name, 0) + len(tasks)
        found = []
        for task in tasks:
            attempts = [
                pickle.loads(pickle.dumps(work))(pickle.loads(pickle.dumps(task))) for _ in range(self.attempts)
            ]
            found.append(attempts[-1])
            if isinstance(work, SplitStatisticsTask) and attempts[-1].statistics is not None:
                in_full = attempts[-1].statistics.in_full
                alone = replace(work, work=None)(task).statistics if in_full else without_decoding(task, work.work)
                assert plain(attempts[-1].statistics) == plain(alone)
        return found

    @property
    def n_decoded_again(self) -> int:
        """Number of tasks that decoded with the final index."""
        return self.n_by_kind.get("ChangeTask", 0)


def without_decoding(task: SplitTask, work: ChangeTask) -> SplitStatistics:
    """The split statistics of speculative decoding, by the first bytes of the payloads."""
    reader = SplitStatisticsReader(in_full=False, with_head=work.options.start == "anywhere")
    for positions, payloads in task.split.batches(work.position):
        control, first_end, last_end, tags = tagged(Source([payloads]), ALWAYS_NEEDED, BEGIN_COMMIT)
        reader._record(positions, payloads, tags, row_numbers(control), first_end, last_end, None)
    return reader.split_statistics()


def plain(split_statistics: SplitStatistics) -> SplitStatistics:
    """Split statistics with sorted messages, without repeated Relation messages and the last commits.

    Statistics without decoding do not have the last commits.
    """
    said: dict[bytes, bytes] = {}
    messages = []
    for message in from_ipc(split_statistics.messages).combine_chunks().sort_by("position").to_pylist():
        payload = message["payload"]
        if payload[:1] == b"Y":
            said.clear()
        elif payload[:1] == b"R":
            if said.get(payload[1:5]) == payload:
                continue
            said[payload[1:5]] = payload
        messages.append(message)
    partitions = tuple(partition._replace(commit=(-1, -1)) for partition in split_statistics.partitions)
    return split_statistics._replace(partitions=partitions, messages=messages)


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> Tasks:
    found = Tasks()
    monkeypatch.setattr(file_route, "run_tasks", found)
    monkeypatch.setattr(file_route, "_task_bytes", lambda spark, n_bytes: 1)
    return found


def change_job(*names: str | None, **options: Any) -> ChangeJob:
    return ChangeJob(names or (None,), None, Options(**options), None, "parquet")


def written(
    folder: Path, payloads: list[bytes], cuts: list[int], group_rows: int = 10_000, statistics: bool = True
) -> list[Any]:
    """Write a file for each slice of payloads between cuts."""
    folder.mkdir()
    for start, end in pairwise([0, *cuts, len(payloads)]):
        table = pa.table({"seq": pa.array(range(start, end), pa.int64()), "data": payloads[start:end]})
        path = folder / f"{start:05}.parquet"
        pq.write_table(table, path, row_group_size=group_rows, write_statistics=statistics)
    return payload_files(folder, "data", ("seq",))


def output_files(files: list[Any], wanted: ChangeJob, target: Path) -> Sequence[OutputFile]:
    """Decode files, and return what the manifest says of the output's files."""
    return write_changes(files, wanted, target).files


def decoded(files: list[Any], wanted: ChangeJob, target: Path) -> dict[str | None, list[dict[str, Any]]]:
    """Decode files, and read the rows of each output in order."""
    output_files(files, wanted, target)
    return {
        name: [row for part in sorted(place.glob("part-*.parquet")) for row in pq.read_table(part).to_pylist()]
        for name, place in folders_of(wanted, target).items()
    }


def expected(payloads: list[bytes], wanted: ChangeJob) -> dict[str | None, list[dict[str, Any]]]:
    """The rows of one decoder. For plain transactions they are in slot order."""
    found = {}
    options = {"mode": wanted.options.mode, "include_uncommitted": wanted.options.include_uncommitted}
    for name in wanted.names:
        decoder = pgdecode.ChangeDecoder(**options)
        if name is None:
            found[name] = decoder.decode(payloads, range(len(payloads))).to_pylist()
        else:
            found[name] = decoder.table(payloads, name, range(len(payloads))).to_pylist()
        if wanted.options.include_uncommitted:
            found[name] += decoder.undecided(name).to_pylist()
    return found


def transactions(n: int, rows: int = 3, after: int = 0x1000) -> Slot:
    """Transactions of one table, described in the first, with LSNs after one."""
    slot = Slot()
    slot.lsn = after
    for number in range(n):
        slot.begin(700 + number)
        if not number:
            slot.relation(A, ["a", "b"])
        for row in range(rows):
            slot.insert(A, str(number), str(row))
        slot.commit()
    return slot


@pytest.mark.full
@pytest.mark.parametrize("mode", ["FAILFAST", "PERMISSIVE", "DROPMALFORMED"])
def test_plain_transactions_are_decoded_in_one_pass_wherever_files_and_row_groups_end(
    mode: str, tasks: Tasks, rng: random.Random, tmp_path: Path
) -> None:
    payloads = transactions(60).payloads
    # Each piece has a Begin.
    cuts = [place + rng.randrange(5) for place in range(50, 300, 50)]
    wanted = change_job(None, f"public.t{A}", mode=mode)
    found = decoded(written(tmp_path / "raw", payloads, cuts, 20), wanted, tmp_path / "out")
    assert found == expected(payloads, wanted)
    assert tasks.n_by_kind["SplitStatisticsTask"] > 10
    assert tasks.n_decoded_again == 0


@pytest.mark.parametrize(
    "positions",
    [
        pytest.param([4, 5, 6, 8], id="one left out"),
        pytest.param([4, 5, None, 6], id="a null"),
        pytest.param([-1, 0, 1, 2], id="negative"),
        pytest.param([2**63 - 1, 2**63, 2**63 + 1, 2**63 + 2], id="past int64"),
    ],
)
def test_statistics_give_no_positions_that_do_not_increase_by_one(positions: list[int | None], tmp_path: Path) -> None:
    type = pa.uint64() if max(item or 0 for item in positions) > 2**63 else pa.int64()
    table = pa.table({"seq": pa.array(positions, type), "data": [b"E"] * 4})
    pq.write_table(table, tmp_path / "raw.parquet")
    [file] = payload_files(tmp_path, "data", ("seq",))
    assert [group.counted_from("seq") for group in file.groups] == [None]


@pytest.mark.full
def test_small_files_are_decoded_together_in_one_pass_and_named_apart(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch, rng: random.Random, tmp_path: Path
) -> None:
    payloads = transactions(200).payloads
    cuts = sorted(rng.sample(range(1, len(payloads)), 120))
    files = written(tmp_path / "raw", payloads, cuts)
    # Files may differ in the type of the payloads.
    for file in files[1::3]:
        table = pq.read_table(file.path)
        pq.write_table(table.cast(table.schema.set(1, pa.field("data", pa.large_binary()))), file.path)
    files = payload_files(tmp_path / "raw", "data", ("seq",))
    monkeypatch.setattr(file_route, "_task_bytes", lambda spark, n_bytes: n_bytes // 5)
    wanted = change_job(None, f"public.t{A}")
    written_files = output_files(files, wanted, tmp_path / "again")
    assert decoded(files, wanted, tmp_path / "out") == expected(payloads, wanted)
    # The output of each task names the files and rows that it was decoded from.
    assert 2 * 4 <= tasks.n_by_kind["SplitStatisticsTask"] <= 2 * 7
    assert tasks.n_decoded_again == 0
    of_changes = written_files[: len(written_files) // 2]
    places = [(item["file"], item["first_row"], item["rows"]) for file in of_changes for item in file.input]
    counts: dict[str, int] = {}
    for name, first, n_rows in places:
        assert first == counts.get(name, 0)
        counts[name] = first + n_rows
    assert counts == {str(file.path): file.n_rows for file in files}


@pytest.mark.full
@pytest.mark.parametrize("by_file", [True, False], ids=["in the middle", "in the rows of the next split"])
def test_a_bad_payload_among_small_files_is_named_by_its_file_and_row(
    by_file: bool, tasks: Tasks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    payloads = transactions(100, 9).payloads
    cuts = [*range(4, len(payloads), 4)]
    monkeypatch.setattr(file_route, "_task_bytes", lambda spark, n_bytes: n_bytes // 3)
    files = written(tmp_path / "raw", payloads, cuts)
    groups = file_route._grouped(None, files)  # type: ignore[arg-type]
    # An insert that is not the first row of its file; or one of a transaction that began in the split before.
    first = int(groups[1][0].path.stem)
    places = range(first + 40, len(payloads)) if by_file else range(first, first + 40)
    row = next(at for at in places if payloads[at][:1] == b"I" and (at % 4 or not by_file))
    payloads[row] = payloads[row][:-1]
    for file in (tmp_path / "raw").iterdir():
        file.unlink()
    (tmp_path / "raw").rmdir()
    files = written(tmp_path / "raw", payloads, cuts)
    with pytest.raises(FileFault, match=rf"/{row // 4 * 4:05}\.parquet: row {row % 4}, position {row}: TRUNCATED"):
        decoded(files, change_job(None), tmp_path / "out")


def test_a_capture_of_plain_transactions_is_decoded_in_one_pass(tasks: Tasks, tmp_path: Path) -> None:
    payloads = pq.read_table(clone.path_of("benchmarks/data/pgbench.text.parquet"))["data"].to_pylist()
    payloads = payloads[:20_000]
    wanted = change_job("public.pgbench_accounts", None)
    found = decoded(written(tmp_path / "raw", payloads, [3_000, 15_001], 5_000), wanted, tmp_path / "out")
    assert found == expected(payloads, wanted)
    assert tasks.n_decoded_again == 0


def test_a_table_that_changes_midway_is_decoded_again_with_all_its_columns(tasks: Tasks, tmp_path: Path) -> None:
    slot = transactions(20)
    slot.begin(800)
    slot.relation(A, ["a", "b", "c"])
    slot.insert(A, "1", "2", "3")
    slot.commit()
    payloads = [*slot.payloads, *transactions(10).payloads[2:-1]]
    wanted = change_job(f"public.t{A}", mode="PERMISSIVE")
    # After the previewed rows of each piece.
    found = decoded(written(tmp_path / "raw", payloads, [40], 70_000), wanted, tmp_path / "out")
    assert found == expected(payloads, wanted)


def test_only_tasks_that_need_a_relation_described_late_decode_again(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(splits, "_READ_ROWS", 10)
    monkeypatch.setattr(splits, "DECODE_ROWS", 10)
    monkeypatch.setattr(splits, "_PREVIEW_ROWS", 10)
    slot = transactions(20)
    slot.begin(800)
    slot.relation(B, ["a"])
    slot.insert(B, "1")
    slot.commit()
    n_before = len(slot.payloads)
    second = transactions(20, after=slot.lsn)
    # The relation is not described again.
    slot.payloads += [second.payloads[0], *second.payloads[2:]]
    slot.lsn = second.lsn
    n_second = len(slot.payloads)
    slot.begin(900)
    slot.insert(B, "2")
    slot.commit()
    payloads = slot.payloads
    cuts = [40, 80, n_before, n_before + 50, n_second]
    files = written(tmp_path / "raw", payloads, cuts)
    wanted = change_job(None, f"public.t{A}")
    found = decoded(files, wanted, tmp_path / "out")
    assert found == expected(payloads, wanted)
    assert tasks.n_by_kind["SplitStatisticsTask"] == 6
    # The task with the Relation message, and the last one, which has a row of this version.
    assert tasks.n_decoded_again == 2


def test_a_transaction_that_ends_far_in_the_next_piece_is_decoded_again(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(splits, "_PREVIEW_ROWS", 8)
    first = transactions(20)
    second = transactions(3, 40, after=first.lsn)
    payloads = [*first.payloads, *second.payloads[:1], *second.payloads[2:]]
    n = len(first.payloads)
    wanted = change_job(None, mode="PERMISSIVE")
    found = decoded(written(tmp_path / "raw", payloads, [20, 40, n + 10, n + 44]), wanted, tmp_path / "out")
    assert found == expected(payloads, wanted)
    # The tasks where it begins and ends, and the next one, which begins inside another transaction.
    assert tasks.n_decoded_again == 3


@pytest.mark.full
@pytest.mark.parametrize("name", ["18.streams.v4", "18.twophase.v3"])
def test_streams_and_two_phase_commits_are_decoded_with_the_final_index(
    name: str, tasks: Tasks, tmp_path: Path
) -> None:
    payloads = list(captures.capture(name).payloads)
    files = written(tmp_path / "raw", payloads, [len(payloads) // 2], 100)
    found = decoded(files, change_job(None), tmp_path / "out")[None]
    by_row = sorted(map(repr, found))
    assert by_row == sorted(map(repr, expected(payloads, change_job(None))[None]))
    assert tasks.n_decoded_again == tasks.n_by_kind["SplitStatisticsTask"]


def test_a_stream_that_begins_and_ends_in_a_piece_is_decoded_with_the_final_index(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # After the previewed rows.
    for name in ("_READ_ROWS", "DECODE_ROWS", "_PREVIEW_ROWS"):
        monkeypatch.setattr(splits, name, 10)
    slot = transactions(20)
    slot.start(900, first=True)
    slot.insert(A, "s", "s", xid=900)
    slot.stop()
    slot.stream_commit(900)
    cut = len(slot.payloads)
    slot.payloads += transactions(20, after=slot.lsn).payloads
    found = decoded(written(tmp_path / "raw", slot.payloads, [cut]), change_job(None), tmp_path / "out")
    assert found == expected(slot.payloads, change_job(None))
    assert tasks.n_decoded_again == 1


@pytest.mark.parametrize("include_uncommitted", [False, True])
def test_a_begin_that_is_sent_again_may_be_the_last_end_of_its_piece(
    include_uncommitted: bool, tasks: Tasks, tmp_path: Path
) -> None:
    slot = transactions(5)
    slot.begin(800)
    slot.payloads.append(slot.payloads[-1])
    slot.insert(A, "3", "4")
    wanted = change_job(None, mode="PERMISSIVE", include_uncommitted=include_uncommitted)
    assert decoded(written(tmp_path / "raw", slot.payloads, []), wanted, tmp_path / "out") == expected(
        slot.payloads, wanted
    )


def test_a_commit_in_another_batch_than_its_begin_is_an_end(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(splits, "_READ_ROWS", 4)
    monkeypatch.setattr(partition_worker, "_ENOUGH_ROWS", 4)
    slot = transactions(7, 9)
    cut = len(slot.payloads)
    slot.payloads += transactions(3, after=slot.lsn).payloads
    found = decoded(written(tmp_path / "raw", slot.payloads, [cut]), change_job(None), tmp_path / "out")
    assert found == expected(slot.payloads, change_job(None))
    assert tasks.n_decoded_again == 0


@pytest.mark.full
def test_failed_and_repeated_attempts_leave_no_trace(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    payloads = transactions(60).payloads
    files = written(tmp_path / "raw", payloads, [33, 90], 20)
    monkeypatch.setattr(file_route, "_task_bytes", lambda spark, n_bytes: 1)
    outputs = []
    for attempts in (1, 2):
        monkeypatch.setattr(file_route, "run_tasks", Tasks(attempts))
        outputs.append(output_files(files, change_job(None), tmp_path / f"out{attempts}"))
        names = [path.name for path in (tmp_path / f"out{attempts}" / "_pgdecode").iterdir()]
        assert sorted(names) == ["0000000001.json", "state-0000000001.json.zst"]
    assert outputs[0] == outputs[1]


def test_the_manifest_names_each_row_of_the_input_once(tasks: Tasks, tmp_path: Path) -> None:
    payloads = transactions(60).payloads
    files = written(tmp_path / "raw", payloads, [33, 90], 20)
    rows: list[int] = []
    for part in output_files(files, change_job(None), tmp_path / "out"):
        for piece in part.input:
            offset = int(Path(piece["file"]).stem)
            rows += range(offset + piece["first_row"], offset + piece["first_row"] + piece["rows"])
    assert rows == list(range(len(payloads)))


@st.composite
def sequences(draw: st.DrawFn) -> list[bytes]:
    """Transactions of tables that are described again, late, or never. Some transactions have no end."""
    slot = Slot()
    described: set[int] = set()
    for number in range(draw(st.integers(1, 12))):
        slot.begin(700 + number)
        for _ in range(draw(st.integers(0, 5))):
            table = draw(st.sampled_from([A, B]))
            what = draw(st.sampled_from(["insert", "insert", "insert", "describe", "truncate"]))
            if what == "describe" or table not in described:
                version = draw(st.integers(0, 2))
                # All versions have the same width, so a row with a wrong version has other names.
                slot.relation(table, [f"a{version}", "b"])
                described.add(table)
            elif what == "truncate":
                slot.truncate(table)
            else:
                slot.insert(table, str(number), None)
        if draw(st.integers(0, 9)):
            slot.commit()
    return slot.payloads


@pytest.mark.full
@settings(max_examples=20)
@given(sequences(), st.data())
def test_any_sequence_gives_the_rows_of_one_decoder_in_its_order(
    tmp_path_factory: pytest.TempPathFactory, payloads: list[bytes], data: st.DataObject
) -> None:
    places = st.integers(1, max(len(payloads) - 1, 1))
    cuts = sorted(item for item in data.draw(st.sets(places, max_size=4)) if item < len(payloads))
    folder = tmp_path_factory.mktemp("spans")
    files = written(folder / "raw", payloads, cuts, data.draw(st.integers(1, 30)), data.draw(st.booleans()))
    names: tuple[str | None, ...] = (None,)
    if any(payload[:1] == b"R" for payload in payloads):
        name = pgdecode.RelationCatalog.from_messages(payloads).names[0]
        names = data.draw(st.sampled_from([(name,), (None, name)]))
    wanted = change_job(*names, mode="PERMISSIVE", include_uncommitted=data.draw(st.booleans()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_route, "run_tasks", Tasks())
        patch.setattr(file_route, "_task_bytes", lambda spark, n_bytes: 1)
        patch.setattr(splits, "_READ_ROWS", data.draw(st.sampled_from([3, 65_536])))
        patch.setattr(splits, "DECODE_ROWS", data.draw(st.sampled_from([3, 65_536])))
        patch.setattr(splits, "_PREVIEW_ROWS", data.draw(st.sampled_from([2, 1024])))
        try:
            rows_of = expected(payloads, wanted)
        except KeyError:
            # No committed transaction has sent or used the table. A task with few boundaries may not know that.
            with suppress(KeyError):
                found = decoded(files, wanted, folder / "out")
                assert all(row["_op"] is None for row in found[names[-1]])
            return
        found = decoded(files, wanted, folder / "out")
    for name, rows in rows_of.items():
        assert sorted(map(repr, found[name])) == sorted(map(repr, rows))


def test_a_requested_column_may_be_described_late(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(splits, "_READ_ROWS", 10)
    monkeypatch.setattr(splits, "DECODE_ROWS", 10)
    slot = transactions(20)
    slot.begin(800)
    slot.relation(A, ["a", "b", "c"])
    slot.insert(A, "1", "2", "3")
    slot.commit()
    name = f"public.t{A}"
    wanted = replace(change_job(name), fields=("c", "_op"))
    found = decoded(written(tmp_path / "raw", slot.payloads, []), wanted, tmp_path / "out")[name]
    assert found == [{"c": row["c"], "_op": row["_op"]} for row in expected(slot.payloads, change_job(name))[name]]
    assert found[-1] == {"c": "3", "_op": "insert"}


def test_an_error_that_speculation_does_not_expect_is_raised(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def mistake(*arguments: Any) -> None:
        raise IndexError("a mistake of ours")

    monkeypatch.setattr(DecodedPartition, "add", mistake)
    with pytest.raises(IndexError, match="a mistake of ours"):
        decoded(written(tmp_path / "raw", transactions(3).payloads, []), change_job(None), tmp_path / "out")
    assert tasks.n_decoded_again == 0


def described_badly() -> Slot:
    """Transactions of a table whose first Relation message is bad, and whose second is valid."""
    slot = Slot()
    slot.begin(700)
    slot.relation(A, ["a", "b"])
    slot.payloads[-1] = slot.payloads[-1][:-3]
    slot.commit()
    slot.payloads += transactions(10).payloads
    return slot


def test_a_bad_description_in_a_preview_does_not_affect_later_ones(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(splits, "_READ_ROWS", 3)
    monkeypatch.setattr(splits, "DECODE_ROWS", 3)
    monkeypatch.setattr(splits, "_PREVIEW_ROWS", 3)
    payloads = described_badly().payloads
    wanted = change_job(None, mode="PERMISSIVE")
    found = decoded(written(tmp_path / "raw", payloads, [24]), wanted, tmp_path / "out")
    assert found == expected(payloads, wanted)
    with pytest.raises(FileFault, match=r"00000\.parquet: row 1, position 1: TRUNCATED"):
        decoded(payload_files(tmp_path / "raw", "data", ("seq",)), change_job(None), tmp_path / "new")


def test_the_manifest_is_right_of_a_file_whose_row_groups_lie_in_another_order(tasks: Tasks, tmp_path: Path) -> None:
    payloads = transactions(20).payloads
    table = pa.table({"seq": pa.array(range(len(payloads)), pa.int64()), "data": payloads})
    (tmp_path / "raw").mkdir()
    with pq.ParquetWriter(tmp_path / "raw" / "0.parquet", table.schema) as file:
        # In the middle of a transaction.
        file.write_table(table.slice(48))
        file.write_table(table.slice(0, 48))
    files = payload_files(tmp_path / "raw", "data", ("seq",))
    assert decoded(files, change_job(None), tmp_path / "out") == expected(payloads, change_job(None))
    parts = output_files(files, change_job(None), tmp_path / "again")
    pieces = [(piece["first_row"], piece["rows"]) for part in parts for piece in part.input]
    n = len(payloads) - 48
    # Three rows more than the second row group has. They are from the first one.
    assert pieces == [(n, 48), (0, 3), (3, n - 3)]


def test_a_row_group_that_takes_one_task_long_is_reported(
    tasks: Tasks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    payloads = captures.capture("18.shop.v1").payloads
    files = written(tmp_path / "raw", payloads, [10], group_rows=len(payloads))
    monkeypatch.setattr(splits, "_LARGE_BYTES", max(file.n_bytes for file in files) - 1)
    with pytest.warns(RuntimeWarning, match=rf"00010\.parquet: row group 0 has {len(payloads) - 10:,} rows with 0 MiB"):
        output_files(files, change_job(), tmp_path / "out")


def small(folder: Path, columns: Sequence[pa.Array], payloads: Sequence[bytes] = (b"B",)) -> splits.Split:
    """One split of small files with these positions."""
    folder.mkdir()
    for number, column in enumerate(columns):
        data = pa.array([payloads[row % len(payloads)] for row in range(len(column))], pa.binary())
        pq.write_table(pa.table({"seq": column, "data": data}), folder / f"{number}.parquet")
    return splits.Split(tuple(file for file in payload_files(folder, "data", ("seq",)) if file.n_rows))


def test_batches_of_small_files_are_joined(tmp_path: Path) -> None:
    split = small(tmp_path / "in", [pa.array([1, 2]), pa.array([5]), pa.array([7, 9])])
    [(positions, payloads)] = replace(split, n_skipped=1).batches("seq")
    assert (positions.to_pylist(), payloads.to_pylist()) == ([2, 5, 7, 9], [b"B"] * 4)
    place = split.row_of(9, "seq")
    assert place is not None
    assert (str(place[0].path.name), place[1]) == ("2.parquet", 1)


@pytest.mark.parametrize(
    ("columns", "error"),
    [
        ([pa.array([1, 2]), pa.array([3, 3])], r"1\.parquet: row 1: seq 3 does not come after 3; "),
        ([pa.array([1, 2]), pa.array([2, 3])], r"1\.parquet: row 0: seq 2 does not come after 2 of .*/0\.parquet; "),
        ([pa.array([1, 2]), pa.array([3, None])], r"1\.parquet: row 1: seq is null"),
        ([pa.array([1], pa.uint64()), pa.array([2**63], pa.uint64())], r"1\.parquet: rows from 0: seq exceeds 2"),
    ],
)
def test_a_wrong_position_in_a_small_file_has_its_place(tmp_path: Path, columns: list[pa.Array], error: str) -> None:
    split = small(tmp_path / "in", columns)
    found = []
    with pytest.raises(OrderFault, match=error):
        found.extend(split.batches("seq"))
    assert found[0][0].to_pylist()[0] == 1


def test_small_files_with_other_types_and_frames_are_read_one_by_one(tmp_path: Path) -> None:
    frame = b"w" + bytes(24) + b"B"
    columns = [pa.array([1, 2], pa.int32()), pa.array([5]), pa.array([6]), pa.array([7], pa.uint8())]
    split = small(tmp_path / "in", columns, [b"B", frame])
    found = list(split.batches("seq"))
    assert [position for positions, _ in found for position in positions.to_pylist()] == [1, 2, 5, 6, 7]
    assert [payload for _, payloads in found for payload in payloads.to_pylist()] == [b"B"] * 5


@pytest.mark.full
@pytest.mark.parametrize("n_rows", [3, 100])
@pytest.mark.parametrize("mode", ["FAILFAST", "PERMISSIVE"])
def test_a_bad_payload_in_a_small_file_has_its_place(
    tmp_path: Path, tasks: Tasks, monkeypatch: pytest.MonkeyPatch, n_rows: int, mode: Any
) -> None:
    monkeypatch.setattr(file_route, "_task_bytes", lambda spark, n_bytes: 1 << 20)
    payloads = list(captures.capture("18.shop.v1").payloads)
    bad = next(row for row in range(500, len(payloads)) if payloads[row][:1] == b"U")
    payloads[bad] = payloads[bad][:-1]
    files = written(tmp_path / "in", payloads, list(range(n_rows, len(payloads), n_rows)))
    wanted = change_job(mode=mode)
    if mode == "PERMISSIVE":
        assert decoded(files, wanted, tmp_path / "out") == expected(payloads, wanted)
        return
    first = bad // n_rows * n_rows
    with pytest.raises(FileFault, match=rf"{first:05}\.parquet: row {bad - first}, position {bad}: "):
        decoded(files, wanted, tmp_path / "out")
