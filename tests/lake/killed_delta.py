"""Runs that write a Delta table and are killed: `python killed_delta.py FOLDER SEED N_RANDOM`, for test_delta.

Each run is a forked process. It ends at its n-th write, for each n, then at random times.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from test_delta import NAME, SCHEMA, applied, net, same

from pgdecode.datasets import file_digest
from pgdecode.lake.delta import open_target
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


def run(root: str, last: int, write: int | None = None) -> None:
    """Go on from the position of the table, with a commit for each step. End the process before its n-th write."""
    if write is not None:
        end_at_write(write, root)
    with open_target(f"delta:{root}").opened() as target:
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


def check(root: str, last: int | None = None) -> None:
    """Compare what deltalake reads with the rows at the position of the table."""
    with open_target(f"delta:{root}").opened() as target:
        at = target.applied[NAME].position if NAME in target.applied else -1
    assert last is None or at == last, at
    if at >= 0:
        assert DeltaTable(f"{root}/{NAME}").to_pyarrow_table().sort_by("id").to_pylist() == expected(at), at
    if last is not None:
        # What the killed run has left is removed.
        known = {Path(uri).name for uri in DeltaTable(f"{root}/{NAME}").file_uris()}
        removed = DeltaTable(f"{root}/{NAME}").vacuum(retention_hours=0, enforce_retention_duration=False)
        there = {path.name for path in Path(root, NAME).glob("*.parquet")}
        assert there == known | set(removed), sorted(there - known - set(removed))
        assert not [*Path(root, NAME, "_delta_log").glob(".*")]


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


def main(folder: str, seed: str, n_random: str) -> None:
    n_killed = 0
    for number in count(1):
        root = f"{folder}/write{number}"
        os.mkdir(root)
        # The first steps, with both changes of columns.
        code = forked(partial(run, root, 8, number))
        assert code in (KILLED, DONE), number
        for work in (partial(check, root), partial(run, root, 8), partial(check, root, 8)):
            assert forked(work) == DONE, f"write {number}"
        if code == DONE:
            break
        n_killed += 1
    print(f"{n_killed} writes")
    rng = random.Random(int(seed))
    root, n_killed = f"{folder}/random", 0
    os.mkdir(root)
    for number in range(int(n_random)):
        n_killed += forked(partial(run, root, N_STEPS - 1), rng.random() * 0.3) == KILLED
        assert forked(partial(check, root)) == DONE, f"kill {number}"
        if number % 10 == 9:
            assert forked(partial(run, root, N_STEPS - 1)) == DONE
            assert forked(partial(check, root, N_STEPS - 1)) == DONE
            root = f"{folder}/random{number}"
            os.mkdir(root)
    print(f"{n_killed} killed at random")


if __name__ == "__main__":
    main(*sys.argv[1:])
