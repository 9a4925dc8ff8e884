"""The command line: mistakes, `cat` and `inspect`."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import pgdecode
from pgdecode.cli.capture_command import stopped_by_signals
from pgdecode.cli.main import SignalExit
from support import captures
from support.generators.samples import SAMPLES
from support.shell import BEGIN, COMMIT, MESSAGE, SHOP, STREAMS, Shell, started, written
from support.tiers import full

# --- mistakes: one line, exit code 2, nothing left behind ---------------------------------------------------------

MISTAKES = {
    "a path that is not there": (["inspect", "nope"], r"nope: no such file or folder"),
    "a folder without Parquet": (["cat", "empty"], r"empty: no Parquet file \(\*\.parquet\) in this folder"),
    "another kind of file": (["decode", "notes.txt", "out"], r"notes\.txt: not a Parquet file"),
    "a payload column that is not there": (
        ["inspect", "in.parquet", "--payload", "body"],
        r"in\.parquet: no column 'body'; binary columns: data",
    ),
    "a payload column that is not binary": (
        ["cat", "in.parquet", "--payload", "seq"],
        r"in\.parquet: column 'seq' is int64, not binary; binary columns: data",
    ),
    "a column to keep that is not there": (
        ["decode", "in.parquet", "out", "--keep", "seq,nope"],
        r"in\.parquet: no column 'nope'; columns: data, seq, LSN",
    ),
    "a column to keep with a decoded column's name": (
        ["decode", "in.parquet", "out", "--keep", "LSN"],
        r"--keep LSN: a decoded column has that name \(see pgdecode decode --help\)",
    ),
    "a field that does not exist": (
        ["decode", "in.parquet", "out", "--fields", "kind,foo"],
        r"Invalid value for '--fields': no 'foo'; there are kind, xid, .*xid_basis \(see pgdecode decode --help\)",
    ),
    "a kind that does not exist": (
        ["cat", "in.parquet", "--kind", "upsert"],
        r"Invalid value for '--kind': no 'upsert' \(did you mean insert\?\); there are begin, .*, error \(.*\)",
    ),
    "a mode that does not exist": (["cat", "in.parquet", "--mode", "SILENT"], r"Invalid value for '--mode': .*"),
    "an output that exists": (
        ["decode", "in.parquet", "there.parquet"],
        r"there\.parquet: exists already \(--overwrite replaces it\)",
    ),
    "an output in no folder": (["decode", "in.parquet", "no/out"], r"no/out: there is no folder no"),
    "an output over the input": (["decode", "in.parquet", "in.parquet", "--overwrite"], r"in\.parquet: is the input"),
    "an output around the input": (["decode", "raw/in.parquet", "raw", "--overwrite"], r"raw: contains the input"),
    "a format that the name denies": (
        ["decode", "in.parquet", "out.csv", "--format", "jsonl"],
        r"--format jsonl, but out\.csv ends in \.csv \(see pgdecode decode --help\)",
    ),
    "an option for the other engine": (
        ["decode", "in.parquet", "out", "--engine", "spark", "--batch-rows", "5"],
        r"--batch-rows is for --engine local \(see pgdecode decode --help\)",
    ),
    "no output": (["decode", "in.parquet"], r"Missing argument 'OUT' \(see pgdecode decode --help\)"),
    "no such command": (["frobnicate"], r"No such command 'frobnicate' \(see pgdecode --help\)"),
    "a command with a mistake": (["decod"], r"No such command 'decod'.*'decode'.*\(see pgdecode --help\)"),
    "no such option": (["inspect", "--frobnicate", "in.parquet"], r"No such option.*--frobnicate.*"),
}


@pytest.mark.parametrize(("words", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_gets_one_line_and_exit_code_2(run: Shell, words: list[str], message: str) -> None:
    written("in.parquet", [BEGIN], seq=[1], LSN=[2])
    written("raw/in.parquet", [BEGIN])
    written("there.parquet", [])
    Path("empty").mkdir()
    Path("notes.txt").write_text("PAR2")
    before = sorted(Path.cwd().rglob("*"))
    done = run(*words)
    assert done.code == 2
    assert done.out == ""
    assert re.fullmatch(f"pgdecode: {message}\n", done.err), done.err
    assert sorted(Path.cwd().rglob("*")) == before


def test_no_command_at_all_gets_the_help_and_exit_code_2(run: Shell) -> None:
    done = run()
    assert (done.code, done.out) == (2, "")
    for command in ("inspect", "cat", "decode"):
        assert re.search(rf"^  {command} ", done.err, re.MULTILINE)


@pytest.mark.parametrize("command", ["inspect", "cat", "decode"])
def test_help_names_the_options_and_fits_80_columns(run: Shell, command: str) -> None:
    done = run(command, "--help")
    assert (done.code, done.err) == (0, "")
    assert "--payload COLUMN" in done.out
    assert max(map(len, done.out.splitlines())) <= 80


def test_a_name_with_a_line_end_does_not_break_the_line(run: Shell) -> None:
    Path("a\nb.parquet").write_text("")
    assert run("inspect", "a\nb.parquet").err == "pgdecode: a\\nb.parquet: not a Parquet file: it is empty\n"


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_without_its_libraries_the_command_names_the_extra(
    run: Shell, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    for name in [
        name for name in sys.modules if name.startswith(("pgdecode.cli.commands", "pgdecode.cli.inspect", missing))
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    assert run("inspect", "x") == (2, "", "pgdecode: the command line needs: pip install 'pgdecode[cli]'\n")


def test_without_spark_its_engine_names_the_extra(run: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("spark_udfs")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    done = run("decode", SHOP, "out", "--engine", "spark")
    assert done.code == 2
    assert done.err.startswith("pgdecode: --engine spark needs: pip install 'pgdecode[spark]'")
    assert os.listdir() == []


@pytest.mark.parametrize(
    "words",
    [
        ["inspect", "s3://bucket/raw"],
        ["cat", "gs://bucket/raw.parquet"],
        ["decode", "az://bucket/raw", "out", "--changes"],
        ["decode", "s3://bucket/raw", "out", "--messages"],
        ["decode", SHOP, "s3://bucket/out", "--changes"],
        ["decode", "abfss://a@b.dfs.core.windows.net/raw", "out", "--table", "public.orders"],
    ],
)
def test_without_the_library_of_object_stores_a_command_names_the_extra(
    run: Shell, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("obstore")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "obstore", None)
    done = run(*words)
    assert (done.code, done.out) == (2, "")
    assert re.fullmatch(r"pgdecode: \w+://\S+ needs: pip install 'pgdecode\[cloud\]'\n", done.err), done.err
    assert not Path("out").exists()


def test_a_command_imports_neither_pandas_nor_other_commands(run: Shell) -> None:
    code = (
        "import sys; from pgdecode.cli.main import main\n"
        f"sys.argv = ['pgdecode', 'decode', {os.fspath(SHOP)!r}, 'out', '--table', 'public.orders']\n"
        "assert main() == 0\n"
        "names = [name for name in sys.modules if name.startswith('pgdecode.cli.') and name.endswith('_command')]\n"
        "print(names, 'pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['pgdecode.cli.decode_command'] False\n"


def test_the_version_is_the_packages(run: Shell) -> None:
    assert run("--version") == (0, f"pgdecode {pgdecode.__version__}\n", "")


# --- cat ----------------------------------------------------------------------------------------------------------


def test_cat_prints_each_message_of_a_capture_in_order(run: Shell) -> None:
    found = run("cat", SHOP).objects
    assert [row["kind"] for row in found] == [row["kind"] for row in captures.capture(SHOP.stem).rows]
    assert found[0] == {
        "kind": "begin",
        "xid": 102116,
        "lsn": "0/20974BF8",
        "timestamp": "2026-11-21T01:42:40.586539Z",
    }


def test_cat_tracks_the_streams_of_each_file_of_a_folder_separately(run: Shell) -> None:
    inside = SAMPLES["stream start, first segment"].payload
    written("raw/a.parquet", [inside])
    written("raw/b.parquet", [BEGIN, MESSAGE])
    assert [row["kind"] for row in run("cat", "raw").objects] == ["stream_start", "begin", "message"]


def test_cat_stops_at_the_limit_and_sees_no_error_after_it(run: Shell) -> None:
    path = written("in.parquet", [BEGIN, COMMIT, b"z"])
    assert [row["kind"] for row in run("cat", path, "--limit", "1").objects] == ["begin"]
    assert run("cat", path, "--limit", "2").code == 0
    assert run("cat", path, "--limit", "0") == (0, "", "")


def test_cat_picks_kinds_and_counts_the_limit_in_what_it_prints(run: Shell) -> None:
    rows = captures.capture(STREAMS.stem).rows
    wanted = ("stream_start", "delete")
    expected = [row["kind"] for row in rows if row["kind"] in wanted]
    assert [row["kind"] for row in run("cat", STREAMS, "--kind", ",".join(wanted)).objects] == expected
    found = run("cat", STREAMS, "--kind", "delete", "--kind", "stream_start", "--limit", "9").objects
    assert [row["kind"] for row in found] == expected[:9]


def test_cat_prints_the_messages_before_a_bad_one_then_names_it(run: Shell) -> None:
    done = run("cat", written("in.parquet", [BEGIN, COMMIT, BEGIN, COMMIT, b"Zap"]))
    assert done.code == 1
    assert [row["kind"] for row in done.objects] == ["begin", "commit", "begin", "commit"]
    assert done.err.startswith("pgdecode: in.parquet: row 4: UNKNOWN_TAG at offset 0: unknown message tag 0x5a 'Z'; ")


def test_permissive_cat_prints_a_bad_row_in_its_place(run: Shell) -> None:
    path = written("in.parquet", [None, BEGIN, b"z", COMMIT[:-1], COMMIT])
    done = run("cat", path, "--mode", "permissive")
    assert (done.code, done.err) == (0, "")
    null, begin, unknown, cut, commit = done.objects
    assert (null, begin["kind"], commit["kind"]) == ({}, "begin", "commit")
    assert unknown == {"row": 2, "error": "UNKNOWN_TAG at offset 0: unknown message tag 0x7a 'z'"}
    # C is tag, flags, two LSNs, then the timestamp at offset 18.
    assert cut == {"row": 3, "error": "TRUNCATED at offset 18: commit commit_timestamp needs 8 bytes, 7 left"}
    assert run("cat", path, "--mode", "PERMISSIVE", "--kind", "error").objects == [unknown, cut]
    assert run("cat", path, "--mode", "DROPMALFORMED").objects == [null, begin, commit]


def test_permissive_cat_of_a_folder_names_the_file_of_a_bad_row(run: Shell) -> None:
    written("raw/a.parquet", [BEGIN])
    written("raw/b.parquet", [BEGIN, BEGIN, BEGIN, b"z"])
    (found,) = run("cat", "raw", "--mode", "PERMISSIVE", "--kind", "error").objects
    assert (found["file"], found["row"]) == ("raw/b.parquet", 3)


def test_cat_writes_utf_8_whatever_the_locale(run: Shell) -> None:
    path = written("in.parquet", [SAMPLES["origin"].payload])
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    out, err = started("cat", path, env=environment).communicate()
    assert err == b""
    assert json.loads(out)["name"] == "org_é"


@pytest.mark.parametrize("words", [["cat"], full(["inspect"]), full(["inspect", "--json"])], ids=" ".join)
def test_a_closed_pipe_is_no_error(run: Shell, words: list[str]) -> None:
    process = started(words[0], STREAMS, *words[1:])
    assert process.stdout is not None
    assert process.stderr is not None
    if words == ["cat"]:
        assert process.stdout.readline().startswith(b"{")
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 0


@pytest.mark.full
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_output_that_cannot_be_written_is_one_line_and_exit_code_1(run: Shell) -> None:
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "pgdecode", "cat", str(SHOP)]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (1, b"pgdecode: No space left on device\n")


# --- inspect ------------------------------------------------------------------------------------------------------


def figures_of(run: Shell, *words: str | Path) -> dict[str, Any]:
    done = run("inspect", *words, "--json")
    assert (done.code, done.err) == (0, "")
    found: dict[str, Any] = json.loads(done.out)
    return found


def test_inspect_counts_what_the_reference_reads(run: Shell, capture: captures.Capture) -> None:
    rows, payloads = capture.rows, capture.payloads
    found = figures_of(run, captures.DATA / f"{capture.name}.parquet")
    kinds = Counter(row["kind"] for row in rows)
    assert {kind: seen["messages"] for kind, seen in found["kinds"].items()} == kinds
    sizes: Counter[str] = Counter()
    changes: Counter[tuple[int, str]] = Counter()
    for row, payload in zip(rows, payloads, strict=True):
        sizes[row["kind"]] += len(payload)
        for oid in row["relation_ids"] or [row["relation_id"]]:
            changes[oid, row["kind"]] += 1
    assert {kind: seen["bytes"] for kind, seen in found["kinds"].items()} == sizes
    assert (found["rows"], found["payload_bytes"]) == (len(rows), sizes.total())
    assert found["errors"] == []
    for relation in found["relations"]:
        for kind in ("insert", "update", "delete", "truncate"):
            assert relation[f"{kind}s"] == changes[relation["relation_id"], kind]
        definitions = [
            row for row in rows if row["relation_id"] == relation["relation_id"] and row["columns"] is not None
        ]
        shapes = {
            json.dumps([row["namespace"], row["name"], row["replica_identity"], row["columns"]]) for row in definitions
        }
        assert relation["versions"] == len(shapes)
        assert [column["name"] for column in relation["columns"]] == [
            column["name"] for column in definitions[-1]["columns"]
        ]
    letters = Counter("".join((row["old_formats"] or "") + (row["new_formats"] or "") for row in rows))
    assert [found["values"][name] for name in ("text", "binary", "null", "unchanged")] == [letters[c] for c in "tbnu"]


def test_inspect_counts_transactions_by_how_they_end(run: Shell) -> None:
    sample = {name: item.payload for name, item in SAMPLES.items()}
    aborts = [bytes.fromhex("41 00000304 00000304"), bytes.fromhex("41 00000304 00000305")]  # whole, then subxid 773
    path = written("in.parquet", [BEGIN, COMMIT, sample["stream start, first segment"], b"E", *aborts, BEGIN, BEGIN])
    assert figures_of(run, path)["transactions"] == {
        "begun": 4,
        "streamed": 1,
        "committed": 1,
        "prepared": 0,
        "rolled_back": 0,
        "aborted": 1,
        "subtransactions_aborted": 1,
        "stream_blocks": 1,
        # The last Begin is sent again, since its commit has the LSN of the one before.
        "undecided": 2,
    }


PROTOCOLS = {
    "18.shop.v1": (1, set()),
    "18.shop.v1bin": (1, {"binary_tuples"}),
    "16.streams.v2": (2, {"streamed"}),
    "16.twophase.v3nostream": (3, {"two_phase"}),
    "18.streams.v4": (4, {"streamed", "parallel"}),
}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_inspect_reports_the_protocol_features(run: Shell, name: str) -> None:
    protocol = figures_of(run, captures.DATA / f"{name}.parquet")["protocol"]
    version = protocol.pop("version_at_least")
    assert (version, {feature for feature, seen in protocol.items() if seen}) == PROTOCOLS[name]
    assert set(protocol) == {"streamed", "two_phase", "parallel", "binary_tuples"}


def test_the_range_of_lsns_leaves_out_those_of_another_server(run: Shell) -> None:
    origin = bytes.fromhex("4f 00000000000000ff 6f00")  # O, LSN 0/FF, 'o'
    far = bytes.fromhex("4f 7fffffffffffffff 6f00")
    path = written("in.parquet", [origin, BEGIN, far, COMMIT])
    assert figures_of(run, path)["lsn"] == {"first": "16/B374D848", "last": "7FFFFFFF/FFFFFFFF"}


def test_inspect_reports_bad_rows_by_code_with_the_first_of_each(run: Shell) -> None:
    written("raw/a.parquet", [BEGIN, None])
    written("raw/b.parquet", [b"B", COMMIT, BEGIN, BEGIN, b"z", b"", b"C", b"y"])
    found = figures_of(run, "raw")
    assert (found["files"], found["rows"], found["null_rows"], found["empty_payloads"]) == (2, 10, 1, 1)
    assert found["errors"] == [
        {
            "code": "TRUNCATED",
            "rows": 2,
            "first": {
                "file": "raw/b.parquet",
                "row": 0,
                "error": "TRUNCATED at offset 1: begin final_lsn needs 8 bytes, 0 left",
            },
        },
        {
            "code": "UNKNOWN_TAG",
            "rows": 2,
            "first": {
                "file": "raw/b.parquet",
                "row": 4,
                "error": "UNKNOWN_TAG at offset 0: unknown message tag 0x7a 'z'",
            },
        },
    ]
    done = run("inspect", "raw")
    assert done.code == 0
    assert re.search(r"^rows +10 \(93 bytes, 1 null, 1 empty payloads, 4 bad\)$", done.out, re.MULTILINE)
    assert re.search(
        r"^UNKNOWN_TAG +2 +raw/b\.parquet: row 4: at offset 0: unknown message tag", done.out, re.MULTILINE
    )


def test_the_tables_of_inspect_fit_80_columns_and_show_what_matters(run: Shell) -> None:
    done = run("inspect", captures.DATA / "16.txns.v2.parquet")
    lines = done.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert not any(line.endswith(" ") for line in lines)
    assert "transactions  19 begun, 1 streamed, 19 committed, 2 stream blocks" in lines
    assert "protocol      version 2 or later (streamed)" in lines
    assert any(re.fullmatch(r"public\.a2 +19032 +5 +3 +1 +1", line) for line in lines)
    at = lines.index("public.b  19039, 1 version, replica identity full")
    assert lines[at + 1] == "    id* int4, w* numeric"


def test_names_are_printed_as_they_are_and_cannot_move_the_cursor(run: Shell) -> None:
    # R, oid 1, namespace 's', name 'ESC[2J[red]', d, 1 column: key, 'a NEWLINE b', oid 23, no modifier
    relation = bytes.fromhex("52 00000001 7300 1b5b324a5b7265645d 00 64 0001 01 610a62 00 00000017 ffffffff")
    done = run("inspect", written("in.parquet", [relation]))
    assert "\x1b" not in done.out
    assert "s.\\x1b[2J[red]" in done.out
    assert "a\\nb* int4" in done.out


def test_changes_of_a_relation_that_was_never_described_are_counted(run: Shell) -> None:
    insert = bytes.fromhex("49 00004001 4e 0001 6e")  # I, oid 16385, N, 1 column, null
    path = written("in.parquet", [insert, insert])
    (relation,) = figures_of(run, path)["relations"]
    assert (relation["relation_id"], relation["name"], relation["versions"], relation["inserts"]) == (16385, None, 0, 2)
    assert re.search(r"^\(not described\) +16385 +2 +- +- +-$", run("inspect", path).out, re.MULTILINE)


def test_inspect_keeps_no_more_relations_than_its_limit(run: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgdecode.files.message_statistics.MAX_KEPT", 10)
    relations = [bytes.fromhex(f"52 {oid:08x} 7300 7400 64 0000") for oid in range(1, 21)]  # R, oid, 's', 't', d, 0
    found = figures_of(run, written("in.parquet", relations))
    assert len(found["relations"]) == 10
    assert found["left_out"] == 10


def test_inspect_of_no_rows_says_so(run: Shell) -> None:
    done = run("inspect", written("in.parquet", []))
    assert done.code == 0
    assert "rows          0 (0 bytes)" in done.out.splitlines()


def test_a_signal_whose_exception_a_library_catches_stops_a_capture_all_the_same() -> None:
    class Endless:
        def stop(self) -> None:
            raise AssertionError("the signal came before it")

    former = signal.signal(signal.SIGTERM, SignalExit())
    try:
        with contextlib.suppress(BaseException):  # as libraries do that import optional ones
            signal.raise_signal(signal.SIGTERM)
        with pytest.raises(SystemExit, match="143"), stopped_by_signals(Endless()):
            pass
        assert isinstance(signal.getsignal(signal.SIGTERM), SignalExit)
    finally:
        signal.signal(signal.SIGTERM, former)
