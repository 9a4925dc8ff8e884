"""Changes and tables on Spark beside the least that Spark does for as many rows: `python -m benchmarks.spark`."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import pyarrow as pa
import pyarrow.parquet as pq

import pgdecode
from benchmarks.datasets import load

try:
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    from spark_udfs import changes, table_changes
    from spark_udfs.dataframes import indexed_rows
    from spark_udfs.runs import PlainIndex
    from spark_udfs.session import local_session, pandas_not_minded
except ImportError as problem:
    sys.exit(f"{problem}\nthis needs the compiled package and extras: python -m pip install -e '.[spark]'")

DATA_SET = "pgbench.text"
TABLE = "public.pgbench_accounts"
FULL_ROWS, QUICK_ROWS = 10_000_000, 1_000_000
FILES = 8
SAMPLE = 40_000  # payloads that constant rows are made of


@dataclass(frozen=True)
class Constant:
    """For `mapInArrow`: rows that are there already, so many for each row of the input."""

    rows: pa.RecordBatch
    share: float

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Give them in as large batches as decoded ones come in."""
        owed = 0.0
        for batch in batches:
            owed += batch.num_rows * self.share
            while owed >= len(self.rows):
                yield self.rows
                owed -= len(self.rows)
        yield self.rows.slice(0, round(owed))


def landed(folder: Path, n_rows: int) -> str:
    """Write payloads to files, with their positions."""
    payloads = load(DATA_SET, n_rows).payloads
    for number in range(FILES):
        start, end = number * n_rows // FILES, (number + 1) * n_rows // FILES
        positions = pa.array(range(start, end), pa.int64())
        pq.write_table(
            pa.table({"seq": positions, "data": payloads.slice(start, end - start)}), folder / f"{number}.parquet"
        )
    return str(folder)


def constant(df: DataFrame, like: DataFrame, n_rows: int) -> DataFrame:
    """Give as many rows of the same columns as a result has, that nobody decodes."""
    decoder, payloads = pgdecode.ChangeDecoder(), load(DATA_SET, SAMPLE).payloads
    rows = decoder.table(payloads, TABLE) if "_op" in like.columns else decoder.decode(payloads)
    function = Constant(rows.select(like.columns), like.count() / n_rows)
    with pandas_not_minded():
        return df.select("seq", "data").mapInArrow(function, StructType(like.schema.fields))


def done(df: DataFrame) -> Callable[[], None]:
    """Make what computes all rows and drops them."""
    return lambda: df.write.format("noop").mode("overwrite").save()


def measured(lines: dict[str, Callable[[], object]], repetitions: int) -> dict[str, list[float]]:
    """Time each line in turn, round by round; a first round does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in lines}
    for number in range(repetitions + 1):
        for name, work in lines.items():
            start = perf_counter()
            work()
            if number:
                seconds[name].append(perf_counter() - start)
    return seconds


def shown(seconds: dict[str, list[float]], n_rows: int) -> list[str]:
    """Say of each line its median, payloads per second, and how often it takes its floor."""
    lines = []
    for name, taken in seconds.items():
        floor = seconds.get(f"{name}: constant rows")
        median = statistics.median(taken)
        ratio = ""
        if floor:
            ratio = f"{statistics.median(a / b for a, b in zip(taken, floor, strict=True)):6.2f} x constant rows"
        lines.append(f"{name:52} {median:8.2f} s {n_rows / median / 1e6:8.2f} M payloads/s {ratio}".rstrip())
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark", description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROWS:,} payloads instead of {FULL_ROWS:,}")
    parser.add_argument("--rows", type=int, metavar="N", help="payloads")
    parser.add_argument("--master", default="local[2]", help="how many threads, in Spark's words")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure here")
    asked = parser.parse_args(arguments)
    n_rows = asked.rows or (QUICK_ROWS if asked.quick else FULL_ROWS)
    with local_session(asked.master) as spark, tempfile.TemporaryDirectory() as folder:
        df = spark.read.parquet(landed(Path(folder), n_rows))
        all_changes, of_table = changes(df), table_changes(df, TABLE)
        some = table_changes(df, TABLE, fields=[name for name in of_table.columns if not name.startswith("_old")])
        lines: dict[str, Callable[[], object]] = {
            "scan in the JVM": lambda: df.agg(F.sum(F.length("data"))).collect(),
            "index": lambda: indexed_rows(df, "data", "seq", None, None),
        }
        for name, found in (("changes", all_changes), (TABLE, of_table), (f"{TABLE} without _old", some)):
            lines[f"{name}: constant rows"] = done(constant(df, found, n_rows))
            lines[name] = done(found)
        seconds = measured(lines, 3 if asked.quick else 7)
        indexes = indexed_rows(df, "data", "seq", None, None).indexes
        size = sum(len(PlainIndex.of(item.source, item.index, item.counts).index) for item in indexes)
    print(f"{n_rows:,} payloads of {DATA_SET} in {FILES} files, {asked.master}; the index is {size:,} bytes")
    print(*shown(seconds, n_rows), sep="\n")
    if asked.json:
        asked.json.write_text(json.dumps({"rows": n_rows, "index_bytes": size, "seconds": seconds}, indent=1))


if __name__ == "__main__":
    main()
