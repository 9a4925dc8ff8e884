"""Terminal output: a progress bar, standard output, warnings, and formatted counts."""

from __future__ import annotations

import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from pgdecode.files.envelope_text import printable

_DELAY = 1.0  # seconds before a progress bar appears
_WARNING = "pgdecode: warning: "


class _Rate(ProgressColumn):
    """Rows per second."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:,.0f} rows/s")


@contextmanager
def progress(n_rows: int) -> Iterator[Callable[[float], None]]:
    """Show a progress bar on a terminal, after a second. Yield a function to call with each batch's number of rows."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda n_rows: None
        return
    count = TextColumn("{task.completed:,.0f} of {task.total:,.0f} rows")
    bar = Progress(BarColumn(), count, _Rate(), TimeRemainingColumn(), console=console, transient=True)
    task = bar.add_task("", total=n_rows)
    started = time.monotonic()

    def advance(n_done: float) -> None:
        bar.advance(task, n_done)
        if not bar.live.is_started and time.monotonic() - started > _DELAY:
            bar.start()

    try:
        yield advance
    finally:
        bar.stop()


@contextmanager
def task_progress() -> Iterator[Callable[[int, int], None] | None]:
    """Show the tasks of a Spark job on a terminal. Yield the function to call with them; None without a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    with Progress(BarColumn(), TextColumn("{task.description}"), console=console, transient=True) as bar:
        task = bar.add_task("starting Spark", total=None)

        def show(n_done: int, n_tasks: int) -> None:
            bar.update(task, completed=n_done, total=n_tasks, description=f"{n_done:,} of {n_tasks:,} tasks")

        yield show


@contextmanager
def standard_output() -> Iterator[Callable[[str], object]]:
    """Yield a function that writes text to standard output. A closed pipe is not an error."""
    stream = sys.stdout.buffer
    try:
        try:
            yield lambda text: stream.write(text.encode())
        finally:
            # Flush first, so that lines before a bad message are printed before the error.
            stream.flush()
    except BrokenPipeError:
        # Otherwise Python would flush again at exit, and print an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def warn(text: str) -> None:
    """Print a warning."""
    click.echo(f"{_WARNING}{printable(text)}", err=True)


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Print the library's own warnings, which are RuntimeWarning, without their place in the source."""
    as_usual = warnings.formatwarning

    def text(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        if category is not RuntimeWarning:
            return as_usual(message, category, filename, lineno, line)
        return f"{_WARNING}{printable(str(message))}\n"

    warnings.formatwarning = text
    try:
        yield
    finally:
        warnings.formatwarning = as_usual


def is_terminal() -> bool:
    """Whether standard output is a terminal, which a person reads."""
    return sys.stdout.isatty()


def table_console() -> Console:
    """Make the console for tables of rows. Where there is no terminal, COLUMNS is the width, or else 100."""
    if is_terminal():
        return Console(highlight=False)
    columns = os.environ.get("COLUMNS", "")
    return Console(highlight=False, width=int(columns) if columns.isdecimal() and int(columns) else 100)


def fitting(line: str) -> str:
    """Cut a line to the width of the terminal, if standard output is one."""
    width = shutil.get_terminal_size().columns
    return line if len(line) <= width or not is_terminal() else f"{line[: width - 1]}…"


def counted(number: int, what: str) -> str:
    """Format a number with a noun in singular or plural."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
