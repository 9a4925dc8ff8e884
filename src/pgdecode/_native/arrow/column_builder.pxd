"""Typed Arrow columns under construction: items are appended one by one, and can be removed again.

The builders of an envelope have a known number of rows; a typed column may be the child of a list, and grows as needed.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.string cimport memcpy, memset

from pgdecode._native.fault cimport FAULT_LIMIT_BATCH, FAULT_NO_MEMORY, OK, FaultCode, unlikely
from pgdecode._native.memory.buffers cimport SLACK, Arena, Bytes, has_capacity, reserve

cdef enum Shape:
    SHAPE_FIXED    # `width` bytes for each item; a bool is one byte until the column is sealed
    SHAPE_BYTES    # utf8 or binary: ends and data
    SHAPE_LIST     # ends; one child. A map is a list of structs of key and value
    SHAPE_STRUCT   # only children, which have the length of the struct

cdef struct Column:
    Shape shape
    int width
    bint is_bool
    bint sealed           # validity and bools are bits, and nothing more is appended
    bint in_bits          # validity is bits from the start: several threads write it, each for its own items
    size_t n              # items so far
    size_t n_null
    size_t expected       # number of items in the end, if known
    size_t postponed      # later nulls that are not written yet; they are written before anything else is appended
    Bytes valid           # one byte (1 or 0) or bit for each item; empty until the first null
    Bytes values          # FIXED
    Bytes ends            # BYTES, LIST: int32 for each item, after a 0
    Bytes data            # BYTES
    size_t most           # limit of the bytes of `data`
    size_t at             # of a part: items of the output before these
    size_t before         # of a part: bytes of `data`, or children, of the output before these
    int n_children
    Column *children


cdef FaultCode mark_beside_nulls(Column *column, uint8_t valid) noexcept nogil
cdef uint8_t *validity_for(Column *column, size_t n) noexcept nogil
cdef FaultCode open_bits(Column *column, size_t n) noexcept nogil
cdef FaultCode open_items(Column *column, size_t n) noexcept nogil
cdef FaultCode open_ends(Column *column, size_t n) noexcept nogil
cdef FaultCode mark_many(Column *column, size_t n) noexcept nogil
cdef FaultCode put_empty_lists(Column *column, size_t n) noexcept nogil
cdef void keep_bits(Column *column) noexcept nogil
cdef void expect(Column *column, size_t n) noexcept nogil
cdef void limit_text(Column *column, size_t more) noexcept nogil
cdef size_t length_of(const Column *column) noexcept nogil
cdef size_t likely_text(size_t size, size_t n, size_t expected) noexcept nogil
cdef size_t text_in(const Column *column) noexcept nogil
cdef size_t end_of(const Column *column, size_t n) noexcept nogil


cdef inline FaultCode mark(Column *column, uint8_t valid) noexcept nogil:
    """Count one more item, whose value has been written."""
    if unlikely(not valid or column.valid.size):
        return mark_beside_nulls(column, valid)
    column.n += 1
    return OK


cdef inline FaultCode put_fixed(Column *column, const void *value, size_t width) noexcept nogil:
    """Append an item of constant width, in the machine's byte order."""
    if unlikely(reserve(&column.values, width) != OK):
        return FAULT_NO_MEMORY
    memcpy(column.values.data + column.values.size, value, width)
    column.values.size += width
    return mark(column, 1)


cdef inline FaultCode put_bool(Column *column, bint value) noexcept nogil:
    cdef uint8_t byte = value != 0
    return put_fixed(column, &byte, 1)


cdef inline FaultCode put_int16(Column *column, int16_t value) noexcept nogil:
    return put_fixed(column, &value, sizeof(value))


cdef inline FaultCode put_int32(Column *column, int32_t value) noexcept nogil:
    return put_fixed(column, &value, sizeof(value))


cdef inline FaultCode put_int64(Column *column, int64_t value) noexcept nogil:
    return put_fixed(column, &value, sizeof(value))


cdef inline FaultCode put_float(Column *column, float value) noexcept nogil:
    return put_fixed(column, &value, sizeof(value))


cdef inline FaultCode put_end(Column *column, size_t end) noexcept nogil:
    """Append the end of an item, in bytes or children."""
    cdef int32_t narrow = <int32_t>end
    if unlikely(end > <size_t>0x7FFFFFFF):
        return FAULT_LIMIT_BATCH
    if unlikely(not column.ends.size or not has_capacity(&column.ends, sizeof(narrow))) and open_ends(column, 1) != OK:
        return FAULT_NO_MEMORY
    memcpy(column.ends.data + column.ends.size, &narrow, sizeof(narrow))
    column.ends.size += sizeof(narrow)
    return OK


cdef inline FaultCode add_bytes(Column *column, const uint8_t *bytes, size_t length) noexcept nogil:
    """Add to the item that is being written. `end_bytes` ends it."""
    if unlikely(column.data.size > column.most or length > column.most - column.data.size):
        return FAULT_LIMIT_BATCH
    if unlikely(reserve(&column.data, length) != OK):
        return FAULT_NO_MEMORY
    if length:
        memcpy(column.data.data + column.data.size, bytes, length)
    column.data.size += length
    return OK


cdef inline FaultCode end_bytes(Column *column) noexcept nogil:
    cdef FaultCode code = put_end(column, column.data.size)
    return code if code != OK else mark(column, 1)


cdef inline FaultCode put_bytes(Column *column, const uint8_t *bytes, size_t length) noexcept nogil:
    """Append an item of bytes, or of text that the caller has checked to be UTF-8."""
    cdef FaultCode code = add_bytes(column, bytes, length)
    return code if code != OK else end_bytes(column)


cdef inline void reopen(Column *column) noexcept nogil:
    """Remove the end of the last item of text, so that more can be added to the item."""
    column.n -= 1
    if column.valid.size:
        column.valid.size -= 1
    column.ends.size -= sizeof(int32_t)


cdef inline FaultCode end_list(Column *column) noexcept nogil:
    """End a list. Its items have been appended to the child since the list before."""
    cdef FaultCode code = put_end(column, column.children[0].n)
    return code if code != OK else mark(column, 1)


cdef FaultCode put_null(Column *column) noexcept nogil
cdef FaultCode put_nulls(Column *column, size_t n) noexcept nogil
cdef void postpone_nulls(Column *column, size_t n) noexcept nogil
cdef FaultCode write_postponed_nulls(Column *column) noexcept nogil
cdef FaultCode write_struct_nulls(Column *column) noexcept nogil
cdef void take_back(Column *column, size_t n) noexcept nogil
cdef int open_column(Column *column, object arrow_type) except -1
cdef FaultCode open_as(Column *column, const Column *like, Arena *arena) noexcept nogil
cdef void empty_column(Column *column) noexcept nogil
cdef object finish_column(Column *column, object arrow_type)
cdef void free_column(Column *column) noexcept
