"""Runs that write a table and are killed: `python -m killed_runs`; `make killed-lakes`.

Each run is a forked process. It ends at random times and, in Delta, at its n-th write, for each n or for every N-th.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from lake.lakes import FORMATS, new_lake
from lake.test_delta import NAME, SCHEMA, applied, net, same

from pgdecode.datasets import file_digest
from pgdecode.lake import lake_target
from pgdecode.lake.target import ColumnSource

EXTRA = pa.field("extra", pa.int32())
_WRITES = {"os.link", "os.rename", "os.remove", "os.rmdir", "os.mkdir"}
N_STEPS = 24
KILLED, DONE, WRONG = 9, 0, 1


def schema_of(step: int) -> pa.Schema:
    """Columns are added with nulls, and then dropped."""
    return SCHEMA.append(EXTRA) if 5 <= step % 10 < 8 else SCHEMA


def row(step: int) -> dict[str, Any]:
    return {"id": step % 4, "note": f"n{step}", **({"extra": step} if EXTRA in [*schema_of(step)] else {})}


def expected(step: int) -> list[dict[str, Any]]:
    """The rows after a step, computed from the steps alone."""
    rows: dict[int, dict[str, Any]] = {}
    for number in range(step + 1):
        names = schema_of(number).names
        rows = {id: {name: known.get(name) for name in names} for id, known in rows.items()}
        rows[number % 4] = row(number)
        if number % 3 == 2:
            rows.pop((number + 1) % 4, None)
    return sorted(rows.values(), key=lambda item: item["id"])


def run(format: str, root: str, last: int, write: int | None = None) -> None:
    """Go on from the position of the table, with a commit for each step. End the process before its n-th write."""
    if write is not None:
        end_at_write(write, root)
    with lake_target(str(new_lake(format, Path(root)).target)).opened() as target:
        table = target.table(NAME)
        begin = target.applied[NAME].position + 1 if NAME in target.applied else 0
        if not begin:
            table.create(schema_of(0))
        for step in range(begin, last + 1):
            schema = schema_of(step)
            if step and schema != schema_of(step - 1):
                columns = same("id", "note")
                if len(schema) > len(SCHEMA):
                    columns["extra"] = ColumnSource(missing=pa.scalar(None, EXTRA.type))
                table.evolve(schema, columns)
            table.apply(net(schema, [row(step)], [(step + 1) % 4] if step % 3 == 2 else []))
            target.commit({NAME: applied(step)})


def check(format: str, root: str, last: int | None = None) -> None:
    """Compare what the reader of the format reads with the rows at the position of the table."""
    lake = new_lake(format, Path(root))
    with lake_target(str(lake.target)).opened() as target:
        at = target.applied[NAME].position if NAME in target.applied else -1
    assert last is None or at == last, at
    if at >= 0:
        assert lake.read(NAME).sort_by("id").to_pylist() == expected(at), at
    if last is not None and format == "delta":
        # What the killed run has left is removed.
        folder = Path(root, "lake", NAME)
        known = {Path(uri).name for uri in DeltaTable(folder).file_uris()}
        removed = DeltaTable(folder).vacuum(retention_hours=0, enforce_retention_duration=False)
        there = {path.name for path in folder.glob("*.parquet")}
        assert there == known | set(removed), sorted(there - known - set(removed))
        assert not [*Path(folder, "_delta_log").glob(".*")]


def forked(work: Callable[[], None], seconds: float | None = None) -> int:
    """Run a function in a process, kill it after a time, and return its exit code."""
    pid = os.fork()
    if not pid:
        try:
            work()
            os._exit(DONE)
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(WRONG)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return KILLED if code < 0 else code


def end_at_write(number: int, root: str) -> None:
    """End the process before its n-th write below a folder."""
    left = number

    def write() -> None:
        nonlocal left
        left -= 1
        if not left:
            os._exit(KILLED)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        is_write = event in _WRITES or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR))
        if is_write and str(arguments[0]).startswith(root):
            write()

    original = file_digest.DigestedFile.write

    def counted(self: Any, data: Any) -> int:
        write()
        return original(self, data)

    file_digest.DigestedFile.write = counted  # type: ignore[method-assign]
    sys.addaudithook(hook)


def kill_at_writes(format: str, folder: Path, every: int) -> None:
    """Kill the first steps, with both changes of columns, at each write, or at every second one and so on."""
    for number in count(1, every):
        root = str(folder / f"write{number}")
        os.mkdir(root)
        code = forked(partial(run, format, root, 8, number))
        assert code in (KILLED, DONE), number
        for work in (partial(check, format, root), partial(run, format, root, 8), partial(check, format, root, 8)):
            assert forked(work) == DONE, f"write {number}"
        if code == DONE:
            print(f"{format}: killed at {(number - 1) // every} writes", flush=True)
            break


def kill_at_random(format: str, folder: Path, rng: random.Random, kills: int) -> None:
    """Kill runs at random times, each of which goes on where the one before it has ended."""
    (folder / "usual").mkdir()
    start = time.monotonic()
    assert forked(partial(run, format, str(folder / "usual"), N_STEPS - 1)) == DONE
    seconds, n_killed, n_tables = time.monotonic() - start, 0, 0
    while n_killed < kills:
        root, n_tables = str(folder / f"random{n_tables}"), n_tables + 1
        os.mkdir(root)
        code = KILLED
        while code == KILLED and n_killed < kills:
            # A run that goes on has less to do, and one that is killed at once gets nowhere.
            code = forked(partial(run, format, root, N_STEPS - 1), rng.random() * seconds / 2)
            assert code in (KILLED, DONE), f"kill {n_killed}"
            n_killed += code == KILLED
            assert forked(partial(check, format, root)) == DONE, f"kill {n_killed}"
            if code == KILLED and n_killed % 10 == 0:
                print(f"{format}: killed {n_killed} times", flush=True)
        assert forked(partial(run, format, root, N_STEPS - 1)) == DONE
        assert forked(partial(check, format, root, N_STEPS - 1)) == DONE
    print(f"{format}: killed {n_killed} times at random, in {n_tables} tables", flush=True)


def main() -> None:
    formats = [name for name in FORMATS if name != "memory"]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--format", action="append", choices=formats, help="default: all")
    parser.add_argument("--kills", type=int, default=100, metavar="N")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="in Delta: kill at every N-th write")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    for format in options.format or formats:
        with tempfile.TemporaryDirectory() as folder:
            if format == "delta":
                kill_at_writes(format, Path(folder), options.every)
            kill_at_random(format, Path(folder), random.Random(options.seed), options.kills)


if __name__ == "__main__":
    main()
