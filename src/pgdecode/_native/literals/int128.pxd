"""Integers of 128 bits in two words, and the 64 by 64 bit product.

Decimals consist of them; floats are rounded with them.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint64_t

from pgdecode._native.arrow.column_builder cimport Column, put_fixed
from pgdecode._native.fault cimport FaultCode

cdef extern from *:
    """
    #include <stdint.h>
    #if defined(_MSC_VER) && !defined(__clang__)
    #include <intrin.h>
    static __inline uint64_t wide_product(uint64_t a, uint64_t b, uint64_t *high) {
        *high = __umulh(a, b);
        return a * b;
    }
    static __inline int wide_leading_zeros(uint64_t word) {
        unsigned long highest;
        _BitScanReverse64(&highest, word);
        return 63 - (int)highest;
    }
    #else
    __extension__ typedef unsigned __int128 wide_uint128;
    static inline uint64_t wide_product(uint64_t a, uint64_t b, uint64_t *high) {
        wide_uint128 both = (wide_uint128)a * b;
        *high = (uint64_t)(both >> 64);
        return (uint64_t)both;
    }
    static inline int wide_leading_zeros(uint64_t word) { return __builtin_clzll(word); }
    #endif
    static const uint64_t wide_tens[20] = {
        1ULL, 10ULL, 100ULL, 1000ULL, 10000ULL, 100000ULL, 1000000ULL, 10000000ULL, 100000000ULL, 1000000000ULL,
        10000000000ULL, 100000000000ULL, 1000000000000ULL, 10000000000000ULL, 100000000000000ULL,
        1000000000000000ULL, 10000000000000000ULL, 100000000000000000ULL, 1000000000000000000ULL,
        10000000000000000000ULL};
    """
    # The low word of a * b; `high` gets the high word.
    uint64_t product "wide_product"(uint64_t a, uint64_t b, uint64_t *high) noexcept nogil
    # For a word that is not 0.
    int leading_zeros "wide_leading_zeros"(uint64_t word) noexcept nogil
    # 10**0 to 10**19: all that fit into a word.
    const uint64_t TENS "wide_tens"[20]

cdef enum:
    WORD_DIGITS = 19  # decimal digits that always fit into 64 bits
    WIDE_DIGITS = 38  # and into 127 bits

cdef struct Int128:
    uint64_t low
    uint64_t high


cdef inline void int128_append(Int128 *wide, uint64_t factor, uint64_t addend) noexcept nogil:
    """Multiply and add. The caller guarantees that the result fits."""
    cdef uint64_t high = 0
    cdef uint64_t low = product(wide.low, factor, &high) + addend
    wide.high = wide.high * factor + high + (low < addend)
    wide.low = low


cdef inline void int128_shift(Int128 *wide, size_t n) noexcept nogil:
    """Multiply by 10**n, n at most `WIDE_DIGITS`. The caller guarantees that the result fits."""
    if n > WORD_DIGITS:
        int128_append(wide, TENS[WORD_DIGITS], 0)
        n -= WORD_DIGITS
    int128_append(wide, TENS[n], 0)


cdef inline void int128_digits(Int128 *wide, const uint8_t *digits, size_t n) noexcept nogil:
    """Append n decimal digits of text. The caller guarantees that the result fits."""
    cdef uint64_t word
    cdef size_t i, step
    while n:
        step = n if n < WORD_DIGITS else WORD_DIGITS
        word = 0
        for i in range(step):
            word = word * 10 + <uint64_t>(digits[i] - 0x30)
        int128_append(wide, TENS[step], word)
        digits += step
        n -= step


cdef inline FaultCode put_decimal(Column *column, Int128 magnitude, bint negative) noexcept nogil:
    """Append an item to a decimal128 column: two's complement, the low word first."""
    if negative:
        magnitude.low = ~magnitude.low + 1
        magnitude.high = ~magnitude.high + (magnitude.low == 0)
    return put_fixed(column, &magnitude, sizeof(magnitude))
