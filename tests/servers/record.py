"""Record the output of a random scenario's slots, as files of the same form as tests/data.

In the folder tests: python -m servers.record SEED FOLDER [--steps N], on the server that PGDECODE_TEST_PGBIN names or
the first one found. The scenario of a seed is called `random<SEED>`; `live` is the output of a live subscriber,
without xids. Compare two-phase modes with the two-phase text, because it has the GIDs.
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from servers.reading import Message, modes
from servers.server import Server, find_server, running
from servers.trial import staged, steps
from servers.verify import Account

SCHEMA = pa.schema([("seq", pa.int64()), ("lsn", pa.int64()), ("xid", pa.int64()), ("data", pa.binary())])


def write_messages(path: Path, messages: list[Message]) -> None:
    columns = {
        "seq": list(range(len(messages))),
        "lsn": [message.lsn for message in messages],
        "xid": [message.xid for message in messages],
        "data": [message.payload for message in messages],
    }
    table = pa.table(columns, schema=SCHEMA)
    pq.write_table(table, path, compression="zstd", compression_level=22, write_statistics=False)


def record(server: Server, seed: int, folder: Path, n_steps: int) -> list[Path]:
    """Run a scenario to its end, write the output of every mode, and return the files."""
    stem = f"{server.major}.random{seed}"
    with staged(server, seed) as stage:
        for _ in steps(stage, seed, n_steps):
            pass
        stage.scenario.finish()
        stage.live_reader.catch_up()
        messages_by_mode = {mode.name: stage.slots.read(mode) for mode in modes(server.major)}
        messages_by_mode[f"live{stage.live_reader.mode.name}"] = stage.live_reader.messages
        state = Account(stage.scenario, stage.slots).state
        texts = {"test_decoding.txt": stage.slots.read_text(two_phase=False)}
        if server.major >= 15:
            texts["test_decoding_twophase.txt"] = stage.slots.read_text(two_phase=True)
    written = []
    for name, messages in messages_by_mode.items():
        written.append(folder / f"{stem}.{name}.parquet")
        write_messages(written[-1], messages)
    for name, content in {"state.json": json.dumps(state), **texts}.items():
        written.append(folder / f"{stem}.{name}.gz")
        # Without a timestamp, so that equal contents give equal files.
        written[-1].write_bytes(gzip.compress(content.encode(), mtime=0))
    return written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seed", type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=80)
    arguments = parser.parse_args()
    programs = find_server()
    if programs is None:
        parser.error("no PostgreSQL server with test_decoding was found; name one in PGDECODE_TEST_PGBIN")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with running(programs) as server:
        for path in record(server, arguments.seed, arguments.folder, arguments.steps):
            print(path)


if __name__ == "__main__":
    main()
