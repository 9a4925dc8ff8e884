"""Writes well-formed tuples into their builder, a block of rows at a time."""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from pgdecode._native.arrow.builder cimport TupleBuilder
from pgdecode._native.cursor cimport be16, be32
from pgdecode._native.fault cimport unlikely
from pgdecode._native.wire.envelope_builder cimport Walk
from pgdecode._native.wire.tuples cimport COLLECT_FORMATS, COLLECT_NOTHING, COLLECT_VALUES, Collect

cdef enum:
    # bytes that may be read after the end of a payload: it is not one of the last in its buffer
    AHEAD = 64
    COPIED = 16       # bytes: most values are not longer, and one copy of constant size costs less than a call

cdef struct TupleCopy:
    # The builder of new or old tuples, with memory for the tuples of a block. `ready` once the first has opened it.
    TupleBuilder *builder
    bint ready
    Collect collect
    uint32_t max_columns
    uint32_t n               # cells of the last tuple; counted in `n_cells` once all of its message is good
    int64_t n_cells
    uint8_t *letters
    int32_t *ends            # after the 0 in front
    uint8_t *values


cdef void open_tuple_copy(
    TupleCopy *copy, TupleBuilder *builder, const Walk *walk, int64_t row, int64_t n_rows, size_t n_bytes
) noexcept nogil
cdef void close_tuple_copy(const TupleCopy *copy) noexcept nogil
cdef const uint8_t *copy_values(const TupleCopy *copy, const uint8_t *p, const uint8_t *end) noexcept nogil
cdef const uint8_t *copy_formats(const TupleCopy *copy, const uint8_t *p, const uint8_t *end) noexcept nogil


cdef inline void copy_rest(uint8_t *target, const uint8_t *value, size_t length) noexcept nogil:
    """Copy in blocks of AHEAD / 2 bytes, which may write up to SLACK bytes more."""
    cdef size_t at = 0
    if length > 8 * 32:
        memcpy(target, value, length)
        return
    while at < length:
        memcpy(target + at, value + at, 32)
        at += 32


cdef inline const uint8_t *copy_cells(
    const TupleCopy *copy, const uint8_t *p, const uint8_t *end, Collect collect
) noexcept nogil:
    """Copy the requested parts of the cells. Returns their end, or NULL.

    Callers pass a constant for `collect`, so that each variant is compiled as its own loop. With `take_cell` of the
    walk, a message would take up to 13 % more instructions (wide rows in binary, without tuples).
    """
    cdef uint8_t *letters = NULL
    cdef int32_t *ends = NULL
    cdef uint8_t *values = NULL
    cdef uint64_t position = 0
    cdef uint64_t length
    cdef uint32_t i
    cdef uint8_t kind
    if collect != COLLECT_NOTHING:
        letters = copy.letters + copy.n_cells
    if collect == COLLECT_VALUES:
        ends = copy.ends + copy.n_cells
        values = copy.values
        position = <uint64_t>(ends - 1)[0]
    for i in range(copy.n):
        kind = p[0]
        if kind == c"t" or kind == c"b":
            length = be32(p + 1)
            p += 5
            if unlikely(<int64_t>length > end - p):
                return NULL
            if collect == COLLECT_VALUES:
                memcpy(values + position, p, COPIED)
                if length > COPIED:
                    copy_rest(values + position + COPIED, p + COPIED, length - COPIED)
                position += length
            p += length
        else:
            if unlikely(p == end or (kind != c"n" and kind != c"u")):
                return NULL
            p += 1
        if collect != COLLECT_NOTHING:
            letters[i] = kind
        if collect == COLLECT_VALUES:
            ends[i] = <int32_t>position
    return p


cdef inline const uint8_t *put_tuple(
    TupleCopy *copy, const uint8_t *p, const uint8_t *end, bint no_tuples
) noexcept nogil:
    """Write the cells of a tuple. Returns their end, or NULL. `no_tuples`: nothing of tuples is requested.

    AHEAD bytes after `end` may be read, but they do not influence the result.
    """
    copy.n = be16(p)
    if unlikely(copy.n > copy.max_columns):
        return NULL
    if no_tuples:
        return copy_cells(copy, p + 2, end, COLLECT_NOTHING)
    if copy.collect == COLLECT_VALUES:
        return copy_values(copy, p + 2, end)
    return copy_formats(copy, p + 2, end)
