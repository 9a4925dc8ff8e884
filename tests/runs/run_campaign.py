"""Cut sequences into runs, each on an engine picked at random, and compare their union with one run over everything.

The engines are Python, the shell and, with --spark, `decode_files`, the shell with Spark, and functions of DataFrames.

    make runs                                                       hundreds of trials, a hundred killed processes
    PYTHONPATH=tests:tests/runs python -m run_campaign --trials 20 --seed 1 --spark

A trial takes a recorded capture or a random slot, as changes or as tables, and cuts it at one to four random places.
The oracle is one ChangeDecoder over all payloads. In some trials, calls of the shell get SIGKILL, at a random moment or
just before or after a random system call that changes names. Then the same call is made again.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pgdecode import ChangeDecoder
from pgdecode.cli.main import main
from pgdecode.files.change_text import change_lines, table_lines
from support import captures
from support.generators.slot import RandomSlot

# Wraps the functions that change names, and kills the process just before or after call number argv[1].
KILLED = """
import itertools, os, signal, sys
number, when = int(sys.argv[1]), sys.argv[2]
calls = itertools.count()
def killing(function):
    def call(*args, **options):
        mine = next(calls)
        if mine == number and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = function(*args, **options)
        if mine == number and when == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return call
from pgdecode.cli.main import main
for name in ("rename", "replace", "link", "unlink", "rmdir", "mkdir", "fsync"):
    setattr(os, name, killing(getattr(os, name)))
