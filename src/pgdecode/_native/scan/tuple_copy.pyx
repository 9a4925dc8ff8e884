"""Copies the cells of tuples in blocks of constant size, into room that is made for many rows at once."""

from libc.stdint cimport uint64_t
from libc.string cimport memcpy, memset

from pgdecode._native.arrow.builder cimport expect_cells
from pgdecode._native.cursor cimport be32
from pgdecode._native.fault cimport OK

cdef enum:
    COPIED = 16       # bytes: most values are no longer, and one copy of constant size costs less than a call


cdef void open_tuple_copy(
    TupleCopy *copy, TupleSink *sink, const Walk *walk, int64_t row, int64_t n_rows, size_t n_bytes
) noexcept nogil:
    """Make room for the tuples of some rows, of so many bytes in all."""
    cdef size_t most
    memset(copy, 0, sizeof(copy[0]))
    copy.sink = sink
    copy.max_columns = walk.rules.max_columns
    copy.ready = sink == NULL
    if sink == NULL or sink.rows.offsets.data == NULL:
        return
    most = min(n_bytes, copy.max_columns * <size_t>n_rows)
    if expect_cells(sink, row, n_bytes, most) != OK:
        return
    copy.ready = True
    copy.wanted = WANTED_VALUES if sink.wants_values else WANTED_FORMATS
    copy.n_cells = <int64_t>sink.letters.size
    copy.letters = sink.letters.data
    if sink.wants_values:
        copy.ends = <int32_t *>sink.ends.data + 1
        copy.values = sink.values.data


cdef void close_tuple_copy(const TupleCopy *copy) noexcept nogil:
    """Count what has been put."""
    if copy.letters == NULL:
        return
    copy.sink.letters.size = <size_t>copy.n_cells
    if copy.values != NULL:
        copy.sink.ends.size = (<size_t>copy.n_cells + 1) * sizeof(int32_t)
        copy.sink.values.size = <size_t>copy.ends[copy.n_cells - 1]


cdef const uint8_t *copy_cells(const TupleCopy *copy, const uint8_t *p, const uint8_t *end) noexcept nogil:
    cdef uint8_t *letters = copy.letters + copy.n_cells
    cdef int32_t *ends = copy.ends + copy.n_cells
    cdef uint8_t *values = copy.values
    cdef uint64_t position = <uint64_t>(ends - 1)[0]
    cdef uint64_t length
    cdef uint32_t i
    cdef uint8_t kind
    for i in range(copy.n):
        kind = p[0]
        if kind == c"t" or kind == c"b":
            length = be32(p + 1)
            p += 5
            if unlikely(<int64_t>length > end - p):
                return NULL
            memcpy(values + position, p, COPIED)
            if length > COPIED:
                copy_rest(values + position + COPIED, p + COPIED, length - COPIED)
            p += length
            position += length
        else:
            if unlikely(p == end or (kind != c"n" and kind != c"u")):
                return NULL
            p += 1
        letters[i] = kind
        ends[i] = <int32_t>position
    return p


cdef inline void copy_rest(uint8_t *target, const uint8_t *value, size_t length) noexcept nogil:
    """Copy in blocks of half AHEAD, and so up to SLACK bytes more."""
    cdef size_t at = 0
    if length > 8 * 32:
        memcpy(target, value, length)
        return
    while at < length:
        memcpy(target + at, value + at, 32)
        at += 32


cdef const uint8_t *copy_letters(const TupleCopy *copy, const uint8_t *p, const uint8_t *end) noexcept nogil:
    return pass_cells(NULL if copy.letters == NULL else copy.letters + copy.n_cells, copy.n, p, end)
