"""Dates and timestamps of years that Python cannot represent. Spark can, but collect() and toPandas() raise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

import pgdecode
from pgdecode import DecodeError, Relation, Unrepresentable
from pgdecode.protocol.errors import shown
from pgdecode.protocol.options import Mode, UnrepresentableValues, check_option
from spark_udfs.schema.nested_fields import with_nested_fields

# Days of 0001-01-01 and 9999-12-31 since 1970-01-01.
_FIRST_DAY = -719_162
_LAST_DAY = 2_932_896
_US_PER_DAY = 86_400_000_000


Years = Literal["1-9999", "any"]


def any_year(years: Years) -> bool:
    """Check the option `years`, and return whether all years are allowed.

    Raises
    ------
    TypeError, ValueError
        For another value than those of `Years`.
    """
    check_option("years", years, Years)
    return years == "any"


class Cell(NamedTuple):
    """A column of the new row or of the old row."""

    column: int
    in_old: bool


def checked_years(
    rows: pa.RecordBatch, payloads: pa.Array, relation: Relation, mode: Mode, unrepresentable: UnrepresentableValues
) -> pa.RecordBatch:
    """Treat dates and timestamps outside the years 1 to 9999 (UTC) as unrepresentable values.

    Parameters
    ----------
    rows : pa.RecordBatch
        The result of `pgdecode.decode_rows` for the payloads.
    payloads : pa.Array
    relation : Relation
    mode, unrepresentable : str
        As in `decode_rows`. "clamp" replaces such a value by the nearest value in these years.

    Returns
    -------
    pa.RecordBatch
        With the same schema.

    Raises
    ------
    Unrepresentable
        In FAILFAST mode, for the first such row, unless `unrepresentable` is "null" or "clamp".
    """

    def fault(row: int, cell: Cell) -> Unrepresentable:
        streamed = rows["_xid"][row].is_valid
        return year_fault(payloads[row].as_py(), streamed, relation, cell, row=row)

    return with_years(rows, len(relation.columns), fault, mode, unrepresentable)


def with_years(
    rows: pa.RecordBatch,
    n_columns: int,
    fault: Callable[[int, Cell], DecodeError],
    mode: Mode,
    unrepresentable: UnrepresentableValues,
) -> pa.RecordBatch:
    """Do the same as `checked_years` for the last `n_columns` columns and `_old`. `fault` makes the error of a cell."""
    bad = _bad_cells(rows, n_columns)
    if not bad:
        return rows
    if unrepresentable == "clamp":
        return pa.RecordBatch.from_arrays(
            [with_nested_fields(column, clamped) for column in rows.columns], schema=rows.schema
        )
    if unrepresentable != "null":
        if mode == "FAILFAST":
            row, cell = min(
                ((mask.index(True).as_py(), cell) for cell, mask in bad.items()), key=lambda found: found[0]
            )
            raise fault(row, cell)
        errors: dict[int, str] = {}
        for cell, mask in bad.items():
            for row in pc.indices_nonzero(mask).to_pylist():
                if row not in errors:
                    errors[row] = fault(row, cell).cell
        texts = pa.array([errors.get(row) for row in range(len(rows))], pa.string())
        at = rows.schema.get_field_index("_error")
        rows = rows.set_column(at, rows.schema.field(at), pc.coalesce(rows["_error"], texts))
    return _without(rows, bad, n_columns)


def _bad_cells(rows: pa.RecordBatch, n_columns: int) -> dict[Cell, pa.BooleanArray]:
    """For each column of the new and old rows with such values, find the rows that have one."""
    found = {}
    for in_old, columns in ((False, rows.columns[len(rows.schema) - n_columns :]), (True, rows["_old"].flatten())):
        for number, column in enumerate(columns):
            mask = outside(column)
            if mask is not None:
                found[Cell(number, in_old)] = mask
    return found


def _without(rows: pa.RecordBatch, bad: dict[Cell, pa.BooleanArray], n_columns: int) -> pa.RecordBatch:
    """Replace the bad cells by null."""
    columns = rows.columns
    old = rows["_old"]
    children = old.flatten()
    for (number, in_old), mask in bad.items():
        within, at = (children, number) if in_old else (columns, len(columns) - n_columns + number)
        within[at] = pc.if_else(mask, pa.scalar(None, within[at].type), within[at])
    columns[rows.schema.get_field_index("_old")] = pa.StructArray.from_arrays(
        children, fields=list(old.type), mask=old.is_null()
    )
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def year_fault(
    payload: bytes, streamed: bool, relation: Relation, cell: Cell, row: int | None = None
) -> Unrepresentable:
    """Make the error of a cell. Its column is an index of the relation's columns."""
    return Unrepresentable(
        f"column {shown(relation.columns[cell.column].name)} is outside the years 1 to 9999, which Spark cannot "
        'collect (years="any" allows it)',
        row=row,
        offset=_offset(payload, streamed, cell),
        tag=payload[:1].decode(),
        relation=relation.relation_id,
        column=cell.column,
    )


