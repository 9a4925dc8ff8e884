"""Finds the cells of a block of inserts, updates and deletes, which stay in their payloads."""

from cython cimport final
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from pgdecode._native.arrow.builder cimport Cell, TupleBuilder
from pgdecode._native.arrow.payload_array cimport Segment, Source, Span
from pgdecode._native.fault cimport Fault, FaultCode, Faults
from pgdecode._native.wire.envelope_builder cimport Envelope, Rules, Walk
from pgdecode._native.wire.stream_state cimport Relations, Window

cdef struct Row:
    # The data of a payload that a block keeps, besides its cells.
    const uint8_t *payload   # NULL if the row is null or is not decoded
    int old_at               # the number of its old tuple in the block
    uint8_t tag
    uint8_t old_type         # K, O or 0
    uint8_t streamed
    uint8_t has_unchanged    # whether a new cell is still u, because the old tuple has no value for it


@final
cdef class CellIndex:
    """The payloads of one relation, indexed block by block.

    `selection` has the numbers of the source's rows to index, as int64, in the order of the output. Without it, all
    rows are indexed. `streamed` has one byte for each row of the output: whether its payload has an xid prefix. Without
    it, the structure of each payload decides. Faults have the row of the output.
    """

    cdef Source source
    cdef const uint8_t[::1] selection   # int64 items, perhaps unaligned
    cdef const uint8_t[::1] streamed
    cdef readonly int64_t n_rows        # of the output
    cdef Py_ssize_t segment             # the one with the last row
    cdef int64_t segment_start          # its first row in the source
    cdef int64_t relation_id
    cdef int n_columns
    cdef bint empty_is_null             # an empty payload is a null row, not a fault
    # A block, from which columns are decoded.
    cdef int most_rows
    cdef int n
    cdef int n_olds
    cdef bint has_streamed
    cdef bint has_unchanged
    cdef bint has_null           # a row without payload, or with a fault
    cdef Span *spans             # the payloads; data is NULL for a null row
    cdef Row *rows
    cdef Cell *cells             # of each row, those that fill the table's columns
    cdef Cell *olds              # of each old tuple, in the order of the rows

    cdef Envelope nothing, index_only
    cdef TupleBuilder new_builder, old_builder
    cdef Rules rules
    cdef size_t most_bytes       # of a payload to which no limit applies, however its bytes are divided
    cdef size_t max_value_bytes  # limit of a decoded value
    cdef int first_label         # of the table's columns, after those of the plan
    cdef uint64_t row_header     # of a new tuple: relation OID, N and number of columns, below the byte of the tag
    cdef Walk walk, stream_walk   # the second resolves streams
    cdef Fault fault, stream_flags     # of these walks
    cdef Window window
    cdef Relations known
    cdef Faults *faults          # output for faults of rows

    cdef FaultCode index_block(self, int64_t first, int64_t stop) noexcept nogil
    cdef int check_selection(self) except -1
    cdef int64_t source_row(self, int64_t row) noexcept nogil
    cdef const Segment *segment_with(self, int64_t source_row) noexcept nogil
    cdef bint locate(self, int64_t first) noexcept nogil
    cdef int index_fast_rows(self, int64_t first, int i) noexcept nogil
    cdef FaultCode index_row(self, int i, int64_t row, const Span *payload) noexcept nogil
    cdef void fill_from_old(self, Row *row, Cell *cells) noexcept nogil
    cdef FaultCode resolve_streams(self, int64_t row, const Span *payload, bint *streamed) noexcept nogil
    cdef FaultCode walk_row(self, const Span *payload, bint streamed) noexcept nogil
    cdef FaultCode check_kind(self, const Span *payload, bint streamed) noexcept nogil
