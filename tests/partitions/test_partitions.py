"""The runs of a sequence, decoded independently, together give the result of one decoder for the whole."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import pgdecode
from pgdecode import Limits
from pgdecode._native.arrow.payload_array import Source
from pgdecode.changes.change_decoder import ChangeDecoder
from pgdecode.changes.change_rows import ChangeBuilder
from pgdecode.changes.checkpoint import state_from_json, state_to_json
from pgdecode.changes.committed_changes import ChangeSlice
from pgdecode.changes.replication_state import BufferedChanges, CommittedChanges, ReplicationState
from pgdecode.changes.transaction_assembler import TransactionAssembler
from pgdecode.partitions.partition_decoder import PartitionDecoder, StoredDecoder, used_versions
from pgdecode.partitions.partition_index import (
    DISCARDED,
    Partition,
    PartitionIndex,
    first_boundary,
    index_partitions,
    slices,
)
from pgdecode.protocol.boundaries import ALWAYS_NEEDED, BEGIN_COMMIT, STREAM_AND_TWO_PHASE, are_good, needed
from pgdecode.protocol.options import ChangeOptions, Start
from pgdecode.rows.value_options import ValueOptions
from support import captures
from support.change_rows import changes_of, with_errors
from support.generators.sequences import damaged, per_property, random_reader, seeds, sizes
from support.generators.slot import RandomSlot, Slot
from support.oracles.reference_changes import Change

T = 16385
ROWS = (b"I", b"U", b"D", b"T")

_LIMITS = Limits()


def runs_of(payloads: Sequence[bytes], positions: Sequence[int], bounds: Sequence[int]) -> list[Partition]:
    """Runs between the bounds, without empty ones."""
    return [
        Partition(positions[a], positions[b - 1], any(payload[:1] in ROWS for payload in payloads[a:b]))
        for a, b in pairwise([0, *bounds, len(payloads)])
        if a < b
    ]


def indexed(
    payloads: Sequence[bytes],
    positions: Sequence[int],
    runs: list[Partition],
    *,
    of_all: bool = False,
    as_packed: bool = True,
    limits: Limits = _LIMITS,
    start: Start = "transaction",
    reconnects: Collection[int] = (),
    state: ReplicationState | None = None,
    drop_duplicates: bool = False,
    commits: Mapping[int, tuple[int, int]] | None = None,
) -> PartitionIndex:
    """The index, made from the required payloads or from all, as it is or as another process gets it."""
    tags = [payload[0] if payload else 0 for payload in payloads]
    wanted = {at for at, tag in enumerate(tags) if tag in ALWAYS_NEEDED}
    in_full = not wanted.isdisjoint(at for at, tag in enumerate(tags) if tag in STREAM_AND_TWO_PHASE)
    in_full = in_full or drop_duplicates or (state is not None and bool(state.streamed))
    in_full = in_full or not are_good([payload for payload in payloads if payload[:1] in (b"B", b"C")])
    for run in runs:
        inside = [at for at, position in enumerate(positions) if run.first <= position <= run.last]
        ends = [at for at in inside if tags[at] in BEGIN_COMMIT]
        wanted |= {*ends[:1], *ends[-1:]}
        if in_full:
            control = [at for at in inside if tags[at] in ALWAYS_NEEDED + BEGIN_COMMIT]
            wanted |= {control[place] for place in needed([payloads[at] for at in control])}
    if start == "anywhere" or in_full:
        # Transactional logical messages count as rows.
        end = first_boundary(pa.array(payloads, pa.binary()))
        wanted |= {
            at
            for at in range(end if end >= 0 else len(payloads))
            if payloads[at][:1] in ROWS
            or (payloads[at][:1] == b"M" and b"\1" in (payloads[at][1:2], payloads[at][5:6]))
        }
    chosen = list(range(len(payloads))) if of_all else sorted(wanted)
    if commits is None and not in_full:
        found = sorted(
            (run.first, int.from_bytes(payload[2:10], "big"), position)
            for payload, position in zip(payloads, positions, strict=True)
            for run in runs
            if payload[:1] == b"C" and run.first <= position <= run.last
        )
        # Of each run the last one when sorted.
        commits = {first: (lsn, position) for first, lsn, position in found}
    index = index_partitions(
        pa.array([payloads[at] for at in chosen], pa.binary()),
        pa.array([positions[at] for at in chosen], pa.int64()),
        runs,
        limits=limits,
        start=start,
        in_full=in_full or of_all,
        reconnects=reconnects,
        state=state,
        drop_duplicates=drop_duplicates,
        commits=commits,
    )
    twin = PartitionIndex.unpacked(index.packed())
    assert starts_of(twin) == starts_of(index)
    assert (twin.catalog, twin.partitions, twin.transaction_outcomes) == (
        index.catalog,
        index.partitions,
        index.transaction_outcomes,
    )
    return replace(twin, end=index.end) if as_packed else index


def starts_of(index: PartitionIndex) -> list[dict[str, Any]]:
    return [state_to_json(start, with_payloads=False) for start in index.starts]


def rows_of_delivery(builder: ChangeBuilder, found: tuple[TransactionAssembler, CommittedChanges]) -> list[Change]:
    assembler, changes = found
    n = changes.found["rows"].size // 8
    return with_errors(builder.batch(ChangeSlice(assembler, changes, Source(changes.parts), 0, n))) if n else []


def apart(
    payloads: Sequence[bytes],
    bounds: Sequence[int],
    size: int,
    options: ChangeOptions,
    gap: int = 1,
    relation_id: int | None = None,
    sessions: Sequence[int] = (),
    **how: bool,
) -> list[Change]:
    """The changes of each run, decoded in batches, the last run first; optionally of one relation only.

    A run also begins where a session begins.
    """
    positions = [gap * at for at in range(len(payloads))]
    runs = runs_of(payloads, positions, sorted({*bounds, *(at for at in sessions if 0 < at < len(payloads))}))
    reconnects = {gap * at for at in sessions}
    index = indexed(payloads, positions, runs, limits=options.limits, start=options.start, reconnects=reconnects, **how)
    builder = ChangeBuilder(list(index.catalog), ValueOptions(), options)
    versions = None
    if relation_id is not None:
        versions = {number for number, item in enumerate(index.catalog) if item.relation_id == relation_id}
    rows = []
    for number, start, end in reversed(list(slices(index, positions))):
        decoder = PartitionDecoder(index, number, options, versions)
        for at in range(start, end, size):
            to = min(at + size, end)
            rows += rows_of_delivery(
                builder, decoder.follow(pa.array(payloads[at:to], pa.binary()), pa.array(positions[at:to], pa.int64()))
            )
        rows += rows_of_delivery(builder, decoder.finish())
    return in_order(rows)


def together(payloads: Sequence[bytes], gap: int = 1, **options: Any) -> list[Change]:
    decoder = ChangeDecoder(**options)
    rows = with_errors(decoder.decode(payloads, [gap * at for at in range(len(payloads))]))
    if options.get("include_uncommitted"):
        rows += with_errors(decoder.undecided())
    return in_order(rows)


def in_order(rows: list[Change]) -> list[Change]:
    # Tables of one truncate have one position.
    return sorted(rows, key=lambda row: (row["position"], row["relation_id"] or 0))


def bounds_of(rng: Any, n_payloads: int, n_partitions: int) -> list[int]:
    places = range(1, n_payloads)
    return sorted(rng.sample(places, min(n_partitions - 1, len(places))))


@pytest.mark.parametrize("include_uncommitted", [False, True])
@pytest.mark.parametrize(
    ("n_partitions", "sizes"), [(1, [7, 200]), (2, [1, 200]), (7, [5, 200]), (64, [200]), (200, [1])]
)
def test_the_partitions_of_a_capture_have_all_its_changes(
    n_partitions: int, sizes: list[int], include_uncommitted: bool, rng: random.Random
) -> None:
    payloads = captures.capture("18.txns.v2").payloads
    expected = together(payloads, gap=3, include_uncommitted=include_uncommitted)
    options = ChangeOptions(include_uncommitted=include_uncommitted)
    for size in sizes:
        assert apart(payloads, bounds_of(rng, len(payloads), n_partitions), size, options, gap=3) == expected


@pytest.mark.parametrize("n_partitions", [2, 7, 64])
@pytest.mark.parametrize("name", ["14.streams.v2", "18.streams.v4", "18.twophase.v3", "16.twophase.v3"])
def test_the_partitions_of_a_capture_with_streams_have_all_its_changes(
    name: str, n_partitions: int, rng: random.Random
) -> None:
    payloads = captures.capture(name).payloads
    expected = together(payloads, include_uncommitted=True)
    options = ChangeOptions(include_uncommitted=True)
    assert apart(payloads, bounds_of(rng, len(payloads), n_partitions), 500, options) == expected


@pytest.mark.parametrize("name", ["18.txns.v2", "18.streams.v4"])
def test_a_run_can_be_decoded_for_one_relation_only(name: str, rng: random.Random) -> None:
    payloads = captures.capture(name).payloads
    whole = together(payloads, include_uncommitted=True)
    options = ChangeOptions(include_uncommitted=True)
    relation_ids = {row["relation_id"] for row in whole}
    assert len(relation_ids) > 1
    for relation_id in relation_ids:
        found = apart(payloads, bounds_of(rng, len(payloads), 3), 500, options, relation_id=relation_id)
        assert found == [row for row in whole if row["relation_id"] == relation_id]


def test_bad_payloads_and_rows_without_a_relation_are_returned_for_every_relation() -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["a"])
    slot.insert(T, "1")
    slot.payloads.append(b"Z")
    slot.insert(T + 1, "1")
    slot.commit()
    whole = together(slot.payloads, mode="PERMISSIVE")
    assert [row["error"] is None for row in whole] == [True, False, False]
    assert apart(slot.payloads, [3], 100, ChangeOptions("PERMISSIVE"), relation_id=T) == whole
    assert apart(slot.payloads, [3], 100, ChangeOptions("PERMISSIVE"), relation_id=T + 2) == whole[1:]


@pytest.mark.full
@given(
    st.randoms(use_true_random=False),
    st.integers(1, 25),
    st.sampled_from([1, 2, 7, 10_000]),
    st.sampled_from([1, 4, 10_000]),
    st.booleans(),
)
def test_the_partitions_of_random_transactions_have_all_their_changes(
    rng: Any, n_steps: int, n_partitions: int, size: int, include_uncommitted: bool
) -> None:
    payloads = RandomSlot(rng, n_steps).payloads
    expected = together(payloads, include_uncommitted=include_uncommitted)
    options = ChangeOptions(include_uncommitted=include_uncommitted)
    assert apart(payloads, bounds_of(rng, len(payloads), n_partitions), size, options) == expected


@pytest.mark.parametrize("how", [{"of_all": True}, {"as_packed": False}, {"of_all": True, "as_packed": False}], ids=str)
def test_an_index_may_be_made_from_more_payloads_and_used_without_json(
    how: dict[str, bool], rng: random.Random
) -> None:
    payloads = RandomSlot(rng, 40).payloads
    options = ChangeOptions(include_uncommitted=True)
    expected = together(payloads, include_uncommitted=True)
    for n_partitions in (1, 3, 20):
        assert apart(payloads, bounds_of(rng, len(payloads), n_partitions), 10_000, options, **how) == expected


@pytest.mark.parametrize("start", ["transaction", "anywhere"])
def test_runs_may_begin_in_the_middle_of_a_transaction(rng: random.Random, start: Start) -> None:
    payloads = captures.capture("18.shop.v1").payloads
    first = next(at for at, payload in enumerate(payloads) if payload[:1] == b"I")
    described = [payload for payload in payloads[:first] if payload[:1] in b"RY"]
    cut = [*described, *payloads[first:]]
    expected = together(cut, mode="PERMISSIVE", start=start)
    assert any(row["error"] for row in expected) == (start == "transaction")
    assert apart(cut, bounds_of(rng, len(cut), 20), 100, ChangeOptions("PERMISSIVE", start=start)) == expected


def test_a_bad_payload_is_an_error_in_its_run() -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["a"])
    slot.insert(T, "1")
    slot.insert(T, "1", "2")
    slot.payloads.append(b"Z")
    slot.commit()
    slot.insert(T, "2")
    expected = together(slot.payloads, mode="PERMISSIVE")
    assert sum(row["error"] is not None for row in expected) == 3
    for bounds in ([], [3], [1, 2, 3, 4, 5, 6]):
        assert apart(slot.payloads, bounds, 100, ChangeOptions("PERMISSIVE")) == expected
        with pytest.raises(pgdecode.DecodeError):
            apart(slot.payloads, bounds, 100, ChangeOptions())


@per_property
@given(
    seeds,
    sizes,
    st.sampled_from(["honest", "damaged", "cut", "announced"]),
    st.sampled_from(["transaction", "anywhere"]),
    st.booleans(),
)
def test_the_partitions_of_any_sequence_have_all_its_changes_and_errors(
    seed: int, n_steps: int, kind: str, start: Start, include_uncommitted: bool
) -> None:
    rng = random.Random(seed)
    reader = random_reader(seed, n_steps, rng.randrange(1, 4))
    payloads, sessions = list(reader.payloads), []
    if kind == "damaged":
        payloads = damaged(rng, payloads)
    elif kind == "cut":
        payloads = payloads[rng.randrange(len(payloads) + 1) :]
    elif kind == "announced":
        sessions = sorted(reader.sessions)
    options = ChangeOptions("PERMISSIVE", include_uncommitted, start=start)
    decoder = ChangeDecoder(mode="PERMISSIVE", include_uncommitted=include_uncommitted, start=start)
    rows: list[Change] = []
    for first, end in pairwise(sorted({0, len(payloads), *(at for at in sessions if at < len(payloads))})):
        if first in sessions:
            decoder.reconnected()
        rows += with_errors(decoder.decode(payloads[first:end], range(first, end)))
    if include_uncommitted:
        rows += with_errors(decoder.undecided())
    # The stream state before the first boundary is decided for the whole, not for each run.
    in_pieces = ChangeDecoder(mode="PERMISSIVE", start=start)
    is_one = with_errors(ChangeDecoder(mode="PERMISSIVE", start=start).decode(payloads)) == [
        row for payload in payloads for row in with_errors(in_pieces.decode([payload]))
    ]
    for n_partitions in (1, 3, 7) if is_one or kind == "announced" else (1,):
        bounds = bounds_of(rng, len(payloads), n_partitions)
        if payloads:
            cuts = sorted({*bounds, *(at for at in sessions if 0 < at < len(payloads))})
            runs = runs_of(payloads, range(len(payloads)), cuts)
            index = indexed(payloads, range(len(payloads)), runs, start=start, reconnects=sessions)
            assert index.n_undecided == decoder.n_undecided
            assert index.n_skipped == decoder.skipped
        found = apart(payloads, bounds, rng.choice([1, 4, 500]) if is_one else 500, options, sessions=sessions)
        assert sorted(map(repr, found)) == sorted(map(repr, rows))


def test_a_logical_message_alone_tells_that_the_rest_of_a_stream_is_left_out() -> None:
    text = b"note\0" + (3).to_bytes(4, "big") + b"abc"
    payloads = [b"M" + (715).to_bytes(4, "big") + b"\1" + (4256).to_bytes(8, "big") + text]
    decoder = ChangeDecoder(mode="PERMISSIVE", start="anywhere")
    assert len(decoder.decode(payloads)) == 0
    runs = runs_of(payloads, range(1), [])
    assert indexed(payloads, range(1), runs, start="anywhere").n_skipped == decoder.skipped == 1


class Runs:
    """Decodes runs that continue each other, each in partitions."""

    def __init__(self, options: ChangeOptions, *, of_all: bool) -> None:
        self.options = options
        self.of_all = of_all
        self.state = ReplicationState()
        self.kept: dict[int, list[BufferedChanges]] = {}

    def decode(
        self,
        payloads: Sequence[bytes],
        first: int,
        bounds: Sequence[int],
        reconnects: Collection[int],
        commits: Mapping[int, tuple[int, int]],
    ) -> list[Change]:
        """Decode the next run, whose first position is `first`."""
        options, positions = self.options, range(first, first + len(payloads))
        runs = runs_of(payloads, positions, bounds)
        index = indexed(
            payloads,
            positions,
            runs,
            of_all=self.of_all,
            start=options.start,
            reconnects=reconnects,
            state=self.state,
            drop_duplicates=options.drop_duplicates,
            commits=commits,
        )
        builder = ChangeBuilder(list(index.catalog), ValueOptions(), options)
        rows: list[Change] = []
        stored = StoredDecoder(index, options)
        used: set[int] = set()
        for item in self.state.undecided:
            for part in self.kept.get(item.begin_position, []):
                found = stored.decode(item.xid, item.begin_position, part)
                used.update(found[1].used)
                rows += rows_of_delivery(builder, found)
        undecided = {item.begin_position for item in index.end.undecided}
        self.kept = {begin: parts for begin, parts in self.kept.items() if begin in undecided}
        for number, start, end in slices(index, positions):
            batches = [(pa.array(payloads[start:end], pa.binary()), pa.array(positions[start:end], pa.int64()))]
            used |= used_versions(index, batches, number, range(len(index.catalog)), options)
            kept = 0

            def keep(begin: int, part: BufferedChanges) -> None:
                nonlocal kept
                kept += 1
                assert begin in undecided
                self.kept.setdefault(begin, []).append(part)

            decoder = PartitionDecoder(index, number, options, keep=keep)
            for payload, position in zip(payloads[start:end], positions[start:end], strict=True):
                rows += rows_of_delivery(
                    builder, decoder.follow(pa.array([payload], pa.binary()), pa.array([position], pa.int64()))
                )
            rows += rows_of_delivery(builder, decoder.finish())
            assert not kept or index.keeps(number)
        self.state = index.end
        self.state.relations.in_layout |= used
        return rows


@pytest.mark.full
@per_property
@given(
    seeds,
    sizes,
    st.sampled_from(["honest", "damaged", "announced"]),
    st.sampled_from(["transaction", "anywhere"]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_runs_in_partitions_continue_each_other_as_one_decoder_does(
    seed: int,
    n_steps: int,
    kind: str,
    start: Start,
    include_uncommitted: bool,
    drop_duplicates: bool,
    of_all: bool,
) -> None:
    rng = random.Random(seed)
    reader = random_reader(seed, n_steps, rng.randrange(1, 4))
    payloads = list(reader.payloads)
    sessions = sorted(reader.sessions) if kind == "announced" else []
    if kind == "damaged":
        payloads = damaged(rng, payloads)
    options = ChangeOptions("PERMISSIVE", include_uncommitted, drop_duplicates, start=start)
    how: dict[str, Any] = {"mode": "PERMISSIVE", "start": start, "drop_duplicates": drop_duplicates}
    decoder = ChangeDecoder(**how, include_uncommitted=include_uncommitted)
    # The stream state before the first boundary is decided for each call. These sequences do not depend on it.
    in_pieces = ChangeDecoder(**how)
    assume(
        with_errors(ChangeDecoder(**how).decode(payloads))
        == [row for payload in payloads for row in with_errors(in_pieces.decode([payload]))]
        or kind == "announced"
    )
    runs = Runs(options, of_all=of_all)
    cuts = [0, *bounds_of(rng, len(payloads), rng.choice([2, 3, 6])), len(payloads)]
    for first, end in pairwise(cuts):
        expected: list[Change] = []
        inside = [at for at in sessions if first < at < end]
        bounds = sorted({*bounds_of(rng, end - first, rng.choice([1, 3])), *(at - first for at in inside)})
        commits = {}
        for a, b in pairwise([first, *(first + at for at in bounds), end]):
            if a in sessions and a:
                decoder.reconnected()
            expected += with_errors(decoder.decode(payloads[a:b], range(a, b)))
            # The greatest LSN of the session, which is that of an earlier partition where this one has no greater one.
            commits[a] = (decoder._engine.state.session_lsn, decoder._engine.state.last_lsn_position)
        if include_uncommitted:
            expected += with_errors(decoder.undecided())
        reconnects = {at for at in sessions if first <= at < end and at}
        found = runs.decode(payloads[first:end], first, bounds, reconnects, {} if of_all else commits)
        assert sorted(map(repr, found)) == sorted(map(repr, expected))
        one, other = (state_to_json(item, with_payloads=False) for item in (runs.state, decoder._engine.state))
        assert one | {"in_stream": decoder._engine.state.has_seen_boundary and one["in_stream"]} == other | {
            "in_stream": decoder._engine.state.has_seen_boundary and other["in_stream"]
        }


def counted_versions(payloads: Sequence[bytes], bounds: Sequence[int]) -> list[str]:
    """The versions that determine the columns of tables, as the index and the partitions find them together."""
    positions = range(len(payloads))
    runs = runs_of(payloads, positions, bounds)
    index = indexed(payloads, positions, runs, of_all=True)
    versions = list(index.catalog)
    counted = set(index.shape)
    for number, start, end in slices(index, positions):
        batches = [(pa.array([payloads[at]], pa.binary()), pa.array([at], pa.int64())) for at in range(start, end)]
        counted |= used_versions(index, batches, number, range(len(versions)), ChangeOptions())
    return sorted(str(versions[number].relation) for number in counted)


@pytest.mark.full
@per_property
@given(seeds, sizes, st.sampled_from(["honest", "damaged"]))
def test_the_versions_that_committed_transactions_sent_or_used_are_those_of_one_decoder(
    seed: int, n_steps: int, kind: str
) -> None:
    rng = random.Random(seed)
    payloads = list(random_reader(seed, n_steps, rng.randrange(1, 4)).payloads)
    if kind == "damaged":
        payloads = damaged(rng, payloads)
    decoder = ChangeDecoder(mode="PERMISSIVE")
    for payload in payloads:
        decoder.decode([payload])
    expected = sorted(str(version.relation) for version in decoder._engine.layout_catalog)
    for n_partitions in (1, 3, max(len(payloads), 1)):
        assert counted_versions(payloads, bounds_of(rng, len(payloads), n_partitions)) == expected


@pytest.mark.parametrize("n_partitions", [1, 9])
def test_a_version_counts_if_a_transaction_that_ends_in_another_partition_uses_it(n_partitions: int) -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["a", "b"])
    slot.commit()
    # This transaction has no Commit, and its version is used later.
    slot.begin(701)
    slot.relation(T, ["a", "b", "c"])
    slot.begin(702)
    slot.insert(T, "1", "2", "3")
    slot.commit()
    bounds = [] if n_partitions == 1 else list(range(1, len(slot.payloads)))
    found = counted_versions(slot.payloads, bounds)
    assert [("'c'" in version) for version in found] == [False, True]


def test_a_misplaced_stream_stop_does_not_affect_earlier_messages() -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["a"])
    slot.insert(T, "1")
    slot.commit()
    slot.stop()
    slot.begin(701)
    slot.commit()
    expected = together(slot.payloads, mode="PERMISSIVE")
    assert [row["error"] and row["error"].partition(" ")[0] for row in expected] == [None, "STATE_DESYNC"]
    for n in range(len(slot.payloads)):
        assert apart(slot.payloads, [n] if n else [], 100, ChangeOptions("PERMISSIVE")) == expected


def test_an_index_needs_only_the_first_and_last_of_several_complete_transactions() -> None:
    slot = Slot()
    for xid in range(700, 706):
        slot.begin(xid)
        slot.commit()
    assert needed(slot.payloads) == [0, 1, 10, 11]
    # A transaction that was sent again, and the messages around it.
    again = [*slot.payloads[:8], *slot.payloads[2:4], *slot.payloads[8:]]
    assert needed(again) == [0, 1, 6, 7, 8, 9, 10, 11, 12, 13]
    # A Begin without its Commit.
    assert needed([*slot.payloads[:4], slot.payloads[4], *slot.payloads[6:]]) == [0, 1, 2, 3, 4, 5, 6, 9, 10]


def test_runs_that_overlap_are_refused() -> None:
    runs = [Partition(0, 5), Partition(10, 20), Partition(20, 30)]
    with pytest.raises(ValueError, match="partitions overlap: 10 to 20, 20 to 30"):
        index_partitions(pa.array([], pa.binary()), pa.array([], pa.int64()), runs)


def test_the_order_of_the_given_partitions_does_not_matter() -> None:
    payloads = RandomSlot(random.Random(3), 30).payloads
    positions = list(range(len(payloads)))
    runs = runs_of(payloads, positions, [20, 40])
    index, same = indexed(payloads, positions, runs[::-1]), indexed(payloads, positions, runs)
    assert (same.catalog, same.partitions, same.transaction_outcomes) == (
        index.catalog,
        index.partitions,
        index.transaction_outcomes,
    )
    assert starts_of(same) == starts_of(index)


@pytest.mark.parametrize("position", [-1, 4, 9, 31])
def test_a_position_in_no_run_is_an_error(position: int) -> None:
    index = index_partitions(
        pa.array([], pa.binary()), pa.array([], pa.int64()), [Partition(0, 3), Partition(5, 8), Partition(10, 30)]
    )
    with pytest.raises(LookupError, match=f"position {position} is in none of the indexed partitions"):
        index.number_of(position)
    with pytest.raises(LookupError):
        list(slices(index, [2, position] if position > 2 else [position, 2]))


def test_each_slice_has_the_positions_of_one_run() -> None:
    index = index_partitions(
        pa.array([], pa.binary()), pa.array([], pa.int64()), [Partition(0, 3), Partition(5, 8), Partition(10, 30)]
    )
    assert list(slices(index, [1, 3, 5, 10, 11, 30])) == [(0, 0, 2), (1, 2, 3), (2, 3, 6)]
    assert list(slices(index, [])) == []


def test_without_payloads_there_are_no_runs() -> None:
    index = index_partitions(pa.array([], pa.binary()), pa.array([], pa.int64()), [])
    assert (len(index.catalog), index.partitions, index.starts, index.transaction_outcomes) == (0, (), (), {})
    assert PartitionIndex.unpacked(index.packed()).partitions == ()


def test_a_catalog_describes_relations_that_the_runs_do_not() -> None:
    slot = Slot()
    slot.relation(T, ["a"])
    catalog = pgdecode.RelationCatalog.from_messages(slot.payloads)
    slot.payloads.clear()
    slot.begin(700)
    slot.insert(T, "1")
    slot.commit()
    index = index_partitions(
        pa.array(slot.payloads[::2], pa.binary()),
        pa.array([10, 12]),
        [Partition(10, 11), Partition(12, 12, False)],
        catalog=catalog,
    )
    builder = ChangeBuilder(list(index.catalog), ValueOptions(), ChangeOptions())
    decoder = PartitionDecoder(index, 0, ChangeOptions())
    rows = rows_of_delivery(builder, decoder.follow(pa.array(slot.payloads[:2]), pa.array([10, 11])))
    rows += rows_of_delivery(builder, decoder.finish())
    assert [(row["new"], row["commit_position"], row["error"]) for row in rows] == [({"a": "1"}, 12, None)]
    assert changes_of(ChangeDecoder(catalog=catalog).decode(slot.payloads, [10, 11, 12]))[0]["new"] == {"a": "1"}


@pytest.mark.parametrize(("first", "column"), [(3, "a"), (4, "b")])
def test_the_catalog_of_a_state_without_payloads_applies_as_one_that_is_given(first: int, column: str) -> None:
    slot = Slot()
    for name in ("a", "b"):
        slot.begin(700)
        slot.relation(T, [name])
    catalog = pgdecode.RelationCatalog.from_messages(slot.payloads, [0, 1, 2, 4])
    without_payloads = state_from_json(ChangeDecoder(catalog=catalog).state)
    nothing, no_positions = pa.array([], pa.binary()), pa.array([], pa.int64())
    empty = index_partitions(nothing, no_positions, [], catalog=catalog).end
    for options in ({"catalog": catalog}, {"state": without_payloads}, {"state": empty}):
        index = index_partitions(nothing, no_positions, [Partition(first, first)], **options)
        assert index.catalog == catalog
        (start,) = index.starts
        number = start.relations.number_for(None, T)
        assert [item.name for item in index.catalog.versions(T)[number].columns] == [column]


def test_a_transaction_without_begin_ends_with_the_commit_at_the_end_of_a_run() -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["a"])
    slot.insert(T, "1")
    slot.insert(T, "2")
    slot.commit()
    slot.begin(701)
    slot.insert(T, "3")
    slot.commit()
    payloads = slot.payloads[1:]
    expected = together(payloads, start="anywhere")
    assert [row["position"] for row in expected] == [5]
    # The second run has rows before the commit.
    for bounds in ([2, 4], [1, 4], [4]):
        for of_all in (False, True):
            assert apart(payloads, bounds, 100, ChangeOptions(start="anywhere"), of_all=of_all) == expected


def test_a_row_after_the_commit_of_a_transaction_without_begin_is_outside_transactions() -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["a"])
    slot.insert(T, "1")
    slot.commit()
    slot.insert(T, "2")
    payloads = slot.payloads[1:]
    expected = together(payloads, mode="PERMISSIVE")
    assert [row["error"] and row["error"].partition(" ")[0] for row in expected] == ["STATE_TRANSACTION"] * 3
    for bounds in ([1], [3], [1, 2], [1, 2, 3]):
        assert apart(payloads, bounds, 100, ChangeOptions("PERMISSIVE")) == expected


def test_an_index_records_that_a_transaction_was_sent_again_before_its_commit() -> None:
    slot = Slot()
    slot.begin(700)
    slot.payloads.append(slot.payloads[-1])
    slot.commit()
    payloads, positions = pa.array(slot.payloads, pa.binary()), pa.array(range(3), pa.int64())
    assert index_partitions(payloads, positions, [Partition(0, 2)]).transaction_outcomes[0] == DISCARDED


# -- the order of commits ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bounds", [[1, 2], [1], [2], [3], []])
@pytest.mark.parametrize("start", ["transaction", "anywhere"])
def test_a_commit_without_its_begin_does_not_count_for_the_order_of_commits(bounds: list[int], start: Start) -> None:
    slot = Slot()
    for xid in (700, 701):
        slot.begin(xid)
        slot.commit()
    first, second = slot.payloads[:2], slot.payloads[2:]
    for payloads in ([first[1], *first], [*first, second[1], *second]):
        expected = together(payloads, mode="PERMISSIVE", start=start)
        assert not any("COMMIT_ORDER" in row["error"] for row in expected)
        assert apart(payloads, bounds, 100, ChangeOptions("PERMISSIVE", start=start)) == expected


@pytest.mark.full
@pytest.mark.parametrize("name", ["18.shop.v1", "18.streams.v4", "18.txns.v2"])
def test_the_partitions_take_the_order_of_positions_as_one_decoder_does(name: str, rng: random.Random) -> None:
    payloads = captures.capture(name).payloads
    # Where no transaction is open: parts between such places have changed places, or are there again.
    quiet = [0, *(at + 1 for at, payload in enumerate(payloads) if payload[:1] in b"CcK")]
    for again in (True, False):
        a, b, c = sorted(rng.sample(quiet[1:], 3))
        middle = [*payloads[a:b], *payloads[a:c]] if again else [*payloads[b:c], *payloads[a:b]]
        other = [*payloads[:a], *middle, *payloads[c:]]
        expected = together(other, mode="PERMISSIVE")
        for n_partitions in (2, 5, 40):
            bounds = bounds_of(rng, len(other), n_partitions)
            assert apart(other, bounds, 500, ChangeOptions("PERMISSIVE")) == expected
