"""Finding and reading payload files, and atomic outputs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pgdecode
from pgdecode.files import payload_files as files
from pgdecode.files.envelope_batches import decoded_batches
from pgdecode.files.payload_files import FileFault, PathError, payload_files
from pgdecode.runs.atomic_output import check_target, staged
from support import captures
from support.generators.samples import SAMPLES
from support.memory import peak_memory
from support.tiers import full

BEGIN = SAMPLES["begin"].payload
COMMIT = SAMPLES["commit"].payload


def written(path: Path, payloads: Sequence[bytes | None], *, rows_per_group: int = 1000, **columns: Any) -> Path:
    """Write a Parquet file with a column `data` and others."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"data": pa.array(payloads, pa.binary()), **columns})
    pq.write_table(table, path, row_group_size=rows_per_group)
    return path


def found(path: Path, **options: Any) -> list[str]:
    """Names of the files of a path, relative to it."""
    options.setdefault("payload", "data")
    return [str(file.path.relative_to(path)) for file in payload_files(path, **options)]


def test_a_file_of_any_name_is_one_file(tmp_path: Path) -> None:
    path = written(tmp_path / "raw.1", [BEGIN])
    (file,) = payload_files(path, "data")
    assert (file.path, file.n_rows, file.keep) == (path, 1, ())


def test_a_folder_means_its_parquet_files_at_any_depth_in_sorted_order(tmp_path: Path) -> None:
    for name in ("b.parquet", "a.parquet", "day=2/x.parquet", "_p=1/y.parquet"):
        written(tmp_path / name, [BEGIN])
    for name in ("_temporary/t.parquet", ".hidden/h.parquet", "._a.parquet", "_x.parquet"):
        written(tmp_path / name, [BEGIN])
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / "notes.txt").write_text("not read")
    assert found(tmp_path) == ["_p=1/y.parquet", "a.parquet", "b.parquet", "day=2/x.parquet"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({"payload": "body"}, "no column 'body'; binary columns: data, key", id="missing payload"),
        pytest.param(
            {"payload": "seq"}, "column 'seq' is int64, not binary; binary columns: data, key", id="payload not binary"
        ),
        pytest.param({"keep": ["nope"]}, "no column 'nope'; columns: data, key, seq", id="missing column to keep"),
    ],
)
def test_an_unsuitable_column_is_reported_with_the_suitable_ones(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    path = written(tmp_path / "raw.parquet", [BEGIN], key=pa.array([b"k"]), seq=[1])
    with pytest.raises(PathError) as caught:
        payload_files(path, **{"payload": "data", **options})
    assert str(caught.value) == f"{path}: {message}"


def test_a_repeated_column_name_is_refused(tmp_path: Path) -> None:
    table = pa.table([pa.array([BEGIN]), pa.array([COMMIT])], names=["data", "data"])
    pq.write_table(table, tmp_path / "raw.parquet")
    with pytest.raises(PathError, match="more than one column 'data'; binary columns: data, data"):
        payload_files(tmp_path / "raw.parquet", "data")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        pytest.param(lambda path: None, "no such file or folder", id="nothing there"),
        pytest.param(lambda path: path.write_bytes(b""), "not a Parquet file", id="an empty file"),
        pytest.param(lambda path: path.write_text("seq,data\n"), "not a Parquet file", id="another file"),
        pytest.param(lambda path: path.mkdir(), "no Parquet file (*.parquet) in this folder", id="an empty folder"),
        pytest.param(os.mkfifo, "not a file or folder", id="a pipe"),
    ],
)
def test_a_path_without_parquet_is_reported_in_one_line(tmp_path: Path, make: Any, message: str) -> None:
    make(tmp_path / "in")
    with pytest.raises(PathError) as caught:
        payload_files(tmp_path / "in", "data")
    assert str(caught.value) == f"{tmp_path / 'in'}: {message}"


