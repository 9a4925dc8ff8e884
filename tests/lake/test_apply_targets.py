"""`apply` of the captures to tables of each format: they equal those of the server, and what other readers see."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pytest
from changes.test_changes import TYPES
from deltalake import DeltaTable
from lake.lakes import FORMATS, new_lake
from lake.memory_target import MemoryTarget
from lake.test_apply_captures import (
    STALE,
    apply_known,
    assert_server_state,
    payload_cuts,
    text_types,
    write_payloads,
)

from pgdecode.files.change_export import table_file_name
from pgdecode.lake.stored_types import to_stored
from pgdecode.lake.targets import lake_target
from support import captures
from support.oracles.expected_changes import TEXT
from support.tiers import full

Row = dict[str, Any]
MONEY = {"money": "money(2)"}


class Stored:
    """The tables that a target has, as `MemoryTarget` has them."""

    def __init__(self, uri: str) -> None:
        self.committed: dict[str, tuple[pa.Schema, list[Row]]] = {}
        target = lake_target(uri)
        with target.opened():
            for name in target.applied:
                table = target.read(name).read_all()
                self.committed[name] = table.schema, table.to_pylist()


def read_delta(uri: str, name: str) -> pa.Table:
    """A table as deltalake reads it; polars must read the same."""
    folder = Path(uri.partition(":")[2], table_file_name(name))
    table = DeltaTable(folder).to_pyarrow_table()
    # polars cannot open a folder whose name has a space.
    if table.num_columns and " " not in name:
        others = polars.read_delta(str(folder)).to_arrow()
        as_known = pa.table([others[item.name].cast(item.type) for item in table.schema], schema=table.schema)
        assert rows_of(as_known) == rows_of(table)
    return table


# Newer and older servers send the same tables. The target in memory has those of all captures.
NAMES = [name for name in TEXT if name.startswith(("18.", "10.txns", "14.streams"))]
READERS: dict[str, Callable[[str, str], pa.Table]] = {"delta": read_delta}


def rows_of(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


@pytest.mark.full
@pytest.mark.parametrize("scheme", READERS)
@pytest.mark.parametrize("name", NAMES)
def test_tables_equal_those_of_the_server_in_batches_cut_anywhere(
    scheme: str, name: str, rng: random.Random, tmp_path: Path
) -> None:
    column, uri, types = captures.capture(name).column, f"{scheme}:{tmp_path}/lake", text_types(name)
    expected = STALE.get(name.split(".")[1], set())
    for start, end in pairwise(payload_cuts(rng, len(column))):
        write_payloads(tmp_path / "raw", column, start, end, step=3)
        stale = apply_known(tmp_path / "raw", lake_target(uri), types=types, workers=1)
    assert stale == expected
    stored = Stored(uri)
    assert_server_state(stored, name, stale)
    before = lake_target(uri)
    with before.opened():
        states = dict(before.applied)
    assert apply_known(tmp_path / "raw", lake_target(uri), types=types, workers=1) == stale
    with before.opened():
        assert before.applied == states
    for table, (_, rows) in stored.committed.items():
        assert rows_of(READERS[scheme](uri, table)) == sorted(map(repr, rows))


@pytest.mark.parametrize("scheme", READERS)
@pytest.mark.parametrize("name", ["18.types.v1", full("18.types.v1bin"), full("18.shop.v1"), full("18.txns.v1")])
def test_typed_tables_have_the_values_of_the_payloads(scheme: str, name: str, tmp_path: Path) -> None:
    column, uri, memory = captures.capture(name).column, f"{scheme}:{tmp_path}/lake", MemoryTarget()
    write_payloads(tmp_path / "raw", column, 0, len(column))
    for target in (memory, lake_target(uri)):
        apply_known(tmp_path / "raw", target, types={**TYPES, **MONEY}, unrepresentable="text")
    stored = Stored(uri)
    assert stored.committed.keys() == memory.committed.keys()
    for table, (schema, rows) in memory.committed.items():
        for found in (
            pa.Table.from_pylist(stored.committed[table][1], stored.committed[table][0]),
            READERS[scheme](uri, table),
        ):
            typed = pa.table([to_stored(found[item.name], item.type) for item in schema], schema=schema)
            assert rows_of(typed) == rows_of(pa.Table.from_pylist(rows, schema)), table


@pytest.mark.full
@pytest.mark.parametrize("format", [name for name in FORMATS if name != "memory"])
def test_runs_that_are_killed_at_random_leave_a_table_at_its_position(format: str, tmp_path: Path) -> None:
    new_lake(format, tmp_path)  # skips without its libraries
    script = Path(__file__).with_name("killed_runs.py")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(script.parent)])}
    command = [sys.executable, script, "--format", format, "--kills", "2", "--every", "5", "--seed", "1"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{format}: killed 2 times at random" in done.stdout
