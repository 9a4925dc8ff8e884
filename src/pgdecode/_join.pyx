"""Moves what the sinks of a part have appended behind what those of the whole have.

Parts are joined one after the other, in the order of their rows. A part's offsets already lie in the whole's memory;
they count from the part's own first item, and are shifted.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t
from libc.string cimport memcpy

from pgdecode._fault cimport FAULT_LIMIT_BATCH, FAULT_NO_MEMORY, OK, rarely
from pgdecode._memory cimport Bytes, grow
from pgdecode._sink cimport append_int32, columns_in, items_in, pad_offsets


cdef FaultCode make_room(Bytes *whole, size_t added, double times) noexcept nogil:
    """Let the whole have room for more bytes; where that takes memory, for those of all rows.

    `times`: how many times as many rows there are in all as up to those that are added.
    """
    cdef size_t needed = whole.size + added
    cdef size_t capacity
    cdef double likely
    if rarely(needed > whole.capacity or whole.data == NULL):
        # An eighth more than the average: rows differ.
        likely = min(1.125 * times, 256.0) * <double>needed
        likely = min(likely, <double>0x7FFFFFFF)
        capacity = whole.capacity + (whole.capacity >> 1)
        return grow(whole, max(needed, capacity, <size_t>likely))
    return OK


cdef FaultCode append(Bytes *whole, const Bytes *part, double times) noexcept nogil:
    """Append a part's bytes."""
    if part.size == 0:
        return OK
    if make_room(whole, part.size, times) != OK:
        return FAULT_NO_MEMORY
    memcpy(whole.data + whole.size, part.data, part.size)
    whole.size += part.size
    return OK


cdef double times_as_many(const Sink *part) noexcept nogil:
    return <double>part.whole.n_rows / <double>part.n_rows


cdef void shift(int32_t *offsets, size_t n, size_t by) noexcept nogil:
    cdef size_t i
    if by:
        for i in range(n):
            offsets[i] += <int32_t>by


cdef void close_offsets(Sink *part, size_t n_items) noexcept nogil:
    """Write the starts of a part's rows after the last one that has items; there are so many."""
    if part.offsets.data != NULL:
        pad_offsets(part, part.n_rows - 1, <int32_t>n_items)
        part.whole.next_row = part.n_rows


cdef void join_offsets(Sink *part, size_t n_items, size_t n_before) noexcept nogil:
    """Make the offsets of a part's rows count from the whole's first item."""
    close_offsets(part, n_items)
    shift(<int32_t *>part.offsets.data + part.first_row, <size_t>(part.n_rows - part.first_row), n_before)


cdef FaultCode append_ends(Bytes *whole, const Bytes *part, size_t n_before, double times) noexcept nogil:
    """Append ends of items, of which `n_before` bytes come before; a 0 is in front of a part's, as of the whole's."""
    cdef const int32_t *ends
    cdef int32_t *moved
    cdef size_t i, n
    if part.size <= sizeof(int32_t):
        return OK
    if whole.size == 0 and append_int32(whole, 0) != OK:
        return FAULT_NO_MEMORY
    if make_room(whole, part.size - sizeof(int32_t), times) != OK:
        return FAULT_NO_MEMORY
    ends = <const int32_t *>part.data + 1
    moved = <int32_t *>(whole.data + whole.size)
    n = part.size // sizeof(int32_t) - 1
    for i in range(n):
        moved[i] = ends[i] + <int32_t>n_before
    whole.size += n * sizeof(int32_t)
    return OK


cdef bint is_too_much(size_t whole, size_t part) noexcept nogil:
    """Whether 32-bit offsets do not reach so far."""
    return whole + part > <size_t>0x7FFFFFFF


cdef FaultCode join_sink(Sink *part) noexcept nogil:
    cdef size_t n_before
    if part.offsets.data == NULL:
        return OK
    n_before = items_in(part.whole)
    if is_too_much(n_before, items_in(part)):
        return FAULT_LIMIT_BATCH
    join_offsets(part, items_in(part), n_before)
    return append(&part.whole.data, &part.data, times_as_many(part))


cdef FaultCode join_tuple(TupleSink *whole, TupleSink *part) noexcept nogil:
    cdef size_t n_before = whole.letters.size
    cdef size_t size_before = whole.values.size
    cdef double times
    if part.rows.offsets.data == NULL:
        return OK
    if is_too_much(n_before, part.letters.size) or is_too_much(size_before, part.values.size):
        return FAULT_LIMIT_BATCH
    times = times_as_many(&part.rows)
    join_offsets(&part.rows, part.letters.size, n_before)
    if (
        append(&whole.letters, &part.letters, times) != OK
        or append_ends(&whole.ends, &part.ends, size_before, times) != OK
        or append(&whole.values, &part.values, times) != OK
    ):
        return FAULT_NO_MEMORY
    return OK


cdef FaultCode join_columns(ColumnsSink *whole, ColumnsSink *part) noexcept nogil:
    cdef size_t n_before = columns_in(whole)
    cdef size_t size_before = whole.names.size
    cdef double times
    if part.rows.offsets.data == NULL:
        return OK
    if is_too_much(n_before, columns_in(part)) or is_too_much(size_before, part.names.size):
        return FAULT_LIMIT_BATCH
    times = times_as_many(&part.rows)
    join_offsets(&part.rows, columns_in(part), n_before)
    if (
        append(&whole.flags, &part.flags, times) != OK
        or append_ends(&whole.name_ends, &part.name_ends, size_before, times) != OK
        or append(&whole.names, &part.names, times) != OK
        or append(&whole.type_ids, &part.type_ids, times) != OK
        or append(&whole.type_modifiers, &part.type_modifiers, times) != OK
    ):
        return FAULT_NO_MEMORY
    return OK


cdef FaultCode join_words(const WordSink *part) noexcept nogil:
    cdef WordSink *whole = part.whole
    cdef size_t n_before
    if part.indexes.data == NULL:
        return OK
    n_before = whole.text.size
    if is_too_much(n_before, part.text.size):
        return FAULT_LIMIT_BATCH
    shift(<int32_t *>part.ends.data + part.first_row, <size_t>(part.n_rows - part.first_row), n_before)
    return append(&whole.text, &part.text, <double>whole.n_rows / <double>part.n_rows)
