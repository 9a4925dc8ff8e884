"""The type that columns of several versions of a relation have together."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

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
