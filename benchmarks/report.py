"""Output of the results: a table on the terminal, JSON, and the figures of a README."""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

import pgdecode
from benchmarks.cases.baselines import FLAGS, compiler_version
from benchmarks.cases.case import (
    BINARY,
    C_ROWS,
    C_WALK,
    CAST,
    COPIES,
    FILTER_AND_ROWS,
    MEMORY_READ,
    NODE,
    ONE_THREAD,
    ONE_WORKER,
    PGWIRE,
    PLAIN_PYTHON,
    PYPGOUTPUT,
    TEXT,
    TUPLES_LINE,
    TWO_THREADS,
)
from benchmarks.datasets import VALUES
from benchmarks.measure import Result, Skipped

BEGIN = "<!-- figures: begin, written by python -m benchmarks --readme -->"
END = "<!-- figures: end -->"
SUMMARY_BEGIN = "<!-- summary: begin, written by python -m benchmarks --readme -->"
SUMMARY_END = "<!-- summary: end -->"
SUMMARY_DATA_SETS = ("pgbench.text", "pgbench.bin", "wide.text", "wide.bin", "streamed.text")
SUMMARY_LINES = (
    C_WALK,
    TUPLES_LINE,
    "envelope",
    "typed rows",
    "changes",
    "changes of one table, typed",
    "snapshot",
    PLAIN_PYTHON,
    PYPGOUTPUT,
    NODE,
    PGWIRE,
)
HEADINGS = (
    "",
    "messages/s",
    "GB/s",
    "of read",
    "of C walk",
    "of tuples",
    "of filter and rows",
    "of C rows",
    "of copy",
    "x one thread",
    "x one worker",
    "x Python",
    "x pypgoutput",
    "x node",
    "x pgwire",
    "spread",
    "peak MB",
)
VALUE_HEADINGS = ("values/s", TEXT, BINARY, CAST, "text / cast", "binary / cast", "spread")
SPARK_HEADINGS = ("on Spark", "seconds", "payloads/s", "x without decoding")
DROPPED_FIRST = ("spread", "GB/s", "of read", "peak MB", "x Python")  # on a narrow terminal
STYLES = {"baseline": "dim", "pgdecode": "green"}


@dataclass
class Report:
    """One run: its command, machine and results."""

    command: str
    effort: str
    machine: dict[str, Any]
    lines: list[Result] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    spark: dict[str, Any] | None = None  # JSON of `benchmarks.spark`
    unfinished: list[str] = field(default_factory=list)  # data sets that have not been measured yet

    def data_sets(self) -> list[str]:
        """Names of the data sets of messages, in the order measured."""
        return list(dict.fromkeys(result.data_set for result in self.messages()))

    def messages(self) -> list[Result]:
        """Results that count messages."""
        return [result for result in self.lines if result.kind != VALUES]

    def types(self) -> list[str]:
        """Types whose values were decoded, in the order measured."""
        return list(dict.fromkeys(result.data_set for result in self.lines if result.kind == VALUES))

    def of(self, data_set: str) -> list[Result]:
        """Results of one data set."""
        return [result for result in self.lines if result.data_set == data_set]


def machine() -> dict[str, Any]:
    """Describe the machine and the software versions."""
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "pyarrow": pa.__version__,
        "pgdecode": pgdecode.__version__,
        "compiler": compiler_version(),
        "baseline_flags": " ".join(FLAGS),
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def cpu_model() -> str:
    """Name of the processor, from Linux or from Python."""
    info = Path("/proc/cpuinfo")
    rows = info.read_text().splitlines() if info.exists() else []
    named = (row.partition(":")[2].strip() for row in rows if row.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def write_json(report: Report, path: Path) -> None:
    """Write the report, including the seconds of each repetition, atomically."""
    target = path.resolve()  # replace the target of a link, not the link
    part = target.with_name(f".{target.name}.part")
    part.write_text(json.dumps(asdict(report), indent=1) + "\n")
    part.replace(target)


def read_json(path: Path) -> Report:
    """Read what `write_json` wrote."""
    found = json.loads(path.read_text())
    found["lines"] = [Result(**result) for result in found["lines"]]
    found["skipped"] = [Skipped(**item) for item in found["skipped"]]
    return Report(**found)


def scaled(number: float) -> str:
    """Three figures with a unit: 1.23 M."""
    for limit, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if number >= limit:
            return f"{number / limit:.3g}{unit}"
    return f"{number:.3g}"


def percent(ratio: float | None) -> str:
    """Format a ratio to a faster baseline."""
    return "" if ratio is None else f"{100 * ratio:.3g} %"


def times(ratio: float | None, digits: int = 2) -> str:
    """Format a ratio to a slower baseline."""
    return "" if ratio is None else f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.{digits}g}"


