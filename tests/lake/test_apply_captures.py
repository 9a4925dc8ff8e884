"""`apply` of the captures to a target in memory: its tables equal those of the server, however the payloads come."""

from __future__ import annotations

import random
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from changes.test_changes import TYPES
from lake.memory_target import MemoryTarget

from pgdecode import RelationCatalog, lsn_to_text
from pgdecode.capture import Capture
from pgdecode.changes import outcomes
from pgdecode.datasets.errors import RunError
from pgdecode.lake import StaleTables, apply, apply_run
from pgdecode.lake.reading import reading, replication
from servers.database import Database
from support import captures
from support.net_batches import random_cuts
from support.oracles import expected_changes, replay
from support.oracles.expected_changes import TEXT
from support.tiers import full, long

# Tables with a column that was added or altered while there were rows. Payloads alone do not tell its values.
STALE = {
    "shop": {"public.customers"},
    "txns": {"public.a2"},
    "streams": {"public.s1"},
}


def text_types(name: str) -> dict[str | int, str]:
    """All types as text, the form that the recorded states have."""
    catalog = RelationCatalog.from_messages(captures.capture(name).column)
    return {item.type_id: "text" for version in catalog for item in version.columns}


def write_payloads(folder: Path, payloads: pa.Array, start: int, end: int, step: int = 1) -> Path:
    """Write the payloads from `start` to `end` as a file."""
    folder.mkdir(exist_ok=True)
    path = folder / f"part-{start:08d}.parquet"
    table = {"seq": pa.array(range(start * step, end * step, step), pa.int64()), "data": payloads[start:end]}
    pq.write_table(pa.table(table), path, row_group_size=random.Random(start).choice([7, 100, 5000]))
    return path


def apply_known(source: Path, target: MemoryTarget, **options: Any) -> set[str]:
    """Apply, and return the tables whose rows cannot be known."""
    try:
        apply(source, target, **options)
    except StaleTables as error:
        return {*error.tables}
    return set()


def rows_of(target: MemoryTarget, name: str, stale: set[str]) -> dict[str, list[replay.Row]]:
    """The rows of a target by the server's spelling of the tables' names, without tables under former names."""
    catalog = RelationCatalog.from_messages(captures.capture(name).column)
    last = [catalog[relation_id] for relation_id in {item.relation_id for item in catalog}]
    spelled = {item.qualified_name: replay.table_name(item.namespace, item.name) for item in last}
    return {spelled[table]: rows for table, (_, rows) in target.committed.items() if table in spelled.keys() - stale}


def assert_server_state(target: MemoryTarget, name: str, stale: set[str]) -> None:
    major, scenario, _ = name.split(".")
    state = replay.load_state(captures.DATA / f"{major}.{scenario}.state.json.gz")
    left_out = expected_changes.WITHOUT_COLUMNS | stale
    left_out |= expected_changes.TRUNCATED.get(scenario, set()) if major == "10" else set()
    found = rows_of(target, name, stale)
    assert found
    differences, unknown = replay.differences(found, state, tables=left_out)
    assert differences == []
    # A generated column is not published.
    assert unknown == ({"public.gen": {"dbl": 1}} if "public.gen" in found else {})


def payload_cuts(rng: random.Random, n: int) -> list[int]:
    """Where files end: few or many of them."""
    return random_cuts(rng, n) if n < 20 else sorted({0, n, *rng.sample(range(n), rng.choice([0, 1, 3, 12]))})


QUICK = [name if name in captures.QUICK else full(name) for name in TEXT]


