"""Changes and tables by the command line: `decode --changes`, `decode --table`, `cat --changes`."""

from __future__ import annotations

import csv
import json
import os
import re
from pathlib import Path
from typing import Any

import captures
import expected_changes
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from change_rows import with_errors
from compare import rows_of
from expected_changes import TEXT
from memory import peak_memory
from samples import MOMENT
from shell import SHOP, STREAMS, Shell, started, written
from slot import UNCHANGED, Slot

from pgdecode import messages as m
from pgdecode.change_maps import CHANGES
from pgdecode.changes import ChangeDecoder
from pgdecode.lsn import lsn_from_text

T, U = 16385, 16386  # OIDs of tables
INT4, INT8 = 23, 20
TXNS = captures.DATA / "18.txns.v2.parquet"
MOMENT_TEXT = MOMENT.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Shell:
    monkeypatch.chdir(tmp_path)
    return Shell(capfd)


def read(path: str | Path, schema: pa.Schema) -> pa.RecordBatch:
    """A Parquet file in one piece."""
    (batch,) = pq.read_table(path).cast(schema).combine_chunks().to_batches() or [
        pa.RecordBatch.from_pylist([], schema)
    ]
    return batch


def library_table(path: Path, table: str, **options: Any) -> pa.RecordBatch:
    """What the library makes of a table, all payloads in one call."""
    found = pq.read_table(path)
    return ChangeDecoder(**options).table(found["data"], table, found["seq"])


def two_transactions() -> Slot:
    """A table of one row inserted, then one updated."""
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["id", "v"])
    slot.insert(T, "1", "a")
    slot.commit()
    slot.begin(8)
    slot.update(T, "1", UNCHANGED)
    slot.commit()
    return slot


# --- what comes out -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TEXT)
def test_the_changes_of_a_capture_are_those_of_the_reference(run: Shell, name: str) -> None:
    path = captures.DATA / f"{name}.parquet"
    done = run("decode", path, "out.parquet", "--changes", "--include-uncommitted", "--batch-rows", "500")
    assert (done.code, done.out) == (0, "")
    rows = with_errors(read("out.parquet", CHANGES))
    assert [row.pop("error") for row in rows] == [None] * len(rows)
    committed = [row for row in rows if row["committed"]]
    others = sorted((row for row in rows if not row["committed"]), key=lambda row: row["position"])
    assert committed + others == expected_changes.as_text(name, True)
    assert os.listdir() == ["out.parquet"]


@pytest.mark.parametrize("name", ["16.streams.v4bin", "18.txns.v2", "18.shop.v1", "16.twophase.v3"])
def test_the_tables_of_a_capture_are_those_of_the_library(run: Shell, name: str) -> None:
    path = captures.DATA / f"{name}.parquet"
    found = pq.read_table(path)
    decoder = ChangeDecoder()
    decoder.follow(found["data"], found["seq"])
    tables = decoder.catalog.names
    options = [word for table in tables for word in ("--table", table)]
    done = run("decode", path, "out", *options, "--batch-rows", "100")
    assert (done.code, done.out) == (0, "")
    assert sorted(os.listdir("out")) == sorted(f"{table}.parquet" for table in tables)
    for table in tables:
        expected = library_table(path, table)
        if not len(expected.schema.field("_old").type):
            # Parquet has no struct without fields.
            expected = expected.drop_columns(["_old"])
        file = pq.read_table(f"out/{table}.parquet")
        assert [(field.name, field.metadata) for field in file.schema] == [
            (field.name, field.metadata) for field in expected.schema
        ]
        # Of lists, Parquet calls the items otherwise.
        assert file.cast(expected.schema).equals(pa.Table.from_batches([expected]))


