"""Whether a byte costs the same in much hostile data as in little: instructions counted, for every shape.

    make complexity

Each shape of tests/robustness/complexity_shapes.py is decoded at a size, at four and at sixteen times that. What one
more byte costs from the first to the second is compared with what it costs from the second to the third: that leaves
out what every call costs. Where it grows by more than a half, something is not linear, which would make it four times
as much. Shapes whose bytes cost little are decoded at four times the size again and again, until they cost more or are
too long: what is not linear in them may show late. Runs itself under valgrind's callgrind, which counts; needs that and
a C compiler. Some minutes; names of shapes may be given, and --size.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
MOST_GROWTH = 1.5
CHEAP = 16.0  # instructions a byte: below, it is a few passes in blocks, and of little data chance has the larger part
LONGEST = 4 << 20  # bytes, of what is cheap
FEW = 5_000_000  # instructions, of which chance has some hundred thousand: the least of three runs has fewest
LEAST_COST = 1.0  # instructions a byte, which the rest of chance stays below
# Requests to valgrind are made by macros of its own header.
SOURCE = """
#include <valgrind/callgrind.h>
void start(void) { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_ZERO_STATS; }
void stop(const char *name) { CALLGRIND_DUMP_STATS_AT(name); CALLGRIND_STOP_INSTRUMENTATION; }
"""


def instructions(counter: ctypes.CDLL, out: Path, name: str, run: Callable[[], object]) -> int:
    """Count what one call executes."""
    run()  # what is made once, and kept
    gc.collect()
    gc.disable()  # the collector's passes come by chance, and go over all objects of the process
    before = set(out.parent.glob(f"{out.name}*"))
    counter.start()
    run()
    counter.stop(name.encode())
    gc.enable()
    (dump,) = set(out.parent.glob(f"{out.name}*")) - before
    text = dump.read_text(errors="replace")
    dump.unlink()
    found = re.search(r"^(?:totals|summary): (\d+)", text, re.MULTILINE)
    assert found, text[:500]
    return int(found[1])


def measure(library: str, out: str, size: int, names: list[str]) -> int:
    """Print a line for each shape; how many are not flat."""
    from complexity_shapes import SHAPES

    counter = ctypes.CDLL(library)
    n_bad = 0
    for name in names or SHAPES:
        costs: list[float] = []
        n = size
        count = n_bytes = 0
        while len(costs) < 3 or (min(costs[-2:]) < CHEAP and n <= LONGEST):
            run, longer = SHAPES[name](n)
            # Some have an end, such as columns.
            if len(costs) > 2 and longer < 1.5 * n_bytes:
                break
            more = instructions(counter, Path(out), name, run)
            if more < FEW:
                more = min(more, *(instructions(counter, Path(out), name, run) for _ in range(2)))
            costs.append((more - count) / max(longer - n_bytes, 1))
            count, n_bytes, n = more, longer, 4 * n
        # The first is of the call, too.
        low, high = costs[-2:]
        growth = max(high, LEAST_COST) / max(low, LEAST_COST)
        n_bad += growth > MOST_GROWTH
        mark = "  NOT FLAT" if growth > MOST_GROWTH else ""
        print(
            f"{name:34} {low:10.1f} {high:10.1f} instructions a byte of {n_bytes:>10,}  x {growth:.2f}{mark}",
            flush=True,
        )
    print(f"{n_bad} shapes are not flat")
    return n_bad


def under_valgrind(size: int, names: list[str]) -> int:
    """Run this program again, counted."""
    compiler = shutil.which("cc")
    if shutil.which("valgrind") is None or compiler is None:
        sys.exit("complexity needs valgrind and a C compiler: apt install valgrind gcc")
    with tempfile.TemporaryDirectory() as place:
        source, library, out = (Path(place) / name for name in ("counter.c", "counter.so", "out"))
        source.write_text(SOURCE)
        subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={out}", "--quiet"]
        command += [
            sys.executable,
            str(Path(__file__)),
            "--size",
            str(size),
            "--counter",
            str(library),
            str(out),
            *names,
        ]
        path = os.pathsep.join([str(HERE.parents[1]), str(HERE.parent)])
        # Hashes of strings by chance would count differently each time.
        return subprocess.run(command, env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0"}).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="shapes, all of them by default")
    parser.add_argument("--size", type=int, default=4096, help="bytes of the smallest data")
    parser.add_argument("--counter", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.counter:
        return min(measure(*arguments.counter, arguments.size, arguments.names), 100)
    return under_valgrind(arguments.size, arguments.names)


if __name__ == "__main__":
    sys.exit(main())
