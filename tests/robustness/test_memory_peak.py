"""Decoding takes no more than four times its input and 64 MiB, on ordinary data."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import clone
from support.tiers import full

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


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="the peak of a process is read from Linux's /proc"
)
@pytest.mark.skipif(
    "LD_PRELOAD" in os.environ, reason="another allocator is preloaded; a sanitizer's keeps what is freed"
)
@pytest.mark.parametrize(
    ("what", "recording", "threads"),
    [
        full("messages", "pgbench.text", 1),
        full("messages", "pgbench.text", 2),
        ("messages", "wide.bin", 1),
        full("rows", "wide.text", 1),
        full("rows", "wide.text", 2),
        full("rows", "wide.bin", 1),
        full("changes", "pgbench.text", 1),
        full("table", "pgbench.text", 1),
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