def test_a_column_has_one_type_from_the_first_row_on_however_it_changes_later(run: Shell) -> None:
    slot = Slot()
    for xid, (type, column) in enumerate([(INT4, "n"), (INT8, "n"), (INT8, "m")], 7):
        slot.begin(xid)
        slot.relation(T, ["id", column], types=[25, type])
        slot.insert(T, "a", str(xid))
        slot.commit()
    path = written("in.parquet", slot.payloads)
    assert run("decode", path, "out.parquet", "--table", "public.t16385", "--batch-rows", "1").code == 0
    found = pq.read_table("out.parquet")
    assert found.schema.names[-3:] == ["id", "n", "m"]
    assert found.schema.types[-3:] == [pa.string(), pa.int64(), pa.int64()]
    assert found.select(["n", "m"]).to_pylist() == [{"n": 7, "m": None}, {"n": 8, "m": None}, {"n": None, "m": 9}]


def test_json_lines_are_what_cat_prints_objects_without_what_is_null(run: Shell) -> None:
    path = written("in.parquet", two_transactions().payloads)
    assert run("decode", path, "out.jsonl", "--changes").code == 0
    done = run("cat", path, "--changes")
    assert (done.code, done.err) == (0, "")
    assert Path("out.jsonl").read_text("utf-8") == done.out
    about = {"relation_id": T, "namespace": "public", "relation_name": "t16385", "commit_timestamp": MOMENT_TEXT}
    insert, update = done.objects
    assert insert == {
        **about,
        **{"position": 2, "commit_position": 3, "op": "insert", "xid": 7, "commit_lsn": "0/1008"},
        "new": {"id": "1", "v": "a"},
        "committed": True,
    }
    assert update == {
        **about,
        **{"position": 5, "commit_position": 6, "op": "update", "xid": 8, "commit_lsn": "0/1010"},
        "new": {"id": "1"},
        "unchanged": ["v"],
        "committed": True,
    }


@pytest.mark.parametrize("name", ["18.txns.v2", "16.streams.v4", "18.twophase.v3"])
def test_cat_prints_the_references_changes(run: Shell, name: str) -> None:
    found = run("cat", captures.DATA / f"{name}.parquet", "--changes").objects
    expected = expected_changes.as_text(name)
    assert len(found) == len(expected)
    for line, change in zip(found, expected, strict=True):
        assert lsn_from_text(line.pop("commit_lsn")) == change["commit_lsn"]
        del line["commit_timestamp"]
        assert line == {
            column: value
            for column, value in change.items()
            if column not in ("commit_lsn", "commit_timestamp") and value is not None and value != []
        }


def test_a_row_of_a_table_has_all_its_columns_in_json_and_in_csv(run: Shell) -> None:
    path = written("in.parquet", two_transactions().payloads)
    for target in ("out.jsonl", "out.csv"):
        assert run("decode", path, target, "--table", "public.t16385").code == 0
    lines = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert lines[1] == {
        **{"_op": "update", "_position": 5, "_commit_position": 6, "_xid": 8, "_commit_lsn": "0/1010"},
        **{"_commit_timestamp": MOMENT_TEXT, "_old_type": None, "_old": None, "_unchanged": ["v"], "_error": None},
        **{"id": "1", "v": None},
    }
    with Path("out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [list(row) for row in rows] == [list(line) for line in lines]
    assert rows[1] == {
        **{"_op": "update", "_position": "5", "_commit_position": "6", "_xid": "8", "_commit_lsn": "0/1010"},
        **{"_commit_timestamp": MOMENT_TEXT, "_old_type": "", "_old": "", "_unchanged": '["v"]', "_error": ""},
        **{"id": "1", "v": ""},
    }


def test_old_and_new_are_json_text_in_csv(run: Shell) -> None:
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["id", "v"], keys=["id"])
    slot.update(T, "1", None, old=["0", None], old_type="K")
    slot.commit()
    assert run("decode", written("in.parquet", slot.payloads), "out.csv", "--changes").code == 0
    with Path("out.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert list(row) == CHANGES.names
    assert (row["old"], row["new"], row["unchanged"]) == ('{"id": "0"}', '{"id": "1", "v": null}', "[]")


# --- files and folders --------------------------------------------------------------------------------------------


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
            ["out.csv/public.a.csv", "out.csv/public.b.csv"],
            id="several tables to a folder",
        ),
    ],
)
def test_the_name_and_the_number_of_tables_decide_on_a_file_or_a_folder(
    run: Shell, target: str, options: list[str], files: list[str]
) -> None:
    assert run("decode", TXNS, target, *options).code == 0
    assert sorted(str(path) for path in Path().rglob("*") if path.is_file()) == files


