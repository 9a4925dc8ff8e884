"""Notes the cells of tuples by the heads that they probably have: their kind and length."""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memset

from pgdecode._native.arrow.builder cimport Cell
from pgdecode._native.cursor cimport be32, le64
from pgdecode._native.fault cimport unlikely

cdef enum:
    CELL_HEAD = 5     # bytes: a cell's kind and length
    HEAD_READ = 8     # bytes that are read for these: a word
    NO_HEAD = 1       # as no cell's first bytes read: their last bits, shifted in, are zeros


cdef struct PredictedHeader:
    # How a column's cells begin, as the last block had them.
    uint64_t word            # kind and length as sent, in the high bytes; NO_HEAD where they differ
    uint32_t length
    uint8_t kind


cdef const uint8_t *index_each(const uint8_t *p, const uint8_t *end, Cell *cell, int n) noexcept nogil


cdef inline const uint8_t *index_all(
    const uint8_t *p, const uint8_t *end, Cell *cell, const PredictedHeader *head, int n
) noexcept nogil:
    """Note `n` cells and return where they end; NULL where one is u, or where they do not all lie before `end`.

    HEAD_READ bytes behind `end` may be read. What is noted counts only where the end is returned.
    """
    cdef const Cell *last = cell + n
    # As numbers of 64 bits: no length makes these wrap, so that one comparison a cell is enough, behind it.
    cdef uint64_t at = <size_t>p
    cdef uint64_t stop = <size_t>end
    cdef uint64_t word
    cdef uint32_t length
    cdef uint8_t kind
    while cell != last:
        word = le64(<const uint8_t *><size_t>at)
        if word << 24 == head.word:
            # The length is known before it is read, so that the next cell need not wait for it.
            at += CELL_HEAD
            cell.value = <const uint8_t *><size_t>at
            cell.length = head.length
            cell.kind = head.kind
            at += head.length
        else:
            kind = <uint8_t>word
            cell.kind = kind
            if unlikely(kind != c"b" and kind != c"t"):
                if unlikely(kind != c"n"):
                    return NULL
                cell.value = NULL
                at += 1
            else:
                length = be32(<const uint8_t *><size_t>(at + 1))
                at += CELL_HEAD
                cell.value = <const uint8_t *><size_t>at
                cell.length = length
                at += length
        if unlikely(at > stop):
            return NULL
        cell += 1
        head += 1
    return <const uint8_t *><size_t>at


cdef inline uint64_t word_of_header(uint8_t kind, uint32_t length) noexcept nogil:
    """The five bytes a cell begins with, as `le64` reads them, shifted to where they are all that there is."""
    cdef uint8_t[8] bytes
    cdef int i
    memset(bytes, 0, sizeof(bytes))
    bytes[0] = kind
    for i in range(4):
        bytes[1 + i] = <uint8_t>(length >> 24 - 8 * i)
    return le64(bytes) << 24
