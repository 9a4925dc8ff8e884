"""Payloads of undecided transactions in files: which there are, and what a call costs."""

from __future__ import annotations

import errno
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pgdecode
from pgdecode import ChangeDecoder
from pgdecode.storage.errors import DiskFull
from support.change_rows import through_json
from support.generators.slots import (
    STOP,
    begin,
    begin_prepare,
    commit,
    commit_prepared,
    insert,
    prepare,
    relation,
    start,
    stream_commit,
)

ROW = insert("1", "2")
ROW_BYTES = len(ROW) + 9  # with an offset and a validity bit


def n_rows_in(folder: Path) -> list[int]:
    """Number of payloads in each spill file, in the order in which they were written."""
    paths = sorted(folder.glob("*.arrow"), key=lambda path: int(path.stem.rpartition("-")[2]))
    return [pa.ipc.open_file(pa.memory_map(str(path))).read_all().num_rows for path in paths]


def operations(decoder: ChangeDecoder, payloads: Any, interrupt_at: int | None = None) -> Counter[str]:
    """Count the functions that a call of a decoder calls. Interrupt it at one in Python, as Ctrl-C does."""
    column = pa.array(payloads, pa.binary()) if isinstance(payloads, list) else payloads
    found: Counter[str] = Counter()

    def count(frame: Any, event: str, argument: Any) -> None:
        found[event] += 1
        # Python ignores it in a generator that is closed.
        if event == "call" and found["call"] == interrupt_at and frame.f_code.co_name != "<genexpr>":
            raise KeyboardInterrupt

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        decoder.decode(column)
    finally:
        sys.setprofile(before)
    return found


@pytest.mark.parametrize("max_held_bytes", [2**20, 0])
def test_a_call_costs_the_same_after_few_calls_and_after_many(tmp_path: Path, max_held_bytes: int) -> None:
    decoder = ChangeDecoder(spill=tmp_path, max_held_bytes=max_held_bytes)
    decoder.decode([begin(7), relation("a b")])
    costs = [operations(decoder, [ROW]).total() for _ in range(200)]
    # A call now and then may clear a cache.
    assert sorted(costs[10:20])[5] == sorted(costs[-10:])[5]
    assert len(decoder.decode([commit(200)])) == 200


def test_calls_at_the_limit_do_not_look_at_all_transactions_again_and_again(tmp_path: Path) -> None:
    decoder = ChangeDecoder(spill=tmp_path, max_held_bytes=100 * ROW_BYTES)
    decoder.decode([begin(7), relation("a b"), commit(107)])

    def prepared(xid: int) -> list[bytes]:
        return [begin_prepare(xid, f"g{xid}"), ROW, prepare(xid, f"g{xid}")]

    costs = [operations(decoder, prepared(xid)).total() for xid in range(10, 190)]
    usual = sorted(costs)[10]
    # The first 100 are in memory. Then half of them are written at once, and again after as many more.
    assert sum(cost > 2 * usual for cost in costs) == 2
    assert len(n_rows_in(tmp_path)) > 80


def test_payloads_beyond_the_limit_are_in_a_file(tmp_path: Path) -> None:
    decoder = ChangeDecoder(spill=tmp_path, max_held_bytes=5 * ROW_BYTES)
    decoder.decode([begin(7), relation("a b")])
    files = []
    for _ in range(13):
        decoder.decode([ROW])
        files.append(n_rows_in(tmp_path))
    assert files == [[]] * 5 + [[6]] * 6 + [[6, 6]] * 2
    assert len(decoder.decode([commit(200)])) == 13
    decoder.decode([])
    assert n_rows_in(tmp_path) == []


def test_undecided_transactions_in_files_are_not_open_files(tmp_path: Path) -> None:
    """There may be more of them than files that a process may open, also after a restart."""

    def n_open() -> int:
        return len([*Path("/dev/fd").iterdir()])

    decoder = ChangeDecoder(spill=tmp_path, max_held_bytes=0)
    before = n_open()
    decoder.decode([begin(7), relation("a b"), commit(107)])
    for xid in range(10, 60):
        decoder.decode([begin_prepare(xid, f"g{xid}"), ROW, prepare(xid, f"g{xid}")])
    assert len(n_rows_in(tmp_path)) == 50
    assert n_open() - before < 10
    restored = through_json(decoder, spill=tmp_path, max_held_bytes=0)
    assert n_open() - before < 10
    ends = [commit_prepared(xid, f"g{xid}", 200 + 10 * xid) for xid in range(10, 60)]
    assert len(restored.decode(ends)) == 50
    assert n_open() - before < 10


def test_ended_transactions_no_longer_count(tmp_path: Path) -> None:
    decoder = ChangeDecoder(spill=tmp_path, max_held_bytes=5 * ROW_BYTES)
    for xid in range(7, 17):
        decoder.decode([begin(xid), relation("a b"), *[ROW] * 4])
        assert len(decoder.decode([commit(100 * xid)])) == 4
    assert n_rows_in(tmp_path) == []


