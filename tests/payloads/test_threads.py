"""Several threads: with separate decoders, with one decoder, and inside one call."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import random
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

import pgdecode
from pgdecode import Insert
from pgdecode._native.arrow.payload_array import Source
from pgdecode._native.scan.scanner import Scan
from pgdecode.payloads import thread_counts
from pgdecode.protocol.errors import DecodeError
from pgdecode.protocol.messages import MESSAGES
from support import captures
from support.generators.encoder import encode
from support.generators.pieces import broken, tables
from support.generators.samples import SAMPLES
from support.generators.slot import Slot
from support.generators.streams import STREAMED_CAPTURES

N_THREADS = 8
ROWS = [place for place, item in enumerate(MESSAGES) if item.kind in ("insert", "update", "delete")]


def in_threads(calls: list[Callable[[], Any]]) -> list[Any]:
    """Run each call in its own thread."""
    with ThreadPoolExecutor(len(calls)) as threads:
        return [made.result() for made in [threads.submit(call) for call in calls]]


def at_once(calls: list[Callable[[], Any]]) -> list[Any]:
    """Run each call in its own thread, all started together."""
    barrier = threading.Barrier(len(calls))

    def waited(call: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> Any:
            barrier.wait()
            return call()

        return run

    return in_threads([waited(call) for call in calls])


def whole_capture(name: str) -> list[pa.RecordBatch]:
    """All decoded forms of a capture."""
    column = captures.capture(name).column
    decoder = pgdecode.ChangeDecoder(include_uncommitted=True)
    changes = [decoder.decode(column.slice(first, 500)) for first in range(0, len(column), 500)]
    rows = [
        pgdecode.decode_rows(payloads, version, mode="PERMISSIVE", unrepresentable="text")
        for version, payloads in tables(name)
        if payloads
    ]
    envelopes = [pgdecode.decode_messages(column), pgdecode.decode_messages(column, in_stream="auto")]
    return [*envelopes, *changes, *rows]


@pytest.mark.full
@pytest.mark.parametrize("name", ["18.streams.v4", "18.types.v2", "14.streams.v2bin"])
def test_eight_concurrent_threads_give_the_result_of_one(name: str) -> None:
    expected = whole_capture(name)
    for found in at_once([lambda: whole_capture(name)] * N_THREADS):
        assert len(found) == len(expected)
        # Compare bytes, because in Arrow a NaN in a list is not equal to itself.
        assert all(a.serialize().equals(b.serialize()) for a, b in zip(found, expected, strict=True))


@pytest.mark.full
def test_memory_is_released_when_all_threads_are_done() -> None:
    whole_capture("18.streams.v4")
    before = pa.total_allocated_bytes()
    at_once([lambda: whole_capture("18.streams.v4") and None] * N_THREADS)
    assert pa.total_allocated_bytes() == before


@pytest.mark.parametrize("make", [pgdecode.MessageDecoder, pgdecode.ChangeDecoder], ids=["messages", "changes"])
def test_a_decoder_refuses_a_second_thread_and_continues_in_the_first(make: Callable[[], Any]) -> None:
    column = captures.capture("18.txns.v2").column
    expected = make().decode(column)
    decoder = make()
    inside, asked = threading.Event(), threading.Event()

    class Slow(list[bytes]):
        """Payloads that are returned only after another thread has tried to use the decoder."""

        def __iter__(self) -> Iterator[bytes]:
            inside.set()
            assert asked.wait(20)
            return super().__iter__()

    refused: list[BaseException] = []

    def other() -> None:
        assert inside.wait(20)
        try:
            decoder.decode(column)
        except RuntimeError as error:
            refused.append(error)
        finally:
            asked.set()

    _, found = in_threads([other, lambda: decoder.decode(Slow(column.to_pylist()))])
    assert [str(error) for error in refused] == [
        "another thread is using this decoder; each thread needs one of its own"
    ]
    assert found.equals(expected)


# -- threads= --------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use several threads also for small batches and long payloads."""
    monkeypatch.setattr(thread_counts, "LEAST_ROWS", 5)
    monkeypatch.setattr(thread_counts, "LEAST_RESOLVED", 5)
    monkeypatch.setattr(thread_counts, "MOST_ROW_BYTES", math.inf)


