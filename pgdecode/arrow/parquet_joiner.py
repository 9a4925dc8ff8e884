"""Joins Parquet files of the same schema to one file, without decoding their pages: only the footer is written anew.

Several threads can encode the row groups of one file in this way, which `pyarrow.parquet.ParquetWriter` cannot.
"""

from __future__ import annotations

from typing import BinaryIO

from pgdecode.arrow.thrift import (
    COLUMNS,
    I16,
    I64,
    META_DATA,
    ROW_GROUPS,
    STRUCT,
    Struct,
    StructReader,
    Value,
    field_bytes,
    integer_bytes,
    list_bytes,
    struct_bytes,
    value_bytes,
)

MAGIC = b"PAR1"

# Other fields of FileMetaData, RowGroup, ColumnChunk and ColumnMetaData.
_NUM_ROWS = 3
_GROUP_ROWS, _GROUP_OFFSET, _ORDINAL = 3, 5, 7
_CHUNK_OFFSETS = (2, 4, 6)  # file_offset, offset_index_offset, column_index_offset
_PAGE_OFFSETS = (9, 10, 11, 14)  # data_page_offset, index_page_offset, dictionary_page_offset, bloom_filter_offset


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
        footer = StructReader(bytes(parquet[start : start + length])).struct()
        if not self._footer:
            self._footer = footer
            self._end = self._file.write(MAGIC)
        # The pages begin behind the first magic number.
        moved = self._end - len(MAGIC)
        for group in footer[ROW_GROUPS].value[1]:
            _move(group, moved, len(self._groups))
            self._n_rows += group[_GROUP_ROWS].value
            self._groups.append(bytes(struct_bytes(group)))
        self._end += self._file.write(parquet[len(MAGIC) : start])

    def close(self) -> None:
        """Write the footer. At least one file has been added."""
        written = bytearray()
        last = 0
        for number, item in self._footer.items():
            written += field_bytes(last, number, item.type)
            if number == _NUM_ROWS:
                written += integer_bytes(self._n_rows)
            elif number == ROW_GROUPS:
                written += list_bytes(len(self._groups), STRUCT)
                written += b"".join(self._groups)
            else:
                written += value_bytes(item)
            last = number
        written.append(0)
        self._file.write(written + len(written).to_bytes(4, "little") + MAGIC)


def _move(group: Struct, moved: int, ordinal: int) -> None:
    """Change the offsets in a row group."""
    _add(group, (_GROUP_OFFSET,), moved)
    if _ORDINAL in group:
        # The field has 16 bits, and readers do not need it.
        group[_ORDINAL] = Value(I16, ordinal & 0x7FFF)
    for chunk in group[COLUMNS].value[1]:
        _add(chunk, _CHUNK_OFFSETS, moved)
        _add(chunk[META_DATA].value, _PAGE_OFFSETS, moved)


def _add(struct: Struct, numbers: tuple[int, ...], moved: int) -> None:
    for number in numbers:
        # pyarrow writes the offset 0 if there is nothing at an offset.
        if number in struct and struct[number].value:
            struct[number] = Value(I64, struct[number].value + moved)
