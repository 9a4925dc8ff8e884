"""Reads runs of decimal digits in text, eight at a time if possible."""

from libc.stdint cimport uint8_t, uint64_t

from pgdecode._native.cursor cimport be64

# A word of text, first byte highest, is XORed with '0' in every byte, which leaves the values of digits.


cdef inline uint64_t other_bytes(uint64_t word) noexcept nogil:
    """Not 0 if some byte is not a digit: a digit plus 0x76 leaves the high bit clear, and nothing carries out of it."""
    return (word + <uint64_t>0x7676767676767676 | word) & <uint64_t>0x8080808080808080


cdef inline uint64_t number_of(uint64_t word) noexcept nogil:
    """The number of eight digits, by pairs and groups of four."""
    word = ((word >> 8) * 10 + word) & <uint64_t>0x00FF00FF00FF00FF
    word = ((word >> 16) * 100 + word) & <uint64_t>0x0000FFFF0000FFFF
    return ((word >> 32) * 10000 + word) & <uint64_t>0xFFFFFFFF


cdef inline bint digits_before(const uint8_t *end, size_t n, uint64_t *number) noexcept nogil:
    """Read the n bytes before `end`, 1 to 19, as a number. Returns whether all are digits.

    Whole words are read. So up to 7 bytes before the digits are read too, which the caller guarantees to exist.
    """
    cdef uint64_t word = be64(end - 8) ^ <uint64_t>0x3030303030303030
    cdef uint64_t above, top
    cdef uint64_t others
    if n <= 8:
        word &= <uint64_t>0xFFFFFFFFFFFFFFFF >> (64 - 8 * n)
        number[0] = number_of(word)
        return other_bytes(word) == 0
    others = other_bytes(word)
    above = be64(end - 16) ^ <uint64_t>0x3030303030303030
    if n <= 16:
        above &= <uint64_t>0xFFFFFFFFFFFFFFFF >> (128 - 8 * n)
        number[0] = number_of(above) * 100000000 + number_of(word)
        return others | other_bytes(above) == 0
    top = (be64(end - 24) ^ <uint64_t>0x3030303030303030) & <uint64_t>0xFFFFFFFFFFFFFFFF >> (192 - 8 * n)
    number[0] = (number_of(top) * 100000000 + number_of(above)) * 100000000 + number_of(word)
    return others | other_bytes(above) | other_bytes(top) == 0


cdef inline const uint8_t *skip_digits(const uint8_t *at, const uint8_t *end, uint64_t *number) noexcept nogil:
    """Append the next digits to a number, modulo 2**64. Returns the first other byte, or the end."""
    cdef uint64_t word
    cdef uint64_t so_far = number[0]
    cdef uint8_t digit
    while end - at >= 8:
        word = be64(at) ^ <uint64_t>0x3030303030303030
        if other_bytes(word):
            break
        so_far = so_far * 100000000 + number_of(word)
        at += 8
    while at != end:
        digit = <uint8_t>(at[0] - 0x30)
        if digit > 9:
            break
        so_far = so_far * 10 + digit
        at += 1
    number[0] = so_far
    return at
