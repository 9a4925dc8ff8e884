"""Cut sequences into calls, each on an engine picked at random, and compare the data set with one call over all of it.

    make runs                                                          hundreds of sequences, a hundred killed processes
    PYTHONPATH=tests:tests/datasets python -m run_campaign --trials 20 --seed 1 --spark --stores some

A trial takes a recorded capture or a random slot, as messages, changes or tables, and cuts it at one to four random
places. Before each call, files with the payloads up to the next cut come to the input; sometimes decoded files are
deleted, moved or written anew, and output files are moved away. The engines are the shell, Python (`load` and `save`)
and, with --spark, `decode_files`, the shell with Spark, and functions of DataFrames. With --stores, input and data set
are in emulators of object stores.

In some trials, calls of the shell get SIGKILL, at a random moment or just before or after a random file operation or
request to a store. Then the same call is made again. In between, readers see no file that is not committed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import os
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

import pyarrow.parquet as pq
import pytest
from run_workload import Row, lines, rows_in, sequence, sparse, without_names

from pgdecode import ChangeDecoder
from pgdecode.cli.main import main
from support import captures
from support.data_sets import folder_of, is_hidden, local, matched, objects, stored
from support.emulators import ENVIRONMENT, Emulator, azure_emulator, s3_emulator

HAS_SPARK = importlib.util.find_spec("pyspark") is not None

# Wraps what changes files and objects, and kills the process just before or after call number argv[1].
ARM = """
import itertools, json, os, signal, sys
from pgdecode.cli.main import main
import pgdecode.cli.decode_command
def arm(number, when, words):
    calls = itertools.count()
    def killing(function):
        def call(*args, **options):
            mine = next(calls)
            if mine == number and when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                return function(*args, **options)
            finally:
                if mine == number and when == "after":
                    os.kill(os.getpid(), signal.SIGKILL)
        return call
    for name in ("rename", "replace", "link", "unlink", "rmdir", "mkdir", "fsync"):
        setattr(os, name, killing(getattr(os, name)))
    if any("://" in word for word in words):
        import obstore
        for name in ("put", "delete", "open_writer", "list", "head"):
            setattr(obstore, name, killing(getattr(obstore, name)))