def test_a_tables_file_has_a_name_that_is_neither_hidden_nor_a_path(run: Shell) -> None:
    slot = Slot()
    slot.begin(7)
    for number, name in enumerate(["a/b", "50%", "é"]):
        slot.relation(T + number, ["id"], name=name)
    slot.commit()
    path = written("in.parquet", slot.payloads)
    options = [word for name in ("a/b", "50%", "é") for word in ("--table", f"public.{name}")]
    assert run("decode", path, "out", *options).code == 0
    assert sorted(os.listdir("out")) == ["public.50%25.parquet", "public.a%2Fb.parquet", "public.é.parquet"]


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
        # Text is not taken for an order unless somebody says so.
        ({"seq": [str(number) for number in high]}, [], 2),
    ]:
        path = written("in.parquet", payloads, **columns)
        assert run("cat", path, "--changes", "--limit", "1", *options).objects[0]["position"] == expected


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


# --- options ------------------------------------------------------------------------------------------------------


def unfinished() -> Slot:
    """A streamed transaction that is rolled back, a change that is committed, and one without an outcome."""
    slot = Slot()
    slot.start(9, first=True)
    slot.relation(T, ["id"], xid=9)
    slot.insert(T, "rolled back", xid=9)
    slot.stop()
    slot.stream_abort(9, 9)
    slot.begin(7)
    slot.relation(T, ["id"])
    slot.insert(T, "committed")
    slot.commit()
    slot.begin(8)
    slot.insert(T, "open")
    return slot


def test_what_was_not_committed_comes_only_if_it_is_asked_for(run: Shell) -> None:
    path = written("in.parquet", unfinished().payloads)
    outcomes = {
        (): [("committed", True)],
        ("--include-uncommitted",): [("rolled back", False), ("committed", True), ("open", None)],
    }
    for options, expected in outcomes.items():
        lines = run("cat", path, "--changes", *options).objects
        assert [(line["new"]["id"], line.get("committed")) for line in lines] == expected
        assert run("decode", path, "out.parquet", "--changes", "--overwrite", *options).code == 0
        rows = pq.read_table("out.parquet").to_pylist()
        assert [(dict(row["new"])["id"], row["committed"]) for row in rows] == expected
        done = run("decode", path, "t.parquet", "--table", "public.t16385", "--overwrite", *options)
        assert done.code == 0
        found = pq.read_table("t.parquet").select(["id", "_commit_position"]).to_pylist()
        assert [(row["id"], row["_commit_position"] is not None) for row in found] == [
            (value, committed is True) for value, committed in expected
        ]


def test_the_last_line_tells_changes_bad_ones_and_transactions_without_an_outcome(run: Shell) -> None:
    path = written("in.parquet", [*unfinished().payloads, b"z"])
    done = run("decode", path, "out.parquet", "--changes", "--mode", "PERMISSIVE")
    assert re.fullmatch(
        r"out\.parquet: 12 rows \([\d.]+ bytes of messages\) in [\d.]+ s, 2 changes, 1 bad ones with their error, "
        r"1 transaction without an outcome left out; .* written\n",
        done.err,
    ), done.err


def test_relations_from_before_the_messages_come_from_a_catalog(run: Shell) -> None:
    payloads = two_transactions().payloads
    written("whole.parquet", payloads)
    path = written("rest.parquet", payloads[4:])
    done = run("decode", path, "out.parquet", "--changes")
    assert (done.code, done.err) == (
        1,
        "pgdecode: rest.parquet: row 1: REL_UNKNOWN at offset 1: relation 16385 has not been described before this "
        "update: pass catalog= with its Relation message\n",
    )
    assert run("inspect", "whole.parquet", "--write-catalog", "relations.json").code == 0
    (line,) = run("cat", path, "--changes", "--catalog", "relations.json").objects
    assert (line["relation_name"], line["new"]) == ("t16385", {"id": "1"})
    options = ["--table", "public.t16385", "--catalog", "relations.json"]
    assert run("decode", path, "out.parquet", *options).code == 0
    assert pq.read_table("out.parquet").select(["_op", "id", "_unchanged"]).to_pylist() == [
        {"_op": "update", "id": "1", "_unchanged": ["v"]}
    ]


