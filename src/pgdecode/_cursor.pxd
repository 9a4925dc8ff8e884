"""The only code that advances through a payload: every read is checked here against the bytes left."""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memchr

cdef struct Cursor:
    # Passed and returned by value: two pointers stay in registers.
    const uint8_t *at
    const uint8_t *end


cdef inline size_t bytes_left(Cursor cursor) noexcept nogil:
    return <size_t>(cursor.end - cursor.at)


# Byte shifts, not pointer casts: payloads are not aligned. Compilers make one load and a swap of them.
cdef inline uint16_t be16(const uint8_t *p) noexcept nogil:
    return <uint16_t>((<uint16_t>p[0] << 8) | p[1])


cdef inline uint32_t be32(const uint8_t *p) noexcept nogil:
    return (<uint32_t>p[0] << 24) | (<uint32_t>p[1] << 16) | (<uint32_t>p[2] << 8) | <uint32_t>p[3]


cdef inline uint64_t be64(const uint8_t *p) noexcept nogil:
    return (<uint64_t>be32(p) << 32) | be32(p + 4)


cdef inline uint64_t le64(const uint8_t *p) noexcept nogil:
    return (
        <uint64_t>p[0] | <uint64_t>p[1] << 8 | <uint64_t>p[2] << 16 | <uint64_t>p[3] << 24
        | <uint64_t>p[4] << 32 | <uint64_t>p[5] << 40 | <uint64_t>p[6] << 48 | <uint64_t>p[7] << 56
    )


cdef inline void put_be64(uint8_t *p, uint64_t word) noexcept nogil:
    """Write eight bytes, the highest first."""
    cdef int i
    for i in range(8):
        p[i] = <uint8_t>(word >> (56 - 8 * i))


cdef inline const uint8_t *take(Cursor *cursor, size_t length) noexcept nogil:
    """The next `length` bytes, or NULL where fewer are left (the cursor then stays)."""
    cdef const uint8_t *p = cursor.at
    if length > bytes_left(cursor[0]):
        return NULL
    cursor.at += length
    return p


cdef inline const uint8_t *take_string(Cursor *cursor, size_t *length) noexcept nogil:
    """A NUL-terminated string without its NUL, or NULL where there is no NUL (the cursor then stays)."""
    cdef const uint8_t *p = cursor.at
    cdef const uint8_t *nul = NULL
    if p != cursor.end:
        nul = <const uint8_t *>memchr(p, 0, bytes_left(cursor[0]))
    if nul == NULL:
        return NULL
    length[0] = <size_t>(nul - p)
    cursor.at = nul + 1
    return p