sys.exit(main(sys.argv[3:]))
"""


@dataclass
class Workload:
    """Payloads with positions, and what to decode."""

    name: str
    payloads: pa.Array
    positions: pa.Array | None  # None: no position column
    tables: list[str]  # empty: changes
    options: dict[str, Any]

    def whole(self) -> list[list[dict[str, Any]]]:
        """Decode everything at once: the rows of each output."""
        if not self.tables:
            return [lines(ChangeDecoder(**self.options).decode(self.payloads, self.positions))]
        return [self._table(name) for name in self.tables]

    def described(self) -> int:
        """Count the payloads until all tables are described, because it is an error to decode an unknown table."""
        decoder = ChangeDecoder(**self.options)
        for number in range(len(self.payloads)):
            if set(self.tables) <= set(decoder.shape_catalog.names):
                return number
            decoder.follow(self.payloads.slice(number, 1))
        return len(self.payloads)

    def _table(self, name: str) -> list[dict[str, Any]]:
        first = ChangeDecoder(**self.options)
        first.follow(self.payloads, self.positions)
        return lines(first.restart().table(self.payloads, name, self.positions))


def sequence(rng: random.Random, name: str | None = None) -> Workload:
    """Choose payloads, of a capture or at random, and what to decode of them."""
    if name is not None or rng.random() < 0.5:
        name = name or rng.choice(captures.NAMES)
        payloads = captures.capture(name).column
    else:
        name = f"random slot {rng.getrandbits(32)}"
        sent = RandomSlot(random.Random(name), rng.randrange(5, 120)).payloads
        if rng.random() < 0.4:
            # The server sends something again, or something is missing: then there are bad rows, here and there alike.
            sent = sent[: rng.randrange(len(sent))] + sent[rng.randrange(len(sent)) :]
        payloads = pa.array(sent, pa.binary())
    positions = None
    if rng.random() < 0.8:
        step = rng.choice([1, 1, 7])
        positions = pa.array(range(100, 100 + step * len(payloads), step), pa.int64())
    tables = []
    if rng.random() < 0.5:
        decoder = ChangeDecoder(mode="PERMISSIVE")
        decoder.follow(payloads)
        tables = rng.sample(
            names := sorted(decoder.shape_catalog.names), rng.randint(min(1, len(names)), min(3, len(names)))
        )
    # Recorded captures in binary format have types that FAILFAST mode refuses.
    options = {
        "mode": rng.choice(["PERMISSIVE", "DROPMALFORMED"]),
        "drop_duplicates": rng.random() < 0.3,
    }
    return Workload(name, payloads, positions, tables, options)


@dataclass
class Trial:
    """One sequence, cut into runs."""

    seed: int
    kills: int = 0
    problems: list[str] = field(default_factory=list)
    engines: list[str] = field(default_factory=list)
    killed: int = 0
    spark: Any = None  # a session, to use the engines of Spark too
    name: str | None = None  # of a capture; by default, one or a random slot is chosen
    n_cuts: int | None = None

    def run(self, folder: Path) -> Trial:
        """Decode in runs, and compare."""
        rng = random.Random(self.seed)
        item = sequence(rng, self.name)
        n = len(item.payloads)
        least = item.described()
        cuts = [0, *sorted(rng.randint(least, n) for _ in range(self.n_cuts or rng.randint(1, 4))), n]
        n_with_state = rng.choice([0, 0, rng.randrange(len(cuts)), len(cuts)])
        previous: Path | None = None
        rows: list[list[dict[str, Any]]] = [[] for _ in item.tables or [None]]
        where = f"seed {self.seed}: {item.name}, {item.tables or 'changes'}, cut at {cuts}"
        for number, (start, end) in enumerate(pairwise(cuts)):
            source, target = folder / f"in{number}.parquet", folder / f"out{number}"
            self._write(source, item, start, end, rng)
            engines = ["python", "resume"]
            if self.spark is not None and item.positions is not None:
                engines += ["spark", "spark", "functions", "functions"]
            engine = "state" if number < n_with_state else rng.choice(engines)
            self.engines.append(engine)
            try:
                if engine == "python":
                    found = self._python(item, start, end, previous, target, rng)
                elif engine == "spark":
                    found = self._spark(item, source, target, previous, rng)
                elif engine == "functions":
                    found = self._functions(item, source, target, previous)
                else:
                    found = self._shell(item, source, target, previous, folder / "state", engine, rng)
            except Exception as error:
                self.problems.append(f"{where}: run {number} by {engine}: {type(error).__name__}: {error}")
                return self
            previous = folder / "state" / f"{number + 1:08}" if engine == "state" else target
            for output, more in zip(rows, found, strict=True):
                output += more
        for name, found_rows, expected in zip(item.tables or ["changes"], rows, item.whole(), strict=True):
            one, other = list(map(sparse, found_rows)), list(map(sparse, expected))
            if {"spark", "functions"} & set(self.engines):
                # Rows on Spark have no order.
                one, other = (sorted(rows, key=repr) for rows in (one, other))
            if one != other:
                first = next(pair for pair in zip_longest(one, other) if pair[0] != pair[1])
                text = f"{name} differs: {len(one)} rows, expected {len(other)}, first {first}"
                self.problems.append(f"{where}, by {self.engines}, {item.options}: {text}")
        leftover = [path.name for path in folder.iterdir() if path.name.startswith(".")]
        if leftover:
            self.problems.append(f"{where}: {leftover} are left")
        return self

    def _write(self, path: Path, item: Workload, start: int, end: int, rng: random.Random) -> None:
        columns = {"data": item.payloads.slice(start, end - start)}
        if item.positions is not None:
            columns["seq"] = item.positions.slice(start, end - start)
        pq.write_table(pa.table(columns), path, row_group_size=rng.choice([50, 10_000]))

    def _python(
        self, item: Workload, start: int, end: int, previous: Path | None, target: Path, rng: random.Random
    ) -> list[list[dict[str, Any]]]:
        options = dict(item.options)
        if rng.random() < 0.5:
            options |= {"spill": target.parent / "spill", "max_held_bytes": rng.choice([0, 1000])}
        decoder = ChangeDecoder(**options) if previous is None else ChangeDecoder.load(previous, **options)
        payloads = item.payloads.slice(start, end - start)
        positions = None if item.positions is None else item.positions.slice(start, end - start)
        # Two calls, so that transactions are also cut inside a run. The first one must describe the tables.
        middle = 0 if item.tables and previous is None else rng.randrange(len(payloads) + 1)
        rows: list[list[dict[str, Any]]] = [[] for _ in item.tables or [None]]
        for place, length in ((0, middle), (middle, len(payloads) - middle)):
            if not length:
                continue
            piece = payloads.slice(place, length)
            at = None if positions is None else positions.slice(place, length)
            if item.tables:
                for name, batch in decoder.tables_batches(piece, item.tables, at):
                    rows[item.tables.index(name)] += lines(batch)
            else:
                rows[0] += lines(decoder.decode(piece, at))
        decoder.save(target)
        return rows

    def _spark(
        self, item: Workload, source: Path, target: Path, previous: Path | None, rng: random.Random
    ) -> list[list[dict[str, Any]]]:
        from spark_udfs import decode_files

        for _ in range(self.kills):
            words = self._words(item, source, target, previous)
            self._kill([*words, "--engine", "spark"], rng, seconds=(3, 12))
        what: Any = item.tables or "changes"
        route = rng.choice(["files", "files", "dataframe"])
        # Without a run before, it is not known whether an output is that of the same call.
        if not (target.exists() and previous is None):
            decode_files(self.spark, source, target, what=what, route=route, resume=previous, **item.options)
        folders = [target / name for name in item.tables] or [target]
        return [[row for part in sorted(folder.glob("part-*")) for row in rows_of(part)] for folder in folders]

    def _functions(
        self, item: Workload, source: Path, target: Path, previous: Path | None
    ) -> list[list[dict[str, Any]]]:
        from spark_udfs import changes, replication_state, table_changes

        rows = self.spark.read.parquet(str(source))
        if item.tables:
            made = [table_changes(rows, name, state=previous, years="any", **item.options) for name in item.tables]
        else:
            made = [changes(rows, state=previous, **item.options)]
        found = [[row for batch in frame.toArrow().to_batches() for row in lines(batch)] for frame in made]
        drop_duplicates = item.options["drop_duplicates"]
        replication_state(rows, state=previous, drop_duplicates=drop_duplicates).save(target)
        return found

    def _shell(
        self,
        item: Workload,
        source: Path,
        target: Path,
        previous: Path | None,
        state: Path,
        engine: str,
        rng: random.Random,
    ) -> list[list[dict[str, Any]]]:
        words = self._words(item, source, target, previous if engine == "resume" else None)
        words += ["--batch-rows", str(rng.choice([7, 500, 9999]))]
        if engine == "state":
            words += ["--state", str(state)]
        complete = False
        for _ in range(self.kills):
            self._kill(words, rng)
            complete = target.exists()
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            code = main(words)
        # Without a state it is not known whether an output is that of the same call.
        if code == 2 and complete and previous is None and engine == "resume" and "exists already" in said.getvalue():
            code = 0
        if code:
            raise AssertionError(said.getvalue())
        return [rows_of(target / f"{name}.parquet") for name in item.tables or ["changes"]]

    def _words(self, item: Workload, source: Path, target: Path, previous: Path | None) -> list[str]:
        """Make the command of a run."""
        words = ["decode", str(source), str(target), "--mode", item.options["mode"]]
        words += [word for name in item.tables for word in ("--table", name)] or ["--changes"]
        words += [f"--{name.replace('_', '-')}" for name, value in item.options.items() if value is True]
        return words if previous is None else [*words, "--resume", str(previous)]

    def _kill(self, words: list[str], rng: random.Random, seconds: tuple[float, float] = (0.2, 1.0)) -> None:
        """Start a call and kill it, unless it ends before."""
        by_call = rng.random() < 0.7
        code = [KILLED, str(rng.randrange(45) if by_call else -1), rng.choice(["before", "after"])]
        with subprocess.Popen([sys.executable, "-c", *code, *words], stderr=subprocess.PIPE) as process:
            if not by_call:
                time.sleep(rng.uniform(*seconds))
                process.kill()
            process.communicate()
        self.killed += process.returncode == -signal.SIGKILL


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Read a Parquet file."""
    return [row for batch in pq.read_table(path).to_batches() for row in lines(batch)]


