"""Decode for long, and watch memory: `make soak`.

Fifty million messages of a recording go through decode_messages, decode_rows and ChangeDecoder.table, the recording
again and again. A line for every tenth of them tells what the process has resident and what Arrow's pool has given
out. After the first tenth neither may grow by more than a few MiB; growth is an exit status of 1.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import pgdecode

RECORDING = Path(__file__).parents[2] / "benchmarks" / "data" / "pgbench.text.parquet"
TABLE = "public.pgbench_accounts"
MOST_GROWTH = 8 << 20  # bytes: what the allocator keeps varies by a few MiB


def resident() -> int:
    """Bytes that the process has in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=50_000_000)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    table = pq.read_table(RECORDING)
    payloads = pa.concat_arrays(table.column("data").chunks)
    version = pgdecode.RelationCatalog.from_messages(payloads)[TABLE]
    envelope = pgdecode.decode_messages(payloads, fields=["kind", "relation_id"])
    is_row = pc.equal(envelope["relation_id"], version.relation_id)
    is_row = pc.and_(is_row, pc.not_equal(envelope["kind"], "relation"))
    rows = payloads.filter(is_row.fill_null(False))
    decoder = pgdecode.ChangeDecoder()
    n_batches = -(-arguments.messages // len(payloads))
    tenth = max(n_batches // 10, 1)
    samples: list[tuple[int, int]] = []
    start = time.monotonic()
    for number in range(1, n_batches + 1):
        pgdecode.decode_messages(payloads, in_stream=False, threads=arguments.threads)
        pgdecode.decode_rows(rows, version, threads=arguments.threads)
        # The commits of the recording come again, as from a slot whose client confirms nothing.
        decoder.reconnected()
        decoder.table(payloads, TABLE)
        if number % tenth == 0 or number == n_batches:
            gc.collect()
            samples.append((resident(), pa.total_allocated_bytes()))
            print(
                f"{number * len(payloads):>12,} messages: {samples[-1][0] / 2**20:7.1f} MiB resident, "
                f"{samples[-1][1] / 2**20:7.1f} MiB of Arrow's pool, {time.monotonic() - start:6.1f} s",
                flush=True,
            )
    grown = [max(after) - first for first, *after in zip(*samples, strict=True) if after]
    print(f"growth since the first line: {', '.join(f'{growth / 2**20:.1f} MiB' for growth in grown)}")
    return int(any(growth > MOST_GROWTH for growth in grown))


if __name__ == "__main__":
    sys.exit(main())
