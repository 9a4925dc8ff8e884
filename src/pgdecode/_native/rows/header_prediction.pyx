"""Notes the cells of tuples, none of which has to be like another."""

from pgdecode._native.cursor cimport Cursor
from pgdecode._native.wire.tuples cimport take_cell


cdef const uint8_t *index_each(const uint8_t *p, const uint8_t *end, Cell *cell, int n) noexcept nogil:
    """As `index_all`, where nothing behind `end` may be read."""
    cdef Cursor cursor
    cdef int _c
    cursor.at = p
    cursor.end = end
    for _c in range(n):
        if not take_cell(&cursor, <size_t>-1, cell) or cell.kind == c"u":
            return NULL
        cell += 1
    return cursor.at
