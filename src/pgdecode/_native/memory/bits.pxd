"""Packs one bit for each of a run of bytes, at any position among other bits.

Threads that write consecutive runs may share a byte of bits at a border. One thread at a time writes such bytes; all
threads write the bytes between them. The function that writes the first bit of a byte clears the byte.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint64_t

from pgdecode._native.cursor cimport le64

cdef extern from *:
    """
    #if defined(_MSC_VER)
    #include <intrin.h>
    static __inline int pgdecode_lowest_bit(uint64_t word) {
        unsigned long lowest;
        _BitScanForward64(&lowest, word);
        return (int)lowest;
    }
    #else
    static inline int pgdecode_lowest_bit(uint64_t word) { return __builtin_ctzll(word); }
    #endif
    """
    # Index of the lowest bit of a word that is not 0.
    int lowest_bit "pgdecode_lowest_bit"(uint64_t word) noexcept nogil


cdef inline uint64_t lowest_bits(uint64_t bytes, bint are_letters) noexcept nogil:
    """Whether a byte is 1 and not 0; for a cell's letter, whether the cell has a value.

    t (0x74) and b (0x62) have a value, n (0x6e) and u (0x75) have none: only n has bit 3, and only u has bit 0.
    """
    if are_letters:
        bytes = ~(bytes | (bytes >> 3))
    return bytes & <uint64_t>0x0101010101010101


cdef inline uint8_t gathered(uint64_t bytes) noexcept nogil:
    """The lowest bits of eight bytes that are 0 or 1. The first byte's bit is the lowest."""
    # Multiplication by 2**(56 - 7 * k) moves the bit of byte k to 56 + k. No bits overlap.
    return <uint8_t>(bytes * <uint64_t>0x0102040810204080 >> 56)


cdef inline void put_between(
    uint8_t *bits, size_t first, const uint8_t *bytes, size_t n, bint are_letters
) noexcept nogil:
    """Write the bits, from bit `first` on, of those of n bytes that fill a byte of bits."""
    cdef size_t i = (8 - (first & 7)) & 7
    while i + 8 <= n:
        bits[(first + i) >> 3] = gathered(lowest_bits(le64(bytes + i), are_letters))
        i += 8


cdef inline void put_bit(uint8_t *bits, size_t at, uint8_t bit) noexcept nogil:
    if at & 7 == 0:
        bits[at >> 3] = 0
    bits[at >> 3] |= <uint8_t>(bit << (at & 7))


cdef inline void put_borders(
    uint8_t *bits, size_t first, const uint8_t *bytes, size_t n, bint are_letters
) noexcept nogil:
    """Write the other bits: those in a byte of bits that is shared with the bytes before or after."""
    cdef size_t i = 0
    while i < n and (first + i) & 7:
        put_bit(bits, first + i, <uint8_t>lowest_bits(bytes[i], are_letters))
        i += 1
    i += (n - i) // 8 * 8
    while i < n:
        put_bit(bits, first + i, <uint8_t>lowest_bits(bytes[i], are_letters))
        i += 1


cdef inline void fill_bits(uint8_t *bits, size_t first, size_t n, uint8_t bit) noexcept nogil:
    """Write the same bit n times."""
    cdef size_t i = 0
    while i < n:
        if (first + i) & 7 == 0 and n - i >= 8:
            bits[(first + i) >> 3] = <uint8_t>(0 - bit)
            i += 8
        else:
            put_bit(bits, first + i, bit)
            i += 1
