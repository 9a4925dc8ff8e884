"""Changes and tables by the command line: `decode --changes`, `decode --table`, `cat --changes`."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgdecode.changes.change_decoder import ChangeDecoder
from pgdecode.changes.change_rows import CHANGES
from pgdecode.protocol.lsn import lsn_from_text
from support import captures, tiers
from support.change_files import T, library_table, read, two_transactions
from support.change_rows import with_errors
from support.compare import rows_of
from support.generators.samples import MOMENT
from support.generators.slot import Slot
from support.memory import peak_memory
from support.oracles import expected_changes
from support.oracles.expected_changes import TEXT
from support.shell import SHOP, STREAMS, Shell, started, written

INT4, INT8 = 23, 20
MOMENT_TEXT = MOMENT.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


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
    decoder = ChangeDecoder(mode="PERMISSIVE")
    decoder.decode(found["data"], found["seq"])
    tables = decoder.catalog.names
    options = [word for table in tables for word in ("--table", table)]
    done = run("decode", path, "out", *options)
    assert (done.code, done.out) == (0, "")
    assert sorted(path.name for path in Path("out").rglob("*.parquet") if "_pgdecode" not in path.parts) == sorted(
        f"{name}.parquet" for name in tables
    )
    for table in tables:
        expected = library_table(path, table)
        if not len(expected.schema.field("_old").type):
            # Parquet does not support structs without fields.
            expected = expected.drop_columns(["_old"])
        file = pq.read_table(f"out/{table if len(tables) > 1 else '.'}/{table}.parquet")
        assert [(field.name, field.metadata) for field in file.schema] == [
            (field.name, field.metadata) for field in expected.schema
        ]
        # Parquet gives items of lists another name.
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


# Source: github.com/readysettech/readyset/issues/1169. The texts are the server's own, with its T and Z in JSON.
AGES = {
    "d": (1082, ["0044-03-15 BC", "0001-12-31 BC", "0001-01-01", "10000-01-01", "5874897-12-31"]),
    "t": (1114, ["0214-02-05T15:40:00.000000 BC", "15000-01-01T00:00:00.000000", "294247-01-10T04:00:54.775807"]),
    "z": (1184, ["4713-02-29T12:00:00.000000Z BC", "10000-01-01T00:00:00.000000Z"]),
    "r": (3908, ["4714-11-24T00:00:00.000000 BC", "10001-02-28T00:00:00.500000"]),
    "a": (1182, ["0005-02-29 BC", "12000-02-29"]),
}


@pytest.mark.parametrize("what", ["--table", "--snapshot"])
def test_dates_of_all_years_are_those_of_the_server_in_json_and_in_csv(run: Shell, what: str) -> None:
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["id", *AGES], keys=["id"], types=[25, *(oid for oid, _ in AGES.values())])
    for number in range(5):
        chosen = {name: texts[number % len(texts)] for name, (_, texts) in AGES.items()}
        plain = {name: text.replace("T", " ").replace("Z", "+00") for name, text in chosen.items()}
        bounds, items = f'["{plain["r"]}",)', f"{{{plain['a']},NULL}}"
        slot.insert(T, str(number), plain["d"], plain["t"], plain["z"], bounds, items)
    slot.commit()
    path = written("in.parquet", slot.payloads)
    for target in ("out.jsonl", "out.csv", "out.parquet"):
        done = run("decode", path, target, what, "public.t16385", "--show", "5", "--json")
        assert done.code == 0, done.err
        if target == "out.parquet":
            rows = done.objects
        elif target == "out.jsonl":
            rows = [json.loads(line) for line in Path(target).read_text().splitlines()]
        else:
            with Path(target).open(newline="") as file:
                rows = [{**row, "r": json.loads(row["r"]), "a": json.loads(row["a"])} for row in csv.DictReader(file)]
        for number, row in enumerate(rows):
            chosen = {name: texts[number % len(texts)] for name, (_, texts) in AGES.items()}
            assert {name: row[name] for name in "dtz"} == {name: chosen[name] for name in "dtz"}
            assert (row["r"]["lower"], row["a"]) == (chosen["r"], [chosen["a"], None])


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


# --- memory -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def short_and_long(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A capture repeated 60 and 200 times, with ascending positions. 60 times fill a row group of each output."""
    folder = tmp_path_factory.mktemp("memory")
    table = pq.read_table(STREAMS, columns=["data"])
    paths = []
    for times in (60, 200):
        path = folder / f"{times}.parquet"
        many = pa.concat_tables([table] * times)
        pq.write_table(many.append_column("seq", pa.array(range(len(many)))), path, row_group_size=10**9)
        paths.append(path)
    return paths


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["decode", "out.parquet", "--changes"], id="changes to Parquet"),
        tiers.long(["decode", "out.jsonl", "--changes"], id="changes to JSON lines"),
        tiers.long(["decode", "out.parquet", "--table", "public.s1"], id="a table to Parquet"),
        pytest.param(["decode", "out", "--table", "public.s1", "--table", "public.s2"], id="two tables"),
        tiers.long(["cat", "--changes"], id="cat"),
        pytest.param(["inspect"], id="inspect"),
    ],
)
def test_memory_does_not_grow_with_the_file(run: Shell, words: list[str], short_and_long: list[Path]) -> None:
    command, *rest = words
    # Short files do not keep several workers busy.
    rest += {"decode": ["--overwrite", "--workers", "1"], "inspect": ["--workers", "1"], "cat": []}[command]
    short, long = (peak_memory(command, path, *rest) for path in short_and_long)
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


