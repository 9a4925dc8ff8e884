"""Reads the changes of several tables in one stream. A row has changes of one version of a table, as Arrow data."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.datasource import InputPartition

from pgdecode.changes.table_rows import versions_of
from pgdecode.files.change_reader import TableError
from pgdecode.files.payload_file import PayloadFile
from pgdecode.protocol.errors import listed
from pgdecode.protocol.options import ChangeOptions
from pgdecode.relations.relation_version import RelationVersion
from pgdecode.rows.options import Options
from pgdecode.rows.own_names import free_name
from pgdecode.types.user_types import UserType
from spark_udfs.dataframes.outputs import TableOutput
from spark_udfs.jobs.job_config import ChangeJob
from spark_udfs.runtime.session import for_workers
from spark_udfs.runtime.worker import WorkerFunction, enter_task
from spark_udfs.schema.spark_types import arrow_schema, spark_schema
from spark_udfs.sources.decoded_schema import with_schema
from spark_udfs.sources.partition_reader import ChangePartition
from spark_udfs.sources.sequence_index import IndexedSplits
from spark_udfs.sources.source_options import SourceOptions

# The positions of a commit and of a change in it.
Place = tuple[int, int]

_PLACE = pa.struct([("commit", pa.int64()), ("position", pa.int64())])
PACKED = pa.schema(
    [
        ("table", pa.int32()),
        ("version", pa.int32()),
        ("columns", pa.binary()),
        ("relation_id", pa.int64()),
        ("renamed", pa.string()),
        ("former", pa.string()),
        ("first", _PLACE),
        ("last", _PLACE),
        ("truncate", _PLACE),
        ("changes", pa.binary()),
    ]
)


@dataclass(frozen=True)
class PackedOutput:
    """The changes of alike versions of a table that follow each other.

    Attributes
    ----------
    table : int
        The number of the table in the list of tables.
    output : TableOutput
    renamed : str or None
        The name of the table in these versions, if it has another name in the list of tables, and had that one before.
    former : str or None
        A name that it had before, in an earlier micro-batch.
    """

    table: int
    output: TableOutput
    renamed: str | None
    former: str | None

    @property
    def version(self) -> int:
        """The number of the first of these versions."""
        return self.output.numbers[None][0]

    def schema(self) -> pa.Schema:
        """Return the columns as Spark has them."""
        fields = [item for item in self.output.schema if item.type != pa.struct([])]
        return arrow_schema(spark_schema(pa.schema(fields), with_metadata=True))


@dataclass
class PackedPartition(ChangePartition):
    """Splits to decode to changes of several tables.

    Attributes
    ----------
    packed : tuple of PackedOutput
    """

    packed: tuple[PackedOutput, ...] = ()

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Decode the splits."""
        enter_task()
        schemas = [item.schema() for item in self.packed]
        columns = [item.serialize().to_pybytes() for item in schemas]
        for at, batch in self.decoded([item.output for item in self.packed]):
            if len(batch):
                row = {
                    "table": self.packed[at].table,
                    "version": self.packed[at].version,
                    "columns": columns[at],
                    "relation_id": self.packed[at].output.versions[0].relation_id,
                    "renamed": self.packed[at].renamed,
                    "former": self.packed[at].former,
                    **_places(batch),
                    "changes": with_schema(batch, schemas[at]).serialize().to_pybytes(),
                }
                yield pa.RecordBatch.from_pylist([row], schema=schema)


def _places(batch: pa.RecordBatch) -> dict[str, dict[str, int] | None]:
    """Find the first and the last change of a batch, and its last truncate."""
    commits, positions = batch["_commit_position"], batch["_position"]
    is_truncate = pc.equal(batch["_op"], "truncate")
    found: dict[str, dict[str, int] | None] = {"truncate": None}
    chosen = [("first", None, pc.min), ("last", None, pc.max)]
    if pc.any(is_truncate).as_py():
        chosen.append(("truncate", is_truncate, pc.max))
    for name, mask, extreme in chosen:
        of_commits = commits if mask is None else commits.filter(mask)
        of_positions = positions if mask is None else positions.filter(mask)
        commit = extreme(of_commits)
        position = extreme(of_positions.filter(pc.equal(of_commits, commit)))
        found[name] = {"commit": commit.as_py(), "position": position.as_py()}
    return found


