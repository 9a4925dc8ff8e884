"""Rows of one relation as typed columns: the output, or the part of one thread."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t

from pgdecode._native.arrow.column_builder cimport Column
from pgdecode._native.fault cimport FaultCode, Faults
from pgdecode._native.memory.buffers cimport Arena

cdef enum:
    # Columns besides those of the table.
    OP
    XID
    OLD_TYPE
    UNCHANGED
    OLD        # a struct of the table's columns
    N_META

cdef struct RowSet:
    Column *columns       # N_META columns, then those of the table; one allocation
    int n_columns
    Faults faults
    size_t n_bytes        # of all payloads
    size_t text           # bytes made of values
    size_t most_text      # limit of these bytes

cdef int open_rowset(RowSet *rows, list types, int64_t expected, bint in_parts) except -1
cdef FaultCode open_part(RowSet *part, const RowSet *output, int64_t expected, Arena *arena) noexcept nogil
cdef void empty_rowset(RowSet *rows) noexcept nogil
cdef bint fits_rowset(const RowSet *rows, const RowSet *part) noexcept nogil
cdef FaultCode place_rowset(RowSet *rows, RowSet *part) noexcept nogil
cdef void write_rowset(const RowSet *rows, const RowSet *part) noexcept nogil
cdef void free_rowset(RowSet *rows) noexcept
