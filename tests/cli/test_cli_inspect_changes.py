"""`inspect` of the changes in files: relations, transactions and their order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pgdecode.changes.change_decoder import ChangeDecoder
from pgdecode.files.envelope_batches import prepared_batches
from support import captures
from support.change_files import T, two_transactions, unfinished
from support.generators.slot import Slot
from support.shell import Shell, written
from support.tiers import full

INT4, INT8 = 23, 20


def figures_of(run: Shell, *words: str | Path) -> dict[str, Any]:
    done = run("inspect", *words, "--json")
    assert (done.code, done.err) == (0, "")
    found: dict[str, Any] = json.loads(done.out)
    return found


def test_inspect_lists_every_version_of_a_relation_and_where_it_applies_from(run: Shell) -> None:
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
    # The times of the Begin before the first two, and of the Stream Commit before the last.
    time, _, later = (item["time"] for item in relation["history"])
    lines = run("inspect", path).out.splitlines()
    at = lines.index("public.t16385  16385, 3 versions, replica identity default")
    assert lines[at + 1 : at + 4] == [
        f"    at 101 ({time}): id* int4",
        f"    at 104 ({time}): id text, v text",
        f"    at 108 ({later}), not committed: id text, gone text",
    ]


@pytest.mark.parametrize("name", captures.NAMES)
def test_inspect_finds_the_versions_that_a_decoder_finds(run: Shell, name: str) -> None:
    path = captures.DATA / f"{name}.parquet"
    found = pq.read_table(path)
    decoder = ChangeDecoder(mode="PERMISSIVE")
    decoder.decode(found["data"], found["seq"])
    assert run("inspect", path, "--write-catalog", "relations.json").code == 0
    assert Path("relations.json").read_text() == decoder.catalog.to_json()


def test_inspect_counts_transactions_without_an_outcome_and_blocks(run: Shell) -> None:
    slot = unfinished()
    slot.start(20, first=True)
    slot.stop()
    slot.start(20)
    slot.stop()
    found = figures_of(run, written("in.parquet", slot.payloads))
    # The Begin of 8 has no Commit, so the next message is in an impossible place.
    assert found["transactions"]["undecided"] == 2
    assert found["transactions"]["stream_blocks"] == 3
    assert found["order"] == {
        "position": None,
        "followed": True,
        "repeated": 0,
        "fault": "in.parquet: row 11: STATE_TRANSACTION at offset 0: stream_start inside a transaction: the commit "
        "before it is missing; are the payloads in slot order? if the connection was lost before this message, name "
        "the column of the connection by --session",
    }


def test_inspect_counts_a_transaction_that_was_sent_again_before_its_commit_as_undecided(run: Shell) -> None:
    slot = two_transactions()
    slot.begin(900)
    slot.payloads.append(slot.payloads[-1])
    slot.commit()
    found = figures_of(run, written("in.parquet", slot.payloads))
    assert (found["transactions"]["begun"], found["transactions"]["committed"]) == (4, 3)
    assert found["transactions"]["undecided"] == 1
    assert found["order"]["fault"] is None


def test_inspect_reports_messages_out_of_order_and_continues(run: Shell) -> None:
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
        "repeated": None,
        "fault": None,
    }


@pytest.mark.parametrize("rows_per_batch", [full(7), 100_000])
@pytest.mark.parametrize("name", captures.NAMES)
def test_the_largest_transactions_have_the_changes_that_plain_python_counts(
    run: Shell, monkeypatch: pytest.MonkeyPatch, name: str, rows_per_batch: int
) -> None:
    defaults = prepared_batches.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "batch_rows", rows_per_batch)
    figures = figures_of(run, captures.DATA / f"{name}.parquet")
    sizes, undecided = counted_changes(captures.capture(name).rows)
    found = [(item["changes"], item["xid"]) for item in figures["largest_transactions"]]
    assert [n for n, _ in found] == sorted((n for n, _ in sizes), reverse=True)[:5]
    assert set(found) <= set(sizes)
    assert sorted((item["changes"], item["xid"]) for item in figures["open_transactions"]) == sorted(undecided)


def counted_changes(rows: list[dict[str, Any]]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Count the changes of each transaction that was committed or prepared, and of those without an outcome."""
    ended: list[tuple[int, int]] = []
    streamed: dict[int, int] = {}
    prepared: dict[str, tuple[int, int]] = {}
    xid, n = 0, 0
    for row in rows:
        kind = row["kind"]
        if kind in ("insert", "update", "delete", "truncate"):
            n += 1
        elif kind in ("begin", "begin_prepare", "stream_start"):
            xid, n = row["xid"], 0
        elif kind == "stream_stop":
            streamed[xid] = streamed.get(xid, 0) + n
        elif kind in ("commit", "prepare"):
            ended.append((n, xid))
        elif kind in ("stream_commit", "stream_prepare"):
            ended.append((streamed.pop(row["xid"]), row["xid"]))
        elif kind == "stream_abort" and row["xid"] == row["subxid"]:
            streamed.pop(row["xid"], None)
        if kind in ("prepare", "stream_prepare"):
            prepared[row["gid"]] = ended[-1]
        elif kind in ("commit_prepared", "rollback_prepared"):
            prepared.pop(row["gid"], None)
    return ended, [*prepared.values(), *((n, xid) for xid, n in streamed.items())]