def test_types_that_messages_do_not_describe_are_said_by_name_or_oid(run: Shell) -> None:
    slot = Slot()
    slot.begin(7)
    slot.send(m.Type(type_id=50001, namespace="public", name="price"))
    slot.relation(T, ["a", "b"], types=[50001, 50002])
    slot.insert(T, "1.50", "7")
    slot.commit()
    path = written("in.parquet", slot.payloads)
    options = ["--types", "public.price=numeric(5,2)", "--types", "50002=int4"]
    assert run("decode", path, "out.parquet", "--table", "public.t16385", *options).code == 0
    assert pq.read_schema("out.parquet").types[-2:] == [pa.decimal128(5, 2), pa.int32()]


def bad_in_between() -> list[bytes]:
    """A change, an unknown message in a transaction with a change, and a change."""
    payloads = two_transactions().payloads
    return [*payloads[:5], b"z", *payloads[5:]]


def test_cat_prints_the_changes_before_a_bad_message_then_names_it(run: Shell) -> None:
    done = run("cat", written("in.parquet", bad_in_between()), "--changes")
    assert done.code == 1
    assert [line["op"] for line in done.objects] == ["insert"]
    assert done.err == "pgdecode: in.parquet: row 5: UNKNOWN_TAG at offset 0: unknown message tag 0x7a 'z'\n"


@pytest.mark.parametrize("mode", ["PERMISSIVE", "DROPMALFORMED"])
def test_a_bad_message_is_a_row_with_its_error_or_is_left_out(run: Shell, mode: str) -> None:
    path = written("in.parquet", bad_in_between())
    kept = mode == "PERMISSIVE"
    error = "UNKNOWN_TAG at offset 0: unknown message tag 0x7a 'z'"
    rows = [("insert", None), ("update", None)]
    lines = run("cat", path, "--changes", "--mode", mode).objects
    found = [(line.get("op"), line.get("error")) for line in lines]
    assert sorted(found, key=str) == sorted(rows + [(None, error)] * kept, key=str)
    said = "1 bad ones " + ("with their error" if kept else "left out")
    done = run("decode", path, "out.parquet", "--table", "public.t16385", "--mode", mode)
    assert (done.code, said in done.err) == (0, True)
    table = pq.read_table("out.parquet").select(["_op", "_error"]).to_pylist()
    assert sorted([(row["_op"], row["_error"]) for row in table], key=str) == sorted(found, key=str)
    assert run("cat", path, "--changes", "--mode", mode, "--kind", "error,update").objects == [
        line for line in lines if line.get("op") != "insert"
    ]


def test_a_value_that_its_type_cannot_hold_is_named_and_leaves_nothing(run: Shell) -> None:
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["n"], types=[INT4])
    slot.insert(T, "1")
    slot.insert(T, "x")
    slot.commit()
    path = written("in.parquet", slot.payloads)
    done = run("decode", path, "out.parquet", "--table", "public.t16385")
    assert done.code == 1
    assert re.fullmatch(r"pgdecode: in\.parquet: row 3: BAD_VALUE at offset \d+: .*\n", done.err), done.err
    assert os.listdir() == ["in.parquet"]


def test_what_a_type_cannot_hold_becomes_what_was_asked_for(run: Shell) -> None:
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["day"], types=[1082])
    slot.insert(T, "infinity")
    slot.commit()
    path = written("in.parquet", slot.payloads)
    options = ["--table", "public.t16385", "--overwrite"]
    assert run("decode", path, "out.csv", *options).code == 1
    for choice, expected in {"null": None, "text": "infinity"}.items():
        assert run("decode", path, "out.parquet", *options, "--unrepresentable", choice).code == 0
        assert pq.read_table("out.parquet")["day"].to_pylist() == [expected]


