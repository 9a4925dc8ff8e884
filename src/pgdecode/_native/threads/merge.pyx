"""Appends the data of a part's builders to the output's builders.

Parts are assigned positions one after the other, in the order of their rows, and are copied there in any order. The
starts of a part's rows are in the output's memory already. They count from the part's own first item, and are shifted.
"""

from libc.string cimport memset

from pgdecode._native.fault cimport FAULT_LIMIT_BATCH, FAULT_NO_MEMORY, OK, unlikely
from pgdecode._native.memory.bits cimport put_between, put_borders
from pgdecode._native.memory.buffers cimport grow_likely, has_capacity
from pgdecode._native.memory.non_temporal_copy cimport add_uncached, copy_uncached, fill_uncached


cdef FaultCode reserve_output(Bytes *output, size_t added, int64_t n_done, int64_t n_rows) noexcept nogil:
    """Reserve memory of the output, for the last of `n_done` rows; if that allocates, for all rows."""
    if not unlikely(not has_capacity(output, added)):
        return OK
    return grow_likely(output, added, <double>(output.size + added) / <double>n_done, n_done, n_rows)


# -- what is appended ------------------------------------------------------------------------------------------------

cdef Copy copy_of(const Bytes *part, Bytes *output, size_t width, const Copy *ended) noexcept nogil:
    cdef Copy copy
    copy.part = part
    copy.output = output
    copy.width = width
    copy.ended = ended
    copy.at = 0
    return copy


cdef inline size_t lead_of(const Copy *copy) noexcept nogil:
    """The bytes of the 0 before ends, which the part has, and the output too."""
    return copy.width if copy.ended != NULL else 0


cdef inline size_t added_by(const Copy *copy) noexcept nogil:
    cdef size_t lead = lead_of(copy)
    return copy.part.size - lead if copy.part.size > lead else 0


cdef bint fits(const Copy *copy) noexcept nogil:
    """Whether the output has memory for it."""
    return added_by(copy) == 0 or has_capacity(copy.output, lead_of(copy) + added_by(copy))


cdef FaultCode place(Copy *copy, int64_t n_done, int64_t n_rows) noexcept nogil:
    """Assign its position, and count it."""
    cdef size_t added = added_by(copy)
    cdef size_t lead = lead_of(copy)
    cdef Bytes *output = copy.output
    # Offsets have 32 bits.
    if (output.size + added) // copy.width > <size_t>0x7FFFFFFF:
        return FAULT_LIMIT_BATCH
    if added:
        if reserve_output(output, lead + added, n_done, n_rows) != OK:
            return FAULT_NO_MEMORY
        if output.size < lead:
            memset(output.data, 0, lead)
            output.size = lead
    copy.at = output.size
    output.size += added
    return OK


cdef void write(const Copy *copy) noexcept nogil:
    cdef size_t added = added_by(copy)
    cdef size_t lead = lead_of(copy)
    if added == 0:
        return
    if copy.ended == NULL:
        copy_uncached(copy.output.data + copy.at, copy.part.data, added)
    else:
        add_uncached(
            <int32_t *>(copy.output.data + copy.at),
            <const int32_t *>(copy.part.data + lead),
            added // copy.width,
            <int32_t>copy.ended.at,
        )


# -- bits of cells ---------------------------------------------------------------------------------------------------

cdef bint fits_bits(const TupleBuilder *part, const TupleBuilder *output) noexcept nogil:
    if not output.wants_values or part.letters.size == 0:
        return True
    return has_capacity(&output.bits, (output.letters.size + part.letters.size + 7) // 8 - output.bits.size)


cdef FaultCode place_bits(
    const TupleBuilder *part, TupleBuilder *output, const Copy *letters, int64_t n_done, int64_t n_rows
) noexcept nogil:
    """Reserve memory for the bits of a part's cells, which have a position, and write those in shared bytes."""
    cdef size_t needed = (output.letters.size + 7) // 8
    if not output.wants_values or part.letters.size == 0:
        return OK
    if reserve_output(&output.bits, needed - output.bits.size, n_done, n_rows) != OK:
        return FAULT_NO_MEMORY
    output.bits.size = needed
    put_borders(output.bits.data, letters.at, part.letters.data, part.letters.size, True)
    return OK


cdef void write_bits(const TupleBuilder *part, const TupleBuilder *output, const Copy *letters) noexcept nogil:
    if output.wants_values:
        put_between(output.bits.data, letters.at, part.letters.data, part.letters.size, True)


# -- starts of rows --------------------------------------------------------------------------------------------------

cdef void place_starts(const Builder *part) noexcept nogil:
    """Record up to which row starts will have been written."""
    if part.offsets.data != NULL:
        part.output.next_row = part.n_rows


cdef void write_starts(const Builder *part, const Copy *items) noexcept nogil:
    """Shift the starts of a part's rows to its items in the output, also of rows after the last one with items."""
    cdef int32_t *starts = <int32_t *>part.offsets.data
    if starts != NULL:
        move_starts(starts, part.first_row, part.next_row, items)
        fill_uncached(
            starts + part.next_row,
            <size_t>(part.n_rows - part.next_row),
            <int32_t>((items.at + items.part.size) // items.width),
        )


cdef void move_starts(int32_t *starts, int64_t first, int64_t stop, const Copy *items) noexcept nogil:
    cdef int32_t before = <int32_t>(items.at // items.width)
    cdef int64_t row
    if before:
        for row in range(first, stop):
            starts[row] += before
