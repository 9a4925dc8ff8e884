"""Decodes the changes that earlier runs have stored, once the outcomes of their transactions are known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from pgdecode.changes.record_batches import Builder
from pgdecode.changes.replication_state import BufferedChanges, ReplicationState, StoredChanges
from pgdecode.changes.stored_state import StoredRange
from pgdecode.partitions.partition_decoder import StoredDecoder
from pgdecode.partitions.partition_index import UNDECIDED, PartitionIndex
from pgdecode.protocol.options import ChangeOptions
from spark_udfs.dataframes.partition_worker import PackedIndex, PartitionDecodingFunction, build, numbers_of
from spark_udfs.runtime.session import for_workers
from spark_udfs.runtime.worker import WorkerFunction, enter_task


class StoredPart(NamedTuple):
    """Changes of one transaction: in a payload file of an earlier run, or in memory."""

    xid: int
    begin_position: int
    changes: BufferedChanges | StoredChanges


def stored_parts(
    state: ReplicationState | None, index: PartitionIndex, options: ChangeOptions
) -> list[tuple[StoredPart, ...]]:
    """List the stored changes that the run returns, for one task each: those of one file, or those in memory.

    Parameters
    ----------
    state : ReplicationState or None
        Before the run.
    index : PartitionIndex
        Of the run.
    options : ChangeOptions
    """
    groups: dict[object, list[StoredPart]] = {}
    for item in [] if state is None else sorted(state.undecided, key=lambda item: item.begin_position):
        outcome = index.transaction_outcomes.get(item.begin_position, UNDECIDED)
        if outcome.is_duplicate or not (outcome.committed == 1 or options.include_uncommitted):
            continue
        for changes in item.buffered:
            key = changes.place.file if isinstance(changes, StoredRange) else None
            groups.setdefault(key, []).append(StoredPart(item.xid, item.begin_position, changes))
    return [tuple(parts) for parts in groups.values()]


def decode_stored(
    parts: Iterable[StoredPart],
    plain: PackedIndex,
    builders: Sequence[Builder],
    options: ChangeOptions,
    bad_rows: list[Counter[str]],
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Decode stored changes, one row group at a time. Yield each batch with the number of its builder."""
    decoder = StoredDecoder(plain.unpacked, options, numbers_of(builders))
    drop_bad = options.mode == "DROPMALFORMED"
    for part in parts:
        for changes in part.changes.parts():
            found = decoder.decode(part.xid, part.begin_position, changes.read())
            yield from build(*found, builders, drop_bad, bad_rows)


def used_of_stored(
    groups: Iterable[Iterable[StoredPart]], index: PartitionIndex, among: Collection[int], options: ChangeOptions
) -> set[int]:
    """Find which of some versions of relations the committed changes use, as `used_versions` does."""
    options = replace(options, mode="PERMISSIVE", include_uncommitted=False)
    decoder = StoredDecoder(index, options, among)
    found: set[int] = set()
    for part in chain.from_iterable(groups):
        for changes in part.changes.parts():
            found.update(decoder.decode(part.xid, part.begin_position, changes.read())[1].used)
    return found.intersection(among)


@dataclass(frozen=True)
class StoredTask:
    """The stored changes for one task, and the number of its part of the output."""

    number: int
    parts: tuple[StoredPart, ...]

    @property
    def places(self) -> list[dict[str, object]]:
        """The files and rows, for the manifest."""
        ranges = [part.changes for part in self.parts if isinstance(part.changes, StoredRange)]
        return [
            {"file": str(item.reader.path), "first_row": item.place.first_row, "rows": item.place.rows}
            for item in ranges
        ]


@dataclass(frozen=True)
class StoredFunction(WorkerFunction):
    """A function for `mapInArrow` that decodes stored changes. Its input has numbers of parts.

    Attributes
    ----------
    decoding : PartitionDecodingFunction
        Of the rows of the run.
    parts : tuple of tuple of StoredPart
    """

    decoding: PartitionDecodingFunction
    parts: tuple[tuple[StoredPart, ...], ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Decode the parts one after the other."""
        enter_task()
        (plain,), options = self.decoding.indexes, self.decoding.options
        builders = [self.decoding.output.builder(None, plain.unpacked, options)]
        for number in (number for batch in batches for number in batch.column(0).to_pylist()):
            found = decode_stored(self.parts[number], plain, builders, options, [Counter()])
            yield from self.decoding.spark_batches(found, None)


def stored_rows(spark: SparkSession, function: StoredFunction, fields: list[StructField]) -> DataFrame:
    """Return the rows that a function makes of all its parts, one task for each part."""
    n = len(function.parts)
    with for_workers():
        return spark.range(0, n, 1, n).mapInArrow(function, StructType(fields))
