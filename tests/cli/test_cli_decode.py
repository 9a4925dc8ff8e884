"""`pgdecode decode`: what it writes, what it leaves behind, and the memory it takes."""

from __future__ import annotations

import csv
import json
import os
import re
import resource
import signal
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pgdecode
from support import captures, tiers
from support.generators.samples import SAMPLES
from support.memory import peak_memory
from support.oracles import reference
from support.shell import BEGIN, COMMIT, MESSAGE, SHOP, STREAMS, Shell, repeated, started, written


def decoded(path: Path) -> pa.RecordBatch:
    """The envelope of a capture, in one piece."""
    return pgdecode.decode_messages(pq.read_table(path)["data"])


@pytest.mark.parametrize("name", captures.NAMES)
def test_decode_writes_what_decode_messages_gives(run: Shell, name: str) -> None:
    path = captures.DATA / f"{name}.parquet"
    done = run("decode", path, "out.parquet", "--keep", "seq", "--batch-rows", "100")
    assert (done.code, done.out) == (0, "")
    assert re.fullmatch(
        r"out\.parquet: [\d,]+ rows \([\d.]+ kB of messages\) in [\d.]+ s, no bad rows; .* written\n", done.err
    )
    expected = decoded(path)
    found = pq.read_table("out.parquet")
    assert found.schema.names == ["seq", *expected.schema.names]
    assert found["seq"].to_pylist() == list(range(expected.num_rows))
    assert found.drop_columns("seq").equals(pa.Table.from_batches([expected]))
    assert os.listdir() == ["out.parquet"]


def test_decode_writes_the_requested_fields_in_the_requested_order(run: Shell) -> None:
    assert run("decode", SHOP, "out.parquet", "--fields", "new,kind", "--fields", "xid_basis").code == 0
    found = pq.read_table("out.parquet")
    assert found.schema.names == ["new", "kind", "xid_basis"]
    assert found["kind"].to_pylist() == [row["kind"] for row in captures.capture(SHOP.stem).rows]


def test_json_lines_are_those_of_cat_with_the_kept_columns_in_front(run: Shell) -> None:
    assert run("decode", SHOP, "out.jsonl", "--keep", "seq").code == 0
    lines = Path("out.jsonl").read_text("utf-8").splitlines()
    kept = [json.loads(line) for line in lines]
    assert [row.pop("seq") for row in kept] == list(range(len(lines)))
    assert kept == run("cat", SHOP).objects


