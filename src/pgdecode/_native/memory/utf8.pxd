"""UTF-8 as PostgreSQL and Arrow define it: no overlong forms, no surrogates, nothing past U+10FFFF."""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcpy


cdef inline bint is_plain(const uint8_t *text, size_t length) noexcept nogil:
    """Whether text is ASCII without NUL, as most text is; eight bytes at a time."""
    cdef uint64_t word = 0
    cdef uint64_t seen = 0
    cdef size_t at = 0
    if length < 8:
        while at < length:
            # The high bit is set in NUL minus one, and in every byte that is not ASCII. It is not set otherwise.
            seen |= text[at] | <uint8_t>(text[at] - 1)
            at += 1
        return not seen & 0x80
    while at + 8 <= length:
        memcpy(&word, text + at, 8)
        seen |= word | (word - <uint64_t>0x0101010101010101)
        at += 8
    memcpy(&word, text + length - 8, 8)
    seen |= word | (word - <uint64_t>0x0101010101010101)
    return not seen & <uint64_t>0x8080808080808080


cdef inline size_t utf8_prefix(const uint8_t *text, size_t length) noexcept nogil:
    """Length of the longest valid prefix; `length` if all of it is UTF-8."""
    cdef size_t at = 0
    cdef size_t more, i
    cdef uint8_t lead, low, high
    cdef uint64_t word = 0
    while at < length:
        if length - at >= 8:
            memcpy(&word, text + at, 8)
            if not word & <uint64_t>0x8080808080808080:
                at += 8
                continue
        lead = text[at]
        if lead < 0x80:
            at += 1
            continue
        # Limits of the second byte: Unicode, table 3-7 (well-formed UTF-8 byte sequences).
        low = 0x80
        high = 0xBF
        if 0xC2 <= lead <= 0xDF:
            more = 1
        elif 0xE0 <= lead <= 0xEF:
            more = 2
            if lead == 0xE0:
                low = 0xA0
            elif lead == 0xED:
                high = 0x9F
        elif 0xF0 <= lead <= 0xF4:
            more = 3
            if lead == 0xF0:
                low = 0x90
            elif lead == 0xF4:
                high = 0x8F
        else:
            return at
        if more > length - at - 1:
            return at
        if not low <= text[at + 1] <= high:
            return at
        for i in range(2, more + 1):
            if text[at + i] & 0xC0 != 0x80:
                return at
        at += more + 1
    return at
