"""Gives a table the columns of the changes that are merged into it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pgdecode.datasets.errors import RunError
from pgdecode.lake.reading.schema_steps import SchemaStep, UnknownValues
from pgdecode.lake.target import ColumnSource
from pgdecode.net.history import TableHistory
from pgdecode.relations.column_history import Renames
from pgdecode.relations.relation_version import RelationVersion, used_from
from pgdecode.relations.schema_metadata import Described
from pgdecode.rows.own_names import with_free_names
from spark_udfs.lake.lake_table import LakeTable, ddl_of, stored_columns
from spark_udfs.runtime.session import for_workers
from spark_udfs.runtime.worker import WorkerFunction, enter_task
from spark_udfs.schema.spark_types import arrow_schema, quoted, spark_schema

SchemaChanges = Literal["evolve", "ignore", "fail"]

COPY = (
    "Copy the table (pgdecode capture with the option copy), and merge the changes from then on; apply_stream needs a "
    "new checkpoint for it, and must run without maxFilesPerTrigger until the copy is applied"
)


@dataclass(frozen=True)
class Difference:
    """How the columns of a table differ from those of net changes.

    Attributes
    ----------
    names : dict
        The columns of the table that the net changes have, with their names there.
    dropped : tuple of str
        Columns of the table that the server does not have any more.
    added : tuple of str
        The columns that the table does not have.
    retyped : dict
        The types that columns of the table get, by their names in the net changes.
    altered : tuple of str
        The columns of the net changes whose values PostgreSQL has computed again.
    version : RelationVersion or None
        The last one.
    step : SchemaStep or None
        From the version of the table to the last one. None if one of them is not known.
    """

    names: Mapping[str, str]
    dropped: tuple[str, ...]
    added: tuple[str, ...]
    retyped: Mapping[str, T.DataType]
    altered: tuple[str, ...]
    version: RelationVersion | None
    step: SchemaStep | None

    @property
    def texts(self) -> list[str]:
        """Describe the difference."""
        renamed = {old: new for old, new in self.names.items() if old != new}
        return [
            *(f"column {name!r} was added" for name in self.added),
            *(f"column {name!r} was dropped" for name in self.dropped),
            *(f"column {old!r} was renamed to {new!r}" for old, new in renamed.items()),
            *(f"column {name!r} has the type {kind.simpleString()}" for name, kind in self.retyped.items()),
            *(f"the type of column {name!r} was changed" for name in self.altered if name not in self.retyped),
        ]

    def sources(self, *, is_empty: bool) -> Mapping[str, ColumnSource]:
        """Return the source of each column of the net changes, by its name in them.

        Raises
        ------
        UnknownValues
            If rows get values that the changes do not tell.
        """
        if self.step is not None:
            sources = self.step.columns(is_empty=is_empty)
        else:
            sources = {new: ColumnSource(old) for old, new in self.names.items()}
        unknown = [name for name in self.added if name not in sources or sources[name].name is not None]
        if unknown and not is_empty:
            raise UnknownValues(f"column {unknown[0]!r} was added, and its values in older rows are not known")
        return sources


def difference(table: LakeTable, net: T.StructType, described: Described) -> Difference:
    """Compare the columns of a table with those of net changes, by the versions of the relation.

    Raises
    ------
    RunError
        If the net changes lack columns of the table, or are those of another table.
    """
    types = {item.name: item.dataType for item in table.columns}
    versions = TableHistory().with_versions(described).versions
    newest = versions[-1] if versions else None
    names = {name: name for name in types if name in net.names}
    step: SchemaStep | None = None
    dropped: tuple[str, ...] = ()
    if table.version is not None and newest is not None:
        if newest.relation_id != table.version.relation_id:
            raise other_table(table, newest.relation_id, newest.position)
        step, names, dropped = _step(table, _versions_after(table.version, versions), net, described.renames)
    absent = sorted({*names.values()} - {*net.names})
    if absent:
        raise RunError(f"table {table.name} has the column {absent[0]!r}, the net changes do not: take all columns")
    stored = {item.name: item.dataType for item in stored_columns(net, table.format)}
    retyped = {
        new: stored[new]
        for old, new in names.items()
        if types[old] != stored[new] and not _is_wider(stored[new], types[old])
    }
    altered = [] if step is None else [name for name, item in step.type_changes.items() if not item.is_same_text]
    added = tuple(name for name in net.names if name not in names.values())
    return Difference(names, dropped, added, retyped, tuple(altered), newest, step)


def other_table(table: LakeTable, relation_id: int, position: int) -> RunError:
    """Make the error for changes of a table with another OID than that of a table so far."""
    assert table.version is not None
    return RunError(
        f"table {table.name}: the changes are those of another table from position {position} on (OID {relation_id}, "
        f"before {table.version.relation_id}): drop the table, and merge the changes of the new one. If the former one "
        "was renamed, merge its changes under its new name"
    )


def _versions_after(version: RelationVersion, every: Sequence[RelationVersion]) -> list[RelationVersion]:
    """Return the versions to step through from that of a table to the last one, which is always among them."""
    *others, newest = every
    if version.facts is not None and newest.facts is not None:
        # The numbers of the columns tell which are the same.
        return [newest]
    positions = [item.position for item in others]
    if version.position in positions:
        return [*others[positions.index(version.position) + 1 :], newest]
    return [*(item for item in others if used_from(item) > used_from(version)), newest]


def _step(
    table: LakeTable, later_versions: Sequence[RelationVersion], net: T.StructType, renames: Renames
) -> tuple[SchemaStep, dict[str, str], tuple[str, ...]]:
    """Return the step from the version of a table to the last one, and the names of kept and of dropped columns."""
    assert table.version is not None
    *between, newest = later_versions
    types = {item.name: item.type for item in arrow_schema(table.columns)}
    columns = {item.name for item in with_free_names(newest).columns}
    new = pa.schema([item for item in arrow_schema(net) if item.name in columns])
    step = SchemaStep(table.version, newest, pa.schema([]), new, renames, between)
    kept = {old: new for new, old in step.origins.items() if old is not None}
    # A call that was killed may have renamed the column already.
    now = {old: old if old in types else new for old, new in kept.items()}
    step.old = pa.schema([pa.field(old, types[name]) for old, name in now.items() if name in types])
    names = {now[old]: new for old, new in kept.items() if now[old] in types}
    former = {item.name for item in with_free_names(table.version).columns}
    dropped = tuple(name for name in types if name in former - {*kept} and name not in names)
    return step, names, dropped


def rewritten_columns(described: Described) -> dict[str, int]:
    """Return the columns whose values PostgreSQL has written again with another type, and the last position of that.

    Net changes do not tell values from before it.
    """
    history = TableHistory().with_versions(described)
    return {
        name: history.versions[number].position
        for number in range(1, len(history.versions))
        for name, change in history.type_changes(number - 1, number).items()
        if not (change.is_kept and change.is_same_text) and name not in history.added(number)
    }


def evolve(table: LakeTable, net: T.StructType, found: Difference, *, is_empty: bool) -> LakeTable:
    """Give a table the columns of net changes.

    Parameters
    ----------
    table : LakeTable
    net : StructType
        The columns of the net changes.
    found : Difference
    is_empty : bool
        Whether the rows do not matter: there are none, or they will be removed.

    Returns
    -------
    LakeTable

    Raises
    ------
    RunError
        If the values of the rows are not known.
    """
    try:
        sources = found.sources(is_empty=is_empty)
    except UnknownValues as error:
        raise _unknown(table, found, error) from None
    there = {item.name for item in table.columns}
    renamed = {old: new for old, new in found.names.items() if old != new}
    added = [name for name in found.added if name not in there]
    values = {
        name: item.missing for name, item in sources.items() if item.missing is not None and item.missing.is_valid
    }
    types = {item.name: item.dataType for item in stored_columns(net, table.format)}
    are_widened = all(
        _is_wider(table.columns[old].dataType, found.retyped[new])
        for old, new in found.names.items()
        if new in found.retyped
    )
    if found.version is None and not (is_empty or are_widened):
        raise _unknown(table, found, f"column {next(iter(found.retyped))!r} has another type in the table")
    in_place = (
        (table.has_names or not (renamed or found.dropped))
        and (not found.retyped or (table.has_widening and are_widened))
        and (is_empty or not (values or any(item.convert for item in sources.values())))
        # A name that another column has now would need steps that cannot be repeated.
        and not there & {*renamed.values(), *(name for name in found.added if name in found.dropped)}
    )
    if not in_place:
        rows = table.frame().where(F.lit(False)) if is_empty else _converted(table.frame(), net, found, sources)
        try:
            table.replace(_rows(table, rows, net, found, {} if is_empty else values), found.version)
        except PySparkException as error:
            reason = re.search(rf"{UnknownValues.__name__}: (.*)", str(error))
            if reason is None:
                raise
            raise _unknown(table, found, reason[1]) from None
    else:
        for name in found.dropped:
            table.alter(f"DROP COLUMN {quoted(name)}")
        for old, new in renamed.items():
            table.alter(f"RENAME COLUMN {quoted(old)} TO {quoted(new)}")
        for name, kind in found.retyped.items():
            table.alter(f"ALTER COLUMN {quoted(name)} TYPE {ddl_of(kind)}")
        if added:
            columns = (f"{quoted(name)} {ddl_of(types[name])}" for name in added)
            table.alter(f"ADD COLUMNS ({', '.join(columns)})")
        if found.version is not None:
            table.write_version(found.version)
    again = LakeTable.open(table.spark, table.name)
    assert again is not None
    return again


def _unknown(table: LakeTable, found: Difference, reason: object) -> RunError:
    where = "" if found.version is None else f"position {found.version.position}: "
    return RunError(f"table {table.name}: {where}{reason}. {COPY}")


def _converted(rows: DataFrame, net: T.StructType, found: Difference, sources: Mapping[str, ColumnSource]) -> DataFrame:
    """Give the rows of a table the values that PostgreSQL has computed with other types."""
    new = {item.name: item.type for item in arrow_schema(net)}
    chosen = {old: sources[name].convert for old, name in found.names.items() if name in sources}
    converts = {old: convert for old, convert in chosen.items() if convert is not None}
    if not converts:
        return rows
    fields = [
        pa.field(item.name, new[found.names[item.name]]) if item.name in converts else item
        for item in arrow_schema(rows.schema)
    ]
    schema = pa.schema([item.with_nullable(True) for item in fields])
    with for_workers():
        return rows.mapInArrow(_Conversion(schema, converts), spark_schema(schema))


@dataclass(frozen=True)
class _Conversion(WorkerFunction):
    """A function for `mapInArrow` that converts columns."""

    schema: pa.Schema
    converts: Mapping[str, Callable[[pa.ChunkedArray], pa.ChunkedArray]]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        enter_task()
        for batch in batches:
            columns = []
            for item, column in zip(self.schema, batch.columns, strict=True):
                if item.name in self.converts:
                    column = pa.concat_arrays(self.converts[item.name](pa.chunked_array([column])).chunks)
                columns.append(column if column.type == item.type else column.cast(item.type))
            yield pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _rows(
    table: LakeTable, rows: DataFrame, net: T.StructType, found: Difference, values: Mapping[str, pa.Scalar]
) -> DataFrame:
    """Return rows of a table with the columns that it gets, those of the net changes first."""
    types = {item.name: item.dataType for item in stored_columns(net, table.format)}
    prefix = "_pgdecode_"
    if values:
        one = pa.table({f"{prefix}{name}": pa.array([value.as_py()], value.type) for name, value in values.items()})
        rows = rows.crossJoin(F.broadcast(table.spark.createDataFrame(one)))
    old_names = {new: old for old, new in found.names.items()}
    columns = []
    for name in net.names:
        if name in old_names:
            column = F.col(quoted(old_names[name]))
        elif name in values:
            column = F.col(quoted(f"{prefix}{name}"))
        else:
            column = F.lit(None)
        columns.append(column.cast(found.retyped.get(name, types[name])).alias(name))
    others = [
        F.col(quoted(item.name))
        for item in table.columns
        if item.name not in {*found.names, *found.dropped, *found.added}
    ]
    return rows.select(*columns, *others)


_WHOLE = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)


def _is_wider(kind: T.DataType, other: T.DataType) -> bool:
    """Whether a type has all values of another one, which formats of lakes widen to it."""
    if isinstance(kind, _WHOLE) and isinstance(other, _WHOLE):
        return _WHOLE.index(type(kind)) < _WHOLE.index(type(other))
    if isinstance(kind, T.DecimalType) and isinstance(other, T.DecimalType):
        return kind.scale == other.scale and kind.precision < other.precision
    return isinstance(kind, T.FloatType) and isinstance(other, T.DoubleType)
