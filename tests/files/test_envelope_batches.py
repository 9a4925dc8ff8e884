"""Payload files that are decoded in batches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

import pgdecode
from pgdecode.files.envelope_batches import MessageOptions, _state_after, decoded_batches
from pgdecode.files.payload_file import FileFault, PayloadFile
from pgdecode.files.payload_files import payload_files
from support import captures
from support.generators.samples import SAMPLES
from support.payload_files import written
from support.tiers import full

BEGIN = SAMPLES["begin"].payload
COMMIT = SAMPLES["commit"].payload


def file_of(tmp_path: Path, payloads: Sequence[bytes | None]) -> PayloadFile:
    (file,) = payload_files(written(tmp_path / "raw.parquet", payloads, rows_per_group=5), "data")
    return file


@pytest.mark.parametrize("batch_rows", [full(1), 7, 1000])
def test_the_stream_state_is_kept_through_a_file(batch_rows: int) -> None:
    name = "18.streams.v4"
    (file,) = payload_files(captures.DATA / f"{name}.parquet", "data")
    batches = [batch.envelope for _, batch in decoded_batches([file], batch_rows=batch_rows)]
    assert (
        pa.Table.from_batches(batches)
        .combine_chunks()
        .to_batches()[0]
        .equals(pgdecode.decode_messages(captures.capture(name).column))
    )


def test_failfast_gives_the_rows_before_the_bad_one_and_names_it_by_its_row_in_the_file(tmp_path: Path) -> None:
    file = file_of(tmp_path, [BEGIN] * 17 + [BEGIN[:-1]] + [b"z"])
    batches = []
    with pytest.raises(FileFault) as caught:
        batches.extend(batch for _, batch in decoded_batches([file], batch_rows=4))
    assert [(batch.start, len(batch.envelope)) for batch in batches] == [(0, 4), (4, 4), (8, 4), (12, 4), (16, 1)]
    # B is tag, LSN and timestamp of 8 bytes each, then the xid at offset 17.
    assert str(caught.value) == f"{file.path}: row 17: TRUNCATED at offset 17: begin xid needs 4 bytes, 3 left"


def test_a_batch_past_what_arrow_holds_is_named_by_its_first_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgdecode.files.envelope_batches.MessageDecoder.decode_after", raise_too_large)
    with pytest.raises(FileFault, match=r"raw\.parquet: rows from 0: new of this batch .*; decode fewer rows at once$"):
        list(decoded_batches([file_of(tmp_path, [BEGIN])], MessageOptions(mode="PERMISSIVE")))


def raise_too_large(
    self: pgdecode.MessageDecoder, payloads: pa.Array, streamed: bool | None, *, kind_codes: bool
) -> pa.RecordBatch:
    raise pgdecode.BatchTooLarge(pgdecode.BatchTooLarge.wording.format(field="new"))


def test_permissive_keeps_bad_rows_and_counts_them(tmp_path: Path) -> None:
    file = file_of(tmp_path, [BEGIN, b"z", None, b"B"])
    batches = [batch for _, batch in decoded_batches([file], MessageOptions(mode="PERMISSIVE"), 2)]
    assert [(batch.start, batch.n_read, batch.n_bad) for batch in batches] == [(0, 2, 1), (2, 2, 1)]
    errors = [error for batch in batches for error in batch.envelope.column("error").to_pylist()]
    assert [error and error.split(" ")[0] for error in errors] == [None, "UNKNOWN_TAG", None, "TRUNCATED"]


def test_dropmalformed_leaves_bad_rows_out_of_both_sides(tmp_path: Path) -> None:
    [(_, batch)] = decoded_batches(
        [file_of(tmp_path, [BEGIN, b"z", None, COMMIT])], MessageOptions(mode="DROPMALFORMED")
    )
    assert (batch.n_read, batch.n_bad) == (4, 1)
    assert batch.n_bytes == len(BEGIN) + 1 + len(COMMIT)
    assert batch.source.column("data").to_pylist() == [BEGIN, None, COMMIT]
    assert batch.envelope.column("kind").to_pylist() == ["begin", None, "commit"]


def test_a_row_out_of_stream_order_is_reported_with_a_hint(tmp_path: Path) -> None:
    streamed_insert = bytes.fromhex("49 00000304 00004001 4e 0001 6e")  # I, xid 772, oid 16385, N, 1 column, null
    file = file_of(tmp_path, [BEGIN, streamed_insert])
    with pytest.raises(FileFault, match=r'row 1: STATE_DESYNC .* \(in_stream="auto" reads payloads in any order\)$'):
        list(decoded_batches([file]))
    [(_, batch)] = decoded_batches([file], MessageOptions(in_stream="auto"))
    assert batch.envelope.column("xid").to_pylist() == [4294967294, 772]


@pytest.mark.parametrize("n_after", [0, 1, 63, 64, 65, 600, 5000])
@pytest.mark.parametrize("tag", [b"S", b"E", b"B", None])
def test_the_last_boundary_of_a_batch_tells_the_state_after_it(tag: bytes | None, n_after: int) -> None:
    boundaries = [] if tag is None else [b"E" if tag == b"S" else b"S", tag]
    payloads = pa.array([b"I", *boundaries, *[b"I", None, b""] * (n_after // 3), *[b"I"] * (n_after % 3)], pa.binary())
    for before in (None, False, True):
        assert _state_after(payloads, before) is (before if tag is None else tag == b"S")
    assert _state_after(payloads.slice(0, 0), True) is True
