"""The baselines in C. The system's compiler compiles them at the start of a run. They read the Arrow buffers."""

from __future__ import annotations

import ctypes
import functools
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pyarrow as pa

from benchmarks.datasets import DataSet

SOURCES = [Path(__file__).with_name(name) for name in ("baselines.c", "wide.c")]
# No -march, because the wheel's core is also compiled for any machine of the architecture.
FLAGS = ("-O3", "-std=c11", "-shared", "-fPIC")
PAGE, APART = 4096, 1088  # bytes; see `buffers_of`


class NoCompiler(RuntimeError):
    """The baselines cannot be compiled; the message gives the reason."""


@dataclass(frozen=True)
class CellIndex:
    """The index of the walk: kind letter (as a code), start and length in bytes of each tuple cell."""

    kinds: pa.Array
    starts: pa.Array
    lengths: pa.Array


def compiler() -> list[str]:
    """Find the C compiler's command: $CC, or the first common name that is installed."""
    if os.environ.get("CC"):
        return shlex.split(os.environ["CC"])
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    raise NoCompiler("no C compiler found (set CC)")


def compiler_version() -> str | None:
    """First line of the compiler's version text; None without a compiler."""
    try:
        found = subprocess.run([*compiler(), "--version"], capture_output=True, text=True, check=True)
    except (NoCompiler, OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.partition("\n")[0]


class TextColumn(ctypes.Structure):
    """`TextColumn` of `wide.c`."""

    _fields_ = (("ends", ctypes.c_void_p), ("data", ctypes.c_void_p))


class Wide(ctypes.Structure):
    """`Wide` of `wide.c`."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("id", "a", "b", "f", "n", "ok", "d", "ts")),
        ("texts", TextColumn * 4),
        ("valid", ctypes.c_void_p),
    )


@functools.cache
def library() -> ctypes.CDLL:
    """Compile and load the sources, once per process."""
    command = compiler()
    with tempfile.TemporaryDirectory(prefix="pgdecode-benchmarks-") as folder:
        target = Path(folder) / "baselines.so"
        try:
            subprocess.run(
                [*command, *FLAGS, *map(str, SOURCES), "-o", str(target)], capture_output=True, text=True, check=True
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
    loaded.decode_wide.argtypes, loaded.decode_wide.restype = (pointer, pointer, count, ctypes.POINTER(Wide)), count
    return loaded


class MemoryRead:
    """Sums the payloads' bytes as 64-bit words."""

    def __init__(self, data: DataSet) -> None:
        self._read = library().read_all
        self._data = data

    def __call__(self) -> int:
        """Read all payloads once."""
        return int(self._read(self._data.bytes_address, self._data.n_bytes))


class CellWalk:
    """Walks every message by its tag, and writes tuple cells to an index that is reserved once."""

    def __init__(self, data: DataSet) -> None:
        self._walk = library().index_cells
        self._arguments = (data.bytes_address, data.offsets_address, data.n_rows)
        self.n_cells = int(library().count_cells(*self._arguments))
        if self.n_cells < 0:
            raise ValueError(f"{data.name}: row {-1 - self.n_cells} is not a plain message")
        self._buffers = buffers_of([self.n_cells * width for width in (1, 4, 4)])

    def __call__(self) -> int:
        """Walk all payloads once; return the number of cells."""
        return int(self._walk(*self._arguments, *(buffer.address for buffer in self._buffers)))

    def index(self) -> CellIndex:
        """Return the index of the last call."""
        types = (pa.uint8(), pa.uint32(), pa.uint32())
        columns = (
            pa.Array.from_buffers(kind, self.n_cells, [None, buffer])
            for kind, buffer in zip(types, self._buffers, strict=True)
        )
        return CellIndex(*columns)


class WideRows:
    """Decodes the wide table's rows with a loop in C for this table, into columns that are reserved once."""

    FIXED = (
        ("id", pa.int64()),
        ("a", pa.int32()),
        ("b", pa.int16()),
        ("f", pa.float64()),
        ("n", pa.decimal128(14, 2)),
        ("ok", pa.uint8()),
        ("d", pa.date32()),
        ("ts", pa.timestamp("us", "UTC")),
    )
    TEXTS = ("u", "s", "j", "nul")

    def __init__(self, data: DataSet) -> None:
        self._decode = library().decode_wide
        self._arguments = (data.bytes_address, data.offsets_address, data.n_rows)
        self.n_rows = data.n_rows
        sizes = [self.n_rows * arrow.bit_width // 8 for _, arrow in self.FIXED]
        # The text of a binary uuid is longer than the value. No other text is longer than its payload.
        texts = [4 * self.n_rows + 4, data.n_bytes + 36 * self.n_rows]
        buffers = iter(buffers_of([*sizes, *texts * len(self.TEXTS), 12 * self.n_rows]))
        self._fixed = list(islice(buffers, len(sizes)))
        self._texts = [(next(buffers), next(buffers)) for _ in self.TEXTS]
        self._valid = next(buffers)
        self._out = Wide(
            *(buffer.address for buffer in self._fixed),
            (TextColumn * 4)(*(TextColumn(ends.address, texts.address) for ends, texts in self._texts)),
            self._valid.address,
        )

    def __call__(self) -> int:
        """Decode all rows once; return their number, or a negative number if a row is not as expected."""
        return int(self._decode(*self._arguments, ctypes.byref(self._out)))

    def columns(self) -> dict[str, pa.Array]:
        """Return the columns of the last call, by name. Values of null cells are undefined."""
        found = {}
        for (name, arrow), buffer in zip(self.FIXED, self._fixed, strict=True):
            found[name] = pa.Array.from_buffers(arrow, self.n_rows, [None, buffer])
        for name, buffers in zip(self.TEXTS, self._texts, strict=True):
            found[name] = pa.Array.from_buffers(pa.string(), self.n_rows, [None, *buffers])
        found["ok"] = found["ok"].cast(pa.bool_())
        return found

    def n_values(self) -> int:
        """Count the values that are not null."""
        return bytes(self._valid).count(1)


def buffers_of(sizes: Sequence[int]) -> list[pa.Buffer]:
    """Allocate memory and write to it, so that page faults are not timed.

    Large blocks begin at pages. If a loop wrote to all of them at the same place in the page, these would compete for
    the same lines of the processor's cache, at some addresses with a seventh of the speed. So they begin at different
    places.
    """
    found = []
    for number, size in enumerate(sizes):
        start = number * APART % PAGE
        block = pa.allocate_buffer(start + size)
        ctypes.memset(block.address, 0, start + size)
        found.append(block.slice(start))
    return found
