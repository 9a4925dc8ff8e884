"""`ChangeDecoder(threads=)`: the same batches, errors and states as by one thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import pgdecode
from pgdecode.changes.change_decoder import ChangeDecoder
from pgdecode.changes.change_rows import ChangeBuilder
from pgdecode.payloads import thread_counts
from pgdecode.protocol.limits import Limits
from support import captures
from support.generators.slot import Slot

T = 16385
NAME = f"public.t{T}"
CAPTURES = ["18.shop.v1", "18.streams.v4", "18.streams.v2bin", "18.txns.v2", "18.types.v2bin"]


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let few rows be worth a thread."""
    monkeypatch.setattr(thread_counts, "LEAST_ROWS", 3)
    monkeypatch.setattr(thread_counts, "MOST_ROW_BYTES", 1 << 30)


def outputs(column: pa.Array, **options: Any) -> list[Any]:
    """Everything that a decoder gives of a capture."""
    decoder = ChangeDecoder(**options)
    made: list[Any] = [decoder.decode(column), decoder.state, decoder.bad_rows]
    for name in decoder._engine.layout_catalog.names:
        made.append(ChangeDecoder(**options).table(column, name))
        made += ChangeDecoder(**options).table_batches(column, name, max_rows=300, with_version=True)
    names = list(decoder._engine.layout_catalog.names)
    made += [item for found in ChangeDecoder(**options).tables_batches(column, names, max_rows=5000) for item in found]
    return [*made, *ChangeDecoder(**options).decode_batches(column, max_rows=400)]


@pytest.mark.parametrize("name", CAPTURES)
def test_threads_give_what_one_thread_gives(name: str) -> None:
    column = captures.capture(name).column
    options: dict[str, Any] = {"include_uncommitted": name == "18.txns.v2"}
    if name == "18.types.v2bin":
        options = {"mode": "PERMISSIVE", "unrepresentable": "text"}  # without NaN, which equals nothing
    alone = outputs(column, **options)
    assert outputs(column, threads=3, **options) == alone


def test_a_snapshot_by_threads_is_the_same() -> None:
    column = captures.capture("18.shop.v1").column
    alone = pgdecode.snapshot(column, "public.orders")
    assert pgdecode.snapshot(column, "public.orders", threads=3).equals(alone)


def test_text_of_another_encoding_is_the_same() -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["id", "v"], keys=["id"], types=[23, 25])
    for number in range(200):
        slot.insert(T, str(number), "é" * (number % 7))
    slot.commit()
    payloads = [payload.replace("é".encode(), "é".encode("latin-1") + b"x") for payload in slot.payloads]
    alone = outputs(pa.array(payloads, pa.binary()), encoding="LATIN1")
    assert outputs(pa.array(payloads, pa.binary()), encoding="LATIN1", threads=4) == alone


def spoilt(n: int, *bad: int) -> list[bytes]:
    """Rows of a table of which some are no numbers."""
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["id", "v"], keys=["id"], types=[23, 25])
    for number in range(n):
        slot.insert(T, "x" if number in bad else str(number), "v")
    slot.commit()
    return slot.payloads


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_the_first_bad_row_is_the_one_that_is_raised(threads: int) -> None:
    decoder = ChangeDecoder(threads=threads)
    before = decoder.state
    with pytest.raises(pgdecode.BadValue) as raised:
        decoder.table(spoilt(100, 30, 90), NAME)
    assert raised.value.row == 32
    assert decoder.state == before


@pytest.mark.parametrize("mode", ["PERMISSIVE", "DROPMALFORMED"])
def test_bad_rows_are_kept_counted_or_left_out_alike(mode: Any) -> None:
    payloads = pa.array(spoilt(100, 0, 30, 31, 99), pa.binary())
    payloads = pa.array([*payloads.to_pylist()[:50], b"I", *payloads.to_pylist()[50:]], pa.binary())
    assert outputs(payloads, mode=mode, threads=4) == outputs(payloads, mode=mode)
    decoder = ChangeDecoder(mode=mode, threads=4)
    decoder.table(payloads, NAME)
    assert decoder.bad_rows == {"BAD_VALUE": 4, "TRUNCATED": 1}


def test_limits_apply_to_the_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgdecode.changes.record_batches.FREE_EXPANSION", 0)
    limits = Limits(max_expansion=1)
    built: list[int] = []
    batch = ChangeBuilder.batch

    def counted(self: ChangeBuilder, change_slice: Any) -> pa.RecordBatch:
        built.append(change_slice.n)
        return batch(self, change_slice)

    monkeypatch.setattr(ChangeBuilder, "batch", counted)
    ChangeDecoder(limits=limits, threads=2).decode(spoilt(100))
    # What two threads made was more than the limit may allow: one thread made it again.
    assert sorted(built) == [50, 50, 100]


def test_an_error_that_is_no_decode_error_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = ChangeBuilder.batch

    def broken_in_threads(self: ChangeBuilder, change_slice: Any) -> pa.RecordBatch:
        return batch(self, change_slice) if change_slice.n == 100 else {}["no such key"]

    monkeypatch.setattr(ChangeBuilder, "batch", broken_in_threads)
    with pytest.raises(KeyError, match="no such key"):
        ChangeDecoder(threads=2).decode(spoilt(100))


@pytest.mark.full
def test_threads_take_parts_of_a_large_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_counts, "LEAST_ROWS", 16_384)
    built: list[int] = []
    batch = ChangeBuilder.batch

    def counted(self: ChangeBuilder, change_slice: Any) -> pa.RecordBatch:
        built.append(change_slice.n)
        return batch(self, change_slice)

    monkeypatch.setattr(ChangeBuilder, "batch", counted)
    ChangeDecoder(threads=8).decode(spoilt(100))
    assert built == [100]
    built.clear()
    ChangeDecoder(threads=8).decode(spoilt(40_000))
    assert sorted(built) == [20_000, 20_000]


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, "2", None])
def test_a_number_of_threads_that_is_none_is_refused(threads: Any) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: ChangeDecoder(threads=threads),
        lambda: pgdecode.snapshot([], NAME, threads=threads),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="threads must be a positive integer"):
            call()
