"""The plots: messages per second of every case, with one panel per kind of data; and pgdecode beside other decoders.

`python -m benchmarks.plot` draws the second one for the README, from peers.json, which `python -m benchmarks.peers`
measures.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.cases.all_cases import CASES
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


BUSY = 1.5  # a load average above which rates are those of a busy machine
PEERS = Path(__file__).with_name("peers.json")
ASSETS = Path(__file__).parents[1] / "docs" / "assets"
# Text, soft text, pgdecode's bars, other bars.
THEMES = {
    "light": ("#1f2328", "#59636e", "#0f766e", "#afb8c1"),
    "dark": ("#e6edf3", "#9198a1", "#2dd4bf", "#484f58"),
}


def write_peers(folder: Path = ASSETS) -> None:
    """Draw pgdecode beside other decoders, as speed-light.svg and speed-dark.svg in a folder."""
    import matplotlib
    from matplotlib.figure import Figure

    figures = json.loads(PEERS.read_text())
    bars, at = figures["bars"], figures["machine"]
    rates = [bar["messages_per_second"] for bar in bars]
    labels = [scaled(rate) for rate in rates]
    note = f"{at['cpu']}, {at['cores']} cores, {at['date']}, {figures['command']}, recording {figures['data_set']}"
    if (at["load_average"] or 0) > BUSY:
        note += f"\nmeasured beside other work (load average {at['load_average']:.0f}): the ratios count, not the rates"
    for theme, (text, soft, ours, others) in THEMES.items():
        with matplotlib.rc_context({"svg.hashsalt": "pgdecode", "font.size": 10}):
            figure = Figure(figsize=(8, 0.9 + 0.33 * len(bars)))
            figure.set_layout_engine("constrained")
            panel = figure.subplots()
            colours = [ours if bar["name"].startswith("pgdecode") else others for bar in bars]
            drawn = panel.barh(range(len(bars)), rates, 0.62, color=colours)
            panel.bar_label(drawn, labels, padding=4, color=text)
            panel.set_yticks(range(len(bars)), [f"{bar['name']}  ({bar['language']})" for bar in bars], color=text)
            panel.invert_yaxis()
            panel.set_xlim(0, max(rates) * 1.14)
            panel.set_xticks([])
            panel.tick_params(length=0)
            panel.set_frame_on(False)
            panel.set_title("messages per second, one thread", loc="left", color=text, fontweight="bold")
            panel.set_xlabel(note, loc="left", color=soft, fontsize=8)
            figure.savefig(folder / f"speed-{theme}.svg", transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    write_peers()