@pytest.mark.parametrize("name", QUICK)
def test_tables_equal_those_of_the_server_in_batches_cut_anywhere(
    name: str, rng: random.Random, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Transactions are large, and lists of their changes have several parts.
    monkeypatch.setattr(outcomes, "_LARGE", 1)
    monkeypatch.setattr(replication, "_LIST_ROWS", 3)
    column, target, types = captures.capture(name).column, MemoryTarget(), text_types(name)
    stale: set[str] = set()
    for start, end in pairwise(payload_cuts(rng, len(column))):
        # Positions may have gaps.
        write_payloads(tmp_path, column, start, end, step=3)
        stale = apply_known(tmp_path, target, types=types, workers=1)
    assert stale == (STALE.get(name.split(".")[1], set()))
    assert_server_state(target, name, stale)
    n_commits = target.n_commits
    assert apply_known(tmp_path, target, types=types, workers=1) == stale
    assert target.n_commits == n_commits


class Killed(Exception):
    """The end of a process at a write."""


@pytest.mark.parametrize("name", ["18.twophase.v3", full("18.streams.v4"), long("18.txns.v2"), full("18.shop.v1")])
def test_killed_at_every_write_and_called_again_tables_equal_those_of_the_server(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(apply_run, "_NET_BYTES", 2000)
    monkeypatch.setattr(apply_run, "_COMMIT_BYTES", 20_000)
    monkeypatch.setattr(reading, "_BATCH_ROWS", 500)
    column, types = captures.capture(name).column, text_types(name)
    write_payloads(tmp_path, column, 0, len(column))
    left = 0

    def on_write(what: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Killed

    # At the n-th write of each call that is not the last.
    for n in (1, 2, 3, 5, 8, 13, 40, 100):
        target, is_killed, stale = MemoryTarget(on_write), True, set[str]()
        n_calls = 0
        while is_killed:
            # Each call goes on from the last commit, so a call that is killed at once would be killed for ever.
            left = n + n_calls // 3
            n_calls += 1
            try:
                stale = apply_known(tmp_path, target, types=types, workers=1)
                is_killed = False
            except Killed:
                pass
        assert stale == STALE.get(name.split(".")[1], set())
        assert_server_state(target, name, stale)


@pytest.mark.parametrize("name", ["18.twophase.v3", full("18.types.v1"), full("16.streams.v2")])
def test_until_applies_the_commits_up_to_an_lsn(name: str, rng: random.Random, tmp_path: Path) -> None:
    column, target, types = captures.capture(name).column, MemoryTarget(), text_types(name)
    write_payloads(tmp_path, column, 0, len(column))
    changes = expected_changes.as_text(name)
    lsns = sorted({item["commit_lsn"] for item in changes})
    for lsn in [*sorted(rng.sample(lsns, min(5, len(lsns)))), lsns[-1]]:
        stale = apply_known(tmp_path, target, types=types, workers=1, until=lsn_to_text(lsn))
        applied = [item for item in changes if item["commit_lsn"] <= lsn]
        expected = replay.replay(applied, expected_changes.key_columns(name))
        found = rows_of(target, name, stale)
        for table in {*expected} - stale:
            assert sorted(map(repr, found.get(table, []))) == sorted(
                repr({column: row[column] for column in target.committed[table][0].names}) for row in expected[table]
            )


@pytest.mark.parametrize("scenario", ["shop", full("txns")])
def test_binary_payloads_give_the_same_tables_as_text(scenario: str, tmp_path: Path) -> None:
    tables = []
    for name in (f"18.{scenario}.v1", f"18.{scenario}.v1bin"):
        column, target = captures.capture(name).column, MemoryTarget()
        write_payloads(tmp_path / name, column, 0, len(column))
        stale = apply_known(tmp_path / name, target, types=TYPES, unrepresentable="text")
        assert stale == STALE.get(scenario, set())
        tables.append({table: sorted(map(repr, rows)) for table, (_, rows) in target.committed.items()})
    assert tables[0] == tables[1]


@pytest.mark.full
def test_captured_files_that_do_not_follow_are_refused(database: Database, tmp_path: Path) -> None:
    def capture(folder: str, row: int, **more: Any) -> Path:
        database.execute(f"INSERT INTO t VALUES ({row})")
        made = Capture(database.dsn, tmp_path / folder, slot=database.slot, publication="p", create_slot=True, **more)
        made.run(until="now")
        return tmp_path / folder

    def files(folder: Path) -> list[Path]:
        return sorted(folder.glob("*.parquet"))

    for row in range(3):
        raw = capture("raw", row, copy=True)
    whole, target = tmp_path / "whole", MemoryTarget()
    shutil.copytree(raw, whole)
    files(raw)[1].unlink()
    first = int(files(raw)[1].stem)
    error = rf"begins at position {first}, but {files(raw)[0].name} ends at \d+: \d+ payloads between them are missing"
    with pytest.raises(RunError, match=error):
        apply(raw, target)
    (tmp_path / "one").mkdir()
    shutil.copy(files(raw)[0], tmp_path / "one")
    apply(tmp_path / "one", target)
    files(raw)[0].unlink()
    with pytest.raises(RunError, match=rf"begins at position {first}, but the last position in .* payloads between"):
        apply(raw, target)
    assert apply(whole, target).tables["public.t"].rows == 3
    assert not apply(whole, target).tables["public.t"].upserts

    # Changes that another client has confirmed are missing.
    database.execute("INSERT INTO t VALUES (3)")
    database.execute(
        "SELECT count(*) FROM pg_logical_slot_get_binary_changes("
        f"'{database.slot}', NULL, NULL, 'proto_version', '1', 'publication_names', 'p')"
    )
    capture("whole", 4, accept_gap=True)
    with pytest.raises(RunError, match=r"the changes from .* are missing before it; its capture accepted that"):
        apply(whole, target)
    assert apply(whole, target, accept_gap=True).tables["public.t"].rows == 4

    database.execute(f"SELECT pg_drop_replication_slot('{database.slot}')")
    database.slot += "_2"
    with pytest.raises(RunError, match=rf"comes from slot '{database.slot}', but the tables of .* from slot"):
        apply(capture("other", 5, copy=True), target)