def test_csv_holds_every_column_and_tells_null_from_an_empty_string(run: Shell) -> None:
    empty_namespace = SAMPLES["relation of pg_catalog without columns"].payload
    path = written("in.parquet", [BEGIN, empty_namespace, MESSAGE])
    assert run("decode", path, "out.csv").code == 0
    text = Path("out.csv").read_text("utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    assert list(rows[0]) == list(reference.COLUMN_NAMES)
    assert rows[0]["lsn"] == "16/B374D848"
    assert rows[0]["timestamp"] == "2023-06-25T13:13:13.088502Z"
    assert rows[1]["columns"] == "[]"
    assert rows[2]["content"] == "\\x6869"
    # namespace is the column after the first ten. Null is empty, an empty string is "".
    assert text.splitlines()[0].split(",").index('"namespace"') == 12
    assert text.splitlines()[2].split(",")[12:14] == ['""', '"t"']
    assert text.splitlines()[3].split(",")[12:14] == ["", ""]


@pytest.mark.parametrize("format", ["parquet", "jsonl", "csv"])
def test_a_file_without_rows_becomes_one_without_rows(run: Shell, format: str) -> None:
    assert run("decode", written("in.parquet", []), f"out.{format}").code == 0
    if format == "parquet":
        assert pq.read_table("out.parquet").equals(pa.Table.from_batches([pgdecode.decode_messages([])]))
    else:
        assert len(Path(f"out.{format}").read_text().splitlines()) == (1 if format == "csv" else 0)


def test_a_folder_becomes_a_folder_with_a_file_for_each(run: Shell) -> None:
    for name in ("raw/a.parquet", "raw/day=2/a.parquet"):
        written(name, [BEGIN, COMMIT])
    assert run("decode", "raw", "out", "--format", "jsonl").code == 0
    assert sorted(str(path) for path in Path("out").rglob("*.jsonl")) == ["out/a.jsonl", "out/day=2/a.jsonl"]
    assert len(Path("out/day=2/a.jsonl").read_text().splitlines()) == 2


def test_a_file_to_a_name_without_a_format_becomes_a_folder(run: Shell) -> None:
    assert run("decode", SHOP, "out").code == 0
    assert sorted(os.listdir("out")) == [SHOP.name, "_pgdecode"]


def test_the_payload_may_be_kept_and_stand_under_another_name(run: Shell) -> None:
    pq.write_table(pa.table({"body": [BEGIN]}), "in.parquet")
    done = run("decode", "in.parquet", "out.parquet", "--payload", "body", "--keep", "body", "--fields", "kind")
    assert done.code == 0
    assert pq.read_table("out.parquet").to_pylist() == [{"body": BEGIN, "kind": "begin"}]


@pytest.mark.parametrize("target", ["out.parquet", "out.jsonl", "out.csv", "out"])
@pytest.mark.parametrize("former", [False, True], ids=["nothing there before", "an output there before"])
def test_a_bad_row_leaves_what_was_there_before(run: Shell, target: str, former: bool) -> None:
    written("raw/a.parquet", [BEGIN] * 10)
    written("raw/b.parquet", [BEGIN] * 7 + [b"z"])
    source = "raw" if target == "out" else "raw/b.parquet"
    if former:
        run("decode", "raw/a.parquet", target)
    before = sorted(Path.cwd().rglob("*"))
    done = run("decode", source, target, "--overwrite", "--batch-rows", "2")
    assert (done.code, done.out) == (1, "")
    error = "pgdecode: raw/b.parquet: row 7: UNKNOWN_TAG at offset 0: unknown message tag 0x7a 'z'"
    assert done.err == f"{error}; --bad FILE leaves bad messages out\n"
    assert sorted(Path.cwd().rglob("*")) == before


def test_overwrite_replaces_an_output(run: Shell) -> None:
    for source in (SHOP, STREAMS):
        assert run("decode", source, "out.parquet", "--overwrite").code == 0
    assert pq.read_metadata("out.parquet").num_rows == pq.read_metadata(STREAMS).num_rows


def test_permissive_keeps_bad_rows_with_their_error_and_counts_them(run: Shell) -> None:
    path = written("in.parquet", [BEGIN, b"z", None, COMMIT])
    done = run("decode", path, "out.parquet", "--mode", "PERMISSIVE")
    assert (done.code, " 1 bad row with an error;" in done.err) == (0, True)
    assert pq.read_table("out.parquet").select(["kind", "error"]).to_pylist() == [
        {"kind": "begin", "error": None},
        {"kind": None, "error": "UNKNOWN_TAG at offset 0: unknown message tag 0x7a 'z'"},
        {"kind": None, "error": None},
        {"kind": "commit", "error": None},
    ]


@pytest.mark.parametrize("format", ["parquet", "jsonl", "csv"])
def test_dropmalformed_leaves_bad_rows_out(run: Shell, format: str) -> None:
    path = written("in.parquet", [BEGIN, b"z", COMMIT], seq=[1, 2, 3])
    target = f"out.{format}"
    done = run("decode", path, target, "--mode", "DROPMALFORMED", "--keep", "seq", "--fields", "kind")
    assert (done.code, " 1 bad row left out;" in done.err) == (0, True)
    if format == "parquet":
        assert pq.read_table(target).to_pylist() == [{"seq": 1, "kind": "begin"}, {"seq": 3, "kind": "commit"}]
    elif format == "jsonl":
        assert Path(target).read_text() == '{"seq": 1, "kind": "begin"}\n{"seq": 3, "kind": "commit"}\n'
    else:
        assert Path(target).read_text() == '"seq","kind"\n1,"begin"\n3,"commit"\n'


def test_shown_rows_come_from_the_output(run: Shell) -> None:
    expected = run("cat", SHOP, "--limit", "4").out
    for target in ("out.parquet", "out.jsonl", "out"):
        assert run("decode", SHOP, target, "--show", "4").out == expected
    lines = run("decode", SHOP, "out.csv", "--fields", "kind,xid", "--show", "2").out.splitlines()
    assert lines == ['"kind","xid"', '"begin",102116', '"relation",']
    done = run("decode", SHOP, "few.parquet", "--fields", "xid,new", "--show", "3")
    assert list(done.objects[2]) == ["xid", "new"]


@pytest.mark.parametrize("words", [["cat"], ["decode"]], ids=" ".join)
@pytest.mark.parametrize(("option", "streamed"), [("ordered", True), ("auto", True), ("true", True), ("false", False)])
def test_in_stream_says_how_xids_are_found(run: Shell, words: list[str], option: str, streamed: bool) -> None:
    start = SAMPLES["stream start, first segment"].payload
    inside = bytes.fromhex("44 00000304 00004001 4b 0001 6e")  # D, xid 772, oid 16385, K, 1 column, null
    path = written("in.parquet", [start, inside])
    out = ["out.jsonl"] if words == ["decode"] else []
    done = run(*words, path, *out, "--in-stream", option)
    assert done.code == (0 if streamed else 1)
    if streamed:
        text = Path("out.jsonl").read_text() if out else done.out
        assert json.loads(text.splitlines()[1])["xid"] == 772


def test_a_damaged_file_is_a_data_fault(run: Shell) -> None:
    data = bytearray(SHOP.read_bytes())
    data[100:3000] = bytes(2900)
    Path("in.parquet").write_bytes(data)
    done = run("decode", "in.parquet", "out.parquet", "--keep", "seq")
    assert done.code == 1
    assert re.fullmatch(r"pgdecode: in\.parquet: cannot be read further: .+\n", done.err)
    assert os.listdir() == ["in.parquet"]


def limited_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))


