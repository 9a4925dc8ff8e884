"""Checked reads of a payload: each read is compared with the bytes left.

These reads find all faults. The loops over common rows (`scan/fast_path`, `scan/tuple_copy`, `rows/cell_index`,
`changes/map_values`) have their own checks. Those in `scan` may load some bytes after a payload's end: never after the
end of the Arrow buffer, and no byte after a payload influences a result.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memchr

cdef struct Cursor:
    # Passed and returned by value, so that two pointers stay in registers.
    const uint8_t *at
    const uint8_t *end


cdef inline Cursor cursor_of(const uint8_t *value, size_t length) noexcept nogil:
    cdef Cursor cursor
    cursor.at = value
    cursor.end = value + length
    return cursor


cdef inline size_t bytes_left(Cursor cursor) noexcept nogil:
    return <size_t>(cursor.end - cursor.at)


cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    /* Payloads are not aligned, so there are no pointer casts. Compilers make one load and a swap of the shifts, but
       not always; where there is a builtin for the swap, it is used. PGDECODE_PLAIN_SHIFTS builds the other branch, to
       test it. */
    #if defined(__GNUC__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ && !defined(PGDECODE_PLAIN_SHIFTS)
    static inline uint16_t pgdecode_be16(const uint8_t *p)
    {
        uint16_t w;
        memcpy(&w, p, 2);
        return __builtin_bswap16(w);
    }
    static inline uint32_t pgdecode_be32(const uint8_t *p)
    {
        uint32_t w;
        memcpy(&w, p, 4);
        return __builtin_bswap32(w);
    }
    static inline uint64_t pgdecode_be64(const uint8_t *p)
    {
        uint64_t w;
        memcpy(&w, p, 8);
        return __builtin_bswap64(w);
    }
    static inline uint64_t pgdecode_le64(const uint8_t *p)
    {
        uint64_t w;
        memcpy(&w, p, 8);
        return w;
    }
    static inline void pgdecode_put_be64(uint8_t *p, uint64_t w)
    {
        w = __builtin_bswap64(w);
        memcpy(p, &w, 8);
    }
    static inline void pgdecode_put_le64(uint8_t *p, uint64_t w) { memcpy(p, &w, 8); }
    #else
    static inline uint16_t pgdecode_be16(const uint8_t *p) { return (uint16_t)(p[0] << 8 | p[1]); }
    static inline uint32_t pgdecode_be32(const uint8_t *p)
    {
        return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | (uint32_t)p[3];
    }
    static inline uint64_t pgdecode_be64(const uint8_t *p)
    {
        return (uint64_t)pgdecode_be32(p) << 32 | pgdecode_be32(p + 4);
    }
    static inline uint64_t pgdecode_le64(const uint8_t *p)
    {
        uint64_t w = 0;
        for (int i = 7; i >= 0; i--)
            w = w << 8 | p[i];
        return w;
    }
    static inline void pgdecode_put_be64(uint8_t *p, uint64_t w)
    {
        for (int i = 7; i >= 0; i--, w >>= 8)
            p[i] = (uint8_t)w;
    }
    static inline void pgdecode_put_le64(uint8_t *p, uint64_t w)
    {
        for (int i = 0; i < 8; i++, w >>= 8)
            p[i] = (uint8_t)w;
    }
    #endif
    """
    uint16_t be16 "pgdecode_be16"(const uint8_t *p) noexcept nogil
    uint32_t be32 "pgdecode_be32"(const uint8_t *p) noexcept nogil
    uint64_t be64 "pgdecode_be64"(const uint8_t *p) noexcept nogil
    uint64_t le64 "pgdecode_le64"(const uint8_t *p) noexcept nogil
    void put_be64 "pgdecode_put_be64"(uint8_t *p, uint64_t word) noexcept nogil
    void put_le64 "pgdecode_put_le64"(uint8_t *p, uint64_t word) noexcept nogil


cdef inline const uint8_t *take(Cursor *cursor, size_t length) noexcept nogil:
    """The next `length` bytes; NULL if fewer are left (the cursor then stays)."""
    cdef const uint8_t *p = cursor.at
    if length > bytes_left(cursor[0]):
        return NULL
    cursor.at += length
    return p


cdef inline const uint8_t *take_string(Cursor *cursor, size_t *length) noexcept nogil:
    """A NUL-terminated string without its NUL; NULL without NUL (the cursor then stays)."""
    cdef const uint8_t *p = cursor.at
    cdef const uint8_t *nul = NULL
    if p != cursor.end:
        nul = <const uint8_t *>memchr(p, 0, bytes_left(cursor[0]))
    if nul == NULL:
        return NULL
    length[0] = <size_t>(nul - p)
    cursor.at = nul + 1
    return p


cdef enum:
    # How far ahead payloads are prefetched, if a loop is faster than memory.
    PREFETCH_BYTES = 3072


cdef extern from *:
    """
    #if defined(__GNUC__)
    #define pgdecode_prefetch(p) __builtin_prefetch(p)
    #else
    #define pgdecode_prefetch(p) ((void)(p))
    #endif
    """
    # It is not a read, so that any address is allowed.
    void prefetch "pgdecode_prefetch"(const void *p) noexcept nogil
