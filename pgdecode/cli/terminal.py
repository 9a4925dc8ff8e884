"""Terminal output: a progress bar, standard output, and formatted counts."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def progress(n_rows: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal. Yield a function to call with each batch's number of rows."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda n_rows: None
        return
    count = TextColumn("{task.completed:,.0f} of {task.total:,.0f} rows")
    columns = (BarColumn(), count, TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=n_rows)
        yield lambda n_done: bar.advance(task, n_done)


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


def fitting(line: str) -> str:
    """Cut a line to the width of the terminal, if standard output is one."""
    width = shutil.get_terminal_size().columns
    return line if len(line) <= width or not sys.stdout.isatty() else f"{line[: width - 1]}…"


def counted(number: int, what: str) -> str:
    """Format a number with a noun in singular or plural."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
