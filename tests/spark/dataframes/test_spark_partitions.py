"""The functions of tasks, without Spark: partitions decoded independently give the same changes as one decoder."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

import pgdecode
from pgdecode.changes.checkpoint import state_to_json
from pgdecode.partitions.partition_index import Partition, PartitionIndex, index_partitions
from pgdecode.protocol.boundaries import ALWAYS_NEEDED, BEGIN_COMMIT, STREAM_AND_TWO_PHASE, needed
from pgdecode.protocol.options import ChangeOptions
from pgdecode.rows.value_options import ValueOptions
from spark_udfs.dataframes import partition_worker as tasks
from spark_udfs.dataframes.outputs import ChangeOutput
from spark_udfs.dataframes.partition_worker import PackedIndex, PartitionDecodingFunction
from support import captures
from support.oracles import expected_changes

Rows = list[dict[str, Any]]


def as_set(rows: Rows) -> list[str]:
    """Rows as sorted texts. Maps are lists of pairs, and become dicts."""
    return sorted(
        repr([dict(value) if name in ("old", "new") and value is not None else value for name, value in row.items()])
        for row in rows
    )


def whole(payloads: pa.Array, positions: pa.Array, options: ChangeOptions) -> Rows:
    """The changes that one decoder returns for all payloads in order."""
    decoder = pgdecode.ChangeDecoder(mode=options.mode, include_uncommitted=options.include_uncommitted)
    rows = decoder.decode(payloads, positions).to_pylist()
    if options.include_uncommitted:
        rows += decoder.undecided().to_pylist()
    return rows


def indexed(payloads: pa.Array, positions: pa.Array, cuts: list[int]) -> tuple[PartitionIndex, tuple[int, ...]]:
    """The index of the runs between cuts, from only the required messages; and the sizes of the runs."""
    tags = [payload[:1] for payload in payloads.to_pylist()]
    wanted = {at for at, tag in enumerate(tags) if tag in ALWAYS_NEEDED}
    runs = []
    in_full = any(tag and tag in STREAM_AND_TWO_PHASE for tag in tags)
    bounds = [0, *cuts, len(payloads)]
    for start, end in pairwise(bounds):
        ends = [at for at in range(start, end) if tags[at] in BEGIN_COMMIT]
        wanted |= set(ends[:1] + ends[-1:])
        if in_full:
            control = [at for at in range(start, end) if tags[at] and tags[at] in ALWAYS_NEEDED + BEGIN_COMMIT]
            wanted |= {control[place] for place in needed([payloads[at].as_py() for at in control])}
        has_rows = any(tag in b"IUDT" for tag in tags[start:end])
        runs.append(Partition(positions[start].as_py(), positions[end - 1].as_py(), has_rows))
    places = sorted(wanted)
    index = index_partitions(payloads.take(places), positions.take(places), runs, in_full=in_full)
    return index, tuple(end - start for start, end in pairwise(bounds))


def batches(payloads: pa.Array, positions: pa.Array, start: int, end: int, size: int) -> Iterator[pa.RecordBatch]:
    for at in range(start, end, size):
        n = min(size, end - at)
        yield pa.RecordBatch.from_arrays([positions.slice(at, n), payloads.slice(at, n)], names=["position", "payload"])


def function(index: PartitionIndex, counts: tuple[int, ...], options: ChangeOptions) -> PartitionDecodingFunction:
    product = ChangeOutput(ValueOptions())
    return PartitionDecodingFunction(
        (PackedIndex.of(None, index, counts),), product, options, tuple(product.schema.names), None
    )


@pytest.mark.full
def test_partitions_of_a_capture_give_the_changes_of_one_decoder(
    capture: captures.Capture, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "DECODE_ROWS", rng.choice([1, 3, 50, 10_000]) if len(capture.column) < 3000 else 500)
    n = len(capture.column)
    n_partitions = rng.choice([2, 20, 100])
    # Positions have gaps.
    positions = pa.array([3 * at for at in range(n)], pa.int64())
    cuts = sorted(rng.sample(range(1, n), min(n_partitions, n) - 1))
    index, counts = indexed(capture.column, positions, cuts)
    middle = cuts[len(cuts) // 2]
    for include_uncommitted in (False, True):
        options = ChangeOptions("PERMISSIVE", include_uncommitted)
        task = function(index, counts, options)
        found: Rows = []
        # A task may have several runs.
        for start, end in ((0, middle), (middle, n)):
            for batch in task(batches(capture.column, positions, start, end, rng.choice([100, 1000]))):
                found += batch.to_pylist()
        assert as_set(found) == as_set(whole(capture.column, positions, options))


@pytest.mark.parametrize("name", expected_changes.TEXT)
def test_partitions_of_a_capture_give_the_references_changes(name: str, rng: random.Random) -> None:
    column = captures.capture(name).column
    positions = pa.array(range(len(column)), pa.int64())
    cuts = sorted(rng.sample(range(1, len(column)), 20))
    task = function(*indexed(column, positions, cuts), ChangeOptions(include_uncommitted=True))
    found = [row for batch in task(batches(column, positions, 0, len(column), 1000)) for row in batch.to_pylist()]
    compared = ("position", "commit_position", "op", "xid", "subxid", "relation_name", "old", "new", "unchanged")
    expected = expected_changes.as_sent(name, True)
    assert as_set([{part: row[part] for part in compared} for row in found]) == as_set(
        [{part: row[part] for part in compared} for row in expected]
    )


def test_an_index_is_the_same_in_another_process(capture: captures.Capture, rng: random.Random) -> None:
    positions = pa.array(range(len(capture.column)), pa.int64())
    cuts = sorted(rng.sample(range(1, len(capture.column)), 9))
    index, _ = indexed(capture.column, positions, cuts)
    again = PartitionIndex.unpacked(index.packed())
    assert (again.catalog, again.partitions, again.transaction_outcomes) == (
        index.catalog,
        index.partitions,
        index.transaction_outcomes,
    )
    assert len(again.starts) == len(index.starts) == 10
    assert [state_to_json(start) for start in again.starts] == [state_to_json(start) for start in index.starts]


def first_capture() -> tuple[pa.Array, pa.Array]:
    column = captures.capture("16.streams.v2").column
    return column, pa.array(range(len(column)), pa.int64())


def decode(task: PartitionDecodingFunction, parts: list[tuple[pa.Array, pa.Array]]) -> Rows:
    given = (pa.RecordBatch.from_arrays([positions, payloads], names=["p", "d"]) for payloads, positions in parts)
    return [row for batch in task(given) for row in batch.to_pylist()]


def test_a_run_that_a_task_has_only_partly_is_refused() -> None:
    payloads, positions = first_capture()
    task = function(*indexed(payloads, positions, [1000]), ChangeOptions())
    with pytest.raises(RuntimeError, match=r"^positions 0 to 999: 1000 rows were indexed, 999 were read: .*persist"):
        decode(task, [(payloads.slice(0, 999), positions.slice(0, 999))])


def test_a_position_that_was_not_indexed_is_refused() -> None:
    payloads, positions = first_capture()
    task = function(*indexed(payloads, positions, [1000]), ChangeOptions())
    with pytest.raises(RuntimeError, match=r"^position 1000000 is in none of the indexed partitions.*persist"):
        decode(task, [(payloads.slice(0, 1), pa.array([1_000_000], pa.int64()))])


@pytest.mark.parametrize(
    ("taken", "error"),
    [
        pytest.param([[5, 6, 6]], "position 6 occurs twice", id="in a batch"),
        pytest.param([[5, 6], [6]], "position 6 occurs twice", id="between batches"),
        pytest.param([[5, 4]], "position 4 comes after 5: .*persist", id="descending in a batch"),
        pytest.param([[5], [4]], "position 4 comes after 5: .*persist", id="descending between batches"),
    ],
)
def test_positions_that_do_not_ascend_are_refused(taken: list[list[int]], error: str) -> None:
    payloads, positions = first_capture()
    task = function(*indexed(payloads, positions, []), ChangeOptions())
    with pytest.raises((ValueError, RuntimeError), match=error):
        decode(task, [(payloads.take(places), positions.take(places)) for places in taken])


def test_large_changes_come_in_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_BYTES", 4000)
    payloads, positions = first_capture()
    task = function(*indexed(payloads, positions, []), ChangeOptions())
    sizes = {at: len(payload) for at, payload in enumerate(payloads.to_pylist())}
    given = list(task(batches(payloads, positions, 0, len(payloads), 1000)))
    sent = [sum(sizes[position] for position in batch["position"].to_pylist()) for batch in given]
    assert max(sent) <= max(4000, *sizes.values())
    assert as_set([row for batch in given for row in batch.to_pylist()]) == as_set(
        whole(payloads, positions, ChangeOptions())
    )
