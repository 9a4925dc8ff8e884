"""Decodes a column of a block of rows: the loops of block decoders, and the function that runs them."""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from pgdecode._native.arrow.builder cimport Cell
from pgdecode._native.arrow.column_builder cimport Column, open_ends, open_items, validity_for
from pgdecode._native.codecs.codec cimport Cells, Codec
from pgdecode._native.cursor cimport be32, be64
from pgdecode._native.fault cimport OK, FaultCode, unlikely

cdef enum:
    MAX_DATA = 0x7FFFFFFF  # bytes: what 32-bit offsets reach
    MOST_RENDERED = 36  # bytes: the longest text that a block decoder makes of a shorter value, a uuid's

# Reads a value of the common form into its slot in the column. False if the value has another form or is invalid. It
# may read CELL_LEAD bytes before the value, but none after it.
ctypedef bint (*FixedReader)(const uint8_t *value, size_t length, uint8_t *slot, const Codec *codec) noexcept nogil

# The same for texts: writes up to the value's length or MOST_RENDERED bytes, and up to SLACK bytes more. Returns the
# end of the text, or NULL.
ctypedef uint8_t *(*BytesReader)(const uint8_t *value, size_t length, uint8_t *to, const Codec *codec) noexcept nogil

cdef FaultCode decode_cells(const Cells *cells, size_t *at, Column *out, const Codec *codec) noexcept nogil
cdef size_t reserve_value(Column *out, size_t size, size_t length) noexcept nogil


cdef inline void close_block(Column *out, size_t n, size_t n_null, bint has_validity) noexcept nogil:
    """Count the items of a block."""
    out.n += n
    out.n_null += n_null
    if has_validity:
        out.valid.size = out.n


cdef inline bint word32_binary(const uint8_t *value, size_t length, uint8_t *slot, const Codec *codec) noexcept nogil:
    """Reads four bytes of any value, big-endian."""
    cdef uint32_t word
    if unlikely(length != sizeof(word)):
        return False
    word = be32(value)
    memcpy(slot, &word, sizeof(word))
    return True


cdef inline bint word64_binary(const uint8_t *value, size_t length, uint8_t *slot, const Codec *codec) noexcept nogil:
    """Reads eight bytes of any value, big-endian."""
    cdef uint64_t word
    if unlikely(length != sizeof(word)):
        return False
    word = be64(value)
    memcpy(slot, &word, sizeof(word))
    return True


# Callers pass constants for the two readers, so that both loops are compiled for each pair of readers.

cdef inline size_t fixed_block(
    FixedReader text,
    FixedReader binary,
    size_t width,
    const Cells *cells,
    size_t start,
    Column *out,
    const Codec *codec,
) noexcept nogil:
    """A block decoder for values of constant width."""
    cdef size_t stride = cells.stride
    cdef size_t n = cells.n - start
    cdef size_t i = 0
    cdef size_t n_null = 0
    cdef const Cell *cell = cells.first + start * stride
    cdef uint8_t *slot
    cdef uint8_t *validity = NULL
    if open_items(out, n) != OK:
        return start
    if out.valid.size:
        validity = validity_for(out, n)
        if validity == NULL:
            return start
    slot = out.values.data + out.values.size
    while i < n:
        if cell.kind == c"t":
            if unlikely(not text(cell.value, cell.length, slot, codec)):
                break
        elif cell.kind == c"b":
            if unlikely(not binary(cell.value, cell.length, slot, codec)):
                break
        else:
            if unlikely(validity == NULL):
                validity = validity_for(out, n)
                if validity == NULL:
                    break
            memset(slot, 0, width)
            validity[i] = 0
            n_null += 1
        slot += width
        cell += stride
        i += 1
    out.values.size += i * width
    close_block(out, i, n_null, validity != NULL)
    return start + i


cdef inline size_t bytes_block(
    BytesReader text, BytesReader binary, const Cells *cells, size_t start, Column *out, const Codec *codec
) noexcept nogil:
    """A block decoder for texts and bytes."""
    cdef size_t stride = cells.stride
    cdef size_t n = cells.n - start
    cdef size_t i = 0
    cdef size_t n_null = 0
    cdef const Cell *cell = cells.first + start * stride
    cdef int32_t *ends
    cdef size_t capacity
    cdef uint8_t *base
    cdef uint8_t *to
    cdef uint8_t *end
    cdef uint8_t *validity = NULL
    if open_ends(out, n) != OK:
        return start
    if out.valid.size:
        validity = validity_for(out, n)
        if validity == NULL:
            return start
    ends = <int32_t *>(out.ends.data + out.ends.size)
    capacity = reserve_value(out, out.data.size, 0)
    if capacity == 0:
        return start
    base = out.data.data
    to = base + out.data.size
    while i < n:
        if cell.kind == c"t" or cell.kind == c"b":
            if unlikely(cell.length + <size_t>MOST_RENDERED > capacity - <size_t>(to - base)):
                capacity = reserve_value(out, <size_t>(to - base), cell.length)
                if capacity == 0:
                    break
                base = out.data.data
                to = base + out.data.size
            if cell.kind == c"t":
                end = text(cell.value, cell.length, to, codec)
            else:
                end = binary(cell.value, cell.length, to, codec)
            if unlikely(end == NULL):
                break
            to = end
        else:
            if unlikely(validity == NULL):
                validity = validity_for(out, n)
                if validity == NULL:
                    break
            validity[i] = 0
            n_null += 1
        ends[i] = <int32_t>(to - base)
        cell += stride
        i += 1
    out.data.size = <size_t>(to - base)
    out.ends.size += i * sizeof(int32_t)
    close_block(out, i, n_null, validity != NULL)
    return start + i
