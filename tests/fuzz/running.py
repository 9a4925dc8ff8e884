"""Runs targets under libFuzzer."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from fuzz import corpus
from fuzz.build import BUILD, LIBRARY, ROOT
from fuzz.targets import LONGEST

CORPUS = BUILD / "corpus"
FINDINGS = BUILD / "findings"

SETTINGS = {
    # Python leaks by design, and the targets count for themselves. A small quarantine and short stacks: a hundred
    # thousand executions a second each allocate a dozen blocks.
    "ASAN_OPTIONS": "detect_leaks=0:quarantine_size_mb=16:malloc_context_size=6:allocator_may_return_null=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    # So that AddressSanitizer sees the ends of what Arrow allocates too.
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    # numpy's threads have nothing to do here.
    "OPENBLAS_NUM_THREADS": "1",
    "PGDECODE_FUZZ_PYTHON": sys.executable,
}


@dataclass(frozen=True)
class Found:
    """What a run came to; `input` is a file with the bytes that something went wrong with."""

    target: str
    log: str
    executions: int
    seconds: float
    edges: int
    n_inputs: int
    input: Path | None

    def __str__(self) -> str:
        speed = self.executions / self.seconds if self.seconds else 0.0
        return (
            f"{self.target:8} {self.executions:12,} executions {speed:9,.0f}/s"
            f" {self.edges:6} edges {self.n_inputs:6} inputs"
        )


def call(target: str, *arguments: str | Path, library: Path = LIBRARY) -> subprocess.CompletedProcess[str]:
    """Run the driver of a target with libFuzzer's own options."""
    environment = {**os.environ, **SETTINGS, "PYTHONPATH": os.pathsep.join([str(library), str(ROOT / "tests")])}
    command = [str(BUILD / target), *map(str, arguments)]
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=environment
    )


def fuzz(target: str, seconds: int, seed: int, *, library: Path = LIBRARY, corpora: Path = CORPUS) -> Found:
    """Fuzz a target for some seconds, or until something goes wrong; new inputs go into its corpus.

    `seed` is libFuzzer's: 0 is another one each time.
    """
    folder = prepared(target, corpora)
    FINDINGS.mkdir(parents=True, exist_ok=True)
    prefix = FINDINGS / f"{target}-{time.time_ns()}-"
    started = time.monotonic()
    done = call(
        target,
        folder,
        *(f"-seed={seed}", f"-max_total_time={seconds}", f"-max_len={LONGEST[target]}", f"-artifact_prefix={prefix}"),
        # Entropic scheduling takes a third of the time of targets as quick as these.
        *("-entropic=0", "-detect_leaks=0", "-timeout=20", "-rss_limit_mb=4096", "-print_final_stats=1", "-reload=0"),
        library=library,
    )
    took = time.monotonic() - started
    inputs = sorted(FINDINGS.glob(f"{prefix.name}*"))
    if done.returncode and not inputs:
        raise SystemExit(f"{target} did not run:\n{done.stdout[-4000:]}")
    executions = re.findall(r"number_of_executed_units: (\d+)", done.stdout)
    edges = re.findall(r" cov: (\d+)", done.stdout)
    return Found(
        target,
        done.stdout,
        int(executions[-1]) if executions else 0,
        took,
        int(edges[-1]) if edges else 0,
        len(list(folder.iterdir())),
        inputs[0] if inputs else None,
    )


def prepared(target: str, corpora: Path = CORPUS) -> Path:
    """Give the folder in which a target's corpus grows from run to run, with what the repository has in it."""
    folder = corpora / target
    corpus.unpack(target, folder)
    return folder


def merge(target: str) -> str:
    """Make the smallest part of a target's corpus that reaches all it reaches that of the repository."""
    smallest = CORPUS / f"{target}.merged"
    shutil.rmtree(smallest, ignore_errors=True)
    smallest.mkdir(parents=True)
    done = call(target, "-merge=1", f"-max_len={LONGEST[target]}", "-detect_leaks=0", smallest, prepared(target))
    if done.returncode:
        raise SystemExit(f"{target} was not merged:\n{done.stdout[-4000:]}")
    return f"{target}: {corpus.pack(target, smallest)} inputs"