def test_values_are_read_in_the_encoding_and_date_style_of_their_session(run: Shell) -> None:
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["day"], types=[1082])
    slot.insert(T, "31.12.2024")
    slot.relation(U, ["v"])
    slot.commit()
    insert = bytes.fromhex("49 00004002 4e 0001 74 00000001 e9")  # I, oid 16386, N, 1 column, text, 'é' in LATIN1
    path = written("in.parquet", [*slot.payloads[:-1], insert, slot.payloads[-1]])
    options = ["--table", "public.t16385", "--table", "public.t16386"]
    assert run("decode", path, "out", *options, "--encoding", "LATIN1", "--datestyle", "German").code == 0
    assert pq.read_table("out/public.t16385.parquet")["day"].cast(pa.string()).to_pylist() == ["2024-12-31"]
    assert pq.read_table("out/public.t16386.parquet")["v"].to_pylist() == ["é"]


def test_shown_rows_are_those_of_the_output(run: Shell) -> None:
    expected = run("cat", SHOP, "--changes", "--limit", "3").out
    assert run("decode", SHOP, "out.parquet", "--changes", "--show", "3").out == expected
    assert run("decode", SHOP, "out.jsonl", "--changes", "--show", "3").out == expected
    (line,) = run("decode", SHOP, "t.parquet", "--table", "public.products", "--show", "1").objects
    assert (line["_op"], line["sku"], line["_position"]) == ("insert", "SKU-00000", 2)


MISTAKES = {
    "changes and messages": (["--changes", "--messages"], r"--messages, --changes and --table: one of them.*"),
    "changes and a table": (["--changes", "--table", "public.t"], r"--messages, --changes and --table: one of them.*"),
    "a table that is not there": (
        ["--table", "public.nope"],
        r"--table public\.nope: no message describes this table; there are public\.t16385",
    ),
    "a position that is not there": (["--changes", "--position", "no"], r"in\.parquet: no column 'no'; columns: .*"),
    "a position that is no number": (
        ["--changes", "--position", "day"],
        r"in\.parquet: column 'day' is string, not integers",
    ),
    "columns to keep": (["--changes", "--keep", "day"], r"--keep is for messages .*"),
    "fields": (["--table", "public.t16385", "--fields", "kind"], r"--fields is for messages .*"),
    "stream states": (["--changes", "--in-stream", "auto"], r"--in-stream is for messages .*"),
    "a position of messages": (["--position", "seq"], r"--position is for --changes and --table .*"),
    "uncommitted messages": (["--include-uncommitted"], r"--include-uncommitted is for --changes and --table .*"),
    "types without a name": (["--changes", "--types", "int4"], r".*'int4' is not NAME=TYPE, such as .*"),
    "a type that there is none of": (["--changes", "--types", "public.x=int5"], r".*'--types'.*int5.*"),
    "an encoding that there is none of": (["--changes", "--encoding", "klingon"], r".*klingon.*"),
    "what tables cannot hold, of changes": (
        ["--changes", "--unrepresentable", "null"],
        r"--unrepresentable is for .*",
    ),
    "a catalog that is not there": (["--changes", "--catalog", "no.json"], r"no\.json: No such file or directory"),
    "a catalog that is none": (
        ["--changes", "--catalog", "notes.txt"],
        r"notes\.txt: not relations as RelationCatalog\.to_json writes them: .*",
    ),
}


def test_spark_needs_a_position_for_changes(run: Shell) -> None:
    written("in.parquet", two_transactions().payloads)
    done = run("decode", "in.parquet", "out", "--changes", "--engine", "spark")
    assert done.code == 2
    assert "--engine spark needs --position COLUMN" in done.err


