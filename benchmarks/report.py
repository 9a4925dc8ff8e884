"""Results as a table on the terminal, as JSON, as a plot, and as the figures of a README."""

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
from benchmarks.baselines import FLAGS, compiler_version
from benchmarks.datasets import VALUES
from benchmarks.line import (
    BINARY,
    C_ROWS,
    C_WALK,
    CAST,
    COPIES,
    MEMORY_READ,
    NODE,
    ONE_THREAD,
    PLAIN_PYTHON,
    PYPGOUTPUT,
    TEXT,
)
from benchmarks.measure import Result, Skipped

BEGIN = "<!-- figures: begin, written by python -m benchmarks --readme -->"
END = "<!-- figures: end -->"
HEADINGS = (
    "",
    "messages/s",
    "GB/s",
    "of read",
    "of C walk",
    "of C rows",
    "of copy",
    "x one thread",
    "x Python",
    "x pypgoutput",
    "x node",
    "spread",
    "peak MB",
)
VALUE_HEADINGS = ("values/s", TEXT, BINARY, CAST, "text / cast", "binary / cast", "spread")
SPARK_HEADINGS = ("on Spark", "seconds", "payloads/s", "x without decoding")
DROPPED_FIRST = ("spread", "GB/s", "of read", "peak MB", "x Python")  # on a narrow terminal
STYLES = {"baseline": "dim", "pgdecode": "green"}


@dataclass
class Report:
    """One run: where, how, and every line."""

    command: str
    effort: str
    machine: dict[str, Any]
    lines: list[Result] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    spark: dict[str, Any] | None = None  # what `benchmarks.spark` wrote
    unfinished: list[str] = field(default_factory=list)  # data sets that are still to be measured

    def data_sets(self) -> list[str]:
        """Names in the order measured, those of types left out."""
        return list(dict.fromkeys(line.data_set for line in self.messages()))

    def messages(self) -> list[Result]:
        """Lines that count messages."""
        return [line for line in self.lines if line.kind != VALUES]

    def types(self) -> list[str]:
        """Types of which values were decoded, in the order measured."""
        return list(dict.fromkeys(line.data_set for line in self.lines if line.kind == VALUES))

    def of(self, data_set: str) -> list[Result]:
        """Lines of one data set."""
        return [line for line in self.lines if line.data_set == data_set]


def machine() -> dict[str, Any]:
    """Describe what the figures depend on besides the code."""
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
    """Name of the processor, as Linux or else Python knows it."""
    info = Path("/proc/cpuinfo")
    rows = info.read_text().splitlines() if info.exists() else []
    named = (row.partition(":")[2].strip() for row in rows if row.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def write_json(report: Report, path: Path) -> None:
    """Write everything, each repetition's seconds too, at once or not at all."""
    target = path.resolve()  # of a link, what it leads to
    part = target.with_name(f".{target.name}.part")
    part.write_text(json.dumps(asdict(report), indent=1) + "\n")
    part.replace(target)


def read_json(path: Path) -> Report:
    """Read what `write_json` wrote."""
    found = json.loads(path.read_text())
    found["lines"] = [Result(**line) for line in found["lines"]]
    found["skipped"] = [Skipped(**line) for line in found["skipped"]]
    return Report(**found)


def scaled(number: float) -> str:
    """Three figures with a unit: 1.23 M."""
    for limit, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if number >= limit:
            return f"{number / limit:.3g}{unit}"
    return f"{number:.3g}"


def percent(ratio: float | None) -> str:
    """Write a ratio to a baseline that is faster."""
    return "" if ratio is None else f"{100 * ratio:.3g} %"


def times(ratio: float | None, digits: int = 2) -> str:
    """Write a ratio to a baseline that is slower."""
    return "" if ratio is None else f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.{digits}g}"


def cells(line: Result) -> list[str]:
    """Texts of a line under HEADINGS."""
    ratios = line.ratios
    return [
        f"{line.line}, of {line.n_rows:,} messages" if line.sampled else line.line,
        scaled(line.messages_per_second),
        f"{line.gigabytes_per_second:.3g}",
        percent(ratios.get(MEMORY_READ)),
        percent(ratios.get(C_WALK)),
        percent(ratios.get(C_ROWS)),
        percent(next((ratios[name] for name in COPIES if name in ratios), None)),
        times(next((ratios[name] for name in ONE_THREAD if name in ratios), None), 3),
        times(ratios.get(PLAIN_PYTHON)),
        times(ratios.get(PYPGOUTPUT)),
        times(ratios.get(NODE)),
        percent(line.spread),
        "" if line.peak_bytes is None else f"{line.peak_bytes / 1e6:.1f}",
    ]


