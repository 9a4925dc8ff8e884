"""Joins Parquet files of the same schema to one file, without decoding their pages: only the footer is written anew.

Several threads can encode the row groups of one file in this way, which `pyarrow.parquet.ParquetWriter` cannot.
A footer is a Thrift structure in the compact protocol (parquet.thrift of the Parquet format).
"""

from __future__ import annotations

from typing import Any, BinaryIO, NamedTuple

MAGIC = b"PAR1"

# Types of the compact protocol.
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_INTEGERS = (_I16, _I32, _I64)
# Numbers of fields: of FileMetaData, RowGroup, ColumnChunk and ColumnMetaData.
_NUM_ROWS, _ROW_GROUPS = 3, 4
_COLUMNS, _GROUP_ROWS, _GROUP_OFFSET, _ORDINAL = 1, 3, 5, 7
_META_DATA = 3
_CHUNK_OFFSETS = (2, 4, 6)  # file_offset, offset_index_offset, column_index_offset
_PAGE_OFFSETS = (9, 10, 11, 14)  # data_page_offset, index_page_offset, dictionary_page_offset, bloom_filter_offset


class Value(NamedTuple):
    """A value of a Thrift structure, with its type."""

    type: int
    value: Any


Struct = dict[int, Value]  # by the number of the field


class ParquetJoiner:
    """Writes one Parquet file from several, in order.

    Parameters
    ----------
    file : binary file
        Empty. It stays open.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._end = 0
        self._footer: Struct = {}
        self._groups: list[bytes] = []
        self._n_rows = 0

    @property
    def is_empty(self) -> bool:
        """Whether no file has been added."""
        return not self._footer

    def add(self, parquet: memoryview) -> None:
        """Append the row groups of a complete Parquet file that pyarrow has written, without encryption."""
        length = int.from_bytes(parquet[-8:-4], "little")
        start = len(parquet) - 8 - length
        footer = _Reader(bytes(parquet[start : start + length])).struct()
        if not self._footer:
            self._footer = footer
            self._end = self._file.write(MAGIC)
        # The pages begin behind the first magic number.
        moved = self._end - len(MAGIC)
        for group in footer[_ROW_GROUPS].value[1]:
            _move(group, moved, len(self._groups))
            self._n_rows += group[_GROUP_ROWS].value
            self._groups.append(bytes(_written_struct(group)))
        self._end += self._file.write(parquet[len(MAGIC) : start])

    def close(self) -> None:
        """Write the footer. At least one file has been added."""
        written = bytearray()
        last = 0
        for number, item in self._footer.items():
            written += _field_header(last, number, item.type)
            if number == _NUM_ROWS:
                written += _zigzag(self._n_rows)
            elif number == _ROW_GROUPS:
                written += _list_header(len(self._groups), _STRUCT)
                written += b"".join(self._groups)
            else:
                written += _written(item)
            last = number
        written.append(0)
        self._file.write(written + len(written).to_bytes(4, "little") + MAGIC)


def _move(group: Struct, moved: int, ordinal: int) -> None:
    """Change the offsets in a row group."""
    _add(group, (_GROUP_OFFSET,), moved)
    if _ORDINAL in group:
        # The field has 16 bits, and readers do not need it.
        group[_ORDINAL] = Value(_I16, ordinal & 0x7FFF)
    for chunk in group[_COLUMNS].value[1]:
        _add(chunk, _CHUNK_OFFSETS, moved)
        _add(chunk[_META_DATA].value, _PAGE_OFFSETS, moved)


def _add(struct: Struct, numbers: tuple[int, ...], moved: int) -> None:
    for number in numbers:
        # pyarrow writes the offset 0 if there is nothing at an offset.
        if number in struct and struct[number].value:
            struct[number] = Value(_I64, struct[number].value + moved)


class _Reader:
    """Reads the compact protocol."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

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
        if type == _STRUCT:
            return self.struct()
        if type in (_LIST, _SET):
            header = self._byte()
            n = header >> 4 if header >> 4 != 15 else self._varint()
            return header & 15, [self._item(header & 15) for _ in range(n)]
        if type in (_TRUE, _FALSE):
            return None  # the type is the value
        if type in (_BYTE, _DOUBLE):
            return self._bytes(1 if type == _BYTE else 8)
        raise ValueError(f"a Parquet footer has a value of the Thrift type {type}")

    def _item(self, type: int) -> Any:
        """Read an item of a list. A boolean is a byte there."""
        return self._bytes(1) if type in (_TRUE, _FALSE) else self._value(type)

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _bytes(self, n: int) -> bytes:
        self._at += n
        return self._data[self._at - n : self._at]

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


def _written_struct(struct: Struct) -> bytearray:
    written = bytearray()
    last = 0
    for number, item in struct.items():
        written += _field_header(last, number, item.type)
        written += _written(item)
        last = number
    written.append(0)
    return written


def _written(item: Value) -> bytes | bytearray:
    type, value = item
    if type in _INTEGERS:
        return _zigzag(value)
    if type == _BINARY:
        return _varint(len(value)) + bytes(value)
    if type == _STRUCT:
        return _written_struct(value)
    if type in (_LIST, _SET):
        of, items = value
        found = bytearray(_list_header(len(items), of))
        for part in items:
            found += part if of in (_TRUE, _FALSE) else _written(Value(of, part))
        return found
    return bytes(value or b"")


def _field_header(last: int, number: int, type: int) -> bytes:
    delta = number - last
    return bytes([delta << 4 | type]) if 0 < delta < 16 else bytes([type]) + _zigzag(number)


def _list_header(n: int, type: int) -> bytes:
    return bytes([n << 4 | type]) if n < 15 else bytes([0xF0 | type]) + _varint(n)


def _zigzag(number: int) -> bytes:
    return _varint(number << 1 if number >= 0 else (-number << 1) - 1)


def _varint(number: int) -> bytes:
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)
