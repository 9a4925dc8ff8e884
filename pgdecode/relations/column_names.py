"""Columns of several versions of a relation: which are the same column, and which type they have together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from pgdecode.relations.column_history import NO_RENAMES, ColumnHistory, Renames, free_name
from pgdecode.relations.relation_version import RelationVersion

_INTEGERS = (pa.int16(), pa.int32(), pa.int64())
_FLOATS = (pa.float32(), pa.float64())


def common_type(types: Sequence[pa.DataType]) -> pa.DataType | None:
    """Find the type that represents all values of several types; None if only text does."""
    first, *others = dict.fromkeys(types)
    if not others:
        return first
    for ladder in (_INTEGERS, _FLOATS):
        if all(item in ladder for item in types):
            return max(types, key=ladder.index)
    if all(pa.types.is_decimal(item) for item in types):
        scale = max(item.scale for item in types)
        precision = scale + max(item.precision - item.scale for item in types)
        return pa.decimal128(precision, scale) if precision <= 38 else None
    return None


def last_column_names(
    versions: Mapping[int, RelationVersion], schema: pa.Schema, renames: Renames = NO_RENAMES
) -> dict[int, dict[str, str]]:
    """For each version, the last one at the end, map the names of its columns to their last names.

    A column that was dropped gets a name that no column has. So does one whose values do not fit the last type.

    Parameters
    ----------
    versions : mapping of int to RelationVersion
        Of one relation, by their numbers.
    schema : pa.Schema
        The types of all columns.
    renames : Renames
        What the caller states.
    """
    history = ColumnHistory(versions, renames)
    taken = {item.name for version in versions.values() for item in version.columns}
    types: dict[str, pa.DataType] = {}
    found: dict[int, dict[str, str]] = {}
    later: dict[str, str] = {}
    for number, next_names in history.steps():
        names = {}
        for item in versions[number].columns:
            kind = schema.field(item.name).type
            last_name: str | None = later.get(next_names.get(item.name, "")) if found else item.name
            if last_name is None or not _fits(kind, types.get(last_name, kind)):
                last_name = free_name(item.name, taken)
            types.setdefault(last_name, kind)
            names[item.name] = last_name
        found[number] = later = names
    return dict(reversed(found.items()))


def _fits(kind: pa.DataType, last: pa.DataType) -> bool:
    return bool(kind == last or common_type([kind, last]) == last)
