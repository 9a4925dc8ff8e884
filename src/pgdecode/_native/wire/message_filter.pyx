"""Finds rows of certain messages by the first byte of their payloads."""

from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memset

from pgdecode._native.arrow.builder cimport append_int64
from pgdecode._native.arrow.payload_array cimport PRESENT, Segment, Source, Span, payload_at
from pgdecode._native.fault cimport OK, unlikely
from pgdecode._native.memory.buffers cimport Bytes, free_bytes, hand_over

cdef enum:
    SELECTED = 1    # all rows
    AT_ENDS = 2    # the first and the last row


def tagged(Source source, bytes wanted, bytes at_ends):
    """Find rows by the first byte of their payload.

    Returns (buffer of int64 or None, int, int, bytes): the rows with a first byte in `wanted`, ascending; the first and
    the last row with one in `at_ends`, or -1; and all first bytes. Null and empty payloads have no first byte, and
    payloads with corrupt offsets have none either.
    """
    cdef uint8_t[256] is_of
    cdef uint8_t[256] is_there
    cdef Bytes rows
    cdef const Segment *segment
    cdef Span span
    cdef Py_ssize_t i
    cdef int64_t at, row = 0, first = -1, last = -1
    cdef uint8_t kind
    cdef int code = OK
    memset(is_of, 0, 256)
    memset(is_there, 0, 256)
    memset(&rows, 0, sizeof(rows))
    for tag in wanted:
        is_of[<uint8_t>tag] |= SELECTED
    for tag in at_ends:
        is_of[<uint8_t>tag] |= AT_ENDS
    try:
        with nogil:
            for i in range(source.n_segments):
                segment = &source.segments[i]
                for at in range(segment.n_rows):
                    if payload_at(segment, at, &span) == PRESENT and span.length > 0:
                        is_there[span.data[0]] = 1
                        kind = is_of[span.data[0]]
                        if kind & AT_ENDS:
                            first = row if first < 0 else first
                            last = row
                        if unlikely(kind & SELECTED):
                            code = append_int64(&rows, row)
                            if code != OK:
                                break
                    row += 1
                if code != OK:
                    break
        if code != OK:
            raise MemoryError("no memory for the rows of a batch")
        return hand_over(&rows), first, last, bytes([tag for tag in range(256) if is_there[tag]])
    finally:
        free_bytes(&rows)
