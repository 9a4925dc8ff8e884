"""What a task of the data source reads: rows of files, decoded to batches with the columns of the query."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from pgdecode.files.payload_file import PayloadFile
from pgdecode.protocol.options import ChangeOptions
from pgdecode.relations.version_tracker import SchemaChanged
from spark_udfs.dataframes.outputs import Output
from spark_udfs.jobs.file_tasks import MessageTask, as_file_fault, decode_split
from spark_udfs.jobs.job_config import MessageJob
from spark_udfs.runtime.worker import WorkerFunction, enter_task
from spark_udfs.sources.decoded_schema import SchemaDiffers, with_schema
from spark_udfs.sources.sequence_index import IndexedSplits


@dataclass
class MessagePartition(WorkerFunction, InputPartition):
    """Pieces of files to decode to messages.

    Attributes
    ----------
    pieces : tuple of PayloadFile
    job : MessageJob
    kept : pa.Schema
        The `keep` columns.
    """

    pieces: tuple[PayloadFile, ...]
    job: MessageJob
    kept: pa.Schema

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Decode the pieces."""
        enter_task()
        task = MessageTask(None, self.kept, self.job)
        for _, batch in task.decoded(self.pieces):
            yield with_schema(batch, schema)


@dataclass
class ChangePartition(WorkerFunction, InputPartition):
    """Splits to decode to changes.

    Attributes
    ----------
    work : IndexedSplits
    output : Output
    options : ChangeOptions
    position : str
    after : int
        The last position of the micro-batch before. Changes of transactions that committed up to there are left out.
    """

    work: IndexedSplits
    output: Output
    options: ChangeOptions
    position: str
    after: int = -1

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Decode the splits."""
        enter_task()
        for _, batch in self.decoded([self.output]):
            yield from _not_empty(with_schema(batch, schema))

    def decoded(self, outputs: Sequence[Output]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Decode the splits to several outputs. Yield each batch with the number of its output."""
        builders = [output.builder(None, self.work.index.unpacked, self.options) for output in outputs]
        bad_rows: list[Counter[str]] = [Counter() for _ in outputs]
        for split in self.work.splits:
            with as_file_fault(split, self.position):
                rows = split.batches(self.position)
                try:
                    for at, batch in decode_split(rows, self.work.index, builders, self.options, bad_rows):
                        yield at, self._new(batch)
                except SchemaChanged as error:
                    raise SchemaDiffers(f"{error}: restart the query with a new schema") from None

    def _new(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Leave out the rows of earlier micro-batches. A bad payload has no commit: its own position decides."""
        if self.after < 0:
            return batch
        prefix = "_" if "_commit_position" in batch.schema.names else ""
        commits = batch.column(f"{prefix}commit_position")
        decisive: Any = commits if not commits.null_count else pc.coalesce(commits, batch.column(f"{prefix}position"))
        return batch.filter(pc.greater(decisive, self.after))


def _not_empty(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if len(batch):
        yield batch


def read(partition: InputPartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Read a partition of the data source. Spark makes one of its own if there is nothing to read."""
    if isinstance(partition, MessagePartition | ChangePartition):
        yield from partition.batches(schema)
