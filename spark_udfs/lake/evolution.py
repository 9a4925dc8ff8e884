"""Gives a table the columns of the changes that are merged into it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pgdecode.datasets.errors import RunError
from pgdecode.net.history import TableHistory
from pgdecode.protocol.errors import listed
from pgdecode.relations.relation_version import RelationVersion
from pgdecode.relations.schema_metadata import Described
from pgdecode.rows.old_values import decoded_value
from spark_udfs.lake.lake_table import LakeTable, ddl_of, quoted, stored_columns
from spark_udfs.schema.spark_types import arrow_schema

SchemaChanges = Literal["evolve", "ignore", "fail"]

COPY = "Copy the table (pgdecode capture with the option copy), and merge the changes from then on"


@dataclass(frozen=True)
class Difference:
    """How the columns of a table differ from those of net changes.

    Attributes
    ----------
    names : dict
        The columns of the table that the net changes have, with their names there.
    dropped : tuple of str
        Columns of the table that the server does not have any more.
    added : dict
        The columns that the table does not have, with the value of its rows. None if it is not known.
    retyped : dict
        The types that columns of the table get, by their names in the net changes.
    unsure : dict
        The columns of the net changes whose values PostgreSQL may have computed again, with the reason.
    version : RelationVersion or None
        The last one.
    """

    names: Mapping[str, str]
    dropped: tuple[str, ...]
    added: Mapping[str, pa.Scalar | None]
    retyped: Mapping[str, T.DataType]
    unsure: Mapping[str, str]
    version: RelationVersion | None

    @property
    def texts(self) -> list[str]:
        """Describe the difference."""
        renamed = {old: new for old, new in self.names.items() if old != new}
        return [
            *(f"column {name!r} was added" for name in self.added),
            *(f"column {name!r} was dropped" for name in self.dropped),
            *(f"column {old!r} was renamed to {new!r}" for old, new in renamed.items()),
            *(f"column {name!r} has the type {kind.simpleString()}" for name, kind in self.retyped.items()),
            *(text for name, text in self.unsure.items() if name not in self.retyped),
        ]


def difference(table: LakeTable, net: T.StructType, described: Described) -> Difference:
    """Compare the columns of a table with those of net changes, by the versions of the relation.

    Raises
    ------
    RunError
        If the net changes lack columns of the table, or are those of another table.
    """
    columns = {item.name: item for item in table.columns}
    history = TableHistory().with_versions(described)
    names = {name: name for name in columns if name in net.names}
    dropped: list[str] = []
    missing: dict[str, pa.Scalar | None] = {}
    unsure: dict[str, str] = {}
    if table.version is not None and history.versions:
        history = TableHistory([table.version]).with_versions(described)
        first, last = history.number_of(table.version), len(history.versions) - 1
        if history.versions[last].relation_id != table.version.relation_id:
            raise RunError(
                f"table {table.name}: the changes are those of another table from position "
                f"{history.versions[last].position} on (OID {history.versions[last].relation_id}, before "
                f"{table.version.relation_id}): drop the table, and merge the changes of the new one"
            )
        alive, names = set(history.columns(last)), {}
        for old, new in history.names[first].items():
            # A call that was killed may have changed the column already.
            now = old if old in columns else new
            if now in columns and new in alive:
                names[now] = new
            elif now in columns:
                dropped.append(now)
        for number in range(first + 1, last + 1):
            version = history.versions[number]
            for name, value in history.added(number).items():
                if value is not None and name in net.names:
                    missing[name] = decoded_value(version, *value, arrow_schema(net).field(name).type)
            for name, change in history.type_changes(number - 1, number).items():
                if not (change.is_kept or change.is_same_text) and name not in history.added(number):
                    unsure[name] = f"column {name!r} has another type from position {version.position} on"
    absent = sorted({*names.values()} - {*net.names})
    if absent:
        raise RunError(f"table {table.name} has the column {absent[0]!r}, the net changes do not: take all columns")
    stored = {item.name: item.dataType for item in stored_columns(net, table.format)}
    retyped = {
        new: stored[new]
        for old, new in names.items()
        if columns[old].dataType != stored[new] and not _is_wider(stored[new], columns[old].dataType)
    }
    for old, new in names.items():
        if new in retyped and not history.versions and not _is_wider(columns[old].dataType, stored[new]):
            unsure[new] = f"column {new!r} is {stored[new].simpleString()}, and the table has another type"
    taken = {*names.values()}
    added = {name: missing.get(name) for name in net.names if name not in taken}
    newest = history.versions[-1] if history.versions else None
    return Difference(names, tuple(dropped), added, retyped, unsure, newest)


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
    if not is_empty:
        _check_known(table, found)
    there = {item.name for item in table.columns}
    renamed = {old: new for old, new in found.names.items() if old != new}
    added = {name: value for name, value in found.added.items() if name not in there}
    types = {item.name: item.dataType for item in stored_columns(net, table.format)}
    are_widened = all(
        _is_wider(table.columns[old].dataType, found.retyped[new])
        for old, new in found.names.items()
        if new in found.retyped
    )
    in_place = (
        (table.has_names or not (renamed or found.dropped))
        and (not found.retyped or (table.has_widening and are_widened))
        and (is_empty or all(value is None or not value.is_valid for value in added.values()))
        # A name that another column has now would need steps that cannot be repeated.
        and not there & {*renamed.values(), *(name for name in found.added if name in found.dropped)}
    )
    if not in_place:
        table.replace(_rows(table, net, found, is_empty=is_empty), found.version)
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


def _check_known(table: LakeTable, found: Difference) -> None:
    unknown = [name for name, value in found.added.items() if value is None]
    if unknown:
        raise RunError(
            f"table {table.name}: the values that its rows have in the added column {listed(map(repr, unknown))} are "
            f"not known. {COPY}"
        )
    if found.unsure:
        raise RunError(
            f"table {table.name}: {next(iter(found.unsure.values()))}, and the new values of its rows are not known. "
            f"{COPY}"
        )


def _rows(table: LakeTable, net: T.StructType, found: Difference, *, is_empty: bool) -> DataFrame:
    """Return the rows of a table with the columns that it gets, those of the net changes first."""
    rows = table.frame().where(F.lit(False)) if is_empty else table.frame()
    types = {item.name: item.dataType for item in stored_columns(net, table.format)}
    values = {name: value for name, value in found.added.items() if value is not None and value.is_valid}
    prefix = "_pgdecode_"
    if values and not is_empty:
        one = pa.table({f"{prefix}{name}": pa.array([value.as_py()], value.type) for name, value in values.items()})
        rows = rows.crossJoin(F.broadcast(table.spark.createDataFrame(one)))
    old_names = {new: old for old, new in found.names.items()}
    columns = []
    for name in net.names:
        if name in old_names:
            column = F.col(quoted(old_names[name]))
        elif name in values and not is_empty:
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
