"""Commands with several workers: the bytes of one worker, which other tests compare with the reference."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pgdecode
from pgdecode import MessageDecoder, RelationCatalog
from pgdecode.datasets.target import read_manifests
from pgdecode.files.envelope_batches import prepared_batches
from support import captures
from support.generators.samples import SAMPLES
from support.shell import BEGIN, COMMIT, MESSAGE, Shell, written
from support.tiers import full, long

# Of each kind of transactions; with several files, and with row groups of few rows.
NAMES = ("18.shop.v1", "18.twophase.v3", "16.streams.v2")
CASES = [
    pytest.param([], id="messages"),
    pytest.param(
        ["--in-stream", "auto", "--fields", "kind,xid,xid_basis", "--keep", "seq"], id="messages in any order"
    ),
    pytest.param(["--changes"], id="changes"),
    pytest.param(["--changes", "--include-uncommitted", "--drop-duplicates"], id="all changes"),
    pytest.param(["--table"], id="a table"),
    pytest.param(["--snapshot"], id="a snapshot"),
]


def _in_files(name: str, folder: Path) -> Path:
    """Write a capture to three files with row groups of 100 rows."""
    table = pq.read_table(captures.DATA / f"{name}.parquet")
    folder.mkdir()
    for number in range(3):
        first, end = (len(table) * cut // 3 for cut in (number, number + 1))
        pq.write_table(table.slice(first, end - first), folder / f"{number}.parquet", row_group_size=100)
    return folder


def _content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.parent.name != "_pgdecode"
    }


@pytest.mark.parametrize("format", ["parquet", full("jsonl"), full("csv")])
@pytest.mark.parametrize("words", CASES)
@pytest.mark.parametrize("name", NAMES)
def test_files_do_not_depend_on_the_number_of_workers(run: Shell, name: str, words: list[str], format: str) -> None:
    _in_files(name, Path("raw"))
    if words[:1] in (["--table"], ["--snapshot"]):
        words = [*words, _table_of(name)]
    for workers in (1, 3):
        options = ("--format", format, "--batch-rows", 64, "--workers", workers)
        done = run("decode", "raw", f"out{workers}", *words, *options)
        assert done.code == 0, done.err
    assert _content(Path("out3")) == _content(Path("out1"))


@pytest.mark.full
@pytest.mark.parametrize("batch_rows", [long(2), 7, 64])
@pytest.mark.parametrize("name", NAMES)
def test_reports_do_not_depend_on_batches_or_the_number_of_workers(
    run: Shell, monkeypatch: pytest.MonkeyPatch, name: str, batch_rows: int
) -> None:
    _in_files(name, Path("raw"))
    expected = run("inspect", "raw", "--json", "--workers", 1)
    assert expected.code == 0
    defaults = prepared_batches.__kwdefaults__
    assert defaults is not None
    # Batches end in the middle of transactions and streams.
    monkeypatch.setitem(defaults, "batch_rows", batch_rows)
    for workers in (1, 3):
        assert run("inspect", "raw", "--json", "--workers", workers).out == expected.out


def test_a_bad_boundary_does_not_change_the_stream_state_of_later_batches(run: Shell) -> None:
    insert = SAMPLES["insert"].payload
    payloads = [BEGIN, b"S", *[insert] * 5, COMMIT]
    written("raw.parquet", payloads)
    options = ("--mode", "PERMISSIVE", "--batch-rows", 1, "--workers", 3)
    assert run("decode", "raw.parquet", "out.parquet", *options).code == 0
    expected = pgdecode.decode_messages(payloads, mode="PERMISSIVE")
    assert pq.read_table("out.parquet")["new"].to_pylist() == expected["new"].to_pylist()
    assert expected["error"].null_count == len(payloads) - 1


def _table_of(name: str) -> str:
    """Name a table of a capture."""
    catalog = RelationCatalog.from_messages(captures.capture(name).column)
    return sorted(catalog.names)[0]


@pytest.mark.parametrize("name", NAMES)
def test_one_worker_decodes_every_batch_once(run: Shell, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    _in_files(name, Path("raw"))
    n_decoded = []
    decode_after = MessageDecoder.decode_after

    def counted(
        decoder: MessageDecoder, payloads: pa.Array, streamed: bool | None, *, kind_codes: bool
    ) -> tuple[pa.RecordBatch, bool | None]:
        n_decoded.append(len(payloads))
        return decode_after(decoder, payloads, streamed, kind_codes=kind_codes)

    monkeypatch.setattr(MessageDecoder, "decode_after", counted)
    assert run("decode", "raw", "out", "--batch-rows", 64, "--workers", 1).code == 0
    assert len(n_decoded) > 3
    assert sum(n_decoded) == pq.read_table("raw").num_rows


def test_runs_with_other_numbers_of_workers_follow_each_other(run: Shell) -> None:
    folder = _in_files("18.txns.v2", Path("raw"))
    outputs = []
    for workers in (1, 3):
        out = f"out{workers}"
        for number in range(3):
            done = run(
                *("decode", folder / f"{number}.parquet", out, "--changes", "--format", "jsonl"),
                *("--batch-rows", 64, "--workers", workers),
            )
            assert done.code == 0, done.err
        files = [file.name for manifest in read_manifests(out) for file in manifest.files]
        outputs += [Path(out, name).read_bytes() for name in files]
    assert outputs[3:] == outputs[:3]


@pytest.mark.parametrize("words", [[], ["--changes"]], ids=["messages", "changes"])
def test_the_first_bad_row_is_reported_and_nothing_is_left(run: Shell, words: list[str]) -> None:
    good = [BEGIN, MESSAGE, COMMIT] * 100
    words = [*words, "--drop-duplicates"] if words else words
    written("raw.parquet", [*good, BEGIN, b"?", COMMIT, *good, b"!", *good], seq=pa.array(range(904), pa.int64()))
    found = {
        run("decode", "raw.parquet", "out.jsonl", *words, "--batch-rows", 10, "--workers", workers).err
        for workers in (1, 2, 5)
    }
    assert len(found) == 1
    assert "row 301: " in found.pop()
    assert [path.name for path in Path().iterdir()] == ["raw.parquet"]


def test_a_damaged_file_is_reported_after_the_bad_row_before_it(run: Shell) -> None:
    folder = _in_files("18.shop.v1", Path("raw"))
    damaged = folder / "2.parquet"
    content = bytearray(damaged.read_bytes())
    content[4:2000] = bytes(1996)
    damaged.write_bytes(content)
    for workers in (1, 3):
        done = run("decode", "raw", "out", "--workers", workers)
        assert (done.code, "2.parquet: cannot be read further" in done.err) == (1, True)
    bad = pq.read_table(folder / "0.parquet")
    shutil.rmtree("out", ignore_errors=True)
    payloads = [*bad["data"].to_pylist()[:-1], b"?"]
    pq.write_table(bad.set_column(bad.schema.get_field_index("data"), "data", pa.array(payloads)), folder / "0.parquet")
    for workers in (1, 3):
        done = run("decode", "raw", "out", "--workers", workers)
        assert (done.code, f"0.parquet: row {len(payloads) - 1}: " in done.err) == (1, True)
