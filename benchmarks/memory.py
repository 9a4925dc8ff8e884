"""Peak memory of one case: `python -m benchmarks.memory QUESTION`. A full run starts it once per case."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.datasets import load
from benchmarks.measure import Effort, Runner, case_named

STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")


def status_bytes(name: str) -> int:
    """Read a size from /proc/self/status."""
    for row in STATUS.read_text().splitlines():
        key, _, value = row.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024  # "1234 kB"
    raise KeyError(name)


def peak_of(runner: Runner) -> int | None:
    """Peak resident bytes of one repetition, minus the resident bytes before it. Linux only.

    ru_maxrss is not usable: a process inherits it from its parent, which has all the data in memory.
    """
    if not CLEAR.exists():
        return None
    CLEAR.write_text("5")  # resets the high-water mark
    before = status_bytes("VmRSS")
    runner.run()
    return max(0, status_bytes("VmHWM") - before)


def main(question: str) -> None:
    """Print the peak memory as JSON."""
    asked = json.loads(question)
    data = load(asked["data_set"], asked["n_rows"])
    runner = Runner(case_named(asked["line"]), data, Effort(**asked["effort"]))
    print(json.dumps(peak_of(runner)))


if __name__ == "__main__":
    main(sys.argv[1])
