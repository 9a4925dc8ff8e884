"""Runs many cases in worker processes, and reports findings by kind.

In the folder of the project:

    PYTHONPATH=tests python -m command_fuzz [--cases N] [--seed N] [--workers N]
    PYTHONPATH=tests python -m command_fuzz --seed N --only CASE [CASE ...]         repeat single cases

A worker that a case kills or that takes too long for one is a finding too. The exit code is 1 if there are findings.
"""

from __future__ import annotations

import argparse
import faulthandler
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from multiprocessing.connection import Connection, wait
from pathlib import Path

from command_fuzz.materials import write_materials
from command_fuzz.trial import Result, run_case

# No case takes more than a few seconds, also on a busy machine.
_MOST_SECONDS = 30


def work(seed: int, numbers: range, materials: Path, pipe: Connection) -> None:
    """Run cases, and send the number of each before it begins and its result after it."""
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 1)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    for number in numbers:
        pipe.send(number)
        pipe.send(run_case(seed, number, materials))
    pipe.send(None)


class Worker:
    """A process with the cases that it still has to run."""

    def __init__(self, seed: int, numbers: range, materials: Path) -> None:
        self.seed, self.numbers, self.materials = seed, numbers, materials
        self.running: int | None = None
        self.since = time.monotonic()
        self.pipe, other = multiprocessing.Pipe(duplex=False)
        self.process = multiprocessing.get_context("fork").Process(target=work, args=(seed, numbers, materials, other))
        self.process.start()
        other.close()

    def rest(self) -> range:
        """Return the cases after the one that runs."""
        done = self.numbers.start if self.running is None else self.running + self.numbers.step
        return range(done, self.numbers.stop, self.numbers.step)

    def end(self, reason: str) -> Result:
        """End the process, and make the finding."""
        if self.process.is_alive() and self.process.pid is not None:
            os.kill(self.process.pid, signal.SIGUSR1)
            time.sleep(0.5)
            self.process.kill()
        self.process.join()
        return Result(self.running if self.running is not None else -1, [], problem=reason, place=reason)


def run_all(seed: int, n_cases: int, n_workers: int, materials: Path) -> list[Result]:
    """Run cases 0 to `n_cases` in processes."""
    workers = [Worker(seed, range(first, n_cases, n_workers), materials) for first in range(n_workers)]
    found: list[Result] = []
    while workers:
        ready = wait([worker.pipe for worker in workers], timeout=1)
        for worker in list(workers):
            failure = ""
            if worker.pipe in ready:
                try:
                    item = worker.pipe.recv()
                except EOFError:
                    worker.process.join()
                    failure = f"the process ended with {worker.process.exitcode}"
                else:
                    worker.since = time.monotonic()
                    if item is None:
                        workers.remove(worker)
                        worker.process.join()
                    elif isinstance(item, int):
                        worker.running = item
                    else:
                        found.append(item)
            elif time.monotonic() - worker.since > _MOST_SECONDS:
                failure = f"no end after {_MOST_SECONDS} s"
            if failure:
                found.append(worker.end(failure))
                workers.remove(worker)
                if worker.rest():
                    workers.append(Worker(seed, worker.rest(), materials))
    return found


def report(results: list[Result], seconds: float, seed: int) -> int:
    """Print counts and findings. Return the number of findings."""
    codes = Counter((result.command, result.code) for result in results)
    damages = Counter(text.split(" ")[0] for result in results for text in result.damages)
    print(f"{len(results):,} cases in {seconds:.0f} s, {len(results) / seconds:.1f} a second, seed {seed}")
    for name in sorted({command for command, _ in codes}):
        counts = {code: n for (command, code), n in codes.items() if command == name}
        listed = ", ".join(f"{n:,} with {code}" for code, n in sorted(counts.items(), key=str))
        print(f"  {name or 'none'}: {listed}")
    print("  damages: " + ", ".join(f"{n:,} {name}" for name, n in damages.most_common()))
    kinds: defaultdict[str, list[Result]] = defaultdict(list)
    for result in results:
        if result.problem:
            kinds[result.place or result.problem.splitlines()[0]].append(result)
    for kind, group in sorted(kinds.items(), key=lambda item: -len(item[1])):
        first = min(group, key=lambda item: item.number)
        print(f"\n{len(group)} x {kind}: cases {', '.join(str(item.number) for item in group[:8])}")
        show(first)
    print(f"{len(kinds)} kinds of findings")
    return len(kinds)


def show(result: Result) -> None:
    """Print a case."""
    print(f"  case {result.number}: {result.words!r:.600}\n  damages: {result.damages}")
    print(f"  code {result.code}: {result.err!r:.700}")
    if result.problem:
        print(f"  PROBLEM {result.problem}")


def main() -> int:
    """Run the cases."""
    parser = argparse.ArgumentParser(
        prog="command_fuzz", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", type=int, nargs="*")
    options = parser.parse_args()
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # fsync is free there
    with tempfile.TemporaryDirectory(prefix="command-fuzz-", dir=memory) as folder:
        materials = Path(folder, "materials")
        write_materials(materials)
        if options.only:
            for number in options.only:
                show(run_case(options.seed, number, materials))
            return 0
        started = time.monotonic()
        results = run_all(options.seed, options.cases, options.workers, materials)
        return 1 if report(results, time.monotonic() - started, options.seed) else 0


if __name__ == "__main__":
    sys.exit(main())
