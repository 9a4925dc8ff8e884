"""Payload files in object stores: the same batches as from local files, in few requests, on emulators."""

from __future__ import annotations

import hashlib
import pickle
from contextlib import suppress
from pathlib import Path

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgdecode.arrow.thrift import COLUMNS, I64, META_DATA, ROW_GROUPS, Struct, Value
from pgdecode.files.ordered_files import ordered_files
from pgdecode.files.payload_file import FileFault
from pgdecode.files.payload_files import payload_files
from pgdecode.storage import object_files
from pgdecode.storage.errors import PathError, StoreUnreachable
from pgdecode.storage.object_path import ObjectPath, StorageOptionError, is_object, object_path
from pgdecode.storage.object_store import (
    create_object,
    delete_objects,
    listed,
    read_object,
    store_of,
)
from support import captures
from support.emulators import SECRETS, Emulator
from support.payload_files import DICTIONARY_OFFSET, with_footer, written

pytest_plugins = ["support.stores"]
FILE = captures.DATA / "18.shop.v1.parquet"


def uploaded(store: Emulator, *files: Path, names: tuple[str, ...] = ()) -> ObjectPath:
    """Copy files to a new bucket."""
    folder = object_path(f"{store.new_bucket()}/raw", store.options)
    for file, name in zip(files, names or [file.name for file in files], strict=True):
        obstore.put(store_of(folder), f"raw/{name}", file)
    return folder