def test_a_file_that_is_no_parquet_is_named_among_those_of_a_folder(tmp_path: Path) -> None:
    written(tmp_path / "a.parquet", [BEGIN])
    (tmp_path / "b.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(PathError, match=r"b\.parquet: not a Parquet file"):
        payload_files(tmp_path, "data")


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
    monkeypatch.setattr(files, "BATCH_BYTES", 100_000)
    (file,) = payload_files(written(tmp_path / "0.parquet", [b"x" * 10_000] * 900), "data")
    assert file.groups[0].n_bytes < 20_000
    assert 5 <= file.first_rows(1000).num_rows <= 20


def test_a_file_without_rows_has_no_first_ones(tmp_path: Path) -> None:
    (file,) = payload_files(written(tmp_path / "0.parquet", []), "data")
    with pytest.raises(FileFault, match="has no rows"):
        file.first_rows(1)


def test_wide_rows_are_read_in_smaller_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "BATCH_BYTES", 100_000)
    payloads = [b"I" + os.urandom(10_000) for _ in range(100)]
    (file,) = payload_files(written(tmp_path / "raw.parquet", payloads), "data")
    batches = list(file.batches())
    assert max(batch.nbytes for batch in batches) <= 2 * 100_000
    assert pa.Table.from_batches(batches)["data"].to_pylist() == payloads


def test_a_few_wide_rows_among_many_narrow_ones_do_not_make_a_large_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "BATCH_BYTES", 100_000)
    payloads = [b"Inarrow"] * 5000 + [b"I" + os.urandom(90_000) for _ in range(5)]
    (file,) = payload_files(written(tmp_path / "raw.parquet", payloads, rows_per_group=10_000), "data")
    batches = list(file.batches())
    assert max(batch.nbytes for batch in batches) <= 2 * 100_000
    assert pa.Table.from_batches(batches)["data"].to_pylist() == payloads


def test_a_small_row_group_is_one_batch_without_a_look_at_its_dictionary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(files, "_may_expand")
    payloads = [b"I%050d" % number for number in range(2000)]
    (file,) = payload_files(written(tmp_path / "raw.parquet", payloads, rows_per_group=10_000), "data")
    [batch] = file.batches()
    assert batch["data"].to_pylist() == payloads
    assert max(len(batch) for batch in file.batches(900)) <= 900


@pytest.mark.full
@pytest.mark.skipif("LD_PRELOAD" in os.environ, reason="a sanitizer's allocator keeps what is freed")
def test_a_small_row_group_that_repeats_its_largest_value_takes_limited_memory(tmp_path: Path) -> None:
    n_rows = 2000
    content = files._EXPANDED_BYTES // n_rows * 9 // 10
    payload = b"M\0" + bytes(7) + b"\x08\0" + content.to_bytes(4, "big") + bytes(content)
    hostile = repeated(tmp_path / "hostile.parquet", payload, n_rows, pa.binary())
    usual = repeated(tmp_path / "usual.parquet", b"E", n_rows, pa.binary())
    words = ("--fields", "kind,prefix", "--workers", "1")
    base = peak_memory("decode", usual, tmp_path / "usual", *words)
    peak = peak_memory("decode", hostile, tmp_path / "hostile", *words)
    assert peak < base + 2 * files._EXPANDED_BYTES


def test_damage_in_a_page_is_a_fault_of_the_file(tmp_path: Path) -> None:
    path = written(tmp_path / "raw.parquet", [b"I" + os.urandom(100) for _ in range(1000)])
    data = bytearray(path.read_bytes())
    data[4:2000] = bytes(1996)  # the first page's header, after the magic number
    path.write_bytes(data)
    (file,) = payload_files(path, "data")
    with pytest.raises(FileFault, match=r"^\S+raw\.parquet: cannot be read further: .+$"):
        list(file.batches())


# --- decoding a file ----------------------------------------------------------------------------------------------


def file_of(tmp_path: Path, payloads: Sequence[bytes | None]) -> files.PayloadFile:
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
        list(decoded_batches([file_of(tmp_path, [BEGIN])], mode="PERMISSIVE"))


def raise_too_large(self: pgdecode.MessageDecoder, payloads: pa.Array, streamed: bool | None) -> pa.RecordBatch:
    raise pgdecode.BatchTooLarge(pgdecode.BatchTooLarge.wording.format(field="new"))


