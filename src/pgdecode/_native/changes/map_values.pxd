"""Reads the cells of a tuple, and writes their text into a column with enough memory."""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, uint8_t, uint64_t
from libc.string cimport memcpy, memset

from pgdecode._native.arrow.builder cimport Cell
from pgdecode._native.arrow.column_builder cimport Column, validity_for
from pgdecode._native.arrow.payload_array cimport LAYOUT_OFFSETS32, LAYOUT_OFFSETS64, Segment, Span
from pgdecode._native.changes.text_layouts cimport IN_BINARY, IN_TEXT, IS_INT4, Layout
from pgdecode._native.codecs.block_decoder cimport MAX_DATA
from pgdecode._native.codecs.codec cimport MOST_WRITTEN
from pgdecode._native.codecs.text cimport check_text
from pgdecode._native.cursor cimport be16, be32, le64
from pgdecode._native.fault cimport FAULT_NO_MEMORY, OK, FaultCode, unlikely
from pgdecode._native.literals.rendering cimport write_signed
from pgdecode._native.memory.buffers cimport has_capacity
from pgdecode._native.memory.utf8 cimport is_plain

cdef enum:
    BLOCK = 32  # bytes: texts are copied in blocks of constant size, which may write SLACK bytes too many
    SHORT = 16  # bytes: most values are not longer
    BLOCK_LIMIT = 8 * BLOCK + 1  # bytes: texts of this length or more are copied by memcpy
    BEHIND = SHORT + BLOCK  # bytes that may be read after a payload, if others follow it

cdef inline void copy_blocks(uint8_t *to, const uint8_t *text, size_t length) noexcept nogil:
    """Copy text. BLOCK more bytes after it may be read."""
    cdef size_t at = 0
    while at < length:
        memcpy(to + at, text + at, BLOCK)
        at += BLOCK


cdef inline uint64_t with_blanks(uint64_t word, size_t n) noexcept nogil:
    """The first n bytes of a word, and blanks in place of the others."""
    # Two shifts, because n may be 8.
    cdef uint64_t kept = ((<uint64_t>1 << (4 * n)) << (4 * n)) - 1
    return (word & kept) | (<uint64_t>0x2020202020202020 & ~kept)


cdef inline uint8_t *copy_plain(uint8_t *to, const uint8_t *text, size_t length, const uint8_t *end) noexcept nogil:
    """Copy plain text of a payload that ends at `end`. NULL if it is not plain."""
    cdef uint64_t first, second
    if length > SHORT or <size_t>(end - text) < SHORT:
        if not is_plain(text, length):
            return NULL
        memcpy(to, text, length)
        return to + length
    memcpy(to, text, SHORT)
    first = with_blanks(le64(text), min(length, <size_t>8))
    # As in `is_plain`.
    first |= first - <uint64_t>0x0101010101010101
    if length > 8:
        second = with_blanks(le64(text + 8), length - 8)
        first |= second | (second - <uint64_t>0x0101010101010101)
    return NULL if unlikely(first & <uint64_t>0x8080808080808080) else to + length


cdef inline const uint8_t *index_tuple(
    const uint8_t *p, const uint8_t *end, const Layout *layout, Cell *cells, bint *has_unchanged
) noexcept nogil:
    """Index the cells of a tuple. Returns their end, or NULL if the walk must find the fault."""
    cdef int n = layout.n_columns
    cdef uint8_t kind
    cdef bint unchanged = False
    cdef int c
    if unlikely(end - p < 2 or be16(p) != n):
        return NULL
    p += 2
    for c in range(n):
        if unlikely(p >= end):
            return NULL
        kind = p[0]
        cells[c].kind = kind
        if kind == c"t" or kind == c"b":
            if unlikely(end - p < 5 or be32(p + 1) > end - p - 5):
                return NULL
            cells[c].length = be32(p + 1)
            cells[c].value = p + 5
            p += 5 + <size_t>cells[c].length
        else:
            if unlikely(kind != c"n" and kind != c"u"):
                return NULL
            unchanged |= kind == c"u"
            cells[c].value = NULL
            p += 1
    has_unchanged[0] = unchanged
    return p


cdef inline bint has_text_capacity(const Column *values, size_t extra) noexcept nogil:
    """Whether `extra` more bytes fit into the reserved memory, and into 32-bit offsets."""
    return has_capacity(&values.data, extra) and extra <= <size_t>MAX_DATA - values.data.size


cdef struct TupleWriter:
    # The position of a tuple's next value, in a column with memory for the others.
    uint8_t *to
    int32_t *ends
    uint8_t *validity    # NULL until the column's first null
    size_t n             # values since `open_tuple`
    size_t n_null
    bint may_write       # whether there is memory for the output of writers


