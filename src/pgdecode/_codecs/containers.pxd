"""Arrays, ranges and multiranges, hstore and vectors."""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint16_t, uint32_t

from pgdecode._codec cimport Codec
from pgdecode._column cimport Column
from pgdecode._cursor cimport Cursor, be32, bytes_left, take
from pgdecode._fault cimport FAULT_BAD_VALUE, FAULT_WRONG_SIZE, OK, FaultCode

cdef enum:
    LEAST_RANGE = 5  # bytes: a length and the flags
    LEAST_PAIR = 8   # bytes: two lengths
    MAX_DIMENSIONS = 6  # of an array: MAXDIM, utils/array.h

cdef enum RangeFlag:
    # rangetypes.h
    RANGE_EMPTY = 0x01
    RANGE_LB_INC = 0x02
    RANGE_UB_INC = 0x04
    RANGE_LB_INF = 0x08
    RANGE_UB_INF = 0x10

cdef struct Token:
    # One element of a container's text.
    const uint8_t *text
    size_t length
    bint quoted


cdef inline bint is_blank(uint8_t byte) noexcept nogil:
    """array_isspace: what the server skips around elements."""
    return byte == c" " or 9 <= byte <= 13


# The heads of binary forms, of which the typed and the text codecs make their own.

cdef inline FaultCode take_range_flags(Cursor *cursor, uint8_t *flags) noexcept nogil:
    """Take the flags that a range begins with (RangeFlag). Faults: WRONG_SIZE, BAD_VALUE."""
    cdef const uint8_t *p = take(cursor, 1)
    if p == NULL:
        return FAULT_WRONG_SIZE
    flags[0] = p[0]
    # The server masks unknown flags; here they are a fault, so that nothing is silently dropped.
    return OK if p[0] <= 0x1F else FAULT_BAD_VALUE


cdef inline FaultCode take_count(Cursor *cursor, size_t least, uint32_t *n) noexcept nogil:
    """Take the Int32 number of items that follow, each of so many bytes at least. Faults: WRONG_SIZE, BAD_VALUE."""
    cdef const uint8_t *p = take(cursor, 4)
    if p == NULL:
        return FAULT_WRONG_SIZE
    n[0] = be32(p)
    return OK if n[0] <= bytes_left(cursor[0]) // least else FAULT_BAD_VALUE


cdef bint containers_codec(str name, Codec *codec)
cdef FaultCode unquote(Cursor *cursor, Column *scratch, bint doubled, Token *token) noexcept nogil
cdef FaultCode sized_item(Cursor *cursor, Column *child, const Codec *element) noexcept nogil
cdef const uint8_t *take_dimensions(Cursor *cursor, uint16_t *n) noexcept nogil
cdef float float_of_half(uint16_t half) noexcept nogil
