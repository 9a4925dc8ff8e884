"""Measures a call with nothing new on a folder of many decoded files, and whether it opens a data file.

PYTHONPATH=tests:tests/datasets python -m many_files --files 10000
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from growing_input import captured_file

from support.captured_files import transaction


def seconds(*words: str) -> tuple[float, float, str]:
    """Make a call in a process of its own. Return its CPU time, its duration and what it said."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    command = [sys.executable, "-m", "pgdecode", *words]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return used, time.monotonic() - start, done.stderr.strip()


def measure(n_files: int, folder: Path, words: list[str]) -> None:
    """Decode files, then make calls with nothing new and with one new file."""
    for number in range(n_files):
        captured_file(folder / "raw" / f"{4 * number:020}.parquet", transaction(number), 4 * number)
    call = ["decode", str(folder / "raw"), str(folder / "out"), *words]
    print(f"first call:    {seconds(*call)}")
    # Unreadable, with the same size and times: a call that opened one would fail.
    for path in (folder / "raw").iterdir():
        stat = path.stat()
        path.write_bytes(bytes(stat.st_size))
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    for _ in range(3):
        print(f"nothing new:   {seconds(*call)}")
    for number in range(n_files, n_files + 2):
        captured_file(folder / "raw" / f"{4 * number:020}.parquet", transaction(number), 4 * number)
        print(f"one new file:  {seconds(*call)}")
    print(f"--version:     {seconds('--version')}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("words", nargs="*", default=["--changes"])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(given.files, Path(folder), given.words)
