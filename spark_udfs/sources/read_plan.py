"""Plans reads: the columns, and the partitions that tasks decode."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from pgdecode.changes.table_rows import versions_of
from pgdecode.envelope.schema import envelope_schema
from pgdecode.files.change_reader import TableError
from pgdecode.files.file_metadata import accepted_gaps, catalog_of, source_of, user_types_of
from pgdecode.files.payload_file import PayloadFile
from pgdecode.partitions.source_index import SourceIndex, unused_versions
from pgdecode.relations.relation_version import RelationVersion
from pgdecode.storage.errors import PathError
from pgdecode.types.user_types import UserType
from spark_udfs.dataframes.changes import tables_of
from spark_udfs.dataframes.outputs import ChangeOutput, Output, TableOutput
from spark_udfs.dataframes.partition_worker import PackedIndex
from spark_udfs.jobs.file_tasks import SplitTask, UsedTask
from spark_udfs.jobs.job_config import ChangeJob, MessageJob
from spark_udfs.jobs.splits import Split, grouped, pieces_of
from spark_udfs.sources.decoded_schema import check_columns, same_content
from spark_udfs.sources.partition_reader import ChangePartition, MessagePartition
from spark_udfs.sources.payload_folder import PayloadFolder
from spark_udfs.sources.sequence_index import IndexedSplits, SequenceIndex, piece_bytes
from spark_udfs.sources.source_options import SourceOptions


@dataclass(frozen=True)
class ChangePlan:
    """A planned read of all files, as changes or a table.

    Attributes
    ----------
    output : Output
    work : tuple of IndexedSplits
    types : tuple of UserType
        Types in the footers of the files.
    versions : tuple of RelationVersion
        The versions that determine the columns of the table.
    """

    output: Output
    work: tuple[IndexedSplits, ...]
    types: tuple[UserType, ...]
    versions: tuple[RelationVersion, ...] = ()

    def partitions(self, options: SourceOptions) -> list[InputPartition]:
        """Make the partitions for Spark."""
        assert isinstance(options.job, ChangeJob)
        change_options = options.job.options
        return [ChangePartition(item, self.output, change_options, options.position) for item in self.work]


def plan_changes(options: SourceOptions, has_time: bool) -> ChangePlan:
    """Index all files that the folder has now.

    Raises
    ------
    PathError
        If there are no files, or no message describes the table.
    FileFault
        If a file is damaged, or the files are not in the order of their positions.
    """
    folder = PayloadFolder(options)
    folder.refresh()
    if not folder.files and not options.path.exists():
        raise PathError(f"{options.path}: no such file or folder")
    files = [item.file for item in folder.files]
    source_of(files)
    accepted_gaps(files, accept_gap=options.accept_gap)
    types = user_types_of(files)
    job = options.with_types(types, files)
    first = folder.files[0].first if folder.files else 0
    index = SequenceIndex(options, job.catalog or catalog_of(files), first)
    index.add(item.file for item in folder.files)
    index.finish()
    tables = () if options.table is None else tables_of(job.options, options.table)
    shape = {*index.state.relations.in_layout, *_used(index, tables, job, options.position)}
    try:
        (output,) = job.outputs([SourceIndex(None, index.whole(shape), (), may_move=False)], has_time, in_files=False)
    except (KeyError, ValueError) as error:
        if options.table is None:
            raise
        raise TableError(options.table, str(error.args[0])) from None
    versions: tuple[RelationVersion, ...] = ()
    if isinstance(output, TableOutput):
        output = replace(output, any_year=options.any_year)
        versions = output.versions
    return ChangePlan(output, tuple(index.everything()), types, versions)


def _used(index: SequenceIndex, tables: Collection[str], job: ChangeJob, position: str) -> set[int]:
    """Find the versions of tables that no committed transaction has sent, but committed rows use."""
    whole = index.whole()
    uncertain = unused_versions(whole, tables)
    if not uncertain:
        return set()
    counts = tuple(count for item in index.pieces for count in item.counts)
    work = UsedTask(position, PackedIndex.of(None, whole, counts), uncertain, job.options)
    tasks = [SplitTask(number, Split((item.piece,))) for number, item in enumerate(index.pieces)]
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        return set().union(*threads.map(work, tasks))


def plan_messages(options: SourceOptions, files: Iterable[PayloadFile]) -> list[InputPartition]:
    """Divide files into partitions that are decoded to messages."""
    job = options.job
    assert isinstance(job, MessageJob)
    files = list(files)
    accepted_gaps(files, accept_gap=options.accept_gap)
    if not files:
        return []
    wanted = piece_bytes(files)
    # With "ordered", the stream state depends on earlier rows, so files are not split.
    pieces = files if job.in_stream == "ordered" else pieces_of(files, wanted)
    kept = pa.schema([field for field in files[0].schema if field.name in job.keep])
    return [MessagePartition(tuple(group), job, kept) for group in grouped(pieces, wanted)]


def message_schema(job: MessageJob, files: Sequence[PayloadFile]) -> pa.Schema:
    """Return the columns of messages: the `keep` columns, with the types of the first file, and the envelope's.

    Raises
    ------
    PathError
        If there is no file that has the `keep` columns.
    """
    if job.keep and not files:
        raise PathError(f"keep: there is no file yet with the columns {', '.join(job.keep)}; give the schema")
    kept = [files[0].schema.field(name) for name in job.keep]
    return pa.schema([*kept, *envelope_schema(job.fields)])


def stream_output(
    options: SourceOptions,
    index: SequenceIndex,
    types: tuple[UserType, ...],
    files: Iterable[PayloadFile],
    versions: Sequence[RelationVersion],
    declared: StructType,
    has_time: bool,
) -> Output:
    """Make the output of a micro-batch, with the columns that were fixed when the query started.

    Parameters
    ----------
    options : SourceOptions
    index : SequenceIndex
        After the micro-batch.
    types : tuple of UserType
        Types in the footers of files.
    files : iterable of PayloadFile
        Those of the micro-batch.
    versions : sequence of RelationVersion
        Those that have determined the schema of the query. None if the user gave the schema.
    declared : StructType
        The schema of the query.
    has_time : bool
        As in `TableOutput`.

    Raises
    ------
    SchemaDiffers
        If a committed transaction has changed the columns of the table.
    """
    job = options.with_types(types, files)
    table = options.table
    if table is None:
        return ChangeOutput(job.options)
    shape = index.state.relations.in_layout
    known = versions_of(index.state.relations.versions, table)
    in_layout = [item for number, item in known.items() if number in shape and not same_content(item, versions)]
    layout = (*versions, *in_layout)
    output = TableOutput(layout, {None: tuple(known)}, job.options, options.any_year, has_time, others={None: ()})
    names = output.schema.names if job.fields is None else job.fields
    check_columns(declared, output.schema, names, table=table, is_chosen=job.fields is not None)
    # A version that no committed transaction has sent may be used by a row nevertheless. It matters only then.
    others = [number for number, item in known.items() if number not in shape and not _fits(item, output)]
    numbers = tuple(number for number in known if number not in others)
    return replace(output, numbers={None: numbers}, others={None: tuple(others)})


def _fits(version: RelationVersion, output: TableOutput) -> bool:
    """Whether the rows of a version have the columns of an output."""
    try:
        return bool(replace(output, versions=(*output.versions, version)).schema.equals(output.schema))
    except ValueError:
        return False