def outcome(decode: Callable[..., pa.RecordBatch], *arguments: Any, **options: Any) -> Any:
    """A batch as bytes, because in Arrow a NaN in a list is not equal to itself; or the text and place of the error.

    `take` normalises the rows first, so that equal columns have equal bytes: some null columns have no validity.
    """
    try:
        batch = decode(*arguments, **options)
    except DecodeError as error:
        return type(error), str(error), error.row, error.offset, error.column
    batch.validate(full=True)
    return batch.schema, batch.take(pa.array(range(batch.num_rows), pa.int64())).serialize().to_pybytes()


@pytest.mark.usefixtures("small_ranges")
@pytest.mark.parametrize("threads", [3])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mode": "PERMISSIVE"},
        {"in_stream": "auto", "fields": ["xid_basis", "new", "kind", "columns"]},
        {"in_stream": False, "mode": "PERMISSIVE"},
    ],
    ids=["in order", "permissive", "in no order", "wrongly plain"],
)
def test_messages_do_not_depend_on_threads(capture: captures.Capture, options: dict[str, Any], threads: int) -> None:
    one = pgdecode.decode_messages(capture.column, **options)
    found = pgdecode.decode_messages(capture.column, threads=threads, **options)
    found.validate(full=True)
    assert found.equals(one)


@pytest.mark.usefixtures("small_ranges")
def test_tags_and_relations_do_not_depend_on_threads(capture: captures.Capture) -> None:
    found = []
    for threads in (1, 3):
        scan = Scan(Source([capture.column]), ("kind", "error"), pgdecode.Limits(), True, True, kind_codes=True)
        scan.resolve_streams(None, None, True)
        noted = scan.run(threads)
        assert noted is not None
        kinds, relations = memoryview(noted["kind"][1]).cast("B"), memoryview(noted["relations"][1]).cast("B").cast("I")
        found.append([(kind, relations[row] if kind in ROWS else None) for row, kind in enumerate(kinds)])
    assert found[0] == found[1]


def verdicts(parts: list[pa.Array], carry: bool | None, threads: int) -> tuple[bool | None, bytes | None]:
    """The stream state after the last row, and the stream flag of each row."""
    scan = Scan(Source(parts), ("kind",), pgdecode.Limits(), True, True)
    return scan.resolve_streams(None, carry, True, threads), scan.stream_flags


