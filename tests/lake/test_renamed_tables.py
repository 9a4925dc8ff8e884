"""Tables that are renamed, dropped and made again, compared with those of a live server by `verify`."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from pgdecode.capture import Capture
from pgdecode.lake import StaleTables, apply_run
from pgdecode.lake.apply_run import apply
from pgdecode.lake.reading import reading
from pgdecode.lake.verification.verify_run import verify
from servers.database import Database
from support.tiers import full, long

COLUMNS = "(id int PRIMARY KEY, v text)"
# Bytes of net changes in memory, bytes of payloads of a commit, payloads of a batch.
SIZES = [(64 << 20, 256 << 20, 65536), (500, 500, 7)]


class History:
    """Random statements about tables whose names others had before."""

    def __init__(self, rng: random.Random, execute: Callable[[str], object]) -> None:
        self.rng, self.execute = rng, execute
        self.names = ["a", "b"]
        self.unused = [*"cdefghijkl"]
        self.n_rows = 100
        for name in self.names:
            self.execute(f"CREATE TABLE {name} {COLUMNS}")
            self.execute(f"INSERT INTO {name} SELECT g, 'x' FROM generate_series(1, 10) g")

    def insert(self, name: str) -> None:
        self.n_rows += 1
        self.execute(f"INSERT INTO {name} VALUES ({self.n_rows}, 'inserted')")

    def make(self, name: str) -> None:
        self.execute(f"CREATE TABLE {name} {COLUMNS}")
        self.insert(name)

    def step(self) -> None:
        name, kind = self.rng.choice(self.names), self.rng.random()
        if kind < 0.2:
            self.execute(f"DROP TABLE {name}")
            self.make(name)
        elif kind < 0.35:
            self.rename(name)
        else:
            self.insert(name)
            if self.rng.random() < 0.3:
                self.execute(f"UPDATE {name} SET v = 'u{self.n_rows}'")

    def rename(self, name: str) -> None:
        other = self.rng.choice([item for item in self.unused if item not in self.names])
        self.execute(f"ALTER TABLE {name} RENAME TO {other}")
        self.names[self.names.index(name)] = other
        # Its next change may come after the first one of a table with its former name.
        if self.rng.random() < 0.8:
            self.insert(other)
        if self.rng.random() < 0.5:
            self.make(name)
            self.names.append(name)


@pytest.mark.parametrize("is_stale", [False, True], ids=["all known", "one is stale"])
@pytest.mark.parametrize("seed", [full(1), full(3), *map(long, (2, *range(4, 30)))])
def test_tables_that_get_names_of_others_are_those_of_the_server(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, *, is_stale: bool
) -> None:
    rng = random.Random(seed)
    history = History(rng, database.execute)
    database.execute(f"CREATE TABLE stale {COLUMNS}")
    database.execute("INSERT INTO stale VALUES (1, 'x')")
    raw, target = tmp_path / "raw", f"parquet:{tmp_path}/lake"
    Capture(database.dsn, raw, slot=database.slot, publication="p", create_slot=True, copy=True).run(until="now")
    apply(raw, target, workers=1)
    if is_stale:
        # From here on, each call reads the payloads again.
        database.execute("ALTER TABLE stale ALTER v TYPE int USING length(v)")
    database.execute("INSERT INTO stale VALUES (2, '2')")
    for _ in range(4):
        for _ in range(rng.choice([3, 10])):
            history.step()
        for name in history.names:
            history.insert(name)
        Capture(database.dsn, raw, slot=database.slot, publication="p").run(until="now")
        net_bytes, commit_bytes, batch_rows = rng.choice(SIZES)
        monkeypatch.setattr(apply_run, "_NET_BYTES", net_bytes)
        monkeypatch.setattr(apply_run, "_COMMIT_BYTES", commit_bytes)
        monkeypatch.setattr(reading, "_BATCH_ROWS", batch_rows)
        with contextlib.suppress(StaleTables) if is_stale else contextlib.nullcontext():
            apply(raw, target, workers=1)
        found = verify(database.dsn, target).tables
        assert {f"public.{name}" for name in history.names} <= {*found}
        assert {name for name, item in found.items() if not item.is_equal} == ({"public.stale"} if is_stale else set())
