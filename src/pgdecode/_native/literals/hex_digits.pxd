"""Reads bytes that are written as pairs of hexadecimal digits in either case."""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint64_t

from pgdecode._native.cursor cimport be64, put_be64


cdef inline uint64_t pack_digits(uint64_t word, uint64_t *wrong) noexcept nogil:
    """The four bytes, in the low half, of eight hexadecimal digits in either case."""
    cdef uint64_t high = word & <uint64_t>0x8080808080808080
    cdef uint64_t low = word & <uint64_t>0x7F7F7F7F7F7F7F7F
    cdef uint64_t small = low | <uint64_t>0x2020202020202020
    # The high bit is set: from 0 on, past 9; from a on, past f.
    cdef uint64_t digit = (low + <uint64_t>0x5050505050505050) & ~(low + <uint64_t>0x4646464646464646)
    cdef uint64_t letter = (small + <uint64_t>0x1F1F1F1F1F1F1F1F) & ~(small + <uint64_t>0x1919191919191919)
    wrong[0] |= high | (~(digit | letter) & <uint64_t>0x8080808080808080)
    # The low four bits of a letter are its value minus 9. Its bit 6 is set.
    low = (low & <uint64_t>0x0F0F0F0F0F0F0F0F) + 9 * (low >> 6 & <uint64_t>0x0101010101010101)
    low = (low >> 4 | low) & <uint64_t>0x00FF00FF00FF00FF
    low = (low >> 8 | low) & <uint64_t>0x0000FFFF0000FFFF
    return (low >> 16 | low) & <uint64_t>0xFFFFFFFF


cdef inline bint put_hex(const uint8_t *digits, size_t n, uint8_t *to) noexcept nogil:
    """Write the n / 2 bytes of n digits, and up to SLACK more. False if they are not pairs of digits."""
    cdef const uint8_t *end = digits + n
    cdef uint64_t wrong = n & 1
    cdef uint64_t last = <uint64_t>0x3030303030303030
    while end - digits >= 8:
        put_be64(to, pack_digits(be64(digits), &wrong) << 32)
        digits += 8
        to += 4
    n &= 7
    if n:
        # Zeros replace the missing digits.
        while digits != end:
            last = last << 8 | digits[0]
            digits += 1
        put_be64(to, pack_digits(last, &wrong) << (64 - 4 * n))
    return wrong == 0