@pytest.mark.parametrize("restored", ["state", "failed call"])
def test_payloads_in_memory_count_after_a_new_beginning(tmp_path: Path, restored: str) -> None:
    options = {"spill": tmp_path, "max_held_bytes": 5 * ROW_BYTES}
    decoder = ChangeDecoder(**options)
    decoder.decode([begin(7), relation("a b"), *[ROW] * 4])
    if restored == "state":
        decoder = through_json(decoder, **options)
    else:
        for bad in ([ROW, b"z"], [commit(200), b"z"]):
            with pytest.raises(pgdecode.DecodeError):
                decoder.decode(bad)
    decoder.decode([ROW])
    assert n_rows_in(tmp_path) == []
    decoder.decode([ROW])
    assert n_rows_in(tmp_path) == [6]


def test_a_failed_call_does_not_forget_the_files_to_delete(tmp_path: Path) -> None:
    decoder = ChangeDecoder(spill=tmp_path, max_held_bytes=0)
    decoder.decode([begin(7), relation("a b"), ROW])
    decoder.decode([commit(200)])
    before = decoder.state
    with pytest.raises(pgdecode.DecodeError):
        decoder.decode([b"z"])
    assert decoder.state == before
    decoder.decode([])
    assert n_rows_in(tmp_path) == []


def test_a_failed_call_leaves_no_file(tmp_path: Path) -> None:
    decoder = ChangeDecoder(spill=tmp_path, max_held_bytes=0)
    chunks = [[begin(7), relation("a b"), ROW], [b"z"]]
    with pytest.raises(pgdecode.DecodeError):
        decoder.decode(pa.chunked_array(chunks, pa.binary()))
    assert n_rows_in(tmp_path) == []


def test_a_failed_call_restores_the_state_also_if_its_file_cannot_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = ChangeDecoder(spill=tmp_path, max_held_bytes=0)
    decoder.decode([begin(7), relation("a b"), ROW])
    before = decoder.state

    def refuse(path: Path, *_: Any, **__: Any) -> None:
        if path.exists():
            raise PermissionError(13, "denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        with pytest.raises(pgdecode.DecodeError):
            decoder.decode(pa.chunked_array([[ROW, ROW], [b"z"]], pa.binary()))
    assert decoder.state == before
    assert len(decoder.decode([ROW, ROW, commit(200)])) == 3


def test_a_full_disk_is_named_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = ChangeDecoder(spill=tmp_path, max_held_bytes=0)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as patch:
        patch.setattr(pa.ipc, "new_file", full)
        with pytest.raises(DiskFull, match=rf"^{tmp_path}/pgdecode-7-0-2\.arrow: no space left on device$"):
            decoder.decode([begin(7), relation("a b"), ROW])
    assert [*tmp_path.iterdir()] == []
    assert len(decoder.decode([begin(7), relation("a b"), ROW, commit(200)])) == 1


@pytest.mark.full
@pytest.mark.parametrize("step", [7, 1])
def test_ctrl_c_restores_the_state_from_before_the_call(tmp_path: Path, step: int) -> None:
    begun = [start(7, first=True), relation("a b", xid=7), insert("1", "2", xid=7), STOP]
    chunks = [
        [start(7, first=False), insert("3", "4", xid=7), STOP],
        [stream_commit(7, 200), begin(8), relation("a c"), ROW, commit(300), begin(9), ROW],
    ]
    column = pa.chunked_array(chunks, pa.binary())

    def decoder_in(folder: Path) -> ChangeDecoder:
        decoder = ChangeDecoder(spill=folder, max_held_bytes=0, drop_duplicates=True)
        decoder.decode(begun)
        return decoder

    # The first time, caches are filled.
    n_calls = [operations(decoder_in(tmp_path / name), column)["call"] for name in ("first", "second")][1]
    assert n_calls > 500
    for n in range(1, n_calls + 1, step):
        folder = tmp_path / str(n)
        decoder = decoder_in(folder)
        before, files = decoder.state, n_rows_in(folder)
        with suppress(KeyboardInterrupt):
            operations(decoder, column, interrupt_at=n)
            continue
        # There is no way to return and be sure that nothing comes between.
        if decoder.state != before and n > n_calls - 10:
            continue
        assert (decoder.state, n_rows_in(folder)) == (before, files)
        assert len(decoder.decode(column)) == 3


def test_a_file_that_is_written_and_read_in_one_call_is_deleted(tmp_path: Path) -> None:
    decoder = ChangeDecoder(spill=tmp_path, max_held_bytes=0)
    chunks = [[start(9, first=True), relation("a b", xid=9), insert("1", "2", xid=9), STOP], [stream_commit(9, 200)]]
    assert len(decoder.decode(pa.chunked_array(chunks, pa.binary()))) == 1
    decoder.decode([])
    assert n_rows_in(tmp_path) == []
