"""Values in Parquet's plain encoding."""

from libc.stddef cimport size_t
from libc.stdint cimport int8_t, int64_t, uint8_t, uint32_t

from pgdecode._native.fault cimport unlikely


def longest(const int8_t[::1] page):
    """The length of the longest byte array in a page, each behind its length in 4 bytes; -1 if one does not fit.

    `page`: pa.Buffer, which is of signed bytes.
    """
    cdef const uint8_t *at
    cdef size_t left = <size_t>page.shape[0]
    cdef uint32_t length
    cdef int64_t found = 0
    if left == 0:
        return 0
    at = <const uint8_t *>&page[0]
    with nogil:
        while left:
            if unlikely(left < 4):
                found = -1
                break
            length = <uint32_t>at[0] | <uint32_t>at[1] << 8 | <uint32_t>at[2] << 16 | <uint32_t>at[3] << 24
            if unlikely(length > left - 4):
                found = -1
                break
            found = max(found, <int64_t>length)
            at += 4 + <size_t>length
            left -= 4 + <size_t>length
    return found