@pytest.mark.full
@pytest.mark.parametrize("target", ["out.parquet", "out.jsonl", "out.csv", "out"])
def test_a_full_disk_is_one_line_and_leaves_nothing(run: Shell, target: str) -> None:
    process = started("decode", STREAMS, target, preexec_fn=limited_files)
    out, err = process.communicate()
    assert (process.returncode, out) == (1, b"")
    assert re.fullmatch(rb"pgdecode: .*File too large\n", err)
    assert os.listdir() == []


@pytest.mark.full
@pytest.mark.parametrize(
    ("number", "code", "target"),
    [
        (signal.SIGINT, 130, "out.jsonl"),
        (signal.SIGTERM, 143, "out"),
        (signal.SIGHUP, 129, "out.jsonl"),
        (signal.SIGINT, 130, "out"),
        (signal.SIGTERM, 143, "out.jsonl"),
        (signal.SIGHUP, 129, "out"),
    ],
)
def test_a_signal_ends_decode_and_leaves_nothing(run: Shell, number: signal.Signals, code: int, target: str) -> None:
    path = repeated(STREAMS, 30, 10**6, Path())
    process = started("decode", path, target, "--format", "jsonl")
    while process.poll() is None and not [*Path().glob(".out*.partial"), *Path("out").rglob("new/*")]:
        time.sleep(0.01)
    process.send_signal(number)
    _, err = process.communicate()
    assert process.returncode == code
    assert b"Traceback" not in err
    assert os.listdir() == [path.name]


def test_an_interrupt_that_becomes_another_exception_is_an_interrupt(
    run: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: threading.Condition, timeout: float | None = None) -> bool:
        # As if the signal came after the lock was released, and before the thread waits. Leaving the `with` block of
        # the caller then releases it again, which is a RuntimeError.
        self._release_save()  # type: ignore[attr-defined]
        raise KeyboardInterrupt

    path = repeated(STREAMS, 10, 10**6, Path())
    with monkeypatch.context() as patch:
        patch.setattr(threading.Condition, "wait", interrupted)
        done = run("decode", path, "out.jsonl", "--workers", "2")
    assert (done.code, done.err.strip()) == (130, "pgdecode: interrupted")
    assert os.listdir() == [path.name]