@pytest.mark.parametrize("what", [["--changes"], ["--table", "public.orders"]], ids=["changes", "a table"])
def test_spark_writes_the_changes_that_the_local_engine_writes(run: Shell, what: list[str]) -> None:
    pytest.importorskip("pyspark")
    process = started("decode", SHOP, "spark", *what, "--engine", "spark", "--format", "jsonl")
    _, err = process.communicate()
    assert process.returncode == 0, err
    assert run("decode", SHOP, "local.jsonl", *what).code == 0
    ours = sorted(line for path in Path("spark").rglob("*.jsonl") for line in path.read_text().splitlines())
    assert ours == sorted(Path("local.jsonl").read_text().splitlines())
    assert ours


@pytest.mark.parametrize(("options", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_gets_one_line_and_exit_code_2(run: Shell, options: list[str], message: str) -> None:
    payloads = two_transactions().payloads
    written("in.parquet", payloads, seq=list(range(7)), day=["x"] * 7)
    Path("notes.txt").write_text("{}")
    before = sorted(Path.cwd().rglob("*"))
    done = run("decode", "in.parquet", "out", *options)
    assert (done.code, done.out) == (2, "")
    assert re.fullmatch(f"pgdecode: {message}\n", done.err), done.err
    assert sorted(Path.cwd().rglob("*")) == before


def test_cat_of_changes_has_their_kinds_alone(run: Shell) -> None:
    done = run("cat", SHOP, "--changes", "--kind", "begin")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(
        "pgdecode: --kind begin: with --changes there are insert, update, delete, truncate, error"
    )
    found = run("cat", SHOP, "--changes", "--kind", "delete").objects
    assert {line["op"] for line in found} == {"delete"}
    assert len(found) == sum(change["op"] == "delete" for change in expected_changes.as_text(SHOP.stem))


def test_a_column_with_the_name_of_one_about_the_change_is_a_clear_mistake(run: Shell) -> None:
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["id", "_op"])
    slot.commit()
    done = run("decode", written("in.parquet", slot.payloads), "out", "--table", "public.t16385")
    assert done.code == 2
    assert done.err == (
        "pgdecode: --table public.t16385: relation 16385 has columns that cannot stand side by side: ['id', '_op']\n"
    )


# --- inspect ------------------------------------------------------------------------------------------------------


def figures_of(run: Shell, *words: str | Path) -> dict[str, Any]:
    done = run("inspect", *words, "--json")
    assert (done.code, done.err) == (0, "")
    found: dict[str, Any] = json.loads(done.out)
    return found


def test_inspect_tells_every_version_of_a_relation_and_from_where_on_it_counts(run: Shell) -> None:
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["id"], types=[INT4], keys=["id"])
    slot.commit()
    slot.start(9, first=True)
    slot.relation(T, ["id", "v"], xid=9)
    slot.stop()
    slot.stream_commit(9)
    slot.start(10, first=True)
    slot.relation(T, ["id", "gone"], xid=10)
    slot.stop()
    slot.stream_abort(10, 10)
    path = written("in.parquet", slot.payloads, seq=range(100, 100 + len(slot.payloads)))
    (relation,) = figures_of(run, path)["relations"]
    assert [
        (item["position"], item["xid"], item["visible_from"], [column["name"] for column in item["columns"]])
        for item in relation["history"]
    ] == [(101, None, 101, ["id"]), (104, 9, 106, ["id", "v"]), (108, 10, None, ["id", "gone"])]
    assert relation["history"][0]["columns"] == [
        {"name": "id", "type_id": 23, "type": "int4", "type_modifier": -1, "key": True}
    ]
    lines = run("inspect", path).out.splitlines()
    at = lines.index("public.t16385  16385, 3 versions, replica identity default")
    assert lines[at + 1 : at + 4] == [
        "    at 101: id* int4",
        "    at 104: id text, v text",
        "    at 108, not committed: id text, gone text",
    ]


