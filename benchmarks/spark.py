"""Benchmark of the routes on Spark, compared with the same jobs without decoding: `python -m benchmarks.spark`."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from shutil import rmtree
from time import perf_counter
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq

import pgdecode
from benchmarks.datasets import BATCH_ROWS, load
from pgdecode.datasets.manifest import Manifest
from pgdecode.datasets.new_files import NewFiles
from pgdecode.datasets.state import State
from pgdecode.datasets.target import target_at
from pgdecode.files.payload_files import payload_files
from pgdecode.files.writers import CHANGE_LAYOUT, TABLE_LAYOUT, Layout, message_layout
from pgdecode.rows.options import Options
from spark_udfs.dataframes.frame_options import FrameOptions

try:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    from spark_udfs import changes, decode_files, parse_pgoutput, table_changes
    from spark_udfs.columns.udf_adapters import adapter_named, user_defined
    from spark_udfs.dataframes.changes import indexed_rows
    from spark_udfs.dataframes.partition_worker import PackedIndex
    from spark_udfs.jobs import file_route
    from spark_udfs.jobs.file_tasks import Task
    from spark_udfs.jobs.output_committer import Part, commit, new_part
    from spark_udfs.runtime.session import for_workers, local_session
    from spark_udfs.runtime.tasks import run_tasks
    from spark_udfs.runtime.worker import ScalarFunction
except ImportError as problem:
    sys.exit(f"{problem}\nthis needs the compiled package and extras: python -m pip install -e '.[spark]'")

DATA_SET = "pgbench.text"
TABLE = "public.pgbench_accounts"
FIELDS = ("kind", "xid", "relation_id")
FULL_ROWS, QUICK_ROWS = 10_000_000, 1_000_000
FILES = 8
SAMPLE = 40_000  # payloads from which constant rows are made
SMALL_FILES, SMALL_ROWS = 1000, 2000
# The floor of a case is the same job without decoding, or with the rows in few files. Its name is the name of the case
# and one of these.
FEW_FILES = f"the same rows in {FILES} files"
ONE_PASS = "one pass"
FLOORS = ("constant rows", "constant fields", "no decoding", FEW_FILES, ONE_PASS)

# The jobs of one table from files to files are the largest. A quick run has the same size, but fewer rounds.
GROUPS = ("columns", "files", "dataframes", "table", "small", "passes")
LARGE = "table"
# Many small files, and the index before the decoding, only on request. The figures are CPU seconds of all processes.
SMALL, PASSES = "small", "passes"
# Rounds of cases with a floor. Short jobs have more rounds, so that their ratios are stable. Cases without a floor,
# such as the slow routes to files, run only in some rounds.
QUICK_ROUNDS = {"columns": 21, "files": 9, "dataframes": 9, "table": 7, "small": 7, "passes": 7}
QUICK_ROUNDS_ALONE = 3
FULL_ROUNDS = 7
Cases = dict[str, Callable[[], object]]


@dataclass(frozen=True)
class Constant:
    """For `mapInArrow`: returns rows made before, `share` rows for each row of the input."""

    rows: pa.RecordBatch
    share: float

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches of the same size as decoded ones."""
        owed = 0.0
        for batch in batches:
            owed += batch.num_rows * self.share
            while owed >= len(self.rows):
                yield self.rows
                owed -= len(self.rows)
        yield self.rows.slice(0, round(owed))


class ConstantFields(ScalarFunction):
    """For `arrow_udf`: returns structs made before."""

    def __init__(self, rows: pa.StructArray) -> None:
        self.rows = rows

    def __call__(self, payloads: pa.Array, in_stream: pa.Array | None = None) -> pa.StructArray:
        """Return one struct per payload."""
        return self.rows.slice(0, len(payloads))


@dataclass(frozen=True)
class Copying:
    """The work of a file job without decoding: reads the same columns, and writes rows made before."""

    files: NewFiles
    rows: Constant
    layout: Layout

    def __call__(self, task: Task) -> list[Part]:
        """Write the part of a task."""
        parts: list[Part] = []
        schema = self.rows.rows.schema
        with new_part(self.files, "", task.number, "parquet", schema, self.layout, 1, parts, {}) as write:
            for piece in task.pieces:
                for batch in self.rows(piece.batches(BATCH_ROWS)):
                    write(batch)
        return parts


