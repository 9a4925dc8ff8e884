"""TupleData: the columns of a row."""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint16_t, uint32_t

from pgdecode._native.arrow.builder cimport Cell, TupleSink
from pgdecode._native.arrow.payload_array cimport Span
from pgdecode._native.cursor cimport Cursor, be32, bytes_left
from pgdecode._native.fault cimport unlikely
from pgdecode._native.wire.envelope_builder cimport Walk
from pgdecode._native.wire.wire_plan cimport Op


cdef inline bint take_cell(Cursor *cursor, size_t max_value_bytes, Span *value) noexcept nogil:
    """One tuple column: its value, NULL for n and u. False where it is not well-formed; the walk then says why."""
    cdef const uint8_t *p = cursor.at
    cdef size_t left = bytes_left(cursor[0])
    if left > 4 and (p[0] == c"t" or p[0] == c"b"):
        # The length is checked against what is left before anything is reserved: a corrupt length must cost nothing.
        value.length = be32(p + 1)
        value.data = p + 5
        if value.length > left - 5 or value.length > max_value_bytes:
            return False
        cursor.at = value.data + value.length
        return True
    value.data = NULL
    cursor.at += left != 0
    return left != 0 and (p[0] == c"n" or p[0] == c"u")


cdef inline uint8_t note_cell(Cursor *cursor, size_t max_value_bytes, Cell *cell) noexcept nogil:
    """As `take_cell`, for a value that is decoded later, where it lies; the kind, 0 where it is not well-formed."""
    cdef const uint8_t *p = cursor.at
    cdef size_t left = bytes_left(cursor[0])
    cdef uint32_t length
    cdef uint8_t kind
    if unlikely(left == 0):
        return 0
    kind = p[0]
    if unlikely(left <= 4 or (kind != c"t" and kind != c"b")):
        cell.value = NULL
        cell.kind = kind
        cursor.at = p + 1
        return kind if kind == c"n" or kind == c"u" else 0
    length = be32(p + 1)
    if unlikely(length > left - 5 or length > max_value_bytes):
        return 0
    cursor.at = p + 5 + length
    cell.value = p + 5
    cell.length = length
    cell.kind = kind
    return kind


cdef Cursor put_cells(Walk *walk, const Op *op, Cursor cursor, uint16_t n, TupleSink *sink) noexcept nogil
cdef Cursor tuple_field(Walk *walk, const Op *op, Cursor cursor, TupleSink *sink) noexcept nogil