"""
KILLED = f"""{ARM}
arm(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
print("begin", flush=True)
sys.exit(main(sys.argv[3:]))
"""


@dataclass
class Trial:
    """One sequence, cut into calls."""

    seed: int
    kills: int = 0
    spark: Any = None  # a session, to use the engines of Spark too
    store: Emulator | None = None  # where input and data set are, if not in folders
    capture: Path | None = None  # by default, a capture or a random slot is chosen
    n_cuts: int | None = None
    allowed: Sequence[str] = ("shell", "python", "spark", "functions")
    problems: list[str] = field(default_factory=list)
    engines: list[str] = field(default_factory=list)
    killed: int = 0

    def run(self, folder: Path) -> Trial:
        """Decode in calls, and compare."""
        rng = self.rng = random.Random(self.seed)
        item = self.item = sequence(rng, folder / "whole", self.capture)
        n, least = len(item.payloads), item.described(folder / "prefix")
        cuts = [0, *sorted(rng.randint(least, n) for _ in range(self.n_cuts or rng.randint(1, 4))), n]
        where = f"seed {self.seed}: {item.name}, {item.what}, cut at {cuts}, {item.options}"
        self.folder = folder
        self.raw, self.out = folder / "raw", folder / "out"
        self.raw.mkdir()
        # Spark and Python know files with positions; text has none here.
        self.form = "files" if item.positions is not None else rng.choice(["files", "rewritten", "text"])
        self.source = {"rewritten": "raw.parquet", "text": "raw.txt"}.get(self.form, "raw")
        bucket = None if self.store is None or self.form != "files" else self.store.new_bucket()
        self.root = str(folder) if bucket is None else bucket
        self.data_set = local(self.out) if self.store is None or bucket is None else stored(f"{bucket}/out", self.store)
        self.rows: list[list[Row]] = [[] for _ in item.folders]
        try:
            for number, (start, end) in enumerate(pairwise(cuts)):
                self._disturb(number)
                self._write(start, end)
                self._call(start, end)
                self._move_outputs()
            if not self.moved:
                self.data_set.checked()
            self._compare()
            self._check_nothing_new()
        except Exception as error:
            self.problems.append(f"{where}, by {self.engines}: {type(error).__name__}: {error}")
        return self

    # -- input and output --------------------------------------------------------------------------------------------

    moved: bool = False

    def _write(self, start: int, end: int) -> None:
        """Write payloads to the input, as one to three files."""
        item, rng = self.item, self.rng
        size = rng.choice([50, 10_000])
        if self.form == "rewritten":
            item.write(self.folder / "raw.parquet", 0, end, size)
            return
        if self.form == "text":
            with open(self.folder / "raw.txt", "a") as file:
                file.write("".join(f"\\x{payload.hex()}\n" for payload in item.payloads[start:end].to_pylist()))
            return
        # A decoder that is saved knows the range of its positions. With holes, that tells only of one file.
        n_more = 0 if item.has_holes and {"python", "functions"} & {*self.allowed} else rng.randrange(3)
        bounds = [start, *sorted(rng.randint(start, end) for _ in range(n_more)), end]
        for low, high in pairwise(bounds):
            if low == high and low != start:
                continue
            # Without positions, names give the order.
            name = f"{low:09}-{high:09}.parquet" if item.positions is None else f"{rng.getrandbits(64):x}.parquet"
            day = f"day={start:09}"
            (self.raw / day).mkdir(exist_ok=True)
            item.write(self.raw / day / name, low, high, size)
        self._upload()

    def _upload(self) -> None:
        """Make the objects of the store the files of the folder."""
        if self.root == str(self.folder):
            return
        import obstore

        store = self._objects()
        wanted = {f"raw/{path.relative_to(self.raw).as_posix()}": path for path in self.raw.rglob("*.parquet")}
        there = {item["path"] for chunk in obstore.list(store, prefix="raw") for item in chunk}
        for key in there - set(wanted):
            obstore.delete(store, [key])
        for key in sorted(set(wanted) - there):
            obstore.put(store, key, wanted[key])

    def _objects(self) -> Any:
        assert self.store is not None
        return objects(self.root, self.store)

    def _disturb(self, number: int) -> None:
        """Do to decoded files what users may do."""
        files = sorted(self.raw.rglob("*.parquet"))
        if not number or not files or self.item.positions is None:
            return
        for path in files:
            change = self.rng.random()
            if change < 0.15:
                path.unlink()
            elif self.item.what == ["messages"]:
                continue  # a file that is new by its name is decoded
            elif change < 0.25:
                path.rename(path.with_name(f"moved-{path.name}"))
            elif change < 0.35:
                os.utime(path, (number, number))
            elif change < 0.4:
                pq.write_table(pq.read_table(path, partitioning=None), path, compression="zstd")

    def _move_outputs(self) -> None:
        """Sometimes take the rows of the output files away, as a loader does."""
        if self.store is not None or self.rng.random() > 0.2:
            return
        for name, content in self.data_set.outputs().items():
            output = 0 if len(self.rows) == 1 else self.item.folders.index(folder_of(name))
            self.rows[output] += rows_in(content)
            (self.out / name).unlink()
            self.moved = True

    # -- calls -------------------------------------------------------------------------------------------------------

    def _call(self, start: int, end: int) -> None:
        item, rng = self.item, self.rng
        engines = ["shell", "shell"]
        # Decoders and DataFrames do not know files: only positions tell the shell what they have decoded.
        if item.positions is not None and item.what != ["messages"] and self.root == str(self.folder):
            engines += ["python"] + ["functions"] * (self.spark is not None)
        # Of messages, the shell and Spark have other defaults of `in_stream`: one of them decodes all.
        if self.spark is not None and item.positions is not None and item.what != ["messages"]:
            engines += ["spark"] * 3
        engine = rng.choice([name for name in engines if name in self.allowed])
        self.engines.append(engine)
        getattr(self, f"_{engine}")(start, end)

    def _words(self, engine: str) -> list[str]:
        words = ["decode", f"{self.root}/{self.source}", f"{self.root}/out", *self.item.words]
        if engine == "spark":
            words += ["--engine", "spark"]
        if self.root != str(self.folder):
            assert self.store is not None
            words += self.store.shell
        return words

    def _shell(self, start: int, end: int) -> None:
        words = self._words("local")
        n = len(self.item.payloads)
        words += ["--batch-rows", str(self.rng.choice([max(7, n // 300), 500, 9999]))]
        for _ in range(self.kills):
            self._kill(words)
        self._succeed(words)

    def _succeed(self, words: list[str]) -> str:
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            code = main(words)
        if code:
            raise AssertionError(said.getvalue())
        return said.getvalue()

    def _spark(self, start: int, end: int) -> None:
        from spark_udfs import decode_files

        if self.kills:
            self._kill(self._words("spark"), seconds=(3, 12))
        options = self.store.options if self.store is not None and self.root != str(self.folder) else None
        item = self.item
        what: Any = item.what[0] if len(item.what) == 1 else item.what
        decode_files(
            self.spark,
            f"{self.root}/{self.source}",
            f"{self.root}/out",
            what=what,
            storage_options=options,
            **item.options,
        )

    def _python(self, start: int, end: int) -> None:
        """Load the decoder, decode what has come since, and save it."""
        item, rng = self.item, self.rng
        options = dict(item.options)
        if rng.random() < 0.5:
            options |= {"spill": self.folder / "spill", "max_held_bytes": rng.choice([0, 1000])}
        decoder = ChangeDecoder.load(self.out, **options) if self.engines[:-1] else ChangeDecoder(**options)
        # Two calls, so that transactions are also cut inside a run. The first one must describe the tables.
        is_first = len(self.engines) == 1
        middle = start if item.what != ["changes"] and is_first else rng.randint(start, end)
        for low, high in ((start, middle), (middle, end)):
            if low == high:
                continue
            payloads = item.payloads.slice(low, high - low)
            positions = None if item.positions is None else item.positions.slice(low, high - low)
            if item.what == ["changes"]:
                self.rows[0] += map(sparse, lines(decoder.decode(payloads, positions)))
            else:
                for name, batch in decoder.tables_batches(payloads, item.what, positions):
                    self.rows[item.what.index(name)] += map(sparse, lines(batch))
        decoder.save(self.out)

    def _functions(self, start: int, end: int) -> None:
        from spark_udfs import changes, replication_state, table_changes

        item = self.item
        path = self.folder / "frame.parquet"
        item.write(path, start, end)
        rows = self.spark.read.parquet(str(path))
        state = self.out if self.engines[:-1] else None
        if item.what == ["changes"]:
            made = [changes(rows, state=state, **item.options)]
        else:
            made = [table_changes(rows, name, state=state, years="any", **item.options) for name in item.what]
        for output, frame in zip(self.rows, made, strict=True):
            output += [row for batch in frame.toArrow().to_batches() for row in map(sparse, lines(batch))]
        replication_state(rows, state=state, **self._of_sequence()).save(self.out)

    def _of_sequence(self) -> dict[str, Any]:
        return {"drop_duplicates": self.item.options["drop_duplicates"]}

    def _kill(self, words: list[str], seconds: tuple[float, float] = (0.0, 0.8)) -> None:
        """Start a call and kill it, unless it ends before. Readers see only what is committed."""
        rng = self.rng
        by_call = rng.random() < 0.7
        code = [KILLED, str(rng.randrange(45) if by_call else -1), rng.choice(["before", "after"])]
        command = [sys.executable, "-c", *code, *words]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            if not by_call:
                assert process.stdout is not None
                process.stdout.readline()
                time.sleep(rng.uniform(*seconds))
                process.kill()
            process.communicate()
        self.killed += process.returncode == -signal.SIGKILL
        if self.root == str(self.folder):
            named = {file["name"] for manifest in self.data_set.manifests() for file in manifest["files"]}
            assert set(self.data_set.outputs()) <= named, "a reader sees rows that are not committed"
        else:
            contents = self.data_set.contents()
            logged = [json.loads(content) for name, content in contents.items() if matched(name)]
            named = {file["name"] for manifest in logged for file in manifest["files"]}
            assert named <= {name for name in contents if not is_hidden(name)}, "a manifest names a missing file"

    # -- the result --------------------------------------------------------------------------------------------------

    def _compare(self) -> None:
        item = self.item
        assert item.decode(len(item.payloads), self.folder / "whole")
        data_set = local(self.folder / "whole" / "out")
        whole = data_set.outputs()
        renamed = {item["table"] for manifest in data_set.manifests() for item in manifest["renames"]}
        for below, more in zip(item.folders, self.rows, strict=True):
            found = more + self._rows(self.data_set.outputs(), below)
            expected = self._rows(whole, below)
            if below in renamed or (len(self.rows) == 1 and renamed & {*item.what}):
                # A call gives columns their last names, as far as it knows them.
                found, expected = (list(map(without_names, rows)) for rows in (found, expected))
            one, other = (sorted(rows, key=repr) for rows in (found, expected))
            if one != other:
                first = next(pair for pair in zip_longest(one, other) if pair[0] != pair[1])
                text = f"{below or item.what[0]} differs: {len(one)} rows, expected {len(other)}, first {first}"
                raise AssertionError(text)

    def _rows(self, outputs: dict[str, bytes], below: str) -> list[Row]:
        """Read the rows of an output. Messages are in the folders of their input files."""
        names = [name for name in outputs if len(self.rows) == 1 or folder_of(name) == below]
        return [row for name in names for row in rows_in(outputs[name])]

    def _check_nothing_new(self) -> None:
        before = self.data_set.contents()
        said = self._succeed(self._words("local"))
        assert "nothing new" in said, said
        assert self.data_set.contents() == before


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
    parser.add_argument("--captures", action="store_true", help="cut each recorded capture too")
    parser.add_argument("--spark", action="store_true", help="use the engines of Spark too")
    parser.add_argument("--stores", choices=["some", "all"], help="use object stores, for a third of the trials or all")
    parser.add_argument("--engines", nargs="+", default=Trial.allowed, help="the engines to use, if they can be used")
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        spark = None
        stores: list[Emulator] = []
        if given.stores:
            os.environ.update(ENVIRONMENT)
            stores = [stack.enter_context(emulator()) for emulator in (s3_emulator, azure_emulator)]
        if given.spark:
            from spark_udfs.runtime.session import local_session

            spark = stack.enter_context(local_session("local[1]", {"spark.sql.shuffle.partitions": "2"}))
        return campaign(given, spark, stores)


def campaign(given: argparse.Namespace, spark: Any, stores: Sequence[Emulator]) -> int:
    """Run trials until there are enough, and enough processes were killed."""
    done: list[Trial] = []
    places: list[Emulator | None] = [None]
    if stores:
        places = [*stores] if given.stores == "all" else [None, None, *stores[:1], None, None, *stores[1:]]

    def run(seed: int, **options: Any) -> None:
        place = places[len(done) % len(places)]
        done.extend(trials([seed], spark=options.pop("spark", spark), store=place, allowed=given.engines, **options))
        print(*done[-1].problems, sep="\n", end="\n" * bool(done[-1].problems), flush=True)

    for name in captures.NAMES if given.captures else ():
        for n_cuts in (1, 2, 5):
            run(given.seed + n_cuts, capture=captures.DATA / f"{name}.parquet", n_cuts=n_cuts)
    for seed in range(given.seed, given.seed + given.trials):
        run(seed)
    seed = given.seed + given.trials
    while sum(item.killed for item in done) < given.killed:
        # Spark takes some seconds to start, so few of its drivers are killed.
        run(seed, kills=2, spark=spark if seed % 10 == 0 else None)
        seed += 1
    engines = Counter(engine for item in done for engine in item.engines)
    bad = [item for item in done if item.problems]
    summary = {
        "seed": given.seed,
        "trials": len(done),
        "in stores": sum(item.store is not None for item in done),
        "calls": engines,
        "killed": sum(item.killed for item in done),
        "bad": len(bad),
    }
    print(json.dumps(summary))
    return bool(bad)


if __name__ == "__main__":
    try:
        sys.exit(command())
    except pytest.skip.Exception as lacking:  # an emulator
        sys.exit(f"run_campaign: {lacking}")
