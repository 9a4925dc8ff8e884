"""Finding payload files, and checking their columns."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as encryption
import pytest

from pgdecode.arrow.thrift import COLUMNS, I64, META_DATA, ROW_GROUPS, Struct, Value
from pgdecode.files import payload_file
from pgdecode.files.payload_file import FileFault
from pgdecode.files.payload_files import payload_files
from pgdecode.storage.errors import PathError
from support.generators.samples import SAMPLES
from support.payload_files import N_ROWS, N_VALUES, PHYSICAL_TYPE, with_footer, written

BEGIN = SAMPLES["begin"].payload
COMMIT = SAMPLES["commit"].payload


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
        pytest.param(lambda path: path.write_bytes(b""), "not a Parquet file: it is empty", id="an empty file"),
        pytest.param(lambda path: path.write_text("notes\n"), "not a Parquet file", id="another file"),
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
    with pytest.raises(PathError, match=r"b\.parquet: not a Parquet file: its end is missing\. Was it truncated\?$"):
        payload_files(tmp_path, "data")


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_truncated_parquet_file_is_named_as_such(tmp_path: Path, share: float) -> None:
    content = written(tmp_path / "a.parquet", [BEGIN] * 100).read_bytes()
    (tmp_path / "a.parquet").write_bytes(content[: int(len(content) * share)])
    with pytest.raises(PathError, match=r"a\.parquet: not a Parquet file: its end is missing\. Was it truncated\?$"):
        payload_files(tmp_path / "a.parquet", "data")


def test_a_payload_column_in_capitals_is_found_if_it_is_the_only_one(tmp_path: Path) -> None:
    table = pa.table({"SEQ": [0, 1], "DATA": pa.array([BEGIN, COMMIT])})
    pq.write_table(table, tmp_path / "raw.parquet")
    (file,) = payload_files(tmp_path / "raw.parquet", "data")
    assert [row for batch in file.batches() for row in batch.column(file.payload).to_pylist()] == [BEGIN, COMMIT]
    pq.write_table(table.append_column("Data", pa.array([BEGIN, COMMIT])), tmp_path / "raw.parquet")
    with pytest.raises(PathError, match="no column 'data'"):
        payload_files(tmp_path / "raw.parquet", "data")


def test_a_folder_of_text_files_says_that_these_are_read_one_at_a_time(tmp_path: Path) -> None:
    for name in ("a.csv", "b.CSV", "c.jsonl", "_capture.jsonl"):
        (tmp_path / name).write_text("data\n")
    with pytest.raises(PathError, match=r"it has 3 CSV or JSON files, which are read one at a time: name one$"):
        payload_files(tmp_path, "data")


class _Keys(encryption.KmsClient):  # type: ignore[misc]
    """Keys for tests."""

    def wrap_key(self, key: bytes, name: str) -> bytes:
        return base64.b64encode(key)

    def unwrap_key(self, key: bytes, name: str) -> bytes:
        return base64.b64decode(key)


def encrypted(path: Path, column: str, *, plaintext_footer: bool) -> Path:
    """Write a file with an encrypted column."""
    configuration = encryption.EncryptionConfiguration(
        footer_key="footer", column_keys={"column": [column]}, plaintext_footer=plaintext_footer
    )
    factory = encryption.CryptoFactory(lambda configuration: _Keys())
    properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), configuration)
    table = pa.table({"seq": range(1000), "data": [BEGIN] * 1000})
    pq.write_table(table, path, encryption_properties=properties)
    return path


def test_encrypted_payloads_are_refused(tmp_path: Path) -> None:
    path = encrypted(tmp_path / "raw.parquet", "data", plaintext_footer=True)
    with pytest.raises(PathError, match=r"raw\.parquet: column 'data' is encrypted; decrypt the file first$"):
        payload_files(path, "data")


def test_a_file_with_an_encrypted_footer_is_refused(tmp_path: Path) -> None:
    path = encrypted(tmp_path / "raw.parquet", "seq", plaintext_footer=False)
    with pytest.raises(PathError, match=r"raw\.parquet: is encrypted; decrypt it first$"):
        payload_files(path, "data")


def test_payloads_beside_an_encrypted_column_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload_file, "_EXPANDED_BYTES", 0)  # so that dictionaries are looked at
    path = encrypted(tmp_path / "raw.parquet", "seq", plaintext_footer=True)
    (file,) = payload_files(path, "data")
    assert pa.Table.from_batches(file.batches())["data"].to_pylist() == [BEGIN] * 1000
    with pytest.raises(PathError, match="column 'seq' is encrypted"):
        payload_files(path, "data", ["seq"])


def test_another_type_in_the_footer_than_in_the_schema_is_a_fault(tmp_path: Path) -> None:
    def change(footer: Struct) -> None:
        footer[ROW_GROUPS].value[1][0][COLUMNS].value[1][0][META_DATA].value[PHYSICAL_TYPE] = Value(5, 1)  # INT32

    path = with_footer(written(tmp_path / "raw.parquet", [BEGIN, COMMIT]), change)
    fault = r"raw\.parquet: row group 0, column 'data': is INT32 in place of BYTE_ARRAY: the footer is damaged$"
    with pytest.raises(FileFault, match=fault):
        payload_files(path, "data")


@pytest.mark.parametrize("n_rows", [-2, 0, 1, 9])
def test_another_number_of_rows_in_the_footer_is_a_fault(tmp_path: Path, n_rows: int) -> None:
    def change(footer: Struct) -> None:
        footer[ROW_GROUPS].value[1][1][N_ROWS] = Value(I64, n_rows)

    path = with_footer(written(tmp_path / "raw.parquet", [BEGIN] * 4, rows_per_group=2), change)
    with pytest.raises(FileFault, match=rf"row group 1, column 'data': has 2 values in place of {n_rows}: the footer"):
        payload_files(path, "data")


def test_another_number_of_values_in_the_footer_is_a_fault(tmp_path: Path) -> None:
    def change(footer: Struct) -> None:
        footer[ROW_GROUPS].value[1][0][COLUMNS].value[1][0][META_DATA].value[N_VALUES] = Value(I64, 1)

    path = with_footer(written(tmp_path / "raw.parquet", [BEGIN] * 4), change)
    with pytest.raises(
        FileFault, match=r"row group 0, column 'data': has 1 values in place of 4: the footer is damaged$"
    ):
        payload_files(path, "data")


def test_a_row_group_that_lacks_a_column_is_a_fault(tmp_path: Path) -> None:
    def change(footer: Struct) -> None:
        footer[ROW_GROUPS].value[1][0][COLUMNS].value[1].pop()

    path = with_footer(written(tmp_path / "raw.parquet", [BEGIN], seq=[1]), change)
    with pytest.raises(FileFault, match=r"row group 0: has 1 columns in place of 2: the footer is damaged$"):
        payload_files(path, "data", ["seq"])
