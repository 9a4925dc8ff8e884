"""Puts what the builders of a part have appended behind what those of the whole have."""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t

from pgdecode._native.arrow.builder cimport Builder, TupleBuilder
from pgdecode._native.fault cimport FaultCode
from pgdecode._native.memory.buffers cimport Bytes

cdef struct Move:
    # What a part has appended to one of the whole's buffers.
    const Bytes *part
    Bytes *whole
    size_t width        # bytes of an item
    size_t at           # its place in the whole
    const Move *ended   # where the items are ends, with a 0 in front of all: those of what; else NULL

cdef Move move_of(const Bytes *part, Bytes *whole, size_t width, const Move *ended) noexcept nogil
cdef bint fits(const Move *move) noexcept nogil
cdef FaultCode place(Move *move, int64_t n_done, int64_t n_rows) noexcept nogil
cdef void write(const Move *move) noexcept nogil

cdef bint fits_bits(const TupleBuilder *part, const TupleBuilder *whole) noexcept nogil
cdef FaultCode place_bits(
    const TupleBuilder *part, TupleBuilder *whole, const Move *letters, int64_t n_done, int64_t n_rows
) noexcept nogil
cdef void write_bits(const TupleBuilder *part, const TupleBuilder *whole, const Move *letters) noexcept nogil

cdef void place_starts(const Builder *part) noexcept nogil
cdef void write_starts(const Builder *part, const Move *items) noexcept nogil
cdef void move_starts(int32_t *starts, int64_t first, int64_t stop, const Move *items) noexcept nogil
