"""The state after the payloads in a DataFrame, for a later run on any engine."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pgdecode.changes.run_start import RunStart, options_to_json
from pgdecode.partitions.partition_decoder import PartitionDecoder
from pgdecode.protocol.options import ChangeOptions
from pgdecode.rows.options import with_options
from pgdecode.rows.value_options import ValueOptions
from pgdecode.runs.digested_file import FileDigest
from pgdecode.runs.manifest import MANIFEST, Input, Manifest
from pgdecode.runs.payload_ranges import STATE, PayloadRange
from pgdecode.storage.object_path import local_path
from spark_udfs.dataframes.changes import indexed_rows
from spark_udfs.dataframes.control_index import IndexedRows
from spark_udfs.dataframes.frame_options import FrameOptions, ReplicationStateKeywords
from spark_udfs.dataframes.kept_changes import KEPT, KeptChanges, KeptFile, add_kept
from spark_udfs.dataframes.partition_worker import PackedIndex, ascending_slices, pieces_by_source
from spark_udfs.dataframes.state_before import state_before
from spark_udfs.runtime.session import for_workers
from spark_udfs.runtime.worker import WorkerFunction, enter_task


@dataclass(frozen=True)
class StateAfter:
    """The state after the payloads in a DataFrame.

    Attributes
    ----------
    input : Input
        The number of payloads, and their first and last position.
    skipped, undecided : int
        Number of transactions of these payloads that are left out because their beginning is missing, and number of
        transactions without an outcome.
    """

    input: Input
    skipped: int
    undecided: int
    _found: IndexedRows
    _start: RunStart
    _options: ChangeOptions

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the state into the folder of a run, so that any engine can continue from here.

        The tasks write the payloads of transactions without an outcome. For this, the DataFrame is read again from
        where they began. The manifest is written last. If the process ends before, `save` can be called again.

        Parameters
        ----------
        folder : path
            It is made if it is missing. Its files stay. On a cluster, all machines must share it.

        Raises
        ------
        FileExistsError
            If the folder has a run.
        RunError
            If another run has continued the one that this state follows.
        """
        place = local_path(folder, "the folder of a run").absolute()
        place.mkdir(parents=True, exist_ok=True)
        index = self._found.indexes[0].index
        state = index.end.copy()
        with self._start.claimed(place):
            if (place / MANIFEST).exists():
                raise FileExistsError(f"{place} has the output of an earlier run; remove it, or pass it as state=")
            for name in (STATE, KEPT):
                shutil.rmtree(place / name, ignore_errors=True)  # of a process that ended before the manifest
            add_kept(state, keep_changes(self._found, self._options, place / KEPT, self._start.position))
            source = self._start.source
            if self._found.last_session is not None:
                source = replace(source, session=self._found.last_session)
            manifest = Manifest("spark", (), options_to_json(self._options, ValueOptions()), self.input)
            self._start.commit(place, manifest, state, source)
            shutil.rmtree(place / KEPT, ignore_errors=True)


@with_options(FrameOptions)
def replication_state(df: DataFrame, **options: Unpack[ReplicationStateKeywords]) -> StateAfter:
    """Find the state after the payloads, so that a later run can continue there.

    Parameters
    ----------
    df : DataFrame
        As in `changes`.

    Other Parameters
    ----------------
    payload, unwrap, position, catalog, session, state
        As in `changes`, with the same values. Bad payloads are no error here; `changes` reports them.
    **options
        As in `pgdecode.ChangeDecoder`, with the values that `changes` has.

    Returns
    -------
    StateAfter
        `save` writes it into a folder.

    Raises
    ------
    TypeError, ValueError
        As in `changes`.

    Notes
    -----
    The call reads `df` once in the JVM, and the messages that begin and end transactions once more.

    Examples
    --------
    >>> day = spark.read.parquet("raw/day=2")  # doctest: +SKIP
    >>> changes(day, state="out/day=1").write.parquet("out/day=2")  # doctest: +SKIP
    >>> replication_state(day, state="out/day=1").save("out/day=2")  # doctest: +SKIP
    """
    frame, given = FrameOptions.split(options)
    before = state_before(frame.state, catalog=frame.catalog)
    found, chosen = indexed_rows(df, replace(frame, state=None), replace(given, mode="PERMISSIVE"), None, before)
    return state_after(found, RunStart() if before is None else before.start, chosen)