cdef inline FaultCode open_tuple(TupleWriter *at, Column *values, size_t n, size_t length) noexcept nogil:
    """Begin n values of a payload with that length."""
    at.to = values.data.data + values.data.size
    at.ends = <int32_t *>(values.ends.data + values.ends.size)
    at.n = at.n_null = 0
    at.may_write = has_text_capacity(values, length + n * MOST_WRITTEN)
    at.validity = NULL
    if values.valid.size:
        at.validity = validity_for(values, n)
        if unlikely(at.validity == NULL):
            return FAULT_NO_MEMORY
    return OK


cdef inline void close_tuple(const TupleWriter *at, Column *values) noexcept nogil:
    """Count the values since `open_tuple`."""
    values.data.size = <size_t>(at.to - values.data.data)
    values.ends.size += at.n * sizeof(int32_t)
    values.n += at.n
    values.n_null += at.n_null
    if at.validity != NULL:
        values.valid.size = values.n


cdef struct FastTuple:
    # The positions of the values of a fast tuple, which is written while it is read.
    uint8_t *to
    int32_t *ends
    const uint8_t *base      # start of the text, to which offsets refer
    uint8_t *validity        # NULL until the column's first null
    size_t n_null


cdef inline const uint8_t *end_of_blocks(const Segment *segment) noexcept nogil:
    """The last end of a payload after which BEHIND bytes may be read; NULL if there is none."""
    if segment.layout != LAYOUT_OFFSETS32 and segment.layout != LAYOUT_OFFSETS64 or segment.data_size < BEHIND:
        return NULL
    return segment.data + (segment.data_size - BEHIND)


cdef inline void copy_text(uint8_t *to, const uint8_t *text, size_t length, size_t block_limit) noexcept nogil:
    """Copy text, in blocks if it is shorter than the limit. Blocks may write SLACK bytes too many."""
    cdef size_t at = SHORT
    if length >= block_limit:
        memcpy(to, text, length)
        return
    memcpy(to, text, SHORT)
    while at < length:
        memcpy(to + at, text + at, BLOCK)
        at += BLOCK


cdef inline bint are_texts(const uint8_t *p, const Layout *layout) noexcept nogil:
    """Whether the cells of a well-formed tuple are valid text, or need a writer."""
    cdef size_t c, length
    cdef uint8_t kind
    for c in range(layout.n_columns):
        kind = p[0]
        p += 1
        if kind != c"t" and kind != c"b":
            continue
        length = be32(p)
        p += 4
        if (kind == c"t" or layout.is_text[c] & IN_BINARY) and not is_plain(p, length):
            if not (kind == c"b" or layout.is_text[c] & IN_TEXT) or check_text(p, length) != OK:
                return False
        p += length
    return True


cdef inline void put_ones(uint8_t *to, size_t n) noexcept nogil:
    """Write n bytes that are 1, and up to SLACK more bytes."""
    cdef uint64_t ones = 0x0101010101010101
    memcpy(to, &ones, sizeof(ones))
    if n > sizeof(ones):
        memset(to + sizeof(ones), 1, n - sizeof(ones))


cdef inline bint put_fast_tuple(
    FastTuple *out, const uint8_t *p, const uint8_t *end, const Layout *layout, size_t block_limit
) noexcept nogil:
    """Write a tuple, which is the rest of a payload. False if anything is unusual or wrong; the caller then handles it.

    There is memory for its text, for the output of writers, for ends and for validity, which is 1 already.
    `block_limit`: BLOCK_LIMIT if BEHIND bytes after the payload may be read, otherwise 0.
    """
    cdef size_t n = layout.n_columns
    cdef const uint8_t *first = p
    cdef const uint8_t *value
    cdef uint8_t *to = out.to
    cdef size_t c, length, n_null = 0
    cdef uint8_t kind
    cdef bint has_text = False
    if unlikely(end - p < 2 or be16(p) != n):
        return False
    p += 2
    for c in range(n):
        if unlikely(p >= end):
            return False
        kind = p[0]
        if kind == c"b" and layout.is_text[c] & IS_INT4 and end - p >= 9 and be32(p + 1) == 4:
            # The most frequent binary values, without a call.
            to = write_signed(to, <int32_t>be32(p + 5))
            p += 9
        elif kind == c"t" or kind == c"b":
            if unlikely(end - p < 5 or be32(p + 1) > end - p - 5):
                return False
            length = be32(p + 1)
            value = p + 5
            p = value + length
            if kind == c"t" or layout.is_text[c] & IN_BINARY:
                copy_text(to, value, length, block_limit)
                to += length
                has_text = True
            else:
                if unlikely(layout.codecs[c].write_binary == NULL):
                    return False
                to = layout.codecs[c].write_binary(value, length, to)
                if unlikely(to == NULL):
                    return False
        else:
            if unlikely(kind != c"n" or out.validity == NULL):
                return False
            p += 1
            out.validity[c] = 0
            n_null += 1
        out.ends[c] = <int32_t>(to - out.base)
    if unlikely(p != end):
        return False
    # The output of writers is plain.
    if has_text and unlikely(not is_plain(out.to, <size_t>(to - out.to)) and not are_texts(first + 2, layout)):
        return False
    out.to = to
    out.n_null += n_null
    return True
