"""Decides for each payload whether it is inside a stream, and therefore has an xid prefix."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint32_t

from pgdecode._native.arrow.payload_array cimport Segment, Span
from pgdecode._native.fault cimport FaultCode
from pgdecode._native.wire.envelope_builder cimport Walk
from pgdecode._native.wire.wire_plan cimport PlanTable

cdef enum Carry:
    # The last delimiter before the first row.
    CARRY_NONE
    CARRY_PLAIN
    CARRY_STREAMED

cdef struct Window:
    # The rows to resolve, and the walk that checks their structure.
    const Segment *segments
    Py_ssize_t n_segments
    int64_t n_rows
    const PlanTable *plan
    Walk *walk           # without builders
    uint8_t *stream_flags    # one for each row, input and output
    bint lookahead       # with a known state: later rows may invalidate the flags of earlier ones

cdef struct Delimiter:
    int64_t row
    int marks            # readings that the rows since the last delimiter suggest; not checked
    uint8_t tag

cdef struct Delimiters:
    # The delimiters among some rows, in slot order.
    Delimiter *items
    size_t n, capacity
    int marks            # as in Delimiter, of the rows after the last delimiter
    Py_ssize_t segment   # the first one to look in

cdef struct Order:
    # How far the stream flags are set, in slot order.
    Carry carry          # the stream state after the last delimiter, or before the first row
    int64_t start        # the first row after it
    Py_ssize_t segment   # the first one to look in
    int marks            # of the rows from there on

cdef enum Reading:
    READING_PLAIN = 1
    READING_STREAMED = 2
    READING_BOTH = 3

cdef struct Relations:
    # OIDs that certainly are relations of rows of the window, sorted.
    uint32_t *ids
    size_t n
    bint collected


cdef inline int marks(const Span *payload) noexcept nogil:
    """Readings for which the byte after the relation OID of an I, U or D is allowed; 0 for other messages."""
    cdef const uint8_t *p = payload.data
    cdef int readings = 0
    cdef size_t at
    for at in range(5, 10, 4):
        if payload.length <= at:
            break
        if p[0] == c"I":
            if p[at] != c"N":
                continue
        elif p[0] == c"D" or p[0] == c"U":
            if p[at] != c"K" and p[at] != c"O" and not (p[0] == c"U" and p[at] == c"N"):
                continue
        else:
            return 0
        readings |= READING_PLAIN if at == 5 else READING_STREAMED
    return readings


cdef FaultCode resolve_payload(
    const Window *window, Relations *known, const Span *payload, uint8_t *stream_flag
) noexcept nogil
cdef FaultCode find_delimiters(const Window *window, int64_t first, int64_t stop, Delimiters *delimiters) noexcept nogil
cdef FaultCode flag_rows(Window *window, Order *order, const Delimiters *delimiters) noexcept nogil
cdef FaultCode flag_last_rows(Window *window, Order *order) noexcept nogil
cdef FaultCode resolve_by_order(Window *window, Carry *carry) noexcept nogil
cdef FaultCode resolve_each(Window *window) noexcept nogil
cdef FaultCode resolve_segments(Window *window) noexcept nogil
cdef bint may_carry_xid(const PlanTable *plan, uint8_t tag) noexcept nogil
