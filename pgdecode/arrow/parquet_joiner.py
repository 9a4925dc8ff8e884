"""Joins Parquet files of the same schema to one file, without decoding their pages: only the footer is written anew.

Several threads can encode the row groups of one file in this way, which `pyarrow.parquet.ParquetWriter` cannot.
"""

from __future__ import annotations

from typing import BinaryIO

import pyarrow as pa

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
_INDEXES = range(4, 8)
_BLOOM_FILTERS = (14, 15)
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

    @property
    def n_rows(self) -> int:
        """Number of rows so far."""
        return self._n_rows

    @property
    def n_bytes(self) -> int:
        """Size of the file so far."""
        return self._end

    def add(self, parquet: memoryview) -> None:
        """Append the row groups of a complete Parquet file that pyarrow has written, without encryption."""
        length = int.from_bytes(parquet[-8:-4], "little")
        start = len(parquet) - 8 - length
        footer = StructReader(bytes(parquet[start : start + length])).struct()
        self._begin(footer)
        # The pages begin behind the first magic number.
        for group in footer[ROW_GROUPS].value[1]:
            self._add(group, self._end - len(MAGIC))
        self._end += self._file.write(parquet[len(MAGIC) : start])

    def add_group(self, footer: Struct, number: int, pages: pa.Buffer, start: int) -> None:
        """Append a row group of another file, which has the same schema.

        Parameters
        ----------
        footer : Struct
            Of the other file. Its row group is changed.
        number : int
            Of the row group.
        pages : pa.Buffer
            The bytes of the row group.
        start : int
            Where they were in the file.
        """
        self._begin(footer)
        group = footer[ROW_GROUPS].value[1][number]
        for chunk in group[COLUMNS].value[1]:
            # Page indexes and Bloom filters are elsewhere in the file.
            for index in _INDEXES:
                chunk.pop(index, None)
            for index in _BLOOM_FILTERS:
                chunk[META_DATA].value.pop(index, None)
        self._add(group, self._end - start)
        self._end += self._file.write(memoryview(pages))

    def _begin(self, footer: Struct) -> None:
        if not self._footer:
            self._footer = footer
            self._end = self._file.write(MAGIC)

    def _add(self, group: Struct, moved: int) -> None:
        _move(group, moved, len(self._groups))
        self._n_rows += group[_GROUP_ROWS].value
        self._groups.append(bytes(struct_bytes(group)))

    def close(self) -> bytes:
        """Write the footer, and return it with all that follows it. At least one file has been added."""
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
        end = bytes(written + len(written).to_bytes(4, "little") + MAGIC)
        self._end += self._file.write(end)
        return end


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
