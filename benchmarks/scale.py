"""Simulates the index of very large inputs with synthetic control messages: `python -m benchmarks.scale`.

A driver makes the index from the few messages that matter outside their partition. Their number and the number of
partitions decide what it costs, and not the payloads. Each case runs in a process of its own, which tells its memory.
"""

from __future__ import annotations

import argparse
import json
import pickle
import resource
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import process_time
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pgdecode.datasets.manifest import Input, Manifest
from pgdecode.files.payload_files import payload_files
from pgdecode.partitions.partition_index import Partition, PartitionIndex, index_partitions
from pgdecode.storage.object_path import size_of

TABLES, COLUMNS = 100, 20
# Rows of a partition. Only their positions exist.
PARTITION_ROWS = 2_000_000
# For how many partitions a streamed transaction is open.
PARTITIONS_OPEN = 10
TEXT = 25


@dataclass(frozen=True)
class Case:
    """A number of partitions, of streamed transactions that are open at any time, and of files."""

    partitions: int = 0
    open: int = 0
    files: int = 0

    def __str__(self) -> str:
        if self.files:
            return f"{self.files:,} files"
        return f"{self.partitions:,} partitions, {self.open:,} open transactions"


CASES = [
    *(Case(partitions) for partitions in (500, 5_000, 50_000)),
    *(Case(partitions, n_open) for partitions, n_open in ((100, 100), (100, 1_000), (100, 10_000), (1_000, 1_000))),
    *(Case(files=files) for files in (1_000, 100_000)),
]


def relation(oid: int) -> bytes:
    """Make a Relation message."""
    columns = b"".join(b"\0" + b"column%d\0" % number + struct.pack(">ii", TEXT, -1) for number in range(COLUMNS))
    return b"R" + struct.pack(">i", oid) + b"public\0table%d\0d" % oid + struct.pack(">h", COLUMNS) + columns


def control_messages(case: Case) -> Iterator[tuple[int, bytes]]:
    """Yield the messages of a case that the index needs, with their positions."""
    # Each partition begins some streamed transactions, and commits those that began `PARTITIONS_OPEN` before.
    n_new = max(case.open // PARTITIONS_OPEN, 1) if case.open else 0
    for number in range(case.partitions):
        position = number * PARTITION_ROWS
        lsn = 0x1000 + position * 100
        yield position, b"B" + struct.pack(">qqi", lsn + 50, 0, number + 1)
        if not number:
            for oid in range(TABLES):
                position += 1
                yield position, relation(20_000 + oid)
        position += 1
        yield position, b"C\0" + struct.pack(">qqq", lsn + 50, lsn + 60, 0)
        first = max(number - PARTITIONS_OPEN + 1, 0) * n_new
        for xid in range(first, (number + 1) * n_new):
            is_first = xid >= number * n_new
            yield position + 1, b"S" + struct.pack(">iB", 1_000_000 + xid, is_first)
            yield position + 3, b"E"
            position += 3
        if number >= PARTITIONS_OPEN - 1:
            for xid in range(first, first + n_new):
                position += 1
                final = lsn + 100 + xid - first
                yield position, b"c" + struct.pack(">iBqqq", 1_000_000 + xid, 0, final, final + 1, 0)
        position = (number + 1) * PARTITION_ROWS - 2
        final = lsn + 100 * PARTITION_ROWS - 20
        yield position, b"B" + struct.pack(">qqi", final, 0, 500_000_000 + number)
        yield position + 1, b"C\0" + struct.pack(">qqq", final, final + 5, 0)


def peak_memory() -> int:
    """Return the greatest memory of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def of_index(case: Case) -> dict[str, float]:
    """Make and pack the index of a case."""
    positions, payloads = zip(*control_messages(case), strict=True)
    columns = pa.array(payloads, pa.large_binary()), pa.array(positions, pa.int64())
    n_messages = len(payloads)
    del positions, payloads
    spans = (number * PARTITION_ROWS for number in range(case.partitions))
    partitions = [Partition(first, first + PARTITION_ROWS - 1) for first in spans]
    before = peak_memory()
    start = process_time()
    index = index_partitions(*columns, partitions, in_full=bool(case.open))
    indexed = process_time()
    packed = index.packed()
    written = process_time()
    found = PartitionIndex.unpacked(packed)
    read = process_time()
    if len(found.starts[-1].streamed) != len(index.starts[-1].streamed) or found.partitions != index.partitions:
        raise AssertionError("the index is not as it was written")
    return {
        "messages": n_messages,
        "index_seconds": indexed - start,
        "write_seconds": written - indexed,
        "read_seconds": read - written,
        "packed_bytes": len(packed),
        "memory_bytes": peak_memory() - before,
    }


def of_files(case: Case) -> dict[str, float]:
    """Describe files that differ only by name, as the driver does: in its memory, for its tasks and in the manifest."""
    with tempfile.TemporaryDirectory() as folder:
        table = pa.table({"seq": pa.array(range(2000), pa.int64()), "data": [b"B" * 50] * 2000})
        # Symbolic links to one file.
        pq.write_table(table, Path(folder, "rows"))
        source = Path(folder, "in")
        source.mkdir()
        for number in range(case.files):
            Path(source, f"{number:012}.parquet").symlink_to(Path(folder, "rows"))
        before = peak_memory()
        start = process_time()
        files = payload_files(source, "data", ("seq",))
        read = process_time()
        memory = peak_memory() - before
        packed = len(pickle.dumps(tuple(replace(file, entries={}) for file in files)))
        listed = [{"path": file.path.name, "rows": file.n_rows, "bytes": size_of(file.path)} for file in files]
        manifest = Manifest("spark", ["changes"], input=Input(files=listed))
        return {
            "footer_seconds": read - start,
            "memory_bytes": memory,
            "task_bytes": packed,
            "manifest_bytes": len(manifest.to_bytes()),
        }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all cases, or one."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--case", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="leave out the largest cases")
    asked = parser.parse_args(arguments)
    if asked.case is not None:
        case = Case(**asked.case)
        print(json.dumps(of_files(case) if case.files else of_index(case)))
        return
    largest = (Case(50_000), Case(100, 10_000), Case(files=100_000))
    for case in CASES:
        if asked.quick and case in largest:
            continue
        text = json.dumps(case.__dict__)
        command = [sys.executable, "-m", "benchmarks.scale", "--case", text]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        print(f"{case}: {shown(json.loads(done.stdout))}", flush=True)


def shown(found: dict[str, Any]) -> str:
    """Format figures: seconds of CPU time, sizes in MB, and counts."""
    texts = []
    for name, value in found.items():
        what, _, unit = name.rpartition("_")
        if unit == "seconds":
            texts.append(f"{what} {value:.2f} s")
        elif unit == "bytes":
            texts.append(f"{what} {value / 1e6:.2f} MB")
        else:
            texts.append(f"{value:,} {name}")
    return ", ".join(texts)


if __name__ == "__main__":
    main()
