"""Calls the data source as Spark's engine does, in this process: a checkpoint, micro-batches, restarts, repetitions.

The readers and partitions are pickled where Spark pickles them. `test_spark_source.py` does the same with Spark.
"""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pgdecode import ChangeDecoder
from pgdecode.files.file_metadata import CATALOG_KEY
from spark_udfs.sources import stream_reader
from spark_udfs.sources.data_source import PackedSource, PgoutputSource
from spark_udfs.sources.stream_reader import StreamReader, UnlimitedStreamReader

Row = dict[str, Any]


def copied(value: Any) -> Any:
    """Send a value to another process."""
    return pickle.loads(pickle.dumps(value))


class Query:
    """A streaming query with a checkpoint. Its sink keeps the rows of each micro-batch.

    Parameters
    ----------
    options : dict
        Of the data source.
    kind : type
        The reader: one of `KINDS`.
    convert : callable
        Makes the rows of a batch.
    source : type
        The data source.
    """

    def __init__(
        self,
        options: dict[str, str],
        kind: type[StreamReader] | None = None,
        convert: Callable[[pa.RecordBatch], list[Row]] = pa.RecordBatch.to_pylist,
        source: type[PgoutputSource] | type[PackedSource] = PgoutputSource,
    ) -> None:
        self.options = options
        self.source = source
        self.convert = convert
        self.kind = kind or KINDS[0]
        self.offsets: list[str] = []  # the ends of micro-batches that were planned, as JSON
        self.batches: list[list[Row]] = []  # the rows of those that are complete
        self.first = ""
        self.reader: Any = None
        self.schema: Any = None

    def restart(self) -> None:
        """Start the query, or start it again from its checkpoint."""
        source = self.source(self.options)
        self.schema = source.schema()
        source = copied(source)
        planned = source.streamReader(self.schema)
        self.reader = self.kind(*(getattr(planned, f"_{name}") for name in READER))
        self.for_tasks = copied(self.reader)
        if not self.first:
            self.first = json.dumps(self.reader.initialOffset())
        if len(self.offsets) > len(self.batches):
            self._run()

    def step(self, most_files: int | None = None) -> bool:
        """Run a micro-batch if there is new data; return whether there was."""
        start = self.end
        if self.kind is not UnlimitedStreamReader:
            limit = stream_reader.ReadAllAvailable() if most_files is None else stream_reader.ReadMaxFiles(most_files)
            found = json.dumps(self.reader.latestOffset(json.loads(start), limit))
        else:
            found = json.dumps(self.reader.latestOffset())
        if found == start:
            return False
        if self.batches:
            self.reader.commit(json.loads(start))
        self.offsets.append(found)
        self._run()
        return True

    def go_on(self) -> None:
        """Start the query again, and run a micro-batch if there is new data."""
        self.restart()
        self.step()

    def plan_only(self) -> None:
        """Plan a micro-batch, and end before it is complete, unless there is no new data."""
        n = len(self.batches)
        if self.step():
            del self.batches[n:]

    @property
    def end(self) -> str:
        """The end of the last micro-batch."""
        return self.offsets[-1] if self.offsets else self.first

    def rows(self) -> list[Row]:
        """The rows of all micro-batches."""
        return [row for batch in self.batches for row in batch]

    def _run(self) -> None:
        start, end = ([self.first, *self.offsets][number] for number in (-2, -1))
        planned = self.reader.partitions(json.loads(start), json.loads(end))
        first, last = (json.loads(text)["position"] for text in (start, end))
        rows: list[Row] = []
        for partition in planned:
            for batch in copied(self.for_tasks).read(copied(partition)):
                rows += self.convert(batch)
        for row in rows:
            commit = row.get("commit_position", row.get("_commit_position"))
            position = row["position"] if commit is None and "position" in row else row.get("_position")
            assert first < (commit if commit is not None else position) <= last
        self.batches.append(rows)


READER = ("options", "schema", "types", "versions", "has_time", "tables")
# The reader for pyspark 4.2 and later, if this is one, and that for earlier versions.
KINDS = [*([stream_reader.LimitedStreamReader] if stream_reader.HAS_LIMITS else []), UnlimitedStreamReader]


def write_file(
    path: Path, payloads: Sequence[bytes], first: int, rng: random.Random, catalog: str | None = None
) -> None:
    """Write a payload file with positions from `first`, under its name only when it is complete."""
    table = pa.table(
        {"seq": pa.array(range(first, first + len(payloads)), pa.int64()), "data": pa.array(payloads, pa.binary())}
    )
    if catalog is not None:
        table = table.replace_schema_metadata({CATALOG_KEY: catalog})
    hidden = path.with_name(f".{path.name}")
    pq.write_table(table, hidden, row_group_size=rng.choice([3, 50, 10_000]))
    hidden.rename(path)


def cut(payloads: Sequence[bytes], n_files: int, rng: random.Random, least: int = 1) -> list[tuple[int, int]]:
    """Cut payloads at random places into files of at least one row; the first one has `least` rows."""
    possible = range(least, len(payloads))
    places = sorted(rng.sample(possible, min(n_files - 1, len(possible))))
    return list(pairwise([0, *places, len(payloads)]))


def stream_through(
    folder: Path, payloads: Sequence[bytes], options: dict[str, str], rng: random.Random, kind: type[StreamReader]
) -> Query:
    """Stream payloads that come file by file, with restarts, some in the middle of a micro-batch."""
    folder.mkdir()
    query = Query({"path": str(folder), **options}, kind)
    # The first transaction of a random slot describes the tables.
    files = cut(payloads, rng.randint(1, 8), rng, 5 if "." in options["what"] else 1)
    with_catalogs = rng.random() < 0.5
    described = ChangeDecoder(mode="PERMISSIVE")
    n_written = 0
    started = False
    while n_written < len(files) or query.step():
        for _ in range(rng.randint(1, 3)):
            if n_written < len(files):
                start, end = files[n_written]
                catalog = described.catalog.to_json() if with_catalogs and rng.random() < 0.7 else None
                name = f"{rng.getrandbits(32):08x}.parquet"
                write_file(folder / name, payloads[start:end], start, rng, catalog)
                described.decode(pa.array(payloads[start:end], pa.binary()), range(start, end))
                n_written += 1
        if not started or rng.random() < 0.5 or ("." in options["what"] and n_written):
            query.restart()
            started = True
        if rng.random() < 0.3:
            query.plan_only()
            query.restart()
        elif kind is not UnlimitedStreamReader and rng.random() < 0.5:
            query.step(rng.randint(1, 2))
        else:
            query.step()
    return query
