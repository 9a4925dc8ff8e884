"""Sizes of transactions for `inspect`."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from pgdecode import ChangeDecoder, decode_messages
from pgdecode.envelope.kind_codes import CODES_TYPE, kind_code
from pgdecode.files.envelope_batches import MessageOptions, prepared_batches
from pgdecode.files.ordered_files import ordered_files
from pgdecode.files.transaction_statistics import ControlMessages, TransactionStatistics, _Sizes
from support import captures
from support.generators.slot import RandomSlot, Slot
from support.generators.slots import STOP, abort, begin, start, stream_commit


def _sizes(envelope: pa.RecordBatch, batch_rows: int) -> _Sizes:
    codes = pa.array([kind_code(kind) for kind in envelope["kind"].to_pylist()], CODES_TYPE)
    envelope = envelope.set_column(envelope.schema.get_field_index("kind"), "kind", codes)
    sizes = _Sizes()
    positions = pa.array(range(len(envelope)), pa.int64())
    for first in range(0, len(envelope), batch_rows):
        part = envelope.slice(first, batch_rows)
        messages = ControlMessages.of(part, pa.nulls(len(part), pa.binary()))
        sizes.add(messages, positions.slice(first, batch_rows).take(messages.rows))
    return sizes


def _statistics(path: Path, position: str | None = None, batch_rows: int = 100) -> TransactionStatistics:
    files = ordered_files(path, "data", position)
    statistics = TransactionStatistics(files)
    found = prepared_batches(
        files.files,
        lambda file, batch: None,
        MessageOptions(in_stream="auto", mode="PERMISSIVE"),
        batch_rows=batch_rows,
        kind_codes=True,
    )
    for file, batch, _ in found:
        statistics.add(file, batch, ControlMessages.of(batch.envelope, batch.source["data"]))
    return statistics


@pytest.mark.full
@pytest.mark.parametrize("order", ["as sent", "with messages missing", "shuffled"])
@pytest.mark.parametrize("name", ["18.shop.v1", "18.twophase.v3", "16.streams.v2"])
def test_sizes_of_transactions_do_not_depend_on_the_batches(name: str, order: str, rng: random.Random) -> None:
    envelope = decode_messages(captures.capture(name).payloads, in_stream="ordered")
    rows = list(range(len(envelope)))
    if order == "with messages missing":
        rows = sorted(rng.sample(rows, len(rows) * 9 // 10))
    elif order == "shuffled":
        rng.shuffle(rows)
    envelope = envelope.take(pa.array(rows))
    # In batches of one row, no transaction is whole.
    expected = _sizes(envelope, 1)
    for batch_rows in (2, 7, 64, len(envelope)):
        sizes = _sizes(envelope, batch_rows)
        assert sizes.largest == expected.largest
        assert sizes.waiting == expected.waiting
        assert [sizes.n_of(position) for position in sizes.waiting] == [
            expected.n_of(position) for position in expected.waiting
        ]


@pytest.mark.parametrize("end", [abort(7, 7), stream_commit(7, 100)], ids=["abort", "commit"])
def test_a_stream_may_lack_the_stop_before_its_end(end: bytes) -> None:
    sizes = _sizes(decode_messages([start(7, first=True), end, STOP], in_stream="ordered"), 3)
    assert sizes.waiting == {}


@pytest.mark.parametrize("batch_rows", [1, 2, 100])
def test_a_stream_that_is_sent_again_is_counted_once(tmp_path: Path, batch_rows: int) -> None:
    slot = Slot()
    for n_changes in (2, 1):
        slot.start(9, first=True)
        for _ in range(n_changes):
            slot.truncate(16385, xid=9)
        slot.stop()
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"data": slot.payloads}), path)
    assert [(size.changes, size.position) for size in _statistics(path, batch_rows=batch_rows).open] == [(1, 4)]
    slot.stream_prepare(9, "g")
    slot.commit_prepared(9, "g")
    pq.write_table(pa.table({"data": slot.payloads}), path)
    statistics = _statistics(path, batch_rows=batch_rows)
    assert [(size.changes, size.position) for size in statistics.largest] == [(1, 4)]
    assert statistics._sizes.waiting == {}


@pytest.mark.full
@pytest.mark.parametrize("n_missing", range(6))
def test_sizes_are_those_of_the_change_decoder_when_messages_are_missing(
    tmp_path: Path, rng: random.Random, n_missing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgdecode.files.transaction_statistics._LARGEST", 1000)
    path = tmp_path / "in.parquet"
    for _ in range(4):
        payloads = RandomSlot(rng, 25, with_versions=False, with_copies=False).payloads
        # The tables are described in the first transaction.
        for row in sorted(rng.sample(range(7, len(payloads)), n_missing), reverse=True):
            del payloads[row]
        decoder = ChangeDecoder(mode="PERMISSIVE", include_uncommitted=True, start="anywhere")
        committed, undecided = decoder.decode(payloads), decoder.undecided()
        expected: dict[int, set[int]] = {}
        for change in [*committed.to_pylist(), *undecided.to_pylist()]:
            if change["op"] is not None:
                # A truncate of several tables is a change of each, and one message.
                expected.setdefault(change["xid"], set()).add(change["position"])
        found = {*pc.drop_null(committed.filter(committed["committed"])["xid"]).to_pylist()}
        pq.write_table(pa.table({"data": payloads}), path)
        for batch_rows in (1, 7, 1000):
            statistics = _statistics(path, batch_rows=batch_rows)
            sizes = {size.xid: size for size in [*statistics.largest, *statistics.open]}
            assert found <= sizes.keys()
            for xid, size in sizes.items():
                if payloads[size.position][:1] != b"S" or payloads[size.position][5]:
                    assert size.changes == len(expected.get(xid, ()))
            waiting = statistics._sizes.waiting.keys() - statistics._sizes._cut
            assert waiting == {size.position for size in statistics.open}


def test_a_block_without_its_stop_is_counted(tmp_path: Path) -> None:
    slot = Slot()
    slot.start(9, first=True)
    slot.truncate(16385, xid=9)
    slot.begin(10)
    slot.truncate(16385)
    slot.commit()
    slot.stream_commit(9)
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"data": slot.payloads}), path)
    for batch_rows in (1, 2, 100):
        statistics = _statistics(path, batch_rows=batch_rows)
        assert [(size.changes, size.xid) for size in statistics.largest] == [(1, 9), (1, 10)]
        assert statistics.fault is not None


def test_a_stream_whose_beginning_is_missing_is_forgotten_when_it_is_prepared(tmp_path: Path) -> None:
    slot = Slot()
    slot.start(9)
    slot.truncate(16385, xid=9)
    slot.stop()
    slot.stream_prepare(9, "g")
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"data": slot.payloads}), path)
    for batch_rows in (1, 100):
        statistics = _statistics(path, batch_rows=batch_rows)
        assert [(size.changes, size.xid) for size in statistics.largest] == [(1, 9)]
        assert statistics._sizes.waiting == {}


def test_prepared_transactions_are_forgotten_when_they_are_decided(tmp_path: Path) -> None:
    slot = Slot()
    for xid in range(7, 17):
        if xid % 2:
            slot.begin_prepare(xid, f"gid {xid}")
            slot.message(flags=1)
            slot.prepare(f"gid {xid}")
        else:
            slot.start(xid, first=True)
            slot.message(flags=1, xid=xid)
            slot.stop()
            slot.stream_prepare(xid, f"gid {xid}")
        if xid < 15:
            decide = slot.commit_prepared if xid % 3 else slot.rollback_prepared
            decide(xid, f"gid {xid}")
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"data": slot.payloads}), path)
    for batch_rows in (1, 5, 100):
        statistics = _statistics(path, batch_rows=batch_rows)
        assert [size.xid for size in statistics.open] == [15, 16]
        assert [size.xid for size in statistics._sizes.waiting.values()] == [15, 16]


@pytest.mark.parametrize(
    ("seq", "fault"),
    [
        ([0, 1, 2, 3], "row 3: STATE_TRANSACTION"),
        ([0, 1, 2, 0], "row 3: seq 0 does not come after 0"),
        ([0, 1, 2, None], "row 3: seq is null"),
    ],
)
def test_a_fault_after_keepalives_has_its_row(tmp_path: Path, seq: list[int | None], fault: str) -> None:
    path = tmp_path / "in.parquet"
    frames = [b"w" + (10).to_bytes(8, "big") + bytes(16) + begin(xid) for xid in (7, 8)]
    keepalive = b"k" + bytes(17)
    pq.write_table(pa.table({"data": [frames[0], keepalive, keepalive, frames[1]], "seq": seq}), path)
    statistics = _statistics(path, "seq")
    assert statistics.fault is not None
    assert statistics.fault.startswith(f"{path}: {fault}")
