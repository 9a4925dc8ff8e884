"""One payload file, read in batches."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgdecode.arrow.thrift import StructReader
from pgdecode.files import payload_file
from pgdecode.files.payload_file import FileFault
from pgdecode.files.payload_files import payload_files
from support.generators.samples import SAMPLES
from support.memory import peak_memory
from support.payload_files import written

BEGIN = SAMPLES["begin"].payload
COMMIT = SAMPLES["commit"].payload


@pytest.mark.parametrize(
    "type",
    [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(len(BEGIN)), pa.dictionary(pa.int32(), pa.binary())],
    ids=str,
)
def test_payloads_of_every_binary_type_are_read(tmp_path: Path, type: pa.DataType) -> None:
    column = pa.array([BEGIN, None], pa.binary()).cast(type)
    pq.write_table(pa.table({"data": column}), tmp_path / "raw.parquet")
    (file,) = payload_files(tmp_path / "raw.parquet", "data")
    (batch,) = file.batches()
    assert batch.column("data").to_pylist() == [BEGIN, None]
    assert batch.column("data").type in (pa.binary(), pa.large_binary())


def test_columns_to_keep_are_read_along_even_if_their_names_have_dots(tmp_path: Path) -> None:
    columns = {"a.b": pa.array(["x", "y"], pa.string_view()), "nest": pa.array([{"data": 1}, None])}
    path = written(tmp_path / "raw.parquet", [BEGIN, COMMIT], **columns)
    (file,) = payload_files(path, "data", ["nest", "a.b", "data"])
    (batch,) = file.batches()
    assert batch.select(["nest", "a.b", "data"]).to_pylist() == [
        {"nest": {"data": 1}, "a.b": "x", "data": BEGIN},
        {"nest": None, "a.b": "y", "data": COMMIT},
    ]
    assert file.schema.types == [batch.column(name).type for name in file.keep]


def test_batches_have_at_most_the_requested_rows_in_order(tmp_path: Path) -> None:
    payloads = [b"%d" % number for number in range(2500)]
    (file,) = payload_files(written(tmp_path / "raw.parquet", payloads, rows_per_group=700), "data")
    batches = list(file.batches(400))
    assert max(batch.num_rows for batch in batches) == 400
    assert pa.Table.from_batches(batches)["data"].to_pylist() == payloads


@pytest.mark.parametrize("n_rows", [1, 1000, 1001, 2500, 9999])
def test_the_first_rows_are_read_wherever_row_groups_end(tmp_path: Path, n_rows: int) -> None:
    payloads = [b"%d" % number for number in range(2500)]
    (file,) = payload_files(written(tmp_path / "0.parquet", payloads), "data")
    assert file.first_rows(n_rows)["data"].to_pylist() == payloads[:n_rows]
    later = replace(file, groups=file.groups[1:])
    assert later.first_rows(n_rows)["data"].to_pylist() == payloads[1000:][:n_rows]


def test_first_rows_that_have_one_long_value_are_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload_file, "BATCH_BYTES", 100_000)
    (file,) = payload_files(written(tmp_path / "0.parquet", [b"x" * 10_000] * 900), "data")
    assert file.groups[0].n_bytes < 20_000
    assert 5 <= file.first_rows(1000).num_rows <= 20


def test_a_file_without_rows_has_no_first_ones(tmp_path: Path) -> None:
    (file,) = payload_files(written(tmp_path / "0.parquet", []), "data")
    with pytest.raises(FileFault, match="has no rows"):
        file.first_rows(1)


def test_wide_rows_are_read_in_smaller_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload_file, "BATCH_BYTES", 100_000)
    payloads = [b"I" + os.urandom(10_000) for _ in range(100)]
    (file,) = payload_files(written(tmp_path / "raw.parquet", payloads), "data")
    batches = list(file.batches())
    assert max(batch.nbytes for batch in batches) <= 2 * 100_000
    assert pa.Table.from_batches(batches)["data"].to_pylist() == payloads


def test_a_few_wide_rows_among_many_narrow_ones_do_not_make_a_large_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payload_file, "BATCH_BYTES", 100_000)
    payloads = [b"Inarrow"] * 5000 + [b"I" + os.urandom(90_000) for _ in range(5)]
    (file,) = payload_files(written(tmp_path / "raw.parquet", payloads, rows_per_group=10_000), "data")
    batches = list(file.batches())
    assert max(batch.nbytes for batch in batches) <= 2 * 100_000
    assert pa.Table.from_batches(batches)["data"].to_pylist() == payloads


def test_a_small_row_group_is_one_batch_without_a_look_at_its_dictionary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(payload_file, "_may_expand")
    payloads = [b"I%050d" % number for number in range(2000)]
    (file,) = payload_files(written(tmp_path / "raw.parquet", payloads, rows_per_group=10_000), "data")
    [batch] = file.batches()
    assert batch["data"].to_pylist() == payloads
    assert max(len(batch) for batch in file.batches(900)) <= 900


def test_damage_in_a_page_is_a_fault_of_the_file(tmp_path: Path) -> None:
    path = written(tmp_path / "raw.parquet", [b"I" + os.urandom(100) for _ in range(1000)])
    data = bytearray(path.read_bytes())
    data[4:2000] = bytes(1996)  # the first page's header, after the magic number
    path.write_bytes(data)
    (file,) = payload_files(path, "data")
    with pytest.raises(FileFault, match=r"^\S+raw\.parquet: cannot be read further: .+$"):
        list(file.batches())


def _with_unknown_page(path: Path) -> None:
    """Give the last page of the first column an unknown type, by one bit."""
    content = bytearray(path.read_bytes())
    metadata = pq.read_metadata(path).row_group(0).column(0)
    at, last = metadata.data_page_offset, 0
    while at < metadata.data_page_offset + metadata.total_compressed_size:
        last = at
        header = StructReader(bytes(content[at:]))
        at += header.struct()[3].value + header.at  # compressed_page_size
    content[last + 1] ^= 0x20
    path.write_bytes(content)


def test_rows_that_the_footer_promises_and_the_pages_lack_are_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "raw.parquet"
    options = {"use_dictionary": False, "data_page_size": 8000, "write_batch_size": 100}
    pq.write_table(pa.table({"data": [BEGIN, COMMIT] * 3000}), path, row_group_size=3000, **options)
    _with_unknown_page(path)
    (file,) = payload_files(path, "data")
    with pytest.raises(FileFault, match=r"raw\.parquet: has [\d,]+ rows in place of the 6,000 that its footer says"):
        list(file.batches())


@pytest.mark.full
@pytest.mark.parametrize("encoding", ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
def test_columns_that_pyarrow_does_not_read_as_dictionaries_are_read(tmp_path: Path, encoding: str) -> None:
    payloads = [bytes([number % 8]) * 100_000 for number in range(4000)]  # 400 MB
    path = tmp_path / "raw.parquet"
    table = pa.table({"data": pa.array(payloads, pa.binary()), "key": [f"key {number}" for number in range(4000)]})
    pq.write_table(table, path, use_dictionary=["data"], column_encoding={"key": encoding}, row_group_size=4000)
    (file,) = payload_files(path, "data", ("key",))
    assert file.first_rows(3).to_pylist() == table.select(["key", "data"]).slice(0, 3).to_pylist()
    n_rows = 0
    for batch in file.batches():
        assert batch["key"].to_pylist() == table["key"].slice(n_rows, len(batch)).to_pylist()
        n_rows += len(batch)
    assert n_rows == 4000


def repeated(path: Path, value: bytes, n_rows: int, type: pa.DataType, n_others: int = 0) -> Path:
    """A file of a few hundred bytes whose rows are all the same, and a column with so many random bytes in each row."""
    encoded = pa.DictionaryArray.from_arrays(pa.array([0] * n_rows, pa.int32()), pa.array([value], type))
    columns = {"data": encoded, "key": encoded, "other": [os.urandom(n_others) for _ in range(n_rows)]}
    pq.write_table(pa.table(columns), path, compression="zstd", store_schema=False)
    return path


@pytest.mark.full
@pytest.mark.skipif("LD_PRELOAD" in os.environ, reason="a sanitizer's allocator keeps what is freed")
def test_a_small_row_group_that_repeats_its_largest_value_takes_limited_memory(tmp_path: Path) -> None:
    n_rows = 2000
    content = payload_file._EXPANDED_BYTES // n_rows * 9 // 10
    payload = b"M\0" + bytes(7) + b"\x08\0" + content.to_bytes(4, "big") + bytes(content)
    hostile = repeated(tmp_path / "hostile.parquet", payload, n_rows, pa.binary())
    usual = repeated(tmp_path / "usual.parquet", b"E", n_rows, pa.binary())
    words = ("--fields", "kind,prefix", "--workers", "1")
    base = peak_memory("decode", usual, tmp_path / "usual", *words)
    peak = peak_memory("decode", hostile, tmp_path / "hostile", *words)
    assert peak < base + 2 * payload_file._EXPANDED_BYTES


@pytest.mark.full
@pytest.mark.skipif("LD_PRELOAD" in os.environ, reason="a sanitizer's allocator keeps what is freed")
@pytest.mark.parametrize(("n_workers", "n_batches", "n_others"), [(1, 4, 0), (1, 4, 64), (2, 12, 0)])
def test_a_file_that_repeats_one_large_value_takes_no_more_memory_than_a_few_batches_a_worker_may(
    tmp_path: Path, n_workers: int, n_batches: int, n_others: int
) -> None:
    content = 72 * 1024
    payload = b"M\0" + bytes(7) + b"\x08\0" + content.to_bytes(4, "big") + bytes(content)
    # 32768 rows of 72 kB are 2.4 GB.
    hostile = repeated(tmp_path / "hostile.parquet", payload, 32_768, pa.binary(), n_others)
    assert hostile.stat().st_size < 6000 or n_others
    usual = repeated(tmp_path / "usual.parquet", b"E", 32_768, pa.binary(), n_others)
    words = ("--fields", "kind,prefix", "--workers", str(n_workers))
    base = peak_memory("decode", usual, tmp_path / "usual", "--keep", "key", *words)
    peak = peak_memory("decode", hostile, tmp_path / "hostile", *words)
    # One worker has a batch and its slices. Of two, each has two batches read ahead, one that is being read, and one or
    # two that are being decoded; the order of events decides how many there are at once. The file has 72 batches.
    assert peak < base + n_batches * payload_file.BATCH_BYTES
    assert pq.read_table(tmp_path / "hostile").num_rows == 32_768


@pytest.mark.full
@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_large_and_small_values_of_a_dictionary_come_in_order(tmp_path: Path, compression: str) -> None:
    values = [b"I" + os.urandom(200) if number % 2 else b"C" * 20_000 for number in range(20_000)]
    path = tmp_path / "raw.parquet"
    pq.write_table(pa.table({"data": values}), path, compression=compression, dictionary_pagesize_limit=2**25)
    (file,) = payload_files(path, "data")
    batches = list(file.batches())
    assert pa.Table.from_batches(batches)["data"].to_pylist() == values
    assert 1 < len(batches) < 50


def test_values_that_differ_are_not_read_as_a_dictionary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As a dictionary, values that differ take several times the memory, and many times as long.
    monkeypatch.setattr(payload_file, "_EXPANDED_BYTES", 0)
    opened: list[list[str]] = []
    original = payload_file.Reader.__call__
    monkeypatch.setattr(
        payload_file.Reader, "__call__", lambda self, names=(): (opened.append([*names]), original(self, names))[1]
    )
    payloads = [b"I" + os.urandom(200) for _ in range(20_000)]
    pq.write_table(pa.table({"data": payloads}), tmp_path / "raw.parquet")
    (file,) = payload_files(tmp_path / "raw.parquet", "data")
    opened.clear()
    assert pa.Table.from_batches(file.batches())["data"].to_pylist() == payloads
    # The first reading is for the length of the longest value.
    assert opened == [["data"], []]


@pytest.mark.parametrize("names", [["data", "data.n"], ["data.n", "data"]])
def test_a_column_may_have_the_name_of_the_payload_and_a_dot(
    names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payload_file, "_EXPANDED_BYTES", 0)  # so that dictionaries are looked at
    columns = {"data": [BEGIN, COMMIT] * 100, "data.n": list(range(200))}
    path = tmp_path / "raw.parquet"
    pq.write_table(pa.table({name: columns[name] for name in names}), path)
    (file,) = payload_files(path, "data")
    for batch in (file.first_rows(200), *file.batches()):
        assert batch["data"].to_pylist() == columns["data"]


def test_few_values_of_constant_width_are_read_at_once(tmp_path: Path) -> None:
    width = payload_file.BATCH_BYTES // 20
    path = tmp_path / "raw.parquet"
    pq.write_table(pa.table({"data": pa.array([bytes(width)] * 200, pa.binary(width))}), path, compression="zstd")
    (file,) = payload_files(path, "data")
    before = pa.total_allocated_bytes()
    for batch in file.batches():
        assert len(batch) == 20
        assert pa.total_allocated_bytes() - before < 4 * payload_file.BATCH_BYTES


@pytest.mark.full
def test_few_values_that_share_their_beginnings_are_the_first_rows(tmp_path: Path) -> None:
    path = tmp_path / "raw.parquet"
    payloads = pa.array([b"B" + bytes(payload_file.BATCH_BYTES // 50)] * 1000, pa.large_binary())
    encoding = {"data": "DELTA_BYTE_ARRAY"}
    pq.write_table(
        pa.table({"data": payloads}),
        path,
        use_dictionary=False,
        column_encoding=encoding,
        compression="zstd",
        store_schema=False,
    )
    (file,) = payload_files(path, "data")
    assert len(file.first_rows(1000)) == 64


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_few_values_that_share_their_beginnings_are_read_at_once(
    tmp_path: Path, compression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payload_file, "BATCH_BYTES", 1_000_000)
    monkeypatch.setattr(payload_file, "_EXPANDED_BYTES", 1_000_000)
    payloads = [b"I" * 5000 + os.urandom(100) for _ in range(1000)]
    path = tmp_path / "raw.parquet"
    encoding = {"data": "DELTA_BYTE_ARRAY"}
    pq.write_table(
        pa.table({"data": payloads}), path, use_dictionary=False, column_encoding=encoding, compression=compression
    )
    (file,) = payload_files(path, "data")
    read: list[pa.RecordBatch] = []
    original = pq.ParquetFile.iter_batches

    def spied(self: pq.ParquetFile, *arguments: Any, **options: Any) -> Iterator[pa.RecordBatch]:
        for batch in original(self, *arguments, **options):
            read.append(batch)
            yield batch

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", spied)
    batches = list(file.batches(900))
    assert pa.Table.from_batches(batches)["data"].to_pylist() == payloads
    assert max(batch.nbytes for batch in read) < payload_file.BATCH_BYTES / 2
    # The decoder gets larger batches.
    assert len(batches) < len(read) / 2


@pytest.mark.parametrize("store_schema", [False, True])
@pytest.mark.parametrize("type", [pa.binary(), pa.large_binary(), pa.binary_view()], ids=str)
def test_rows_of_dictionaries_come_whole_and_in_order_in_small_batches(
    tmp_path: Path, type: pa.DataType, store_schema: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payload_file, "BATCH_BYTES", 5000)
    values = [b"C" * 4000, None, b"E", b"", b"B" * 2000] * 200
    path = tmp_path / "some.parquet"
    table = pa.table({"data": pa.array(values, type), "key": pa.array(map(str, range(1000)))})
    pq.write_table(table, path, row_group_size=150, store_schema=store_schema)
    (file,) = payload_files(path, "data", ["key"])
    batches = list(file.batches())
    assert [value for batch in batches for value in batch.column("data").to_pylist()] == values
    assert [value for batch in batches for value in batch.column("key").to_pylist()] == list(map(str, range(1000)))
    assert max(batch.nbytes for batch in batches) < 4 * 5000
    assert {str(batch.schema.field("data").type) for batch in batches} <= {"binary", "large_binary"}


@pytest.mark.parametrize(
    "column",
    [
        pytest.param(pa.array([-(2**62), 2**62], pa.timestamp("us")), id="timestamps past Python's"),
        pytest.param(pa.array([-(2**31), 2**31 - 1], pa.date32()), id="dates past Python's"),
        pytest.param(pa.array([0, 2**63 - 1], pa.time64("ns")), id="times past a day"),
        pytest.param(pa.array([1, 2], pa.decimal128(38)), id="decimals"),
        pytest.param(pa.array([1, 2], pa.float16()), id="half-precision floats"),
        pytest.param(pa.array([True, False]), id="booleans"),
    ],
)
def test_a_column_of_any_values_is_kept(column: pa.Array, tmp_path: Path) -> None:
    pq.write_table(pa.table({"data": [b"E", b"E"], "kept": column}), tmp_path / "raw.parquet", store_schema=False)
    [file] = payload_files(tmp_path, "data", ("kept",))
    assert [batch.column("data").to_pylist() for batch in file.batches()] == [[b"E", b"E"]]
