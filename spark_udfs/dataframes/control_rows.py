"""Functions of tasks that help to make the index: they select its messages, and find used versions of relations."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pyarrow as pa

from pgdecode.partitions.partition_decoder import used_versions
from pgdecode.protocol.boundaries import needed
from pgdecode.protocol.options import ChangeOptions
from spark_udfs.dataframes.partition_worker import PackedIndex, ascending_slices, pieces_by_source
from spark_udfs.runtime.worker import WorkerFunction, enter_task


@dataclass(frozen=True)
class ControlFunction(WorkerFunction):
    """A function for `mapInArrow` that selects the messages for the index among those that begin or end transactions.

    Attributes
    ----------
    firsts : mapping
        By source, the first positions of its partitions, in order.
    has_source : bool
        Whether the third column is the source.
    """

    firsts: Mapping[Any, tuple[int, ...]]
    has_source: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Select messages in each batch."""
        enter_task()
        for batch in batches:
            positions, payloads = batch.column(0).to_pylist(), batch.column(1).to_pylist()
            sources = batch.column(2).to_pylist() if self.has_source else [None] * len(positions)

            partitions = [
                (source, bisect_right(self.firsts.get(source, ()), position))
                for source, position in zip(sources, positions, strict=True)
            ]
            chosen: list[int] = []
            start = 0
            for _, of_partition in groupby(partitions):
                end = start + len(list(of_partition))
                chosen += (start + place for place in needed(payloads[start:end]))
                start = end
            yield batch.take(pa.array(chosen, pa.int64()))


@dataclass(frozen=True)
class UsedFunction(WorkerFunction):
    """A function for `mapInArrow` that finds the versions of relations that committed changes use.

    The columns are position, payload and, if any, source.

    Attributes
    ----------
    indexes : tuple of PackedIndex
    among : mapping
        By source, the numbers of the versions to look for.
    options : ChangeOptions
    has_source : bool
        Whether the third column is the source.
    """

    indexes: tuple[PackedIndex, ...]
    among: Mapping[Any, frozenset[int]]
    options: ChangeOptions
    has_source: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Process the partitions one after the other."""
        enter_task()
        indexes = {item.source: item.unpacked for item in self.indexes if self.among.get(item.source)}
        found: dict[Any, set[int]] = {}
        types: dict[Any, pa.Scalar] = {}

        def pieces() -> Iterator[tuple[tuple[Any, int], tuple[pa.Array, pa.Array]]]:
            for sent, positions, payloads in pieces_by_source(batches, self.has_source):
                source = None if sent is None else sent.as_py()
                if source not in indexes:
                    continue
                if sent is not None:
                    types[source] = sent
                for number, start, end in ascending_slices(indexes[source], positions):
                    yield (source, number), (payloads.slice(start, end - start), positions.slice(start, end - start))

        for (source, number), of_partition in groupby(pieces(), lambda piece: piece[0]):
            batches_of_partition = (piece for _, piece in of_partition)
            used = used_versions(indexes[source], batches_of_partition, number, self.among[source], self.options)
            found.setdefault(source, set()).update(used)
        for source, used in found.items():
            columns, names = [pa.array(sorted(used), pa.int32())], ["version"]
            if self.has_source:
                columns, names = [pa.repeat(types[source], len(used)), *columns], ["source", *names]
            yield pa.RecordBatch.from_arrays(columns, names=names)
