"""Decoding takes no more than four times its input and 64 MiB, on ordinary data; large transactions take no more."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import clone

RECORDINGS = clone.path_of("benchmarks/data")

MEASURED = """
import gc, sys
import pyarrow as pa, pyarrow.parquet as pq
import pgdecode
sys.path.insert(0, sys.argv[4])
from benchmarks.datasets import repeated

what, recording, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
recorded = pq.read_table(recording)["data"].combine_chunks()
version = next(v for v in pgdecode.RelationCatalog.from_messages(recorded) if v.name in ("wide", "pgbench_accounts"))
if what == "rows":
    envelope = pgdecode.decode_messages(recorded, in_stream=False, fields=["kind", "relation_id"]).to_pylist()
    kinds = ("insert", "update", "delete")
    is_row = [row["kind"] in kinds and row["relation_id"] == version.relation_id for row in envelope]
    recorded = recorded.filter(pa.array(is_row))
payloads = repeated(recorded, (48 << 20) // recorded.nbytes + 1)

def status(name):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024

gc.collect()
pa.default_memory_pool().release_unused()
before = status("VmRSS")
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the peak is counted anew
if what == "messages":
    pgdecode.decode_messages(payloads, in_stream=False, threads=threads)
elif what == "rows":
    pgdecode.decode_rows(payloads, version, threads=threads)
elif what == "changes":
    pgdecode.ChangeDecoder().decode(payloads)
else:
    pgdecode.ChangeDecoder().table(payloads, version.qualified_name)
print(payloads.nbytes, status("VmHWM") - before)
"""

LARGE = """
import sys
import pyarrow as pa
import pgdecode
sys.path.insert(0, sys.argv[1])
from support.generators.slots import begin, commit, insert, relation

def status(name):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024

rows = pa.array([insert("1", "2")] * 50_000, pa.binary())
decoder = pgdecode.ChangeDecoder(spill=sys.argv[2], max_held_bytes=1 << 20)
decoder.decode([begin(7), relation("a b")])
for n in range(20):
    decoder.decode(rows)
    if n == 1:
        buffered = status("VmRSS")
buffered = status("VmRSS") - buffered
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the peak is counted anew
before = status("VmRSS")
n = sum(map(len, decoder.decode_batches([commit(107)])))
assert n == 20 * len(rows), n
print(buffered, status("VmHWM") - before)
"""

needs_peak = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="the peak of a process is read from Linux's /proc"
)
own_allocator = pytest.mark.skipif(
    "LD_PRELOAD" in os.environ, reason="another allocator is preloaded; a sanitizer's keeps what is freed"
)


@pytest.mark.full
@needs_peak
@own_allocator
@pytest.mark.parametrize(
    ("what", "recording", "threads"),
    [
        ("messages", "pgbench.text", 1),
        ("messages", "pgbench.text", 2),
        ("messages", "wide.bin", 1),
        ("rows", "wide.text", 1),
        ("rows", "wide.text", 2),
        ("rows", "wide.bin", 1),
        ("changes", "pgbench.text", 1),
        ("table", "pgbench.text", 1),
    ],
)
def test_decoding_takes_at_most_four_times_its_input_and_64_mib(what: str, recording: str, threads: int) -> None:
    command = [
        sys.executable,
        "-c",
        MEASURED,
        what,
        RECORDINGS / f"{recording}.parquet",
        str(threads),
        RECORDINGS.parents[1],
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    n_bytes, peak = map(int, done.stdout.split())
    assert peak <= 4 * n_bytes + (64 << 20)


@pytest.mark.full
@needs_peak
@own_allocator
def test_a_million_changes_of_one_transaction_wait_in_a_file_and_are_read_part_by_part(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LARGE, clone.path_of("tests"), tmp_path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    buffered, peak = map(int, done.stdout.split())
    # Lists of all its changes would take 100 MB.
    assert buffered <= 20 << 20
    assert peak <= 40 << 20
