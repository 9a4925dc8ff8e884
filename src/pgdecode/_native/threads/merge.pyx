"""Puts what the builders of a part have appended behind what those of the whole have.

Parts are given their places one after the other, in the order of their rows, and written to them in any order. Where a
part's rows start already lies in the whole's memory; it counts from the part's own first item, and is moved.
"""

from libc.string cimport memset

from pgdecode._native.fault cimport FAULT_LIMIT_BATCH, FAULT_NO_MEMORY, OK, unlikely
from pgdecode._native.memory.bits cimport put_between, put_borders
from pgdecode._native.memory.buffers cimport grow_likely, has_capacity
from pgdecode._native.memory.non_temporal_copy cimport add_uncached, copy_uncached, fill_uncached


cdef FaultCode ensure_capacity(Bytes *whole, size_t added, int64_t n_done, int64_t n_rows) noexcept nogil:
    """Let the whole have room for more bytes, of the last of `n_done` rows; where that takes memory, for all rows."""
    if not unlikely(not has_capacity(whole, added)):
        return OK
    return grow_likely(whole, added, <double>(whole.size + added) / <double>n_done, n_done, n_rows)


# -- what is appended ------------------------------------------------------------------------------------------------

cdef Move move_of(const Bytes *part, Bytes *whole, size_t width, const Move *ended) noexcept nogil:
    cdef Move move
    move.part = part
    move.whole = whole
    move.width = width
    move.ended = ended
    move.at = 0
    return move


cdef inline size_t lead_of(const Move *move) noexcept nogil:
    """Bytes of the 0 in front of ends, which a part has as the whole has it."""
    return move.width if move.ended != NULL else 0


cdef inline size_t added_by(const Move *move) noexcept nogil:
    cdef size_t lead = lead_of(move)
    return move.part.size - lead if move.part.size > lead else 0


cdef bint fits(const Move *move) noexcept nogil:
    """Whether the whole has room for it."""
    return added_by(move) == 0 or has_capacity(move.whole, lead_of(move) + added_by(move))


cdef FaultCode place(Move *move, int64_t n_done, int64_t n_rows) noexcept nogil:
    """Give it its place, and count it."""
    cdef size_t added = added_by(move)
    cdef size_t lead = lead_of(move)
    cdef Bytes *whole = move.whole
    # Offsets have 32 bits.
    if (whole.size + added) // move.width > <size_t>0x7FFFFFFF:
        return FAULT_LIMIT_BATCH
    if added:
        if ensure_capacity(whole, lead + added, n_done, n_rows) != OK:
            return FAULT_NO_MEMORY
        if whole.size < lead:
            memset(whole.data, 0, lead)
            whole.size = lead
    move.at = whole.size
    whole.size += added
    return OK


cdef void write(const Move *move) noexcept nogil:
    cdef size_t added = added_by(move)
    cdef size_t lead = lead_of(move)
    if added == 0:
        return
    if move.ended == NULL:
        copy_uncached(move.whole.data + move.at, move.part.data, added)
    else:
        add_uncached(
            <int32_t *>(move.whole.data + move.at),
            <const int32_t *>(move.part.data + lead),
            added // move.width,
            <int32_t>move.ended.at,
        )


# -- bits of cells ---------------------------------------------------------------------------------------------------

cdef bint fits_bits(const TupleBuilder *part, const TupleBuilder *whole) noexcept nogil:
    if not whole.wants_values or part.letters.size == 0:
        return True
    return has_capacity(&whole.bits, (whole.letters.size + part.letters.size + 7) // 8 - whole.bits.size)


cdef FaultCode place_bits(
    const TupleBuilder *part, TupleBuilder *whole, const Move *letters, int64_t n_done, int64_t n_rows
) noexcept nogil:
    """Make room for the bits of a part's cells, which have their place, and put those that share a byte with others."""
    cdef size_t needed = (whole.letters.size + 7) // 8
    if not whole.wants_values or part.letters.size == 0:
        return OK
    if ensure_capacity(&whole.bits, needed - whole.bits.size, n_done, n_rows) != OK:
        return FAULT_NO_MEMORY
    whole.bits.size = needed
    put_borders(whole.bits.data, letters.at, part.letters.data, part.letters.size, True)
    return OK


cdef void write_bits(const TupleBuilder *part, const TupleBuilder *whole, const Move *letters) noexcept nogil:
    if whole.wants_values:
        put_between(whole.bits.data, letters.at, part.letters.data, part.letters.size, True)


# -- starts of rows --------------------------------------------------------------------------------------------------

cdef void place_starts(const Builder *part) noexcept nogil:
    """Let the whole know up to which row starts will have been written."""
    if part.offsets.data != NULL:
        part.whole.next_row = part.n_rows


cdef void write_starts(const Builder *part, const Move *items) noexcept nogil:
    """Let a part's rows start where their items are in the whole; also those after the last one that has any."""
    cdef int32_t *starts = <int32_t *>part.offsets.data
    if starts != NULL:
        move_starts(starts, part.first_row, part.next_row, items)
        fill_uncached(
            starts + part.next_row,
            <size_t>(part.n_rows - part.next_row),
            <int32_t>((items.at + items.part.size) // items.width),
        )


cdef void move_starts(int32_t *starts, int64_t first, int64_t stop, const Move *items) noexcept nogil:
    cdef int32_t before = <int32_t>(items.at // items.width)
    cdef int64_t row
    if before:
        for row in range(first, stop):
            starts[row] += before
