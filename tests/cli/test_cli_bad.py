"""`decode --bad FILE`: bad messages are kept in a file while the rest goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgdecode.datasets.local_folder import LocalFolder
from support.generators.slot import Slot
from support.shell import Shell, written

T = 16385
INT4 = 23
# Positions are ten times the row.
BAD_TAG, BAD_VALUE = 3, 5


def _payloads() -> list[bytes]:
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["n"], types=[INT4])
    slot.insert(T, "1")
    slot.insert(T, "2")
    slot.insert(T, "3")
    slot.insert(T, "not a number")
    slot.commit()
    payloads = slot.payloads
    payloads[BAD_TAG] = b"?"
    return payloads


def _saved() -> tuple[list[bytes], Path]:
    payloads = _payloads()
    seq = pa.array(range(0, 10 * len(payloads), 10), pa.int64())
    return payloads, written("in.parquet", payloads, seq=seq)


def test_bad_messages_are_kept_with_their_row_payload_and_error(run: Shell) -> None:
    payloads, path = _saved()
    done = run("decode", path, "out.parquet", "--bad", "bad.parquet")
    assert done.code == 0
    assert "1 bad row left out" in done.err
    (bad,) = pq.read_table("bad.parquet").to_pylist()
    assert (bad["file"], bad["row"], bad["position"], bad["payload"]) == ("in.parquet", BAD_TAG, None, b"?")
    assert bad["error"].startswith("UNKNOWN_TAG at offset 0")
    assert pq.read_metadata("out.parquet").num_rows == len(payloads) - 1


@pytest.mark.parametrize("workers", [1, 3])
def test_bad_messages_and_values_of_tables_are_kept_with_their_position(run: Shell, workers: int) -> None:
    payloads, path = _saved()
    options = ("--table", f"public.t{T}", "--bad", "bad.parquet", "--workers", workers, "--batch-rows", 2)
    assert run("decode", path, "out.parquet", *options).code == 0
    assert pq.read_table("out.parquet")["n"].to_pylist() == [1, 3]
    bad = pq.read_table("bad.parquet").to_pylist()
    assert [(item["row"], item["position"], item["payload"]) for item in bad] == [
        (row, 10 * row, payloads[row]) for row in (BAD_TAG, BAD_VALUE)
    ]
    assert [item["error"].split(" ")[0] for item in bad] == ["UNKNOWN_TAG", "BAD_VALUE"]


def test_with_permissive_the_output_has_the_errors_too(run: Shell) -> None:
    _, path = _saved()
    assert run("decode", path, "out.parquet", "--changes", "--mode", "PERMISSIVE", "--bad", "bad.parquet").code == 0
    assert pq.read_table("out.parquet")["error"].null_count == 3
    assert pq.read_metadata("bad.parquet").num_rows == 1


@pytest.mark.parametrize("words", [(), ("--changes",)], ids=str)
def test_the_same_call_again_adds_its_bad_messages_once(
    run: Shell, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    payloads, n = _payloads(), len(_payloads())
    call = ("decode", "raw", "out", *words, "--bad", "bad.parquet")

    def add(number: int) -> None:
        positions = range(10 * n * number, 10 * n * (number + 1), 10)
        written(f"raw/{number}.parquet", payloads, seq=pa.array(positions, pa.int64()))

    def files() -> list[str]:
        return [Path(name).name for name in pq.read_table("bad.parquet")["file"].to_pylist()]

    add(0)
    options = ("--drop-duplicates",) if words else ()
    for _ in range(2):
        assert run(*call, *options).code == 0
        assert files() == ["0.parquet"]
    add(1)
    # The call ends after the file was written, and before the commit.
    with monkeypatch.context() as patch:
        patch.setattr(LocalFolder, "create", lambda self, files, content: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(*call, *options)
    assert files() == ["0.parquet", "1.parquet"]
    for _ in range(2):
        assert run(*call, *options).code == 0
        assert files() == ["0.parquet", "1.parquet"]
    other = run("decode", "raw", "other", *words, *options, "--bad", "bad.parquet")
    assert (other.code, "has not the bad messages of this output" in other.err) == (2, True)
    assert run(*call, *options, "--overwrite").code == 0
    assert files() == ["0.parquet", "1.parquet"]


def test_without_bad_messages_the_file_is_empty(run: Shell) -> None:
    slot = Slot()
    slot.begin(7)
    slot.commit()
    path = written("in.parquet", slot.payloads)
    for words in ((), ("--changes",)):
        assert run("decode", path, "out.jsonl", *words, "--bad", "bad.parquet", "--overwrite").code == 0
        assert pq.read_metadata("bad.parquet").num_rows == 0


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--mode", "FAILFAST", "--bad", "bad.parquet"), "--bad is not for --mode FAILFAST"),
        (("--bad", "bad.csv"), "the file must end in .parquet"),
        (("--bad", "out/bad.parquet"), "must not be OUT or in OUT"),
        (("--bad", "in.parquet"), "is the input"),
        (("--bad", "there.parquet"), "exists already"),
        (("--bad", "bad.parquet", "--engine", "spark"), "--bad is for --engine local"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_wrong_file_is_a_mistake(run: Shell, words: tuple[str, ...], text: str) -> None:
    _, path = _saved()
    Path("there.parquet").touch()
    done = run("decode", path, "out", *words)
    assert (done.code, text in done.err) == (2, True), done.err
    assert not Path("out").exists()


def test_after_a_failure_neither_output_nor_bad_messages_are_left(run: Shell) -> None:
    _, path = _saved()
    content = bytearray(path.read_bytes())
    content[100:140] = bytes(40)
    path.write_bytes(content)
    done = run("decode", path, "out.parquet", "--bad", "bad.parquet")
    assert done.code == 1
    assert [item.name for item in Path().iterdir()] == ["in.parquet"]


def test_the_error_of_a_bad_message_names_the_option_that_leaves_it_out(run: Shell) -> None:
    _, path = _saved()
    for what in ((), ("--changes",), ("--table", f"public.t{T}")):
        assert run("decode", path, "out.parquet", *what).err.endswith("; --bad FILE leaves bad messages out\n")
    assert run("cat", path).err.endswith("; --mode PERMISSIVE prints the errors of bad messages\n")
    # A value may be good, and of another type.
    for name, text, codes in (
        ("mood", "x", "BAD_VALUE"),
        ("d", "infinity", "NOT_REPRESENTABLE"),
    ):
        slot = Slot()
        slot.begin(7)
        slot.relation(T, ["mood", "d"], types=[23, 1082])
        slot.insert(T, *({"mood": "1", "d": "2024-01-01"} | {name: text}).values())
        slot.commit()
        done = run("decode", written("value.parquet", slot.payloads), "out.parquet", "--table", f"public.t{T}")
        assert f"{codes} at offset " in done.err
        if name == "mood":
            assert "; is its type another one? --types NAME=TYPE declares it, --types NAME=text reads it as" in done.err
            assert done.err.endswith(". For corrupt messages: --bad FILE leaves bad messages out\n")
        else:
            assert done.err.endswith("(choose with --unrepresentable null, clamp or text)\n")
    # Another remedy comes first.
    encoded = written("text.parquet", [b"QgAAAAAAAAAA"])
    assert run("decode", encoded, "out.parquet").err.endswith("it looks like base64 text: --unwrap base64\n")


def test_a_value_above_max_value_bytes_is_bad_in_each_command(run: Shell) -> None:
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["id", "v"], keys=["id"], types=[23, 25])
    slot.insert(T, "1", "x" * 50)
    slot.commit()
    path = written("in.parquet", slot.payloads)
    limit = ("--max-value-bytes", "20", "--mode", "PERMISSIVE")
    fault = "LIMIT_VALUE at offset 15: column 'v' has 50 bytes, limit 20"
    assert run("decode", path, "t.jsonl", "--table", f"public.t{T}", *limit).code == 0
    row = json.loads(Path("t.jsonl").read_text())
    assert (row["id"], row["v"], row["_error"]) == (1, None, fault)
    assert run("decode", path, "s.jsonl", "--snapshot", f"public.t{T}", "--max-value-bytes", "20").code == 1
    assert run("decode", path, "c.jsonl", "--changes", *limit).code == 0
    change = json.loads(Path("c.jsonl").read_text())
    assert (change["new"], change["error"]) == ({"id": "1", "v": None}, fault)
    assert run("decode", path, "m.jsonl", *limit).code == 0
    assert "LIMIT_VALUE" in Path("m.jsonl").read_text()
    assert run("cat", path, "--changes", *limit).objects[0]["new"] == {"id": "1", "v": None}
    assert run("cat", path, *limit).objects[2]["error"].startswith("LIMIT_VALUE at offset 15")
    assert "LIMIT_VALUE" in run("inspect", path, "--max-value-bytes", "20").out
    for command in (("cat", path), ("inspect", path), ("decode", path, "out")):
        assert run(*command, "--max-value-bytes", "0").code == 2
        assert run(*command).code == 0