@pytest.mark.full
def test_rows_are_those_of_the_decoder_in_any_batches(run: Shell) -> None:
    expected = rows_of(library_table(STREAMS, "public.s1"))
    for n_rows in ("7", "1000"):
        options = ["--table", "public.s1", "--batch-rows", n_rows, "--overwrite"]
        assert run("decode", STREAMS, "out.parquet", *options).code == 0
        (batch,) = pq.read_table("out.parquet").combine_chunks().to_batches()
        assert rows_of(batch) == expected


def test_the_change_feed_of_a_table_is_that_of_the_library_in_every_format(run: Shell) -> None:
    raw = pq.read_table(SHOP)
    expected = ChangeDecoder().table(raw["data"], "public.orders", raw["seq"], shape="delta")
    for format in ("parquet", "jsonl", "csv"):
        done = run("decode", SHOP, f"out.{format}", "--table", "public.orders", "--shape", "delta", "--show", 2)
        assert (done.code, "insert" in done.out) == (0, True), done.err
    assert pq.read_table("out.parquet").to_pylist() == expected.to_pylist()
    lines = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert [line["_change_type"] for line in lines] == expected["_change_type"].to_pylist()
    done = run("decode", SHOP, "rows", "--snapshot", "public.orders", "--shape", "delta")
    assert (done.code, "--shape is for --table" in done.err) == (2, True)


def test_the_change_feed_of_a_table_whose_columns_change_is_in_one_file(run: Shell) -> None:
    slot = Slot()
    for columns in (["id", "a"], ["id", "b", "more"]):
        slot.begin(7)
        slot.relation(T, columns, keys=["id"])
        slot.update(T, *"123"[: len(columns)])
        slot.commit()
    path = written("in.parquet", slot.payloads)
    done = run("decode", path, "out.parquet", "--table", f"public.t{T}", "--shape", "delta")
    assert done.code == 0, done.err
    expected = ChangeDecoder(shape="delta").table(slot.payloads, f"public.t{T}")
    assert pq.read_table("out.parquet").drop(["_position", "_commit_position"]).to_pylist() == (
        pa.table(expected).drop(["_position", "_commit_position"]).to_pylist()
    )
