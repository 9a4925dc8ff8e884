"""Captures repeatedly, and ends the process at one system call after the other. Run by test_capture_crashes.py.

    python crashes.py DSN FOLDER SLOT

Each capture is a forked process that ends without any clean-up before or after its n-th call of fsync, write, rename or
unlink, or of the status update to the server. The last capture makes fewer calls than n, and ends normally. The number
of crashes is printed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pgdecode.capture import Capture, FileRules, Retention
from pgdecode.capture.connection import Connection

CALLS = [(os, name) for name in ("fsync", "write", "rename", "replace", "unlink")]


def crash_at(n: int, *, after: bool) -> None:
    """Make this process end before or after the n-th call."""
    left = [n]

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def replaced(*arguments: Any, **keywords: Any) -> Any:
            left[0] -= 1
            if left[0] == 0 and not after:
                os._exit(9)
            try:
                return call(*arguments, **keywords)
            finally:
                # Also after a call that raises, such as the removal of a file that is not there.
                if left[0] == 0:
                    os._exit(9)

        return replaced

    for module, name in CALLS:
        setattr(module, name, counted(getattr(module, name)))
    Connection.send_status = counted(Connection.send_status)  # type: ignore[method-assign]


def capture(dsn: str, folder: Path, slot: str) -> None:
    rules = FileRules(max_bytes=1, max_seconds=0.1, position_seconds=0.1)
    retention = Retention(bytes=8_000)
    Capture(dsn, folder, slot=slot, publication="p", rules=rules, retention=retention).run(until="now")


def write(dsn: str, n: int) -> None:
    connection = Connection(dsn, settings={"search_path": "public"})
    for number in range(3):
        connection.rows(f"INSERT INTO t VALUES ({3 * n + number}, 'x')")
    connection.close()


def main(dsn: str, folder: Path, slot: str) -> None:
    n = crashes = 0
    for after in (False, True):
        at = 0
        while True:
            at += 1
            write(dsn, n)
            n += 1
            child = os.fork()
            if child == 0:
                crash_at(at, after=after)
                try:
                    capture(dsn, folder, slot)
                    os._exit(0)
                except BaseException as error:
                    print(repr(error), file=sys.stderr, flush=True)
                    os._exit(1)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if code == 0:
                break
            if code != 9:
                sys.exit(f"crash {at}: exit code {code}")
            crashes += 1
    print(crashes, 3 * n)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