def test_files_of_a_store_give_the_batches_of_local_files(store: Emulator, tmp_path: Path) -> None:
    table = pq.read_table(FILE)
    pq.write_table(table, tmp_path / "b.parquet", row_group_size=500)
    pq.write_table(table.slice(0, 7), tmp_path / "a.parquet", use_dictionary=False)
    folder = uploaded(store, *sorted(tmp_path.iterdir()))
    obstore.put(store_of(folder), "raw/_x/c.parquet", b"hidden")
    obstore.put(store_of(folder), "raw2/c.parquet", b"not below")
    here, there = payload_files(tmp_path, "data", ("seq",)), payload_files(folder, "data", ("seq",))
    assert [str(file.path) for file in there] == [f"{folder}/a.parquet", f"{folder}/b.parquet"]
    for local, remote in zip(here, there, strict=True):
        assert (remote.groups, remote.schema, remote.footer) == (local.groups, local.schema, local.footer)
        assert pa.Table.from_batches(remote.batches()) == pa.Table.from_batches(local.batches())
        assert remote.first_rows(3).equals(local.first_rows(3))
        assert pickle.loads(pickle.dumps(remote)) == remote
    single = payload_files(folder / "b.parquet", "data")
    assert [str(file.path) for file in single] == [f"{folder}/b.parquet"]
    # The files overlap, so that positions show the order in which they are read.
    assert [file.path.name for file in ordered_files(folder, "data").files] == ["a.parquet", "b.parquet"]


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The ranges of objects that are read."""
    found: list[tuple[int, int]] = []
    fetched = object_files.read_range

    def counted(path: ObjectPath, start: int, end: int) -> object:
        found.append((start, end))
        return fetched(path, start, end)

    monkeypatch.setattr(object_files, "read_range", counted)
    return found


@pytest.mark.parametrize(("n_bytes", "n_requests"), [(0, 6), (2**20, 1)], ids=["large", "small"])
def test_row_groups_are_read_by_one_request_each_or_together(
    s3: Emulator,
    tmp_path: Path,
    requests: list[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
    n_bytes: int,
    n_requests: int,
) -> None:
    monkeypatch.setattr(object_files, "_WINDOW_BYTES", n_bytes)
    table = pq.read_table(FILE)
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=len(table) // 6 + 1)
    folder = uploaded(s3, tmp_path / "x.parquet")
    [file] = payload_files(folder, "data", ("seq",))
    assert len(requests) == 1  # the footer
    requests.clear()
    assert pa.Table.from_batches(file.batches())["data"].to_pylist() == table["data"].to_pylist()
    assert len(requests) == n_requests


def test_row_groups_whose_columns_are_apart_are_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_files, "_GAP_BYTES", 10)
    reader = object_files.ObjectReader(ObjectPath("s3://bucket", "key", size=1000))
    reader.plan([[(0, 10), (15, 20)], [(22, 30)], [(50, 60)], [(62, 65), (80, 90)], [(91, 95)]])
    assert reader._groups == [[(0, 30)], [(50, 60)], [(62, 65), (80, 90)], [(91, 95)]]


def test_columns_outside_an_object_are_a_fault(s3: Emulator, tmp_path: Path) -> None:
    def moved(footer: Struct) -> None:
        footer[ROW_GROUPS].value[1][0][COLUMNS].value[1][0][META_DATA].value[DICTIONARY_OFFSET] = Value(I64, -5)

    path = with_footer(written(tmp_path / "x.parquet", [b"B"] * 1000), moved)
    [file] = payload_files(uploaded(s3, path), "data")
    with pytest.raises(FileFault, match="a column chunk is outside the file"):
        list(file.batches())


@pytest.mark.full
def test_the_first_rows_are_read_without_the_rest_of_their_row_group(
    s3: Emulator, tmp_path: Path, requests: list[tuple[int, int]]
) -> None:
    table = pa.concat_tables([pq.read_table(FILE)] * 200)
    pq.write_table(table, tmp_path / "x.parquet", use_dictionary=False, compression="none")
    folder = uploaded(s3, tmp_path / "x.parquet")
    [file] = payload_files(folder, "data")
    requests.clear()
    assert file.first_rows(10).column("data").to_pylist() == table["data"].slice(0, 10).to_pylist()
    assert sum(end - start for start, end in requests) < file.groups[0].n_bytes / 4


def test_a_large_row_group_is_read_in_windows(s3: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pq.read_table(FILE), tmp_path / "x.parquet")
    folder = uploaded(s3, tmp_path / "x.parquet")
    monkeypatch.setattr(object_files, "_GROUP_BYTES", 1000)
    monkeypatch.setattr(object_files, "_WINDOW_BYTES", 4000)
    [local], [remote] = payload_files(tmp_path, "data", ("seq",)), payload_files(folder, "data", ("seq",))
    assert pa.Table.from_batches(remote.batches()) == pa.Table.from_batches(local.batches())


def test_an_object_that_was_replaced_is_a_fault(store: Emulator, tmp_path: Path) -> None:
    folder = uploaded(store, FILE, names=("x.parquet",))
    [file] = payload_files(folder, "data")
    pq.write_table(pq.read_table(FILE).slice(1), tmp_path / "other.parquet")
    obstore.put(store_of(folder), "raw/x.parquet", tmp_path / "other.parquet")
    with pytest.raises(FileFault, match=r"raw/x\.parquet: has changed since it was found"):
        list(file.batches())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("none", r"/raw/none: no such object or prefix"),
        ("empty", r"/raw/empty: no Parquet object \(\*\.parquet\) below it"),
        ("text.parquet", r"/raw/text\.parquet: not a Parquet file"),
    ],
)
def test_what_cannot_be_read_is_named(store: Emulator, name: str, text: str) -> None:
    folder = uploaded(store)
    for key in ("raw/empty/x.csv", "raw/text.parquet"):
        obstore.put(store_of(folder), key, b"x" * 100)
    with pytest.raises(PathError, match=text):
        payload_files(folder / name, "data")


@pytest.mark.full
def test_a_bucket_that_does_not_exist_and_a_store_that_does_not_answer_are_named(s3: Emulator) -> None:
    with pytest.raises(PathError, match="s3://nobody: no such"):
        payload_files(object_path("s3://nobody", s3.options), "data")
    dead = object_path("s3://raw/x", {**s3.options, "endpoint": "http://127.0.0.1:9"})
    with pytest.raises(StoreUnreachable, match="s3://raw/x: the store does not answer") as error:
        payload_files(dead, "data")
    assert not any(secret in str(error.value) for secret in SECRETS)
    assert error.value.__cause__ is None
    assert error.value.__suppress_context__


def test_writes_are_conditional(store: Emulator) -> None:
    path = object_path(f"{store.new_bucket()}/a b/x.json", store.options)
    assert create_object(path, b"1")
    assert not create_object(path, b"2")
    assert read_object(path) == b"1"
    assert [item.key for item, _ in listed(path.parent)] == ["a b/x.json"]
    delete_objects([path, path / "none"])
    assert read_object(path) is None


def test_a_buffer_that_is_used_again_is_written_as_it_was(store: Emulator) -> None:
    path = object_path(f"{store.new_bucket()}/x", store.options)
    buffer = bytearray(1000)
    with object_files.written_object(path) as file:
        for value in range(20):
            buffer[:] = bytes([value]) * len(buffer)
            file.write(memoryview(buffer))
        buffer[:] = b"z" * len(buffer)
    content = read_object(path) or b""
    assert content == b"".join(bytes([value]) * len(buffer) for value in range(20))
    assert file.digest.hexdigest() == hashlib.sha256(content).hexdigest()


def test_an_upload_that_fails_leaves_nothing(s3: Emulator) -> None:
    import boto3

    path = object_path(f"{s3.new_bucket()}/x", s3.options)
    with suppress(KeyError), object_files.written_object(path) as file:
        file.write(b"x" * (20 << 20))
        raise KeyError
    client = boto3.client("s3", endpoint_url=s3.options["endpoint"], region_name="us-east-1")
    assert listed(path.parent) == []
    assert "Uploads" not in client.list_multipart_uploads(Bucket=path.root.removeprefix("s3://"))
    client.close()


def test_credentials_are_neither_shown_nor_pickled() -> None:
    path = object_path("s3://raw/x", {"AWS_SECRET_ACCESS_KEY": "SECRET"})
    assert "SECRET" not in f"{path} {path!r}"
    with pytest.raises(StorageOptionError, match=r"set AWS_SECRET_ACCESS_KEY in their environment") as error:
        pickle.dumps(path)
    assert "SECRET_VALUE" not in str(error.value)
    public = object_path("abfss://c@acc.dfs.core.windows.net/x//y/", {"tenant_id": "1", "allow_http": True})
    assert (str(pickle.loads(pickle.dumps(public))), public.options) == (
        "abfss://c@acc.dfs.core.windows.net/x/y",
        (("allow_http", "true"), ("tenant_id", "1")),
    )


@pytest.mark.parametrize("uri", ["s3://KEY:SECRET@raw/x", "az://raw/x?sv=1&sig=SECRET"])
def test_uris_with_credentials_are_refused_and_not_repeated(uri: str) -> None:
    assert is_object(uri)
    with pytest.raises(StorageOptionError) as error:
        object_path(uri)
    assert "SECRET" not in str(error.value)


def test_an_unknown_option_is_named_without_its_value() -> None:
    with pytest.raises(StorageOptionError, match=r"s3://raw: no option 'regoin'") as error:
        store_of(object_path("s3://raw", {"regoin": "SECRET"}))
    assert "SECRET" not in str(error.value)
