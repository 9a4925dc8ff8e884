"""Changes by the command line: options."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgdecode.protocol import messages as m
from support.change_files import T, two_transactions, unfinished
from support.generators.slot import Slot
from support.oracles import expected_changes
from support.shell import SHOP, Shell, written

U = 16386  # OID of a table
INT4, INT8 = 23, 20


def test_uncommitted_changes_are_returned_only_on_request(run: Shell) -> None:
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
        r"out\.parquet: 12 rows \([\d.]+ bytes of messages\) in [\d.]+ s, 2 changes, 1 bad row with an error "
        r"\(1 UNKNOWN_TAG\), "
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
        "update: pass --catalog with its Relation message\n",
    )
    assert run("inspect", "whole.parquet", "--write-catalog", "relations.json").code == 0
    (line,) = run("cat", path, "--changes", "--catalog", "relations.json").objects
    assert (line["relation_name"], line["new"]) == ("t16385", {"id": "1"})
    options = ["--table", "public.t16385", "--catalog", "relations.json"]
    assert run("decode", path, "out.parquet", *options).code == 0
    assert pq.read_table("out.parquet").select(["_op", "id", "_unchanged"]).to_pylist() == [
        {"_op": "update", "id": "1", "_unchanged": ["v"]}
    ]


def test_types_that_messages_do_not_describe_are_set_by_name_or_oid(run: Shell) -> None:
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
    assert done.err.startswith("pgdecode: in.parquet: row 5: UNKNOWN_TAG at offset 0: unknown message tag 0x7a 'z'; ")


@pytest.mark.parametrize("mode", ["PERMISSIVE", "DROPMALFORMED"])
def test_a_bad_message_is_a_row_with_its_error_or_is_left_out(run: Shell, mode: str) -> None:
    path = written("in.parquet", bad_in_between())
    kept = mode == "PERMISSIVE"
    error = "UNKNOWN_TAG at offset 0: unknown message tag 0x7a 'z'"
    rows = [("insert", None), ("update", None)]
    lines = run("cat", path, "--changes", "--mode", mode).objects
    found = [(line.get("op"), line.get("error")) for line in lines]
    assert sorted(found, key=str) == sorted(rows + [(None, error)] * kept, key=str)
    said = "1 bad row " + ("with an error" if kept else "left out")
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


def test_unrepresentable_values_are_treated_as_requested(run: Shell) -> None:
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
    assert pq.read_table("out/public.t16385/public.t16385.parquet")["day"].cast(pa.string()).to_pylist() == [
        "2024-12-31"
    ]
    assert pq.read_table("out/public.t16386/public.t16386.parquet")["v"].to_pylist() == ["é"]


def test_shown_rows_are_those_of_the_output(run: Shell) -> None:
    expected = run("cat", SHOP, "--changes", "--limit", "3").out
    assert run("decode", SHOP, "out.parquet", "--changes", "--show", "3").out == expected
    assert run("decode", SHOP, "out.jsonl", "--changes", "--show", "3").out == expected
    (line,) = run("decode", SHOP, "t.parquet", "--table", "public.products", "--show", "1").objects
    assert (line["_op"], line["sku"], line["_position"]) == ("insert", "SKU-00000", 2)


MISTAKES = {
    "changes and messages": (
        ["--changes", "--messages"],
        r"use only one of --messages, --changes, --table, --snapshot and --net .*",
    ),
    "changes and a table": (
        ["--changes", "--table", "public.t"],
        r"use only one of --messages, --changes, --table, --snapshot and --net .*",
    ),
    "a table that is not there": (
        ["--table", "public.nope"],
        r"--table public\.nope: no message describes this table; there are public\.t16385",
    ),
    "a snapshot and a table": (
        ["--snapshot", "public.t", "--table", "public.t"],
        r"use only one of --messages, --changes, --table, --snapshot and --net .*",
    ),
    "fields of a snapshot": (["--snapshot", "public.t", "--fields", "kind"], r"--fields is for messages .*"),
    "a snapshot of uncommitted changes": (
        ["--snapshot", "public.t", "--include-uncommitted"],
        r"--include-uncommitted is for --changes and --table .*",
    ),
    "a snapshot on Spark": (
        ["--snapshot", "public.t", "--position", "seq", "--engine", "spark"],
        r"--snapshot is for --engine local; on Spark, use spark_udfs\.snapshot .*",
    ),
    "a position that is not there": (["--changes", "--position", "no"], r"in\.parquet: no column 'no'; columns: .*"),
    "a position that is no number": (
        ["--changes", "--position", "day"],
        r"in\.parquet: column 'day' is string, not integers: write it as integers, or name another column as the "
        "position",
    ),
    "columns to keep": (["--changes", "--keep", "day"], r"--keep is for messages .*"),
    "fields": (["--table", "public.t16385", "--fields", "kind"], r"--fields is for messages .*"),
    "stream states": (["--changes", "--in-stream", "auto"], r"--in-stream is for messages .*"),
    "a position of messages": (["--position", "seq"], r"--position is for --changes, --table, --snapshot and --net .*"),
    "uncommitted messages": (
        ["--include-uncommitted"],
        r"--include-uncommitted is for --changes, --table, --snapshot and --net .*",
    ),
    "types without a name": (["--changes", "--types", "int4"], r".*'int4' is not NAME=TYPE, such as .*"),
    "a type that there is none of": (["--changes", "--types", "public.x=int5"], r".*'--types'.*int5.*"),
    "an encoding that there is none of": (["--changes", "--encoding", "klingon"], r"--encoding is 'klingon'.*"),
    "a DateStyle that there is none of": (["--changes", "--datestyle", "x"], r"--datestyle is 'x'.*"),
    "a time without a zone": (
        ["--snapshot", "public.t", "--as-of", "2026-11-28"],
        r"--as-of is a time without a time zone.*",
    ),
    "what tables cannot hold, of changes": (
        ["--changes", "--unrepresentable", "null"],
        r"--unrepresentable is for .*",
    ),
    "a catalog that is not there": (["--changes", "--catalog", "no.json"], r"no\.json: No such file or directory"),
    "rows per batch on Spark": (
        ["--changes", "--position", "seq", "--engine", "spark", "--batch-rows", "5"],
        r"--batch-rows is for --engine local \(see pgdecode decode --help\)",
    ),
    "a catalog that is none": (
        ["--changes", "--catalog", "notes.txt"],
        r"notes\.txt: not relations as RelationCatalog\.to_json writes them: .*",
    ),
}


def test_spark_needs_a_position_for_changes(run: Shell) -> None:
    written("in.parquet", two_transactions().payloads)
    done = run("decode", "in.parquet", "out", "--changes", "--engine", "spark")
    assert done.code == 2
    assert "needs a column with positions, because rows on Spark have no order" in done.err


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


def test_cat_of_changes_has_only_their_kinds(run: Shell) -> None:
    done = run("cat", SHOP, "--changes", "--kind", "begin")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(
        "pgdecode: Invalid value for '--kind': no 'begin'; there are insert, update, delete, truncate, error"
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
        "pgdecode: --table public.t16385: the table has a column '_op', but this is the name of a metadata column: "
        "pass --name-clash rename to append _ to such a name\n"
    )
    done = run("decode", "in.parquet", "out.jsonl", "--table", "public.t16385", "--name-clash", "rename")
    assert done.code == 0, done.err