def of_tuples(result: Result) -> float | None:
    """Return the ratio to the envelope's tuples; None for these themselves, also with two threads."""
    return None if result.line.startswith(TUPLES_LINE) else result.ratios.get(TUPLES_LINE)


def of_one_thread(result: Result) -> float | None:
    """Return the ratio of a case with two threads to the same with one."""
    with_one = [ratio for name, ratio in result.ratios.items() if name in ONE_THREAD]
    return with_one[0] if with_one and result.line.endswith(TWO_THREADS[2:]) else None


def cells(result: Result) -> list[str]:
    """Cells of a result under HEADINGS."""
    ratios = result.ratios
    return [
        f"{result.line}, of {result.n_rows:,} messages" if result.sampled else result.line,
        scaled(result.messages_per_second),
        f"{result.gigabytes_per_second:.3g}",
        percent(ratios.get(MEMORY_READ)),
        percent(ratios.get(C_WALK)),
        percent(of_tuples(result)),
        percent(ratios.get(FILTER_AND_ROWS)),
        percent(ratios.get(C_ROWS)),
        percent(next((ratios[name] for name in COPIES if name in ratios), None)),
        times(of_one_thread(result), 3),
        times(next((ratio for name, ratio in ratios.items() if name.endswith(ONE_WORKER)), None), 3),
        times(ratios.get(PLAIN_PYTHON)),
        times(ratios.get(PYPGOUTPUT)),
        times(ratios.get(NODE)),
        times(ratios.get(PGWIRE)),
        percent(result.spread),
        "" if result.peak_bytes is None else f"{result.peak_bytes / 1e6:.1f}",
    ]


def shown_columns(results: Sequence[Result]) -> list[int]:
    """Select the indices of HEADINGS that at least one result fills."""
    rows = [cells(result) for result in results]
    return [at for at in range(len(HEADINGS)) if at == 0 or any(row[at] for row in rows)]


def caption(report: Report) -> str:
    """Describe machine, date and command in one line."""
    at = report.machine
    busy = "" if at["load_average"] is None else f", load average {at['load_average']:.1f} at the start"
    return (
        f"{at['cpu']}, {at['cores']} cores, Python {at['python']}, pyarrow {at['pyarrow']}, pgdecode {at['pgdecode']}, "
        f"{at['date']}, `{report.command}`{busy}; medians, one process, one thread unless a case names two"
    )


def title(result: Result) -> str:
    """Heading of a data set, from its first result, which used the whole data set."""
    return f"{result.data_set}: {result.n_rows:,} messages of {result.n_bytes / result.n_rows:.0f} bytes"


def notes(report: Report) -> list[str]:
    """Sizes of the data sets, and the cases that did not run."""
    found = [title(report.of(name)[0]) for name in report.data_sets()]
    if report.unfinished:
        found.insert(0, f"PARTIAL: the run did not reach {', '.join(report.unfinished)}")
    reasons: dict[tuple[str, str], list[str]] = {}
    for skip in report.skipped:
        reasons.setdefault((skip.line, skip.reason), []).append(skip.data_set)
    if report.spark:
        sizes = " and ".join(f"{n:,}" for n in sorted({result["rows"] for result in report.spark["lines"].values()}))
        found.append(f"on Spark: {sizes} messages of {report.spark['data_set']}, {report.spark['master']}")
    return found + [f"no {case} on {', '.join(names)}: {why}" for (case, why), names in reasons.items()]


def value_cells(report: Report, pg_type: str) -> list[str]:
    """Cells of a type under VALUE_HEADINGS; the spread is the larger one of both formats."""
    results = {result.line: result for result in report.of(pg_type)}
    rates = [scaled(results[name].messages_per_second) if name in results else "" for name in (TEXT, BINARY, CAST)]
    decoded = [results[name] for name in (TEXT, BINARY) if name in results]
    ratios = [times(results[name].ratios.get(CAST)) if name in results else "" for name in (TEXT, BINARY)]
    return [pg_type, *rates, *ratios, percent(max((result.spread for result in decoded), default=None))]


def spark_cells(report: Report) -> list[list[str]]:
    """Cells under SPARK_HEADINGS."""
    if report.spark is None:
        return []
    rows = []
    for name, result in report.spark["lines"].items():
        floor = "" if result["floor_ratio"] is None else f"{result['floor_ratio']:.2f}"
        rows.append([name, f"{result['median']:.2f}", scaled(result["rows"] / result["median"]), floor])
    return rows


