"""The plot: messages per second of every case on a logarithmic axis, with one panel per kind of data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.cases import CASES
from benchmarks.datasets import MESSAGES
from benchmarks.report import Report, scaled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {"text": "#33658a", "bin": "#86bbd8"}
BAR = 0.38
ABREAST = 3


def write_plot(report: Report, path: Path) -> None:
    """Draw the plot to a file. The file's suffix sets the format.

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    ValueError
        If the report has no whole recordings.
    """
    # Without pyplot, no display is needed.
    from matplotlib.figure import Figure

    results = [result for result in report.lines if result.kind == MESSAGES]
    if not results:
        raise ValueError("the plot shows whole recordings, and none was measured")
    families = list(dict.fromkeys(result.data_set.partition(".")[0] for result in results))
    measured = {result.line for result in results}
    names = [case.name for case in CASES if case.name in measured]
    n_rows = -(-len(families) // ABREAST)
    figure = Figure(figsize=(6.4 * min(ABREAST, len(families)), 0.9 + (0.7 + 0.42 * len(names)) * n_rows))
    figure.set_layout_engine("constrained")
    grid = figure.subplots(n_rows, min(ABREAST, len(families)), sharex=True, sharey=True, squeeze=False)
    panels = list(grid.flat)
    for panel, family in zip(panels, families, strict=False):
        draw_panel(panel, report, family, names)
    for panel in panels[len(families) :]:
        panel.set_visible(False)
    rates = [result.messages_per_second for result in results]
    panels[0].set_xscale("log")
    panels[0].set_xlim(min(rates) / 2, max(rates) * 6)  # space for the numbers
    panels[0].set_yticks(range(len(names)), names)
    panels[0].invert_yaxis()
    at = report.machine
    heading = f"pgdecode {at['pgdecode']}: messages per second, one thread"
    figure.suptitle(f"{heading}\n{at['cpu']}, {at['date']}", fontsize=11)
    figure.savefig(path, dpi=130)


def draw_panel(panel: Axes, report: Report, family: str, names: list[str]) -> None:
    """Draw the bars of one kind of data: one bar per case and recorded tuple format."""
    for number, (form, colour) in enumerate(COLOURS.items()):
        results = report.of(f"{family}.{form}")
        if not results:
            continue
        at = [names.index(result.line) + (number - 0.5) * BAR for result in results]
        rates = [result.messages_per_second for result in results]
        bars = panel.barh(at, rates, BAR, color=colour, label=form)
        panel.bar_label(bars, [scaled(rate) for rate in rates], padding=3, fontsize=8)
    panel.set_title(family)
    panel.set_xlabel("messages/s")
    panel.grid(axis="x", alpha=0.3)
    panel.set_axisbelow(True)
    panel.legend(loc="lower right", title="tuple format")
