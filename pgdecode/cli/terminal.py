"""What commands print to: a progress bar, standard output, and counts in words."""

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
    """Show on a terminal how many of the rows are done; give what to tell each batch's number of rows."""
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
    """Give what writes text to standard output; a reader who has seen enough is no error."""
    stream = sys.stdout.buffer
    try:
        try:
            yield lambda text: stream.write(text.encode())
        finally:
            # Lines before a bad message come before the error that names it.
            stream.flush()
    except BrokenPipeError:
        # Python would flush once more at its end, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def fitting(line: str) -> str:
    """Cut a line to the width of the terminal, if it goes to one."""
    width = shutil.get_terminal_size().columns
    return line if len(line) <= width or not sys.stdout.isatty() else f"{line[: width - 1]}…"


def counted(number: int, what: str) -> str:
    """Write a number of things."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
