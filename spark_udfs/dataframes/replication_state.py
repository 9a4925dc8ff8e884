"""The state after the payloads in a DataFrame, for a later run on any engine."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Unpack

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pgdecode.changes.stored_state import with_replication
from pgdecode.datasets.errors import RunError
from pgdecode.datasets.manifest import Input, Manifest
from pgdecode.datasets.new_files import NewFiles
from pgdecode.datasets.state import InputFile, State
from pgdecode.datasets.target import target_at
from pgdecode.partitions.partition_decoder import PartitionDecoder
from pgdecode.protocol.options import ChangeOptions
from pgdecode.rows.options import with_options
from pgdecode.storage.object_path import local_path
from spark_udfs.dataframes.changes import indexed_rows
from spark_udfs.dataframes.control_index import IndexedRows
from spark_udfs.dataframes.frame_options import FrameOptions, ReplicationStateKeywords
from spark_udfs.dataframes.kept_changes import KeptChanges, KeptFile, add_kept
from spark_udfs.dataframes.partition_worker import PackedIndex, ascending_slices, pieces_by_source
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
    _options: ChangeOptions

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Append the state to the data set in a folder, so that any engine can continue from here.

        The tasks write the payloads of transactions without an outcome. For this, the DataFrame is read again from
        where they began. The manifest is written last. If the process ends before, `save` can be called again.

        Parameters
        ----------
        folder : path
            That of `state=`, or one without files. It is made if it is missing. On a cluster, all machines must share
            it.

        Raises
        ------
        TargetExists
            If the folder has files, but is not a data set. It is a FileExistsError.
        RunError
            If the last run of the folder is not the one that this state follows.
        """
        before = self._found.before
        target = target_at(local_path(folder, "the folder of a data set").absolute())
        options = {name: getattr(self._options, name) for name in ("drop_duplicates", "start", "empty")}
        with target.begin((), options) as run:
            if run.last is not None and (before is None or before.manifest != run.last):
                raise RunError(
                    f"{target.path}: its last run is number {run.last.number}, which this state does not follow: read "
                    "the rows after it with state=, or save into another folder"
                )
            replication = self._found.indexes[0].index.end.copy()
            add_kept(replication, keep_changes(self._found, self._options, run.files))
            state = State() if before is None else before.stored
            if self._found.last_session is not None:
                state = replace(state, session=self._found.last_session)
            rows, first, last = self.input.rows, self.input.first_position, self.input.last_position
            if rows:
                # Files with these positions are passed over by engines that read files.
                files = [*state.files, InputFile("", 0, "", rows, first, last)]
                state = replace(state, files=files, is_counted=False)
            manifest = Manifest(
                "spark",
                () if run.last is None else run.last.what,
                {**({} if run.last is None else run.last.options), **options},
                self.input,
                skipped=self.skipped,
                undecided=replication.n_undecided,
                last_lsn=replication.last_lsn,
            )
            run.commit(manifest, with_replication(state, replication, run.files.payload_path()))


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
    >>> changes(day, state="state").write.parquet("out/day=2")  # doctest: +SKIP
    >>> replication_state(day, state="state").save("state")  # doctest: +SKIP
    """
    frame, given = FrameOptions.split(options)
    found, chosen = indexed_rows(df, frame, replace(given, mode="PERMISSIVE"), None)
    (of_source,) = found.indexes
    index = of_source.index
    first, last = (index.partitions[0].first, index.partitions[-1].last) if index.partitions else (None, None)
    input = Input(sum(of_source.counts), first, last)
    return StateAfter(input, index.n_skipped, index.n_undecided, found, chosen)


def keep_changes(found: IndexedRows, options: ChangeOptions, files: NewFiles) -> list[KeptFile]:
    """Write the changes of transactions without an outcome to payload files, by tasks. Return the files in order.

    Parameters
    ----------
    found : IndexedRows
        Of one source.
    options : ChangeOptions
    files : NewFiles
        Of the run.
    """
    (of_source,) = found.indexes
    index = of_source.index
    numbers = tuple(number for number in range(len(index.partitions)) if index.keeps(number))
    if not numbers:
        return []
    first, last = index.partitions[numbers[0]].first, index.partitions[numbers[-1]].last
    function = KeepFunction(PackedIndex.of(None, index, of_source.counts), numbers, options, files)
    fields = [T.StructField("number", T.LongType()), T.StructField("file", T.BinaryType())]
    wanted = found.rows.where(F.col("position").between(first, last))
    with for_workers():
        rows = wanted.mapInArrow(function, T.StructType(fields)).toArrow().sort_by("number")
    return [pickle.loads(file) for file in rows["file"].to_pylist()]


@dataclass(frozen=True)
class KeepFunction(WorkerFunction):
    """A function for `mapInArrow` that writes the changes of transactions without an outcome, a file per partition.

    Attributes
    ----------
    plain : PackedIndex
    numbers : tuple of int
        Of the partitions that have such changes.
    options : ChangeOptions
    files : NewFiles
        Of the run.
    """

    plain: PackedIndex
    numbers: tuple[int, ...]
    options: ChangeOptions
    files: NewFiles

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
        file = kept.write(self.files, number)
        if file is not None:
            columns = [pa.array([number], pa.int64()), pa.array([pickle.dumps(file)], pa.binary())]
            yield pa.RecordBatch.from_arrays(columns, names=["number", "file"])
