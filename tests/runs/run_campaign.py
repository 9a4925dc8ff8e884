"""Cut sequences into runs, each on an engine picked at random, and compare their union with one run over everything.

The engines are Python, the shell, a stream over a growing folder and, with --spark, `decode_files`, the shell with
Spark, and functions of DataFrames.

    make runs                                                       hundreds of trials, a hundred killed processes
    PYTHONPATH=tests:tests/runs python -m run_campaign --trials 20 --seed 1 --spark

A trial takes a recorded capture or a random slot, as changes or as tables, and cuts it at one to four random places.
The oracle is one ChangeDecoder over all payloads. In some trials, calls of the shell get SIGKILL, at a random moment or
just before or after a random system call that changes names. Then the same call is made again.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import math
import random
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
from run_workload import Workload, lines, rows_of, sequence, sparse

from pgdecode import ChangeDecoder
from pgdecode.cli.main import main
from support import captures

HAS_SPARK = importlib.util.find_spec("pyspark") is not None
if HAS_SPARK:
    sys.path.insert(0, str(Path(__file__).parents[1] / "spark" / "sources"))
    from stream_engine import Query

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
class Trial:
    """One sequence, cut into runs."""

    seed: int
    kills: int = 0
    problems: list[str] = field(default_factory=list)
    engines: list[str] = field(default_factory=list)
    killed: int = 0
    spark: Any = None  # a session, to use the engines of Spark too
    capture: Path | None = None  # by default, a capture or a random slot is chosen
    n_cuts: int | None = None

    def run(self, folder: Path) -> Trial:
        """Decode in runs, and compare."""
        rng = random.Random(self.seed)
        item = sequence(rng, self.capture)
        n = len(item.payloads)
        least = item.described()
        cuts = [0, *sorted(rng.randint(least, n) for _ in range(self.n_cuts or rng.randint(1, 4))), n]
        n_with_state = rng.choice([0, 0, 0, rng.randrange(len(cuts)), len(cuts)])
        previous: Path | None = None
        rows: list[list[dict[str, Any]]] = [[] for _ in item.tables or [None]]
        where = f"seed {self.seed}: {item.name}, {item.tables or 'changes'}, cut at {cuts}"
        (folder / "in").mkdir()
        queries: list[Query] = []
        engines = ["python", "resume"]
        if item.positions is not None and HAS_SPARK:
            queries += [Query(options, convert=lines) for options in self._stream_options(item, folder / "in")]
            engines += ["stream", *["spark", "spark", "functions"] * (self.spark is not None)]
        for number, (start, end) in enumerate(pairwise(cuts)):
            source, target = folder / "in" / f"{number}.parquet", folder / f"out{number}"
            self._write(source, item, start, end, rng)
            engine = "state" if number < n_with_state else rng.choice(engines)
            self.engines.append(engine)
            try:
                if engine == "python":
                    found = self._python(item, start, end, previous, target, rng)
                elif engine == "spark":
                    found = self._spark(item, source, target, previous, rng)
                elif engine == "functions":
                    found = self._functions(item, source, target, previous)
                elif engine == "stream":
                    found = self._stream(item, start, end, previous, target, queries)
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
            if {"spark", "functions", "stream"} & set(self.engines):
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
        # Without a run before, it is not known whether an output is that of the same call.
        if not (target.exists() and previous is None):
            decode_files(self.spark, source, target, what=what, resume=previous, **item.options)
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

    def _stream_options(self, item: Workload, folder: Path) -> list[dict[str, str]]:
        options = {"path": str(folder), "mode": item.options["mode"]}
        options["drop_duplicates"] = str(item.options["drop_duplicates"]).lower()
        if not item.tables:
            return [{**options, "what": "changes"}]
        return [{**options, "what": name, "years": "any"} for name in item.tables]

    def _stream(
        self, item: Workload, start: int, end: int, previous: Path | None, target: Path, queries: list[Query]
    ) -> list[list[dict[str, Any]]]:
        """Start the queries again from their checkpoints. They also have the input of runs on other engines."""
        assert item.positions is not None
        payloads, positions = (column.slice(start, end - start) for column in (item.payloads, item.positions))
        found = []
        for query in queries:
            query.restart()
            query.step()
            first = item.positions[start].as_py() if start < end else math.inf
            prefix = "_" if item.tables else ""
            found.append([])
            for row in query.rows():
                commit = row.get(f"{prefix}commit_position")
                if (row[f"{prefix}position"] if commit is None else commit) >= first:
                    found[-1].append(row)
        # A stream has its state in its checkpoint.
        decoder = ChangeDecoder(**item.options) if previous is None else ChangeDecoder.load(previous, **item.options)
        if len(payloads):
            decoder.decode(payloads, positions)
        decoder.save(target)
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
        words += ["--batch-rows", str(rng.choice([max(7, len(item.payloads) // 300), 500, 9999]))]
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


def trials(seeds: Sequence[int], **options: Any) -> list[Trial]:
    """Run trials, one for each seed."""
    found = []
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            found.append(Trial(seed, **options).run(Path(folder)))
    return found


def command() -> int:
    """Run the campaign, and print what is wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--killed", type=int, default=100, help="processes to kill")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(24))
    parser.add_argument(
        "--captures",
        type=Path,
        nargs="?",
        const=captures.DATA,
        metavar="FOLDER",
        help="cut each of these too",
    )
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

    def run(seed: int, **options: Any) -> None:
        done.extend(trials([seed], spark=options.pop("spark", spark), **options))
        print(*done[-1].problems, sep="\n", end="\n" * bool(done[-1].problems), flush=True)

    for capture in sorted(given.captures.glob("*.parquet")) if given.captures else ():
        for n_cuts in (1, 2, 5):
            run(given.seed + n_cuts, capture=capture, n_cuts=n_cuts)
    for seed in range(given.seed, given.seed + given.trials):
        run(seed)
    seed = given.seed + given.trials
    while sum(item.killed for item in done) < given.killed:
        # Spark takes some seconds to start, so few of its drivers are killed.
        run(seed, kills=2, spark=spark if seed % 10 == 0 else None)
        seed += 1
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