def print_tables(report: Report, console: Console) -> None:
    """Print the tables of messages, values and Spark, and the notes below them."""
    if report.messages():
        console.print(fitting_table(report, console))
    if report.types():
        table = empty_table(VALUE_HEADINGS)
        for pg_type in report.types():
            table.add_row(*value_cells(report, pg_type))
        console.print(table)
    if report.spark:
        table = empty_table(SPARK_HEADINGS)
        for row in spark_cells(report):
            table.add_row(*row)
        console.print(table)
    for note in [*notes(report), caption(report)]:
        console.print(note, style="dim", highlight=False, markup=False)


def fitting_table(report: Report, console: Console) -> Table:
    """Make the table of messages, with as many columns as fit the console."""
    shown = shown_columns(report.messages())
    table = make_table(report, shown)
    for dropped in map(HEADINGS.index, DROPPED_FIRST):
        if Measurement.get(console, console.options.update(max_width=1000), table).maximum > console.width:
            shown = [at for at in shown if at != dropped]
            table = make_table(report, shown)
    return table


def empty_table(headings: Sequence[str]) -> Table:
    """Make a table whose first column has names and whose other columns have figures."""
    table = Table(header_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for at, heading in enumerate(headings):
        table.add_column(heading, justify="left" if at == 0 else "right", no_wrap=True)
    return table


def make_table(report: Report, shown: Sequence[int]) -> Table:
    """Make one table with a section per data set."""
    table = empty_table([HEADINGS[at] for at in shown])
    for name in report.data_sets():
        table.add_section()
        table.add_row(f"[bold cyan]{name}[/]")
        for result in report.of(name):
            row = cells(result)
            table.add_row(*(row[at] for at in shown), style=STYLES.get(result.group))
    return table


def markdown(report: Report) -> str:
    """Make the same tables in Markdown, for a README."""
    shown = shown_columns(report.messages())
    rows = [[HEADINGS[at] for at in shown], ["---" if at == 0 else "---:" for at in shown]]
    for name in report.data_sets():
        rows.append([f"**{name}**", *("" for _ in shown[1:])])
        rows += [[row[at] for at in shown] for row in map(cells, report.of(name))]
    values = [list(VALUE_HEADINGS), ["---", *("---:" for _ in VALUE_HEADINGS[1:])]]
    values += [value_cells(report, pg_type) for pg_type in report.types()]
    spark = [list(SPARK_HEADINGS), ["---", *("---:" for _ in SPARK_HEADINGS[1:])], *spark_cells(report)]
    tables = [rows] * bool(report.messages()) + [values] * bool(report.types()) + [spark] * (report.spark is not None)
    parts = ["\n".join(f"| {' | '.join(row)} |" for row in table) for table in tables]
    return "\n\n".join([*parts, "\n".join(f"- {note}" for note in [*notes(report), caption(report)])])


def summary(report: Report) -> str:
    """Make a short table of the most important cases in Markdown, in million messages per second."""
    found: dict[tuple[str, str], Result] = {}
    for result in report.messages():
        # "pgbench.text, accounts" are the rows of a table of pgbench.text, which comes first.
        found.setdefault((result.data_set.partition(",")[0], result.line), result)
    names = [name for name in SUMMARY_DATA_SETS if name in report.data_sets()]
    rows = [["M messages/s", *names], ["---", *("---:" for _ in names)]]
    for line in SUMMARY_LINES:
        results = [found.get((name, line)) for name in names]
        if any(results):
            rows.append([line, *("" if result is None else summary_cell(result) for result in results)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def summary_cell(result: Result) -> str:
    """Make the cell of a result: its speed and, if it was measured beside the envelope's tuples, the ratio."""
    ratio = of_tuples(result)
    speed = f"{result.messages_per_second / 1e6:.3g}"
    return speed if ratio is None else f"{speed} ({100 * ratio:.0f} %)"


def write_readme(report: Report, path: Path) -> None:
    """Replace the texts between the markers of a file.

    Raises
    ------
    ValueError
        If the file has no such markers.
    """
    text = path.read_text(encoding="utf-8")
    for begin, end, made in ((SUMMARY_BEGIN, SUMMARY_END, summary(report)), (BEGIN, END, markdown(report))):
        before, found_begin, rest = text.partition(begin)
        _, found_end, after = rest.partition(end)
        if not found_begin or not found_end:
            raise ValueError(f"{path} has no lines {begin!r} and {end!r}")
        text = f"{before}{begin}\n\n{made}\n\n{end}{after}"
    path.write_text(text, encoding="utf-8")
