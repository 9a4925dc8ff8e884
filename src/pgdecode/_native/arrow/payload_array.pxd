"""Payloads in memory: one segment for each Arrow array, or a list of bytes."""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint8_t

cdef enum ArrayLayout:
    LAYOUT_OFFSETS32   # binary
    LAYOUT_OFFSETS64   # large_binary
    LAYOUT_VIEWS       # binary_view
    LAYOUT_SPANS       # a list of bytes

cdef struct Span:
    const uint8_t *data
    size_t length

cdef struct Segment:
    ArrayLayout layout
    int64_t n_rows
    int64_t n_before         # rows of the source before it
    int64_t first            # the array's offset, in rows
    const uint8_t *validity  # NULL if no row is null
    const uint8_t *index     # offsets or views
    const uint8_t *data
    size_t data_size
    const Span *spans        # SPANS: the payloads; VIEWS: the data buffers
    int64_t n_spans

cdef enum Presence:
    ABSENT    # a null row
    PRESENT
    CORRUPT   # an Arrow array whose offsets are outside its data


cdef inline Presence payload_at(const Segment *segment, int64_t row, Span *out) noexcept nogil:
    """Locate a payload, without reading it."""
    cdef int64_t i = segment.first + row
    cdef int64_t start, end
    if segment.validity != NULL and not (segment.validity[i >> 3] >> (i & 7)) & 1:
        return ABSENT
    if segment.layout == LAYOUT_OFFSETS32:
        start = (<const int32_t *>segment.index)[i]
        end = (<const int32_t *>segment.index)[i + 1]
    elif segment.layout == LAYOUT_OFFSETS64:
        start = (<const int64_t *>segment.index)[i]
        end = (<const int64_t *>segment.index)[i + 1]
    elif segment.layout == LAYOUT_SPANS:
        out[0] = segment.spans[i]
        return PRESENT if out.data != NULL else ABSENT
    else:
        return view_at(segment, i, out)
    if start < 0 or end < start or <size_t>end > segment.data_size:
        return CORRUPT
    out.data = segment.data + start
    out.length = <size_t>(end - start)
    return PRESENT


cdef inline Presence view_at(const Segment *segment, int64_t i, Span *out) noexcept nogil:
    """A binary view: up to 12 bytes are in the view itself, longer values in a data buffer."""
    cdef const int32_t *view = <const int32_t *>(segment.index + 16 * i)
    cdef const Span *buffer
    if view[0] < 0:
        return CORRUPT
    out.length = <size_t>view[0]
    if view[0] <= 12:
        out.data = <const uint8_t *>(view + 1)
        return PRESENT
    if view[2] < 0 or view[2] >= segment.n_spans or view[3] < 0:
        return CORRUPT
    buffer = &segment.spans[view[2]]
    if <size_t>view[3] + out.length > buffer.length:
        return CORRUPT
    out.data = buffer.data + view[3]
    return PRESENT


cdef const Segment *segment_with(
    const Segment *segments, Py_ssize_t n_segments, int64_t row, Py_ssize_t *near
) noexcept nogil


cdef class Source:
    """Payloads of one call, kept in place until the object is deleted."""

    cdef Segment *segments
    cdef Py_ssize_t n_segments
    cdef readonly int64_t n_rows
    cdef list held           # Arrow buffers, and lists of bytes
    cdef const uint8_t *hold(self, object buffer, size_t *size) except? NULL
    cdef int add_array(self, Segment *segment, object array) except -1
    cdef int add_bytes(self, Segment *segment, list payloads) except -1
    cdef size_t n_bytes(self) noexcept nogil
    cdef size_t bytes_between(self, int64_t first, int64_t stop, Py_ssize_t *near) noexcept nogil
    cdef bint has_offsets(self) noexcept nogil
    cdef Presence find(self, int64_t row, Py_ssize_t *near, Span *out) noexcept nogil