@pytest.mark.parametrize("name", STREAMED_CAPTURES)
def test_stream_flags_do_not_depend_on_threads(name: str, rng: random.Random) -> None:
    whole = list(captures.capture(name).payloads)
    for share in (0.0, 0.2, 1.0):
        # Some delimiters are missing, some rows are null or truncated: the state is unknown or known only by structure.
        payloads: list[bytes | None] = [p for p in whole if p[:1] not in b"SEBcA" or rng.random() >= share]
        for row in rng.sample(range(len(payloads)), len(payloads) // 50):
            payloads[row] = rng.choice([None, b"", whole[row][: rng.randrange(1 + len(whole[row]))]])
        column = pa.array(payloads * 3, pa.binary())
        cuts = sorted(rng.choices(range(len(column) + 1), k=4))
        parts = [column.slice(start, end - start) for start, end in itertools.pairwise([0, *cuts, len(column)])]
        for carry in (None, False, True):
            one = verdicts([column], carry, 1)
            assert verdicts(parts, carry, 1) == one
            assert [verdicts(parts, carry, threads) for threads in (2, 3, 16)] == [one] * 3


@pytest.mark.full
@pytest.mark.usefixtures("small_ranges")
@pytest.mark.parametrize("mode", ["FAILFAST", "PERMISSIVE"])
def test_errors_of_bad_payloads_do_not_depend_on_threads(mode: str, rng: random.Random) -> None:
    payloads = captures.capture("18.streams.v2").payloads
    for _ in range(30):
        damaged = list(payloads)
        for row in rng.sample(range(len(damaged)), rng.choice([1, 2, 50])):
            damaged[row] = damaged[row][: rng.randrange(len(damaged[row]))]
        for in_stream in (None, "auto"):
            options: dict[str, Any] = {"in_stream": in_stream, "mode": mode}
            one = outcome(pgdecode.decode_messages, damaged, **options)
            several = outcome(pgdecode.decode_messages, damaged, threads=4, **options)
            assert several == one


def shows_old_memory(batch: pa.RecordBatch) -> list[str]:
    """Columns whose null rows have items or bytes other than zero."""
    found = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        buffers = column.buffers()
        if pa.types.is_boolean(column.type) or pa.types.is_primitive(column.type):
            shown = pa.Array.from_buffers(column.type, len(column), [None, buffers[1]])
            shown = shown.cast(pa.int64()).filter(column.is_null())
            bad = shown != pa.array([0] * len(shown), pa.int64())
        else:
            starts = pa.Array.from_buffers(pa.int32(), len(column) + 1, [None, buffers[1]]).to_pylist()
            bad = any(
                start != end for start, end, row in zip(starts, starts[1:], column, strict=False) if not row.is_valid
            )
        if bad:
            found.append(name)
    return found


PLAIN = [sample.payload for sample in SAMPLES.values() if not sample.in_stream and sample.payload[:1] not in b"SE"]


def payloads_in_runs(rng: random.Random) -> list[bytes | None]:
    """Payloads in slices that fill different columns: each slice has few kinds and any length."""
    found: list[bytes | None] = []
    n = rng.choice([64, 65, 127, 128, 700, 1024, 2500])
    while len(found) < n:
        kinds: list[bytes | None] = [*rng.sample(PLAIN, rng.choice([1, 1, 2, 5])), *rng.choice([[], [None]])]
        found += rng.choices(kinds, k=rng.choice([1, 5, 63, 64, 65, 400]))
    return found[:n]


@pytest.mark.full
@pytest.mark.usefixtures("small_ranges")
@pytest.mark.parametrize("n_batches", [15, 60])
@pytest.mark.parametrize("mode", ["FAILFAST", "PERMISSIVE"])
def test_slices_that_fill_different_columns_are_merged(mode: str, n_batches: int, rng: random.Random) -> None:
    for _ in range(n_batches):
        payloads = payloads_in_runs(rng)
        if mode == "PERMISSIVE":
            for row in rng.sample(range(len(payloads)), rng.choice([0, 1, 40])):
                payload = payloads[row]
                payloads[row] = payload and payload[: rng.randrange(len(payload))]
        cut = rng.randrange(len(payloads))
        column = pa.chunked_array([pa.array(payloads[:cut], pa.binary()), pa.array(payloads[cut:], pa.binary())])
        options: dict[str, Any] = {"in_stream": rng.choice([False, None]), "mode": mode}
        expected = outcome(pgdecode.decode_messages, column, **options)
        for threads in (2, 3, 8):
            assert outcome(pgdecode.decode_messages, column, threads=threads, **options) == expected
            with contextlib.suppress(DecodeError):
                assert shows_old_memory(pgdecode.decode_messages(column, threads=threads, **options)) == []


@pytest.mark.usefixtures("small_ranges")
def test_values_of_any_length_are_merged_after_those_of_earlier_rows(rng: random.Random) -> None:
    payloads: list[bytes | None] = []
    for row in range(1500):
        values = tuple(
            rng.choice([None, b"", bytes([row & 0x7F]) * rng.choice([1, 15, 16, 17, 300])]) for _ in range(4)
        )
        formats = "".join("n" if value is None else "t" for value in values)
        payloads.append(encode(Insert(relation_id=row + 1, new=values, new_formats=formats)))
    expected = pgdecode.decode_messages(payloads, in_stream=False)
    for threads in (2, 5):
        found = pgdecode.decode_messages(payloads, in_stream=False, threads=threads)
        found.validate(full=True)
        assert found.equals(expected)


@pytest.mark.usefixtures("small_ranges")
def test_memory_of_several_threads_is_released(capture: captures.Capture) -> None:
    before = pa.total_allocated_bytes()
    for options in ({}, {"in_stream": False, "mode": "PERMISSIVE"}, {"in_stream": False}):
        with contextlib.suppress(DecodeError):
            pgdecode.decode_messages(capture.column, threads=3, **options)
    assert pa.total_allocated_bytes() == before


@pytest.mark.usefixtures("small_ranges")
def test_a_decoder_with_threads_carries_the_stream_state_from_batch_to_batch(capture: captures.Capture) -> None:
    one, several = pgdecode.MessageDecoder(), pgdecode.MessageDecoder(threads=3)
    for first in range(0, len(capture.column), 37):
        piece = capture.column.slice(first, 37)
        assert several.decode(piece).equals(one.decode(piece))


@pytest.mark.usefixtures("small_ranges")
@pytest.mark.parametrize("name", ["18.types.v1", "18.types.v1bin", "16.streams.v2", "18.shop.v1"])
@pytest.mark.parametrize("unrepresentable", ["error", "null", "text"])
@pytest.mark.parametrize("mode", ["FAILFAST", "PERMISSIVE"])
def test_rows_do_not_depend_on_threads(name: str, unrepresentable: str, mode: str) -> None:
    for version, payloads in tables(name):
        if len(payloads) < 11:
            continue
        for rows in (payloads, broken(payloads)):
            options: dict[str, Any] = {"unrepresentable": unrepresentable, "mode": mode}
            one = outcome(pgdecode.decode_rows, rows, version, **options)
            several = outcome(pgdecode.decode_rows, rows, version, threads=3, **options)
            assert several == one


@pytest.mark.usefixtures("small_ranges")
@pytest.mark.parametrize("mode", ["FAILFAST", "PERMISSIVE"])
def test_bad_offsets_are_reported_for_the_same_row_with_any_number_of_threads(mode: str) -> None:
    payloads = captures.capture("18.shop.v1").payloads[:20]
    offsets = list(itertools.accumulate(map(len, payloads), initial=0))
    offsets[18] = offsets[-1] + 1
    array = pa.Array.from_buffers(
        pa.binary(), 20, [None, pa.py_buffer(struct.pack("=21i", *offsets)), pa.py_buffer(b"".join(payloads))]
    )
    for threads in (1, 4):
        with pytest.raises(ValueError, match="row 17: the Arrow array's offsets do not lie"):
            pgdecode.decode_messages(array, in_stream=False, mode=mode, threads=threads)


@pytest.mark.usefixtures("small_ranges")
def test_the_expansion_limit_applies_to_all_threads_together() -> None:
    column = pgdecode.Column(0, "a", 1700, -1)
    relation = pgdecode.Relation(relation_id=1, namespace="s", name="t", replica_identity="d", columns=(column,))
    # 1e131071, as numeric_send writes it: 128 times its 131072 digits are the 16 MiB that every batch may make.
    longest = bytes.fromhex("0001 7fff 0000 0000 03e8")
    payloads = [encode(Insert(relation_id=1, new=(longest,), new_formats="b"))] * 150
    for threads in (1, 2, 4):
        with pytest.raises(pgdecode.BatchExpands):
            pgdecode.decode_rows(payloads, relation, threads=threads)
    for threads in (1, 2):
        assert len(pgdecode.decode_rows(payloads[:120], relation, threads=threads)) == 120


@pytest.mark.full
@pytest.mark.usefixtures("small_ranges")
@pytest.mark.parametrize("threads", [1, 2])
def test_the_expansion_limit_applies_to_all_chunks_together(threads: int) -> None:
    relation = pgdecode.Relation(1, "s", "t", "d", (pgdecode.Column(0, "a", 1700, -1),))
    longest = bytes.fromhex("0001 7fff 0000 0000 03e8")
    for n, fits in ((120, True), (150, False)):
        slot = Slot()
        slot.begin(700)
        slot.payloads += [encode(relation)] + [encode(Insert(relation_id=1, new=(longest,), new_formats="b"))] * n
        slot.commit()
        chunks = [slot.payloads[: n // 2], slot.payloads[n // 2 :]]
        payloads = pa.chunked_array([pa.array(chunk, pa.binary()) for chunk in chunks])
        with contextlib.nullcontext() if fits else pytest.raises(pgdecode.BatchExpands):
            assert len(pgdecode.ChangeDecoder(threads=threads).decode(payloads)) == n
        with contextlib.nullcontext() if fits else pytest.raises(pgdecode.BatchExpands):
            assert len(pgdecode.ChangeDecoder(threads=threads).table(payloads, "s.t")) == n


@pytest.mark.usefixtures("small_ranges")
def test_if_no_thread_can_be_started_the_calling_thread_decodes() -> None:
    version, payloads = max(tables("18.shop.v1"), key=lambda table: len(table[1]))
    column = captures.capture("18.shop.v1").column
    messages, rows = pgdecode.decode_messages(column), pgdecode.decode_rows(payloads, version)
    before = threading.stack_size(1 << 46)  # more than there are addresses
    try:
        with pytest.raises(RuntimeError, match="can't start new thread"):
            threading.Thread(target=print).start()
        assert pgdecode.decode_messages(column, threads=3).equals(messages)
        assert pgdecode.decode_rows(payloads, version, threads=3).equals(rows)
    finally:
        threading.stack_size(before)


@pytest.mark.usefixtures("small_ranges")
def test_a_bad_payload_is_told_before_offsets_behind_it_that_leave_the_data() -> None:
    # Rows that take their time: another thread comes to the offsets of the next ones first.
    payload = encode(Insert(relation_id=1, new=(b"a" * 100_000,), new_formats="t"))
    offsets = [n * len(payload) for n in range(201)]
    offsets[70] = -5
    data = bytearray(payload * 200)
    data[60 * len(payload)] = ord("~")
    column = pa.Array.from_buffers(
        pa.binary(), 200, [None, pa.py_buffer(struct.pack("=201i", *offsets)), pa.py_buffer(bytes(data))]
    )
    for threads in (1, 2, 3):
        for _ in range(5):
            with pytest.raises(DecodeError, match="row 60, offset 0: unknown message tag"):
                pgdecode.decode_messages(column, threads=threads)


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS is enforced on Linux")
@pytest.mark.skipif("LD_PRELOAD" in os.environ, reason="a sanitizer's allocator takes all addresses")
def test_where_many_threads_find_no_memory_one_does_the_work() -> None:
    # 64 threads take 1 GiB, of which they use little; there are 256 MiB of addresses.
    script = """
import resource
import pgdecode
from support.generators.encoder import encode
from pgdecode import Insert
from pgdecode.payloads import thread_counts
thread_counts.LEAST_ROWS = 5
thread_counts.LEAST_RESOLVED = 5
thread_counts.MOST_ROW_BYTES = 1e9
column = pgdecode.Column(0, "a", 25, -1)
relation = pgdecode.Relation(relation_id=1, namespace="s", name="t", replica_identity="d", columns=(column,))
payloads = [encode(Insert(relation_id=1, new=(b"a" * 10_000,), new_formats="t"))] * 1280
messages, rows = pgdecode.decode_messages(payloads), pgdecode.decode_rows(payloads, relation)
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + 256 * 2**20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
print(pgdecode.decode_messages(payloads, threads=64).equals(messages))
print(pgdecode.decode_rows(payloads, relation, threads=64).equals(rows))
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, env=environment)
    assert (run.stdout, run.stderr) == ("True\nTrue\n", "")


@pytest.mark.full
@pytest.mark.parametrize("threads", [2, 3])
def test_many_rows_are_divided_among_all_threads(threads: int) -> None:
    payloads = pa.array(
        encode(Insert(relation_id=16385 + n % 3, new=(b"%d" % n, b"v" * (n % 50), None), new_formats="ttn"))
        for n in range(20_000)
    )
    column = pa.concat_arrays([payloads] * 10)
    found = pgdecode.decode_messages(column, threads=threads)
    found.validate(full=True)
    assert found.equals(pgdecode.decode_messages(column))


@pytest.mark.parametrize("layout", [pa.binary(), pa.large_binary(), pa.binary_view(), None], ids=str)
def test_slices_of_long_short_and_empty_payloads(layout: pa.DataType | None) -> None:
    long, short = (encode(Insert(relation_id=16385, new=(b"v" * n, None), new_formats="tn")) for n in (20_000, 1))
    payloads = [long] * 300 + [None] * 30_000 + [short] * 30_000 + [long] * 100 + [short, long] * 50 + [None] * 100
    columns = tuple(pgdecode.Column(0, name, 25, -1) for name in "ab")
    relation = pgdecode.Relation(relation_id=16385, namespace="s", name="t", replica_identity="d", columns=columns)
    given: Any = payloads
    if layout is not None:
        # Chunks of different lengths.
        given = pa.chunked_array(
            [payloads[a:b] for a, b in itertools.pairwise([0, 1, 290, 301, 31_000, 31_001, 70_000])], layout
        )
    for decode in (pgdecode.decode_messages, partial(pgdecode.decode_rows, relation=relation)):
        found = decode(given, threads=3)
        found.validate(full=True)
        assert found.equals(decode(given))


def threads_for(payloads: list[bytes | None], threads: int) -> int:
    return thread_counts.threads_for(Source([pa.array(payloads, pa.binary())]), threads)


def test_small_batches_are_not_divided() -> None:
    assert [threads_for([b"B"] * n, 8) for n in (0, 1, 2 * thread_counts.LEAST_ROWS - 1)] == [1, 1, 1]
    assert threads_for([b"I" * 4096] * 1023, 8) == 1


def test_each_thread_gets_many_rows_or_many_bytes() -> None:
    rows = [b"B"] * (4 * thread_counts.LEAST_ROWS + 3)
    assert [threads_for(rows, threads) for threads in (1, 3, 4, 8)] == [1, 3, 4, 4]
    few = [b"I" * 4096, None] * (4 * thread_counts.LEAST_BYTES // 4096)
    assert [threads_for(few, threads) for threads in (1, 3, 4, 8)] == [1, 3, 4, 4]


def test_payloads_too_long_for_a_cache_are_not_divided() -> None:
    def found(length: int) -> int:
        return threads_for([b"I" * length, b"I" * 64] * 256, 2)

    assert found(2 * thread_counts.MOST_ROW_BYTES - 64) == 2
    assert found(2 * thread_counts.MOST_ROW_BYTES - 63) == 1


def test_long_values_in_the_first_rows_do_not_reserve_memory_for_all_rows() -> None:
    columns = tuple(pgdecode.Column(0, name, 25, -1) for name in "abcd")
    relation = pgdecode.Relation(relation_id=1, namespace="s", name="t", replica_identity="d", columns=columns)
    long, short = (encode(Insert(relation_id=1, new=(b"v" * n,) * 4, new_formats="tttt")) for n in (3000, 1))
    payloads = pa.array([long] * 1024 + [short] * 200_000)
    usual = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(pool)
    try:
        pgdecode.decode_rows(payloads, relation, threads=2)
    finally:
        pa.set_memory_pool(usual)
    assert len(payloads) < pool.max_memory() < 8 * payloads.nbytes


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, "2"])
def test_threads_are_a_positive_integer(threads: Any) -> None:
    for decoding in (
        lambda: pgdecode.decode_messages([], threads=threads),
        lambda: pgdecode.decode_rows([], tables("18.shop.v1")[0][0], threads=threads),
    ):
        with pytest.raises(ValueError, match="threads must be a positive integer, not"):
            decoding()