def test_permissive_keeps_bad_rows_and_counts_them(tmp_path: Path) -> None:
    file = file_of(tmp_path, [BEGIN, b"z", None, b"B"])
    batches = [batch for _, batch in decoded_batches([file], mode="PERMISSIVE", batch_rows=2)]
    assert [(batch.start, batch.n_read, batch.n_bad) for batch in batches] == [(0, 2, 1), (2, 2, 1)]
    errors = [error for batch in batches for error in batch.envelope.column("error").to_pylist()]
    assert [error and error.split(" ")[0] for error in errors] == [None, "UNKNOWN_TAG", None, "TRUNCATED"]


def test_dropmalformed_leaves_bad_rows_out_of_both_sides(tmp_path: Path) -> None:
    [(_, batch)] = decoded_batches([file_of(tmp_path, [BEGIN, b"z", None, COMMIT])], mode="DROPMALFORMED")
    assert (batch.n_read, batch.n_bad) == (4, 1)
    assert batch.n_bytes == len(BEGIN) + 1 + len(COMMIT)
    assert batch.source.column("data").to_pylist() == [BEGIN, None, COMMIT]
    assert batch.envelope.column("kind").to_pylist() == ["begin", None, "commit"]


def test_a_row_out_of_stream_order_is_reported_with_a_hint(tmp_path: Path) -> None:
    streamed_insert = bytes.fromhex("49 00000304 00004001 4e 0001 6e")  # I, xid 772, oid 16385, N, 1 column, null
    file = file_of(tmp_path, [BEGIN, streamed_insert])
    with pytest.raises(FileFault, match=r'row 1: STATE_DESYNC .* \(in_stream="auto" reads payloads in any order\)$'):
        list(decoded_batches([file]))
    [(_, batch)] = decoded_batches([file], in_stream="auto")
    assert batch.envelope.column("xid").to_pylist() == [4294967294, 772]


# --- outputs ------------------------------------------------------------------------------------------------------


def test_a_file_takes_its_name_at_the_end(tmp_path: Path) -> None:
    target = tmp_path / "out.parquet"
    with staged(target) as hidden:
        hidden.write_text("new")
        assert not target.exists()
    assert target.read_text() == "new"
    assert os.listdir(tmp_path) == ["out.parquet"]


@pytest.mark.parametrize("former", ["nothing", "file", "folder"])
@pytest.mark.parametrize("latter", ["file", "folder"])
@pytest.mark.parametrize("outcome", [None, RuntimeError, KeyboardInterrupt, SystemExit])
def test_an_output_is_complete_or_missing(
    tmp_path: Path, former: str, latter: str, outcome: type[BaseException] | None
) -> None:
    def make(path: Path, kind: str, text: str) -> None:
        if kind == "folder":
            path.mkdir()
            (path / "part.parquet").write_text(text)
        elif kind == "file":
            path.write_text(text)

    def seen(path: Path) -> tuple[str, str]:
        if path.is_dir():
            return "folder", (path / "part.parquet").read_text()
        return ("file", path.read_text()) if path.exists() else ("nothing", "")

    target = tmp_path / "out"
    make(target, former, "former")
    before = seen(target)
    with nullcontext() if outcome is None else pytest.raises(outcome), staged(target) as hidden:
        make(hidden, latter, "latter")
        if outcome is not None:
            raise outcome
    assert seen(target) == ((latter, "latter") if outcome is None else before)
    assert os.listdir(tmp_path) == ([] if seen(target)[0] == "nothing" else ["out"])


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        pytest.param("raw", "raw", "is the input", id="the input itself"),
        pytest.param("raw", "raw/out", "is inside the input", id="inside the input"),
        pytest.param("raw/in.parquet", "raw", "contains the input", id="around the input"),
        pytest.param("raw", "there", "exists already", id="something else"),
        pytest.param("raw", "nowhere/out", "there is no folder", id="in a folder that is not there"),
    ],
)
def test_an_unsuitable_target_is_refused(
    tmp_path: Path, source: str, target: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "raw" / "in.parquet", [BEGIN])
    (tmp_path / "there").mkdir()
    with pytest.raises(PathError) as caught:
        check_target(Path(target), Path(source), overwrite=False)
    assert str(caught.value).startswith(f"{target}: {message}")


