"""The plot: messages per second of every line, on a logarithmic axis, a panel for each kind of data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.datasets import MESSAGES
from benchmarks.report import Report, scaled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {"text": "#33658a", "bin": "#86bbd8"}
BAR = 0.38


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
    names = list(dict.fromkeys(line.line for line in lines))
    figure = Figure(figsize=(6.4 * len(families), 1.6 + 0.5 * len(names)), layout="constrained")
    panels = figure.subplots(1, len(families), sharex=True, sharey=True, squeeze=False)[0]
    for panel, family in zip(panels, families, strict=True):
        draw_panel(panel, report, family, names)
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
    """Bars of one kind of data: a pair per line, for the two tuple formats."""
    for number, (form, colour) in enumerate(COLOURS.items()):
        lines = report.of(f"{family}.{form}")
        at = [names.index(line.line) + (number - 0.5) * BAR for line in lines]
        rates = [line.messages_per_second for line in lines]
        bars = panel.barh(at, rates, BAR, color=colour, label=form)
        panel.bar_label(bars, [scaled(rate) for rate in rates], padding=3, fontsize=8)
    panel.set_title(family)
    panel.set_xlabel("messages/s")
    panel.grid(axis="x", alpha=0.3)
    panel.set_axisbelow(True)
    panel.legend(loc="lower right", title="tuple format")
