"""Timing of lines beside their baselines, and the peak memory of a line in a process of its own."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any

from benchmarks.datasets import MESSAGES, DataSet
from benchmarks.line import Line, Work, WrongResult
from benchmarks.lines import LINES, SLOW_BASELINES


@dataclass(frozen=True)
class Effort:
    """How much is run: messages of slow lines are divided by `sample_divisor`, repetitions end with the seconds."""

    name: str
    min_repetitions: int
    max_repetitions: int
    seconds_per_line: float
    sample_divisor: int
    memory: bool


FULL = Effort("full", 7, 41, 1.5, 1, True)
QUICK = Effort("quick", 3, 15, 0.4, 5, False)


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
        self.data = data.sample(max(1, line.sample // effort.sample_divisor)) if line.sample else data
        self._work: Work = line.prepare(self.data)
        self._digest: Any = None
        self.result = Result(data.name, line.name, line.group, self.data.n_rows, self.data.n_bytes, [], kind=data.kind)
        self.pairs: dict[str, list[float]] = {}

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
        done = [runner for runner in open_lines if is_done(runner.result.seconds, effort)]
        for runner in done:
            open_lines.remove(runner)
            advance(runner.line.name)
    return finish(runners), skipped


def repeat(runner: Runner, runners: dict[str, Runner]) -> None:
    """Time a line once, right after once each of its baselines."""
    baselines = [runners[name] for name in runner.line.baselines if name in runners]
    # Once without a clock: whoever runs first would find the payloads in slower memory than those who come after.
    for baseline in baselines:
        baseline.run()
    rates = {baseline.line.name: baseline.rate(baseline.run()) for baseline in baselines}
    seconds = runner.run()
    runner.result.seconds.append(seconds)
    for name, rate in rates.items():
        runner.pairs.setdefault(name, []).append(runner.rate(seconds) / rate)


def is_done(seconds: list[float], effort: Effort) -> bool:
    """Whether a line has run often enough."""
    if len(seconds) < effort.min_repetitions:
        return False
    return len(seconds) >= effort.max_repetitions or sum(seconds) >= effort.seconds_per_line


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
