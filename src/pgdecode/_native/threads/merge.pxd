"""Appends the data of a part's builders to the output's builders."""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t

from pgdecode._native.arrow.builder cimport Builder, TupleBuilder
from pgdecode._native.fault cimport FaultCode
from pgdecode._native.memory.buffers cimport Bytes

cdef struct Copy:
    # Data that a part appends to one of the output's buffers.
    const Bytes *part
    Bytes *output
    size_t width        # bytes of an item
    size_t at           # its position in the output
    const Copy *ended   # for ends, which begin with a 0: the items that end there; otherwise NULL

cdef Copy copy_of(const Bytes *part, Bytes *output, size_t width, const Copy *ended) noexcept nogil
cdef bint fits(const Copy *copy) noexcept nogil
cdef FaultCode place(Copy *copy, int64_t n_done, int64_t n_rows) noexcept nogil
cdef void write(const Copy *copy) noexcept nogil

cdef bint fits_bits(const TupleBuilder *part, const TupleBuilder *output) noexcept nogil
cdef FaultCode place_bits(
    const TupleBuilder *part, TupleBuilder *output, const Copy *letters, int64_t n_done, int64_t n_rows
) noexcept nogil
cdef void write_bits(const TupleBuilder *part, const TupleBuilder *output, const Copy *letters) noexcept nogil

cdef void place_starts(const Builder *part) noexcept nogil
cdef void write_starts(const Builder *part, const Copy *items) noexcept nogil
cdef void move_starts(int32_t *starts, int64_t first, int64_t stop, const Copy *items) noexcept nogil