def shown_columns(lines: Sequence[Result]) -> list[int]:
    """Columns of HEADINGS that any line fills."""
    rows = [cells(line) for line in lines]
    return [at for at in range(len(HEADINGS)) if at == 0 or any(row[at] for row in rows)]


def caption(report: Report) -> str:
    """Where, when and how, in one line."""
    at = report.machine
    busy = "" if at["load_average"] is None else f", load average {at['load_average']:.1f} at the start"
    return (
        f"{at['cpu']}, {at['cores']} cores, Python {at['python']}, pyarrow {at['pyarrow']}, pgdecode {at['pgdecode']}, "
        f"{at['date']}, `{report.command}`{busy}; medians, one process, one thread where a line does not say two"
    )


def title(line: Result) -> str:
    """Heading of a data set, from its first line, which ran on all of it."""
    return f"{line.data_set}: {line.n_rows:,} messages of {line.n_bytes / line.n_rows:.0f} bytes"


def notes(report: Report) -> list[str]:
    """Size of each data set, and what did not run."""
    found = [title(report.of(name)[0]) for name in report.data_sets()]
    if report.unfinished:
        found.insert(0, f"PARTIAL: the run did not come to {', '.join(report.unfinished)}")
    reasons: dict[tuple[str, str], list[str]] = {}
    for skip in report.skipped:
        reasons.setdefault((skip.line, skip.reason), []).append(skip.data_set)
    if report.spark:
        sizes = " and ".join(f"{n:,}" for n in sorted({line["rows"] for line in report.spark["lines"].values()}))
        found.append(f"on Spark: {sizes} messages of {report.spark['data_set']}, {report.spark['master']}")
    return found + [f"no {line} on {', '.join(names)}: {why}" for (line, why), names in reasons.items()]


def value_cells(report: Report, pg_type: str) -> list[str]:
    """Texts of a type under VALUE_HEADINGS; the spread is the larger one of both formats."""
    lines = {line.line: line for line in report.of(pg_type)}
    rates = [scaled(lines[name].messages_per_second) if name in lines else "" for name in (TEXT, BINARY, CAST)]
    decoded = [lines[name] for name in (TEXT, BINARY) if name in lines]
    ratios = [times(lines[name].ratios.get(CAST)) if name in lines else "" for name in (TEXT, BINARY)]
    return [pg_type, *rates, *ratios, percent(max((line.spread for line in decoded), default=None))]


def spark_cells(report: Report) -> list[list[str]]:
    """Texts under SPARK_HEADINGS; the lines of nobody who decodes stand behind those that they are the floor of."""
    if report.spark is None:
        return []
    rows = []
    for name, line in report.spark["lines"].items():
        floor = "" if line["floor_ratio"] is None else f"{line['floor_ratio']:.2f}"
        rows.append([name, f"{line['median']:.2f}", scaled(line["rows"] / line["median"]), floor])
    return rows


def print_tables(report: Report, console: Console) -> None:
    """Print a table of messages and one of values, and below them what they are of."""
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
    """Make the table of messages, with as many columns as there is room for."""
    shown = shown_columns(report.messages())
    table = make_table(report, shown)
    for dropped in map(HEADINGS.index, DROPPED_FIRST):
        if Measurement.get(console, console.options.update(max_width=1000), table).maximum > console.width:
            shown = [at for at in shown if at != dropped]
            table = make_table(report, shown)
    return table


def empty_table(headings: Sequence[str]) -> Table:
    """Make a table whose first column is of names, the others of figures."""
    table = Table(header_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for at, heading in enumerate(headings):
        table.add_column(heading, justify="left" if at == 0 else "right", no_wrap=True)
    return table


def make_table(report: Report, shown: Sequence[int]) -> Table:
    """Make one table with a section for each data set."""
    table = empty_table([HEADINGS[at] for at in shown])
    for name in report.data_sets():
        table.add_section()
        table.add_row(f"[bold cyan]{name}[/]")
        for line in report.of(name):
            row = cells(line)
            table.add_row(*(row[at] for at in shown), style=STYLES.get(line.group))
    return table


def markdown(report: Report) -> str:
    """Write the same tables for a README."""
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


def write_readme(report: Report, path: Path) -> None:
    """Replace what stands between the markers of a file.

    Raises
    ------
    ValueError
        If the file has no such markers.
    """
    before, begin, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{path} has no lines {BEGIN!r} and {END!r}")
    path.write_text(f"{before}{BEGIN}\n\n{markdown(report)}\n\n{END}{after}", encoding="utf-8")
