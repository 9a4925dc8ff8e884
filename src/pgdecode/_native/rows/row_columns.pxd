"""Rows of one relation as typed columns: what one thread has decoded, or all of them."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t

from pgdecode._native.arrow.column_builder cimport Column
from pgdecode._native.fault cimport FaultCode, Faults
from pgdecode._native.memory.buffers cimport Arena

cdef enum:
    # Columns beside the table's.
    OP
    XID
    OLD_TYPE
    UNCHANGED
    OLD        # a struct of the table's
    N_META

cdef struct RowSet:
    Column *columns       # N_META, then the table's; in one allocation
    int n_columns
    Faults faults
    size_t n_bytes        # of all payloads
    size_t text           # bytes that have been made of values
    size_t most_text      # of these

cdef int open_rowset(RowSet *rows, list types, int64_t expected, bint in_parts) except -1
cdef FaultCode open_part(RowSet *part, const RowSet *whole, int64_t expected, Arena *arena) noexcept nogil
cdef void empty_rowset(RowSet *rows) noexcept nogil
cdef bint fits_rowset(const RowSet *rows, const RowSet *part) noexcept nogil
cdef FaultCode place_rowset(RowSet *rows, RowSet *part) noexcept nogil
cdef void write_rowset(const RowSet *rows, const RowSet *part) noexcept nogil
cdef void free_rowset(RowSet *rows) noexcept
