"""Timing of benchmark cases and their baselines, and peak memory of a case in a separate process."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any

from benchmarks.cases.all_cases import CASES, SLOW_BASELINES
from benchmarks.cases.case import Case, Work, WrongResult
from benchmarks.datasets import MESSAGES, DataSet


@dataclass(frozen=True)
class Effort:
    """How long a run measures.

    `sample_divisor` divides the number of messages of slow cases. `seconds_per_case` limits the time of a case and
    of its baselines, so the time of a run is proportional to the number of cases.
    """

    name: str
    min_repetitions: int
    max_repetitions: int
    seconds_per_case: float
    sample_divisor: int
    memory: bool


FULL = Effort("full", 7, 41, 1.0, 1, True)
QUICK = Effort("quick", 3, 15, 0.6, 5, False)

# The sample of a slow case has as many bytes as its number of messages of this size, because a decoder in plain Python
# takes milliseconds for a message of 1600 columns. A sample has at least MIN_SAMPLE messages.
SAMPLE_MESSAGE_BYTES = 256
MIN_SAMPLE = 200


@dataclass
class Result:
    """A measured case. Ratios are its messages/s divided by the baseline's: medians over pairs timed together."""

    data_set: str
    line: str
    group: str
    n_rows: int
    n_bytes: int
    seconds: list[float]
    messages_per_second: float = 0.0
    gigabytes_per_second: float = 0.0
    best_messages_per_second: float = 0.0
    spread: float = 0.0
    ratios: dict[str, float] = field(default_factory=dict)
    peak_bytes: int | None = None
    kind: str = MESSAGES
    sampled: bool = False

    def summarise(self) -> None:
        """Compute the figures from the seconds; `spread` is the interquartile range divided by the median."""
        median = statistics.median(self.seconds)
        self.messages_per_second = self.n_rows / median
        self.gigabytes_per_second = self.n_bytes / median / 1e9
        self.best_messages_per_second = self.n_rows / min(self.seconds)
        quartiles = statistics.quantiles(self.seconds, method="inclusive") if len(self.seconds) > 1 else [median] * 3
        self.spread = (quartiles[2] - quartiles[0]) / median


@dataclass(frozen=True)
class Skipped:
    """A case that could not run on a data set, and the reason."""

    data_set: str
    line: str
    reason: str


class Runner:
    """A case prepared for one data set; `run` returns the seconds of one repetition."""

    def __init__(self, case: Case, data: DataSet, effort: Effort) -> None:
        self.case = case
        self.data = sample_of(data, case.sample // effort.sample_divisor) if case.sample else data
        self._work: Work = case.prepare(self.data)
        self._digest: Any = None
        self.result = Result(data.name, case.name, case.group, self.data.n_rows, self.data.n_bytes, [], kind=data.kind)
        self.result.sampled = self.data.n_rows < data.n_rows
        self.pairs: dict[str, list[float]] = {}
        self.spent = 0.0  # seconds, including baselines

    def warm_up(self) -> None:
        """Verify the whole result, and keep its digest for the repetitions."""
        self.case.verify(self.data, self._work)
        self._digest = self.case.digest(self._work())

    def run(self) -> float:
        """Time one repetition. Checking and dropping the result is not timed."""
        start = perf_counter()
        outcome = self._work()
        seconds = perf_counter() - start
        digest = self.case.digest(outcome)
        if self._digest not in (None, digest):
            raise WrongResult(f"{self.data.name}, {self.case.name}: a repetition returned {digest}, not {self._digest}")
        return seconds

    def rate(self, seconds: float) -> float:
        """Messages per second of one repetition."""
        return self.data.n_rows / seconds


def sample_of(data: DataSet, n_usual: int) -> DataSet:
    """Take a sample with at most the bytes of `n_usual` messages of the usual size, and at most that many messages."""
    n_rows = n_usual * SAMPLE_MESSAGE_BYTES * data.n_rows // data.n_bytes
    return data.sample(max(min(n_rows, n_usual), MIN_SAMPLE))


def measure(
    data: DataSet, cases: Iterable[Case], effort: Effort, advance: Callable[[str], None]
) -> tuple[list[Result], list[Skipped]]:
    """Measure cases on one data set.

    Each round repeats all cases, each right after its baselines, so that a slow phase of the machine affects both sides
    of a ratio. `advance` is called with the name of a case when the case is done.
    """
    runners: dict[str, Runner] = {}
    skipped = []
    for case in cases:
        reason = case.missing(data)
        if reason is None:
            runners[case.name] = Runner(case, data, effort)
            runners[case.name].warm_up()
        else:
            skipped.append(Skipped(data.name, case.name, reason))
            advance(case.name)
    open_cases = list(runners.values())
    while open_cases:
        for runner in open_cases:
            repeat(runner, runners)
        done = [runner for runner in open_cases if is_done(runner, effort)]
        for runner in done:
            open_cases.remove(runner)
            advance(runner.case.name)
    return finish(runners), skipped


def repeat(runner: Runner, runners: dict[str, Runner]) -> None:
    """Time a case once, right after timing each of its baselines once."""
    start = perf_counter()
    baselines = [runners[name] for name in runner.case.baselines if name in runners]
    # Run once without timing. Otherwise the first one would read the payloads from slower memory than the later ones,
    # and the system would have to allocate the memory that the others reuse.
    for item in (*baselines, runner):
        item.run()
    rates = {baseline.case.name: baseline.rate(baseline.run()) for baseline in baselines}
    seconds = runner.run()
    runner.result.seconds.append(seconds)
    for name, rate in rates.items():
        runner.pairs.setdefault(name, []).append(runner.rate(seconds) / rate)
    runner.spent += perf_counter() - start


def is_done(runner: Runner, effort: Effort) -> bool:
    """Whether a case has run often enough."""
    n_done = len(runner.result.seconds)
    if n_done < effort.min_repetitions:
        return False
    return n_done >= effort.max_repetitions or runner.spent >= effort.seconds_per_case


def finish(runners: dict[str, Runner]) -> list[Result]:
    """Compute the figures after all cases have been timed."""
    results = {name: runner.result for name, runner in runners.items()}
    for result in results.values():
        result.summarise()
    for name, runner in runners.items():
        ratios = {baseline: statistics.median(pairs) for baseline, pairs in runner.pairs.items()}
        for slow in SLOW_BASELINES:
            if slow in results:
                ratios[slow] = results[name].messages_per_second / results[slow].messages_per_second
        results[name].ratios = ratios
    return list(results.values())


def measure_memory(results: Iterable[Result], n_rows: int, effort: Effort, advance: Callable[[str], None]) -> None:
    """Measure the peak memory of the cases of one data set, with one process per core, because nothing is timed."""
    results = list(results)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for result, found in zip(
            results, pool.map(lambda case: peak_bytes(case, n_rows, effort), results), strict=True
        ):
            result.peak_bytes = found
            advance(result.line)


def peak_bytes(result: Result, n_rows: int, effort: Effort) -> int | None:
    """Measure the memory that a case uses in addition to its payloads, in a separate process; None if unknown."""
    question = {"data_set": result.data_set, "line": result.line, "n_rows": n_rows, "effort": asdict(effort)}
    command = [sys.executable, "-m", "benchmarks.memory", json.dumps(question)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    answer: Any = json.loads(done.stdout)
    return None if answer is None else int(answer)


def case_named(name: str) -> Case:
    """Find a case by its full name."""
    return next(case for case in CASES if case.name == name)
