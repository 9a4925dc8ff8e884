"""Dates and timestamps of years that Python has not: Spark holds them, but its collect() and toPandas() raise."""

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
    """Whether all years pass, by the option `years`.

    Raises
    ------
    TypeError, ValueError
        For another value than those of `Years`.
    """
    check_option("years", years, Years)
    return years == "any"


class Cell(NamedTuple):
    """A column of the table, or of the old row."""

    column: int
    in_old: bool


def checked_years(
    rows: pa.RecordBatch, payloads: pa.Array, relation: Relation, mode: Mode, unrepresentable: UnrepresentableValues
) -> pa.RecordBatch:
    """Treat dates and timestamps outside the years 1 to 9999 (UTC) as values that cannot be represented.

    Parameters
    ----------
    rows : pa.RecordBatch
        What `pgdecode.decode_rows` made of the payloads.
    payloads : pa.Array
    relation : Relation
    mode, unrepresentable : str
        As of `decode_rows`; "clamp" brings such a value to the nearest that there is.

    Returns
    -------
    pa.RecordBatch
        Of the same schema.

    Raises
    ------
    Unrepresentable
        In FAILFAST mode, for the first such row, where `unrepresentable` is neither "null" nor "clamp".
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
    """Treat such dates and timestamps in the last `n_columns` columns and in `_old`; `fault` makes a cell's error."""
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
        told: dict[int, str] = {}
        for cell, mask in bad.items():
            for row in pc.indices_nonzero(mask).to_pylist():
                if row not in told:
                    told[row] = fault(row, cell).cell
        texts = pa.array([told.get(row) for row in range(len(rows))], pa.string())
        at = rows.schema.get_field_index("_error")
        rows = rows.set_column(at, rows.schema.field(at), pc.coalesce(rows["_error"], texts))
    return _without(rows, bad, n_columns)


def _bad_cells(rows: pa.RecordBatch, n_columns: int) -> dict[Cell, pa.BooleanArray]:
    """Rows with such a value, by where they have it: in the table's columns, and in those of the old rows."""
    found = {}
    for in_old, columns in ((False, rows.columns[len(rows.schema) - n_columns :]), (True, rows["_old"].flatten())):
        for number, column in enumerate(columns):
            mask = outside(column)
            if mask is not None:
                found[Cell(number, in_old)] = mask
    return found


def _without(rows: pa.RecordBatch, bad: dict[Cell, pa.BooleanArray], n_columns: int) -> pa.RecordBatch:
    """Null the bad cells."""
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
    """Make the error of a cell, which is numbered as the relation's columns are."""
    return Unrepresentable(
        f"column {shown(relation.columns[cell.column].name)} is outside the years 1 to 9999, which Spark cannot "
        'collect (years="any" lets it pass)',
        row=row,
        offset=_offset(payload, streamed, cell),
        tag=payload[:1].decode(),
        relation=relation.relation_id,
        column=cell.column,
    )


def _offset(payload: bytes, streamed: bool, cell: Cell) -> int:
    """Find the first byte of the value that decoded to a cell, which lies in the new tuple or the old one."""
    message = pgdecode.decode(payload, in_stream=streamed)
    old, new = (getattr(message, name, None) for name in ("old", "new"))
    # Tag, xid, relation; then each tuple's own tag and number of columns.
    at = (9 if streamed else 5) + 3
    if old is not None:
        if cell.in_old or new is None or new[cell.column] is None:
            return at + _before(old, cell.column)
        # What would be a next value's kind and length is the new tuple's tag and number of columns.
        at += _before(old, len(old)) - 5 + 3
    return at + _before(new or (), cell.column)


def _before(values: tuple[bytes | None, ...], column: int) -> int:
    """Bytes of a tuple before a value: kind and length of that one, and of those before it with their bytes."""
    return sum(1 if value is None else 5 + len(value) for value in values[:column]) + 5


def holds_years(arrow: pa.DataType) -> bool:
    """Whether values of a type may be, or hold, dates or timestamps."""
    if pa.types.is_struct(arrow):
        return any(holds_years(field.type) for field in arrow)
    if pa.types.is_list(arrow):
        return holds_years(arrow.value_type)
    return _range(arrow) is not None


def outside(array: pa.Array) -> pa.BooleanArray | None:
    """Tell the values with a date or timestamp outside the years 1 to 9999 (UTC) in them; None if none has.

    Parameters
    ----------
    array : pa.Array
        Of any type; what is in structs and lists counts for the value that holds it.

    Returns
    -------
    pa.BooleanArray or None
        As long as the array, without nulls.
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
    """Bring the dates and timestamps in an array, which is no struct or list, to the nearest of the years 1 to 9999."""
    found = _range(array.type)
    if found is None:
        return array
    first, last = found
    numbers = pc.max_element_wise(array.view(first.type), first, skip_nulls=False)
    return pc.min_element_wise(numbers, last, skip_nulls=False).view(array.type)


def _range(arrow: pa.DataType) -> tuple[pa.Scalar, pa.Scalar] | None:
    """Give the first and the last value of a type that Python has too, as the integers they are."""
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
