"""Changes by the command line: which files are read in which order, and which are written."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support import captures
from support.change_files import T, two_transactions
from support.generators.slot import Slot
from support.shell import Shell, written

TXNS = captures.DATA / "18.txns.v2.parquet"


@pytest.mark.parametrize(
    ("target", "options", "files"),
    [
        pytest.param("out.csv", ["--changes"], ["out.csv"], id="changes to a file"),
        pytest.param("out", ["--changes"], ["out/changes.parquet"], id="changes to a folder"),
        pytest.param("out.jsonl", ["--table", "public.a"], ["out.jsonl"], id="a table to a file"),
        pytest.param("out", ["--table", "public.a", "--format", "csv"], ["out/public.a.csv"], id="a table to a folder"),
        pytest.param(
            "out.csv",
            ["--table", "public.a", "--table", "public.b", "--table", "public.a"],
            ["out.csv/public.a/public.a.csv", "out.csv/public.b/public.b.csv"],
            id="several tables to a folder",
        ),
    ],
)
def test_the_name_and_the_number_of_tables_decide_on_a_file_or_a_folder(
    run: Shell, target: str, options: list[str], files: list[str]
) -> None:
    assert run("decode", TXNS, target, *options).code == 0
    found = [str(path) for path in Path().rglob("*") if path.is_file()]
    assert sorted(path for path in found if "/_" not in path) == files
    # A folder also has the manifest and the state, for the next call.
    assert (f"{target}/_pgdecode/0000000001.json" in found) == (files != [target])


def test_a_tables_file_has_a_name_that_is_neither_hidden_nor_a_path(run: Shell) -> None:
    slot = Slot()
    slot.begin(7)
    for number, name in enumerate(["a/b", "50%", "é"]):
        slot.relation(T + number, ["id"], name=name)
    slot.commit()
    path = written("in.parquet", slot.payloads)
    options = [word for name in ("a/b", "50%", "é") for word in ("--table", f"public.{name}")]
    assert run("decode", path, "out", *options).code == 0
    assert sorted(os.listdir("out")) == [
        "_pgdecode",
        "public.50%25",
        "public.a%2Fb",
        "public.é",
    ]
    assert Path("out/public.a%2Fb/public.a%2Fb.parquet").is_file()


def test_files_of_a_folder_are_read_in_the_order_of_their_positions(run: Shell) -> None:
    payloads = two_transactions().payloads
    for name, rows in {"z": range(0, 3), "m": range(3, 5), "a": range(5, 7)}.items():
        written(f"raw/{name}.parquet", [payloads[i] for i in rows], seq=[10 * i for i in rows])
    written("raw/empty.parquet", [], seq=pa.array([], pa.int64()))
    found = run("cat", "raw", "--changes")
    assert (found.code, [row["position"] for row in found.objects]) == (0, [20, 50])
    assert run("decode", "raw", "out.parquet", "--changes").code == 0
    assert pq.read_table("out.parquet")["commit_position"].to_pylist() == [30, 60]
    assert run("decode", "raw", "t.parquet", "--table", "public.t16385").code == 0
    assert pq.read_table("t.parquet")["_position"].to_pylist() == [20, 50]


def test_without_positions_the_names_of_files_give_their_order(run: Shell) -> None:
    payloads = two_transactions().payloads
    written("raw/a.parquet", payloads[:4])
    written("raw/b.parquet", payloads[4:])
    assert [row["position"] for row in run("cat", "raw", "--changes").objects] == [2, 5]


def test_the_position_is_in_seq_or_position_or_the_column_that_is_named(run: Shell) -> None:
    payloads = two_transactions().payloads
    low, high = list(range(7)), list(range(100, 107))
    for columns, options, expected in [
        ({"position": high}, [], 102),
        ({"seq": high, "position": low}, [], 102),
        ({"seq": high, "offset": low}, ["--position", "offset"], 2),
    ]:
        path = written("in.parquet", payloads, **columns)
        assert run("cat", path, "--changes", "--limit", "1", *options).objects[0]["position"] == expected


COMMANDS = {
    "cat": ["cat", "in.parquet", "--changes"],
    "inspect": ["inspect", "in.parquet"],
    "changes": ["decode", "in.parquet", "out.jsonl", "--changes"],
    "a table": ["decode", "in.parquet", "out.jsonl", "--table", f"public.t{T}"],
    "a snapshot": ["decode", "in.parquet", "out.jsonl", "--snapshot", f"public.t{T}"],
    "a run": ["decode", "in.parquet", "out", "--changes"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_position_column_that_does_not_have_integers_is_refused(run: Shell, command: str) -> None:
    payloads = two_transactions().payloads
    for seq, type in ((["6", "5", "4", "3", "2", "1", "0"], "string"), ([*map(float, range(7))], "double")):
        written("in.parquet", payloads, seq=seq)
        done = run(*COMMANDS[command])
        assert (done.code, done.out) == (2, "")
        assert done.err == (
            f"pgdecode: in.parquet: column 'seq' is {type}, not integers: write it as integers, or name another column "
            "as the position\n"
        )


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "inspect"])
def test_a_transaction_that_is_there_again_is_refused(run: Shell, command: str) -> None:
    payloads = two_transactions().payloads
    written("in.parquet", [*payloads, *payloads[:4]])
    done = run(*COMMANDS[command])
    assert done.code == 1
    assert re.fullmatch(
        r"pgdecode: in\.parquet: row 10: STATE_COMMIT_ORDER at offset 0: commit LSN 0/\w+ at position 10 does not come "
        r"after 0/\w+ at position 6: put the payloads into slot order; if transactions were sent again, leave them out "
        r"with --drop-duplicates, or say where connections begin \(--session COLUMN\)\n",
        done.err,
    )
    assert not Path("out").exists()


def test_payloads_without_their_beginning_are_an_error_in_the_words_of_the_shell(run: Shell) -> None:
    payloads = two_transactions().payloads
    written("in.parquet", payloads[1:])
    done = run("decode", "in.parquet", "out.jsonl", "--changes")
    assert done.code == 1
    assert done.err.endswith(
        "its begin is missing; payloads are not in slot order, or begin inside a transaction: sort them by their "
        "sequence number, decode to the same OUT as the messages before, or --start anywhere to leave such "
        "transactions out\n"
    )


def test_inspect_counts_transactions_that_are_there_again(run: Shell) -> None:
    payloads = two_transactions().payloads
    written("in.parquet", [*payloads, *payloads])
    order = json.loads(run("inspect", "in.parquet", "--json").out)["order"]
    assert (order["followed"], order["position"], order["repeated"]) == (True, None, 2)
    assert order["fault"].startswith("in.parquet: row 10: STATE_COMMIT_ORDER at offset 0: commit LSN ")
    text = " ".join(run("inspect", "in.parquet").out.split())
    assert "(--session COLUMN); 2 transactions with a commit LSN that is not greater than one before" in text


def test_the_report_counts_transactions_that_were_sent_again(run: Shell) -> None:
    payloads = two_transactions().payloads
    written("in.parquet", [*payloads, *payloads], session=[1] * len(payloads) + [2] * len(payloads))
    done = run("decode", "in.parquet", "a.jsonl", "--changes", "--drop-duplicates")
    assert ", 2 transactions sent again or out of order left out;" in done.err
    done = run("decode", "in.parquet", "b.jsonl", "--changes", "--session", "session")
    assert ", 2 transactions sent again or out of order;" in done.err
    assert len(Path("b.jsonl").read_text().splitlines()) == 2 * len(Path("a.jsonl").read_text().splitlines())


ORDERS = {
    "a row out of order": ({"a": [1, 2, 4, 3, 5, 6, 7]}, r"raw/a\.parquet: row 3: seq 3 does not come after 4; .*"),
    "a position twice": ({"a": [1, 2, 2, 3, 4, 5, 6]}, r"raw/a\.parquet: row 2: seq 2 does not come after 2; .*"),
    "no position": ({"a": [1, 2, None, 3, 4, 5, 6]}, r"raw/a\.parquet: row 2: seq is null"),
    "files that overlap": (
        {"a": [1, 2, 3, 9], "b": [5, 6, 7]},
        r"raw/b\.parquet: row 0: seq 5 does not come after 9 of raw/a\.parquet; .*",
    ),
}


@pytest.mark.parametrize(("seqs", "message"), ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("command", ["cat", "changes", "table"])
def test_messages_out_of_order_are_refused_and_the_first_is_named(
    run: Shell, command: str, seqs: dict[str, list[int]], message: str
) -> None:
    payloads = two_transactions().payloads
    start = 0
    for name, seq in seqs.items():
        written(f"raw/{name}.parquet", payloads[start : start + len(seq)], seq=seq)
        start += len(seq)
    words = {
        "cat": ["cat", "raw", "--changes"],
        "changes": ["decode", "raw", "out", "--changes"],
        "table": ["decode", "raw", "out", "--table", "public.t16385"],
    }[command]
    done = run(*words)
    assert done.code == 1
    assert re.fullmatch(f"pgdecode: {message}\n", done.err), done.err
    assert os.listdir() == ["raw"]