def test_overwriting_is_for_what_decode_writes_and_not_for_a_folder_of_other_things(tmp_path: Path) -> None:
    source = written(tmp_path / "in.parquet", [BEGIN])
    target = tmp_path / "out"
    for name in ("day=1/part-0.snappy.parquet", "_SUCCESS", ".part-0.parquet.crc"):
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    check_target(target, source, overwrite=True)
    (target / "day=1" / "thesis.tex").touch()
    with pytest.raises(
        PathError, match=r"not replaced, because it has a file that pgdecode did not write: day=1/thesis\.tex"
    ):
        check_target(target, source, overwrite=True)


def test_a_link_to_the_input_is_the_input(tmp_path: Path) -> None:
    source = written(tmp_path / "in.parquet", [BEGIN])
    (tmp_path / "link.parquet").symlink_to(source)
    with pytest.raises(PathError, match="is the input"):
        check_target(tmp_path / "link.parquet", source, overwrite=True)


# -- dictionaries ----------------------------------------------------------------------------------------------------


def repeated(path: Path, value: bytes, n_rows: int, type: pa.DataType) -> Path:
    """A file of a few hundred bytes whose rows are all the same."""
    encoded = pa.DictionaryArray.from_arrays(pa.array([0] * n_rows, pa.int32()), pa.array([value], type))
    pq.write_table(pa.table({"data": encoded, "key": encoded}), path, compression="zstd", store_schema=False)
    return path


@pytest.mark.full
@pytest.mark.skipif("LD_PRELOAD" in os.environ, reason="a sanitizer's allocator keeps what is freed")
@pytest.mark.parametrize(("n_workers", "n_batches"), [(1, 4), (2, 12)])
def test_a_file_that_repeats_one_large_value_takes_no_more_memory_than_a_few_batches_a_worker_may(
    tmp_path: Path, n_workers: int, n_batches: int
) -> None:
    content = 72 * 1024
    payload = b"M\0" + bytes(7) + b"\x08\0" + content.to_bytes(4, "big") + bytes(content)
    # 32768 rows of 72 kB are 2.4 GB.
    hostile = repeated(tmp_path / "hostile.parquet", payload, 32_768, pa.binary())
    assert hostile.stat().st_size < 5000
    usual = repeated(tmp_path / "usual.parquet", b"E", 32_768, pa.binary())
    words = ("--fields", "kind,prefix", "--workers", str(n_workers))
    base = peak_memory("decode", usual, tmp_path / "usual", "--keep", "key", *words)
    peak = peak_memory("decode", hostile, tmp_path / "hostile", *words)
    # One worker has a batch and its slices. Of two, each has two batches read ahead, one that is being read, and one or
    # two that are being decoded; the order of events decides how many there are at once. The file has 72 batches.
    assert peak < base + n_batches * files.BATCH_BYTES
    assert pq.read_table(tmp_path / "hostile").num_rows == 32_768


@pytest.mark.parametrize("store_schema", [False, True])
@pytest.mark.parametrize("type", [pa.binary(), pa.large_binary(), pa.binary_view()], ids=str)
def test_rows_of_dictionaries_come_whole_and_in_order_in_small_batches(
    tmp_path: Path, type: pa.DataType, store_schema: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "BATCH_BYTES", 5000)
    values = [b"C" * 4000, None, b"E", b"", b"B" * 2000] * 200
    path = tmp_path / "some.parquet"
    table = pa.table({"data": pa.array(values, type), "key": pa.array(map(str, range(1000)))})
    pq.write_table(table, path, row_group_size=150, store_schema=store_schema)
    (file,) = files.payload_files(path, "data", ["key"])
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
        pytest.param(pa.array([1, 2], pa.float16()), id="halves"),
        pytest.param(pa.array([True, False]), id="booleans"),
    ],
)
def test_a_column_of_any_values_is_kept(column: pa.Array, tmp_path: Path) -> None:
    pq.write_table(pa.table({"data": [b"E", b"E"], "kept": column}), tmp_path / "raw.parquet", store_schema=False)
    [file] = payload_files(tmp_path, "data", ("kept",))
    assert [batch.column("data").to_pylist() for batch in file.batches()] == [[b"E", b"E"]]
