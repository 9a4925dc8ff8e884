"""Arrays, ranges and multiranges, hstore and vectors."""

from libc.stdint cimport uint8_t, uint16_t

from pgdecode._codec cimport Codec
from pgdecode._cursor cimport Cursor

cdef enum RangeFlag:
    # rangetypes.h
    RANGE_EMPTY = 0x01
    RANGE_LB_INC = 0x02
    RANGE_UB_INC = 0x04
    RANGE_LB_INF = 0x08
    RANGE_UB_INF = 0x10


cdef inline bint is_blank(uint8_t byte) noexcept nogil:
    """array_isspace: what the server skips around elements."""
    return byte == c" " or 9 <= byte <= 13


cdef bint containers_codec(str name, Codec *codec)
cdef const uint8_t *take_dimensions(Cursor *cursor, uint16_t *n) noexcept nogil
cdef float float_of_half(uint16_t half) noexcept nogil
