"""Kills drivers at random points, and checks that readers of the manifest see all or nothing.

`python killed_drivers.py [KILLS]` starts a driver for each kill: the local engine, and for every fifth kill Spark.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import obstore

from pgdecode.cli.main import main
from pgdecode.datasets.manifest import Manifest
from pgdecode.datasets.target import ObjectFolder, read_manifests
from pgdecode.storage.object_path import ObjectPath, object_path
from pgdecode.storage.object_store import listed, store_of
from support import captures
from support.emulators import ENVIRONMENT, Emulator, azure_emulator, s3_emulator

FILE = captures.DATA / "18.shop.v1.parquet"
# A line on standard output says that the work begins.
_DRIVER = """
import sys
from pgdecode.cli.main import main
import pgdecode.cli.commands, obstore
if "spark" in sys.argv:
    import spark_udfs.jobs.decode_files
print("begin", flush=True)
sys.exit(main(["decode", *sys.argv[1:]]))
"""


def complete_manifest(target: ObjectPath, n_rows: int) -> Manifest | None:
    """Read the manifest, and check that all its files are there; None if there is none."""
    manifest = ObjectFolder(target).last()
    if manifest is None:
        return None
    assert manifest.rows == n_rows
    for file in manifest.files:
        content = bytes(obstore.get(store_of(target), f"{target.key}/{file.name}").bytes())
        assert hashlib.sha256(content).hexdigest() == file.sha256
    return manifest


def started(options: list[str]) -> subprocess.Popen[bytes]:
    """Start a driver, and wait until its work begins."""
    command = [sys.executable, "-c", _DRIVER, *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"begin\n"
    return process


def kill_one(store: Emulator, source: ObjectPath, engine: str, seconds: float, overwrite: bool, n_rows: int) -> str:
    """Kill a driver after some time. Return what it left: the former output, the new one, or nothing."""
    target = object_path(f"{source.root}/x", store.options)
    options = [str(source), str(target), "--changes", "--engine", engine, *store.shell]
    former = None
    if overwrite:
        assert main(["decode", *options[:3], *store.shell]) == 0
        former = complete_manifest(target, n_rows)
        options.append("--overwrite")
    process = started(options)
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    found = complete_manifest(target, n_rows)
    left = "nothing" if found is None else "the former output" if found == former else "the new output"
    assert left != "nothing" or former is None
    # The same call then completes, and a commit removes what is left.
    assert main(["decode", *options[:3], *store.shell]) == 0
    assert complete_manifest(target, n_rows) == (found or complete_manifest(target, n_rows))
    if found is not None:
        assert main(["decode", *options[:3], "--overwrite", *store.shell]) == 0
    last = complete_manifest(target, n_rows)
    assert last is not None
    named = {file.name for file in (*last.files, *last.state)} | {f"_pgdecode/{last.number:010}.json"}
    assert {item.below(target) for item, _ in listed(target)} == named
    return left


def run_duration(store: Emulator, source: ObjectPath, engine: str) -> float:
    """Return how long a driver works that is not killed."""
    options = [str(source), f"{source.root}/whole", "--changes", "--engine", engine, *store.shell]
    process = started(options)
    start = time.monotonic()
    _, err = process.communicate()
    assert process.returncode == 0, err
    return time.monotonic() - start


def campaign(store: Emulator, kills: int, rng: random.Random, engines: tuple[str, ...]) -> dict[str, int]:
    """Kill drivers, and count what they left."""
    folder = Path(FILE)
    durations: dict[str, float] = {}
    outcomes: dict[str, int] = {}
    for number in range(kills):
        source = object_path(f"{store.new_bucket()}/raw", store.options)
        obstore.put(store_of(source), "raw/1.parquet", folder)
        engine = engines[number % len(engines)]
        if engine not in durations:
            durations[engine] = run_duration(store, source, engine)
            n_rows = read_manifests(f"{source.root}/whole", store.options)[-1].rows
        left = kill_one(store, source, engine, rng.uniform(0, durations[engine]), bool(number % 2), n_rows)
        outcomes[left] = outcomes.get(left, 0) + 1
    return outcomes


if __name__ == "__main__":
    os.environ.update(ENVIRONMENT)
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    seed = int(os.environ.get("PGDECODE_TEST_SEED", "1"))
    engines = ("local", "local", "local", "local", "spark")
    with s3_emulator() as s3, azure_emulator() as azure:
        for store, n in ((s3, kills - kills // 2), (azure, kills // 2)):
            print(store.kind, n, campaign(store, n, random.Random(seed), engines), flush=True)