def _offset(payload: bytes, streamed: bool, cell: Cell) -> int:
    """Find the offset of a cell's value in the payload."""
    message = pgdecode.decode(payload, in_stream=streamed)
    old, new = (getattr(message, name, None) for name in ("old", "new"))
    # Tag, xid and relation OID; then the tag and the number of columns of the first tuple.
    at = (9 if streamed else 5) + 3
    if old is not None:
        if cell.in_old or new is None or new[cell.column] is None:
            return at + _before(old, cell.column)
        # `_before` counts 5 bytes for the kind and length of a next value. Here the tag and the number of columns of
        # the new tuple follow, which are 3 bytes.
        at += _before(old, len(old)) - 5 + 3
    return at + _before(new or (), cell.column)


def _before(values: tuple[bytes | None, ...], column: int) -> int:
    """Count the bytes of a tuple before a value's data: the earlier values, and the value's kind and length."""
    return sum(1 if value is None else 5 + len(value) for value in values[:column]) + 5


def holds_years(arrow: pa.DataType) -> bool:
    """Whether a type is, or contains, a date or timestamp type."""
    if pa.types.is_struct(arrow):
        return any(holds_years(field.type) for field in arrow)
    if pa.types.is_list(arrow):
        return holds_years(arrow.value_type)
    return _range(arrow) is not None


def outside(array: pa.Array) -> pa.BooleanArray | None:
    """Find values that are, or contain, a date or timestamp outside the years 1 to 9999 (UTC).

    Parameters
    ----------
    array : pa.Array
        Of any type, including structs and lists.

    Returns
    -------
    pa.BooleanArray or None
        Whether each value is or contains one, without nulls; None if no value does.
    """
    if pa.types.is_struct(array.type):
        return _any([outside(child) for child in array.flatten() if holds_years(child.type)])
    if pa.types.is_list(array.type) and holds_years(array.type):
        items = outside(array.flatten())
        if items is None:
            return None
        places = pa.array(range(len(array)), pa.int64())
        return pc.is_in(places, pc.list_parent_indices(array).filter(items).cast(pa.int64()))
    found = _range(array.type)
    if found is None:
        return None
    numbers = array.view(found[0].type)
    seen = pc.min_max(numbers)
    first, last = found
    if not seen["min"].is_valid or (seen["min"].as_py() >= first.as_py() and seen["max"].as_py() <= last.as_py()):
        return None
    return pc.or_(pc.less(numbers, first), pc.greater(numbers, last)).fill_null(False)


def clamped(array: pa.Array) -> pa.Array:
    """Replace dates and timestamps by the nearest in the years 1 to 9999. The array is not a struct or list."""
    found = _range(array.type)
    if found is None:
        return array
    first, last = found
    numbers = pc.max_element_wise(array.view(first.type), first, skip_nulls=False)
    return pc.min_element_wise(numbers, last, skip_nulls=False).view(array.type)


def _range(arrow: pa.DataType) -> tuple[pa.Scalar, pa.Scalar] | None:
    """Return the first and the last value of a type in the years 1 to 9999, as integers; None for other types."""
    if pa.types.is_date32(arrow):
        return pa.scalar(_FIRST_DAY, pa.int32()), pa.scalar(_LAST_DAY, pa.int32())
    if pa.types.is_timestamp(arrow):
        first, end = _FIRST_DAY * _US_PER_DAY, (_LAST_DAY + 1) * _US_PER_DAY
        return pa.scalar(first, pa.int64()), pa.scalar(end - 1, pa.int64())
    return None


def _any(masks: list[pa.BooleanArray | None]) -> pa.BooleanArray | None:
    found = None
    for mask in masks:
        if mask is not None:
            found = mask if found is None else pc.or_(found, mask)
    return found
