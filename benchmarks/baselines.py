"""The baselines in C: compiled at the start of a run by the system's compiler, called on the Arrow buffers."""

from __future__ import annotations

import ctypes
import functools
import os
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from benchmarks.datasets import DataSet

SOURCE = Path(__file__).with_name("baselines.c")
# No -march: the wheel's core is compiled for any machine of its kind too.
FLAGS = ("-O3", "-std=c11", "-shared", "-fPIC")


class NoCompiler(RuntimeError):
    """The baselines cannot be compiled here; the message says why."""


@dataclass(frozen=True)
class CellIndex:
    """What the walk wrote: a kind letter (as a code), a start and a length in bytes per tuple cell."""

    kinds: pa.Array
    starts: pa.Array
    lengths: pa.Array


def compiler() -> list[str]:
    """Command that compiles C here: $CC, or the first of the usual names."""
    if os.environ.get("CC"):
        return shlex.split(os.environ["CC"])
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    raise NoCompiler("no C compiler found (set CC)")


def compiler_version() -> str | None:
    """First line of the compiler's own version text, or None without one."""
    try:
        found = subprocess.run([*compiler(), "--version"], capture_output=True, text=True, check=True)
    except (NoCompiler, OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.partition("\n")[0]


@functools.cache
def library() -> ctypes.CDLL:
    """Compile `baselines.c` and load it, once in a process."""
    command = compiler()
    with tempfile.TemporaryDirectory(prefix="pgdecode-benchmarks-") as folder:
        target = Path(folder) / "baselines.so"
        try:
            subprocess.run(
                [*command, *FLAGS, str(SOURCE), "-o", str(target)], capture_output=True, text=True, check=True
            )
        except OSError as problem:
            raise NoCompiler(f"the C compiler cannot be run: {problem}") from problem
        except subprocess.CalledProcessError as problem:
            reason = problem.stderr.strip().partition("\n")[0] or f"exit code {problem.returncode}"
            raise NoCompiler(f"{command[0]} failed: {reason}") from problem
        loaded = ctypes.CDLL(str(target))
    pointer, count = ctypes.c_void_p, ctypes.c_int64
    loaded.read_all.argtypes, loaded.read_all.restype = (pointer, count), ctypes.c_uint64
    loaded.count_cells.argtypes, loaded.count_cells.restype = (pointer, pointer, count), count
    loaded.index_cells.argtypes = (pointer, pointer, count, pointer, pointer, pointer)
    loaded.index_cells.restype = count
    return loaded


class MemoryRead:
    """Sum of the payloads' bytes as 64-bit words."""

    def __init__(self, data: DataSet) -> None:
        self._read = library().read_all
        self._data = data

    def __call__(self) -> int:
        """Read everything once."""
        return int(self._read(self._data.bytes_address, self._data.n_bytes))


class CellWalk:
    """Walk of every message by its tag, tuple cells written to an index that is reserved once."""

    def __init__(self, data: DataSet) -> None:
        self._walk = library().index_cells
        self._arguments = (data.bytes_address, data.offsets_address, data.n_rows)
        self.n_cells = int(library().count_cells(*self._arguments))
        if self.n_cells < 0:
            raise ValueError(f"{data.name}: row {-1 - self.n_cells} is not a plain message")
        self._buffers = [pa.allocate_buffer(self.n_cells * width) for width in (1, 4, 4)]

    def __call__(self) -> int:
        """Walk everything once; the number of cells."""
        return int(self._walk(*self._arguments, *(buffer.address for buffer in self._buffers)))

    def index(self) -> CellIndex:
        """Return what the last call wrote."""
        types = (pa.uint8(), pa.uint32(), pa.uint32())
        columns = (
            pa.Array.from_buffers(kind, self.n_cells, [None, buffer])
            for kind, buffer in zip(types, self._buffers, strict=True)
        )
        return CellIndex(*columns)
