"""TupleData: the columns of a row."""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint16_t, uint32_t

from pgdecode._native.arrow.builder cimport Cell, TupleBuilder
from pgdecode._native.cursor cimport Cursor, be32, bytes_left
from pgdecode._native.fault cimport Fault, FaultCode, Faults, unlikely
from pgdecode._native.wire.envelope_builder cimport Walk
from pgdecode._native.wire.wire_plan cimport Op


# What is collected of the cells of a tuple.
cdef enum Collect:
    COLLECT_NOTHING
    COLLECT_FORMATS
    COLLECT_VALUES   # with their formats
    COLLECT_CELLS    # their positions, to decode them later


cdef inline bint take_cell(Cursor *cursor, size_t max_value_bytes, Cell *cell) noexcept nogil:
    """Take one tuple column, which stays in its payload. False if it is malformed; the walk then reports the fault.

    The value is NULL for n and u.
    """
    cdef const uint8_t *p = cursor.at
    cdef size_t left = bytes_left(cursor[0])
    if left > 4 and (p[0] == c"t" or p[0] == c"b"):
        # The length is compared with the bytes left before anything is reserved: a corrupt length must cost nothing.
        cell.length = be32(p + 1)
        cell.value = p + 5
        cell.kind = p[0]
        if cell.length > left - 5 or cell.length > max_value_bytes:
            return False
        cursor.at = cell.value + cell.length
        return True
    if left == 0:
        return False
    cell.value = NULL
    cell.kind = p[0]
    cursor.at = p + 1
    return p[0] == c"n" or p[0] == c"u"


cdef Cursor put_cells(Walk *walk, const Op *op, Cursor cursor, uint16_t n, TupleBuilder *builder) noexcept nogil
cdef Cursor tuple_field(Walk *walk, const Op *op, Cursor cursor, TupleBuilder *builder) noexcept nogil
cdef FaultCode remove_long_values(
    Cell *cells, size_t n, const uint8_t *payload, Fault fault, bint by_column, bint only_first, Faults *faults
) noexcept nogil
