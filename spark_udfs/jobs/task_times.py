"""Measures how long a task decodes, and how long it reads and writes files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import TypeVar

from spark_udfs.jobs.output_committer import Part

Item = TypeVar("Item")


class TaskTimes:
    """The times of a task, from now on. The caller measures one of both; the other is the rest.

    Attributes
    ----------
    decode_seconds : float
    io_seconds : float
        Reading and decompressing the input, and encoding and writing the output.
    """

    def __init__(self) -> None:
        self._start = perf_counter()
        self.decode_seconds = 0.0
        self.io_seconds = 0.0

    @contextmanager
    def of_io(self) -> Iterator[None]:
        """Count the time of a block."""
        start = perf_counter()
        try:
            yield
        finally:
            self.io_seconds += perf_counter() - start

    def reading(self, items: Iterator[Item]) -> Iterator[Item]:
        """Yield what is read, and count the time that it takes to come."""
        while True:
            with self.of_io():
                item = next(items, None)
            if item is None:
                return
            yield item

    def noted(self, part: Part) -> Part:
        """Return a part of the task, which has ended, with its times."""
        whole = perf_counter() - self._start
        decoding = self.decode_seconds or whole - self.io_seconds
        return replace(part, decode_seconds=decoding, io_seconds=self.io_seconds or whole - self.decode_seconds)
