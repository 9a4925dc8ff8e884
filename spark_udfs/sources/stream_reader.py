"""Reads a folder to which files are added, micro-batch by micro-batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from pgdecode.relations.relation_version import RelationVersion
from pgdecode.types.user_types import UserType
from spark_udfs.jobs.job_config import ChangeJob
from spark_udfs.runtime.worker import WorkerFunction
from spark_udfs.schema.spark_types import arrow_schema
from spark_udfs.sources.packed_tables import check_tables, packed_partitions
from spark_udfs.sources.partition_reader import ChangePartition, read
from spark_udfs.sources.payload_folder import PayloadFolder
from spark_udfs.sources.read_plan import plan_messages, stream_output
from spark_udfs.sources.source_options import SourceOptions
from spark_udfs.sources.stream_sequence import Offset, StreamSequence

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
except ImportError:  # before pyspark 4.2
    HAS_LIMITS = False
else:
    HAS_LIMITS = True


class StreamReader(WorkerFunction, DataSourceStreamReader):
    """Reads a folder as a stream. One process of the driver plans micro-batches; tasks read their partitions.

    Parameters
    ----------
    options : SourceOptions
    schema : StructType
        Of the query.
    types : tuple of UserType
        Types that have determined the schema. They take precedence over those of later files.
    versions : tuple of RelationVersion
        The versions that have determined the schema of a table; none if the user gave the schema.
    has_time : bool
        Whether times of day are Spark's TIME.
    tables : tuple of SourceOptions
        The options of each table, if several are decoded to packed rows.
    """

    def __init__(
        self,
        options: SourceOptions,
        schema: StructType,
        types: tuple[UserType, ...],
        versions: tuple[RelationVersion, ...],
        has_time: bool,
        tables: tuple[SourceOptions, ...] = (),
    ) -> None:
        if isinstance(options.job, ChangeJob) and options.job.options.include_uncommitted:
            raise ValueError("include_uncommitted: not in a stream, which returns a transaction once, when it commits")
        self._options = options
        self._schema = schema
        self._types = types
        self._versions = versions
        self._has_time = has_time
        self._tables = tables
        # Made in the process that plans. Tasks get a copy of the reader without it.
        self._sequence: StreamSequence | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset before the first file. Spark asks for it when a query starts, and has no checkpoint."""
        if self._tables:
            sequence = StreamSequence(self._options, None)
            sequence.next_offset(sequence.end, None)
            if sequence.index is not None:
                check_tables(self._tables, sequence.index.state.relations.versions)
        return Offset().to_json()

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        """Plan a micro-batch."""
        first, last = Offset.from_json(start), Offset.from_json(end)
        if first.position >= last.position:
            return []
        sequence = self._at(first)
        sequence.check(first, last)
        files = [item.file for item in sequence.files_between(first, last)]
        if sequence.index is None:
            return plan_messages(self._options, files)
        found = {item.oid: item for item in (*sequence.types_at(last), *self._types)}
        types, after = tuple(found.values()), first.position
        options = sequence.index.job.options
        work = sequence.index.committed(after, last.position)
        if self._tables:
            versions = sequence.index.state.relations.versions
            return packed_partitions(
                work, self._tables, versions, types, files, options, after=after, has_time=self._has_time
            )
        output = stream_output(
            self._options, sequence.index, types, files, self._versions, self._schema, self._has_time
        )
        return [ChangePartition(item, output, options, self._options.position, after) for item in work]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Decode a partition."""
        return read(partition, arrow_schema(self._schema))

    def commit(self, end: Mapping[str, Any]) -> None:
        """Forget what only earlier micro-batches needed."""
        if self._sequence is not None:
            self._sequence.forget(Offset.from_json(end))

    def _at(self, start: Offset | None) -> StreamSequence:
        """Return the sequence; the first time, read the messages of earlier files."""
        if self._sequence is None:
            self._sequence = StreamSequence(self._options, start)
        return self._sequence


class UnlimitedStreamReader(StreamReader):
    """The reader for pyspark 4.0 and 4.1, which do not say where a micro-batch begins when they ask for its end."""

    def __init__(self, options: SourceOptions, *others: Any) -> None:
        if options.max_files is not None:
            raise ValueError(
                "maxFilesPerTrigger needs pyspark 4.2 or later: earlier versions ask for the end of the input only "
                "once with availableNow, so files would be left"
            )
        super().__init__(options, *others)

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        """Return the end of the last file."""
        sequence = self._at(None)
        return sequence.next_offset(sequence.end, None).to_json()


if HAS_LIMITS:

    class LimitedStreamReader(StreamReader, SupportsTriggerAvailableNow):
        """The reader for pyspark 4.2 and later."""

        _until: int | None = None

        def getDefaultReadLimit(self) -> ReadLimit:
            """Return the limit of the option `maxFilesPerTrigger`."""
            most = self._options.max_files
            return ReadAllAvailable() if most is None else ReadMaxFiles(most)

        def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
            """Return the end of the next micro-batch."""
            most = limit.max_files if isinstance(limit, ReadMaxFiles) else None
            first = Offset.from_json(start)
            found = self._at(first).next_offset(first, most, self._until)
            return start if found == first else found.to_json()

        def prepareForTriggerAvailableNow(self) -> None:
            """Find the files that the query reads: those that the folder has now."""
            folder = PayloadFolder(self._options)
            folder.refresh()
            self._until = max((item.last for item in folder.files), default=-1)