def landed(folder: Path, n_rows: int, n_files: int = FILES) -> str:
    """Write payloads to files, with their positions."""
    folder.mkdir()
    payloads = load(DATA_SET, n_rows).payloads
    # Not at round numbers, where the recording may begin again as after a lost connection.
    bounds = [0, *(number * n_rows // n_files + 3 for number in range(1, n_files)), n_rows]
    for number, (start, end) in enumerate(pairwise(bounds)):
        positions = pa.array(range(start, end), pa.int64())
        pq.write_table(
            pa.table({"seq": positions, "data": payloads.slice(start, end - start)}), folder / f"{number:05}.parquet"
        )
    return str(folder)


def cpu_seconds() -> float:
    """Return the CPU time of this process and of all processes below it: the driver and the workers of Spark."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = place.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        number = int(place.parent.name)
        parents[number] = int(fields[1])
        # In user and system mode, its own and those of children that have ended.
        ticks[number] = sum(map(int, fields[11:15]))
    found, new = set[int](), {os.getpid()}
    while new:
        found |= new
        new = {number for number, parent in parents.items() if parent in new}
    return sum(ticks[number] for number in found) / os.sysconf("SC_CLK_TCK")


def decoded_to(target: Path, spark: SparkSession, source: str, what: str) -> Callable[[], None]:
    """Make a function that decodes files to an empty folder."""

    def run() -> None:
        rmtree(target, ignore_errors=True)
        decode_files(spark, source, target, what=what)

    return run


def of_passes(spark: SparkSession, folder: Path) -> Cases:
    """Make the cases without speculation: all files are read for the index, and then again by the tasks that decode."""
    source = landed(folder / "raw", SMALL_FILES * SMALL_ROWS)
    cases: Cases = {}

    def without_speculation(run: Callable[[], None]) -> Callable[[], None]:
        def patched() -> None:
            with mock.patch.object(file_route, "speculation_of", return_value=None):
                run()

        return patched

    for what in ("changes", TABLE):
        name, run = f"decode_files, {what}, two passes", decoded_to(folder / "out", spark, source, what)
        cases[f"{name}: {ONE_PASS}"] = run
        cases[name] = without_speculation(run)
    return cases


def of_small_files(spark: SparkSession, folder: Path) -> Cases:
    """Make the cases of many small files."""
    n_rows = SMALL_FILES * SMALL_ROWS
    many, few = landed(folder / "many", n_rows, SMALL_FILES), landed(folder / "few", n_rows)
    decoded = partial(decoded_to, folder / "out", spark)
    cases: Cases = {}
    for what in ("messages", "changes", TABLE):
        name = f"decode_files, {what}, {SMALL_FILES} files"
        cases[f"{name}: {FEW_FILES}"] = decoded(few, what)
        cases[name] = decoded(many, what)
    return cases


OF_CPU = {SMALL: of_small_files, PASSES: of_passes}


def decoded_sample(what: str) -> pa.RecordBatch:
    """Decode a sample of the rows of a case."""
    payloads = load(DATA_SET, SAMPLE).payloads
    if what == "messages":
        return pgdecode.decode_messages(payloads, in_stream="auto")
    decoder = pgdecode.ChangeDecoder()
    return decoder.decode(payloads) if what == "changes" else decoder.table(payloads, TABLE)


def constant(df: DataFrame, like: DataFrame, n_rows: int) -> DataFrame:
    """Make a DataFrame with as many rows and the same columns as a result, without decoding."""
    rows = decoded_sample(TABLE if "_op" in like.columns else "changes")
    function = Constant(rows.select(like.columns), like.count() / n_rows)
    with for_workers():
        return df.select("seq", "data").mapInArrow(function, StructType(like.schema.fields))


def done(df: DataFrame) -> Callable[[], None]:
    """Make a function that computes all rows and drops them."""
    return lambda: df.write.format("noop").mode("overwrite").save()


def of_dataframes(df: DataFrame, n_rows: int) -> Cases:
    """Make the cases of changes and tables as DataFrames."""
    all_changes, of_table = changes(df), table_changes(df, TABLE)
    some = table_changes(df, TABLE, fields=[name for name in of_table.columns if not name.startswith("_old")])
    cases: Cases = {
        "scan in the JVM": lambda: df.agg(F.sum(F.length("data"))).collect(),
        "index": lambda: indexed_rows(df, FrameOptions(), Options())[0],
    }
    for name, found in (("changes", all_changes), (TABLE, of_table), (f"{TABLE} without _old", some)):
        cases[f"{name}: constant rows"] = done(constant(df, found, n_rows))
        cases[name] = done(found)
    return cases


def of_columns(df: DataFrame) -> Cases:
    """Make the cases of a column function with three fields."""
    name = f"parse_pgoutput, {len(FIELDS)} fields"
    payloads = load(DATA_SET, SAMPLE).payloads
    rows = pgdecode.decode_messages(payloads, in_stream="auto", fields=FIELDS).to_struct_array()
    cases: Cases = {name: done(df.select(parse_pgoutput("data", fields=FIELDS).alias("m")))}
    if adapter_named("auto") == "arrow":
        function = user_defined("arrow", ConstantFields(rows), pa.schema(list(rows.type)))
        cases = {f"{name}: constant fields": done(df.select(function("data").alias("m"))), **cases}
    return cases


@dataclass(frozen=True)
class Routes:
    """Routes from files to files."""

    df: DataFrame
    source: str
    folder: Path

    def of_table(self) -> Cases:
        """Make the cases of one table."""
        return {
            **self._beside_copy(TABLE, TABLE_LAYOUT),
            "table_changes(...).write.parquet": self._written(
                lambda target: table_changes(self.df, TABLE).write.parquet(str(target))
            ),
        }

    def of_others(self) -> Cases:
        """Make the cases of changes and messages, and of writing by Spark itself."""
        return {
            **self._beside_copy("changes", CHANGE_LAYOUT),
            **self._beside_copy("messages", message_layout()),
            "parse_pgoutput, all fields, write.parquet": self._written(
                lambda target: (
                    self.df.select(parse_pgoutput("data").alias("m")).select("m.*").write.parquet(str(target))
                )
            ),
        }

    def _beside_copy(self, what: str, layout: Layout) -> Cases:
        spark, source = self.df.sparkSession, self.source
        rows = decoded_sample(what)
        constant_rows = Constant(rows, len(rows) / SAMPLE)
        keep = () if what == "messages" else ("seq",)

        def copy(target: Path) -> None:
            tasks = file_route.cut(spark, payload_files(Path(source), "data", keep))
            with target_at(target).begin((what,), {}) as run:
                work = Copying(run.files, constant_rows, layout)
                parts = [part for found in run_tasks(spark, work, tasks) for part in found]
                written = commit(run, parts, {task.number: [] for task in tasks})
                run.commit(Manifest("spark", (what,), files=written.files), State())

        name = f"decode_files, {what}"
        return {
            f"{name}: no decoding": self._written(copy),
            name: self._written(lambda target: decode_files(spark, source, target, what=what)),
        }

    def _written(self, work: Callable[[Path], object]) -> Callable[[], None]:
        def run() -> None:
            target = self.folder / "out"
            rmtree(target, ignore_errors=True)
            work(target)

        return run


def floor_of(name: str, names: Iterable[str]) -> str | None:
    """Find the floor of a case."""
    return next((found for word in FLOORS if (found := f"{name}: {word}") in names), None)


def measured(
    cases: Cases, n_rounds: int, n_alone: int, clock: Callable[[], float] = perf_counter
) -> dict[str, list[float]]:
    """Time all cases round by round, every second round in reverse order. The first round is not counted.

    Cases without a floor that are not a floor themselves come first, and only in the first `n_alone` rounds. After them
    the other cases run once without timing. Otherwise the next case or floor would find the workers' memory cold.
    """
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    floors = {name: floor for name in cases if (floor := floor_of(name, cases))}
    paired = [name for name in cases if name in floors or name in floors.values()]
    alone = [name for name in cases if name not in paired]

    def run(names: Sequence[str], number: int) -> None:
        for name in names[:: -1 if number % 2 else 1]:
            start = clock()
            cases[name]()
            if number:
                seconds[name].append(clock() - start)

    for number in range(n_rounds + 1):
        if alone and number <= n_alone:
            run(alone, number)
            run(paired, 0)
        run(paired, number)
    return seconds


def summary(seconds: dict[str, list[float]], n_rows: int) -> dict[str, dict[str, float | None]]:
    """Compute the median of each case, and the median of its ratios to its floor over all rounds.

    The spread is the interquartile range of the ratios.
    """
    found: dict[str, dict[str, float | None]] = {}
    for name, taken in seconds.items():
        floor = floor_of(name, seconds)
        ratio, spread = None, None
        if floor:
            ratios = [a / b for a, b in zip(taken, seconds[floor], strict=True)]
            quartiles = statistics.quantiles(ratios, method="inclusive")
            ratio, spread = quartiles[1], quartiles[2] - quartiles[0]
        found[name] = {
            "median": statistics.median(taken),
            "floor_ratio": ratio,
            "floor_spread": spread,
            "rounds": len(taken),
            "rows": n_rows,
        }
    return found


def shown(cases: dict[str, dict[str, float | None]]) -> list[str]:
    """Format the median, the payloads per second and the ratio to the floor of each case."""
    texts = []
    for name, case in cases.items():
        median, ratio, n_rows = case["median"] or 0.0, case["floor_ratio"], case["rows"] or 0
        comparison = ""
        if ratio is not None:
            than = next((word for word in (FEW_FILES, ONE_PASS) if f"{name}: {word}" in cases), "without decoding")
            comparison = f"{ratio:6.2f} x {than}, quartiles {case['floor_spread']:.2f} apart, {case['rounds']} rounds"
        texts.append(f"{name:52} {median:8.2f} s {n_rows / median / 1e6:8.2f} M payloads/s {comparison}".rstrip())
    return texts


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark", description=__doc__)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="fewer rounds, and fewer payloads except for the cases of one table",
    )
    parser.add_argument("--rows", type=int, metavar="N", help=f"number of payloads, at least {SAMPLE}")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds of every case, at least 2")
    parser.add_argument("--only", choices=GROUPS, help="one group of cases")
    parser.add_argument("--master", default="local[2]", help="master URL of Spark")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure here")
    asked = parser.parse_args(arguments)
    if asked.rounds is not None and asked.rounds < 2:
        parser.error("--rounds is at least 2")
    if asked.rows is not None and asked.rows < SAMPLE:
        parser.error(f"--rows is at least {SAMPLE}, the payloads from which constant rows are made")
    found: dict[str, dict[str, float | None]] = {}
    seconds: dict[str, list[float]] = {}
    n_bytes = 0
    n_usual = asked.rows or (QUICK_ROWS if asked.quick else FULL_ROWS)
    groups = [group for group in GROUPS if group == asked.only or (asked.only is None and group not in OF_CPU)]
    with local_session(asked.master) as spark:
        for n_rows, chosen in (
            (n_usual, [group for group in groups if group not in (LARGE, *OF_CPU)]),
            (asked.rows or FULL_ROWS, [group for group in groups if group == LARGE]),
        ):
            if not chosen:
                continue
            with tempfile.TemporaryDirectory() as folder:
                raw = Path(folder, "raw")
                routes = Routes(spark.read.parquet(landed(raw, n_rows)), str(raw), Path(folder))
                taken: dict[str, list[float]] = {}
                for group in chosen:
                    taken.update(measured(cases_of(group, routes, n_rows), *rounds_of(group, asked)))
                seconds.update(taken)
                found.update(summary(taken, n_rows))
                indexes = indexed_rows(routes.df, FrameOptions(), Options())[0].indexes
                n_bytes = sum(len(PackedIndex.of(item.source, item.index, item.counts).index) for item in indexes)
            print(f"{n_rows:,} payloads of {DATA_SET} in {FILES} files, {asked.master}; the index is {n_bytes:,} bytes")
            print(*shown({name: found[name] for name in taken}), sep="\n")
        for group in [group for group in groups if group in OF_CPU]:
            with tempfile.TemporaryDirectory() as folder:
                taken = measured(OF_CPU[group](spark, Path(folder)), *rounds_of(group, asked), cpu_seconds)
            seconds.update(taken)
            found.update(summary(taken, SMALL_FILES * SMALL_ROWS))
            print(f"{SMALL_FILES * SMALL_ROWS:,} payloads of {DATA_SET}, {asked.master}, CPU seconds")
            print(*shown({name: found[name] for name in taken}), sep="\n")
    if asked.json:
        about = {"rows": n_usual, "data_set": DATA_SET, "master": asked.master, "index_bytes": n_bytes}
        asked.json.write_text(json.dumps({**about, "lines": found, "seconds": seconds}, indent=1))


def rounds_of(group: str, asked: argparse.Namespace) -> tuple[int, int]:
    """Choose the rounds of cases with a floor, and of the others."""
    if asked.rounds:
        return asked.rounds, asked.rounds
    return (QUICK_ROUNDS[group], QUICK_ROUNDS_ALONE) if asked.quick else (FULL_ROUNDS, FULL_ROUNDS)


def cases_of(group: str, routes: Routes, n_rows: int) -> Cases:
    """Make the cases of a group."""
    if group == "columns":
        return of_columns(routes.df)
    if group == "dataframes":
        return of_dataframes(routes.df, n_rows)
    return routes.of_table() if group == LARGE else routes.of_others()


if __name__ == "__main__":
    main()
