"""Captures the standard streams of a command that runs in this process."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def captured() -> Iterator[list[io.BytesIO]]:
    """Capture the standard streams as they are in a process: output is strict, errors are escaped."""
    streams = [io.BytesIO(), io.BytesIO()]
    former = sys.stdout, sys.stderr
    sys.stdout = io.TextIOWrapper(streams[0], encoding="utf-8", write_through=True)
    sys.stderr = io.TextIOWrapper(streams[1], encoding="utf-8", errors="backslashreplace", write_through=True)
    try:
        yield streams
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(ValueError):
                stream.flush()
                stream.detach()  # type: ignore[attr-defined]
        sys.stdout, sys.stderr = former
