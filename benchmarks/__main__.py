"""Command line of the benchmarks: `python -m benchmarks`, from the source tree."""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

try:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    import pgdecode  # noqa: F401
except ImportError as problem:
    # In a source tree, the package next to this one takes precedence over an installed copy.
    sys.exit(f"{problem}\nthe benchmarks need the compiled package and extras: python -m pip install -e '.[bench]'")

from benchmarks import datasets, measure, plot, report, values
from benchmarks.cases.all_cases import CASES
from benchmarks.cases.case import Case

PROGRAM = "python -m benchmarks"
ON_SPARK = "on Spark"


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(prog=PROGRAM, description="Measure pgdecode and its baselines in one run.")
    parser.add_argument("--quick", action="store_true", help="fewer messages, under two minutes, no memory figures")
    parser.add_argument("--rows", type=int, metavar="N", help="messages of each data set")
    parser.add_argument(
        "--only", type=pattern, metavar="PATTERN", help="cases matching this regular expression in 'DATASET: CASE'"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure here")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the cases here (.png, .svg, .pdf)")
    parser.add_argument("--readme", type=Path, metavar="FILE", help="write the table between the markers of this file")
    parser.add_argument("--load", type=Path, metavar="FILE", help="show the JSON of an earlier run and measure nothing")
    options = parser.parse_args(arguments)
    if options.rows is not None and options.rows < 1:
        parser.error("--rows is at least 1")
    return options


def pattern(text: str) -> re.Pattern[str]:
    """Compile a regular expression that ignores case."""
    try:
        return re.compile(text, re.IGNORECASE)
    except re.error as problem:
        raise argparse.ArgumentTypeError(f"not a regular expression: {problem}") from problem


def chosen_cases(data_set: str, kind: str, only: re.Pattern[str] | None) -> list[Case]:
    """Choose the requested cases and their baselines."""
    cases = [case for case in CASES if kind in case.kinds]
    wanted = [case for case in cases if only is None or only.search(f"{data_set}: {case.name}")]
    names = {case.name for case in wanted} | {name for case in wanted for name in case.baselines}
    return [case for case in cases if case.name in names]


def run(options: argparse.Namespace, arguments: Sequence[str]) -> report.Report:
    """Measure the cases that the options select. The JSON is written after each data set."""
    effort = measure.QUICK if options.quick else measure.FULL
    plan = {known: chosen_cases(known.name, known.kind, options.only) for known in datasets.RECORDINGS}
    types = {kind: chosen_cases(kind.name, datasets.VALUES, options.only) for kind in values.KINDS}
    n_steps = sum(len(cases) * (2 if effort.memory else 1) for cases in plan.values())
    n_steps += sum(map(len, types.values()))
    # A quick run measures Spark only on request, because it takes as long as everything else.
    with_spark = bool(options.only.search(ON_SPARK)) if options.only else not options.quick
    names = [known.name for known in plan if plan[known]] + [kind.name for kind in types if types[kind]]
    found = report.Report(
        command=" ".join([PROGRAM, shlex.join(arguments)]).strip(),
        effort=effort.name,
        machine=report.machine(),  # first, so that the load average does not include this run
        unfinished=names + [ON_SPARK] * with_spark,
    )

    def end(name: str) -> None:
        found.unfinished.remove(name)
        if options.json:
            report.write_json(found, options.json)

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=n_steps)

        def advance(case: str) -> None:
            progress.advance(task)

        for recording, cases in plan.items():
            if not cases:
                continue
            n_rows = options.rows or (recording.quick_rows if options.quick else recording.full_rows)
            progress.update(task, description=recording.name)
            data = datasets.load(recording.name, n_rows)
            results, skipped = measure.measure(data, cases, effort, advance)
            del data  # the processes that measure memory load it again
            if effort.memory:
                progress.update(task, description=f"{recording.name}, memory")
                measure.measure_memory(results, n_rows, effort, advance)
                progress.advance(task, len(skipped))
            found.lines += results
            found.skipped += skipped
            end(recording.name)
        for kind, cases in types.items():
            if cases:
                progress.update(task, description=kind.name)
                n_values = options.rows or (values.QUICK_VALUES if options.quick else values.FULL_VALUES)
                found.lines += measure.measure(values.load_values(kind, n_values), cases, effort, advance)[0]
                end(kind.name)
        if with_spark:
            progress.update(task, description=ON_SPARK)
            if importlib.util.find_spec("pyspark") is None:
                found.skipped.append(measure.Skipped(ON_SPARK, "cases", "pyspark is not installed"))
            else:
                found.spark = run_spark(options.rows)
            end(ON_SPARK)
    return found


def run_spark(n_rows: int | None) -> dict[str, Any]:
    """Measure the routes on Spark in a separate process, because Spark writes to standard output."""
    with tempfile.TemporaryDirectory(prefix="pgdecode-benchmarks-") as folder:
        found = Path(folder, "spark.json")
        command = [sys.executable, "-m", "benchmarks.spark", "--quick", "--json", str(found)]
        if n_rows is not None:
            command += ["--rows", str(n_rows)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise OSError(f"python -m benchmarks.spark: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
        measured: dict[str, Any] = json.loads(found.read_text())
        return measured


def table_console() -> Console:
    """Make the console of the table. A file or a pipe gets a fixed width."""
    console = Console()
    return console if console.is_terminal else Console(width=140)


def main(arguments: Sequence[str]) -> int:
    """Measure or load, then show and write the results; return the exit code."""
    options = parse(arguments)
    try:
        found = report.read_json(options.load) if options.load else run(options, arguments)
        if not found.lines and found.spark is None:
            raise ValueError("no case matches --only")
        report.print_tables(found, table_console())
        if options.json:
            report.write_json(found, options.json)
        if options.readme:
            report.write_readme(found, options.readme)
        if options.plot:
            plot.write_plot(found, options.plot)
    except (ValueError, OSError, ImportError) as problem:
        print(f"{PROGRAM}: {problem}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
