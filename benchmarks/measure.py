"""Timing of lines beside their baselines, and the peak memory of a line in a process of its own."""

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

from benchmarks.datasets import MESSAGES, DataSet
from benchmarks.line import Line, Work, WrongResult
from benchmarks.lines import LINES, SLOW_BASELINES


@dataclass(frozen=True)
class Effort:
    """How much is run: messages of slow lines are divided by `sample_divisor`, repetitions end with the seconds.

    Those are the seconds of a line and of its baselines before it, so that a run takes as long as it has lines.
    """

    name: str
    min_repetitions: int
    max_repetitions: int
    seconds_per_line: float
    sample_divisor: int
    memory: bool


FULL = Effort("full", 7, 41, 1.5, 1, True)
QUICK = Effort("quick", 3, 15, 0.6, 5, False)

# Slow lines have samples of as many bytes as their number of messages of this size: a decoder in plain Python
# takes milliseconds for one of 1600 columns. Fewer than so many messages are no sample.
SAMPLE_MESSAGE_BYTES = 256
MIN_SAMPLE = 200


@dataclass
class Result:
    """A measured line. Ratios are this line's messages/s over the baseline's: medians over pairs timed together."""

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
        """Fill the figures from the seconds; `spread` is the distance of the quartiles over the median."""
        median = statistics.median(self.seconds)
        self.messages_per_second = self.n_rows / median
        self.gigabytes_per_second = self.n_bytes / median / 1e9
        self.best_messages_per_second = self.n_rows / min(self.seconds)
        quartiles = statistics.quantiles(self.seconds, method="inclusive") if len(self.seconds) > 1 else [median] * 3
        self.spread = (quartiles[2] - quartiles[0]) / median


@dataclass(frozen=True)
class Skipped:
    """A line that could not run on a data set, and why."""

    data_set: str
    line: str
    reason: str


class Runner:
    """A line made ready for one data set; `run` gives the seconds of one repetition."""

    def __init__(self, line: Line, data: DataSet, effort: Effort) -> None:
        self.line = line
        self.data = sample_of(data, line.sample // effort.sample_divisor) if line.sample else data
        self._work: Work = line.prepare(self.data)
        self._digest: Any = None
        self.result = Result(data.name, line.name, line.group, self.data.n_rows, self.data.n_bytes, [], kind=data.kind)
        self.result.sampled = self.data.n_rows < data.n_rows
        self.pairs: dict[str, list[float]] = {}
        self.spent = 0.0  # seconds, those of baselines too

    def warm_up(self) -> None:
        """Verify the whole result, and keep a digest of it for the repetitions."""
        self.line.verify(self.data, self._work)
        self._digest = self.line.digest(self._work())

    def run(self) -> float:
        """Time one repetition. The result is looked at and dropped after the clock has stopped."""
        start = perf_counter()
        outcome = self._work()
        seconds = perf_counter() - start
        digest = self.line.digest(outcome)
        if self._digest not in (None, digest):
            raise WrongResult(f"{self.data.name}, {self.line.name}: a repetition gave {digest}, not {self._digest}")
        return seconds

    def rate(self, seconds: float) -> float:
        """Messages per second of one repetition."""
        return self.data.n_rows / seconds


def sample_of(data: DataSet, n_usual: int) -> DataSet:
    """Take as many bytes of a data set as there are in so many messages of the usual size, and no more messages."""
    n_rows = n_usual * SAMPLE_MESSAGE_BYTES * data.n_rows // data.n_bytes
    return data.sample(max(min(n_rows, n_usual), MIN_SAMPLE))


def measure(
    data: DataSet, lines: Iterable[Line], effort: Effort, advance: Callable[[str], None]
) -> tuple[list[Result], list[Skipped]]:
    """Measure the lines on one data set.

    Repetitions go round by round over all lines, each right after its baselines, so that a slow spell of the machine
    hits both sides of a ratio. `advance` is called with a line's name when that line is done.
    """
    runners: dict[str, Runner] = {}
    skipped = []
    for line in lines:
        reason = line.missing(data)
        if reason is None:
            runners[line.name] = Runner(line, data, effort)
            runners[line.name].warm_up()
        else:
            skipped.append(Skipped(data.name, line.name, reason))
            advance(line.name)
    open_lines = list(runners.values())
    while open_lines:
        for runner in open_lines:
            repeat(runner, runners)
        done = [runner for runner in open_lines if is_done(runner, effort)]
        for runner in done:
            open_lines.remove(runner)
            advance(runner.line.name)
    return finish(runners), skipped


def repeat(runner: Runner, runners: dict[str, Runner]) -> None:
    """Time a line once, right after once each of its baselines."""
    start = perf_counter()
    baselines = [runners[name] for name in runner.line.baselines if name in runners]
    # Once without a clock: whoever runs first would find the payloads in slower memory than those who come after, and
    # would have to be given by the system what memory the others take.
    for item in (*baselines, runner):
        item.run()
    rates = {baseline.line.name: baseline.rate(baseline.run()) for baseline in baselines}
    seconds = runner.run()
    runner.result.seconds.append(seconds)
    for name, rate in rates.items():
        runner.pairs.setdefault(name, []).append(runner.rate(seconds) / rate)
    runner.spent += perf_counter() - start


def is_done(runner: Runner, effort: Effort) -> bool:
    """Whether a line has run often enough."""
    n_done = len(runner.result.seconds)
    if n_done < effort.min_repetitions:
        return False
    return n_done >= effort.max_repetitions or runner.spent >= effort.seconds_per_line


def finish(runners: dict[str, Runner]) -> list[Result]:
    """Make the figures, once every line has its seconds."""
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
    """Fill the peak memory of the lines of one data set, by a process for each core at a time: bytes do not mind."""
    results = list(results)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for result, found in zip(
            results, pool.map(lambda line: peak_bytes(line, n_rows, effort), results), strict=True
        ):
            result.peak_bytes = found
            advance(result.line)


def peak_bytes(result: Result, n_rows: int, effort: Effort) -> int | None:
    """Memory that a line takes beyond its payloads, by a process that runs nothing else; None where unknown."""
    question = {"data_set": result.data_set, "line": result.line, "n_rows": n_rows, "effort": asdict(effort)}
    command = [sys.executable, "-m", "benchmarks.memory", json.dumps(question)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    answer: Any = json.loads(done.stdout)
    return None if answer is None else int(answer)


def line_named(name: str) -> Line:
    """Find a line by its whole name."""
    return next(line for line in LINES if line.name == name)
