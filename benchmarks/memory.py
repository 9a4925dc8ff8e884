"""Peak memory of one line: `python -m benchmarks.memory QUESTION`, started once per line by a full run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.datasets import load
from benchmarks.measure import Effort, Runner, line_named

STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")


def status_bytes(name: str) -> int:
    """One of the sizes in /proc/self/status."""
    for row in STATUS.read_text().splitlines():
        key, _, value = row.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024  # "1234 kB"
    raise KeyError(name)


def peak_of(runner: Runner) -> int | None:
    """Resident bytes at the highest point of one repetition, less those before it. Linux only.

    Not ru_maxrss: a process inherits it from the one that forked it, here one that holds all the data.
    """
    if not CLEAR.exists():
        return None
    CLEAR.write_text("5")  # the high-water mark starts again from here
    before = status_bytes("VmRSS")
    runner.run()
    return max(0, status_bytes("VmHWM") - before)


def main(question: str) -> None:
    """Answer in JSON on standard output."""
    asked = json.loads(question)
    data = load(asked["data_set"], asked["n_rows"])
    runner = Runner(line_named(asked["line"]), data, Effort(**asked["effort"]))
    print(json.dumps(peak_of(runner)))


if __name__ == "__main__":
    main(sys.argv[1])
