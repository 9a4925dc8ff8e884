"""Locates payloads in Arrow arrays and lists without copying them."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int8_t
from libc.stdlib cimport calloc, free

# The index is the ArrayLayout. A list of bytes is not an Arrow array.
LAYOUTS = ("binary", "large_binary", "binary_view")

# An empty payload needs an address, because NULL means a null row.
cdef uint8_t nowhere = 0


cdef class Source:
    def __cinit__(self, list parts):
        """`parts`: pyarrow arrays of a LAYOUTS type, or lists of bytes and None."""
        cdef Py_ssize_t i
        self.held = []
        self.segments = <Segment *>calloc(len(parts) + 1, sizeof(Segment))
        if self.segments == NULL:
            raise MemoryError()
        for i in range(len(parts)):
            self.n_segments = i + 1
            if isinstance(parts[i], list):
                self.add_bytes(&self.segments[i], parts[i])
            else:
                self.add_array(&self.segments[i], parts[i])
            self.segments[i].n_before = self.n_rows
            self.n_rows += self.segments[i].n_rows

    def __dealloc__(self):
        cdef Py_ssize_t i
        if self.segments != NULL:
            for i in range(self.n_segments):
                free(<void *>self.segments[i].spans)
        free(self.segments)

    cdef const uint8_t *hold(self, object buffer, size_t *size) except? NULL:
        """Address of an Arrow buffer, which is kept in place with this object; NULL for None."""
        cdef const int8_t[::1] data  # Arrow's buffers have signed bytes
        size[0] = 0
        if buffer is None:
            return NULL
        self.held.append(buffer)
        data = buffer
        size[0] = <size_t>data.shape[0]
        return <const uint8_t *>&data[0] if size[0] else &nowhere

    cdef int add_array(self, Segment *segment, object array) except -1:
        cdef size_t size, needed
        cdef Span *spans
        cdef Py_ssize_t i
        buffers = array.buffers()
        segment.layout = <ArrayLayout><int>LAYOUTS.index(str(array.type))
        segment.n_rows = len(array)
        segment.first = array.offset
        if array.null_count:
            segment.validity = self.hold(buffers[0], &size)
            if size < <size_t>(segment.first + segment.n_rows + 7) // 8:
                raise ValueError("the Arrow array's validity bitmap is too short")
        segment.index = self.hold(buffers[1], &size)
        if segment.layout == LAYOUT_VIEWS:
            needed = 16 * <size_t>(segment.first + segment.n_rows)
            segment.n_spans = len(buffers) - 2
            spans = <Span *>calloc(<size_t>segment.n_spans + 1, sizeof(Span))
            if spans == NULL:
                raise MemoryError()
            segment.spans = spans
            for i in range(segment.n_spans):
                spans[i].data = self.hold(buffers[2 + i], &spans[i].length)
        else:
            needed = <size_t>(segment.first + segment.n_rows + 1) * (4 if segment.layout == LAYOUT_OFFSETS32 else 8)
            segment.data = self.hold(buffers[2], &segment.data_size)
            if segment.data == NULL:
                segment.data = &nowhere
        if segment.n_rows and size < needed:
            raise ValueError("the Arrow array's offsets are too short")
        return 0

    cdef int add_bytes(self, Segment *segment, list payloads) except -1:
        cdef Py_ssize_t i, n = len(payloads)
        cdef Span *spans = <Span *>calloc(<size_t>n + 1, sizeof(Span))
        if spans == NULL:
            raise MemoryError()
        segment.layout = LAYOUT_SPANS
        segment.spans = spans
        segment.n_rows = n
        # A copy of the list, because the caller may remove items meanwhile.
        payloads = list(payloads)
        self.held.append(payloads)
        for i in range(n):
            payload = payloads[i]
            if payload is None:
                continue
            if type(payload) is not bytes:
                payload = payloads[i] = bytes(memoryview(payload))
            spans[i].data = <const uint8_t *>PyBytes_AS_STRING(payload)
            spans[i].length = <size_t>PyBytes_GET_SIZE(payload)
        return 0

    @property
    def payload_bytes(self):
        return self.n_bytes()

    cdef size_t n_bytes(self) noexcept nogil:
        """Total length of all payloads."""
        cdef Py_ssize_t near = 0
        return self.bytes_between(0, self.n_rows, &near)

    cdef size_t bytes_between(self, int64_t first, int64_t stop, Py_ssize_t *near) noexcept nogil:
        """Total length of the payloads of some rows; `near` as in `segment_with`."""
        cdef size_t total = 0
        cdef const Segment *segment
        cdef int64_t end
        while first < stop:
            segment = segment_with(self.segments, self.n_segments, first, near)
            end = min(stop, segment.n_before + segment.n_rows)
            total += bytes_in(segment, first - segment.n_before, end - segment.n_before)
            first = end
        return total

    cdef bint has_offsets(self) noexcept nogil:
        """Whether the total length of rows is known from the first and the last offset."""
        cdef Py_ssize_t i
        for i in range(self.n_segments):
            if self.segments[i].layout != LAYOUT_OFFSETS32 and self.segments[i].layout != LAYOUT_OFFSETS64:
                return False
        return True

    cdef Presence find(self, int64_t row, Py_ssize_t *near, Span *out) noexcept nogil:
        """Locate the payload of a row of the source; `near` as in `segment_with`."""
        cdef const Segment *segment = segment_with(self.segments, self.n_segments, row, near)
        return payload_at(segment, row - segment.n_before, out)


cdef const Segment *segment_with(
    const Segment *segments, Py_ssize_t n_segments, int64_t row, Py_ssize_t *near
) noexcept nogil:
    """The segment that has a row. `near` is the first segment to look in, and is set to the right one."""
    cdef const Segment *segment = &segments[near[0]]
    cdef Py_ssize_t low = 0, high, middle
    if is_in(segment, row):
        return segment
    if near[0] + 1 < n_segments and is_in(segment + 1, row):
        near[0] += 1
        return segment + 1
    high = n_segments - 1
    while low < high:
        middle = (low + high) // 2
        if row < segments[middle + 1].n_before:
            high = middle
        else:
            low = middle + 1
    near[0] = low
    return &segments[low]


cdef inline bint is_in(const Segment *segment, int64_t row) noexcept nogil:
    return segment.n_before <= row < segment.n_before + segment.n_rows


cdef size_t bytes_in(const Segment *segment, int64_t first, int64_t stop) noexcept nogil:
    """Total length of the payloads of some rows of a segment; with corrupt offsets, at most the size of the data."""
    cdef size_t total = 0
    cdef int64_t start, end, row
    cdef Span span
    if segment.layout == LAYOUT_OFFSETS32:
        start = (<const int32_t *>segment.index)[segment.first + first]
        end = (<const int32_t *>segment.index)[segment.first + stop]
    elif segment.layout == LAYOUT_OFFSETS64:
        start = (<const int64_t *>segment.index)[segment.first + first]
        end = (<const int64_t *>segment.index)[segment.first + stop]
    else:
        for row in range(first, stop):
            if payload_at(segment, row, &span) == PRESENT:
                total += span.length
        return total
    if start < 0 or end < start or <size_t>end > segment.data_size:
        return segment.data_size
    return <size_t>(end - start)
