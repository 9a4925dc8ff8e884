"""Structures of Thrift in the compact protocol, in which Parquet writes its metadata (parquet.thrift of its format)."""

from __future__ import annotations

from typing import Any, NamedTuple

# Types of the compact protocol.
_TRUE, _FALSE, _BYTE, I16, _I32, I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, STRUCT = range(1, 13)
_INTEGERS = (I16, _I32, I64)

# Fields of FileMetaData, RowGroup and ColumnChunk.
ROW_GROUPS = 4
COLUMNS = 1
META_DATA, CRYPTO_METADATA = 3, 8


class Value(NamedTuple):
    """A value of a Thrift structure, with its type."""

    type: int
    value: Any


Struct = dict[int, Value]  # by the number of the field


class StructReader:
    """Reads structures.

    Raises
    ------
    IndexError
        If the bytes end within the structure.
    ValueError
        If a value has an unknown type.

    Attributes
    ----------
    at : int
        Where the last structure ends.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def struct(self) -> Struct:
        """Read a structure."""
        found: Struct = {}
        number = 0
        while (header := self._byte()) != 0:
            number = number + (header >> 4) if header >> 4 else self._integer()
            found[number] = Value(header & 15, self._value(header & 15))
        return found

    def _value(self, type: int) -> Any:
        if type in _INTEGERS:
            return self._integer()
        if type == _BINARY:
            return self._bytes(self._varint())
        if type == STRUCT:
            return self.struct()
        if type in (_LIST, _SET):
            header = self._byte()
            n = header >> 4 if header >> 4 != 15 else self._varint()
            return header & 15, [self._item(header & 15) for _ in range(n)]
        if type in (_TRUE, _FALSE):
            return None  # the type is the value
        if type in (_BYTE, _DOUBLE):
            return self._bytes(1 if type == _BYTE else 8)
        raise ValueError(f"a Thrift structure has a value of the type {type}")

    def _item(self, type: int) -> Any:
        """Read an item of a list. A boolean is a byte there."""
        return self._bytes(1) if type in (_TRUE, _FALSE) else self._value(type)

    def _byte(self) -> int:
        self.at += 1
        return self._data[self.at - 1]

    def _bytes(self, n: int) -> bytes:
        found = self._data[self.at : self.at + n]
        if len(found) < n:
            raise IndexError("the bytes end within a Thrift structure")
        self.at += n
        return found

    def _varint(self) -> int:
        found = shift = 0
        while True:
            byte = self._byte()
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                return found
            shift += 7

    def _integer(self) -> int:
        number = self._varint()
        return (number >> 1) ^ -(number & 1)


def struct_bytes(struct: Struct) -> bytearray:
    """Write a structure."""
    written = bytearray()
    last = 0
    for number, item in struct.items():
        written += field_bytes(last, number, item.type)
        written += value_bytes(item)
        last = number
    written.append(0)
    return written


def value_bytes(item: Value) -> bytes | bytearray:
    """Write a value."""
    type, value = item
    if type in _INTEGERS:
        return integer_bytes(value)
    if type == _BINARY:
        return _varint(len(value)) + bytes(value)
    if type == STRUCT:
        return struct_bytes(value)
    if type in (_LIST, _SET):
        of, items = value
        found = bytearray(list_bytes(len(items), of))
        for part in items:
            found += part if of in (_TRUE, _FALSE) else value_bytes(Value(of, part))
        return found
    return bytes(value or b"")


def field_bytes(last: int, number: int, type: int) -> bytes:
    """Write what is before the value of a field; `last` is the number of the field before, or 0."""
    delta = number - last
    return bytes([delta << 4 | type]) if 0 < delta < 16 else bytes([type]) + integer_bytes(number)


def list_bytes(n: int, type: int) -> bytes:
    """Write what is before the items of a list."""
    return bytes([n << 4 | type]) if n < 15 else bytes([0xF0 | type]) + _varint(n)


def integer_bytes(number: int) -> bytes:
    """Write an integer."""
    return _varint(number << 1 if number >= 0 else (-number << 1) - 1)


def _varint(number: int) -> bytes:
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)