def packed_partitions(
    work: Iterable[IndexedSplits],
    tables: Sequence[SourceOptions],
    versions: Sequence[RelationVersion],
    types: tuple[UserType, ...],
    files: Collection[PayloadFile],
    options: ChangeOptions,
    *,
    after: int,
    has_time: bool,
) -> list[InputPartition]:
    """Divide a micro-batch into partitions.

    Parameters
    ----------
    work : iterable of IndexedSplits
    tables : sequence of SourceOptions
        The options of each table.
    versions : sequence of RelationVersion
        All versions of all tables.
    types : tuple of UserType
    files : collection of PayloadFile
        Those of the micro-batch.
    options : ChangeOptions
    after : int
        The last position of the micro-batch before.
    has_time : bool
        As in `TableOutput`.

    Raises
    ------
    TableError
    """
    outputs = []
    for at, of_table in enumerate(tables):
        named = _known(versions, of_table)
        last = {item.relation_id: number for number, item in named.items()}
        # Those with other names, too, so that no change of a table is left out silently because it was renamed.
        ids = {*last, of_table.relation_id}
        known = {number: item for number, item in enumerate(versions) if item.relation_id in ids}
        former = {
            item.relation_id: item.qualified_name
            for number, item in known.items()
            if number not in named and after >= 0 and item.position <= after
        }
        job = of_table.with_types(types, files)
        for numbers in _alike(known):
            version = known[numbers[0]]
            output = TableOutput(
                (version,),
                {None: tuple(numbers)},
                _options_of(version, job.options),
                of_table.any_year,
                has_time,
                others={None: ()},
            )
            is_renamed = numbers[-1] > last.get(version.relation_id, -1)
            renamed = version.qualified_name if is_renamed else None
            outputs.append(PackedOutput(at, output, renamed, former.get(version.relation_id)))
    if not outputs:
        return []
    position = tables[0].position
    return [PackedPartition(item, outputs[0].output, options, position, after, tuple(outputs)) for item in work]


def check_tables(tables: Sequence[SourceOptions], versions: Sequence[RelationVersion]) -> None:
    """Check that the files describe all tables, and all columns that the option `columns` names.

    It is for the time before a query starts. An offset that was planned is planned again by each restart, also if a
    later file has what is missing.

    Raises
    ------
    TableError, ValueError
    """
    known: set[str] = set()
    given: set[str] = set()
    for of_table in tables:
        found = _known(versions, of_table)
        if not found:
            raise TableError(of_table.what, "no message of the files describes this table")
        assert isinstance(of_table.job, ChangeJob)
        for version in found.values():
            given |= {free_name(name) for name in of_table.job.options.columns_of(version)}
            known |= {free_name(item.name) for item in version.columns}
    unknown = sorted(given - known)
    if unknown:
        names = listed(item.what for item in tables)
        raise ValueError(f"columns names {unknown}, but no version of the tables ({names}) has such a column")


def _known(versions: Sequence[RelationVersion], of_table: SourceOptions) -> dict[int, RelationVersion]:
    try:
        return versions_of(versions, of_table.what)
    except KeyError as error:
        raise TableError(of_table.what, str(error.args[0])) from None


def _options_of(version: RelationVersion, options: Options) -> Options:
    """Leave out the types of columns that a version does not have."""
    if not options.columns:
        return options
    names = {free_name(item.name) for item in version.columns}
    (columns,) = options.columns.values()  # of one table, which may have another name in this version
    given = {name: text for name, text in columns.items() if free_name(name) in names}
    return replace(options, columns={version.relation_id: given})


def _alike(versions: Mapping[int, RelationVersion]) -> Iterator[list[int]]:
    """Group the numbers of versions that follow each other and are alike."""
    group: list[int] = []
    for number, version in versions.items():
        if group and not versions[group[0]].is_like(version):
            yield group
            group = []
        group.append(number)
    if group:
        yield group


@dataclass(frozen=True)
class ChangesOfVersion:
    """The changes of a micro-batch that have the columns of one version.

    Attributes
    ----------
    table, version : int
    schema : pa.Schema
    first, last : tuple of int
    truncate : tuple of int or None
        The last truncate.
    relation_id : int
    renamed, former : str or None
        As in `PackedOutput`.
    """

    table: int
    version: int
    schema: pa.Schema
    first: Place
    last: Place
    truncate: Place | None
    relation_id: int = 0
    renamed: str | None = None
    former: str | None = None

    def changes(self, packed: DataFrame) -> DataFrame:
        """Return the rows, as `table_changes` returns them."""
        rows = packed.where((F.col("table") == self.table) & (F.col("version") == self.version)).select("changes")
        with for_workers():
            return rows.mapInArrow(_Unpacked(self.schema), spark_schema(self.schema, with_metadata=True))


def versions_in(packed: DataFrame) -> list[ChangesOfVersion]:
    """List what a micro-batch has, in the order of the changes."""
    found = packed.groupBy("table", "version").agg(
        *(F.first(name).alias(name) for name in ("columns", "relation_id", "renamed", "former")),
        F.min("first"),
        F.max("last"),
        F.max("truncate"),
    )
    every = [
        ChangesOfVersion(
            table,
            version,
            pa.ipc.read_schema(pa.py_buffer(columns)),
            tuple(first),
            tuple(last),
            None if truncate is None else tuple(truncate),
            *about,
        )
        for table, version, columns, *about, first, last, truncate in found.collect()
    ]
    return sorted(every, key=lambda item: (item.table, item.first))


@dataclass(frozen=True)
class _Unpacked(WorkerFunction):
    """A function for `mapInArrow` that reads Arrow data."""

    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        enter_task()
        for batch in batches:
            for data in batch.column(0):
                yield pa.ipc.read_record_batch(data.as_buffer(), self.schema)
