"""Decodes the inserts, updates and deletes of one relation into typed columns, in one thread."""

from cython cimport final
from libc.stddef cimport size_t
from libc.stdint cimport int64_t

from pgdecode._native.arrow.builder cimport Cell
from pgdecode._native.arrow.column_builder cimport Column
from pgdecode._native.codecs.codec cimport Cells, Codec
from pgdecode._native.fault cimport FaultCode
from pgdecode._native.rows.cell_index cimport CellIndex
from pgdecode._native.rows.row_columns cimport RowSet


@final
cdef class RowDecoder:
    """Decodes any range of a source's rows into a `RowSet`, which also takes the faults."""

    cdef CellIndex cell_index
    cdef readonly int64_t n_rows
    cdef int n_columns
    cdef int64_t relation_id
    cdef bytes joined        # the names of the columns, concatenated
    cdef const char *all_names
    cdef size_t free_name    # bytes of a name that do not count as expansion
    cdef size_t *name_ends
    cdef list trees          # one CodecTree for each column; the codecs point into them
    cdef const Codec **codecs
    cdef Cell *spread        # one column of a block's old tuples, spread to the rows that have one
    cdef int first_label     # of the table's columns, after those of the plan
    cdef bint permissive
    cdef bint null_unrepresentable
    cdef RowSet *out         # the output for rows
    cdef Column *op
    cdef Column *xid
    cdef Column *old_type
    cdef Column *unchanged
    cdef Column *old         # one struct column
    cdef Column *new

    cdef FaultCode decode(self, RowSet *out, int64_t first, int64_t stop) noexcept nogil
    cdef bint is_alone(self, FaultCode code) noexcept nogil
    cdef FaultCode decode_block(self, int64_t first, int64_t stop) noexcept nogil
    cdef FaultCode first_of(self, size_t n_before) noexcept nogil
    cdef FaultCode decode_column(self, Column *column, const Cells *cells, int c, int64_t first) noexcept nogil
    cdef FaultCode keep_value(
        self, FaultCode code, Column *column, const Cell *cell, int c, size_t at, int64_t first
    ) noexcept nogil
    cdef FaultCode decode_olds(self, int64_t first) noexcept nogil
    cdef bint has_old(self, int c) noexcept nogil
    cdef void spread_olds(self, int c) noexcept nogil
    cdef FaultCode put_meta(self) noexcept nogil
    cdef FaultCode put_ops(self) noexcept nogil
    cdef FaultCode put_unchanged(self, int i) noexcept nogil
