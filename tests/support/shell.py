"""Runs commands like a user, and writes their input files."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import termios
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgdecode.cli.main import main
from support import captures
from support.generators.samples import SAMPLES

SHOP = captures.DATA / "16.shop.v1.parquet"
STREAMS = captures.DATA / "16.streams.v2.parquet"
BEGIN = SAMPLES["begin"].payload
COMMIT = SAMPLES["commit"].payload
MESSAGE = bytes.fromhex("4d 00 0000000000000001 7000 00000002 6869")  # M, flags 0, LSN 1, 'p', length 2, 'hi'


class Done(NamedTuple):
    """The exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


class Shell:
    """Runs commands in one folder."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd

    def __call__(self, *words: str | Path) -> Done:
        """Run a command in this process."""
        self._capfd.readouterr()
        code = main([str(word) for word in words])
        return Done(code, *self._capfd.readouterr())


def started(*words: str | Path, **options: Any) -> subprocess.Popen[bytes]:
    """Start a command in a separate process that reacts to interrupts.

    If the test suite runs in the background of a shell, it ignores interrupts, and its children would too.
    """
    command = [sys.executable, "-m", "pgdecode", *map(str, words)]
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
    finally:
        signal.signal(signal.SIGINT, former)


def written(name: str, payloads: Sequence[bytes | None], **columns: Any) -> Path:
    """Write a Parquet file to the current folder, in row groups of 3 rows."""
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"data": pa.array(payloads, pa.binary()), **columns}), path, row_group_size=3)
    return path


def repeated(path: Path, times: int, rows_per_group: int, folder: Path) -> Path:
    """Write a capture several times to one file."""
    table = pq.read_table(path, columns=["seq", "data"])
    target = folder / f"{path.stem}-{times}-{rows_per_group}.parquet"
    pq.write_table(pa.concat_tables([table] * times), target, row_group_size=rows_per_group)
    return target


def on_terminal(*words: str | Path, columns: int = 100, with_colours: bool = False) -> str:
    """Run a command in a separate process on a terminal, and return what the terminal has received."""
    pty = pytest.importorskip("pty")
    controller, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (50, columns))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    command = [sys.executable, "-m", "pgdecode", *map(str, words)]
    process = subprocess.Popen(command, stdout=terminal, stderr=terminal, env={**environment, "TERM": "xterm"})
    os.close(terminal)
    received = b""
    while True:
        try:
            part = os.read(controller, 65536)
        except OSError:  # Linux reports the end so
            break
        if not part:
            break
        received += part
    os.close(controller)
    assert process.wait() == 0, received
    text = received.decode().replace("\r\n", "\n")
    return text if with_colours else re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
