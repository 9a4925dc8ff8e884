"""The plot: messages per second of every line, on a logarithmic axis, a panel for each kind of data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.datasets import MESSAGES
from benchmarks.lines import LINES
from benchmarks.report import Report, scaled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {"text": "#33658a", "bin": "#86bbd8"}
BAR = 0.38
ABREAST = 3


def write_plot(report: Report, path: Path) -> None:
    """Draw the plot into a file whose suffix says the format.

    Raises
    ------
    ImportError
        Without matplotlib.
    ValueError
        Of a report without whole recordings.
    """
    # No window is opened: the figure is made without pyplot, and so without a display.
    from matplotlib.figure import Figure

    lines = [line for line in report.lines if line.kind == MESSAGES]
    if not lines:
        raise ValueError("the plot is of whole recordings, and none was measured")
    families = list(dict.fromkeys(line.data_set.partition(".")[0] for line in lines))
    measured = {line.line for line in lines}
    names = [line.name for line in LINES if line.name in measured]
    n_rows = -(-len(families) // ABREAST)
    figure = Figure(figsize=(6.4 * min(ABREAST, len(families)), 0.9 + (0.7 + 0.42 * len(names)) * n_rows))
    figure.set_layout_engine("constrained")
    grid = figure.subplots(n_rows, min(ABREAST, len(families)), sharex=True, sharey=True, squeeze=False)
    panels = list(grid.flat)
    for panel, family in zip(panels, families, strict=False):
        draw_panel(panel, report, family, names)
    for panel in panels[len(families) :]:
        panel.set_visible(False)
    rates = [line.messages_per_second for line in lines]
    panels[0].set_xscale("log")
    panels[0].set_xlim(min(rates) / 2, max(rates) * 6)  # room for the numbers
    panels[0].set_yticks(range(len(names)), names)
    panels[0].invert_yaxis()
    at = report.machine
    heading = f"pgdecode {at['pgdecode']}: messages per second, one thread"
    figure.suptitle(f"{heading}\n{at['cpu']}, {at['date']}", fontsize=11)
    figure.savefig(path, dpi=130)


def draw_panel(panel: Axes, report: Report, family: str, names: list[str]) -> None:
    """Bars of one kind of data: a pair per line, for the tuple formats that it was recorded in."""
    for number, (form, colour) in enumerate(COLOURS.items()):
        lines = report.of(f"{family}.{form}")
        if not lines:
            continue
        at = [names.index(line.line) + (number - 0.5) * BAR for line in lines]
        rates = [line.messages_per_second for line in lines]
        bars = panel.barh(at, rates, BAR, color=colour, label=form)
        panel.bar_label(bars, [scaled(rate) for rate in rates], padding=3, fontsize=8)
    panel.set_title(family)
    panel.set_xlabel("messages/s")
    panel.grid(axis="x", alpha=0.3)
    panel.set_axisbelow(True)
    panel.legend(loc="lower right", title="tuple format")
