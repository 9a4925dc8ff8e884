"""Measure pgdecode beside other decoders in one run: `python -m benchmarks.peers`, from the source tree.

Each decoder is checked first: messages, columns and bytes of values. Then all take turns; before each repetition of
another decoder, pgdecode's tuples are timed. The figures are written to peers.json, the charts and the table in
docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

try:
    from benchmarks import datasets, measure, report
    from benchmarks.cases.all_cases import CASES
    from benchmarks.cases.case import C_WALK, MEMORY_READ, TUPLES_LINE
except ImportError as problem:
    sys.exit(f"{problem}\nthis needs the compiled package and extras: python -m pip install -e '.[bench]'")

from benchmarks.peers.programs import PEERS, install
from benchmarks.plot import BUSY, write_peers
from benchmarks.plot import PEERS as FIGURES

# The cases of pgdecode, as the chart calls them.
OURS = {
    TUPLES_LINE: "pgdecode, tuples",
    "envelope": "pgdecode, all fields",
    "changes of one table, typed": "pgdecode, one typed table",
    "changes": "pgdecode, committed changes",
}
PAGE = Path(__file__).parents[2] / "docs" / "performance.md"
BEGIN, END = "<!-- peers: begin, written by python -m benchmarks.peers -->\n", "<!-- peers: end -->"


def measured(data_set: str, n_rows: int, effort: measure.Effort) -> tuple[list[dict[str, Any]], list[str]]:
    """Return a bar for each decoder, and the reasons of those that are missing."""
    names = {*OURS, *(peer.name for peer in PEERS), MEMORY_READ, C_WALK}
    cases = [case for case in CASES if case.name in names and datasets.MESSAGES in case.kinds]
    results, skipped = measure.measure(datasets.load(data_set, n_rows), cases, effort, print)
    found = {result.line: result for result in results}
    bars = []
    for line, name in OURS.items():
        result = found[line]
        bars.append({"name": name, "language": "Python", "messages_per_second": round(result.messages_per_second)})
    peers = [peer for peer in PEERS if peer.name in found]
    for peer in sorted(peers, key=lambda peer: -found[peer.name].messages_per_second):
        result = found[peer.name]
        bars.append(
            {
                "name": peer.name,
                "language": peer.language,
                "version": peer.version,
                "messages_per_second": round(result.messages_per_second),
                # The median of the ratios of pairs that were timed right after each other.
                "tuples_are_times": round(1 / result.ratios[TUPLES_LINE], 1),
                "spread": round(result.spread, 3),
                "messages": result.n_rows,
            }
        )
    return bars, [f"{item.line}: {item.reason}" for item in skipped]


def table(figures: dict[str, Any]) -> str:
    """Return the figures as a table."""
    lines = ["| decoder | language | version | messages/s | pgdecode's tuples, times as fast |"]
    lines.append("|---|---|---|---:|---:|")
    for bar in figures["bars"]:
        times = report.times(bar.get("tuples_are_times"), 3)
        version = bar.get("version", figures["machine"]["pgdecode"])
        rate = report.scaled(bar["messages_per_second"])
        lines.append(f"| {bar['name']} | {bar['language']} | {version} | {rate} | {times} |")
    at = figures["machine"]
    load = at["load_average"] or 0
    busy = f"; measured beside other work (load average {load:.0f}), so only the ratios count" if load > BUSY else ""
    lines.append(
        f"\n{at['cpu']}, {at['cores']} cores, {at['date']}, `{figures['command']}`, "
        f"recording {figures['data_set']}, one thread{busy}."
    )
    return "\n".join(lines) + "\n"


def main(words: list[str] | None = None) -> None:
    """Measure, and write what is shown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--install", action="store_true", help="build and install the other decoders, and end")
    parser.add_argument("--quick", action="store_true", help="a trial: fewer repetitions, and nothing is written")
    parser.add_argument("--data-set", default="pgbench.text", help="another recording is a trial too")
    parser.add_argument("--rows", type=int, default=2_000_000, metavar="N", help="messages that pgdecode decodes")
    options = parser.parse_args(words)
    if options.install:
        install()
        return
    about = report.machine()
    effort = measure.QUICK if options.quick else measure.FULL
    bars, missing = measured(options.data_set, options.rows, effort)
    command = "python -m benchmarks.peers"
    figures = {"command": command, "data_set": options.data_set, "machine": about, "missing": missing, "bars": bars}
    print(table(figures), *missing, sep="\n")
    if options.quick or options.data_set != parser.get_default("data_set"):
        return
    FIGURES.write_text(json.dumps(figures, indent=2) + "\n")
    write_shown(figures)


def write_shown(figures: dict[str, Any]) -> None:
    """Draw the charts, and write the table into its page."""
    write_peers()
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + "\n" + table(figures) + "\n" + END + rest.partition(END)[2])


if __name__ == "__main__":
    main()
