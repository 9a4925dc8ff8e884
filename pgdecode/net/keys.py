"""Numbers of keys, and their values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from pgdecode._native.changes.key_numbers import KeyTable
from pgdecode.arrow.distinct_values import plain_values

# Width of a value, or 0; width of an offset; offset of the array; validity, values and offsets.
Column = tuple[int, int, int, Any, Any, Any]

# What the table needs for a key, about.
_KEY_BYTES = 32


class KeyNumbers:
    """Gives each different key a number, in the order in which keys are first seen, and keeps their values.

    Values are equal if their bits are: NaN equals NaN, 0.0 is not -0.0. Null equals null.
    """

    def __init__(self, fields: Sequence[pa.Field]) -> None:
        self.schema = pa.schema(fields)
        kinds = [item.type for item in fields]
        self._table = KeyTable(len(kinds) == 1 and _is_number(kinds[0]))
        self._nested: list[dict[Any, int]] = [{} for _ in kinds]
        self._values: list[pa.RecordBatch] = []
        self._value_bytes = 0

    def __len__(self) -> int:
        return len(self._table)

    @property
    def nbytes(self) -> int:
        """Bytes in memory, about."""
        return self._value_bytes + len(self) * _KEY_BYTES

    def numbered(self, columns: Sequence[pa.Array], n: int) -> pa.Array:
        """Return the number of the key of each row."""
        found, new = self._table.numbered(self._buffers(columns), n)
        rows = pa.Array.from_buffers(pa.int64(), new.size // 8, [None, new])
        if len(rows):
            values = [*columns] if len(rows) == n else [column.take(rows) for column in columns]
            self._values.append(pa.RecordBatch.from_arrays(values, schema=self.schema))
            self._value_bytes += self._values[-1].nbytes
        return pa.Array.from_buffers(pa.int32(), n, [None, found])

    def find(self, columns: Sequence[pa.Array], n: int) -> tuple[memoryview, memoryview]:
        """Find the rows with known keys: their numbers from 0, and the numbers of their keys. Threads may call it."""
        rows, numbers = self._table.find(self._buffers(columns, is_added=False), n)
        return memoryview(rows).cast("i"), memoryview(numbers).cast("i")

    def rename(self, names: Sequence[str]) -> None:
        """Give the columns other names."""
        self.schema = pa.schema([item.with_name(name) for item, name in zip(self.schema, names, strict=True)])
        self._values = [batch.rename_columns([*names]) for batch in self._values]

    def _buffers(self, columns: Sequence[pa.Array], *, is_added: bool = True) -> list[Column]:
        return [_column(column, numbers, is_added) for column, numbers in zip(columns, self._nested, strict=True)]

    def values(self, numbers: pa.Array) -> pa.Table:
        """Return the values of keys; null for the number null."""
        values = pa.Table.from_batches(self._values, self.schema).combine_chunks()
        self._values = values.to_batches()
        return values.take(numbers)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_primitive(kind) and not pa.types.is_boolean(kind) and kind.bit_width <= 64)


def _column(array: pa.Array, numbers: dict[Any, int], is_added: bool) -> Column:
    """Describe the buffers of a column. Nested values have numbers, which unknown ones get only if they are added."""
    kind = array.type
    if pa.types.is_nested(kind):
        values = plain_values(array)
        if is_added:
            found = [numbers.setdefault(value, len(numbers)) for value in values]
        else:
            found = [numbers.get(value, -1) for value in values]
        array = pa.array(found, pa.int64())
    elif pa.types.is_boolean(kind) or pa.types.is_null(kind):
        array = array.cast(pa.uint8())
    elif not _has_buffers(kind):
        array = array.cast(pa.large_binary() if _is_view(kind) else kind.value_type)
    return buffers_of(array)


def buffers_of(array: pa.Array) -> Column:
    """Describe the buffers of an array of values with a width or with offsets, for native code."""
    kind, (validity, *others) = array.type, array.buffers()
    if _has_offsets(kind):
        width = 8 if kind in (pa.large_string(), pa.large_binary()) else 4
        return 0, width, array.offset, validity, others[1], others[0]
    return kind.byte_width, 0, array.offset, validity, others[0], None


def _has_offsets(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())


def _is_view(kind: pa.DataType) -> bool:
    return kind in (pa.string_view(), pa.binary_view())


def _has_buffers(kind: pa.DataType) -> bool:
    is_fixed = pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind)
    return bool(is_fixed or _has_offsets(kind))
