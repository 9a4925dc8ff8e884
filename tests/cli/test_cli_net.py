"""Net changes by the command line: those of the library, one file a call, which make the rows of the server."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pgdecode
from pgdecode.datasets.target import read_manifests
from support.change_files import T
from support.generators.slot import Slot
from support.generators.slots import UNCHANGED
from support.oracles.net_fold import applied
from support.shell import SHOP, Shell, written

TABLE = f"public.t{T}"


def net_of(path: Path | str, table: str, key: list[str] | None = None) -> pa.Table:
    found = pq.read_table(path)
    return pgdecode.net_changes(pgdecode.ChangeDecoder().table(found["data"], table, found["seq"]), key=key)


def moved() -> Slot:
    """A row that moves with its TOAST value, one that is deleted, and one from before."""
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["id", "n", "toast"], keys=["id"])
    slot.insert(T, "1", "a", "long")
    slot.update(T, "2", "b", UNCHANGED, old=["1", None, None], old_type="K")
    slot.update(T, "9", "z", UNCHANGED, old=["8", None, None], old_type="K")
    slot.delete(T, "3", None, None, old_type="K")
    slot.commit()
    return slot


@pytest.mark.parametrize("format", ["parquet", "jsonl", "csv"])
def test_net_changes_of_a_table_are_written_in_every_format(run: Shell, format: str) -> None:
    path = written("in.parquet", moved().payloads, seq=range(7))
    done = run("decode", path, f"out.{format}", "--net", TABLE, "--show", 1)
    assert (done.code, ", 3 net changes, no bad rows; " in done.err) == (0, True), done.err
    assert done.out
    expected = net_of(path, TABLE)
    assert [row["_key_before"] for row in expected.to_pylist()] == [None, {"id": "8"}, {"id": "3"}]
    if format == "parquet":
        found = pq.read_table("out.parquet")
        assert found.equals(expected)
        assert found.schema.metadata == expected.schema.metadata
        assert [field.name for field in found.schema if b"pg:key" in (field.metadata or {})] == ["id"]
    elif format == "jsonl":
        lines = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
        assert [(line["_action"], line["_key_before"], line["_unknown"], line["id"]) for line in lines] == [
            ("upsert", None, [], "2"),
            ("upsert", {"id": "8"}, ["toast"], "9"),
            ("delete", {"id": "3"}, [], "3"),
        ]
    else:
        header, first, *_ = Path("out.csv").read_text().splitlines()
        assert header == ",".join(f'"{name}"' for name in expected.column_names)
        assert first.startswith('"upsert",')


def test_each_call_adds_the_net_changes_of_what_has_come(run: Shell) -> None:
    recorded = pq.read_table(SHOP)
    tables = ("public.orders", "public.products")
    Path("in").mkdir()
    options = ["--net", tables[0], "--net", tables[1]]
    n_files = 0
    for number, (start, end) in enumerate(pairwise([0, 300, 700, len(recorded)])):
        pq.write_table(recorded.slice(start, end - start), f"in/{number}.parquet")
        assert run("decode", "in", "out", *options).code == 0
        files = [file for manifest in read_manifests(Path("out")) for file in manifest.files]
        assert len(files) == n_files + len(tables)
        n_files = len(files)
    again = run("decode", "in", "out", *options)
    assert (again.code, "nothing new" in again.err) == (0, True)
    for table in tables:
        rows: list[dict[str, object]] = []
        for manifest in read_manifests(Path("out")):
            [file] = [file for file in manifest.files if file.name.startswith(f"{table}/")]
            rows = applied(rows, pq.read_table(f"out/{file.name}").to_pylist(), _key(f"out/{file.name}"))
        expected = pgdecode.snapshot(recorded["data"], table, recorded["seq"]).to_pylist()
        assert len(rows) == len(expected) > 0
        names = [name for name in expected[0] if name[0] != "_"]
        assert sorted(repr([row[name] for name in names]) for row in rows) == sorted(
            repr([row[name] for name in names]) for row in expected
        )


def _key(path: str) -> list[str] | None:
    schema = pq.read_schema(path)
    key = [field.name for field in schema.field("_key_before").type]
    return None if len(key) == len([name for name in schema.names if name[0] != "_"]) else key


def test_a_key_is_given_for_a_table_with_the_whole_row_as_identity(run: Shell) -> None:
    assert run("decode", SHOP, "out.parquet", "--net", "public.orders", "--key", "id").code == 0
    assert pq.read_table("out.parquet").equals(net_of(SHOP, "public.orders", ["id"]))
    done = run("decode", SHOP, "other.parquet", "--net", "public.orders", "--key", "id,nothing")
    assert done.code == 1
    assert done.err.startswith("pgdecode: net public.orders: key must name different columns of the table: 'nothing'")
    assert not Path("other.parquet").exists()


def test_another_key_in_a_later_call_is_an_error(run: Shell) -> None:
    Path("in").mkdir()
    recorded = pq.read_table(SHOP)
    pq.write_table(recorded.slice(0, 500), "in/0.parquet")
    assert run("decode", "in", "out", "--net", "public.orders", "--key", "id").code == 0
    pq.write_table(recorded.slice(500), "in/1.parquet")
    done = run("decode", "in", "out", "--net", "public.orders")
    assert (done.code, "key" in done.err) == (2, True)
    done = run("decode", "in", "out", "--table", "public.orders")
    assert (done.code, "net" in done.err) == (2, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--net", "public.a", "--table", "public.b"], "use only one of --messages, --changes, --table"),
        (["--table", "public.a", "--key", "id"], "--key is for --net"),
        (["--net", "public.a", "--net", "public.b", "--key", "id"], "--key is for one table of --net"),
        (["--net", "public.a", "--mode", "PERMISSIVE"], "--mode PERMISSIVE is not for --net"),
        (["--net", "public.a", "--include-uncommitted"], "--include-uncommitted is for --changes and --table"),
        (["--net", "public.a", "--engine", "spark"], "use spark_udfs.net_changes"),
        (["--net", "public.none"], "--net public.none: no message describes this table"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(run: Shell, options: list[str], message: str) -> None:
    done = run("decode", SHOP, "out", *options)
    assert (done.code, message in done.err) == (2, True), done.err


def test_net_changes_follow_a_table_that_is_renamed(run: Shell) -> None:
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["id", "v"], keys=["id"], name="former")
    slot.insert(T, "1", "a")
    slot.insert(T, "2", "b")
    slot.commit()
    n_before = len(slot.payloads)
    slot.begin(8)
    slot.relation(T, ["id", "v"], keys=["id"])
    slot.update(T, "5", UNCHANGED, old=["1", None], old_type="K")
    slot.delete(T, "2", None, old_type="K")
    slot.commit()
    Path("in").mkdir()
    written("in/0.parquet", slot.payloads[:n_before], seq=range(n_before))
    assert run("decode", "in", "former", "--net", "public.former").code == 0
    written("in/1.parquet", slot.payloads[n_before:], seq=range(n_before, len(slot.payloads)))
    assert run("decode", "in", "out", "--net", TABLE).code == 0
    [file] = [file for manifest in read_manifests(Path("out")) for file in manifest.files]
    rows = pq.read_table(f"out/{file.name}").to_pylist()
    assert [(row["_key_before"], row["_unknown"], row["id"], row["v"]) for row in rows] == [(None, [], "5", "a")]
    # A call that continues with the former name would write nothing from now on.
    done = run("decode", "in", "former", "--net", "public.former")
    assert done.code == 2
    assert done.err.endswith(f"--net public.former: 'public.former' was renamed to '{TABLE}'\n")


def test_net_changes_of_another_table_with_the_name_are_refused_in_a_later_call(run: Shell) -> None:
    slot = Slot()
    for number in range(2):
        slot.begin(7 + number)
        slot.relation(T + number, ["id"], keys=["id"], name="t")
        slot.insert(T + number, "1")
        slot.commit()
    half = len(slot.payloads) // 2
    Path("in").mkdir()
    written("in/0.parquet", slot.payloads[:half], seq=range(half))
    assert run("decode", "in", "out", "--net", "public.t").code == 0
    written("in/1.parquet", slot.payloads[half:], seq=range(half, 2 * half))
    done = run("decode", "in", "out", "--net", "public.t")
    assert done.code == 2
    text = f"it is another table (OID {T + 1}) than in the run before (OID {T}): use another folder\n"
    assert done.err.endswith(text), done.err
    assert run("decode", "in", "new", "--net", "public.t").code == 0
