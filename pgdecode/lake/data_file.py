"""The Parquet files of a table, and the bounds of their columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pgdecode.lake.target import ColumnSource


@dataclass(frozen=True)
class ColumnBounds:
    """Bounds of the values of a column in a file.

    Attributes
    ----------
    nulls : int or None
        Number of nulls; None if it is not known.
    minimum, maximum : pa.Scalar or None
        No value is less or greater. None if that is not known, or without values.
    """

    nulls: int | None = None
    minimum: pa.Scalar | None = None
    maximum: pa.Scalar | None = None


@dataclass(frozen=True)
class DataFile:
    """A Parquet file of a table.

    Attributes
    ----------
    path : str
        As the format names it. It identifies the file.
    rows, bytes : int
    bounds : mapping of str to ColumnBounds
        Of columns of the table, by the names that they have now. Columns may be missing. Files that are added have all
        that are not nested.
    metadata : pq.FileMetaData or None
        The footer, of files that are added.
    """

    path: str
    rows: int
    bytes: int
    bounds: Mapping[str, ColumnBounds] = field(default_factory=dict)
    metadata: pq.FileMetaData | None = field(default=None, compare=False, repr=False)


def column_bounds(metadata: pq.FileMetaData, schema: pa.Schema) -> dict[str, ColumnBounds]:
    """Read the bounds of the columns that are not nested from a footer, for all row groups together."""
    groups = range(metadata.num_row_groups)
    return {item.name: bounds_of(metadata, groups, leaf, item.type) for item, leaf in plain_columns(metadata, schema)}


def renamed_bounds(
    bounds: Mapping[str, ColumnBounds], schema: pa.Schema, columns: Mapping[str, ColumnSource]
) -> dict[str, ColumnBounds]:
    """Return the bounds of a file that stays when its table gets other columns, with the types of the new schema."""
    found = {}
    for item in schema:
        of = bounds.get(columns[item.name].name or "")
        if of is not None:
            ends = (None if end is None else end.cast(item.type) for end in (of.minimum, of.maximum))
            found[item.name] = ColumnBounds(of.nulls, *ends)
    return found


def plain_columns(metadata: pq.FileMetaData, schema: pa.Schema) -> list[tuple[pa.Field, int]]:
    """List the columns that are not nested, with the numbers of their Parquet columns."""
    leaves = {metadata.schema.column(number).path: number for number in range(metadata.num_columns)}
    return [(item, leaves[item.name]) for item in schema if item.name in leaves and not pa.types.is_nested(item.type)]


def bounds_of(metadata: pq.FileMetaData, groups: Iterable[int], leaf: int, kind: pa.DataType) -> ColumnBounds:
    """Read the bounds of a column in some row groups.

    Columns of floating point have no minimum and maximum, because the statistics of Parquet leave out NaN.
    """
    nulls: int | None = 0
    has_bounds = not (pa.types.is_floating(kind) or pa.types.is_unsigned_integer(kind))
    values: list[Any] = []
    for group in groups:
        chunk = metadata.row_group(group).column(leaf)
        known = chunk.statistics
        of_group = known.null_count if known is not None and known.has_null_count else None
        nulls = None if nulls is None or of_group is None else nulls + of_group
        if of_group == chunk.num_values:
            continue
        if known is None or not known.has_min_max:
            has_bounds = False
        elif has_bounds:
            values += _order_values(known.min_raw, known.max_raw, kind)
    if not has_bounds or not values:
        return ColumnBounds(nulls)
    return ColumnBounds(nulls, _scalar(min(values), kind), _scalar(max(values), kind))


def order_value(value: pa.Scalar) -> Any:
    """Return a value of Python in the order of the column's values."""
    if pa.types.is_temporal(value.type):
        value = value.cast(pa.int64() if value.type.bit_width == 64 else pa.int32())
    return value.as_py()


def _order_values(minimum: Any, maximum: Any, kind: pa.DataType) -> list[Any]:
    if pa.types.is_decimal(kind) and isinstance(minimum, bytes):
        return [int.from_bytes(value, "big", signed=True) for value in (minimum, maximum)]
    return [minimum, maximum]


def _scalar(value: Any, kind: pa.DataType) -> pa.Scalar:
    if pa.types.is_decimal(kind):
        digits = tuple(map(int, str(abs(value))))
        return pa.scalar(Decimal((value < 0, digits, -kind.scale)), kind)
    if pa.types.is_temporal(kind):
        return pa.scalar(value, pa.int64() if kind.bit_width == 64 else pa.int32()).cast(kind)
    if isinstance(value, bytes) and not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        return pa.scalar(value, pa.binary()).cast(kind)
    return pa.scalar(value, kind)