def lines(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Convert rows to JSON values, because Python has no dates of all years."""
    write = change_lines if "op" in batch.schema.names else table_lines
    return [json.loads(line) for line in write(batch)]


def sparse(row: dict[str, Any]) -> dict[str, Any]:
    """Leave out nulls: a later run may know more columns of a table. Values become text: it may know wider types."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            value = sparse(value) or None
        elif name not in ("old", "new") and not isinstance(value, list | None):
            value = str(value)
            # A time is a string on Spark, as the server wrote it.
            if re.fullmatch(r"\d\d:\d\d:\d\d(\.\d{1,5})?", value):
                value = f"{value.partition('.')[0]}.{value.partition('.')[2]:0<6}"
        if value is not None:
            found[name] = value
    return found


def trials(seeds: Sequence[int], kills: int = 0, spark: Any = None) -> list[Trial]:
    """Run trials, one for each seed."""
    found = []
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            found.append(Trial(seed, kills, spark=spark).run(Path(folder)))
    return found


def command() -> int:
    """Run the campaign, and print what is wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--killed", type=int, default=100, help="processes to kill")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(24))
    parser.add_argument("--captures", action="store_true", help="also cut each capture at one, two and five places")
    parser.add_argument("--spark", action="store_true", help="use the engines of Spark too")
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        spark = None
        if given.spark:
            from spark_udfs.runtime.session import local_session

            spark = stack.enter_context(local_session("local[1]", {"spark.sql.shuffle.partitions": "2"}))
        return campaign(given, spark)


def campaign(given: argparse.Namespace, spark: Any) -> int:
    """Run trials until there are enough, and enough processes were killed."""
    done: list[Trial] = []
    for name in captures.NAMES if given.captures else ():
        for n_cuts in (1, 2, 5):
            with tempfile.TemporaryDirectory() as folder:
                done.append(Trial(given.seed + n_cuts, spark=spark, name=name, n_cuts=n_cuts).run(Path(folder)))
            print(*done[-1].problems, sep="\n", end="\n" if done[-1].problems else "", flush=True)
    for seed in range(given.seed, given.seed + given.trials):
        done += trials([seed], spark=spark)
        if done[-1].problems:
            print(*done[-1].problems, sep="\n", flush=True)
    seed = given.seed + given.trials
    while sum(item.killed for item in done) < given.killed:
        # Spark takes some seconds to start, so few of its drivers are killed.
        done += trials([seed], kills=2, spark=spark if seed % 10 == 0 else None)
        seed += 1
        if done[-1].problems:
            print(*done[-1].problems, sep="\n", flush=True)
    engines = Counter(engine for item in done for engine in item.engines)
    bad = [item for item in done if item.problems]
    print(
        json.dumps(
            {
                "seed": given.seed,
                "trials": len(done),
                "runs": engines,
                "killed": sum(item.killed for item in done),
                "bad": len(bad),
            }
        )
    )
    return bool(bad)


if __name__ == "__main__":
    sys.exit(command())
