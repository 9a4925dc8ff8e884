"""The data source "pgoutput": a folder of payload files as a DataFrame or a stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from pgdecode.changes.change_rows import CHANGES
from pgdecode.files.payload_file import PayloadFile
from pgdecode.files.payload_files import payload_files
from pgdecode.protocol.json_document import load_json
from pgdecode.storage.errors import PathError
from spark_udfs.jobs.job_config import ChangeJob, MessageJob
from spark_udfs.schema.spark_types import check_fields, spark_schema
from spark_udfs.sources import stream_reader
from spark_udfs.sources.batch_reader import PgoutputReader
from spark_udfs.sources.decoded_schema import check_columns
from spark_udfs.sources.packed_tables import PACKED
from spark_udfs.sources.read_plan import ChangePlan, message_schema, plan_changes, plan_messages
from spark_udfs.sources.source_options import SourceOptions


class PgoutputSource(DataSource):
    """Decodes payload files: `spark.read.format("pgoutput").load("raw/")`, and the same with `spark.readStream`.

    docs/spark-source.md describes the options. `spark_udfs.register` registers the data source in a session.
    """

    has_time = False

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self._options = SourceOptions.of(options)
        # Spark asks for the schema first, and passes this object to the process that plans the read.
        self._plan: ChangePlan | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "pgoutput"

    def schema(self) -> StructType:
        """Return the columns, if the user gave no schema. For a table, this indexes all files."""
        options = self._options
        if isinstance(options.job, MessageJob):
            return spark_schema(message_schema(options.job, self._files()[:1] if options.job.keep else []))
        found = CHANGES
        if options.table is not None:
            self._plan = plan_changes(options, self.has_time)
            found = self._plan.output.schema
            names = options.job.columns(self._plan.output)
        else:
            names = check_fields(options.job.fields, found.names)
        return spark_schema(pa.schema([found.field(name) for name in names]), with_metadata=True)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Plan the read of all files."""
        options = self._options
        if options.max_files is not None:
            raise ValueError("maxFilesPerTrigger: only for streams")
        if isinstance(options.job, MessageJob):
            files = self._files()
            decoded = message_schema(options.job, files)
            check_columns(schema, decoded, decoded.names, table=None, is_chosen=True)
            return PgoutputReader(schema, plan_messages(options, files))
        plan = self._plan or plan_changes(options, self.has_time)
        if not plan.work:
            raise PathError(f"{options.path}: no Parquet file (*.parquet) with rows in this folder")
        names = options.job.columns(plan.output)
        check_columns(schema, plan.output.schema, names, table=options.table, is_chosen=options.job.fields is not None)
        return PgoutputReader(schema, plan.partitions(options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Make the reader of a stream."""
        options, plan = self._options, self._plan
        if isinstance(options.job, ChangeJob) and options.table is None:
            check_columns(schema, CHANGES, CHANGES.names, table=None, is_chosen=True)
        types, versions = ((), ()) if plan is None else (plan.types, plan.versions)
        return _stream_reader()(options, schema, types, versions, self.has_time)

    def _files(self) -> list[PayloadFile]:
        options = self._options
        return payload_files(options.path, options.payload, options.needed, options.unwrap)


class PgoutputSourceWithTime(PgoutputSource):
    """The data source for sessions whose times of day are Spark's TIME."""

    has_time = True


class PackedSource(DataSource):
    """Decodes several tables in one stream, for `apply_stream`.

    The option `tables` is a list of them, as JSON: the name, and the OID that it had in an earlier query, or null.
    """

    has_time = False

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        given = dict(options)
        self._tables = tuple(
            replace(SourceOptions.of({**given, "what": table}), relation_id=relation_id)
            for table, relation_id in load_json(given.pop("tables"))
        )

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "pgoutput_packed"

    def schema(self) -> StructType:
        """Return the columns."""
        path = self._tables[0].path
        if not path.exists():
            raise PathError(f"{path}: no such file or folder")
        return spark_schema(PACKED)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Make the reader of a stream."""
        return _stream_reader()(self._tables[0], schema, (), (), self.has_time, self._tables)


class PackedSourceWithTime(PackedSource):
    """The same for sessions whose times of day are Spark's TIME."""

    has_time = True


def _stream_reader() -> type[stream_reader.StreamReader]:
    return stream_reader.LimitedStreamReader if stream_reader.HAS_LIMITS else stream_reader.UnlimitedStreamReader