@pytest.mark.parametrize("name", captures.NAMES)
def test_inspect_finds_the_versions_that_a_decoder_finds(run: Shell, name: str) -> None:
    path = captures.DATA / f"{name}.parquet"
    found = pq.read_table(path)
    decoder = ChangeDecoder()
    decoder.follow(found["data"], found["seq"])
    assert run("inspect", path, "--write-catalog", "relations.json").code == 0
    assert Path("relations.json").read_text() == decoder.catalog.to_json()


def test_inspect_counts_transactions_without_an_outcome_and_blocks(run: Shell) -> None:
    slot = unfinished()
    slot.start(20, first=True)
    slot.stop()
    slot.start(20)
    slot.stop()
    found = figures_of(run, written("in.parquet", slot.payloads))
    # The Begin of 8 has no Commit: what follows it cannot stand there, and says so.
    assert found["transactions"]["undecided"] == 2
    assert found["transactions"]["stream_blocks"] == 3
    assert found["order"] == {
        "position": None,
        "followed": True,
        "fault": "in.parquet: row 11: STATE_TRANSACTION at offset 0: stream_start inside a transaction: the commit "
        "before it is missing",
    }


def test_inspect_of_messages_out_of_order_reports_it_and_goes_on(run: Shell) -> None:
    payloads = two_transactions().payloads
    path = written("in.parquet", payloads, seq=[1, 2, 4, 3, 5, 6, 7])
    found = figures_of(run, path)
    assert (found["rows"], found["kinds"]["commit"]["messages"]) == (7, 2)
    assert found["transactions"]["undecided"] is None
    assert (found["order"]["followed"], found["order"]["position"]) == (False, "seq")
    assert found["order"]["fault"].startswith("in.parquet: row 3: seq 3 does not come after 4")
    assert found["relations"][0]["history"] == []
    done = run("inspect", path, "--write-catalog", "relations.json")
    assert done.code == 1
    assert done.err.startswith("pgdecode: relations.json: not written: in.parquet: row 3: seq 3 does not come after 4")
    assert figures_of(run, path, "--in-stream", "auto")["order"] == {
        "position": None,
        "followed": False,
        "fault": None,
    }


# --- memory -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def short_and_long(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A capture 60 times over and 200 times over, with positions that ascend; 60 fill a row group of each output."""
    folder = tmp_path_factory.mktemp("memory")
    table = pq.read_table(STREAMS, columns=["data"])
    paths = []
    for times in (60, 200):
        path = folder / f"{times}.parquet"
        many = pa.concat_tables([table] * times)
        pq.write_table(many.append_column("seq", pa.array(range(len(many)))), path, row_group_size=10**9)
        paths.append(path)
    return paths


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["decode", "out.parquet", "--changes"], id="changes to Parquet"),
        pytest.param(["decode", "out.jsonl", "--changes"], id="changes to JSON lines"),
        pytest.param(["decode", "out.parquet", "--table", "public.s1"], id="a table to Parquet"),
        pytest.param(["decode", "out", "--table", "public.s1", "--table", "public.s2"], id="two tables"),
        pytest.param(["cat", "--changes"], id="cat"),
        pytest.param(["inspect"], id="inspect"),
    ],
)
def test_memory_does_not_grow_with_the_file(run: Shell, words: list[str], short_and_long: list[Path]) -> None:
    command, *rest = words
    short, long = (
        peak_memory(command, path, *rest, *(["--overwrite"] if command == "decode" else [])) for path in short_and_long
    )
    assert pq.read_metadata(short_and_long[1]).num_rows == 1_251_200
    assert long - short < 64 * 2**20


def test_two_commands_in_a_pipe_end_well(run: Shell) -> None:
    process = started("cat", STREAMS, "--changes")
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline().startswith(b"{")
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 0


def test_rows_are_those_of_the_decoder_in_any_batches(run: Shell) -> None:
    expected = rows_of(library_table(STREAMS, "public.s1"))
    for n_rows in ("7", "1000"):
        options = ["--table", "public.s1", "--batch-rows", n_rows, "--overwrite"]
        assert run("decode", STREAMS, "out.parquet", *options).code == 0
        (batch,) = pq.read_table("out.parquet").combine_chunks().to_batches()
        assert rows_of(batch) == expected