def state_after(found: IndexedRows, start: RunStart, options: ChangeOptions) -> StateAfter:
    """Take the state after indexed rows, whose index has the exact shape of all tables."""
    (of_source,) = found.indexes
    index = of_source.index
    first, last = (index.partitions[0].first, index.partitions[-1].last) if index.partitions else (None, None)
    input = Input(sum(of_source.counts), first, last)
    return StateAfter(input, index.n_skipped, index.n_undecided, found, start, options)


def keep_changes(found: IndexedRows, options: ChangeOptions, folder: Path, first_position: int) -> list[KeptFile]:
    """Write the changes of transactions without an outcome to payload files, by tasks. Return the files in order.

    Parameters
    ----------
    found : IndexedRows
        Of one source.
    options : ChangeOptions
    folder : Path
        For the files of attempts.
    first_position : int
        The first position that the run may have.
    """
    (of_source,) = found.indexes
    index = of_source.index
    numbers = tuple(number for number in range(len(index.partitions)) if index.keeps(number))
    if not numbers:
        return []
    first, last = index.partitions[numbers[0]].first, index.partitions[numbers[-1]].last
    plain = PackedIndex.of(None, index, of_source.counts)
    function = KeepFunction(plain, numbers, options, str(folder), first_position)
    fields = [T.StructField("number", T.LongType()), T.StructField("file", T.StringType())]
    wanted = found.rows.where(F.col("position").between(first, last))
    with for_workers():
        rows = wanted.mapInArrow(function, T.StructType(fields)).toArrow().sort_by("number")
    return [_kept_from_json(text) for text in rows["file"].to_pylist()]


@dataclass(frozen=True)
class KeepFunction(WorkerFunction):
    """A function for `mapInArrow` that writes the changes of transactions without an outcome, a file per partition.

    Attributes
    ----------
    plain : PackedIndex
    numbers : tuple of int
        Of the partitions that have such changes.
    options : ChangeOptions
    folder : str
        For the files of attempts.
    first_position : int
        The first position that the run may have.
    """

    plain: PackedIndex
    numbers: tuple[int, ...]
    options: ChangeOptions
    folder: str
    first_position: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Process the partitions one after the other. Return the number and the file of each."""
        enter_task()
        index = self.plain.unpacked
        options = replace(self.options, mode="PERMISSIVE", include_uncommitted=False)
        current: tuple[int, PartitionDecoder, KeptChanges] | None = None
        for _, positions, payloads in pieces_by_source(batches, has_source=False):
            for number, start, end in ascending_slices(index, positions):
                if number not in self.numbers:
                    continue
                if current is None or current[0] != number:
                    yield from self._end(current)
                    kept = KeptChanges()
                    current = number, PartitionDecoder(index, number, options, keep=kept.keep), kept
                current[1].follow(payloads.slice(start, end - start), positions.slice(start, end - start))
        yield from self._end(current)

    def _end(self, current: tuple[int, PartitionDecoder, KeptChanges] | None) -> Iterator[pa.RecordBatch]:
        if current is None:
            return
        number, decoder, kept = current
        decoder.finish()
        file = kept.write(Path(self.folder), self.first_position, number)
        if file is not None:
            columns = [pa.array([number], pa.int64()), pa.array([_kept_to_json(file)], pa.string())]
            yield pa.RecordBatch.from_arrays(columns, names=["number", "file"])


def _kept_to_json(file: KeptFile) -> str:
    ranges = [[begin, place._asdict()] for begin, place in file.ranges.items()]
    return json.dumps({"folder": str(file.folder), "file": vars(file.file), "ranges": ranges})


def _kept_from_json(text: str) -> KeptFile:
    plain = json.loads(text)
    ranges = {begin: PayloadRange(**place) for begin, place in plain["ranges"]}
    return KeptFile(Path(plain["folder"]), FileDigest(**plain["file"]), ranges)