def test_without_a_terminal_only_the_summary_is_printed(run: Shell) -> None:
    _, err = started("decode", STREAMS, "out.parquet").communicate()
    assert err.count(b"\n") == 1
    assert b"\x1b" not in err


# --- memory -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def short_and_long(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[Path]]:
    """By rows per row group: a capture repeated 60 and 240 times. The short one is several batches long, too."""
    folder = tmp_path_factory.mktemp("memory")
    return {n_rows: [repeated(STREAMS, times, n_rows, folder) for times in (60, 240)] for n_rows in (20_000, 10**9)}


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    ("command", "rows_per_group"),
    [
        pytest.param("decode parquet", 20_000, id="decode to Parquet, many row groups"),
        tiers.long("decode parquet", 10**9, id="decode to Parquet, one row group"),
        tiers.long("decode jsonl", 10**9, id="decode to JSON lines"),
        pytest.param("decode csv", 10**9, id="decode to CSV"),
        pytest.param("inspect", 10**9, id="inspect"),
        tiers.long("cat", 10**9, id="cat"),
    ],
)
def test_memory_does_not_grow_with_the_file(
    run: Shell, command: str, rows_per_group: int, short_and_long: dict[int, list[Path]]
) -> None:
    name, _, format = command.partition(" ")
    paths = short_and_long[rows_per_group]
    # Short files do not keep several workers busy.
    workers = [] if name == "cat" else ["--workers", "1"]
    short, long = (peak_memory(name, path, *([f"{path.stem}.{format}"] if format else []), *workers) for path in paths)
    # The longer file has 139 MB more payloads, and even more decoded data. The margin is memory that allocators
    # keep, more of it on a busy machine.
    assert pq.read_metadata(paths[1]).num_rows == 1_501_440
    assert long - short < 96 * 2**20


@pytest.mark.long
@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
@pytest.mark.parametrize("words", [["decode", "out.parquet"], ["inspect"]], ids=["decode", "inspect"])
def test_two_workers_take_at_most_twice_the_memory_of_one(
    run: Shell, words: list[str], short_and_long: dict[int, list[Path]]
) -> None:
    command, *rest = words
    one, two = (
        peak_memory(command, path, *rest, "--workers", n, *(["--overwrite"] if rest else []))
        for n, path in zip("12", [short_and_long[20_000][1]] * 2, strict=True)
    )
    assert two < 2 * one


@pytest.mark.parametrize(
    ("name", "text"),
    [("thesis.odt", "OUT ends in .odt: a file ends in .parquet"), ("thesis", "thesis: is not a folder")],
)
def test_a_file_that_pgdecode_does_not_write_is_not_replaced(run: Shell, tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text("thesis")
    done = run("decode", SHOP, tmp_path / name, "--overwrite")
    assert done.code == 2
    assert text in done.err
    assert (tmp_path / name).read_text() == "thesis"


def test_a_path_with_a_colon_is_a_path(run: Shell, tmp_path: Path) -> None:
    (tmp_path / "s3:x").mkdir()
    assert run("decode", SHOP, "s3:x/out.parquet").code == 0
    assert pq.ParquetFile(tmp_path / "s3:x" / "out.parquet").metadata.num_rows == decoded(SHOP).num_rows
    assert run("inspect", "s3:x/out.parquet", "--payload", "content").code == 0


def test_terminal_controls_are_escaped_in_json(run: Shell) -> None:
    prefix = "a\x9bb\u202ec".encode()
    message = b"M\0" + bytes(8) + prefix + b"\0" + bytes(4)
    done = run("cat", written("moving.parquet", [message]))
    assert "a\\u009bb\\u202ec" in done.out
    assert json.loads(done.out)["prefix"] == "a\x9bb\u202ec"


def test_a_name_that_is_not_utf_8_is_one_clear_line(run: Shell, tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff.parquet")).write_bytes(SHOP.read_bytes())
    done = run("cat", os.fsdecode(b"\xff.parquet"))
    assert done.code == 2
    assert done.err.count("\n") == 1
