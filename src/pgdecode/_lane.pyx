"""Copies the cells of tuples in blocks of constant size, into room that is made for many rows at once."""

from libc.stdint cimport uint64_t
from libc.string cimport memcpy, memset

from pgdecode._cursor cimport be32
from pgdecode._fault cimport OK
from pgdecode._sink cimport expect_cells

cdef enum:
    COPIED = 16       # bytes: most values are no longer, and one copy of constant size costs less than a call


cdef void open_lane(
    Lane *lane, TupleSink *sink, const Walk *walk, int64_t row, int64_t n_rows, size_t n_bytes
) noexcept nogil:
    """Make room for the tuples of some rows, of so many bytes in all."""
    cdef size_t most
    memset(lane, 0, sizeof(lane[0]))
    lane.sink = sink
    lane.max_columns = walk.rules.max_columns
    lane.ready = sink == NULL
    if sink == NULL or sink.rows.offsets.data == NULL:
        return
    most = min(n_bytes, lane.max_columns * <size_t>n_rows)
    if expect_cells(sink, row, n_bytes, most) != OK:
        return
    lane.ready = True
    lane.wanted = WANTED_VALUES if sink.wants_values else WANTED_FORMATS
    lane.n_cells = <int64_t>sink.letters.size
    lane.letters = sink.letters.data
    if sink.wants_values:
        lane.ends = <int32_t *>sink.ends.data + 1
        lane.values = sink.values.data


cdef void close_lane(const Lane *lane) noexcept nogil:
    """Count what has been put."""
    if lane.letters == NULL:
        return
    lane.sink.letters.size = <size_t>lane.n_cells
    if lane.values != NULL:
        lane.sink.ends.size = (<size_t>lane.n_cells + 1) * sizeof(int32_t)
        lane.sink.values.size = <size_t>lane.ends[lane.n_cells - 1]


cdef const uint8_t *copy_cells(const Lane *lane, const uint8_t *p, const uint8_t *end) noexcept nogil:
    cdef uint8_t *letters = lane.letters + lane.n_cells
    cdef int32_t *ends = lane.ends + lane.n_cells
    cdef uint8_t *values = lane.values
    cdef uint64_t position = <uint64_t>(ends - 1)[0]
    cdef uint64_t length
    cdef uint32_t i
    cdef uint8_t kind
    for i in range(lane.n):
        kind = p[0]
        if kind == c"t" or kind == c"b":
            length = be32(p + 1)
            p += 5
            if rarely(<int64_t>length > end - p):
                return NULL
            memcpy(values + position, p, COPIED)
            if length > COPIED:
                copy_rest(values + position + COPIED, p + COPIED, length - COPIED)
            p += length
            position += length
        else:
            if rarely(p == end or (kind != c"n" and kind != c"u")):
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


cdef const uint8_t *copy_letters(const Lane *lane, const uint8_t *p, const uint8_t *end) noexcept nogil:
    return pass_cells(NULL if lane.letters == NULL else lane.letters + lane.n_cells, lane.n, p, end)
