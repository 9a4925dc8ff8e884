"""One bit for each of a row of bytes, at any place among other bits.

Threads that write beside each other may share a byte of bits at a border: those bits are put by one of them at a time,
and the bytes between by all at once. The function that puts the first bit of a byte clears it.
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
    # The place of the lowest bit of a word that is not 0.
    int lowest_bit "pgdecode_lowest_bit"(uint64_t word) noexcept nogil


cdef inline uint64_t lowest_bits(uint64_t bytes, bint are_letters) noexcept nogil:
    """Of each byte whether it is 1 and not 0; of a cell's letter, whether there is a value.

    There is one for t (0x74) and b (0x62), none for n (0x6e) and u (0x75): bit 3 is set in n alone, bit 0 in u alone.
    """
    if are_letters:
        bytes = ~(bytes | (bytes >> 3))
    return bytes & <uint64_t>0x0101010101010101


cdef inline uint8_t gathered(uint64_t bytes) noexcept nogil:
    """The lowest bits of eight bytes that are 0 or 1, first byte lowest."""
    # Byte k, times 2**(56 - 7 * k), puts its bit at 56 + k; none overlap.
    return <uint8_t>(bytes * <uint64_t>0x0102040810204080 >> 56)


cdef inline void put_between(
    uint8_t *bits, size_t first, const uint8_t *bytes, size_t n, bint are_letters
) noexcept nogil:
    """Put the bits of those n bytes, from bit `first` on, that have a byte of bits for themselves."""
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
    """Put the bits of those that share their byte of bits with bytes before, which have theirs already, or behind."""
    cdef size_t i = 0
    while i < n and (first + i) & 7:
        put_bit(bits, first + i, <uint8_t>lowest_bits(bytes[i], are_letters))
        i += 1
    i += (n - i) // 8 * 8
    while i < n:
        put_bit(bits, first + i, <uint8_t>lowest_bits(bytes[i], are_letters))
        i += 1


cdef inline void fill_bits(uint8_t *bits, size_t first, size_t n, uint8_t bit) noexcept nogil:
    """Put the same bit n times."""
    cdef size_t i = 0
    while i < n:
        if (first + i) & 7 == 0 and n - i >= 8:
            bits[(first + i) >> 3] = <uint8_t>(0 - bit)
            i += 8
        else:
            put_bit(bits, first + i, bit)
            i += 1
