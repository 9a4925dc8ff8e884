"""Arrays, ranges and multiranges, hstore and vectors."""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint16_t

from pgdecode._codec cimport Codec
from pgdecode._column cimport Column
from pgdecode._cursor cimport Cursor
from pgdecode._fault cimport FaultCode

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


cdef bint containers_codec(str name, Codec *codec)
cdef FaultCode unquote(Cursor *cursor, Column *scratch, bint doubled, Token *token) noexcept nogil
cdef FaultCode sized_item(Cursor *cursor, Column *child, const Codec *element) noexcept nogil
cdef const uint8_t *take_dimensions(Cursor *cursor, uint16_t *n) noexcept nogil
cdef float float_of_half(uint16_t half) noexcept nogil
